"""RocketMQ index file: message key -> physical offsets.

    file := header slot[slot_capacity] item[item_capacity]                   big-endian

    header at  type  field
            0  i8    begin_timestamp_ms     store time of the first item
            8  i8    end_timestamp_ms       store time of the item put last, which need not be the largest
           16  i8    begin_physical_offset  of the first item's message
           24  i8    end_physical_offset    of the message of the item put last
           32  i4    slot_count             slots in use
           36  i4    item_count             number of the next item: one more than there are items

    slot   i4  number of the newest item of this chain; 0 = empty

    item   at  type  field
            0  i4    key_hash               Java hash of "topic#key", made non-negative
            4  i8    physical_offset        of the message in the CommitLog
           12  i4    time_diff_s            whole seconds after header.begin_timestamp_ms
           16  i4    previous_item          next older item of the chain; 0 = end

Item 0 is never written, so that 0 can mean "none"; a file takes item_capacity - 1 items. The chain of a key
is that of slot ``key_hash % slot_capacity``. A file that was just made is all zero, and its item_count of 0
counts as 1. Neither capacity is stored, and there is no magic and no checksum: a reader must know the shape,
or infer it. A file that follows a full one begins with the end values of that one in its header until its
first item is put, and time_diff_s of that item is counted from the inherited time. Follows RocketMQ 5.5
IndexFile.java and IndexHeader.java.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from whence.errors import TruncatedError
from whence.formats.buffers import Buffer, pack, struct_of, view_rows

HEADER = np.dtype(
    [
        ("begin_timestamp_ms", ">i8"),
        ("end_timestamp_ms", ">i8"),
        ("begin_physical_offset", ">i8"),
        ("end_physical_offset", ">i8"),
        ("slot_count", ">i4"),
        ("item_count", ">i4"),
    ]
)
SLOT = np.dtype(">i4")
ITEM = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_diff_s", ">i4"), ("previous_item", ">i4")])
HEADER_SIZE = HEADER.itemsize
SLOT_SIZE = SLOT.itemsize
ITEM_SIZE = ITEM.itemsize
assert (HEADER_SIZE, SLOT_SIZE, ITEM_SIZE) == (40, 4, 20)

NO_ITEM = 0
FIRST_ITEM = 1
DEFAULT_SLOT_CAPACITY = 5_000_000
DEFAULT_ITEM_CAPACITY = 20_000_000

HEADER_STRUCT = struct_of(HEADER)
SLOT_STRUCT = struct.Struct(">i")
ITEM_STRUCT = struct_of(ITEM)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes. ``item_count`` is as stored: the number of the next item, or 0 in a new file."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_count: int
    item_count: int

    @property
    def next_item(self) -> int:
        """The number that the next item gets; items 1 to ``next_item - 1`` are there."""
        return max(self.item_count, FIRST_ITEM)

    def has_grown_from(self, noted: IndexHeader) -> bool:
        """Whether a file that had the header ``noted`` can have this one now: all of it is there, and maybe more."""
        return noted.next_item == FIRST_ITEM or (
            self.item_count >= noted.item_count
            and self.end_physical_offset >= noted.end_physical_offset
            and (self.begin_timestamp_ms, self.begin_physical_offset)
            == (noted.begin_timestamp_ms, noted.begin_physical_offset)
        )


NO_HEADER = IndexHeader(0, 0, 0, 0, 0, 0)
"""That of a file into which nothing was written yet."""


def decode_header(data: Buffer) -> IndexHeader:
    """The header at the start of ``data``. Any 40 bytes are one: what they say is for the caller to check."""
    if len(data) < HEADER_SIZE:
        raise TruncatedError(f"header has {len(data)} of {HEADER_SIZE} bytes", position=0)
    return IndexHeader(*HEADER_STRUCT.unpack_from(data))


def encode_header(header: IndexHeader) -> bytes:
    """The 40 bytes of ``header``."""
    return pack(HEADER_STRUCT, *astuple(header))


def decode_items(data: Buffer) -> npt.NDArray[np.void]:
    """View ``data`` as items, without a copy."""
    return view_rows(data, ITEM, "item")


def decode_slots(data: Buffer) -> npt.NDArray[np.int32]:
    """View ``data`` as slots, without a copy."""
    return view_rows(data, SLOT, "slot")


def encode_items(items: npt.NDArray[np.void]) -> bytes:
    """The bytes of ``items``, whose fields may be in any byte order."""
    return items.astype(ITEM).tobytes()


def encode_slots(slots: npt.NDArray[np.integer]) -> bytes:
    """The bytes of ``slots``, which may be in any byte order."""
    return slots.astype(SLOT).tobytes()


def file_size(slot_capacity: int, item_capacity: int) -> int:
    """The size of an index file of this shape."""
    return item_position(slot_capacity, item_capacity)


def slot_position(slot: int) -> int:
    """Where a slot lies in the file."""
    return HEADER_SIZE + SLOT_SIZE * slot


def item_position(slot_capacity: int, number: int) -> int:
    """Where an item lies in a file with ``slot_capacity`` slots."""
    return HEADER_SIZE + SLOT_SIZE * slot_capacity + ITEM_SIZE * number
