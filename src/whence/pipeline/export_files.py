"""The files of an export: record batches of messages in, files aside out, with what each of them holds.

    parquet    day=2026-01-31/topic=orders/part-<20 digits>.parquet, as Hive, Spark and pyarrow read it
    jsonl      part-<20 digits>.jsonl, a line for each message, as ``find --format jsonl --body``
    csv        part-<20 digits>.csv, as ``find --format csv --body``
    bulk       part-<20 digits>.ndjson, for the bulk interface of a search engine

The digits are the physical offset of the file's first message. Messages lie in the order of the log. What a file is
called and what is in it depends on the messages alone: a task that runs twice makes the same files.

Names come out of the log: a topic becomes the name of a folder only with all that could lead elsewhere escaped.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from whence.files.disk import Disk
from whence.files.names import OFFSET_MAX, offset_name
from whence.lookup.message_lines import CSV_HEAD, LINE_COLUMNS, Lines, ReadMessage, bulk_lines, csv_lines, json_lines
from whence.store.message_columns import COLUMNS, DAMAGE, TIME_MS_MAX, TIME_MS_MIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_GROUP_SIZE = 32 * 1048576  # bytes of columns that become one row group
WAITING_SIZE_MAX = 96 * 1048576  # bytes of columns that wait for their row group, in all files of a task together
OPEN_MAX = 256  # files that a task writes to at once
BULK_SIZE_MAX = 64 * 1048576  # of a file: a search engine takes 100 MB at once by default
DAY_MS = 86_400_000
NO_DAY = TIME_MS_MIN // DAY_MS - 1
NAME_SIZE_MAX = 255  # bytes that a folder's name can have
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the name of a folder for what has no value, as Hive has it
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(number) for number in range(32)}  # by Hive and Spark


class Format(StrEnum):
    """What messages are written as."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"
    CSV = "csv"
    BULK = "bulk"


SUFFIXES = {Format.PARQUET: "parquet", Format.JSON_LINES: "jsonl", Format.CSV: "csv", Format.BULK: "ndjson"}


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file that is complete and flushed: at ``path``, and where in the export it belongs."""

    path: str
    target: str
    messages: int
    bytes: int
    from_offset: int
    to_offset: int  # of the last message
    sha256: str


class ExportFiles(Protocol):
    """Takes batches in the order of the log, then gives the files."""

    @property
    def without_folder(self) -> list[str]: ...

    def put(self, batch: Any) -> None: ...

    def finish(self) -> list[ExportedFile]: ...


def columns_of(format: Format) -> tuple[str, ...]:
    """The columns of the batches that an export in this format takes."""
    return (*COLUMNS, DAMAGE) if format is Format.PARQUET else (*LINE_COLUMNS, DAMAGE)


def export_files(format: Format, folder: Path, disk: Disk, read: ReadMessage) -> ExportFiles:
    """Files of this format, written into an empty folder. ``read`` gives a message whose body cannot be read."""
    return ParquetFiles(folder, disk) if format is Format.PARQUET else LineFiles(format, folder, disk, read)


# -- names -------------------------------------------------------------------------------------------------------


def partition_folder(day: str | None, topic: str | None) -> str:
    """The folder of the messages of a day and a topic."""
    return f"day={day or NO_VALUE}/topic={topic or NO_VALUE}"


def escaped(topic: str) -> str | None:
    """A topic as a part of a folder's name; None if no folder can have it."""
    name = "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in topic)
    try:
        size = len(f"topic={name}".encode())
    except UnicodeEncodeError:
        return None
    return name if topic and size <= NAME_SIZE_MAX else None


def day_of(day_number: int) -> str | None:
    """``2026-01-31``; None for what is out of all calendars."""
    return None if day_number == NO_DAY else str(np.datetime64(day_number, "D"))


# -- one file ----------------------------------------------------------------------------------------------------


class _Aside:
    """A file that is written from its begin to its end, and summed meanwhile. pyarrow takes it for Python's own."""

    def __init__(self, folder: Path, number: int, target: str, disk: Disk) -> None:
        self._file = disk.create(folder / f"{number:06d}", 0, reserve=False)
        self._target = target
        self._size = 0
        self._sum = hashlib.sha256()
        self.messages = 0
        self._from = self._to = -1
        self.closed = False

    def count(self, offsets: NDArray[np.int64]) -> None:
        """Note messages that are written to it."""
        if not self.messages:
            self._from = int(offsets[0])
        self._to = int(offsets[-1])
        self.messages += len(offsets)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view, self._size)
        self._sum.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """pyarrow's to call; :meth:`finish` closes."""

    def finish(self) -> ExportedFile:
        self._file.flush()
        self._file.close()
        return ExportedFile(
            str(self._file.path), self._target, self.messages, self._size, self._from, self._to, self._sum.hexdigest()
        )


def _offsets(batch: Any) -> NDArray[np.int64]:
    column = batch.column("physical_offset")
    values: NDArray[np.int64] = np.frombuffer(column.buffers()[1], np.int64)
    return values[column.offset : column.offset + len(column)]


# -- lines -------------------------------------------------------------------------------------------------------


class LineFiles:
    """Files of lines, one after the other; but for the bulk interface, one."""

    def __init__(self, format: Format, folder: Path, disk: Disk, read: ReadMessage) -> None:
        writers: dict[Format, Callable[[Any, ReadMessage], Iterator[Lines]]] = {
            Format.JSON_LINES: json_lines,
            Format.CSV: csv_lines,
            Format.BULK: bulk_lines,
        }
        self._format = format
        self._lines = writers[format]
        self._size_max = BULK_SIZE_MAX if format is Format.BULK else OFFSET_MAX
        self._read = read
        self._folder = folder
        self._disk = disk
        self._file: _Aside | None = None
        self._done: list[ExportedFile] = []

    @property
    def without_folder(self) -> list[str]:
        """No folder is named after a topic here."""
        return []

    def put(self, batch: Any) -> None:
        offsets = _offsets(batch)
        for data, ends in self._lines(batch, self._read):
            self._write(data, ends, offsets[: len(ends)])
            offsets = offsets[len(ends) :]

    def finish(self) -> list[ExportedFile]:
        self._close()
        return self._done

    def _write(self, data: memoryview, ends: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """Write the lines of messages into as few files as hold them; a message that fits into none has one."""
        done = begin = 0
        while done < len(ends):
            if self._file is None:
                self._file = self._open(int(offsets[done]))
            fitting = int(np.searchsorted(ends, begin + self._size_max - self._file.tell(), "right"))
            if fitting == done and self._file.messages:
                self._close()
                continue
            fitting = max(fitting, done + 1)
            end = int(ends[fitting - 1])
            self._file.write(data[begin:end])
            self._file.count(offsets[done:fitting])
            done, begin = fitting, end

    def _open(self, offset: int) -> _Aside:
        target = f"part-{offset_name(offset)}.{SUFFIXES[self._format]}"
        file = _Aside(self._folder, len(self._done), target, self._disk)
        if self._format is Format.CSV:
            file.write(CSV_HEAD)
        return file

    def _close(self) -> None:
        if self._file is not None:
            self._done.append(self._file.finish())
            self._file = None


# -- Parquet -----------------------------------------------------------------------------------------------------


class _Partition:
    """The file of a day and a topic that is being written, and the rows that wait for its next row group."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.waiting: list[Any] = []
        self.waiting_size = 0
        self.file: _Aside | None = None
        self.writer: Any = None


class ParquetFiles:
    """One file for each day and topic; several, where more are to be open than can be.

    The topic is in the name of the folder and in no file, as with all partitioned tables.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._partitions: OrderedDict[str, _Partition] = OrderedDict()  # the one that was written to last is the last
        self._topics: dict[str, str | None] = {}
        self._waiting_size = 0
        self._file_count = 0
        self._done: list[ExportedFile] = []

    def put(self, batch: Any) -> None:
        for name, rows in self._split(batch):
            partition = self._partitions.setdefault(name, _Partition(name))
            self._partitions.move_to_end(name)
            partition.waiting.append(rows)
            partition.waiting_size += rows.nbytes
            self._waiting_size += rows.nbytes
            if partition.waiting_size >= ROW_GROUP_SIZE:
                self._write(partition)
        while self._waiting_size > WAITING_SIZE_MAX:
            self._write(max(self._partitions.values(), key=lambda partition: partition.waiting_size))

    @property
    def without_folder(self) -> list[str]:
        """Topics after which no folder can be named: of their messages, the topic is null."""
        return [topic for topic, name in self._topics.items() if name is None]

    def finish(self) -> list[ExportedFile]:
        for partition in list(self._partitions.values()):
            self._close(partition)
        return self._done

    def _split(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """The rows of each folder, without the topic."""
        topics = batch.column("topic").dictionary_encode()
        names = [self._topic(topic.as_py()) for topic in topics.dictionary]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        codes = np.frombuffer(topics.indices.buffers()[1], np.int32)[: len(batch)]
        groups = _days(batch) * len(numbers) + np.array([numbers[name] for name in names])[codes]
        values, groups = np.unique(groups, return_inverse=True)
        rest = batch.drop_columns(["topic"])
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=len(values))).tolist()
        topic_of = list(numbers)
        for value, begin, end in zip(values.tolist(), [0, *ends[:-1]], ends, strict=True):
            day, number = divmod(value, len(numbers))
            folder = partition_folder(day_of(day), topic_of[number])
            yield folder, rest if len(values) == 1 else rest.take(_indices(order[begin:end]))

    def _topic(self, topic: str) -> str | None:
        if topic not in self._topics:
            self._topics[topic] = escaped(topic)
        return self._topics[topic]

    def _write(self, partition: _Partition) -> None:
        """Write what waits, as one row group."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._waiting_size -= partition.waiting_size
        table = pa.Table.from_batches(partition.waiting)
        if partition.file is None:
            self._make_room()
            first = int(_offsets(partition.waiting[0])[0])
            target = f"{partition.folder}/part-{offset_name(first)}.parquet"
            partition.file = _Aside(self._folder, self._file_count, target, self._disk)
            self._file_count += 1
            partition.writer = pq.ParquetWriter(partition.file, table.schema, compression="zstd")
        partition.writer.write_table(table, row_group_size=len(table))
        for rows in partition.waiting:
            partition.file.count(_offsets(rows))
        partition.waiting, partition.waiting_size = [], 0

    def _make_room(self) -> None:
        """Close the file that was written to the longest ago, if no more can be open."""
        opened = [partition for partition in self._partitions.values() if partition.file is not None]
        if len(opened) >= OPEN_MAX:
            self._close(opened[0])

    def _close(self, partition: _Partition) -> None:
        if partition.waiting:
            self._write(partition)
        if partition.file is not None:
            partition.writer.close()
            self._done.append(partition.file.finish())
        del self._partitions[partition.folder]


def _days(batch: Any) -> NDArray[np.int64]:
    """The day of each message, counted from 1970 in UTC."""
    column = batch.column("store_timestamp_ms")
    times = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
    return np.where((times >= TIME_MS_MIN) & (times <= TIME_MS_MAX), np.floor_divide(times, DAY_MS), NO_DAY)


def _indices(numbers: NDArray[np.int64]) -> Any:
    """An Arrow array of numbers. (Arrow's own way loads pandas.)"""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
