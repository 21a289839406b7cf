"""Queue ends: of a queue of which the log has no message the newest file stays, with the end that it had."""

from pathlib import Path

import numpy as np
import pytest

from tests.reference import i32, i64
from tests.store.test_queue_files import FILE_SIZE, entry, offsets, write
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, ENTRY_SIZE, FILLER
from whence.store.queue_builder import BATCH_FILE_SIZE
from whence.store.queue_ends import QueueEnds
from whence.store.queue_files import queue_tail

ENDS = QueueEnds(10_000, False, FILE_SIZE)
BEHIND = entry(20_000)


def entries(number: int) -> list[bytes]:
    return [entry(offset) for offset in offsets(number)]


@pytest.mark.parametrize("number", range(1, 12))
def test_the_newest_file_in_which_something_is_written_stays_as_it_is(tmp_path, number):
    write(tmp_path / "q", entries(number))
    (tmp_path / "q" / f"{5 * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    end = ENDS.of(tmp_path / "q", ENTRY)
    assert end == (tmp_path / "q" / f"{(number - 1) // 5 * FILE_SIZE:020d}", None)


def test_fillers_alone_stay(tmp_path):
    write(tmp_path / "q", [FILLER] * 3)
    assert ENDS.of(tmp_path / "q", ENTRY) == (tmp_path / "q" / f"{0:020d}", None)


DAMAGED = {
    "one leads behind the log's begin": ([*entries(1), BEHIND, *entries(1)], 3),
    "the last one leads behind it": ([*entries(2), BEHIND], 3),
    "all lead behind it": ([BEHIND] * 4, 4),
    "one is not written": ([*entries(1), bytes(ENTRY_SIZE), *entries(2)], 4),
    "one has no size": ([*entries(1), i64(7) + i32(0) + i64(0), *entries(1)], 3),
    "something is written behind the end": ([*entries(2), bytes(ENTRY_SIZE), BEHIND], 2),
}


@pytest.mark.parametrize(("written", "count"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_gives_way_to_fillers_up_to_its_end(tmp_path, written, count):
    write(tmp_path / "q", written, first_file=2)
    path = tmp_path / "q" / f"{2 * FILE_SIZE:020d}"
    fillers = (FILLER * count).ljust(FILE_SIZE, b"\0")
    assert ENDS.of(tmp_path / "q", ENTRY) == (path, fillers)
    path.write_bytes(fillers)
    assert ENDS.of(tmp_path / "q", ENTRY) == (path, None)
    assert queue_tail(tmp_path / "q").position == 2 * FILE_SIZE + count * ENTRY_SIZE


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:60], lambda data: data + b"\0"])
def test_a_file_gets_its_size_again(tmp_path, change):
    write(tmp_path / "q", entries(3))
    path = tmp_path / "q" / f"{0:020d}"
    path.write_bytes(change(path.read_bytes()))
    assert ENDS.of(tmp_path / "q", ENTRY) == (path, (FILLER * 3).ljust(FILE_SIZE, b"\0"))


def test_nothing_stays_if_nothing_is_written_or_the_log_never_had_a_message(tmp_path):
    write(tmp_path / "q", [bytes(ENTRY_SIZE)])
    assert ENDS.of(tmp_path / "q", ENTRY) is None
    write(tmp_path / "q", entries(2))
    assert QueueEnds(0, True, FILE_SIZE).of(tmp_path / "q", ENTRY) is None
    (tmp_path / "q" / f"{0:020d}").rename(tmp_path / "q" / f"{1:020d}")
    assert ENDS.of(tmp_path / "q", ENTRY) is None


def batch(physical_offset: int, base_offset: int) -> bytes:
    row = np.zeros(1, BATCH_ENTRY)
    row["physical_offset"], row["size"], row["base_offset"], row["message_count"] = (
        physical_offset,
        90,
        base_offset,
        3,
    )
    return row.tobytes()


def test_of_a_batch_queue_the_entries_stay_that_are_right(tmp_path: Path):
    """Its entries tell their offsets themselves, so that one may be left out."""
    good = batch(100, 0) + batch(200, 3) + batch(400, 9)
    write(tmp_path / "q", [good], size=BATCH_FILE_SIZE)
    path = tmp_path / "q" / f"{0:020d}"
    assert ENDS.of(tmp_path / "q", BATCH_ENTRY) == (path, None)
    damaged = batch(100, 0) + batch(200, 3) + batch(20_000, 6) + batch(400, 9)
    path.write_bytes(damaged.ljust(BATCH_FILE_SIZE, b"\0"))
    assert ENDS.of(tmp_path / "q", BATCH_ENTRY) == (path, good.ljust(BATCH_FILE_SIZE, b"\0"))
