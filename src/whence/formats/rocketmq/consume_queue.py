"""ConsumeQueue: where the messages of one queue lie in the CommitLog, in order.

    file := entry[capacity]                                                  big-endian

    entry  at  type  field
            0  i8    physical_offset  of the message
            8  i4    size             of its record
           12  i8    tags_code        hash of its tags (below)

The entry of queue offset q lies at byte 20 * q of all files of the queue together. Entries are valid while
physical_offset >= 0 and size > 0; the first one that is not ends the queue. A queue that does not begin at 0
has fillers before its first entry: offset 0, the largest size there is, code 0.

tags_code is 0 without tags, otherwise Java's hash of the tags, sign-extended. In the delay topic it is the
time of delivery in ms. With ConsumeQueueExt it is the address of an ext unit: its position in all ext files
of the queue together, minus 2**63, which is below every hash.

    ext unit    at  type  field                    batch entry  at  type  field
                 0  i2    size, of the unit                      0  i8    physical_offset
                 2  i8    tags_code                              8  i4    size
                10  i8    store_timestamp_ms                    12  i8    tags_code
                18  i2    bitmap_size                           20  i8    store_timestamp_ms
                20  ...   bitmap                                28  i8    base_offset      first queue offset
                                                                36  i2    message_count    in the batch
                                                                38  i4    compacted_offset -1
                                                                42  i4    reserved         0

A size of -1 says that the rest of an ext file is unused, 0 that nothing was written there yet. No unit takes the last
four bytes of a file. Follows RocketMQ 5.5 ConsumeQueue.java, ConsumeQueueExt.java and BatchConsumeQueue.java.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whence.errors import CorruptError, TruncatedError, UsageError
from whence.formats.buffers import Buffer, pack, struct_of, view_rows
from whence.formats.hashing import java_hash

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_SIZE = ENTRY.itemsize
ENTRY_STRUCT = struct_of(ENTRY)
FILLER = ENTRY_STRUCT.pack(0, 0x7FFFFFFF, 0)
assert ENTRY_SIZE == len(FILLER) == 20

BATCH_ENTRY = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp_ms", ">i8"),
        ("base_offset", ">i8"),
        ("message_count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
BATCH_ENTRY_SIZE = BATCH_ENTRY.itemsize
BATCH_ENTRY_STRUCT = struct_of(BATCH_ENTRY)
assert BATCH_ENTRY_SIZE == 46

EXT_UNIT = np.dtype(
    [("size", ">i2"), ("tags_code", ">i8"), ("store_timestamp_ms", ">i8"), ("bitmap_size", ">i2")],
)
"""An ext unit without a bitmap."""
_EXT_HEAD = struct_of(EXT_UNIT)
EXT_UNIT_SIZE_MIN = EXT_UNIT.itemsize
EXT_UNIT_SIZE_MAX = 32767
EXT_END = -1
EXT_END_DATA = EXT_END.to_bytes(2, "big", signed=True)
EXT_FREE_SIZE = 4  # bytes at the end of an ext file that no unit takes
EXT_ADDRESS_MAX = -(2**31) - 1
"""A tags_code up to this is the address of an ext unit."""
assert EXT_UNIT_SIZE_MIN == 20


def decode_entries(data: Buffer) -> npt.NDArray[np.void]:
    """View ``data`` as entries, without a copy."""
    return view_rows(data, ENTRY, "entry")


def encode_entries(entries: npt.NDArray[np.void]) -> bytes:
    """The bytes of ``entries``, whose fields may be in any byte order."""
    return entries.astype(ENTRY).tobytes()


def decode_batch_entries(data: Buffer) -> npt.NDArray[np.void]:
    """View ``data`` as entries of a BatchConsumeQueue, without a copy."""
    return view_rows(data, BATCH_ENTRY, "batch entry")


def encode_batch_entries(entries: npt.NDArray[np.void]) -> bytes:
    """The bytes of batch entries, whose fields may be in any byte order."""
    return entries.astype(BATCH_ENTRY).tobytes()


def tags_code(tags: str | None) -> int:
    """What an entry keeps of the tags of a message."""
    return java_hash(tags) if tags else 0


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """What did not fit into an entry: a longer code, the store time, and a Bloom filter of consumers."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes

    @property
    def size(self) -> int:
        return EXT_UNIT_SIZE_MIN + len(self.bitmap)


def decode_ext_unit(data: Buffer, position: int = 0) -> tuple[ExtUnit | None, int]:
    """The unit at ``position`` and the position behind it; None where the used part of the file ends."""
    if not 0 <= position <= len(data) - 2:
        raise TruncatedError(f"an ext unit's size needs 2 bytes of {len(data)}", position=position)
    size = int.from_bytes(data[position : position + 2], "big", signed=True)
    if size in (EXT_END, 0):
        return None, len(data)
    if size < EXT_UNIT_SIZE_MIN:
        raise CorruptError(f"ext unit of {size} bytes; the least is {EXT_UNIT_SIZE_MIN}", position=position)
    end = position + size
    if end > len(data):
        raise TruncatedError(f"ext unit has {len(data) - position} of {size} bytes", position=position)
    _, code, store_timestamp_ms, bitmap_size = _EXT_HEAD.unpack_from(data, position)
    bitmap_start = position + EXT_UNIT_SIZE_MIN
    if bitmap_start + bitmap_size != end:
        raise CorruptError(f"bitmap of {bitmap_size} bytes in an ext unit of {size}", position=position + 18)
    return ExtUnit(code, store_timestamp_ms, bytes(data[bitmap_start:end])), end


def encode_ext_unit(unit: ExtUnit) -> bytes:
    """The bytes of ``unit``."""
    if unit.size > EXT_UNIT_SIZE_MAX:
        raise UsageError(f"ext unit of {unit.size} bytes; {EXT_UNIT_SIZE_MAX} fit")
    return pack(_EXT_HEAD, unit.size, unit.tags_code, unit.store_timestamp_ms, len(unit.bitmap)) + unit.bitmap


def is_ext_address(code: int) -> bool:
    """True if a tags_code is the address of an ext unit."""
    return code <= EXT_ADDRESS_MAX


def ext_position(code: int) -> int:
    """The position, among all ext files of the queue, that a tags_code is the address of."""
    return code + 2**63


def ext_address(position: int) -> int:
    """The tags_code that leads to an ext unit at this position among all ext files of the queue."""
    return position - 2**63
