"""Candidates: does the record at an offset bear the key that led there; and which keys do scanned records bear.

A candidate is a key's number and a physical offset. An index file gives some that are wrong: another key may have the
same hash. What decides is the record, which has to be whole; its texts are compared as Java reads them. What is right
becomes a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.columns import clean_text
from whence.kernels.hashing import extend_hash_ascii
from whence.kernels.intrinsics import LANES, address_of, copy_bytes, first_bit, is_equal, prefetch
from whence.kernels.key_table import CLEAN_SIZE, NO_KEY, find_key
from whence.kernels.properties import find_marks
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Kind, scan_picked

ROW = np.dtype(
    [
        ("key_number", np.int64),
        ("physical_offset", np.int64),
        ("store_timestamp_ms", np.int64),
        ("queue_offset", np.int64),
        ("size", np.int32),
        ("queue", np.int32),
        ("topic", np.int32),  # a number
        ("store", np.int32),  # of several, its number
    ]
)
"""One key and one message that bears it."""

NOT_WHOLE, OTHER_KEY, BEARS = 0, 1, 2  # what a check found: no whole record; one without the key; one with it

_KEY = int(Kind.KEY)
_ROLLBACK = int(Transaction.ROLLBACK)
_SPACE = ord(" ")
_ROW_SIZE = ROW.itemsize
_TARGETS_AHEAD = 16
_AT_ONCE = 512  # candidates whose records are read, and then compared while they are in the cache


class Checker:
    """Checks candidates, some thousand at a time; the arrays are used again."""

    def __init__(self, capacity: int) -> None:
        self.rows = np.empty(capacity, SCANNED)
        self.found = np.empty(capacity, np.int8)
        self.topics = np.empty(capacity, np.int32)
        self._table = np.zeros(1 << (2 * capacity - 1).bit_length(), np.int32)
        self._items = np.empty(ITEMS_MAX, ITEMS)
        self._clean = np.empty(CLEAN_SIZE, np.uint8)

    def check(
        self,
        file: NDArray[np.uint8],
        base_offset: int,
        key_numbers: NDArray[np.int64],
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int32],
    ) -> int:
        """Fill ``rows`` (SCANNED), ``found`` and ``topics`` for candidates in one log file, in order of offsets.

        ``topics[i]`` is the number of the first row that has the topic of row i. The last three say what the keys
        are. How many records are not whole.
        """
        count = len(offsets)
        self._table[:] = 0
        return int(
            _check(
                file,
                base_offset,
                key_numbers,
                offsets,
                data,
                starts,
                sizes,
                self.rows[:count],
                self.found,
                self.topics,
                self._table,
                self._items,
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
    key_numbers: Any,
    offsets: Any,
    data: Any,
    starts: Any,
    sizes: Any,
    rows: Any,
    found: Any,
    topics: Any,
    table: Any,
    items: Any,
    clean: Any,
) -> int:
    log_at = address_of(file) - base_offset
    data_at = address_of(data)
    clean_at = address_of(clean)
    bad_count = 0
    begin = 0
    while begin < len(offsets):
        end = min(begin + _AT_ONCE, len(offsets))
        positions = offsets[begin:end] - base_offset
        whole_end = begin + scan_picked(file, base_offset, positions, rows[begin:end], items)
        for i in range(begin, whole_end):
            topics[i] = _topic_of(log_at, rows, i, table)
            key_at = data_at + starts[key_numbers[i]]
            is_borne = _bears(log_at + offsets[i], rows[i], key_at, sizes[key_numbers[i]], clean_at)
            found[i] = BEARS if is_borne else OTHER_KEY
        begin = whole_end
        if begin < end:
            topics[begin] = begin
            found[begin] = NOT_WHOLE
            bad_count += 1
            begin += 1
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
def find_in_items(
    file: Any,
    base_offset: int,
    items: Any,
    data: Any,
    starts: Any,
    sizes: Any,
    hashes: Any,
    table: Any,
    clean: Any,
    key_numbers: Any,
    offsets: Any,
) -> int:
    """The asked keys that scanned records bear, and where those lie, in order; as many as items at most. How many.

    A key that stands in a record twice is found twice.
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
            key_numbers[count] = number
            offsets[count] = item.physical_offset
            count += 1
    return count


@kernel
def put_rows(key_numbers: Any, scanned: Any, topics: Any, store: int, is_fit: Any, rows: Any) -> int:
    """Fill ``rows`` (ROW) with the candidates that fit; how many."""
    count = 0
    for i in range(len(is_fit)):
        if is_fit[i]:
            row = rows[count]
            row.key_number = key_numbers[i]
            row.physical_offset = scanned[i].physical_offset
            row.store_timestamp_ms = scanned[i].store_timestamp_ms
            row.queue_offset = scanned[i].queue_offset
            row.size = scanned[i].size
            row.queue = scanned[i].queue
            row.topic = topics[i]
            row.store = store
            count += 1
    return count


@kernel
def order_by_key(rows: Any, first_key: int, places: Any, ordered: Any) -> int:
    """Put rows that come by offset into ``ordered``: by key, those of a key from the last to the first, each once.

    ``places`` has a zero for each key and one more. How many there are: a message that bears a key twice, or whose
    key hashes alike in two topics, came more than once.
    """
    for row in rows:
        places[row.key_number - first_key + 1] += 1
    for i in range(1, len(places)):
        places[i] += places[i - 1]
    targets = np.empty(len(rows), np.int64)
    for i in range(len(rows) - 1, -1, -1):
        number = rows[i].key_number - first_key
        targets[i] = address_of(ordered) + places[number] * _ROW_SIZE
        places[number] += 1
    for i in range(len(rows)):  # they lie anywhere, and each is asked for before it is written: half of the time
        prefetch(targets[min(i + _TARGETS_AHEAD, len(rows) - 1)])
        copy_bytes(targets[i], address_of(rows) + i * _ROW_SIZE, _ROW_SIZE)
    count = 0
    for i in range(len(ordered)):
        if (
            i == 0
            or ordered[i].key_number != ordered[i - 1].key_number
            or ordered[i].physical_offset != ordered[i - 1].physical_offset
        ):
            if count != i:
                ordered[count] = ordered[i]
            count += 1
    return count
