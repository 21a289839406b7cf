"""Packed items come back as they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whence.kernels.scan import ITEMS
from whence.kernels.spills import pack_items, unpack_items

MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),  # position
        st.integers(-(2**40), 2**40),  # time
        st.lists(st.integers(0, 2**31 - 1), max_size=5),  # hashes
    ),
    min_size=1,
    max_size=20,
)


@given(messages=MESSAGES, base_offset=st.integers(0, 2**50), base_ms=st.integers(0, 2**41))
def test_items_are_packed_and_unpacked(messages, base_offset, base_ms):
    rows = [
        (base_offset + position, base_ms + time, key_hash, number, 0, 0, 0)
        for number, (position, time, hashes) in enumerate(messages)
        for key_hash in hashes
    ]
    items = np.array(rows, ITEMS)
    hashes, positions = np.empty(len(items), np.int32), np.empty(len(items), np.uint32)
    times, counts = np.empty(len(items), np.int64), np.empty(len(items), np.uint16)
    count = pack_items(items, base_offset, base_ms, hashes, positions, times, counts)
    with_items = [message for message in messages if message[2]]
    assert hashes.tolist() == [key_hash for message in messages for key_hash in message[2]]
    assert positions[:count].tolist() == [position for position, _, _ in with_items]
    assert times[:count].tolist() == [time for _, time, _ in with_items]
    assert counts[:count].tolist() == [len(each) for _, _, each in with_items]

    offsets_out, times_out = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    unpack_items(positions[:count], times[:count], counts[:count], base_offset, base_ms, offsets_out, times_out)
    assert offsets_out.tolist() == items["physical_offset"].tolist()
    assert times_out.tolist() == items["store_timestamp_ms"].tolist()
