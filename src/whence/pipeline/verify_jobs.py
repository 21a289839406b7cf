"""The jobs ``whence verify`` and ``whence repair``: when files are judged and mended, and whose locks are held."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from whence.errors import FormatError, LockedError, StoreError, UsageError
from whence.files.disk import Disk
from whence.files.folder import is_file, is_folder
from whence.files.lock import lock_holder
from whence.pipeline.field_evaluation import Evaluator
from whence.pipeline.jobs import (
    BuildOptions,
    JobOptions,
    build_indexes,
    known_of,
    known_sidecar,
    locked,
    locked_sidecar,
    log_folders_of,
    settled,
    sidecar_of_job,
)
from whence.pipeline.judged import TAIL, Judged, RepairOptions
from whence.pipeline.repair import Mended, Repaired
from whence.pipeline.runner import Runner, Watcher
from whence.pipeline.session import open_session
from whence.pipeline.verify import (
    Verified,
    work_folder,
)
from whence.store.commit_log import CommitLog
from whence.store.findings import Finding, FindingKind
from whence.store.owned_store import Options, now_ms, own_store
from whence.store.ownership import read_ownership
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import read_sidecar

REPAIR_GROWING = "put that right, and then mend what is damaged"


def verify_indexes(folder: Path, options: JobOptions, watcher: Watcher | None = None) -> Verified:
    """Hold log and indexes of the store in ``folder`` against each other; nothing of it is changed."""
    sidecar = sidecar_of_job(folder, options)
    with ExitStack() as stack:
        if _is_left_growing(sidecar):
            raise StoreError(
                f"{sidecar}: a whence follow was killed; whence follow --once, or whence build, puts right what it "
                "left, and then it can be verified"
            )
        judged = Judged(stack, folder, sidecar, options)
        spark = stack.enter_context(
            open_session(options.spark, log_file=options.log_file, moves_rows=judged.has_fields)
        )
        runner = Runner(spark, watcher)
        work = stack.enter_context(work_folder(sidecar, is_local=runner.is_local))
        found = judged.verify(runner, work, Evaluator(spark, runner))
        judged.see_that_nobody_built(found)
        return found


def _is_left_growing(sidecar: Path) -> bool:
    """Whether a follower was killed that let files grow.

    They are ahead of what is said of them: that is no damage, and nothing to judge.
    """
    known = known_sidecar(sidecar) if is_folder(sidecar) else None
    if known is None or not known.growing:
        return False
    holder = lock_holder(sidecar / "lock")
    if holder is not None:
        raise LockedError(f"{sidecar}: process {holder} lets it grow; end that whence follow, and verify then")
    return True


def repair_indexes(folder: Path, options: RepairOptions, watcher: Watcher | None = None) -> Repaired:
    """Mend what a verify finds, as far as that can be done."""
    sidecar = sidecar_of_job(folder, options)
    is_own = read_ownership(folder) is not None
    if options.cut_tail and not (options.in_place or is_own):
        raise UsageError(
            f"{folder}: is not a store that whence made, and --cut-tail would change its log; "
            "say --in-place to allow that"
        )
    repaired = Repaired(dry_run=options.dry_run)
    if options.dry_run and _is_left_growing(sidecar):
        what = "a whence follow was killed, and only when what it left is put right one sees what is damaged"
        repaired.left = [Finding(sidecar / SIDECAR_NAME, 0, FindingKind.WRONG_CLAIM, what, REPAIR_GROWING)]
        repaired.found = len(repaired.left)
        return repaired
    with open_session(options.spark, log_file=options.log_file, moves_rows=_has_fields(sidecar)) as spark:
        runner = Runner(spark, watcher)
        if is_own and is_file(folder / "abort") and not options.dry_run:
            # What a kill left undone is done as at any start.
            own_store(folder, {}, Options(), disk=Disk(), clock=now_ms).close()
        turn = _Turn(folder, sidecar, options, is_own, runner, Evaluator(spark, runner), watcher)
        if turn.run(repaired):
            replace(turn, options=replace(options, in_place=False)).run(repaired)
        return repaired


def _has_fields(sidecar: Path) -> bool:
    try:
        claim = read_sidecar(sidecar)
    except FormatError:
        return False
    return claim is not None and bool(claim.fields)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Some files are verified, and mended. A store that is mended in place may have a sidecar, which is the next."""

    folder: Path
    sidecar: Path
    options: RepairOptions
    is_own: bool
    runner: Runner
    evaluator: Evaluator
    watcher: Watcher | None

    def run(self, repaired: Repaired) -> bool:
        """Add what is found and mended; whether a sidecar is to have its turn."""
        disk, options = Disk(), self.options
        with ExitStack() as stack:
            if not options.dry_run:
                self._begin(stack, disk)
            work = stack.enter_context(work_folder(self.sidecar, is_local=self.runner.is_local))
            judged = Judged(stack, self.folder, self.sidecar, options)
            judged.refuse_lost_log()
            found = judged.verify(self.runner, work, self.evaluator)
            if options.dry_run:
                judged.see_that_nobody_built(found)
            is_built_anew = judged.is_built_anew(found)
            damage = judged.planned(found) if options.dry_run else found.damage
            told = set(repaired.left)  # damage of the log, in every turn
            new = [finding for finding in damage if finding not in told]
            repaired.found += len(new) + found.unlisted
            repaired.unlisted += found.unlisted
            if options.dry_run:
                repaired.left += new
                return judged.leaves_sidecar and not is_built_anew
            left = list(found.log_damage)
            if options.cut_tail:
                repaired.mended += judged.cut_tail(found, disk)
                left = [finding for finding in left if finding.kind not in TAIL]
            if judged.is_store_mended or (judged.is_mendable and not is_built_anew):
                repaired.mended += judged.mend(found, self.runner, work, disk)
            else:
                left += found.checkpoint_findings
            if not is_built_anew:
                mended, left_in_fields = judged.mend_fields(found, self.evaluator, self.runner, disk)
                repaired.mended += mended
                left += left_in_fields
            repaired.left += [finding for finding in left if finding not in told]
        if is_built_anew:
            repaired.mended += self._build_anew(judged, found)
        return judged.leaves_sidecar and not is_built_anew

    def _begin(self, stack: ExitStack, disk: Disk) -> None:
        """Take the locks, and do what a killed follower left undone."""
        stack.enter_context(locked_sidecar(self.sidecar, self.options, disk))
        if self.options.in_place or self.is_own:
            stack.enter_context(locked(self.folder / "lock", self.folder))
        with closing(CommitLog(*log_folders_of(self.folder, read_ownership(self.folder)))) as log:
            known, _ = known_of(self.folder, log, self.sidecar, self.options)
            if known is not None and known.growing:
                settled(self.folder, log, self.sidecar, known, disk)

    def _build_anew(self, judged: Judged, found: Verified) -> list[Mended]:
        options = self.options
        built = build_indexes(
            self.folder,
            BuildOptions(
                out=options.out,
                in_place=judged.is_built_in_place(found),
                rebuild=True,
                kinds=judged.built_kinds(found),
                shape=options.shape,
                dialect=options.dialect or found.dialect,
                jobs=options.jobs,
                spark=options.spark,
                log_file=options.log_file,
            ),
            self.watcher,
        )
        return [Mended(file.path, "built") for file in built.files]
