"""GrowingTimes: the time blocks of a log, written in place as the log grows.

    times = GrowingTimes(folder / "times", Disk())
    from_offset = times.go_on(log, indexed_to, last_record_offset)      blocks of records from there on are to be put
    times.put(base, blocks)                                             again and again, in the order of the log
    times.complete(log, begin, end)                                     files that have no block are there, too
    times.flush()                                                       it lasts

The last entry of the newest file is written again with each record that begins in its block: its position stays, its
times may be half of one writing and half of the next after a power failure. So who goes on makes it again from the
log, and a reader does not believe the times of the block in which the log ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.errors import StoreError
from whence.files.disk import Disk, DiskFile
from whence.files.folder import digit_names, files_in, is_file, is_folder
from whence.files.mapped_file import read_whole
from whence.files.names import offset_name, parse_offset_name
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK, block_of, join_time_blocks
from whence.store.commit_log import CommitLog
from whence.store.scan import Sieve
from whence.store.sidecar import Sidecar, meets

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE_MAX = 2**31 // BLOCK_SIZE * TIME_BLOCK.itemsize
NO_BLOCKS = np.empty(0, TIME_BLOCK)


class LastTimes(NamedTuple):
    """A file of time blocks, and those that it should have."""

    path: Path
    blocks: NDArray[np.void]


def times_before(log: CommitLog, folder: Path, indexed_to: int, last_record_offset: int) -> LastTimes | None:
    """The file of blocks in which the last record before ``indexed_to`` is, and its blocks of records before that.

    The times of the last one are taken from the log: later records may begin in its block, which a build that was
    killed has joined into it. None if the file is not what it should be.
    """
    base = log.base_of(last_record_offset)
    if base is None:
        return None
    path = folder / offset_name(base)
    blocks = _blocks_before(path, indexed_to - base, last_record_offset - base)
    if blocks is None:
        return None
    blocks, begin = blocks.copy(), base + int(blocks[-1]["position"])
    offsets = log.scan(begin, min(indexed_to, base + log.file_size), Sieve(), [])
    times = [log.read(offset).store_timestamp_ms for offset in offsets]
    if not times:
        return None
    blocks[-1]["smallest_ms"], blocks[-1]["largest_ms"] = min(times), max(times)
    return LastTimes(path, blocks)


def lacks_times(log: CommitLog, folder: Path, known: Sidecar) -> bool:
    """Whether a file of the log of which something is indexed has no file of time blocks."""
    there = {int(name) for name in digit_names(folder)}
    size = log.file_size
    return any(base not in there and meets(base, base + size, known.indexed) for base in log.bases)


def _blocks_before(path: Path, end: int, last: int) -> NDArray[np.void] | None:
    """The blocks that begin before position ``end``; None if they do not lead to that of the record at ``last``."""
    try:
        data = read_whole(path, SIZE_MAX)
    except StoreError:
        return None
    blocks = np.frombuffer(data, TIME_BLOCK, len(data) // TIME_BLOCK.itemsize)
    behind = np.flatnonzero(blocks["position"] >= end)
    blocks = blocks[: behind[0]] if len(behind) else blocks
    numbers = blocks["position"] // BLOCK_SIZE
    if not len(blocks) or (numbers[1:] <= numbers[:-1]).any():
        return None
    return blocks if block_of(blocks[-1]) == last // BLOCK_SIZE else None


class GrowingTimes:
    """The files of ``times/``. One thread, of the process that holds the sidecar's lock."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._base = -1
        self._file: DiskFile | None = None
        self._count = 0  # entries that are written for good; behind them is the last
        self._last = NO_BLOCKS
        self._unflushed: dict[Path, None] = {}
        self._is_folder_changed = False

    def go_on(self, log: CommitLog, indexed_to: int, last_record_offset: int) -> int | None:
        """Cut what leads to ``indexed_to`` or behind it; from where on blocks are to be put.

        The last record before that tells in which file they are. None if they are not what they should be.
        """
        self.close()
        base = log.base_of(last_record_offset) if last_record_offset >= log.begin_offset else None
        self._remove_behind(indexed_to if base is None else base + 1)
        if base is None:
            return indexed_to
        path = self._folder / offset_name(base)
        blocks = _blocks_before(path, indexed_to - base, last_record_offset - base)
        if blocks is None:
            return None
        if blocks.nbytes < path.stat().st_size:
            self._disk.replace(path, blocks.tobytes())
        self.complete(log, base + log.file_size, indexed_to)
        self._open(base, len(blocks) - 1)
        return base + int(blocks[-1]["position"])

    def clear(self) -> None:
        """Remove all files."""
        self.close()
        self._remove_behind(0)

    def _remove_behind(self, base: int) -> None:
        """Remove the files of the log from this base on."""
        self._remove([each for each in self.bases() if each >= base])

    def remove_before(self, offset: int, file_size: int) -> None:
        """Remove the files of which all blocks lie before this offset of the log."""
        self._remove([each for each in self.bases() if each + file_size <= offset and each != self._base])

    def _remove(self, bases: list[int]) -> None:
        for base in bases:
            self._disk.remove(self._folder / offset_name(base))
        if bases:
            self._disk.flush_folder(self._folder)

    def bases(self) -> list[int]:
        """Those of the log's files that have blocks."""
        names = files_in(self._folder) if is_folder(self._folder) else ()
        return sorted(base for name in names if (base := parse_offset_name(name)) is not None)

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, base: int, blocks: NDArray[np.void]) -> None:
        """Put the blocks of the next records of the log's file at ``base``."""
        if not len(blocks):
            return
        if base != self._base:
            self._open(base, 0)
        assert self._file is not None
        joined = join_time_blocks(self._last, blocks)
        self._file.write(joined.tobytes(), self._count * TIME_BLOCK.itemsize)
        self._count += len(joined) - 1
        self._last = joined[-1:].copy()
        self._unflushed[self._file.path] = None

    def complete(self, log: CommitLog, begin: int, end: int) -> None:
        """Make the files of those of the log's between these offsets that have no record: they have no block."""
        for at, _ in log.pieces(begin, end):
            base = log.base_of(at)
            if base is not None and not is_file(path := self._folder / offset_name(base)):
                self._create(path).close()

    def _create(self, path: Path) -> DiskFile:
        self._disk.make_folder(self._folder)
        self._is_folder_changed = True
        self._unflushed[path] = None
        return self._disk.create(path, 0, reserve=False)

    def _open(self, base: int, count: int) -> None:
        """Begin the blocks of a file of the log, or go on behind the first ``count`` of them."""
        self.close()
        path = self._folder / offset_name(base)
        self._file = self._disk.open(path) if count or path.exists() else self._create(path)
        self._base, self._count, self._last = base, count, NO_BLOCKS

    def flush(self) -> None:
        """Wait until all that was put is on the disk."""
        self._disk.flush_files(self._unflushed)
        if self._is_folder_changed:
            self._disk.flush_folder(self._folder)
        self._unflushed.clear()
        self._is_folder_changed = False

    def close(self) -> None:
        """Let go of the file."""
        self._base = -1
        if self._file is not None:
            self._file.close()
            self._file = None
