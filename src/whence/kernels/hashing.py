"""Java's string hash over UTF-8 bytes, 32 at a step.

    hash("") = 0,  hash(text + unit) = 31 * hash(text) + unit     modulo 2**32, over UTF-16 units

Text in a store is UTF-8, and nearly all of it is ASCII, where a byte is a unit: so all bytes are taken for ASCII,
and if one of them was not, the text is hashed again, unit by unit. A hash can be extended, so that ``topic#`` is
hashed once for all the keys of a message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from whence.kernels import inlined, kernel
from whence.kernels.intrinsics import (
    I8,
    I16,
    I32,
    I64,
    address_of,
    load_i8,
    load_unaligned,
    load_window,
    vector_of,
)

BLOCK = 32
REPLACEMENT = 0xFFFD  # what Java's decoder puts in the place of malformed bytes

_POWERS = np.array([pow(31, count, 2**32) for count in range(BLOCK + 1)])


@kernel
def java_hash(data: Any, at: int, size: int) -> int:
    """The hash of ``new String(data, at, size, UTF_8)``: signed, 32 bits."""
    address = address_of(data) + at
    if at < BLOCK:  # extend_hash reads there
        return extend_hash_utf16(0, address, size)
    return extend_hash(0, address, size)


@inlined
def fold_hash(h: int) -> int:
    """The hash as an item keeps it: without its sign, and 0 for -2**31, which has no positive twin."""
    return abs(h) & 0x7FFFFFFF


@inlined
def signed(h: int) -> int:
    """The low 32 bits of ``h`` as Java's int."""
    return (h + 2**31 & 0xFFFFFFFF) - 2**31


@inlined
def extend_hash(h: int, address: int, size: int) -> int:
    """The hash of a text whose beginning has the hash ``h`` and whose other ``size`` bytes lie at ``address``.

    The 32 bytes before ``address`` must be readable; they do not count.
    """
    extended, beyond_ascii = extend_hash_ascii(h, address, size)
    if beyond_ascii:
        return extend_hash_utf16(h, address, size)
    return signed(extended)


@inlined
def extend_hash_ascii(h: int, address: int, size: int) -> tuple[int, int]:
    """:func:`extend_hash` in the low 32 bits, and whether a byte was not ASCII, which makes it wrong.

    A text that does not fill its blocks has its short one first, where the bytes that are not its own can be set
    to zero: in front of a text they add nothing.
    """
    if size == 0:
        return h, 0
    first = (size - 1) % BLOCK + 1
    at = address + first
    block = _hash_block(at, first)
    seen = block
    h = h * _POWERS[first] + block
    end = address + size
    while at < end:
        at += BLOCK
        block = _hash_block(at, BLOCK)
        seen |= block
        h = h * _POWERS[BLOCK] + block
    return h, seen >> BLOCK


@inlined
def join_hashes(h: int, end_hash: int, end_size: int) -> int:
    """The hash, in the low 32 bits, of a text: its beginning has the hash ``h``, its last characters ``end_hash``."""
    while end_size > BLOCK:
        h *= _POWERS[BLOCK]
        end_size -= BLOCK
    return h * _POWERS[end_size] + end_hash


@intrinsic
def _hash_block(typing_context: Any, end: Any, size: Any) -> Any:
    """The hash of the ``size`` bytes that end at ``end``, at most 32; above it, the highest bit of each byte.

    Pairs of bytes, then pairs of pairs are joined in place; then each lane is multiplied by its power of 31 and all
    are added. With the same for eight bytes in a 64-bit word, one word after the other, the scan took 1.1 times as
    long (benchmarks/scan.py).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end, size = arguments
        bytes_, pairs_, fours_ = (ir.VectorType(kind, BLOCK * 8 // kind.width) for kind in (I8, I16, I32))
        inside = load_window(builder, bytes(BLOCK) + b"\xff" * BLOCK, size, bytes_)
        text = builder.and_(load_unaligned(builder, builder.sub(end, I64(BLOCK)), bytes_), inside)
        high_bits = builder.bitcast(builder.icmp_signed("<", text, vector_of(bytes_, 0)), I32)

        def join(lanes: Any, half: int, power: int) -> Any:
            """In each lane, the lower half (the earlier bytes) times ``power``, plus the upper half."""
            low = builder.and_(lanes, vector_of(lanes.type, 2**half - 1))
            high = builder.lshr(lanes, vector_of(lanes.type, half))
            return builder.add(builder.mul(low, vector_of(lanes.type, power)), high)

        pairs = join(builder.bitcast(text, pairs_), 8, 31)
        fours = join(builder.bitcast(pairs, fours_), 16, 31**2)
        powers = [pow(31, 4 * behind, 2**32) for behind in reversed(range(fours_.count))]
        name = f"llvm.vector.reduce.add.v{fours_.count}i32"
        add_all = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, [fours_]), name)
        h = builder.call(add_all, [builder.mul(fours, ir.Constant(fours_, powers))])
        return builder.or_(builder.shl(builder.zext(high_bits, I64), I64(BLOCK)), builder.zext(h, I64))

    return types.int64(types.int64, types.int64), generate


@kernel
def extend_hash_utf16(h: int, address: int, size: int) -> int:
    """:func:`extend_hash` unit by unit, for any bytes; reads nothing but them.

    Malformed bytes count as Java's decoder counts them: one U+FFFD for the longest beginning of a character, at
    least for one byte; an encoded surrogate (ED A0..BF 80..BF) is one U+FFFD for its three bytes.
    """
    end = address + size
    while address < end:
        first = load_i8(address) & 0xFF
        second = load_i8(address + 1) & 0xFF if address + 1 < end else 0
        third = load_i8(address + 2) & 0xFF if address + 2 < end else 0
        fourth = load_i8(address + 3) & 0xFF if address + 3 < end else 0
        unit = REPLACEMENT
        taken = 1
        if first < 0x80:
            unit = first
        elif 0xC2 <= first <= 0xDF:
            if second & 0xC0 == 0x80:
                taken = 2
                unit = (first & 0x1F) << 6 | second & 0x3F
        elif 0xE0 <= first <= 0xEF:
            too_low = first == 0xE0 and second < 0xA0
            if second & 0xC0 == 0x80 and not too_low:
                taken = 2
                if third & 0xC0 == 0x80:
                    taken = 3
                    if first != 0xED or second < 0xA0:
                        unit = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
        elif 0xF0 <= first <= 0xF4:
            too_low = first == 0xF0 and second < 0x90
            too_high = first == 0xF4 and second >= 0x90
            if second & 0xC0 == 0x80 and not too_low and not too_high:
                taken = 2
                if third & 0xC0 == 0x80:
                    taken = 3
                    if fourth & 0xC0 == 0x80:
                        taken = 4
                        point = (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
                        h = h * 31 + (0xD800 | point - 0x10000 >> 10)
                        unit = 0xDC00 | point & 0x3FF
        h = h * 31 + unit
        address += taken
    return signed(h)
