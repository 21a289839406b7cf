"""The steps of an evaluation of fields that run in Python processes, before Java and behind it.

Read          a stretch of log -> columns of its messages
SpillValues   their values     -> spills
Match         whether they hit -> where their messages lie
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import FormatError, StoreError, WhenceError
from whence.files.disk import Disk
from whence.pipeline.runner import Done
from whence.pipeline.tasks import own_name
from whence.store.damage import Damage
from whence.store.field_spill import FieldSpill, Texts
from whence.store.message_columns import BODY_DAMAGE_MAX, DAMAGE, MessageColumns, bad_bodies, text_array
from whence.store.spill import Stretch
from whence.store.stretch_rows import StretchRows, stretch_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.accumulators import Accumulator

PACKED_MAX = 64  # messages in one row; fewer, if they are large
PACKED_SIZE = 1 << 20  # bytes
PACKED = "packed_"  # before the name of a column of such rows: no expression can take it for that of a message
_LATER = 1 << 32  # errors that come of others are told only if there are none


@dataclass(frozen=True)
class Read:
    """The first step. ``rows``: from which to which of its stretch's messages; None for all.

    ``is_packed``: a row has some of them.
    """

    stretches: tuple[Stretch, ...]
    names: tuple[str, ...]
    done: Accumulator[Done]
    rows: tuple[int, int] | None = None
    is_packed: bool = False

    def __call__(self, inputs: Iterator[Any]) -> Iterator[Any]:
        number = _partition()
        for _ in inputs:
            pass
        try:
            batches = self._batches(self.stretches[number])
            yield from map(packed, batches) if self.is_packed else batches
        except WhenceError as error:
            error.add_note(f"in a task on {gethostname()}")
            self.done.add(Done(errors={number: error}))

    def _batches(self, stretch: Stretch) -> Iterator[Any]:
        columns = MessageColumns(self.names)
        found: list[Damage] = []
        for data, rows in self._rows(stretch):
            done = 0
            try:
                for batch in columns.batches(data, stretch.base, rows):
                    yield batch
                    done += batch.num_rows
            except FormatError:
                yield from self._with_damage(data, stretch, rows[done:], found)
        if found:
            self.done.add(Done(damage=found[:BODY_DAMAGE_MAX]))

    def _with_damage(
        self, data: NDArray[np.uint8], stretch: Stretch, rows: NDArray[np.void], found: list[Damage]
    ) -> Iterator[Any]:
        """Messages with bodies that cannot be decompressed: that is no reason to stop, they are NULL, and told."""
        done = 0
        for batch in MessageColumns((*self.names, DAMAGE)).batches(data, stretch.base, rows):
            found += bad_bodies(stretch.path, stretch.base, rows[done:], batch)
            yield batch.select(list(self.names))
            done += batch.num_rows

    def _rows(self, stretch: Stretch) -> Iterator[StretchRows]:
        begin, end = (0, None) if self.rows is None else self.rows
        seen = 0
        for data, rows in stretch_rows(stretch):
            wanted = rows[max(begin - seen, 0) : None if end is None else max(end - seen, 0)]
            seen += len(rows)
            if len(wanted):
                yield StretchRows(data, wanted)
            if end is not None and seen >= end:
                return


def packed(batch: Any) -> Any:
    """A batch whose rows are arrays of its rows, some of them each."""
    import pyarrow as pa

    count = batch.num_rows
    step = min(max(PACKED_SIZE * count // max(batch.nbytes, 1), 1), PACKED_MAX)
    offsets = pa.py_buffer(np.append(np.arange(0, count, step), count).astype(np.int32))
    columns = [
        pa.Array.from_buffers(
            pa.list_(pa.field("element", column.type)), -(-count // step), [None, offsets], children=[column]
        )
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=[f"{PACKED}{name}" for name in batch.schema.names])


def _partition() -> int:
    """The number of the stretch that a task is about: partitions stay the same from the first step to the last."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


@dataclass(frozen=True)
class SpillValues:
    """The last step: values, in the order of the messages, become spills."""

    stretches: tuple[Stretch, ...]
    field_count: int
    work: str
    flush: bool
    done: Accumulator[Done]
    is_packed: bool = False

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        number = _partition()
        stretch = self.stretches[number]
        try:
            told, message_count = self._spilled(number, stretch, batches)
        except WhenceError as error:
            for _ in batches:
                pass  # so that the other steps end well, and what they have to tell is told
            error.add_note(f"in a task on {gethostname()}")
            self.done.add(Done(errors={_LATER + number: error}))
            return
        self.done.add(Done(1, stretch.size, message_count))
        yield pa.RecordBatch.from_arrays([text_array([json.dumps(told)])], names=["told"])

    def _spilled(self, number: int, stretch: Stretch, batches: Iterator[Any]) -> tuple[dict[str, Any], int]:
        with ExitStack() as stack:
            spills = [
                stack.enter_context(
                    FieldSpill(
                        Path(self.work), own_name(f"{number:08d}-field-{n}"), stretch, Disk(), flush=self.flush
                    )
                )
                for n in range(self.field_count)
            ]
            messages = _Messages(stretch)
            for batch in batches:
                columns = [column.flatten() for column in batch.columns] if self.is_packed else batch.columns
                done = 0
                while done < len(columns[0]):
                    rows, topics = messages.take(len(columns[0]) - done)
                    for column, spill in zip(columns, spills, strict=True):
                        counts, values = texts_of(column.slice(done, len(rows)))
                        spill.put(rows, topics, counts, values)
                    done += len(rows)
            messages.finish()
            spilled = [asdict(spill.finish()) for spill in spills]
        return {"number": number, "spilled": spilled}, messages.count


@dataclass(frozen=True)
class Match:
    """The last step of another job: where the messages lie for which something is true."""

    stretches: tuple[Stretch, ...]
    done: Accumulator[Done]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        number = _partition()
        stretch = self.stretches[number]
        messages = _Messages(stretch)
        try:
            for batch in batches:
                hits = _bits(batch.column(0), 1)
                done, found = 0, []
                while done < len(hits):
                    rows, _ = messages.take(len(hits) - done)
                    found.append(rows["physical_offset"][hits[done : done + len(rows)]])
                    done += len(rows)
                if hits.any():
                    data = pa.array([np.concatenate(found).tobytes()], pa.binary())
                    numbers = pa.array([number], pa.int32())
                    yield pa.RecordBatch.from_arrays([numbers, data], names=["number", "offsets"])
            messages.finish()
        except WhenceError as error:
            for _ in batches:
                pass
            self.done.add(Done(errors={_LATER + number: error}))
            return
        self.done.add(Done(1, stretch.size, messages.count))


class _Messages:
    """The messages of a stretch and their topics, some at a time."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self._pieces = self._all()
        self._rows: NDArray[np.void] = np.empty(0, np.uint8)
        self._topics = Texts(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
        self._at = 0
        self.count = 0

    def _all(self) -> Iterator[tuple[NDArray[np.void], Texts]]:
        columns = MessageColumns(("topic",))
        for data, rows in stretch_rows(self._stretch):
            done = 0
            for batch in columns.batches(data, self._stretch.base, rows):
                _, topics = texts_of(batch.column(0))
                yield rows[done : done + batch.num_rows], topics
                done += batch.num_rows

    def take(self, count: int) -> tuple[NDArray[np.void], Texts]:
        """The next messages, up to so many, and one at least."""
        if self._at == len(self._rows):
            try:
                self._rows, self._topics = next(self._pieces)
            except StopIteration:
                raise StoreError(
                    f"{self._stretch.path}: Spark gave back more values than there are messages"
                ) from None
            self._at = 0
        piece = slice(self._at, self._at + count)
        rows = self._rows[piece]
        self._at += len(rows)
        self.count += len(rows)
        topics = self._topics
        return rows, Texts(topics.begins[piece], topics.ends[piece], topics.data)

    def finish(self) -> None:
        if self._at < len(self._rows) or next(self._pieces, None) is not None:
            raise StoreError(f"{self._stretch.path}: Spark gave back fewer values than there are messages")


def texts_of(column: Any) -> tuple[NDArray[np.int64], Texts]:
    """How many texts each row of an Arrow column of texts, or of lists of texts, has; and the texts."""
    import pyarrow as pa

    valid = _valid(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        offsets = _offsets(column)
        counts = np.where(valid, np.diff(offsets), 0)
        texts = _texts(column.values)
        if valid.all():
            wanted = slice(int(offsets[0]), int(offsets[-1]))
            return counts, Texts(texts.begins[wanted], texts.ends[wanted], texts.data)
        numbers = np.repeat(offsets[:-1] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        return counts, Texts(texts.begins[numbers], texts.ends[numbers], texts.data)
    texts = _texts(column)
    if valid.all():
        return np.ones(len(column), np.int64), texts
    return valid.astype(np.int64), Texts(texts.begins[valid], texts.ends[valid], texts.data)


def _texts(column: Any) -> Texts:
    offsets, data = _offsets(column), column.buffers()[2]
    return Texts(offsets[:-1], offsets[1:], np.frombuffer(b"\0" if data is None or not data.size else data, np.uint8))


def _offsets(column: Any) -> NDArray[np.int64]:
    import pyarrow as pa

    kind = np.int64 if pa.types.is_large_list(column.type) or pa.types.is_large_string(column.type) else np.int32
    buffer = column.buffers()[1]
    if not len(column) or buffer is None:
        return np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(buffer, kind, len(column) + 1, column.offset * np.dtype(kind).itemsize).astype(np.int64)


def _valid(column: Any) -> NDArray[np.bool_]:
    """Which rows of a column are not null."""
    return _bits(column, 0) if column.null_count else np.ones(len(column), np.bool_)


def _bits(column: Any, number: int) -> NDArray[np.bool_]:
    """A buffer of a column that has a bit for each row."""
    buffer = column.buffers()[number]
    bits = np.unpackbits(np.frombuffer(b"" if buffer is None else buffer, np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)
