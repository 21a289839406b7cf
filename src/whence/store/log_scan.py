"""LogScan: the whole records of a CommitLog in batches of rows, for who needs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.files.mapped_pages import map_pages
from whence.files.names import OFFSET_MAX
from whence.store.commit_log import CommitLog, is_half
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import HEAD_SIZE, LogFile
from whence.store.scan import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 16_384  # messages in one batch, and items: a few megabytes, and Ctrl-C is heard between two batches
ITEM_ROWS = 65_536
AHEAD_SIZE = 4 * 1048576  # bytes that are mapped before they are scanned: in passing it takes 1.3 times as long


class Batch(NamedTuple):
    """Messages of one CommitLog file in order. The arrays are used again: the next batch has the same ones."""

    data: NDArray[np.uint8]  # the file
    base_offset: int  # of its first byte
    messages: NDArray[np.void]  # SCANNED
    items: NDArray[np.void]  # ITEMS

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last message."""
        last = self.messages[-1]
        return int(last["physical_offset"]) + int(last["size"])

    @property
    def last_record(self) -> tuple[int, bytes]:
        """Where the last message begins, and its first bytes."""
        offset = int(self.messages["physical_offset"][-1])
        return offset, self.data[offset - self.base_offset :][:HEAD_SIZE].tobytes()


class FileScan:
    """Yields the batches of records that begin in ``[position, end)`` of one file; none of them is empty.

    ``position`` is where a record begins. The scan goes on behind records that fail, which are ``damage``. When it is
    done, ``position`` is where the next record begins, at or behind ``end``; in the log's last file it may be before
    that: ``is_log_end`` says that the log ends there, with a record that is not whole or none at all.
    """

    def __init__(
        self, file: LogFile, position: int, end: int, *, is_last: bool, tags: bool, check_crc: bool = True
    ) -> None:
        self.position = position
        self.is_log_end = False
        self.damage: list[Damage] = []
        self.holes: list[tuple[int, int]] = []  # from which to which position nothing could be read
        self._file = file
        self._end = min(end, file.file.size)
        self._is_last = is_last
        self._tags = tags
        self._check_crc = check_crc

    def batches(self, messages: NDArray[np.void], items: NDArray[np.void]) -> Iterator[Batch]:
        """Scan into these arrays, again and again."""
        from whence.kernels.scan import Status, scan_stretch

        file, base = self._file, self._file.base
        data = np.frombuffer(file.file.data, np.uint8)
        end, ahead = self._end, AHEAD_SIZE
        while self.position < self._end:
            if end - self.position >= AHEAD_SIZE:
                map_pages(data[self.position : min(self.position + ahead, end)])
            begin = self.position
            result = scan_stretch(
                data,
                base,
                self.position,
                end,
                check_crc=self._check_crc,
                tags=self._tags,
                messages=messages,
                items=items,
            )
            count, item_count = result.message_count, result.item_count
            if count:
                last = messages[count - 1]
                last_at = int(last["physical_offset"]) - base
                self.position = last_at + int(last["size"])
                ahead = max(self.position - begin, AHEAD_SIZE)
            if result.status in (Status.FULL, Status.END):
                yield Batch(data, base, messages[:count], items[:item_count])
                continue
            stopped = file.what_is_at(self.position)
            if stopped.reason is Reason.END and end < stopped.position:
                # A whole record reaches over the end.
                if count:
                    yield Batch(data, base, messages[:count], items[:item_count])
                end = stopped.position
                continue
            if count and self._is_last and is_half(file, last_at):
                self.position = last_at
                count -= 1
                item_count = int(np.searchsorted(items["message"][:item_count], count))
            if count:
                yield Batch(data, base, messages[:count], items[:item_count])
            if stopped.reason is Reason.BLANK:
                self.position = stopped.position
                return
            if self._is_last:
                self.is_log_end = True
                return
            found = file.resume(self.position)
            detail = f"{stopped.detail or 'nothing is written here'}; {found}"
            self.damage.append(Damage(str(file.file.path), self.position, DamageKind.BAD_RECORD, detail))
            behind = file.file.size if found.position is None else found.position
            self.holes.append((self.position, behind))
            self.position = behind


class LogScan:
    """Yields batches from ``from_offset``, where a record begins, to the end of the log; none of them is empty.

    ``to_offset`` is the end, where it is known: what is behind it may be in the making. Otherwise the end is where
    :class:`CommitLog` has it, found on the way: to look for it first would be to scan twice. Then ``end_offset`` is
    known, and ``damage`` has what could not be read before it, ``holes`` from where to where that is; the scan went
    on behind that.

    ``check_crc``: whether checksums are looked at, which those who just wrote the records need not do.
    """

    def __init__(
        self, log: CommitLog, from_offset: int, to_offset: int | None = None, *, tags: bool, check_crc: bool = True
    ) -> None:
        self.from_offset = from_offset
        self.end_offset = from_offset
        self.damage: list[Damage] = []
        self.holes: list[tuple[int, int]] = []
        self._log = log
        self._to_offset = to_offset
        self._tags = tags
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[Batch]:
        rows = scan_rows()
        self._log.refresh()
        to_offset, last_base = self._to_offset, OFFSET_MAX
        if to_offset is None:
            to_offset, last_base = OFFSET_MAX, self._log.last_written_base()
        for begin, end in self._log.pieces(self.from_offset, to_offset):
            file = self._log.file_of(begin)
            if file.base > last_base:
                break
            scan = FileScan(
                file,
                begin - file.base,
                end - file.base,
                is_last=file.base == last_base,
                tags=self._tags,
                check_crc=self._check_crc,
            )
            yield from scan.batches(*rows)
            self.damage += scan.damage
            self.holes += [(file.base + hole_begin, file.base + hole_end) for hole_begin, hole_end in scan.holes]
            self.end_offset = file.base + scan.position
        self.damage += [gap for _, end, gap in self._log.gaps(self.end_offset) if end > self.from_offset]


def scan_rows() -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Arrays for the messages and items of one batch."""
    from whence.kernels.scan import ITEMS, SCANNED

    return np.empty(ROWS, SCANNED), np.empty(ITEM_ROWS, ITEMS)
