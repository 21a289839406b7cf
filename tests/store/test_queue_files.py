"""Queue files on disk: where a queue ends, and how it is cut with the log."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import FailingDisk, UnflushedDisk
from tests.reference import i16, i32, i64
from whence.errors import StoreError
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, ENTRY_SIZE, FILLER
from whence.store.queue_files import cut_queue, misplaced_queues, newest_below, queue_tail

FILE_SIZE = 5 * ENTRY_SIZE
SIZE = 90


def entry(physical_offset: int) -> bytes:
    return i64(physical_offset) + i32(SIZE) + i64(7)


def write(folder: Path, entries: list[bytes], *, first_file: int = 0, size: int = FILE_SIZE) -> None:
    """The files of a queue whose first one has this number."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(entries)
    for at in range(0, max(len(data), 1), size):
        (folder / f"{first_file * size + at:020d}").write_bytes(data[at : at + size].ljust(size, b"\0"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def offsets(number: int) -> list[int]:
    return [1000 + 100 * i for i in range(number)]


@pytest.mark.parametrize("number", range(1, 17))
@pytest.mark.parametrize("first_file", [0, 3])
def test_a_queue_ends_at_the_first_entry_that_is_not_written(tmp_path, number, first_file):
    write(tmp_path / "q", [entry(offset) for offset in offsets(number)], first_file=first_file)
    tail = queue_tail(tmp_path / "q")
    assert tail.position == first_file * FILE_SIZE + number * ENTRY_SIZE
    assert (tail.last["physical_offset"], tail.last["size"]) == (offsets(number)[-1], SIZE)
    assert (tail.is_begun, tail.file_size, tail.unused) == (True, FILE_SIZE, ())


def test_fillers_are_written_but_lead_to_no_message(tmp_path):
    write(tmp_path / "q", [FILLER] * 3)
    tail = queue_tail(tmp_path / "q")
    assert (tail.position, tail.last, tail.is_begun) == (3 * ENTRY_SIZE, None, True)


def test_files_that_were_made_ahead_are_unused(tmp_path):
    write(tmp_path / "q", [entry(offset) for offset in offsets(5)])
    for number, size in ((1, FILE_SIZE), (2, 0)):
        (tmp_path / "q" / f"{number * FILE_SIZE:020d}").write_bytes(bytes(size))
    tail = queue_tail(tmp_path / "q")
    assert (tail.position, tail.is_begun) == (FILE_SIZE, True)
    assert sorted(path.name for path in tail.unused) == [f"{FILE_SIZE:020d}", f"{2 * FILE_SIZE:020d}"]


def test_a_queue_of_which_nothing_is_written_ends_where_its_file_begins(tmp_path):
    write(tmp_path / "q", [], first_file=4)
    tail = queue_tail(tmp_path / "q")
    assert (tail.position, tail.is_begun, len(tail.unused)) == (4 * FILE_SIZE, False, 1)


def test_a_sparse_file_ends_where_its_entries_do(tmp_path):
    (tmp_path / "q").mkdir()
    with (tmp_path / "q" / f"{0:020d}").open("wb") as file:
        file.write(b"".join(entry(offset) for offset in offsets(1000)))
        file.truncate(6_000_000)
    assert queue_tail(tmp_path / "q").position == 1000 * ENTRY_SIZE


def batch_entry(physical_offset: int, base: int, message_count: int) -> bytes:
    return i64(physical_offset) + i32(SIZE) + i64(7) + i64(1) + i64(base) + i16(message_count) + i32(-1) + i32(0)


def test_a_batch_queue_ends_at_the_first_entry_that_is_not_written(tmp_path):
    write(tmp_path / "q", [batch_entry(10, 0, 5), batch_entry(600, 5, 3), batch_entry(700, 8, 0)], size=230)
    tail = queue_tail(tmp_path / "q", BATCH_ENTRY)
    assert (tail.position, tail.last["base_offset"], tail.last["message_count"]) == (92, 5, 3)


@pytest.mark.parametrize("fillers", [0, 3, 7])
@pytest.mark.parametrize("number", [1, 5, 11])
def test_the_newest_file_with_an_entry_below_an_offset_is_not_one_of_fillers(tmp_path, number, fillers):
    write(tmp_path / "q", [*[FILLER] * fillers, *map(entry, offsets(number))])
    assert newest_below(tmp_path / "q", offsets(1)[0]) is None
    for at, offset in enumerate(offsets(number)):
        base = (fillers + at) // 5 * FILE_SIZE
        assert newest_below(tmp_path / "q", offset + 1) == tmp_path / "q" / f"{base:020d}"


@pytest.mark.parametrize(
    ("entries", "expired_to", "is_misplaced"),
    [
        ([entry(0)], 0, True),
        ([FILLER], 0, True),
        ([], 0, True),
        ([entry(700), entry(900)], 1000, False),
        ([FILLER] * 7, 1000, False),
        ([entry(900), entry(1000)], 1000, True),
        ([], 1000, True),
    ],
)
def test_a_queue_among_those_of_the_other_kind_is_misplaced_unless_it_has_expired(
    tmp_path, entries, expired_to, is_misplaced
):
    for topic in ("Plain", "Batch"):
        write(tmp_path / "consumequeue" / topic / "0", entries)
    (tmp_path / "consumequeue/Batch/1").mkdir()
    misplaced = list(misplaced_queues(tmp_path, ("Batch",), expired_to))
    assert misplaced == [tmp_path / "consumequeue/Batch/0"] * is_misplaced


@given(st.integers(0, 17), st.integers(0, 3), st.integers(0, 17), st.integers(-1, 1))
def test_a_cut_queue_has_the_entries_below_the_offset(tmp_path_factory, number, fillers, kept, beside):
    folder = tmp_path_factory.mktemp("cut")
    entries = [entry(offset) for offset in offsets(number)]
    write(folder / "q", [FILLER] * fillers + entries, first_file=2)
    kept = min(kept, number)
    at = offsets(kept + 1)[-1] + (beside if kept < number else 0)  # of the first that goes, or beside it
    kept += beside == 1 and kept < number
    is_cut, size = cut_queue(folder / "q", at, UnflushedDisk())
    write(folder / "expected", [FILLER] * fillers + entries[:kept], first_file=2)
    assert files(folder / "q") == files(folder / "expected")
    assert (is_cut, size) == (kept < number, queue_tail(folder / "q").size)


def test_a_queue_of_which_nothing_is_kept_keeps_its_offset(tmp_path):
    write(tmp_path / "q", [entry(offset) for offset in offsets(12)], first_file=7)
    assert cut_queue(tmp_path / "q", 0, UnflushedDisk()).is_cut
    assert files(tmp_path / "q") == {f"{7 * FILE_SIZE:020d}": bytes(FILE_SIZE)}
    assert queue_tail(tmp_path / "q").position == 7 * FILE_SIZE


@pytest.mark.parametrize("lost", range(12))
def test_what_a_power_failure_left_behind_a_lost_entry_goes_with_a_cut_before_it(tmp_path, lost):
    """Entries below the cut are flushed. Of those behind it any may be lost, and the later ones be there."""
    entries = [entry(offset) for offset in offsets(12)]
    if lost >= 4:
        entries[lost] = bytes(ENTRY_SIZE)
    write(tmp_path / "q", entries)
    cut_queue(tmp_path / "q", offsets(5)[-1], UnflushedDisk())
    write(tmp_path / "expected", entries[:4])
    assert files(tmp_path / "q") == files(tmp_path / "expected")


def test_a_batch_queue_is_cut_too(tmp_path):
    write(tmp_path / "q", [batch_entry(10, 0, 5), batch_entry(600, 5, 3), batch_entry(1200, 8, 1)], size=92)
    assert cut_queue(tmp_path / "q", 600, UnflushedDisk(), BATCH_ENTRY).is_cut
    write(tmp_path / "expected", [batch_entry(10, 0, 5)], size=92)
    assert files(tmp_path / "q") == files(tmp_path / "expected")


def test_a_cut_that_is_interrupted_at_any_write_can_be_made_again(tmp_path):
    entries = [entry(offset) for offset in offsets(14)]
    write(tmp_path / "expected", entries[:3])
    for left in count():
        folder = tmp_path / f"q{left}"
        write(folder, entries)
        try:
            cut_queue(folder, offsets(4)[-1], FailingDisk(left))
            break
        except StoreError:
            cut_queue(folder, offsets(4)[-1], UnflushedDisk())
            assert files(folder) == files(tmp_path / "expected")
    assert left > 1
    assert files(folder) == files(tmp_path / "expected")


def test_cut_files_are_never_made_shorter(tmp_path):
    write(tmp_path / "q", [entry(offset) for offset in offsets(4)])
    (path,) = (tmp_path / "q").iterdir()
    before = path.stat()
    cut_queue(tmp_path / "q", offsets(2)[-1], UnflushedDisk(), ENTRY)
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)
