"""Constants of pushed filters for which Python has no value.

Spark hands a constant to Python as a Variant, and decodes it between ``reader()`` and ``pushFilters()``. A timestamp
before the year 1 or behind 9999 of UTC is an error there, and ``'9999-12-31 23:59:59'`` of New York is one: the query
would fail, which without pushdown has an answer. Here such a constant is BEYOND, and its filter stays with Spark.

Only ``VariantVal.toPython``, which is public, is replaced, and only until the filters are decoded. Should a Spark
decode them in another way, it does so as if this were not there.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import VariantVal

BEYOND = object()
"""What stands for a constant, or a list of some, that cannot be decoded."""

_to_python = VariantVal.toPython


def _to_python_or_beyond(variant: VariantVal) -> Any:
    try:
        return _to_python(variant)
    except (OverflowError, ValueError):
        return BEYOND


def tolerate() -> None:
    """From now on, what cannot be decoded is BEYOND."""
    VariantVal.toPython = _to_python_or_beyond  # type: ignore[assignment, method-assign]


def restore() -> None:
    """From now on, it is an error again."""
    VariantVal.toPython = _to_python  # type: ignore[method-assign]
