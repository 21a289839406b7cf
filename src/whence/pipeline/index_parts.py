"""Which part of the log each index file answers for.

    files    as they are, damaged or not   -> FileEnds
    log      its items, numbered from 0    -> IndexPart: the items that each file should have

A file's first and last items tell where it begins and ends, and those of its neighbours confirm it: no header is
believed. What lies between two files belongs to the second, what lies behind the last one to the last. A file that
cannot be read, or that is not there although it should be, gets what its neighbours leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from whence.errors import FormatError, StoreError
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM_SIZE,
    IndexHeader,
    decode_header,
    decode_items,
    item_position,
)
from whence.pipeline.scanning import SpilledLog
from whence.store.index_file import DEFAULT_SHAPE, IndexFile, Shape
from whence.store.spilled import MessageItems

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUN_MAX = 32_768  # items that one message can have, about
LOST = -1
SPARE = 100
SPARSE = 3  # a file has one of so many items of its part at least, and SPARE: tags may be left out


@dataclass(frozen=True, slots=True)
class FileEnds:
    """What an index file tells of itself, without a look at what lies between its ends.

    ``header`` None: it cannot be read, or has another size than its shape asks for. Offsets are those of the first,
    the middle and the last item, LOST if that is all zero; counts those of the items beside that have the same one.
    """

    path: Path
    shape: Shape
    header: IndexHeader | None = None
    first_offset: int = LOST
    first_hash: int = LOST
    first_count: int = 0
    middle_offset: int = LOST
    last_offset: int = LOST
    last_count: int = 0

    @property
    def item_count(self) -> int:
        return 0 if self.header is None else self.header.next_item - FIRST_ITEM

    @property
    def is_empty(self) -> bool:
        """Whether it can be read, and nothing was put into it."""
        return self.header is not None and not self.item_count


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Items ``first`` to ``behind - 1`` of the log, for which one file answers.

    The first ``begun`` of them are in the file before, too. ``before``: the end of that, as far as the log or itself
    tells it; ``is_first_known`` False: whether there was one, and how it ended, nobody knows.
    """

    file: FileEnds
    first: int
    behind: int
    begun: int
    before: IndexHeader | None
    is_first_known: bool
    is_newest: bool


def shapes_of(paths: Sequence[Path], asked: Shape | None) -> dict[Path, Shape]:
    """The shape of each file: as asked, as its bytes show it, as most of the others have it, or RocketMQ's own."""
    if asked is not None:
        return dict.fromkeys(paths, asked)
    shown: dict[Path, Shape] = {}
    for path in paths:
        try:
            shape = IndexFile(path).resolve_shape(set(shown.values()))
        except (FormatError, StoreError):
            continue
        if shape is not None:
            shown[path] = shape
    usual = Counter(shown.values()).most_common(1)
    fallback = usual[0][0] if usual else DEFAULT_SHAPE
    return {path: shown.get(path, fallback) for path in paths}


def read_ends(path: Path, shape: Shape) -> FileEnds:
    """The ends of one file."""
    try:
        with MappedFile(path) as mapped:
            header = decode_header(mapped.data[:HEADER_SIZE])
            if mapped.size < shape.file_size or not 0 <= header.item_count <= shape.item_capacity:
                return FileEnds(path, shape)
            count = header.next_item - FIRST_ITEM
            if not count:
                return FileEnds(path, shape, header)
            items = decode_items(mapped.data[item_position(shape.slot_capacity, FIRST_ITEM) :][: ITEM_SIZE * count])
            first, last = items[:RUN_MAX], items[-RUN_MAX:][::-1]
            return FileEnds(
                path,
                shape,
                header,
                _offset_of(items[0]),
                int(first["key_hash"][0]),
                _run(first["physical_offset"]),
                _offset_of(items[count // 2]),
                _offset_of(items[-1]),
                _run(last["physical_offset"]),
            )
    except (FormatError, StoreError):
        return FileEnds(path, shape)


def _offset_of(item: np.void) -> int:
    return int(item["physical_offset"]) if any(item.tobytes()) else LOST


def _run(offsets: NDArray[np.int64]) -> int:
    """How many of the first ones are alike."""
    others = np.flatnonzero(offsets != offsets[0])
    return int(others[0]) if len(others) else len(offsets)


@dataclass(slots=True)
class _Placed:
    """A file and the numbers of its items, as far as they are known."""

    file: FileEnds
    first: int | None
    behind: int | None


_Span: TypeAlias = tuple[
    FileEnds, int, int, int
]  # a file, its first item, the one behind its last, how many are begun


def plan_parts(
    files: Sequence[FileEnds],
    log: SpilledLog,
    begin_offset: int,
    *,
    is_exact: bool,
    is_live: bool,
    is_whole: bool = False,
) -> list[IndexPart]:
    """The part of each file, in the order of the log. ``files`` are in the order of their names.

    ``begin_offset``: of the log. ``is_exact``: whence made all of them, one behind the other. ``is_live``: what lies
    behind the newest file may not be dispatched yet. ``is_whole``: no file was ever before the first one.
    """
    placed = [_place(file, log, begin_offset) for file in files]
    spans = _exact_spans(placed, log.item_count) if is_exact else _spans(placed, log.item_count, is_live=is_live)
    parts: list[IndexPart] = []
    before: tuple[FileEnds, int] | None = None  # the last file with items, and the number behind its last item
    for number, (file, first, behind, begun) in enumerate(spans):
        header, is_known = _inherited(before, log)
        if before is None:
            is_known = is_whole
        if is_exact and first > 0:
            header, is_known = _end_at(log, first - 1), True
        is_newest = number + 1 == len(spans)
        parts.append(IndexPart(file, first, behind, begun, header, is_known, is_newest))
        if (file.item_count or behind > first) and (before is None or behind >= before[1]):
            before = (file, behind)
    return parts


def _exact_spans(files: Sequence[_Placed], item_count: int) -> list[_Span]:
    """The parts of files that whence made, each full but the last: they follow on each other as their names do.

    So a file that has another's part is damaged. Where one ends and the next begins at the same item, they are right.
    """
    spans, at = [], 0
    for number, placed in enumerate(files):
        behind = min(at + placed.file.shape.item_capacity - FIRST_ITEM, item_count)
        if number + 1 == len(files):
            behind = item_count
        elif placed.behind is not None and placed.behind == files[number + 1].first:
            behind = max(placed.behind, at)  # what the log lost since is in neither of them
        spans.append((placed.file, at, behind, 0))
        at = behind
    return spans


def _spans(files: Sequence[_Placed], item_count: int, *, is_live: bool) -> list[_Span]:
    """The parts of files that others made."""
    spans, at = [], 0
    ordered = _in_order(files)
    for number, placed in enumerate(ordered):
        behind = placed.behind
        if behind is None:
            later = [other.first for other in ordered[number + 1 :] if other.first is not None]
            behind = max(at, later[0] if later else item_count)
        first = min(at if placed.first is None else placed.first, at)
        if number + 1 == len(ordered):
            is_late = is_live and (placed.behind is not None or placed.file.is_empty)
            behind = max(at, placed.behind or 0) if is_late else item_count
        behind = max(behind, first)
        spans.append((placed.file, first, behind, at - first))
        at = max(at, behind)
    return spans


def _place(file: FileEnds, log: SpilledLog, begin_offset: int) -> _Placed:
    """Where a file's items are in the log. Of two ends that are not known each is told by the other and the count."""
    if not file.item_count:
        return _Placed(file, None, None)
    first, behind = _number_of_first(file, log, begin_offset), _number_behind_last(file, log, begin_offset)
    if first is not None and behind is not None and not _is_span(first, behind, file.item_count):
        # One of them leads to a message of quite another part.
        items = log.of_message(file.middle_offset)
        if items is None:
            return _Placed(file, None, None)
        half = file.item_count // 2
        first = first if _is_span(first, items.first, half) else None
        behind = behind if _is_span(items.first, behind, half) else None
    if first is None and behind is not None:
        first = max(behind - file.item_count, 0)
    elif behind is None and first is not None:
        behind = min(first + file.item_count, log.item_count)
    return _Placed(file, first, behind)


def _is_span(first: int, behind: int, item_count: int) -> bool:
    """Whether so many items can be those of a file's part."""
    return 0 <= behind - first <= SPARSE * item_count + SPARE


def _number_of_first(file: FileEnds, log: SpilledLog, begin_offset: int) -> int | None:
    if 0 <= file.first_offset < begin_offset:
        return 0
    items = log.of_message(file.first_offset)
    if items is None:
        return None
    if file.first_count >= len(items.key_hashes):
        return items.first
    # It has the last ones of them, mostly; or the first ones, where others may be left out.
    rest, required = (count - file.first_count for count in (len(items.key_hashes), _required(items)))
    tried = [rest, max(required, 0), *range(len(items.key_hashes))]
    skipped = next((number for number in tried if _hash(items, number) == file.first_hash), 0)
    return items.first + skipped


def _number_behind_last(file: FileEnds, log: SpilledLog, begin_offset: int) -> int | None:
    if 0 <= file.last_offset < begin_offset:
        return 0
    items = log.of_message(file.last_offset)
    if items is None:
        return None
    first = items.first
    if file.first_offset == file.last_offset:
        first = _number_of_first(file, log, begin_offset) or first
    return min(first + file.last_count, items.first + len(items.key_hashes))


def _required(items: MessageItems) -> int:
    """How many items have to be there: others are marked by their sign bit."""
    return int(np.count_nonzero(items.key_hashes >= 0))


def _hash(items: MessageItems, number: int) -> int:
    return int(items.key_hashes[number]) & 0x7FFFFFFF


def _in_order(files: Sequence[_Placed]) -> list[_Placed]:
    """Files in the order of the log; those of which nothing is known behind the one that has the name before."""
    known = sorted(
        (file for file in files if file.first is not None),
        key=lambda file: (file.first, file.behind, file.file.path.name),
    )
    ordered = list(known)
    for file in files:
        if file.first is None:
            behind = [n for n, other in enumerate(ordered) if other.file.path.name < file.file.path.name]
            ordered.insert(behind[-1] + 1 if behind else 0, file)
    return ordered


def _inherited(before: tuple[FileEnds, int] | None, log: SpilledLog) -> tuple[IndexHeader | None, bool]:
    """What the file behind this one inherits, and whether that is known."""
    if before is None:
        return None, False
    file, behind = before
    if behind:
        return _end_at(log, behind - 1), True
    return file.header, file.header is not None


def _end_at(log: SpilledLog, number: int) -> IndexHeader:
    """The header of a file that ends with this item, as far as the next one inherits it."""
    end_offset, end_ms = log.place(number)
    return IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, 0)
