"""Evaluation of fields on Spark: a task for each stretch of log, in three steps.

    a Python process    scans the stretch, and hands on the columns that the expressions look at
    Java                computes the values: a text for each message, or several, or none
    a Python process    scans the stretch once more, hashes the values and spills them

Messages are as many and in the same order before and behind Java, so that their places and topics need not pass
through it: what it gets is what it needs, and what it gives are values.

Where each expression looks at one column only, as most do, a row is an array of that column of some messages, and the
expression is the body of a lambda over it: for to hand on a row costs Spark more than to hand on an element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.errors import FormatError, StoreError, UsageError, WhenceError
from whence.files.disk import Disk
from whence.pipeline.expression_session import ANSI, ZONE, expression_session
from whence.pipeline.expressions import quiet_queries, reason_of
from whence.pipeline.field_sql import CheckedSql, check_sql
from whence.pipeline.runner import Done, Runner
from whence.pipeline.tasks import own_name
from whence.store.damage import Damage
from whence.store.field_claim import FieldClaim
from whence.store.field_spill import FieldSpill, Texts
from whence.store.message_columns import BODY_DAMAGE_MAX, COLUMNS, DAMAGE, MessageColumns, bad_bodies, text_array
from whence.store.spill import Spilled, Stretch
from whence.store.stretch_rows import StretchRows, stretch_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_BATCH = 32_768  # messages that Spark hands back at once
PACKED_MAX = 64  # of them in one row; fewer, if they are large
PACKED_SIZE = 1 << 20  # bytes
PACKED = "packed_"  # before the name of a column of such rows: no expression can take it for that of a message
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LATER = 1 << 32  # errors that come of others are told only if there are none


@dataclass(frozen=True, slots=True)
class Definition:
    """What a field is: an expression, and the session it is computed in."""

    name: str
    sql: str
    session_zone: str
    ansi: bool

    @classmethod
    def noted(cls, name: str, claim: FieldClaim) -> Definition:
        """What sidecar.json says that a field is."""
        return cls(name, claim.sql, claim.session_zone, claim.ansi)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The spills of each field, one for each stretch; and bodies that could not be read."""

    spilled: dict[str, tuple[Spilled, ...]]
    damage: tuple[Damage, ...]


class Matching(NamedTuple):
    """Where messages lie that have what was asked for; and bodies that could not be read."""

    offsets: NDArray[np.int64]
    damage: tuple[Damage, ...]


class Evaluator:
    """Evaluates fields on a Spark session."""

    def __init__(self, spark: SparkSession, runner: Runner) -> None:
        self._spark = spark
        self._runner = runner
        self._checked: dict[Definition, CheckedSql] = {}

    @property
    def version(self) -> str:
        """Of Spark."""
        return str(self._spark.version)

    def session_of(self) -> tuple[str, bool]:
        """Zone and ANSI mode of the session, with which a new field is computed."""
        return str(self._spark.conf.get(ZONE)), str(self._spark.conf.get(ANSI)).lower() == "true"

    def check(self, definition: Definition) -> CheckedSql:
        """See that an expression can be a field. It is looked at once: that takes Spark a tenth of a second."""
        if definition not in self._checked:
            self._checked[definition] = check_sql(self._session(definition), definition.name, definition.sql)
        return self._checked[definition]

    def evaluate(self, definitions: Sequence[Definition], stretches: Sequence[Stretch], work: Path) -> Evaluated:
        """Spill the values of fields, which are all of one zone and ANSI mode, in proven stretches of log."""
        if not stretches:
            return Evaluated({definition.name: () for definition in definitions}, ())
        checked = [self.check(definition) for definition in definitions]
        session = self._session(definitions[0])
        size = sum(stretch.size for stretch in stretches)
        names = _columns_of(checked)
        is_packed = _can_be_packed(session, checked)
        session.conf.set(BATCH, str(ROWS_A_BATCH // PACKED_MAX if is_packed else ROWS_A_BATCH))

        told_by: list[Accumulator[Done]] = []

        def spilled(done: Accumulator[Done]) -> DataFrame:
            told_by.append(done)
            make = _packed_values if is_packed else _values
            values = make(session, checked, names, _Read(tuple(stretches), names, done, is_packed=is_packed))
            spill = _Spill(
                tuple(stretches), len(checked), str(work), not self._runner.is_local, done, is_packed=is_packed
            )
            return values.mapInArrow(spill, "told string")

        with quiet_queries():
            try:
                rows = self._runner.collect("evaluate", spilled, len(stretches), size)
            except StoreError as error:
                failure = _Failure(self._runner, session, definitions, checked, stretches)
                raise failure.told(error) from error.__cause__
        told = sorted((json.loads(row.told) for row in rows), key=lambda each: int(each["number"]))
        if [each["number"] for each in told] != list(range(len(stretches))):
            raise StoreError(f"Spark gave back the values of {len(told)} of {len(stretches)} stretches")
        return Evaluated(
            {
                definition.name: tuple(_spilled_from(each["spilled"][number]) for each in told)
                for number, definition in enumerate(definitions)
            },
            tuple(sorted(told_by[0].value.damage, key=lambda each: (each.path, each.position))),
        )

    def matching(
        self, definitions: Sequence[Definition], values: Sequence[str], stretches: Sequence[Stretch]
    ) -> Matching:
        """The messages of proven stretches whose fields, of one zone and ANSI mode, have these values."""
        from pyspark.sql import functions

        checked = [self.check(definition) for definition in definitions]
        if not stretches:
            return Matching(np.empty(0, np.int64), ())
        session, names = self._session(definitions[0]), _columns_of(checked)
        told_by: list[Accumulator[Done]] = []

        def matched(done: Accumulator[Done]) -> DataFrame:
            told_by.append(done)
            found = _values(session, checked, names, _Read(tuple(stretches), names, done))
            hit = functions.lit(True)
            for n, each in enumerate(checked):
                column, wanted = functions.col(f"value{n}"), functions.lit(values[n])
                hit = hit & (functions.array_contains(column, wanted) if each.is_array else column == wanted)
            hits = found.select(functions.coalesce(hit, functions.lit(False)).alias("hit"))
            return hits.mapInArrow(_Match(tuple(stretches), done), "number int, offsets binary")

        with quiet_queries():
            try:
                size = sum(stretch.size for stretch in stretches)
                rows = self._runner.collect("evaluate", matched, len(stretches), size)
            except StoreError as error:
                failure = _Failure(self._runner, session, definitions, checked, stretches)
                raise failure.told(error) from error.__cause__
        found = [np.frombuffer(bytes(row.offsets), np.int64) for row in rows]
        return Matching(np.sort(np.concatenate([np.empty(0, np.int64), *found])), tuple(told_by[0].value.damage))

    def _session(self, definition: Definition) -> SparkSession:
        """A session with the settings of a field."""
        settings = {ZONE: definition.session_zone, ANSI: str(definition.ansi).lower()}
        session = expression_session(self._spark, f"field {definition.name}", settings)
        session.conf.set(BATCH, str(ROWS_A_BATCH))
        return session


def _columns_of(checked: Sequence[CheckedSql]) -> tuple[str, ...]:
    """What the expressions look at; something is needed to count messages by."""
    used = {column for each in checked for column in each.columns}
    return tuple(column for column in COLUMNS if column in used) or ("physical_offset",)


def _values(session: SparkSession, checked: Sequence[CheckedSql], names: Sequence[str], read: _Read) -> DataFrame:
    """The values of each message, a column a field."""
    from pyspark.sql import functions

    count = len(read.stretches)
    messages = session.range(0, count, 1, count).mapInArrow(
        read, ", ".join(f"{name} {COLUMNS[name]}" for name in names)
    )
    given = messages.select(*(functions.expr(each.sql).alias(f"given{n}") for n, each in enumerate(checked)))
    return given.select(
        *(functions.expr(_text_of(f"given{n}", each)).alias(f"value{n}") for n, each in enumerate(checked))
    )


def _packed_values(
    session: SparkSession, checked: Sequence[CheckedSql], names: Sequence[str], read: _Read
) -> DataFrame:
    """The same of some messages a row: an array for each field."""
    from pyspark.sql import functions

    count = len(read.stretches)
    schema = ", ".join(f"{PACKED}{name} array<{COLUMNS[name]}>" for name in names)
    messages = session.range(0, count, 1, count).mapInArrow(read, schema)
    return messages.select(
        *(functions.expr(_lambda_of(each, names[0])).alias(f"value{n}") for n, each in enumerate(checked))
    )


def _text_of(given: str, checked: CheckedSql) -> str:
    """The texts that are indexed of what an expression gives."""
    if checked.is_array:
        return f"array_distinct(array_compact(transform({given}, x -> make_valid_utf8(cast(x as string)))))"
    return f"make_valid_utf8(cast({given} as string))"


def _lambda_of(checked: CheckedSql, any_column: str) -> str:
    """An expression over an array of its column. The variable bears the column's name, so that its SQL can stay."""
    column = checked.columns[0] if checked.columns else any_column
    given = f"({checked.sql}\n)"  # which may end in a comment
    return f"transform({PACKED}{column}, {column} -> {_text_of(given, checked)})"


def _can_be_packed(session: SparkSession, checked: Sequence[CheckedSql]) -> bool:
    """Whether a row may have several messages: no expression looks at two columns, and each may be in a lambda.

    One that is given a name (``upper(topic) as t``), for example, may not.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    names = _columns_of(checked)
    if any(len(each.columns) > 1 for each in checked):
        return False
    nothing = session.range(0).select(
        *(functions.lit(None).cast(f"array<{COLUMNS[name]}>").alias(f"{PACKED}{name}") for name in names)
    )
    try:
        given = nothing.select(*(functions.expr(_lambda_of(each, names[0])) for each in checked))
        kinds = [kind.dataType.simpleString() for kind in given.schema.fields]
    except PySparkException:
        return False
    return kinds == ["array<array<string>>" if each.is_array else "array<string>" for each in checked]


# -- in the tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
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
            yield from map(_packed, batches) if self.is_packed else batches
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


def _packed(batch: Any) -> Any:
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
class _Spill:
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
class _Match:
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


def _spilled_from(document: dict[str, Any]) -> Spilled:
    return Spilled(**document | {"damage": (), "holes": ()})


# -- an expression that fails --------------------------------------------------------------------------------------


class _Failure:
    """Looks for the first message, in the order of the log, on which an expression fails.

    Spark tells why, but not on which row: so halves are tried, until one message is left.
    """

    def __init__(
        self,
        runner: Runner,
        session: SparkSession,
        definitions: Sequence[Definition],
        checked: Sequence[CheckedSql],
        stretches: Sequence[Stretch],
    ) -> None:
        self._runner = runner
        self._session = session
        self._definitions = definitions
        self._checked = checked
        self._stretches = stretches

    def told(self, error: StoreError) -> WhenceError:
        """The same error, or what it means if an expression is at fault."""
        if _why(error.__cause__) is None:
            return error
        first = self._first(len(self._stretches), lambda begin, end: self._why(self._stretches[begin:end]))
        stretch = self._stretches[first]
        offsets = [each.rows["physical_offset"].copy() for each in stretch_rows(stretch)]
        rows = np.concatenate([np.empty(0, np.int64), *offsets])
        number = self._first(len(rows), lambda begin, end: self._why([stretch], (begin, end)))
        for definition, checked in zip(self._definitions, self._checked, strict=True):
            why = self._why([stretch], (number, number + 1), [checked])
            if why is not None:
                return UsageError(
                    f"field {definition.name}: its expression fails on the message at physical offset "
                    f"{rows[number]}: {why}"
                )
        return error

    def _first(self, count: int, fails: Callable[[int, int], str | None]) -> int:
        """The first of so many that fails. One of them does, and if not the last one is as good as any."""
        begin, end = 0, count
        while end - begin > 1:
            middle = (begin + end) // 2
            begin, end = (begin, middle) if fails(begin, middle) is not None else (middle, end)
        return begin

    def _why(
        self,
        stretches: Sequence[Stretch],
        rows: tuple[int, int] | None = None,
        checked: Sequence[CheckedSql] | None = None,
    ) -> str | None:
        """Why an expression fails on these; None if it does not."""
        from pyspark.sql import functions

        expressions = self._checked if checked is None else checked
        names = _columns_of(expressions)

        def values(done: Accumulator[Done]) -> DataFrame:
            read = _Read(tuple(stretches), names, done, rows)
            found = _values(self._session, expressions, names, read)
            return found.agg(functions.max(functions.xxhash64(*found.columns)))

        try:
            self._runner.collect("look for what fails", values, len(stretches))
        except StoreError as error:
            return _why(error.__cause__)
        return None


def _why(error: BaseException | None) -> str | None:
    """Why an expression fails; None if an error of Spark's is not of a query, but of the machines or of Python."""
    from py4j.java_gateway import is_instance_of
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException, PythonException, SparkRuntimeException

    if isinstance(error, PySparkException):
        has_state = not isinstance(error, PythonException) and error.getSqlState() is not None
        return reason_of(error) if has_state or isinstance(error, SparkRuntimeException) else None
    if not isinstance(error, Py4JJavaError):
        return None
    # What PySpark has no name for: an error of Spark's with a state of SQL (parse_json), or one of Java's (split).
    gateway, failure = SparkContext._gateway, error.java_exception
    if is_instance_of(gateway, failure, "org.apache.spark.SparkThrowable") and failure.getSqlState():
        return reason_of(failure.getMessage())
    cause = failure.getCause()
    for thrown in (failure, cause):  # by what is constant, before there are tasks, or in a task
        if is_instance_of(gateway, thrown, "java.lang.VirtualMachineError"):  # no heap, or no stack, is left
            return reason_of(thrown.toString())
    if is_instance_of(gateway, cause, "java.lang.RuntimeException") and cause.getClass().getName().startswith(
        "java."
    ):
        return reason_of(cause.toString())
    return None
