"""--master and --conf, which every command on Spark takes."""

import pytest

from whence.cli.options import Parser, add_spark, spark_settings
from whence.errors import UsageError
from whence.pipeline.session import SparkSettings

CASES = [
    ([], SparkSettings(None, {})),
    (["--master", "local[2]"], SparkSettings("local[2]", {})),
    (["--conf", "spark.a=1", "--conf", "spark.b=x=y", "--conf", "spark.a=2", "--conf", "spark.c="],
     SparkSettings(None, {"spark.a": "2", "spark.b": "x=y", "spark.c": ""})),
]  # fmt: skip


def parse(typed: list[str]) -> SparkSettings:
    parser = Parser("build", "", "")
    add_spark(parser)
    return spark_settings(parser.parse_args(typed))


@pytest.mark.parametrize(("typed", "settings"), CASES)
def test_they_become_the_settings_of_a_session(typed, settings):
    assert parse(typed) == settings


@pytest.mark.parametrize("text", ["spark.a", "=1", ""])
def test_a_setting_without_name_or_value_is_refused(text):
    with pytest.raises(UsageError, match="give it as NAME=VALUE"):
        parse(["--conf", text])
