"""Cut an index file that is there to its first items, in place.

    items            below the cut they are never written: so a cut that was interrupted can be made again
    slots            lead to items below the cut
    header           counts them
    items behind     are zero, so that nothing can ever lead to what they were

That is also the order of writing. Who reads meanwhile sees chains of the file as it was or as it will be.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import CorruptError, UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.index_file import (
    NO_ITEM,
    IndexHeader,
    decode_slots,
    encode_header,
    encode_slots,
    item_position,
    slot_position,
)
from whence.store.index_file import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOTS_AT_ONCE = 1 << 18  # not all: that would be 20 MB more
ZEROED_AT_ONCE = 1 << 20


def cut_index_file(path: Path, shape: Shape, header: IndexHeader, disk: Disk) -> IndexHeader:
    """Cut a file to the items that ``header`` counts; the header it has now, and all of it is flushed.

    What the header tells of times and offsets is the caller's to know, from the log. Its slot count is not looked at:
    the slots are made anew from the items. CorruptError if those cannot be, because one is lost or was linked
    otherwise: then only the log can tell what the index should be.
    """
    with MappedFile(path) as mapped, disk.open(path) as file:
        slots = linked_slots(mapped, shape, header.next_item)
        header = replace(header, slot_count=int(np.count_nonzero(slots)), item_count=header.next_item)
        rewrite(file, mapped, shape, slots, header)
        file.flush()
    return header


def linked_slots(mapped: MappedFile, shape: Shape, next_item: int) -> NDArray[np.int32]:
    """The slots of the items before ``next_item``, from nothing but those items."""
    from whence.kernels.index_items import link_again

    if next_item > shape.item_capacity:
        raise UsageError(
            f"{mapped.path}: cannot have {next_item - 1} items, it is made for {shape.item_capacity - 1}"
        )
    slots = np.zeros(shape.slot_capacity, np.int32)
    number = link_again(_view(mapped, shape), next_item, slots)
    if number != NO_ITEM:
        what = f"item {number} was lost, or is not linked to the one before it in its chain"
        raise CorruptError(what, position=item_position(shape.slot_capacity, number), path=mapped.path)
    return slots


def counted_slots(mapped: MappedFile, shape: Shape, next_item: int) -> NDArray[np.int32]:
    """The slots as the file has them, none of which leads to an item at or above ``next_item``.

    A writer that ended between two steps leaves slots that do. They lead to the older part of their chains here; if
    that cannot be found, all slots are made anew.
    """
    from whence.kernels.index_items import ALL_WALKED, walk_heads_back

    view = _view(mapped, shape)
    slots = decode_slots(mapped.data[slot_position(0) : slot_position(shape.slot_capacity)]).astype(np.int32)
    if walk_heads_back(view, shape.item_capacity, next_item, slots) != ALL_WALKED:
        return linked_slots(mapped, shape, next_item)
    return slots


def _view(mapped: MappedFile, shape: Shape) -> NDArray[np.uint8]:
    from whence.kernels.chains import file_view

    if mapped.size != shape.file_size:
        what = f"has {mapped.size} bytes; with {shape.slot_capacity} slots and {shape.item_capacity} items it has"
        raise CorruptError(f"{what} {shape.file_size}", path=mapped.path)
    return file_view(mapped.data, shape.slot_capacity, shape.item_capacity)


def rewrite(file: DiskFile, mapped: MappedFile, shape: Shape, slots: NDArray[np.int32], header: IndexHeader) -> None:
    """Write what of slots and header is not so already, and zeros over the items that ``header`` does not count."""

    def write(data: bytes, position: int) -> None:
        # A copy is compared in no time; a memoryview is compared byte by byte, each of them a Python object.
        if bytes(mapped.data[position : position + len(data)]) != data:
            file.write(data, position)

    for first in range(0, len(slots), SLOTS_AT_ONCE):
        write(encode_slots(slots[first : first + SLOTS_AT_ONCE]), slot_position(first))
    write(encode_header(header), 0)
    for position, size in mapped.data_pieces(item_position(shape.slot_capacity, header.next_item), ZEROED_AT_ONCE):
        write(bytes(size), position)


def write_slots(file: DiskFile, slots: NDArray[np.int32]) -> None:
    """Write all slots."""
    for first in range(0, len(slots), SLOTS_AT_ONCE):
        file.write(encode_slots(slots[first : first + SLOTS_AT_ONCE]), slot_position(first))
