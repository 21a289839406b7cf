"""Dispatch: from the CommitLog to its index and queues, in batches through the kernels.

log -> scanned batches -> IndexBuilder     index/<17 digits>
                       -> QueueBuilder     consumequeue/<topic>/<queue>/<20 digits>, batchconsumequeue/...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whence.errors import StoreError
from whence.files.disk import Disk
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.log_scan import Batch, LogScan
from whence.store.message_store import Dialect
from whence.store.queue_builder import BuiltQueues, QueueBuilder


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What was made of a log. ``damage``: what of the log could not be read, and so is in no index and no queue."""

    from_offset: int
    to_offset: int
    message_count: int
    item_count: int
    index_files: tuple[BuiltFile, ...]
    queues: BuiltQueues
    damage: tuple[Damage, ...]


def dispatch_log(
    log: CommitLog,
    folder: Path,
    *,
    slots: int,
    items: int,
    queue_file_size: int,
    dialect: Dialect,
    disk: Disk,
    is_batch: Callable[[str], bool] = lambda topic: False,
) -> Dispatched:
    """Build index and queues of the whole log anew, below ``folder``, where neither may be yet. All is flushed.

    The bytes are those that a broker of this dialect writes when it dispatches the log once. (The names of index
    files are not: a broker names them by its clock.) ``is_batch`` tells which topics have batch queues.
    """
    for name in ("index", "consumequeue", "batchconsumequeue"):
        if (folder / name).exists():
            raise StoreError(f"{folder / name}: is there already; dispatch builds anew, in an empty folder")
    index = IndexBuilder(folder / "index", Shape(slots, items), disk)
    queues = QueueBuilder(folder / "consumequeue", queue_file_size, disk, is_batch=is_batch)
    scan = LogScan(log, log.begin_offset, tags=dialect is Dialect.V5_5)
    message_count = item_count = 0
    try:
        for batch in scan:
            queues.put(batch.data, batch.base_offset, batch.messages)
            put_items(index, batch)
            message_count += len(batch.messages)
            item_count += len(batch.items)
        built_queues = queues.finish()
        built_files = tuple(index.finish())
    finally:
        index.close()
        queues.close()
    return Dispatched(
        scan.from_offset, scan.end_offset, message_count, item_count, built_files, built_queues, tuple(scan.damage)
    )


def put_items(index: IndexBuilder, batch: Batch, skip: int = 0) -> None:
    """Put what a batch has into the index, but for its first ``skip`` items, which are there."""
    items = batch.items[skip:]
    index.put(items["key_hash"], items["physical_offset"], items["store_timestamp_ms"])
    if not len(items) or items["message"][-1] != len(batch.messages) - 1:
        index.ask_for_file()  # the last message has no item
