"""The scan kernel's twin: the same rules, read one after the other from tests/reference.py's records."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference import (
    BORN_HOST_IS_IPV6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_IS_IPV6,
    Record,
    crc32,
    decode_java_utf8,
    decode_record,
    java_hash,
    key_hash,
    signed,
)
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Kind, Status, scan_stretch

BLANK = MAGIC_BLANK.to_bytes(4, "big")
VERSIONS = {MAGIC_V1.to_bytes(4, "big"): 1, MAGIC_V2.to_bytes(4, "big"): 2}
RECORD_CRC = re.compile(rb"__CRC32#\x01([0-9]{10})\x02")


@dataclass
class Scan:
    """What a scan finds, as plain values. Texts stand for the spans where the kernel found them."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    status: Status = Status.END
    detail: int = 0


def scan_by_twin(data: bytes, base_offset: int, position: int, end: int, *, check_crc: bool, tags: bool) -> Scan:
    scan = Scan()
    while True:
        scan.status, scan.detail = judge(data[position:end], base_offset + position, check_crc=check_crc)
        if scan.status != Status.END or position == end:
            scan.position = position + (scan.detail if scan.status == Status.BLANK else 0)
            return scan
        record = decode_record(data, position)
        scan.items += items_of(record, len(scan.messages), tags=tags)
        scan.messages.append(message_of(record))
        position += record.size


def judge(rest: bytes, offset: int, *, check_crc: bool) -> tuple[Status, int]:
    """Whether ``rest`` begins with a record to take (END) and if not, why not. The rules, first one first."""
    if not rest:
        return Status.END, 0
    if len(rest) < 8:
        return Status.TRUNCATED, 8
    size, magic = signed(rest[:4]), rest[4:8]
    if rest[:8] == bytes(8):
        return Status.ZERO, 0
    if magic not in VERSIONS and magic != BLANK:
        return Status.BAD_MAGIC, signed(magic)
    if size < (8 if magic == BLANK else 91):
        return Status.BAD_SIZE, size
    if size > len(rest):
        return Status.TRUNCATED, size
    if magic == BLANK:
        return Status.BLANK, size

    sys_flag = signed(rest[36:40])
    hosts = (20 if sys_flag & BORN_HOST_IS_IPV6 else 8) + (20 if sys_flag & STORE_HOST_IS_IPV6 else 8)
    fields = 68 + hosts + 4 + VERSIONS[magic] + 2
    if size < fields:
        return Status.BAD_SIZE, size
    at = 68 + hosts
    for length_size in (4, VERSIONS[magic], 2):
        length = signed(rest[at : at + length_size])
        if length < 0 or fields + length > size:
            return Status.BAD_LENGTH, length
        at += length_size + length
        fields += length
    if fields != size:
        return Status.BAD_SUM, fields

    record = decode_record(rest)
    if record.physical_offset != offset:
        return Status.BAD_OFFSET, record.physical_offset
    if check_crc:
        if record.stored_body and crc32(record.stored_body) != record.body_crc:
            return Status.BAD_CRC, crc32(record.stored_body)
        stored = RECORD_CRC.fullmatch(record.properties_data[-20:])
        if stored and crc32(rest[: size - 20]) != int(stored[1][::-1]):
            return Status.BAD_CRC, crc32(rest[: size - 20])
    return Status.END, 0


def message_of(record: Record) -> dict[str, Any]:
    return {
        "physical_offset": record.physical_offset,
        "store_timestamp_ms": record.store_timestamp_ms,
        "queue_offset": record.queue_offset,
        "tags_code": java_hash(record.tags or ""),
        "size": record.size,
        "queue": record.queue,
        "sys_flag": record.sys_flag,
        "topic_hash": java_hash(record.topic + "#"),
        "topic": record.topic,
        "keys": record.properties.get("KEYS", ""),
        "tags": record.tags or "",
        "unique_id": record.unique_id or "",
        "delay_level": record.properties.get("DELAY", ""),
        "has_inner": any(piece.startswith(b"INNER_") for piece in record.properties_data.split(b"\x02")),
    }


def items_of(record: Record, number: int, *, tags: bool) -> Iterator[dict[str, Any]]:
    texts = [(Kind.KEY, key) for key in record.key_tokens]
    if record.unique_id is not None:
        texts.insert(0, (Kind.UNIQUE_ID, record.unique_id))
    if tags and record.tags is not None:
        texts.append((Kind.TAGS, record.tags))
    for kind, text in texts if not record.is_rollback else []:
        yield {
            "physical_offset": record.physical_offset,
            "store_timestamp_ms": record.store_timestamp_ms,
            "key_hash": key_hash(record.topic, "T#" + text if kind == Kind.TAGS else text),
            "message": number,
            "key": text,
            "kind": kind,
        }


def scan_by_kernel(
    data: bytes | NDArray[np.uint8],
    base_offset: int,
    position: int,
    end: int,
    *,
    check_crc: bool,
    tags: bool,
    rows: int = 7,
) -> Scan:
    """The kernel's scan, called again while there is no room, as the same plain values."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    messages, items = np.zeros(rows, SCANNED), np.zeros(ITEMS_MAX, ITEMS)
    scan = Scan()
    while True:
        result = scan_stretch(
            array, base_offset, position, end, check_crc=check_crc, tags=tags, messages=messages, items=items
        )
        count = len(scan.messages)
        taken = messages[: result.message_count]
        starts = taken["physical_offset"] - base_offset
        topics: dict[int, NDArray[np.uint8]] = {}
        for row, start in zip(as_dicts(taken), starts.tolist(), strict=True):
            topics[start] = array[start + row["topic_at"] :][: row["topic_size"]]
            before = row.pop("topic_before")
            assert before == 0 or np.array_equal(topics[start - before], topics[start])
            scan.messages.append(texts(row, array, start))
        for row in as_dicts(items[: result.item_count]):
            start = starts[row["message"]]
            scan.items.append(texts(row | {"message": count + row["message"]}, array, start))
        assert result.next_position >= position
        position = result.next_position
        if result.status != Status.FULL:
            scan.position, scan.status, scan.detail = position, result.status, result.detail
            return scan
        assert result.message_count > 0


def as_dicts(rows: NDArray[np.void]) -> list[dict[str, int]]:
    assert rows.dtype.names is not None
    return [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]


def texts(row: dict[str, int], data: NDArray[np.uint8], start: int) -> dict[str, Any]:
    """The row with texts in the place of its spans. A text that is not there has no place either."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_at"):
            text, size = name.removesuffix("_at"), row[name.removesuffix("_at") + "_size"]
            assert size > 0 or value == 0 or text == "topic"
            plain[text] = decode_java_utf8(data[start + value : start + value + size].tobytes())
        elif not name.endswith("_size"):
            plain[name] = value
    return plain


def assert_alike(data: bytes, base_offset: int, *, check_crc: bool, tags: bool = True) -> Scan:
    """Scan all of ``data`` by kernel and twin; what both find."""
    options = {"check_crc": check_crc, "tags": tags}
    found = scan_by_kernel(data, base_offset, 0, len(data), **options)
    assert found == scan_by_twin(data, base_offset, 0, len(data), **options)
    return found
