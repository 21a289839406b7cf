"""One stored message: a record of RocketMQ's CommitLog.

    record := head body topic_size topic properties_size properties          big-endian

    head   at  type  field
            0  i4    size                         of the whole record, these bytes included
            4  i4    magic                        version 1 or 2, or a blank (below)
            8  i4    body_crc                     of the body as stored, 31 bits
           12  i4    queue
           16  i4    flag                         opaque, of the application
           20  i8    queue_offset                 0 in prepared and rollback records
           28  i8    physical_offset              where the record itself begins
           36  i4    sys_flag                     see sys_flag.py; two of its bits give the sizes of the hosts
           40  i8    born_timestamp_ms            producer's clock
           48  B     born_host                    8 bytes, or 20 if IPv6
         48+B  i8    store_timestamp_ms           broker's clock, taken under the append lock
         56+B  S     store_host                   8 bytes, or 20 if IPv6
       56+B+S  i4    reconsume_times              how often it was redelivered
       60+B+S  i8    prepared_transaction_offset  physical offset of the half message
       68+B+S  i4    body_size

    topic_size       i1 in version 1, i2 in version 2
    properties_size  i2

    blank := i4 size, i4 magic, size - 8 bytes of anything

A blank fills a CommitLog file whose next record did not fit. A record is written only if 8 bytes stay free
behind it, so a blank always fits. Version 2 exists for topics of more than 127 bytes. With the record CRC
switched on, the last 20 bytes of the properties are ``__CRC32# 01 dddddddddd 02``: the crc32 of all bytes
before them, its least significant digit first. Follows RocketMQ 5.5 CommitLog.java, MessageExtEncoder.java and
MessageDecoder.java.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from whence.errors import CorruptError, TruncatedError, UsageError
from whence.formats.buffers import Buffer, pack, struct_of
from whence.formats.checksums import crc32
from whence.formats.hashing import decode_java_utf8
from whence.formats.rocketmq.body import decompress_body
from whence.formats.rocketmq.host import IPV4_SIZE, IPV6_SIZE, Host, decode_host
from whence.formats.rocketmq.properties import KEYS, TAGS, UNIQUE_ID, decode_properties, split_keys
from whence.formats.rocketmq.sys_flag import HOSTS_MASK, TRANSACTION_MASK, SysFlag, Transaction

MAGIC_V1 = -626843481  # 0xDAA320A7 in RocketMQ's CommitLog
MAGIC_V2 = -626843477  # 0xDAA320AB in RocketMQ's MessageDecoder
MAGIC_BLANK = -875286124  # 0xCBD43194 in RocketMQ's CommitLog
_VERSIONS = {MAGIC_V1: 1, MAGIC_V2: 2}
BLANK_SIZE_MIN = 8
TOPIC_SIZE_MAX_V1 = 127  # its size is an i1

MESSAGE_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp_ms", ">i8"),
    ]
)
"""The part of the head that lies alike in every record; ``whole_head`` gives the rest."""
assert MESSAGE_HEAD.itemsize == 48


def whole_head(sys_flag: int) -> np.dtype[np.void]:
    """The head up to the body, of a record whose hosts are as ``sys_flag`` says."""
    born_host_size = IPV6_SIZE if sys_flag & SysFlag.BORN_HOST_IPV6 else IPV4_SIZE
    store_host_size = IPV6_SIZE if sys_flag & SysFlag.STORE_HOST_IPV6 else IPV4_SIZE
    return np.dtype(
        [
            *((name, MESSAGE_HEAD[name]) for name in MESSAGE_HEAD.names or ()),
            ("born_host_data", f"V{born_host_size}"),
            ("store_timestamp_ms", ">i8"),
            ("store_host_data", f"V{store_host_size}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


class MessageHead(NamedTuple):
    """The fields of ``whole_head``, of one record."""

    size: int
    magic: int
    body_crc: int
    queue: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host_data: bytes
    store_timestamp_ms: int
    store_host_data: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_size: int


HEADS = {bits: struct_of(whole_head(bits)) for bits in (0x00, 0x10, 0x20, 0x30)}
"""The layout of ``MessageHead``, by the bits of sysFlag that tell what the hosts are (HOSTS_MASK)."""
_IPV4_HEAD = HEADS[0]
_START = struct.Struct(">ii")
_I2 = struct.Struct(">h")
_TOPIC_SIZES = {1: struct.Struct(">b"), 2: _I2}
RECORD_SIZE_MIN = _IPV4_HEAD.size + 1 + _I2.size
assert whole_head(0).names == MessageHead._fields
assert RECORD_SIZE_MIN == 91

_RECORD_CRC = re.compile(rb"__CRC32#\x01([0-9]{10})\x02")
RECORD_CRC_SIZE = 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One message as the CommitLog keeps it. A value: it cannot be changed, and equals what is stored alike.

    ``decode_message`` and ``new_message`` make it. What takes time to make of the stored bytes (properties,
    body, hosts) is made when it is asked for; properties and body are then kept.
    """

    __slots__ = ("_body", "_head", "_properties", "_properties_data", "_stored_body", "_topic")

    # A frozen dataclass of these 18 fields takes 2.6 us to make, more than all of the decoding does.
    def __init__(self, head: MessageHead, topic: str, stored_body: bytes, properties_data: bytes) -> None:
        self._head = head
        self._topic = topic
        self._stored_body = stored_body
        self._properties_data = properties_data
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    @property
    def head(self) -> MessageHead:
        """The fields before the body, as they lie on disk."""
        return self._head

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def queue(self) -> int:
        return self._head.queue

    @property
    def queue_offset(self) -> int:
        return self._head.queue_offset

    @property
    def physical_offset(self) -> int:
        """Where the record says that it begins. Whoever read it knows where it does."""
        return self._head.physical_offset

    @property
    def size(self) -> int:
        """Of the whole record."""
        return self._head.size

    @property
    def version(self) -> int:
        """Of the record: 2 if the topic may be longer than 127 bytes, otherwise 1."""
        return _VERSIONS[self._head.magic]

    @property
    def flag(self) -> int:
        return self._head.flag

    @property
    def sys_flag(self) -> int:
        """As stored; ``SysFlag``, ``Transaction`` and ``Compression`` give its bits names."""
        return self._head.sys_flag

    @property
    def born_timestamp_ms(self) -> int:
        return self._head.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        return self._head.store_timestamp_ms

    @property
    def reconsume_times(self) -> int:
        return self._head.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        return self._head.prepared_transaction_offset

    @property
    def body_crc(self) -> int:
        return self._head.body_crc

    @property
    def stored_body(self) -> bytes:
        """The body as it lies on disk, maybe compressed."""
        return self._stored_body

    @property
    def body_size(self) -> int:
        """Of the body as it lies on disk."""
        return self._head.body_size

    @property
    def properties_data(self) -> bytes:
        """The properties as they lie on disk."""
        return self._properties_data

    @property
    def born_host(self) -> Host:
        return decode_host(self._head.born_host_data)

    @property
    def store_host(self) -> Host:
        return decode_host(self._head.store_host_data)

    @property
    def born_time(self) -> datetime:
        return _time(self._head.born_timestamp_ms)

    @property
    def store_time(self) -> datetime:
        return _time(self._head.store_timestamp_ms)

    @property
    def body(self) -> bytes:
        """The body as the producer wrote it. ``decompress_body`` takes another limit than 64 MiB."""
        if self._body is None:
            self._body = decompress_body(self._stored_body, self._head.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """A dict of your own."""
        return self._parsed_properties().copy()

    @property
    def index_keys(self) -> tuple[str, ...]:
        """The keys that the broker puts into the index, in its order, repeats kept; none of a rollback."""
        if self.is_rollback:
            return ()
        return tuple(split_keys(self._parsed_properties().get(KEYS, "")))

    @property
    def keys(self) -> tuple[str, ...]:
        """The distinct keys, in order; none of a rollback, which can be found by offset only."""
        return tuple(dict.fromkeys(self.index_keys))

    @property
    def tags(self) -> str | None:
        return self._parsed_properties().get(TAGS)

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave it. The broker does not index it if this is a rollback."""
        return self._parsed_properties().get(UNIQUE_ID)

    @property
    def offset_id(self) -> str:
        """The id that the broker gave it: its store host and its physical offset (see ids.py)."""
        head = self._head
        return f"{head.store_host_data.hex()}{head.physical_offset & 0xFFFFFFFFFFFFFFFF:016x}".upper()

    @property
    def is_prepared(self) -> bool:
        return self._head.sys_flag & TRANSACTION_MASK == Transaction.PREPARED

    @property
    def is_rollback(self) -> bool:
        return self._head.sys_flag & TRANSACTION_MASK == Transaction.ROLLBACK

    def _parsed_properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self._properties_data)
        return self._properties

    def _stored(self) -> tuple[MessageHead, str, bytes, bytes]:
        return self._head, self._topic, self._stored_body, self._properties_data

    def __eq__(self, other: object) -> bool:
        return self._stored() == other._stored() if isinstance(other, Message) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._stored())

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, queue={self.queue}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, store_timestamp_ms={self.store_timestamp_ms}, "
            f"keys={self.keys!r}, tags={self.tags!r}, size={self.size})"
        )


def decode_start(data: Buffer, position: int = 0) -> tuple[int, int]:
    """Size and magic of what begins at ``position``: a record, a blank, or anything else."""
    if not 0 <= position <= len(data) - _START.size:
        raise TruncatedError(f"a record's size and magic need 8 bytes of {len(data)}", position=position)
    size, magic = _START.unpack_from(data, position)
    return size, magic


def decode_blank(data: Buffer, position: int = 0) -> int:
    """The size of the blank at ``position``. Its bytes behind the magic need not be there."""
    size, magic = decode_start(data, position)
    if magic != MAGIC_BLANK:
        raise CorruptError(f"magic {magic & 0xFFFFFFFF:#010x} is not that of a blank", position=position + 4)
    if size < BLANK_SIZE_MIN:
        raise CorruptError(f"blank of {size} bytes; the least is {BLANK_SIZE_MIN}", position=position)
    return size


def decode_message(data: Buffer, position: int = 0) -> tuple[Message, int]:
    """The message at ``position`` and the position behind it.

    All sizes are checked against each other, so that a message comes back only if its fields add up. Whether it
    is the right one is not: ``verify_message`` looks at the checksums, the caller at the physical offset.
    """
    layout = _IPV4_HEAD
    try:
        head = MessageHead._make(layout.unpack_from(data, position))
        if head.sys_flag & HOSTS_MASK:
            layout = HEADS[head.sys_flag & HOSTS_MASK]
            head = MessageHead._make(layout.unpack_from(data, position))
    except (struct.error, OverflowError):
        raise _no_record(data, position) from None
    size, magic, body_size = head.size, head.magic, head.body_size
    end = position + size
    if magic not in _VERSIONS or size < RECORD_SIZE_MIN or position < 0 or end > len(data):
        raise _no_record(data, position)

    body_start = position + layout.size
    body_end = body_start + body_size
    if body_size < 0 or body_end > end - 3:
        raise CorruptError(f"body of {body_size} bytes in a record of {size}", position=body_start - 4)
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_size = data[body_end]
        if topic_size > 127:
            topic_size -= 256
    else:
        topic_start = body_end + 2
        (topic_size,) = _I2.unpack_from(data, body_end)
    topic_end = topic_start + topic_size
    if topic_size < 0 or topic_end > end - 2:
        raise CorruptError(f"topic of {topic_size} bytes in a record of {size}", position=body_end)
    (properties_size,) = _I2.unpack_from(data, topic_end)
    properties_start = topic_end + 2
    if properties_size < 0 or properties_start + properties_size != end:
        raise CorruptError(
            f"properties of {properties_size} bytes where {end - properties_start} are left of the record",
            position=topic_end,
        )
    topic = decode_java_utf8(data[topic_start:topic_end])
    return Message(head, topic, bytes(data[body_start:body_end]), bytes(data[properties_start:end])), end


def _no_record(data: Buffer, position: int) -> CorruptError | TruncatedError:
    """Why the head at ``position`` is none: the bytes are wrong, or there are too few."""
    try:
        size, magic = decode_start(data, position)
    except TruncatedError as error:
        return error
    if magic not in _VERSIONS:
        what = "a blank, not a message" if magic == MAGIC_BLANK else "not that of a message"
        return CorruptError(f"magic {magic & 0xFFFFFFFF:#010x} is {what}", position=position + 4)
    if size < RECORD_SIZE_MIN:
        return CorruptError(f"record of {size} bytes; the least is {RECORD_SIZE_MIN}", position=position)
    if position + size > len(data):
        return TruncatedError(f"record has {len(data) - position} of {size} bytes", position=position)
    return CorruptError(f"record of {size} bytes is too short for its hosts", position=position)


def verify_message(data: Buffer, position: int, message: Message) -> None:
    """Check ``message``, decoded from ``data`` at ``position``, against its checksums.

    Those are the CRC of the body (an empty body has none) and, if the properties end in one, the record CRC.
    The body's CRC says nothing about topic and properties.
    """
    crc = crc32(message.stored_body)
    if message.body_size > 0 and crc != message.body_crc:
        raise CorruptError(f"body has CRC {crc}, not the stored {message.body_crc}", position=position + 8)
    record_crc = _RECORD_CRC.fullmatch(message.properties_data[-RECORD_CRC_SIZE:])
    if record_crc is not None:
        covered_end = position + message.size - RECORD_CRC_SIZE
        crc, stored_crc = crc32(data[position:covered_end]), int(record_crc[1][::-1])
        if crc != stored_crc:
            raise CorruptError(f"record has CRC {crc}, not the stored {stored_crc}", position=covered_end)


def record_size(topic_size: int, body_size: int, properties_size: int, sys_flag: int, version: int) -> int:
    """How many bytes a record takes."""
    return HEADS[sys_flag & HOSTS_MASK].size + body_size + version + topic_size + _I2.size + properties_size


def encode_message(message: Message) -> bytes:
    """The record of ``message``: the very bytes that it was decoded from, if its topic is UTF-8."""
    head = message.head
    topic = message.topic.encode("utf-8")
    record = b"".join(
        (
            pack(HEADS[head.sys_flag & HOSTS_MASK], *head),
            message.stored_body,
            pack(_TOPIC_SIZES[message.version], len(topic)),
            topic,
            pack(_I2, len(message.properties_data)),
            message.properties_data,
        )
    )
    if len(record) != message.size:
        raise UsageError(f"the topic of {message!r} was not UTF-8, so it cannot be written again")
    return record


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank; the rest of it can be anything."""
    if size < BLANK_SIZE_MIN:
        raise UsageError(f"a blank takes at least {BLANK_SIZE_MIN} bytes, not {size}")
    return pack(_START, size, MAGIC_BLANK)


def _time(timestamp_ms: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError as error:
        raise CorruptError(f"time {timestamp_ms} ms is beyond the year 9999 or before the year 1") from error
