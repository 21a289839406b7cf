"""A disk is full or fails, at every write and flush in turn: that is told, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import gc
import os
import resource
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload
from tests.disks import FailingDisk, UnflushedDisk, small_disk
from whence.errors import StoreError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_batch_queues")]

SIZES = Sizes(16_384, 400, 31, 50)
APPENDS = 5
KEYS_ASKED = 15


class Attempt:
    """A store is written until its disk fails; what it says, and what it acknowledged."""

    def __init__(self, folder: Path, disk: FailingDisk, flush: str, appends: int = APPENDS) -> None:
        self.folder = folder
        self.flush = flush
        self.acknowledged: list[Acknowledged] = []
        self.told: list[str] = []
        try:
            store = whence.create(folder, flush=flush, disk=disk, **SIZES.arguments())
        except StoreError as error:
            self.told.append(str(error))
            return
        workload = Workload(Random(1))
        for number in range(appends):
            try:
                acknowledged, failures = workload.put_some(store)
                self.acknowledged += acknowledged
                self.told += failures
            except StoreError as error:  # to make a topic has no status
                self.told.append(str(error))
            if number % 3 == 2:
                self._try(store.flush)
        self._try(store.close)

    def _try(self, call) -> None:
        try:
            call()
        except StoreError as error:
            self.told.append(str(error))

    def check(self, scratch: Path) -> None:
        """With a good disk the store is right again."""
        if not (self.folder / "commitlog").is_dir():
            assert not self.acknowledged
        workload = Workload(Random(2), 10_000)
        with whence.create(self.folder, flush=self.flush, disk=UnflushedDisk(), **SIZES.arguments()) as store:
            assert store.wait_dispatched(60)
            check_answers(store, check_log(self.folder, self.acknowledged), Random(3), keys_asked=KEYS_ASKED)
            for _ in range(3):
                acknowledged, failures = workload.put_some(store)
                assert not failures
                self.acknowledged += acknowledged
        check_log(self.folder, self.acknowledged)
        check_derived(self.folder, SIZES, scratch)


CASES = [
    pytest.param(errno.ENOSPC, None, "", id="full for good"),
    pytest.param(errno.EIO, 1, "", id="one error"),
]
MORE_CASES = [
    *CASES,
    pytest.param(errno.EIO, None, "commitlog", id="no log"),
    pytest.param(errno.EIO, None, "consumequeue", id="no queues"),
    pytest.param(errno.EIO, 3, "/index/", id="index errors"),
    pytest.param(errno.ENOSPC, 1, ".json", id="no small files"),
]


def fail_at_every_step(folder: Path, flush: str, error: int, times: int | None, part: str, appends: int) -> None:
    """Let the disk fail at its first write or flush, at its second, and so on until all goes well."""
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for left in count():
        disk = FailingDisk(left, error, times=times, part=part)
        try:
            attempt = Attempt(folder / str(left) / "store", disk, flush, appends)
            if not disk.failed:
                assert attempt.told == []
                break
            # A log file that was made ahead of need is nobody's business as long as it is not needed: neither that
            # it cannot be made, nor that it or its folder cannot be flushed.
            needed = [
                path
                for step, path in disk.failed
                if "commitlog" not in str(path) or (step != "reserve" and path.is_file())
            ]
            if times is None and needed:
                assert any(os.strerror(error) in told for told in attempt.told), attempt.told
            attempt.check(folder / str(left) / "anew")
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) == descriptors
        except BaseException as failure:
            failure.add_note(f"after {left} writes and flushes, in {folder / str(left)}")
            raise
        rmtree(folder / str(left))
    assert left > 10


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(("error", "times", "part"), CASES)
def test_an_error_at_any_write_or_flush_is_told_and_loses_nothing(tmp_path, flush, error, times, part):
    fail_at_every_step(tmp_path, flush, error, times, part, APPENDS)


@pytest.mark.long(part=2, count=30)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(("error", "times", "part"), MORE_CASES)
def test_an_error_at_any_step_of_many_is_told_and_loses_nothing(tmp_path, long_count, flush, error, times, part):
    """``count`` is how often is appended."""
    fail_at_every_step(tmp_path, flush, error, times, part, long_count)


def test_an_index_that_cannot_be_written_stops_nothing_and_is_completed_later(tmp_path):
    """Queues go on, and what the index lacks is found by a scan; the next start completes it."""
    disk = FailingDisk(0, errno.EIO, part="/index/")
    attempt = Attempt(tmp_path / "store", disk, "async")
    assert disk.failed and attempt.told == []
    assert len(attempt.acknowledged) > APPENDS
    with whence.open(tmp_path / "store") as store:
        check_answers(store, check_log(tmp_path / "store", attempt.acknowledged), Random(2), is_left=True)
        assert store.find(key="shared").receipt.index_source == "none"
    attempt.check(tmp_path / "anew")


@pytest.fixture(params=["ext4", "tmpfs"])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real disk that is soon full."""
    with small_disk(tmp_path / "disk", {"ext4": 4 << 20, "tmpfs": 1 << 20}[request.param], request.param) as folder:
        yield folder


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_disk_that_is_really_full_is_told_and_loses_nothing(full_disk, tmp_path, flush):
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    workload = Workload(Random(1))
    acknowledged: list[Acknowledged] = []
    store = whence.create(full_disk / "store", flush=flush, **SIZES.arguments())
    told: list[str] = []
    while not told:
        more, told = workload.put_some(store)
        acknowledged += more
    assert "No space left on device" in told[0]
    ballast.unlink()
    more, told = workload.put_some(store)  # it may go on, or be closed for good
    acknowledged += more
    assert bool(more) != bool(told)
    try:
        store.close()
    except StoreError as error:
        assert "No space left on device" in str(error)
    copytree(full_disk / "store", tmp_path / "store")
    with whence.create(tmp_path / "store", flush=flush, **SIZES.arguments()) as store:
        assert store.wait_dispatched(60)
        check_answers(store, check_log(tmp_path / "store", acknowledged), Random(3))
    check_derived(tmp_path / "store", SIZES, tmp_path / "anew")


def test_a_limit_on_file_sizes_is_told(tmp_path):
    """In a process of its own, whose log files may not be made."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        try:
            store = whence.create(tmp_path / "store", **SIZES.arguments())
            result = store.append("orders", b"body")
            assert (result.status, result.physical_offset) == ("CREATE_MAPPED_FILE_FAILED", -1), result
            assert "File too large" in result.detail
            store.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with whence.create(tmp_path / "store", **SIZES.arguments()) as store:
        assert store.append("orders", b"body").status == "PUT_OK"
