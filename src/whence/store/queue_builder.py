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
from whence.formats.hashing import decode_java_utf8, java_hash
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, BATCH_ENTRY_SIZE, ENTRY, ENTRY_SIZE, FILLER
from whence.formats.rocketmq.places import LIGHT_QUEUE, inner_batch, light_queue_offsets
from whence.formats.rocketmq.properties import decode_properties
from whence.formats.rocketmq.topics import DELAY, can_be_folder
from whence.store.ext_writer import ExtWriter
from whence.store.queue_files import QueueTail, queue_tail
from whence.store.queue_writer import QueueRun, QueueWriter, UnflushedQueues

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_FILE_SIZE = 300_000 * BATCH_ENTRY_SIZE  # RocketMQ's mapperFileSizeBatchConsumeQueue
NO_COMPACTED_OFFSET = -1


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
        from whence.kernels.queues import NO_QUEUE, QUEUE

        self._folder = folder
        self._batch_folder = folder.with_name("batchconsumequeue")
        self._file_size = -(-file_size // ENTRY_SIZE) * ENTRY_SIZE  # RocketMQ rounds up, too
        self._batch_file_size = -(-batch_file_size // BATCH_ENTRY_SIZE) * BATCH_ENTRY_SIZE
        self._disk = disk
        self._is_batch = is_batch
        self._has_batch = False
        self._writer = QueueWriter(disk)
        self._ext = None
        if ext_file_size is not None:
            self._ext = ExtWriter(folder.with_name("consumequeue_ext"), ext_file_size, self._writer, disk)
        self._known = np.empty(64, QUEUE)
        self._count = 0
        self._table = np.full(256, NO_QUEUE, np.int32)
        self._topics = np.empty(4096, np.uint8)
        self._topics_size = 0
        self._places: list[tuple[str, int]] = []  # topic and queue of each number
        self._owners: dict[tuple[str, int], int] = {}  # and the other way round
        self._runs: dict[int, QueueRun] = {}
        self._size_before = 0  # of the queues that were there when they were first put into
        self._without_folder: dict[str, None] = {}
        self._entry_count = self._dropped_count = self._misplaced_count = 0

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]) -> None:
        """Put the entries of scanned messages; ``data[0]`` lies at ``base_offset`` of the CommitLog."""
        data = data.view()
        data.flags.writeable = False  # as the scan has it: to Numba a writeable array is another type
        numbers, inner_count = self._number(data, base_offset, messages)
        done = 0
        for row in np.flatnonzero(messages["has_inner"]).tolist() if inner_count else ():
            light = self._light_rows(data, base_offset, messages[row], int(numbers[row]))
            if light is not None:
                self._place(data, base_offset, messages[done : row + 1], numbers[done : row + 1])
                self._place_entries(data, base_offset, *light, with_ext=False)
                done = row + 1
        self._place(data, base_offset, messages[done:], numbers[done:])

    def _place(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void], numbers: NDArray[np.int32]
    ) -> None:
        """Put each message into the queue of its number."""
        if self._has_batch:
            self._place_batches(data, base_offset, messages, numbers)
        self._place_entries(data, base_offset, messages, numbers, with_ext=True)

    def _place_entries(
        self,
        data: NDArray[np.uint8],
        base_offset: int,
        messages: NDArray[np.void],
        numbers: NDArray[np.int32],
        *,
        with_ext: bool,
    ) -> None:
        from whence.kernels.queues import place_entries

        starts, counts = np.empty(self._count, np.int64), np.zeros(self._count, np.int64)
        entries = np.empty(len(messages) * ENTRY_SIZE, np.uint8)
        dropped, misplaced = place_entries(data, base_offset, messages, numbers, self._known, starts, counts, entries)
        self._dropped_count += dropped
        self._misplaced_count += misplaced
        filled = np.flatnonzero(counts)
        places = zip(filled.tolist(), starts[filled].tolist(), counts[filled].tolist(), strict=True)
        for number, start, count in places:
            placed = entries[ENTRY_SIZE * start : ENTRY_SIZE * (start + count)]
            if with_ext and self._ext is not None:
                rows = placed.view(ENTRY)
                at = np.searchsorted(messages["physical_offset"], rows["physical_offset"])
                self._ext.replace_codes(*self._places[number], rows, messages["store_timestamp_ms"][at])
            run = self._runs.get(number)
            if run is None:
                first = int(self._known["next_offset"][number]) - count
                run = self._runs[number] = self._begin_queue(number, first * ENTRY_SIZE)
            self._writer.append(run, placed.data)
            self._entry_count += count

    def _light_rows(
        self, data: NDArray[np.uint8], base_offset: int, message: np.void, number: int
    ) -> tuple[NDArray[np.void], NDArray[np.int32]] | None:
        """The message once for each light queue that it is in, with its offset there; and their numbers.

        None if it is in none. A message of a batch queue is in no light queue.
        """
        if number < 0 or self._known["is_batch"][number]:
            return None
        places = light_queue_offsets(self._places[number][0], _properties(data, base_offset, message))
        if not places:
            return None
        rows = np.repeat(message, len(places))
        rows["queue_offset"] = [queue_offset for _, queue_offset in places]
        return rows, np.array([self._number_of(name) for name, _ in places], np.int32)

    def _number_of(self, light_queue: str) -> int:
        """The number of a light queue: as if a message of that topic were put."""
        from whence.kernels.scan import SCANNED

        number = self._owners.get((light_queue, LIGHT_QUEUE))
        if number is None:
            name = np.frombuffer(light_queue.encode(), np.uint8)
            message = np.zeros(1, SCANNED)
            message["topic_size"], message["topic_hash"] = len(name), java_hash(light_queue + "#")
            number = int(self._number(name, 0, message)[0][0])
        return number

    def _place_batches(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void], numbers: NDArray[np.int32]
    ) -> None:
        """Put the messages of batch queues into them; in ``numbers`` they have no queue then."""
        from whence.kernels.queues import NO_QUEUE

        rows = np.flatnonzero((numbers != NO_QUEUE) & (self._known["is_batch"][numbers] != 0))
        owners = self._known["owner"][numbers[rows]]
        numbers[rows] = NO_QUEUE
        rows = rows[owners != NO_QUEUE]
        owners = owners[owners != NO_QUEUE]
        bases, counts = messages["queue_offset"][rows], np.ones(len(rows), np.int64)
        for at in np.flatnonzero(messages["has_inner"][rows]).tolist():
            batch = inner_batch(_properties(data, base_offset, messages[rows[at]]))
            if batch is not None:
                bases[at], counts[at] = batch
        is_good = (bases >= 0) & (counts > 0)
        for number in np.unique(owners).tolist():
            known = self._known[number]
            is_new = messages["physical_offset"][rows] >= known["physical_end"]
            mine = np.flatnonzero(is_good & is_new & (owners == number))
            self._dropped_count += int(np.count_nonzero(owners == number)) - len(mine)
            if not len(mine):
                continue
            placed = messages[rows[mine]]
            entries = np.zeros(len(mine), BATCH_ENTRY)
            for name in ("physical_offset", "size", "tags_code", "store_timestamp_ms"):
                entries[name] = placed[name]
            entries["base_offset"], entries["message_count"] = bases[mine], counts[mine]
            entries["compacted_offset"] = NO_COMPACTED_OFFSET
            known["next_offset"] = bases[mine[-1]] + counts[mine[-1]]
            known["physical_end"] = placed["physical_offset"][-1] + placed["size"][-1]
            if number not in self._runs:
                self._runs[number] = self._begin_queue(number, 0)
            self._writer.append(self._runs[number], entries.tobytes())
            self._entry_count += len(entries)

    # -- numbers ---------------------------------------------------------------------------------------------

    def _number(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]
    ) -> tuple[NDArray[np.int32], int]:
        """The number of each message's queue, new ones included; NO_QUEUE for what enters none.

        And how many of those that enter one have properties which tell of an inner batch or of light queues.
        """
        from whence.kernels.queues import number_queues

        numbers = np.empty(len(messages), np.int32)
        known_before, done, inner_count = self._count, 0, 0
        while True:
            done, self._count, self._topics_size, more_inner = number_queues(
                data,
                base_offset,
                messages,
                done,
                self._known,
                self._count,
                self._table,
                self._topics,
                self._topics_size,
                numbers,
            )
            inner_count += more_inner
            if done == len(messages):
                break
            self._make_room(int(messages["topic_size"][done]))
        for number in range(known_before, self._count):
            self._name(number)
        return numbers, inner_count

    def _make_room(self, topic_size: int) -> None:
        """Room for one more queue at least."""
        from whence.kernels.queues import NO_QUEUE, fill_table

        if self._count == len(self._known):
            self._known = np.concatenate([self._known, np.empty_like(self._known)])
        if 2 * self._count >= len(self._table):
            self._table = np.full(4 * len(self._table), NO_QUEUE, np.int32)
            fill_table(self._known, self._count, self._table)
        if self._topics_size + topic_size > len(self._topics):
            self._topics = np.concatenate([self._topics, np.empty(len(self._topics) + topic_size, np.uint8)])

    def _name(self, number: int) -> None:
        """Find the folder of a new queue, if there can be one, and where the queue goes on if it is there.

        Bytes that are not UTF-8 may be one topic to Java although they differ: the first such queue owns the folder.
        """
        from whence.kernels.queues import NO_QUEUE

        known = self._known[number]
        topic_at, topic_size = int(known["topic_at"]), int(known["topic_size"])
        topic = decode_java_utf8(self._topics[topic_at : topic_at + topic_size].tobytes())
        place = (topic, int(known["queue"]))
        self._places.append(place)
        if not can_be_folder(topic):
            known["owner"] = NO_QUEUE
            self._without_folder[topic] = None
            return
        known["owner"] = self._owners.setdefault(place, number)
        known["is_delayed"] = topic == DELAY
        known["is_batch"] = self._is_batch(topic)
        self._has_batch |= bool(known["is_batch"])
        tail = self._tail(*place)
        if tail is not None and known["owner"] == number:
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

        number = self._owners.get((topic, queue))
        if number is not None and self._known["next_offset"][number] != NOTHING_YET:
            return int(self._known["next_offset"][number])
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
        topic, queue = self._places[number]
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
            tuple(self._without_folder),
        )

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


def _properties(data: NDArray[np.uint8], base_offset: int, message: np.void) -> dict[str, str]:
    """The properties of a scanned message: they lie between its topic and its end."""
    start = int(message["physical_offset"]) - base_offset
    first = start + int(message["topic_at"]) + int(message["topic_size"]) + 2
    return decode_properties(data[first : start + int(message["size"])].tobytes())
