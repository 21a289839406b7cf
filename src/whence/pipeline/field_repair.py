"""Repair of fields: one in which something is damaged is built anew from the log, as a first build does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from whence.files.disk import Disk
from whence.pipeline.field_evaluation import Definition
from whence.pipeline.field_verify import REPAIR_NOTHING, VerifiedField
from whence.pipeline.fields import FieldBuild, FieldEvaluator, FieldSettings
from whence.pipeline.repair import Mended
from whence.pipeline.task_runner import TaskRunner
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FOLDER
from whence.store.findings import Finding, FindingKind
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import Sidecar, read_sidecar


class FieldRepair:
    """Mends the fields of a sidecar. The caller holds its lock."""

    def __init__(
        self,
        log: CommitLog,
        folder: Path,
        jobs: int | None,
        evaluator: FieldEvaluator,
        runner: TaskRunner,
        disk: Disk,
    ) -> None:
        self._log = log
        self._folder = folder
        self._jobs = jobs
        self._evaluator = evaluator
        self._runner = runner
        self._disk = disk
        self._left: list[Finding] = []

    def run(self, found: Mapping[str, VerifiedField]) -> tuple[list[Mended], list[Finding]]:
        """What was mended, and what is left: fields whose expression is refused, or fails on a message."""
        self._left = [finding for each in found.values() if not each.is_mendable for finding in each.damage]
        damaged = [name for name, each in found.items() if each.damage and each.is_mendable]
        known = read_sidecar(self._folder)
        if known is None or not damaged:
            return [], self._left
        mended = self._build(known, [name for name in damaged if name in known.fields])
        extra = [str(self._folder / FOLDER / name) for name in damaged if name not in known.fields]
        return mended + [Mended(path, "removed") for path in extra], self._left

    def _build(self, known: Sidecar, names: Sequence[str]) -> list[Mended]:
        """Build these fields anew, leave the others as they are, and remove what nobody knows."""
        how = FieldSettings(known.shape, self._jobs, rebuild=True)
        build = FieldBuild(self._log, self._folder, how, known, self._evaluator, self._runner, self._disk)
        definitions = [Definition.noted(name, known.fields[name]) for name in names]
        built = build.run(definitions, kept=known.fields.keys() - set(names))
        path = self._folder / SIDECAR_NAME
        self._left += [
            Finding(path, 0, FindingKind.WRONG_CLAIM, str(error), REPAIR_NOTHING) for error in built.failures.values()
        ]
        return [Mended(file.path, "built") for file in built.files]
