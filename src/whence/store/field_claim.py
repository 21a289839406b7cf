"""FieldClaim: what ``sidecar.json`` says of one indexed field.

    sql                            the expression over a message's columns, in Spark's SQL
    session_zone, ansi, spark      the zone, the ANSI mode and the version of Spark that its values were computed with
    slots, items                   of the index files in fields/<name>/index
    indexed, last_record           from where to where in the log, and the head of the last record before that
    index_files, newest_index      their names, in order, and the header of the last of them

A field is indexed up to a point of its own: one that was added later, or whose expression fails on a message, does
not hold up the rest.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from whence.errors import UsageError
from whence.files.names import is_digits
from whence.formats.own_json import number, text
from whence.formats.rocketmq.index_file import NO_HEADER, IndexHeader
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.log_file import HEAD_SIZE

FOLDER = "fields"
"""Where a sidecar has its fields: ``fields/<name>/index`` and ``fields/<name>/values``."""
NAME_SIZE_MAX = 64
SQL_SIZE_MAX = 4096
FIELDS_MAX = 1000
SETTING_SIZE_MAX = 128
_NAME = re.compile(rf"[a-z0-9_][a-z0-9_-]{{0,{NAME_SIZE_MAX - 1}}}")


def check_field_name(name: str) -> str:
    """The name of a field, which becomes that of a folder; UsageError if none can have it."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:80]!r} names no field: a name has up to {NAME_SIZE_MAX} of a to z, digits, _ and -, "
            "and does not begin with -"
        )
    return name


@dataclass(frozen=True, slots=True)
class FieldClaim:
    """One member of ``fields`` in sidecar.json."""

    sql: str
    session_zone: str
    ansi: bool
    spark: str
    slots: int
    items: int
    indexed: tuple[tuple[int, int], ...] = ()
    last_record_offset: int = -1
    last_record: bytes = b""
    index_names: tuple[str, ...] = ()
    newest_header: IndexHeader = NO_HEADER

    @property
    def shape(self) -> Shape:
        """Of the index files."""
        return Shape(self.slots, self.items)

    @property
    def indexed_to(self) -> int:
        """Where the log is not indexed any more; 0 if nothing of it is."""
        return self.indexed[-1][1] if self.indexed else 0

    def is_of(self, log: CommitLog) -> bool:
        """Whether the log is still the one that was indexed, as far as that is there."""
        return is_same_record(log, self.last_record_offset, self.last_record)

    def to_document(self) -> dict[str, Any]:
        """As sidecar.json has it."""
        return {
            "sql": self.sql,
            "session_zone": self.session_zone,
            "ansi": self.ansi,
            "spark": self.spark,
            "slots": self.slots,
            "items": self.items,
            "indexed": self.indexed,
            "last_record": {"offset": self.last_record_offset, "head": self.last_record.hex()},
            "index_files": self.index_names,
            "newest_index": asdict(self.newest_header),
        }


def is_same_record(log: CommitLog, physical_offset: int, head: bytes) -> bool:
    """Whether the log still has the record that begins with these bytes; what has expired counts as the same."""
    if physical_offset < log.begin_offset:
        return True  # nothing was indexed yet, or all of it has expired
    return log.raw(physical_offset, HEAD_SIZE) == head


def decode_fields(documents: dict[str, Any]) -> dict[str, FieldClaim]:
    """What sidecar.json says of all fields. What is not so is an error of Python's own, or a UsageError."""
    if len(documents) > FIELDS_MAX:
        raise ValueError(f"{len(documents)} fields are too many")
    return {check_field_name(name): _decode_field(document) for name, document in documents.items()}


def _decode_field(document: dict[str, Any]) -> FieldClaim:
    last, names = document["last_record"], tuple(map(text, document["index_files"]))
    shape = check_shape(Shape(number(document["slots"]), number(document["items"])))
    sql, zone, spark = (text(document[name]) for name in ("sql", "session_zone", "spark"))
    if not sql or len(sql) > SQL_SIZE_MAX:
        raise ValueError(f"an expression has 1 to {SQL_SIZE_MAX} characters")
    if max(len(zone), len(spark)) > SETTING_SIZE_MAX or type(document["ansi"]) is not bool:
        raise ValueError("no expression was computed with such settings")
    return FieldClaim(
        sql=sql,
        session_zone=zone,
        ansi=document["ansi"],
        spark=spark,
        slots=shape.slot_capacity,
        items=shape.item_capacity,
        indexed=decode_stretches(document["indexed"]),
        last_record_offset=number(last["offset"]),
        last_record=bytes.fromhex(text(last["head"])),
        index_names=check_index_names(names),
        newest_header=decode_noted_header(document["newest_index"]),
    )


def check_shape(shape: Shape) -> Shape:
    """A shape that index files can have."""
    if shape.slot_capacity < 1 or shape.item_capacity < 2 or shape.file_size >= 2**31:
        raise ValueError(f"no index file has {shape.slot_capacity} slots and {shape.item_capacity} items")
    return shape


def check_index_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that index files can have, and that lead nowhere else."""
    if not all(map(is_digits, names)):
        raise ValueError("an index file has a name of digits")
    return names


def decode_stretches(pairs: Any) -> tuple[tuple[int, int], ...]:
    """From where to where the log is indexed."""
    indexed = tuple((number(begin), number(end)) for begin, end in pairs)
    if any(begin > end for begin, end in indexed):
        raise ValueError("a stretch ends before it begins")
    return indexed


def decode_noted_header(document: Any) -> IndexHeader:
    """The header of an index file, as it was noted."""
    return IndexHeader(*(number(document[each.name]) for each in fields(IndexHeader)))
