"""Pass one, for who needs all of a log: stretches, their spills, and the log that they make together.

stretches = cut_stretches(log, from_offset, ...)
taken = scan_stretches(stretches, recipe, work, run)      spills in the order of the log, each begins where
                                                          the one before ended
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.files.map_pool import MapPool
from whence.files.mapped_file import MappedFile
from whence.pipeline.plan import ItemRange, LogFilePlace, cut_log, item_ranges, join_stretches, stretch_size
from whence.pipeline.tasks import ScanTask
from whence.store.commit_log import CommitLog
from whence.store.spill import SPILLED_ITEM, Recipe, Spilled, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cut_stretches(log: CommitLog, slots: int, jobs: int | None, boundary: int = 0) -> list[Stretch]:
    """The whole log in stretches. ``boundary``: where a record begins and no stretch goes over; 0 for none."""
    log.refresh()
    last_base = log.last_written_base() if log.bases else 0
    files = [LogFilePlace(str(log.path_of(base)[0]), base, log.file_size) for base in log.bases if base <= last_base]
    stretches: list[Stretch] = []
    size = stretch_size(sum(file.size for file in files), slots, jobs)
    for stretch in cut_log(files, log.begin_offset, size):
        if stretch.from_offset < boundary < stretch.to_offset:
            stretches.append(replace(stretch, to_offset=boundary))
            stretch = replace(stretch, from_offset=boundary, is_exact=True)
        stretches.append(stretch)
    return [replace(stretch, number=number) for number, stretch in enumerate(stretches)]


def scan_stretches(
    stretches: Sequence[Stretch],
    recipe: Recipe,
    work: Path,
    run: Callable[[Sequence[ScanTask]], list[Spilled]],
) -> tuple[Spilled, ...]:
    """Scan all stretches, and again those that did not begin where the one before ended."""
    spilled: dict[int, Spilled] = {}
    todo: Sequence[Stretch] = stretches
    tries = 0
    while True:
        found = run([ScanTask(stretch, recipe, str(work)) for stretch in todo])
        spilled |= {stretch.number: each for stretch, each in zip(todo, found, strict=True)}
        joined = join_stretches(stretches, spilled, tries)
        if not joined.again:
            return joined.taken
        todo = joined.again
        tries += 1


class MessageItems(NamedTuple):
    """The items of one message: the number of the first, and their hashes."""

    first: int
    key_hashes: NDArray[np.int32]


class SpilledLog:
    """The items of spills as one run, numbered from 0 in the order of the log."""

    def __init__(self, work: Path, taken: Sequence[Spilled]) -> None:
        self.taken = taken
        self._work = work
        self._begins = [spilled.begin_offset for spilled in taken]
        self._ends = list(accumulate(spilled.item_count for spilled in taken))
        self._maps = MapPool()
        self.item_count = self._ends[-1] if self._ends else 0

    def ranges(self, first: int, behind: int) -> tuple[ItemRange, ...]:
        """Items ``first`` to ``behind - 1``, by spill."""
        return tuple(item_ranges(self.taken, self._ends, first, behind))

    def items_of(self, physical_offset: int) -> MessageItems | None:
        """The items of the message at this offset; None if it has none, or is not there."""
        number = bisect_right(self._begins, physical_offset) - 1
        if number < 0:
            return None
        rows = self._rows(number)
        offsets = rows["physical_offset"]
        first, behind = bisect_left(offsets, physical_offset), bisect_right(offsets, physical_offset)
        if first == behind:
            return None
        return MessageItems(self._first(number) + first, rows["key_hash"][first:behind].copy())

    def item(self, number: int) -> tuple[int, int]:
        """Physical offset and store time of one item."""
        spill = bisect_right(self._ends, number)
        row = self._rows(spill)[number - self._first(spill)]
        return int(row["physical_offset"]), int(row["store_timestamp_ms"])

    def _first(self, spill: int) -> int:
        return self._ends[spill] - self.taken[spill].item_count

    def _rows(self, spill: int) -> NDArray[np.void]:
        name, count = self.taken[spill].name, self.taken[spill].item_count
        if not count:
            return np.empty(0, SPILLED_ITEM)
        mapped = self._maps.get(name)
        if mapped is None:
            mapped = self._maps.put(name, MappedFile(self._work / f"{name}.items"))
        return np.frombuffer(mapped.data, SPILLED_ITEM, count)

    def close(self) -> None:
        self._maps.clear()
