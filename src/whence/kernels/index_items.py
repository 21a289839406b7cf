"""Items of an IndexFile: linked into their chains and encoded, many at once; and the slots that lead to them.

encode_linked_items    new items, behind those that are there
unlink_items           as if they had never been linked: their bytes could not be written
publish_items          makes items that are written visible to all who have mapped the file
walk_heads_back        slots that lead to items which do not count any more lead to older ones
link_again             the slots of items that are there, made anew
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    HEADER,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    NO_ITEM,
    SLOT_SIZE,
    IndexHeader,
)
from whence.kernels import kernel
from whence.kernels.chains import BAD_LINK, follow, is_member, link_items, slot_of
from whence.kernels.intrinsics import (
    address_of,
    load_i32,
    load_int,
    load_word,
    order_stores,
    place_of,
    store_i32,
    store_i64,
)

TIME_DIFF_MAX = 2**31 - 1
ALL_WALKED = -1

assert ITEM.fields is not None
_PHYSICAL_OFFSET_AT, _TIME_DIFF_AT, _PREVIOUS_ITEM_AT = (
    ITEM.fields[name][1] for name in ("physical_offset", "time_diff_s", "previous_item")
)
assert HEADER.fields is not None
_BEGIN_MS_AT, _END_MS_AT, _BEGIN_OFFSET_AT, _END_OFFSET_AT, _SLOT_COUNT_AT, _ITEM_COUNT_AT = (
    HEADER.fields[name][1] for name in HEADER.names or ()
)


class LinkedItems(NamedTuple):
    """Items as they are written; ``used``: how many slots went from empty to used."""

    data: memoryview
    previous_items: NDArray[np.int32]
    used: int


def encode_linked_items(
    key_hashes: NDArray[np.int32],
    physical_offsets: NDArray[np.int64],
    store_timestamps_ms: NDArray[np.int64],
    begin_ms: int,
    first_item: int,
    slots: NDArray[np.int32],
) -> LinkedItems:
    """The bytes of items ``first_item``, ``first_item + 1`` ...; ``slots`` is brought up to date.

    ``begin_ms`` is the file's begin as its header tells it before these items; the first item of a file sets it for
    those behind, and is itself counted from what the file inherited. The columns may be fields of rows.
    """
    count = len(key_hashes)
    previous_items = np.empty(count, np.int32)
    used = link_items(key_hashes, first_item, slots, previous_items)
    data = np.empty(count * ITEM_SIZE, np.uint8)
    _encode_items(
        *place_of(key_hashes),
        *place_of(physical_offsets),
        *place_of(store_timestamps_ms),
        begin_ms,
        first_item,
        previous_items,
        data,
    )
    return LinkedItems(data.data, previous_items, used)


@kernel
def _encode_items(
    key_hashes_at: int,
    key_hashes_step: int,
    physical_offsets_at: int,
    physical_offsets_step: int,
    store_timestamps_at: int,
    store_timestamps_step: int,
    begin_ms: int,
    first_item: int,
    previous_items: Any,
    data: Any,
) -> None:
    at = address_of(data)
    for i in range(len(previous_items)):
        store_timestamp_ms = load_word(store_timestamps_at + i * store_timestamps_step)
        time_diff_s = 0
        if begin_ms > 0:
            time_diff_s = min(max((store_timestamp_ms - begin_ms) // 1000, 0), TIME_DIFF_MAX)
        store_i32(at, load_int(key_hashes_at + i * key_hashes_step))
        store_i64(at + _PHYSICAL_OFFSET_AT, load_word(physical_offsets_at + i * physical_offsets_step))
        store_i32(at + _TIME_DIFF_AT, time_diff_s)
        store_i32(at + _PREVIOUS_ITEM_AT, previous_items[i])
        if first_item + i == FIRST_ITEM:
            begin_ms = store_timestamp_ms
        at += ITEM_SIZE


@kernel
def unlink_items(key_hashes: Any, previous_items: Any, slots: Any) -> None:
    """Take the items that were linked last from their chains again: the newest first."""
    for i in range(len(key_hashes) - 1, -1, -1):
        slots[slot_of(key_hashes[i], len(slots))] = previous_items[i]


def publish_items(
    file: NDArray[np.uint8], key_hashes: NDArray[np.int32], slots: NDArray[np.int32], header: IndexHeader
) -> None:
    """Make items that are written a part of the index, for all who have mapped the ``file``.

    First the slots lead to them, then the header tells their times and offsets, then the count. Who reads the file
    meanwhile finds heads at or above the count, and behind them every item below it.
    """
    _publish_slots(file, key_hashes, slots)
    _publish_header(
        file,
        header.begin_timestamp_ms,
        header.end_timestamp_ms,
        header.begin_physical_offset,
        header.end_physical_offset,
        header.slot_count,
        header.item_count,
    )


@kernel
def _publish_slots(file: Any, key_hashes: Any, slots: Any) -> None:
    order_stores()
    slots_at = address_of(file) + HEADER_SIZE
    for i in range(len(key_hashes)):
        slot = slot_of(key_hashes[i], len(slots))
        store_i32(slots_at + SLOT_SIZE * slot, slots[slot])


@kernel
def _publish_header(
    file: Any, begin_ms: int, end_ms: int, begin_offset: int, end_offset: int, slot_count: int, item_count: int
) -> None:
    order_stores()
    header = address_of(file)
    store_i64(header + _BEGIN_MS_AT, begin_ms)
    store_i64(header + _END_MS_AT, end_ms)
    store_i64(header + _BEGIN_OFFSET_AT, begin_offset)
    store_i64(header + _END_OFFSET_AT, end_offset)
    store_i32(header + _SLOT_COUNT_AT, slot_count)
    order_stores()
    store_i32(header + _ITEM_COUNT_AT, item_count)


@kernel
def walk_heads_back(file: Any, item_capacity: int, next_item: int, slots: Any) -> int:
    """Let every slot lead to the newest item of its chain that is older than ``next_item``.

    Returns ALL_WALKED, or the first slot whose chain is damaged above that (see kernels/chains.py).
    """
    file_at = address_of(file)
    items_at = HEADER_SIZE + SLOT_SIZE * len(slots)
    for slot in range(len(slots)):
        number = slots[slot]
        if number < NO_ITEM or number >= item_capacity:
            return slot
        while number >= next_item:
            at = items_at + ITEM_SIZE * number
            if not is_member(file_at, at, len(slots), slot):
                return slot
            number = follow(file_at, at + _PREVIOUS_ITEM_AT, number)
            if number == BAD_LINK:
                return slot
        slots[slot] = number
    return ALL_WALKED


@kernel
def link_again(file: Any, next_item: int, slots: Any) -> int:
    """Fill the slots, all of them empty, from the items before ``next_item``.

    Returns NO_ITEM, or the first item that was not written, or not as the newest of its chain.
    """
    file_at = address_of(file)
    at = HEADER_SIZE + SLOT_SIZE * len(slots)
    for number in range(FIRST_ITEM, next_item):
        at += ITEM_SIZE
        slot = slot_of(load_i32(file_at + at), len(slots))
        if not is_member(file_at, at, len(slots), slot):
            return number
        if load_i32(file_at + at + _PREVIOUS_ITEM_AT) != slots[slot]:
            return number
        slots[slot] = number
    return NO_ITEM
