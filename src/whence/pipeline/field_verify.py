"""Verify of fields: every expression is evaluated again, and what it gives is held against what is there.

    log, scanned -> values -> spills      Spark, as a build does it
                 -> findings              a task for each index file with its values

Nothing is sampled: every item and every value has to be what a build would write now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from whence.files.folder import digit_names, folders_in, is_folder
from whence.pipeline.check_tasks import IndexCheckTask
from whence.pipeline.field_evaluation import Definition
from whence.pipeline.field_tasks import REPAIR_FIELD, FieldCheckTask, check_field_task
from whence.pipeline.fields import FieldEvaluator
from whence.pipeline.index_parts import plan_parts, read_ends
from whence.pipeline.scanning import SpilledLog
from whence.pipeline.task_runner import TaskRunner
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FOLDER, FieldClaim
from whence.store.findings import Finding, FindingKind, Findings, summed
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import Sidecar, indexed_stretches
from whence.store.spill import Spilled, Stretch
from whence.store.stretch_rows import proven_stretches

REPAIR_NOTHING = "nothing: give it another expression with whence build --field, or drop it with an empty one"


@dataclass(slots=True)
class VerifiedField:
    """What was found of one field. ``is_mendable``: its expression can be evaluated."""

    items: int = 0
    files: int = 0
    counts: Counter[FindingKind] = field(default_factory=Counter)
    damage: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    is_mendable: bool = True

    def add(self, findings: Findings) -> None:
        """Take over what a task found. One wrong byte builds the field anew: its files are made together."""
        self.damage += [replace(finding, repair=REPAIR_FIELD) for finding in findings.listed]
        self.unlisted += findings.unlisted_count
        self.counts.update(findings.counts)

    def find(self, path: Path, kind: FindingKind, detail: str, repair: str = REPAIR_FIELD, *, count: int = 1) -> None:
        """Note a finding about a whole file."""
        self.counts[kind] += count
        self.damage.append(Finding(path, 0, kind, detail, repair))

    def to_dict(self) -> dict[str, Any]:
        """As ``verify --json`` has it."""
        return {"items": self.items, "files": self.files, **summed(self.counts)}


class _Group(NamedTuple):
    """What can be evaluated together."""

    session_zone: str
    ansi: bool
    indexed_to: int


class FieldVerify:
    """Verifies the fields of a sidecar. ``taken``: the log, as it was scanned from its begin."""

    def __init__(
        self,
        log: CommitLog,
        folder: Path,
        claim: Sidecar,
        taken: Sequence[Spilled],
        evaluator: FieldEvaluator,
        runner: TaskRunner,
        work: Path,
    ) -> None:
        self._log = log
        self._folder = folder
        self._claim = claim
        self._taken = taken
        self._evaluator = evaluator
        self._runner = runner
        self._work = work
        self._found = {name: VerifiedField() for name in claim.fields}

    def run(self) -> dict[str, VerifiedField]:
        """What was found, by the names of fields."""
        self._find_extra()
        tasks = [task for name, spilled in self._evaluated().items() for task in self._tasks(name, spilled)]
        for task, checked in zip(tasks, self._runner.map("check fields", check_field_task, tasks), strict=True):
            found = self._found[task.field]
            found.files += 1
            found.items += checked.index.item_count
            found.add(checked.index)
            found.add(checked.values)
            noted = self._claim.fields[task.field]
            is_newest = Path(task.index.path).name == noted.index_names[-1]
            if is_newest and checked.index.is_healthy and checked.index.header != noted.newest_header:
                what = f"the header of the newest index file of field {task.field} is another one"
                found.find(self._folder / SIDECAR_NAME, FindingKind.WRONG_CLAIM, what)
        return self._found

    def _find_extra(self) -> None:
        """Files and folders that nobody noted."""
        root = self._folder / FOLDER
        for name, noted in self._claim.fields.items():
            for folder in (root / name / "index", root / name / "values"):
                for extra in sorted(set(digit_names(folder)) - set(noted.index_names)):
                    what = f"field {name} has no index file of this name"
                    self._found[name].find(folder / extra, FindingKind.UNEXPECTED, what)
        for name in folders_in(root) if is_folder(root) else ():
            if name not in self._claim.fields:
                found = self._found.setdefault(name, VerifiedField())
                found.find(root / name, FindingKind.UNEXPECTED, "sidecar.json knows no field of this name")

    # -- what should be there --------------------------------------------------------------------------------------

    def _evaluated(self) -> dict[str, tuple[Spilled, ...]]:
        """The values of all fields that can be judged."""
        groups: dict[_Group, list[Definition]] = defaultdict(list)
        for name, noted in self._claim.fields.items():
            if self._is_judged(name, noted):
                group = _Group(noted.session_zone, noted.ansi, noted.indexed_to)
                groups[group].append(Definition.noted(name, noted))
        spilled: dict[str, tuple[Spilled, ...]] = {}
        for group, definitions in groups.items():
            spilled |= self._spilled(definitions, self._stretches(group.indexed_to))
        return spilled

    def _spilled(
        self, definitions: Sequence[Definition], stretches: Sequence[Stretch]
    ) -> dict[str, tuple[Spilled, ...]]:
        evaluated = self._evaluator.evaluate(definitions, stretches, self._work)
        for name, error in evaluated.failures.items():
            found = self._found[name]
            found.is_mendable = False
            found.find(self._folder / SIDECAR_NAME, FindingKind.WRONG_CLAIM, str(error), REPAIR_NOTHING)
        return evaluated.spilled

    def _is_judged(self, name: str, noted: FieldClaim) -> bool:
        """Whether something is noted that can be held against the log."""
        path, found, version = self._folder / SIDECAR_NAME, self._found[name], self._evaluator.version
        if noted.spark != version:
            what = f"field {name} was computed with Spark {noted.spark}, and this is {version}: build it anew"
            found.find(path, FindingKind.OUTDATED, what)
            return False
        wrong = ""
        if not noted.is_of(self._log):
            wrong = f"field {name} is of another log, or of one that was cut since"
        elif noted.indexed_to > self._claim.indexed_to:
            wrong = f"field {name} is indexed up to {noted.indexed_to}, but all else to {self._claim.indexed_to}"
        elif not self._is_boundary(noted.indexed_to):
            wrong = f"field {name} is indexed up to {noted.indexed_to}, where no record begins"
        elif noted.index_names and not noted.indexed:
            wrong = f"field {name} has index files, but nothing that they index"
        if wrong:
            found.find(path, FindingKind.WRONG_CLAIM, wrong)
            return False
        begin = self._log.begin_offset
        claimed = [(max(first, begin), end) for first, end in noted.indexed if end > begin]
        holes = [hole for spilled in self._taken for hole in spilled.holes]
        if claimed and claimed != indexed_stretches(self._log, claimed[0][0], noted.indexed_to, holes):
            what = f"field {name} is not indexed from where to where it says"
            found.find(path, FindingKind.WRONG_CLAIM, what)
        return bool(noted.indexed)

    def _is_boundary(self, offset: int) -> bool:
        """Whether a record begins here, or will."""
        log = self._log
        is_known = offset == self._claim.indexed_to or offset <= log.begin_offset
        return is_known or log.base_of(offset) in (None, offset) or log.is_boundary(offset, [])

    def _stretches(self, to_offset: int) -> list[Stretch]:
        """The log up to where a field is indexed, where a record begins."""
        return [
            replace(stretch, to_offset=min(stretch.to_offset, to_offset))
            for stretch in proven_stretches(self._log, self._taken)
            if stretch.from_offset < to_offset
        ]

    # -- what is there ---------------------------------------------------------------------------------------------

    def _tasks(self, name: str, spilled: tuple[Spilled, ...]) -> list[FieldCheckTask]:
        noted, folder, found = self._claim.fields[name], self._folder / FOLDER / name, self._found[name]
        names = self._names(noted, folder)
        begin, log = self._log.begin_offset, SpilledLog(self._work, spilled)
        if log.item_count and not names:
            what = f"there is no index file, but the log has {log.item_count} values for one"
            found.find(folder / "index", FindingKind.MISSING, what, count=log.item_count)
        parts = plan_parts(
            [read_ends(folder / "index" / each, noted.shape) for each in names],
            log,
            begin,
            is_exact=True,
            is_live=False,
            is_whole=[first for first, _ in noted.indexed[:1]] == [begin],
        )
        return [
            FieldCheckTask(
                name,
                IndexCheckTask(
                    work=str(self._work),
                    path=str(part.file.path),
                    slots=noted.slots,
                    items=noted.items,
                    ranges=log.ranges(part.first, part.behind),
                    begin_offset=begin,
                    end_offset=noted.indexed_to,
                    before=part.before,
                    is_first_known=part.is_first_known,
                    begun=part.begun,
                    is_live=False,
                    is_exact=True,
                ),
                str(folder / "values" / part.file.path.name),
            )
            for part in parts
        ]

    def _names(self, noted: FieldClaim, folder: Path) -> list[str]:
        """Names of files that should be there. Those at the front may have been removed when the log expired."""
        there = set(digit_names(folder / "index"))
        first = next((number for number, name in enumerate(noted.index_names) if name in there), 0)
        return list(noted.index_names[first if self._log.begin_offset > noted.indexed[0][0] else 0 :])
