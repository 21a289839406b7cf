"""What Java computes of fields: expressions over the columns of messages, as DataFrames.

A row is a message; or, where each expression looks at one column only, as most do, an array of that column of some
messages, and the expression is the body of a lambda over it: for to hand on a row costs Spark more than an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whence.pipeline.field_sql import CheckedSql
from whence.pipeline.field_steps import PACKED, Read
from whence.store.message_columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def columns_of(checked: Sequence[CheckedSql]) -> tuple[str, ...]:
    """What the expressions look at; something is needed to count messages by."""
    used = {column for each in checked for column in each.columns}
    return tuple(column for column in COLUMNS if column in used) or ("physical_offset",)


def values_of(session: SparkSession, checked: Sequence[CheckedSql], names: Sequence[str], read: Read) -> DataFrame:
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


def packed_values(
    session: SparkSession, checked: Sequence[CheckedSql], names: Sequence[str], read: Read
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


def can_be_packed(session: SparkSession, checked: Sequence[CheckedSql]) -> bool:
    """Whether a row may have several messages: no expression looks at two columns, and each may be in a lambda.

    One that is given a name (``upper(topic) as t``), for example, may not.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    names = columns_of(checked)
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
