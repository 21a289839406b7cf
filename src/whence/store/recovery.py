"""Recovery: what is kept and what is cut, before a store is written to again.

The log is the truth. Queues and index are made from it, so that what is not known to be right is cut and made again.

    log      ends at the first record that is not whole, behind what is known to be flushed
    queues   end where they are known to be flushed, and dispatch goes on from there
    index    the same; of its newest file the items below that point are kept, and linked anew

``whence.json`` tells how far all three were flushed. It is believed as long as the log still bears the record that
it ends with: so what another program, or a power failure, did behind that point is not taken for ours, and a store
that is not ours is dispatched anew from its first record.

Nothing here depends on how far an earlier recovery came: it may be killed at any point and run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from whence.errors import CorruptError, FormatError, StoreError, UsageError
from whence.files.disk import ZEROS, Disk
from whence.files.folder import files_in
from whence.files.names import OFFSET_MAX, is_digits, sidecar_of
from whence.files.plain_file import PlainFile
from whence.store.commit_log import CommitLog, is_half
from whence.store.index_builder import BuiltFile
from whence.store.index_recovery import IndexRecovery, RecoveredIndex
from whence.store.log_tail import CUT, keep_aside
from whence.store.lost_log import lost_error
from whence.store.message_store import Dialect, read_checkpoint
from whence.store.ownership import NO_INDEX, Flushed, Ownership, is_same_log
from whence.store.queue_files import cut_queue, queue_folders, queues_size
from whence.store.scan import Reason


@dataclass(slots=True)
class Recovered:
    """What recovery found and did. Dispatch goes on where the queues are ``flushed`` to, and at ``index_offset``.

    That may lie behind the point up to which the index is noted as flushed: ``newest_index`` has more items then.
    They are noted with the queues, and with the record by which one sees that the log is still the same so far.
    """

    end_offset: int  # of the log, which is flushed up to there
    flushed: Flushed
    index_offset: int
    newest_index: BuiltFile | None = None
    cut: list[Path] = field(default_factory=list)
    """Where whole records lie that a crash left behind the log's end: nobody was told that they are safe."""


class Recovery:
    """One run, of the process that holds the store's lock."""

    def __init__(self, folder: Path, ownership: Ownership, disk: Disk, *, is_clean: bool) -> None:
        self._folder = folder
        self._settings = ownership.settings
        self._disk = disk
        self._is_clean = is_clean
        self._log = CommitLog(*ownership.settings.log_paths(folder))
        self._log.use_kernel()
        self._flushed = ownership.flushed
        self._kept_aside: list[Path] = []

    def run(self) -> Recovered:
        """Bring log, queues and index to a state that can be gone on with."""
        try:
            self._check_log()
            if not is_same_log(self._log, self._flushed):
                self._flushed = Flushed()
            end = self._find_end()
            self._cut_log(end)
            begin = min(self._log.begin_offset, end)
            queues_from, size = self._recover_queues(begin, end)
            index = self._recover_index(max(begin, min(self._flushed.index, end)), end)
        finally:
            self._log.close()
        newest = index.flushed[-1] if index.flushed else None
        flushed = replace(
            self._flushed,
            queues=queues_from,
            queues_size=size,
            index=index.flushed_offset,
            index_name="" if newest is None else newest.path.name,
            index_header=NO_INDEX if newest is None else newest.header,
            older_index_names=tuple(file.path.name for file in index.flushed[:-1]),
        )
        return Recovered(end, flushed, index.offset, index.newest, self._kept_aside)

    # -- the log ---------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        """Refuse a log of another shape, and one of which a part is gone: to go on would write over its place."""
        self._remove_empty_files()
        log, file_size = self._log, self._settings.file_size
        if log.file_size > file_size:
            what = f"the log's files have {log.file_size} bytes, not {file_size}"
            raise UsageError(f"{self._folder}: {what}; give file_size={log.file_size}")
        last = self._flushed.last_record_offset
        if last >= 0 and (not log.bases or last >= log.bases[-1] + file_size):
            raise lost_error(self._settings.log_paths(self._folder), last)
        for begin, end, damage in log.gaps(OFFSET_MAX):
            what = f"the log has no bytes from offset {begin} to {end}; nothing can be appended behind a gap"
            raise CorruptError(what, path=damage.path)

    def _remove_empty_files(self) -> None:
        """Remove what a crash left of a file in the making: RocketMQ, too, opens no log with a file of no bytes."""
        for folder in self._settings.log_paths(self._folder):
            empty = [name for name, state in files_in(folder).items() if is_digits(name) and state.size == 0]
            for name in empty:
                self._disk.remove(folder / name)
            if empty:
                self._disk.flush_folder(folder)
        self._log.refresh()

    def _find_end(self) -> int:
        """Walk over whole records from the flushed point on. Damage before it is no reason to cut the log."""
        file_size = self._settings.file_size
        end = max(self._flushed_to(), self._log.begin_offset)
        for base in self._log.bases:
            if base + file_size <= end:
                continue
            file = self._log.file_of(base)
            stopped = file.walk(end - base, file_size)
            if stopped.reason is not Reason.BLANK:
                half = stopped.last >= 0 and is_half(file, stopped.last)
                return base + (stopped.last if half else stopped.position)
            end = base + file_size
        return end

    def _flushed_to(self) -> int:
        """The offset before which the log was on the disk; of a store that is not ours, as its checkpoint tells."""
        if self._flushed.queues > 0:
            return self._flushed.queues
        try:
            timestamp_ms = read_checkpoint(self._folder).log_timestamp_ms
        except (FormatError, StoreError):
            return 0
        for base in reversed(self._log.bases):
            try:
                if 0 < self._log.read(base).store_timestamp_ms <= timestamp_ms:
                    return base
            except FormatError:
                pass  # made ahead of need, or torn: not the file in which the flushed part ends
        return 0

    def _cut_log(self, end: int) -> None:
        """Leave nothing but zeros behind the log's end. A file that others may have mapped is never shortened."""
        for base in reversed(self._log.bases):
            if base + self._settings.file_size <= end:
                break
            log_file = self._log.file_of(base)
            path, position = log_file.file.path, max(end - base, 0)
            with PlainFile(path) as file:
                pieces = file.written_pieces(position, ZEROS)
                if pieces and log_file.next_whole(position).position is not None:
                    folder = sidecar_of(self._folder) / CUT
                    self._kept_aside.append(keep_aside(file, pieces, base, position, folder, self._disk))
                if position > 0:
                    self._wipe(file, pieces)
            if position == 0:
                self._disk.remove(path)
                self._disk.flush_folder(path.parent)
        self._log.refresh()
        self._flush_log()

    def _flush_log(self) -> None:
        """Flush what a killed writer left in memory: from now on all of the log counts as flushed."""
        for base in self._log.bases:
            if base + self._settings.file_size > self._flushed.queues:
                with self._disk.open(self._log.file_of(base).file.path) as file:
                    file.flush()

    def _wipe(self, file: PlainFile, pieces: list[tuple[int, int]]) -> None:
        """Write zeros over these pieces of a file, and give it its full size."""
        with self._disk.open(file.path) as changed:
            for at, size in pieces:
                changed.write(ZEROS[:size], at)
            if file.size < self._settings.file_size:
                changed.write(b"\0", self._settings.file_size - 1)

    # -- queues ----------------------------------------------------------------------------------------------

    def _recover_queues(self, begin: int, end: int) -> tuple[int, int]:
        """Cut the queues to what is known to be right; where dispatch goes on, and their size.

        If they are not as large as they were, one is gone: then all are made anew from what the log has.
        """
        flushed = self._flushed
        queues_from = max(begin, min(flushed.queues, end))
        is_whole = self._is_clean and end == flushed.queues
        size = queues_size(self._folder) if is_whole else self._cut_queues(queues_from)
        if size != flushed.queues_size and queues_from > begin:
            queues_from = begin
            size = self._cut_queues(begin)
        return queues_from, size

    def _cut_queues(self, physical_offset: int) -> int:
        """Cut every queue to the entries of messages below this offset; the size of all together."""
        return sum(
            cut_queue(folder, physical_offset, self._disk, entry).size
            for folder, entry in queue_folders(self._folder)
        )

    # -- the index -------------------------------------------------------------------------------------------

    def _recover_index(self, flushed_to: int, end: int) -> RecoveredIndex:
        """Keep of the index what is known to be right, or what the log proves."""
        flushed, settings = self._flushed, self._settings
        names = (*flushed.older_index_names, flushed.index_name) if flushed.index_name else ()
        return IndexRecovery(
            self._folder / "index",
            settings.shape,
            self._log,
            self._disk,
            names=names,
            newest_header=flushed.index_header,
            tags=settings.dialect is Dialect.V5_5,
            is_clean=self._is_clean,
        ).run(flushed_to, end)
