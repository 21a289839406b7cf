"""Items of a spill, packed: what the items of one message share is written once.

pack_items      scanned items -> hashes; of each message with items its position, time and count
unpack_items    and back: offset and time of each item
"""

from __future__ import annotations

from typing import Any

from whence.kernels import kernel


@kernel
def pack_items(
    items: Any, base_offset: int, base_ms: int, hashes: Any, positions: Any, times: Any, counts: Any
) -> int:
    """Fill the columns from scanned ``items`` (ITEMS); how many messages have some."""
    message = -1
    last = -1
    for i in range(len(items)):
        item = items[i]
        hashes[i] = item.key_hash
        if item.message != last:
            last = item.message
            message += 1
            positions[message] = item.physical_offset - base_offset
            times[message] = item.store_timestamp_ms - base_ms
            counts[message] = 0
        counts[message] += 1
    return message + 1


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
