"""The plan of a build: plain data in and out.

cut_log         log files            -> stretches, one for each task of pass one
join_stretches  what the tasks found -> the log from start to end, or the stretches to scan again
plan_index      the joined log       -> which items each index file gets, one for each task of pass two
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from whence.formats.time_blocks import BLOCK_SIZE
from whence.store.spill import Spilled, Stretch

STRETCH_SIZE_MIN = 64 * 1048576  # bytes: below that a task takes longer to start than to run
STRETCHES_A_SLOT = 4  # so that all slots end at about the same time
TURN_SIZE = 256 * 1048576  # bytes: between two tasks of a slot lie 10 ms, which a short log has no use for
GROUPS_MAX = 1024
TRIES_APART = 3  # after so many rounds the rest of a file is scanned in one piece


@dataclass(frozen=True, slots=True)
class LogFilePlace:
    """One file of the log: where it lies and from which offset on it counts."""

    path: str
    base: int
    size: int


def stretch_size(log_size: int, slots: int, jobs: int | None) -> int:
    """How long a stretch is: a part of the log for each of ``jobs`` tasks, if that is asked; whole blocks of time."""
    if jobs is not None:
        size = -(-log_size // jobs)
    else:
        size = max(-(-log_size // (slots * _turns(log_size, slots))), STRETCH_SIZE_MIN)
    return max(-(-size // BLOCK_SIZE), 1) * BLOCK_SIZE


def group_count(log_size: int, slots: int, jobs: int | None) -> int:
    """Into how many groups queues are parted, each for a task of pass two; two for a slot, where that is worth it."""
    turns = STRETCHES_A_SLOT if jobs is not None else _turns(log_size, slots)
    return max(min((jobs or slots) * max(turns // 2, 1), GROUPS_MAX), 1)


def _turns(log_size: int, slots: int) -> int:
    """How many stretches each slot scans, one after the other."""
    return min(max(log_size // (slots * TURN_SIZE), 1), STRETCHES_A_SLOT)


def cut_log(files: Sequence[LogFilePlace], from_offset: int, size: int) -> list[Stretch]:
    """The log from ``from_offset``, where a record begins, in stretches of this size that lie in one file each.

    The last file is the one in which the log ends.
    """
    stretches: list[Stretch] = []
    for file in files:
        begin, end = max(file.base, from_offset), file.base + file.size
        is_exact, is_last = True, file is files[-1]
        while begin < end:
            # Whole blocks, counted from the start of the file, so that no two stretches share one.
            to = min(file.base + (begin - file.base) // BLOCK_SIZE * BLOCK_SIZE + size, end)
            stretches.append(Stretch(len(stretches), file.path, file.base, begin, to, is_exact, is_last))
            begin, is_exact = to, False
    return stretches


@dataclass(frozen=True, slots=True)
class Joined:
    """The log from start to end, as the stretches that were taken tell it; or what has to be scanned ``again``."""

    taken: tuple[Spilled, ...]
    again: tuple[Stretch, ...]


def join_stretches(stretches: Sequence[Stretch], spilled: Mapping[int, Spilled], tries: int = 0) -> Joined:
    """Take each stretch that begins where the one before ended.

    No look at bytes can prove that a record begins somewhere, since a body may hold whole records with right offsets
    and checksums: only the way from the start of the file can. A stretch that began elsewhere is scanned again from
    where the one before ended. Those behind it are judged as if that ended where it did before, which is mostly so.
    After some ``tries`` the rest of the file is one stretch: then there is nothing left to be wrong about.
    """
    taken: list[Spilled] = []
    again: list[Stretch] = []
    end, in_one_piece = 0, -1
    for stretch in stretches:
        if stretch.base == in_one_piece:
            continue
        begin = stretch.from_offset if stretch.is_exact else end
        if begin >= stretch.to_offset:
            continue  # no record begins in it
        found = spilled.get(stretch.number)
        if found is None or found.begin_offset != begin:
            again.append(replace(stretch, from_offset=begin, is_exact=True))
            if tries >= TRIES_APART:
                again[-1] = replace(again[-1], to_offset=_file_end(stretches, stretch))
                in_one_piece = stretch.base
                continue
        if found is None:
            end = stretch.to_offset
            continue
        if not again or again[-1].number != stretch.number:
            taken.append(found)
        end = found.end_offset
        if found.is_log_end:
            break
    return Joined(tuple(taken), tuple(again))


def _file_end(stretches: Sequence[Stretch], stretch: Stretch) -> int:
    return max(other.to_offset for other in stretches if other.base == stretch.base)


@dataclass(frozen=True, slots=True)
class ItemRange:
    """Items ``first`` to ``first + count`` of one spill."""

    name: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The items of one index file. ``before``: the last item of the file before, if that is in a spill.

    ``goes_on``: they go to the newest file that is there already. A plan without ranges is for a file without items.
    """

    ranges: tuple[ItemRange, ...]
    before: ItemRange | None
    goes_on: bool

    @property
    def item_count(self) -> int:
        return sum(each.count for each in self.ranges)


def plan_index(taken: Sequence[Spilled], capacity: int, room: int) -> list[IndexPlan]:
    """Which items each index file gets, in order.

    ``capacity``: how many items a file takes; ``room``: how many the newest one that is there still takes. As in
    RocketMQ a message asks for a file before its keys are looked at: so one without keys behind a full file begins
    a file, too.
    """
    ends = list(accumulate(spilled.item_count for spilled in taken))
    total = ends[-1] if ends else 0
    bounds = [0, *range(min(room, total), total, capacity), total] if room else [*range(0, total, capacity), total]
    plans = [
        IndexPlan(
            tuple(item_ranges(taken, ends, begin, end)),
            next(item_ranges(taken, ends, begin - 1, begin)) if begin else None,
            goes_on=begin == 0 and room > 0,
        )
        for begin, end in pairwise(bounds)
        if begin < end
    ]
    is_full = (not room and not total) or (total >= room and (total - room) % capacity == 0)
    if is_full and _ends_bare(taken):
        before = next(item_ranges(taken, ends, total - 1, total)) if total else None
        plans.append(IndexPlan((), before, goes_on=False))
    return plans


def item_ranges(taken: Sequence[Spilled], ends: Sequence[int], begin: int, end: int) -> Iterator[ItemRange]:
    """Items ``begin`` to ``end`` of the whole log, by spill."""
    at = bisect_right(ends, begin)
    while begin < end:
        first = begin - (ends[at] - taken[at].item_count)
        count = min(end, ends[at]) - begin
        if count:
            yield ItemRange(taken[at].name, first, count)
        begin += count
        at += 1


def cut_ranges(ranges: Sequence[ItemRange], count: int) -> tuple[tuple[ItemRange, ...], tuple[ItemRange, ...]]:
    """The first ``count`` items, and the rest."""
    front: list[ItemRange] = []
    back: list[ItemRange] = []
    for each in ranges:
        taken = min(each.count, count)
        count -= taken
        if taken:
            front.append(replace(each, count=taken))
        if taken < each.count:
            back.append(replace(each, first=each.first + taken, count=each.count - taken))
    return tuple(front), tuple(back)


def _ends_bare(taken: Sequence[Spilled]) -> bool:
    """Whether a message without items lies behind the last item."""
    for spilled in reversed(taken):
        if spilled.message_count:
            return spilled.ends_bare
    return False
