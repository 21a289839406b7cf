"""Build: the indexes of a log, on Spark.

    log -> stretches -> spills             pass one, a task for each stretch
        -> joined, planned                 the driver
        -> files, aside and flushed        pass two, a task for each index file and each group of queues
        -> renamed, sidecar.json           the driver, which holds the lock

The bytes are those that a broker makes when it dispatches the log once, with any number of tasks. A build that was
killed is begun anew, takes what was finished, and makes what is missing. On a log that grew it goes on from where the
last one ended.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from whence.errors import CorruptError, FullError, WhenceError
from whence.files.disk import Disk
from whence.files.folder import digit_names, files_in, is_folder, remove_tree
from whence.files.names import index_name, is_digits, offset_name
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    ITEM_SIZE,
    NO_HEADER,
    IndexHeader,
)
from whence.pipeline.built_before import goes_on, has_longer_index, is_as_left, known_times
from whence.pipeline.plan import IndexPlan, cut_ranges, group_count, plan_index
from whence.pipeline.scanning import cut_stretches, scan_stretches
from whence.pipeline.sidecar_folder import WORK, remove_left_in_work
from whence.pipeline.task_runner import CountedRunner, TaskRunner
from whence.pipeline.tasks import (
    TAKEN,
    IndexTask,
    Kind,
    Made,
    MadeFile,
    QueueTask,
    TimesTask,
    build_index_task,
    build_queues_task,
    build_times_task,
    own_name,
    read_made,
    spill_key,
)
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.field_claim import FieldClaim
from whence.store.growing_times import GrowingTimes
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan
from whence.store.message_store import Dialect
from whence.store.queue_ends import queue_ends
from whence.store.queue_files import cut_queue, newest_below, queue_folders, queues_size
from whence.store.sidecar import Mark, Sidecar, indexed_stretches, join_indexed
from whence.store.sidecar_expiry import expired_of
from whence.store.spill import NOWHERE, SPILLED_ITEM, SPILLED_MESSAGE, Recipe, Spilled, machine_id, read_spilled

HALVED_FROM = 1_000_000  # items of a file that is worth two tasks
TIMES_A_TASK = 256  # files of the log whose time blocks one task makes
SAMPLE_SIZE = 4 * 1048576  # bytes of log that tell how much room a build needs
SPILL_SUFFIXES = (".json", ".items", ".queues", ".times")  # the note first: without it nobody takes the others
QUEUE_FOLDERS = ("consumequeue", "batchconsumequeue")


ALL_KINDS = (Kind.INDEX, Kind.QUEUES, Kind.TIMES)


@dataclass(frozen=True, slots=True)
class BuildPlace:
    """Where a build writes. ``root`` gets index and queues: the sidecar, or the store itself."""

    sidecar: Path
    root: Path
    zone: tzinfo | None = UTC  # in which index files are named there

    @property
    def in_place(self) -> bool:
        return self.root != self.sidecar


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """What is built. ``jobs``: into how many tasks a pass is cut; None for as many as suit the cores."""

    shape: Shape
    dialect: Dialect
    queue_file_size: int
    batch_topics: tuple[str, ...] = ()
    jobs: int | None = None
    rebuild: bool = False
    with_sums: bool = False  # whether each file's sha256 is told
    kinds: tuple[Kind, ...] = ALL_KINDS


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file that a build put into its place."""

    path: str
    kind: Kind
    items: int
    from_offset: int
    to_offset: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BuiltField:
    """One field as it is now, of which a build made the part from ``from_offset`` to ``to_offset``."""

    name: str
    items: int
    files: int
    new_items: int
    from_offset: int
    to_offset: int

    def to_dict(self) -> dict[str, int]:
        """As ``build --json`` has it."""
        shown = asdict(self)
        del shown["name"]
        return shown


@dataclass(frozen=True, slots=True)
class BuiltFields:
    """What was built of fields, and what sidecar.json says now.

    ``failures``: why others are as they were, by their names.
    """

    sidecar: Sidecar
    files: tuple[PublishedFile, ...]
    fields: tuple[BuiltField, ...]
    failures: Mapping[str, WhenceError]
    damage: tuple[Damage, ...]
    tasks: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Built:
    """What a build did."""

    files: tuple[PublishedFile, ...]
    messages: int
    items: int
    bytes_read: int
    elapsed_s: float
    tasks: int
    skipped_files: int
    from_offset: int
    to_offset: int
    damage: tuple[Damage, ...]
    without_folder: tuple[str, ...]
    sidecar: Sidecar
    root: Path
    queues_size: int
    fields: tuple[BuiltField, ...] = ()
    taken: tuple[Spilled, ...] = ()  # the part of the log that was scanned
    notes: tuple[str, ...] = ()  # what else a user should know

    @property
    def is_healthy(self) -> bool:
        """Whether all of the log could be read."""
        return not self.damage

    def with_fields(self, fields: BuiltFields) -> Built:
        """The same, and what was built of fields."""
        return replace(
            self,
            files=self.files + fields.files,
            tasks=self.tasks + fields.tasks,
            elapsed_s=self.elapsed_s + fields.elapsed_s,
            damage=self.damage + fields.damage,
            sidecar=fields.sidecar,
            fields=fields.fields,
        )

    def count_of(self, kind: str) -> int:
        """How many files of a kind were put into their places."""
        return sum(file.kind == kind for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """As ``build --json`` has it."""
        return {
            "files": [asdict(file) for file in self.files],
            "messages": self.messages,
            "items": self.items,
            "bytes_read": self.bytes_read,
            "elapsed_s": round(self.elapsed_s, 3),
            "tasks": self.tasks,
            "skipped_files": self.skipped_files,
            "from_offset": self.from_offset,
            "to_offset": self.to_offset,
            "damage": [asdict(damage) for damage in self.damage],
            "fields": {field.name: field.to_dict() for field in self.fields},
            "notes": list(self.notes),
        }


class _Places(NamedTuple):
    """Where files belong: the names of all index files, the header of the newest, and from where to where."""

    names: list[str]
    newest: IndexHeader
    renames: list[tuple[Path, Path]]


class Build:
    """One build. The caller holds the lock of every folder that is written to.

    ``fields``: what is known of them, which stays so; to build them is another's work (fields.py).
    """

    def __init__(
        self,
        log: CommitLog,
        place: BuildPlace,
        settings: BuildSettings,
        known: Sidecar | None,
        runner: TaskRunner,
        disk: Disk,
        fields: Mapping[str, FieldClaim] = MappingProxyType({}),
    ) -> None:
        self._log = log
        self._fields = fields
        self._place = place
        self._settings = settings
        self._runner = CountedRunner(runner)
        self._disk = disk
        self._known = known if goes_on(log, place, settings, known) else None
        self._is_as_left = self._known is None or is_as_left(log, place, settings, self._known)
        self._replaces = self._known is None and known is not None and bool(known.indexed)
        self._from = log.begin_offset if self._known is None else self._known.indexed_to
        self._stretches = cut_stretches(log, self._from, runner.slots, settings.jobs)
        self._size = sum(stretch.size for stretch in self._stretches)
        self._recipe = Recipe(
            tags=settings.dialect is Dialect.V5_5,
            batch_topics=settings.batch_topics,
            groups=group_count(self._size, runner.slots, settings.jobs),
            flush=not runner.is_local,
        )
        self._work = place.sidecar / WORK / self._digest()

    # -- where to begin --------------------------------------------------------------------------------------------

    def _digest(self) -> str:
        """Of what all tasks have in common: a build that was killed is gone on with if it is the same.

        What one anew had made when it was killed is taken, too, by one that just finds nothing to go on with.
        """
        settings = replace(self._settings, jobs=None, rebuild=False, with_sums=False)
        known = self._known
        begun = None if known is None else (known.indexed_to, known.index_names, known.newest_header)
        decides = repr((self._recipe, settings, begun, self._place.root.absolute()))
        return hashlib.sha256(decides.encode()).hexdigest()[:16]

    # -- the build -------------------------------------------------------------------------------------------------

    def run(self) -> Built:
        """Build what is missing, publish it and clean up."""
        started = time.monotonic()
        before = self._prepare()
        taken = scan_stretches(self._stretches, self._recipe, self._work, self._runner, before)
        # A file of the log that has a blank alone is indexed, too: it has a file of time blocks, with none in it.
        is_new = any(spilled.begin_offset < spilled.end_offset for spilled in taken)
        made = self._make(taken) if is_new or not self._is_as_left else []
        if not all(path.exists() or target.exists() for path, target in self._places(made).renames):
            # A build that was killed had published it, and since then somebody removed it.
            for note in self._work.glob("*.made"):
                self._disk.remove(note)
            made = self._make(taken)
        built = self._publish(taken, made, time.monotonic() - started)
        remove_tree(self._work)
        with suppress(OSError):
            self._work.parent.rmdir()
        return built

    def _prepare(self) -> dict[int, Spilled]:
        """Make the work folder, keep of what other builds left what this one takes, and see that there is room."""
        self._disk.make_folder(self._work)
        remove_left_in_work(self._work.parent, self._work.name)
        before = self._spilled_before()
        names = {spilled.name for spilled in before.values()}
        for note in self._work.glob("*.json"):
            if note.name.removesuffix(".json") not in names:
                for suffix in SPILL_SUFFIXES:
                    self._disk.remove(note.with_name(note.name.removesuffix(".json") + suffix))
        self._see_that_there_is_room()
        return before

    def _spilled_before(self) -> dict[int, Spilled]:
        """What a build that was killed left.

        What its machine had not flushed when it stopped is not taken, nor what it took from files that have changed
        since.
        """
        wanted = {spill_key(stretch): stretch.number for stretch in self._stretches}
        found: dict[int, Spilled] = {}
        for path in self._work.glob("*.json"):
            number = wanted.get(path.name.partition("-")[2].rpartition("-")[0])
            if number is not None:
                with suppress(CorruptError):  # by a machine that stopped
                    spilled = read_spilled(path)
                    if spilled.machine in ("", machine_id()):
                        found[number] = spilled
        return found

    def _see_that_there_is_room(self) -> None:
        """For spills and files, both of which lie in the work folder until the files are published."""
        spills, files = self._needed_room()
        there = sum(size_in_use(path) for path in self._work.rglob("*"))
        self._check_room(self._place.sidecar, spills + files - there, "name a folder on another disk with --out")
        root = self._place.root
        if os.stat(root).st_dev != os.stat(self._work).st_dev:
            self._check_room(root, files, "build without --in-place, into the sidecar")

    def _check_room(self, folder: Path, needed: int, advice: str) -> None:
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise FullError(
                f"{folder}: the build needs about {needed:,} bytes of room, its disk has {free:,}; {advice}"
            )

    def _needed_room(self) -> tuple[int, int]:
        """About how many bytes spills and files take, from a sample of the log."""
        known = self._known
        copied = 0  # of queues there are copies too, but which ones get messages is not known yet
        if known is not None and known.index_names and Kind.INDEX in self._settings.kinds:
            copied = size_in_use(self._place.root / "index" / known.index_names[-1])
        if self._size < 2 * SAMPLE_SIZE:
            return 0, copied
        scan = LogScan(self._log, self._from, self._from + SAMPLE_SIZE, tags=self._recipe.tags)
        messages = items = 0
        for batch in scan:
            messages += len(batch.messages)
            items += len(batch.items)
        spills = messages * SPILLED_MESSAGE + items * SPILLED_ITEM
        files = messages * ENTRY_SIZE + items * ITEM_SIZE
        return spills * self._size // SAMPLE_SIZE, files * self._size // SAMPLE_SIZE + copied

    # -- pass two --------------------------------------------------------------------------------------------------

    def _make(self, taken: Sequence[Spilled]) -> list[Made]:
        """Make all files, aside."""
        names = "".join(f"{spilled.name}\n" for spilled in taken)
        self._disk.replace(self._work / TAKEN, names.encode())
        decides = f"{names}{'with sums' if self._settings.with_sums else ''}"
        digest = hashlib.sha256(decides.encode()).hexdigest()[:8]
        kinds = self._settings.kinds
        tasks: list[IndexTask | QueueTask | TimesTask] = [
            *(self._index_tasks(taken, digest) if Kind.INDEX in kinds else ()),
            *(self._queue_tasks(digest) if Kind.QUEUES in kinds else ()),
            *(self._times_tasks(taken, digest) if Kind.TIMES in kinds else ()),
        ]
        done = self._made_before()
        todo = [task for task in tasks if task.key not in done]
        done |= dict(zip((task.key for task in todo), self._runner.map("build", build_task, todo), strict=True))
        return [done[task.key] for task in tasks]

    def _made_before(self) -> dict[str, Made]:
        made: dict[str, Made] = {}
        for path in self._work.glob("*.made"):
            with suppress(CorruptError):
                made[path.name.rpartition("-")[0]] = read_made(path)
        return made

    def _index_tasks(self, taken: Sequence[Spilled], digest: str) -> list[IndexTask]:
        shape, known = self._settings.shape, self._known
        newest, newest_path, room = None, "", 0
        if known is not None and known.index_names:
            newest = known.newest_header
            newest_path = str(self._place.root / "index" / known.index_names[-1])
            room = shape.item_capacity - newest.next_item
        plans = plan_index(taken, shape.item_capacity - FIRST_ITEM, room)
        if not plans and self._is_longer():
            plans = [IndexPlan((), None, goes_on=True)]
        tasks = [
            IndexTask(
                key=f"index-{number}-{digest}",
                work=str(self._work),
                plan=plan,
                slots=shape.slot_capacity,
                items=shape.item_capacity,
                after=newest if plan.before is None else None,
                goes_on_with=newest_path if plan.goes_on else "",
                with_sums=self._settings.with_sums,
            )
            for number, plan in enumerate(plans)
        ]
        # With fewer files than cores, one of them would wait for the others: each file is two tasks then.
        is_shared = not self._runner.has_twins and 0 < len(tasks) < (self._settings.jobs or self._runner.slots)
        return [half for task in tasks for half in (self._halves(task) if is_shared else (task,))]

    def _is_longer(self) -> bool:
        """Whether the newest index file has more than was noted: then it is made anew, even if nothing is put in."""
        return self._known is not None and has_longer_index(self._place, self._known)

    def _halves(self, task: IndexTask) -> Iterator[IndexTask]:
        """Two tasks that fill the file of one."""
        plan = task.plan
        if task.goes_on_with or task.with_sums or plan.item_count < HALVED_FROM:
            yield task
            return
        folder = self._work / own_name(task.key)
        self._disk.add_folder(folder)
        file = folder / "shared"
        self._disk.create(file, self._settings.shape.file_size, reserve=False).close()
        front, back = cut_ranges(plan.ranges, plan.item_count // 2)
        yield replace(task, key=f"{task.key}-front", plan=replace(plan, ranges=front), file=str(file), leaves=True)
        yield replace(task, plan=replace(plan, ranges=back), file=str(file), passed=front)

    def _queue_tasks(self, digest: str) -> list[QueueTask]:
        return [
            QueueTask(
                key=f"queues-{group}-{digest}",
                work=str(self._work),
                group=group,
                file_size=self._settings.queue_file_size,
                batch_topics=self._settings.batch_topics,
                root=str(self._place.root),
                from_offset=0 if self._known is None else self._from,
                with_sums=self._settings.with_sums,
            )
            for group in range(self._recipe.groups)
        ]

    def _times_tasks(self, taken: Sequence[Spilled], digest: str) -> list[TimesTask]:
        spills: dict[int, list[str]] = defaultdict(list)
        for spilled in taken:
            base = self._log.base_of(spilled.begin_offset)
            assert base is not None
            spills[base].append(spilled.name)
        before = {}
        if self._known is not None and self._known.last_record_offset >= self._log.begin_offset:
            last = known_times(self._log, self._place, self._known)
            assert last is not None  # or nothing could be gone on with
            before[int(last.path.name)] = last.blocks.tobytes()
        files = [
            (offset_name(base), base, self._log.file_size, before.get(base, b""), tuple(spills[base]))
            for base in sorted({*spills, *before})
        ]
        return [
            TimesTask(
                f"times-{at}-{digest}",
                str(self._work),
                tuple(files[at : at + TIMES_A_TASK]),
                self._settings.with_sums,
            )
            for at in range(0, len(files), TIMES_A_TASK)
        ]

    # -- publishing ------------------------------------------------------------------------------------------------

    def _publish(self, taken: Sequence[Spilled], made: Sequence[Made], elapsed_s: float) -> Built:
        """Give every file its name, then say so."""
        known, root = self._known, self._place.root
        before = () if known is None else known.index_names
        names, newest, renames = self._places(made)
        published = [
            PublishedFile(str(target), file.kind, file.entry_count, file.from_offset, file.to_offset, file.sha256)
            for file, (_, target) in zip(_files(made), renames, strict=True)
        ]
        if self._replaces:  # while files of both lie side by side, nobody is to believe them or to go on with them
            self._claim((), (), NO_HEADER, (), 0).write(self._place.sidecar, self._disk)
        # The index file that became longer is the last: until then what is known is so. Readers count items that
        # sidecar.json does not know of as another's.
        longer = [root / "index" / name for name in before[-1:]]
        self._rename([each for each in renames if each[1] not in longer])
        without_folder = sorted({topic for each in taken for topic in each.without_folder})
        kept = {target for _, target in renames}
        self._remove_others(kept | {root / "index" / name for name in before}, taken)
        kinds = self._settings.kinds
        size = queues_size(root) if Kind.INDEX in kinds else 0
        self._rename([each for each in renames if each[1] in longer])
        begin_offset = self._log.begin_offset
        sidecar = self._claim(taken, names, newest, without_folder, size if Kind.QUEUES in kinds else 0)
        sidecar, expired = expired_of(self._place.sidecar, sidecar, begin_offset)
        sidecar.write(self._place.sidecar, self._disk)
        for path in expired:
            self._disk.remove(path)
        GrowingTimes(self._place.sidecar / "times", self._disk).remove_before(begin_offset, self._log.file_size)
        if self._place.in_place:
            self._remove_from_sidecar()
        skipped = len(before) - sum(1 for name in before if root / "index" / name in kept)
        return Built(
            files=tuple(published),
            messages=sum(spilled.message_count for spilled in taken),
            items=sum(spilled.item_count for spilled in taken),
            bytes_read=sum(spilled.end_offset - spilled.begin_offset for spilled in taken),
            elapsed_s=elapsed_s,
            tasks=self._runner.task_count,
            skipped_files=skipped,
            from_offset=self._from,
            to_offset=sidecar.indexed_to,
            damage=(
                *(damage for spilled in taken for damage in spilled.damage),
                *(gap for _, end, gap in self._log.gaps(sidecar.indexed_to) if end > self._from),
                *self._log.damage_behind(self._end_of(taken)),
            ),
            without_folder=tuple(without_folder),
            sidecar=sidecar,
            root=root,
            queues_size=size,
            taken=tuple(taken),
        )

    def _places(self, made: Sequence[Made]) -> _Places:
        """Where all files belong."""
        known = self._known
        names = [] if known is None else list(known.index_names)
        newest = NO_HEADER if known is None else known.newest_header
        renames = []
        for file in _files(made):
            renames.append((Path(file.path), self._target(file, names)))
            newest = file.header or newest
        return _Places(names, newest, renames)

    def _target(self, file: MadeFile, names: list[str]) -> Path:
        """Where a file belongs. An index file is named by its first item, later than the one before it."""
        place = self._place
        if file.target:
            return (place.sidecar if file.kind is Kind.TIMES else place.root) / file.target
        assert file.header is not None
        names.append(index_name(file.header.begin_timestamp_ms, names[-1] if names else None, place.zone))
        return place.root / "index" / names[-1]

    def _claim(
        self,
        taken: Sequence[Spilled],
        names: Sequence[str],
        newest: IndexHeader,
        without_folder: Sequence[str],
        queues_size: int,
    ) -> Sidecar:
        """What sidecar.json is to say."""
        settings, known = self._settings, self._known
        end = self._end_of(taken)
        holes = [hole for spilled in taken for hole in spilled.holes]
        indexed = indexed_stretches(self._log, self._from, end, holes)
        last, head = self._last_record(taken)
        return Sidecar(
            dialect=settings.dialect,
            slots=settings.shape.slot_capacity,
            items=settings.shape.item_capacity,
            queue_file_size=settings.queue_file_size,
            indexed=join_indexed(() if known is None else known.indexed, indexed),
            last_record_offset=last,
            last_record=head,
            index_names=tuple(names),
            newest_header=newest,
            queues_size=queues_size,
            in_place=self._place.in_place,
            other_topics=tuple(sorted({*without_folder, *(() if known is None else known.other_topics)})),
            fields=dict(self._fields),
            marks=() if known is None else known.marks,
        )

    def _end_of(self, taken: Sequence[Spilled]) -> int:
        """Up to where the log was scanned."""
        return taken[-1].end_offset if taken else self._from

    def _last_record(self, taken: Sequence[Spilled]) -> Mark:
        """Offset and head of the last record that was taken."""
        for spilled in reversed(taken):
            if spilled.message_count:
                return spilled.last_offset, bytes.fromhex(spilled.last_head)
        if self._known is None:
            return NOWHERE, b""
        return self._known.last_record_offset, self._known.last_record

    def _rename(self, renames: Sequence[tuple[Path, Path]]) -> None:
        """Rename files, and make that last."""
        folders = dict.fromkeys(target.parent for _, target in renames)
        self._disk.make_folders(folders)
        for path, target in renames:
            if path.exists() or not target.exists():  # else a build that was killed came as far as that
                self._disk.move(path, target)
        self._disk.flush_folders(folders)

    def _remove_others(self, kept: set[Path], taken: Sequence[Spilled]) -> None:
        """Remove what other builds left and nobody is to find: all of it if this one began at the first record."""
        root, kinds = self._place.root, self._settings.kinds
        for name in _names_in(root / "index") if Kind.INDEX in kinds else ():
            if _is_published_name(name) and root / "index" / name not in kept:
                self._disk.remove(root / "index" / name)
        if Kind.QUEUES in kinds:
            if self._known is None:
                self._remove_other_queues(kept, taken)
            elif not self._is_as_left:
                self._cut_queues(kept)
        times = self._place.sidecar / "times"
        from_offset = 0 if self._known is None else self._from
        for name in _names_in(times):
            if is_digits(name) and int(name) >= from_offset and times / name not in kept:
                self._disk.remove(times / name)

    def _cut_queues(self, kept: set[Path]) -> None:
        """Remove what a build that was killed put into queues, and the log has lost since."""
        built = {path.parent for path in kept}
        # In a store itself fillers may be all that tells where a queue goes on whose messages have expired.
        keeps_fillers = self._place.in_place and self._log.begin_offset > 0
        for folder, entry in queue_folders(self._place.root):
            newest = newest_below(folder, self._from, entry)
            if folder not in built and (newest is not None or keeps_fillers):
                cut_queue(folder, self._from, self._disk, entry)
                continue
            lost = [folder / name for name in digit_names(folder) if newest is None or name > newest.name]
            if gone := [path for path in reversed(lost) if path not in kept]:
                for path in gone:
                    self._disk.remove(path)
                self._disk.flush_folder(folder)

    def _remove_other_queues(self, kept: set[Path], taken: Sequence[Spilled]) -> None:
        """Of queues: but in a store itself, what tells where one goes on whose messages the log has no more."""
        root, built = self._place.root, {path.parent for path in kept}
        end = self._end_of(taken)
        holes = (hole for spilled in taken for hole in spilled.holes)
        ends = queue_ends(self._log, end, holes, self._settings.queue_file_size)
        for folder, entry in queue_folders(root):
            idle = ends.of(folder, entry) if self._place.in_place and folder not in built else None
            if idle is not None and idle.data is not None:
                self._disk.replace(idle.path, idle.data)
            for name in _names_in(folder):
                path = folder / name
                if _is_published_name(name) and path not in kept and (idle is None or path != idle.path):
                    self._disk.remove(path)

    def _remove_from_sidecar(self) -> None:
        """Remove the index and the queues of a build before that was not in place: nobody reads them any more."""
        sidecar = self._place.sidecar
        for folder in [sidecar / "index", *(folder for folder, _ in queue_folders(sidecar))]:
            for name in filter(_is_published_name, _names_in(folder)):
                self._disk.remove(folder / name)
            with suppress(OSError):
                os.removedirs(folder)


def nothing_built(log: CommitLog, place: BuildPlace, known: Sidecar) -> Built:
    """What is told of a build that had nothing to do."""
    return Built(
        files=(),
        messages=0,
        items=0,
        bytes_read=0,
        elapsed_s=0.0,
        tasks=0,
        skipped_files=len(known.index_names),
        from_offset=known.indexed_to,
        to_offset=known.indexed_to,
        damage=tuple(log.damage_behind(known.indexed_to)),
        without_folder=(),
        sidecar=known,
        root=place.root,
        queues_size=0,
    )


def build_task(task: IndexTask | QueueTask | TimesTask) -> Made:
    """Any task of pass two."""
    if isinstance(task, IndexTask):
        return build_index_task(task)
    return build_queues_task(task) if isinstance(task, QueueTask) else build_times_task(task)


def _is_published_name(name: str) -> bool:
    """Whether a published file has this name, or had it on its way from another disk when its build was killed."""
    return is_digits(name) or is_digits(name.removeprefix(".").removesuffix(".new"))


def _files(made: Sequence[Made]) -> Iterator[MadeFile]:
    return (file for each in made for file in each.files)


def size_in_use(path: Path) -> int:
    """What a file takes of its disk; 0 if it is not there."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _names_in(folder: Path) -> list[str]:
    return list(files_in(folder)) if is_folder(folder) else []
