"""Index: the files of ``index/`` as one, and which part of the log they can be believed for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

HEADER_TRIES = 3  # a broker writes the header field by field: a reader that comes between two looks again
HEADER_PAUSE_S = 0.001
WALKED_SIZE = 131072  # bytes of log before the newest index file's end that are walked over


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch ``[from_offset, to_offset)`` of the log and the index file that covers it.

    A stretch that no index file covers has None, lies in one log file and is scanned.

    ``seam``: nothing but the records at which index files begin and end. A message's items may straddle two
    files, so those records are always read; that is no scan.
    """

    from_offset: int
    to_offset: int
    file: IndexFile | None
    seam: bool = False


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

_Stretch = tuple[int, int, IndexFile | None]
"""From where to where, and the file that covers it."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """What one file can be believed for: all messages between the records at ``begin`` and ``end``.

    Those two records themselves may have items in other files. ``begin_next`` and ``end_next`` are where the
    records behind them begin.
    """

    file: IndexFile
    begin: int
    begin_next: int
    end: int
    end_next: int
    end_timestamp_ms: int
    full: bool


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
        self._reaches: dict[IndexFile, tuple[bytes, _Reach | None]] = {}
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

    def cover(self, log: CommitLog, limits: Mapping[Path, Sequence[tuple[int, int]]] = MappingProxyType({})) -> Cover:
        """Cut the log into what an index file covers and what has to be scanned.

        ``limits``: between which offsets the files of a folder are believed at most, where that is known.
        """
        self.refresh()
        begin_offset = log.begin_offset
        not_used = list(self._unreadable)
        expired: list[IndexFile] = []
        reaches: list[_Reach] = []
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
                expired.append(file)
            else:
                reaches.append(reach)
        reaches.sort(key=lambda reach: (reach.begin, reach.end))
        for folder in self.folders:
            self._drop_unfit(folder, reaches, log, not_used)
        hops = {reach.begin: reach.begin_next for reach in reaches}
        hops |= {reach.end: reach.end_next for reach in reaches}
        stretches: list[_Stretch] = [(begin_offset, OFFSET_MAX, None)]
        for folder in self.folders:
            mine = [reach for reach in reaches if reach.file.path.parent == folder]
            within = limits.get(folder, EVERYWHERE)
            stretches = [
                part
                for begin, end, file in stretches
                for part in (
                    _covered(begin, end, mine, within)
                    if file is None and not _is_seam(begin, end, hops)
                    else [(begin, end, file)]
                )
            ]
        position = stretches[-1][0]
        end_offset = log.end_offset(boundary=position)
        stretches[-1] = (position, end_offset, None)

        last = max(reaches, key=lambda reach: reach.end, default=None)
        return Cover(
            begin_offset=begin_offset,
            end_offset=end_offset,
            segments=tuple(
                segment
                for begin, end, file in stretches
                if begin < end
                for segment in (
                    _uncovered(begin, end, log, _is_seam(begin, end, hops))
                    if file is None
                    else [Segment(begin, end, file)]
                )
            ),
            file_count=len(self._files) + len(self._unreadable),
            expired=tuple(expired),
            not_used=tuple(not_used),
            indexed_to_offset=last.end_next if last else None,
            indexed_to_timestamp_ms=last.end_timestamp_ms if last else None,
            log_damage=tuple(log.damage(end_offset)),
        )

    def _drop_unfit(self, folder: Path, reaches: list[_Reach], log: CommitLog, not_used: list[Damage]) -> None:
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

    def _reach(self, file: IndexFile, log: CommitLog) -> _Reach | None:
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

    def _check(self, file: IndexFile, header_bytes: bytes, log: CommitLog) -> _Reach | None:
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
        return _Reach(file, begin, begin_next, end, end_next, header.end_timestamp_ms, full)

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


def _covered(
    from_offset: int, to_offset: int, reaches: list[_Reach], within: Sequence[tuple[int, int]]
) -> list[_Stretch]:
    """A stretch, cut into what the files cover, within some stretches, and what they do not."""
    stretches: list[_Stretch] = []
    position = from_offset
    for reach in reaches:
        for first, behind in within:
            begin, end = max(reach.begin_next, position, first), min(reach.end, to_offset, behind)
            if begin < end:
                stretches += [(position, begin, None), (begin, end, reach.file)]
                position = end
    stretches.append((position, to_offset, None))
    return [(begin, end, file) for begin, end, file in stretches if begin < end]


def _uncovered(from_offset: int, to_offset: int, log: CommitLog, seam: bool) -> list[Segment]:
    """A stretch that has to be scanned, as segments of one log file each."""
    return [Segment(begin, end, None, seam) for begin, end in log.pieces(from_offset, to_offset)]


def _is_seam(begin: int, end: int, hops: dict[int, int]) -> bool:
    """Whether one gets from begin to end over the records at which files begin and end alone."""
    while begin < end and begin in hops:
        begin = hops[begin]
    return begin >= end


def _unreadable(path: Path, error: StoreError) -> Damage:
    return Damage(str(path), 0, DamageKind.INDEX_NOT_USED, f"{error}; its part of the log is scanned")


def _not_used(
    file: IndexFile, error: FormatError | StoreError, kind: DamageKind = DamageKind.INDEX_NOT_USED
) -> Damage:
    what = error.what if isinstance(error, FormatError) else str(error)
    position = error.position if isinstance(error, FormatError) and error.position is not None else 0
    return Damage(str(file.path), position, kind, f"{what}; its part of the log is scanned")
