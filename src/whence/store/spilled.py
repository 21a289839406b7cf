"""Reading spills: what was taken from stretches of log, some at a time. :mod:`whence.store.spill` tells the bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from whence.errors import CorruptError, TruncatedError
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY
from whence.store.spill import CHUNK, END, RUN_HEAD, TIMES_SIZE_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Run(NamedTuple):
    """Rows of one queue in the order of the log: QUEUED, or BATCH_ENTRY of a batch queue."""

    topic: str
    queue: int
    rows: NDArray[np.void]


class Items(NamedTuple):
    """What is indexed, in the order of the log."""

    key_hashes: NDArray[np.int32]
    physical_offsets: NDArray[np.int64]
    store_timestamps_ms: NDArray[np.int64]


class MessageItems(NamedTuple):
    """The items of one message: the number of the first in its spill, and their hashes."""

    first: int
    key_hashes: NDArray[np.int32]


class _Chunk(NamedTuple):
    hashes: NDArray[np.int32]
    positions: NDArray[np.uint32]
    times: NDArray[Any]  # after ``base_ms``
    counts: NDArray[np.uint16]
    first_item: int
    base_ms: int


class SpilledItems:
    """The items of one spill, to be read in order or looked up.

    A file that is not as it was written is a FormatError, or gives wrong items; nothing outside of it is read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._mapped = MappedFile(folder / f"{name}.items")
        count, _, self._base_offset = _end_of(self._mapped)
        self._chunks = _rows(self._mapped, CHUNK, self._mapped.size - END.size - count * CHUNK.itemsize, count)
        counts = self._chunks["item_count"]
        self._item_count = int(counts.sum(dtype=np.int64))
        is_whole = (counts > 0) & (self._chunks["message_count"] > 0) & np.isin(self._chunks["time_size"], (4, 8))
        is_whole &= self._chunks["first_item"] == np.cumsum(counts, dtype=np.int64) - counts
        if not is_whole.all():
            raise CorruptError("has chunks that do not follow each other", path=self._mapped.path)

    def read(self, first: int, count: int) -> Iterator[Items]:
        """Items ``first`` to ``first + count``, some at a time. The arrays are used again for the next."""
        from whence.kernels.spills import unpack_items

        room = int(self._chunks["item_count"].max(initial=0))
        offsets, times = np.empty(room, np.int64), np.empty(room, np.int64)
        done = first
        while done < first + count:
            chunk = self._chunk(self._chunk_of(done))
            unpack_items(chunk.positions, chunk.times, chunk.counts, self._base_offset, chunk.base_ms, offsets, times)
            begin = done - chunk.first_item
            wanted = slice(begin, min(len(chunk.hashes), begin + first + count - done))
            yield Items(chunk.hashes[wanted], offsets[wanted], times[wanted])
            done += wanted.stop - wanted.start

    def of_message(self, physical_offset: int) -> MessageItems | None:
        """The items of the message at this offset; None if it has none, or is not in this spill."""
        position = physical_offset - self._base_offset
        number = bisect_right(range(len(self._chunks)), position, key=lambda n: int(self._chunk(n).positions[0])) - 1
        if number < 0:
            return None
        chunk = self._chunk(number)
        at = int(np.searchsorted(chunk.positions, position))
        if at == len(chunk.positions) or chunk.positions[at] != position:
            return None
        first = int(chunk.counts[:at].sum(dtype=np.int64))
        return MessageItems(chunk.first_item + first, chunk.hashes[first : first + int(chunk.counts[at])].copy())

    def place(self, number: int) -> tuple[int, int]:
        """Physical offset and store time of one item."""
        chunk = self._chunk(self._chunk_of(number))
        ends = np.cumsum(chunk.counts, dtype=np.int64)
        at = int(np.searchsorted(ends, number - chunk.first_item, side="right"))
        time = chunk.times[at : at + 1] + np.int64(chunk.base_ms)  # in 64 bits, as it was counted
        return self._base_offset + int(chunk.positions[at]), int(time[0])

    def _chunk_of(self, item: int) -> int:
        if not 0 <= item < self._item_count:
            what = f"has {self._item_count} items, and none of number {item}"
            raise TruncatedError(what, position=self._mapped.size, path=self._mapped.path)
        return int(np.searchsorted(self._chunks["first_item"], item, side="right")) - 1

    def _chunk(self, number: int) -> _Chunk:
        chunk, mapped = self._chunks[number], self._mapped
        at, item_count, message_count = (int(chunk[field]) for field in ("at", "item_count", "message_count"))
        hashes = _rows(mapped, np.dtype(np.int32), at, item_count)
        at += hashes.nbytes
        positions = _rows(mapped, np.dtype(np.uint32), at, message_count)
        at += positions.nbytes
        times = _rows(mapped, np.dtype(f"i{chunk['time_size']}"), at, message_count)
        counts = _rows(mapped, np.dtype(np.uint16), at + times.nbytes, message_count)
        if counts.sum(dtype=np.int64) != item_count:
            what = f"chunk {number} has {item_count} items, and its messages have another number"
            raise CorruptError(what, position=at + times.nbytes, path=mapped.path)
        return _Chunk(hashes, positions, times, counts, int(chunk["first_item"]), int(chunk["base_ms"]))

    def close(self) -> None:
        self._mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spilled_items(folder: Path, name: str, first: int, count: int) -> Iterator[Items]:
    """Items ``first`` to ``first + count`` of a spill, some at a time. The arrays are used again for the next."""
    with SpilledItems(folder, name) as items:
        yield from items.read(first, count)


def spilled_runs(folder: Path, name: str, group: int) -> Iterator[Run]:
    """The runs of one group of queues in a spill, in the order of the log. Reads nothing of other groups."""
    with MappedFile(folder / f"{name}.queues") as mapped:
        blocks, groups, base_offset = _end_of(mapped)
        if not 0 <= group < groups:
            what = f"has {groups} groups of queues, and none of number {group}"
            raise CorruptError(what, position=mapped.size - END.size, path=mapped.path)
        size = blocks * (groups + 1)
        table = _rows(mapped, np.dtype(np.int64), mapped.size - END.size - 8 * size, size)
        for first in range(group, size, groups + 1):
            at, end = int(table[first]), int(table[first + 1])
            while at < end:
                run, at = _read_run(mapped, at, base_offset)
                yield run


def _read_run(mapped: MappedFile, at: int, base_offset: int) -> tuple[Run, int]:
    """The run at a position, and the position behind it."""
    from whence.kernels.queues import QUEUED

    if not 0 <= at <= mapped.size - RUN_HEAD.size:
        raise TruncatedError("ends in a run", position=at, path=mapped.path)
    is_batch, code_size, is_in_order, topic_size, queue, count, first = RUN_HEAD.unpack_from(mapped.data, at)
    begin, at = at, at + RUN_HEAD.size + topic_size
    try:
        topic = str(mapped.data[begin + RUN_HEAD.size : at], "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError("has a run whose topic is no text", position=begin, path=mapped.path) from error
    if is_batch:
        rows = _rows(mapped, BATCH_ENTRY, at, count)
        return Run(topic, queue, rows), at + rows.nbytes
    if code_size not in (4, 8):
        raise CorruptError(f"has a run whose tags codes take {code_size} bytes", position=begin, path=mapped.path)
    columns = {}
    kinds = {"physical_offset": "u4", "size": "i4", "tags_code": f"i{code_size}"}
    for field, kind in (kinds if is_in_order else kinds | {"queue_offset": "i8"}).items():
        columns[field] = _rows(mapped, np.dtype(kind), at, count)
        at += columns[field].nbytes
    if is_in_order:
        columns["queue_offset"] = first + np.arange(count)
    rows = np.empty(count, QUEUED)
    for field, column in columns.items():
        rows[field] = column
    rows["physical_offset"] += base_offset
    return Run(topic, queue, rows), at


def _end_of(mapped: MappedFile) -> tuple[int, int, int]:
    """The last three numbers of a spill."""
    if mapped.size < END.size:
        raise TruncatedError("is no spill", position=mapped.size, path=mapped.path)
    blocks, groups, base_offset = END.unpack_from(mapped.data, mapped.size - END.size)
    return blocks, groups, base_offset


def _rows(mapped: MappedFile, dtype: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    if at < 0 or count < 0 or at + count * dtype.itemsize > mapped.size:
        raise TruncatedError(f"has {mapped.size} bytes, and not {count} rows at {at}", position=at, path=mapped.path)
    return np.frombuffer(mapped.data, dtype, count, at)


def spilled_times(folder: Path, name: str) -> bytes:
    """The time blocks of a spill: 20 bytes for each 64 KiB of its stretch at most."""
    return read_whole(folder / f"{name}.times", TIMES_SIZE_MAX)
