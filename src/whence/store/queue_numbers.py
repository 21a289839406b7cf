"""QueueNumbers: which queue each scanned message belongs to.

Queues are numbered as they are first met. Topics are told apart by their bytes, so that nothing is decoded twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.formats.hashing import decode_java_utf8, java_hash
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY
from whence.formats.rocketmq.places import LIGHT_QUEUE, inner_batch, light_queue_offsets
from whence.formats.rocketmq.properties import decode_properties
from whence.formats.rocketmq.topics import DELAY, can_be_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_COMPACTED_OFFSET = -1


class Numbered(NamedTuple):
    """Messages and the number of each one's queue; NO_QUEUE for what enters none, or a batch queue.

    A message that is in light queues is there once more for each of them, behind itself.
    """

    messages: NDArray[np.void]
    numbers: NDArray[np.int32]
    batches: list[tuple[int, NDArray[np.void]]]  # entries of batch queues, with the number of the queue


class QueueNumbers:
    """All queues that were met, in ``known`` (kernels/queues.py QUEUE) by number, their names in ``places``.

    ``is_batch`` tells of a topic whether its queues are batch queues. ``on_new`` is called with the number of each
    new queue that can have a folder.
    """

    def __init__(self, is_batch: Callable[[str], bool], on_new: Callable[[int], None] | None = None) -> None:
        from whence.kernels.queues import NO_QUEUE, QUEUE

        self.known = np.empty(64, QUEUE)
        self.count = 0
        self.places: list[tuple[str, int]] = []  # topic and queue of each number
        self.owners: dict[tuple[str, int], int] = {}  # and the other way round
        self.without_folder: dict[str, None] = {}
        self._is_batch = is_batch
        self._on_new = on_new
        self._has_batch = False
        self._has_delayed = False
        self._table = np.full(256, NO_QUEUE, np.int32)
        self._topics = np.empty(4096, np.uint8)
        self._topics_size = 0

    def number(self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]) -> Numbered:
        """The queues of scanned messages, new ones included; ``data[0]`` lies at ``base_offset`` of the CommitLog.

        A message of the delay topic gets the time of its delivery in the place of its tags' code, as its entry does.
        """
        from whence.kernels.queues import set_delivery_times

        data = data.view()
        data.flags.writeable = False  # as the scan has it: to Numba a writeable array is another type
        numbers, inner_count = self._number(data, base_offset, messages)
        if self._has_delayed:
            set_delivery_times(data, base_offset, messages, numbers, self.known)
        if inner_count:
            messages, numbers = self._with_light_rows(data, base_offset, messages, numbers)
        batches = self._take_batches(data, base_offset, messages, numbers) if self._has_batch else []
        return Numbered(messages, numbers, batches)

    def number_of(self, topic: str, queue: int) -> int:
        """The number of a queue: as if a message of it were met."""
        from whence.kernels.scan import SCANNED

        number = self.owners.get((topic, queue))
        if number is None:
            name = np.frombuffer(topic.encode(), np.uint8)
            message = np.zeros(1, SCANNED)
            message["topic_size"], message["topic_hash"] = len(name), java_hash(topic + "#")
            message["queue"] = queue
            number = int(self._number(name, 0, message)[0][0])
        return number

    def _number(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void]
    ) -> tuple[NDArray[np.int32], int]:
        """The number of each message's queue, new ones included; NO_QUEUE for what enters none.

        And how many of those that enter one have properties which tell of an inner batch or of light queues.
        """
        from whence.kernels.queues import number_queues

        numbers = np.empty(len(messages), np.int32)
        known_before, done, inner_count = self.count, 0, 0
        while True:
            done, self.count, self._topics_size, more_inner = number_queues(
                data,
                base_offset,
                messages,
                done,
                self.known,
                self.count,
                self._table,
                self._topics,
                self._topics_size,
                numbers,
            )
            inner_count += more_inner
            if done == len(messages):
                break
            self._make_room(int(messages["topic_size"][done]))
        for number in range(known_before, self.count):
            self._name(number)
        return numbers, inner_count

    def _make_room(self, topic_size: int) -> None:
        """Room for one more queue at least."""
        from whence.kernels.queues import NO_QUEUE, fill_table

        if self.count == len(self.known):
            self.known = np.concatenate([self.known, np.empty_like(self.known)])
        if 2 * self.count >= len(self._table):
            self._table = np.full(4 * len(self._table), NO_QUEUE, np.int32)
            fill_table(self.known, self.count, self._table)
        if self._topics_size + topic_size > len(self._topics):
            self._topics = np.concatenate([self._topics, np.empty(len(self._topics) + topic_size, np.uint8)])

    def _name(self, number: int) -> None:
        """Find the name of a new queue, and whether there can be a folder of that name.

        Bytes that are not UTF-8 may be one topic to Java although they differ: the first such queue owns the folder.
        """
        from whence.kernels.queues import NO_QUEUE

        known = self.known[number]
        topic_at, topic_size = int(known["topic_at"]), int(known["topic_size"])
        topic = decode_java_utf8(self._topics[topic_at : topic_at + topic_size].tobytes())
        place = (topic, int(known["queue"]))
        self.places.append(place)
        if not can_be_folder(topic):
            known["owner"] = NO_QUEUE
            self.without_folder[topic] = None
            return
        known["owner"] = self.owners.setdefault(place, number)
        known["is_delayed"] = topic == DELAY
        known["is_batch"] = self._is_batch(topic)
        self._has_delayed |= bool(known["is_delayed"])
        self._has_batch |= bool(known["is_batch"])
        if known["owner"] == number and self._on_new is not None:
            self._on_new(number)

    # -- queues that properties tell of ------------------------------------------------------------------------

    def _with_light_rows(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void], numbers: NDArray[np.int32]
    ) -> tuple[NDArray[np.void], NDArray[np.int32]]:
        """The messages, each once more for every light queue that it is in; and all their numbers."""
        from whence.kernels.queues import NO_QUEUE

        rows, row_numbers, done = [], [], 0
        for at in np.flatnonzero(messages["has_inner"]).tolist():
            number = int(numbers[at])
            # A message of a batch queue is in no light queue.
            if number == NO_QUEUE or self.known["is_batch"][number]:
                continue
            places = light_queue_offsets(self.places[number][0], _properties(data, base_offset, messages[at]))
            if places:
                light = np.repeat(messages[at], len(places))
                light["queue_offset"] = [queue_offset for _, queue_offset in places]
                rows += [messages[done : at + 1], light]
                light_numbers = [self.number_of(name, LIGHT_QUEUE) for name, _ in places]
                row_numbers += [numbers[done : at + 1], np.array(light_numbers, np.int32)]
                done = at + 1
        if not rows:
            return messages, numbers
        return np.concatenate([*rows, messages[done:]]), np.concatenate([*row_numbers, numbers[done:]])

    def _take_batches(
        self, data: NDArray[np.uint8], base_offset: int, messages: NDArray[np.void], numbers: NDArray[np.int32]
    ) -> list[tuple[int, NDArray[np.void]]]:
        """The entries of messages of batch queues, by queue; in ``numbers`` they have no queue then."""
        from whence.kernels.queues import NO_QUEUE

        rows = np.flatnonzero((numbers != NO_QUEUE) & (self.known["is_batch"][numbers] != 0))
        owners = self.known["owner"][numbers[rows]]
        numbers[rows] = NO_QUEUE
        batches = []
        for owner in np.unique(owners[owners != NO_QUEUE]).tolist():
            placed = messages[rows[owners == owner]]
            entries = np.zeros(len(placed), BATCH_ENTRY)
            for name in ("physical_offset", "size", "tags_code", "store_timestamp_ms"):
                entries[name] = placed[name]
            entries["base_offset"], entries["message_count"] = placed["queue_offset"], 1
            entries["compacted_offset"] = NO_COMPACTED_OFFSET
            for at in np.flatnonzero(placed["has_inner"]).tolist():
                batch = inner_batch(_properties(data, base_offset, placed[at]))
                if batch is not None:
                    entries["base_offset"][at], entries["message_count"][at] = batch
            batches.append((owner, entries))
        return batches


def _properties(data: NDArray[np.uint8], base_offset: int, message: np.void) -> dict[str, str]:
    """The properties of a scanned message: they lie between its topic and its end."""
    start = int(message["physical_offset"]) - base_offset
    first = start + int(message["topic_at"]) + int(message["topic_size"]) + 2
    return decode_properties(data[first : start + int(message["size"])].tobytes())
