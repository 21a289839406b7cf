"""Machine words and vectors for kernels: what Numba has no Python spelling for.

Each function becomes a few instructions inside the kernel that uses it. Memory is given by its address, a plain
number, and nothing here checks a bound: the caller has shown that the bytes it asks for lie inside its array.
(An array that is passed to a function has its references counted, which takes longer than loading a word: the
scan took 1.5 times as long.) Vectors are LLVM's own, not one processor's, so LLVM finds instructions for them on
any target.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from whence.kernels import inlined

if sys.byteorder != "little":
    raise ImportError("the kernels of whence load words as a little-endian processor does")

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
LANES = 64  # bytes that match() looks at


def load_unaligned(builder: Any, address: Any, kind: ir.Type) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind)


def vector_of(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def load_window(builder: Any, table: bytes, position: Any, kind: ir.Type) -> Any:
    """A vector out of a constant table, from any position on."""
    content = ir.Constant(ir.ArrayType(I8, len(table)), bytearray(table))
    address = builder.ptrtoint(cgutils.global_constant(builder, "whence.table", content), I64)
    return load_unaligned(builder, builder.add(address, position), kind)


@intrinsic
def address_of(typing_context: Any, data: Any) -> Any:
    """Where the first element of an array lies."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(array.data, I64)

    return types.int64(data), generate


def place_of(column: NDArray[Any]) -> tuple[int, int]:
    """Where the first number of a column lies, and how far it is to the next: for kernels that take a field of rows
    as it is. To Numba it would be another type than an array without gaps, and a kernel would be compiled for each.

    The caller holds the array as long as its address is used.
    """
    return column.__array_interface__["data"][0], column.strides[0]


def _loader(kind: ir.IntType, *, big_endian: bool) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = load_unaligned(builder, arguments[0], kind)
            if big_endian:
                value = builder.bswap(value)
            return builder.sext(value, I64) if kind.width < 64 else value

        return types.int64(types.int64), generate

    return intrinsic(typed)


load_word = _loader(I64, big_endian=False)  # eight bytes, the first one lowest
load_int = _loader(I32, big_endian=False)  # four bytes as an array holds them, sign-extended
load_i8 = _loader(I8, big_endian=False)
load_i16 = _loader(I16, big_endian=True)  # integers as the formats write them; shorter ones are sign-extended
load_i32 = _loader(I32, big_endian=True)
load_i64 = _loader(I64, big_endian=True)


def _storer(kind: ir.IntType) -> Any:
    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, value = arguments
            value = builder.trunc(value, kind) if kind.width < 64 else value
            if kind.width > 8:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(address, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    return intrinsic(typed)


store_i8 = _storer(I8)  # big-endian, as the formats want them; what does not fit is cut off
store_i16 = _storer(I16)
store_i32 = _storer(I32)
store_i64 = _storer(I64)


@intrinsic
def order_stores(typing_context: Any) -> Any:
    """What was stored before this is seen, also by other processes, no later than what is stored behind it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("release")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy ``size`` bytes between two addresses; the stretches must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, size = arguments
        pointers = (builder.inttoptr(address, I8.as_pointer()) for address in (target, source))
        cgutils.raw_memcpy(builder, *pointers, size, 1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@intrinsic
def match(typing_context: Any, address: Any, byte: Any) -> Any:
    """Bit i of the result tells whether byte i at ``address`` is ``byte``, for 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, byte = arguments
        vector = ir.VectorType(I8, LANES)
        undefined = ir.Constant(vector, ir.Undefined)
        wanted = builder.insert_element(undefined, builder.trunc(byte, I8), I32(0))
        wanted = builder.shuffle_vector(wanted, undefined, vector_of(ir.VectorType(I32, LANES), 0))
        equal = builder.icmp_unsigned("==", load_unaligned(builder, address, vector), wanted)
        return builder.bitcast(equal, I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def high_bits(typing_context: Any, address: Any) -> Any:
    """Bit i of the result is the highest bit of byte i at ``address``, for 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(I8, LANES)
        is_negative = builder.icmp_signed("<", load_unaligned(builder, arguments[0], vector), vector_of(vector, 0))
        return builder.bitcast(is_negative, I64)

    return types.int64(types.int64), generate


@intrinsic
def first_bit(typing_context: Any, mask: Any) -> Any:
    """The number of the lowest bit that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


@intrinsic
def shift_right(typing_context: Any, word: Any, bits: Any) -> Any:
    """``word >> bits % 64`` with zeros from the left."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, bits = arguments
        return builder.lshr(word, builder.and_(bits, I64(63)))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``. It is a hint: an address outside does no harm."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, of_data = I32(0), I32(3), I32(1)
        builder.call(function, [builder.inttoptr(arguments[0], I8.as_pointer()), read, keep, of_data])
        return context.get_dummy_value()

    return types.none(types.int64), generate


@inlined
def is_equal(a: int, b: int, size: int) -> bool:
    """Whether the same bytes lie at both addresses. Reads nothing but them."""
    differing = 0
    if size < 8:
        for i in range(size):
            differing |= load_i8(a + i) ^ load_i8(b + i)
        return differing == 0
    at = 0
    while at < size - 8:
        differing |= load_word(a + at) ^ load_word(b + at)
        at += 8
    return differing | (load_word(a + size - 8) ^ load_word(b + size - 8)) == 0
