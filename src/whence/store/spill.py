"""Spill: what is taken from a stretch of CommitLog, for the tasks that make index, queues and time blocks of it.

<name>.items      SPILLED_ITEM, in the order of the log
<name>.queues     blocks of rows; in each, the rows of a group of queues lie together
<name>.times      TIME_BLOCK entries, which belong to no other stretch
<name>.json       :class:`Spilled`, which says that the others are whole; written last

queues := block* table                             in the machine's byte order
block  := part[groups]
part   := run*                                     a queue is always in the same group
run    := kind u1, topic_size u2, queue i4, count i8, topic, row[count]       rows are QUEUED or BATCH_ENTRY
table  := i8[blocks][groups + 1], blocks i8, groups i8       where each part begins, and where the last one ends
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from whence.errors import CorruptError, FullError, TruncatedError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK, encode_time_blocks, join_time_blocks
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import LogFile, PlainBudget
from whence.store.log_scan import Batch, FileScan, scan_rows
from whence.store.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPILLED_ITEM = np.dtype([("physical_offset", np.int64), ("store_timestamp_ms", np.int64), ("key_hash", np.int32)])
ROWS_MAX = 1 << 19  # of queues, that are held until they are sorted and written: 30 MB with their copy
FREE_MIN = 16 * 1048576  # bytes: below that a disk counts as full before it is
DAMAGE_MAX = 1000  # that one stretch tells one by one
SPILLED_SIZE_MAX = 16 * 1048576
_RUN = struct.Struct("=BHiq")
_TABLE_END = struct.Struct("=qq")
_PLAIN, _BATCH = 0, 1
NOWHERE = -1
SPILL_KINDS = ("items", "queues", "times")
ITEMS_AT_ONCE = 1 << 16
TIMES_SIZE_MAX = 2**31 // BLOCK_SIZE * TIME_BLOCK.itemsize


@dataclass(frozen=True, slots=True)
class Stretch:
    """The records that begin in ``[from_offset, to_offset)`` of one file of the log.

    ``is_exact``: one begins at ``from_offset``, or the file does. Otherwise the first is looked for, and what is
    found may lie in the body of another: who joins the stretches sees whether the one before leads to it.
    """

    number: int
    path: str
    base: int
    from_offset: int
    to_offset: int
    is_exact: bool
    is_last: bool  # whether the log's end is in this file


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be taken from the log. The same for all stretches of a build."""

    tags: bool  # whether tags are indexed
    batch_topics: tuple[str, ...]  # those that have batch queues
    groups: int  # into how many parts the queues are sorted
    flush: bool  # whether spills are to outlast the machine that wrote them


@dataclass(frozen=True, slots=True)
class Spilled:
    """What was taken from a stretch.

    ``begin_offset``: where its first record begins, NOWHERE if none was found. ``end_offset``: where the one behind
    its last, at ``last_offset``, begins. ``ends_bare``: the last message has nothing that is indexed.
    """

    name: str
    begin_offset: int
    end_offset: int
    message_count: int
    item_count: int
    last_offset: int
    ends_bare: bool
    is_log_end: bool
    damage: tuple[Damage, ...]
    machine: str  # which, since it was started: what is not flushed lasts until it stops


def read_spilled(path: Path) -> Spilled:
    """What a stretch's ``.json`` says. It is written by whence alone: CorruptError if it is not so."""
    try:
        document = json.loads(read_whole(path, SPILLED_SIZE_MAX))
        document["damage"] = tuple(
            Damage(each["path"], each["position"], DamageKind(each["kind"]), each["detail"])
            for each in document["damage"]
        )
        return Spilled(**document)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"is not what whence wrote: {error!r}", path=path) from error


def machine_id() -> str:
    """Which machine this is, since it was started; "" if that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def spill_stretch(stretch: Stretch, recipe: Recipe, folder: Path, name: str, disk: Disk) -> Spilled:
    """Scan a stretch and leave what is taken from it in ``folder``, in files of this name."""
    with MappedFile(Path(stretch.path)) as mapped, Spill(folder, name, recipe, disk) as spill:
        file = LogFile(mapped, stretch.base, PlainBudget())
        begin, end = stretch.from_offset - stretch.base, stretch.to_offset - stretch.base
        if not stretch.is_exact:
            found = file.next_whole(begin).position
            begin = end if found is None else found
        scan = FileScan(file, begin, end, is_last=stretch.is_last, tags=recipe.tags)
        for batch in scan.batches(*scan_rows()):
            spill.put(batch)
        spill.finish()
    spilled = Spilled(
        name=name,
        begin_offset=stretch.base + begin if begin < end else NOWHERE,
        end_offset=stretch.base + scan.position,
        message_count=spill.message_count,
        item_count=spill.item_count,
        last_offset=spill.last_offset,
        ends_bare=spill.ends_bare,
        is_log_end=scan.is_log_end,
        damage=_bounded(scan.damage),
        machine="" if recipe.flush else machine_id(),
    )
    with disk.create(folder / f"{name}.new", 0, reserve=False) as note:
        note.write(json.dumps(asdict(spilled)).encode(), 0)
        if recipe.flush:
            note.flush()
    disk.rename(note.path, folder / f"{name}.json")
    return spilled


class Spill:
    """Writes the spill of one stretch. Holds some tens of megabytes, however long the stretch is."""

    def __init__(self, folder: Path, name: str, recipe: Recipe, disk: Disk) -> None:
        from whence.kernels.queues import QUEUED

        self.message_count = self.item_count = 0
        self.last_offset = NOWHERE
        self.ends_bare = False
        self._recipe = recipe
        self._folder = folder
        self._items, self._queues, self._times = (
            _Appended(disk.create(folder / f"{name}.{kind}", 0, reserve=False)) for kind in SPILL_KINDS
        )
        self._numbers = QueueNumbers(frozenset(recipe.batch_topics).__contains__)
        self._rows = np.empty(ROWS_MAX, QUEUED)
        self._row_numbers = np.empty(ROWS_MAX, np.int32)
        self._row_count = 0
        self._batches: dict[int, list[NDArray[np.void]]] = {}
        self._table: list[NDArray[np.int64]] = []
        self._blocks = np.empty(0, TIME_BLOCK)

    def put(self, batch: Batch) -> None:
        """Take from scanned messages what is needed."""
        if shutil.disk_usage(self._folder).free < FREE_MIN:
            raise FullError(f"{self._folder}: its disk is full; the work of a build needs more room there")
        items = np.empty(len(batch.items), SPILLED_ITEM)
        for name in SPILLED_ITEM.names or ():
            items[name] = batch.items[name]
        self._items.append(items)
        self.message_count += len(batch.messages)
        self.item_count += len(batch.items)
        self.last_offset = int(batch.messages["physical_offset"][-1])
        self.ends_bare = not len(batch.items) or int(batch.items["message"][-1]) != len(batch.messages) - 1
        positions = batch.messages["physical_offset"] - batch.base_offset
        self._put_times(encode_time_blocks(positions, np.ascontiguousarray(batch.messages["store_timestamp_ms"])))
        self._put_queues(*self._numbers.number(batch.data, batch.base_offset, batch.messages))

    def _put_times(self, blocks: NDArray[np.void]) -> None:
        joined = join_time_blocks(self._blocks, blocks)
        self._times.append(joined[:-1])
        self._blocks = joined[-1:].copy()  # the next batch may go on with it

    def _put_queues(
        self,
        messages: NDArray[np.void],
        numbers: NDArray[np.int32],
        batches: list[tuple[int, NDArray[np.void]]],
    ) -> None:
        for number, entries in batches:
            self._batches.setdefault(number, []).append(entries)
        done = 0
        while done < len(messages):
            taken = min(len(messages) - done, ROWS_MAX - self._row_count)
            rows = slice(self._row_count, self._row_count + taken)
            for name in self._rows.dtype.names or ():
                self._rows[name][rows] = messages[name][done : done + taken]
            self._row_numbers[rows] = numbers[done : done + taken]
            self._row_count += taken
            done += taken
            if self._row_count == ROWS_MAX:
                self._write_block()

    def _write_block(self) -> None:
        """Write the rows of queues that wait: those of one group together, and of one queue."""
        from whence.kernels.queues import sort_rows

        count = self._numbers.count
        starts, counts = np.empty(count, np.int64), np.zeros(count, np.int64)
        rows = np.empty(self._row_count, self._rows.dtype)
        sort_rows(
            self._rows[: self._row_count],
            self._row_numbers[: self._row_count],
            self._numbers.known,
            starts,
            counts,
            rows,
        )
        groups: list[list[tuple[int, int, NDArray[np.void]]]] = [[] for _ in range(self._recipe.groups)]
        for number in np.flatnonzero(counts).tolist():
            start, end = int(starts[number]), int(starts[number] + counts[number])
            groups[self._group(number)].append((_PLAIN, number, rows[start:end]))
        for number, entries in self._batches.items():
            groups[self._group(number)].append((_BATCH, number, np.concatenate(entries, dtype=BATCH_ENTRY)))
        parts = []
        for group in groups:
            parts.append(self._queues.size)
            for kind, number, run in group:
                topic, queue = self._numbers.places[number]
                name = topic.encode()
                self._queues.append(_RUN.pack(kind, len(name), queue, len(run)) + name)
                self._queues.append(run)
        self._table.append(np.array([*parts, self._queues.size], np.int64))
        self._row_count = 0
        self._batches.clear()

    def _group(self, number: int) -> int:
        return group_of(*self._numbers.places[number], self._recipe.groups)

    def finish(self) -> None:
        """Write what waits."""
        self._times.append(self._blocks)
        if self._row_count or self._batches:
            self._write_block()
        for parts in self._table:
            self._queues.append(parts)
        self._queues.append(_TABLE_END.pack(len(self._table), self._recipe.groups))
        if self._recipe.flush:
            for file in (self._items, self._queues, self._times):
                file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._items, self._queues, self._times):
            file.close()


class _Appended:
    """A file that is only ever appended to."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self.size = 0
        self.flush = file.flush
        self.close = file.close

    def append(self, data: NDArray[Any] | bytes) -> None:
        view = memoryview(data) if isinstance(data, bytes) else memoryview(data.view(np.uint8).data)
        self._file.write(view, self.size)
        self.size += len(view)


def group_of(topic: str, queue: int, groups: int) -> int:
    """The group of a queue: on all machines the same, and neighbours in different ones."""
    return (zlib.crc32(topic.encode()) + queue) % groups


# -- reading -------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Rows of one queue in the order of the log: QUEUED, or BATCH_ENTRY of a batch queue."""

    topic: str
    queue: int
    rows: NDArray[np.void]


def spilled_items(folder: Path, name: str, first: int, count: int) -> Iterator[NDArray[np.void]]:
    """Items ``first`` to ``first + count`` of a spill, some at a time."""
    with MappedFile(folder / f"{name}.items") as mapped:
        size = (first + count) * SPILLED_ITEM.itemsize
        if mapped.size < size:
            raise TruncatedError(f"has {mapped.size} bytes of {size}", position=mapped.size, path=mapped.path)
        rows = np.frombuffer(mapped.data, SPILLED_ITEM, count, first * SPILLED_ITEM.itemsize)
        for at in range(0, count, ITEMS_AT_ONCE):
            yield rows[at : at + ITEMS_AT_ONCE]


def spilled_runs(folder: Path, name: str, group: int) -> Iterator[Run]:
    """The runs of one group of queues in a spill, in the order of the log. Reads nothing of other groups."""
    from whence.kernels.queues import QUEUED

    with MappedFile(folder / f"{name}.queues") as mapped:
        blocks, groups = _TABLE_END.unpack_from(mapped.data, mapped.size - _TABLE_END.size)
        table_at = mapped.size - _TABLE_END.size - blocks * (groups + 1) * 8
        table = np.frombuffer(mapped.data, np.int64, blocks * (groups + 1), table_at).reshape(blocks, groups + 1)
        for parts in table:
            at, end = int(parts[group]), int(parts[group + 1])
            while at < end:
                kind, topic_size, queue, count = _RUN.unpack_from(mapped.data, at)
                at += _RUN.size
                topic = str(mapped.data[at : at + topic_size], "utf-8")
                at += topic_size
                rows = np.frombuffer(mapped.data, QUEUED if kind == _PLAIN else BATCH_ENTRY, count, at)
                at += rows.nbytes
                yield Run(topic, queue, rows)


def spilled_times(folder: Path, name: str) -> bytes:
    """The time blocks of a spill: 20 bytes for each 64 KiB of its stretch at most."""
    return read_whole(folder / f"{name}.times", TIMES_SIZE_MAX)


def _bounded(damage: list[Damage]) -> tuple[Damage, ...]:
    if len(damage) <= DAMAGE_MAX:
        return tuple(damage)
    last = damage[-1]
    more = f"{len(damage) - DAMAGE_MAX} more records of this file fail, up to this byte"
    return (*damage[:DAMAGE_MAX], Damage(last.path, last.position, last.kind, more))
