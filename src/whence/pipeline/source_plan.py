"""The plan of a read: which parts of a store the tasks of a query look at. Plain data in and out, without Spark.

    kind     what a task does
    scan     reads all records of some pieces of the log
    index    walks the index for keys or unique ids between some offsets, and reads what it finds; what no index
             covers there by then is scanned
    offsets  reads the records at some offsets, if records begin there
    damage   tells what is missing: reads nothing

The end of the log is fixed here: what is appended later belongs to the next query. What the plan finds in the index
is not handed on: between plan and task it may have changed, and the task looks itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from whence.errors import CorruptError, NotFoundError, UsageError
from whence.pipeline.source_filters import I8_MAX, I8_MIN, Condition, Span, Wanted
from whence.pipeline.source_options import EARLIEST, LATEST, SourceOptions
from whence.store.damage import Damage
from whence.store.message_store import MessageStore
from whence.store.time_blocks import TimeBlocks

PART_SIZE = 256 * 1048576  # bytes of log that one task scans
TIME = "store_timestamp_ms"
OFFSETS_MAX = 1000  # records that are looked at one by one; where more are asked for, the log between them is scanned


LOOKUPS_MAX = 100_000
"""Keys times topics that an index is asked for. Plain Python takes 12 us for each in each index file, in one task;
two GiB of log, of which such a file tells, are scanned in 2 s, whatever is asked, by as many tasks as there are."""


class Piece(NamedTuple):
    """A stretch of one log file. Where it begins a record does, and where it ends the next one, or nothing more."""

    from_offset: int
    to_offset: int


class PartKind(StrEnum):
    SCAN = "scan"
    INDEX = "index"
    OFFSETS = "offsets"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: ``pieces`` of the log, or single ``offsets``; or what it tells, in ``damage``."""

    kind: PartKind
    pieces: tuple[Piece, ...] = ()
    offsets: tuple[int, ...] = ()
    damage: tuple[tuple[int, str], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of log between its begins and ends."""
        return sum(piece.to_offset - piece.from_offset for piece in self.pieces)


def wanted_of(options: SourceOptions, conditions: Sequence[Condition] = ()) -> Wanted:
    """What options and conditions ask for together."""
    spans: dict[str, Span] = {}
    starting = options.starting if isinstance(options.starting, int) else I8_MIN
    ending = options.ending - 1 if isinstance(options.ending, int) else I8_MAX
    if (starting, ending) != (I8_MIN, I8_MAX):
        spans["physical_offset"] = Span(starting, ending)
    if options.starting_ms is not None or options.ending_ms is not None:
        low = I8_MIN if options.starting_ms is None else options.starting_ms
        high = I8_MAX if options.ending_ms is None else options.ending_ms - 1
        spans[TIME] = Span(low, high)
    return Wanted.of(conditions, spans)


def plan_read(store: MessageStore, options: SourceOptions, wanted: Wanted) -> list[Part]:
    """The parts of a query, in the order of the log. What is missing is an error, unless it is to be passed over."""
    if options.starting == LATEST or options.ending == EARLIEST:
        raise UsageError(
            "a batch goes from an earlier offset to a later one: latest is for its end, earliest for its begin"
        )
    cover = store.cover()
    if options.fail_on_data_loss and isinstance(options.starting, int) and options.starting < cover.begin_offset:
        raise NotFoundError(
            f"startingOffsets {options.starting} lies before the log's begin, at {cover.begin_offset}: what was "
            'there has expired; option("failOnDataLoss", "false") begins where the log does'
        )
    offsets = wanted.span("physical_offset")
    begin, end = max(cover.begin_offset, offsets.low), min(cover.end_offset, offsets.high + 1)
    if wanted.is_nothing:
        return []
    parts = list(_told(cover.log_damage, begin, end, is_end=offsets.high >= cover.end_offset, options=options))
    if begin >= end:
        return parts
    if not options.scan and _is_looked_up(store, wanted):
        uncovered = []
        covered: list[Piece] = []
        for segment in cover.segments:
            if segment.to_offset <= begin or segment.from_offset >= end:
                continue
            piece = Piece(segment.from_offset, segment.to_offset)
            if not segment.is_told:
                uncovered.append(piece)
            elif covered and covered[-1].to_offset == piece.from_offset:
                covered[-1] = Piece(covered[-1].from_offset, piece.to_offset)
            else:
                covered.append(piece)
        if covered:
            parts.append(Part(PartKind.INDEX, tuple(covered)))
        return parts + _scans(uncovered, options)
    numbers = wanted.numbers.get("physical_offset")
    if numbers is not None and len(numbers) <= OFFSETS_MAX and not options.permissive:
        found = tuple(sorted(offset for offset in numbers if begin <= offset < end))
        return [*parts, Part(PartKind.OFFSETS, offsets=found)] if found else parts
    return parts + _scans(list(_pieces(store, options, wanted, begin, end)), options)


def _is_looked_up(store: MessageStore, wanted: Wanted) -> bool:
    """Whether an index finds what is wanted, and sooner than a scan."""
    if wanted.index_keys is None:
        return False
    topics = wanted.texts.get("topic") or store.topics()
    return len(wanted.index_keys) * max(len(topics), 1) <= LOOKUPS_MAX


def _pieces(store: MessageStore, options: SourceOptions, wanted: Wanted, begin: int, end: int) -> Iterator[Piece]:
    """The log between two offsets in pieces of about a part's size, without what a window of time rules out.

    The first may begin earlier: where a record is known to begin. Without time blocks that is the start of its file.
    """
    log, blocks, window = store.commit_log, None if options.scan else store.time_blocks(), wanted.span(TIME)
    base = log.base_of(begin)
    stretches = log.pieces(begin if base is None else base, end)
    if blocks is not None and not window.is_all and stretches:
        since_ms, until_ms = (None if edge in (I8_MIN, I8_MAX) else edge for edge in (window.low, window.high))
        stretches = blocks.stretches(stretches[0][0], end, since_ms, until_ms)
    size = _part_size(options, sum(to_offset - from_offset for from_offset, to_offset in stretches))
    for from_offset, to_offset in stretches:
        if to_offset > begin:
            yield from _cut(Piece(from_offset, to_offset), begin, size, blocks)


def _cut(stretch: Piece, begin: int, size: int, blocks: TimeBlocks | None) -> Iterator[Piece]:
    """One stretch as pieces of a part's size, or of one block; what lies before ``begin`` is left out."""
    is_short = stretch.to_offset - stretch.from_offset <= size and stretch.from_offset >= begin
    begins = [] if blocks is None or is_short else blocks.begins(*stretch)
    known = bisect_right(begins, begin) - 1
    from_offset = begins[known] if known >= 0 else stretch.from_offset
    while from_offset < stretch.to_offset:
        last, following = bisect_right(begins, from_offset + size) - 1, bisect_right(begins, from_offset)
        cut = max(last, following)
        to_offset = begins[cut] if cut < len(begins) and stretch.to_offset - from_offset > size else stretch.to_offset
        yield Piece(from_offset, to_offset)
        from_offset = to_offset


def _told(
    log_damage: Sequence[tuple[int, int, Damage]], begin: int, end: int, *, is_end: bool, options: SourceOptions
) -> Iterator[Part]:
    """What is wrong with the log as a whole: an error, or a part that tells it."""
    for from_offset, to_offset, damage in log_damage:
        if not damage.kind.hides_messages or from_offset > end or to_offset <= begin:
            continue
        if from_offset == end and not is_end:
            continue
        if not options.permissive:
            raise CorruptError(damage.detail, position=damage.position, path=damage.path)
        yield Part(PartKind.DAMAGE, damage=((from_offset, told(damage)),))


def told(damage: Damage) -> str:
    """Damage as the column of that name tells it."""
    return f"{damage.path} at byte {damage.position}: {damage.detail}"


def _part_size(options: SourceOptions, size: int) -> int:
    return max(min(PART_SIZE, size // options.min_partitions), 1)


def _scans(pieces: Sequence[Piece], options: SourceOptions) -> list[Part]:
    """A part for each piece; short ones, which a window leaves, go together."""
    size = _part_size(options, sum(piece.to_offset - piece.from_offset for piece in pieces))
    groups: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        room -= piece.to_offset - piece.from_offset
        if room < 0 or not groups:
            groups.append([])
            room = size - (piece.to_offset - piece.from_offset)
        groups[-1].append(piece)
    return [Part(PartKind.SCAN, tuple(group)) for group in groups]
