"""Which expressions can be a field: those over a message (expressions.py) of a type that has a text.

Who evaluates it checks it before it runs, in a session of its own, where nobody has put another function or variable
under a known name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whence.errors import UsageError
from whence.pipeline.expressions import SHOWN_MAX, check_expression
from whence.store.field_claim import SQL_SIZE_MAX
from whence.store.message_columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = (
    "string|varchar|char|boolean|tinyint|smallint|int|bigint|float|double|decimal|date|timestamp|timestamp_ntz|binary"
    "|interval"
)
"""Of which texts are made."""


@dataclass(frozen=True, slots=True)
class CheckedSql:
    """An expression that can be a field: the columns it looks at, and whether it gives several values."""

    sql: str
    columns: tuple[str, ...]
    is_array: bool


def check_sql(session: SparkSession, name: str, sql: str) -> CheckedSql:
    """The expression, if it can be a field; a UsageError says why not. ``session`` has nothing but Spark's own."""
    try:
        expression = check_expression(session, COLUMNS, sql, SQL_SIZE_MAX)
    except UsageError as error:
        raise UsageError(f"field {name}: {error}") from error
    kind = expression.type.removeprefix("array<")
    if not re.match(rf"({TYPES})\b", kind):
        raise UsageError(
            f"field {name}: {sql[:SHOWN_MAX]!r} gives {expression.type[:SHOWN_MAX]}, of which no text is made; "
            "take a member of it, or an array of plain values"
        )
    return CheckedSql(sql, expression.columns, expression.type != kind)
