"""The tasks that make and check the files of fields, from spills: as for the index, with the values beside it.

build_field_task     ranges of items     -> an index file, and its values
check_field_task     the same            held against those that are there
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whence.errors import StoreError
from whence.files.disk import Disk
from whence.files.mapped_file import MappedFile
from whence.formats.field_values import VALUE_HASH_SIZE, values_position
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.pipeline.check_tasks import IndexCheckTask, check_index_task
from whence.pipeline.tasks import IndexTask, MadeFile, build_index_task, sha256_of
from whence.store.field_spill import VALUES_AT_ONCE, spilled_values
from whence.store.findings import Finding, FindingKind, Findings
from whence.store.index_check import IndexFindings

REPAIR_FIELD = "build this field anew from the log"


@dataclass(frozen=True, slots=True)
class FieldTask:
    """``index``: what :func:`build_index_task` does. ``values_there``: those of the file that it goes on with."""

    field: str
    index: IndexTask
    values_there: str


@dataclass(frozen=True, slots=True)
class MadeField:
    """One index file of a field and its values, complete and flushed, in the work folder."""

    index: MadeFile
    values: MadeFile

    @property
    def files(self) -> tuple[MadeFile, ...]:
        """Both, as a build tells of what it made."""
        return self.index, self.values


def build_field_task(task: FieldTask) -> MadeField:
    """Make one index file of a field with its values, or longer ones of the newest that are there."""
    (index,) = build_index_task(task.index).files
    assert index.header is not None
    work, disk = Path(task.index.work), Disk()
    path = Path(index.path).parent / "values"
    with disk.create(path, 0, reserve=False) as file:
        at = values_position(FIRST_ITEM)
        file.write(bytes(at), 0)
        if task.values_there:
            assert task.index.after is not None
            end = values_position(task.index.after.next_item)
            with MappedFile(Path(task.values_there)) as there:
                while at < end:
                    piece = there.data[at : min(at + VALUES_AT_ONCE, end)]
                    file.write(piece, at)
                    at += len(piece)
        for part in task.index.plan.ranges:
            for piece in spilled_values(work, part.name, part.first, part.count):
                file.write(piece, at)
                at += len(piece)
        assert at == values_position(index.header.next_item)
        file.flush()
    disk.flush_folder(path.parent)
    sha256 = sha256_of(path) if task.index.with_sums else ""
    values = MadeFile(index.kind, str(path), "", index.entry_count, index.from_offset, index.to_offset, sha256)
    return MadeField(index, values)


@dataclass(frozen=True, slots=True)
class FieldCheckTask:
    """One index file of a field and its values: the items and values that it should have."""

    field: str
    index: IndexCheckTask
    values: str


@dataclass(frozen=True, slots=True)
class CheckedField:
    """What was found of one index file of a field, and of its values."""

    index: IndexFindings
    values: Findings


def check_field_task(task: FieldCheckTask) -> CheckedField:
    """Check one index file of a field and its values."""
    index = check_index_task(task.index)
    found = Findings()
    path = Path(task.values)
    try:
        with MappedFile(path) as mapped:
            _check_values(task, mapped, index, found)
    except StoreError as error:
        found.add(Finding(path, 0, FindingKind.UNREADABLE, str(error), REPAIR_FIELD))
    return CheckedField(index, found)


def _check_values(task: FieldCheckTask, mapped: MappedFile, index: IndexFindings, found: Findings) -> None:
    """Hold all values against those that the expression gives now. Those of expired messages nobody knows."""
    count = sum(part.count for part in task.index.ranges)
    expired = index.expired_count if index.header is not None else mapped.size // VALUE_HASH_SIZE - FIRST_ITEM - count
    size = values_position(FIRST_ITEM + max(expired, 0) + count)
    if mapped.size != size:
        items = size // VALUE_HASH_SIZE - FIRST_ITEM
        what = f"the file has {mapped.size} bytes; the values of {items} items take {size}"
        found.add(Finding(mapped.path, min(mapped.size, size), FindingKind.WRONG_SIZE, what, REPAIR_FIELD))
    if any(mapped.data[: values_position(FIRST_ITEM)]):
        what = "something is written in the place of item 0"
        found.add(Finding(mapped.path, 0, FindingKind.NOT_ZERO, what, REPAIR_FIELD))
    number = FIRST_ITEM + max(expired, 0)
    for part in task.index.ranges:
        for expected in spilled_values(Path(task.index.work), part.name, part.first, part.count):
            at = values_position(number)
            there = mapped.data[at : at + len(expected)]
            if there != expected:
                _list_wrong(mapped.path, number, there, expected, found)
            number += len(expected) // VALUE_HASH_SIZE


def _list_wrong(path: Path, first: int, there: memoryview, expected: memoryview, found: Findings) -> None:
    for at in range(0, len(there) - len(there) % VALUE_HASH_SIZE, VALUE_HASH_SIZE):
        if there[at : at + VALUE_HASH_SIZE] != expected[at : at + VALUE_HASH_SIZE]:
            number = first + at // VALUE_HASH_SIZE
            what = f"item {number} has the hash of another value than its message has"
            found.add(Finding(path, values_position(number), FindingKind.WRONG_VALUE, what, REPAIR_FIELD))
