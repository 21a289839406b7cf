"""A log that is not there, though what was made of it is: most likely its disk is not mounted.

To who only asks the log it has no message, and all that leads to one has to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from whence.errors import FormatError, StoreError
from whence.files.folder import digit_names
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.store.commit_log import CommitLog
from whence.store.index_file import IndexFile
from whence.store.queue_files import queue_folders, queue_tail
from whence.store.sidecar import Sidecar

NOT_LOST = -1


def lost_offset(log: CommitLog, roots: Iterable[Path], known: Sidecar | None) -> int:
    """To which offset a log reached that is gone, as the indexes and queues in ``roots`` and sidecar.json know it.

    NOT_LOST if it is there, or nobody knows that it ever was.
    """
    if log.is_there:
        return NOT_LOST
    noted = known.indexed_to if known is not None and known.indexed else NOT_LOST
    return max([noted, *(offset for root in roots for offset in _known_offsets(root))])


def refuse_lost_log(log: CommitLog, folders: Iterable[Path], roots: Iterable[Path], known: Sidecar | None) -> None:
    """StoreError if the log that should be in ``folders`` is gone."""
    offset = lost_offset(log, roots, known)
    if offset != NOT_LOST:
        raise lost_error(folders, offset)


def lost_error(folders: Iterable[Path], offset: int) -> StoreError:
    return StoreError(f"{' and '.join(map(str, folders))}: {what_is_lost(offset)}")


def what_is_lost(offset: int) -> str:
    return f"the log reached to offset {offset} and is gone; is its disk mounted?"


def _known_offsets(root: Path) -> Iterator[int]:
    """Where messages lay to which index files and queues lead. What is damaged tells nothing."""
    for name in digit_names(root / "index"):
        with suppress(FormatError, StoreError):
            header = IndexFile(root / "index" / name).header()
            if header.next_item > FIRST_ITEM:
                yield header.end_physical_offset
    for folder, entry in queue_folders(root):
        with suppress(FormatError, StoreError):
            last = queue_tail(folder, entry).last
            if last is not None:
                yield int(last["physical_offset"])
