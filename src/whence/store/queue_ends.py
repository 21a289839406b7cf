"""Queue ends: what stays of a queue of which the log has no message, for it tells where the queue goes on.

    ends = queue_ends(log, scanned_to, holes, file_size)
    end = ends.of(folder, ENTRY)      the file that stays, and what it is to have; None if nothing has to

Its messages have expired, or cannot be read any more. Were its files gone, too, its queue offsets would begin at 0
again, and who consumed it would take its next messages for old ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.files.file_sequence import FileSequence
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY_SIZE, FILLER
from whence.store.commit_log import CommitLog
from whence.store.queue_builder import BATCH_FILE_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class QueueEnd(NamedTuple):
    """The file that stays; ``data``: what has to take the place of what it has, None if that is right."""

    path: Path
    data: bytes | None


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The ends of queues of one log. ``is_whole``: it has all that was ever in it, and all can be read."""

    begin_offset: int
    is_whole: bool
    file_size: int

    def of(self, folder: Path, entry: np.dtype[np.void]) -> QueueEnd | None:
        """The newest file of a queue in which something is written; None if the log never had a message of it."""
        if self.is_whole:
            return None
        file_size = BATCH_FILE_SIZE if entry == BATCH_ENTRY else self.file_size
        files = FileSequence(folder)
        for base in reversed(files.bases):
            if base % file_size == 0:
                end = self._end_in(files.path_of(base), entry, file_size)
                if end is not None:
                    return end
        return None

    def _end_in(self, path: Path, entry: np.dtype[np.void], file_size: int) -> QueueEnd | None:
        with PlainFile(path) as file:
            pieces = file.data_pieces(0, file_size)
            data = file.read(0, min(sum(pieces[-1]) if pieces else 0, file_size))
            has_size = file.size == file_size
        data = data.ljust(-(-len(data) // entry.itemsize) * entry.itemsize, b"\0")
        rows = np.frombuffer(data, entry)
        is_written = np.frombuffer(data, np.uint8).reshape(-1, entry.itemsize).max(axis=1, initial=0) > 0
        is_expired = self._are_expired(rows)
        # What follows directly on the last entry that is right is a damaged one: it has had its queue offset, too.
        begin = int(np.flatnonzero(is_expired)[-1]) + 1 if is_expired.any() else 0
        unwritten = np.flatnonzero(~is_written[begin:])
        count = begin + (int(unwritten[0]) if len(unwritten) else len(rows) - begin)
        kept = rows[:count][is_expired[:count]].tobytes() if entry == BATCH_ENTRY else FILLER * count
        if not kept:
            return None
        is_right = has_size and bool(is_expired[:count].all()) and not is_written[count:].any()
        return QueueEnd(path, None if is_right else kept.ljust(file_size, b"\0"))

    def _are_expired(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which entries lead before the log's begin; fillers do."""
        offsets = rows["physical_offset"]
        is_expired = (offsets >= 0) & (offsets < self.begin_offset) & (rows["size"] > 0)
        if rows.dtype == BATCH_ENTRY:
            is_expired &= (rows["base_offset"] >= 0) & (rows["message_count"] > 0)
        return np.asarray(is_expired, np.bool_)


def queue_ends(log: CommitLog, end_offset: int, holes: Iterable[tuple[int, int]], file_size: int) -> QueueEnds:
    """The ends of queues of a log that was read up to ``end_offset``, but for the ``holes``."""
    begin = log.begin_offset
    is_whole = begin == 0 and not any(True for _ in holes) and not any(True for _ in log.gaps(end_offset))
    return QueueEnds(begin, is_whole, -(-file_size // ENTRY_SIZE) * ENTRY_SIZE)
