"""FieldSpill: the values of a field in a stretch of log, for the tasks that make its index files.

<name>.items      as of any stretch (spill.py): hashes of "topic#value", in the order of the log
<name>.values     16 bytes of each of them
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from whence.errors import TruncatedError
from whence.files.disk import Disk
from whence.files.mapped_file import MappedFile
from whence.formats.field_values import VALUE_HASH_SIZE
from whence.store.spill import NOWHERE, Appended, ItemsWriter, Spilled, Stretch, check_room, machine_id, narrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNT_MAX = 65_535  # items that are told of a message at once; an array may have more elements
VALUES_AT_ONCE = 1 << 20  # bytes


class Texts(NamedTuple):
    """Texts in one buffer: text i is ``data[begins[i]:ends[i]]``."""

    begins: NDArray[Any]
    ends: NDArray[Any]
    data: NDArray[np.uint8]

    @property
    def longest(self) -> int:
        return int((self.ends.astype(np.int64) - self.begins).max(initial=0))


class FieldSpill:
    """Writes the spill of one field in one stretch."""

    def __init__(self, folder: Path, name: str, stretch: Stretch, disk: Disk, *, flush: bool) -> None:
        self._name = name
        self._folder = folder
        self._stretch = stretch
        self._flush = flush
        self._items = ItemsWriter(folder, name, stretch.base, disk)
        self._values = Appended(disk.create(folder / f"{name}.values", 0, reserve=False))
        self._scratch = np.empty(0, np.uint8)
        self._message_count = 0
        self._last_offset = NOWHERE

    def put(self, rows: NDArray[np.void], topics: Texts, counts: NDArray[np.int64], values: Texts) -> None:
        """The values of the next messages (SCANNED): ``counts`` of each, one behind the other."""
        from whence.kernels.field_values import SCRATCH_MIN, hash_values

        if not len(rows):
            return
        check_room(self._folder)
        self._message_count += len(rows)
        self._last_offset = int(rows["physical_offset"][-1])
        size = len(values.begins)
        if not size:
            return
        needed = SCRATCH_MIN + topics.longest + values.longest
        if len(self._scratch) < needed:
            self._scratch = np.empty(2 * needed, np.uint8)
        hashes, bits = np.empty(size, np.int32), np.empty((size, VALUE_HASH_SIZE), np.uint8)
        hash_values(*topics, counts, *values, self._scratch, hashes, bits)
        self._values.append(bits.reshape(-1))
        self._append_items(rows, counts, hashes)

    def _append_items(self, rows: NDArray[np.void], counts: NDArray[np.int64], hashes: NDArray[np.int32]) -> None:
        has_some = counts > 0
        offsets, times, counts = (
            column[has_some] for column in (rows["physical_offset"], rows["store_timestamp_ms"], counts)
        )
        parts = -(-counts // COUNT_MAX)
        if len(counts) and parts.max() > 1:
            last = counts - COUNT_MAX * (parts - 1)
            offsets, times = np.repeat(offsets, parts), np.repeat(times, parts)
            told = np.full(int(parts.sum()), COUNT_MAX, np.int64)
            told[np.cumsum(parts) - 1] = last
            counts = told
        base_ms = int(times[0])
        positions = (offsets - self._stretch.base).astype(np.uint32)
        self._items.append(hashes, positions, narrow(times - base_ms), counts.astype(np.uint16), base_ms)

    def finish(self) -> Spilled:
        """Write what waits, and tell what was taken."""
        self._items.finish(flush=self._flush)
        self._values.finish(flush=self._flush)
        return Spilled(
            name=self._name,
            begin_offset=self._stretch.from_offset,
            end_offset=self._stretch.to_offset,
            message_count=self._message_count,
            item_count=self._items.item_count,
            last_offset=self._last_offset,
            last_head="",
            ends_bare=False,  # a message without a value begins no file: none but whence makes these
            is_log_end=False,
            damage=(),
            holes=(),
            machine="" if self._flush else machine_id(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._items.close()
        self._values.close()


def spilled_values(folder: Path, name: str, first: int, count: int) -> Iterator[memoryview]:
    """What stands beside items ``first`` to ``first + count`` of a spill, some at a time."""
    with MappedFile(folder / f"{name}.values") as mapped:
        begin, end = VALUE_HASH_SIZE * first, VALUE_HASH_SIZE * (first + count)
        if end > mapped.size:
            what = f"has {mapped.size} bytes, and not the values of {first + count} items"
            raise TruncatedError(what, position=mapped.size, path=mapped.path)
        for at in range(begin, end, VALUES_AT_ONCE):
            yield mapped.data[at : min(at + VALUES_AT_ONCE, end)]
