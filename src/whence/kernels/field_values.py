"""The hashes of a field's values: Java's for the items, SHA-256 for what stands beside them.

Both are over ``topic#value``, which is put together in a scratch buffer, with room for SHA-256's padding behind it.
Values are short and many: so they are hashed here, where they are, and not one by one by a library. (As columns of
Spark, with ``sha2``, they took the job 1.2 times as long; benchmarks/fields.py.)
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from whence.formats.field_values import VALUE_HASH_SIZE
from whence.kernels import inlined, kernel
from whence.kernels.hashing import BLOCK, extend_hash, fold_hash
from whence.kernels.intrinsics import (
    I32,
    I64,
    address_of,
    copy_bytes,
    load_i32,
    load_unaligned,
    store_i8,
    store_i32,
    store_i64,
    vector_of,
)

SHA_BLOCK = 64
LANES = 16  # texts that are hashed at once
LANE_BLOCKS = 4
LANE_SIZE = LANE_BLOCKS * SHA_BLOCK
SHORT_MAX = LANE_SIZE - 9  # bytes of a text that fits into one lane
SCRATCH_MIN = BLOCK + LANES * LANE_SIZE + 2 * SHA_BLOCK
_SEPARATOR = ord("#")


def _roots(power: int, count: int) -> list[int]:
    """The first 32 bits behind the point of the roots of the first primes: SHA-256 has its constants from there."""
    primes = [number for number in range(2, 312) if all(number % other for other in range(2, number))]
    found = []
    for prime in primes[:count]:
        low, high = 0, 2**37  # of the root times 2**32, to the last bit: a float has too few
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if middle**power <= prime << 32 * power else (low, middle)
        found.append(low & 0xFFFFFFFF)
    return found


_K = np.array(_roots(3, 64), np.uint32)
_START = np.array(_roots(2, 8), np.uint32)


@kernel
def hash_values(
    topic_begins: Any,
    topic_ends: Any,
    topics: Any,
    counts: Any,
    value_begins: Any,
    value_ends: Any,
    values: Any,
    scratch: Any,
    key_hashes: Any,
    bits: Any,
) -> None:
    """Fill the hash and the 16 bytes of each value.

    ``counts`` tells how many values each row has. The topic of row ``i`` is
    ``topics[topic_begins[i]:topic_ends[i]]``, value ``n`` of all is ``values[value_begins[n]:value_ends[n]]``.
    ``scratch`` has SCRATCH_MIN bytes more than the longest text.
    """
    lanes = address_of(scratch) + BLOCK
    words = np.empty((16, LANES), np.uint32)
    state = np.empty((8, LANES), np.uint32)
    is_taken = np.empty(LANES, np.uint32)
    block_counts = np.empty(LANES, np.int64)
    first = 0  # value in the lanes
    taken = 0  # lanes
    number = 0
    row = 0
    left = counts[0] if len(counts) else 0  # values of the row
    while True:
        while row < len(counts) and left == 0:
            row += 1
            left = counts[row] if row < len(counts) else 0
        is_end = row == len(counts)
        size = 0
        if not is_end:
            topic_size = topic_ends[row] - topic_begins[row]
            value_size = value_ends[number] - value_begins[number]
            size = topic_size + 1 + value_size
        # A text that is longer than a lane takes the room of all of them.
        if taken and (is_end or taken == LANES or size > SHORT_MAX or block_counts[0] > LANE_BLOCKS):
            for lane in range(taken, LANES):
                block_counts[lane] = 0
            _add_lanes(lanes, block_counts, words, state, is_taken)
            for lane in range(taken):
                for i in range(VALUE_HASH_SIZE // 4):
                    store_i32(address_of(bits) + (first + lane) * VALUE_HASH_SIZE + 4 * i, state[i, lane])
            taken = 0
        if is_end:
            return
        text = lanes + taken * LANE_SIZE
        copy_bytes(text, address_of(topics) + topic_begins[row], topic_size)
        store_i8(text + topic_size, _SEPARATOR)
        copy_bytes(text + topic_size + 1, address_of(values) + value_begins[number], value_size)
        key_hashes[number] = fold_hash(extend_hash(0, text, size))
        block_counts[taken] = _pad(text, size)
        if taken == 0:
            first = number
        taken += 1
        number += 1
        left -= 1


@inlined
def _pad(text: int, size: int) -> int:
    """Put behind a text what SHA-256 adds: a bit, zeros, and its length in bits. How many blocks it has then."""
    blocks = (size + 9 + SHA_BLOCK - 1) // SHA_BLOCK
    end = text + blocks * SHA_BLOCK
    store_i8(text + size, 0x80)
    for at in range(text + size + 1, end - 8):
        store_i8(at, 0)
    store_i64(end - 8, 8 * size)
    return blocks


@intrinsic
def _compress(typing_context: Any, words: Any, state: Any, taken: Any) -> Any:
    """SHA-256 (FIPS 180-4, 6.2.2) of one block in each lane that is ``taken``: lanes are vectors.

    The arguments are addresses of rows of LANES words: 16, 8 and 1, whose bits are all set or none. The rounds are
    written out, so that all they work on stays in registers. (As loops over arrays, a value took twice as long.)
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(I32, LANES)

        def row(address: Any, number: int) -> Any:
            return builder.add(address, ir.Constant(I64, 4 * LANES * number))

        def rotated(word: Any, count: int) -> Any:
            return builder.or_(
                builder.lshr(word, vector_of(kind, count)), builder.shl(word, vector_of(kind, 32 - count))
            )

        def mixed(*words: Any) -> Any:
            return reduce(builder.xor, words)

        def added(*words: Any) -> Any:
            return reduce(builder.add, words)

        schedule = [load_unaligned(builder, row(arguments[0], i), kind) for i in range(16)]
        for i in range(16, SHA_BLOCK):
            w15, w2 = schedule[i - 15], schedule[i - 2]
            s0 = mixed(rotated(w15, 7), rotated(w15, 18), builder.lshr(w15, vector_of(kind, 3)))
            s1 = mixed(rotated(w2, 17), rotated(w2, 19), builder.lshr(w2, vector_of(kind, 10)))
            schedule.append(added(schedule[i - 16], s0, schedule[i - 7], s1))
        before = [load_unaligned(builder, row(arguments[1], i), kind) for i in range(8)]
        a, b, c, d, e, f, g, h = before
        for i in range(SHA_BLOCK):
            s1 = mixed(rotated(e, 6), rotated(e, 11), rotated(e, 25))
            choice = mixed(builder.and_(e, f), builder.and_(builder.not_(e), g))
            t1 = added(h, s1, choice, vector_of(kind, int(_K[i])), schedule[i])
            s0 = mixed(rotated(a, 2), rotated(a, 13), rotated(a, 22))
            majority = mixed(builder.and_(a, b), builder.and_(a, c), builder.and_(b, c))
            a, b, c, d, e, f, g, h = added(t1, s0, majority), a, b, c, added(d, t1), e, f, g
        taken = load_unaligned(builder, arguments[2], kind)
        for i, (old, new) in enumerate(zip(before, (a, b, c, d, e, f, g, h), strict=True)):
            pointer = builder.inttoptr(row(arguments[1], i), kind.as_pointer())
            builder.store(builder.add(old, builder.and_(new, taken)), pointer, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@kernel
def _add_lanes(lanes: int, block_counts: Any, words: Any, state: Any, taken: Any) -> None:
    """SHA-256 of a text in each lane, all at once."""
    for i in range(8):
        for lane in range(LANES):
            state[i, lane] = _START[i]
    most = 0
    for lane in range(LANES):
        most = max(most, block_counts[lane])
    for block in range(most):
        for lane in range(LANES):
            is_taken = block < block_counts[lane]
            taken[lane] = 0xFFFFFFFF if is_taken else 0
            at = lanes + lane * LANE_SIZE + block * SHA_BLOCK if is_taken else lanes
            for i in range(16):
                words[i, lane] = load_i32(at + 4 * i)
        _compress(address_of(words), address_of(state), address_of(taken))
