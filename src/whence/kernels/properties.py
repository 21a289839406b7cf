"""The few properties that a scan needs, found in a record's bytes without decoding them.

    properties := (name 01 value 02)*        see formats/rocketmq/properties.py

RocketMQ cuts the decoded text; here the bytes are cut. It comes to the same: 01, 02 and the space are ASCII, and no
decoder of UTF-8 takes an ASCII byte into another character, malformed or not.

All functions take addresses. ``data_end`` is the first byte that must not be read; the record begins at least 64
bytes before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from whence.formats.rocketmq.message import RECORD_CRC_SIZE
from whence.formats.rocketmq.properties import (
    DELAY_LEVEL,
    INNER_BASE,
    INNER_COUNT,
    KEYS,
    LIGHT_QUEUE_OFFSETS,
    LIGHT_QUEUES,
    RECORD_CRC,
    TAGS,
    UNIQUE_ID,
)
from whence.kernels import inlined
from whence.kernels.intrinsics import LANES, first_bit, high_bits, load_i8, load_word, match, shift_right

_NAME_END = 0x01
_VALUE_END = 0x02


def _word(text: str) -> int:
    return int.from_bytes(text.encode(), "little")


# A property begins with its name and 01. Both are compared at once, as the low bytes of a word.
_KEYS_NAME = _word(KEYS + "\x01")
_TAGS_NAME = _word(TAGS + "\x01")
_DELAY_LEVEL_NAME = _word(DELAY_LEVEL + "\x01")
_UNIQUE_ID_NAME = _word(UNIQUE_ID)  # fills the word: its 01 comes behind
_RECORD_CRC_NAME = _word(RECORD_CRC)
_INNER = "INNER_"  # how the names begin of what places a message in batch queues and light queues
_INNER_START = _word(_INNER)
_FIVE_BYTES = 2**40 - 1
_SIX_BYTES = 2**48 - 1
assert (len(KEYS), len(TAGS), len(DELAY_LEVEL), len(UNIQUE_ID), len(RECORD_CRC), len(_INNER)) == (4, 4, 5, 8, 8, 6)
assert all(name.startswith(_INNER) for name in (INNER_BASE, INNER_COUNT, LIGHT_QUEUES, LIGHT_QUEUE_OFFSETS))
_INITIALS = sum(1 << ord(initial) % 32 for initial in {KEYS[0], TAGS[0], DELAY_LEVEL[0], UNIQUE_ID[0], _INNER[0]})


class Texts(NamedTuple):
    """Address and size of each value, size 0 if there is none.

    ``has_inner``: whether a name begins with INNER_. ``are_wide``: whether a byte of the properties is not ASCII.
    """

    keys_at: int
    keys_size: int
    tags_at: int
    tags_size: int
    unique_id_at: int
    unique_id_size: int
    delay_level_at: int
    delay_level_size: int
    has_inner: int
    are_wide: int


@inlined
def find_texts(record: int, at: int, end: int, data_end: int) -> Texts:
    """Look through the properties from ``at`` to ``end``, of the record at ``record``.

    Each goes up to the next 02 or the end. One without a value does not count; of two with one name the later does.
    """
    keys_at = tags_at = unique_id_at = delay_level_at = record
    keys_size = tags_size = unique_id_size = delay_level_size = has_inner = are_wide = 0
    block = at - LANES
    marks = 0
    while at < end:
        while marks == 0:
            block += LANES
            marks = find_marks(_VALUE_END, block, end, data_end)
            are_wide |= wide_bits(block, end, data_end)
        mark = block + first_bit(marks)
        marks &= marks - 1
        word = _load_name(at, data_end)
        if not _INITIALS >> word % 32 & 1:  # one test instead of four for most other names: 5 % of the scan
            pass
        elif word & _FIVE_BYTES == _KEYS_NAME:
            if mark > at + 5:
                keys_at = at + 5
                keys_size = mark - keys_at
        elif word & _FIVE_BYTES == _TAGS_NAME:
            if mark > at + 5:
                tags_at = at + 5
                tags_size = mark - tags_at
        elif word & _SIX_BYTES == _DELAY_LEVEL_NAME:
            if mark > at + 6:
                delay_level_at = at + 6
                delay_level_size = mark - delay_level_at
        elif word == _UNIQUE_ID_NAME:
            if mark > at + 9 and load_i8(at + 8) == _NAME_END:
                unique_id_at = at + 9
                unique_id_size = mark - unique_id_at
        elif word & _SIX_BYTES == _INNER_START and mark >= at + 6:
            has_inner = 1
        at = mark + 1
    return Texts(
        keys_at,
        keys_size,
        tags_at,
        tags_size,
        unique_id_at,
        unique_id_size,
        delay_level_at,
        delay_level_size,
        has_inner,
        are_wide,
    )


@inlined
def put_texts(message: Any, record: int, texts: Texts) -> None:
    """Note in a row of messages where the values of the record at ``record`` lie in it."""
    message.keys_at = texts.keys_at - record
    message.keys_size = texts.keys_size
    message.tags_at = texts.tags_at - record
    message.tags_size = texts.tags_size
    message.unique_id_at = texts.unique_id_at - record
    message.unique_id_size = texts.unique_id_size
    message.delay_level_at = texts.delay_level_at - record
    message.delay_level_size = texts.delay_level_size
    message.has_inner = texts.has_inner


@inlined
def record_crc(end: int, properties_size: int) -> int:
    """The number in ``__CRC32# 01 dddddddddd 02`` before ``end``, its lowest digit first; -1 if that is not there."""
    at = end - RECORD_CRC_SIZE
    if properties_size < RECORD_CRC_SIZE or load_word(at) != _RECORD_CRC_NAME:
        return -1
    if load_i8(at + 8) != _NAME_END or load_i8(end - 1) != _VALUE_END:
        return -1
    crc = 0
    for place in range(10):
        digit = load_i8(end - 2 - place) - ord("0")
        if digit < 0 or digit > 9:
            return -1
        crc = crc * 10 + digit
    return crc


@inlined
def find_marks(byte: int, block: int, end: int, data_end: int) -> int:
    """Where ``byte`` is among the 64 bytes from ``block`` on, a bit each. ``end`` counts too, and nothing behind it.

    So a text is cut by one comparison for 64 bytes, and two bit operations for each piece. With a comparison for each
    piece, from its start on, which has to wait for the one before, the scan took 1.5 times as long.
    """
    base = min(block, data_end - LANES)
    marks = shift_right(match(base, byte), block - base)
    left = end - block
    if left < LANES:
        marks = marks & (1 << left) - 1 | 1 << left
    return marks


@inlined
def wide_bits(block: int, end: int, data_end: int) -> int:
    """Which of the 64 bytes from ``block`` on, up to ``end``, are not ASCII."""
    base = min(block, data_end - LANES)
    bits = shift_right(high_bits(base), block - base)
    left = end - block
    if left < LANES:
        bits &= (1 << left) - 1
    return bits


@inlined
def _load_name(at: int, data_end: int) -> int:
    """The eight bytes from ``at`` on, with zeros in the place of those that must not be read."""
    if at < data_end - 8:
        return load_word(at)
    return shift_right(load_word(data_end - 8), 8 * (at - (data_end - 8)))
