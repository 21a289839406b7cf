"""The tasks of a build. Each does its own reading and writing, and returns a row that says what it made.

    scan_stretch_task    a stretch of log        -> a spill
    build_index_task     ranges of items         -> an index file
    build_queues_task    a group of queues       -> their files
    build_times_task     files of the log        -> their time blocks

A task writes under names of its own, in the work folder, and flushes what readers will see. It renames nothing: only
the driver, which holds the lock, does. So a task that runs twice, or after its driver has died, changes nothing. On
one machine, where no task has a twin, two of them may fill one index file: its name is that of one run of the build.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import CorruptError, NotFoundError
from whence.files.disk import Disk
from whence.files.folder import is_folder
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, ENTRY_SIZE
from whence.formats.rocketmq.index_file import IndexHeader
from whence.formats.time_blocks import TIME_BLOCK, join_time_blocks
from whence.pipeline.plan import IndexPlan, ItemRange
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.queue_builder import BATCH_FILE_SIZE, QueueBuilder
from whence.store.queue_files import QUEUES, cut_queue, newest_below
from whence.store.spill import Recipe, Spilled, Stretch, spill_stretch
from whence.store.spilled import Items, spilled_items, spilled_runs, spilled_times

TAKEN = "taken"  # the names of the spills that a build goes on with, in order
MADE_SIZE_MAX = 1 << 30


class Kind(StrEnum):
    """What can be built."""

    INDEX = "index"
    QUEUES = "queues"
    TIMES = "times"
    FIELDS = "fields"


@dataclass(frozen=True, slots=True)
class MadeFile:
    """One file that a task made, complete and flushed, at ``path`` in the work folder.

    ``target`` is its place in the sidecar or the store; that of a new index file is "": its name depends on those
    before it.
    """

    kind: Kind
    path: str
    target: str
    entry_count: int
    from_offset: int
    to_offset: int
    sha256: str = ""
    header: IndexHeader | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What a task of pass two made."""

    files: tuple[MadeFile, ...]
    dropped_count: int = 0
    misplaced_count: int = 0


# -- pass one ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScanTask:
    stretch: Stretch
    recipe: Recipe
    work: str


def scan_stretch_task(task: ScanTask) -> Spilled:
    """Scan a stretch of log and spill what is taken from it."""
    name = f"{spill_number(task.stretch.number)}{own_name(spill_key(task.stretch))}"
    return spill_stretch(task.stretch, task.recipe, Path(task.work), name, Disk())


def spill_number(number: int) -> str:
    """Begins the name of a spill: who puts spills as they come looks for the next one."""
    return f"{number:08d}-"


def spill_key(stretch: Stretch) -> str:
    """Goes on with its name: of which part of the log it is, and of which state of that."""
    kind = f"{'exact' if stretch.is_exact else 'found'}-{'last' if stretch.is_last else 'whole'}"
    return f"{stretch.from_offset:020d}-{stretch.to_offset:020d}-{kind}-{file_state(stretch.path)}"


def file_state(path: str) -> str:
    """Another one after each change of a file, or if another file has its name. A copy cannot set it back."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    return f"{status.st_ino:x}.{status.st_ctime_ns:x}"


# -- pass two ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexTask:
    """``after``: header of the file before, if that is in no spill; ``goes_on_with``: its path, to extend it.

    ``file``: the one that two tasks fill, side by side. One puts the first items, and ``leaves``; the other has these
    ``passed`` over, puts the rest and makes the file whole.
    """

    key: str
    work: str
    plan: IndexPlan
    slots: int
    items: int
    after: IndexHeader | None
    goes_on_with: str
    with_sums: bool
    file: str = ""
    passed: tuple[ItemRange, ...] = ()
    leaves: bool = False


def build_index_task(task: IndexTask) -> Made:
    """Make one index file, or a longer one of the newest that is there."""
    work, disk, shape = Path(task.work), Disk(), Shape(task.slots, task.items)
    folder = Path(task.file).parent if task.file else work / own_name(task.key)
    disk.add_folder(folder)
    after = None if task.after is None else BuiltFile(folder / "before", task.after)
    if task.goes_on_with:
        source = Path(task.goes_on_with)
        disk.copy(source, folder / source.name)
        assert task.after is not None
        after = BuiltFile(folder / source.name, task.after)
    elif task.plan.before is not None:
        last = next(spilled_items(work, task.plan.before.name, task.plan.before.first, 1))
        inherited = _full(shape, int(last.store_timestamps_ms[0]), int(last.physical_offsets[0]))
        after = BuiltFile(folder / "before", inherited)
    builder = IndexBuilder(folder, shape, disk, after, file=Path(task.file) if task.file else None)
    try:
        builder.ask_for_file()
        for items in _items(work, task.passed):
            builder.pass_over(*items)
        for items in _items(work, task.plan.ranges):
            builder.put(*items)
        if task.leaves:
            builder.leave()
            return Made(())
        (built,) = builder.finish()
    finally:
        builder.close()
    header = built.header
    made = MadeFile(
        Kind.INDEX,
        str(built.path),
        f"index/{Path(task.goes_on_with).name}" if task.goes_on_with else "",
        header.next_item - 1,
        header.begin_physical_offset,
        header.end_physical_offset,
        sha256_of(built.path) if task.with_sums else "",
        header,
    )
    # A file that two tasks fill is not whole when one has ended: a build that begins anew makes it again.
    return Made((made,)) if task.file else _note(task.key, work, Made((made,)), disk)


def _items(work: Path, ranges: Iterable[ItemRange]) -> Iterator[Items]:
    for each in ranges:
        yield from spilled_items(work, each.name, each.first, each.count)


def _full(shape: Shape, end_ms: int, end_offset: int) -> IndexHeader:
    """The header of a full index file, as far as the next one inherits it."""
    return IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, shape.item_capacity)


@dataclass(frozen=True, slots=True)
class QueueTask:
    """``root``: where the queues are to be, and may be already. ``from_offset``: of the log, from where they go on.

    What they have of messages behind that is a killed build's, and put again: the log may have others there by now.
    """

    key: str
    work: str
    group: int
    file_size: int
    batch_topics: tuple[str, ...]
    root: str
    from_offset: int  # 0: all is made anew
    with_sums: bool


def build_queues_task(task: QueueTask) -> Made:
    """Make the files of a group of queues, or longer ones of those that are there."""
    work, disk = Path(task.work), Disk()
    folder = work / own_name(task.key)
    disk.add_folder(folder)
    is_batch = frozenset(task.batch_topics).__contains__
    plain = ("consumequeue", -(-task.file_size // ENTRY_SIZE) * ENTRY_SIZE)
    builder = QueueBuilder(folder / "consumequeue", task.file_size, disk, is_batch=is_batch)
    seen: set[tuple[str, int]] = set()
    copied: list[Path] = []
    try:
        for name in taken_names(work):
            for topic, queue, rows in spilled_runs(work, name, task.group):
                if task.from_offset and (topic, queue) not in seen:
                    seen.add((topic, queue))
                    kind, size = ("batchconsumequeue", BATCH_FILE_SIZE) if is_batch(topic) else plain
                    place = Path(kind, topic, str(queue))
                    copied += _copy_newest(task.root / place, folder / place, size, task.from_offset, disk)
                builder.put_rows(topic, queue, rows)
        built = builder.finish()
    finally:
        builder.close()
    disk.flush_files(copied)  # the builder has not flushed those to which it put nothing
    disk.flush_folders(path.parent for path in copied)
    files = tuple(_queue_files(folder, with_sums=task.with_sums))
    made = Made(files, built.dropped_count, built.misplaced_count)
    return _note(task.key, work, made, disk)


def _queue_files(folder: Path, *, with_sums: bool) -> Iterator[MadeFile]:
    for kind, dtype in (("consumequeue", ENTRY), ("batchconsumequeue", BATCH_ENTRY)):
        for path in sorted((folder / kind).glob("*/*/*")):
            with MappedFile(path) as mapped:
                entries = np.frombuffer(mapped.data, dtype, mapped.size // dtype.itemsize)
                written = np.flatnonzero(entries["size"][: -(-mapped.next_hole(0) // dtype.itemsize)])
                offsets = entries["physical_offset"][written[[0, -1]]].tolist() if len(written) else [0, 0]
                count = len(written)
            target = str(path.relative_to(folder))
            yield MadeFile(
                Kind.QUEUES, str(path), target, count, offsets[0], offsets[1], sha256_of(path) if with_sums else ""
            )


def _copy_newest(source: Path, target: Path, size: int, from_offset: int, disk: Disk) -> Iterator[Path]:
    """Copy the newest file of a queue that has something of messages before this offset, and that alone."""
    entry = QUEUES[source.parents[1].name]
    newest = newest_below(source, from_offset, entry) if is_folder(source) else None
    if newest is not None:
        if newest.stat().st_size != size:
            what = f"has {newest.stat().st_size} bytes, not {size}: it cannot be gone on with; build with --rebuild"
            raise CorruptError(what, path=newest)
        disk.make_folder(target)
        disk.copy(newest, target / newest.name)
        cut_queue(target, from_offset, disk, entry)
        yield target / newest.name


@dataclass(frozen=True, slots=True)
class TimesTask:
    """``files``: of each file of the log its name, base offset, size, the bytes of blocks of before, and spills."""

    key: str
    work: str
    files: tuple[tuple[str, int, int, bytes, tuple[str, ...]], ...]
    with_sums: bool


def build_times_task(task: TimesTask) -> Made:
    """Make the time blocks of some files of the log."""
    work, disk = Path(task.work), Disk()
    folder = work / own_name(task.key)
    disk.add_folder(folder)
    files = []
    for name, base, size, before, spills in task.files:
        blocks = np.frombuffer(before, TIME_BLOCK)
        for spill in spills:
            blocks = join_time_blocks(blocks, np.frombuffer(spilled_times(work, spill), TIME_BLOCK))
        with disk.create(folder / name, 0, reserve=False) as file:
            file.write(blocks.tobytes(), 0)
            file.flush()
        sha256 = sha256_of(file.path) if task.with_sums else ""
        files.append(MadeFile(Kind.TIMES, str(file.path), f"times/{name}", len(blocks), base, base + size, sha256))
    disk.flush_folder(folder)
    return _note(task.key, work, Made(tuple(files)), disk)


# -- what they share ---------------------------------------------------------------------------------------------


def own_name(key: str) -> str:
    """A name that no other run of a task has."""
    return f"{key}-{os.urandom(8).hex()}"


def taken_names(work: Path) -> Iterator[str]:
    """The names of the spills that were taken, in order."""
    with (work / TAKEN).open() as file:
        for line in file:
            yield line.rstrip("\n")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(key: str, work: Path, made: Made, disk: Disk) -> Made:
    """Leave word of what was made: a build that begins anew takes it.

    It is not flushed, for that would take as long as a small task: what a power failure leaves of it is whole or no
    JSON, and then its task is run again. Where it is, there are the files that it names: they were flushed before.
    """
    with disk.create(work / f"{own_name(key)}.new", 0, reserve=False) as note:
        note.write(json.dumps(asdict(made)).encode(), 0)
    disk.rename(note.path, note.path.with_suffix(".made"))
    return made


def read_made(path: Path) -> Made:
    """What a task noted."""
    try:
        document: dict[str, Any] = json.loads(read_whole(path, MADE_SIZE_MAX))
        files = [
            MadeFile(
                **each
                | {
                    "kind": Kind(each["kind"]),
                    "header": None if each["header"] is None else IndexHeader(**each["header"]),
                }
            )
            for each in document.pop("files")
        ]
        return Made(tuple(files), **document)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"is not what whence wrote: {error!r}", path=path) from error
