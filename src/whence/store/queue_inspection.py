"""Inspection of the files of a queue: ConsumeQueue, BatchConsumeQueue and ConsumeQueueExt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from whence.errors import FormatError
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits, parse_offset_name
from whence.formats.rocketmq.consume_queue import (
    BATCH_ENTRY,
    ENTRY,
    FILLER,
    decode_ext_unit,
    ext_position,
    is_ext_address,
)
from whence.formats.rocketmq.topics import DELAY
from whence.store.damage import DamageKind
from whence.store.inspection import Inspection, Kind, Row, Rows, Wanted, numbered, table_of

BITMAP_SHOWN = 16
DAMAGE_SHOWN = 10


def consume_queue(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The entries up to the first that is not written."""
    entries = table_of(file, ENTRY)
    base = (parse_offset_name(file.path.name) or 0) // ENTRY.itemsize
    written = (entries["physical_offset"] >= 0) & (entries["size"] > 0)
    count = _leading(written)
    fillers = _leading(entries[:count] == np.frombuffer(FILLER, ENTRY)[0])
    topic, queue = _queue_of(file)
    inspection.words = "A ConsumeQueue file: where the messages of one queue lie in the CommitLog, in order."
    inspection.facts = {
        "topic": topic,
        "queue": queue,
        "first_queue_offset": base,
        "entries": count,
        "fillers": fillers,
        "capacity": len(entries),
    }
    _check_order(inspection, entries["physical_offset"][fillers:count], ENTRY.itemsize, fillers)
    _check_rest(file, inspection, entries, count)

    def rows(begin: int, end: int) -> Iterator[Row]:
        for number in range(begin, end):
            physical_offset, size, code = entries[number].item()
            row = {
                "number": number,
                "position": number * ENTRY.itemsize,
                "queue_offset": base + number,
                "physical_offset": physical_offset,
                "size": size,
                "tags_code": code,
                "note": None,
            }
            if number < fillers:
                row["note"] = "filler: the queue begins later"
            elif topic == DELAY:
                row["deliver_timestamp_ms"] = code
            elif is_ext_address(code):
                row["note"] = f"see byte {ext_position(code)} of consumequeue_ext"
            yield row

    inspection.keep(lambda begin, end: list(rows(begin, end)), count, 0, wanted)


def batch_consume_queue(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The entries up to the first that is not written; each is one batch."""
    entries = table_of(file, BATCH_ENTRY)
    written = (entries["physical_offset"] >= 0) & (entries["size"] > 0) & (entries["message_count"] > 0)
    count = _leading(written & (entries["base_offset"] >= 0))
    topic, queue = _queue_of(file)
    inspection.words = "A BatchConsumeQueue file: where the batches of one queue lie in the CommitLog, in order."
    inspection.facts = {
        "topic": topic,
        "queue": queue,
        "entries": count,
        "messages": int(entries["message_count"][:count].sum(dtype=np.int64)),
        "capacity": len(entries),
    }
    _check_order(inspection, entries["physical_offset"][:count], BATCH_ENTRY.itemsize, 0)
    _check_rest(file, inspection, entries, count)
    inspection.keep(lambda begin, end: numbered(entries, begin, end), count, 0, wanted)


def consume_queue_ext(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The units up to the end of the used part. Their sizes differ, so ``start`` is a byte."""
    base = parse_offset_name(file.path.name) or 0
    topic, queue = _queue_of(file)
    count = position = 0
    ends = "the file's last byte"
    rows: list[Row] = []
    limit = file.size if wanted.limit is None else wanted.limit
    while position <= file.size - 2:
        try:
            unit, following = decode_ext_unit(file.data, position)
        except FormatError as error:
            inspection.add_damage(DamageKind.BAD_QUEUE, error.position or position, error.what)
            ends = "damage"
            break
        if unit is None:
            ends = "the mark of an unused rest, or zeros, stand here"
            break
        if position >= (wanted.start or 0):
            if len(rows) < limit:
                rows.append(
                    {
                        "position": position,
                        "tags_code_of_entry": base + position - 2**63,
                        "size": unit.size,
                        "tags_code": unit.tags_code,
                        "store_timestamp_ms": unit.store_timestamp_ms,
                        "bitmap_size": len(unit.bitmap),
                        "bitmap": unit.bitmap[:BITMAP_SHOWN].hex(),
                    }
                )
            elif inspection.next_start is None:
                inspection.next_start = position
        count += 1
        position = following
    inspection.words = (
        "A ConsumeQueueExt file: what did not fit into the entries of a queue. An entry leads here through its "
        "tags code."
    )
    inspection.facts = {
        "topic": topic, "queue": queue, "units": count, "ends_at_byte": position, "ends_because": ends
    }  # fmt: skip
    inspection.rows = rows


def _queue_of(file: MappedFile) -> tuple[str | None, int | None]:
    """Topic and queue, as the folders name them."""
    queue, topic = file.path.absolute().parent, file.path.absolute().parent.parent
    if not is_digits(queue.name) or topic.parent.name not in tuple(Kind):
        return None, None
    return topic.name, int(queue.name)


def _check_order(inspection: Inspection, offsets: Rows, row_size: int, first: int) -> None:
    """Messages of a queue lie in the log in the order of their queue offsets."""
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1]) + 1
    for number in falls[:DAMAGE_SHOWN].tolist():
        before, offset = offsets[number - 1 : number + 1].tolist()
        detail = f"entry {first + number} leads to offset {offset}, not above the {before} of the one before"
        inspection.add_damage(DamageKind.BAD_QUEUE, (first + number) * row_size, detail)


def _check_rest(file: MappedFile, inspection: Inspection, entries: Rows, count: int) -> None:
    """Behind the last entry that is written all is zero; what is not was left there or written over."""
    rest = file.data[count * entries.dtype.itemsize :]
    filled = np.flatnonzero(np.frombuffer(rest, np.uint8))
    inspection.facts["ends_at_byte"] = count * entries.dtype.itemsize
    if count == len(entries):
        inspection.facts["ends_because"] = "the file is full"
    elif not len(filled):
        inspection.facts["ends_because"] = "nothing is written behind it"
    else:
        inspection.facts["ends_because"] = "the next entry cannot be one"
        detail = f"entry {count} cannot be one, and bytes that are not zero follow"
        position = count * entries.dtype.itemsize
        inspection.add_damage(DamageKind.BAD_QUEUE, position, detail)


def _leading(flags: Rows) -> int:
    """How many of the first flags are set, before one is not."""
    return len(flags) if flags.all() else int(np.argmin(flags))
