"""Prove that the newest index file, as its writer left it, is what the log makes of it.

A writer that is killed leaves more items than are known to be flushed, and all of them right; after a power failure
some may be lost. Which of both it was nobody tells, but the log knows what the items must be: they are made again in
memory and compared. If they are the same, nothing has to be cut, and readers never notice.

    slots       led back below the flushed count: as many as were in use then, or an item above it was lost
    items       from the flushed count on: hash, offset, time and link are those that dispatch would write
    header      tells of them what dispatch would write
    slots       are those that result: where the file has others, they can be written

What is below the flushed count is on the disk, and nothing writes to it. So a slot that leads there now led there
when it was flushed. One that leads above it is led back over items of which each sector is written or zero: so a link
is right, or it is lost and ends the chain, and the slot is empty. That is why the slots are counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader, decode_header, item_position
from whence.store.commit_log import CommitLog
from whence.store.index_cut import lead_below, stored_slots
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ProvenFile(NamedTuple):
    """What is right of a file: the items that ``header`` counts, of all messages before ``end_offset``.

    ``slots`` are theirs. The file may lack some, or have some that lead to items which are not counted.
    """

    header: IndexHeader
    slots: NDArray[np.int32]
    end_offset: int


def prove(
    mapped: MappedFile,
    shape: Shape,
    flushed: IndexHeader,
    log: CommitLog,
    from_offset: int,
    to_offset: int,
    *,
    tags: bool,
) -> ProvenFile | None:
    """All that its header counts, if that is so; None if it cannot be proven.

    ``flushed``: the header of the items that are on the disk for sure, those of the messages before ``from_offset``.
    ``to_offset`` is where the log ends. ``tags``: whether tags are indexed.
    """
    from whence.kernels.index_items import encode_linked_items

    header = decode_header(mapped.data)
    slots = stored_slots(mapped, shape)
    if not flushed.next_item <= header.next_item <= shape.item_capacity:
        return None
    if not lead_below(mapped, shape, flushed.next_item, slots) or np.count_nonzero(slots) != flushed.slot_count:
        return None
    proven, end_offset = flushed, from_offset
    scan = iter(LogScan(log, from_offset, to_offset, tags=tags, check_crc=False))
    while left := header.next_item - proven.next_item:
        batch = next(scan, None)
        if batch is None:
            return None
        items = batch.items[:left]
        end_offset = batch.end_offset
        if left < len(batch.items):
            end_offset = int(batch.items["physical_offset"][left])
            if end_offset == items["physical_offset"][-1]:
                return None  # the rest of this message's items is in another file
        if not len(items):
            continue
        if proven.next_item == FIRST_ITEM:
            begin_ms, begin_offset = int(items["store_timestamp_ms"][0]), int(items["physical_offset"][0])
        else:
            begin_ms, begin_offset = proven.begin_timestamp_ms, proven.begin_physical_offset
        linked = encode_linked_items(
            np.ascontiguousarray(items["key_hash"]),
            np.ascontiguousarray(items["physical_offset"]),
            np.ascontiguousarray(items["store_timestamp_ms"]),
            proven.begin_timestamp_ms,
            proven.next_item,
            slots,
        )
        at = item_position(shape.slot_capacity, proven.next_item)
        if bytes(mapped.data[at : at + len(linked.data)]) != bytes(linked.data):
            return None
        proven = IndexHeader(
            begin_ms,
            int(items["store_timestamp_ms"][-1]),
            begin_offset,
            int(items["physical_offset"][-1]),
            proven.slot_count + linked.used,
            proven.next_item + len(items),
        )
    if replace(proven, item_count=proven.next_item) != replace(header, item_count=header.next_item):
        return None
    return ProvenFile(header, slots, end_offset)
