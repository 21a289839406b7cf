"""IndexRecovery: which index files are kept after a crash, and up to where.

    names, newest header, offset    what is noted: the files that were flushed, and how far they reached in the log
    -> the files that are kept      the newest with all that it holds, if the log proves it; else cut to what is noted
    -> where dispatch goes on

What a store of whence's own notes of its index in ``whence.json``, a sidecar notes in ``sidecar.json``: both are
recovered here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from whence.errors import CorruptError, FullError
from whence.files.disk import Disk
from whence.files.folder import files_in, is_folder
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits
from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader, decode_items, item_position
from whence.store.commit_log import CommitLog
from whence.store.index_builder import BuiltFile
from whence.store.index_cut import cut_index_file, rewrite
from whence.store.index_file import IndexFile, Shape
from whence.store.index_proof import prove


@dataclass(frozen=True, slots=True)
class RecoveredIndex:
    """What is left of an index: ``flushed`` files, oldest first, with all items of messages before an offset.

    Dispatch goes on at ``offset``. That may lie behind the flushed point: then ``newest`` has more items than it was
    noted to have, and the log proves them.
    """

    flushed: list[BuiltFile]
    flushed_offset: int
    offset: int
    newest: BuiltFile | None


class IndexRecovery:
    """One run over the index files of a folder, by the one process that may write to it.

    ``names``: of the files that were flushed, oldest first; ``newest_header``: that of the last of them, as it was
    flushed. ``is_clean``: whether nothing was written since.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        log: CommitLog,
        disk: Disk,
        *,
        names: Sequence[str],
        newest_header: IndexHeader,
        tags: bool,
        is_clean: bool = False,
    ) -> None:
        self._folder = folder
        self._shape = shape
        self._log = log
        self._disk = disk
        self._names = names
        self._newest_header = newest_header
        self._tags = tags
        self._is_clean = is_clean
        self._from = 0
        self._end = 0
        self._proven: tuple[int, BuiltFile] | None = None

    def run(self, flushed_to: int, end: int) -> RecoveredIndex:
        """Bring the index to a state that can be gone on with.

        The items of all messages before ``flushed_to`` are on the disk, as far as their files are there; ``end`` is
        where the log ends.
        """
        self._from, self._end = flushed_to, end
        kept = self._cut_index()
        offset, newest = self._proven or (self._from, kept[-1] if kept else None)
        return RecoveredIndex(kept, self._from, offset, newest)

    def _cut_index(self) -> list[BuiltFile]:
        """Keep the index files that are known to be right, cut to what is, and remove the others; those kept."""
        folder = self._folder
        there = _index_files(folder)
        kept = self._known_to_be_right(there)
        is_whole = self._is_clean and all(file.header == there[file.path.name].header() for file in kept[-1:])
        if kept and not is_whole:
            self._proven = self._prove_file(kept[-1])
            is_whole = self._proven is not None
        while kept and not (is_whole and kept[-1].header.end_physical_offset < self._from):
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
        """The index files that were flushed, oldest first, with the headers that they had then.

        Files at the front may have expired. Where one behind them is gone, as a broker deletes the newest after a
        crash, or is not full any more, as a recovery leaves it that was killed, those before it were full and are
        whole, but for the last message of the last one: further items of it may have been in the one that is gone.
        """
        shape = self._shape
        kept: list[BuiltFile] = []
        for name in self._names[:-1]:
            file = there.get(name)
            if file is not None and file.size == shape.file_size and file.header().item_count >= shape.item_capacity:
                kept.append(BuiltFile(file.path, file.header()))
            elif file is not None or kept or self._log.begin_offset == 0:
                break
        else:
            newest = there.get(self._names[-1]) if self._names else None
            if newest is not None and newest.size == shape.file_size:
                return [*kept, BuiltFile(newest.path, self._newest_header)]
        end = kept[-1].header.end_physical_offset if kept else 0
        self._from = max(self._log.begin_offset, min(self._from, end))
        return kept

    def _prove_file(self, file: BuiltFile) -> tuple[int, BuiltFile] | None:
        """The newest file with all that it holds, if the log proves it, and where dispatch goes on behind that.

        So it is if its writer was killed: what it wrote is there. What it did not finish is put right.
        """
        if file.header.end_physical_offset >= self._from:
            return None
        shape = self._shape
        with MappedFile(file.path) as mapped:
            proven = prove(mapped, shape, file.header, self._log, self._from, self._end, tags=self._tags)
            if proven is None:
                return None
            with self._disk.open(file.path) as changed:
                rewrite(changed, mapped, shape, proven.slots, proven.header)
                changed.flush()
        return proven.end_offset, BuiltFile(file.path, proven.header)

    def _cut_file(self, file: BuiltFile) -> BuiltFile | None:
        """Cut a file to the items of messages before the point where dispatch goes on; None if nothing is left of it.

        A recovery that was killed may have cut it already, at this point or behind it: then its own header counts
        fewer items than are noted. Nothing is left of a damaged one, either, nor where a copy has no room: then
        dispatch goes on where it began.
        """
        shape, header, below = self._shape, file.header, self._from
        own = IndexFile(file.path).header()
        if own.next_item < header.next_item:
            header = own
        begin = max(self._log.begin_offset, file.header.begin_physical_offset)
        with MappedFile(file.path) as mapped:
            first, behind = (item_position(shape.slot_capacity, n) for n in (FIRST_ITEM, header.next_item))
            offsets = decode_items(mapped.data[first:behind])["physical_offset"]
            last = int(offsets[-1]) if len(offsets) else -1
            if last != header.end_physical_offset and file.header.next_item > FIRST_ITEM:
                self._from = min(below, begin)  # it is not as noted, and its items may be in no order to search in
                return None
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
            self._from = min(below, begin)
            return None


def _names_in(folder: Path) -> set[str]:
    """Of the files in ``index/``, and of those that were being made to take the place of one."""
    names = files_in(folder) if is_folder(folder) else ()
    return {name for name in names if is_digits(name) or is_digits(name.removeprefix(".").removesuffix(".new"))}


def _index_files(folder: Path) -> dict[str, IndexFile]:
    """What is in ``index/``, by name."""
    return {name: IndexFile(folder / name) for name in sorted(_names_in(folder)) if is_digits(name)}
