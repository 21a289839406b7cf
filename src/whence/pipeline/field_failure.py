"""An expression that fails: on which message, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import StoreError, UsageError, WhenceError
from whence.pipeline.field_frames import columns_of, values_of
from whence.pipeline.field_sql import CheckedSql
from whence.pipeline.field_steps import Read
from whence.pipeline.reasons import first_failing, why_of
from whence.pipeline.runner import Done, Runner
from whence.store.spill import Stretch
from whence.store.stretch_rows import stretch_rows

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from whence.pipeline.field_evaluation import Definition


class FieldError(UsageError):
    """The expression of a field is refused, or fails on a message."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(what)
        self.field = field


class Failure:
    """Looks for the first message, in the order of the log, on which an expression fails."""

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
        if why_of(error.__cause__) is None:
            return error
        first = first_failing(len(self._stretches), lambda begin, end: self._why(self._stretches[begin:end]))
        stretch = self._stretches[first]
        offsets = [each.rows["physical_offset"].copy() for each in stretch_rows(stretch)]
        rows = np.concatenate([np.empty(0, np.int64), *offsets])
        number = first_failing(len(rows), lambda begin, end: self._why([stretch], (begin, end)))
        for definition, checked in zip(self._definitions, self._checked, strict=True):
            why = self._why([stretch], (number, number + 1), [checked])
            if why is not None:
                return FieldError(
                    definition.name,
                    f"field {definition.name}: its expression fails on the message at physical offset "
                    f"{rows[number]}: {why}",
                )
        return error

    def _why(
        self,
        stretches: Sequence[Stretch],
        rows: tuple[int, int] | None = None,
        checked: Sequence[CheckedSql] | None = None,
    ) -> str | None:
        """Why an expression fails on these; None if it does not."""
        from pyspark.sql import functions

        expressions = self._checked if checked is None else checked
        names = columns_of(expressions)

        def values(done: Accumulator[Done]) -> DataFrame:
            read = Read(tuple(stretches), names, done, rows)
            found = values_of(self._session, expressions, names, read)
            return found.agg(functions.max(functions.xxhash64(*found.columns)))

        try:
            self._runner.collect("look for what fails", values, len(stretches))
        except StoreError as error:
            return why_of(error.__cause__)
        return None
