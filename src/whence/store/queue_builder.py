"""QueueBuilder: scanned records in, finished ConsumeQueue files out.

    builder = QueueBuilder(folder / "consumequeue", 6_000_000, Disk())
    builder.put(data, base_offset, messages)      rows of kernels/scan.py, again and again, in the order of the log
    built = builder.finish()                      what became of them, flushed

The bytes are those that a broker makes when it dispatches the same log into an empty folder.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.names import offset_name
from whence.formats.hashing import decode_java_utf8
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE, FILLER
from whence.formats.rocketmq.topics import DELAY, can_be_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPEN_FILES_MAX = 256
PENDING_MAX = 16 * 1048576  # bytes of entries that wait to be written, so that a queue's are written many at a time


@dataclass(frozen=True, slots=True)
class BuiltQueues:
    """What was built. ``without_folder``: topics that no folder can be named after, which have no queue."""

    queue_count: int
    entry_count: int
    dropped_count: int  # entries whose queue offset was taken already, or that no file can have
    misplaced_count: int  # entries that do not lie at their queue offset: the one before is not in the log
    without_folder: tuple[str, ...]


class _Queue:
    """One queue on disk: where its next entry is written, and what waits for that."""

    __slots__ = ("folder", "pending", "position")

    def __init__(self, folder: Path, position: int) -> None:
        self.folder = folder
        self.position = position  # in all files of the queue together
        self.pending: list[memoryview] = []


class QueueBuilder:
    """Makes the files of all queues side by side. One thread; the folder is empty at first.

    A file takes room as it is written, so that a thousand queues of a few messages are small. At most
    OPEN_FILES_MAX are open at once.
    """

    def __init__(self, folder: Path, file_size: int, disk: Disk) -> None:
        if file_size < 1:
            raise UsageError(f"a queue file of {file_size} bytes holds no entry")
        from whence.kernels.queues import NO_QUEUE, QUEUE

        self._folder = folder
        self._file_size = -(-file_size // ENTRY_SIZE) * ENTRY_SIZE  # RocketMQ rounds up, too
        self._disk = disk
        self._known = np.empty(64, QUEUE)
        self._count = 0
        self._table = np.full(256, NO_QUEUE, np.int32)
        self._topics = np.empty(4096, np.uint8)
        self._topics_size = 0
        self._places: list[tuple[str, int]] = []  # topic and queue of each number
        self._owners: dict[tuple[str, int], int] = {}  # and the other way round
        self._queues: dict[int, _Queue] = {}
        self._without_folder: dict[str, None] = {}
        self._open: OrderedDict[Path, DiskFile] = OrderedDict()
        self._pending_size = 0
        self._entry_count = self._dropped_count = self._misplaced_count = 0

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]) -> None:
        """Put the entries of scanned messages; ``data[0]`` lies at ``base_offset`` of the CommitLog."""
        from whence.kernels.queues import place_entries

        data = data.view()
        data.flags.writeable = False  # as the scan has it: to Numba a writeable array is another type
        numbers = self._number(data, base_offset, messages)
        starts, counts = np.empty(self._count, np.int64), np.zeros(self._count, np.int64)
        entries = np.empty(len(messages) * ENTRY_SIZE, np.uint8)
        dropped, misplaced = place_entries(data, base_offset, messages, numbers, self._known, starts, counts, entries)
        self._dropped_count += dropped
        self._misplaced_count += misplaced
        filled = np.flatnonzero(counts)
        places = zip(filled.tolist(), starts[filled].tolist(), counts[filled].tolist(), strict=True)
        for number, start, count in places:
            self._add(number, entries.data[ENTRY_SIZE * start : ENTRY_SIZE * (start + count)])
        if self._pending_size >= PENDING_MAX:
            self._write_pending()

    def _number(self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]) -> NDArray[np.int32]:
        """The number of each message's queue, new ones included; NO_QUEUE for what enters none."""
        from whence.kernels.queues import number_queues

        numbers = np.empty(len(messages), np.int32)
        known_before, done = self._count, 0
        while True:
            done, self._count, self._topics_size = number_queues(
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
            if done == len(messages):
                break
            self._make_room(int(messages["topic_size"][done]))
        for number in range(known_before, self._count):
            self._name(number)
        return numbers

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
        """Find the folder of a new queue, if there can be one.

        Bytes that are not UTF-8 may be one topic to Java although they differ: the first such queue owns the folder.
        """
        from whence.kernels.queues import NO_QUEUE

        known = self._known[number]
        topic_at, topic_size = int(known["topic_at"]), int(known["topic_size"])
        topic = decode_java_utf8(self._topics[topic_at : topic_at + topic_size].tobytes())
        self._places.append((topic, int(known["queue"])))
        if can_be_folder(topic):
            known["owner"] = self._owners.setdefault(self._places[number], number)
            known["is_delayed"] = topic == DELAY
        else:
            known["owner"] = NO_QUEUE
            self._without_folder[topic] = None

    def _add(self, number: int, entries: memoryview) -> None:
        queue = self._queues.get(number)
        if queue is None:
            first = int(self._known["next_offset"][number]) * ENTRY_SIZE - len(entries)
            queue = self._queues[number] = self._begin_queue(number, first)
        queue.pending.append(entries)
        self._pending_size += len(entries)
        self._entry_count += len(entries) // ENTRY_SIZE

    # -- files -----------------------------------------------------------------------------------------------

    def _begin_queue(self, number: int, position: int) -> _Queue:
        """Begin a queue at this position: fillers take the room before it in its first file."""
        topic, queue_number = self._places[number]
        folder = self._folder / topic / str(queue_number)
        self._disk.make_folder(folder)
        before = position % self._file_size
        queue = _Queue(folder, position - before)
        if before:
            self._write(queue, memoryview(FILLER * (before // ENTRY_SIZE)))
        return queue

    def _write_pending(self) -> None:
        for queue in self._queues.values():
            if queue.pending:
                self._write(queue, memoryview(b"".join(queue.pending)))
                queue.pending.clear()
        self._pending_size = 0

    def _write(self, queue: _Queue, data: memoryview) -> None:
        while data:
            position = queue.position % self._file_size
            path = queue.folder / offset_name(queue.position - position)
            taken = min(len(data), self._file_size - position)
            file = self._opened(path, is_new=position == 0)
            file.write(data[:taken], position)
            queue.position += taken
            data = data[taken:]
            if position + taken == self._file_size:
                file.flush()
                file.close()
                del self._open[path]

    def _opened(self, path: Path, *, is_new: bool) -> DiskFile:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                # Not flushed here: finish() opens it again for that, and Linux tells an error of writing to who asks.
                self._open.popitem(last=False)[1].close()
            file = self._disk.create(path, self._file_size, reserve=False) if is_new else self._disk.open(path)
            self._open[path] = file
        self._open.move_to_end(path)
        return file

    def finish(self) -> BuiltQueues:
        """Write what waits, and flush all."""
        self._write_pending()
        for queue in self._queues.values():
            position = queue.position % self._file_size
            if position:
                self._opened(queue.folder / offset_name(queue.position - position), is_new=False).flush()
            self._disk.flush_folder(queue.folder)
        self.close()
        return BuiltQueues(
            len(self._queues),
            self._entry_count,
            self._dropped_count,
            self._misplaced_count,
            tuple(self._without_folder),
        )

    def close(self) -> None:
        """Let go of all files, finished or not."""
        while self._open:
            self._open.popitem()[1].close()
