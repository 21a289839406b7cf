"""Evaluation of fields on Spark: a task for each stretch of log, in three steps.

    a Python process    scans the stretch, and hands on the columns that the expressions look at
    Java                computes the values: a text for each message, or several, or none
    a Python process    scans the stretch once more, hashes the values and spills them

Messages are as many and in the same order before and behind Java, so that their places and topics need not pass
through it: what it gets is what it needs, and what it gives are values. The steps are in field_steps.py, what is
between them in field_frames.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.errors import StoreError, UsageError
from whence.pipeline.expression_session import ANSI, ZONE, expression_session
from whence.pipeline.expressions import quiet_queries
from whence.pipeline.field_failure import Failure, FieldError
from whence.pipeline.field_frames import can_be_packed, columns_of, packed_values, values_of
from whence.pipeline.field_sql import CheckedSql, check_sql
from whence.pipeline.field_steps import PACKED_MAX, Match, Read, SpillValues
from whence.pipeline.runner import Done, Runner
from whence.store.damage import Damage
from whence.store.field_claim import FieldClaim
from whence.store.spill import Spilled, Stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_BATCH = 32_768  # messages that Spark hands back at once
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


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
    """The spills of each field, one for each stretch; and bodies that could not be read.

    ``failures``: why others have none, by their names.
    """

    spilled: dict[str, tuple[Spilled, ...]]
    damage: tuple[Damage, ...]
    failures: dict[str, FieldError]


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
            try:
                self._checked[definition] = check_sql(self._session(definition), definition.name, definition.sql)
            except UsageError as error:
                raise FieldError(definition.name, str(error)) from error
        return self._checked[definition]

    def evaluate(self, definitions: Sequence[Definition], stretches: Sequence[Stretch], work: Path) -> Evaluated:
        """Spill the values of fields, which are all of one zone and ANSI mode, in proven stretches of log.

        All are evaluated in one job, which fails as a whole; then again without the field that is at fault.
        """
        failures: dict[str, FieldError] = {}
        while True:
            left = [definition for definition in definitions if definition.name not in failures]
            try:
                spilled, damage = self._evaluated(left, stretches, work)
            except FieldError as error:
                failures[error.field] = error
            else:
                return Evaluated(spilled, damage, failures)

    def _evaluated(
        self, definitions: Sequence[Definition], stretches: Sequence[Stretch], work: Path
    ) -> tuple[dict[str, tuple[Spilled, ...]], tuple[Damage, ...]]:
        """The spills of each field, and damage that was met; a FieldError tells which field is at fault."""
        if not stretches or not definitions:
            return {definition.name: () for definition in definitions}, ()
        checked = [self.check(definition) for definition in definitions]
        session = self._session(definitions[0])
        size = sum(stretch.size for stretch in stretches)
        names = columns_of(checked)
        is_packed = can_be_packed(session, checked)
        session.conf.set(BATCH, str(ROWS_A_BATCH // PACKED_MAX if is_packed else ROWS_A_BATCH))

        told_by: list[Accumulator[Done]] = []

        def spilled(done: Accumulator[Done]) -> DataFrame:
            told_by.append(done)
            make = packed_values if is_packed else values_of
            values = make(session, checked, names, Read(tuple(stretches), names, done, is_packed=is_packed))
            spill = SpillValues(
                tuple(stretches), len(checked), str(work), not self._runner.is_local, done, is_packed=is_packed
            )
            return values.mapInArrow(spill, "told string")

        with quiet_queries():
            try:
                rows = self._runner.collect("evaluate", spilled, len(stretches), size)
            except StoreError as error:
                failure = Failure(self._runner, session, definitions, checked, stretches)
                raise failure.told(error) from error.__cause__
        told = sorted((json.loads(row.told) for row in rows), key=lambda each: int(each["number"]))
        if [each["number"] for each in told] != list(range(len(stretches))):
            raise StoreError(f"Spark gave back the values of {len(told)} of {len(stretches)} stretches")
        damage = sorted(told_by[0].value.damage, key=lambda each: (each.path, each.position))
        return {
            definition.name: tuple(_spilled_from(each["spilled"][number]) for each in told)
            for number, definition in enumerate(definitions)
        }, tuple(damage)

    def matching(
        self, definitions: Sequence[Definition], values: Sequence[str], stretches: Sequence[Stretch]
    ) -> Matching:
        """The messages of proven stretches whose fields, of one zone and ANSI mode, have these values."""
        from pyspark.sql import functions

        checked = [self.check(definition) for definition in definitions]
        if not stretches:
            return Matching(np.empty(0, np.int64), ())
        session, names = self._session(definitions[0]), columns_of(checked)
        told_by: list[Accumulator[Done]] = []

        def matched(done: Accumulator[Done]) -> DataFrame:
            told_by.append(done)
            found = values_of(session, checked, names, Read(tuple(stretches), names, done))
            hit = functions.lit(True)
            for n, each in enumerate(checked):
                column, wanted = functions.col(f"value{n}"), functions.lit(values[n])
                hit = hit & (functions.array_contains(column, wanted) if each.is_array else column == wanted)
            hits = found.select(functions.coalesce(hit, functions.lit(False)).alias("hit"))
            return hits.mapInArrow(Match(tuple(stretches), done), "number int, offsets binary")

        with quiet_queries():
            try:
                size = sum(stretch.size for stretch in stretches)
                rows = self._runner.collect("evaluate", matched, len(stretches), size)
            except StoreError as error:
                failure = Failure(self._runner, session, definitions, checked, stretches)
                raise failure.told(error) from error.__cause__
        found = [np.frombuffer(bytes(row.offsets), np.int64) for row in rows]
        return Matching(np.sort(np.concatenate([np.empty(0, np.int64), *found])), tuple(told_by[0].value.damage))

    def _session(self, definition: Definition) -> SparkSession:
        """A session with the settings of a field."""
        settings = {ZONE: definition.session_zone, ANSI: str(definition.ansi).lower()}
        session = expression_session(self._spark, f"field {definition.name}", settings)
        session.conf.set(BATCH, str(ROWS_A_BATCH))
        return session


def _spilled_from(document: dict[str, Any]) -> Spilled:
    return Spilled(**document | {"damage": (), "holes": ()})
