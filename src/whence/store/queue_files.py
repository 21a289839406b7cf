"""The files of one queue on disk: where they end, and how they are cut.

Entries are written one behind the other, and what follows the last one is zero: so the first entry that is not
written ends a queue. Physical offsets rise along it, for it is dispatched in the order of the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whence.files.disk import ZEROS, Disk
from whence.files.file_sequence import FileSequence
from whence.files.folder import digit_names, folders_in, is_folder
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, FILLER

QUEUES = {"consumequeue": ENTRY, "batchconsumequeue": BATCH_ENTRY}
"""The folders of queues, and what their entries are."""


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


class QueueCut(NamedTuple):
    """What became of a queue: whether something was cut, and its size, as :attr:`QueueTail.size` tells it."""

    is_cut: bool
    size: int


def queue_tail(folder: Path, entry: np.dtype[np.void] = ENTRY) -> QueueTail:
    """The end of the queue that is in a folder; ``entry`` is ENTRY or BATCH_ENTRY."""
    files = FileSequence(folder)
    unused: list[Path] = []
    for base in reversed(files.bases):
        with _QueueFile(files.path_of(base), entry) as file:
            count = file.written_count()
            if count:
                last = file.row(count - 1)
                last = None if last.tobytes() == FILLER else last
                return QueueTail(base + count * entry.itemsize, last, True, files.file_size, tuple(unused))
            unused.append(file.path)
    return QueueTail(files.begin_offset, None, False, files.file_size, tuple(unused))


def queue_folders(root: Path) -> Iterator[tuple[Path, np.dtype[np.void]]]:
    """The folder of every queue below ``root``, and what its entries are."""
    for kind, entry in QUEUES.items():
        folder = root / kind
        if is_folder(folder):
            for topic in folders_in(folder):
                for queue in folders_in(folder / topic):
                    yield folder / topic / queue, entry


def is_of_kind(folder: Path, entry: np.dtype[np.void], batch_topics: Container[str]) -> bool:
    """Whether a queue lies among those of the kind that its topic has."""
    return (entry == BATCH_ENTRY) == (folder.parent.name in batch_topics)


def misplaced_queues(root: Path, batch_topics: Container[str], expired_to: int = 0) -> Iterator[Path]:
    """The folders of queues that lie among those of the other kind, where nobody looks for them.

    In a store itself one that leads before ``expired_to`` alone may be all that tells how far its topic went.
    """
    for folder, entry in queue_folders(root):
        if not is_of_kind(folder, entry, batch_topics) and digit_names(folder):
            tail = queue_tail(folder, entry)
            leads_to = 0 if tail.last is None else tail.last["physical_offset"]
            if not (tail.is_begun and leads_to < expired_to):
                yield folder


def queues_size(root: Path) -> int:
    """The size of all queues below ``root`` together."""
    return sum(queue_tail(folder, entry).size for folder, entry in queue_folders(root))


def newest_below(folder: Path, physical_offset: int, entry: np.dtype[np.void] = ENTRY) -> Path | None:
    """The newest file of a queue with an entry that leads before this physical offset; fillers lead nowhere."""
    files = FileSequence(folder)
    for base in reversed(files.bases):
        with _QueueFile(files.path_of(base), entry) as file:
            count = file.count_below(physical_offset)
            if count and file.row(count - 1).tobytes() != FILLER:
                return file.path
    return None


def cut_queue(folder: Path, physical_offset: int, disk: Disk, entry: np.dtype[np.void] = ENTRY) -> QueueCut:
    """Cut the entries that lead to this physical offset or behind it.

    From the last file backwards: a file of such entries alone is removed, unless it is the first one, whose name
    keeps the queue's offset. In the others zeros take their place, up to the end of the file, for nothing is ever
    made shorter that somebody may have mapped. What was cut is flushed.
    """
    files = FileSequence(folder)
    is_cut = False
    size = 0
    for base in reversed(files.bases):
        with _QueueFile(files.path_of(base), entry) as file:
            kept = file.count_below(physical_offset)
            if kept == 0 and base != files.begin_offset:
                disk.remove(file.path)
                is_cut = True
                continue
            is_cut |= file.zero(kept * entry.itemsize, disk, flush=True)
            if kept:
                size = base + kept * entry.itemsize
                break
    if is_cut:
        disk.flush_folder(folder)
    return QueueCut(is_cut, size)


def cut_run(folder: Path, position: int, disk: Disk) -> None:
    """Leave nothing behind this position of all files of a folder together; it is not flushed."""
    files = FileSequence(folder)
    for base in reversed(files.bases):
        if base < position:
            with _QueueFile(files.path_of(base), ENTRY) as file:
                file.zero(position - base, disk, flush=False)
            break
        disk.remove(files.path_of(base))


class _QueueFile(PlainFile):
    """One file of a queue. It is read a few entries at a time: a store has thousands of queues."""

    __slots__ = ("_entry",)

    def __init__(self, path: Path, entry: np.dtype[np.void]) -> None:
        super().__init__(path)
        self._entry = entry

    def row(self, number: int) -> Any:
        """An entry, by its number in this file."""
        size = self._entry.itemsize
        return np.frombuffer(self.read(number * size, size), self._entry)[0]

    def written_count(self) -> int:
        """How many entries are written, one behind the other."""
        # Nothing is written in a hole. To look there takes long.
        count = min(-(-self.next_hole(0) // self._entry.itemsize), self.size // self._entry.itemsize)
        return bisect_left(range(count), True, key=lambda number: not is_written(self.row(number)))

    def count_below(self, physical_offset: int) -> int:
        """How many of those that are written lead to messages below this offset."""
        count = self.written_count()
        if not count or self.row(count - 1)["physical_offset"] < physical_offset:
            return count

        def goes(number: int) -> bool:
            # One that was not flushed may be lost: nothing is sure of it but that it is not needed.
            row = self.row(number)
            return bool(row["physical_offset"] >= physical_offset or row["size"] <= 0)

        return bisect_left(range(count), True, key=goes)

    def zero(self, position: int, disk: Disk, *, flush: bool) -> bool:
        """Write zeros over what is not zero from here to the end of the file; whether there was something."""
        pieces = self.written_pieces(position, ZEROS)
        if pieces:
            with disk.open(self.path) as file:
                for at, size in pieces:
                    file.write(ZEROS[:size], at)
                if flush:
                    file.flush()
        return bool(pieces)


def is_written(row: Any) -> bool:
    """Whether an entry is there, as RocketMQ tells it."""
    if row["physical_offset"] < 0 or row["size"] <= 0:
        return False
    return row.dtype != BATCH_ENTRY or bool(row["base_offset"] >= 0 and row["message_count"] > 0)
