"""Spill: what is taken from a stretch of CommitLog, for the tasks that make index, queues and time blocks of it.

    <name>.items      what is indexed, in the order of the log
    <name>.queues     blocks of rows; in each, the rows of a group of queues lie together
    <name>.times      TIME_BLOCK entries, which belong to no other stretch
    <name>.json       :class:`Spilled`, which says that the others are whole; written last

All in the machine's byte order. Offsets are positions in the log's file: the less is written, the faster it goes.

    items  := chunk* CHUNK[chunks] end                 end := chunks or blocks i8, groups i8, base offset i8
    chunk  := hash i4[items], position u4[messages], time i4 or i8[messages], count u2[messages]

    queues := block* i8[blocks][groups + 1] end        where each part begins, and where the last one ends
    block  := part[groups]
    part   := run*                                     a queue is always in the same group
    run    := RUN_HEAD, topic, and of a batch queue BATCH_ENTRY[count], of any other
              position u4[count], size i4[count], tags code i4 or i8[count], and queue offset i8[count] if they are
              not one behind the other
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from whence.errors import CorruptError, FullError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK, join_time_blocks
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import LogFile, PlainBudget
from whence.store.log_scan import ITEM_ROWS, Batch, FileScan, scan_rows
from whence.store.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = np.dtype(
    [
        ("at", np.int64),  # where it begins
        ("first_item", np.int64),  # of the spill
        ("item_count", np.int32),
        ("message_count", np.int32),  # of those that have items
        ("base_ms", np.int64),  # from which its times are counted
        ("time_size", np.int64),  # bytes of a time
    ]
)
RUN_HEAD = struct.Struct("=BBBxHxxiqq")
"""Is batch, bytes of a tags code, is in order, topic size, queue, count, first queue offset."""
ROWS_MAX = 1 << 19  # of queues, that are held until they are sorted and written: 30 MB with their copy
ROWS_MIN = 1 << 16  # few queues have long runs soon, and what is sorted soon is still in the processor's cache
ROWS_OF_QUEUE = 1 << 12  # a run is about so long
PIECE_SIZE = 256 * 1024  # bytes that are written at once
FREE_MIN = 16 * 1048576  # bytes: below that a disk counts as full before it is
DAMAGE_MAX = 1000  # that one stretch tells one by one
SPILLED_SIZE_MAX = 16 * 1048576
END = struct.Struct("=qqq")
SPILLED_MESSAGE, SPILLED_ITEM = 22, 4  # bytes that a message and each of its items take, mostly
NOWHERE = -1
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

    @property
    def size(self) -> int:
        """In bytes."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be taken from the log. The same for all stretches of a build."""

    tags: bool  # whether tags are indexed
    batch_topics: tuple[str, ...]  # those that have batch queues
    groups: int  # into how many parts the queues are sorted
    flush: bool  # whether spills are to outlast the machine that wrote them
    marks: bool = False  # whether the hashes of items have their sign bit set which some brokers leave out


@dataclass(frozen=True, slots=True)
class Spilled:
    """What was taken from a stretch.

    ``begin_offset``: where its first record begins, NOWHERE if none was found. ``end_offset``: where the one behind
    its last, at ``last_offset``, begins; ``last_head``: that one's first bytes, as hex. ``ends_bare``: the last
    message has nothing that is indexed. ``without_folder``: topics that no folder can be named after, of which the
    spill has no queues.
    """

    name: str
    begin_offset: int
    end_offset: int
    message_count: int
    item_count: int
    last_offset: int
    last_head: str
    ends_bare: bool
    is_log_end: bool
    damage: tuple[Damage, ...]
    holes: tuple[tuple[int, int], ...]  # from which to which offset nothing could be read
    machine: str  # which, since it was started: what is not flushed lasts until it stops
    without_folder: tuple[str, ...] = ()


def read_spilled(path: Path) -> Spilled:
    """What a stretch's ``.json`` says. It is written by whence alone: CorruptError if it is not so."""
    try:
        return decode_spilled(json.loads(read_whole(path, SPILLED_SIZE_MAX)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"is not what whence wrote: {error!r}", path=path) from error


def decode_spilled(document: dict[str, Any]) -> Spilled:
    """What a task told of a stretch, from JSON. What is not so is an error of Python's own."""
    damage = tuple(
        Damage(each["path"], each["position"], DamageKind(each["kind"]), each["detail"])
        for each in document["damage"]
    )
    holes = tuple((int(begin), int(end)) for begin, end in document["holes"])
    without_folder = tuple(document.get("without_folder", ()))  # which one of before did not tell
    return Spilled(**document | {"damage": damage, "holes": holes, "without_folder": without_folder})


def machine_id() -> str:
    """Which machine this is, since it was started; "" if that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def spill_stretch(stretch: Stretch, recipe: Recipe, folder: Path, name: str, disk: Disk) -> Spilled:
    """Scan a stretch and leave what is taken from it in ``folder``, in files of this name."""
    with Spill(folder, name, stretch.base, recipe, disk) as spill:
        spilled = _scan_through(stretch, recipe.tags, spill.put)
        spill.finish()
    spilled = replace(
        spilled,
        name=name,
        message_count=spill.message_count,
        item_count=spill.item_count,
        last_offset=spill.last_offset,
        last_head=spill.last_head.hex(),
        ends_bare=spill.ends_bare,
        without_folder=spill.without_folder,
        machine="" if recipe.flush else machine_id(),
    )
    with disk.create(folder / f"{name}.new", 0, reserve=False) as note:
        note.write(json.dumps(asdict(spilled)).encode(), 0)
        if recipe.flush:
            note.flush()
    disk.rename(note.path, folder / f"{name}.json")
    return spilled


def walk_stretch(stretch: Stretch) -> Spilled:
    """Scan a stretch and leave nothing: for who wants to know where records begin, and how many there are."""
    counts: list[int] = []

    def count(batch: Batch) -> None:
        counts.append(len(batch.messages))

    return replace(_scan_through(stretch, tags=False, put=count), message_count=sum(counts))


def _scan_through(stretch: Stretch, tags: bool, put: Callable[[Batch], None]) -> Spilled:
    """Give all messages of a stretch to ``put``, and tell from where to where it went."""
    with MappedFile(Path(stretch.path)) as mapped:
        file = LogFile(mapped, stretch.base, PlainBudget())
        begin, end = stretch.from_offset - stretch.base, stretch.to_offset - stretch.base
        if not stretch.is_exact:
            found = file.next_whole(begin).position
            begin = end if found is None else found
        scan = FileScan(file, begin, end, is_last=stretch.is_last, tags=tags)
        for batch in scan.batches(*scan_rows()):
            put(batch)
    return Spilled(
        name="",
        begin_offset=stretch.base + begin if begin < end else NOWHERE,
        end_offset=stretch.base + scan.position,
        message_count=0,
        item_count=0,
        last_offset=NOWHERE,
        last_head="",
        ends_bare=False,
        is_log_end=scan.is_log_end,
        damage=_bounded(scan.damage),
        holes=tuple((stretch.base + begin, stretch.base + end) for begin, end in _few(scan.holes)),
        machine="",
    )


class Spill:
    """Writes the spill of one stretch. Holds some tens of megabytes, however long the stretch is."""

    def __init__(self, folder: Path, name: str, base_offset: int, recipe: Recipe, disk: Disk) -> None:
        from whence.kernels.spills import ROW

        self.message_count = self.item_count = 0
        self.last_offset = NOWHERE
        self.last_head = b""
        self.ends_bare = False
        self._recipe = recipe
        self._folder = folder
        self._base_offset = base_offset
        self._items = ItemsWriter(folder, name, base_offset, disk)
        self._packed = [np.empty(ITEM_ROWS, kind) for kind in ("i4", "u4", "i8", "i4", "u2")]
        self._queues, self._times = (
            Appended(disk.create(folder / f"{name}.{kind}", 0, reserve=False)) for kind in ("queues", "times")
        )
        self._numbers = QueueNumbers(frozenset(recipe.batch_topics).__contains__)
        self._rows = np.empty(ROWS_MAX, ROW)
        self._columns = tuple(np.empty(ROWS_MAX, kind) for kind in ("u4", "i4", "i8", "i4", "i8"))
        self._row_count = 0
        self._batches: dict[int, list[NDArray[np.void]]] = {}
        self._table: list[NDArray[np.int64]] = []
        self._blocks = np.empty(0, TIME_BLOCK)

    @property
    def without_folder(self) -> tuple[str, ...]:
        """Topics that no folder can be named after."""
        return tuple(self._numbers.without_folder)

    def put(self, batch: Batch) -> None:
        """Take from scanned messages what is needed."""
        from whence.kernels.checks import OPTIONAL
        from whence.kernels.time_blocks import encode_time_blocks

        check_room(self._folder)
        if self._recipe.marks:
            batch.items["key_hash"][_may_be_left_out(batch)] |= OPTIONAL
        self._put_items(batch.items)
        self.message_count += len(batch.messages)
        self.item_count += len(batch.items)
        self.last_offset, self.last_head = batch.last_record
        self.ends_bare = not len(batch.items) or int(batch.items["message"][-1]) != len(batch.messages) - 1
        self._put_times(encode_time_blocks(batch.messages, batch.base_offset))
        self._put_queues(*self._numbers.number(batch.data, batch.base_offset, batch.messages))

    def _put_items(self, items: NDArray[np.void]) -> None:
        from whence.kernels.spills import pack_items

        if not len(items):
            return
        hashes, positions, times, short_times, counts = self._packed
        base_ms = int(items["store_timestamp_ms"][0])
        count, is_wide = pack_items(items, self._base_offset, base_ms, *self._packed)
        told = times if is_wide else short_times
        self._items.append(hashes[: len(items)], positions[:count], told[:count], counts[:count], base_ms)

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
        from whence.kernels.spills import take_rows

        for number, entries in batches:
            self._batches.setdefault(number, []).append(entries)
        done = 0
        rows = self._rows[: max(ROWS_MIN, self._row_count, ROWS_OF_QUEUE * self._numbers.count)]
        while True:
            done, self._row_count = take_rows(
                messages, numbers, done, self._base_offset, self._numbers.known, rows, self._row_count
            )
            if done == len(messages):
                break
            self._write_block()

    def _write_block(self) -> None:
        """Write the rows of queues that wait: those of one group together, and of one queue."""
        from whence.kernels.spills import RUN, sort_rows

        runs = np.zeros(self._numbers.count, RUN)
        sort_rows(self._rows[: self._row_count], runs, *self._columns)
        groups: list[list[int]] = [[] for _ in range(self._recipe.groups)]
        for number in sorted({*np.flatnonzero(runs["count"]).tolist(), *self._batches}):
            groups[group_of(*self._numbers.places[number], len(groups))].append(number)
        parts = []
        for group in groups:
            parts.append(self._queues.size)
            for number in group:
                if number in self._batches:
                    entries = np.concatenate(self._batches[number], dtype=BATCH_ENTRY)
                    self._write_run(number, entries, is_batch=True)
                else:
                    self._write_rows(number, runs[number])
        self._table.append(np.array([*parts, self._queues.size], np.int64))
        self._row_count = 0
        self._batches.clear()

    def _write_rows(self, number: int, run: np.void) -> None:
        rows = slice(int(run["start"]), int(run["start"] + run["count"]))
        positions, sizes, codes, short_codes, queue_offsets = (column[rows] for column in self._columns)
        if not run["is_wide"]:
            codes = short_codes
        columns = [positions, sizes, codes, queue_offsets] if run["has_jumps"] else [positions, sizes, codes]
        first = int(queue_offsets[0])
        self._write_run(number, *columns, code_size=codes.itemsize, is_in_order=not run["has_jumps"], first=first)

    def _write_run(
        self,
        number: int,
        *columns: NDArray[Any],
        is_batch: bool = False,
        code_size: int = 0,
        is_in_order: bool = False,
        first: int = 0,
    ) -> None:
        topic, queue = self._numbers.places[number]
        name = topic.encode()
        head = RUN_HEAD.pack(is_batch, code_size, is_in_order, len(name), queue, len(columns[0]), first)
        self._queues.append(head + name)
        for column in columns:
            self._queues.append(column)

    def finish(self) -> None:
        """Write what waits."""
        self._times.append(self._blocks)
        if self._row_count or self._batches:
            self._write_block()
        for parts in self._table:
            self._queues.append(parts)
        self._queues.append(END.pack(len(self._table), self._recipe.groups, self._base_offset))
        for file in (self._items, self._queues, self._times):
            file.finish(flush=self._recipe.flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._items, self._queues, self._times):
            file.close()


def _may_be_left_out(batch: Batch) -> NDArray[np.bool_]:
    """Of which items it depends on the broker's version whether they are there: tags, and half messages."""
    from whence.kernels.scan import Kind

    transactions = batch.messages["sys_flag"][batch.items["message"]] & TRANSACTION_MASK
    is_prepared = transactions == Transaction.PREPARED
    return np.asarray((batch.items["kind"] == Kind.TAGS) | is_prepared)


def check_room(folder: Path) -> None:
    """A disk counts as full before it is."""
    if shutil.disk_usage(folder).free < FREE_MIN:
        raise FullError(f"{folder}: its disk is full; the work of a build needs more room there")


class ItemsWriter:
    """Writes ``<name>.items``, chunk by chunk."""

    def __init__(self, folder: Path, name: str, base_offset: int, disk: Disk) -> None:
        self._file = Appended(disk.create(folder / f"{name}.items", 0, reserve=False))
        self._base_offset = base_offset
        self._chunks: list[tuple[int, ...]] = []
        self.item_count = 0
        self.close = self._file.close

    def append(
        self,
        hashes: NDArray[np.int32],
        positions: NDArray[np.uint32],
        times: NDArray[np.int32] | NDArray[np.int64],
        counts: NDArray[np.uint16],
        base_ms: int,
    ) -> None:
        """Items in the order of the log: hashes; and of each message that has some its position, time and count."""
        self._chunks.append((self._file.size, self.item_count, len(hashes), len(counts), base_ms, times.itemsize))
        for column in (hashes, positions, times, counts):
            self._file.append(column)
        self.item_count += len(hashes)

    def finish(self, *, flush: bool) -> None:
        """Write the table that leads to the chunks."""
        self._file.append(np.array(self._chunks, CHUNK))
        self._file.append(END.pack(len(self._chunks), 0, self._base_offset))
        self._file.finish(flush=flush)


class Appended:
    """A file that is only ever appended to, in pieces of PIECE_SIZE: small ones take three times as long."""

    def __init__(self, file: DiskFile) -> None:
        self.size = 0
        self.close = file.close
        self._file = file
        self._piece = memoryview(bytearray(PIECE_SIZE))

    def append(self, data: NDArray[Any] | bytes) -> None:
        view = memoryview(data) if isinstance(data, bytes) else memoryview(data.view(np.uint8).data)
        while len(view):
            at = self.size % PIECE_SIZE
            taken = min(PIECE_SIZE - at, len(view))
            self._piece[at : at + taken] = view[:taken]
            self.size += taken
            if at + taken == PIECE_SIZE:
                self._file.write(self._piece, self.size - PIECE_SIZE)
            view = view[taken:]

    def finish(self, *, flush: bool) -> None:
        """Write the last piece, and let all last if it is to."""
        at = self.size % PIECE_SIZE
        self._file.write(self._piece[:at], self.size - at)
        if flush:
            self._file.flush()


def group_of(topic: str, queue: int, groups: int) -> int:
    """The group of a queue: on all machines the same, and neighbours in different ones."""
    return (zlib.crc32(topic.encode()) + queue) % groups


def narrow(values: NDArray[np.int64]) -> NDArray[Any]:
    """The same numbers in 32 bits, if they fit."""
    narrow = values.astype(np.int32)
    return narrow if (narrow == values).all() else values


def _few(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same holes; if there are very many, the last one spans all that are too many."""
    if len(holes) <= DAMAGE_MAX:
        return holes
    return [*holes[:DAMAGE_MAX], (holes[DAMAGE_MAX][0], holes[-1][1])]


def _bounded(damage: list[Damage]) -> tuple[Damage, ...]:
    if len(damage) <= DAMAGE_MAX:
        return tuple(damage)
    last = damage[-1]
    more = f"{len(damage) - DAMAGE_MAX} more records of this file fail, up to this byte"
    return (*damage[:DAMAGE_MAX], Damage(last.path, last.position, last.kind, more))
