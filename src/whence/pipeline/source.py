"""``spark.read.format("whence")``: the messages of a store as a DataFrame.

    whence.spark.register(spark)
    spark.read.format("whence").option("rows", "key").load("store").where("key = 'order-4711'")

Spark asks in Python processes of its own: one tells the schema, one is handed the filters and plans the tasks, and
each task reads its part and gives Arrow record batches. docs/spark.md tells the columns and the options.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from whence.errors import UsageError
from whence.pipeline import pushed_constants
from whence.pipeline.source_options import ALWAYS, AUTO, SourceOptions, parse_options
from whence.store.message_columns import DAMAGE, TYPES

# Spark asks each time in a new process, which imports this. What only plans and tasks need is imported there: for a
# query of one key, imports were half of what this source took.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

    from whence.pipeline.source_filters import Condition
    from whence.pipeline.source_plan import Part

READ_ONLY = 'Spark only reads stores; whence.create("store") makes one, with append and append_batch'
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
UNNARROWED = (
    "in this session filters narrow nothing that whence reads: every query scans, and its answer is right; "
    'option("pushdown", "always") narrows, in a load() that serves one query only'
)


def register(spark: SparkSession) -> None:
    """Make ``format("whence")`` known to a session, and have Spark push filters down to such sources.

    A warning if that cannot be. Tasks on this machine run in this Python, unless PYSPARK_PYTHON says otherwise.
    """
    import warnings

    from whence.pipeline import fresh_scans
    from whence.pipeline.session import use_this_python

    if not hasattr(spark, "dataSource"):
        raise UsageError(f"register() takes a session of Spark 4.0 or newer, not a {type(spark).__name__}")
    is_connected = not hasattr(spark, "_jsparkSession")  # to a server, by Spark Connect
    if not is_connected:
        use_this_python(spark.sparkContext)
    why_not = fresh_scans.install(spark)
    spark.dataSource.register(WhenceSource if why_not else GuardedSource)
    spark.conf.set(PUSHDOWN, "true")
    if is_connected:
        _try_server(spark)
    if why_not:
        warnings.warn(f"{UNNARROWED} ({why_not})", stacklevel=2)


def _try_server(spark: SparkSession) -> None:
    """An error if the server cannot load the source: it would come with the first query, below many lines of Java."""
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.format(WhenceSource.name()).load(".").schema  # asks for no store
    except PySparkException as error:
        lines = str(error).partition("\n SQLSTATE")[0].strip().splitlines()
        raise UsageError(
            f"the Python of the Spark Connect server cannot load the source: {lines[-1]}; "
            "whence[spark] has to be installed there, in the version and with the Python that it has here"
        ) from error


class WhenceSource(DataSource):
    """A store as a table: a row a message, or a row a key."""

    is_guarded = False  # whether each scan gets a plan of its own, and no other is used

    @classmethod
    def name(cls) -> str:
        return "whence"

    def schema(self) -> str:
        return parse_options(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        reader = WhenceReader(options, names_of(schema, options), is_guarded=self.is_guarded)
        pushed_constants.tolerate()  # Spark decodes the filters next, if there are some, and then hands them over
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, the name is Spark's
        try:
            from whence.pipeline.source_stream import WhenceStreamReader
        except ImportError as error:
            raise UsageError(f"a store is read as a stream with Spark 4.2 or newer: {error}") from error
        options = parse_options(self.options)
        return WhenceStreamReader(options, names_of(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise UsageError(READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        raise UsageError(READ_ONLY)


class GuardedSource(WhenceSource):
    """The same for a session with the rule of fresh_scans.py."""

    is_guarded = True


def names_of(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """The columns of a schema, which a user may have given: some of those that there are, with their types."""
    for column in schema.fields:
        if TYPES.get(column.name) != column.dataType.simpleString():
            raise UsageError(
                f"the schema asks for column {column.name} {column.dataType.simpleString()}; there are "
                + ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
            )
    if options.permissive and DAMAGE not in schema.names:
        raise UsageError(
            'with option("mode", "permissive") the schema has a column damage, which tells what was skipped'
        )
    return tuple(schema.names)


class SourcePartition(InputPartition):
    """One task's part; None for all of the store."""

    def __init__(self, part: Part | None) -> None:
        super().__init__(part)
        self.part = part


class WhenceReader(DataSourceReader):
    """Plans one query and reads its parts. It travels to the tasks."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...], *, is_guarded: bool) -> None:
        self._options = options
        self._names = names
        self._is_guarded = is_guarded
        self._conditions: list[Condition] = []
        self._is_shared = False

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802, the name is Spark's
        pushed_constants.restore()
        if self._options.pushdown != ALWAYS:
            # Spark may use this plan for other queries of the same load(), too: nothing may be left out of it.
            self._is_shared = True
            return iter(filters)
        from whence.pipeline.source_filters import read_filters

        self._conditions, left = read_filters(filters, self._names)
        return iter(left)

    def partitions(self) -> list[InputPartition]:
        pushed_constants.restore()
        if self._is_shared and self._is_guarded and self._options.pushdown == AUTO:
            return [SourcePartition(None)]  # another takes its place before anything is read
        from whence.pipeline.source_plan import plan_read, wanted_of
        from whence.store.opening import open_folder

        with open_folder(self._options.path, self._options.out) as store:
            parts = plan_read(store, self._options, wanted_of(self._options, self._conditions))
        return [SourcePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, SourcePartition):  # Spark makes up another where there is none
            from whence.pipeline.source_plan import wanted_of
            from whence.pipeline.source_read import SourceRead

            shared = SourceRead(self._options, self._names, wanted_of(self._options, self._conditions))
            yield from shared.read(partition.part)
