"""The variable parts of scanned records, gathered into the buffers of Arrow's columns.

    column of texts    offsets i4[count + 1], data       text i is data[offsets[i]:offsets[i + 1]]
    column of lists    offsets i4[count + 1], a column   list i is the column's texts offsets[i] to offsets[i + 1]

A span is the address and the size of bytes. First the spans of a record's texts are found (:func:`find_spans`), then
those of single keys and properties in them, then a column is copied together from spans (:func:`copy_spans`).

Arrow's texts are UTF-8, and what lies in a log need not be: the texts of a record that has bytes beyond ASCII are
copied aside first, with U+FFFD for malformed bytes as Java's decoder puts it. From there on equal texts are equal
bytes.

Who calls these holds what the addresses lead to. A record is known whole, and has the row of SCANNED that is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.formats.rocketmq.message import whole_head
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, SysFlag, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.intrinsics import (
    LANES,
    address_of,
    copy_bytes,
    first_bit,
    is_equal,
    load_i8,
    load_i32,
    load_i64,
    shift_right,
    store_i8,
)
from whence.kernels.properties import find_marks, find_texts, wide_bits

# The columns of spans: each has the addresses in its first row and the sizes in its second.
TOPIC, KEYS, TAGS, UNIQUE_ID, PROPERTIES = range(5)
SPAN_KINDS = 5

# The columns of heads.
FLAG, BORN_TIMESTAMP_MS, RECONSUME_TIMES, HOST_AT, HOST_SIZE, BODY_AT, BODY_SIZE = range(7)
HEAD_FIELDS = 7

CLEAN_FACTOR = 3  # so many times as long a text can become: U+FFFD takes three bytes, for one at least

_NAME_END = 0x01
_VALUE_END = 0x02
_SPACE = ord(" ")
_ROLLBACK = int(Transaction.ROLLBACK)
_BORN_HOST_IPV6 = int(SysFlag.BORN_HOST_IPV6)
_STORE_HOST_IPV6 = int(SysFlag.STORE_HOST_IPV6)
_HEAD = whole_head(0)
_IPV6_EXTRA = whole_head(_STORE_HOST_IPV6).itemsize - _HEAD.itemsize
_HEAD_SIZE = _HEAD.itemsize
assert _HEAD.fields is not None
_FLAG_AT, _BORN_TIMESTAMP_AT, _STORE_HOST_AT, _RECONSUME_TIMES_AT = (
    _HEAD.fields[name][1] for name in ("flag", "born_timestamp_ms", "store_host_data", "reconsume_times")
)
_HOST_SIZE = _HEAD["store_host_data"].itemsize

_FEW = 16  # so many texts are compared with each other; more are looked up in a table
TABLE_PLACES = 65536  # four times as many as a record can have keys or properties


@kernel
def read_heads(rows: Any, records: Any, heads: Any) -> None:
    """Fill ``heads`` (HEAD_FIELDS columns) with what the heads of these records say and their rows do not."""
    for i in range(len(rows)):
        row = rows[i]
        record = records[i]
        born_extra = _IPV6_EXTRA if row.sys_flag & _BORN_HOST_IPV6 else 0
        store_extra = _IPV6_EXTRA if row.sys_flag & _STORE_HOST_IPV6 else 0
        body_at = record + _HEAD_SIZE + born_extra + store_extra
        heads[FLAG, i] = load_i32(record + _FLAG_AT)
        heads[BORN_TIMESTAMP_MS, i] = load_i64(record + _BORN_TIMESTAMP_AT)
        heads[RECONSUME_TIMES, i] = load_i32(record + _RECONSUME_TIMES_AT + born_extra + store_extra)
        heads[HOST_AT, i] = record + _STORE_HOST_AT + born_extra
        heads[HOST_SIZE, i] = _HOST_SIZE + store_extra
        heads[BODY_AT, i] = body_at
        heads[BODY_SIZE, i] = load_i32(body_at - 4)


@kernel
def wide_size(rows: Any, records: Any) -> int:
    """How many bytes :func:`find_spans` needs for copies of texts beyond ASCII."""
    size = 0
    for i in range(len(rows)):
        row = rows[i]
        record = records[i]
        topic_at = record + row.topic_at
        properties_at = topic_at + row.topic_size + 2
        end = record + row.size
        if _is_wide(topic_at, topic_at + row.topic_size, end) or _is_wide(properties_at, end, end):
            size += CLEAN_FACTOR * (end - topic_at) + 2 * LANES
    return size


@kernel
def find_spans(rows: Any, records: Any, wide: Any, spans: Any) -> None:
    """Fill ``spans`` (SPAN_KINDS columns) with the texts of each record; a rollback bears no keys and no unique id.

    ``wide`` is as large as :func:`wide_size` says. Texts beyond ASCII lie there, well-formed.
    """
    free = address_of(wide)
    for i in range(len(rows)):
        row = rows[i]
        record = records[i]
        end = record + row.size
        topic_at = record + row.topic_at
        topic_size = row.topic_size
        properties_at = topic_at + topic_size + 2
        properties_size = end - properties_at
        keys_at = record + row.keys_at
        keys_size = row.keys_size
        tags_at = record + row.tags_at
        tags_size = row.tags_size
        unique_id_at = record + row.unique_id_at
        unique_id_size = row.unique_id_size
        if len(wide) > 0 and (_is_wide(topic_at, topic_at + topic_size, end) or _is_wide(properties_at, end, end)):
            start = free
            topic_size = clean_text(topic_at, topic_size, start + LANES)
            topic_at = start + LANES
            cleaned_at = topic_at + topic_size
            properties_size = clean_text(properties_at, properties_size, cleaned_at)
            properties_at = cleaned_at
            free = properties_at + properties_size + LANES
            texts = find_texts(start, properties_at, properties_at + properties_size, free)
            keys_at = texts.keys_at
            keys_size = texts.keys_size
            tags_at = texts.tags_at
            tags_size = texts.tags_size
            unique_id_at = texts.unique_id_at
            unique_id_size = texts.unique_id_size
        if row.sys_flag & TRANSACTION_MASK == _ROLLBACK:
            keys_size = 0
            unique_id_size = 0
        spans[TOPIC, 0, i] = topic_at
        spans[TOPIC, 1, i] = topic_size
        spans[KEYS, 0, i] = keys_at
        spans[KEYS, 1, i] = keys_size
        spans[TAGS, 0, i] = tags_at
        spans[TAGS, 1, i] = tags_size
        spans[UNIQUE_ID, 0, i] = unique_id_at
        spans[UNIQUE_ID, 1, i] = unique_id_size
        spans[PROPERTIES, 0, i] = properties_at
        spans[PROPERTIES, 1, i] = properties_size


@kernel
def split_keys(spans: Any, table: Any, offsets: Any, keys: Any) -> None:
    """Cut each value of KEYS at its spaces: ``keys`` gets the spans of the distinct keys, ``offsets`` says whose.

    There is room for (size + 1) // 2 keys of each. ``table`` has TABLE_PLACES zeros.
    """
    count = 0
    offsets[0] = 0
    for i in range(spans.shape[1]):
        first = count
        at = spans[0, i]
        end = at + spans[1, i]
        block = at - LANES
        marks = 0
        while at < end:
            while marks == 0:
                block += LANES
                marks = find_marks(_SPACE, block, end, end)
            mark = block + first_bit(marks)
            marks &= marks - 1
            if mark > at:
                keys[0, count] = at
                keys[1, count] = mark - at
                if _same_text(keys, table, first, count) == count:
                    count += 1
            at = mark + 1
        offsets[i + 1] = count


@kernel
def split_properties(spans: Any, table: Any, offsets: Any, names: Any, values: Any) -> None:
    """Cut the properties of each record: ``names`` and ``values`` get their spans, ``offsets`` says whose.

    One without a name or a value is left out. Of two with one name the first has the place and the later the value.
    There is room for (size + 1) // 4 properties of each. ``table`` has TABLE_PLACES zeros.
    """
    count = 0
    offsets[0] = 0
    for i in range(spans.shape[1]):
        first = count
        at = spans[0, i]
        end = at + spans[1, i]
        block = at - LANES
        marks = 0
        ends = 0
        value_at = 0  # where the value begins, once its name has ended
        while at < end:
            while marks == 0:
                block += LANES
                ends = find_marks(_VALUE_END, block, end, end)
                marks = ends | find_marks(_NAME_END, block, end, end)
            bit = first_bit(marks)
            marks &= marks - 1
            mark = block + bit
            if shift_right(ends, bit) & 1:
                if value_at > at + 1 and mark > value_at:
                    names[0, count] = at
                    names[1, count] = value_at - 1 - at
                    place = _same_text(names, table, first, count)
                    values[0, place] = value_at
                    values[1, place] = mark - value_at
                    if place == count:
                        count += 1
                at = mark + 1
                value_at = 0
            elif value_at == 0:
                value_at = mark + 1
        offsets[i + 1] = count


@kernel
def copy_spans(ats: Any, sizes: Any, data: Any) -> None:
    """Copy the bytes of all spans into ``data``, one behind the other."""
    at = address_of(data)
    for i in range(len(ats)):
        copy_bytes(at, ats[i], sizes[i])
        at += sizes[i]


@kernel
def write_offset_ids(host_ats: Any, host_sizes: Any, physical_offsets: Any, data: Any) -> None:
    """Write the offset id of each record into ``data``, one behind the other: host and offset in hex digits."""
    at = address_of(data)
    for i in range(len(host_ats)):
        host_at = host_ats[i]
        for byte in range(host_sizes[i]):
            at = _write_hex(at, load_i8(host_at + byte))
        physical_offset = physical_offsets[i]
        for byte in range(8):
            at = _write_hex(at, physical_offset >> 56 - 8 * byte)


@inlined
def _write_hex(at: int, byte: int) -> int:
    for shift in (4, 0):
        digit = byte >> shift & 0xF
        store_i8(at, digit + (ord("0") if digit < 10 else ord("A") - 10))
        at += 1
    return at


@inlined
def _is_wide(at: int, end: int, data_end: int) -> bool:
    """Whether a byte from ``at`` to ``end`` is not ASCII."""
    bits = 0
    while at < end:
        bits |= wide_bits(at, end, data_end)
        at += LANES
    return bits != 0


@kernel
def clean_text(at: int, size: int, out: int) -> int:
    """Copy a text to ``out``, U+FFFD for what Java's decoder finds malformed; its size there.

    See kernels/hashing.py: one for the longest beginning of a character, at least for one byte, and one for the three
    bytes of an encoded surrogate.
    """
    start = out
    end = at + size
    while at < end:
        first = load_i8(at) & 0xFF
        second = load_i8(at + 1) & 0xFF if at + 1 < end else 0
        third = load_i8(at + 2) & 0xFF if at + 2 < end else 0
        fourth = load_i8(at + 3) & 0xFF if at + 3 < end else 0
        taken = 1
        is_good = first < 0x80
        if 0xC2 <= first <= 0xDF:
            if second & 0xC0 == 0x80:
                taken = 2
                is_good = True
        elif 0xE0 <= first <= 0xEF:
            if second & 0xC0 == 0x80 and not (first == 0xE0 and second < 0xA0):
                taken = 2
                if third & 0xC0 == 0x80:
                    taken = 3
                    is_good = first != 0xED or second < 0xA0
        elif 0xF0 <= first <= 0xF4:
            too_low = first == 0xF0 and second < 0x90
            too_high = first == 0xF4 and second >= 0x90
            if second & 0xC0 == 0x80 and not too_low and not too_high:
                taken = 2
                if third & 0xC0 == 0x80:
                    taken = 3
                    if fourth & 0xC0 == 0x80:
                        taken = 4
                        is_good = True
        if is_good:
            for i in range(taken):
                store_i8(out + i, load_i8(at + i))
            out += taken
        else:
            store_i8(out, 0xEF)
            store_i8(out + 1, 0xBF)
            store_i8(out + 2, 0xBD)
            out += 3
        at += taken
    return out - start


@inlined
def _same_text(spans: Any, table: Any, first: int, count: int) -> int:
    """The number of the text from ``first`` on that equals text ``count``, which is the last; its own if none does.

    A place in the table that tells a number below ``first`` is of another record, and as good as empty.
    """
    at = spans[0, count]
    size = spans[1, count]
    if count - first < _FEW:
        for i in range(first, count):
            if spans[1, i] == size and is_equal(spans[0, i], at, size):
                return i
        return count
    if count - first == _FEW:
        for i in range(first, count):
            table[_free_place(spans, table, first, i)] = i + 1
    place = _free_place(spans, table, first, count)
    if table[place] > first:
        return table[place] - 1
    table[place] = count + 1
    return count


@kernel
def _free_place(spans: Any, table: Any, first: int, number: int) -> int:
    """The place of this text in the table: where it is, or the empty one where it belongs."""
    at = spans[0, number]
    size = spans[1, number]
    h = 0
    for i in range(size):
        h = h * 31 + load_i8(at + i)
    place = (h ^ h >> 16) % TABLE_PLACES
    while table[place] > first:
        other = table[place] - 1
        if spans[1, other] == size and is_equal(spans[0, other], at, size):
            break
        place = (place + 1) % TABLE_PLACES
    return place


def new_table() -> np.ndarray[Any, np.dtype[np.int32]]:
    """The table that :func:`split_keys` and :func:`split_properties` need."""
    return np.zeros(TABLE_PLACES, np.int32)
