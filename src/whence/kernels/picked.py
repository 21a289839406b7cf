"""Records at given positions of a CommitLog file, in any order: whether a whole one is there, and what it says.

A record is whole if a scan that looks at checksums would take it (:mod:`whence.kernels.scan`): the same is asked of
it here, in the same order, and a test holds the two equal. The scan walks from one record to the next and says why it
ends; here the positions are given, nearly all are right, and what is wrong with one the plain road tells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whence.formats.rocketmq.host import IPV4_SIZE, IPV6_SIZE
from whence.formats.rocketmq.message import (
    BLANK_SIZE_MIN,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    whole_head,
)
from whence.formats.rocketmq.sys_flag import SysFlag
from whence.kernels import inlined, kernel
from whence.kernels.checksums import crc32
from whence.kernels.hashing import extend_hash, extend_hash_ascii, signed
from whence.kernels.intrinsics import address_of, load_i8, load_i16, load_i32, load_i64, prefetch
from whence.kernels.properties import find_texts, put_texts, record_crc

_BORN_HOST_IPV6 = int(SysFlag.BORN_HOST_IPV6)
_STORE_HOST_IPV6 = int(SysFlag.STORE_HOST_IPV6)
_HEAD = whole_head(0)  # with two IPv4 hosts; an IPv6 host takes IPV6_EXTRA bytes more
_HEAD_SIZE = _HEAD.itemsize
_IPV6_EXTRA = IPV6_SIZE - IPV4_SIZE
assert _HEAD.fields is not None
_BODY_CRC_AT, _QUEUE_AT, _QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT, _SYS_FLAG_AT, _STORE_TIMESTAMP_AT = (
    _HEAD.fields[name][1]
    for name in ("body_crc", "queue", "queue_offset", "physical_offset", "sys_flag", "store_timestamp_ms")
)
_CRC_BITS = 0x7FFFFFFF  # RocketMQ stores a checksum without its highest bit
_HASH_SIGN = ord("#")

# All of a record is read, and the records lie apart. So their first lines, as many as one of usual size has, are
# asked for some records ahead; without this a check takes 4.7 times as long (benchmarks/find_many.py).
_LINES = 10
_LINE = 64
_AHEAD = 8


class Place(NamedTuple):
    """Where the parts of a whole record lie, as addresses; ``size`` is 0 if none is there."""

    size: int
    sys_flag: int
    queue: int
    queue_offset: int
    store_timestamp_ms: int
    topic_at: int
    topic_size: int
    properties_at: int


@inlined
def ask_for_record(record: int) -> None:
    """Have the memory bring a record, which is looked at some turns later."""
    for line in range(_LINES):
        prefetch(record + line * _LINE)


@inlined
def find_record(data_at: int, position: int, end: int, physical_offset: int) -> Place:
    """The record at this position of the data, which ends at position ``end``, if it says that this is its offset.

    The order of the tests keeps all reads inside the data: see the scan.
    """
    none = Place(0, 0, 0, 0, 0, 0, 0, 0)
    left = end - position
    if left < BLANK_SIZE_MIN or position < 0:
        return none
    record = data_at + position
    size = load_i32(record)
    magic = load_i32(record + 4)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_SIZE_MIN or size > left:
        return none
    version = 1 if magic == MAGIC_V1 else 2
    sys_flag = load_i32(record + _SYS_FLAG_AT)
    born_extra = _IPV6_EXTRA if sys_flag & _BORN_HOST_IPV6 else 0
    store_extra = _IPV6_EXTRA if sys_flag & _STORE_HOST_IPV6 else 0
    head_size = _HEAD_SIZE + born_extra + store_extra
    room = size - head_size - version - 2  # for body, topic and properties
    if room < 0:
        return none
    body_at = record + head_size
    body_size = load_i32(body_at - 4)
    if body_size < 0 or body_size > room:
        return none
    room -= body_size
    topic_at = body_at + body_size + version
    topic_size = load_i8(topic_at - 1) if version == 1 else load_i16(topic_at - 2)
    if topic_size < 0 or topic_size > room:
        return none
    room -= topic_size
    properties_at = topic_at + topic_size + 2
    properties_size = load_i16(properties_at - 2)
    if properties_size < 0 or properties_size != room or load_i64(record + _PHYSICAL_OFFSET_AT) != physical_offset:
        return none
    if body_size and crc32(body_at, body_size, data_at) & _CRC_BITS != load_i32(record + _BODY_CRC_AT):
        return none
    stored_crc = record_crc(record + size, properties_size)
    if stored_crc >= 0 and crc32(record, size - RECORD_CRC_SIZE, data_at) & _CRC_BITS != stored_crc:
        return none
    return Place(
        size,
        sys_flag,
        load_i32(record + _QUEUE_AT),
        load_i64(record + _QUEUE_OFFSET_AT),
        load_i64(record + _STORE_TIMESTAMP_AT + born_extra),
        topic_at,
        topic_size,
        properties_at,
    )


def scan_records(
    data: NDArray[np.uint8], base_offset: int, positions: NDArray[np.int64], messages: NDArray[np.void]
) -> int:
    """Fill ``messages`` (SCANNED, a row each) with the records that begin at ``positions``, checksums looked at.

    Stops at the first position where no whole record begins; how many rows it filled. ``topic_before`` is 0.
    """
    data = data.view()
    data.flags.writeable = False  # for Numba, read-only bytes are another type: one of the two is compiled
    return int(_scan_picked(data, base_offset, positions, messages))


@kernel
def _scan_picked(data: Any, base_offset: int, positions: Any, messages: Any) -> int:
    data_at = address_of(data)
    data_end = data_at + len(data)
    for i in range(len(positions)):
        ask_for_record(data_at + positions[min(i + _AHEAD, len(positions) - 1)])
        place = find_record(data_at, positions[i], len(data), base_offset + positions[i])
        if place.size == 0:
            return i
        record = data_at + positions[i]
        topic_hash, topic_is_wide = extend_hash_ascii(0, place.topic_at, place.topic_size)
        texts = find_texts(record, place.properties_at, record + place.size, data_end)
        tags_code, _ = extend_hash_ascii(0, texts.tags_at, texts.tags_size)
        message = messages[i]
        message.physical_offset = base_offset + positions[i]
        message.store_timestamp_ms = place.store_timestamp_ms
        message.queue_offset = place.queue_offset
        message.tags_code = signed(tags_code)
        message.size = place.size
        message.queue = place.queue
        message.sys_flag = place.sys_flag
        message.topic_hash = topic_hash * 31 + _HASH_SIGN
        message.topic_at = place.topic_at - record
        message.topic_size = place.topic_size
        put_texts(message, record, texts)
        message.topic_before = 0
        if topic_is_wide or texts.are_wide:
            message.topic_hash = extend_hash(0, place.topic_at, place.topic_size) * 31 + _HASH_SIGN
            message.tags_code = extend_hash(0, texts.tags_at, texts.tags_size)
    return len(positions)
