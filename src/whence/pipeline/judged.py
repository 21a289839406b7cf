"""Judged: which files of a store are held against its log, because readers use them, and which of them are mended.

judged                                             mended
the sidecar, if its sidecar.json is of this log    in the sidecar
a store of whence's own                            in the store
a broker's store                                   a build into the sidecar
with --in-place, a broker's store                  in the store; and then its sidecar, if that is what readers use
a sidecar that nobody can believe                  a build into the sidecar
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from whence.errors import CorruptError, FormatError, LockedError, NotFoundError, StoreError
from whence.files.disk import Disk
from whence.files.folder import digit_names, is_file, is_folder
from whence.files.lock import lock_holder
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.index_file import HEADER_SIZE, IndexHeader, decode_header
from whence.pipeline.build import ALL_KINDS
from whence.pipeline.field_evaluation import Evaluator
from whence.pipeline.field_repair import FieldRepair
from whence.pipeline.index_parts import read_ends
from whence.pipeline.jobs import (
    JobOptions,
    known_sidecar,
    log_folders_of,
    made_like,
)
from whence.pipeline.left_build import has_published, let_go
from whence.pipeline.repair import Mended, Repair
from whence.pipeline.runner import Runner
from whence.pipeline.seen import MadeLike, believed
from whence.pipeline.sidecar_folder import BUILT
from whence.pipeline.tasks import Kind
from whence.pipeline.verify import (
    REPAIR_CHECKPOINT,
    REPAIR_LOG,
    WITH_CUT_TAIL,
    Verified,
    Verify,
    VerifyPlace,
    VerifySettings,
)
from whence.store.commit_log import CommitLog
from whence.store.findings import Finding, FindingKind
from whence.store.index_file import Shape
from whence.store.log_tail import cut_tail
from whence.store.lost_log import NOT_LOST, lost_offset, refuse_lost_log, what_is_lost
from whence.store.message_store import MessageStore
from whence.store.owned_store import now_ms
from whence.store.ownership import NAME as OWNERSHIP_NAME
from whence.store.ownership import Ownership, read_ownership
from whence.store.queue_files import queues_size
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import Sidecar, read_sidecar
from whence.store.topic_table import TopicTable

if TYPE_CHECKING:
    from collections.abc import Sequence

REPAIR_LOST = "nothing: mount the log's disk, or bring its files back"
REPAIR_SIDECAR = "build the sidecar anew from the log"
TAIL = (FindingKind.HALF_RECORD, FindingKind.RECORDS_BEHIND_END)


@dataclass(frozen=True, slots=True)
class RepairOptions(JobOptions):
    """``in_place``: a store that whence did not make is mended itself. ``cut_tail``: the log's torn end goes."""

    in_place: bool = False
    cut_tail: bool = False
    dry_run: bool = False


class Judged:
    """A store, and which of its files readers use."""

    def __init__(self, stack: ExitStack, folder: Path, sidecar: Path, options: JobOptions) -> None:
        self._options = options
        self._ownership = read_ownership(folder)
        self._log_folders = log_folders_of(folder, self._ownership)
        self._store = stack.enter_context(MessageStore(folder, options.shape, options.dialect, self._log_folders))
        self._log = self._store.commit_log
        self._in_place = isinstance(options, RepairOptions) and options.in_place
        self._roots, self._known = (sidecar, folder), known_sidecar(sidecar)
        self._problem: Finding | None = None
        self.leaves_sidecar = False  # which readers use instead of what is judged
        self._sidecar = sidecar
        self._sidecar_state = _state_of(sidecar / SIDECAR_NAME)
        self._place = self._judge(folder, sidecar)
        self._topics = TopicTable(folder, Disk(), now_ms, only_read=True)
        self._settings = self._made_like()

    # -- which files -----------------------------------------------------------------------------------------------

    def _judge(self, folder: Path, sidecar: Path) -> VerifyPlace:
        claim = self._believed(sidecar)
        if claim is not None and not claim.in_place and self._in_place and self._ownership is None:
            self.leaves_sidecar, claim = True, None  # which says nothing of the store's own files
        if claim is not None and not claim.in_place:
            names = self._without_expired(claim.index_names, sidecar / "index")
            return VerifyPlace(folder, sidecar, sidecar, names, claim.indexed_to, claim, is_exact=True)
        is_live = is_file(folder / "abort") or lock_holder(folder / "lock") not in (None, os.getpid())
        place = VerifyPlace(folder, sidecar, folder, claim=claim, is_live=is_live)
        known: tuple[str, ...] = ()
        newest: IndexHeader | None = None
        if self._ownership is not None:
            flushed = self._ownership.flushed
            known = (*flushed.older_index_names, *((flushed.index_name,) if flushed.index_name else ()))
            newest = flushed.index_header
        elif claim is not None:
            known, newest = claim.index_names, claim.newest_header
        if is_live or newest is None or not _is_as_left(folder / "index", known, newest):
            return place
        names = self._without_expired(known, folder / "index")
        place = replace(place, names=names, is_exact=True)
        if self._ownership is not None or claim is None:
            return place
        return replace(place, indexed_to=claim.indexed_to, has_brokers_queues=not claim.has_queues)

    def _believed(self, sidecar: Path) -> Sidecar | None:
        """What sidecar.json says, if it is of this log. What is wrong with it otherwise is noted."""
        path = sidecar / SIDECAR_NAME
        try:
            claim = read_sidecar(sidecar)
        except CorruptError as error:
            self._problem = Finding(path, 0, FindingKind.UNREADABLE, error.what, REPAIR_SIDECAR)
            return None
        if claim is None:
            if any(is_folder(sidecar / name) for name in BUILT):
                what = "there is none, but what a build made lies beside it"
                self._problem = Finding(path, 0, FindingKind.WRONG_CLAIM, what, REPAIR_SIDECAR)
            return None
        what = ""
        if claim.last_record_offset >= claim.indexed_to:
            what = "the last record that was indexed lies behind what it says is indexed"
        elif not _is_of(claim, self._log):
            what = "it is of another log, or of one that was cut since"
        if what:
            self._problem = Finding(path, 0, FindingKind.WRONG_CLAIM, what, REPAIR_SIDECAR)
            return None
        return claim

    def _without_expired(self, names: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Names of files that should be there. Those at the front may have expired together with the log."""
        there = set(digit_names(folder))
        first = next((n for n, name in enumerate(names) if name in there), 0)
        return tuple(names[first if self._log.begin_offset > 0 else 0 :])

    @property
    def _shape(self) -> Shape | None:
        """That of whence's own index files; of a broker's, if it is asked for."""
        if self._ownership is not None:
            return self._ownership.settings.shape
        return self._options.shape

    # -- verify ----------------------------------------------------------------------------------------------------

    @property
    def has_fields(self) -> bool:
        """Whether expressions are to be evaluated."""
        return self._place.claim is not None and bool(self._place.claim.fields)

    def verify(self, runner: Runner, work: Path, evaluator: Evaluator) -> Verified:
        """Check what is judged. Where the log is gone, that alone is told: all that leads into it would be damage."""
        lost = lost_offset(self._log, self._roots, self._known)
        if lost != NOT_LOST:
            gap = Finding(self._log_folders[0], 0, FindingKind.GAP, what_is_lost(lost), REPAIR_LOST)
            return Verified(0, 0, 0, self._place.root, self._settings.dialect, [gap], log_damage=[gap])
        found = Verify(self._log, self._place, self._settings, runner, work, Disk(), evaluator).run()
        found.habits += self._topics.notes
        if self._problem is not None:
            found.damage.insert(0, self._problem)
        return found

    def see_that_nobody_built(self, found: Verified) -> None:
        """Who builds meanwhile, or was killed then, leaves files ahead of sidecar.json: that is no damage.

        It cannot be told from damage either, so where something is damaged nothing is said of it.
        """
        is_ours = self._place.claim is not None or self._problem is not None
        if not is_ours or not (found.is_badly_indexed or any(each.damage for each in found.fields.values())):
            return
        sidecar = self._sidecar
        if (holder := lock_holder(sidecar / "lock")) is not None:
            raise LockedError(f"{sidecar}: process {holder} is at work there; verify when it has ended")
        if _state_of(sidecar / SIDECAR_NAME) != self._sidecar_state:
            raise StoreError(f"{sidecar}: a whence build was at work there meanwhile; verify again")
        if has_published(sidecar, known_sidecar(sidecar)):
            raise StoreError(
                f"{sidecar}: a whence build was killed; whence build puts right what it left, and then it can be "
                "verified"
            )

    def _made_like(self) -> VerifySettings:
        options, claim, place = self._options, self._place.claim, self._place
        shape, dialect, queue_file_size = self._shape, None, None
        if self._ownership is not None:
            settings = self._ownership.settings
            dialect, queue_file_size = settings.dialect, settings.queue_file_size
        elif claim is not None and place.is_exact:
            claimed = MadeLike(claim.shape, claim.dialect, claim.queue_file_size)
            shape, dialect, queue_file_size = believed(place.root, place.names or (), self._log, claimed, self._usual)
        return VerifySettings(
            shape=shape,
            dialect=dialect or self._store.dialect(),
            queue_file_size=queue_file_size,
            batch_topics=self._topics.batch_topics(),
            jobs=options.jobs,
        )

    def _usual(self) -> MadeLike:
        """What a build would choose that knows of no sidecar."""
        return MadeLike(*made_like(self._store, self._options, None, None))

    # -- repair ----------------------------------------------------------------------------------------------------

    def refuse_lost_log(self) -> None:
        """StoreError if the log is gone: nothing that leads into it is damaged."""
        refuse_lost_log(self._log, self._log_folders, self._roots, self._known)

    @property
    def is_mendable(self) -> bool:
        """Whether what is judged may be written to."""
        return self._place.is_sidecar or self._ownership is not None or self._in_place

    @property
    def is_store_mended(self) -> bool:
        """Whether the store's own files are mended: what can be file by file, though a build makes what is left."""
        return self.is_mendable and not self._place.is_sidecar

    def is_built_in_place(self, found: Verified) -> bool:
        """Whether a build anew goes into the store. One that makes but the sidecar anew does not."""
        return self.is_store_mended and (self._ownership is not None or _lacks_index(found))

    def built_kinds(self, found: Verified) -> tuple[Kind, ...]:
        """What a build anew makes: all of a sidecar; of a store what is not mended file by file."""
        if not self.is_built_in_place(found):
            return ALL_KINDS
        return (Kind.INDEX, Kind.TIMES) if _lacks_index(found) else (Kind.TIMES,)

    def planned(self, found: Verified) -> list[Finding]:
        """What is damaged, and what a repair with these options would do about it."""
        options = self._options
        cuts_tail = isinstance(options, RepairOptions) and options.cut_tail
        hows = {how: how.removeprefix(WITH_CUT_TAIL) if cuts_tail else how for how in REPAIR_LOG.values()}
        if not self.is_store_mended:
            hows[REPAIR_CHECKPOINT] = f"with --in-place, {REPAIR_CHECKPOINT}"
        how = ""
        if self.is_built_anew(found) and not self.is_store_mended:
            how = f"build all indexes anew into {self._place.sidecar}"
        return [replace(each, repair=hows.get(each.repair, how or each.repair)) for each in found.damage]

    def is_built_anew(self, found: Verified) -> bool:
        """Whether a build is what mends it: nothing there can be believed, or what is there is not ours to change."""
        is_noted = all(each.kind is not FindingKind.UNEXPECTED or _is_times(each) for each in found.claim_findings)
        is_mended = self.is_mendable and is_noted and not _lacks_index(found)
        return self._problem is not None or (found.is_badly_indexed and not is_mended)

    def mend(self, found: Verified, runner: Runner, work: Path, disk: Disk) -> list[Mended]:
        """Mend what is judged, file by file."""
        if found.is_badly_indexed:
            let_go(self._sidecar, disk)
        repair = Repair(self._log, self._log_folders, self._place, self._settings, runner, work, disk)
        mended = repair.run(found)
        if mended and self._ownership is not None:
            mended += self._note(self._ownership, disk)
        return mended

    def mend_fields(
        self, found: Verified, evaluator: Evaluator, runner: Runner, disk: Disk
    ) -> tuple[list[Mended], list[Finding]]:
        """Build the fields anew in which something is damaged; and what is left."""
        repair = FieldRepair(self._log, self._place.sidecar, self._options.jobs, evaluator, runner, disk)
        return repair.run(found.fields)

    def _note(self, ownership: Ownership, disk: Disk) -> list[Mended]:
        """Say in whence.json what is there now."""
        folder, flushed = self._store.folder, ownership.flushed
        names = digit_names(folder / "index")
        header = None if not names else read_ends(folder / "index" / names[-1], ownership.settings.shape).header
        now = replace(
            flushed,
            index_name=names[-1] if names else "",
            index_header=header or flushed.index_header,
            older_index_names=tuple(names[:-1]),
            queues_size=queues_size(folder),
        )
        if now == flushed:
            return []
        replace(ownership, flushed=now).write(folder, disk)
        return [Mended(str(folder / OWNERSHIP_NAME), "written")]

    def cut_tail(self, found: Verified, disk: Disk) -> list[Mended]:
        """Cut what lies behind the log's last whole record, if something does."""
        damaged = [finding for finding in found.log_damage if finding.kind in TAIL]
        if damaged:
            cut_tail(self._log, found.to_offset, self._place.sidecar, disk)
        return [Mended(str(finding.path), "cut") for finding in damaged]


def _lacks_index(found: Verified) -> bool:
    """Whether there is nothing of an index, but should be."""
    return not found.parts and bool(found.index[FindingKind.MISSING])


def _is_times(finding: Finding) -> bool:
    return finding.path.parent.name == "times"


def _is_as_left(folder: Path, known: Sequence[str], newest: IndexHeader) -> bool:
    """Whether nobody else put into these index files: no file came, and the newest one has no more items."""
    there = set(digit_names(folder))
    if not there <= set(known):
        return False
    if not known or known[-1] not in there:
        return True
    try:
        with PlainFile(folder / known[-1]) as file:
            return decode_header(file.read(0, HEADER_SIZE)).item_count <= newest.item_count
    except (FormatError, StoreError):
        return True


def _state_of(path: Path) -> tuple[int, int] | None:
    """By which one sees that a file was written anew; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _is_of(claim: Sidecar, log: CommitLog) -> bool:
    """Whether the log is the one that was indexed, and a record begins, or will, where the index ends."""
    if not claim.is_of(log):
        return False
    end = claim.indexed_to
    if end <= log.begin_offset or log.base_of(end) in (None, end):
        return end <= log.end_offset()
    try:
        log.read(end)
    except (FormatError, NotFoundError):
        return end == log.end_offset()
    return True
