"""Settings that somebody gives Spark for queries of their own, and an expression that each of them would change."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

OUTSIDE = {
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
}
STEERED = r"""to_json(named_struct('a', cast(null as int), 'b', typeof(timestamp '2026-01-01'), 'c', 'x\\y',
    'd', try_to_timestamp('2026-1-1x', 'yyyy-MM-dd')))"""
STEERED_VALUE = r'{"b":"timestamp","c":"x\\y"}'


@contextmanager
def given_outside(spark: SparkSession) -> Iterator[None]:
    """Give Spark these settings where ``--conf`` puts them: new sessions begin with them."""
    conf = spark._jsparkSession.sharedState().conf()
    for name, value in OUTSIDE.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name in OUTSIDE:
            conf.remove(name)
