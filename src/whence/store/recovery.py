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

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from pathlib import Path

from whence.errors import CorruptError, FormatError, FullError, StoreError, UsageError
from whence.files.disk import ZEROS, Disk
from whence.files.folder import files_in, is_folder
from whence.files.mapped_file import MappedFile
from whence.files.names import OFFSET_MAX, is_digits, sidecar_of
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.index_file import FIRST_ITEM, decode_items, item_position
from whence.store.commit_log import CommitLog, is_half
from whence.store.index_builder import BuiltFile
from whence.store.index_cut import cut_index_file, rewrite
from whence.store.index_file import IndexFile
from whence.store.index_proof import prove
from whence.store.log_tail import CUT, keep_aside
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
        self._end = 0  # of the log
        self._index_from = 0
        self._proven: tuple[int, BuiltFile] | None = None
        self._kept_aside: list[Path] = []

    def run(self) -> Recovered:
        """Bring log, queues and index to a state that can be gone on with."""
        try:
            self._check_log()
            if not is_same_log(self._log, self._flushed):
                self._flushed = Flushed()
            self._end = end = self._find_end()
            self._cut_log(end)
            begin = min(self._log.begin_offset, end)
            queues_from, size = self._recover_queues(begin, end)
            self._index_from = max(begin, min(self._flushed.index, end))
            kept = self._cut_index()
        finally:
            self._log.close()
        newest = kept[-1] if kept else None
        flushed = replace(
            self._flushed,
            queues=queues_from,
            queues_size=size,
            index=self._index_from,
            index_name="" if newest is None else newest.path.name,
            index_header=NO_INDEX if newest is None else newest.header,
            older_index_names=tuple(file.path.name for file in kept[:-1]),
        )
        index_offset, newest = self._proven or (self._index_from, newest)
        return Recovered(end, flushed, index_offset, newest, self._kept_aside)

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
            folders = " and ".join(map(str, self._settings.log_paths(self._folder)))
            raise StoreError(f"{folders}: the log reached to offset {last} and is gone; is its disk mounted?")
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

    def _cut_index(self) -> list[BuiltFile]:
        """Keep the index files that are known to be right, cut to what is, and remove the others; those kept."""
        folder = self._folder / "index"
        there = _index_files(folder)
        kept = self._known_to_be_right(there)
        is_whole = self._is_clean and all(file.header == there[file.path.name].header() for file in kept[-1:])
        if kept and not is_whole:
            self._proven = self._prove_file(kept[-1])
            is_whole = self._proven is not None
        while kept and not (is_whole and kept[-1].header.end_physical_offset < self._index_from):
            last = self._cut_file(kept.pop())
            is_whole = True  # the one before was full: nothing was written to it since it was flushed
            if last is not None:
                kept.append(last)
        removed = _names_in(folder) - {file.path.name for file in kept}
        for name in sorted(removed, reverse=True):
            self._disk.remove(folder / name)
        if removed:
            self._disk.flush_folder(folder)
        return kept

    def _known_to_be_right(self, there: dict[str, IndexFile]) -> list[BuiltFile]:
        """The index files that whence flushed, oldest first, with the headers that they had then.

        Files at the front may have expired. Where one behind them is gone, as a broker deletes the newest after a
        crash, those before it were full and are whole, but for the last message of the last one: further items of it
        may have been in the one that is gone.
        """
        flushed, shape = self._flushed, self._settings.shape
        kept: list[BuiltFile] = []
        for name in flushed.older_index_names:
            file = there.get(name)
            if file is not None and file.size == shape.file_size and file.header().item_count >= shape.item_capacity:
                kept.append(BuiltFile(file.path, file.header()))
            elif kept or self._log.begin_offset == 0:
                break
        else:
            newest = there.get(flushed.index_name)
            if newest is not None and newest.size == shape.file_size:
                return [*kept, BuiltFile(newest.path, flushed.index_header)]
        end = kept[-1].header.end_physical_offset if kept else 0
        self._index_from = max(self._log.begin_offset, min(self._index_from, end))
        return kept

    def _prove_file(self, file: BuiltFile) -> tuple[int, BuiltFile] | None:
        """The newest file with all that it holds, if the log proves it, and where dispatch goes on behind that.

        So it is if its writer was killed: what it wrote is there. What it did not finish is put right.
        """
        if file.header.end_physical_offset >= self._index_from:
            return None
        shape = self._settings.shape
        with MappedFile(file.path) as mapped:
            proven = prove(
                mapped,
                shape,
                file.header,
                self._log,
                self._index_from,
                self._end,
                tags=self._settings.dialect is Dialect.V5_5,
            )
            if proven is None:
                return None
            with self._disk.open(file.path) as changed:
                rewrite(changed, mapped, shape, proven.slots, proven.header)
                changed.flush()
        return proven.end_offset, BuiltFile(file.path, proven.header)

    def _cut_file(self, file: BuiltFile) -> BuiltFile | None:
        """Cut a file to the items of messages before the point where dispatch goes on; None if nothing is left of it.

        Nothing is left of a damaged one, either, nor where a copy has no room: then dispatch goes on where it began.
        """
        shape, header, below = self._settings.shape, file.header, self._index_from
        with MappedFile(file.path) as mapped:
            first, behind = (item_position(shape.slot_capacity, n) for n in (FIRST_ITEM, header.next_item))
            offsets = decode_items(mapped.data[first:behind])["physical_offset"]
            # Not numpy's search, which would first make a native copy of all offsets.
            count = bisect_left(offsets, below)
            end = int(offsets[count - 1]) if count else -1
            if self._log.begin_offset <= end < header.end_physical_offset:
                time = self._log.read(end).store_timestamp_ms
                header = replace(
                    header, end_physical_offset=end, end_timestamp_ms=time, item_count=FIRST_ITEM + count
                )
            del offsets
        if header.end_physical_offset >= below:
            return None
        try:
            return BuiltFile(file.path, cut_index_file(file.path, shape, header, self._disk))
        except (CorruptError, FullError):
            self._index_from = max(self._log.begin_offset, header.begin_physical_offset)
            return None


def _names_in(folder: Path) -> set[str]:
    """Of the files in ``index/``, and of those that were being made to take the place of one."""
    names = files_in(folder) if is_folder(folder) else ()
    return {name for name in names if is_digits(name) or is_digits(name.removeprefix(".").removesuffix(".new"))}


def _index_files(folder: Path) -> dict[str, IndexFile]:
    """What is in ``index/``, by name."""
    return {name: IndexFile(folder / name) for name in sorted(_names_in(folder)) if is_digits(name)}
