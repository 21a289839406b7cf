"""Index files held against the items that the log has for them.

    match_items    the file's items beside those of the log, message by message
    check_links    each item leads to the one before it in its chain: all are linked again
    check_heads    each slot leads to the newest item of its chain

What does not agree is a fault: the first ones are listed, all of them are counted. A healthy file is one pass
without a branch that is not foreseen; what a fault costs does not matter.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from whence.formats.rocketmq.index_file import FIRST_ITEM, HEADER_SIZE, ITEM, ITEM_SIZE, NO_ITEM, SLOT_SIZE
from whence.kernels import inlined, kernel
from whence.kernels.chains import BAD_LINK, follow, is_member, slot_of
from whence.kernels.index_items import TIME_DIFF_MAX
from whence.kernels.intrinsics import address_of, load_i32, load_i64, prefetch


class Fault(IntEnum):
    """What is wrong, and what a row of FAULT tells of it: which one, as it should be, as it is."""

    MISSING = 0  # the log has it, the file has not: before which item; physical offset, hash
    DANGLING = 1  # an item that leads to no message with its hash: which; physical offset, hash
    REPEATED = 2  # an item once more, which no broker does but after a restart: which; physical offset, hash
    ORDER = 3  # an item that leads before the one before it: which; that one's offset, its own; or twice that of the
    # message whose items are not in the order of its keys, from which on
    TIME = 4  # an item with a wrong time: which; seconds, seconds
    LINK = 5  # an item that does not lead to the one before it in its chain: which; item, item
    HEAD = 6  # a slot that does not lead to the newest item of its chain: which; item, item


FAULT = np.dtype([("kind", np.int64), ("number", np.int64), ("expected", np.int64), ("found", np.int64)])
FAULT_KINDS = len(Fault)

MATCH = np.dtype(
    [
        ("item", np.int64),  # the next item of the file
        ("last_offset", np.int64),  # of the message that was matched last; -1 before the first
        ("begin_ms", np.int64),  # from which times are counted, in the header's place as soon as the log tells it
        ("end_ms", np.int64),  # the time of the file's last item, if the log tells it; else UNKNOWN
        ("begun", np.int64),  # so many of the next items that are expected are in the file before, too
        ("listed", np.int64),  # faults
        ("expired", np.int64),  # items of messages that have expired
        ("ahead", np.int64),  # items of messages behind what was scanned
        ("repeated", np.int64),
        ("optional", np.int64),  # items that need not be there, and are
        ("left_out", np.int64),  # those that are not
    ]
)
"""How far a match came. What it counts here is no fault."""

RULES = np.dtype(
    [
        ("slot_capacity", np.int64),
        ("next_item", np.int64),
        ("begin_offset", np.int64),  # of the log: what leads before it has expired
        ("end_offset", np.int64),  # of what was scanned: nothing leads there or behind it
        ("inherited_ms", np.int64),  # from which the time of the first item is counted; UNKNOWN
        ("is_exact", np.int64),  # nothing is repeated
        ("is_live", np.int64),  # items are put meanwhile: some may lead behind what was scanned
    ]
)
UNKNOWN = -(2**63)
OPTIONAL = -(2**31)
"""The sign bit of a hash, which is set where a broker may have left the item out."""

NEAR = 8  # items that are looked at to tell which of two neighbours is wrong
_AHEAD = 16  # slots lie far apart: with 8 or 32 a full file takes as long, without asking ahead twice as long

assert ITEM.fields is not None
_OFFSET_AT, _TIME_AT, _PREVIOUS_AT = (
    ITEM.fields[name][1] for name in ("physical_offset", "time_diff_s", "previous_item")
)
_HASH_MASK = 2**31 - 1
_MISSING, _DANGLING, _REPEATED, _ORDER, _TIME, _LINK, _HEAD = (int(fault) for fault in Fault)


@kernel
def match_items(
    file: Any,
    rules: Any,
    match: Any,
    key_hashes: Any,
    physical_offsets: Any,
    store_timestamps_ms: Any,
    is_last: bool,
    faults: Any,
    counts: Any,
) -> int:
    """Hold the file's items against those of the log, both in the order of the log; how many of these are done with.

    The items of the last message are left for the next call, unless this ``is_last``: then it is also told what the
    file has behind them. ``rules`` and ``match`` are one row each.
    """
    rule = rules[0]
    done = match[0]
    items_at = address_of(file) + HEADER_SIZE + SLOT_SIZE * rule.slot_capacity
    first = 0
    count = len(key_hashes)
    while first < count:
        offset = physical_offsets[first]
        behind = first + 1
        while behind < count and physical_offsets[behind] == offset:
            behind += 1
        if behind == count and not is_last:
            break
        number = done.item
        at = items_at + ITEM_SIZE * number
        is_same = number + behind - first <= rule.next_item and number != FIRST_ITEM
        time_diff_s = seconds_after(store_timestamps_ms[first], done.begin_ms)
        optional = 0
        for row in range(first, behind if is_same else first):
            is_same &= load_i64(at + _OFFSET_AT) == offset
            is_same &= load_i32(at) == key_hashes[row] & _HASH_MASK
            is_same &= load_i32(at + _TIME_AT) == time_diff_s
            optional += key_hashes[row] < 0
            at += ITEM_SIZE
        number += behind - first
        if is_same and (number == rule.next_item or load_i64(at + _OFFSET_AT) != offset) and done.begun == 0:
            done.item = number
            done.last_offset = offset
            done.optional += optional
            if number == rule.next_item:
                done.end_ms = store_timestamps_ms[first]
        else:
            _pass_over(items_at, rules, match, offset, faults, counts)
            time_ms = store_timestamps_ms[first]
            _match_message(items_at, rules, match, key_hashes[first:behind], offset, time_ms, faults, counts)
        first = behind
    if is_last:
        while done.item < rule.next_item:
            _tell_stray(items_at, rules, match, faults, counts)
    return first


@kernel
def _pass_over(items_at: int, rules: Any, match: Any, offset: int, faults: Any, counts: Any) -> None:
    """Go to the first item that leads to this message, or behind it. What lies before leads to none that is known."""
    rule = rules[0]
    done = match[0]
    while done.item < rule.next_item:
        found = load_i64(items_at + ITEM_SIZE * done.item + _OFFSET_AT)
        if found == offset:
            return
        if found > offset and found < rule.end_offset:
            # Either the file lacks what the log has here, or this item is wrong and the next ones are right.
            lower = 0
            near = min(done.item + NEAR, rule.next_item - 1)
            for number in range(done.item + 1, near + 1):
                next_found = load_i64(items_at + ITEM_SIZE * number + _OFFSET_AT)
                if next_found == offset:
                    lower = NEAR
                elif next_found > done.last_offset and next_found < found:
                    lower += 1
            if 2 * lower <= near - done.item:
                return
        _tell_stray(items_at, rules, match, faults, counts)


@kernel
def _tell_stray(items_at: int, rules: Any, match: Any, faults: Any, counts: Any) -> None:
    """Pass over an item that leads to no message that is known here."""
    rule = rules[0]
    done = match[0]
    at = items_at + ITEM_SIZE * done.item
    key_hash = load_i32(at)
    found = load_i64(at + _OFFSET_AT)
    is_lost = (key_hash | found | load_i64(at + _TIME_AT)) == 0
    if found < 0 or key_hash < 0 or is_lost:
        tell(match, faults, counts, _DANGLING, done.item, found, key_hash)
    elif found >= done.last_offset and found < rule.begin_offset:
        done.expired += 1
        done.last_offset = found
    elif found >= rule.end_offset and rule.is_live != 0:
        done.ahead += 1
    elif found <= done.last_offset:
        tell(match, faults, counts, _ORDER, done.item, done.last_offset, found)
    else:
        tell(match, faults, counts, _DANGLING, done.item, found, key_hash)
    done.item += 1


@kernel
def _match_message(
    items_at: int,
    rules: Any,
    match: Any,
    key_hashes: Any,
    offset: int,
    store_timestamp_ms: int,
    faults: Any,
    counts: Any,
) -> None:
    """Match the items of one message, where something is not as usual.

    A broker puts the items of a message once more where it dispatches it again. So it counts how often each hash is
    there.
    """
    rule = rules[0]
    done = match[0]
    texts = np.sort(key_hashes & _HASH_MASK)
    seen = np.zeros(len(texts), np.int64)  # how many items have the hash, at its first place
    first = done.item
    matched = 0
    row = 0  # the first of the hashes that may still come, if all come in their order
    is_ordered = True
    while done.item < rule.next_item:
        at = items_at + ITEM_SIZE * done.item
        if load_i64(at + _OFFSET_AT) != offset:
            if matched >= len(texts) or not _comes_again(items_at, rules, match, offset):
                break
            _tell_stray(items_at, rules, match, faults, counts)
            continue
        key_hash = load_i32(at)
        place = np.searchsorted(texts, key_hash)
        if place == len(texts) or texts[place] != key_hash:
            tell(match, faults, counts, _DANGLING, done.item, offset, key_hash)
        else:
            seen[place] += 1
            while row < len(key_hashes) and key_hashes[row] & _HASH_MASK != key_hash:
                row += 1
            is_ordered &= row < len(key_hashes)
            row += 1
        time_diff_s = seconds_after(store_timestamp_ms, done.begin_ms)
        if done.item == FIRST_ITEM:
            time_diff_s = seconds_after(store_timestamp_ms, rule.inherited_ms)
            if rule.inherited_ms == UNKNOWN:
                time_diff_s = max(load_i32(at + _TIME_AT), 0)
            done.begin_ms = store_timestamp_ms
        if load_i32(at + _TIME_AT) != time_diff_s:
            tell(match, faults, counts, _TIME, done.item, time_diff_s, load_i32(at + _TIME_AT))
        done.item += 1
        matched += 1
        if done.item == rule.next_item:
            done.end_ms = store_timestamp_ms
    for row in range(len(key_hashes)):
        is_required = key_hashes[row] >= 0 and row >= done.begun
        if is_required and not _take(texts, seen, key_hashes[row]):
            tell(match, faults, counts, _MISSING, min(first + row, done.item), offset, key_hashes[row])
    for row in range(len(key_hashes)):
        if row < done.begun:
            done.repeated += _take(texts, seen, key_hashes[row] & _HASH_MASK)
        elif key_hashes[row] < 0:
            is_there = _take(texts, seen, key_hashes[row] & _HASH_MASK)
            done.optional += is_there
            done.left_out += not is_there
    repeated = np.sum(seen)
    done.repeated += repeated
    if rule.is_exact != 0:
        for number in range(done.item - repeated, done.item):
            tell(match, faults, counts, _REPEATED, number, offset, load_i32(items_at + ITEM_SIZE * number))
        if not is_ordered and repeated == 0:
            tell(match, faults, counts, _ORDER, first, offset, offset)
    done.begun = max(done.begun - len(key_hashes), 0)
    done.last_offset = offset


@inlined
def _take(texts: Any, seen: Any, key_hash: int) -> bool:
    """Take one of the items with this hash, if one is left."""
    place = np.searchsorted(texts, key_hash)
    if seen[place] == 0:
        return False
    seen[place] -= 1
    return True


@kernel
def _comes_again(items_at: int, rules: Any, match: Any, offset: int) -> bool:
    """Whether one of the next items leads to this message."""
    done = match[0]
    for number in range(done.item + 1, min(done.item + NEAR, rules[0].next_item - 1) + 1):
        if load_i64(items_at + ITEM_SIZE * number + _OFFSET_AT) == offset:
            return True
    return False


@inlined
def seconds_after(store_timestamp_ms: int, begin_ms: int) -> int:
    """The time that an item keeps."""
    if begin_ms <= 0:
        return 0
    return min(max((store_timestamp_ms - begin_ms) // 1000, 0), TIME_DIFF_MAX)


@kernel
def check_links(file: Any, first: int, behind: int, slots: Any, match: Any, faults: Any, counts: Any) -> None:
    """Link items ``first`` to ``behind - 1`` into ``slots`` again. Lost items, all zero, are in no chain."""
    items_at = address_of(file) + HEADER_SIZE + SLOT_SIZE * len(slots)
    slots_at = address_of(slots)
    for number in range(first, behind):
        at = items_at + ITEM_SIZE * number
        ahead = load_i32(items_at + ITEM_SIZE * min(number + _AHEAD, behind - 1))
        prefetch(slots_at + SLOT_SIZE * slot_of(ahead, len(slots)))
        slot = slot_of(load_i32(at), len(slots))
        previous = load_i32(at + _PREVIOUS_AT)
        if previous != slots[slot] or load_i32(at) <= 0:
            if not is_member(address_of(file), at - address_of(file), len(slots), slot):
                continue
            if previous != slots[slot]:
                tell(match, faults, counts, _LINK, number, slots[slot], previous)
        slots[slot] = number


@kernel
def check_heads(
    file: Any, item_capacity: int, next_item: int, slots: Any, is_live: bool, match: Any, faults: Any, counts: Any
) -> int:
    """Hold the slots of the file against those of its items; how many are in use.

    ``is_live``: a writer may be at work, or was killed. It sets a slot before it counts the item.
    """
    file_at = address_of(file)
    items_at = HEADER_SIZE + SLOT_SIZE * len(slots)
    used = 0
    for slot in range(len(slots)):
        head = load_i32(file_at + HEADER_SIZE + SLOT_SIZE * slot)
        used += slots[slot] != NO_ITEM
        if head == slots[slot]:
            continue
        number = head
        if is_live and number < item_capacity:
            while number >= next_item:
                at = items_at + ITEM_SIZE * number
                if not is_member(file_at, at, len(slots), slot):
                    break
                number = follow(file_at, at + _PREVIOUS_AT, number)
        if number != slots[slot] or number == BAD_LINK:
            tell(match, faults, counts, _HEAD, slot, slots[slot], head)
    return used


@inlined
def tell(match: Any, faults: Any, counts: Any, kind: int, number: int, expected: int, found: int) -> None:
    """Count a fault, and list it if there is room."""
    counts[kind] += 1
    done = match[0]
    if done.listed < len(faults):
        row = faults[done.listed]
        row.kind = kind
        row.number = number
        row.expected = expected
        row.found = found
        done.listed += 1
