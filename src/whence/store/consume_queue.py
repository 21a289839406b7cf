"""ConsumeQueue: where the messages of one queue lie in the CommitLog, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from whence.errors import CorruptError, FormatError, NotFoundError
from whence.files.file_sequence import FileSequence
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE, ENTRY_STRUCT, FILLER
from whence.formats.rocketmq.message import Message
from whence.store.commit_log import CommitLog


class Boundary(Enum):
    """Which queue offset a time stands for, where several messages or none were stored at it."""

    LOWER = "lower"  # the first message stored at that time or later
    UPPER = "upper"  # the last message stored at that time or earlier


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in a queue. A filler stands where a queue did not begin at offset 0: it leads to no message."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        return ENTRY_STRUCT.pack(self.physical_offset, self.size, self.tags_code) == FILLER

    @property
    def end(self) -> int:
        """Physical offset behind the message."""
        return self.physical_offset + self.size

    @property
    def is_written(self) -> bool:
        return self.physical_offset >= 0 and self.size > 0


class ConsumeQueue:
    """The files of ``consumequeue/<topic>/<queue>/``, for reading, also while a broker appends.

    Entries are written one behind the other, so those that are written are the first ones of the last file; what
    was made ahead of need is zero. An entry is a claim: the record it leads to must bear its queue and offset.
    """

    def __init__(self, folder: Path, topic: str, queue: int, log: CommitLog) -> None:
        self.topic = topic
        self.queue = queue
        self._log = log
        self._files = FileSequence(folder)

    def entry(self, queue_offset: int) -> Entry:
        """The entry of this queue offset, which may be a filler; NotFoundError if none is written there."""
        found = self._entry(queue_offset)
        if found is None or not found.is_written:
            raise NotFoundError(f"queue {self.queue} of topic {self.topic} has no entry at offset {queue_offset}")
        return found

    def _entry(self, queue_offset: int) -> Entry | None:
        base = self._files.base_of(queue_offset * ENTRY_SIZE)
        if base is None:
            return None
        data = self._files.file(base).data
        position = queue_offset * ENTRY_SIZE - base
        if position + ENTRY_SIZE > len(data):
            return None
        return Entry(queue_offset, *ENTRY_STRUCT.unpack_from(data, position))

    def read(self, entry: Entry) -> Message:
        """The message that an entry leads to; CorruptError if it is not this queue's message of that offset."""
        message = self._log.read(entry.physical_offset)
        if (message.topic, message.queue, message.queue_offset, message.size) != (
            self.topic,
            self.queue,
            entry.queue_offset,
            entry.size,
        ):
            base = self._files.base_of(entry.queue_offset * ENTRY_SIZE) or 0
            raise CorruptError(
                f"entry {entry.queue_offset} leads to offset {entry.physical_offset}, where message "
                f"{message.queue_offset} of queue {message.queue} of topic {message.topic} lies",
                position=entry.queue_offset * ENTRY_SIZE - base,
                path=self._files.path_of(base),
            )
        return message

    def end_offset(self) -> int:
        """One above the last queue offset whose message is in the log.

        A queue that a broker cut keeps the bytes of the entries behind the cut: they lead behind the log's end or,
        once the log has grown over them, to other messages.
        """
        self._files.refresh()
        log_end = self._log.end_offset()
        end = self._written_end(lambda entry: entry.is_written and (entry.is_filler or entry.end <= log_end))
        if end > self._files.begin_offset // ENTRY_SIZE and not self._is_led_to(self.entry(end - 1)):
            end = self._written_end(
                lambda entry: entry.is_written and entry.end <= log_end and self._is_led_to(entry)
            )
        return end

    def _written_end(self, is_good: Callable[[Entry], bool]) -> int:
        for base in reversed(self._files.bases):
            first = base // ENTRY_SIZE
            count = self._files.file(base).size // ENTRY_SIZE
            end = self._first(first, first + count, lambda entry: not is_good(entry))
            if end > first:
                return end
        return self._files.begin_offset // ENTRY_SIZE

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
        end = self.end_offset()  # it notices files that have expired
        log_begin = self._log.begin_offset
        return self._first(
            self._files.begin_offset // ENTRY_SIZE,
            end,
            lambda entry: not entry.is_filler and entry.physical_offset >= log_begin,
        )

    def offset_by_time(self, timestamp_ms: int, boundary: Boundary) -> int:
        """The queue offset for a store time. Times in a queue are taken to rise, as a broker's clock should.

        No message at or before the time gives the first offset for UPPER; none at or behind it gives the end for
        LOWER. A clock that stepped back makes this inexact; a question with a time window is exact regardless.
        """
        begin, end = self.begin_offset(), self.end_offset()

        def stored(entry: Entry) -> int:
            return self._log.read(entry.physical_offset).store_timestamp_ms

        if boundary is Boundary.LOWER:
            return self._first(begin, end, lambda entry: stored(entry) >= timestamp_ms)
        return max(begin, self._first(begin, end, lambda entry: stored(entry) > timestamp_ms) - 1)

    def _first(self, low: int, high: int, holds: Callable[[Entry], bool]) -> int:
        """The first queue offset in ``[low, high)`` for which this holds, and so for all behind it; else ``high``."""
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
