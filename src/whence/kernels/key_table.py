"""Many keys in one array of bytes: hashed, measured, and found again by their bytes.

    key i is data[starts[i] : starts[i] + sizes[i]], UTF-8

The table finds a key's number by its text. A place holds a number, counted from 1, and 0 is empty; which place a key
belongs to, its hash tells, and where another one stands already it takes the next that is free. There are at least
twice as many places as keys, so a search ends after a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.properties import PROPERTIES_SIZE_MAX
from whence.kernels import inlined, kernel
from whence.kernels.columns import CLEAN_FACTOR, clean_text
from whence.kernels.hashing import BLOCK, extend_hash_ascii, extend_hash_utf16, fold_hash, signed
from whence.kernels.intrinsics import LANES, address_of, first_bit, is_equal, load_i8, match, prefetch

PAD = BLOCK
"""So many bytes lie before the first key, which a hash may read."""
PAD_BEHIND = LANES
MALFORMED = -1
NO_KEY = -1
CLEAN_SIZE = CLEAN_FACTOR * PROPERTIES_SIZE_MAX

_LINE_END = ord("\n")
_CARRIAGE_RETURN = ord("\r")
_SCATTER = 0x9E3779B97F4A7C15 - 2**64  # golden ratio: spreads hashes that differ little over all places
_AHEAD = 16  # keys whose places are asked for before they are needed: the table is larger than the cache


@kernel
def measure_keys(data: Any, starts: Any, sizes: Any, hashes: Any, units: Any) -> int:
    """Fill in Java's hash of each key, and how many UTF-16 units it has.

    Gives the number of the first that is not UTF-8, or NO_KEY.
    """
    data_at = address_of(data)
    for i in range(len(starts)):
        at = data_at + starts[i]
        size = sizes[i]
        h, is_wide = extend_hash_ascii(0, at, size)
        units[i] = size
        if is_wide:
            h = extend_hash_utf16(0, at, size)
            units[i] = _count_units(at, size)
            if units[i] == MALFORMED:
                return i
        hashes[i] = signed(h)
    return NO_KEY


@kernel
def _count_units(at: int, size: int) -> int:
    """How many UTF-16 units a text has; MALFORMED if it is not UTF-8."""
    end = at + size
    units = 0
    while at < end:
        first = load_i8(at) & 0xFF
        second = load_i8(at + 1) & 0xFF if at + 1 < end else 0
        if first < 0x80:
            length = 1
        elif 0xC2 <= first <= 0xDF:
            length = 2
        elif 0xE0 <= first <= 0xEF:
            length = 3
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second >= 0xA0):
                return MALFORMED
        elif 0xF0 <= first <= 0xF4:
            length = 4
            units += 1  # a surrogate pair
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90):
                return MALFORMED
        else:
            return MALFORMED
        if at + length > end:
            return MALFORMED
        for i in range(1, length):
            if load_i8(at + i) & 0xC0 != 0x80:
                return MALFORMED
        at += length
        units += 1
    return units


def split_lines(data: NDArray[np.uint8], end: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    r"""Starts and sizes of the lines of ``data[PAD:end]`` that are not empty; and how many lines there are in all.

    A line ends in ``\n`` or ``\r\n``, the last one at the end. PAD_BEHIND bytes behind the end can be read.
    """
    line_max = int(np.count_nonzero(data[PAD:end] == _LINE_END)) + 1
    starts, sizes = np.empty(line_max, np.int64), np.empty(line_max, np.int32)
    count = _split_lines(data, end, starts, sizes)
    return starts[:count], sizes[:count], line_max - 1 + (end > PAD and data[end - 1] != _LINE_END)


@kernel
def _split_lines(data: Any, end: int, starts: Any, sizes: Any) -> int:
    data_at = address_of(data)
    count = 0
    start = block = PAD
    while block < end:
        marks = match(data_at + block, _LINE_END)
        left = end - block
        if left <= LANES:  # the end ends a line, too
            if left < LANES:
                marks = marks & (1 << left) - 1 | 1 << left
        while marks:
            at = block + first_bit(marks)
            marks &= marks - 1
            count += _put_line(data_at, start, at, starts, sizes, count)
            start = at + 1
        block += LANES
    if start < end:
        count += _put_line(data_at, start, end, starts, sizes, count)
    return count


@inlined
def _put_line(data_at: int, start: int, end: int, starts: Any, sizes: Any, count: int) -> int:
    if end > start and load_i8(data_at + end - 1) == _CARRIAGE_RETURN:
        end -= 1
    if end <= start:
        return 0
    starts[count] = start
    sizes[count] = end - start
    return 1


def new_table(key_count: int) -> NDArray[np.int32]:
    """An empty table for so many keys."""
    return np.zeros(1 << max(int(2 * key_count - 1).bit_length(), 4), np.int32)


@kernel
def put_keys(data: Any, starts: Any, sizes: Any, hashes: Any, table: Any, is_first: Any) -> None:
    """Put keys into an empty table; ``is_first`` tells of each whether it was not there already."""
    data_at = address_of(data)
    table_at = address_of(table)
    for i in range(len(starts)):
        if i + _AHEAD < len(starts):
            prefetch(table_at + 4 * _place_of(hashes[i + _AHEAD], len(table)))
        place = _place_of(hashes[i], len(table))
        is_first[i] = True
        while table[place]:
            other = table[place] - 1
            if (
                hashes[other] == hashes[i]
                and sizes[other] == sizes[i]
                and is_equal(data_at + starts[other], data_at + starts[i], sizes[i])
            ):
                is_first[i] = False
                break
            place = (place + 1) & len(table) - 1
        if is_first[i]:
            table[place] = i + 1


@inlined
def _place_of(h: int, places: int) -> int:
    return (h * _SCATTER >> 20) & places - 1


@inlined
def find_key(at: int, size: int, data_at: int, starts: Any, sizes: Any, hashes: Any, table: Any, clean: int) -> int:
    """The number of the key that a text in a log is, as Java reads it; NO_KEY if it is none of them.

    32 bytes before the text can be read. ``clean`` is the address of CLEAN_SIZE bytes, for a text beyond ASCII.
    """
    h, is_wide = extend_hash_ascii(0, at, size)
    if is_wide:
        h = extend_hash_utf16(0, at, size)
        size = clean_text(at, size, clean)
        at = clean
    h = signed(h)
    place = _place_of(h, len(table))
    while table[place]:
        number = table[place] - 1
        if hashes[number] == h and sizes[number] == size and is_equal(data_at + starts[number], at, size):
            return number
        place = (place + 1) & len(table) - 1
    return NO_KEY


@kernel
def find_number(text: Any, data: Any, starts: Any, sizes: Any, hashes: Any, table: Any) -> int:
    """The number of the key that ``text[PAD:]``, which is UTF-8, is; NO_KEY if it is none."""
    clean = np.empty(CLEAN_FACTOR * len(text), np.uint8)
    size = len(text) - PAD
    return find_key(address_of(text) + PAD, size, address_of(data), starts, sizes, hashes, table, address_of(clean))


@kernel
def hash_with_topic(topic_hash: int, hashes: Any, units: Any, powers: Any, key_hashes: Any) -> None:
    """What an index file holds for keys of one topic: ``topic_hash`` is that of ``topic#``.

    hash(topic#key) = hash(topic#) * 31^units(key) + hash(key); ``powers`` has those of 31.
    """
    for i in range(len(hashes)):
        key_hashes[i] = fold_hash(signed(topic_hash * powers[units[i]] + hashes[i]))
