"""When a CommitLog is flushed, who waits for it, and what they are told."""

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.disks import UnflushedDisk
from whence.errors import StoreError
from whence.files.names import offset_name
from whence.store.flusher import Flusher
from whence.store.log_writer import LogWriter
from whence.store.put_result import PutStatus

PAGE = 4096


class SlowDisk(UnflushedDisk):
    """Flushes of the first log file take as long as the test likes: each waits for one ``go``."""

    def __init__(self) -> None:
        self.is_slow = False
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: int | None = None
        self.count = 0

    def fsync(self, path: Path, descriptor: int) -> None:
        if not self.is_slow or path.name != offset_name(0):
            return
        self.count += 1
        self.begun.release()
        assert self.go.acquire(timeout=30)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk():
    return SlowDisk()


@pytest.fixture
def log(tmp_path, disk):
    """A log of one file, which is all there is to flush."""
    log = LogWriter([tmp_path / "log"], 1 << 24, 0, disk)
    log.room(1)  # makes the file
    disk.is_slow = True
    yield log
    log.close()


def append(log: LogWriter, size: int = 100) -> int:
    log.room(size)
    log.write(b"x" * size)
    return log.end_offset


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_flushed(log: LogWriter, end: int) -> bool:
    return log.flushed_offset == end


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# Group commit


def test_nobody_is_told_before_the_flush_that_covers_it_has_ended(log, disk):
    flusher = Flusher(log, "sync")
    told: list[tuple[str, PutStatus]] = []

    def waiter(name: str, offset: int) -> threading.Thread:
        return started(lambda: told.append((name, flusher.wait(offset))))

    threads = [waiter("first", append(log))]
    assert disk.begun.acquire(timeout=30)
    threads += [waiter(f"later {number}", append(log)) for number in range(8)]
    wait_for(lambda: len(flusher._waiting) == 8)
    assert told == []
    disk.go.release()  # ends the first flush, which began before the others had appended
    assert disk.begun.acquire(timeout=30)
    wait_for(lambda: told)
    assert told == [("first", PutStatus.PUT_OK)]
    assert log.flushed_offset == 100
    disk.go.release()
    for thread in threads:
        thread.join(30)
    assert len(told) == 9
    assert {status for _, status in told} == {PutStatus.PUT_OK}
    assert disk.count == 2, "one flush for all that came during the one before"
    flusher.close()


def test_what_is_flushed_already_is_not_waited_for(log, disk):
    flusher = Flusher(log, "sync")
    end = append(log)
    disk.go.release()
    assert flusher.wait(end) is PutStatus.PUT_OK
    assert flusher.wait(end) is PutStatus.PUT_OK
    assert disk.count == 1
    flusher.close()


def test_who_waits_too_long_is_told_so_and_the_next_wait_is_as_good_as_new(log, disk):
    flusher = Flusher(log, "sync", timeout_s=0.02)
    end = append(log)
    assert flusher.wait(end) is PutStatus.FLUSH_DISK_TIMEOUT
    disk.go.release()
    wait_for(lambda: log.flushed_offset == end)
    end = append(log)
    assert flusher.wait(end) is PutStatus.FLUSH_DISK_TIMEOUT, "the late answer to the first is not one to this"
    disk.go.release()
    wait_for(lambda: log.flushed_offset == end)
    flusher.timeout_s = 30
    disk.go.release()
    assert flusher.wait(append(log)) is PutStatus.PUT_OK
    flusher.close()


def test_a_flush_that_fails_is_told_to_all_who_wait_and_is_the_last(log, disk):
    flusher = Flusher(log, "sync")
    told: list[PutStatus] = []
    ends = [append(log) for _ in range(4)]
    threads = [started(lambda: told.append(flusher.wait(max(ends)))) for _ in range(4)]
    assert disk.begun.acquire(timeout=30)
    disk.error = errno.EIO
    disk.go.release()
    for thread in threads:
        thread.join(30)
    assert told == [PutStatus.FLUSH_DISK_TIMEOUT] * 4
    assert "Input/output error" in str(flusher.failure)
    begin = time.monotonic()
    assert flusher.wait(log.end_offset) is PutStatus.FLUSH_DISK_TIMEOUT
    assert time.monotonic() - begin < 4, "nothing is left to wait for"
    with pytest.raises(StoreError, match="cannot be flushed"):
        flusher.close()
    assert disk.count == 1


def test_what_nobody_waits_for_is_flushed_soon_all_the_same(log, disk):
    flusher = Flusher(log, "sync")
    end = append(log)
    flusher.flush_soon()
    flusher.flush_soon()
    disk.go.release()
    wait_for(lambda: log.flushed_offset == end)
    flusher.close()


def test_a_closed_flusher_lets_nobody_wait(log, disk):
    flusher = Flusher(log, "sync")
    append(log)
    disk.go.release()
    flusher.close()
    assert log.flushed_offset == 100, "closing flushes"
    begin = time.monotonic()
    assert flusher.wait(append(log)) is PutStatus.FLUSH_DISK_TIMEOUT
    assert time.monotonic() - begin < 4


def test_closing_tells_of_a_write_that_failed_but_flushes_what_is_there(log, disk):
    flusher = Flusher(log, "async")
    append(log)
    log.failure = StoreError("the disk took no more")
    disk.go.release()
    with pytest.raises(StoreError, match="took no more"):
        flusher.close()
    assert log.flushed_offset == 100


# Asynchronous


def test_four_pages_are_flushed_at_the_next_interval_and_less_when_it_is_thorough(log, disk):
    disk.is_slow = False
    flusher = Flusher(log, "async", interval_s=0.005, thorough_interval_s=1000)
    end = append(log, 4 * PAGE)
    wait_for(lambda: log.flushed_offset == end)
    append(log, 4 * PAGE - 1)
    time.sleep(0.05)
    assert log.flushed_offset == end
    end = append(log, 1)
    wait_for(lambda: log.flushed_offset == end)
    flusher.close()

    flusher = Flusher(log, "async", interval_s=0.005, thorough_interval_s=0.01)
    end = append(log, 1)
    wait_for(lambda: log.flushed_offset == end)
    flusher.close()


def test_an_asynchronous_flusher_flushes_on_demand_and_when_it_is_closed(log, disk):
    disk.is_slow = False
    flusher = Flusher(log, "async", interval_s=1000)
    for _ in range(3):
        end = append(log, 1)
        flusher.flush_soon()
        wait_for(partial(is_flushed, log, end))
    assert flusher.wait(append(log, 1)) is PutStatus.PUT_OK
    end = append(log, 1)
    flusher.close()
    assert log.flushed_offset == end


def test_an_asynchronous_flush_that_fails_closes_the_log_to_appends(log, disk):
    disk.error = errno.EIO
    disk.go.release()
    flusher = Flusher(log, "async", interval_s=0.005)
    append(log, 4 * PAGE)
    wait_for(lambda: log.failure)
    with pytest.raises(StoreError, match="cannot be flushed"):
        log.room(1)
    with pytest.raises(StoreError, match="cannot be flushed"):
        flusher.close()
