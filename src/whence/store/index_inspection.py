"""Inspection of an index file: its header in words, its chains, its items."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from whence.errors import FormatError, StoreError, UsageError
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits
from whence.formats.rocketmq.index_file import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    IndexHeader,
    decode_header,
    item_position,
    slot_position,
)
from whence.store.damage import DamageKind
from whence.store.index_file import Shape, infer_shape
from whence.store.inspection import Inspection, Row, Rows, Wanted

CHAINS_SHOWN = 5
DAMAGE_SHOWN = 10
CHUNK = 1 << 20  # items looked at in one go: bounds the memory that a file of 20 million takes
SIBLINGS_ASKED = 8


def index_file(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """Header, slots and items; every link is checked against the rule that a chain leads to older items only."""
    header = decode_header(file.data[:HEADER_SIZE])
    shape, shape_from = _shape_of(file, header, wanted.shape)
    inspection.facts = {
        "begin_timestamp_ms": header.begin_timestamp_ms,
        "end_timestamp_ms": header.end_timestamp_ms,
        "begin_physical_offset": header.begin_physical_offset,
        "end_physical_offset": header.end_physical_offset,
        "slots_in_use": header.slot_count,
        "items": header.next_item - 1,
        "slot_capacity": shape.slot_capacity if shape else None,
        "item_capacity": shape.item_capacity if shape else None,
        "capacities_from": shape_from,
    }
    inspection.words = (
        "An index file: the hash of each key and unique id, and where in the CommitLog its message lies."
    )
    if shape is None:
        if header.item_count > 1:
            detail = (
                "no slot and item counts make sense of its bytes; if the broker had its own, give --slots and --items"
            )
            inspection.add_damage(DamageKind.INDEX_NOT_USED, 0, detail)
        else:
            inspection.words += " Nothing was put into this one yet."
        return
    count = min(max(header.next_item, 1), shape.item_capacity)
    items = np.frombuffer(file.data, ITEM, shape.item_capacity, item_position(shape.slot_capacity, 0))
    slots = np.frombuffer(file.data, SLOT, shape.slot_capacity, slot_position(0)).astype(np.int32)
    full = " It is full." if header.next_item >= shape.item_capacity else ""
    inspection.words += f" Item 0 is never used, so that 0 can mean none.{full}"
    lengths = _check_items(inspection, items, count, shape, wanted)
    _check_slots(inspection, slots, items, header.slot_count, shape)
    longest = np.argsort(lengths, kind="stable")[::-1][:CHAINS_SHOWN].tolist()
    inspection.facts["longest_chains"] = [
        {
            "slot": slot,
            "position": slot_position(slot),
            "newest_item": int(slots[slot]),
            "length": int(lengths[slot]),
        }
        for slot in longest
        if lengths[slot]
    ]

    def rows(begin: int, end: int) -> list[Row]:
        return [
            {
                "number": number,
                "position": item_position(shape.slot_capacity, number),
                "key_hash": key_hash,
                "slot": key_hash % shape.slot_capacity,
                "physical_offset": physical_offset,
                "time_diff_s": time_diff_s,
                "about_timestamp_ms": header.begin_timestamp_ms + 1000 * time_diff_s,
                "previous_item": previous_item,
            }
            for number, (key_hash, physical_offset, time_diff_s, previous_item) in enumerate(
                items[begin:end].tolist(), begin
            )
        ]

    inspection.keep(rows, count, 1, wanted)


def _shape_of(file: MappedFile, header: IndexHeader, asked: Shape | None) -> tuple[Shape | None, str]:
    """The file's counts and where they come from."""
    if asked is not None:
        if asked.file_size != file.size:
            raise UsageError(
                f"{file.path}: has {file.size} bytes; {asked.slot_capacity} slots and {asked.item_capacity} items "
                f"take {asked.file_size}"
            )
        return asked, "--slots and --items"
    shape = infer_shape(file.data, header, ())
    if shape is not None:
        return shape, "its own bytes"
    siblings = [path for path in file.path.parent.iterdir() if is_digits(path.name) and path.name != file.path.name]
    for path in sorted(siblings)[:SIBLINGS_ASKED]:
        try:
            with MappedFile(path) as sibling:
                shape = infer_shape(sibling.data, decode_header(sibling.data[:HEADER_SIZE]), ())
        except (StoreError, FormatError):
            continue
        if shape is not None and shape.file_size == file.size:
            return shape, f"its neighbour {path.name}"
    return None, "nothing"


def _check_items(
    inspection: Inspection, items: Rows, count: int, shape: Shape, wanted: Wanted
) -> npt.NDArray[np.int64]:
    """The length of each slot's chain, if all links are right; those that are not are damage."""
    lengths = np.zeros(shape.slot_capacity, np.int64)
    bad: list[int] = []
    for begin in range(1, count, CHUNK):
        end = min(count, begin + CHUNK)
        hashes = items["key_hash"][begin:end].astype(np.int64)
        previous = items["previous_item"][begin:end].astype(np.int64)
        slots = hashes % shape.slot_capacity
        older = np.where((previous > 0) & (previous < count), previous, 0)
        wrong = (hashes < 0) | (previous < 0) | (previous >= np.arange(begin, end))
        wrong |= (older > 0) & (items["key_hash"][older].astype(np.int64) % shape.slot_capacity != slots)
        bad += (np.flatnonzero(wrong)[:DAMAGE_SHOWN] + begin).tolist()
        lengths += np.bincount(slots, minlength=shape.slot_capacity)
        if wanted.progress is not None:
            wanted.progress(end * ITEM_SIZE, count * ITEM_SIZE)
    for number in bad[:DAMAGE_SHOWN]:
        key_hash, _, _, previous_item = items[number].item()
        detail = f"item {number} of hash {key_hash} points to item {previous_item}, no older one of its slot"
        position = item_position(shape.slot_capacity, number) + (0 if key_hash < 0 else 16)
        inspection.add_damage(DamageKind.BAD_CHAIN, position, detail)
    return lengths


def _check_slots(
    inspection: Inspection,
    slots: npt.NDArray[np.int32],
    items: Rows,
    slot_count: int,
    shape: Shape,
) -> None:
    """A slot leads to an item of its own; a writer may have put items that the header does not count yet."""
    used = np.flatnonzero(slots)
    inspection.facts["slots_counted"] = len(used)
    heads = slots[used]
    inside = (heads > 0) & (heads < shape.item_capacity)
    hashes = items["key_hash"][np.where(inside, heads, 0)].astype(np.int64)
    wrong = used[~inside | (hashes % shape.slot_capacity != used)]
    for slot in wrong[:DAMAGE_SHOWN].tolist():
        detail = f"slot {slot} leads to item {slots[slot]}, which is not one of its chain"
        inspection.add_damage(DamageKind.BAD_CHAIN, slot_position(slot), detail)
    if len(used) != slot_count and not len(wrong):
        inspection.words += (
            f" The header counts {slot_count} slots in use, and {len(used)} are: a put was under way, or lost."
        )
