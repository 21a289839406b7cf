"""The hashes of a field's values: Java's for the items, SHA-256 for what stands beside them.

Both are over ``topic#value``, which is put together in a scratch buffer, with room for SHA-256's padding behind it.
Values are short and many: so they are hashed here, where they are, and not one by one by a library. (As columns of
Spark, with ``sha2``, they took the job 1.2 times as long; benchmarks/fields.py.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.formats.field_values import VALUE_HASH_SIZE
from whence.kernels import inlined, kernel
from whence.kernels.hashing import BLOCK, extend_hash, fold_hash
from whence.kernels.intrinsics import address_of, copy_bytes, load_i32, store_i8, store_i64

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
    words = np.empty((SHA_BLOCK, LANES), np.uint32)
    state = np.empty((8, LANES), np.uint32)
    worked = np.empty((8, LANES), np.uint32)
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
            _add_lanes(lanes, block_counts, words, state, worked)
            for lane in range(taken):
                for i in range(VALUE_HASH_SIZE):
                    word = state[i >> 2, lane]
                    bits[first + lane, i] = word >> np.uint32(24 - 8 * (i & 3)) & np.uint32(0xFF)
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


@inlined
def _rotated(word: Any, count: int) -> Any:
    return np.uint32(word >> np.uint32(count) | word << np.uint32(32 - count))


@kernel
def _add_lanes(lanes: int, block_counts: Any, words: Any, state: Any, worked: Any) -> None:
    """SHA-256 (FIPS 180-4, 6.2.2) of a text in each lane, all at once: the loops over lanes become vectors."""
    for i in range(8):
        for lane in range(LANES):
            state[i, lane] = _START[i]
    most = 0
    for lane in range(LANES):
        most = max(most, block_counts[lane])
    for block in range(most):
        for lane in range(LANES):
            at = lanes + lane * LANE_SIZE + block * SHA_BLOCK if block < block_counts[lane] else lanes
            for i in range(16):
                words[i, lane] = load_i32(at + 4 * i)
        for i in range(16, SHA_BLOCK):
            for lane in range(LANES):
                w15, w2 = words[i - 15, lane], words[i - 2, lane]
                s0 = _rotated(w15, 7) ^ _rotated(w15, 18) ^ np.uint32(w15 >> np.uint32(3))
                s1 = _rotated(w2, 17) ^ _rotated(w2, 19) ^ np.uint32(w2 >> np.uint32(10))
                words[i, lane] = np.uint32(words[i - 16, lane] + s0 + words[i - 7, lane] + s1)
        for i in range(8):
            for lane in range(LANES):
                worked[i, lane] = state[i, lane]
        for i in range(SHA_BLOCK):
            # Instead of moving a to h by one place each time, their places move.
            a, b, c, d = -i & 7, 1 - i & 7, 2 - i & 7, 3 - i & 7
            e, f, g, h = 4 - i & 7, 5 - i & 7, 6 - i & 7, 7 - i & 7
            for lane in range(LANES):
                va, vb, vc, ve = worked[a, lane], worked[b, lane], worked[c, lane], worked[e, lane]
                s1 = _rotated(ve, 6) ^ _rotated(ve, 11) ^ _rotated(ve, 25)
                choice = (ve & worked[f, lane]) ^ (~ve & worked[g, lane])
                t1 = np.uint32(worked[h, lane] + s1 + choice + _K[i] + words[i, lane])
                s0 = _rotated(va, 2) ^ _rotated(va, 13) ^ _rotated(va, 22)
                majority = (va & vb) ^ (va & vc) ^ (vb & vc)
                worked[d, lane] = np.uint32(worked[d, lane] + t1)
                worked[h, lane] = np.uint32(t1 + s0 + majority)
        for i in range(8):
            for lane in range(LANES):
                if block < block_counts[lane]:
                    state[i, lane] = np.uint32(state[i, lane] + worked[i, lane])
