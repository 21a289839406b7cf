"""The sysFlag of a message: what the broker must know of it, in one i4.

    bits   mask   meaning
       0   0x001  the body is compressed
       1   0x002  the topic filters by several tags
     2-3   0x00C  transaction: 0 none, 1 prepared, 2 commit, 3 rollback
       4   0x010  the born host is an IPv6 address
       5   0x020  the store host is an IPv6 address
       6   0x040  consumers unwrap the body: it is a batch
       7   0x080  inner batch: one record for many messages
    8-10   0x700  compression of the body: 1 LZ4 frame, 2 ZSTD, 0 or 3 ZLIB

The compression bits count only while bit 0 is set; 0 comes from before there was a choice. Follows RocketMQ
5.5 MessageSysFlag.java and CompressionType.java.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from whence.errors import UnsupportedError


class SysFlag(IntFlag):
    """Bits of sysFlag that stand alone; see ``Transaction`` and ``Compression`` for the others."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20
    UNWRAP = 0x40
    INNER_BATCH = 0x80


class Transaction(IntEnum):
    """What a message is to its transaction; the values are the bits of sysFlag in their place."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """How a body is compressed; the values are bits 8 to 10 of sysFlag, moved down."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


TRANSACTION_MASK = 0xC
COMPRESSION_MASK = 0x700
HOSTS_MASK = 0x30


def compression_of(sys_flag: int) -> Compression | None:
    """How the body is compressed, or None if it is not."""
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    number = (sys_flag & COMPRESSION_MASK) >> 8
    if number > Compression.ZLIB:
        raise UnsupportedError(f"compression type {number} of sysFlag {sys_flag:#x} is not LZ4, ZSTD or ZLIB")
    return Compression(number) if number else Compression.ZLIB
