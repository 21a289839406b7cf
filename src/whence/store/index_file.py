"""IndexFile: one hash index file, for reading.

RocketMQ stores neither the slot count nor the item count of a file. :func:`infer_shape` finds them in the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whence.errors import CorruptError, NotFoundError, TruncatedError
from whence.files.map_pool import MapPool
from whence.files.mapped_file import MappedFile
from whence.formats.buffers import Buffer
from whence.formats.rocketmq.index_file import (
    DEFAULT_ITEM_CAPACITY,
    DEFAULT_SLOT_CAPACITY,
    HEADER_SIZE,
    ITEM_SIZE,
    ITEM_STRUCT,
    NO_ITEM,
    SLOT_SIZE,
    SLOT_STRUCT,
    IndexHeader,
    decode_header,
    decode_slots,
    file_size,
    item_position,
    slot_position,
)

NEWEST_CHECKED = 16  # items whose slots must lead to them before a shape is believed
SLOTS_COUNTED_MAX = 100_000
PLACES_AT_ONCE = 1 << 20
PLACES_TRIED = 4096  # an honest file has a handful; a hostile one may have millions
STABLE_TRIES = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """How many slots and items a file was made for. Item 0 is never used, so one item less fits in."""

    slot_capacity: int
    item_capacity: int

    @property
    def file_size(self) -> int:
        return file_size(self.slot_capacity, self.item_capacity)


DEFAULT_SHAPE = Shape(DEFAULT_SLOT_CAPACITY, DEFAULT_ITEM_CAPACITY)


class IndexFile:
    """One file of ``index/``; a broker may be putting items into it. It is this file, whatever has its name later.

    A reader takes the header first and believes no item at or above its count. A slot may already lead to such
    items, since a writer sets slots before the count: they are followed down to the older part of the chain.
    """

    def __init__(self, path: Path, maps: MapPool | None = None) -> None:
        self.path = path
        self._maps = MapPool() if maps is None else maps
        self.key = object()  # of its map in the pool: not the file itself, so that both go when nobody has it
        self._inode = -1
        self._seen_count = 0
        self.size = self._map().size
        self.shape: Shape | None = None

    def _map(self) -> MappedFile:
        mapped = self._maps.get(self.key)
        return self._maps.put(self.key, self._opened()) if mapped is None else mapped

    def _opened(self) -> MappedFile:
        """The file, mapped; NotFoundError also if another one has its name now.

        One sees that by the inode or, since a number is given again, by the count: that of a file never falls.
        """
        mapped = MappedFile(self.path)
        if self._inode == -1:
            self._inode = mapped.inode
        elif mapped.inode != self._inode or _item_count(mapped.data) < self._seen_count:
            raise NotFoundError(f"{self.path}: another file has taken its place")
        return mapped

    @property
    def data(self) -> memoryview:
        """The file's bytes, as long as when it was opened."""
        return self._map().data[: self.size]

    def header_bytes(self) -> bytes:
        """The header's 40 bytes, read twice alike, so that no field is half of one put and half of the next."""
        data = self.data
        before = bytes(data[:HEADER_SIZE])
        for _ in range(STABLE_TRIES):
            again = bytes(data[:HEADER_SIZE])
            if again == before:
                break
            before = again
        if len(before) < HEADER_SIZE:
            raise TruncatedError(
                f"the file has {self.size} bytes, the header alone takes {HEADER_SIZE}",
                position=self.size,
                path=self.path,
            )
        self._seen_count = _item_count(before)
        return before

    def header(self) -> IndexHeader:
        return decode_header(self.header_bytes())

    def resolve_shape(self, hints: Iterable[Shape]) -> Shape | None:
        """The file's shape, looked for once; None if no counts make sense of the bytes."""
        if self.shape is None:
            self.shape = infer_shape(self.data, self.header(), hints)
        return self.shape

    def fits(self, shape: Shape) -> bool:
        """Whether these counts make sense of the file's bytes."""
        return _fits(self.data, self.header(), shape)

    def item(self, number: int) -> tuple[int, int]:
        """Hash and physical offset of an item."""
        key_hash, physical_offset, _, _ = ITEM_STRUCT.unpack_from(self.data, self.item_position(number))
        return key_hash, physical_offset

    def time_diff_s(self, number: int) -> int:
        """The time that an item tells of its message."""
        return int(ITEM_STRUCT.unpack_from(self.data, self.item_position(number))[2])

    def item_position(self, number: int) -> int:
        """The byte at which an item begins."""
        assert self.shape is not None
        return item_position(self.shape.slot_capacity, number)

    def walk(self, key_hash: int) -> Iterator[tuple[int, int, int]]:
        """Number, hash and physical offset of every item in the chain of this hash's slot, newest first.

        The slot's items of other hashes come too; the caller compares.

        What cannot be is a CorruptError that names its byte; the rules are those of ``kernels/chains.py``, which
        walks many chains at once. Numbers along a chain only fall, so a walk always ends.
        """
        shape = self.shape
        assert shape is not None
        data = self.data
        slot = key_hash % shape.slot_capacity
        at = slot_position(slot)
        number = SLOT_STRUCT.unpack_from(data, at)[0]
        if number < 0 or number >= shape.item_capacity:
            what = f"slot {slot} leads to item {number}, but items are 1 to {shape.item_capacity - 1}"
            raise CorruptError(what, position=at, path=self.path)
        first_item = item_position(shape.slot_capacity, 0)
        while number != NO_ITEM:
            at = first_item + ITEM_SIZE * number
            item_hash, physical_offset, time_diff_s, previous = ITEM_STRUCT.unpack_from(data, at)
            if item_hash < 0 or item_hash % shape.slot_capacity != slot:
                what = f"item {number} has hash {item_hash}, which is not of the slot that leads to it"
                raise CorruptError(what, position=at, path=self.path)
            if not (item_hash or physical_offset or time_diff_s or previous):
                what = f"item {number} is all zero, but a chain leads to it"
                raise CorruptError(what, position=at, path=self.path)
            yield number, item_hash, physical_offset
            if previous < 0 or previous >= number:
                what = f"item {number} points to item {previous}, which is not older"
                raise CorruptError(what, position=at + 16, path=self.path)
            number = previous


def _item_count(data: Buffer) -> int:
    """What a header counts; 0 where there is none."""
    return decode_header(data).item_count if len(data) >= HEADER_SIZE else 0


def infer_shape(data: memoryview, header: IndexHeader, hints: Iterable[Shape]) -> Shape | None:
    """The counts that make sense of a file's bytes: of a full file, a sibling, RocketMQ's default, or by search.

    The search uses that the last item holds the header's end offset, and that file length, slots and items leave
    one unknown: ``length = 40 + 4 * slots + 20 * items``, so the last item can only stand every 20 bytes.
    """
    count, size = header.item_count, len(data)
    if count <= 1 or size < file_size(1, count):
        return None
    full = Shape((size - HEADER_SIZE - ITEM_SIZE * count) // SLOT_SIZE, count)
    for shape in (full, *hints, DEFAULT_SHAPE):
        if _fits(data, header, shape):
            return shape
    tried = 0
    slot_bytes = (size - HEADER_SIZE) % ITEM_SIZE or ITEM_SIZE
    slot_bytes_max = size - HEADER_SIZE - ITEM_SIZE * count
    while slot_bytes <= slot_bytes_max and tried < PLACES_TRIED:
        places = min((slot_bytes_max - slot_bytes) // ITEM_SIZE + 1, PLACES_AT_ONCE)
        last_offset_at = HEADER_SIZE + slot_bytes + ITEM_SIZE * (count - 1) + 4
        last_offsets = np.ndarray((places,), ">i8", data, last_offset_at, (ITEM_SIZE,))
        for place in np.flatnonzero(last_offsets == header.end_physical_offset)[:PLACES_TRIED].tolist():
            slots = (slot_bytes + ITEM_SIZE * place) // SLOT_SIZE
            shape = Shape(slots, (size - HEADER_SIZE - SLOT_SIZE * slots) // ITEM_SIZE)
            if _fits(data, header, shape):
                return shape
            tried += 1
        slot_bytes += ITEM_SIZE * places
    return None


def _fits(data: memoryview, header: IndexHeader, shape: Shape) -> bool:
    """Whether these counts make sense of the bytes.

    Item 0 is empty, the first and the last item hold the header's begin and end offset, the newest items are the
    heads of their slots, and no fewer slots are in use than the header says.
    """
    slots, newest = shape.slot_capacity, header.item_count - 1
    if slots < 1 or newest < 1 or newest >= shape.item_capacity or shape.file_size != len(data):
        return False
    if any(data[item_position(slots, 0) : item_position(slots, 1)]):
        return False
    _, begin_offset, _, previous = ITEM_STRUCT.unpack_from(data, item_position(slots, 1))
    _, end_offset, _, _ = ITEM_STRUCT.unpack_from(data, item_position(slots, newest))
    if (begin_offset, end_offset) != (
        header.begin_physical_offset,
        header.end_physical_offset,
    ) or previous != NO_ITEM:
        return False
    seen: set[int] = set()
    for number in range(newest, max(0, newest - NEWEST_CHECKED), -1):
        item = ITEM_STRUCT.unpack_from(data, item_position(slots, number))
        key_hash, _, _, previous = item
        if key_hash < 0 or not 0 <= previous < number or not any(item):
            return False
        head = SLOT_STRUCT.unpack_from(data, slot_position(key_hash % slots))[0]
        # A head above the newest item belongs to a put that the header does not count yet.
        if head < number or (head != number and head <= newest and head not in seen):
            return False
        seen.add(number)
    if slots > SLOTS_COUNTED_MAX:
        return True  # so many slots, and the checks above, leave no room for chance; counting them takes time
    used = int(np.count_nonzero(decode_slots(data[HEADER_SIZE : slot_position(slots)])))
    return used >= header.slot_count or header.slot_count == newest  # which before 4.7.1 counts every put
