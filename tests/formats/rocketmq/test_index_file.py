"""The index file: layout, golden files, the worked example."""

import mmap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden as golden_data
from tests import reference
from whence.errors import TruncatedError, UsageError
from whence.formats.rocketmq.index_file import (
    DEFAULT_ITEM_CAPACITY,
    DEFAULT_SLOT_CAPACITY,
    HEADER,
    HEADER_SIZE,
    HEADER_STRUCT,
    ITEM,
    ITEM_SIZE,
    ITEM_STRUCT,
    NO_ITEM,
    SLOT_STRUCT,
    IndexHeader,
    decode_header,
    decode_items,
    decode_slots,
    encode_header,
    encode_items,
    encode_slots,
    file_size,
    item_position,
    slot_position,
)

i4 = st.integers(-(2**31), 2**31 - 1)
i8 = st.integers(-(2**63), 2**63 - 1)
headers = st.builds(IndexHeader, i8, i8, i8, i8, i4, i4)


def parts(data, slot_capacity):
    """Header, slots and items of a whole file."""
    items_start = item_position(slot_capacity, 0)
    slots = decode_slots(data[HEADER_SIZE:items_start])
    return decode_header(data), slots, decode_items(data[items_start:])


def as_recorded(header):
    """The header in the words of the golden answers."""
    return {
        "begin_timestamp": header.begin_timestamp_ms,
        "end_timestamp": header.end_timestamp_ms,
        "begin_physical_offset": header.begin_physical_offset,
        "end_physical_offset": header.end_physical_offset,
        "hash_slot_count": header.slot_count,
        "index_count": header.item_count,
    }


# Golden files


def test_worked_example():
    (example,) = (file for file in golden_data.INDEX_FILES if file.name == "example-s13-p6")
    data = example.path.read_bytes()
    assert len(data) == file_size(13, 8) == 252
    assert data[:40].hex(" ", 8) == (
        "0000018bcfe56800 0000018bcfe577a0 0000000000000000 00000000000003e8 0000000200000007"
    )
    header, slots, items = parts(data, 13)
    assert header == IndexHeader(1700000000000, 1700000004000, 0, 1000, 2, 7)
    assert {slot: int(slots[slot]) for slot in np.flatnonzero(slots)} == {3: 6, 8: 4}
    assert items.tolist() == [
        (0, 0, 0, 0),
        (16, 0, 0, 0),
        (29, 200, 0, 1),
        (29, 400, 1, 2),
        (8, 600, 2, 0),
        (16, 800, 2, 3),
        (16, 1000, 4, 5),
        (0, 0, 0, 0),
    ]


@pytest.mark.parametrize("file", golden_data.INDEX_FILES, ids=lambda file: file.name)
def test_every_file_of_rocketmqs_own_class_decodes_and_encodes_back(file):
    data = file.path.read_bytes()
    assert len(data) == file_size(file.settings["slots"], file.settings["items"])
    header, slots, items = parts(data, file.settings["slots"])
    assert as_recorded(header).items() <= file.settings.items()
    accepted = [put for put in file.puts if put[3]]
    assert header.next_item == len(accepted) + 1
    written = items[1 : header.next_item]
    assert written["key_hash"].tolist() == [reference.text_hash(text) for text, *_ in accepted]
    assert written["physical_offset"].tolist() == [offset for _, offset, *_ in accepted]
    assert encode_header(header) + encode_slots(slots) + encode_items(items) == data


@pytest.mark.parametrize("name", golden_data.ALL)
def test_every_golden_index_file_decodes_and_encodes_back(golden, name):
    for expected in golden(name).headers:
        data = (golden(name).store / "index" / expected["file"]).read_bytes()
        slot_capacity, item_capacity = golden(name).slot_capacity, golden(name).item_capacity
        assert len(data) == file_size(slot_capacity, item_capacity)
        header, slots, items = parts(data, slot_capacity)
        assert as_recorded(header).items() <= expected.items()
        assert int(np.count_nonzero(slots)) == header.slot_count
        assert (items["previous_item"] < np.arange(len(items)))[1:].all()
        assert encode_header(header) + encode_slots(slots) + encode_items(items) == data


# Round trips, any bytes, cuts


@given(headers)
def test_a_header_that_is_encoded_decodes_to_the_same(header):
    data = encode_header(header)
    assert decode_header(data + b"more") == header
    assert np.frombuffer(data, HEADER).tolist() == [HEADER_STRUCT.unpack(data)]
    for size in range(len(data)):
        with pytest.raises(TruncatedError):
            decode_header(data[:size])


@given(st.lists(st.tuples(i4, i8, i4, i4), max_size=5), st.lists(i4, max_size=5))
def test_items_and_slots_that_are_encoded_decode_to_the_same(items, slots):
    for order in (">", "<"):
        item_data = encode_items(np.array(items, ITEM.newbyteorder(order)))
        slot_data = encode_slots(np.array(slots, f"{order}i4"))
        assert decode_items(item_data).tolist() == items
        assert decode_slots(slot_data).tolist() == slots
        assert list(ITEM_STRUCT.iter_unpack(item_data)) == items
        assert [slot for (slot,) in SLOT_STRUCT.iter_unpack(slot_data)] == slots


@given(st.binary(max_size=70))
def test_any_bytes_are_items_or_truncated(data):
    whole_size = len(data) // ITEM_SIZE * ITEM_SIZE
    if len(data) == whole_size:
        assert decode_items(data).tobytes() == data
    else:
        with pytest.raises(TruncatedError, match=f"last item has {len(data) - whole_size} of 20") as caught:
            decode_items(data)
        assert caught.value.position == whole_size


def test_a_slot_that_is_cut_is_truncated():
    with pytest.raises(TruncatedError, match="last slot has 3 of 4 bytes"):
        decode_slots(bytes(11))


def test_decoding_makes_views_not_copies(tmp_path):
    path = tmp_path / "index"
    path.write_bytes(bytes(40))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        items = decode_items(data)
        data[3] = 7
        assert items[0]["key_hash"] == 7
        del items


def test_a_value_that_does_not_fit_is_refused():
    header = IndexHeader(0, 0, 0, 0, 0, 0)
    with pytest.raises(UsageError):
        encode_header(replace(header, item_count=2**31))


# Arithmetic


def test_positions_and_sizes():
    assert file_size(DEFAULT_SLOT_CAPACITY, DEFAULT_ITEM_CAPACITY) == 420_000_040
    assert slot_position(0) == 40
    assert slot_position(3) == 52
    assert item_position(13, 0) == 92
    assert item_position(13, 6) == 212
    assert NO_ITEM == 0


@pytest.mark.parametrize(("item_count", "next_item"), [(0, 1), (1, 1), (2, 2), (-5, 1)])
def test_a_new_file_counts_from_item_1(item_count, next_item):
    assert IndexHeader(0, 0, 0, 0, 0, item_count).next_item == next_item
