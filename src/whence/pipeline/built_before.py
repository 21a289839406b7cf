"""What an earlier build left: whether the next one can go on with it, and whether there is more than it said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whence.errors import FormatError, StoreError
from whence.files.folder import digit_names, is_file
from whence.files.mapped_file import MappedFile
from whence.files.names import offset_name
from whence.formats.rocketmq.index_file import HEADER_SIZE, IndexHeader, decode_header
from whence.formats.time_blocks import TIME_BLOCK
from whence.pipeline.tasks import Kind
from whence.store.commit_log import CommitLog
from whence.store.queue_files import queues_size
from whence.store.sidecar import Sidecar

if TYPE_CHECKING:
    from whence.pipeline.build import BuildPlace, BuildSettings


def goes_on(log: CommitLog, place: BuildPlace, settings: BuildSettings, known: Sidecar | None) -> bool:
    """Whether what is there can be gone on with: it is of this log, as it was left, and made the same way."""
    if known is None or settings.rebuild or known.in_place != place.in_place:
        return False
    made = (known.shape, known.dialect, known.queue_file_size)
    if made != (settings.shape, settings.dialect, settings.queue_file_size):
        return False
    log.refresh()
    if not known.indexed or known.indexed_to < log.begin_offset or not known.is_of(log):
        return False
    if known.indexed_to <= known.last_record_offset:
        return False
    if known.lacks_file(log):
        return False  # a file that was missing is there again; one that is damaged all over is no reason
    paths = [place.root / "index" / name for name in known.index_names]
    if place.in_place and Kind.INDEX in settings.kinds:
        if not set(digit_names(place.root / "index")) <= {*known.index_names}:
            return False  # a broker has gone on
    if not all(size_of(path) == known.shape.file_size for path in paths):
        return False
    newest = header_of(paths[-1]) if paths else known.newest_header
    if newest is None or not newest.has_grown_from(known.newest_header):
        return False
    if Kind.QUEUES in settings.kinds and (not known.has_queues or queues_size(place.root) < known.queues_size):
        return False  # they are a broker's, or one is gone, or is not as it was
    if known.last_record_offset < log.begin_offset:
        return True
    base = log.base_of(known.last_record_offset)
    times_size = 0 if base is None else size_of(place.sidecar / "times" / offset_name(base))
    return times_size > 0 and times_size % TIME_BLOCK.itemsize == 0


def is_as_left(place: BuildPlace, known: Sidecar) -> bool:
    """Whether the newest index file is as the last build left it. One that was killed may have put more into it."""
    names = known.index_names
    return not names or header_of(place.root / "index" / names[-1]) == known.newest_header


def size_of(path: Path) -> int:
    """Of a file; -1 if it is not there."""
    return path.stat().st_size if is_file(path) else -1


def header_of(path: Path) -> IndexHeader | None:
    try:
        with MappedFile(path) as mapped:
            return decode_header(mapped.data[:HEADER_SIZE])
    except (FormatError, StoreError):
        return None
