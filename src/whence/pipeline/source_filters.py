"""What Spark pushes down to the source, as plain data: a :class:`Condition` each, and :class:`Wanted` for all.

A condition is used twice. Before columns are made, it narrows what is read at all: the index for a key, time blocks
for a window, a mask over scanned rows; that may let too much through. Then it is evaluated as it stands over the
columns, in Arrow, with SQL's three-valued logic; that is exact, and the reason why Spark need not do it again.

Spark hands over what is joined by AND, of a column and constants; anything else it keeps for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import CorruptError
from whence.formats.hashing import java_hash
from whence.formats.rocketmq.ids import decode_offset_id
from whence.store.log_scan import Batch
from whence.store.message_columns import KEY, TYPES, constants, load_pyarrow
from whence.store.scan import Sieve

if TYPE_CHECKING:
    from numpy.typing import NDArray

I8_MIN, I8_MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_LIMITS = {"int": (-(2**31), 2**31 - 1), "bigint": (I8_MIN, I8_MAX)}
_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}
_TEXT_ONLY = frozenset({"starts with", "ends with", "contains"})


@dataclass(frozen=True, slots=True)
class Condition:
    """``column operator values``, or that it is not so. Times are in microseconds.

    Operators are those of ``_COMPARISONS``, with one value; ``in`` with any number; ``is null`` with none.
    ``has_null``: NULL is among the values.
    """

    column: str
    operator: str
    values: tuple[int | str, ...] = ()
    has_null: bool = False
    is_negated: bool = False


def read_filters(filters: Iterable[Any], names: Sequence[str]) -> tuple[list[Condition], list[Any]]:
    """Conditions of the filters that are understood, over columns of these names; and the other filters."""
    conditions, left = [], []
    for each in filters:
        condition = _read(each)
        if condition is None or condition.column not in names:
            left.append(each)
        else:
            conditions.append(condition)
    return conditions, left


def _read(each: Any) -> Condition | None:
    """One filter of ``pyspark.sql.datasource``, known by its name: so this runs without Spark."""
    kind = type(each).__name__
    if kind == "Not":
        inner = _read(each.child)
        return None if inner is None else replace(inner, is_negated=not inner.is_negated)
    if len(each.attribute) != 1:
        return None
    (column,) = each.attribute
    spark_type = TYPES.get(column)
    if spark_type not in ("int", "bigint", "string", "timestamp"):
        return None
    if kind in ("IsNull", "IsNotNull"):
        return Condition(column, "is null", is_negated=kind == "IsNotNull")
    if kind == "In":
        if not isinstance(each.value, tuple | list):
            return None  # one of its values could not be decoded
        values = [_value(spark_type, value) for value in each.value if value is not None]
        has_null = any(value is None for value in each.value)
        return None if None in values else Condition(column, "in", tuple(dict.fromkeys(values)), has_null)  # type: ignore[arg-type]
    operator = _COMPARISONS.get(kind)
    if operator is None or (operator in _TEXT_ONLY and spark_type != "string"):
        return None
    if each.value is None:
        return Condition(column, "is null") if operator == "<=>" else Condition(column, "in", has_null=True)
    value = _value(spark_type, each.value)
    return None if value is None else Condition(column, operator, (value,))


def _value(spark_type: str, value: object) -> int | str | None:
    """A constant as a column of this type holds it; None if it is of another kind, and Spark's to compare."""
    if spark_type == "string":
        # Spark writes bytes that are no UTF-8 like this; to itself they are another text.
        return value if isinstance(value, str) and "\ufffd" not in value else None
    if spark_type == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // _US
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    low, high = _LIMITS[spark_type]
    return value if low <= value <= high else None


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``low`` to ``high``, both included."""

    low: int = I8_MIN
    high: int = I8_MAX

    def __and__(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    @property
    def is_all(self) -> bool:
        return self == Span()


_ROW_FIELDS = ("queue", "queue_offset", "physical_offset", "store_timestamp_ms", "size", "sys_flag")
"""Columns that a scanned row has as they are."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are wanted: all that meet every condition; ``spans`` come from options and are met as well.

    ``texts``: for a column the texts it must be one of. ``numbers``: the same for a number.
    """

    conditions: tuple[Condition, ...] = ()
    spans: dict[str, Span] = field(default_factory=dict)
    texts: dict[str, frozenset[str]] = field(default_factory=dict)
    numbers: dict[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, conditions: Iterable[Condition], spans: dict[str, Span] | None = None) -> Wanted:
        """What the conditions ask for together, with spans of numbers beside them."""
        conditions = tuple(conditions)
        texts: dict[str, frozenset[str]] = {}
        numbers: dict[str, frozenset[int]] = {}
        joined = dict(spans or {})
        for condition in conditions:
            if condition.is_negated:
                continue
            values = condition.values if condition.operator in ("=", "<=>", "in") else None
            if TYPES[condition.column] == "string":
                if values is not None:
                    _narrow(texts, condition.column, frozenset(map(str, values)))
                continue
            column, span = _span(condition)
            if span is not None:
                joined[column] = joined.get(column, Span()) & span
            if values is not None and column == condition.column:
                _narrow(numbers, column, frozenset(map(int, values)))
        if "offset_id" in texts:
            _narrow(numbers, "physical_offset", frozenset(_offsets_of(texts["offset_id"])))
        for column, allowed in numbers.items():
            span = Span(min(allowed, default=1), max(allowed, default=0))
            joined[column] = joined.get(column, Span()) & span
        return cls(conditions, joined, texts, numbers)

    @property
    def is_nothing(self) -> bool:
        """Whether no row can be wanted."""
        if any(not allowed for allowed in (*self.texts.values(), *self.numbers.values())):
            return True
        return any(span.is_empty for span in self.spans.values())

    def span(self, column: str) -> Span:
        return self.spans.get(column, Span())

    @property
    def index_keys(self) -> frozenset[str] | None:
        """Texts by which an index finds all that is wanted: keys, or unique ids; None if there are none such."""
        keys, ids = self.texts.get(KEY), self.texts.get("unique_id")
        return min((texts for texts in (keys, ids) if texts is not None), key=len, default=None)

    def mask(self, messages: NDArray[np.void]) -> NDArray[np.bool_] | None:
        """Which scanned rows have the numbers that are wanted; None if all have."""
        tests = []
        for column in _ROW_FIELDS:
            span = self.spans.get(column)
            if span is not None:
                values = messages[column].astype(np.int64)
                tests += [values >= span.low] if span.low > I8_MIN else []
                tests += [values <= span.high] if span.high < I8_MAX else []
        return np.logical_and.reduce(tests) if tests else None

    def rows(self, batch: Batch) -> NDArray[np.void]:
        """The scanned rows that are worth making columns of."""
        messages = batch.messages
        numbers = self.mask(messages)
        tests = [] if numbers is None else [numbers]
        for column, name, end in (("topic", "topic_hash", "#"), ("tags", "tags_code", "")):
            if column in self.texts:
                tests.append(np.isin(messages[name], [java_hash(text + end) for text in self.texts[column]]))
        keys = self.index_keys
        if keys is not None and len(keys) <= _SIEVED_MAX:
            borne = np.zeros(len(messages), np.bool_)
            borne[Sieve(tuple(keys)).rows(messages, batch.items, batch.data, batch.base_offset)] = True
            tests.append(borne)
        keep = np.logical_and.reduce(tests) if tests else None
        return messages if keep is None or keep.all() else messages[keep]

    def keep(self, batch: Any) -> Any:
        """The rows of an Arrow record batch that meet all conditions."""
        if not self.conditions or not batch.num_rows:
            return batch
        mask: Any = None
        for condition in self.conditions:
            met = _evaluate(condition, batch.column(condition.column))
            mask = met if mask is None else _compute().and_kleene(mask, met)
        return batch if mask.true_count == batch.num_rows else batch.filter(mask)


_SIEVED_MAX = 64  # each key takes one look at all items; more are told apart by the columns


def _narrow(sets: dict[str, frozenset[Any]], column: str, allowed: frozenset[Any]) -> None:
    sets[column] = sets[column] & allowed if column in sets else allowed


def _span(condition: Condition) -> tuple[str, Span | None]:
    """The numbers that a condition lets through, and of which column; times are those in milliseconds."""
    column, values = condition.column, [int(value) for value in condition.values]
    low, high = I8_MIN, I8_MAX
    if condition.operator in ("=", "<=>", "in"):
        low, high = min(values, default=1), max(values, default=0)
    elif condition.operator in (">", ">="):
        low = values[0] + (condition.operator == ">")
    elif condition.operator in ("<", "<="):
        high = values[0] - (condition.operator == "<")
    else:
        return column, None
    if TYPES[column] != "timestamp":
        return column, Span(low, high)
    if column != "store_time":
        return column, None
    return "store_timestamp_ms", Span(
        low if low == I8_MIN else -(-low // 1000), high if high == I8_MAX else high // 1000
    )


def _offsets_of(ids: Iterable[str]) -> Iterable[int]:
    """The physical offsets in offset ids; a text that is none is the id of no message."""
    for text in ids:
        try:
            yield decode_offset_id(text)[1]
        except CorruptError:
            continue


def _compute() -> Any:
    load_pyarrow()
    import pyarrow.compute

    return pyarrow.compute


def _evaluate(condition: Condition, column: Any) -> Any:
    """A column of true, false and null."""
    compute = _compute()
    met = _OPERATORS[condition.operator](condition, column)
    return compute.invert(met) if condition.is_negated else met


def _is_in(condition: Condition, column: Any) -> Any:
    pa, compute = load_pyarrow(), _compute()
    unknown = pa.nulls(1, pa.bool_())[0]
    met = compute.is_in(column, value_set=constants(column.type, condition.values))
    if condition.has_null:
        met = compute.if_else(met, met, unknown)  # it may be equal to what is not known
    return compute.if_else(compute.is_valid(column), met, unknown)


def _compared(name: str) -> Callable[[Condition, Any], Any]:
    def compare(condition: Condition, column: Any) -> Any:
        return getattr(_compute(), name)(column, constants(column.type, condition.values)[0])

    return compare


def _searched(name: str) -> Callable[[Condition, Any], Any]:
    def search(condition: Condition, column: Any) -> Any:
        return getattr(_compute(), name)(column, pattern=condition.values[0])

    return search


def _is_same(condition: Condition, column: Any) -> Any:
    return _compute().and_kleene(_compared("equal")(condition, column), _compute().is_valid(column))


_OPERATORS: dict[str, Callable[[Condition, Any], Any]] = {
    "=": _compared("equal"),
    "<=>": _is_same,
    ">": _compared("greater"),
    ">=": _compared("greater_equal"),
    "<": _compared("less"),
    "<=": _compared("less_equal"),
    "in": _is_in,
    "is null": lambda condition, column: _compute().is_null(column),
    "starts with": _searched("starts_with"),
    "ends with": _searched("ends_with"),
    "contains": _searched("match_substring"),
}
