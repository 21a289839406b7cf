"""Building fields: indexes over what an expression gives for each message.

    log -> stretches, proven            tasks that look where records begin
        -> values -> spills             Spark, which evaluates expressions (field_evaluation.py)
        -> planned                      the driver
        -> files, aside and flushed     a task for each index file with its values
        -> renamed, sidecar.json        the driver, which holds the lock

A follower puts what is new into the newest files themselves: the driver links it from the spills (growing_field.py).

A field goes on where it ended, up to where the log is indexed. It is built anew if its expression is another one, if
Spark is of another version, or if its files are not as they were left. One whose expression fails stays as it was,
and the others are built.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from whence.errors import StoreError
from whence.files.disk import Disk
from whence.files.folder import files_in, folders_in, is_folder, remove_tree
from whence.files.names import index_name, is_digits
from whence.formats.field_values import values_position
from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader
from whence.pipeline.build import BuiltField, BuiltFields, PublishedFile
from whence.pipeline.built_before import header_of, size_of
from whence.pipeline.field_evaluation import Definition, Evaluated
from whence.pipeline.field_failure import FieldError
from whence.pipeline.field_tasks import FieldTask, MadeField, build_field_task
from whence.pipeline.plan import plan_index
from whence.pipeline.scanning import walk_log
from whence.pipeline.sidecar_folder import FIELDS_WORK, WORK
from whence.pipeline.task_runner import CountedRunner, TaskRunner
from whence.pipeline.tasks import IndexTask, Kind, own_name
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.field_claim import FOLDER, FieldClaim
from whence.store.growing_field import GrowingField
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan
from whence.store.sidecar import Mark, Sidecar, indexed_stretches, join_indexed, meets
from whence.store.spill import Spilled, Stretch
from whence.store.stretch_rows import proven_stretches


class FieldEvaluator(Protocol):
    """Who evaluates expressions; on Spark that is :class:`whence.pipeline.field_evaluation.Evaluator`."""

    @property
    def version(self) -> str:
        """Of Spark."""
        ...

    def evaluate(self, definitions: Sequence[Definition], stretches: Sequence[Stretch], work: Path) -> Evaluated:
        """Spill the values of fields; those whose expression is refused or fails are told, and hold up no other."""
        ...


@dataclass(frozen=True, slots=True)
class FieldSettings:
    """How fields are built; as :class:`whence.pipeline.build.BuildSettings` has it."""

    shape: Shape
    jobs: int | None = None
    rebuild: bool = False
    with_sums: bool = False
    grows: bool = False  # whether the newest files are written to in place, where they are as they were left
    turn_size: int | None = None  # bytes of log, about: of more that is missing of a field, so much is built


@dataclass(slots=True)
class _Field:
    """One field that is being built. ``known``: what is gone on with; ``grows``: in the files that are there."""

    definition: Definition
    known: FieldClaim | None
    from_offset: int
    grows: bool = False
    spilled: tuple[Spilled, ...] = ()
    made: Sequence[MadeField] = ()


class _Part(NamedTuple):
    """What of the log fields are built of that go on at the same offset: up to where, and what of it is a hole."""

    end_offset: int
    last_record: Mark
    holes: list[tuple[int, int]]


class FieldBuild:
    """Builds what is missing of some fields. The caller holds the sidecar's lock.

    ``sidecar`` says how far the log is indexed, and is in its place. ``taken``: what of the log was scanned just now,
    so that it is known where records begin. ``publishing`` is entered while files of fields change.
    """

    def __init__(
        self,
        log: CommitLog,
        folder: Path,
        settings: FieldSettings,
        sidecar: Sidecar,
        evaluator: FieldEvaluator,
        runner: TaskRunner,
        disk: Disk,
        taken: Sequence[Spilled] = (),
        publishing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._taken = tuple(taken)
        self._publishing = publishing
        self._log = log
        self._folder = folder
        self._settings = settings
        self._sidecar = sidecar
        self._evaluator = evaluator
        self._runner = CountedRunner(runner)
        self._disk = disk
        self._work = folder / WORK / own_name(FIELDS_WORK)
        self._damage: dict[tuple[str, int], Damage] = {}
        self._failures: dict[str, FieldError] = {}

    def run(self, definitions: Sequence[Definition], kept: Collection[str] = ()) -> BuiltFields:
        """Build what is missing of these fields, publish it and clean up. Others are dropped but for ``kept``."""
        started = time.monotonic()
        self._drop({*self._sidecar.fields} - {definition.name for definition in definitions} - {*kept})
        fields = [self._begun(definition) for definition in definitions]
        todo = [field for field in fields if field.known is None or field.from_offset < self._sidecar.indexed_to]
        files: list[PublishedFile] = []
        built: list[BuiltField] = []
        if todo:
            self._disk.make_folder(self._work)
            try:
                parts = self._evaluate(todo)
                done = [field for field in todo if field.definition.name not in self._failures]
                if done:
                    files, built = self._build(done, parts)
            finally:
                remove_tree(self._work)
                with suppress(OSError):
                    self._work.parent.rmdir()
        return BuiltFields(
            self._sidecar,
            tuple(files),
            tuple(built),
            self._failures,
            tuple(self._damage.values()),
            self._runner.task_count,
            time.monotonic() - started,
        )

    def _build(
        self, fields: Sequence[_Field], parts: Mapping[int, _Part]
    ) -> tuple[list[PublishedFile], list[BuiltField]]:
        """Make the files of fields that are evaluated, and publish them."""
        files: list[PublishedFile] = []
        built: list[BuiltField] = []
        self._make([field for field in fields if not field.grows])
        with self._publishing():
            self._forget([field for field in fields if field.known is None])
            for field in fields:
                claim, published = self._publish(field, parts[field.from_offset])
                self._sidecar = replace(self._sidecar, fields=self._sidecar.fields | {field.definition.name: claim})
                files += published
                built.append(self._told(field, claim))
            self._sidecar.write(self._folder, self._disk)
        return files, built

    def _begun(self, definition: Definition) -> _Field:
        known = self._sidecar.fields.get(definition.name)
        if (
            known is None
            or self._settings.rebuild
            or Definition.noted(definition.name, known) != definition
            or known.spark != self._evaluator.version
            or not field_goes_on(self._log, self._folder, self._settings.shape, self._sidecar, definition.name)
        ):
            return _Field(definition, None, self._log.begin_offset)
        return _Field(definition, known, known.indexed_to, grows=self._grows(definition.name, known))

    def _grows(self, name: str, known: FieldClaim) -> bool:
        """Whether what is new is put into the files that are there. One that a kill left longer is made anew."""
        if not self._settings.grows or not known.index_names:
            return False
        return header_of(self._folder / FOLDER / name / "index" / known.index_names[-1]) == known.newest_header

    # -- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self, fields: Sequence[_Field]) -> dict[int, _Part]:
        """Spill the values of all fields; of which part of the log, by the offset from which it was read."""
        ends = {field.from_offset: self._end_of_turn(field.from_offset) for field in fields}
        groups: dict[tuple[int, str, bool], list[_Field]] = defaultdict(list)
        for field in fields:
            definition = field.definition
            groups[field.from_offset, definition.session_zone, definition.ansi].append(field)
        walked: dict[int, tuple[Spilled, ...]] = {}
        for (from_offset, _, _), group in groups.items():
            if from_offset not in walked:
                walked[from_offset] = self._walked(from_offset, ends[from_offset][0])
            stretches = proven_stretches(self._log, walked[from_offset])
            found = self._evaluator.evaluate([field.definition for field in group], stretches, self._work)
            self._failures |= found.failures
            for field in group:
                field.spilled = found.spilled.get(field.definition.name, ())
            self._damage |= {(damage.path, damage.position): damage for damage in found.damage}
        return {
            from_offset: _Part(*ends[from_offset], [hole for spilled in taken for hole in spilled.holes])
            for from_offset, taken in walked.items()
        }

    def _end_of_turn(self, from_offset: int) -> tuple[int, Mark]:
        """Up to where fields are built that go on at this offset, and the last record before that."""
        sidecar, size = self._sidecar, self._settings.turn_size
        if size is not None and from_offset + size < sidecar.indexed_to:
            for batch in LogScan(self._log, from_offset, sidecar.indexed_to, tags=False, check_crc=False):
                if batch.end_offset >= from_offset + size:
                    count = int(np.searchsorted(batch.messages["physical_offset"], from_offset + size))
                    part = batch._replace(messages=batch.messages[: max(count, 1)])
                    return part.end_offset, part.last_record
        return sidecar.indexed_to, (sidecar.last_record_offset, sidecar.last_record)

    def _walked(self, from_offset: int, to_offset: int) -> tuple[Spilled, ...]:
        if from_offset >= to_offset:
            return ()
        if self._taken and (self._taken[0].begin_offset, self._taken[-1].end_offset) == (from_offset, to_offset):
            return self._taken
        taken = walk_log(self._log, from_offset, to_offset, self._runner, self._settings.jobs)
        end = taken[-1].end_offset if taken else from_offset
        if end != to_offset:
            raise StoreError(f"{self._folder}: the log ends at {end}, and was indexed up to {to_offset}; build again")
        return taken

    # -- files -----------------------------------------------------------------------------------------------------

    def _make(self, fields: Sequence[_Field]) -> None:
        """Make the files of all fields, aside."""
        tasks = [task for field in fields for task in self._tasks(field)]
        made = self._runner.map("build fields", build_field_task, tasks)
        by_name: dict[str, list[MadeField]] = defaultdict(list)
        for task, each in zip(tasks, made, strict=True):
            by_name[task.field].append(each)
        for field in fields:
            field.made = by_name[field.definition.name]

    def _tasks(self, field: _Field) -> list[FieldTask]:
        shape, known, name = self._settings.shape, field.known, field.definition.name
        newest, there, room = None, "", 0
        if known is not None and known.index_names:
            newest, there = known.newest_header, known.index_names[-1]
            room = shape.item_capacity - newest.next_item
        folder = self._folder / FOLDER / name
        return [
            FieldTask(
                name,
                IndexTask(
                    key=f"field-{name}-{number}",
                    work=str(self._work),
                    plan=plan,
                    slots=shape.slot_capacity,
                    items=shape.item_capacity,
                    after=newest if plan.before is None else None,
                    goes_on_with=str(folder / "index" / there) if plan.goes_on else "",
                    with_sums=self._settings.with_sums,
                ),
                str(folder / "values" / there) if plan.goes_on else "",
            )
            for number, plan in enumerate(plan_index(field.spilled, shape.item_capacity - FIRST_ITEM, room))
        ]

    # -- publishing ------------------------------------------------------------------------------------------------

    def _forget(self, fields: Sequence[_Field]) -> None:
        """Say that fields are not indexed before their files are put into the places of others."""
        noted = {
            field.definition.name: self._claim(field.definition, None)
            for field in fields
            if field.definition.name in self._sidecar.fields
        }
        if noted:
            self._sidecar = replace(self._sidecar, fields=self._sidecar.fields | noted)
            self._sidecar.write(self._folder, self._disk)

    def _drop(self, names: set[str]) -> None:
        """Forget fields, and remove all folders of fields that nobody knows."""
        kept = {name: claim for name, claim in self._sidecar.fields.items() if name not in names}
        if names:
            self._sidecar = replace(self._sidecar, fields=kept)
            self._sidecar.write(self._folder, self._disk)
        root = self._folder / FOLDER
        for name in folders_in(root) if is_folder(root) else ():
            if name not in kept:
                shutil.rmtree(root / name, ignore_errors=True)

    def _claim(self, definition: Definition, known: FieldClaim | None) -> FieldClaim:
        """What is known of a field, as it is computed now."""
        if known is not None:
            return known
        shape = self._settings.shape
        return FieldClaim(
            sql=definition.sql,
            session_zone=definition.session_zone,
            ansi=definition.ansi,
            spark=self._evaluator.version,
            slots=shape.slot_capacity,
            items=shape.item_capacity,
        )

    def _publish(self, field: _Field, part: _Part) -> tuple[FieldClaim, list[PublishedFile]]:
        """Put the files of a field into their places; what sidecar.json is to say of it."""
        before = self._claim(field.definition, field.known)
        published: list[PublishedFile] = []
        if field.grows:
            names, newest = self._grow(field, before)
        else:
            names, newest, published = self._rename(field, before)
        indexed = indexed_stretches(self._log, field.from_offset, part.end_offset, part.holes)
        claim = replace(
            before,
            indexed=join_indexed(before.indexed, indexed),
            last_record_offset=part.last_record[0],
            last_record=part.last_record[1],
            index_names=tuple(names),
            newest_header=newest,
        )
        return claim, published

    def _grow(self, field: _Field, before: FieldClaim) -> tuple[list[str], IndexHeader]:
        """Put what is new into the newest files, and into those that follow them."""
        folder, names = self._folder / FOLDER / field.definition.name, before.index_names
        for kind in ("values", "index"):
            self._remove_others(folder / kind, set(names))
        growing = GrowingField(folder, self._settings.shape, self._disk, names, before.newest_header)
        try:
            for spilled in field.spilled:
                growing.put_spill(self._work, spilled)
            return growing.finish()
        finally:
            growing.close()

    def _rename(self, field: _Field, before: FieldClaim) -> tuple[list[str], IndexHeader, list[PublishedFile]]:
        """Give the files that were made their names."""
        folder = self._folder / FOLDER / field.definition.name
        names, newest = list(before.index_names), before.newest_header
        renames: list[tuple[Path, Path]] = []
        published = []
        for made in field.made:
            assert made.index.header is not None
            newest = made.index.header
            if made.index.target:
                name = names[-1]
            else:
                name = index_name(newest.begin_timestamp_ms, names[-1] if names else None)
                names.append(name)
            # Values first, and the file that became longer last: until then what is known is so.
            targets = {"values": made.values, "index": made.index}
            for kind, file in targets.items():
                target = folder / kind / name
                renames.append((Path(file.path), target))
                published.append(
                    PublishedFile(
                        str(target), Kind.FIELDS, file.entry_count, file.from_offset, file.to_offset, file.sha256
                    )
                )
        longer = set(before.index_names[-1:])
        renames.sort(key=lambda each: (each[1].name in longer, each[1].parent.name == "index"))
        self._disk.make_folders(folder / kind for kind in ("values", "index") if renames)
        for path, target in renames:
            self._disk.rename(path, target)
        for kind in ("values", "index"):
            self._remove_others(folder / kind, set(names))
        return names, newest, published

    def _remove_others(self, folder: Path, names: set[str]) -> None:
        if is_folder(folder):
            for name in files_in(folder):
                if is_digits(name) and name not in names:
                    self._disk.remove(folder / name)
            self._disk.flush_folder(folder)

    def _told(self, field: _Field, claim: FieldClaim) -> BuiltField:
        full = max(len(claim.index_names) - 1, 0) * (claim.items - FIRST_ITEM)
        items = full + (claim.newest_header.next_item - FIRST_ITEM if claim.index_names else 0)
        new_items = sum(spilled.item_count for spilled in field.spilled)
        return BuiltField(
            field.definition.name, items, len(claim.index_names), new_items, field.from_offset, claim.indexed_to
        )


def field_goes_on(log: CommitLog, folder: Path, shape: Shape, sidecar: Sidecar, name: str) -> bool:
    """Whether the files of a field can be gone on with: they are of this log, and as they were left."""
    known = sidecar.fields[name]
    if known.shape != shape or not known.indexed or known.indexed_to > sidecar.indexed_to:
        return False
    if known.indexed_to < log.begin_offset or known.indexed_to <= known.last_record_offset or not known.is_of(log):
        return False
    size = log.file_size
    if any(base < known.indexed_to and not meets(base, base + size, known.indexed) for base in log.bases):
        return False  # a part of the log that was missing is there again
    for number, index_file in enumerate(known.index_names, 1):
        path, values = (folder / FOLDER / name / kind / index_file for kind in ("index", "values"))
        newest = known.newest_header
        is_newest = number == len(known.index_names)
        count = newest.next_item if is_newest else shape.item_capacity
        if size_of(path) != shape.file_size or size_of(values) < values_position(count):
            return False
        header = header_of(path)
        # A build that was killed may have put more into the newest one than it said.
        if is_newest and (header is None or not header.has_grown_from(newest)):
            return False
    return True


def is_complete(log: CommitLog, folder: Path, shape: Shape, sidecar: Sidecar, wanted: Mapping[str, str]) -> bool:
    """Whether nothing is to be built of these fields, SQL by name, and no other is there."""
    return sidecar.fields.keys() == wanted.keys() and all(
        known.sql == wanted[name]
        and known.indexed_to == sidecar.indexed_to
        and (not sidecar.indexed or field_goes_on(log, folder, shape, sidecar, name))
        for name, known in sidecar.fields.items()
    )
