"""The tasks of a verify: files held against spills. They write nothing, and return what they found.

check_index_task     an index file          and its range of items
check_queues_task    a group of queues      and their runs of rows
check_times_task     files of time blocks   and those of the spills
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import StoreError
from whence.files.map_pool import MapPool
from whence.files.mapped_file import read_whole
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY
from whence.formats.rocketmq.index_file import IndexHeader
from whence.formats.time_blocks import TIME_BLOCK, join_time_blocks
from whence.pipeline.plan import ItemRange
from whence.pipeline.tasks import taken_names
from whence.store.findings import LISTED_MAX, Finding, FindingKind
from whence.store.index_check import IndexCheck, IndexFindings
from whence.store.index_file import Shape
from whence.store.queue_builder import BATCH_FILE_SIZE
from whence.store.queue_check import QueueCheck, QueueFindings, StartedCheck
from whence.store.spill import TIMES_SIZE_MAX
from whence.store.spilled import spilled_items, spilled_runs, spilled_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from whence.store.index_check import ItemBatch

REPAIR_TIMES = "make these time blocks anew from the log"


@dataclass(frozen=True, slots=True)
class IndexCheckTask:
    """One index file: the ranges of items it should have, and what :class:`IndexCheck` has to know."""

    work: str
    path: str
    slots: int
    items: int
    ranges: tuple[ItemRange, ...]
    begin_offset: int
    end_offset: int
    before: IndexHeader | None
    is_first_known: bool
    begun: int
    is_live: bool
    is_exact: bool


def check_index_task(task: IndexCheckTask) -> IndexFindings:
    """Check one index file."""
    check = IndexCheck(
        Path(task.path),
        Shape(task.slots, task.items),
        task.begin_offset,
        task.end_offset,
        inherited=task.before,
        is_inherited=task.is_first_known,
        begun=task.begun,
        is_live=task.is_live,
        is_exact=task.is_exact,
    )
    return check.run(_expected_items(task))


def _expected_items(task: IndexCheckTask) -> Iterator[ItemBatch]:
    for part in task.ranges:
        yield from spilled_items(Path(task.work), part.name, part.first, part.count)


@dataclass(frozen=True, slots=True)
class QueueCheckTask:
    """One group of queues below ``root``. ``there``: those of the group that are on the disk."""

    work: str
    root: str
    group: int
    there: tuple[tuple[str, int], ...]
    file_size: int
    batch_topics: tuple[str, ...]
    begin_offset: int
    end_offset: int
    is_live: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class CheckedQueue:
    """What was found of one queue."""

    topic: str
    queue: int
    found: QueueFindings


@dataclass(frozen=True, slots=True)
class CheckedQueues:
    """What was found of a group: all queues with a finding, and how many there are."""

    queue_count: int
    entry_count: int
    damaged: tuple[CheckedQueue, ...]


def check_queues_task(task: QueueCheckTask) -> CheckedQueues:
    """Check a group of queues."""
    maps = MapPool()
    started: dict[tuple[str, int], StartedCheck] = {}

    def check_of(topic: str, queue: int) -> StartedCheck:
        if (topic, queue) not in started:
            is_batch = topic in task.batch_topics
            check = QueueCheck(
                Path(task.root, "batchconsumequeue" if is_batch else "consumequeue", topic, str(queue)),
                BATCH_FILE_SIZE if is_batch else task.file_size,
                task.begin_offset,
                task.end_offset,
                is_batch=is_batch,
                is_open=task.is_live,
                is_exact=task.is_exact,
            )
            started[topic, queue] = check.start(maps)
        return started[topic, queue]

    for name in taken_names(Path(task.work)):
        for topic, queue, rows in spilled_runs(Path(task.work), name, task.group):
            if rows.dtype == BATCH_ENTRY:
                check_of(topic, queue).put(rows, rows["base_offset"].astype(np.int64))
            else:
                check_of(topic, queue).put(_entries(rows), rows["queue_offset"])
    for topic, queue in task.there:
        check_of(topic, queue)
    entry_count, listed_count = 0, 0
    damaged = []
    for (topic, queue), check in started.items():
        found = check.finish()
        entry_count += found.entry_count
        if not found.is_healthy:
            # Where all queues are damaged, a few are told in full, and of the others the first place.
            del found.listed[1 if listed_count >= LISTED_MAX else LISTED_MAX :]
            listed_count += len(found.listed)
            damaged.append(CheckedQueue(topic, queue, found))
    return CheckedQueues(len(started), entry_count, tuple(damaged))


def _entries(rows: NDArray[np.void]) -> NDArray[np.void]:
    entries = np.empty(len(rows), ENTRY)
    for name in ENTRY.names or ():
        entries[name] = rows[name]
    return entries


@dataclass(frozen=True, slots=True)
class TimesCheckTask:
    """``files``: path of time blocks, and the spills of their file of the log."""

    work: str
    files: tuple[tuple[str, tuple[str, ...]], ...]


def check_times_task(task: TimesCheckTask) -> tuple[Finding, ...]:
    """Check the time blocks of some files of the log. Each file that is damaged is told, for each is mended."""
    found = []
    for name, spills in task.files:
        expected = np.empty(0, TIME_BLOCK)
        for spill in spills:
            expected = join_time_blocks(expected, np.frombuffer(spilled_times(Path(task.work), spill), TIME_BLOCK))
        finding = _differing_block(Path(name), expected)
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _differing_block(path: Path, expected: NDArray[np.void]) -> Finding | None:
    try:
        data = read_whole(path, TIMES_SIZE_MAX)
    except StoreError as error:
        return Finding(path, 0, FindingKind.UNREADABLE, str(error), REPAIR_TIMES)
    should = expected.tobytes()
    if data == should:
        return None
    if len(data) != len(should):
        what = f"the file has {len(data)} bytes, not {len(should)}"
        return Finding(path, min(len(data), len(should)), FindingKind.WRONG_SIZE, what, REPAIR_TIMES)
    size = TIME_BLOCK.itemsize
    number = next(
        n for n in range(len(expected)) if data[size * n : size * (n + 1)] != should[size * n : size * (n + 1)]
    )
    what = f"entry {number} does not tell the first record and the times of its block"
    return Finding(path, size * number, FindingKind.WRONG_TIME, what, REPAIR_TIMES)
