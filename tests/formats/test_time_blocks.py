"""Time blocks: for each 64 KiB of a log file in which a record begins, the first one and the times of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import time_blocks
from whence.errors import FormatError, TruncatedError
from whence.formats.time_blocks import (
    BLOCK_SIZE,
    TIME_BLOCK,
    block_of,
    decode_time_blocks,
    join_time_blocks,
)
from whence.kernels.scan import SCANNED
from whence.kernels.time_blocks import encode_time_blocks

BASE = 3 << 30

# By hand: two records begin in block 0, the clock was put back between them; one in block 1, none in 2, one in 3.
RECORDS = [(0, 1_700_000_000_009), (300, 1_700_000_000_000), (65_536, 1_700_000_000_010), (262_143, -1)]
ENTRIES = bytes.fromhex(
    "00000000 0000018bcfe56800 0000018bcfe56809"
    "00010000 0000018bcfe5680a 0000018bcfe5680a"
    "0003ffff ffffffffffffffff ffffffffffffffff"
)
ROWS = [
    (0, 1_700_000_000_000, 1_700_000_000_009),
    (65_536, 1_700_000_000_010, 1_700_000_000_010),
    (262_143, -1, -1),
]

i4, i8 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))
records = st.dictionaries(st.integers(0, 2**31 - 1) | st.integers(0, 4 * BLOCK_SIZE), i8, max_size=30).map(
    lambda times: sorted(times.items())
)


def encoded(given_records: list[tuple[int, int]]) -> np.ndarray:
    messages = np.zeros(len(given_records), SCANNED)
    messages["physical_offset"] = [BASE + position for position, _ in given_records]
    messages["store_timestamp_ms"] = [time for _, time in given_records]
    return encode_time_blocks(messages, BASE)


def test_entries_by_hand():
    assert decode_time_blocks(ENTRIES).tolist() == ROWS
    assert encoded(RECORDS).tobytes() == ENTRIES
    assert [block_of(entry) for entry in decode_time_blocks(ENTRIES)] == [0, 1, 3]


def test_a_file_without_records_has_no_bytes():
    assert encoded([]).tobytes() == b""
    assert decode_time_blocks(b"").tolist() == []


@given(records)
def test_entries_equal_the_twin_and_come_back(given_records):
    data = encoded(given_records).tobytes()
    assert decode_time_blocks(data).tolist() == time_blocks(given_records)


@given(records, st.lists(st.integers(0, 30), max_size=4).map(sorted))
def test_entries_of_parts_join_to_those_of_the_whole(given_records, cuts):
    joined = np.empty(0, TIME_BLOCK)
    for begin, end in zip([0, *cuts], [*cuts, len(given_records)], strict=True):
        joined = join_time_blocks(joined, encoded(given_records[begin:end]))
    assert joined.dtype == TIME_BLOCK
    assert joined.tobytes() == encoded(given_records).tobytes()


def test_joining_changes_neither_part():
    before, behind = encoded(RECORDS[:1]), encoded(RECORDS[1:])
    parts = before.tobytes(), behind.tobytes()
    assert join_time_blocks(before, behind).tobytes() == ENTRIES
    assert (before.tobytes(), behind.tobytes()) == parts


@given(st.lists(st.tuples(i4, i8, i8), max_size=5))
def test_any_rows_come_back(rows):
    data = np.array(rows, TIME_BLOCK).tobytes()
    assert decode_time_blocks(data).tolist() == rows
    assert decode_time_blocks(memoryview(data)).tobytes() == data


@given(st.binary(max_size=100))
def test_any_bytes_decode_or_raise_a_format_error(data):
    try:
        entries = decode_time_blocks(data)
    except FormatError:
        assert len(data) % TIME_BLOCK.itemsize
    else:
        assert entries.tobytes() == data


def test_cut_entries_are_told_and_never_read():
    for size in range(len(ENTRIES)):
        whole, extra = divmod(size, 20)
        if extra:
            with pytest.raises(TruncatedError, match=f"at byte {whole * 20}: the last entry has {extra} of 20 bytes"):
                decode_time_blocks(ENTRIES[:size])
        else:
            assert decode_time_blocks(ENTRIES[:size]).tolist() == ROWS[:whole]
