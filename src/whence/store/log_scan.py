"""LogScan: the whole records of a CommitLog in batches of rows, for who needs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.files.names import OFFSET_MAX
from whence.store.commit_log import CommitLog, is_half
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import LogFile
from whence.store.scan import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 16_384  # messages in one batch, and items: a few megabytes, and Ctrl-C is heard between two batches
ITEM_ROWS = 65_536


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


class LogScan:
    """Yields batches from ``from_offset``, where a record begins, to the end of the log; none of them is empty.

    ``to_offset`` is the end, where it is known: what is behind it may be in the making. Otherwise the end is where
    :class:`CommitLog` has it, found on the way: to look for it first would be to scan twice. Then ``end_offset`` is
    known, and ``damage`` has what could not be read before it; the scan went on behind that.

    ``check_crc``: whether checksums are looked at, which those who just wrote the records need not do.
    """

    def __init__(
        self, log: CommitLog, from_offset: int, to_offset: int | None = None, *, tags: bool, check_crc: bool = True
    ) -> None:
        self.from_offset = from_offset
        self.end_offset = from_offset
        self.damage: list[Damage] = []
        self._log = log
        self._to_offset = to_offset
        self._tags = tags
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[Batch]:
        from whence.kernels.scan import ITEMS, SCANNED

        messages, items = np.empty(ROWS, SCANNED), np.empty(ITEM_ROWS, ITEMS)
        self._log.refresh()
        to_offset, last_base = self._to_offset, OFFSET_MAX
        if to_offset is None:
            to_offset, last_base = OFFSET_MAX, self._log.last_written_base()
        for begin, end in self._log.pieces(self.from_offset, to_offset):
            file = self._log.file_of(begin)
            if file.base > last_base:
                break
            yield from self._scan_file(
                file, begin - file.base, end - file.base, file.base == last_base, messages, items
            )
        self.damage += [gap for _, end, gap in self._log.gaps(self.end_offset) if end > self.from_offset]

    def _scan_file(
        self, file: LogFile, position: int, end: int, is_last: bool, messages: Any, items: Any
    ) -> Iterator[Batch]:
        from whence.kernels.scan import Status, scan_stretch

        base, end = file.base, min(end, file.file.size)
        data = np.frombuffer(file.file.data, np.uint8)
        while position < end:
            result = scan_stretch(
                data, base, position, end, check_crc=self._check_crc, tags=self._tags, messages=messages, items=items
            )
            count, item_count = result.message_count, result.item_count
            if count:
                last = messages[count - 1]
                last_at = int(last["physical_offset"]) - base
                position = last_at + int(last["size"])
            if result.status in (Status.FULL, Status.END):
                yield Batch(data, base, messages[:count], items[:item_count])
                continue
            stopped = file.what_is_at(position)
            if count and is_last and is_half(file, last_at):
                position = last_at
                count -= 1
                item_count = int(np.searchsorted(items["message"][:item_count], count))
            if count:
                yield Batch(data, base, messages[:count], items[:item_count])
            if stopped.reason is Reason.BLANK:
                position = stopped.position
            if is_last or stopped.reason is Reason.BLANK:
                break
            found = file.resume(position)
            detail = f"{stopped.detail or 'nothing is written here'}; {found}"
            self.damage.append(Damage(str(file.file.path), position, DamageKind.BAD_RECORD, detail))
            position = end if found.position is None else min(found.position, end)
        self.end_offset = base + position
