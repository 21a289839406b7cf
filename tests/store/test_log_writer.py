"""The end of a CommitLog: where bytes go, when the next file begins, and what a failing disk does to it."""

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.disks import FailingDisk, UnflushedDisk
from tests.reference import encode_blank
from whence.errors import StoreError, UsageError
from whence.files.disk import Disk
from whence.files.names import offset_name
from whence.formats.buffers import Buffer
from whence.store.log_writer import LogWriter

FILE_SIZE = 1000


class WatchedDisk(UnflushedDisk):
    """Tells what was flushed, in order; can be out of room for new files, or slow to make them."""

    def __init__(self) -> None:
        self.flushed: list[str] = []
        self.is_full = False
        self.may_reserve = threading.Event()
        self.may_reserve.set()

    def fsync(self, path: Path, descriptor: int) -> None:
        self.flushed.append(path.name)

    def reserve(self, path: Path, descriptor: int, size: int) -> None:
        self.may_reserve.wait(30)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(path, descriptor, size)


@pytest.fixture
def disk():
    return WatchedDisk()


@pytest.fixture
def opened(tmp_path, disk):
    """``opened(end_offset)`` is a writer to ``tmp_path / "log"``, closed when the test ends."""
    logs = []

    def open_log(end_offset: int = 0, **settings) -> LogWriter:
        settings = {"folders": [tmp_path / "log"], "file_size": FILE_SIZE, "disk": disk} | settings
        logs.append(LogWriter(end_offset=end_offset, **settings))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def append(log: LogWriter, data: bytes) -> int:
    offset = log.room(len(data))
    log.write(data)
    return offset


def content(folder: Path, base: int = 0) -> bytes:
    return (folder / offset_name(base)).read_bytes()


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


# Rolling


@pytest.mark.parametrize(("behind", "rolls"), [(7, True), (8, False), (9, False)])
def test_a_record_is_written_where_a_blank_still_fits_behind_it(opened, tmp_path, behind, rolls):
    log = opened()
    first = b"a" * (FILE_SIZE - 100 - behind)
    append(log, first)
    assert append(log, b"b" * 100) == (FILE_SIZE if rolls else len(first))
    if rolls:
        assert content(tmp_path / "log") == first + encode_blank(100 + behind)
        assert content(tmp_path / "log", FILE_SIZE).startswith(b"b" * 100 + b"\0")
        assert log.end_offset == FILE_SIZE + 100
    else:
        assert content(tmp_path / "log") == first + b"b" * 100 + bytes(behind)
        assert log.end_offset == FILE_SIZE - behind


def test_the_largest_record_fills_a_file_up_to_the_blank(opened, tmp_path):
    log = opened()
    assert log.record_size_max == FILE_SIZE - 8
    assert append(log, b"a" * log.record_size_max) == 0
    assert append(log, b"b") == FILE_SIZE
    assert content(tmp_path / "log") == b"a" * (FILE_SIZE - 8) + encode_blank(8)


def test_a_log_that_is_there_is_gone_on_with(opened, tmp_path):
    first = opened()
    append(first, b"a" * 300)
    first.close()
    assert names(tmp_path / "log") == [0]
    log = opened(300)
    assert (log.end_offset, log.flushed_offset) == (300, 300)
    append(log, b"b" * 700)
    assert content(tmp_path / "log") == b"a" * 300 + encode_blank(700)
    assert append(log, b"c") == FILE_SIZE + 700


def test_a_log_that_ends_with_its_file_goes_on_in_the_next(opened, tmp_path):
    log = opened(5 * FILE_SIZE)
    assert append(log, b"a") == 5 * FILE_SIZE
    log.close()
    assert names(tmp_path / "log") == [5 * FILE_SIZE]


def test_a_log_file_that_is_gone_is_an_error_and_no_failure(opened):
    log = opened(300)
    with pytest.raises(StoreError, match=r"00000000000000000000: cannot be opened"):
        log.room(1)
    assert log.failure is None


@pytest.mark.parametrize(("file_size", "end_offset"), [(8, 0), (2**31, 0), (1000, 993), (1000, 1999)])
def test_what_no_log_can_be_is_refused(opened, file_size, end_offset):
    with pytest.raises(UsageError):
        opened(end_offset, file_size=file_size)


# Files made ahead


def test_the_next_file_is_made_ahead_and_removed_if_nobody_needs_it(opened, tmp_path, disk):
    log = opened()
    append(log, b"a")
    while len(disk.flushed) < 4:  # the file and its folder, twice
        pass
    assert names(tmp_path / "log") == [0, FILE_SIZE]
    assert content(tmp_path / "log", FILE_SIZE) == bytes(FILE_SIZE)
    log.close()
    assert names(tmp_path / "log") == [0]
    assert disk.flushed[-4:] == [offset_name(0), "log", offset_name(FILE_SIZE), "log"]


def test_a_disk_without_room_for_the_next_file_is_tried_again(opened, tmp_path, disk):
    log = opened()
    disk.is_full = True
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left"):
            log.room(1)
    disk.is_full = False
    append(log, b"a" * 500)
    disk.is_full = True
    disk.may_reserve.set()
    while True:
        try:  # the next file may have been made before the disk was full
            append(log, b"b" * 600)
        except StoreError:
            break
    end = log.end_offset
    free = FILE_SIZE - end % FILE_SIZE
    assert append(log, b"c" * (free - 8)) == end, "what fits into this file is put into it"
    with pytest.raises(StoreError, match="No space left"):
        append(log, b"d")
    assert log.failure is None
    disk.is_full = False
    assert append(log, b"d") == log.end_offset - 1 == (end // FILE_SIZE + 1) * FILE_SIZE
    assert not any(path.stat().st_size != FILE_SIZE for path in (tmp_path / "log").iterdir())


def test_a_file_that_is_not_made_in_time_is_an_error_until_it_is_there(opened, disk):
    disk.may_reserve.clear()
    log = opened(file_timeout_s=0.01)
    with pytest.raises(StoreError, match=r"was not made within 0\.01 s"):
        log.room(1)
    disk.may_reserve.set()
    while True:
        try:
            assert append(log, b"a") == 0
            break
        except StoreError:
            pass


def test_files_are_spread_over_folders_by_their_number(opened, tmp_path):
    folders = [tmp_path / name for name in ("c", "a", "b")]
    log = opened(folders=folders)
    for number in range(5):
        assert append(log, b"x" * 900) == number * FILE_SIZE
    log.close()
    assert [names(tmp_path / name) for name in "abc"] == [[0, 3000], [1000, 4000], [2000]]


def test_a_folder_that_is_not_usable_gets_no_new_file_unless_none_is(opened, tmp_path):
    usable = {"a", "c"}
    log = opened(folders=[tmp_path / name for name in "abc"], is_usable=lambda folder: folder.name in usable)
    append(log, b"x" * 900)
    append(log, b"x" * 900)
    usable.clear()
    for _ in range(3):
        append(log, b"x" * 900)
    log.close()
    found = {int(path.name): path.parent.name for path in tmp_path.glob("*/0*")}
    assert found[0] == "a" and found[1000] == "c"
    assert found[4000] == "b", "folder 4 % 3, as if all were usable"


def test_a_log_file_is_found_in_whatever_folder_it_was_made(opened, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / offset_name(0)).write_bytes(b"x" * 10 + bytes(FILE_SIZE - 10))
    log = opened(10, folders=[tmp_path / "a", tmp_path / "b"])
    append(log, b"y")
    assert content(tmp_path / "b").startswith(b"x" * 10 + b"y\0")


def test_warm_files_hold_written_zeros_from_the_start(opened, tmp_path):
    class CountingDisk(UnflushedDisk):
        written = 0

        def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
            self.written += len(data)
            return super().pwrite(path, descriptor, data, position)

    disk = CountingDisk()
    file_size = 3 * 1024 * 1024 + 5
    log = opened(disk=disk, file_size=file_size, warm_up=True)
    log.room(1)
    assert disk.written >= file_size
    log.write(b"a")
    log.close()
    assert content(tmp_path / "log") == b"a" + bytes(file_size - 1)


# Flushing


def test_flush_takes_all_files_that_were_written_to_in_order(opened, disk):
    log = opened()
    for _ in range(3):
        append(log, b"x" * 900)
    del disk.flushed[:]
    assert log.flushed_offset == 0
    assert log.flush() == log.end_offset == log.flushed_offset == 2900
    assert [name for name in disk.flushed if name in (offset_name(0), offset_name(1000))] == [
        offset_name(0),
        offset_name(1000),
    ]
    assert offset_name(2000) in disk.flushed
    append(log, b"y")
    append(log, b"z" * 900)
    del disk.flushed[:]
    log.flush()
    written = [name for name in disk.flushed if name <= offset_name(3000)]
    assert written == [offset_name(2000), offset_name(3000)], "files that were flushed to their ends are done with"


def test_flush_without_anything_new_flushes_nothing(opened, disk):
    log = opened()
    append(log, b"x")
    log.flush()
    log.close()
    del disk.flushed[:]
    fresh = opened(1)
    assert fresh.flush() == 1
    assert disk.flushed == []


def test_what_is_written_during_a_flush_is_left_for_the_next(opened, tmp_path):
    class Writing(UnflushedDisk):
        def fsync(self, path: Path, descriptor: int) -> None:
            if writes:
                append(log, writes.pop())

    writes: list[bytes] = []
    log = opened(disk=Writing())
    append(log, b"first")
    writes.append(b"second")
    assert log.flush() == 5
    assert (log.flushed_offset, log.end_offset) == (5, 11)
    assert log.flush() == 11


# Failures


def test_nothing_is_appended_after_a_write_that_failed_but_what_was_is_flushed(opened, tmp_path):
    disk = FailingDisk(left=10**9, error=errno.EIO)
    log = opened(disk=disk)
    append(log, b"good")
    log.room(4)
    disk.left = 0
    with pytest.raises(StoreError, match=f"{offset_name(0)}: cannot be written: Input/output error"):
        log.write(b"lost")
    disk.left = 10**9
    assert log.end_offset == 4
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be written"):
            log.room(1)
    assert log.flush() == 4


def test_a_blank_that_cannot_be_written_is_a_failure(opened, tmp_path):
    class ReadOnlyDisk(UnflushedDisk):
        def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
            if position:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pwrite(path, descriptor, data, position)

    log = opened(disk=ReadOnlyDisk())
    append(log, b"a" * 900)
    with pytest.raises(StoreError, match="cannot be written"):
        log.room(900)
    assert log.failure is not None
    assert log.end_offset == 900
    log.close()
    assert names(tmp_path / "log") == [0], "the file that was to follow is not left behind"


def test_nothing_is_flushed_or_appended_after_a_flush_that_failed(opened):
    disk = FailingDisk(left=10**9, error=errno.EIO)
    log = opened(disk=disk)
    append(log, b"good")
    disk.left = 0
    with pytest.raises(StoreError, match="cannot be flushed: Input/output error"):
        log.flush()
    disk.left = 10**9
    assert log.flushed_offset == 0
    with pytest.raises(StoreError, match="cannot be flushed"):
        log.flush()
    with pytest.raises(StoreError, match="cannot be flushed"):
        log.room(1)


def test_a_closed_log_takes_nothing(opened):
    log = opened()
    append(log, b"a")
    log.close()
    for call in (lambda: log.room(1), log.flush):
        with pytest.raises(StoreError, match="closed"):
            call()
    log.close()


def test_the_real_disk_reserves_the_room(tmp_path):
    log = LogWriter([tmp_path / "log"], 1 << 20, 0, Disk())
    append(log, b"a")
    assert (tmp_path / "log" / offset_name(0)).stat().st_blocks * 512 >= 1 << 20
    log.flush()
    log.close()
