"""Verify: log, index, queues and time blocks held against each other, on Spark. It changes nothing.

    log -> stretches -> spills             pass one, as a build does it
        -> joined, parts                   the driver
        -> findings                        pass two, a task for each index file, group of queues, some time blocks
        -> with those of log, checkpoint and sidecar.json       the driver

What is judged is what readers use: the files of the sidecar, or those of the store where it has none. Of files that
whence made every byte is known; of a broker's files that which its version does in its own way is no damage.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import FormatError, StoreError
from whence.files.disk import Disk
from whence.files.folder import digit_names, is_file, is_folder
from whence.files.lock import StoreLock
from whence.files.names import offset_name
from whence.formats.time_blocks import TIME_BLOCK
from whence.pipeline.build import TIMES_A_TASK
from whence.pipeline.check_tasks import (
    CheckedQueue,
    IndexCheckTask,
    QueueCheckTask,
    TimesCheckTask,
    check_index_task,
    check_queues_task,
    check_times_task,
)
from whence.pipeline.field_verify import FieldVerify, VerifiedField
from whence.pipeline.fields import FieldEvaluator
from whence.pipeline.index_parts import IndexPart, plan_parts, read_ends, shapes_of
from whence.pipeline.plan import group_count
from whence.pipeline.scanning import SpilledLog, cut_stretches, scan_stretches
from whence.pipeline.seen import seen_dialect, usual_queue_size
from whence.pipeline.sidecar_folder import LOCK, VERIFY_PREFIX, remove_left_by_verify
from whence.pipeline.task_runner import CountedRunner, TaskRunner
from whence.pipeline.tasks import TAKEN
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.field_claim import FOLDER
from whence.store.findings import Finding, FindingKind, Findings, summed
from whence.store.index_check import IndexFindings
from whence.store.index_file import Shape
from whence.store.message_store import Dialect, read_checkpoint
from whence.store.queue_files import is_of_kind, misplaced_queues, queue_folders, queues_size
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import Sidecar, indexed_stretches
from whence.store.spill import Recipe, Spilled, Stretch, group_of
from whence.store.spilled import spilled_times

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK_TRIES = 10
REPAIR_CLAIM = "write sidecar.json anew from the files beside it"
REPAIR_EXTRA = "remove this file, which no build published"
REPAIR_CHECKPOINT = "write it anew, with values that the log bears out"
WITH_CUT_TAIL = "with --cut-tail, "
REPAIR_LOG = {
    DamageKind.GAP: "nothing: what was there is lost; index and queues go on behind it",
    DamageKind.BAD_RECORD: "nothing: what was there is lost; index and queues go on behind it",
    DamageKind.HALF_RECORD: f"{WITH_CUT_TAIL}cut it off: the log ends before it",
    DamageKind.RECORDS_BEHIND_END: f"{WITH_CUT_TAIL}keep a copy of them aside and cut them off",
}


@dataclass(frozen=True, slots=True)
class VerifyPlace:
    """What is judged. ``root`` has index and queues: the sidecar, or the store itself.

    ``names``: index files that should be there; None for those that are. ``indexed_to``: up to where index and
    queues should know the log; None for all of it. ``claim``: what sidecar.json says, if it is of this log.
    ``is_exact``: whence made index and queues; but with ``has_brokers_queues`` these are a broker's. ``is_live``: a
    writer is at work in ``root``, or was killed there.
    """

    store: Path
    sidecar: Path
    root: Path
    names: tuple[str, ...] | None = None
    indexed_to: int | None = None
    claim: Sidecar | None = None
    is_exact: bool = False
    is_live: bool = False
    has_brokers_queues: bool = False

    @property
    def has_exact_queues(self) -> bool:
        """Whether whence made the queues."""
        return self.is_exact and not self.has_brokers_queues

    @property
    def is_sidecar(self) -> bool:
        """Whether index and queues lie in the sidecar."""
        return self.root == self.sidecar


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """How. ``shape`` and ``dialect`` where the files do not show them."""

    shape: Shape | None = None
    dialect: Dialect = Dialect.V5_5
    queue_file_size: int | None = None
    batch_topics: tuple[str, ...] = ()
    jobs: int | None = None


@dataclass(slots=True)
class Verified:
    """What was found."""

    from_offset: int
    to_offset: int
    messages: int
    root: Path
    dialect: Dialect | None = None
    damage: list[Finding] = field(default_factory=list)
    unlisted: int = 0  # findings that are counted below but not in ``damage``
    index: Counter[FindingKind] = field(default_factory=Counter)
    queues: Counter[FindingKind] = field(default_factory=Counter)
    items: int = 0
    files: int = 0
    queue_count: int = 0
    entries: int = 0
    not_indexed: int = 0  # items of messages that a broker has not dispatched yet
    habits: tuple[str, ...] = ()
    parts: list[tuple[IndexPart, IndexFindings]] = field(default_factory=list)
    damaged_queues: list[CheckedQueue] = field(default_factory=list)
    misplaced_queues: list[Finding] = field(default_factory=list)
    damaged_times: list[Finding] = field(default_factory=list)
    claim_findings: list[Finding] = field(default_factory=list)
    log_damage: list[Finding] = field(default_factory=list)
    checkpoint_findings: list[Finding] = field(default_factory=list)
    checkpoint_limits: dict[str, int] = field(default_factory=dict)
    judged: tuple[Spilled, ...] = ()  # what index and queues should have
    judged_to: int = 0
    times: dict[Path, tuple[str, ...]] = field(default_factory=dict)  # the spills of each file of time blocks
    groups: int = 1  # of queues, in the spills
    fields: dict[str, VerifiedField] = field(default_factory=dict)
    elapsed_s: float = 0.0
    tasks: int = 0

    @property
    def is_healthy(self) -> bool:
        return not self.damage

    @property
    def holes(self) -> list[tuple[int, int]]:
        """From where to where the log could not be read."""
        return [hole for spilled in self.judged for hole in spilled.holes]

    @property
    def without_folder(self) -> tuple[str, ...]:
        """Topics of the log that no folder can be named after."""
        return tuple(sorted({topic for spilled in self.judged for topic in spilled.without_folder}))

    @property
    def not_indexed_yet(self) -> int:
        """Messages behind what is judged: an index need not know them before it grows the next time."""
        return self.messages - sum(spilled.message_count for spilled in self.judged)

    @property
    def is_badly_indexed(self) -> bool:
        """Whether something else than log, checkpoint and fields is damaged."""
        in_fields = sum(len(each.damage) for each in self.fields.values())
        return len(self.damage) > len(self.log_damage) + len(self.checkpoint_findings) + in_fields

    @property
    def damaged_fields(self) -> list[str]:
        """Those that can be built anew."""
        return [name for name, each in self.fields.items() if each.damage and each.is_mendable]

    def to_dict(self) -> dict[str, Any]:
        """As ``verify --json`` has it."""
        return {
            "healthy": self.is_healthy,
            "log": {"from_offset": self.from_offset, "to_offset": self.to_offset, "messages": self.messages},
            "indexes": {"items": self.items, "files": self.files, **summed(self.index)},
            "queues": {"entries": self.entries, "queues": self.queue_count, **summed(self.queues)},
            "fields": {name: each.to_dict() for name, each in self.fields.items()},
            "dialect": None if self.dialect is None else str(self.dialect),
            "habits": list(self.habits),
            "judged": str(self.root),
            "judged_to_offset": self.judged_to,
            "damage": [finding.to_dict() for finding in self.damage],
            "unlisted": self.unlisted,
            "elapsed_s": round(self.elapsed_s, 3),
            "tasks": self.tasks,
        }


class Verify:
    """One verify. ``work`` is a folder for spills, which the caller makes and removes.

    ``evaluator``: who can tell what fields should be; without one they are not judged.
    """

    def __init__(
        self,
        log: CommitLog,
        place: VerifyPlace,
        settings: VerifySettings,
        runner: TaskRunner,
        work: Path,
        disk: Disk,
        evaluator: FieldEvaluator | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._log = log
        self._place = place
        self._settings = settings
        self._runner = CountedRunner(runner)
        self._work = work
        self._disk = disk
        self._stretches = self._cut()
        size = sum(stretch.size for stretch in self._stretches)
        self._groups = group_count(size, runner.slots, settings.jobs)

    def run(self) -> Verified:
        """Scan, check, and tell."""
        started = time.monotonic()
        taken = self._scan()
        begin, end = self._log.begin_offset, taken[-1].end_offset if taken else self._log.begin_offset
        found = Verified(begin, end, sum(spilled.message_count for spilled in taken), self._place.root)
        found.groups = self._groups
        place = self._place
        judged = _before(taken, place.indexed_to)
        found.judged, found.judged_to = judged, judged[-1].end_offset if judged else begin
        self._disk.replace(self._work / TAKEN, "".join(f"{spilled.name}\n" for spilled in judged).encode())
        spilled_log = SpilledLog(self._work, judged)
        index_tasks = self._index_tasks(found, spilled_log)
        checked = self._runner.map("check index", check_index_task, index_tasks)
        self._add_index(found, checked)
        self._add_queues(found)
        if place.claim is not None:
            self._add_times(found, _before(taken, place.claim.indexed_to))
            self._add_claim(found)
            self._add_fields(found, taken)
        self._add_log(found, taken, end)
        if not place.is_sidecar:
            self._add_checkpoint(found, taken)
        found.damage.sort(key=lambda finding: (str(finding.path), finding.position))
        found.elapsed_s, found.tasks = time.monotonic() - started, self._runner.task_count
        return found

    def _scan(self) -> tuple[Spilled, ...]:
        settings, is_exact = self._settings, self._place.is_exact
        recipe = Recipe(
            tags=not is_exact or settings.dialect is Dialect.V5_5,
            batch_topics=settings.batch_topics,
            groups=self._groups,
            flush=not self._runner.is_local,
            marks=not is_exact,
        )
        return scan_stretches(self._stretches, recipe, self._work, self._runner)

    def _cut(self) -> list[Stretch]:
        claim, log = self._place.claim, self._log
        boundary = 0 if claim is None else claim.indexed_to
        return cut_stretches(log, log.begin_offset, self._runner.slots, self._settings.jobs, boundary)

    # -- the index -------------------------------------------------------------------------------------------------

    def _index_tasks(self, found: Verified, log: SpilledLog) -> list[IndexCheckTask]:
        place, settings = self._place, self._settings
        folder = place.root / "index"
        there = digit_names(folder)
        names = there if place.names is None else sorted(place.names)
        if place.is_live and names and is_empty(folder / names[-1]):
            del names[-1]  # it is being made
        if place.names is not None:
            for name in sorted(set(there) - set(names)):
                what = "whence noted no index file of this name"
                self._claim_finding(found, folder / name, FindingKind.UNEXPECTED, what, REPAIR_EXTRA)
        paths = [folder / name for name in names]
        shapes = shapes_of(paths, settings.shape)
        begin = self._log.begin_offset
        parts = plan_parts(
            [read_ends(path, shapes[path]) for path in paths],
            log,
            begin,
            is_exact=place.is_exact,
            is_live=place.is_live,
            is_whole=place.claim is not None and [first for first, _ in place.claim.indexed[:1]] == [begin],
        )
        if not parts and log.item_count:
            what = f"there is no index file, but the log has {log.item_count} items for one"
            found.damage.append(Finding(folder, 0, FindingKind.MISSING, what, "build the index"))
            found.index[FindingKind.MISSING] += log.item_count
        found.not_indexed = log.item_count - max(part.behind for part in parts) if parts else 0
        found.parts = [(part, IndexFindings()) for part in parts]
        return [
            IndexCheckTask(
                work=str(self._work),
                path=str(part.file.path),
                slots=part.file.shape.slot_capacity,
                items=part.file.shape.item_capacity,
                ranges=log.ranges(part.first, part.behind),
                begin_offset=begin,
                end_offset=found.judged_to,
                before=part.before,
                is_first_known=part.is_first_known,
                begun=part.begun,
                is_live=place.is_live and part.is_newest,
                is_exact=place.is_exact,
            )
            for part in parts
        ]

    def _add_index(self, found: Verified, checked: Sequence[IndexFindings]) -> None:
        found.parts = [(part, each) for (part, _), each in zip(found.parts, checked, strict=True)]
        found.files = len(checked)
        found.items = sum(each.item_count for each in checked)
        for each in checked:
            _add(found, each, found.index)
        found.dialect = self._settings.dialect
        if not self._place.is_exact:
            newest_first = (part.file for part, _ in reversed(found.parts))
            seen = (seen_dialect(file, self._log) for file in newest_first)
            found.dialect = next((each for each in seen if each is not None), self._settings.dialect)
            found.habits = tuple(_habits(checked, found.not_indexed, found.dialect))

    # -- queues ----------------------------------------------------------------------------------------------------

    def _add_queues(self, found: Verified) -> None:
        place, settings = self._place, self._settings
        there: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for topic, queue in queues_in(place.root, settings.batch_topics):
            there[group_of(topic, queue, self._groups)].append((topic, queue))
        tasks = [
            QueueCheckTask(
                work=str(self._work),
                root=str(place.root),
                group=group,
                there=tuple(there[group]),
                file_size=settings.queue_file_size or usual_queue_size(place.root),
                batch_topics=settings.batch_topics,
                begin_offset=self._log.begin_offset,
                end_offset=found.judged_to,
                is_live=place.is_live,
                is_exact=place.has_exact_queues and not place.is_live,
            )
            for group in range(self._groups)
        ]
        for checked in self._runner.map("check queues", check_queues_task, tasks):
            found.queue_count += checked.queue_count
            found.entries += checked.entry_count
            found.damaged_queues += checked.damaged
            for each in checked.damaged:
                _add(found, each.found, found.queues)
        expired_to = 0 if place.is_sidecar else self._log.begin_offset
        for folder in () if place.is_live else misplaced_queues(place.root, settings.batch_topics, expired_to):
            for name in digit_names(folder):
                what = "queues of this topic are of the other kind, and nobody looks for them here"
                finding = Finding(folder / name, 0, FindingKind.UNEXPECTED, what, REPAIR_EXTRA)
                found.misplaced_queues.append(finding)
                found.damage.append(finding)
                found.queues[finding.kind] += 1

    # -- what lies in the sidecar alone ----------------------------------------------------------------------------

    def _add_times(self, found: Verified, judged: Sequence[Spilled]) -> None:
        spills: dict[int, list[str]] = defaultdict(list)
        for spilled in judged:
            base = self._log.base_of(spilled.begin_offset)
            assert base is not None
            spills[base].append(spilled.name)
        folder = self._place.sidecar / "times"
        found.times = {folder / offset_name(base): tuple(names) for base, names in spills.items()}
        files = [(str(path), names) for path, names in found.times.items()]
        tasks = [
            TimesCheckTask(str(self._work), tuple(files[at : at + TIMES_A_TASK]))
            for at in range(0, len(files), TIMES_A_TASK)
        ]
        for checked in self._runner.map("check times", check_times_task, tasks):
            found.damaged_times += checked
            found.damage += checked
            found.index.update(finding.kind for finding in checked)
        for name in digit_names(folder):
            if folder / name not in found.times and int(name) >= self._log.begin_offset:
                what = "the log has no indexed file that these time blocks are of"
                self._claim_finding(found, folder / name, FindingKind.UNEXPECTED, what, REPAIR_EXTRA)

    def _add_claim(self, found: Verified) -> None:
        """Hold sidecar.json against what is there."""
        claim, place = self._place.claim, self._place
        assert claim is not None
        path = place.sidecar / SIDECAR_NAME
        if place.is_exact:
            for name, value in as_made(self._settings).items():
                if getattr(claim, name) != value:
                    what = f"its {name} is {getattr(claim, name)}, but the files beside it were made with {value}"
                    self._claim_finding(found, path, FindingKind.WRONG_CLAIM, what, REPAIR_CLAIM)
        for part, each in found.parts:
            is_newest = claim.index_names[-1:] == (part.file.path.name,)
            if is_newest and place.is_exact and each.is_healthy and each.header != claim.newest_header:
                what = f"the header of the newest index file, {part.file.path.name}, is another one"
                self._claim_finding(found, path, FindingKind.WRONG_CLAIM, what, REPAIR_CLAIM)
        begin = self._log.begin_offset
        claimed = [(max(first, begin), end) for first, end in claim.indexed if end > begin]
        if claimed and claimed != indexed_stretches(self._log, claimed[0][0], claim.indexed_to, found.holes):
            what = "the log is not indexed from where to where it says"
            self._claim_finding(found, path, FindingKind.WRONG_CLAIM, what, REPAIR_CLAIM)
        if place.is_exact and place.indexed_to is not None and claim.indexed and begin == claim.indexed[0][0]:
            size = queues_size(place.root)
            is_right = not found.damaged_queues and not found.misplaced_queues
            if size != claim.queues_size and place.has_exact_queues and is_right:
                what = f"the queues have {size} bytes, not {claim.queues_size}"
                self._claim_finding(found, path, FindingKind.WRONG_CLAIM, what, REPAIR_CLAIM)
            if found.without_folder != claim.other_topics:
                what = "the log has other topics that no folder can be named after"
                self._claim_finding(found, path, FindingKind.WRONG_CLAIM, what, REPAIR_CLAIM)

    def _add_fields(self, found: Verified, taken: Sequence[Spilled]) -> None:
        claim, folder = self._place.claim, self._place.sidecar
        if claim is None or self._evaluator is None or not (claim.fields or is_folder(folder / FOLDER)):
            return
        verify = FieldVerify(self._log, folder, claim, taken, self._evaluator, self._runner, self._work)
        found.fields = verify.run()
        for each in found.fields.values():
            found.damage += each.damage
            found.unlisted += each.unlisted

    def _claim_finding(self, found: Verified, path: Path, kind: FindingKind, detail: str, repair: str) -> None:
        finding = Finding(path, 0, kind, detail, repair)
        found.claim_findings.append(finding)
        found.damage.append(finding)

    # -- log and checkpoint ----------------------------------------------------------------------------------------

    def _add_log(self, found: Verified, taken: Sequence[Spilled], end: int) -> None:
        damage = [each for spilled in taken for each in spilled.damage]
        damage += [each for _, _, each in self._log.damage(end)]
        found.log_damage = [_log_finding(each) for each in damage]
        found.damage += found.log_damage

    def _add_checkpoint(self, found: Verified, taken: Sequence[Spilled]) -> None:
        """A checkpoint tells of what was flushed: it cannot be ahead of the log."""
        path = self._place.store / "checkpoint"
        if not is_file(path) or self._place.is_live or not found.messages:
            return
        try:
            checkpoint = read_checkpoint(self._place.store)
        except (FormatError, StoreError) as error:
            self._checkpoint_finding(found, path, 0, FindingKind.UNREADABLE, str(error))
            return
        largest_ms = max(
            int(np.frombuffer(spilled_times(self._work, spilled.name), TIME_BLOCK)["largest_ms"].max())
            for spilled in taken
            if spilled.message_count
        )
        limits = found.checkpoint_limits = {
            "log_timestamp_ms": largest_ms,
            "queue_timestamp_ms": largest_ms,
            "index_timestamp_ms": largest_ms,
            "confirm_offset": found.to_offset,
            "queue_physical_offset": found.to_offset,
        }
        for number, (name, limit) in enumerate(limits.items()):
            if getattr(checkpoint, name) > limit:
                what = f"its {name} is {getattr(checkpoint, name)}, but the log ends with {limit}"
                position = 8 * number if number < 3 else 8 * (number + 1)
                self._checkpoint_finding(found, path, position, FindingKind.WRONG_CHECKPOINT, what)

    def _checkpoint_finding(self, found: Verified, path: Path, position: int, kind: FindingKind, what: str) -> None:
        finding = Finding(path, position, kind, what, REPAIR_CHECKPOINT)
        found.checkpoint_findings.append(finding)
        found.damage.append(finding)


def as_made(settings: VerifySettings) -> dict[str, Any]:
    """Members of sidecar.json that tell how index and queues were made, and what is right in them."""
    made: dict[str, Any] = {"dialect": settings.dialect}
    if settings.shape is not None:
        made |= {"slots": settings.shape.slot_capacity, "items": settings.shape.item_capacity}
    if settings.queue_file_size is not None:
        made["queue_file_size"] = settings.queue_file_size
    return made


def _before(taken: Sequence[Spilled], to_offset: int | None) -> tuple[Spilled, ...]:
    """What was taken before this offset, which lies between two stretches; all if it is None."""
    return tuple(spilled for spilled in taken if to_offset is None or spilled.begin_offset < to_offset)


def _add(found: Verified, findings: Findings, counts: Counter[FindingKind]) -> None:
    """Take over what a task found."""
    found.damage += findings.listed
    found.unlisted += findings.unlisted_count
    counts.update(findings.counts)


def _log_finding(damage: Damage) -> Finding:
    return Finding(
        Path(damage.path), damage.position, FindingKind(damage.kind), damage.detail, REPAIR_LOG[damage.kind]
    )


def _habits(checked: Sequence[IndexFindings], not_indexed: int, dialect: Dialect) -> Iterator[str]:
    """What the broker does in its own way."""
    if any(each.counts_every_put for each in checked):
        yield "slot counts of the index count every item, as brokers before 4.7.1 do"
    if repeated := sum(each.repeated_count for each in checked):
        yield f"{repeated} items are there twice, as after a restart of the broker"
    left_out = sum(each.left_out_count for each in checked)
    if left_out and dialect is not Dialect.V5_5:
        yield f"{left_out} items of tags or half messages are left out, as brokers before 5.4 do"
    if not_indexed:
        yield f"{not_indexed} items are not in the index yet: the broker runs, or was killed"


def is_empty(path: Path) -> bool:
    """Whether a file is there, and has no bytes."""
    return is_file(path) and path.stat().st_size == 0


def queues_in(root: Path, batch_topics: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Topic and queue of each queue that has a folder among those of its kind."""
    for folder, entry in queue_folders(root):
        queue = folder.name
        if is_of_kind(folder, entry, batch_topics) and queue.isdecimal() and str(int(queue)) == queue:
            yield folder.parent.name, int(queue)


@contextmanager
def work_folder(sidecar: Path, *, is_local: bool) -> Iterator[Path]:
    """A folder for the spills of a verify, which goes when it ends: in the sidecar, or where files go that go again.

    Those that were left behind by others go, too.
    """
    is_made = not is_local and not is_folder(sidecar)
    try:
        folder, lock = _locked_work_folder(sidecar, is_local=is_local)
        try:
            with lock:
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if is_made:
            with suppress(OSError):  # somebody put something there meanwhile
                sidecar.rmdir()


def _locked_work_folder(sidecar: Path, *, is_local: bool) -> tuple[Path, StoreLock]:
    """A folder that others leave alone. Until it is locked one of them may take it for left behind."""
    tries = 1
    while True:
        folder = _make_work_folder(sidecar, is_local=is_local)
        try:
            lock = StoreLock(folder / LOCK)
        except StoreError:
            shutil.rmtree(folder, ignore_errors=True)
            if tries == WORK_TRIES:
                raise
        else:
            if lock.is_there():
                return folder, lock
            lock.close()
        tries += 1


def _make_work_folder(sidecar: Path, *, is_local: bool) -> Path:
    try:
        if is_folder(sidecar) or not is_local:
            sidecar.mkdir(exist_ok=True)
            remove_left_by_verify(sidecar)
            return Path(tempfile.mkdtemp(prefix=VERIFY_PREFIX, dir=sidecar))
    except OSError as error:
        if not is_local:
            raise StoreError(
                f"{sidecar}: no folder for a verify's work can be made there: {error.strerror}"
            ) from error
    return Path(tempfile.mkdtemp(prefix=f"whence-{VERIFY_PREFIX}"))
