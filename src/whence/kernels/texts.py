"""Columns of texts and numbers as JSON and CSV, written into lines.

A column of texts is bytes and where each text begins in them, as Arrow has it; bytes are UTF-8 unless it is said
otherwise. For each kind of column there are two kernels: ``measure_...`` adds what each row takes to ``sizes``, and
``write_...`` writes each row at its place in ``at`` and moves that behind it. So a line of many columns is written
once, straight to where it belongs.

    all rows alike     the same bytes                          write_literal
    texts as they are  with a space between two                write_members
    measure_numbers    ASCII digits                            write_numbers
    measure_json       a JSON string                           write_json
    measure_json_lists a JSON array of strings                 write_json_lists
    measure_json_maps  a JSON object of strings                write_json_maps
    measure_csv        a CSV field, in quotes if it must be    write_csv
    measure_base64     in quotes or not                        write_base64
    find_texts         which rows of any bytes are UTF-8
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.kernels import inlined, kernel

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}  # what JSON writes with one letter


def _sizes(*, in_ascii: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """How many bytes of JSON a byte of UTF-8 becomes. In ASCII the first byte of a character counts for all of it."""
    sizes = np.ones(256, np.uint8)
    sizes[:32] = 6
    sizes[[*_SHORT]] = 2
    if in_ascii:
        sizes[127] = 6
        sizes[0x80:0xC0] = 0
        sizes[0xC0:0xF0] = 6
        sizes[0xF0:] = 12  # two halves, as Java and JSON have it
    return sizes


_SIZES = np.stack([_sizes(in_ascii=False), _sizes(in_ascii=True)])
_LETTERS = np.zeros(256, np.uint8)
for _byte, _letter in _SHORT.items():
    _LETTERS[_byte] = ord(_letter)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)

_QUOTE, _BACKSLASH, _U, _MINUS, _ZERO, _COMMA, _COLON, _SPACE, _NEWLINE, _RETURN, _EQUALS = (
    ord(letter) for letter in '"\\u-0,: \n\r='
)
_OPEN, _CLOSE, _OPEN_MAP, _CLOSE_MAP = (ord(letter) for letter in "[]{}")


@kernel
def write_literal(literal: Any, out: Any, at: Any) -> None:
    """The same bytes in each row."""
    for row in range(len(at)):
        to = at[row]
        for i in range(len(literal)):
            out[to + i] = literal[i]
        at[row] = to + len(literal)


# -- numbers ---------------------------------------------------------------------------------------------------


@inlined
def _magnitude(value: Any) -> Any:
    # The smallest number has no positive twin, but as an unsigned one it has.
    return np.uint64(value) if value >= 0 else np.uint64(0) - np.uint64(value)


@kernel
def measure_numbers(values: Any, sizes: Any) -> None:
    """Of 64-bit numbers in decimal digits."""
    for row in range(len(values)):
        left = _magnitude(values[row])
        size = 1 if values[row] >= 0 else 2
        while left >= np.uint64(10):
            left //= np.uint64(10)
            size += 1
        sizes[row] += size


@kernel
def write_numbers(values: Any, out: Any, at: Any) -> None:
    """The digits that :func:`measure_numbers` counted."""
    digits = np.empty(20, np.uint8)
    for row in range(len(values)):
        left = _magnitude(values[row])
        to = at[row]
        if values[row] < 0:
            out[to] = _MINUS
            to += 1
        count = 0
        while True:
            digits[count] = _ZERO + np.uint8(left % np.uint64(10))
            count += 1
            left //= np.uint64(10)
            if left == np.uint64(0):
                break
        for i in range(count):
            out[to + i] = digits[count - 1 - i]
        at[row] = to + count


@kernel
def write_members(lists: Any, data: Any, offsets: Any, out: Any, at: Any) -> None:
    """The texts ``lists[i]`` to ``lists[i + 1] - 1`` in row i, as they are, with a space between two."""
    for row in range(len(at)):
        to = at[row]
        for member in range(lists[row], lists[row + 1]):
            if member > lists[row]:
                out[to] = _SPACE
                to += 1
            for i in range(offsets[member], offsets[member + 1]):
                out[to] = data[i]
                to += 1
        at[row] = to


# -- JSON ------------------------------------------------------------------------------------------------------


@inlined
def _json_size(data: Any, begin: Any, end: Any, table: Any) -> Any:
    size = 2
    for i in range(begin, end):
        size += table[data[i]]
    return size


@inlined
def _put_unit(unit: Any, out: Any, to: Any) -> Any:
    """A backslash, ``u`` and four digits."""
    out[to] = _BACKSLASH
    out[to + 1] = _U
    for i in range(4):
        out[to + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return to + 6


@inlined
def _put_json(data: Any, begin: Any, end: Any, table: Any, out: Any, to: Any) -> Any:
    """One string in quotes; the position behind it."""
    out[to] = _QUOTE
    to += 1
    i = begin
    while i < end:
        byte = data[i]
        if table[byte] == 1:
            out[to] = byte
            to += 1
            i += 1
        elif _LETTERS[byte]:
            out[to] = _BACKSLASH
            out[to + 1] = _LETTERS[byte]
            to += 2
            i += 1
        elif byte < 0x80:
            to = _put_unit(np.int64(byte), out, to)
            i += 1
        elif byte < 0xE0:
            to = _put_unit((np.int64(byte) & 31) << 6 | (np.int64(data[i + 1]) & 63), out, to)
            i += 2
        elif byte < 0xF0:
            unit = (np.int64(byte) & 15) << 12 | (np.int64(data[i + 1]) & 63) << 6 | (np.int64(data[i + 2]) & 63)
            to = _put_unit(unit, out, to)
            i += 3
        else:
            high = (np.int64(byte) & 7) << 18 | (np.int64(data[i + 1]) & 63) << 12
            point = (high | (np.int64(data[i + 2]) & 63) << 6 | (np.int64(data[i + 3]) & 63)) - 0x10000
            to = _put_unit(0xD800 + (point >> 10), out, to)
            to = _put_unit(0xDC00 + (point & 0x3FF), out, to)
            i += 4
    out[to] = _QUOTE
    return to + 1


@kernel
def measure_json(data: Any, offsets: Any, is_there: Any, missing: Any, in_ascii: bool, sizes: Any) -> None:
    """Of JSON strings; ``missing`` where ``is_there`` says that there is none."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(is_there)):
        sizes[row] += _json_size(data, offsets[row], offsets[row + 1], table) if is_there[row] else len(missing)


@kernel
def write_json(data: Any, offsets: Any, is_there: Any, missing: Any, in_ascii: bool, out: Any, at: Any) -> None:
    """The strings that :func:`measure_json` measured."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(is_there)):
        to = at[row]
        if is_there[row]:
            at[row] = _put_json(data, offsets[row], offsets[row + 1], table, out, to)
        else:
            for i in range(len(missing)):
                out[to + i] = missing[i]
            at[row] = to + len(missing)


@kernel
def measure_json_lists(lists: Any, data: Any, offsets: Any, in_ascii: bool, sizes: Any) -> None:
    """Of JSON arrays: that of row i has the strings ``lists[i]`` to ``lists[i + 1] - 1``."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(sizes)):
        size = 2
        for member in range(lists[row], lists[row + 1]):
            size += _json_size(data, offsets[member], offsets[member + 1], table) + 2
        sizes[row] += size if size == 2 else size - 2


@kernel
def write_json_lists(lists: Any, data: Any, offsets: Any, in_ascii: bool, out: Any, at: Any) -> None:
    """The arrays that :func:`measure_json_lists` measured."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(at)):
        to = at[row]
        out[to] = _OPEN
        to += 1
        for member in range(lists[row], lists[row + 1]):
            if member > lists[row]:
                out[to] = _COMMA
                out[to + 1] = _SPACE
                to += 2
            to = _put_json(data, offsets[member], offsets[member + 1], table, out, to)
        out[to] = _CLOSE
        at[row] = to + 1


@kernel
def measure_json_maps(
    lists: Any, names: Any, name_offsets: Any, values: Any, value_offsets: Any, in_ascii: bool, sizes: Any
) -> None:
    """Of JSON objects: that of row i has the members ``lists[i]`` to ``lists[i + 1] - 1``."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(sizes)):
        size = 2
        for member in range(lists[row], lists[row + 1]):
            size += _json_size(names, name_offsets[member], name_offsets[member + 1], table) + 2
            size += _json_size(values, value_offsets[member], value_offsets[member + 1], table) + 2
        sizes[row] += size if size == 2 else size - 2


@kernel
def write_json_maps(
    lists: Any, names: Any, name_offsets: Any, values: Any, value_offsets: Any, in_ascii: bool, out: Any, at: Any
) -> None:
    """The objects that :func:`measure_json_maps` measured."""
    table = _SIZES[1 if in_ascii else 0]
    for row in range(len(at)):
        to = at[row]
        out[to] = _OPEN_MAP
        to += 1
        for member in range(lists[row], lists[row + 1]):
            if member > lists[row]:
                out[to] = _COMMA
                out[to + 1] = _SPACE
                to += 2
            to = _put_json(names, name_offsets[member], name_offsets[member + 1], table, out, to)
            out[to] = _COLON
            out[to + 1] = _SPACE
            to = _put_json(values, value_offsets[member], value_offsets[member + 1], table, out, to + 2)
        out[to] = _CLOSE_MAP
        at[row] = to + 1


# -- CSV -------------------------------------------------------------------------------------------------------


@inlined
def _quotes(data: Any, begin: Any, end: Any) -> Any:
    """How many quotes a field holds; -1 if it holds nothing for which it must be quoted."""
    count = 0
    is_special = False
    for i in range(begin, end):
        byte = data[i]
        if byte == _QUOTE:
            count += 1
        is_special |= byte in (_COMMA, _NEWLINE, _RETURN)
    return count if is_special or count else -1


@kernel
def measure_csv(data: Any, offsets: Any, is_there: Any, sizes: Any) -> None:
    """Of fields of CSV: as they are, or in quotes if they hold a comma, a quote or the end of a line."""
    for row in range(len(is_there)):
        if is_there[row]:
            sizes[row] += offsets[row + 1] - offsets[row]
            quotes = _quotes(data, offsets[row], offsets[row + 1])
            if quotes >= 0:
                sizes[row] += 2 + quotes


@kernel
def write_csv(data: Any, offsets: Any, is_there: Any, out: Any, at: Any) -> None:
    """The fields that :func:`measure_csv` measured; a quote is written twice."""
    for row in range(len(is_there)):
        if not is_there[row]:
            continue
        to = at[row]
        quotes = _quotes(data, offsets[row], offsets[row + 1])
        if quotes >= 0:
            out[to] = _QUOTE
            to += 1
        for i in range(offsets[row], offsets[row + 1]):
            if data[i] == _QUOTE:
                out[to] = _QUOTE
                to += 1
            out[to] = data[i]
            to += 1
        if quotes >= 0:
            out[to] = _QUOTE
            to += 1
        at[row] = to


# -- bytes -----------------------------------------------------------------------------------------------------


@inlined
def _follows(data: Any, at: Any, end: Any, least: Any, most: Any) -> Any:
    """Whether the byte there goes on with a character, and is in a range."""
    return at < end and least <= data[at] <= most


@inlined
def _is_utf8(data: Any, begin: Any, end: Any) -> Any:
    i = begin
    while i < end:
        byte = data[i]
        if byte < 0x80:
            i += 1
        elif 0xC2 <= byte < 0xE0:
            if not _follows(data, i + 1, end, 0x80, 0xBF):
                return False
            i += 2
        elif 0xE0 <= byte < 0xF0:
            # Neither what fits into two bytes, nor half of a pair of Java's.
            least = 0xA0 if byte == 0xE0 else 0x80
            most = 0x9F if byte == 0xED else 0xBF
            if not (_follows(data, i + 1, end, least, most) and _follows(data, i + 2, end, 0x80, 0xBF)):
                return False
            i += 3
        elif 0xF0 <= byte < 0xF5:
            least = 0x90 if byte == 0xF0 else 0x80
            most = 0x8F if byte == 0xF4 else 0xBF
            if not (
                _follows(data, i + 1, end, least, most)
                and _follows(data, i + 2, end, 0x80, 0xBF)
                and _follows(data, i + 3, end, 0x80, 0xBF)
            ):
                return False
            i += 4
        else:
            return False
    return True


@kernel
def find_texts(data: Any, offsets: Any, is_text: Any) -> None:
    """Which rows of bytes are UTF-8 as Python takes it."""
    for row in range(len(is_text)):
        is_text[row] = _is_utf8(data, offsets[row], offsets[row + 1])


@kernel
def measure_base64(offsets: Any, is_there: Any, quotes: int, sizes: Any) -> None:
    """Of bytes as base64, with so many quotes around it; nothing where ``is_there`` says so."""
    for row in range(len(is_there)):
        if is_there[row]:
            sizes[row] += (offsets[row + 1] - offsets[row] + 2) // 3 * 4 + quotes


@kernel
def write_base64(data: Any, offsets: Any, is_there: Any, quotes: int, out: Any, at: Any) -> None:
    """The texts that :func:`measure_base64` measured."""
    for row in range(len(is_there)):
        if not is_there[row]:
            continue
        to = at[row]
        if quotes:
            out[to] = _QUOTE
            to += 1
        i = offsets[row]
        end = offsets[row + 1]
        while i < end:
            left = end - i
            group = np.int64(data[i]) << 16
            if left > 1:
                group |= np.int64(data[i + 1]) << 8
            if left > 2:
                group |= np.int64(data[i + 2])
            out[to] = _BASE64[group >> 18]
            out[to + 1] = _BASE64[(group >> 12) & 63]
            out[to + 2] = _BASE64[(group >> 6) & 63] if left > 1 else _EQUALS
            out[to + 3] = _BASE64[group & 63] if left > 2 else _EQUALS
            to += 4
            i += 3
        if quotes:
            out[to] = _QUOTE
            to += 1
        at[row] = to
