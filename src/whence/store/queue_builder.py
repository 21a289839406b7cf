"""QueueBuilder: scanned records in, ConsumeQueue files out.

    builder = QueueBuilder(folder / "consumequeue", 6_000_000, Disk())
    builder.put(data, base_offset, messages)      rows of kernels/scan.py, again and again, in the order of the log
    builder.write()                               readers find what was put
    builder.flush()                               what was put lasts; go on
    built = builder.finish()                      what became of it, flushed

The bytes are those that a broker makes when it dispatches the same log. A queue that is there is gone on with.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import StoreError, UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.folder import is_folder
from whence.files.names import offset_name
from whence.formats.hashing import decode_java_utf8
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE, FILLER
from whence.formats.rocketmq.topics import DELAY, can_be_folder
from whence.store.queue_files import QueueTail, queue_tail

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


@dataclass(frozen=True, slots=True)
class UnflushedQueues:
    """What was written when this was taken. Any thread may flush it, also while more is written."""

    paths: tuple[Path, ...]
    folders: tuple[Path, ...]
    disk: Disk

    def flush(self) -> None:
        """Wait until all of it is on the disk. Linux tells an error of writing to who asks, whoever wrote."""
        for path in self.paths:
            with self.disk.open(path) as file:
                file.flush()
        for folder in self.folders:
            self.disk.flush_folder(folder)


class _Queue:
    """One queue on disk: where its next entry is written, and what waits for that."""

    __slots__ = ("folder", "pending", "position")

    def __init__(self, folder: Path, position: int) -> None:
        self.folder = folder
        self.position = position  # in all files of the queue together
        self.pending: list[memoryview] = []


class QueueBuilder:
    """Makes the files of all queues side by side. One thread; nobody else writes to the folder.

    A file takes room as it is written, so that a thousand queues of a few messages are small. At most
    OPEN_FILES_MAX are open at once. After an error no more can be put: what is on disk is for recovery to judge.
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
        self._pending: list[_Queue] = []
        self._pending_size = 0
        self._unflushed: dict[Path, None] = {}
        self._changed_folders: dict[Path, None] = {}
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
            self.write()

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
        tail = self._tail(*place)
        if tail is not None and known["owner"] == number:
            for path in tail.unused:
                self._disk.remove(path)
            if tail.is_begun:
                known["next_offset"] = tail.position // ENTRY_SIZE
                known["physical_end"] = 0 if tail.last is None else tail.last["physical_offset"] + tail.last["size"]
                self._queues[number] = _Queue(self._queue_folder(*place), tail.position)

    def _add(self, number: int, entries: memoryview) -> None:
        queue = self._queues.get(number)
        if queue is None:
            first = int(self._known["next_offset"][number]) * ENTRY_SIZE - len(entries)
            queue = self._queues[number] = self._begin_queue(number, first)
        if not queue.pending:
            self._pending.append(queue)
        queue.pending.append(entries)
        self._pending_size += len(entries)
        self._entry_count += len(entries) // ENTRY_SIZE

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
        return 0 if tail is None else tail.position // ENTRY_SIZE

    def _tail(self, topic: str, queue: int) -> QueueTail | None:
        folder = self._queue_folder(topic, queue)
        if not is_folder(folder):
            return None
        tail = queue_tail(folder)
        if tail.is_begun and tail.file_size != self._file_size:
            raise StoreError(
                f"{folder}: its files have {tail.file_size} bytes; they cannot go on with {self._file_size}"
            )
        return tail

    def _queue_folder(self, topic: str, queue: int) -> Path:
        return self._folder / topic / str(queue)

    # -- files -----------------------------------------------------------------------------------------------

    def _begin_queue(self, number: int, position: int) -> _Queue:
        """Begin a queue at this position: fillers take the room before it in its first file."""
        folder = self._queue_folder(*self._places[number])
        self._disk.make_folder(self._folder)
        self._disk.add_folder(folder.parent)  # a flush of each would take longer than all else
        self._disk.add_folder(folder)
        self._changed_folders |= {self._folder: None, folder.parent: None}
        before = position % self._file_size
        queue = _Queue(folder, position - before)
        if before:
            self._write(queue, memoryview(FILLER * (before // ENTRY_SIZE)))
        return queue

    def write(self) -> None:
        """Write what was put and waits for more."""
        for queue in self._pending:
            self._write(queue, memoryview(b"".join(queue.pending)))
            queue.pending.clear()
        self._pending.clear()
        self._pending_size = 0

    def _write(self, queue: _Queue, data: memoryview) -> None:
        while data:
            position = queue.position % self._file_size
            path = queue.folder / offset_name(queue.position - position)
            taken = min(len(data), self._file_size - position)
            file = self._opened(path, is_new=position == 0)
            file.write(data[:taken], position)
            self._unflushed[path] = None
            queue.position += taken
            data = data[taken:]
            if position + taken == self._file_size:
                file.close()
                del self._open[path]

    def _opened(self, path: Path, *, is_new: bool) -> DiskFile:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
            if is_new:
                file = self._disk.create(path, self._file_size, reserve=False)
                self._changed_folders[path.parent] = None
            else:
                file = self._disk.open(path)
            self._open[path] = file
        self._open.move_to_end(path)
        return file

    def unflushed(self) -> UnflushedQueues:
        """What has to be flushed for all to last that was written until now. Taken once, and flushed once."""
        paths, self._unflushed = tuple(self._unflushed), {}
        folders, self._changed_folders = tuple(self._changed_folders), {}
        return UnflushedQueues(paths, folders, self._disk)

    def flush(self) -> None:
        """Write what waits, wait until all that was put is on the disk, and go on."""
        self.write()
        self.unflushed().flush()

    def finish(self) -> BuiltQueues:
        """Write what waits, and flush all."""
        self.flush()
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
