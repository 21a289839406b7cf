"""Expressions of Spark SQL that a user gives, over the columns of a message: checked before they are run.

An expression is evaluated for each message by itself, and has the same value whenever and wherever that is done. It
reads what is in the message and nothing else. So refused is what depends on chance, on the clock or on who asks, what
looks at other rows or tables, and what reaches out of Spark: Java's classes, files, functions of somebody's own.

What an expression is made of is told by Spark's analyzed plan, not by its text: names of functions can be quoted,
nested and renamed, their classes cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE_MAX = 65_536  # characters of an expression
SHOWN_MAX = 200  # of them, in an error

PACKAGE = "org.apache.spark.sql.catalyst.expressions."
"""Where Spark's own expressions are; what is elsewhere is somebody's own, or reaches out."""

REFUSED = {
    "CallMethodViaReflection": "calls Java",
    "TryReflect": "calls Java",
    "ScalarSubquery": "asks another table",
    "InSubquery": "asks another table",
    "ListQuery": "asks another table",
    "Exists": "asks another table",
    "LateralSubquery": "asks another table",
    "DynamicPruningSubquery": "asks another table",
    "FromProtobuf": "reads a file",
    "ToProtobuf": "reads a file",
    "ScalaUDF": "calls a function of somebody's own",
    "PythonUDF": "calls a function of somebody's own",
    "PythonUDAF": "calls a function of somebody's own",
    "CurrentTimestamp": "depends on the clock",
    "CurrentBatchTimestamp": "depends on the clock",
    "CurrentDate": "depends on the clock",
    "CurrentTime": "depends on the clock",
    "LocalTimestamp": "depends on the clock",
    "Now": "depends on the clock",
    "CurDateExpressionBuilder": "depends on the clock",
    "CurrentUser": "depends on who asks",
    "CurrentDatabase": "depends on who asks",
    "CurrentCatalog": "depends on who asks",
    "CurrentPath": "depends on who asks",
    "InputFileName": "depends on how the log is cut",
    "InputFileBlockStart": "depends on how the log is cut",
    "InputFileBlockLength": "depends on how the log is cut",
    "SparkPartitionID": "depends on how the log is cut",
    "MonotonicallyIncreasingID": "depends on how the log is cut",
}
"""Parts that an expression may not have, by their class, and why."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was checked: its type, in Spark's words, and the columns that it reads."""

    sql: str
    type: str
    columns: tuple[str, ...]


def check_expression(spark: SparkSession, schema: Mapping[str, str], sql: str) -> Expression:
    """Look at an expression over columns of these names and types; a UsageError says why it is refused."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    shown = repr(sql if len(sql) <= SHOWN_MAX else f"{sql[:SHOWN_MAX]}...")
    if not sql.strip() or len(sql) > SIZE_MAX:
        raise UsageError(f"an expression has from 1 to {SIZE_MAX} characters, this one {len(sql)}")
    nothing = spark.range(0).select(*(functions.lit(None).cast(kind).alias(name) for name, kind in schema.items()))
    with quiet_queries():
        try:
            value = nothing.select(functions.expr(sql).alias("value"))
            plan = _analyzed(value)
            kind = value.schema["value"].dataType.simpleString()
        except (PySparkException, Py4JError) as error:
            raise UsageError(f"{shown} is no expression of Spark SQL over a message: {_first_line(error)}") from None
    if plan.getClass().getSimpleName() != "Project" or not plan.children().head().equals(_analyzed(nothing)):
        raise UsageError(f"{shown} looks at more than one message at a time; leave such functions out")
    root = plan.expressions().head()
    for part in json.loads(root.toJSON()):
        name = part["class"].rpartition(".")[2].rpartition("$")[2]
        if name in REFUSED or not part["class"].startswith(PACKAGE):
            raise UsageError(f"{shown} {REFUSED.get(name, 'reaches out of Spark')} ({name}), and is refused")
    if _NAMED_TIME.search(sql) or any(map(_is_of_clock, _nodes(root))):
        raise UsageError(f"{shown} depends on the clock (now, today, tomorrow or yesterday), and is refused")
    if not root.deterministic():
        raise UsageError(f"{shown} has another value each time, and is refused")
    columns = {reference.name() for reference in listed(root.references().toSeq())}
    return Expression(sql, kind, tuple(name for name in schema if name in columns))


_TIME = r"\s*(now|today|tomorrow|yesterday)\b"
_NAMED_TIME = re.compile(rf"\b(date|timestamp\w*)\s*['\"]{_TIME}", re.IGNORECASE)


def _is_of_clock(node: Any) -> bool:
    """Whether a text as ``today`` is made a time here: Spark takes it for the present one."""
    if not str(node.dataType().simpleString()).startswith(("date", "timestamp")):
        return False
    return any(
        child.foldable()
        and child.dataType().simpleString() == "string"
        and re.match(_TIME, str(child.eval(None) or ""), re.IGNORECASE) is not None
        for child in parts_of(node)
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for part in parts_of(node):
        yield from _nodes(part)


def parts_of(node: Any) -> list[Any]:
    """The expressions that a node of Spark's is made of."""
    return listed(node.children())


def listed(sequence: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _analyzed(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()


@contextmanager
def quiet_queries() -> Iterator[None]:
    """Keep Spark from writing each expression that fails to the terminal, with pages of Java's."""
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
