"""Index files that a writer left: which of their slots lead where, and how they are cut to their first items.

A file is cut by making a new one of what is kept, which then takes its place. A reader may have the old one mapped,
and believe all of its items: it goes on reading that, and sees by its name that there is another one now. Nothing of
what is kept is ever written to, so that a cut that was interrupted can be made again.

What a writer left above the header's count no reader counts. That is set right in place: first the slots, which then
lead to items below the count, then zeros take the place of what is behind them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import CorruptError, FullError, StoreError, UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
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

SLOTS_AT_ONCE = 1 << 16  # not all: that would be 20 MB more
ZEROED_AT_ONCE = 1 << 20
COPIED_AT_ONCE = 1 << 20


def cut_index_file(path: Path, shape: Shape, header: IndexHeader, disk: Disk) -> IndexHeader:
    """Put a file of the items that ``header`` counts in the place of this one; the header it has. It is flushed.

    What the header tells of times and offsets is the caller's to know, from the log. Its slot count is not looked at:
    the slots are made anew from the items. CorruptError if those cannot be, because one is lost or was linked
    otherwise: then only the log can tell what the index should be. FullError if there is no room for a copy.
    """
    aside = path.with_name(f".{path.name}.new")
    with MappedFile(path) as mapped:
        slots = linked_slots(mapped, shape, header.next_item)
        header = replace(header, slot_count=int(np.count_nonzero(slots)), item_count=header.next_item)
        first, behind = (item_position(shape.slot_capacity, number) for number in (FIRST_ITEM, header.next_item))
        disk.remove(aside)
        try:
            file = disk.create(aside, shape.file_size, reserve=True)
        except StoreError as error:
            raise FullError(f"{path}: cannot be cut: {error}") from error
        with file:
            for position in range(first, behind, COPIED_AT_ONCE):
                file.write(mapped.data[position : min(position + COPIED_AT_ONCE, behind)], position)
            write_slots(file, slots)
            file.write(encode_header(header), 0)
            file.flush()
    disk.rename(aside, path)
    disk.flush_folder(path.parent)
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
    slots = stored_slots(mapped, shape)
    return slots if lead_below(mapped, shape, next_item, slots) else linked_slots(mapped, shape, next_item)


def stored_slots(mapped: MappedFile, shape: Shape) -> NDArray[np.int32]:
    """The slots as the file has them."""
    _check_size(mapped, shape)
    return decode_slots(mapped.data[slot_position(0) : slot_position(shape.slot_capacity)]).astype(np.int32)


def lead_below(mapped: MappedFile, shape: Shape, next_item: int, slots: NDArray[np.int32]) -> bool:
    """Let slots that lead to ``next_item`` or above lead to the older part of their chains; False if one is lost."""
    from whence.kernels.index_items import ALL_WALKED, walk_heads_back

    return bool(walk_heads_back(_view(mapped, shape), shape.item_capacity, next_item, slots) == ALL_WALKED)


def _view(mapped: MappedFile, shape: Shape) -> NDArray[np.uint8]:
    from whence.kernels.chains import file_view

    _check_size(mapped, shape)
    return file_view(mapped.data, shape.slot_capacity, shape.item_capacity)


def _check_size(mapped: MappedFile, shape: Shape) -> None:
    if mapped.size != shape.file_size:
        what = f"has {mapped.size} bytes; with {shape.slot_capacity} slots and {shape.item_capacity} items it has"
        raise CorruptError(f"{what} {shape.file_size}", path=mapped.path)


def rewrite(file: DiskFile, mapped: MappedFile, shape: Shape, slots: NDArray[np.int32], header: IndexHeader) -> None:
    """Write what of slots and header is not so already, and zeros over the items that ``header`` does not count."""

    def write(data: bytes, position: int) -> None:
        # A copy is compared in no time; a memoryview is compared byte by byte, each of them a Python object.
        if bytes(mapped.data[position : position + len(data)]) != data:
            file.write(data, position)

    stored = decode_slots(mapped.data[slot_position(0) : slot_position(len(slots))])
    for first in range(0, len(slots), SLOTS_AT_ONCE):
        some = slice(first, first + SLOTS_AT_ONCE)
        if not np.array_equal(stored[some], slots[some]):
            file.write(encode_slots(slots[some]), slot_position(first))
    write(encode_header(header), 0)
    with PlainFile(mapped.path) as plain:
        pieces = plain.data_pieces(item_position(shape.slot_capacity, header.next_item), ZEROED_AT_ONCE)
    for position, size in pieces:
        write(bytes(size), position)


def write_slots(file: DiskFile, slots: NDArray[np.int32]) -> None:
    """Write all slots."""
    for first in range(0, len(slots), SLOTS_AT_ONCE):
        file.write(encode_slots(slots[first : first + SLOTS_AT_ONCE]), slot_position(first))
