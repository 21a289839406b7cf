"""``spark.readStream.format("whence")``: each message once, over rolls, limits, restarts and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import whence
from tests.spark import streamer
from tests.spark.processes import starting
from tests.spark.stores import SIZES, write_store
from tests.store_maker import FILE_SIZE, T, make_store, message
from whence.pipeline.source import register

pytestmark = pytest.mark.slow

LIMIT_S = 60
KILLS = 2  # one when a batch was begun, one when it was done
MESSAGES = [message(keys=f"k{number} every", at=number, body=b"b" * (number * 37 % 700)) for number in range(60)]


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    register(spark)


class Stream:
    """A query over a store that keeps its checkpoint and what it wrote, run after run."""

    def __init__(self, spark: Any, folder: Path, store: Path) -> None:
        self.spark = spark
        self.out, self.checkpoint = folder / "out", folder / "checkpoint"
        self.store = store

    def start(self, **options: Any) -> Any:
        trigger = options.pop("trigger", {"availableNow": True})
        reader = self.spark.readStream.format("whence").options(**options)
        writer = reader.load(str(self.store)).writeStream.format("parquet").trigger(**trigger)
        return writer.option("checkpointLocation", str(self.checkpoint)).start(str(self.out))

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Take what is there now; the progress of each batch that had rows."""
        query = self.start(**options)
        query.awaitTermination(LIMIT_S)
        assert not query.isActive
        return [each for each in query.recentProgress if each["numInputRows"]]

    def rows(self, *columns: str) -> list[Any]:
        return [tuple(row) for row in self.spark.read.parquet(str(self.out)).select(*columns).collect()]

    def offsets(self) -> list[int]:
        return sorted(offset for (offset,) in self.rows("physical_offset"))


def test_what_is_there_comes_once_in_batches_that_the_limit_allows(spark, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    stream = Stream(spark, tmp_path, made.folder)
    batches = stream.run(maxBytesPerTrigger=8000, columns="physical_offset,size,topic,body")
    assert stream.offsets() == made.offsets
    assert len(batches) > 2
    assert {(offset, body) for offset, body in stream.rows("physical_offset", "body")} == {
        (record.physical_offset, record.stored_body) for record in made.records
    }
    last = batches[-1]["sources"][0]
    assert f'"offset": {made.end_offset}' in str(last["endOffset"]).replace("'", '"')
    assert f'"offset": {made.end_offset}' in str(last["latestOffset"]).replace("'", '"')
    assert stream.run(maxBytesPerTrigger=8000, columns="physical_offset,size,topic,body") == []
    assert stream.offsets() == made.offsets


def test_a_query_that_runs_sees_what_is_appended_over_rolls(spark, tmp_path):
    store = write_store(tmp_path / "store", 40)
    stream = Stream(spark, tmp_path, store)
    query = stream.start(trigger={"processingTime": "0 seconds"}, columns="physical_offset")
    try:
        for seed in (2, 3):
            write_store(store, 150, seed=seed, first=seed * 1000)
            with whence.open(store) as opened:
                wanted = [each.physical_offset for each in opened.find(since=0, limit=None, system_topics=True)]
            query.processAllAvailable()
            assert stream.offsets() == sorted(wanted)
    finally:
        query.stop()
    assert max(wanted) > 2 * SIZES.file_size


def test_rows_can_be_keys_and_a_begin_can_be_named(spark, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    keys = Stream(spark, tmp_path / "keys", made.folder)
    keys.run(rows="key", columns="key,physical_offset", startingOffsets=str(made.offsets[50]))
    assert sorted(keys.rows("key", "physical_offset")) == sorted(
        (key, made.offsets[number]) for number in range(50, 60) for key in (f"k{number}", "every")
    )
    late = Stream(spark, tmp_path / "late", made.folder)
    late.run(columns="physical_offset", startingTimestamp=str(T + 55), maxFilesPerTrigger=1)
    assert late.offsets() == made.offsets[55:]
    # As if it had been killed in its first batch, and came back when its age is that of a later message.
    shutil.rmtree(late.out)
    for path in (*(late.checkpoint / "commits").iterdir(), *(late.checkpoint / "offsets").glob("[1-9]")):
        path.unlink()
    late.run(columns="physical_offset", startingTimestamp=str(T + 59), maxFilesPerTrigger=1)
    assert late.offsets() == made.offsets[55:]


def test_what_expired_unread_fails_or_is_passed_over_as_asked(spark, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES[:20])
    stream = Stream(spark, tmp_path, made.folder)
    stream.run(columns="physical_offset")
    shutil.rmtree(made.folder)
    made = make_store(made.folder, MESSAGES)
    for path in made.log_files[:-2]:
        path.unlink()
    with pytest.raises(StreamingQueryException, match="bytes have expired before they were read"):
        stream.run(columns="physical_offset")
    stream.run(columns="physical_offset", failOnDataLoss="false")
    begin = int(made.log_files[0].name)
    assert stream.offsets() == [o for n, o in enumerate(made.offsets) if n < 20 or o >= begin]


def test_damage_fails_or_is_told_in_a_column_as_asked(spark, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    first, second, *_ = made.log_files
    data = bytearray(first.read_bytes())
    data[made.offsets[2] + 88] ^= 1
    first.write_bytes(data)
    second.unlink()
    stream = Stream(spark, tmp_path, made.folder)
    with pytest.raises(StreamingQueryException, match="the log has no bytes from offset 4096 to 8192"):
        stream.run(columns="physical_offset")
    shutil.rmtree(tmp_path / "checkpoint")
    stream.run(columns="physical_offset,topic", mode="permissive")
    rows = stream.rows("physical_offset", "topic", "damage")
    left = [o for n, o in enumerate(made.offsets) if n != 2 and not FILE_SIZE <= o < 2 * FILE_SIZE]
    assert sorted(offset for offset, _, damage in rows if damage is None) == left
    told = sorted((offset, damage) for offset, _, damage in rows if damage is not None)
    assert [offset for offset, _ in told] == [made.offsets[2], FILE_SIZE]
    assert "body has CRC" in told[0][1] and "has no bytes" in told[1][1]


def test_damage_in_the_newest_file_fails_or_is_told_and_the_query_goes_on(spark, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES[:6])
    data = bytearray(made.log_files[0].read_bytes())
    data[made.offsets[2] + 88] ^= 1
    made.log_files[0].write_bytes(data)
    stream = Stream(spark, tmp_path, made.folder)
    with pytest.raises(StreamingQueryException, match="3 whole records were found behind it"):
        stream.run(columns="physical_offset")
    assert stream.offsets() == made.offsets[:2]
    stream.run(columns="physical_offset", mode="permissive")
    assert stream.offsets() == made.offsets
    whole = make_store(tmp_path / "whole", MESSAGES).log_files
    for path in whole[1:]:
        shutil.copy(path, made.folder / "commitlog" / path.name)
    made.log_files[0].write_bytes(data[: made.end_offset] + whole[0].read_bytes()[made.end_offset :])
    query = stream.start(trigger={"processingTime": "0 seconds"}, columns="physical_offset", mode="permissive")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.option("mergeSchema", True).parquet(str(stream.out)).where("damage is not null")
    assert [row.physical_offset for row in rows.collect()] == [made.offsets[2]]
    assert stream.offsets() == make_store(tmp_path / "again", MESSAGES).offsets


# Killed


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start(store)`` streams it in a session of its own."""
    with starting(tmp_path / "tmp") as run:
        out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
        yield lambda store: run(sys.executable, streamer.__file__, store, out, checkpoint)


def await_commits(child: subprocess.Popen[str], checkpoint: Path, kind: str, count: int) -> None:
    """Wait until Spark has noted so many more batches, as begun (offsets) or as done (commits)."""

    def noted() -> int:
        return len([path for path in (checkpoint / kind).glob("*") if path.name.isdigit()])

    before = noted()
    deadline = time.monotonic() + LIMIT_S
    while noted() < before + count:
        assert child.poll() is None and time.monotonic() < deadline, child.communicate()
        time.sleep(0.002)


def killed_streams(start: Any, spark: Any, tmp_path: Path, seed: int, count: int) -> None:
    """Kill a stream at random moments while its log grows: in the end each message was written once."""
    random = Random(seed)
    store = write_store(tmp_path / "store", 120)
    stream = Stream(spark, tmp_path, store)
    for number in range(count):
        child = start(store)
        kind = ("offsets", "commits")[number % 2]
        await_commits(child, tmp_path / "checkpoint", kind, random.randrange(1, 5))
        time.sleep(random.random() * 0.1)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        write_store(store, 60, seed=number + 2, first=1000 * (number + 1))
    stream.run(columns="physical_offset,topic,body")
    with whence.open(store) as opened:
        messages = opened.find(since=0, limit=None, system_topics=True).messages
    assert stream.offsets() == sorted(each.physical_offset for each in messages)
    assert {(offset, bytes(body)) for offset, body in stream.rows("physical_offset", "body")} == {
        (each.physical_offset, each.body) for each in messages
    }


def test_a_stream_that_is_killed_delivers_each_message_once(start, spark, tmp_path):
    killed_streams(start, spark, tmp_path, 1, KILLS)


@pytest.mark.long(part=4, count=30)
def test_a_stream_that_is_killed_many_times_delivers_each_message_once(start, spark, tmp_path, long_count):
    killed_streams(start, spark, tmp_path, 2, long_count)
