"""Candidates: does the record at an offset bear the key that led there; and which keys do scanned records bear.

A pair is a key's number and a physical offset. An index file gives pairs that may be wrong: another key may have the
same hash. What decides is the record, which has to be whole; its texts are compared as Java reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.message import BLANK_SIZE_MIN
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.columns import clean_text
from whence.kernels.hashing import extend_hash_ascii
from whence.kernels.intrinsics import LANES, address_of, first_bit, is_equal, load_i32, prefetch
from whence.kernels.key_table import CLEAN_SIZE, NO_KEY, find_key
from whence.kernels.properties import find_marks
from whence.kernels.scan import _TOPIC, _TOPIC_PLACES, ITEMS, ITEMS_MAX, SCANNED, Kind, _scan

PAIR = np.dtype([("key_number", np.int64), ("physical_offset", np.int64)])

NOT_WHOLE, OTHER_KEY, BEARS = 0, 1, 2  # what a check found: no whole record; one without the key; one with it

_KEY = int(Kind.KEY)
_ROLLBACK = int(Transaction.ROLLBACK)
_SPACE = ord(" ")
_AHEAD = 6  # pairs whose records are asked for before they are looked at
_LINES = 10  # of a record of usual size
_LINE = 64


class Checker:
    """Checks pairs, some thousand at a time; the arrays are used again."""

    def __init__(self, capacity: int) -> None:
        self.rows = np.empty(capacity, SCANNED)
        self.found = np.empty(capacity, np.int8)
        self.topics = np.empty(capacity, np.int32)
        self._table = np.zeros(1 << (2 * capacity - 1).bit_length(), np.int32)
        self._items = np.empty(ITEMS_MAX, ITEMS)
        self._met = np.zeros(_TOPIC_PLACES, _TOPIC)
        self._clean = np.empty(CLEAN_SIZE, np.uint8)

    def check(
        self,
        file: NDArray[np.uint8],
        base_offset: int,
        pairs: NDArray[np.void],
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int32],
    ) -> int:
        """Fill ``rows`` (SCANNED), ``found`` and ``topics`` for pairs that lie in one log file, in order of offsets.

        ``topics[i]`` is the number of the first row that has the topic of row i. The last three say what the keys
        are. How many records are not whole.
        """
        file = file.view()
        file.flags.writeable = False  # for Numba, read-only bytes are another type: one of the two is compiled
        self._table[:] = 0
        rows, found, topics = (array[: len(pairs)] for array in (self.rows, self.found, self.topics))
        return int(
            _check(
                file,
                base_offset,
                pairs,
                data,
                starts,
                sizes,
                rows,
                found,
                topics,
                self._table,
                self._items,
                self._met,
                self._clean,
            )
        )

    def have_tag(self, file: NDArray[np.uint8], base_offset: int, count: int, tag: str) -> NDArray[np.bool_]:
        """Which of the first rows, where they are whole, have this tag."""
        result = np.zeros(count, np.bool_)
        try:
            wanted = np.frombuffer(tag.encode("utf-8"), np.uint8)
        except UnicodeEncodeError:
            return result  # half a character: no text of a log has one
        _have_tag(file, base_offset, self.rows[:count], self.found, wanted, self._clean, result)
        return result


@kernel
def _have_tag(file: Any, base_offset: int, rows: Any, found: Any, tag: Any, clean: Any, result: Any) -> None:
    log_at = address_of(file) - base_offset
    for i in range(len(rows)):
        result[i] = False
        if found[i] != NOT_WHOLE and rows[i].tags_size > 0:
            at = log_at + rows[i].physical_offset + rows[i].tags_at
            result[i] = _is_text(at, rows[i].tags_size, address_of(tag), len(tag), address_of(clean))


@inlined
def _is_text(at: int, size: int, wanted_at: int, wanted_size: int, clean: int) -> bool:
    """Whether a text in a log, as Java reads it, is the wanted one."""
    if size == wanted_size and is_equal(at, wanted_at, size):
        return True
    _, is_wide = extend_hash_ascii(0, at, size)
    return is_wide != 0 and clean_text(at, size, clean) == wanted_size and is_equal(clean, wanted_at, wanted_size)


@kernel
def _check(
    file: Any,
    base_offset: int,
    pairs: Any,
    data: Any,
    starts: Any,
    sizes: Any,
    rows: Any,
    found: Any,
    topics: Any,
    table: Any,
    items: Any,
    met: Any,
    clean: Any,
) -> int:
    file_at = address_of(file)
    data_at = address_of(data)
    clean_at = address_of(clean)
    bad_count = 0
    for i in range(len(pairs)):
        if i + _AHEAD < len(pairs):
            ahead = file_at + pairs[i + _AHEAD].physical_offset - base_offset
            for line in range(_LINES):
                prefetch(ahead + line * _LINE)
        position = pairs[i].physical_offset - base_offset
        row = rows[i]
        if i > 0 and pairs[i - 1].physical_offset == pairs[i].physical_offset:
            rows[i] = rows[i - 1]
            topics[i] = topics[i - 1]
            is_whole = found[i - 1] != NOT_WHOLE
        else:
            is_whole = False
            if 0 <= position <= len(file) - BLANK_SIZE_MIN:
                end = min(position + max(load_i32(file_at + position), BLANK_SIZE_MIN), len(file))
                count, _, _, _, _ = _scan(file, base_offset, position, end, True, False, rows[i : i + 1], items, met)
                is_whole = count == 1
            topics[i] = _topic_of(file_at - base_offset, rows, i, table) if is_whole else i
        record = file_at + position
        if not is_whole:
            found[i] = NOT_WHOLE
            bad_count += 1
        elif _bears(record, row, data_at + starts[pairs[i].key_number], sizes[pairs[i].key_number], clean_at):
            found[i] = BEARS
        else:
            found[i] = OTHER_KEY
    return bad_count


@inlined
def _bears(record: int, row: Any, key_at: int, key_size: int, clean: int) -> bool:
    """Whether one of the record's keys is this one; those of a rollback do not count."""
    if row.sys_flag & TRANSACTION_MASK == _ROLLBACK:
        return False
    at = record + row.keys_at
    end = at + row.keys_size
    data_end = record + row.size
    block = at - LANES
    marks = 0
    while at < end:
        while marks == 0:
            block += LANES
            marks = find_marks(_SPACE, block, end, data_end)
        mark = block + first_bit(marks)
        marks &= marks - 1
        if mark > at:
            if _is_text(at, mark - at, key_at, key_size, clean):
                return True
        at = mark + 1
    return False


@inlined
def _topic_of(log_at: int, rows: Any, number: int, table: Any) -> int:
    """The number of the first row whose record has the same topic as this one."""
    row = rows[number]
    at = log_at + row.physical_offset + row.topic_at
    place = row.topic_hash & len(table) - 1
    while table[place]:
        other = rows[table[place] - 1]
        other_at = log_at + other.physical_offset + other.topic_at
        if other.topic_size == row.topic_size and is_equal(other_at, at, row.topic_size):
            return table[place] - 1
        place = (place + 1) & len(table) - 1
    table[place] = number + 1
    return number


@kernel
def pairs_of_items(
    file: Any,
    base_offset: int,
    items: Any,
    data: Any,
    starts: Any,
    sizes: Any,
    hashes: Any,
    table: Any,
    clean: Any,
    pairs: Any,
) -> int:
    """The pairs of asked keys and scanned records that bear them, in order; as many as items at most. How many.

    A key that stands in a record twice gives two.
    """
    log_at = address_of(file) - base_offset
    data_at = address_of(data)
    clean_at = address_of(clean)
    count = 0
    for item in items:
        if item.kind != _KEY:
            continue
        at = log_at + item.physical_offset + item.key_at
        number = find_key(at, item.key_size, data_at, starts, sizes, hashes, table, clean_at)
        if number != NO_KEY:
            pairs[count].key_number = number
            pairs[count].physical_offset = item.physical_offset
            count += 1
    return count


@kernel
def order_by_key(key_numbers: Any, ends: Any, order: Any) -> None:
    """``order`` puts rows by key, those of a key from the last to the first.

    ``ends`` is zero for each key and one more; it comes back as where the rows of each key begin, and where they end.
    """
    for number in key_numbers:
        ends[number + 1] += 1
    for i in range(1, len(ends)):
        ends[i] += ends[i - 1]
    place = ends[:-1].copy()
    for i in range(len(key_numbers) - 1, -1, -1):
        number = key_numbers[i]
        order[place[number]] = i
        place[number] += 1
