"""What an earlier build left: whether the next one can go on with it, and whether there is more than it said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whence.errors import FormatError, StoreError
from whence.files.folder import digit_names, is_file
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.rocketmq.index_file import (
    HEADER_SIZE,
    ITEM_SIZE,
    IndexHeader,
    decode_header,
    decode_items,
    item_position,
)
from whence.pipeline.tasks import Kind
from whence.store.commit_log import CommitLog
from whence.store.growing_times import LastTimes, lacks_times, times_before
from whence.store.queue_files import misplaced_queues, queues_size
from whence.store.sidecar import Sidecar
from whence.store.spill import TIMES_SIZE_MAX

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
    if not known.indexed or known.indexed_to < log.begin_offset or known.believed(log) != known.indexed:
        return False  # of another log, or of more than there is behind the last record
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
    if paths and not _is_known(paths[-1], known):
        return False
    if Kind.QUEUES in settings.kinds and (not known.has_queues or queues_size(place.root) < known.queues_size):
        return False  # they are a broker's, or one is gone, or is not as it was
    if Kind.QUEUES in settings.kinds:
        expired_to = log.begin_offset if place.in_place else 0
        if any(misplaced_queues(place.root, settings.batch_topics, expired_to)):
            return False  # a topic's queues are of another kind now
    if lacks_times(log, place.sidecar / "times", known):
        return False
    return known.last_record_offset < log.begin_offset or known_times(log, place, known) is not None


def _is_known(path: Path, known: Sidecar) -> bool:
    """Whether the newest index file is as was noted, or has more of messages behind what is indexed."""
    noted = known.newest_header
    try:
        with MappedFile(path) as mapped:
            header = decode_header(mapped.data[:HEADER_SIZE])
            if header == noted:
                return True
            if not header.has_grown_from(noted) or header.next_item <= noted.next_item:
                return False
            first = item_position(known.slots, noted.next_item)
            (item,) = decode_items(mapped.data[first : first + ITEM_SIZE])
            return bool(item["physical_offset"] >= known.indexed_to)
    except (FormatError, StoreError, ValueError):
        return False


def is_as_left(log: CommitLog, place: BuildPlace, settings: BuildSettings, known: Sidecar) -> bool:
    """Whether all is as the last build left it. One that was killed may have published more, and not said so."""
    kinds = settings.kinds
    return not (
        (Kind.INDEX in kinds and has_longer_index(place, known))
        or (Kind.QUEUES in kinds and has_longer_queues(place, known))
        or (Kind.TIMES in kinds and _has_other_times(log, place, known))
    )


def has_longer_index(place: BuildPlace, known: Sidecar) -> bool:
    """Whether the newest index file has more than was noted."""
    names = known.index_names
    return bool(names) and header_of(place.root / "index" / names[-1]) != known.newest_header


def has_longer_queues(place: BuildPlace, known: Sidecar) -> bool:
    """Whether a queue has more than was noted."""
    return queues_size(place.root) != known.queues_size


def _has_other_times(log: CommitLog, place: BuildPlace, known: Sidecar) -> bool:
    """Whether there are blocks of later records, or their times are in the last block."""
    if any(int(name) >= known.indexed_to for name in digit_names(place.sidecar / "times")):
        return True
    if known.last_record_offset < log.begin_offset:
        return False
    times = known_times(log, place, known)
    return times is None or read_whole(times.path, TIMES_SIZE_MAX) != times.blocks.tobytes()


def known_times(log: CommitLog, place: BuildPlace, known: Sidecar) -> LastTimes | None:
    """The blocks of the file of the log in which the last record is; None if they are not what they should be."""
    return times_before(log, place.sidecar / "times", known.indexed_to, known.last_record_offset)


def size_of(path: Path) -> int:
    """Of a file; -1 if it is not there."""
    return path.stat().st_size if is_file(path) else -1


def header_of(path: Path) -> IndexHeader | None:
    try:
        with MappedFile(path) as mapped:
            return decode_header(mapped.data[:HEADER_SIZE])
    except (FormatError, StoreError):
        return None
