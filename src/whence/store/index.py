"""Index: the files of ``index/`` as one, and which part of the log they can be believed for."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from whence.errors import CorruptError, FormatError, NotFoundError, StoreError, UsageError
from whence.files.folder import FileState, FolderWatch, files_in
from whence.files.map_pool import MapPool
from whence.files.names import OFFSET_MAX, is_digits
from whence.formats.hashing import key_hash as hash_of_key
from whence.formats.hashing import tag_hash
from whence.formats.rocketmq.index_file import HEADER_SIZE, NO_ITEM, decode_header
from whence.formats.rocketmq.message import Message
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.index_file import IndexFile, Shape
from whence.store.whole_index import Reach, WholeIndex

HEADER_TRIES = 3  # a broker writes the header field by field: a reader that comes between two looks again
HEADER_PAUSE_S = 0.001
WALKED_SIZE = 131072  # bytes of log before the newest index file's end that are walked over


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch ``[from_offset, to_offset)`` of the log and the index file that covers it.

    A stretch that no index file covers has None. It lies in one log file and is scanned, unless it is ``bare``: its
    messages have no items, as the maker of all files says.

    ``seam``: nothing but the records at which index files begin and end. A message's items may straddle two
    files, so those records are always read; that is no scan.
    """

    from_offset: int
    to_offset: int
    file: IndexFile | None
    seam: bool = False
    bare: bool = False

    @property
    def is_told(self) -> bool:
        """Whether an index tells of its messages, so that none of them is scanned."""
        return self.file is not None or self.seam or self.bare


@dataclass(frozen=True, slots=True)
class Cover:
    """The log from start to end, cut into segments, oldest first; and what became of each index file."""

    begin_offset: int
    end_offset: int
    segments: tuple[Segment, ...]
    file_count: int
    expired: tuple[IndexFile, ...]
    not_used: tuple[Damage, ...]
    indexed_to_offset: int | None
    indexed_to_timestamp_ms: int | None
    log_damage: tuple[tuple[int, int, Damage], ...]


EVERYWHERE = ((0, OFFSET_MAX),)


class Index:
    """All index files of some folders, ordered by the offsets in their headers, for names tell only local time.

    What the files of the first folder cover, those of the next one need not.

    A file is a claim. It is believed if the records at its begin and end offset are in the log and bear its
    header's times; then every message between the two is in it, as far as its broker dispatched it.
    """

    def __init__(self, *folders: Path, shape: Shape | None = None) -> None:
        self.folders = folders
        self._asked_shape = shape
        self._watches = [FolderWatch(folder) for folder in folders]
        self._maps = MapPool()
        self._unfit: set[IndexFile] = set()
        self._is_being_made = False
        self._distrusted: dict[IndexFile, CorruptError] = {}
        self._sampled: set[IndexFile] = set()
        self._states: dict[Path, FileState] = {}
        self._files: dict[Path, IndexFile] = {}
        self._unreadable: list[Damage] = []
        self._reaches: dict[IndexFile, tuple[bytes, Reach | None]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Notice files that were added or deleted."""
        changed = [self._is_changed(watch) for watch in self._watches]
        if not any(changed) and not self._unfit and not self._is_being_made:
            return
        known, self._files, self._unreadable = self._files, {}, []
        self._is_being_made = False
        found: dict[Path, FileState] = {}
        for folder in self.folders:
            found |= self._listed(folder)
        for path in found:
            file = known.get(path)
            # The first look may have been before the broker gave the file its length, or before it was repaired.
            if file is None or self._states.get(path) != found[path]:
                try:
                    file = IndexFile(path, self._maps)
                except NotFoundError:
                    continue  # it is gone by now
                except StoreError as error:
                    self._unreadable.append(_unreadable(path, error))
                    continue
            self._files[path] = file
        self._states = found
        kept = set(self._files.values())
        self._maps.keep({file.key for file in kept})
        self._unfit &= kept
        self._sampled &= kept
        self._distrusted = {file: error for file, error in self._distrusted.items() if file in kept}
        self._reaches = {file: reach for file, reach in self._reaches.items() if file in kept}

    def _is_changed(self, watch: FolderWatch) -> bool:
        try:
            return watch.changed()
        except StoreError:
            return True  # to list it will tell

    def _listed(self, folder: Path) -> dict[Path, FileState]:
        """The index files of a folder, by name."""
        try:
            found = {name: state for name, state in files_in(folder).items() if is_digits(name)}
        except NotFoundError:
            return {}
        except StoreError as error:
            self._unreadable.append(_unreadable(folder, error))
            return {}
        newest = max(found, default="")
        if found and found[newest].size == 0:
            self._is_being_made = True
            del found[newest]  # it is not there yet, or its maker was killed
        return {folder / name: found[name] for name in sorted(found)}

    @property
    def files(self) -> list[IndexFile]:
        """The files that could be opened, folder by folder, by name."""
        return list(self._files.values())

    def state(self) -> tuple[object, ...]:
        """Differs from an earlier one if an index file came, went, or had items put into it."""
        self.refresh()
        return tuple(
            (
                path,
                self._states[path],
                file in self._distrusted,
                None if self._is_full(file) else self._header_now(file),
            )
            for path, file in self._files.items()
        )

    def _header_now(self, file: IndexFile) -> object:
        """The header's bytes; something that was never there before if the file is not there any more."""
        try:
            return bytes(file.data[:HEADER_SIZE])
        except NotFoundError:
            self.forget(file)
            return object()

    def _is_full(self, file: IndexFile) -> bool:
        """Whether nothing can be put into a file any more, as far as is known."""
        known = self._reaches.get(file)
        return known is not None and known[1] is not None and known[1].full

    # -- belief ----------------------------------------------------------------------------------------------

    def distrust(self, file: IndexFile, error: CorruptError) -> None:
        """Cover nothing with this file any more: one of its chains is damaged, so any of them may be."""
        self._distrusted[file] = error

    @property
    def distrusted(self) -> dict[Path, CorruptError]:
        """The files that nothing is covered with, and why."""
        return {file.path: error for file, error in self._distrusted.items()}

    def forget(self, file: IndexFile) -> None:
        """Look anew for what has this file's name: it is not there any more, or another one has taken its place."""
        self._states.pop(file.path, None)
        self._unfit.add(file)

    def cover(
        self,
        log: CommitLog,
        limits: Mapping[Path, Sequence[tuple[int, int]]] = MappingProxyType({}),
        whole: WholeIndex | None = None,
    ) -> Cover:
        """Cut the log into what an index file covers and what has to be scanned.

        ``limits``: between which offsets the files of a folder are believed at most, where that is known. ``whole``:
        what is known of all files of a folder together; it was read before this is called.
        """
        self.refresh()
        begin_offset = log.begin_offset
        not_used = list(self._unreadable)
        expired: list[Reach] = []
        reaches: list[Reach] = []
        for file in self._files.values():
            if file in self._distrusted:
                not_used.append(_not_used(file, self._distrusted[file], DamageKind.BAD_CHAIN))
                continue
            try:
                reach = self._reach(file, log)
            except NotFoundError:
                self.forget(file)
                continue
            except (FormatError, StoreError) as error:
                not_used.append(_not_used(file, error))
                self._unfit.add(file)
                continue
            self._unfit.discard(file)
            if reach is None:
                continue
            if reach.end < begin_offset:
                expired.append(reach)
            else:
                reaches.append(reach)
        reaches.sort(key=lambda reach: (reach.begin, reach.end))
        for folder in self.folders:
            self._drop_unfit(folder, reaches, log, not_used)
        hops: dict[int, int] = {}
        for reach in reaches:
            within = limits.get(reach.file.path.parent, EVERYWHERE)
            for edge, behind in ((reach.begin, reach.begin_next), (reach.end, reach.end_next)):
                if any(first <= edge < last for first, last in within):
                    hops[edge] = behind
        bare = [] if whole is None else whole.bare((*expired, *reaches))
        segments = [Segment(begin_offset, OFFSET_MAX, None)]
        for folder in self.folders:
            mine = [reach for reach in reaches if reach.file.path.parent == folder]
            covering = _covering(mine, limits.get(folder, EVERYWHERE))
            if whole is not None and whole.folder == folder:
                covering += [Segment(begin, end, None, bare=True) for begin, end in bare]
                covering.sort(key=lambda segment: segment.from_offset)
            segments = [
                part
                for segment in segments
                for part in (
                    [segment]
                    if segment.is_told or _is_seam(segment.from_offset, segment.to_offset, hops)
                    else _covered(segment.from_offset, segment.to_offset, covering)
                )
            ]
        position = segments.pop().from_offset  # behind it nothing is covered
        end_offset = log.end_offset(boundary=position)
        segments.append(Segment(position, end_offset, None))

        edges = sorted(hops.items())
        last = max(reaches, key=lambda reach: reach.end, default=None)
        indexed_to, timestamp_ms = (last.end_next, last.header.end_timestamp_ms) if last else (None, None)
        if whole is not None and bare and bare[-1][1] > (indexed_to or 0):
            indexed_to, timestamp_ms = bare[-1][1], _timestamp(log, whole.last_record_offset) or timestamp_ms
        return Cover(
            begin_offset=begin_offset,
            end_offset=end_offset,
            segments=tuple(
                part
                for segment in segments
                if segment.from_offset < segment.to_offset
                for part in ([segment] if segment.is_told else _uncovered(segment, log, edges))
            ),
            file_count=len(self._files) + len(self._unreadable),
            expired=tuple(reach.file for reach in expired),
            not_used=tuple(not_used),
            indexed_to_offset=indexed_to,
            indexed_to_timestamp_ms=timestamp_ms,
            log_damage=tuple(log.damage(end_offset)),
        )

    def _drop_unfit(self, folder: Path, reaches: list[Reach], log: CommitLog, not_used: list[Damage]) -> None:
        """Take out the newest file of a folder as long as its items do not lead to their messages."""
        while mine := [reach for reach in reaches if reach.file.path.parent == folder]:
            newest = max(mine, key=lambda reach: reach.end)
            try:
                self._sample(newest.file, log)
                return
            except CorruptError as error:
                not_used.append(_not_used(newest.file, error))
                self._unfit.add(newest.file)
            except NotFoundError:
                self.forget(newest.file)
            reaches.remove(newest)

    def _reach(self, file: IndexFile, log: CommitLog) -> Reach | None:
        """What this file covers; None if nothing was put into it. The reason it is not believed is an error."""
        known = self._reaches.get(file)
        if known is not None and self._is_full(file):
            return known[1]
        header_bytes = file.header_bytes()
        if known is not None and known[0] == header_bytes:
            return known[1]
        for attempt in range(HEADER_TRIES):
            try:
                reach = self._check(file, header_bytes, log)
                break
            except (FormatError, StoreError):
                time.sleep(HEADER_PAUSE_S)
                again = file.header_bytes()
                is_newer = log.refresh()  # it may lead into log files that were made since those were listed
                if attempt == HEADER_TRIES - 1 or not (is_newer or again != header_bytes):
                    raise
                header_bytes = again
        self._reaches[file] = (header_bytes, reach)
        return reach

    def _check(self, file: IndexFile, header_bytes: bytes, log: CommitLog) -> Reach | None:
        header = decode_header(header_bytes)
        if header.item_count <= 1:
            return None
        self._resolve_shape(file)
        begin, end = header.begin_physical_offset, header.end_physical_offset
        if begin > end:
            raise CorruptError(f"the header's begin offset {begin} is above its end offset {end}", position=16)
        begin_next = end_next = log.begin_offset
        if begin >= log.begin_offset:
            begin_next = next_record(log, begin, header.begin_timestamp_ms, "begin")
        if end >= log.begin_offset:
            end_next = next_record(log, end, header.end_timestamp_ms, "end")
        full = file.shape is not None and header.item_count >= file.shape.item_capacity
        return Reach(file, header, begin_next, end_next, full)

    def _sample(self, file: IndexFile, log: CommitLog) -> None:
        """Look whether items of the newest file lead to their messages: the last, the one before, 2, 4, 8 ... back.

        A log that was cut and written anew may still have the old record at the file's end offset, behind its own
        end. A walk over the whole log would prove that it does not. What can be told by a few reads is told here:
        by the sample, and by a walk over the last part before the end.
        """
        if file in self._sampled:
            return
        header = file.header()
        number, back, end = header.item_count - 1, 1, header.end_physical_offset
        walk_from: int | None = None
        while number > NO_ITEM:
            key_hash, physical_offset = file.item(number)
            if physical_offset < log.begin_offset:
                break
            try:
                message = log.read(physical_offset)
                leads = key_hash in index_hashes(message)
            except (FormatError, StoreError):
                leads = False
            if not leads:
                what = f"item {number} leads to offset {physical_offset}, where no message with its hash lies"
                raise CorruptError(what, position=file.item_position(number))
            if walk_from is None and end - physical_offset >= WALKED_SIZE:
                walk_from = physical_offset
            number, back = number - back, 2 * back
        base = log.base_of(end)
        walk_from = max(walk_from or 0, base or 0, log.begin_offset)
        if end - walk_from <= 2 * WALKED_SIZE and not log.leads_on(walk_from, end):
            what = f"a walk over the log from offset {walk_from} does not meet the header's end offset {end}"
            raise CorruptError(what, position=24)
        self._sampled.add(file)

    def _resolve_shape(self, file: IndexFile) -> None:
        asked = self._asked_shape
        if asked is None:
            if file.resolve_shape(shape for other in self._files.values() if (shape := other.shape)) is None:
                raise CorruptError(
                    "no slot and item counts make sense of its bytes; if the broker had its own "
                    "maxHashSlotNum and maxIndexNum, give them as --slots and --items"
                )
        elif file.fits(asked):
            file.shape = asked
        else:
            shown = file.resolve_shape(())
            if shown is None:
                raise CorruptError(f"{asked.slot_capacity} slots and {asked.item_capacity} items do not fit it")
            raise UsageError(
                f"{file.path}: --slots {asked.slot_capacity} --items {asked.item_capacity} do not fit this index "
                f"file, it shows {shown.slot_capacity} slots and {shown.item_capacity} items; leave the options out"
            )

    def close(self) -> None:
        self._files, self._reaches = {}, {}
        self._maps.clear()


def index_hashes(message: Message) -> set[int]:
    """Every hash that a broker of any version puts into the index for a message."""
    hashes = {hash_of_key(message.topic, key) for key in message.index_keys}
    if message.unique_id:
        hashes.add(hash_of_key(message.topic, message.unique_id))
    if message.tags:
        hashes.add(tag_hash(message.topic, message.tags))
    return hashes


def next_record(log: CommitLog, physical_offset: int, timestamp_ms: int, which: str) -> int:
    """Where the record behind this one begins; an error if it is not there or does not bear the header's time."""
    try:
        message = log.read(physical_offset)
    except (FormatError, StoreError) as error:
        raise CorruptError(
            f"the record at the header's {which} offset {physical_offset} is not in the log: {error}"
        ) from error
    if message.store_timestamp_ms != timestamp_ms:
        raise CorruptError(
            f"the header's {which} time is {timestamp_ms}, but the record at its {which} offset {physical_offset} "
            f"was stored at {message.store_timestamp_ms}"
        )
    return log.next_boundary(physical_offset + message.size)


def _covering(reaches: Sequence[Reach], within: Sequence[tuple[int, int]]) -> list[Segment]:
    """What the files cover at most, within some stretches."""
    return [
        Segment(max(reach.begin_next, first), min(reach.end, behind), reach.file)
        for reach in reaches
        for first, behind in within
    ]


def _covered(from_offset: int, to_offset: int, covering: Sequence[Segment]) -> list[Segment]:
    """A stretch, cut into what is covered and what is not; the last part is not, and may be empty."""
    segments: list[Segment] = []
    position = from_offset
    for segment in covering:
        begin, end = max(segment.from_offset, position), min(segment.to_offset, to_offset)
        if begin < end:
            if position < begin:
                segments.append(Segment(position, begin, None))
            segments.append(replace(segment, from_offset=begin, to_offset=end))
            position = end
    return [*segments, Segment(position, to_offset, None)]


def _uncovered(stretch: Segment, log: CommitLog, hops: Sequence[tuple[int, int]]) -> list[Segment]:
    """A stretch that has to be read, as seams and what lies between them, in segments of one log file each."""
    parts: list[Segment] = []
    position, to_offset = stretch.from_offset, stretch.to_offset
    for edge, behind in hops[bisect_left(hops, (position, 0)) : bisect_left(hops, (to_offset, 0))]:
        if position < edge:
            parts.append(Segment(position, edge, None))
        if parts and parts[-1].seam and parts[-1].to_offset == edge:
            edge = parts.pop().from_offset
        position = min(behind, to_offset)
        parts.append(Segment(edge, position, None, seam=True))
    parts.append(Segment(position, to_offset, None))
    return [
        replace(part, from_offset=begin, to_offset=end)
        for part in parts
        for begin, end in log.pieces(part.from_offset, part.to_offset)
    ]


def _is_seam(begin: int, end: int, hops: dict[int, int]) -> bool:
    """Whether one gets from begin to end over the records at which files begin and end alone."""
    while begin < end and begin in hops:
        begin = hops[begin]
    return begin >= end


def _timestamp(log: CommitLog, physical_offset: int) -> int | None:
    """When the record at this offset was stored; None if it cannot be read."""
    try:
        return log.read(physical_offset).store_timestamp_ms
    except (FormatError, StoreError):
        return None


def _unreadable(path: Path, error: StoreError) -> Damage:
    return Damage(str(path), 0, DamageKind.INDEX_NOT_USED, f"{error}; its part of the log is scanned")


def _not_used(
    file: IndexFile, error: FormatError | StoreError, kind: DamageKind = DamageKind.INDEX_NOT_USED
) -> Damage:
    what = error.what if isinstance(error, FormatError) else str(error)
    position = error.position if isinstance(error, FormatError) and error.position is not None else 0
    return Damage(str(file.path), position, kind, f"{what}; its part of the log is scanned")
