"""Pass one, for who needs all of a log: stretches, their spills, and the log that they make together.

stretches = cut_stretches(log, from_offset, ...)
taken = scan_stretches(stretches, recipe, work, runner)      spills in the order of the log, each begins where
                                                             the one before ended
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from whence.files.names import OFFSET_MAX
from whence.pipeline.plan import ItemRange, LogFilePlace, cut_log, item_ranges, join_stretches, stretch_size
from whence.pipeline.task_runner import TaskRunner
from whence.pipeline.tasks import ScanTask, scan_stretch_task
from whence.store.commit_log import CommitLog
from whence.store.spill import Recipe, Spilled, Stretch, walk_stretch
from whence.store.spilled import MessageItems, SpilledItems


def cut_stretches(
    log: CommitLog, from_offset: int, slots: int, jobs: int | None, boundary: int = 0, wanted_size: int = OFFSET_MAX
) -> list[Stretch]:
    """The log from an offset on, where a record begins, in stretches.

    ``boundary``: where a record begins, too, and no stretch goes over; 0 for none. ``wanted_size``: bytes of which
    each slot is to get its part, if not of all of the log.
    """
    log.refresh()
    last_base = log.last_written_base() if log.bases else 0
    files = [
        LogFilePlace(str(log.path_of(base)[0]), base, log.file_size)
        for base in log.bases
        if base <= last_base and base + log.file_size > from_offset
    ]
    stretches: list[Stretch] = []
    size = stretch_size(min(sum(file.size for file in files), wanted_size), slots, jobs)
    for stretch in cut_log(files, from_offset, size):
        if stretch.from_offset < boundary < stretch.to_offset:
            stretches.append(replace(stretch, to_offset=boundary))
            stretch = replace(stretch, from_offset=boundary, is_exact=True)
        stretches.append(stretch)
    return [replace(stretch, number=number) for number, stretch in enumerate(stretches)]


def scan_stretches(
    stretches: Sequence[Stretch],
    recipe: Recipe,
    work: Path,
    runner: TaskRunner,
    done: Mapping[int, Spilled] | None = None,
) -> tuple[Spilled, ...]:
    """Scan all stretches that are not ``done``, and again those that did not begin where the one before ended."""
    spilled = dict(done or {})

    def scan(todo: Sequence[Stretch]) -> list[Spilled]:
        tasks = [ScanTask(stretch, recipe, str(work)) for stretch in todo]
        return runner.map("scan", scan_stretch_task, tasks, size_of=lambda task: task.stretch.size)

    return _joined(stretches, scan, spilled)


def walk_log(
    log: CommitLog, from_offset: int, to_offset: int, runner: TaskRunner, jobs: int | None
) -> tuple[Spilled, ...]:
    """Where records begin in a part of the log, both of whose ends are where one does; nothing is left of it."""
    stretches = cut_stretches(log, from_offset, runner.slots, jobs, to_offset, to_offset - from_offset)
    wanted = [stretch for stretch in stretches if stretch.from_offset < to_offset]

    def walk(todo: Sequence[Stretch]) -> list[Spilled]:
        return runner.map("walk", walk_stretch, todo, size_of=lambda stretch: stretch.size)

    return _joined(wanted, walk, {})


def _joined(
    stretches: Sequence[Stretch], scan: Callable[[Sequence[Stretch]], list[Spilled]], spilled: dict[int, Spilled]
) -> tuple[Spilled, ...]:
    todo: Sequence[Stretch] = [stretch for stretch in stretches if stretch.number not in spilled]
    tries = 0
    while True:
        found = scan(todo)
        spilled |= {stretch.number: each for stretch, each in zip(todo, found, strict=True)}
        joined = join_stretches(stretches, spilled, tries)
        if not joined.again:
            return joined.taken
        todo = joined.again
        tries += 1


class SpilledLog:
    """The items of spills as one run, numbered from 0 in the order of the log."""

    def __init__(self, work: Path, taken: Sequence[Spilled]) -> None:
        self.taken = taken
        self._work = work
        self._begins = [spilled.begin_offset for spilled in taken]
        self._ends = list(accumulate(spilled.item_count for spilled in taken))
        self.item_count = self._ends[-1] if self._ends else 0

    def ranges(self, first: int, behind: int) -> tuple[ItemRange, ...]:
        """Items ``first`` to ``behind - 1``, by spill."""
        return tuple(item_ranges(self.taken, self._ends, first, behind))

    def of_message(self, physical_offset: int) -> MessageItems | None:
        """The items of the message at this offset; None if it has none, or is not there."""
        number = bisect_right(self._begins, physical_offset) - 1
        if number < 0:
            return None
        with SpilledItems(self._work, self.taken[number].name) as items:
            found = items.of_message(physical_offset)
        return None if found is None else found._replace(first=found.first + self._first(number))

    def place(self, number: int) -> tuple[int, int]:
        """Physical offset and store time of one item."""
        spill = bisect_right(self._ends, number)
        with SpilledItems(self._work, self.taken[spill].name) as items:
            return items.place(number - self._first(spill))

    def _first(self, spill: int) -> int:
        return self._ends[spill] - self.taken[spill].item_count
