"""ConsumeQueue: where the messages of one queue lie in the CommitLog, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from whence.errors import CorruptError, FormatError, NotFoundError
from whence.files.file_sequence import FileSequence
from whence.files.folder import is_folder
from whence.formats.rocketmq.consume_queue import (
    BATCH_ENTRY_SIZE,
    BATCH_ENTRY_STRUCT,
    ENTRY_SIZE,
    ENTRY_STRUCT,
    FILLER,
    decode_ext_unit,
    ext_position,
    is_ext_address,
)
from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.places import offsets_in_queue
from whence.store.commit_log import CommitLog


class Boundary(Enum):
    """Which queue offset a time stands for, where several messages or none were stored at it."""

    LOWER = "lower"  # the first message stored at that time or later
    UPPER = "upper"  # the last message stored at that time or earlier


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in a queue. A filler stands where a queue did not begin at offset 0: it leads to no message.

    In a batch queue it stands for ``message_count`` queue offsets, of which ``queue_offset`` is the first.
    ``tags_code`` is as stored: :meth:`ConsumeQueue.tags_code` tells what it means.
    """

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    message_count: int = 1

    @property
    def is_filler(self) -> bool:
        return ENTRY_STRUCT.pack(self.physical_offset, self.size, self.tags_code) == FILLER

    @property
    def end(self) -> int:
        """Physical offset behind the message."""
        return self.physical_offset + self.size

    @property
    def next_queue_offset(self) -> int:
        """The one behind those that the entry stands for."""
        return self.queue_offset + self.message_count

    @property
    def is_written(self) -> bool:
        return self.physical_offset >= 0 and self.size > 0 and self.queue_offset >= 0 and self.message_count > 0


class ConsumeQueue:
    """The files of ``consumequeue/<topic>/<queue>/``, for reading, also while a broker appends.

    Entries are written one behind the other, so those that are written are the first ones of the last file; what
    was made ahead of need is zero. An entry is a claim: the record it leads to must bear its queue and offset, or
    name them, where the queue is a light queue.
    """

    entry_size = ENTRY_SIZE

    def __init__(self, folder: Path, topic: str, queue: int, log: CommitLog) -> None:
        self.topic = topic
        self.queue = queue
        self._log = log
        self._folder = folder
        self._files = FileSequence(folder)

    def entry(self, queue_offset: int) -> Entry:
        """The entry of this queue offset, which may be a filler; NotFoundError if none is written there."""
        found = self._entry(queue_offset)
        if found is None or not found.is_written:
            raise self._no_entry(queue_offset)
        return found

    def _no_entry(self, queue_offset: int) -> NotFoundError:
        return NotFoundError(f"queue {self.queue} of topic {self.topic} has no entry at offset {queue_offset}")

    def _entry(self, number: int) -> Entry | None:
        """An entry by its number, which is its queue offset."""
        place = self._place(number)
        return None if place is None else Entry(number, *ENTRY_STRUCT.unpack_from(*place))

    def _place(self, number: int) -> tuple[memoryview, int] | None:
        """The file with this entry, and the entry's position in it."""
        base = self._files.base_of(number * self.entry_size)
        if base is None:
            return None
        data = self._files.file(base).data
        position = number * self.entry_size - base
        return None if position + self.entry_size > len(data) else (data, position)

    def read(self, entry: Entry) -> Message:
        """The message that an entry leads to; CorruptError if it is not this queue's message of that offset."""
        message = self._log.read(entry.physical_offset)
        if message.size != entry.size or entry.queue_offset not in offsets_in_queue(message, self.topic, self.queue):
            position = self._number_of(entry) * self.entry_size
            base = self._files.base_of(position) or 0
            raise CorruptError(
                f"entry {entry.queue_offset} leads to offset {entry.physical_offset}, where message "
                f"{message.queue_offset} of queue {message.queue} of topic {message.topic} lies",
                position=position - base,
                path=self._files.path_of(base),
            )
        return message

    def _number_of(self, entry: Entry) -> int:
        return entry.queue_offset

    def tags_code(self, entry: Entry) -> int:
        """What an entry keeps of the tags of its message, wherever it keeps it."""
        if not is_ext_address(entry.tags_code):
            return entry.tags_code
        folder = self._folder.parents[2] / "consumequeue_ext" / self._folder.parent.name / self._folder.name
        if not is_folder(folder):
            raise NotFoundError(f"{folder}: is not there, but entry {entry.queue_offset} leads to it")
        files = FileSequence(folder)
        try:
            position = ext_position(entry.tags_code)
            base = files.base_of(position)
            unit = None if base is None else decode_ext_unit(files.file(base).data, position - base)[0]
            if unit is None:
                raise NotFoundError(f"{folder}: has no unit at {position}, where entry {entry.queue_offset} leads to")
            return unit.tags_code
        finally:
            files.close()

    def end_offset(self) -> int:
        """One above the last queue offset whose message is in the log.

        A queue that a broker cut keeps the bytes of the entries behind the cut: they lead behind the log's end or,
        once the log has grown over them, to other messages.
        """
        return self._offset_of(self._end_number())

    def _offset_of(self, number: int) -> int:
        """The queue offset at which an entry begins, or would begin."""
        return number

    def _end_number(self) -> int:
        self._files.refresh()
        log_end = self._log.end_offset()
        end = self._written_end(lambda entry: entry.is_written and (entry.is_filler or entry.end <= log_end))
        if end > self._first_number():
            last = self._entry(end - 1)
            assert last is not None
            if not self._is_led_to(last):
                end = self._written_end(
                    lambda entry: entry.is_written and entry.end <= log_end and self._is_led_to(entry)
                )
        return end

    def _written_end(self, is_good: Callable[[Entry], bool]) -> int:
        for base in reversed(self._files.bases):
            first, file = base // self.entry_size, self._files.file(base)
            # Nothing is written in a hole. To look there takes long, and on a full tmpfs the process is killed.
            count = -(-file.next_hole(0) // self.entry_size)
            end = self._first(first, first + count, lambda entry: not is_good(entry))
            if end > first:
                return end
        return self._first_number()

    def _first_number(self) -> int:
        return self._files.begin_offset // self.entry_size

    def _is_led_to(self, entry: Entry) -> bool:
        if entry.is_filler or entry.physical_offset < self._log.begin_offset:
            return True  # of a message that has expired, nothing tells otherwise
        try:
            self.read(entry)
        except (FormatError, NotFoundError):
            return False
        return True

    def begin_offset(self) -> int:
        """The first queue offset whose message is still in the log; fillers lead to none."""
        return self._offset_of(self._begin_number())

    def _begin_number(self) -> int:
        end = self._end_number()  # it notices files that have expired
        log_begin = self._log.begin_offset
        return self._first(
            self._first_number(), end, lambda entry: not entry.is_filler and entry.physical_offset >= log_begin
        )

    def offset_by_time(self, timestamp_ms: int, boundary: Boundary) -> int:
        """The queue offset for a store time. Times in a queue are taken to rise, as a broker's clock should.

        No message at or before the time gives the first offset for UPPER; none at or behind it gives the end for
        LOWER. A clock that stepped back makes this inexact; a question with a time window is exact regardless.
        """
        begin, end = self._begin_number(), self._end_number()

        def stored(entry: Entry) -> int:
            return self._log.read(entry.physical_offset).store_timestamp_ms

        if boundary is Boundary.LOWER:
            return self._offset_of(self._first(begin, end, lambda entry: stored(entry) >= timestamp_ms))
        behind = self._first(begin, end, lambda entry: stored(entry) > timestamp_ms)
        return self._offset_of(begin) if behind == begin else self._offset_of(behind) - 1

    def _first(self, low: int, high: int, holds: Callable[[Entry], bool]) -> int:
        """The first entry number in ``[low, high)`` for which this holds, and so for all behind it; else ``high``."""
        while low < high:
            middle = (low + high) // 2
            entry = self._entry(middle)
            if entry is None or holds(entry):
                high = middle
            else:
                low = middle + 1
        return low

    def close(self) -> None:
        self._files.close()


class BatchQueue(ConsumeQueue):
    """The files of ``batchconsumequeue/<topic>/<queue>/``: an entry for each record, of one message or of many.

    The number of an entry tells nothing of its queue offset, so that an offset is searched for: they rise.
    """

    entry_size = BATCH_ENTRY_SIZE

    def entry(self, queue_offset: int) -> Entry:
        """The entry that stands for this queue offset, and for others; NotFoundError if none does."""
        end = self._end_number()
        number = self._first(self._first_number(), end, lambda entry: entry.next_queue_offset > queue_offset)
        found = self._entry(number)
        if number == end or found is None or found.queue_offset > queue_offset:
            raise self._no_entry(queue_offset)
        return found

    def _entry(self, number: int) -> Entry | None:
        place = self._place(number)
        if place is None:
            return None
        physical_offset, size, tags_code, _, base_offset, count, _, _ = BATCH_ENTRY_STRUCT.unpack_from(*place)
        return Entry(base_offset, physical_offset, size, tags_code, count)

    def _number_of(self, entry: Entry) -> int:
        behind = (self._files.bases[-1] + self._files.file_size) // self.entry_size
        return self._first(self._first_number(), behind, lambda other: other.queue_offset >= entry.queue_offset)

    def _offset_of(self, number: int) -> int:
        """That of the entry or, behind the last one, the one that the next message gets."""
        entry = self._entry(number)
        if entry is not None and entry.is_written and number < self._end_number():
            return entry.queue_offset
        before = self._entry(number - 1) if number > self._first_number() else None
        return 0 if before is None else before.next_queue_offset
