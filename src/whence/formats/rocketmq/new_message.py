"""A message on its way into a store: what the broker works out before it writes the record."""

from __future__ import annotations

from collections.abc import Mapping

from whence.errors import UsageError
from whence.formats.checksums import crc32
from whence.formats.rocketmq.host import IPV6_SIZE, Host, encode_host
from whence.formats.rocketmq.message import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_SIZE,
    TOPIC_SIZE_MAX_V1,
    Message,
    MessageHead,
    encode_message,
    record_size,
)
from whence.formats.rocketmq.properties import RECORD_CRC, VALUE_END, encode_properties
from whence.formats.rocketmq.sys_flag import HOSTS_MASK, SysFlag

_PRODUCER = Host("127.0.0.1", 0)
_BROKER = Host("127.0.0.1", 10911)


def new_message(
    topic: str,
    stored_body: bytes = b"",
    *,
    properties: Mapping[str, str] | bytes = b"",
    queue: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: Host = _PRODUCER,
    store_timestamp_ms: int = 0,
    store_host: Host = _BROKER,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    version: int | None = None,
) -> Message:
    """A message to be stored. Sizes, body CRC and the host bits of ``sys_flag`` are worked out.

    ``properties`` are names and values, or the bytes as they shall lie on disk. ``version`` is 1 if the topic
    fits into it, unless it is given.
    """
    properties_data = properties if isinstance(properties, bytes) else encode_properties(properties)
    born_host_data, store_host_data = encode_host(born_host), encode_host(store_host)
    sys_flag &= ~HOSTS_MASK
    if len(born_host_data) == IPV6_SIZE:
        sys_flag |= SysFlag.BORN_HOST_IPV6
    if len(store_host_data) == IPV6_SIZE:
        sys_flag |= SysFlag.STORE_HOST_IPV6
    try:
        topic_size = len(topic.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(f"topic {topic!r} holds half a character (a lone surrogate)") from error
    if version is None:
        version = 1 if topic_size <= TOPIC_SIZE_MAX_V1 else 2
    head = MessageHead(
        size=record_size(topic_size, len(stored_body), len(properties_data), sys_flag, version),
        magic=MAGIC_V1 if version == 1 else MAGIC_V2,
        body_crc=crc32(stored_body),
        queue=queue,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=int(sys_flag),
        born_timestamp_ms=born_timestamp_ms,
        born_host_data=born_host_data,
        store_timestamp_ms=store_timestamp_ms,
        store_host_data=store_host_data,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_size=len(stored_body),
    )
    return Message(head, topic, stored_body, properties_data)


def add_record_crc(message: Message) -> Message:
    """The same message with the record CRC as its last property, instead of one that it came with.

    All else must be final, offsets and store time included: the CRC covers them.
    """
    properties = message.properties
    if RECORD_CRC in properties:
        del properties[RECORD_CRC]
        properties_data = encode_properties(properties)
    else:
        properties_data = message.properties_data
        if properties_data and not properties_data.endswith(VALUE_END.encode()):
            properties_data += VALUE_END.encode()
    size = message.size - len(message.properties_data) + len(properties_data) + RECORD_CRC_SIZE
    head = message.head._replace(size=size)

    def with_crc(covered: bytes) -> Message:
        return Message(head, message.topic, message.stored_body, properties_data + encode_record_crc(covered))

    return with_crc(encode_message(with_crc(b""))[:-RECORD_CRC_SIZE])


def encode_record_crc(covered: bytes) -> bytes:
    """The property that ends a record: the CRC of all bytes before it."""
    return encode_properties({RECORD_CRC: f"{crc32(covered):010d}"[::-1]})
