"""``--where``: which messages of some parts of the log an expression of Spark SQL is true for.

    part -> rows that answer the question -> columns that the expression reads -> Spark -> offsets, spilled

Only those columns go to Java, and only offsets come back: what they lead to is read again by the tasks that write the
files. Bodies that an expression does not read never leave Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import StoreError, UsageError, WhenceError
from whence.files.disk import Disk
from whence.files.mapped_file import MappedFile, read_whole
from whence.pipeline.export_tasks import Met, Part, PartRows, RowFilter
from whence.pipeline.expression_session import expression_session
from whence.pipeline.expressions import Expression, check_expression, quiet_queries
from whence.pipeline.reasons import first_failing, why_of
from whence.pipeline.runner import Done, Runner
from whence.pipeline.tasks import own_name
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import LogFile, PlainBudget
from whence.store.message_columns import BODY_DAMAGE_MAX, COLUMNS, DAMAGE, MessageColumns, bad_bodies

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

PART = "part"
OFFSET = "physical_offset"
TOLD_SIZE_MAX = 1 << 30
SPILLED = f"{PART} int, path string"
READS_ALL = {"spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PruneFilters"}
"""Spark would not look at the log where an expression is never true, and so not tell of damage in it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Evaluates expressions on Spark, with these settings."""

    spark: SparkSession
    runner: Runner
    settings: Mapping[str, str]

    def __call__(
        self, parts: Sequence[Part], row_filter: RowFilter, sql: str, work: Path
    ) -> tuple[list[Part], list[Damage], Met]:
        """The parts with the offsets of those messages for which the expression is true; damage; and what was met."""
        session = expression_session(self.spark, "--where", {**self.settings, **READS_ALL})
        expression = check_expression(session, COLUMNS, sql)
        if expression.type != "boolean":
            raise UsageError(f"--where {sql!r} is of type {expression.type}; it must be true or false of a message")
        if not parts:
            return [], [], Met(0)
        asked = _Asked(session, expression, row_filter, str(work))

        def spilled(done: Accumulator[Done]) -> DataFrame:
            return asked.kept(parts, done).mapInArrow(_Spiller(str(work), done), SPILLED)

        with quiet_queries():
            try:
                rows = self.runner.collect("where", spilled, len(parts), sum(part.size for part in parts))
            except StoreError as error:
                raise self._told(error, asked, parts) from error.__cause__
        paths = {row[PART]: row["path"] for row in rows}
        damage: list[Damage] = []
        met = Met(0)
        for path in sorted(work.glob("*.told")):
            told = json.loads(read_whole(path, TOLD_SIZE_MAX))
            damage += [Damage(**each | {"kind": DamageKind(each["kind"])}) for each in told["damage"]]
            met |= Met(told["met"])
        found = [replace(part, offsets_path=paths[number]) for number, part in enumerate(parts) if number in paths]
        return found, list(dict.fromkeys(damage)), met

    def _told(self, error: StoreError, asked: _Asked, parts: Sequence[Part]) -> WhenceError:
        """The same error, or what it means if the expression is at fault: on which message it fails, and why."""

        def why(parts: Sequence[Part]) -> str | None:
            try:
                self.runner.collect("look for what fails", lambda done: asked.counted(parts, done), len(parts))
            except StoreError as error:
                return why_of(error.__cause__)
            return None

        def only(begin: int, end: int) -> list[Part]:
            return [replace(part, offsets=offsets[begin:end].tobytes(), offsets_path=None)]

        if why_of(error.__cause__) is None:
            return error
        part = parts[first_failing(len(parts), lambda begin, end: why(parts[begin:end]))]
        offsets = _offsets_of(part, asked.filter)
        number = first_failing(len(offsets), lambda begin, end: why(only(begin, end)))
        reason = why(only(number, number + 1))
        if reason is None:
            return error
        return UsageError(f"--where fails on the message at physical offset {offsets[number]}: {reason}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """An expression, and of which messages it is asked."""

    session: SparkSession
    expression: Expression
    filter: RowFilter
    work: str

    def kept(self, parts: Sequence[Part], done: Accumulator[Done]) -> DataFrame:
        """Where the messages lie for which it is true."""
        from pyspark.sql import functions

        reader = _Reader(tuple(parts), self.filter, self.expression.columns, self.work, done)
        messages = self.session.range(0, len(parts), 1, len(parts)).mapInArrow(reader, reader.schema)
        return messages.where(functions.expr(self.expression.sql)).select(PART, OFFSET)

    def counted(self, parts: Sequence[Part], done: Accumulator[Done]) -> DataFrame:
        """How many these are."""
        from pyspark.sql import functions

        return self.kept(parts, done).agg(functions.count(OFFSET))


def _offsets_of(part: Part, row_filter: RowFilter) -> NDArray[np.int64]:
    """Where the messages of a part lie of which an expression is asked."""
    with MappedFile(Path(part.path)) as mapped:
        rows = PartRows(part, LogFile(mapped, part.base, PlainBudget()), row_filter)
        found = [some["physical_offset"].copy() for some in rows]
    return np.concatenate([np.empty(0, np.int64), *found])


@dataclass(frozen=True, slots=True)
class _Reader:
    """Runs in a task: gives the columns of a part's messages, with the part's number."""

    parts: tuple[Part, ...]
    filter: RowFilter
    columns: tuple[str, ...]
    work: str
    done: Accumulator[Done]

    @property
    def schema(self) -> str:
        names = (OFFSET, *(name for name in self.columns if name != OFFSET))
        return ", ".join([f"{PART} int", *(f"`{name}` {COLUMNS[name]}" for name in names)])

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _telling(self.done, self._read(number))

    def _read(self, number: int) -> Iterator[Any]:
        import pyarrow as pa

        part = self.parts[number]
        names = (OFFSET, *(name for name in self.columns if name != OFFSET))
        columns = MessageColumns((*names, DAMAGE))
        count = 0
        bad: list[Damage] = []
        with MappedFile(Path(part.path)) as mapped:
            rows = PartRows(part, LogFile(mapped, part.base, PlainBudget()), self.filter)
            for some in rows:
                done = 0
                for batch in columns.batches(rows.data, part.base, some):
                    bad += bad_bodies(part.path, part.base, some[done:], batch)
                    done += len(batch)
                    numbers = np.full(len(batch), number, np.int32)
                    first = pa.Array.from_buffers(pa.int32(), len(batch), [None, pa.py_buffer(numbers)])
                    arrays = [first, *(batch.column(name) for name in names)]
                    count += len(batch)
                    yield pa.RecordBatch.from_arrays(arrays, [PART, *names])
        damage = [asdict(each) for each in rows.damage + bad[:BODY_DAMAGE_MAX]]
        if damage or rows.met:
            told = json.dumps({"damage": damage, "met": rows.met}).encode()
            Disk().replace(Path(self.work, f"{number:08d}.told"), told)
        self.done.add(Done(1, part.size, count))


@dataclass(frozen=True, slots=True)
class _Spiller:
    """Runs in a task: writes the offsets of a part to a file, and gives its name; nothing if there are none."""

    work: str
    done: Accumulator[Done]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return _telling(self.done, self._spill(batches))

    def _spill(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        disk = Disk()
        file = None
        size, number = 0, -1
        for batch in batches:
            if not len(batch):
                continue
            if file is None:
                number = batch.column(0)[0].as_py()
                file = disk.create(Path(self.work, own_name(f"{number:08d}")), 0, reserve=False)
            column = batch.column(1)
            offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
            file.write(offsets.tobytes(), size)
            size += offsets.nbytes
        if file is not None:
            file.close()
            yield pa.RecordBatch.from_pylist(
                [{PART: number, "path": str(file.path)}],
                schema=pa.schema([(PART, pa.int32()), ("path", pa.string())]),
            )


def _telling(done: Accumulator[Done], batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches. An error of whence's own ends the job: Spark would try again, and find the same."""
    from pyspark import TaskContext

    try:
        yield from batches
    except WhenceError as error:
        context = TaskContext.get()
        assert context is not None
        error.add_note(f"in a task on {gethostname()}")
        done.add(Done(errors={context.partitionId(): error}))
