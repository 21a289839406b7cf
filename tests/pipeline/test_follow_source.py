"""The follower's source as Spark calls it, without Spark: tickets, limits, and how far the log is."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StructType

from tests.crash.following import Made, random_messages, write_log
from tests.store_maker import FILE_SIZE, place
from whence.files.names import sidecar_of
from whence.pipeline import follow_source
from whence.pipeline.follow_source import BATCH_SIZE, FollowReader, FollowSource
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.spill import Stretch

RECORDS = place(random_messages(Random(2), 120))
END = RECORDS[-1].physical_offset + RECORDS[-1].size


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_log(tmp_path / "store", RECORDS, file_size=FILE_SIZE)
    sidecar_of(tmp_path / "store").mkdir()
    return tmp_path / "store"


def reader_of(store: Path, target: int | None = None) -> FollowReader:
    """The reader, as the options of a stream tell of it."""
    options = {"log_folder": store / "commitlog", "sidecar": sidecar_of(store), "slots": 2, "target": target or ""}
    reader = FollowSource({name: str(value) for name, value in options.items()}).streamReader(StructType())
    assert isinstance(reader, FollowReader)
    return reader


def noted(ticket: dict[str, Any]) -> dict[str, Any]:
    """A ticket as it comes out of Spark's checkpoint."""
    told: dict[str, Any] = json.loads(json.dumps(ticket))
    return told


def read(reader: FollowReader, start: dict[str, Any], end: dict[str, Any]) -> list[Stretch]:
    """The stretches of a batch, read by a copy of the reader as in a task."""
    parts = reader.partitions(noted(start), noted(end))
    copy = pickle.loads(pickle.dumps(reader))
    return [Stretch(*row) for part in parts for row in copy.read(part)]


def test_a_batch_is_the_log_from_where_the_sidecar_says_to_its_ticket(store):
    reader = reader_of(store)
    start = reader.initialOffset()
    end = reader.latestOffset(noted(start), reader.getDefaultReadLimit())
    stretches = read(reader, start, end)
    assert (stretches[0].from_offset, stretches[-1].to_offset) == (0, END) == (start["offset"], end["offset"])
    Made(Shape(7, 20), Dialect.V5_5).follow(store, sidecar_of(store), Random(1))
    assert read(reader, start, end) == []
    assert reader_of(store).initialOffset() == {"offset": END, "turn": 0}


@pytest.mark.parametrize(
    ("limit", "files"), [(ReadMaxBytes(1), 1), (ReadMaxBytes(2 * FILE_SIZE), 2), (ReadMaxBytes(BATCH_SIZE), None)]
)
def test_a_batch_takes_whole_files_up_to_its_limit(store, limit, files):
    reader = reader_of(store)
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert end["offset"] == (END if files is None else files * FILE_SIZE)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(BATCH_SIZE)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["offset"] == END


def test_the_log_s_end_is_told_for_how_far_behind_it_is(store):
    write_log(store, RECORDS[:50], file_size=FILE_SIZE)
    reader = reader_of(store)
    assert reader.reportLatestOffset()["offset"] == RECORDS[50].physical_offset
    write_log(store, RECORDS, file_size=FILE_SIZE)
    assert reader.reportLatestOffset()["offset"] == END
    (store / "commitlog").rename(store / "away")
    assert reader.reportLatestOffset()["offset"] == 0


def test_what_takes_what_is_there_goes_no_further_and_does_not_wait(store, monkeypatch):
    monkeypatch.setattr(follow_source, "WAIT_S", 1e9)
    target = RECORDS[50].physical_offset
    reader = reader_of(store, target)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["offset"] == reader.reportLatestOffset()["offset"] == target
    write_log(store, RECORDS[:50], file_size=FILE_SIZE)
    Made(Shape(7, 20), Dialect.V5_5).follow(store, sidecar_of(store), Random(1))
    assert reader.latestOffset(noted(end), ReadAllAvailable()) == end


def test_a_log_at_rest_is_waited_for_only_so_long(store, monkeypatch):
    monkeypatch.setattr(follow_source, "WAIT_S", 0.05)
    Made(Shape(7, 20), Dialect.V5_5).follow(store, sidecar_of(store), Random(1))
    reader = reader_of(store)
    start = reader.initialOffset()
    assert reader.latestOffset(noted(start), ReadMaxBytes(BATCH_SIZE)) == start
