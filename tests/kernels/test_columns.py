"""The loops that gather texts into columns, held against the twin's plain reading of the same bytes."""

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.scan_twin import scan_by_kernel
from tests.reference import Record, decode_java_utf8, decode_properties, encode_log_file
from tests.strategies import log_files, property_blobs
from whence.kernels import columns
from whence.kernels.picked import scan_records
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Status, scan_stretch


def scan(data: bytes, base_offset: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes as an array, the rows of the records in it, and their addresses."""
    array = np.frombuffer(data, np.uint8)
    rows, items = np.empty(100, SCANNED), np.empty(ITEMS_MAX * 4, ITEMS)
    result = scan_stretch(array, base_offset, 0, len(data), check_crc=True, tags=False, messages=rows, items=items)
    rows = rows[: result.message_count]
    return array, rows, array.ctypes.data + (rows["physical_offset"] - base_offset)


def text_at(span: np.ndarray) -> str:
    """The text of a span. That it can be decoded says that it is well-formed."""
    return ctypes.string_at(int(span[0]), int(span[1])).decode()


def spans_of(rows: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = np.empty(columns.wide_size(rows, records), np.uint8)
    spans = np.empty((columns.SPAN_KINDS, 2, len(rows)), np.int64)
    columns.find_spans(rows, records, wide, spans)
    return spans, wide


@given(log_files(blobs=property_blobs()))
def test_spans_lead_to_the_texts_that_the_twin_decodes(made: tuple[bytes, int, list[Record]]):
    data, base_offset, placed = made
    _array, rows, records = scan(data, base_offset)
    spans, _wide = spans_of(rows, records)
    for number, record in enumerate(placed):
        assert text_at(spans[columns.TOPIC, :, number]) == record.topic
        assert text_at(spans[columns.PROPERTIES, :, number]) == decode_java_utf8(record.properties_data)
        keys = "" if record.is_rollback else record.properties.get("KEYS", "")
        assert text_at(spans[columns.KEYS, :, number]) == keys
        assert text_at(spans[columns.TAGS, :, number]) == (record.tags or "")
        assert text_at(spans[columns.UNIQUE_ID, :, number]) == ("" if record.is_rollback else record.unique_id or "")


PIECES = [
    b"K",
    b"n",
    b"KEYS",
    b"\x01",
    b"\x02",
    b" ",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xe2\x82",
    b"\xf0\x9f\x98\x80",
    b"\x7f",
]
BLOBS = st.lists(st.sampled_from(PIECES), max_size=200).map(b"".join)


@given(st.lists(BLOBS, min_size=1, max_size=5))
def test_keys_and_properties_are_cut_as_the_twin_cuts_them(blobs: list[bytes]):
    data, left = encode_log_file([Record(properties_data=b"KEYS\x01x" + blob) for blob in blobs], 0, 1 << 16)
    assert not left
    _array, rows, records = scan(data, 0)
    spans, _wide = spans_of(rows, records)
    keys = np.empty((2, int(((spans[columns.KEYS, 1] + 1) // 2).sum())), np.int64)
    offsets = np.empty(len(rows) + 1, np.int32)
    columns.split_keys(spans[columns.KEYS], columns.new_table(), offsets, keys)
    room = int(((spans[columns.PROPERTIES, 1] + 1) // 4).sum())
    names, values = np.empty((2, room), np.int64), np.empty((2, room), np.int64)
    property_offsets = np.empty(len(rows) + 1, np.int32)
    columns.split_properties(spans[columns.PROPERTIES], columns.new_table(), property_offsets, names, values)
    for number, blob in enumerate(blobs):
        expected = decode_properties(b"KEYS\x01x" + blob)
        found = [text_at(keys[:, key]) for key in range(offsets[number], offsets[number + 1])]
        assert found == list(dict.fromkeys(key for key in expected.get("KEYS", "").split(" ") if key))
        pairs = [
            (text_at(names[:, one]), text_at(values[:, one]))
            for one in range(property_offsets[number], property_offsets[number + 1])
        ]
        assert pairs == list(expected.items())


@given(log_files(blobs=property_blobs()), st.randoms())
def test_records_at_positions_have_the_rows_of_a_scan(made: tuple[bytes, int, list[Record]], random):
    data, base_offset, placed = made
    array, rows, _ = scan(data, base_offset)
    chosen = [random.randrange(len(placed)) for _ in range(5)] if placed else []
    positions = np.array([placed[number].physical_offset - base_offset for number in chosen], np.int64)
    found = np.zeros(len(chosen), SCANNED)
    assert scan_records(array, base_offset, positions, found) == len(chosen)
    for name in set(SCANNED.names or ()) - {"topic_before"}:
        assert (found[name] == rows[name][chosen]).all(), name


@pytest.mark.parametrize("position", [-1, 1, 90, 100_000, 2**40])
def test_where_no_record_begins_none_is_read(position: int):
    data, _ = encode_log_file([Record(), Record()], 0, 4096)
    array, rows, _ = scan(data, 0)
    found = np.zeros(3, SCANNED)
    second = int(rows["physical_offset"][1])
    assert scan_records(array, 0, np.array([second, position, 0]), found) == 1
    assert found["physical_offset"][0] == second
    assert scan_by_kernel(data, 0, 0, len(data), check_crc=True, tags=False).status is Status.ZERO
