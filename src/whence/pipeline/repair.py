"""Repair: what a verify found damaged is made anew from the log, and put into its place.

Index, queues and time blocks are mended file by file. The log is not touched; what cannot be read of it stays damage,
and index and queues agree with what can. An old file stays until the new one, complete and flushed, takes its place.
"""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whence.errors import FormatError, StoreError
from whence.files.disk import Disk
from whence.files.folder import digit_names, is_file, is_folder
from whence.files.names import index_name
from whence.formats.rocketmq.checkpoint import Checkpoint, encode_checkpoint
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY
from whence.formats.rocketmq.index_file import NO_HEADER
from whence.pipeline.build import QUEUE_FOLDERS, TIMES_A_TASK
from whence.pipeline.index_parts import IndexPart, read_ends
from whence.pipeline.repair_tasks import (
    RebuildIndexTask,
    RebuildQueuesTask,
    RebuiltFile,
    rebuild_index_task,
    rebuild_queues_task,
)
from whence.pipeline.scanning import SpilledLog
from whence.pipeline.seen import usual_queue_size
from whence.pipeline.task_runner import TaskRunner
from whence.pipeline.tasks import TimesTask, build_times_task, own_name
from whence.pipeline.verify import (
    REPAIR_EXTRA,
    Verified,
    VerifyPlace,
    VerifySettings,
    as_made,
)
from whence.store.commit_log import CommitLog
from whence.store.findings import Finding
from whence.store.index_check import IndexFindings
from whence.store.message_store import Dialect, read_checkpoint
from whence.store.queue_ends import QueueEnd, queue_ends
from whence.store.queue_files import queues_size
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import indexed_stretches
from whence.store.spill import group_of


@dataclass(frozen=True, slots=True)
class Mended:
    """One file that was changed, and how: ``built``, ``removed``, ``written``, ``cut``."""

    path: str
    what: str


@dataclass(slots=True)
class Repaired:
    """What a repair did. ``left``: what it could not mend, or was not asked to."""

    mended: list[Mended] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    found: int = 0  # how much damage there was
    unlisted: int = 0  # of that, findings that are counted only, as in a verify
    dry_run: bool = False

    @property
    def is_healthy(self) -> bool:
        return not self.left

    def to_dict(self) -> dict[str, Any]:
        """As ``repair --json`` has it."""
        return {
            "healthy": self.is_healthy,
            "dry_run": self.dry_run,
            "found": self.found,
            "unlisted": self.unlisted,
            "repaired": [{"path": each.path, "what": each.what} for each in self.mended],
            "damage": [finding.to_dict() for finding in self.left],
        }


class Repair:
    """Mends what one verify found, in the places that it judged. The caller holds the locks."""

    def __init__(
        self,
        log: CommitLog,
        log_folders: Sequence[Path],
        place: VerifyPlace,
        settings: VerifySettings,
        runner: TaskRunner,
        work: Path,
        disk: Disk,
    ) -> None:
        self._log = log
        self._log_folders = tuple(map(str, log_folders))
        self._place = place
        self._settings = settings
        self._runner = runner
        self._work = work
        self._disk = disk
        self._mended: list[Mended] = []

    def run(self, found: Verified) -> list[Mended]:
        """Mend all but the log."""
        self._mend_index(found)
        self._mend_queues(found)
        self._mend_times(found)
        for finding in (*found.claim_findings, *found.misplaced_queues):
            if finding.repair == REPAIR_EXTRA:
                self._remove(finding.path)
        if self._place.claim is not None and (self._mended or found.claim_findings):
            self._write_claim(found)
        if found.checkpoint_findings:
            self._write_checkpoint(found)
        return self._mended

    # -- the index -------------------------------------------------------------------------------------------------

    def _mend_index(self, found: Verified) -> None:
        log = SpilledLog(self._work, found.judged)
        damaged = [(part, each) for part, each in found.parts if not each.is_healthy]
        kept = [
            (part, each) for part, each in damaged if part.first + part.begun < part.behind or self._is_made(part)
        ]
        tasks = [self._index_task(part, each, log, found.judged_to) for part, each in kept]
        rebuilt = self._runner.map("rebuild index", rebuild_index_task, tasks)
        if kept:
            self._disk.make_folder(self._place.root / "index")
        names = {part.file.path.name for part, _ in found.parts}
        for part, _ in damaged:
            if all(part is not other for other, _ in kept):
                self._remove(part.file.path)
        for (part, _), files in zip(kept, rebuilt, strict=True):
            self._put_index_files(part.file.path, files, names)
        if damaged:
            self._disk.flush_folder(self._place.root / "index")

    def _is_made(self, part: IndexPart) -> bool:
        """Whether a build makes this file although it has no items: behind a full one, if a message follows."""
        return self._place.is_exact and part.is_newest

    def _index_task(self, part: IndexPart, each: IndexFindings, log: SpilledLog, judged_to: int) -> RebuildIndexTask:
        first, behind = part.first + part.begun, part.behind
        from_offset = to_offset = judged_to
        skipped = more = 0
        if first < behind:
            from_offset, skipped = _place_of(log, first)
            if behind < log.item_count:
                to_offset, more = _place_of(log, behind)
        has_tags = self._settings.dialect is Dialect.V5_5
        if not self._place.is_exact and (each.optional_count or each.left_out_count):
            has_tags = each.optional_count > 0
        return RebuildIndexTask(
            work=str(self._work),
            log_folders=self._log_folders,
            from_offset=from_offset,
            skipped=skipped,
            to_offset=to_offset,
            more=more,
            tags=has_tags,
            slots=part.file.shape.slot_capacity,
            items=part.file.shape.item_capacity,
            before=part.before,
        )

    def _put_index_files(self, path: Path, files: Sequence[RebuiltFile], names: set[str]) -> None:
        """Put files into the place of one. Where there are more, their names follow on its name."""
        for number, file in enumerate(files):
            if number:
                path = path.with_name(index_name(0, path.name))
                self._make_room(path, names)
            names.add(path.name)
            self._put(Path(file.path), path)

    def _make_room(self, path: Path, names: set[str]) -> None:
        """Give an index file that has this name, and those directly behind it, the next one."""
        if path.name in names:
            later = path.with_name(index_name(0, path.name))
            self._make_room(later, names)
            self._disk.rename(path, later)
            names.add(later.name)

    # -- queues ----------------------------------------------------------------------------------------------------

    def _mend_queues(self, found: Verified) -> None:
        wanted: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for each in found.damaged_queues:
            wanted[group_of(each.topic, each.queue, found.groups)].append((each.topic, each.queue))
        file_size = self._settings.queue_file_size or usual_queue_size(self._place.root)
        tasks = [
            RebuildQueuesTask(str(self._work), group, tuple(queues), file_size, self._settings.batch_topics)
            for group, queues in wanted.items()
        ]
        rebuilt = self._runner.map("rebuild queues", rebuild_queues_task, tasks)
        folders = dict(zip(wanted, (Path(each.folder) for each in rebuilt), strict=True))
        ends = queue_ends(self._log, found.judged_to, found.holes, file_size)
        for each in found.damaged_queues:
            is_batch = each.topic in self._settings.batch_topics
            place = Path(QUEUE_FOLDERS[is_batch], each.topic, str(each.queue))
            source = folders[group_of(each.topic, each.queue, found.groups)] / place
            all_damaged = not self._place.has_exact_queues or each.found.unlisted_count > 0
            damaged = {finding.path.name for finding in each.found.listed}
            target = self._place.root / place
            if is_folder(source) or self._place.is_sidecar:
                self._put_queue(source, target, None if all_damaged else damaged)
            else:
                self._keep_end(target, ends.of(target, BATCH_ENTRY if is_batch else ENTRY))

    def _put_queue(self, source: Path, target: Path, damaged: set[str] | None) -> None:
        """Put the files of a queue into their places; those that were healthy stay. ``damaged`` None: any may be."""
        new = digit_names(source)
        old = digit_names(target) if is_folder(target) else []
        if new:
            self._disk.make_folder(target)
        for name in new:
            is_damaged = damaged is None or name in damaged
            if name not in old or (is_damaged and not filecmp.cmp(source / name, target / name, shallow=False)):
                self._put(source / name, target / name)
        for name in old:
            if name not in new and (name in damaged if damaged is not None else not new or name > new[0]):
                self._remove(target / name)
        if is_folder(target):
            self._disk.flush_folder(target)

    def _keep_end(self, folder: Path, end: QueueEnd | None) -> None:
        """Of a queue of which the log has no message nothing stays but what tells the store where it goes on."""
        if end is not None and end.data is not None:
            aside = self._work / own_name("end")
            self._disk.replace(aside, end.data)
            self._put(aside, end.path)
        for name in digit_names(folder):
            if end is None or name != end.path.name:
                self._remove(folder / name)
        self._disk.flush_folder(folder)

    # -- what lies in the sidecar alone ----------------------------------------------------------------------------

    def _mend_times(self, found: Verified) -> None:
        paths = [finding.path for finding in found.damaged_times if finding.path in found.times]
        if not paths:
            return
        files = [(path.name, int(path.name), self._log.file_size, b"", found.times[path]) for path in paths]
        tasks = [
            TimesTask(f"times-{at}", str(self._work), tuple(files[at : at + TIMES_A_TASK]), False)
            for at in range(0, len(files), TIMES_A_TASK)
        ]
        rebuilt = self._runner.map("rebuild times", build_times_task, tasks)
        folder = self._place.sidecar / "times"
        self._disk.make_folder(folder)
        for file in (file for made in rebuilt for file in made.files):
            self._put(Path(file.path), folder / Path(file.path).name)
        self._disk.flush_folder(folder)

    def _write_claim(self, found: Verified) -> None:
        """Say in sidecar.json what is there now."""
        claim, place = self._place.claim, self._place
        assert claim is not None
        if claim.indexed:
            stretches = indexed_stretches(self._log, claim.indexed[0][0], claim.indexed_to, found.holes)
            claim = replace(claim, indexed=tuple(stretches))
        if place.is_exact:
            claim = replace(claim, **as_made(self._settings))
        if place.is_exact and place.names is not None and claim.index_names:
            names = digit_names(place.root / "index")
            newest = read_ends(place.root / "index" / names[-1], claim.shape).header if names else None
            claim = replace(claim, index_names=tuple(names), newest_header=newest or NO_HEADER)
        if place.is_exact and place.indexed_to is not None:
            is_whole = [first for first, _ in claim.indexed[:1]] == [self._log.begin_offset]
            # Nobody can tell any more which topics were in what has expired.
            topics = found.without_folder if is_whole else claim.other_topics
            size = queues_size(place.root) if place.has_exact_queues else 0
            claim = replace(claim, queues_size=size, other_topics=topics)
        if claim != place.claim:
            claim.write(place.sidecar, self._disk)
            self._mended.append(Mended(str(place.sidecar / SIDECAR_NAME), "written"))

    def _write_checkpoint(self, found: Verified) -> None:
        path = self._place.store / "checkpoint"
        try:
            checkpoint = read_checkpoint(self._place.store)
        except (FormatError, StoreError):
            checkpoint = Checkpoint()
        limits = {name: min(getattr(checkpoint, name), limit) for name, limit in found.checkpoint_limits.items()}
        self._disk.replace(path, encode_checkpoint(replace(checkpoint, **limits)))
        self._mended.append(Mended(str(path), "written"))

    # -- files -----------------------------------------------------------------------------------------------------

    def _put(self, path: Path, target: Path) -> None:
        """Put a file that is complete and flushed into its place.

        In one step: what is there may be all that tells where a queue goes on, and no reader misses a file.
        """
        self._disk.move(path, target)
        self._mended.append(Mended(str(target), "built"))

    def _remove(self, path: Path) -> None:
        if is_file(path):
            self._disk.move(path, self._work / own_name("old"))
            self._mended.append(Mended(str(path), "removed"))


def _place_of(log: SpilledLog, number: int) -> tuple[int, int]:
    """Physical offset of an item's message, and how many of its items lie before this one."""
    physical_offset, _ = log.place(number)
    items = log.of_message(physical_offset)
    assert items is not None
    return physical_offset, number - items.first
