"""FieldIndex: the index files of one field as one, and which part of the log they can be believed for.

    fields/<name>/index/<17 digits>      text "topic#value" -> messages, in an index file's bytes
    fields/<name>/values/<17 digits>     of each of its items 128 bits of the text's hash, by which a hit is told

A message does not show the value of a field: what of the log no file covers cannot be looked up here, nor by a scan
without the expression. So all depends on what ``sidecar.json`` says, and on these checks before it is believed: the
log still has the last record that was indexed; the files that were noted are there and have their size; the log's
records at their ends bear their headers' times; and they have a value for each item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whence.errors import CorruptError, FormatError, StoreError
from whence.files.folder import FileState, FolderWatch, files_in
from whence.files.map_pool import MapPool
from whence.files.mapped_file import MappedFile
from whence.formats.field_values import values_position
from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.field_claim import FieldClaim
from whence.store.index import next_record
from whence.store.index_file import IndexFile, Shape

SECONDS_MAX = 2**31 - 1


class FieldFile:
    """One index file of a field with the values of its items. ``header`` is the part of it that is believed."""

    def __init__(self, file: IndexFile, header: IndexHeader, values: Path, maps: MapPool) -> None:
        self.file = file
        self.header = header
        self._values = values
        self._maps = maps
        self._key = object()  # of the values' map in the pool
        try:
            self._mapped()
        except StoreError as error:
            raise CorruptError(f"its values cannot be read: {error}", position=0, path=values) from error
        if self._mapped().size < values_position(header.next_item):
            what = f"has {self._mapped().size} bytes, and the values of {header.next_item - 1} items take more"
            raise CorruptError(what, position=self._mapped().size, path=values)

    def _mapped(self) -> MappedFile:
        mapped = self._maps.get(self._key)
        return self._maps.put(self._key, MappedFile(self._values)) if mapped is None else mapped

    def walk(self, key_hash: int) -> Iterator[tuple[int, int, int]]:
        """Number, hash and physical offset of the items in the chain of this hash's slot, newest first."""
        return (item for item in self.file.walk(key_hash) if item[0] < self.header.next_item)

    def fits_time(self, number: int, store_timestamp_ms: int) -> bool:
        """Whether an item tells this time of its message. The first one counts from the end of the file before."""
        begin_ms = self.header.begin_timestamp_ms
        seconds = (store_timestamp_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        return number == FIRST_ITEM or self.file.time_diff_s(number) == min(max(seconds, 0), SECONDS_MAX)

    def value_hash(self, number: int) -> bytes:
        """What stands beside an item."""
        return bytes(self._mapped().data[values_position(number) : values_position(number + 1)])


@dataclass(frozen=True, slots=True)
class FieldCover:
    """``files``, oldest first, tell all of the ``covered`` stretches of the log; and what became of the others."""

    files: tuple[FieldFile, ...]
    covered: tuple[tuple[int, int], ...]
    file_count: int
    not_used: tuple[Damage, ...]

    def covers(self, physical_offset: int) -> bool:
        return any(begin <= physical_offset < end for begin, end in self.covered)

    def uncovered(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """What is not covered of a part of the log, oldest first."""
        left, position = [], from_offset
        for begin, end in self.covered:
            if begin >= to_offset:
                break
            if position < begin:
                left.append((position, begin))
            position = max(position, end)
        return [*left, (position, to_offset)] if position < to_offset else left


class FieldIndex:
    """The index files of one field, as ``claim`` tells them. Another claim is another object."""

    def __init__(self, folder: Path, claim: FieldClaim) -> None:
        self.claim = claim
        self._folder = folder
        self._watches = [FolderWatch(folder / name) for name in ("index", "values")]
        self._maps = MapPool()
        self._states: dict[str, FileState] = {}
        self._files: dict[str, IndexFile] = {}
        self._distrusted: dict[IndexFile, CorruptError] = {}
        self._cover: tuple[int, FieldCover] | None = None

    def cover(self, log: CommitLog) -> FieldCover:
        """What the files can be believed for now. Costs microseconds while nothing changes."""
        claim, begin_offset = self.claim, log.begin_offset
        if not claim.indexed or not claim.is_of(log):
            self._cover = None
            return FieldCover((), (), len(claim.index_names), ())
        if self._is_changed() or self._cover is None or self._cover[0] != begin_offset:
            self._cover = (begin_offset, self._look(log))
        return self._cover[1]

    def _is_changed(self) -> bool:
        try:
            return any(watch.changed() for watch in self._watches)
        except StoreError:
            return True  # to look at the files will tell

    def distrust(self, file: IndexFile, error: CorruptError) -> None:
        """Cover nothing with this file any more: one of its chains is damaged, so any of them may be."""
        self._distrusted[file] = error
        self._cover = None

    def forget(self, file: IndexFile) -> None:
        """Look anew for what has this file's name: another one has taken its place."""
        self._files.pop(file.path.name, None)
        self._cover = None

    def _look(self, log: CommitLog) -> FieldCover:
        claim = self.claim
        used: list[FieldFile | None] = []
        not_used: list[Damage] = []
        self._refresh()
        for name in claim.index_names:
            path = self._folder / "index" / name
            try:
                file = self._files.get(name)
                if file is None:
                    file = self._files[name] = IndexFile(path, self._maps)
                if file in self._distrusted:
                    not_used.append(_not_used(path, self._distrusted[file], DamageKind.BAD_CHAIN))
                    used.append(None)
                    continue
                before = next((each.header for each in reversed(used) if each is not None), None)
                used.append(self._checked(file, before, log))
            except (FormatError, StoreError) as error:
                self._files.pop(name, None)
                not_used.append(_not_used(path, error))
                used.append(None)
        files = tuple(each for each in used if each is not None)
        covered = _without(claim.indexed, _lost(used, claim))
        return FieldCover(files, tuple(covered), len(claim.index_names), tuple(not_used))

    def _refresh(self) -> None:
        """Let go of files that have been replaced."""
        try:
            states = files_in(self._folder / "index")
        except StoreError:
            states = {}
        for name in [name for name in self._files if self._states.get(name) != states.get(name)]:
            self._distrusted.pop(self._files.pop(name), None)
        self._states = states
        self._cover = None

    def _checked(self, file: IndexFile, before: IndexHeader | None, log: CommitLog) -> FieldFile:
        """The file, if it is what was noted; an error that says why not otherwise."""
        claim, header = self.claim, file.header()
        if file.size != claim.shape.file_size:
            raise CorruptError(f"has {file.size} bytes, not {claim.shape.file_size}", position=0)
        if file.path.name == claim.index_names[-1]:
            noted = claim.newest_header
            # A build that has not said so yet may have put more into it.
            is_noted = header.has_grown_from(noted)
            header = noted
        else:
            is_noted = header.item_count == claim.shape.item_capacity
        if not is_noted or not FIRST_ITEM < header.item_count <= claim.shape.item_capacity:
            raise CorruptError("its header is not the one that was noted", position=0)
        _set_shape(file, claim.shape)
        begin, end = header.begin_physical_offset, header.end_physical_offset
        if begin > end or (before is not None and begin < before.end_physical_offset):
            what = f"the header's begin offset {begin} is above its end offset, or before the end of the file before"
            raise CorruptError(what, position=16)
        if begin >= log.begin_offset:
            next_record(log, begin, header.begin_timestamp_ms, "begin")
        if end >= log.begin_offset:
            next_record(log, end, header.end_timestamp_ms, "end")
        return FieldFile(file, header, self._folder / "values" / file.path.name, self._maps)

    def close(self) -> None:
        self._files, self._cover = {}, None
        self._maps.clear()


def _set_shape(file: IndexFile, shape: Shape) -> None:
    if not file.fits(shape):
        raise CorruptError("its header, its slots and its first and last items do not fit together", position=0)
    file.shape = shape


def _lost(used: Sequence[FieldFile | None], claim: FieldClaim) -> Iterator[tuple[int, int]]:
    """The parts of files that are not used: from where the one before ends to where the next one begins.

    The records at these ends count as lost, for some of their items may be in the file that is.
    """
    for number, each in enumerate(used):
        if each is None:
            before = next((file.header for file in reversed(used[:number]) if file is not None), None)
            behind = next((file.header for file in used[number + 1 :] if file is not None), None)
            yield (
                claim.indexed[0][0] if before is None else before.end_physical_offset,
                claim.indexed_to if behind is None else behind.begin_physical_offset + 1,
            )


def _without(stretches: Sequence[tuple[int, int]], lost: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches without some parts."""
    left = list(stretches)
    for begin, end in lost:
        left = [
            part
            for first, behind in left
            for part in ((first, min(behind, begin)), (max(first, end), behind))
            if part[0] < part[1]
        ]
    return left


def _not_used(path: Path, error: FormatError | StoreError, kind: DamageKind = DamageKind.INDEX_NOT_USED) -> Damage:
    what = error.what if isinstance(error, FormatError) else str(error)
    place = error.path if isinstance(error, FormatError) and error.path is not None else str(path)
    position = error.position if isinstance(error, FormatError) and error.position is not None else 0
    return Damage(place, position, kind, f"{what}; its part of the log cannot be looked up")
