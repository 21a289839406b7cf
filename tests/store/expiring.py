"""What the tests of expiry and archive share: a clock, disks that stop or lie elsewhere, a look at all answers."""

import errno
import os
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any

from tests.disks import FailingDisk, UnflushedDisk
from tests.reference import Entry, Record, find, i16, i32, i64, signed
from tests.store_maker import MadeStore, T, message
from whence.door import open_stores
from whence.errors import StoreError
from whence.files.disk import DiskFile
from whence.formats.buffers import Buffer
from whence.store.archive import ASIDE
from whence.store.expiry import Expiry
from whence.store.expiry_policy import ALL_HOURS, HOUR_MS, ExpiryPolicy

NOW = T + 1000 * HOUR_MS
KEEP_MS = 72 * HOUR_MS
POLICY = ExpiryPolicy(KEEP_MS, ALL_HOURS, UTC, batch_max=None)


MESSAGES = [
    message(
        keys=f"k{number} every",
        unique_id=f"id-{number}",
        tags="tag",
        topic="TU"[number % 7 == 0],
        queue=number % 2,
        at=number * 1000,
    )
    for number in range(185)
]
"""They fill seven log files, and every log file ends in the middle of queue and index files."""


def below(made: MadeStore, offset: int) -> list[Record]:
    return [record for record in made.records if record.physical_offset < offset]


def left_of(made: MadeStore, offset: int) -> list[Record]:
    return [record for record in made.records if record.physical_offset >= offset]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class KilledDisk(UnflushedDisk):
    """Lets so many steps happen, and then nothing: as a SIGKILL leaves a disk, with no chance to clean up."""

    def __init__(self, left: int) -> None:
        self.left = left

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

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        self._step()
        return super().pwrite(path, descriptor, data, position)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._step()
        super().remove(path)


class ElsewhereDisk(UnflushedDisk):
    """Two disks, as far as renaming goes: from store to archive there is no way but to copy."""

    def rename(self, path: Path, target: Path) -> None:
        if path.name != ASIDE:
            error = OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            raise StoreError(f"{path}: cannot be renamed to {target.name}: {error.strerror}") from error
        super().rename(path, target)


class KilledElsewhereDisk(ElsewhereDisk, KilledDisk):
    pass


class FailingElsewhereDisk(ElsewhereDisk, FailingDisk):
    pass


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


def batch_entry(physical_offset: int, base_offset: int) -> bytes:
    return i64(physical_offset) + i32(100) + i64(0) + i64(T) + i64(base_offset) + i16(1) + i32(-1) + i32(0)


def make_ext(made: MadeStore, unit_file: int) -> dict[int, int]:
    """Give queue 0 of topic T ext units of 20 bytes, and its entries their addresses; physical offsets, by number."""
    queue = made.folder / "consumequeue" / "T" / "0"
    ext = made.folder / "consumequeue_ext" / "T" / "0"
    ext.mkdir(parents=True)
    offsets = {}
    for path in sorted(queue.iterdir()):
        data = path.read_bytes()
        entries = b""
        for at in range(0, len(data), 20):
            number = (int(path.name) + at) // 20
            physical_offset, size = signed(data[at : at + 8]), signed(data[at + 8 : at + 12])
            if size:
                offsets[number] = physical_offset
                entries += Entry(physical_offset, size, 20 * number - 2**63).to_bytes()
        path.write_bytes(entries.ljust(len(data), b"\0"))
    units = b"".join(i16(20) + i64(1) + i64(T) + i16(0) for _ in offsets)
    for base in range(0, len(units), unit_file):
        (ext / f"{base:020}").write_bytes(units[base : base + unit_file].ljust(unit_file, b"\0"))
    return offsets
