"""Records of a CommitLog, encoded many at once from the columns of a batch.

    bodies   body body body ...           end to end; a row tells how long each is
    keys     keys 02 keys 02 keys ...     single spaces between the keys of a message
    tags     tag 02 tag 02 tag ...        empty where a message has none, as keys are
    given    properties properties ...    as they shall lie on disk, end to end

    record := head body topic UNIQ_KEY KEYS TAGS common given [record CRC]

What all records of a batch share is given once: a head with the fields that do not differ, the topic with its size,
properties that all of them have (``common``). See formats/rocketmq/message.py for the record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.message import MESSAGE_HEAD, RECORD_CRC_SIZE
from whence.formats.rocketmq.properties import KEYS, RECORD_CRC, TAGS
from whence.kernels import inlined, kernel
from whence.kernels.checksums import crc32
from whence.kernels.intrinsics import (
    LANES,
    address_of,
    copy_bytes,
    first_bit,
    match,
    shift_right,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
)

ROW = np.dtype(
    [
        ("record_size", np.int64),
        ("properties_size", np.int64),
        ("body_size", np.int64),
        ("keys_size", np.int64),
        ("tags_size", np.int64),
        ("given_size", np.int64),
        ("flag", np.int32),
        ("makes_id", np.int32),  # whether the record gets a UNIQ_KEY
    ]
)
"""One message of a batch."""

ID_NUMBER_DIGITS = 12

_NAME_END = 0x01
_VALUE_END = 0x02
_KEY_END = ord(" ")
_KEYS_NAME, _TAGS_NAME = (int.from_bytes(name.encode(), "big") for name in (KEYS, TAGS))
_RECORD_CRC_NAME = int.from_bytes(RECORD_CRC.encode(), "big")
assert (len(KEYS), len(TAGS), len(RECORD_CRC)) == (4, 4, 8)
NAMED_SIZE = len(KEYS) + 2  # what name and separators add to the value of KEYS or TAGS

assert MESSAGE_HEAD.fields is not None
_BODY_CRC_AT, _FLAG_AT, _QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT = (
    MESSAGE_HEAD.fields[name][1] for name in ("body_crc", "flag", "queue_offset", "physical_offset")
)
_CRC_MASK = 0x7FFFFFFF


class Shared(NamedTuple):
    """What the records of a batch have in common; arrays of bytes."""

    head: NDArray[np.uint8]  # up to the body; its sizes, offsets, flag and CRC are filled in
    topic: NDArray[np.uint8]  # with its size before it
    id_head: NDArray[np.uint8]  # the name UNIQ_KEY, 01, and an id up to its number
    common: NDArray[np.uint8]


@kernel
def measure_texts(text: Any, counts: Any, sizes: Any) -> bool:
    """Cut ``text`` at each 02 into the texts of the messages, which have ``sizes`` bytes.

    LANES bytes of anything follow the last 02. The result tells whether there is a text for each message and nothing
    more. With ``counts`` they are keys: then each must be as many words as its count tells, single spaces between
    them, as it is if no key is empty or holds a space or a 02.
    """
    at = address_of(text)
    message = words = start = block = 0
    last = -1  # of the separators found
    is_good = True
    while message < len(sizes):
        ends = match(at + block, _VALUE_END)
        separators = ends
        if len(counts) > 0:
            separators |= match(at + block, _KEY_END)
        while separators != 0 and message < len(sizes):
            bit = first_bit(separators)
            separators &= separators - 1
            position = block + bit
            is_end = shift_right(ends, bit) & 1 != 0
            if position > last + 1:
                words += 1
            elif not (is_end and position == start):
                is_good = False
            if is_end:
                sizes[message] = position - start
                if len(counts) > 0 and words != counts[message]:
                    is_good = False
                message += 1
                words = 0
                start = position + 1
            last = position
        block += LANES
    return is_good and start == len(text) - LANES


@kernel
def size_records(rows: Any, common_size: int, id_size: int, empty_record_size: int) -> int:
    """Work out the sizes of properties and records; how many bytes the bodies take in all.

    ``common_size`` are the properties that all records have, a record CRC included, ``empty_record_size`` is what a
    record takes beside body and properties.
    """
    bodies_size = 0
    for i in range(len(rows)):
        row = rows[i]
        size = common_size + row.given_size
        if row.makes_id:
            size += id_size
        if row.keys_size > 0:
            size += row.keys_size + NAMED_SIZE
        if row.tags_size > 0:
            size += row.tags_size + NAMED_SIZE
        row.properties_size = size
        row.record_size = empty_record_size + row.body_size + size
        bodies_size += row.body_size
    return bodies_size


@kernel
def write_records(
    rows: Any,
    shared: Any,
    columns: Any,
    positions: Any,
    id_number: int,
    queue_offset: int,
    physical_offset: int,
    with_record_crc: bool,
    out: Any,
) -> int:
    """Write the records of ``rows`` into ``out``, which is as large as they are.

    ``columns`` are bodies, keys, tags and given; ``positions`` tell how far each was read, and are moved on. The ids
    that are made are numbered from ``id_number`` on; the number that the next would have is returned.
    """
    head, topic, id_head, common = shared
    head_at, topic_at, id_head_at = address_of(head), address_of(topic), address_of(id_head)
    common_at = address_of(common)
    bodies, keys, tags, given = columns
    body_at, keys_at = address_of(bodies) + positions[0], address_of(keys) + positions[1]
    tags_at, given_at = address_of(tags) + positions[2], address_of(given) + positions[3]
    record = address_of(out)
    for i in range(len(rows)):
        row = rows[i]
        copy_bytes(record, head_at, len(head))
        store_i32(record, row.record_size)
        store_i32(record + _FLAG_AT, row.flag)
        store_i64(record + _QUEUE_OFFSET_AT, queue_offset + i)
        store_i64(record + _PHYSICAL_OFFSET_AT, physical_offset)
        at = record + len(head)
        store_i32(at - 4, row.body_size)
        copy_bytes(at, body_at, row.body_size)
        store_i32(record + _BODY_CRC_AT, crc32(at, row.body_size, record) & _CRC_MASK)
        body_at += row.body_size
        at = _copy(at + row.body_size, topic_at, len(topic))
        store_i16(at, row.properties_size)
        at += 2
        if row.makes_id:
            at = _write_number(_copy(at, id_head_at, len(id_head)), id_number)
            store_i8(at, _VALUE_END)
            at += 1
            id_number += 1
        if row.keys_size > 0:
            at = _write_named(at, _KEYS_NAME, keys_at, row.keys_size)
        keys_at += row.keys_size + 1
        if row.tags_size > 0:
            at = _write_named(at, _TAGS_NAME, tags_at, row.tags_size)
        tags_at += row.tags_size + 1
        at = _copy(at, common_at, len(common))
        at = _copy(at, given_at, row.given_size)
        given_at += row.given_size
        if with_record_crc:
            at = _write_record_crc(at, crc32(record, at - record, record) & _CRC_MASK)
        record += row.record_size
        physical_offset += row.record_size
    positions[0], positions[1] = body_at - address_of(bodies), keys_at - address_of(keys)
    positions[2], positions[3] = tags_at - address_of(tags), given_at - address_of(given)
    return id_number


@inlined
def _copy(at: int, source: int, size: int) -> int:
    copy_bytes(at, source, size)
    return at + size


@inlined
def _write_named(at: int, name: int, value_at: int, size: int) -> int:
    """A property whose name has four letters."""
    store_i32(at, name)
    store_i8(at + 4, _NAME_END)
    copy_bytes(at + 5, value_at, size)
    store_i8(at + 5 + size, _VALUE_END)
    return at + size + NAMED_SIZE


@inlined
def _write_number(at: int, number: int) -> int:
    """The number of an id, in twelve hex digits."""
    store_i64(at, _hex_digits(number >> 16))
    store_i32(at + 8, _hex_digits(number & 0xFFFF))
    return at + ID_NUMBER_DIGITS


@inlined
def _hex_digits(number: int) -> int:
    """The eight digits of a 32-bit number as the bytes of a word; the last digit is the lowest byte."""
    number = (number << 16 | number) & 0x0000FFFF0000FFFF
    number = (number << 8 | number) & 0x00FF00FF00FF00FF
    number = (number << 4 | number) & 0x0F0F0F0F0F0F0F0F
    is_letter = (number + 0x0606060606060606) >> 4 & 0x0101010101010101
    return number + 0x3030303030303030 + is_letter * (ord("A") - ord("9") - 1)


@inlined
def _write_record_crc(at: int, crc: int) -> int:
    """The property that ends a record; the lowest of its ten digits comes first."""
    store_i64(at, _RECORD_CRC_NAME)
    store_i8(at + 8, _NAME_END)
    for i in range(10):
        store_i8(at + 9 + i, ord("0") + crc % 10)
        crc //= 10
    store_i8(at + 19, _VALUE_END)
    return at + RECORD_CRC_SIZE
