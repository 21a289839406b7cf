"""The stream reader as Spark calls it, without Spark: limits, begins, targets and what it says of a loss."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

from tests.pipeline.test_export import build_index
from tests.store_maker import FILE_SIZE, T, make_store, message
from whence.errors import CorruptError, StoreError, UsageError
from whence.pipeline.source_options import parse_options
from whence.pipeline.source_stream import WhenceStreamReader

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


def test_a_batch_is_cut_into_as_many_parts_as_asked(made):
    reader = reader_of(made, minPartitions="30")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(reader.partitions(start, end)) >= 30
    assert read(reader, start, end) == made.offsets
