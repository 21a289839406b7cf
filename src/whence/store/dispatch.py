"""Dispatch: from the CommitLog to its index and queues, in batches through the kernels.

log -> scanned batches -> IndexBuilder     index/<17 digits>
                       -> QueueBuilder     consumequeue/<topic>/<queue>/<20 digits>
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.errors import StoreError
from whence.files.disk import Disk
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.queue_builder import BuiltQueues, QueueBuilder
from whence.store.scan import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 16_384  # messages in one batch, and items: a few megabytes, and Ctrl-C is heard between two batches
ITEM_ROWS = 65_536


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


class Batch(NamedTuple):
    """Messages of one CommitLog file in order. The arrays are used again: the next batch has the same ones."""

    data: NDArray[np.uint8]  # the file
    base_offset: int  # of its first byte
    messages: NDArray[np.void]  # SCANNED
    items: NDArray[np.void]  # ITEMS


def dispatch_log(
    log: CommitLog,
    folder: Path,
    *,
    slots: int,
    items: int,
    queue_file_size: int,
    dialect: Dialect,
    disk: Disk,
) -> Dispatched:
    """Build index and queues of the whole log anew, below ``folder``, where neither may be yet. All is flushed.

    The bytes are those that a broker of this dialect writes when it dispatches the log once. (The names of index
    files are not: a broker names them by its clock.)
    """
    for name in ("index", "consumequeue"):
        if (folder / name).exists():
            raise StoreError(f"{folder / name}: is there already; dispatch builds anew, in an empty folder")
    index = IndexBuilder(folder / "index", Shape(slots, items), disk)
    queues = QueueBuilder(folder / "consumequeue", queue_file_size, disk)
    begin, end = log.begin_offset, log.end_offset()
    damage: list[Damage] = []
    message_count = item_count = 0
    try:
        for batch in scan_batches(log, begin, end, tags=dialect is Dialect.V5_5, damage=damage):
            queues.put(batch.data, batch.base_offset, batch.messages)
            put_items(index, batch)
            message_count += len(batch.messages)
            item_count += len(batch.items)
        built_queues = queues.finish()
        built_files = tuple(index.finish())
    finally:
        index.close()
        queues.close()
    damage += [gap for _, _, gap in log.damage(end)]
    return Dispatched(begin, end, message_count, item_count, built_files, built_queues, tuple(damage))


def put_items(index: IndexBuilder, batch: Batch) -> None:
    """Put what a batch has into the index."""
    items = batch.items
    index.put(items["key_hash"], items["physical_offset"], items["store_timestamp_ms"])
    if not len(items) or items["message"][-1] != len(batch.messages) - 1:
        index.ask_for_file()  # the last message has no item


def scan_batches(
    log: CommitLog, from_offset: int, to_offset: int, *, tags: bool, damage: list[Damage]
) -> Iterator[Batch]:
    """All whole records of ``[from_offset, to_offset)``; both are where a record begins, or the log ends.

    What is not whole is added to ``damage``, and the scan goes on behind it. No batch is empty.
    """
    from whence.kernels.scan import ITEMS, SCANNED

    messages, items = np.empty(ROWS, SCANNED), np.empty(ITEM_ROWS, ITEMS)
    for begin, end in log.pieces(from_offset, to_offset):
        yield from _scan_piece(log, begin, end, tags, messages, items, damage)


def _scan_piece(
    log: CommitLog, begin: int, end: int, tags: bool, messages: Any, items: Any, damage: list[Damage]
) -> Iterator[Batch]:
    """A piece within one file."""
    from whence.kernels.scan import Status, scan_stretch

    file = log.file_of(begin)
    base = file.base
    data = np.frombuffer(file.file.data, np.uint8)
    position, end = begin - base, min(end - base, file.file.size)
    while position < end:
        result = scan_stretch(data, base, position, end, check_crc=True, tags=tags, messages=messages, items=items)
        if result.message_count:
            last = messages[result.message_count - 1]
            position = int(last["physical_offset"] + last["size"]) - base
            yield Batch(data, base, messages[: result.message_count], items[: result.item_count])
        if result.status in (Status.FULL, Status.END):
            continue
        stopped = file.what_is_at(position)
        if stopped.reason is Reason.BLANK:
            return
        found = file.resume(position)
        detail = f"{stopped.detail or 'nothing is written here'}; {found}"
        damage.append(Damage(str(file.file.path), position, DamageKind.BAD_RECORD, detail))
        position = end if found.position is None else found.position
