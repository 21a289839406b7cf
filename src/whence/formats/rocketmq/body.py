"""The body of a message: compressed, or a batch of messages.

Compressed bodies are a ZLIB stream, LZ4 frames or ZSTD frames; ``sys_flag.py`` says which. The size of the
whole is not stored, so decompression stops at a limit that the caller sets.

The body of a batch is what a client sends for many messages at once, and what an inner batch keeps on disk:

    batch := item*                                                    big-endian

    item   at  type  field
            0  i4    size            of the whole item: 22 + body_size + properties_size
            4  i4    magic           0
            8  i4    body_crc        0
           12  i4    flag            opaque, of the application
           16  i4    body_size
           20  ...   body
               i2    properties_size
               ...   properties

Follows RocketMQ 5.5 MessageDecoder.java and the compressors in org.apache.rocketmq.common.compression.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from whence.errors import CorruptError, TruncatedError
from whence.formats.buffers import pack
from whence.formats.rocketmq.sys_flag import Compression, compression_of

BODY_SIZE_MAX = 64 * 1024 * 1024  # 16 times what a broker takes by default

# Of what a decompressor is fed it makes all that there is: of 1 KiB up to 32 MiB (ZSTD) or a block of 4 MiB
# (LZ4). Smaller steps take more time: with 256 bytes an LZ4 body takes twice as long.
_STEP_SIZE = 1024

_ITEM_HEAD = struct.Struct(">5i")
_I2 = struct.Struct(">h")
_ITEM_SIZE_MIN = _ITEM_HEAD.size + _I2.size
assert _ITEM_SIZE_MIN == 22


def compress_body(data: bytes, compression: Compression) -> bytes:
    """The body as a producer sends it. Its sysFlag needs ``compression << 8 | SysFlag.COMPRESSED``."""
    match compression:
        case Compression.ZLIB:
            return zlib.compress(data, level=5)  # a producer's default
        case Compression.LZ4:
            import lz4.frame

            return bytes(lz4.frame.compress(data))
        case Compression.ZSTD:
            import zstandard

            return zstandard.compress(data)


def decompress_body(data: bytes, sys_flag: int, body_size_max: int = BODY_SIZE_MAX) -> bytes:
    """The body as the producer wrote it. A body that is not compressed is given back as it is.

    However far the data would expand, no more is made of them than ``body_size_max`` and one step.
    """
    compression = compression_of(sys_flag)
    if compression is None or not data:
        return data
    what = f"{compression.name} body of {len(data)} bytes"
    new_stream, stream_error = _decompressor(compression)
    parts = []
    position = size = 0
    try:
        while position < len(data) and size <= body_size_max:
            stream = new_stream()
            while position < len(data) and size <= body_size_max and not stream.eof:
                step = data[position : position + _STEP_SIZE]
                parts.append(stream.decompress(step))
                size += len(parts[-1])
                position += len(step) - len(stream.unused_data or b"")
            # RocketMQ reads LZ4 and ZSTD frame after frame, but ignores what follows a ZLIB stream.
            if compression is Compression.ZLIB:
                break
    except stream_error as error:
        raise CorruptError(f"{what}: {error}") from error
    if size > body_size_max:
        raise CorruptError(f"{what} expands to more than {body_size_max}")
    if not stream.eof:
        raise CorruptError(f"{what} ends too soon")
    return b"".join(parts)


class _Decompressor(Protocol):
    """What the three libraries have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _decompressor(compression: Compression) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """What makes a decompressor, and what it raises."""
    match compression:
        case Compression.ZLIB:
            return zlib.decompressobj, zlib.error
        case Compression.LZ4:
            from lz4.frame import LZ4FrameDecompressor

            return LZ4FrameDecompressor, RuntimeError
        case Compression.ZSTD:
            from zstandard import ZstdDecompressor, ZstdError

            return ZstdDecompressor().decompressobj, ZstdError


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One message of a batch, as the client sends it. The batch gives it topic, queue and time."""

    flag: int
    body: bytes
    properties_data: bytes

    @property
    def size(self) -> int:
        return _ITEM_SIZE_MIN + len(self.body) + len(self.properties_data)


def decode_batch(data: bytes) -> list[BatchItem]:
    """The messages in the (decompressed) body of a batch."""
    items = []
    position = 0
    while position < len(data):
        item, position = _decode_item(data, position)
        items.append(item)
    return items


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch."""
    return b"".join(
        pack(_ITEM_HEAD, item.size, 0, 0, item.flag, len(item.body))
        + item.body
        + pack(_I2, len(item.properties_data))
        + item.properties_data
        for item in items
    )


def _decode_item(data: bytes, position: int) -> tuple[BatchItem, int]:
    if len(data) - position < _ITEM_SIZE_MIN:
        raise TruncatedError(f"{len(data) - position} bytes are left of a batch item", position=position)
    size, _magic, _crc, flag, body_size = _ITEM_HEAD.unpack_from(data, position)
    end = position + size
    if size < _ITEM_SIZE_MIN:
        raise CorruptError(f"batch item has size {size}; the least is {_ITEM_SIZE_MIN}", position=position)
    if end > len(data):
        raise TruncatedError(f"batch item has {len(data) - position} of {size} bytes", position=position)
    body_start = position + _ITEM_HEAD.size
    body_end = body_start + body_size
    if not body_start <= body_end <= end - _I2.size:
        raise CorruptError(f"body of {body_size} bytes in a batch item of {size}", position=body_start - 4)
    properties_start = body_end + _I2.size
    (properties_size,) = _I2.unpack_from(data, body_end)
    if properties_size < 0 or properties_start + properties_size != end:
        raise CorruptError(
            f"properties of {properties_size} bytes where {end - properties_start} are left of the item",
            position=body_end,
        )
    return BatchItem(flag, bytes(data[body_start:body_end]), bytes(data[properties_start:end])), end
