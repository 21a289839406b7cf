"""Scan a stretch of CommitLog: where its records lie, and what queues and indexes need of each.

A record is taken if its magic and sizes are right, its fields add up to its size, it says that it lies where it does
and, when asked for, its checksums fit: that of the body and, if the properties end in one, that of the record. The
scan ends at the first record that is not taken, and says why (:class:`Status`).

What is taken becomes a row of SCANNED, and a row of ITEMS for each text that RocketMQ's index holds of it. All texts
are hashed as Java reads them, malformed UTF-8 included. Nothing else is decoded: a text is given as a span of the
record's bytes, ``at`` bytes behind its start, and a span of size 0 means that there is none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.errors import UsageError
from whence.formats.rocketmq.host import IPV4_SIZE, IPV6_SIZE
from whence.formats.rocketmq.message import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    whole_head,
)
from whence.formats.rocketmq.properties import PROPERTIES_SIZE_MAX
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, SysFlag, Transaction
from whence.kernels import inlined, kernel
from whence.kernels.checksums import crc32
from whence.kernels.hashing import extend_hash, extend_hash_ascii, fold_hash, join_hashes, signed
from whence.kernels.intrinsics import (
    LANES,
    address_of,
    first_bit,
    is_equal,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    prefetch,
)
from whence.kernels.properties import find_marks, find_texts, put_texts, record_crc

SCANNED = np.dtype(
    [
        ("physical_offset", np.int64),
        ("store_timestamp_ms", np.int64),
        ("queue_offset", np.int64),
        ("tags_code", np.int64),  # the hash of TAGS, 0 without; a delayed message's entry holds a time instead
        ("size", np.int32),
        ("queue", np.int32),
        ("sys_flag", np.int32),
        ("topic_hash", np.int32),  # of "topic#", where the hash of each text of its index begins
        ("topic_at", np.int32),
        ("topic_size", np.int32),
        ("keys_at", np.int32),
        ("keys_size", np.int32),
        ("tags_at", np.int32),
        ("tags_size", np.int32),
        ("unique_id_at", np.int32),
        ("unique_id_size", np.int32),
        ("delay_level_at", np.int32),
        ("delay_level_size", np.int16),
        ("has_inner", np.int16),  # whether a property tells of an inner batch or of light queues
        ("topic_before", np.int64),  # so many bytes before it begins one with the same topic; 0 if none is known
    ],
    align=True,
)
"""One taken record."""

ITEMS = np.dtype(
    [
        ("physical_offset", np.int64),
        ("store_timestamp_ms", np.int64),
        ("key_hash", np.int32),  # as an index file stores it
        ("message", np.int32),  # number of the record's row in SCANNED
        ("key_at", np.int32),
        ("key_size", np.int16),
        ("kind", np.int16),
    ],
    align=True,
)
"""One text of a record that an index holds: its unique id, then its keys in order, repeats kept, then its tags."""

ITEMS_MAX = 2 + PROPERTIES_SIZE_MAX // 2
"""As many items as one record can have: keys of one byte, a space between each two."""


class Kind(IntEnum):
    """What the text of an item is."""

    UNIQUE_ID = 0
    KEY = 1
    TAGS = 2


class Status(IntEnum):
    """Why a scan ended. ``detail`` is the number in brackets."""

    END = 0  # all of the stretch is taken
    FULL = 1  # no room for the next record's rows: make some and go on
    BLANK = 2  # the end of a CommitLog file, which is skipped (its size)
    ZERO = 3  # size and magic are zero: nothing was written here
    TRUNCATED = 4  # the stretch ends inside a record or blank (its size, or 8 if that is cut too)
    BAD_MAGIC = 5  # neither a record nor a blank (the magic)
    BAD_SIZE = 6  # too small for a record with such hosts, or for a blank (its size)
    BAD_LENGTH = 7  # body, topic or properties do not fit into the record (their size)
    BAD_SUM = 8  # the fields do not fill the record (what they add up to)
    BAD_OFFSET = 9  # it lies elsewhere than it says (what it says)
    BAD_CRC = 10  # a checksum does not fit (that of the bytes)


class ScanResult(NamedTuple):
    """How far a scan came: ``next_position`` is behind all that was taken, and behind the blank if it met one."""

    message_count: int
    item_count: int
    next_position: int
    status: Status
    detail: int


def scan_stretch(
    data: NDArray[np.uint8],
    base_offset: int,
    position: int,
    end: int,
    *,
    check_crc: bool,
    tags: bool,
    messages: NDArray[np.void],
    items: NDArray[np.void],
) -> ScanResult:
    """Scan ``data[position:end]``, a stretch of CommitLog that has ``data[0]`` at ``base_offset``.

    Fills ``messages`` (SCANNED) and ``items`` (ITEMS, with room for ITEMS_MAX at least) from their start. ``tags``
    asks for items of tags, as RocketMQ has them since 5.4. A record with rollback bits has no items.
    """
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise UsageError(f"data is not a row of bytes but {data.dtype} {data.shape}")
    if not 0 <= position <= end <= len(data):
        raise UsageError(f"no stretch from {position} to {end} in {len(data)} bytes")
    for rows, dtype, least in ((messages, SCANNED, 1), (items, ITEMS, ITEMS_MAX)):
        if rows.dtype != dtype or len(rows) < least or not rows.flags.carray:
            raise UsageError(f"no room for {least} rows of {dtype} in {len(rows)} of {rows.dtype}")
    data = data.view()
    data.flags.writeable = False  # for Numba, read-only bytes are another type: one of the two is compiled
    message_count, item_count, next_position, status, detail = _scan(
        data, base_offset, position, end, check_crc, tags, messages, items, np.zeros(_TOPIC_PLACES, _TOPIC)
    )
    return ScanResult(message_count, item_count, next_position, Status(status), detail)


# Constants of a kernel are plain numbers: Numba does not count with the members of an IntEnum.
_END, _FULL, _BLANK, _ZERO, _TRUNCATED, _BAD_MAGIC, _BAD_SIZE, _BAD_LENGTH, _BAD_SUM, _BAD_OFFSET, _BAD_CRC = map(
    int, Status
)
_UNIQUE_ID, _KEY, _TAGS = map(int, Kind)
_ROLLBACK = int(Transaction.ROLLBACK)
_BORN_HOST_IPV6 = int(SysFlag.BORN_HOST_IPV6)
_STORE_HOST_IPV6 = int(SysFlag.STORE_HOST_IPV6)

_HEAD = whole_head(0)  # with two IPv4 hosts; an IPv6 host takes IPV6_EXTRA bytes more
_HEAD_SIZE = _HEAD.itemsize
_IPV6_EXTRA = IPV6_SIZE - IPV4_SIZE


def _place(name: str) -> int:
    assert _HEAD.fields is not None
    return _HEAD.fields[name][1]


_BODY_CRC_AT = _place("body_crc")
_QUEUE_AT = _place("queue")
_QUEUE_OFFSET_AT = _place("queue_offset")
_PHYSICAL_OFFSET_AT = _place("physical_offset")
_SYS_FLAG_AT = _place("sys_flag")
_STORE_TIMESTAMP_AT = _place("store_timestamp_ms")


_SPACE = ord(" ")
_CRC_BITS = 0x7FFFFFFF  # RocketMQ stores a checksum without its highest bit
_HASH_SIGN = ord("#")
_TAGS_PREFIX = ord("T") * 31 + ord("#")  # the text of a tags item is "topic#T#tags"

# The scan skips bodies, so the processor sees no stream to follow. Without the prefetch it takes 1.9 times as long.
# Ten lines are a record of usual size; a loop over just as many lines as a record has takes 1.1 times as long, since
# its end cannot be foreseen (benchmarks/scan.py).
_AHEAD = 4096
_LINES = 10
_LINE = 64

# Topics that the scan has met, each at a place that its hash tells, where it may have to make room for another. Who
# numbers them looks at the bytes of a few records then, not at those of all, which have left the cache by that time.
_TOPIC = np.dtype([("record", np.int64), ("at", np.int64), ("size", np.int64), ("hash", np.int64)])
_TOPIC_PLACES = 256


@kernel
def _scan(
    data: Any,
    base_offset: int,
    position: int,
    end: int,
    check_crc: bool,
    tags: bool,
    messages: Any,
    items: Any,
    topics: Any,
) -> tuple[int, int, int, int, int]:
    """Take one record after the other, as the head of this module says.

    The order of the tests is what keeps all reads inside the data: first that size and magic are there, then that
    the whole record is, then each part of it before the next, which lies behind.
    """
    data_at = address_of(data)
    data_end = data_at + len(data)
    message_count = 0
    item_count = 0
    detail = 0
    while True:
        left = end - position
        if left < BLANK_SIZE_MIN:
            status = _TRUNCATED if left else _END
            detail = BLANK_SIZE_MIN if left else 0
            break
        record = data_at + position
        size = load_i32(record)
        magic = load_i32(record + 4)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            detail = size if magic == MAGIC_BLANK else magic
            if magic != MAGIC_BLANK:
                status = _BAD_MAGIC if magic or size else _ZERO
            elif size < BLANK_SIZE_MIN:
                status = _BAD_SIZE
            elif size > left:
                status = _TRUNCATED
            else:
                status = _BLANK
                position += size
            break
        if size < RECORD_SIZE_MIN or size > left:
            detail = size
            status = _BAD_SIZE if size < RECORD_SIZE_MIN else _TRUNCATED
            break
        for line in range(_LINES):
            prefetch(record + _AHEAD + line * _LINE)

        version = 1 if magic == MAGIC_V1 else 2
        sys_flag = load_i32(record + _SYS_FLAG_AT)
        born_extra = _IPV6_EXTRA if sys_flag & _BORN_HOST_IPV6 else 0
        store_extra = _IPV6_EXTRA if sys_flag & _STORE_HOST_IPV6 else 0
        head_size = _HEAD_SIZE + born_extra + store_extra
        room = size - head_size - version - 2  # for body, topic and properties
        if room < 0:
            detail = size
            status = _BAD_SIZE
            break
        body_at = record + head_size
        body_size = load_i32(body_at - 4)
        if body_size < 0 or body_size > room:
            detail = body_size
            status = _BAD_LENGTH
            break
        room -= body_size
        topic_at = body_at + body_size + version
        topic_size = load_i8(topic_at - 1) if version == 1 else load_i16(topic_at - 2)
        if topic_size < 0 or topic_size > room:
            detail = topic_size
            status = _BAD_LENGTH
            break
        room -= topic_size
        properties_at = topic_at + topic_size + 2
        properties_size = load_i16(properties_at - 2)
        if properties_size < 0 or properties_size > room:
            detail = properties_size
            status = _BAD_LENGTH
            break
        if properties_size < room:
            detail = size - room + properties_size
            status = _BAD_SUM
            break

        physical_offset = load_i64(record + _PHYSICAL_OFFSET_AT)
        if physical_offset != base_offset + position:
            detail = physical_offset
            status = _BAD_OFFSET
            break
        if check_crc:
            detail = crc32(body_at, body_size, data_at) & _CRC_BITS
            if body_size and detail != load_i32(record + _BODY_CRC_AT):
                status = _BAD_CRC
                break
            stored_crc = record_crc(record + size, properties_size)
            if stored_crc >= 0:
                detail = crc32(record, size - RECORD_CRC_SIZE, data_at) & _CRC_BITS
                if detail != stored_crc:
                    status = _BAD_CRC
                    break
            detail = 0

        # Its hash comes before the properties are looked at, and is there when they have been: 3 % of the scan.
        topic_hash, topic_is_wide = extend_hash_ascii(0, topic_at, topic_size)
        topic_hash = topic_hash * 31 + _HASH_SIGN
        texts = find_texts(record, properties_at, record + size, data_end)
        if message_count == len(messages) or item_count + 2 + (texts.keys_size + 1) // 2 > len(items):
            status = _FULL
            break

        message = messages[message_count]
        message.physical_offset = physical_offset
        message.store_timestamp_ms = load_i64(record + _STORE_TIMESTAMP_AT + born_extra)
        message.queue_offset = load_i64(record + _QUEUE_OFFSET_AT)
        tags_code, _ = extend_hash_ascii(0, texts.tags_at, texts.tags_size)
        message.tags_code = signed(tags_code)
        message.size = size
        message.queue = load_i32(record + _QUEUE_AT)
        message.sys_flag = sys_flag
        message.topic_hash = topic_hash
        message.topic_at = topic_at - record
        message.topic_size = topic_size
        put_texts(message, record, texts)
        message.topic_before = _same_topic(topics, record, topic_at, topic_size, topic_hash)

        first_item = item_count
        if sys_flag & TRANSACTION_MASK != _ROLLBACK:
            if texts.unique_id_size:
                h, _ = extend_hash_ascii(topic_hash, texts.unique_id_at, texts.unique_id_size)
                at = texts.unique_id_at - record
                _put_item(items[item_count], message, message_count, _UNIQUE_ID, at, texts.unique_id_size, h)
                item_count += 1
            at = texts.keys_at
            keys_end = at + texts.keys_size
            block = at - LANES
            marks = 0
            while at < keys_end:
                while marks == 0:
                    block += LANES
                    marks = find_marks(_SPACE, block, keys_end, data_end)
                mark = block + first_bit(marks)
                marks &= marks - 1
                if mark > at:
                    h, _ = extend_hash_ascii(topic_hash, at, mark - at)
                    _put_item(items[item_count], message, message_count, _KEY, at - record, mark - at, h)
                    item_count += 1
                at = mark + 1
            if tags and texts.tags_size:
                h = join_hashes(topic_hash * 31**2 + _TAGS_PREFIX, tags_code, texts.tags_size)
                at = texts.tags_at - record
                _put_item(items[item_count], message, message_count, _TAGS, at, texts.tags_size, h)
                item_count += 1
        if topic_is_wide or texts.are_wide:
            _hash_again(record, messages, message_count, items, first_item, item_count)
        message_count += 1
        position += size
    return message_count, item_count, position, status, detail


@inlined
def _same_topic(topics: Any, record: int, at: int, size: int, h: int) -> int:
    """How many bytes before the record one begins that was met with the same topic; 0 if there is none."""
    topic = topics[h % _TOPIC_PLACES]
    if topic.hash == h and topic.size == size and is_equal(topic.at, at, size):
        return record - topic.record
    topic.record = record
    topic.at = at
    topic.size = size
    topic.hash = h
    return 0


@inlined
def _put_item(item: Any, message: Any, number: int, kind: int, key_at: int, key_size: int, h: int) -> None:
    item.physical_offset = message.physical_offset
    item.store_timestamp_ms = message.store_timestamp_ms
    item.key_hash = fold_hash(signed(h))
    item.message = number
    item.key_at = key_at
    item.key_size = key_size
    item.kind = kind


@kernel
def _hash_again(record: int, messages: Any, number: int, items: Any, first_item: int, item_count: int) -> None:
    """Hash the texts of a record that were hashed as ASCII and may not be.

    One slow path behind all the fast ones keeps those small: with one in each, the scan took 1.1 times as long.
    """
    message = messages[number]
    topic_hash = extend_hash(0, record + message.topic_at, message.topic_size) * 31 + _HASH_SIGN
    message.topic_hash = topic_hash
    message.tags_code = extend_hash(0, record + message.tags_at, message.tags_size)
    for i in range(first_item, item_count):
        item = items[i]
        prefix = topic_hash * 31**2 + _TAGS_PREFIX if item.kind == _TAGS else topic_hash
        item.key_hash = fold_hash(extend_hash(prefix, record + item.key_at, item.key_size))
