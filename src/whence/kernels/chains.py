"""Chains of an IndexFile: link new items into them, walk many of them at once.

    slot[key_hash % slot_capacity] -> newest item -> its previous_item -> ... -> 0

What a chain must be, here and in ``store/index_file.py``. All else is damage, and has a position in the file:

    a slot leads to 0 (empty) or to an item 1 .. item_capacity - 1       that of the slot
    an item belongs, by its hash, to the slot where the chain began,
    and is not all zero, as the items of a lost page are                 that of the item
    an item leads to 0 (the end) or to an older item, one with a
    smaller number                                                       that of its previous_item
    its physical offset is not above that of a newer one                 that of its physical_offset

So every walk ends and none leaves the file. The header's item count plays no part: a live writer sets a slot
before the count, and the older items behind such a slot must be reached. Who believes counted items only
compares the numbers of those found.
"""

from __future__ import annotations

from collections.abc import Generator
from mmap import mmap
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from whence.errors import CorruptError, TruncatedError, UsageError
from whence.formats.rocketmq.index_file import HEADER_SIZE, ITEM, ITEM_SIZE, NO_ITEM, SLOT, SLOT_SIZE, file_size
from whence.kernels import inlined, kernel
from whence.kernels.hashing import fold_hash, java_hash
from whence.kernels.intrinsics import I8, I32, address_of, load_i32, load_i64, load_int, place_of

FOUND = np.dtype([("key_number", np.int64), ("item_number", np.int64), ("physical_offset", np.int64)])
NO_DAMAGE = -1

assert ITEM.fields is not None
PHYSICAL_OFFSET_AT, PREVIOUS_ITEM_AT = (ITEM.fields[name][1] for name in ("physical_offset", "previous_item"))
BAD_LINK = -1
ANY_OFFSET = -(2**63)
OFFSET_MAX = 2**63 - 1

# A walk waits for memory at each step. So lanes take turns, and each asks ahead for the bytes of its next turn: on
# one machine 930 ns a key with one lane, 180 with 8, 110 with 32, 130 with 64; on another 139 with 16, 91 with 32, 79
# with 48, 79 with 64. Turns that all of 512 lanes take together took 111 there (benchmarks/index_lookup.py).
LANES = 48
LANE = np.dtype(
    [
        ("key_number", np.int64),
        ("key_hash", np.int64),
        ("slot", np.int64),
        ("item_number", np.int64),
        ("newer_offset", np.int64),
    ]
)
IDLE = -1


def link_items(
    key_hashes: NDArray[np.int32], first_item: int, slots: NDArray[np.int32], previous_items: NDArray[np.int32]
) -> int:
    """Push items onto the chains of their slots, oldest first.

    Item ``first_item + i`` has ``key_hashes[i]``, which may be a field of rows. Fills ``previous_items`` and updates
    ``slots`` in place; both in native byte order. Returns how many slots went from empty to used.
    """
    assert key_hashes.dtype == np.int32
    return _link_items(*place_of(key_hashes), len(key_hashes), first_item, slots, previous_items)


@kernel
def _link_items(
    key_hashes_at: int, key_hashes_step: int, count: int, first_item: int, slots: Any, previous_items: Any
) -> int:
    used = 0
    for i in range(count):
        slot = slot_of(load_int(key_hashes_at + i * key_hashes_step), len(slots))
        previous_items[i] = slots[slot]
        used += slots[slot] == NO_ITEM
        slots[slot] = first_item + i
    return used


def hash_texts(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    """The key hashes of texts, ``topic#key`` in UTF-8, that lie one behind the other and end at ``ends``."""
    if len(ends) and (ends[0] < 0 or ends[-1] > len(data) or (ends[1:] < ends[:-1]).any()):
        raise UsageError(f"{len(ends)} texts do not end one behind the other in {len(data)} bytes")
    key_hashes = np.empty(len(ends), np.int32)
    _hash_texts(data, ends, key_hashes)
    return key_hashes


@kernel
def _hash_texts(data: Any, ends: Any, key_hashes: Any) -> None:
    start = 0
    for number in range(len(ends)):
        key_hashes[number] = fold_hash(java_hash(data, start, ends[number] - start))
        start = ends[number]


def walk_chains(
    data: bytes | memoryview | mmap,
    slot_capacity: int,
    item_capacity: int,
    key_hashes: NDArray[np.int32],
    bad_links: NDArray[np.int64],
    *,
    within: tuple[int, int] | None = None,
    found_capacity: int = 65_536,
) -> Generator[NDArray[np.void], None, int]:
    """Yield the items that have the hashes of many keys, as arrays of ``FOUND`` of bounded size.

    Returns how many items were visited.

    ``within``: between which physical offsets items count. Then a walk ends at the first below, and that offsets
    never rise along a chain is looked at as well: a broker passes over a message below the last one it put.

    ``data`` is the whole file. Rows of one key come newest first; those of different keys are mixed, and a stable
    sort by ``key_number`` parts them. When all is yielded, ``bad_links[k]`` is the position of the damage that
    ended the walk of key ``k`` before the end of its chain (:func:`chain_damage` puts it into words), or NO_DAMAGE.
    """
    view = file_view(data, slot_capacity, item_capacity)
    if len(bad_links) != len(key_hashes) or found_capacity < 1:
        raise UsageError(f"{len(key_hashes)} keys, but room for {len(bad_links)} bad links, {found_capacity} items")
    from_offset = ANY_OFFSET if within is None else within[0]
    last_offset = OFFSET_MAX if within is None else within[1] - 1
    lanes = np.full(LANES, IDLE, LANE)
    bad_links[:] = NO_DAMAGE
    next_key = visited = 0
    is_done = False
    while not is_done:
        found = np.empty(found_capacity, FOUND)
        count, next_key, is_done, more = _walk_lanes(
            view,
            slot_capacity,
            item_capacity,
            key_hashes,
            from_offset,
            last_offset,
            lanes,
            next_key,
            found,
            bad_links,
        )
        visited += more
        if count:
            yield found[:count]
    return visited


def file_view(data: bytes | memoryview | mmap, slot_capacity: int, item_capacity: int) -> NDArray[np.uint8]:
    """The file's bytes for a kernel, which trusts that a file of this shape is all there."""
    if not (0 < slot_capacity < 2**31 and 0 < item_capacity < 2**31):
        raise UsageError(f"an index file cannot have {slot_capacity} slots and {item_capacity} items")
    size = file_size(slot_capacity, item_capacity)
    if len(data) < size:
        raise TruncatedError(f"an index file of this shape has {size} bytes", position=len(data))
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False  # to Numba a writeable array is another type, and compiles once more
    return view


def chain_damage(data: NDArray[np.uint8], slot_capacity: int, item_capacity: int, position: int) -> CorruptError:
    """What a walk stumbled over at ``position``."""
    items_at = HEADER_SIZE + SLOT_SIZE * slot_capacity
    if position < items_at:
        slot = (position - HEADER_SIZE) // SLOT_SIZE
        number = int(data[position : position + SLOT_SIZE].view(SLOT)[0])
        what = f"slot {slot} leads to item {number}, but items are 1 to {item_capacity - 1}"
        return CorruptError(what, position=position)
    number, field_at = divmod(position - items_at, ITEM_SIZE)
    item = data[position - field_at : position - field_at + ITEM_SIZE].view(ITEM)[0]
    if field_at == PHYSICAL_OFFSET_AT:
        what = f"item {number} leads to offset {item['physical_offset']}, which is above that of a newer one"
    elif field_at == PREVIOUS_ITEM_AT:
        what = f"item {number} points to item {item['previous_item']}, which is not older"
    elif not item.tobytes().strip(b"\0"):
        what = f"item {number} is all zero, but a chain leads to it"
    else:
        what = f"item {number} has hash {item['key_hash']}, which is not of the slot that leads to it"
    return CorruptError(what, position=position)


@kernel
def _walk_lanes(
    data: Any,
    slot_capacity: int,
    item_capacity: int,
    key_hashes: Any,
    from_offset: int,
    last_offset: int,
    lanes: Any,
    next_key: int,
    found: Any,
    bad_links: Any,
) -> tuple[int, int, bool, int]:
    """Walk until ``found`` is full or all keys are done.

    Tells how many were found, the next key, whether it is the end, and how many items were visited.

    ``lanes`` carries what is under way to the next call. A lane whose item number is 0 reads its slot next.
    """
    file = address_of(data)
    items_at = HEADER_SIZE + SLOT_SIZE * slot_capacity
    found_count = visited = 0
    busy = 0
    for lane in lanes:
        if lane.key_number == IDLE and next_key < len(key_hashes):
            next_key = _start_lane(lane, next_key, file, slot_capacity, key_hashes)
        busy += lane.key_number != IDLE
    while busy > 0:
        for lane in lanes:
            if lane.key_number == IDLE:
                continue
            number = lane.item_number
            if number == NO_ITEM:
                at = HEADER_SIZE + SLOT_SIZE * lane.slot
                link = follow(file, at, item_capacity)
            else:
                at = items_at + ITEM_SIZE * number
                link = BAD_LINK
                if is_member(file, at, slot_capacity, lane.slot):
                    physical_offset = load_i64(file + at + PHYSICAL_OFFSET_AT)
                    is_wanted = load_i32(file + at) == lane.key_hash and from_offset <= physical_offset <= last_offset
                    if is_wanted and found_count == len(found):
                        return found_count, next_key, False, visited
                    visited += 1
                    if is_wanted:
                        row = found[found_count]
                        row.key_number = lane.key_number
                        row.item_number = number
                        row.physical_offset = physical_offset
                        found_count += 1
                    if from_offset == ANY_OFFSET or physical_offset <= lane.newer_offset:
                        lane.newer_offset = physical_offset
                        at += PREVIOUS_ITEM_AT
                        link = follow(file, at, number) if physical_offset >= from_offset else NO_ITEM
                    else:
                        at += PHYSICAL_OFFSET_AT
            if link > NO_ITEM:
                lane.item_number = link
                prefetch_once(file + items_at + ITEM_SIZE * link)
                prefetch_once(file + items_at + ITEM_SIZE * link + ITEM_SIZE - 1)  # an item may lie across two lines
                continue
            if link == BAD_LINK:
                bad_links[lane.key_number] = at
            if next_key < len(key_hashes):
                next_key = _start_lane(lane, next_key, file, slot_capacity, key_hashes)
            else:
                lane.key_number = IDLE
                busy -= 1
    return found_count, next_key, True, visited


@inlined
def _start_lane(lane: Any, key_number: int, file: int, slot_capacity: int, key_hashes: Any) -> int:
    """Give a key to a lane; returns the number of the key behind it."""
    lane.key_number = key_number
    lane.key_hash = key_hashes[key_number]
    lane.slot = slot_of(lane.key_hash, slot_capacity)
    lane.item_number = NO_ITEM
    lane.newer_offset = OFFSET_MAX
    prefetch_once(file + HEADER_SIZE + SLOT_SIZE * lane.slot)
    return key_number + 1


@inlined
def slot_of(key_hash: int, slot_capacity: int) -> int:
    """The slot of a hash; unsigned 32-bit division is the fastest there is."""
    return np.int64(np.uint32(key_hash) % np.uint32(slot_capacity))  # type: ignore[return-value]


@inlined
def follow(file: int, at: int, older_than: int) -> int:
    """The item that the link at this position leads to: NO_ITEM, one that is older, or BAD_LINK."""
    number = load_i32(file + at)
    return number if 0 <= number < older_than else BAD_LINK


@inlined
def is_member(file: int, at: int, slot_capacity: int, slot: int) -> bool:
    """Whether the item at this position belongs to the slot and is not all zero."""
    key_hash = load_i32(file + at)
    if key_hash <= 0:
        return key_hash == 0 and slot == 0 and (load_i64(file + at + 4) | load_i64(file + at + 12)) != 0
    return slot_of(key_hash, slot_capacity) == slot


@intrinsic
def prefetch_once(typing_context: Any, address: Any) -> Any:
    """Ask for a cache line that is read once. It then does not drive the file's page tables from the cache.

    That makes a walk 10 % faster than an ordinary prefetch (benchmarks/index_lookup.py).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], I8.as_pointer()), I32(0), I32(0), I32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), generate
