"""CRC-32 (zlib's), by carry-less multiplication where the processor has it, by tables elsewhere.

Both forms take the address of the bytes, how many there are, and from which address on memory may be read. They
give the whole 32 bits; RocketMQ stores 31 of them (formats/checksums.py). ``crc32`` is the form for this processor,
or rather for the one that Numba compiles for: NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= asks for the portable form
of every kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from whence.kernels import inlined, kernel
from whence.kernels.intrinsics import I8, I32, I64, load_i8, load_unaligned, load_window, load_word

POLYNOMIAL = 0xEDB88320  # its highest bit stands for x**0: CRC-32 takes the lowest bit of a byte first
ALL_ONES = 0xFFFFFFFF
BLOCK = 64

_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
_HAS_MULTIPLY = "+pclmul" in _FEATURES
_HAS_WIDE_MULTIPLY = "+vpclmulqdq" in _FEATURES and "+avx512f" in _FEATURES


def _tables() -> NDArray[Any]:
    """Entry ``256 * i + b`` is what byte b makes of the checksum when i zero bytes follow; signed, for Numba."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
        tables[0, byte] = crc
    for i in range(1, 16):
        tables[i] = tables[i - 1] >> 8 ^ tables[0, tables[i - 1] & 0xFF]
    return tables.reshape(-1).view(np.int32)


_TABLES = _tables()


@kernel
def crc32_by_tables(at: int, size: int, readable_from: int) -> int:
    """CRC-32 of the ``size`` bytes at the address ``at``, sixteen a step."""
    crc = ALL_ONES
    end = at + size
    while at + 16 <= end:
        crc = _look_up(load_word(at) ^ crc, 8) ^ _look_up(load_word(at + 8), 0)
        at += 16
    while at < end:
        crc = crc >> 8 ^ _TABLES[(crc ^ load_i8(at)) & 0xFF] & ALL_ONES
        at += 1
    return crc ^ ALL_ONES


@inlined
def _look_up(word: int, behind: int) -> int:
    """What the eight bytes of ``word`` make of the checksum when ``behind`` zero bytes follow."""
    found = (
        _TABLES[256 * (behind + 7) + (word & 0xFF)]
        ^ _TABLES[256 * (behind + 6) + (word >> 8 & 0xFF)]
        ^ _TABLES[256 * (behind + 5) + (word >> 16 & 0xFF)]
        ^ _TABLES[256 * (behind + 4) + (word >> 24 & 0xFF)]
        ^ _TABLES[256 * (behind + 3) + (word >> 32 & 0xFF)]
        ^ _TABLES[256 * (behind + 2) + (word >> 40 & 0xFF)]
        ^ _TABLES[256 * (behind + 1) + (word >> 48 & 0xFF)]
        ^ _TABLES[256 * behind + (word >> 56 & 0xFF)]
    )
    return found & ALL_ONES


@inlined
def crc32_by_folding(at: int, size: int, readable_from: int) -> int:
    """CRC-32 of the ``size`` bytes at the address ``at``, 64 a step."""
    if size < 4 or at + size % BLOCK < readable_from + BLOCK:  # _fold would read before
        return crc32_by_tables(at, size, readable_from)
    return _fold(at, size)


crc32 = crc32_by_folding if _HAS_MULTIPLY else crc32_by_tables


_LANE = ir.VectorType(I64, 2)
_WHOLE = ir.VectorType(I64, 8)
_I128 = ir.IntType(128)


@intrinsic
def _fold(typing_context: Any, at: Any, size: Any) -> Any:
    """CRC-32 of at least 4 bytes; reads the whole block that ends at ``at + size % BLOCK``.

    The bytes are one long polynomial. The four lanes of a block, 128 bits each, are multiplied by x**512 modulo
    the polynomial of CRC-32 and the next block is added, until one block is left, which is reduced to 32 bits.

    Zeros in front of a polynomial change nothing, so the odd bytes go first, as the end of a block whose beginning
    is set to zero: no tail is left over for a slower loop. CRC-32 begins with 32 ones, which are added to the first
    four bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, size = arguments
        odd = builder.and_(size, I64(BLOCK - 1))
        start = builder.add(at, odd)
        inside = load_window(builder, bytes(BLOCK) + b"\xff" * BLOCK, odd, _WHOLE)
        ones = bytes(BLOCK) + b"\xff" * 4 + bytes(2 * BLOCK - 4)
        first = builder.and_(load_unaligned(builder, builder.sub(start, I64(BLOCK)), _WHOLE), inside)
        whole = cgutils.alloca_once(builder, _WHOLE)
        builder.store(builder.xor(first, load_window(builder, ones, odd, _WHOLE)), whole)

        count = builder.udiv(size, I64(BLOCK))
        with builder.if_then(builder.icmp_signed(">", count, I64(0))):
            # With less than four odd bytes, some of the ones are this block's.
            block = load_unaligned(builder, start, _WHOLE)
            block = builder.xor(block, load_window(builder, ones, builder.add(odd, I64(BLOCK)), _WHOLE))
            builder.store(builder.xor(_next_block(builder, builder.load(whole)), block), whole)
            with cgutils.for_range(builder, count, start=I64(1)) as loop:
                block = load_unaligned(builder, builder.add(start, builder.mul(loop.index, I64(BLOCK))), _WHOLE)
                builder.store(builder.xor(_next_block(builder, builder.load(whole)), block), whole)
        return builder.xor(_reduce(builder, builder.load(whole)), I64(ALL_ONES))

    return types.int64(types.int64, types.int64), generate


def _next_block(builder: Any, whole: Any) -> Any:
    """A block times x**512: one multiplication for all four lanes, or four."""
    if _HAS_WIDE_MULTIPLY:
        return _move(builder, whole, 512)
    a, b, c, d = (_move(builder, lane, 512) for lane in _lanes(builder, whole))
    return _join(builder, _join(builder, a, b), _join(builder, c, d))


def _reduce(builder: Any, whole: Any) -> Any:
    """A block modulo the polynomial of CRC-32: from 512 bits to 128, to 96, to 64, and (Barrett) to 32."""
    a, b, c, d = _lanes(builder, whole)
    rest = builder.xor(
        builder.xor(_move(builder, a, 384), _move(builder, b, 256)), builder.xor(_move(builder, c, 128), d)
    )
    low_half = ir.Constant(_LANE, [ALL_ONES, 0])

    def times(lane: Any, constant: int) -> Any:
        return _multiply(builder, lane, ir.Constant(_LANE, [constant, 0]), halves=0x00)

    def behind(lane: Any, bits: int) -> Any:
        return builder.bitcast(builder.lshr(builder.bitcast(lane, _I128), _I128(bits)), _LANE)

    rest = builder.xor(times(rest, _power(96)), behind(rest, 64))
    rest = builder.xor(times(builder.and_(rest, low_half), _power(64)), behind(rest, 32))
    quotient = builder.and_(times(builder.and_(rest, low_half), _inverse()), low_half)
    rest = builder.xor(rest, times(quotient, POLYNOMIAL << 1 | 1))
    return builder.lshr(builder.extract_element(rest, I32(0)), I64(32))


def _move(builder: Any, lanes: Any, bits: int) -> Any:
    """Each lane times x**bits: its two halves, of which the first stands 64 places higher."""
    constant = ir.Constant(lanes.type, [_power(bits + 32), _power(bits - 32)] * (lanes.type.count // 2))
    return builder.xor(
        _multiply(builder, lanes, constant, halves=0x00), _multiply(builder, lanes, constant, halves=0x11)
    )


def _multiply(builder: Any, left: Any, right: Any, *, halves: int) -> Any:
    kind = left.type
    name = "llvm.x86.pclmulqdq" if kind.count == 2 else "llvm.x86.pclmulqdq.512"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, kind, I8]), name)
    return builder.call(function, [left, right, I8(halves)])


def _lanes(builder: Any, whole: Any) -> list[Any]:
    places = ir.VectorType(I32, 2)
    return [builder.shuffle_vector(whole, whole, ir.Constant(places, [2 * i, 2 * i + 1])) for i in range(4)]


def _join(builder: Any, left: Any, right: Any) -> Any:
    count = 2 * left.type.count
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _power(exponent: int) -> int:
    """x**exponent modulo the polynomial of CRC-32, lowest power highest, as a factor for ``_multiply``.

    The product of two such numbers comes out one bit too low, which the factor makes up for.
    """
    power = 1 << 31
    for _ in range(exponent):
        power = power >> 1 ^ POLYNOMIAL * (power & 1)
    return power << 1


def _inverse() -> int:
    """x**64 divided by the polynomial of CRC-32, lowest power highest: 33 bits."""
    divisor = 1 << 32 | int(f"{POLYNOMIAL:032b}"[::-1], 2)
    rest, quotient = 1 << 64, 0
    for shift in range(32, -1, -1):
        if rest >> shift + 32 & 1:
            rest ^= divisor << shift
            quotient |= 1 << shift
    return int(f"{quotient:033b}"[::-1], 2)
