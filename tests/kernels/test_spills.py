"""Packed items come back as they were; rows of queues are sorted as plain Python sorts them."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from whence.kernels.queues import QUEUE
from whence.kernels.scan import ITEMS, SCANNED
from whence.kernels.spills import ROW, RUN, pack_items, sort_rows, take_rows, unpack_items

BASE = 3 << 30
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),  # position
        st.integers(-(2**40), 2**40) | st.integers(0, 1000),  # time
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
    times, short_times = np.empty(len(items), np.int64), np.empty(len(items), np.int32)
    counts = np.empty(len(items), np.uint16)
    count, is_wide = pack_items(items, base_offset, base_ms, hashes, positions, times, short_times, counts)
    with_items = [message for message in messages if message[2]]
    assert hashes.tolist() == [key_hash for message in messages for key_hash in message[2]]
    assert positions[:count].tolist() == [position for position, _, _ in with_items]
    assert times[:count].tolist() == [time for _, time, _ in with_items]
    assert is_wide == any(not -(2**31) <= time < 2**31 for _, time, _ in with_items)
    assert is_wide or (short_times[:count] == times[:count]).all()
    assert counts[:count].tolist() == [len(each) for _, _, each in with_items]

    offsets_out, times_out = np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    unpack_items(positions[:count], times[:count], counts[:count], base_offset, base_ms, offsets_out, times_out)
    assert offsets_out.tolist() == items["physical_offset"].tolist()
    assert times_out.tolist() == items["store_timestamp_ms"].tolist()


@given(count=st.integers(1, 5), room=st.integers(1, 8), data=st.data())
def test_rows_are_taken_and_sorted_as_the_twin_does(count, room, data):
    """They lie by the owner of their queue; a queue that no folder can have owns none."""
    owners = data.draw(st.lists(st.integers(-1, count - 1), min_size=count, max_size=count))
    queue_offset = st.integers(0, 4) | I64  # often one behind the other
    row = st.tuples(st.integers(-1, count - 1), st.integers(0, 2**32 - 1), queue_offset, I32 | I64, I32)
    given_rows = data.draw(st.lists(row, max_size=30))
    queues = np.zeros(count, QUEUE)
    queues["owner"] = owners
    messages = np.zeros(len(given_rows), SCANNED)
    numbers = np.array([number for number, *_ in given_rows], np.int32)
    for at, name in enumerate(("physical_offset", "queue_offset", "tags_code", "size"), 1):
        messages[name] = np.array([each[at] for each in given_rows], messages.dtype[name])
    messages["physical_offset"] += BASE

    rows, columns = np.empty(room, ROW), [np.empty(room, kind) for kind in ("u4", "i4", "i8", "i4", "i8")]
    positions, sizes, codes, short_codes, queue_offsets = columns
    done = before = 0
    while done < len(messages):
        done, row_count = take_rows(messages, numbers, before, BASE, queues, rows, 0)
        assert row_count == room or done == len(messages)
        runs = np.zeros(count, RUN)
        sort_rows(rows[:row_count], runs, *columns)
        expected = reference.sort_rows(given_rows[before:done], owners)
        assert runs["count"].tolist() == list(map(len, expected))
        for run, wanted in zip(runs, expected, strict=True):
            part = slice(run["start"], run["start"] + run["count"])
            whole = zip(positions[part], queue_offsets[part], codes[part], sizes[part], strict=True)
            assert [tuple(map(int, each)) for each in whole] == wanted
            assert bool(run["is_wide"]) == any(
                short != code for short, (_, _, code, _) in zip(short_codes[part].tolist(), wanted, strict=True)
            )
            offsets = [offset for _, offset, _, _ in wanted]
            # As 64-bit numbers are counted: behind the largest comes the smallest.
            jumps = [(b - a) % 2**64 != 1 for a, b in pairwise(offsets)]
            assert bool(run["has_jumps"]) == any(jumps)
        before = done
