"""CRC-32 as RocketMQ stores it.

    crc32(data) = CRC-32/IEEE of data, with the top bit cleared

Java keeps the checksum in a signed int and clears the sign bit: 31 bits are left, and the value is never
negative. The checksum of no bytes is 0. Follows RocketMQ 5.5 UtilAll.java.
"""

from __future__ import annotations

import zlib

from whence.formats.buffers import Buffer


def crc32(data: Buffer) -> int:
    """The 31-bit checksum that RocketMQ keeps of a body or a record."""
    return zlib.crc32(data) & 0x7FFFFFFF
