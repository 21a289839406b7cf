"""Inspection of what whence keeps beside a store: sidecar.json, time blocks and the values of fields."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from whence.files.mapped_file import MappedFile
from whence.files.names import parse_offset_name
from whence.formats.field_values import VALUE_HASH_SIZE
from whence.formats.rocketmq.index_file import FIRST_ITEM, NO_HEADER
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK
from whence.store.damage import DamageKind
from whence.store.inspection import Inspection, Row, Rows, Wanted, refuse_larger, table_of

DAMAGE_SHOWN = 10


def sidecar(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """All that it claims, if this whence understands it."""
    from whence.store.sidecar import SIZE_MAX, decode_sidecar

    refuse_larger(file, SIZE_MAX)
    claim = decode_sidecar(bytes(file.data))
    inspection.words = (
        "What whence says of a sidecar, beside a store: from where to where the log is indexed, how the index was "
        "made, and the head of the last record that is in it, by which one sees that it is the same log. A row for "
        "each index file."
    )
    inspection.facts = {
        "dialect": str(claim.dialect),
        "slot_capacity": claim.slots,
        "item_capacity": claim.items,
        "queue_file_size": claim.queue_file_size,
        "index_and_queues_are_in": "the store" if claim.in_place else "the sidecar",
        "index_files": len(claim.index_names),
        "last_record_offset": claim.last_record_offset if claim.last_record else None,
        "last_record_head": claim.last_record.hex() or None,
        "other_topics": ", ".join(claim.other_topics) or None,
        "marks": len(claim.marks) or None,
        "is_growing": claim.growing or None,
        "indexed": [{"from_offset": begin, "to_offset": end} for begin, end in claim.indexed],
    }
    if claim.newest_header != NO_HEADER:
        inspection.facts["newest_index"] = [asdict(claim.newest_header)]
    if claim.fields:
        inspection.facts["fields"] = [
            {
                "name": name,
                "indexed_to": field.indexed_to,
                "index_files": len(field.index_names),
                "session_zone": field.session_zone,
                "ansi": field.ansi,
                "spark": field.spark,
                "sql": field.sql,
            }
            for name, field in claim.fields.items()
        ]

    def rows(begin: int, end: int) -> list[Row]:
        return [
            {"number": number, "index_file": name} for number, name in enumerate(claim.index_names[begin:end], begin)
        ]

    inspection.keep(rows, len(claim.index_names), 0, wanted)


def time_blocks(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The entries, each of which belongs to a later block than the one before."""
    entries = table_of(file, TIME_BLOCK)
    base = parse_offset_name(file.path.name)
    inspection.words = (
        "Time blocks: the smallest and the largest store time of the records that begin in each 64 KiB of one "
        "CommitLog file. The position is that of the first of them there; a block in which none begins has no row."
    )
    inspection.facts = {
        "begin_offset": base,
        "entries": len(entries),
        "smallest_timestamp_ms": int(entries["smallest_ms"].min()) if len(entries) else None,
        "largest_timestamp_ms": int(entries["largest_ms"].max()) if len(entries) else None,
    }
    _check_entries(inspection, entries)

    def rows(begin: int, end: int) -> list[Row]:
        return [
            {
                "number": number,
                "position": position,
                "physical_offset": None if base is None else base + position,
                "block": position // BLOCK_SIZE,
                "smallest_timestamp_ms": smallest_ms,
                "largest_timestamp_ms": largest_ms,
            }
            for number, (position, smallest_ms, largest_ms) in enumerate(entries[begin:end].tolist(), begin)
        ]

    inspection.keep(rows, len(entries), 0, wanted)


def _check_entries(inspection: Inspection, entries: Rows) -> None:
    blocks = entries["position"].astype(np.int64) // BLOCK_SIZE
    is_late = np.diff(blocks, prepend=-1) <= 0
    is_reversed = entries["smallest_ms"] > entries["largest_ms"]
    for number in np.flatnonzero(is_late | is_reversed)[:DAMAGE_SHOWN].tolist():
        position, smallest_ms, largest_ms = entries[number].item()
        if position < 0:
            detail = f"entry {number} is of position {position}"
        elif is_late[number]:
            detail = f"entry {number} is of position {position}, in no later block than the one before"
        else:
            detail = f"entry {number} has smallest time {smallest_ms}, which is later than its largest, {largest_ms}"
        inspection.add_damage(DamageKind.BAD_TIMES, number * TIME_BLOCK.itemsize, detail)
    whole = len(entries) * TIME_BLOCK.itemsize
    if inspection.size > whole:
        detail = f"the last entry has {inspection.size - whole} of {TIME_BLOCK.itemsize} bytes"
        inspection.add_damage(DamageKind.BAD_TIMES, whole, detail)


def field_values(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """A hash for each item of the index file of the same name."""
    hashes = table_of(file, np.dtype((np.void, VALUE_HASH_SIZE)))
    inspection.words = (
        "Values of a field: for each item of the index file of the same name, in the folder index beside this one, "
        "the first 16 bytes of the SHA-256 of its topic#value. Item 0 is never used."
    )
    inspection.facts = {"items": max(len(hashes) - FIRST_ITEM, 0)}
    if len(hashes) and any(hashes[0].tobytes()):
        inspection.add_damage(DamageKind.BAD_VALUES, 0, "something is written in the place of item 0")
    whole = len(hashes) * VALUE_HASH_SIZE
    if inspection.size > whole or not whole:
        detail = f"the last hash has {inspection.size - whole} of {VALUE_HASH_SIZE} bytes"
        inspection.add_damage(DamageKind.BAD_VALUES, whole, detail)

    def rows(begin: int, end: int) -> list[Row]:
        return [
            {"item": number, "position": number * VALUE_HASH_SIZE, "value_hash": hashes[number].tobytes().hex()}
            for number in range(begin, end)
        ]

    inspection.keep(rows, len(hashes), FIRST_ITEM, wanted)
