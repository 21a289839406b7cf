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


class LogScan:
    """Yields batches from ``from_offset``, where a record begins, to the end of the log; none of them is empty.

    The end is where :class:`CommitLog` has it, found on the way: to look for it first would be to scan twice. Then
    ``end_offset`` is known, and ``damage`` has what could not be read before it; the scan went on behind that.
    """

    def __init__(self, log: CommitLog, from_offset: int, *, tags: bool) -> None:
        self.from_offset = from_offset
        self.end_offset = from_offset
        self.damage: list[Damage] = []
        self._log = log
        self._tags = tags

    def __iter__(self) -> Iterator[Batch]:
        from whence.kernels.scan import ITEMS, SCANNED

        messages, items = np.empty(ROWS, SCANNED), np.empty(ITEM_ROWS, ITEMS)
        self._log.refresh()
        last_base = self._log.last_written_base()
        for begin, _ in self._log.pieces(self.from_offset, OFFSET_MAX):
            file = self._log.file_of(begin)
            if file.base > last_base:
                break
            yield from self._scan_file(file, begin - file.base, file.base == last_base, messages, items)
        self.damage += [gap for _, _, gap in self._log.gaps(self.end_offset)]

    def _scan_file(self, file: LogFile, position: int, is_last: bool, messages: Any, items: Any) -> Iterator[Batch]:
        from whence.kernels.scan import Status, scan_stretch

        base, end = file.base, file.file.size
        data = np.frombuffer(file.file.data, np.uint8)
        while position < end:
            result = scan_stretch(
                data, base, position, end, check_crc=True, tags=self._tags, messages=messages, items=items
            )
            count, item_count = result.message_count, result.item_count
            if count:
                last = messages[count - 1]
                last_at = int(last["physical_offset"]) - base
                position = last_at + int(last["size"])
            if result.status == Status.FULL:
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
            position = end if found.position is None else found.position
        self.end_offset = base + position
