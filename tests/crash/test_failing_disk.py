"""A disk is full or fails, at every write and flush in turn: that is told, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload
from tests.disks import FailingDisk, UnflushedDisk
from whence.errors import StoreError

pytestmark = pytest.mark.slow

SIZES = Sizes(16_384, 400, 31, 50)
APPENDS = 8
KEYS_ASKED = 15


class Attempt:
    """A store is written until its disk fails; what it says, and what it acknowledged."""

    def __init__(self, folder: Path, disk: FailingDisk, flush: str) -> None:
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
        for number in range(APPENDS):
            acknowledged, failures = workload.put_some(store)
            self.acknowledged += acknowledged
            self.told += failures
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
            assert store.wait_dispatched(10)
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


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(("error", "times", "part"), CASES)
def test_an_error_at_any_write_or_flush_is_told_and_loses_nothing(tmp_path, flush, error, times, part):
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for left in count():
        folder = tmp_path / str(left)
        disk = FailingDisk(left, error, times=times, part=part)
        try:
            attempt = Attempt(folder / "store", disk, flush)
            if not disk.failed:
                assert attempt.told == []
                break
            # A log file that was made ahead of need is nobody's business as long as it is not needed.
            needed = [path for step, path in disk.failed if step != "reserve" or "commitlog" not in str(path)]
            if times is None and needed:
                assert any(os.strerror(error) in told for told in attempt.told), attempt.told
            attempt.check(folder / "anew")
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) == descriptors
        except BaseException as failure:
            failure.add_note(f"after {left} writes and flushes, in {folder}")
            raise
        rmtree(folder)
    assert left > 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_disk_that_is_really_full_is_told_and_room_on_it_is_used_again(small_disk, tmp_path, flush):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    workload = Workload(Random(1))
    acknowledged: list[Acknowledged] = []
    store = whence.create(small_disk / "store", flush=flush, **SIZES.arguments())
    told: list[str] = []
    while not told:
        more, told = workload.put_some(store)
        acknowledged += more
    assert "No space left on device" in told[0]
    with whence.open(small_disk / "store") as reader:
        check_answers(reader, check_log(small_disk / "store", acknowledged), Random(2))
    ballast.unlink()
    try:
        more, told = workload.put_some(store)
        acknowledged += more
        store.close()
    except StoreError as error:
        assert "No space left on device" in str(error)
    copytree(small_disk / "store", tmp_path / "store")
    with whence.create(tmp_path / "store", flush=flush, **SIZES.arguments()) as store:
        assert store.wait_dispatched(10)
        check_answers(store, check_log(tmp_path / "store", acknowledged), Random(3))
    check_derived(tmp_path / "store", SIZES, tmp_path / "anew")
