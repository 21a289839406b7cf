"""The stream reader as Spark calls it, without Spark: limits, begins, targets and what it says of a loss."""

import json
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

from tests.pipeline.source_rows import read as read_batch
from tests.pipeline.test_export import build_index
from tests.reference import encode_record
from tests.store_maker import FILE_SIZE, T, make_store, message, place
from whence.errors import CorruptError, StoreError, UsageError
from whence.pipeline import stream_plan
from whence.pipeline.source_options import parse_options
from whence.pipeline.source_stream import WhenceStreamReader
from whence.store.commit_log import CommitLog

MESSAGES = [message(keys=f"k{number}", at=number, body=b"b" * 150) for number in range(60)]


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path / "store", MESSAGES)


def reader_of(made: Any, **given: Any) -> WhenceStreamReader:
    options = parse_options({"path": str(made.folder), "columns": "physical_offset", **given})
    return WhenceStreamReader(options, options.columns)


def read(reader: WhenceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The batch between two offsets, read by a copy of the reader, as in a task."""
    copy = pickle.loads(pickle.dumps(WhenceStreamReader(reader._options, reader._names)))
    parts = reader.partitions(start, end)
    return [o for part in parts for batch in copy.read(part) for o in batch.column("physical_offset").to_pylist()]


def noted(place: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes out of Spark's checkpoint."""
    told: dict[str, Any] = json.loads(json.dumps(place))
    return told


def grown_store(folder: Path) -> tuple[Any, Callable[[], None]]:
    """Most of a store, whose clock is put back now and then, and what gives it the rest."""
    times = [number - (number // 20) * 12 for number in range(60)]
    messages = [message(keys=f"k{number} every", at=times[number], body=b"b" * 150) for number in range(60)]
    whole, part = make_store(folder / "whole", messages), make_store(folder / "store", messages[:30])

    def grow() -> None:
        for path in whole.log_files:
            (part.folder / "commitlog" / path.name).write_bytes(path.read_bytes())

    return replace(whole, folder=part.folder), grow


def test_limits_come_from_options(made):
    assert reader_of(made).getDefaultReadLimit() == ReadAllAvailable()
    assert reader_of(made, maxBytesPerTrigger="77").getDefaultReadLimit() == ReadMaxBytes(77)
    assert reader_of(made, maxFilesPerTrigger="2").getDefaultReadLimit() == ReadMaxFiles(2)
    with pytest.raises(UsageError, match="exclude each other"):
        reader_of(made, maxBytesPerTrigger="77", maxFilesPerTrigger="2")


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxBytes(1000), ReadMaxFiles(1)])
def test_batches_have_all_messages_once_until_there_are_no_more(made, limit):
    reader = reader_of(made)
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(noted(start), limit)) != start:
        found += read(reader, noted(start), noted(end))
        start = end
    assert found == made.offsets
    assert reader.reportLatestOffset().items() <= start.items()
    assert reader.partitions(start, start) == []
    reader.stop()


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, 0),
        ({"startingOffsets": "5th"}, 5),
        ({"startingTimestamp": str(T + 17)}, 17),
        ({"startingTimestamp": str(T + 17), "rows": "key"}, 17),
        ({"startingTimestamp": str(T + 17), "mode": "permissive"}, 17),
    ],
)
@pytest.mark.parametrize("limit", [{}, {"maxBytesPerTrigger": "1000"}, {"maxFilesPerTrigger": "1"}])
def test_a_stream_that_begins_anew_after_each_batch_has_all_messages_once(tmp_path, given, first, limit):
    made, grow = grown_store(tmp_path)
    place, found, batches = None, [], 0
    while True:
        # Each run reads its options again: what was 15 minutes ago is another time by then.
        options = given | limit
        if "startingTimestamp" in given:
            options["startingTimestamp"] = str(int(given["startingTimestamp"]) + batches * 1000)
        if "startingOffsets" in given:
            options["startingOffsets"] = str(made.offsets[5])
        reader = reader_of(made, **options)
        place = place or noted(reader.initialOffset())
        end = noted(reader.latestOffset(place, reader.getDefaultReadLimit()))
        if end == place and batches:
            break
        rows = read(reader, place, end)
        assert rows == read(reader_of(made, **options), place, end), "a batch that runs again has the same rows"
        reader.stop()
        found += rows
        place, batches = end, batches + 1
        if batches == 1:
            grow()
    assert found == [offset for offset in made.offsets[first:] for _ in range(2 if "rows" in given else 1)]
    assert batches >= 2


def test_a_first_batch_that_was_not_finished_begins_where_it_did(tmp_path):
    made, grow = grown_store(tmp_path)
    reader = reader_of(made, startingTimestamp=str(T + 17))
    start = reader.initialOffset()
    end = noted(reader.latestOffset(noted(start), ReadAllAvailable()))
    assert read(reader, noted(start), end) == made.offsets[17:30]
    grow()
    for options in ({"startingTimestamp": str(T + 35)}, {"startingTimestamp": str(T + 900)}, {}):
        # Spark notes where a batch ends before it runs, and asks again where the first begins.
        again = reader_of(made, **options)
        assert read(again, noted(again.initialOffset()), end) == made.offsets[17:30]
    assert again.partitions(end, end) == []


@pytest.mark.parametrize("is_built", [False, True])
def test_a_begin_can_be_named(made, is_built):
    if is_built:
        build_index(made)
    begins = {
        "earliest": 0,
        "latest": made.end_offset,
        str(made.offsets[7]): made.offsets[7],
        str(made.end_offset): made.end_offset,
    }
    for named, offset in begins.items():
        assert reader_of(made, startingOffsets=named).initialOffset()["offset"] == offset
    late = reader_of(made, startingTimestamp=str(T + 50))
    start = late.initialOffset()
    assert read(late, start, late.latestOffset(start, ReadAllAvailable())) == made.offsets[50:]
    with pytest.raises(UsageError, match="no record begins at offset 3"):
        reader_of(made, startingOffsets="3").initialOffset()
    for name in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(UsageError, match="a stream has no end"):
            reader_of(made, **{name: "5"}).initialOffset()


def test_what_comes_after_the_begin_of_a_query_that_takes_what_is_there_is_left_for_the_next(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES[:20])
    reader = reader_of(made)
    reader.prepareForTriggerAvailableNow()
    later = make_store(tmp_path / "later", MESSAGES)
    for path in later.log_files:
        (made.folder / "commitlog" / path.name).write_bytes(path.read_bytes())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader, start, end) == made.offsets
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.reportLatestOffset()["offset"] == later.end_offset


def test_what_expired_unread_is_an_error_or_a_warning(made, caplog):
    reader, calm = reader_of(made), reader_of(made, failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1000))
    for path in made.log_files[:2]:
        path.unlink()
    what = "bytes have expired before they were read"
    with pytest.raises(StoreError, match=what):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(StoreError, match=what):
        reader.partitions(start, start)
    end = calm.latestOffset(start, ReadAllAvailable())
    assert read(calm, start, end) == [offset for offset in made.offsets if offset >= 2 * FILE_SIZE]
    assert end["lost_bytes"] == 2 * FILE_SIZE - start["offset"]
    assert [what in record.message for record in caplog.records] == [True]
    assert f"the stream goes on at {2 * FILE_SIZE}" in caplog.text


def test_an_offset_before_the_log_s_begin_is_an_error_or_the_begin(made):
    made.log_files[0].unlink()
    with pytest.raises(StoreError, match="startingOffsets 0 lies before the log's begin, at 4096"):
        reader_of(made, startingOffsets="0").initialOffset()
    assert reader_of(made, startingOffsets="0", failOnDataLoss="false").initialOffset()["offset"] == FILE_SIZE


def test_a_gap_is_an_error_or_a_row(made):
    made.log_files[1].unlink()
    reader = reader_of(made)
    start = reader.initialOffset()
    with pytest.raises(CorruptError, match="the log has no bytes from offset 4096 to 8192"):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    calm = reader_of(made, mode="permissive")
    left = [offset for offset in made.offsets if not FILE_SIZE <= offset < 2 * FILE_SIZE]
    assert sorted(read(calm, start, calm.latestOffset(start, ReadAllAvailable()))) == sorted([*left, FILE_SIZE])


# What stands at the log's end is damage if whole records lie behind it, and stay there.


def flip(made: Any, offset: int) -> None:
    """Damage the body of a record."""
    path = made.folder / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[offset % FILE_SIZE + 90] ^= 1
    path.write_bytes(data)


def run(made: Any, place: dict[str, Any] | None = None, **given: Any) -> tuple[list[int], dict[str, Any]]:
    """A run of a stream that takes what is there, in the way that Spark asks; all is read twice, as after a kill."""
    is_live = given.pop("live", False)
    reader = reader_of(made, **given)
    if not is_live:
        reader.prepareForTriggerAvailableNow()
    start = place or noted(reader.initialOffset())
    found: list[int] = []
    while (end := noted(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
        rows = read(reader, start, end)
        assert rows == read(reader_of(made, **given), start, end)
        found += rows
        start = end
    assert reader.reportLatestOffset()["offset"] == start["offset"]
    reader.stop()
    return found, start


@pytest.fixture
def soon(monkeypatch):
    """Lets a stream look twice at once, and also where nothing is written."""
    monkeypatch.setattr(stream_plan, "STILL_S", 0)
    monkeypatch.setattr(stream_plan, "EMPTY_S", 0)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("limit", [{}, {"maxBytesPerTrigger": "2000"}])
class TestDamageInTheNewestFile:
    """Of 60 records the last file has those from 48 on."""

    def test_is_an_error_when_all_before_it_was_taken(self, made, live, limit):
        flip(made, made.offsets[52])
        with pytest.raises(CorruptError) as told_of_batch:
            read_batch(made.folder)
        reader = reader_of(made, **limit)
        if not live:
            reader.prepareForTriggerAvailableNow()
        found: list[int] = []
        start = noted(reader.initialOffset())
        while len(found) < 52:
            end = noted(reader.latestOffset(start, reader.getDefaultReadLimit()))
            found += read(reader, start, end)
            start = end
        assert found == made.offsets[:52]
        with pytest.raises(CorruptError, match="7 whole records were found behind it") as told:
            reader.latestOffset(start, reader.getDefaultReadLimit())
        assert str(told.value) == str(told_of_batch.value)
        with pytest.raises(CorruptError, match="7 whole records"):
            run(made, start, live=live, **limit)
        # Who then asks for what is left of the log gets it from there.
        assert run(made, start, live=live, mode="permissive", **limit)[0] == made.offsets[52:]

    def test_is_one_row_and_the_stream_goes_on_behind_it(self, made, live, limit):
        for number in (47, 48, 50, 52, 58):
            flip(made, made.offsets[number])
        rows, place = run(made, live=live, mode="permissive", **limit)
        assert rows == made.offsets
        assert place["offset"] == made.end_offset
        assert run(made, place, live=live, mode="permissive", **limit) == ([], place)

    def test_may_be_where_a_batch_or_a_part_ends(self, made, live, limit):
        bad = made.offsets[49:54]
        for offset in bad:
            flip(made, offset)
        for parts in ("1", "60"):
            rows, _ = run(made, live=live, mode="permissive", minPartitions=parts, **limit)
            assert [offset for offset in rows if offset not in bad] == [*made.offsets[:49], *made.offsets[54:]]
            assert bad[0] in rows and len(rows) == len(set(rows))

    def test_may_be_its_last_record_or_its_first_or_a_page_of_zeros(self, made, live, limit):
        flip(made, made.offsets[59])
        assert run(made, live=live, **limit)[0] == made.offsets[:59], "a cut tail is none"
        flip(made, made.offsets[59])
        path = made.log_files[-1]
        first = next(offset for offset in made.offsets if offset >= int(path.name))
        path.write_bytes(bytes(1000) + path.read_bytes()[1000:])
        with pytest.raises(CorruptError, match=f"at offset {first}"):
            run(made, live=live, **limit)
        left = [offset for offset in made.offsets if offset < first or offset >= first + 1000]
        assert run(made, live=live, mode="permissive", **limit)[0] == sorted([*left, first])

    def test_is_told_once_however_the_log_grows_and_the_stream_is_stopped(self, tmp_path, live, limit):
        whole = make_store(tmp_path / "whole", MESSAGES)
        bad = whole.offsets[6]
        given = {"live": live, "mode": "permissive", **limit}
        found: list[int] = []
        place = None
        for count in (7, 8, 10, 11, 12, 25, 60):
            shutil.rmtree(tmp_path / "store", ignore_errors=True)
            made = make_store(tmp_path / "store", MESSAGES[:count])
            flip(made, bad)
            rows, place = run(made, place, **given)
            found += rows
            assert found == made.offsets[: 6 if count == 7 else count]


@pytest.mark.usefixtures("soon")
def test_a_stream_that_runs_finds_damage_at_the_end_when_the_log_goes_on(tmp_path, monkeypatch):
    """Each time in the reader that was there before, and without a look at each round."""
    looks: list[int] = []
    first_behind = CommitLog.first_behind

    def look(log: CommitLog, end: int) -> Any:
        looks.append(end)
        return first_behind(log, end)

    monkeypatch.setattr(CommitLog, "first_behind", look)
    monkeypatch.setattr(stream_plan, "STILL_S", 0.02)
    made = make_store(tmp_path / "store", MESSAGES[:7])
    flip(made, bad := made.offsets[6])
    reader = reader_of(made, mode="permissive")
    place = noted(reader.latestOffset(noted(reader.initialOffset()), ReadAllAvailable()))
    for _ in range(20):
        assert reader.latestOffset(place, ReadAllAvailable()) == place
    assert looks == [bad]
    for count in (8, 9, 13):
        time.sleep(0.1)
        later = make_store(tmp_path / str(count), MESSAGES[:count])
        flip(later, bad)
        made.log_files[0].write_bytes(later.log_files[0].read_bytes())
        end = noted(reader.latestOffset(place, ReadAllAvailable()))
        assert read(reader, place, end) == [offset for offset in later.offsets if offset >= place["offset"]]
        place = end
    assert reader.reportLatestOffset()["offset"] == later.end_offset


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("mode", ["failfast", "permissive"])
def test_what_a_crash_left_behind_the_end_is_waited_for(tmp_path, caplog, mode):
    """A broker that is started again leaves it there, and writes over it, byte by byte."""
    made = make_store(tmp_path / "store", MESSAGES[:15])
    old = made.log_files[0].read_bytes()
    again = [message(keys=f"n{number}", at=60_000 + number, body=b"n" * (130 + 9 * number)) for number in range(5)]
    records = place([*MESSAGES[:9], *again])
    reader = reader_of(made, mode=mode)
    start, found = None, []
    for record in records[9:]:
        data, at = encode_record(record), record.physical_offset
        for written in range(1, len(data) + 1, 1 if start is None else 7):
            done = made.log_files[0].read_bytes()[:at] + data[:written]
            made.log_files[0].write_bytes(done + old[len(done) :])
            if start is None and written < len(data):
                continue
            start = start or noted(reader.initialOffset())
            end = noted(reader.latestOffset(start, ReadAllAvailable()))
            found += read(reader, start, end)
            start = end
        made.log_files[0].write_bytes((done := done[:at] + data) + old[len(done) :])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert found + read(reader, start, end) == [record.physical_offset for record in records]
    assert ["the stream waits there" in each.message for each in caplog.records] == [True]


def test_a_record_in_the_making_is_no_damage_though_older_ones_lie_behind_it(tmp_path, monkeypatch):
    made = make_store(tmp_path / "store", MESSAGES[:15])
    path, bad = made.log_files[0], made.offsets[9]
    whole = path.read_bytes()
    path.write_bytes(whole[:bad] + whole[bad : bad + 60].ljust(200, b"\1") + whole[bad + 200 :])
    reader = reader_of(made)
    start = noted(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert start["offset"] == bad
    monkeypatch.setattr(time, "sleep", lambda seconds: path.write_bytes(whole))
    assert reader.latestOffset(start, ReadAllAvailable()) == start, "it is whole when it is looked at again"
    assert read(reader, start, reader.latestOffset(start, ReadAllAvailable())) == made.offsets[9:]


def test_a_batch_is_cut_into_as_many_parts_as_asked(made):
    reader = reader_of(made, minPartitions="30")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(reader.partitions(start, end)) >= 30
    assert read(reader, start, end) == made.offsets
