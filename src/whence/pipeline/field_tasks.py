"""The tasks that make the files of fields from spills: as for the index, with the values beside it.

build_field_task     ranges of items     -> an index file, and its values
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whence.files.disk import Disk
from whence.files.mapped_file import MappedFile
from whence.formats.field_values import values_position
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.pipeline.tasks import IndexTask, MadeFile, build_index_task, sha256_of
from whence.store.field_spill import VALUES_AT_ONCE, spilled_values


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
