"""ConsumeQueue entries, batch entries and ext units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden as golden_data
from whence.errors import CorruptError, FormatError, TruncatedError, UsageError
from whence.formats.rocketmq.consume_queue import (
    BATCH_ENTRY,
    BATCH_ENTRY_SIZE,
    ENTRY,
    ENTRY_SIZE,
    ENTRY_STRUCT,
    FILLER,
    ExtUnit,
    decode_batch_entries,
    decode_entries,
    decode_ext_unit,
    encode_batch_entries,
    encode_entries,
    encode_ext_unit,
    ext_position,
    is_ext_address,
    tags_code,
)
from whence.formats.rocketmq.message import decode_message

i2, i4, i8 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
entries = st.lists(st.tuples(i8, i4, i8), max_size=5)
batch_entries = st.lists(st.tuples(i8, i4, i8, i8, i8, i2, i4, i4), max_size=3)
ext_units = st.builds(ExtUnit, i8, i8, st.binary(max_size=30))

# The entry of the worked record, and the filler: from the format description.
CASES = [
    ((1024, 131, 0x27A807), "0000000000000400 00000083 000000000027a807"),
    ((0, 0x7FFFFFFF, 0), "0000000000000000 7fffffff 0000000000000000"),
    ((5, 100, -(2**31)), "0000000000000005 00000064 ffffffff80000000"),
]
TAGS = [(None, 0), ("", 0), ("TagA", 0x27A807), ("polygenelubricants", -(2**31))]


@pytest.mark.parametrize(("entry", "data"), CASES)
def test_known_entries(entry, data):
    assert decode_entries(bytes.fromhex(data)).tolist() == [entry]
    assert encode_entries(np.array([entry], ENTRY)) == ENTRY_STRUCT.pack(*entry) == bytes.fromhex(data)


def test_the_filler_has_the_largest_size():
    assert decode_entries(FILLER * 2).tolist() == [(0, 0x7FFFFFFF, 0)] * 2


@pytest.mark.parametrize(("tags", "code"), TAGS)
def test_the_code_of_tags_is_their_hash(tags, code):
    assert tags_code(tags) == code


@pytest.mark.parametrize("name", golden_data.ANSWERED)
def test_every_golden_entry_is_where_rocketmq_read_it(golden, name):
    file_size = golden(name).queue_file_size
    log_file_size = golden(name).commit_log_file_size
    store = golden(name).store
    queues: dict[str, bytes] = {}
    for expected in golden(name).entries:
        position = expected["queue_offset"] * ENTRY_SIZE
        base = position // file_size * file_size
        path = f"consumequeue/{expected['topic']}/{expected['queue_id']}/{base:020}"
        data = queues.setdefault(path, (store / path).read_bytes())
        rows = decode_entries(data)
        assert rows[(position - base) // ENTRY_SIZE].tolist() == (
            expected["physical_offset"],
            expected["size"],
            expected["tags_code"],
        )
        assert encode_entries(rows) == data
    for expected in golden(name).entries[::10]:
        file_number, position = divmod(expected["physical_offset"], log_file_size)
        path = f"commitlog/{file_number * log_file_size:020}"
        message, _ = decode_message(queues.setdefault(path, (store / path).read_bytes()), position)
        assert (message.topic, message.queue) == (expected["topic"], expected["queue_id"])
        assert message.size == expected["size"]
        if message.topic != "SCHEDULE_TOPIC_XXXX":  # there it is the time of delivery
            assert tags_code(message.tags) == expected["tags_code"]


@given(entries, batch_entries)
def test_entries_that_are_encoded_decode_to_the_same(rows, batch_rows):
    for order in (">", "<"):
        assert decode_entries(encode_entries(np.array(rows, ENTRY.newbyteorder(order)))).tolist() == rows
        data = encode_batch_entries(np.array(batch_rows, BATCH_ENTRY.newbyteorder(order)))
        assert decode_batch_entries(data).tolist() == batch_rows


@given(st.binary(max_size=100))
def test_any_bytes_are_entries_or_truncated(data):
    for decode, size in ((decode_entries, ENTRY_SIZE), (decode_batch_entries, BATCH_ENTRY_SIZE)):
        extra = len(data) % size
        if extra == 0:
            assert decode(data).tobytes() == data
        else:
            with pytest.raises(TruncatedError) as caught:
                decode(data)
            assert caught.value.position == len(data) - extra


def test_a_batch_entry_by_hand():
    data = bytes.fromhex(
        "0000000000001000 00000200 000000000027a807 0000018bcfe56800 0000000000000064 000a ffffffff 00000000"
    )
    row = (4096, 512, 0x27A807, 1700000000000, 100, 10, -1, 0)
    assert decode_batch_entries(data).tolist() == [row]
    assert encode_batch_entries(np.array([row], BATCH_ENTRY)) == data


# Ext units

EXT = bytes.fromhex("0018 000000000027a807 0000018bcfe56800 0004 0a0b0c0d")


def test_an_ext_unit_by_hand():
    unit = ExtUnit(0x27A807, 1700000000000, b"\x0a\x0b\x0c\x0d")
    assert decode_ext_unit(b"x" + EXT + b"y", 1) == (unit, 25)
    assert encode_ext_unit(unit) == EXT
    assert unit.size == 24


@given(ext_units)
def test_an_ext_unit_that_is_encoded_decodes_to_the_same(unit):
    data = encode_ext_unit(unit)
    assert decode_ext_unit(data) == (unit, len(data))
    for size in range(len(data)):
        with pytest.raises(TruncatedError):
            decode_ext_unit(data[:size])


@given(st.binary(max_size=60), st.integers(-70, 70))
def test_any_bytes_are_an_ext_unit_or_raise_format_error(data, position):
    try:
        unit, end = decode_ext_unit(data, position)
    except FormatError:
        return
    assert end == (len(data) if unit is None else position + unit.size)


@pytest.mark.parametrize("start", ["ffff", "0000"])
def test_the_used_part_of_an_ext_file_ends_at_minus_1_or_0(start):
    assert decode_ext_unit(EXT + bytes.fromhex(start) + bytes(30), len(EXT)) == (None, len(EXT) + 32)


@pytest.mark.parametrize(
    ("at", "lie", "position"), [(0, "0013", 0), (0, "fffe", 0), (18, "0003", 18), (18, "0005", 18), (18, "ffff", 18)]
)
def test_a_size_that_lies_is_named_with_its_position(at, lie, position):
    data = bytearray(EXT)
    data[at : at + 2] = bytes.fromhex(lie)
    with pytest.raises(CorruptError) as caught:
        decode_ext_unit(data)
    assert caught.value.position == position


def test_a_bitmap_that_does_not_fit_is_refused():
    assert len(encode_ext_unit(ExtUnit(0, 0, bytes(32747)))) == 32767
    with pytest.raises(UsageError):
        encode_ext_unit(ExtUnit(0, 0, bytes(32748)))


def test_an_ext_address_is_below_every_hash():
    assert not is_ext_address(-(2**31))
    assert is_ext_address(-(2**31) - 1)
    assert is_ext_address(-(2**63))
    assert ext_position(-(2**63)) == 0
    assert ext_position(-(2**63) + 4096) == 4096
