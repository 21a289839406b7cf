"""What the tests of expiry and archive share: a clock, disks that stop or lie elsewhere, a look at all answers."""

import errno
import os
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any

from tests.disks import UnflushedDisk
from tests.reference import Record, find
from tests.store_maker import T
from whence.door import open_stores
from whence.errors import StoreError
from whence.files.disk import DiskFile
from whence.store.expiry import Expiry
from whence.store.expiry_policy import ALL_HOURS, HOUR_MS, ExpiryPolicy

NOW = T + 1000 * HOUR_MS
KEEP_MS = 72 * HOUR_MS
POLICY = ExpiryPolicy(KEEP_MS, ALL_HOURS, UTC, batch_max=None)


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class KilledDisk(UnflushedDisk):
    """Lets so many steps happen, and then nothing: as a SIGKILL leaves a disk, with no chance to clean up."""

    def __init__(self, left: int, *, is_elsewhere: bool = False) -> None:
        self.left = left
        self.is_elsewhere = is_elsewhere

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
        self._step()
        return super().create(path, size, reserve=reserve)

    def make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._step()
        super().make_folder(folder)

    def flush_folder(self, folder: Path) -> None:
        self._step()

    def pwrite(self, path: Path, descriptor: int, data: memoryview, position: int) -> int:
        self._step()
        return super().pwrite(path, descriptor, data, position)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        if self.is_elsewhere:
            refuse_other_disk(path, target)
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._step()
        super().remove(path)


class ElsewhereDisk(UnflushedDisk):
    """Two disks, as far as renaming goes: from store to archive there is no way but to copy."""

    def rename(self, path: Path, target: Path) -> None:
        refuse_other_disk(path, target)
        super().rename(path, target)


def refuse_other_disk(path: Path, target: Path) -> None:
    if not path.name.startswith("."):
        error = OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        raise StoreError(f"{path}: cannot be renamed to {target.name}: {error.strerror}") from error


def set_time(path: Path, time_ms: int) -> None:
    os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))


def age(store: Path, count: int) -> None:
    """Make the oldest ``count`` log files old enough to go, and all others too young."""
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        set_time(path, NOW - KEEP_MS + (number >= count))


def expire(store: Path, count: int, disk: UnflushedDisk | None = None, archive: Path | None = None, **more: Any):
    """Let go of the oldest ``count`` log files."""
    age(store, count)
    return Expiry(store, POLICY, disk or UnflushedDisk(), archive=archive, **more).run(NOW)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check_answers(stores: Iterable[Path], records: list[Record], *, max_scanned: int | None = None) -> None:
    """Asked together, these stores answer every question that the records give as the records themselves do."""
    with open_stores(list(stores)) as store:

        def check(expected: list[Record], **question: Any) -> None:
            answer = store.find(limit=None, **question)
            found = sorted(message.physical_offset for message in answer)
            assert found == sorted(record.physical_offset for record in expected), question
            assert answer.receipt.complete and answer.receipt.damage == [], (question, answer.receipt)
            if max_scanned is not None and question.keys() <= {"key", "topic"}:
                assert answer.receipt.scanned_bytes <= max_scanned, question

        for key in {key for record in records for key in record.keys} | {"absent"}:
            check(find(records, key=key), key=key)
            check(find(records, key=key, topic="T"), key=key, topic="T")
        for unique_id in {record.unique_id for record in records if record.unique_id}:
            check(find(records, unique_id=unique_id), id=unique_id)
        for record in records:
            check([record], offset=record.physical_offset)
            if record.sys_flag & 0xC not in (0x4, 0xC):
                place = {"topic": record.topic, "queue": record.queue, "queue_offset": record.queue_offset}
                check([record], **place)
        if records:
            middle = records[len(records) // 2].store_timestamp_ms
            check(find(records, since_ms=middle), since=middle)
            check(find(records, until_ms=middle), until=middle)
