"""Message ids, both kinds: the one that the broker gives, and the one that the producer gives.

    offset id := host, i8 physical_offset                                    big-endian, upper-case hex
    unique id := address, u2 pid, i4 loader_hash, u4 time_ms_of_month, u2 counter

    host     of the broker: 4 or 16 bytes address, i4 port
    address  of the producer: 4 or 16 bytes

Both have 32 digits with an IPv4 address and 56 with an IPv6 address, and nothing tells one kind from the
other: any unique id can be read as an offset id. time_ms_of_month counts from the first of the month, at
midnight in the producer's zone, so an id names a moment in every month. Follows RocketMQ 5.5
MessageDecoder.java and MessageClientIDSetter.java.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from whence.errors import CorruptError
from whence.formats.buffers import pack
from whence.formats.rocketmq.host import Host, decode_address, decode_host, encode_address, encode_host

IPV4_ID_SIZE = 32
IPV6_ID_SIZE = 56

_OFFSET = struct.Struct(">q")
_UNIQUE_TAIL = struct.Struct(">HiIH")
_HEX = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


@dataclass(frozen=True, slots=True)
class UniqueId:
    """What a producer puts into the id of a message."""

    address: str
    pid: int
    loader_hash: int
    time_ms_of_month: int
    counter: int


def encode_offset_id(host: Host, physical_offset: int) -> str:
    """The id of the message that ``host`` stored at ``physical_offset``."""
    return (encode_host(host) + pack(_OFFSET, physical_offset)).hex().upper()


def decode_offset_id(text: str) -> tuple[Host, int]:
    """Host and physical offset in an offset id, in either case of letters."""
    data = _decode_hex(text)
    (physical_offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
    return decode_host(data[: -_OFFSET.size]), physical_offset


def encode_unique_id(unique_id: UniqueId) -> str:
    """The text of ``unique_id``."""
    tail = unique_id.pid, unique_id.loader_hash, unique_id.time_ms_of_month, unique_id.counter
    return (encode_address(unique_id.address) + pack(_UNIQUE_TAIL, *tail)).hex().upper()


def decode_unique_id(text: str) -> UniqueId:
    """What is in a unique id. Ids that a producer made up itself may be any text, and have no parts."""
    data = _decode_hex(text)
    address, tail = data[: -_UNIQUE_TAIL.size], data[-_UNIQUE_TAIL.size :]
    return UniqueId(decode_address(address), *_UNIQUE_TAIL.unpack(tail))


def _decode_hex(text: str) -> bytes:
    if _HEX.fullmatch(text) is None:
        raise CorruptError(f"{text!r} is not a message id of {IPV4_ID_SIZE} or {IPV6_ID_SIZE} hex digits")
    return bytes.fromhex(text)
