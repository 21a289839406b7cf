"""The tasks of an export. Each takes parts of the log, writes the files of their messages aside, and tells of them.

A part is a block of one file of the log, which is cut alike for everybody: at multiples of PART_SIZE. So the same
files come out of any number of tasks, and those of a part stay the same when the log grows behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.errors import CorruptError
from whence.files.disk import Disk
from whence.files.mapped_file import MappedFile, read_whole
from whence.formats.hashing import java_hash
from whence.formats.rocketmq.topics import is_system_topic
from whence.lookup.question import Question
from whence.pipeline.export_files import ExportedFile, Format, columns_of, export_files
from whence.pipeline.tasks import own_name
from whence.store.damage import Damage
from whence.store.log_file import LogFile, PlainBudget
from whence.store.log_scan import FileScan, scan_rows
from whence.store.message_columns import MessageColumns
from whence.store.scan import Sieve

if TYPE_CHECKING:
    from numpy.typing import NDArray

PART_SIZE = 256 * 1048576
ROWS_AT_ONCE = 16_384


class Met(IntFlag):
    """What some message of a scan met of the question: it tells why none is left."""

    TOPIC = 1
    WINDOW = 2  # and the topic and the queue
    ALL_BUT_TAG = 4


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The part of a question that a scanned message answers by itself, without an index."""

    topic: str | None = None
    queue: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tag: str | None = None
    system_topics: bool = False

    @classmethod
    def of(cls, question: Question) -> RowFilter:
        return cls(
            question.topic,
            question.queue,
            question.since_ms,
            question.until_ms,
            question.tag,
            question.system_topics or question.topic is not None,
        )

    def keep(self, data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void]) -> tuple[NDArray[np.void], Met]:
        """Those of the rows (SCANNED) that answer, and what was met."""
        met = Met(0)
        if self.topic is not None and (rows["topic_hash"] == java_hash(f"{self.topic}#")).any():
            met |= Met.TOPIC
        sieve = Sieve((), self.topic, self.since_ms, self.until_ms, self.queue)
        rows = rows[sieve.rows(rows, rows[:0], data, base_offset)]
        if not len(rows):
            return rows, met
        met |= Met.WINDOW
        if self.topic is not None or not self.system_topics:
            rows = _where(self._has_topic(data, base_offset, rows), rows)
        if not len(rows):
            return rows, met
        met |= Met.ALL_BUT_TAG
        if self.tag is not None:
            rows = _where(_equals(data, base_offset, rows, "tags", self.tag), rows)
        return rows, met

    def _has_topic(self, data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        if self.topic is not None:
            return _equals(data, base_offset, rows, "topic", self.topic)
        topics, codes = _encoded(data, base_offset, rows, "topic")
        return ~np.array([topic is not None and is_system_topic(topic) for topic in topics], np.bool_)[codes]


def _where(is_kept: NDArray[np.bool_], rows: NDArray[np.void]) -> NDArray[np.void]:
    return rows if is_kept.all() else rows[is_kept]


def _equals(
    data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void], name: str, text: str
) -> NDArray[np.bool_]:
    texts, codes = _encoded(data, base_offset, rows, name)
    return np.array([each == text for each in texts], np.bool_)[codes]


def _encoded(
    data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void], name: str
) -> tuple[list[str | None], NDArray[np.int64]]:
    """The distinct texts of a column, None where there is none, and the number of each row's."""
    texts: dict[str | None, int] = {}
    codes = []
    for batch in MessageColumns([name]).batches(data, base_offset, rows):
        column = batch.column(name).dictionary_encode(null_encoding="encode")
        numbers = np.array([texts.setdefault(text.as_py(), len(texts)) for text in column.dictionary], np.int64)
        codes.append(numbers[np.frombuffer(column.indices.buffers()[1], np.int32)[: len(column)]])
    return list(texts), np.concatenate(codes)


@dataclass(frozen=True, slots=True)
class Part:
    """The messages that begin in a block of one file of the log: in ``pieces`` of it, or those that were found there.

    ``offsets``: of those, i8 in the machine's order, or a file of them at ``offsets_path``; else all are looked at.
    """

    number: int
    path: str
    base: int
    pieces: tuple[tuple[int, int], ...]
    offsets: bytes | None = None
    offsets_path: str | None = None

    @property
    def size(self) -> int:
        return sum(end - begin for begin, end in self.pieces)


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Parts of which one task writes the files, each into a folder of its own in ``work``."""

    parts: tuple[Part, ...]
    filter: RowFilter
    format: Format
    work: str

    @property
    def size(self) -> int:
        """Bytes of log that are read; 0 where single messages are."""
        return sum(part.size for part in self.parts)


class ExportedPart(NamedTuple):
    """What was made of a part."""

    number: int
    files: tuple[ExportedFile, ...]
    damage: tuple[Damage, ...]
    met: Met
    without_folder: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportedParts:
    """What a task made."""

    parts: tuple[ExportedPart, ...]
    message_count: int


class PartRows:
    """Yields the rows (SCANNED) of the messages of a part that answer the question: ROWS_AT_ONCE, and at last fewer.

    It takes as many, whichever pieces are scanned for them: then what is made of the rows is cut at the same messages
    with and without an index. The array is used again: the next rows are in the same one.
    """

    def __init__(self, part: Part, file: LogFile, row_filter: RowFilter) -> None:
        self._part = part
        self._file = file
        self._filter = row_filter
        self.data = np.frombuffer(file.file.data, np.uint8)
        self.damage: list[Damage] = []
        self.met = Met(0)

    def __iter__(self) -> Iterator[NDArray[np.void]]:
        if self._part.offsets_path is not None:
            return self._found(read_whole(Path(self._part.offsets_path), self._file.file.size * 8))
        return _in_runs(self._scanned()) if self._part.offsets is None else self._found(self._part.offsets)

    def _scanned(self) -> Iterator[NDArray[np.void]]:
        base, rows = self._part.base, scan_rows()
        for begin, end in self._part.pieces:
            scan = FileScan(self._file, begin - base, end - base, is_last=False, tags=False)
            for batch in scan.batches(*rows):
                kept, met = self._filter.keep(self.data, base, batch.messages)
                self.met |= met
                yield kept
            self.damage += scan.damage

    def _found(self, offsets: bytes) -> Iterator[NDArray[np.void]]:
        from whence.kernels.picked import scan_records
        from whence.kernels.scan import SCANNED

        positions = np.frombuffer(offsets, np.int64) - self._part.base
        for first in range(0, len(positions), ROWS_AT_ONCE):
            some = positions[first : first + ROWS_AT_ONCE].copy()
            rows = np.empty(len(some), SCANNED)
            count = scan_records(self.data, self._part.base, some, rows)
            if count < len(some):
                what = "the record that was found here changed while it was read"
                raise CorruptError(what, position=int(some[count]), path=self._part.path)
            yield rows


def _in_runs(batches: Iterator[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    """The same rows, ROWS_AT_ONCE in each array but the last one."""
    from whence.kernels.scan import SCANNED

    run, count = np.empty(ROWS_AT_ONCE, SCANNED), 0
    for rows in batches:
        while len(rows):
            some, rows = np.split(rows, [ROWS_AT_ONCE - count])
            run[count : count + len(some)] = some
            count += len(some)
            if count == ROWS_AT_ONCE:
                yield run
                count = 0
    if count:
        yield run[:count]


def export_parts_task(task: ExportTask) -> ExportedParts:
    """Write the files of some parts."""
    done = [_export_part(part, task) for part in task.parts]
    return ExportedParts(tuple(done), sum(file.messages for part in done for file in part.files))


def _export_part(part: Part, task: ExportTask) -> ExportedPart:
    disk = Disk()
    folder = Path(task.work, own_name(f"{part.number:08d}"))
    disk.add_folder(folder)
    columns = MessageColumns(columns_of(task.format))
    with MappedFile(Path(part.path)) as mapped:
        file = LogFile(mapped, part.base, PlainBudget())
        files = export_files(task.format, folder, disk, lambda offset: file.record(offset - part.base)[0])
        rows = PartRows(part, file, task.filter)
        for some in rows:
            for batch in columns.batches(rows.data, part.base, some):
                files.put(batch)
        made = files.finish()
    return ExportedPart(part.number, tuple(made), tuple(rows.damage), rows.met, tuple(files.without_folder))


def group_parts(parts: Sequence[Part], tasks: int | None) -> list[tuple[Part, ...]]:
    """Parts one behind the other, in so many groups; None for one each."""
    if tasks is None or tasks >= len(parts):
        return [(part,) for part in parts]
    bounds = [len(parts) * number // tasks for number in range(tasks + 1)]
    return [tuple(parts[begin:end]) for begin, end in pairwise(bounds)]
