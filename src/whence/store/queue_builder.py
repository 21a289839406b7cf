"""QueueBuilder: scanned records in, ConsumeQueue files out.

    builder = QueueBuilder(folder / "consumequeue", 6_000_000, Disk())
    builder.put(data, base_offset, messages)      rows of kernels/scan.py, again and again, in the order of the log
    builder.write()                               readers find what was put
    builder.flush()                               what was put lasts; go on
    built = builder.finish()                      what became of it, flushed

    consumequeue/<topic>/<queue>/         an entry for each message
    consumequeue/<light queue>/0/         one more, for each light queue that a message names
    batchconsumequeue/<topic>/<queue>/    an entry for each batch, of topics that have batch queues
    consumequeue_ext/<topic>/<queue>/     an ext unit for each entry of consumequeue/<topic>, where that is asked for

The bytes are those that a broker makes when it dispatches the same log. A queue that is there is gone on with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import StoreError, UsageError
from whence.files.disk import Disk
from whence.files.folder import is_folder
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, BATCH_ENTRY_SIZE, ENTRY, ENTRY_SIZE, FILLER
from whence.formats.rocketmq.topics import LIGHT_QUEUE_PREFIX, can_be_folder
from whence.store.ext_writer import ExtWriter
from whence.store.queue_files import QueueTail, queue_tail
from whence.store.queue_numbers import QueueNumbers
from whence.store.queue_writer import QueueRun, QueueWriter, UnflushedQueues

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_FILE_SIZE = 300_000 * BATCH_ENTRY_SIZE  # RocketMQ's mapperFileSizeBatchConsumeQueue


@dataclass(frozen=True, slots=True)
class BuiltQueues:
    """What was built. ``without_folder``: topics that no folder can be named after, which have no queue."""

    queue_count: int
    entry_count: int
    dropped_count: int  # entries that were there, whose queue offset was taken, or that no file can have
    misplaced_count: int  # entries that do not lie at their queue offset: the one before is not in the log
    without_folder: tuple[str, ...]


class QueueBuilder:
    """Makes the files of all queues side by side. One thread; nobody else writes to the folders.

    ``folder`` is that of ordinary queues; those of the other kinds lie beside it. ``is_batch`` tells of a topic
    whether its queues are batch queues. With an ``ext_file_size`` each entry has an ext unit.

    After an error no more can be put: what is on disk is for recovery to judge.
    """

    def __init__(
        self,
        folder: Path,
        file_size: int,
        disk: Disk,
        *,
        is_batch: Callable[[str], bool] = lambda topic: False,
        batch_file_size: int = BATCH_FILE_SIZE,
        ext_file_size: int | None = None,
    ) -> None:
        if file_size < 1 or batch_file_size < 1:
            raise UsageError(f"a queue file of {min(file_size, batch_file_size)} bytes holds no entry")
        self._folder = folder
        self._batch_folder = folder.with_name("batchconsumequeue")
        self._file_size = -(-file_size // ENTRY_SIZE) * ENTRY_SIZE  # RocketMQ rounds up, too
        self._batch_file_size = -(-batch_file_size // BATCH_ENTRY_SIZE) * BATCH_ENTRY_SIZE
        self._disk = disk
        self._is_batch = is_batch
        self._writer = QueueWriter(disk)
        self._ext = None
        if ext_file_size is not None:
            self._ext = ExtWriter(folder.with_name("consumequeue_ext"), ext_file_size, self._writer, disk)
        self._numbers = QueueNumbers(is_batch, self._go_on_with)
        self._runs: dict[int, QueueRun] = {}
        self._size_before = 0  # of the queues that were there when they were first put into
        self._entry_count = self._dropped_count = self._misplaced_count = 0

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]) -> None:
        """Put the entries of scanned messages; ``data[0]`` lies at ``base_offset`` of the CommitLog."""
        messages, numbers, batches = self._numbers.number(data, base_offset, messages)
        for number, entries in batches:
            self._place_batch(number, entries)
        self._place(messages, numbers)

    def put_rows(self, topic: str, queue: int, rows: NDArray[np.void]) -> None:
        """Put what becomes entries of one queue: QUEUED, or BATCH_ENTRY if it is a batch queue."""
        number = self._numbers.number_of(topic, queue)
        if rows.dtype == BATCH_ENTRY:
            self._place_batch(number, rows)
        else:
            self._place(rows, np.full(len(rows), number, np.int32))

    def _place(self, messages: NDArray[np.void], numbers: NDArray[np.int32]) -> None:
        """Put each message into the queue of its number."""
        from whence.kernels.queues import place_entries

        known = self._numbers.known
        starts, counts = np.empty(self._numbers.count, np.int64), np.zeros(self._numbers.count, np.int64)
        entries = np.empty(len(messages) * ENTRY_SIZE, np.uint8)
        dropped, misplaced = place_entries(messages, numbers, known, starts, counts, entries)
        self._dropped_count += dropped
        self._misplaced_count += misplaced
        filled = np.flatnonzero(counts)
        places = zip(filled.tolist(), starts[filled].tolist(), counts[filled].tolist(), strict=True)
        for number, start, count in places:
            placed = entries[ENTRY_SIZE * start : ENTRY_SIZE * (start + count)]
            topic, queue = self._numbers.places[number]
            if self._ext is not None and not topic.startswith(LIGHT_QUEUE_PREFIX):
                rows = placed.view(ENTRY)
                at = np.searchsorted(messages["physical_offset"], rows["physical_offset"])
                self._ext.replace_codes(topic, queue, rows, messages["store_timestamp_ms"][at])
            run = self._runs.get(number)
            if run is None:
                first = int(known["next_offset"][number]) - count
                run = self._runs[number] = self._begin_queue(number, first * ENTRY_SIZE)
            self._writer.append(run, placed.data)
            self._entry_count += count

    def _place_batch(self, number: int, entries: NDArray[np.void]) -> None:
        """Put entries into a batch queue, but for those that it cannot have or has already."""
        known = self._numbers.known[number]
        is_good = (entries["base_offset"] >= 0) & (entries["message_count"] > 0)
        placed = entries[is_good & (entries["physical_offset"] >= known["physical_end"])]
        self._dropped_count += len(entries) - len(placed)
        if not len(placed):
            return
        last = placed[-1]
        known["next_offset"] = last["base_offset"] + last["message_count"]
        known["physical_end"] = last["physical_offset"] + last["size"]
        if number not in self._runs:
            self._runs[number] = self._begin_queue(number, 0)
        self._writer.append(self._runs[number], placed.tobytes())
        self._entry_count += len(placed)

    def _go_on_with(self, number: int) -> None:
        """Find where a queue goes on, if it is there."""
        topic, queue = place = self._numbers.places[number]
        known = self._numbers.known[number]
        tail = self._tail(topic, queue)
        if tail is None:
            return
        for path in tail.unused:
            self._disk.remove(path)
        self._size_before += tail.size
        if tail.is_begun or known["is_batch"]:
            self._runs[number] = QueueRun(self._queue_folder(*place), self._size(topic), tail.position)
        if tail.is_begun:
            known["next_offset"] = _next_offset(tail, is_batch=bool(known["is_batch"]))
        if tail.last is not None:
            known["physical_end"] = tail.last["physical_offset"] + tail.last["size"]
        if self._ext is not None and not known["is_batch"]:
            self._ext.go_on(*place, None if tail.last is None else int(tail.last["tags_code"]))

    # -- queues that are there -------------------------------------------------------------------------------

    def end_offset(self, topic: str, queue: int) -> int:
        """The queue offset that the next message of a queue gets.

        Another thread may ask, of a queue into which nothing is being put meanwhile.
        """
        from whence.kernels.queues import NOTHING_YET

        number = self._numbers.owners.get((topic, queue))
        if number is not None and self._numbers.known["next_offset"][number] != NOTHING_YET:
            return int(self._numbers.known["next_offset"][number])
        tail = self._tail(topic, queue) if can_be_folder(topic) else None
        return 0 if tail is None else _next_offset(tail, is_batch=self._is_batch(topic))

    def _tail(self, topic: str, queue: int) -> QueueTail | None:
        folder, file_size = self._queue_folder(topic, queue), self._size(topic)
        if not is_folder(folder):
            return None
        tail = queue_tail(folder, BATCH_ENTRY if self._is_batch(topic) else ENTRY)
        if tail.is_begun and tail.file_size != file_size:
            raise StoreError(f"{folder}: its files have {tail.file_size} bytes; they cannot go on with {file_size}")
        return tail

    def _queue_folder(self, topic: str, queue: int) -> Path:
        return (self._batch_folder if self._is_batch(topic) else self._folder) / topic / str(queue)

    def _size(self, topic: str) -> int:
        """Of the files of a topic's queues."""
        return self._batch_file_size if self._is_batch(topic) else self._file_size

    def _begin_queue(self, number: int, position: int) -> QueueRun:
        """Begin a queue at this position: fillers take the room before it in its first file."""
        topic, queue = self._numbers.places[number]
        folder, file_size = self._queue_folder(topic, queue), self._size(topic)
        self._writer.make_folder(folder.parents[1], folder)
        before = position % file_size
        run = QueueRun(folder, file_size, position - before)
        if before:
            self._writer.append(run, FILLER * (before // ENTRY_SIZE))
        return run

    # -- files -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what was put and waits for more."""
        self._writer.write()

    def unflushed(self) -> UnflushedQueues:
        """What has to be flushed for all to last that was written until now. Taken once, and flushed once."""
        return self._writer.unflushed()

    def flush(self) -> None:
        """Write what waits, wait until all that was put is on the disk, and go on."""
        self.write()
        self.unflushed().flush()

    def finish(self) -> BuiltQueues:
        """Write what waits, and flush all."""
        self.flush()
        self.close()
        return BuiltQueues(
            len(self._runs),
            self._entry_count,
            self._dropped_count,
            self._misplaced_count,
            self.without_folder,
        )

    @property
    def without_folder(self) -> tuple[str, ...]:
        """Topics that no folder can be named after."""
        return tuple(self._numbers.without_folder)

    @property
    def grown_size(self) -> int:
        """By how many bytes all queues together have grown; their sizes are those of :class:`QueueTail`."""
        return sum(run.position for run in self._runs.values()) - self._size_before

    def close(self) -> None:
        """Let go of all files, finished or not."""
        self._writer.close()


def _next_offset(tail: QueueTail, *, is_batch: bool) -> int:
    """The queue offset behind the end of a queue. Entries of a batch queue lie at no place that tells it."""
    if not is_batch:
        return tail.position // ENTRY_SIZE
    return 0 if tail.last is None else int(tail.last["base_offset"]) + int(tail.last["message_count"])
