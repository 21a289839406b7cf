"""The session in which expressions are checked and evaluated: nobody's but whence's.

It has no function, variable or view that somebody made, and its settings are as Spark has them by itself: what a
machine, a ``--conf`` or a notebook has configured for other queries would give one expression two meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from whence.errors import UsageError
from whence.pipeline.expressions import SUBSTITUTE
from whence.pipeline.reasons import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
"""What an expression is evaluated with, noted wherever it is."""
HOW_IT_RUNS = ("spark.sql.artifact.", "spark.sql.codegen.", "spark.sql.execution.", "spark.sql.pyspark.")
"""Settings that may be a user's. Of the others many change what an expression gives, and a later Spark has more."""
OURS = {SUBSTITUTE: "false", "spark.sql.execution.arrow.useLargeVarTypes": "false"}
"""What the check of expressions and tasks count on."""


def expression_session(spark: SparkSession, whose: str, settings: Mapping[str, str]) -> SparkSession:
    """A session for expressions, with zone and ANSI mode as given; a UsageError tells ``whose`` cannot be."""
    session = spark.newSession()
    for name in session.conf.getAll:
        if name.startswith("spark.sql.") and not name.startswith(HOW_IT_RUNS) and session.conf.isModifiable(name):
            session.conf.unset(name)
    for name, value in {**OURS, **settings}.items():
        try:
            session.conf.set(name, value)
        except Exception as error:
            raise UsageError(f"{whose}: {name} cannot be {value!r}: {reason_of(error)}") from error
    return session
