"""The files of one queue on disk: where they end, and how they are cut.

Entries are written one behind the other, and what follows the last one is zero: so the first entry that is not
written ends a queue. Physical offsets rise along it, for it is dispatched in the order of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.files.disk import ZEROS, Disk
from whence.files.file_sequence import FileSequence
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, FILLER

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class QueueTail:
    """Where a queue ends: its next entry lies at ``position`` of all its files together.

    ``last``: its last entry; None if it has none, or fillers alone. ``is_begun``: whether anything is written.
    ``unused``: files behind the end, which hold nothing.
    """

    position: int
    last: Any
    is_begun: bool
    file_size: int
    unused: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Where it ends, counted from queue offset 0; 0 if nothing is written."""
        return self.position if self.is_begun else 0


def queue_tail(folder: Path, entry: np.dtype[np.void] = ENTRY) -> QueueTail:
    """The end of the queue that is in a folder; ``entry`` is ENTRY or BATCH_ENTRY."""
    files = FileSequence(folder)
    unused: list[Path] = []
    try:
        for base in reversed(files.bases):
            entries, count = _written(files.file(base), entry)
            if count:
                last = None if entries[count - 1].tobytes() == FILLER else entries[count - 1].copy()
                return QueueTail(base + count * entry.itemsize, last, True, files.file_size, tuple(unused))
            unused.append(files.path_of(base))
        return QueueTail(files.begin_offset, None, False, files.file_size, tuple(unused))
    finally:
        files.close()


def cut_queue(folder: Path, physical_offset: int, disk: Disk, entry: np.dtype[np.void] = ENTRY) -> bool:
    """Cut the entries that lead to this physical offset or behind it; whether there was something to cut.

    From the last file backwards: a file of such entries alone is removed, unless it is the first one, whose name
    keeps the queue's offset. In the others zeros take their place, up to the end of the file, for nothing is ever
    made shorter that somebody may have mapped. What was cut is flushed.
    """
    files = FileSequence(folder)
    is_cut = False
    try:
        for base in reversed(files.bases):
            entries, count = _written(files.file(base), entry)
            kept = count
            if count and entries["physical_offset"][count - 1] >= physical_offset:
                # One before it may be lost: nothing is sure of what was not flushed but that it is not needed.
                goes = (entries["physical_offset"][:count] >= physical_offset) | (entries["size"][:count] <= 0)
                kept = int(np.argmax(goes))
            if kept == 0 and base != files.begin_offset:
                disk.remove(files.path_of(base))
                is_cut = True
                continue
            if _zero(files, base, kept * entry.itemsize, disk):
                is_cut = True
                with disk.open(files.path_of(base)) as file:
                    file.flush()
            if kept:
                break
        if is_cut:
            disk.flush_folder(folder)
    finally:
        files.close()
    return is_cut


def cut_run(folder: Path, position: int, disk: Disk) -> None:
    """Leave nothing behind this position of all files of a folder together; it is not flushed."""
    files = FileSequence(folder)
    try:
        for base in reversed(files.bases):
            if base < position:
                _zero(files, base, position - base, disk)
                break
            disk.remove(files.path_of(base))
    finally:
        files.close()


def _zero(files: FileSequence, base: int, position: int, disk: Disk) -> bool:
    """Write zeros over what is not zero from here to the end of a file; whether there was something."""
    mapped = files.file(base)
    is_changed = False
    with disk.open(mapped.path) as file:
        for at, size in mapped.data_pieces(position, len(ZEROS)):
            if bytes(mapped.data[at : at + size]) != ZEROS[:size]:
                file.write(ZEROS[:size], at)
                is_changed = True
    return is_changed


def _written(mapped: MappedFile, entry: np.dtype[np.void]) -> tuple[NDArray[np.void], int]:
    """All entries of a file, and how many of them are written."""
    entries = np.frombuffer(mapped.data, entry, mapped.size // entry.itemsize)
    # Nothing is written in a hole. To look there takes long, and on a full tmpfs the process is killed.
    low, high = 0, min(-(-mapped.next_hole(0) // entry.itemsize), len(entries))
    while low < high:
        middle = (low + high) // 2
        if is_written(entries[middle]):
            low = middle + 1
        else:
            high = middle
    return entries, low


def is_written(row: Any) -> bool:
    """Whether an entry is there, as RocketMQ tells it."""
    if row["physical_offset"] < 0 or row["size"] <= 0:
        return False
    return row.dtype != BATCH_ENTRY or bool(row["base_offset"] >= 0 and row["message_count"] > 0)
