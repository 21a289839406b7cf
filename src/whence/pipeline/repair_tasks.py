"""The tasks of a repair: what was found damaged is made anew from the log, aside and flushed.

    rebuild_index_task     a part of the log               -> an index file, or as many as it takes
    rebuild_queues_task    queues of a group, from spills  -> their files

As those of a build they write under names of their own, in the work folder, and rename nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import IndexHeader
from whence.pipeline.tasks import own_name, taken_names
from whence.store.commit_log import CommitLog
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan
from whence.store.queue_builder import QueueBuilder
from whence.store.spilled import spilled_runs


@dataclass(frozen=True, slots=True)
class RebuildIndexTask:
    """The items of the messages from ``from_offset`` up to ``to_offset``, in the order of the log.

    Without the first ``skipped`` ones, which are in the file before, and with the first ``more`` of the message at
    ``to_offset``. ``before``: what the file inherits.
    """

    work: str
    log_folders: tuple[str, ...]
    from_offset: int
    skipped: int
    to_offset: int
    more: int
    tags: bool
    slots: int
    items: int
    before: IndexHeader | None


@dataclass(frozen=True, slots=True)
class RebuiltFile:
    """One index file, complete and flushed, in the work folder."""

    path: str
    header: IndexHeader


def rebuild_index_task(task: RebuildIndexTask) -> tuple[RebuiltFile, ...]:
    """Make one index file anew; more than one, if more items belong there than it takes."""
    work, disk, shape = Path(task.work), Disk(), Shape(task.slots, task.items)
    folder = work / own_name("index")
    disk.make_folder(folder)
    after = None
    if task.before is not None:
        full = (task.before.begin_timestamp_ms, task.before.end_timestamp_ms)
        offsets = (task.before.begin_physical_offset, task.before.end_physical_offset)
        after = BuiltFile(folder / "before", IndexHeader(*full, *offsets, 0, shape.item_capacity))
    builder = IndexBuilder(folder, shape, disk, after)
    log = CommitLog(*map(Path, task.log_folders))
    try:
        builder.ask_for_file()
        left = task.skipped
        for batch in LogScan(log, task.from_offset, task.to_offset, tags=task.tags):
            items = batch.items[left:]
            left -= len(batch.items) - len(items)
            builder.put(items["key_hash"], items["physical_offset"], items["store_timestamp_ms"])
        if task.more:
            size = log.read(task.to_offset).size
            for batch in LogScan(log, task.to_offset, task.to_offset + size, tags=task.tags):
                items = batch.items[left : task.more]
                builder.put(items["key_hash"], items["physical_offset"], items["store_timestamp_ms"])
        return tuple(RebuiltFile(str(built.path), built.header) for built in builder.finish())
    finally:
        builder.close()
        log.close()


@dataclass(frozen=True, slots=True)
class RebuildQueuesTask:
    """``wanted``: topic and queue of those of the group that are to be made anew."""

    work: str
    group: int
    wanted: tuple[tuple[str, int], ...]
    file_size: int
    batch_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RebuiltQueues:
    """``folder``: where consumequeue/ and batchconsumequeue/ with the queues lie."""

    folder: str


def rebuild_queues_task(task: RebuildQueuesTask) -> RebuiltQueues:
    """Make queues anew."""
    work, disk = Path(task.work), Disk()
    folder = work / own_name(f"queues-{task.group}")
    disk.make_folder(folder)
    wanted = set(task.wanted)
    is_batch = frozenset(task.batch_topics).__contains__
    builder = QueueBuilder(folder / "consumequeue", task.file_size, disk, is_batch=is_batch)
    try:
        for name in taken_names(work):
            for topic, queue, rows in spilled_runs(work, name, task.group):
                if (topic, queue) in wanted:
                    builder.put_rows(topic, queue, rows)
        builder.finish()
    finally:
        builder.close()
    return RebuiltQueues(str(folder))
