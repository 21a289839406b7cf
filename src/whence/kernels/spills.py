"""What a spill holds, packed.

pack_items      scanned items -> hashes; of each message with items its position, time and count
unpack_items    and back: offset and time of each item
take_rows       scanned messages -> what becomes entries of queues, until that is sorted
sort_rows       the same as columns, in which the rows of one queue lie together
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.kernels import kernel
from whence.kernels.queues import NO_QUEUE

ROW = np.dtype(
    [
        ("tags_code", np.int64),
        ("queue_offset", np.int64),
        ("position", np.uint32),  # in the log's file
        ("size", np.int32),
        ("number", np.int32),  # of its queue
    ],
    align=True,
)
"""What becomes an entry of a queue."""

RUN = np.dtype(
    [
        ("start", np.int64),
        ("count", np.int64),
        ("is_wide", np.int32),  # whether a tags code needs more than 32 bits
        ("has_jumps", np.int32),  # whether a queue offset is not the one behind that of the row before
    ],
    align=True,
)
"""The sorted rows of one queue."""


@kernel
def pack_items(
    items: Any,
    base_offset: int,
    base_ms: int,
    hashes: Any,
    positions: Any,
    times: Any,
    short_times: Any,
    counts: Any,
) -> tuple[int, bool]:
    """Fill the columns from scanned ``items`` (ITEMS); how many messages have some.

    And whether a time needs more than 32 bits: if not, ``short_times`` has them all.
    """
    is_wide = False
    message = -1
    last = -1
    for i in range(len(items)):
        item = items[i]
        hashes[i] = item.key_hash
        if item.message != last:
            last = item.message
            message += 1
            positions[message] = item.physical_offset - base_offset
            time = item.store_timestamp_ms - base_ms
            times[message] = time
            short_times[message] = time
            is_wide |= time != np.int32(time)
            counts[message] = 0
        counts[message] += 1
    return message + 1, is_wide


@kernel
def unpack_items(
    positions: Any, times: Any, counts: Any, base_offset: int, base_ms: int, offsets_out: Any, times_out: Any
) -> None:
    """Fill the offset and time of each item."""
    i = 0
    for message in range(len(counts)):
        offset = base_offset + positions[message]
        time = base_ms + times[message]
        for _ in range(counts[message]):
            offsets_out[i] = offset
            times_out[i] = time
            i += 1


@kernel
def take_rows(
    messages: Any, numbers: Any, first: int, base_offset: int, queues: Any, rows: Any, row_count: int
) -> tuple[int, int]:
    """Add to ``rows`` what enters a queue, from message ``first`` on; how far it came, and the count of rows then.

    It stops before a message for which there is no room.
    """
    for at in range(first, len(messages)):
        number = numbers[at]
        if number != NO_QUEUE:
            number = queues[number].owner
        if number == NO_QUEUE:
            continue
        if row_count == len(rows):
            return at, row_count
        message = messages[at]
        row = rows[row_count]
        row.tags_code = message.tags_code
        row.queue_offset = message.queue_offset
        row.position = message.physical_offset - base_offset
        row.size = message.size
        row.number = number
        row_count += 1
    return len(messages), row_count


@kernel
def sort_rows(
    rows: Any, runs: Any, positions: Any, sizes: Any, codes: Any, short_codes: Any, queue_offsets: Any
) -> None:
    """Fill the columns: queue by queue, in the order of the log. ``runs`` (RUN, by number) are zero at first."""
    for at in range(len(rows)):
        runs[rows[at].number].count += 1
    start = 0
    for number in range(len(runs)):
        runs[number].start = start
        start += runs[number].count
        runs[number].count = 0
    for at in range(len(rows)):
        row = rows[at]
        run = runs[row.number]
        to = run.start + run.count
        short = np.int32(row.tags_code)
        positions[to] = row.position
        sizes[to] = row.size
        codes[to] = row.tags_code
        short_codes[to] = short
        queue_offsets[to] = row.queue_offset
        if short != row.tags_code:
            run.is_wide = 1
        if run.count and row.queue_offset - queue_offsets[to - 1] != 1:
            run.has_jumps = 1
        run.count += 1
