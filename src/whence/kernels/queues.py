"""Entries of ConsumeQueues: scanned records grouped by topic and queue, and encoded.

    number_queues    gives each record the number of its queue; what it has not seen yet becomes a new queue
    set_delivery_times    what entries of the delay topic say
    place_entries    puts them next to the others of their queue, and decides which are placed, as RocketMQ does

Topics are told apart by their bytes; the hash only says where to look, so that a collision costs a comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.formats.rocketmq.consume_queue import ENTRY, ENTRY_SIZE
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.intrinsics import address_of, is_equal, load_i8, prefetch, store_i32, store_i64

QUEUE = np.dtype(
    [
        ("topic_at", np.int64),  # where its topic's bytes lie in the array of topics
        ("next_offset", np.int64),  # the queue offset that the next entry gets; NOTHING_YET before the first
        ("physical_end", np.int64),  # behind the message of its last entry; 0 before the first
        ("topic_record", np.int64),  # a record with its topic, which ``topic_before`` leads to; or NOTHING_YET
        ("topic_size", np.int32),
        ("topic_hash", np.int32),
        ("queue", np.int32),
        ("owner", np.int32),  # the queue that gets its entries: itself, or NO_QUEUE where that cannot be on disk
        ("is_delayed", np.int32),  # whether it belongs to the delay topic
        ("is_batch", np.int32),  # whether it is a batch queue, whose entries are not placed here
    ],
    align=True,
)
QUEUED = np.dtype(
    [("physical_offset", np.int64), ("queue_offset", np.int64), ("tags_code", np.int64), ("size", np.int32)]
)
"""What becomes an entry of a queue."""
NO_QUEUE = -1
NOTHING_YET = -1
QUEUE_OFFSET_MAX = (2**63 - 1) // ENTRY_SIZE - 2**32  # far enough from the end that no sum overflows

DELAYS_MS = 1000 * np.array(
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200], np.int64
)
"""How long a message of each delay level waits: RocketMQ's ``messageDelayLevel``, unless it was configured."""
DELAY_LEVEL_MAX = len(DELAYS_MS)

_AHEAD = 16  # topics lie far apart: without asking ahead for them, numbering took twice as long

_NONE = int(Transaction.NONE)
_COMMIT = int(Transaction.COMMIT)
assert ENTRY.fields is not None
_SIZE_AT, _TAGS_CODE_AT = (ENTRY.fields[name][1] for name in ("size", "tags_code"))


@kernel
def number_queues(
    data: Any,
    base_offset: int,
    messages: Any,
    first: int,
    queues: Any,
    queue_count: int,
    table: Any,
    topics: Any,
    topics_size: int,
    numbers: Any,
) -> tuple[int, int, int, int]:
    """Fill ``numbers`` from message ``first`` on.

    Tells how far it came, how many queues there are, how long ``topics`` is, and how many of the messages have
    properties that tell of an inner batch or of light queues.

    It stops before a message whose queue is new and finds no room in ``queues``, in ``topics``, or in the hash
    ``table``, of which at most half is used: make room and go on. Prepared and rollback messages enter no queue.
    """
    data_at = address_of(data)
    topics_at = address_of(topics)
    mask = len(table) - 1
    inner_count = 0
    for row in range(first, len(messages)):
        ahead = messages[min(row + _AHEAD, len(messages) - 1)]
        if ahead.topic_before == 0:
            prefetch(data_at + ahead.physical_offset - base_offset + ahead.topic_at)
        message = messages[row]
        transaction = message.sys_flag & TRANSACTION_MASK
        if transaction != _NONE and transaction != _COMMIT:
            numbers[row] = NO_QUEUE
            continue
        topic = data_at + message.physical_offset - base_offset + message.topic_at
        topic_record = message.physical_offset - message.topic_before
        place = table_place(message.topic_hash, message.queue, mask)
        while table[place] != NO_QUEUE:
            known = queues[table[place]]
            if known.topic_hash == message.topic_hash and known.queue == message.queue:
                if message.topic_before and known.topic_record == topic_record:
                    break
                if known.topic_size == message.topic_size:
                    if is_equal(topic, topics_at + known.topic_at, message.topic_size):
                        if message.topic_before:
                            known.topic_record = topic_record
                        break
            place = (place + 1) & mask
        if table[place] == NO_QUEUE:
            is_full = queue_count == len(queues) or 2 * queue_count >= len(table)
            if is_full or topics_size + message.topic_size > len(topics):
                return row, queue_count, topics_size, inner_count
            new = queues[queue_count]
            new.topic_at = topics_size
            new.next_offset = NOTHING_YET
            new.physical_end = 0
            new.topic_record = NOTHING_YET
            new.topic_size = message.topic_size
            new.topic_hash = message.topic_hash
            new.queue = message.queue
            new.owner = queue_count
            new.is_delayed = 0
            new.is_batch = 0
            for i in range(message.topic_size):
                topics[topics_size + i] = load_i8(topic + i)
            table[place] = queue_count
            topics_size += message.topic_size
            queue_count += 1
        numbers[row] = table[place]
        inner_count += message.has_inner
    return len(messages), queue_count, topics_size, inner_count


@kernel
def fill_table(queues: Any, queue_count: int, table: Any) -> None:
    """Put all queues into an empty table."""
    mask = len(table) - 1
    for number in range(queue_count):
        place = table_place(queues[number].topic_hash, queues[number].queue, mask)
        while table[place] != NO_QUEUE:
            place = (place + 1) & mask
        table[place] = number


@inlined
def table_place(topic_hash: int, queue: int, mask: int) -> int:
    """Where to look first: neighbouring queues of a topic lie side by side."""
    h = (topic_hash & 0xFFFFFFFF) * 0x9E3779B97F4A7C1 & 0x7FFFFFFFFFFFFFFF
    return ((h >> 24) + queue) & mask


@kernel
def set_delivery_times(data: Any, base_offset: int, messages: Any, numbers: Any, queues: Any) -> None:
    """Put the time of its delivery in the place of the tags' code of each message of the delay topic."""
    data_at = address_of(data)
    for row in range(len(messages)):
        if numbers[row] == NO_QUEUE or not queues[numbers[row]].is_delayed:
            continue
        message = messages[row]
        if message.delay_level_size > 0:
            record = data_at + message.physical_offset - base_offset
            level = parse_level(record + message.delay_level_at, message.delay_level_size)
            if level > 0:
                message.tags_code = message.store_timestamp_ms + DELAYS_MS[min(level, DELAY_LEVEL_MAX) - 1]


@kernel
def _start_queues(numbers: Any, queues: Any, starts: Any, counts: Any) -> None:
    """Give each row to the owner of its queue, and each queue its part of the room; ``counts`` are zero then."""
    for row in range(len(numbers)):
        if numbers[row] != NO_QUEUE:
            numbers[row] = queues[numbers[row]].owner
        if numbers[row] != NO_QUEUE:
            counts[numbers[row]] += 1
    start = 0
    for number in range(len(counts)):
        starts[number] = start
        start += counts[number]
        counts[number] = 0


@kernel
def place_entries(
    messages: Any, numbers: Any, queues: Any, starts: Any, counts: Any, entries: Any
) -> tuple[int, int]:
    """Encode the entries of ``messages``; how many were dropped, and how many do not lie at their queue offset.

    Those of queue ``q`` lie in ``entries`` from entry ``starts[q]`` on, ``counts[q]`` of them (which is zero at
    first), and belong one behind the other up to the queue's ``next_offset``. As in RocketMQ, a queue begins at its
    first message's offset; behind it a message whose offset, not being 0, is taken already is dropped, and any other
    goes to the end, although its offset may be a later one. What lies in the log before the last message of the queue
    was put before, and is dropped; so is an offset that no file can have.
    """
    _start_queues(numbers, queues, starts, counts)
    entries_at = address_of(entries)
    dropped = 0
    misplaced = 0
    for row in range(len(messages)):
        number = numbers[row]
        if number == NO_QUEUE:
            continue
        message = messages[row]
        queue = queues[number]
        queue_offset = message.queue_offset
        if queue_offset < 0 or queue_offset > QUEUE_OFFSET_MAX or message.physical_offset < queue.physical_end:
            dropped += 1
            continue
        if queue.next_offset == NOTHING_YET:
            queue.next_offset = queue_offset
        if queue_offset < queue.next_offset and queue_offset != 0:
            dropped += 1
            continue
        misplaced += queue_offset != queue.next_offset
        at = entries_at + ENTRY_SIZE * (starts[number] + counts[number])
        store_i64(at, message.physical_offset)
        store_i32(at + _SIZE_AT, message.size)
        store_i64(at + _TAGS_CODE_AT, message.tags_code)
        counts[number] += 1
        queue.next_offset += 1
        queue.physical_end = message.physical_offset + message.size
    return dropped, misplaced


@inlined
def parse_level(at: int, size: int) -> int:
    """The number in a text as Java's parseInt reads it; 0 where that is none (RocketMQ drops such a record)."""
    first = load_i8(at)
    signs = 1 if first == ord("+") or first == ord("-") else 0
    if signs == size:
        return 0
    level = 0
    for i in range(signs, size):
        digit = load_i8(at + i) - ord("0")
        if digit < 0 or digit > 9:
            return 0
        level = level * 10 + digit
        if level > 0x7FFFFFFF:
            return 0
    return -level if first == ord("-") else level
