"""Items of an IndexFile: linked into their chains and encoded, many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.index_file import FIRST_ITEM, ITEM, ITEM_SIZE
from whence.kernels import kernel
from whence.kernels.chains import link_items
from whence.kernels.intrinsics import address_of, store_i32, store_i64

TIME_DIFF_MAX = 2**31 - 1

assert ITEM.fields is not None
_PHYSICAL_OFFSET_AT, _TIME_DIFF_AT, _PREVIOUS_ITEM_AT = (
    ITEM.fields[name][1] for name in ("physical_offset", "time_diff_s", "previous_item")
)


def encode_linked_items(
    key_hashes: NDArray[np.int32],
    physical_offsets: NDArray[np.int64],
    store_timestamps_ms: NDArray[np.int64],
    begin_ms: int,
    first_item: int,
    slots: NDArray[np.int32],
) -> tuple[memoryview, int]:
    """The bytes of items ``first_item``, ``first_item + 1`` ..., and how many slots went from empty to used.

    ``slots`` is brought up to date. ``begin_ms`` is the file's begin as its header tells it before these items; the
    first item of a file sets it for those behind, and is itself counted from what the file inherited.
    """
    key_hashes = np.ascontiguousarray(key_hashes, np.int32)
    physical_offsets = np.ascontiguousarray(physical_offsets, np.int64)
    store_timestamps_ms = np.ascontiguousarray(store_timestamps_ms, np.int64)
    previous_items = np.empty(len(key_hashes), np.int32)
    used = link_items(key_hashes, first_item, slots, previous_items)
    data = np.empty(len(key_hashes) * ITEM_SIZE, np.uint8)
    _encode_items(key_hashes, physical_offsets, store_timestamps_ms, begin_ms, first_item, previous_items, data)
    return data.data, used


@kernel
def _encode_items(
    key_hashes: Any,
    physical_offsets: Any,
    store_timestamps_ms: Any,
    begin_ms: int,
    first_item: int,
    previous_items: Any,
    data: Any,
) -> None:
    at = address_of(data)
    for i in range(len(key_hashes)):
        time_diff_s = 0
        if begin_ms > 0:
            time_diff_s = min(max((store_timestamps_ms[i] - begin_ms) // 1000, 0), TIME_DIFF_MAX)
        store_i32(at, key_hashes[i])
        store_i64(at + _PHYSICAL_OFFSET_AT, physical_offsets[i])
        store_i32(at + _TIME_DIFF_AT, time_diff_s)
        store_i32(at + _PREVIOUS_ITEM_AT, previous_items[i])
        if first_item + i == FIRST_ITEM:
            begin_ms = store_timestamps_ms[i]
        at += ITEM_SIZE
