"""Files of the timer. No golden store has them; test_real_classes.py compares with RocketMQ's own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.errors import CorruptError, FormatError, TruncatedError, UsageError
from whence.formats.rocketmq.timer import (
    TIMER_UNIT,
    WHEEL_SLOT,
    TimerCheckpoint,
    TimerMagic,
    decode_timer_checkpoint,
    decode_timer_log,
    decode_wheel,
    encode_timer_checkpoint,
    encode_timer_log,
    encode_wheel,
)

i4, i8 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))

# By hand: a slot with two units, the second of which points back to the first.
SLOT = bytes.fromhex("000000006553f101 0000000000000000 0000000000000034 00000002 00000000")
UNITS = bytes.fromhex(
    "00000034 ffffffffffffffff 00000001 0000018bcfe56800 000003e8 0000000000000400 00000083 0027a807 0000000000000000"
    "00000034 0000000000000000 00000003 0000018bcfe56801 000003e7 0000000000000483 00000083 0027a807 0000000000000000"
)
UNIT_ROWS = [
    (52, -1, 1, 1700000000000, 1000, 1024, 131, 0x27A807, 0),
    (52, 0, 3, 1700000000001, 999, 1155, 131, 0x27A807, 0),
]
BLANK = bytes.fromhex("00000200 0000000000000000 cbd43194")

units = st.lists(st.tuples(st.just(52), i8, st.integers(0, 7), i8, i4, i8, i4, i4, i8), min_size=1, max_size=4)


def test_a_slot_by_hand():
    row = (1700000001, 0, 52, 2, 0)
    assert decode_wheel(SLOT).tolist() == [row]
    assert encode_wheel(np.array([row], WHEEL_SLOT)) == SLOT


def test_units_by_hand():
    assert decode_timer_log(UNITS).tolist() == UNIT_ROWS
    assert encode_timer_log(np.array(UNIT_ROWS, TIMER_UNIT)) == UNITS
    assert encode_timer_log(np.array(UNIT_ROWS, TIMER_UNIT), blank_size=512) == UNITS + BLANK
    assert TimerMagic(3) == TimerMagic.SET | TimerMagic.ROLLED


@pytest.mark.parametrize("rest", [b"", bytes(3), bytes(52), bytes(500), BLANK, BLANK + b"x" * 496])
def test_units_end_at_a_blank_or_where_nothing_was_written(rest):
    assert decode_timer_log(UNITS + rest).tolist() == UNIT_ROWS


@pytest.mark.parametrize("size", ["00000033", "ffffffff", "00000035"])
def test_another_size_than_a_units_is_corrupt(size):
    with pytest.raises(CorruptError) as caught:
        decode_timer_log(UNITS + bytes.fromhex(size) + UNITS[4:])
    assert caught.value.position == len(UNITS)


@given(units)
def test_units_that_are_encoded_decode_to_the_same_and_are_truncated_when_cut(rows):
    data = encode_timer_log(np.array(rows, TIMER_UNIT), blank_size=100)
    assert decode_timer_log(data).tolist() == rows
    last = len(rows) * 52
    for size in range(last - 52 + 4, last):
        with pytest.raises(TruncatedError):
            decode_timer_log(data[:size])
    # Three zero bytes are no sign of a unit: there the log is just shorter.
    assert decode_timer_log(data[: last - 49]).tolist() == rows[:-1]


@given(st.binary(max_size=150))
def test_any_bytes_are_a_timer_log_or_raise_format_error(data):
    for buffer in (data, UNITS + data):
        try:
            rows = decode_timer_log(buffer)
        except FormatError:
            continue
        assert set(rows["size"].tolist()) <= {52}


@given(st.binary(max_size=100))
def test_any_bytes_are_slots_or_truncated(data):
    if len(data) % 32 == 0:
        assert encode_wheel(decode_wheel(data)) == data
    else:
        with pytest.raises(TruncatedError, match="last slot"):
            decode_wheel(data)


@given(st.builds(TimerCheckpoint, i8, i8, i8, i8, i8, i8, i8))
def test_a_checkpoint_that_is_encoded_decodes_to_the_same(checkpoint):
    data = encode_timer_checkpoint(checkpoint)
    assert len(data) == 4096
    assert decode_timer_checkpoint(data) == decode_timer_checkpoint(data[:56]) == checkpoint
    for size in range(56):
        with pytest.raises(TruncatedError):
            decode_timer_checkpoint(data[:size])


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(UsageError):
        encode_timer_checkpoint(replace(TimerCheckpoint(), queue_offset=2**63))
