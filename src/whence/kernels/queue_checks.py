"""Entries of one queue held against those that the log has for it.

    match_entries    expected entries against one file, or against the room of one that is not there
    pass_entries     what a file has where nothing is expected

An entry that is expected has a claim to the place of its queue offset. A broker that lost messages before it puts it
directly behind its last one all the same, and so does a build (``place_entries`` of kernels/queues.py); entries of a
batch queue lie one behind the other in any case.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from whence.formats.rocketmq.consume_queue import BATCH_ENTRY_SIZE, ENTRY, FILLER
from whence.kernels import inlined, kernel
from whence.kernels.checks import tell
from whence.kernels.intrinsics import address_of, is_equal, load_i8, load_i32, load_i64
from whence.kernels.queues import QUEUE_OFFSET_MAX


class QueueFault(IntEnum):
    """What is wrong, and what a row of FAULT tells of it: at which entry number; as it should be, as it is."""

    MISSING = 0  # a message has no entry: physical offset of the message, of what lies there
    DANGLING = 1  # an entry leads to no message of this queue: 0, physical offset
    ENTRY = 2  # an entry leads to its message, but tells another size or code: physical offset, 0
    EMPTY = 3  # an entry is not written, and others follow: 0, 0
    FILLER = 4  # a filler, behind an entry: 0, 0
    NOT_ZERO = 5  # something is written behind the last entry: 0, physical offset


FAULT_KINDS = len(QueueFault)

QUEUE_MATCH = np.dtype(
    [
        ("next", np.int64),  # the number of the next entry
        ("physical_end", np.int64),  # behind the message of the last entry
        ("listed", np.int64),  # faults
        ("is_begun", np.int64),  # whether an entry was met, of an expired message or of another
        ("is_placed", np.int64),  # whether one was met that is expected
        ("placed", np.int64),  # expected entries that were found
        ("expired", np.int64),  # entries of messages that have expired
        ("dropped", np.int64),  # messages whose place was taken
        ("late", np.int64),  # messages without an entry since the last one that has one
        ("listed_before", np.int64),  # faults, before those
        ("excused", np.int64),  # of those, how many may still be what lies here instead
        ("ahead", np.int64),  # entries that lead behind what was scanned
    ]
)

QUEUE_RULES = np.dtype(
    [
        ("entry_size", np.int64),
        ("begin_offset", np.int64),  # of the log: what leads before it has expired
        ("end_offset", np.int64),  # of what was scanned
        ("is_exact", np.int64),  # entries lie where a build puts them
        ("any_code", np.int64),  # codes are not looked at
    ]
)

NEAR = 8  # entries of a batch queue that are looked at for the one that is expected

assert ENTRY.fields is not None
_SIZE_AT, _CODE_AT = (ENTRY.fields[name][1] for name in ("size", "tags_code"))
_FILLER_SIZE = int.from_bytes(FILLER[_SIZE_AT:_CODE_AT], "big")
_MISSING, _DANGLING, _ENTRY, _EMPTY, _FILLER, _NOT_ZERO = (int(fault) for fault in QueueFault)


@kernel
def match_entries(
    file: Any,
    first: int,
    behind: int,
    rules: Any,
    match: Any,
    entries: Any,
    queue_offsets: Any,
    faults: Any,
    counts: Any,
) -> int:
    """Hold expected entries, in the order of the log, against the file of entries ``first`` to ``behind - 1``.

    ``file`` may be shorter: what it lacks is not written. Tells how many are done with: the next one belongs into a
    later file.
    """
    rule = rules[0]
    done = match[0]
    file_at = address_of(file)
    entry_size = rule.entry_size
    is_batch = entry_size == BATCH_ENTRY_SIZE
    written = first + len(file) // entry_size
    for row in range(len(queue_offsets)):
        at = address_of(entries) + entry_size * row
        offset = load_i64(at)
        claimed = queue_offsets[row]
        number = done.next
        is_taken = not is_batch and claimed < number and claimed != 0 and done.is_placed != 0
        if claimed < 0 or claimed > QUEUE_OFFSET_MAX or offset < done.physical_end or is_taken:
            done.dropped += 1
            continue
        if is_batch:
            if done.is_placed == 0 or rule.is_exact == 0:
                number = _batch_place(file_at, first, written, rules, match, offset)
        elif done.is_placed == 0 or rule.is_exact == 0:
            if done.is_placed == 0 or _offset_at(file_at, first, written, rules, number) != offset:
                number = claimed
        if number >= behind:
            return row
        found = _offset_at(file_at, first, written, rules, number)
        is_settled = found == offset or rule.is_exact != 0
        if is_settled:
            _pass_over(file_at, first, written, rules, match, number, faults, counts)
        if found == offset:
            if not _is_same(file_at + entry_size * (number - first), at, entry_size, rule.any_code != 0):
                tell(match, faults, counts, _ENTRY, number, offset, 0)
            done.placed += 1
            done.late = 0
            done.excused = 0
        else:
            if done.late == 0:
                done.listed_before = done.listed
            tell(match, faults, counts, _MISSING, number, offset, found)
            done.late += 1
            done.excused += rule.is_exact == 0
        if is_settled:
            done.next = number + 1
            done.is_begun = 1
            done.is_placed = 1
        done.physical_end = offset + load_i32(at + _SIZE_AT)
    return len(queue_offsets)


@kernel
def pass_entries(
    file: Any, first: int, behind: int, rules: Any, match: Any, is_last: bool, faults: Any, counts: Any
) -> None:
    """Leave a file: what it has behind the last entry that is expected in it.

    ``is_last``: nothing more is expected in later files, either.
    """
    rule = rules[0]
    done = match[0]
    written = first + len(file) // rule.entry_size
    if not is_last:
        _pass_over(address_of(file), first, written, rules, match, behind, faults, counts)
        done.excused = 0
        return
    for number in range(max(done.next, first), written):
        at = address_of(file) + rule.entry_size * (number - first)
        offset = load_i64(at)
        if _is_zero(at, rule.entry_size):
            continue
        if done.is_begun == 0 and _is_filler(at):
            continue
        if 0 <= offset < rule.begin_offset and load_i32(at + _SIZE_AT) > 0 and done.is_placed == 0:
            done.expired += 1
            done.is_begun = 1
        elif done.excused > 0:
            done.excused -= 1
        elif offset >= rule.end_offset and rule.is_exact == 0:
            done.ahead += 1
        else:
            tell(match, faults, counts, _NOT_ZERO, number, 0, offset)
    done.next = max(done.next, behind)


@kernel
def _pass_over(
    file_at: int, first: int, written: int, rules: Any, match: Any, behind: int, faults: Any, counts: Any
) -> None:
    """Pass over what lies before entry ``behind``: fillers and what has expired, if nothing lies before them.

    Of what should not be there, that is not told which lies in the place of entries that were told to be missing.
    """
    rule = rules[0]
    done = match[0]
    for number in range(max(done.next, first), min(behind, written)):
        at = file_at + rule.entry_size * (number - first)
        offset = load_i64(at)
        if _is_filler(at) and done.is_begun == 0:
            continue
        if 0 <= offset < rule.begin_offset and load_i32(at + _SIZE_AT) > 0 and done.is_placed == 0:
            done.expired += 1
            done.is_begun = 1
        elif done.excused > 0:
            done.excused -= 1
        elif _is_filler(at):
            tell(match, faults, counts, _FILLER, number, 0, 0)
        elif _is_zero(at, rule.entry_size):
            tell(match, faults, counts, _EMPTY, number, 0, 0)
        else:
            tell(match, faults, counts, _DANGLING, number, 0, offset)
    done.next = max(done.next, behind)


@inlined
def _batch_place(file_at: int, first: int, written: int, rules: Any, match: Any, offset: int) -> int:
    """The number of the entry that leads to this offset, if it is near; else the next one."""
    number = match[0].next
    while match[0].is_placed == 0 and number < written:  # what has expired
        if not 0 <= _offset_at(file_at, first, written, rules, number) < rules[0].begin_offset:
            break
        number += 1
    missed = number + match[0].excused
    for near in range(number, min(missed + NEAR, written)):
        if _offset_at(file_at, first, written, rules, near) == offset:
            return near
    return missed


@inlined
def _offset_at(file_at: int, first: int, written: int, rules: Any, number: int) -> int:
    """The physical offset of an entry; -1 if it is not written here."""
    if number < first or number >= written:
        return -1
    at = file_at + rules[0].entry_size * (number - first)
    return load_i64(at) if load_i32(at + _SIZE_AT) > 0 and not _is_filler(at) else -1


@inlined
def _is_same(a: int, b: int, entry_size: int, any_code: bool) -> bool:
    """Whether two entries are equal."""
    if any_code:
        return is_equal(a, b, _CODE_AT)
    return is_equal(a, b, entry_size)


@inlined
def _is_filler(at: int) -> bool:
    return load_i64(at) == 0 and load_i32(at + _SIZE_AT) == _FILLER_SIZE and load_i64(at + _CODE_AT) == 0


@inlined
def _is_zero(at: int, entry_size: int) -> bool:
    something = load_i64(at) | load_i64(at + entry_size - 8)
    for i in range(8, entry_size - 8):
        something |= load_i8(at + i)
    return something == 0
