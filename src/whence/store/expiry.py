"""Expiry: old log files go, and what leads only into them follows.

    expiry = Expiry(folder, ExpiryPolicy(), Disk(), disk_usage=shutil.disk_usage)
    expiry.plan(now_ms)         what would go
    expiry.run(now_ms)          what went; with an archive it went there

    commitlog/                                 the oldest files, up to the first that is to be kept, never the last
    consumequeue/, batchconsumequeue/          of each queue the leading files, never the last, that lead only below
                                               the log's new begin
    consumequeue_ext/                          the files before the unit of the first entry that is left
    index/                                     files that end below the log's new begin, never the newest

Files go in this order, and a log file goes before any younger one. So a crash at any point leaves a store that opens
and answers right: a reader passes over what leads below the log's begin, and the next run lets it go. What a link
leads to is not the store's, and stays.

Follows RocketMQ 5.5 MappedFileQueue, ConsumeQueueStore.CleanConsumeQueueService, ConsumeQueueExt and IndexService.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whence.errors import StoreError
from whence.files.disk import Disk
from whence.files.folder import own_files_in
from whence.files.names import OFFSET_MAX, parse_offset_name
from whence.store.archive import Archive
from whence.store.commit_log import CommitLog
from whence.store.expiry_policy import UNKNOWN, AgeBy, Decision, ExpiryPolicy, used_percent
from whence.store.old_files import EXT, QUEUE_ENTRY_SIZES, OldFile, old_index_files, old_queue_files

OWN_FOLDERS = ("commitlog", *QUEUE_ENTRY_SIZES, EXT, "index", "config")

DiskUsage = Callable[[Path], tuple[int, int, int]]
"""Total, used and free bytes of the disk that holds a path; ``shutil.disk_usage`` is one."""
Progress = Callable[[int, int], None]
"""Told how many bytes of how many are gone."""


@dataclass(frozen=True, slots=True)
class Expired:
    """What went, or what would go. ``straddling`` files stay; their older part is copied to the archive."""

    store: Path
    archive: Path | None
    begin_offset: int  # of the log before
    new_begin_offset: int
    log_files: tuple[OldFile, ...] = ()
    queue_files: tuple[OldFile, ...] = ()
    index_files: tuple[OldFile, ...] = ()
    straddling_queue_files: tuple[OldFile, ...] = ()
    straddling_index_files: tuple[OldFile, ...] = ()
    is_full: bool = False  # the disk: nothing should be written any more

    @property
    def files(self) -> tuple[OldFile, ...]:
        """All that goes, in its order."""
        return self.log_files + self.queue_files + self.index_files

    @property
    def straddling_files(self) -> tuple[OldFile, ...]:
        return self.straddling_queue_files + self.straddling_index_files

    @property
    def size(self) -> int:
        """Bytes of all files that go."""
        return sum(file.size for file in self.files)

    def name_of(self, file: OldFile) -> str:
        """A file's path from the store's folder, if it lies below that."""
        path = file.path
        return str(path.relative_to(self.store) if path.is_relative_to(self.store) else path)

    def to_dict(self, *, dry_run: bool) -> dict[str, Any]:
        """The JSON form."""

        def names(files: Sequence[OldFile]) -> list[str]:
            return [self.name_of(file) for file in files]

        return {
            "store": str(self.store),
            "archive": None if self.archive is None else str(self.archive),
            "dry_run": dry_run,
            "begin_offset": {"before": self.begin_offset, "after": self.new_begin_offset},
            "bytes": self.size,
            "log_files": names(self.log_files),
            "queue_files": names(self.queue_files),
            "index_files": names(self.index_files),
            "copied_files": names(self.straddling_files),
        }


class Expiry:
    """Lets go of a store's old files. One thread, of the process that holds the store's lock; it may go on writing.

    ``log_folders``: where the log is, if not in ``commitlog/``. ``archive``: what goes is moved there.
    ``disk_usage``: without it, no disk is looked at and only age and hour count.
    """

    def __init__(
        self,
        folder: Path,
        policy: ExpiryPolicy,
        disk: Disk,
        *,
        log_folders: Sequence[Path] = (),
        archive: Path | None = None,
        disk_usage: DiskUsage | None = None,
    ) -> None:
        self._folder = folder
        self._policy = policy
        self._disk = disk
        self._log_folders = tuple(log_folders) or (folder / "commitlog",)
        self._archive = archive
        self._disk_usage = disk_usage
        self._followed = 0  # up to this offset, all that leads into the log has gone

    # -- planning --------------------------------------------------------------------------------------------

    def plan(self, now_ms: int, keep_from: int = OFFSET_MAX) -> Expired:
        """What would go now. A log file with bytes at or behind ``keep_from`` stays: it is not dispatched yet."""
        self._refuse_links()
        decision = self._policy.decide(now_ms, self._used())
        log = CommitLog(*self._log_folders)
        try:
            pieces = log.pieces(log.begin_offset, OFFSET_MAX)
            going = self._old_log_files(log, pieces, decision, now_ms, keep_from)
        finally:
            log.close()
        if not pieces:
            return Expired(self._folder, self._archive, 0, 0, is_full=decision.is_full)
        begin, new_begin = pieces[0][0], pieces[len(going)][0]
        plan = Expired(self._folder, self._archive, begin, new_begin, going, is_full=decision.is_full)
        if new_begin <= self._followed:
            return plan
        if self._archive is not None:
            archive_end = Archive(self._archive, self._disk).check(self._folder, begin, pieces[0][1] - begin)
            if not going and archive_end != begin:
                return plan  # it has nothing of this store, and gets nothing now
        queue_files, straddling_queue_files = old_queue_files(self._folder, new_begin)
        index_files, straddling_index_files = old_index_files(self._folder, new_begin)
        plan = replace(plan, queue_files=tuple(queue_files), index_files=tuple(index_files))
        if self._archive is None:
            return plan
        return replace(
            plan,
            straddling_queue_files=tuple(straddling_queue_files),
            straddling_index_files=tuple(straddling_index_files),
        )

    def _refuse_links(self) -> None:
        for name in OWN_FOLDERS:
            path = self._folder / name
            if path.is_symlink():
                raise StoreError(f"{path}: is a link; only what lies in the store itself can expire")

    def _used(self) -> list[int]:
        """How much of the disks is used. Of several log folders the one with the most room counts, as in RocketMQ."""
        if self._disk_usage is None:
            return []
        used = [self._used_of(folder) for folder in self._log_folders]
        return [min(used), self._used_of(self._folder)]

    def _used_of(self, folder: Path) -> int:
        assert self._disk_usage is not None
        try:
            _, used, free = self._disk_usage(folder)
        except OSError:
            return UNKNOWN
        return used_percent(used, free)

    def _old_log_files(
        self, log: CommitLog, pieces: Sequence[tuple[int, int]], decision: Decision, now_ms: int, keep_from: int
    ) -> tuple[OldFile, ...]:
        """The log files that go; ``pieces`` are all files, from and to which offset."""
        last = log.last_written_base()  # what lies behind it was made ahead of need
        files = {}
        for folder in self._log_folders:
            for name, file in own_files_in(folder).items():
                files[parse_offset_name(name)] = OldFile(folder / name, file.size, file.modified_ms)
        asked: list[OldFile] = []

        def times_ms() -> Iterator[int]:
            for number, (base, end) in enumerate(pieces):
                if base >= last or end > keep_from:
                    return
                if base not in files:
                    path, _ = log.path_of(base)
                    raise StoreError(f"{path}: is no regular file; only what lies in the store itself can expire")
                file = files[base]
                if self._policy.age_by is AgeBy.RECORD:
                    file = replace(file, finished_ms=_stored_behind(log, pieces[number + 1 :]))
                asked.append(file)
                yield file.finished_ms

        count = self._policy.count(decision, now_ms, times_ms())
        return tuple(asked[:count])

    # -- doing -----------------------------------------------------------------------------------------------

    def run(self, now_ms: int, keep_from: int = OFFSET_MAX, progress: Progress | None = None) -> Expired:
        """Let go of what may go now (see :meth:`plan`), and tell what that was."""
        plan = self.plan(now_ms, keep_from)
        if plan.files or plan.straddling_files:
            if plan.archive is None:
                self._remove(plan, progress)
            else:
                with Archive(plan.archive, self._disk) as archive:
                    plan = self._move(plan, archive, progress)
        self._followed = plan.new_begin_offset
        return plan

    def _remove(self, plan: Expired, progress: Progress | None) -> None:
        done = 0
        for number, file in enumerate(plan.files):
            self._disk.remove(file.path)
            # A power failure may bring files back, and must leave no gap among them. Before the first queue file
            # goes, all log files are gone for good.
            following = plan.files[number + 1 : number + 2]
            if number < len(plan.log_files) or any(each.path.parent == file.path.parent for each in following):
                self._disk.flush_folder(file.path.parent)
            done += file.size
            if progress is not None:
                progress(done, plan.size)

    def _move(self, plan: Expired, archive: Archive, progress: Progress | None) -> Expired:
        """Move to the archive what goes, and copy what straddles; the plan, with only those that had to be copied.

        The log comes first and the index last: an archive answers right at any point of this, since what its
        index does not cover is scanned.
        """
        done = 0

        def advance(file: OldFile) -> None:
            nonlocal done
            done += file.size
            if progress is not None:
                progress(done, plan.size)

        if plan.log_files:
            archive.check(
                self._folder, plan.begin_offset, plan.log_files[0].size
            )  # now that nobody else writes there
        for file in plan.log_files:
            archive.take_log_file(file.path)
            advance(file)
        archive.copy_topics(self._folder)
        for file in plan.queue_files:
            archive.take_queue_file(file.path, file.path.relative_to(self._folder))
            advance(file)
        copied_queue_files = [
            file
            for file in plan.straddling_queue_files
            if archive.copy_queue_file(file.path, file.path.relative_to(self._folder), file.kept)
        ]
        for file in plan.index_files:
            archive.take_index_file(file.path)
            advance(file)
        copied_index_files = [
            file for file in plan.straddling_index_files if archive.copy_index_file(file.path, plan.new_begin_offset)
        ]
        return replace(
            plan,
            straddling_queue_files=tuple(copied_queue_files),
            straddling_index_files=tuple(copied_index_files),
        )


def _stored_behind(log: CommitLog, pieces: Sequence[tuple[int, int]]) -> int:
    """When the first whole record of these files was stored.

    It did not fit into the file before, which was finished then. So this is the time that the file had when its
    broker wrote it, without a walk over all of its records.
    """
    for base, _ in pieces:
        file = log.file_of(base)
        found = file.next_whole(0)
        if found.position is not None:
            return file.record(found.position)[0].store_timestamp_ms
    return OFFSET_MAX
