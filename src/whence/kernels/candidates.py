"""Candidates: does the record at an offset bear the key that led there; and which keys do scanned records bear.

A candidate is a key's number and a physical offset. An index file gives some that are wrong: another key may have the
same hash. What decides is the record, which has to be whole; its texts are compared as Java reads them. What is right
becomes a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.columns import clean_text
from whence.kernels.hashing import extend_hash_ascii
from whence.kernels.intrinsics import LANES, address_of, copy_bytes, first_bit, is_equal, prefetch
from whence.kernels.key_table import CLEAN_SIZE, NO_KEY, find_key
from whence.kernels.picked import ask_for_record, find_record
from whence.kernels.properties import find_marks, find_texts
from whence.kernels.scan import Kind

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

_CHECKED = np.dtype(
    [
        *((name, ROW[name]) for name in ROW.names or ()),
        ("topic_at", np.int32),
        ("topic_size", np.int32),
        ("tags_at", np.int32),
        ("tags_size", np.int32),
    ]
)
"""A candidate whose record is whole: first what a row tells. Its topic is the number of one that was met here."""

NOT_WHOLE, OTHER_KEY, BEARS = 0, 1, 2  # what a check found: no whole record; one without the key; one with it
ANY = -(2**63)
EVER = 2**63 - 1

_KEY = int(Kind.KEY)
_ROLLBACK = int(Transaction.ROLLBACK)
_SPACE = ord(" ")
_ROW_SIZE = ROW.itemsize
_TAKEN_AHEAD = 16

# The keys of candidates lie anywhere in memory. Before some records are checked, it is looked up where their keys
# lie, and those are asked for: all the waits at once. Without this a check takes 3.8 times as long; with each key
# asked for some turns ahead, 1.1 times (benchmarks/find_many.py).
_AT_ONCE = 512
_RECORDS_AHEAD = 8


class Fit(NamedTuple):
    """What the numbers in a message have to be, for a row to answer: of any queue if it is ANY."""

    queue: int
    since_ms: int
    until_ms: int


class Answering(NamedTuple):
    """How many candidates answer; whether some had the topic, and whether its time or tag kept one from answering."""

    rows: int
    topic_seen: bool
    is_outside: bool
    is_filtered: bool


class Checker:
    """Checks candidates, some thousand at a time; the arrays are used again."""

    def __init__(self, capacity: int) -> None:
        self._rows = np.empty(capacity, _CHECKED)
        self.found = np.empty(capacity, np.int8)
        self._topics = np.empty(capacity, np.int32)
        self._table = np.zeros(1 << (2 * capacity - 1).bit_length(), np.int32)
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
    ) -> tuple[int, list[bytes]]:
        """Look at the records of candidates in one log file, in order of offsets. The last three say what keys are.

        Fills ``found``. Tells how many records are not whole, and the topics of the others.
        """
        self._table[:] = 0
        bad_count, topic_count = _check(
            file,
            base_offset,
            key_numbers,
            offsets,
            data,
            starts,
            sizes,
            self._rows,
            self.found,
            self._topics,
            self._table,
            self._clean,
        )
        topics = []
        for row in self._rows[self._topics[:topic_count]]:
            at = int(row["physical_offset"]) - base_offset + int(row["topic_at"])
            topics.append(file[at : at + int(row["topic_size"])].tobytes())
        return bad_count, topics

    def have_tag(self, file: NDArray[np.uint8], base_offset: int, count: int, tag: str) -> NDArray[np.bool_]:
        """Which of the first candidates, where their records are whole, have this tag."""
        result = np.zeros(count, np.bool_)
        try:
            wanted = np.frombuffer(tag.encode("utf-8"), np.uint8)
        except UnicodeEncodeError:
            return result  # half a character: no text of a log has one
        _have_tag(file, base_offset, self._rows[:count], self.found, wanted, self._clean, result)
        return result

    def put(
        self,
        count: int,
        topics: NDArray[np.int32],
        are_fit: NDArray[np.bool_],
        fit: Fit,
        has_tag: NDArray[np.bool_],
        store: int,
        out: NDArray[np.void],
    ) -> Answering:
        """Fill ``out`` (ROW) with those of the first candidates that bear their keys and answer.

        ``topics`` and ``are_fit`` have the number of each topic that :meth:`check` told, and whether it is asked;
        ``has_tag`` is empty where no tag is.
        """
        return Answering(*_put_rows(self._rows[:count], self.found, topics, are_fit, *fit, has_tag, store, out))


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
    clean: Any,
) -> tuple[int, int]:
    """Fill ``rows`` and ``found``, and ``topics`` with the number of the first row of each topic that is met.

    How many records are not whole, and how many topics there are.
    """
    file_at = address_of(file)
    file_end = file_at + len(file)
    data_at = address_of(data)
    clean_at = address_of(clean)
    bad_count = topic_count = 0
    topic = 0  # that of the record before, which is mostly this one's
    topic_at = topic_size = -1
    keys_at, key_sizes = np.empty((2, _AT_ONCE), np.int64)
    last = len(offsets) - 1
    for i in range(len(offsets)):
        if i % _AT_ONCE == 0:
            _look_up_keys(key_numbers, i, starts, sizes, data_at, keys_at, key_sizes)
        ask_for_record(file_at + offsets[min(i + _RECORDS_AHEAD, last)] - base_offset)
        position = offsets[i] - base_offset
        place = find_record(file_at, position, len(file), offsets[i])
        if place.size == 0:
            found[i] = NOT_WHOLE
            bad_count += 1
            continue
        record = file_at + position
        texts = find_texts(record, place.properties_at, record + place.size, file_end)
        row = rows[i]
        if place.topic_size != topic_size or not is_equal(topic_at, place.topic_at, topic_size):
            topic_at, topic_size = place.topic_at, place.topic_size
            topic = _topic_of(file_at - base_offset, topic_at, topic_size, rows, topics, topic_count, table)
            if topic == topic_count:
                topics[topic] = i
                topic_count += 1
        row.key_number = key_numbers[i]
        row.physical_offset = offsets[i]
        row.store_timestamp_ms = place.store_timestamp_ms
        row.queue_offset = place.queue_offset
        row.size = place.size
        row.queue = place.queue
        row.topic = topic
        row.topic_at = place.topic_at - record
        row.topic_size = place.topic_size
        row.tags_at = texts.tags_at - record
        row.tags_size = texts.tags_size
        found[i] = OTHER_KEY
        if place.sys_flag & TRANSACTION_MASK != _ROLLBACK:  # the keys of a rollback do not count
            keys_end = texts.keys_at + texts.keys_size
            if _bears(texts.keys_at, keys_end, file_end, keys_at[i % _AT_ONCE], key_sizes[i % _AT_ONCE], clean_at):
                found[i] = BEARS
    return bad_count, topic_count


@inlined
def _look_up_keys(
    key_numbers: Any, first: int, starts: Any, sizes: Any, data_at: int, keys_at: Any, key_sizes: Any
) -> None:
    """Where the keys of the next candidates lie, and how long they are. The memory is asked for them."""
    count = min(len(key_numbers) - first, _AT_ONCE)
    for i in range(count):
        number = key_numbers[first + i]
        keys_at[i] = data_at + starts[number]
        key_sizes[i] = sizes[number]
    for i in range(count):
        prefetch(keys_at[i])


@inlined
def _bears(at: int, end: int, data_end: int, key_at: int, key_size: int, clean: int) -> bool:
    """Whether one of the words in a stretch is this key."""
    block = at - LANES
    marks = 0
    while at < end:
        while marks == 0:
            block += LANES
            marks = find_marks(_SPACE, block, end, data_end)
        mark = block + first_bit(marks)
        marks &= marks - 1
        if mark > at and _is_text(at, mark - at, key_at, key_size, clean):
            return True
        at = mark + 1
    return False


@inlined
def _topic_of(log_at: int, at: int, size: int, rows: Any, topics: Any, topic_count: int, table: Any) -> int:
    """The number of a topic among those that were met; ``topic_count`` if it is new, for which it is put into the
    table.
    """
    h, _ = extend_hash_ascii(0, at, size)
    place = h & len(table) - 1
    while table[place]:
        topic = table[place] - 1
        row = rows[topics[topic]]
        if row.topic_size == size and is_equal(log_at + row.physical_offset + row.topic_at, at, size):
            return topic
        place = (place + 1) & len(table) - 1
    table[place] = topic_count + 1
    return topic_count


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
def _put_rows(
    checked: Any,
    found: Any,
    topics: Any,
    are_fit: Any,
    queue: int,
    since_ms: int,
    until_ms: int,
    has_tag: Any,
    store: int,
    rows: Any,
) -> tuple[int, bool, bool, bool]:
    count = 0
    topic_seen = is_outside = is_filtered = False
    for i in range(len(checked)):
        one = checked[i]
        if found[i] != BEARS or not are_fit[one.topic]:
            continue
        topic_seen = True
        if queue != ANY and one.queue != queue:
            continue
        if not since_ms <= one.store_timestamp_ms <= until_ms:
            is_outside = True
            continue
        if len(has_tag) > 0 and not has_tag[i]:
            is_filtered = True
            continue
        row = rows[count]
        row.key_number = one.key_number
        row.physical_offset = one.physical_offset
        row.store_timestamp_ms = one.store_timestamp_ms
        row.queue_offset = one.queue_offset
        row.size = one.size
        row.queue = one.queue
        row.topic = topics[one.topic]
        row.store = store
        count += 1
    return count, topic_seen, is_outside, is_filtered


@kernel
def order_by_key(rows: Any, first_key: int, oldest_first: bool, places: Any, order: Any) -> int:
    """Fill ``order`` with the numbers of rows that come by offset: by key, those of a key newest first, or oldest.

    ``places`` has a zero for each key and one more. How many there are: a message that bears a key twice, or whose
    key hashes alike in two topics, came more than once, and counts once.
    """
    for row in rows:
        places[row.key_number - first_key + 1] += 1
    for i in range(1, len(places)):
        places[i] += places[i - 1]
    for i in range(len(rows)):
        number = i if oldest_first else len(rows) - 1 - i
        key = rows[number].key_number - first_key
        order[places[key]] = number
        places[key] += 1  # in the end, where the rows of the key behind it begin
    count = begin = 0
    for key in range(len(places) - 1):
        for i in range(begin, places[key]):
            if i == begin or rows[order[i]].physical_offset != rows[order[i - 1]].physical_offset:
                order[count] = order[i]
                count += 1
        begin = places[key]
    return count


@kernel
def take_rows(rows: Any, order: Any, taken: Any) -> None:
    """Fill ``taken`` with the rows of these numbers. They lie anywhere, and each is asked for before it is read."""
    rows_at = address_of(rows)
    for i in range(len(order)):
        ahead = rows_at + order[min(i + _TAKEN_AHEAD, len(order) - 1)] * _ROW_SIZE
        prefetch(ahead)
        prefetch(ahead + _ROW_SIZE - 1)
        copy_bytes(address_of(taken) + i * _ROW_SIZE, rows_at + order[i] * _ROW_SIZE, _ROW_SIZE)
