"""An expression of a user's reads the message it is given, and nothing else."""

import pytest
from pyspark.sql import SparkSession, functions

from whence.errors import UsageError
from whence.pipeline.expression_session import expression_session
from whence.pipeline.expressions import check_expression
from whence.store.message_columns import COLUMNS

pytestmark = pytest.mark.slow

GOOD = [
    ("queue > 1 and topic = 'orders'", "boolean", ("topic", "queue")),
    ("get_json_object(cast(body as string), '$.order_id')", "string", ("body",)),
    ("exists(keys, k -> k like 'order-%')", "boolean", ("keys",)),
    ("transform(keys, k -> upper(k))", "array<string>", ("keys",)),
    ("properties['region'] = 'eu' -- the rest is a comment", "boolean", ("properties",)),
    ("date_trunc('DAY', store_time) = timestamp '2026-01-01'", "boolean", ("store_time",)),
    (f"queue in ({', '.join(map(str, range(3000)))})", "boolean", ("queue",)),
    ("tags = 'today' and to_date(topic, 'yyyy') < date '2026-01-01'", "boolean", ("topic", "tags")),
    ("QUEUE = 1 and Topic like 'a%'", "boolean", ("topic", "queue")),
    ("1 = 1", "boolean", ()),
]

REFUSED = [
    ("reflect('java.lang.System', 'getProperty', 'user.home') = 'x'", "the function reflect is not on the list"),
    ("`java_method`('java.util.UUID', 'randomUUID') = topic", "the function java_method is not on the list"),
    ("try_reflect('java.util.UUID', 'randomUUID') = topic", "the function try_reflect is not on the list"),
    ("topic = (select max(id) from range(3))", "a scalar subquery is not on the list"),
    ("topic in (select id from range(3))", "a (list query|in subquery) is not on the list"),
    ("exists (select * from csv.`/etc/passwd`)", "an? exists is not on the list"),
    ("rand() < 0.5", "the function rand is"),
    ("uuid() = topic", "the function uuid is"),
    ("upper(concat(topic, cast(shuffle(keys) as string))) = 'A'", "the function shuffle is"),
    ("store_time > now()", "the function now is"),
    ("store_time > current_timestamp() - interval 1 day", "the function current_timestamp is"),
    ("current_date() > date '2026-01-01'", "the function current_date is"),
    ("store_time > 'today'", "depends on the clock"),
    ("to_date(' Yesterday ') = date(store_time)", "depends on the clock"),
    ("timestamp 'now' > store_time", "depends on the clock"),
    ("store_time > concat('to', 'day')", "depends on the clock"),
    ("session_user() = topic", "the function session_user is"),
    ("input_file_name() = ''", "the function input_file_name is"),
    ("monotonically_increasing_id() = 1", "the function monotonically_increasing_id is"),
    ("count(*) > 1", "the function count is"),
    ("sum(queue) over () > 1", "a window expression is not on the list"),
    ("explode(keys)", "the function explode is"),
    ("own_function(queue) = 1", "the function own_function is"),
    ("soundex(tags) = 'x'", "calls a function of somebody's own"),
    ("no_such_column = 1", "no_such_column"),
    ("no_such_function(1)", "no_such_function"),
    ("queue >", "is no expression of Spark SQL"),
    ("queue > 1) or (1 = 1", "is no expression of Spark SQL"),
    ("queue > 1; drop table x", "is no expression of Spark SQL"),
    ("topic = :x", "a named parameter is not on the list"),
    ("topic = ?", "a pos parameter is not on the list"),
    ("identifier('topic') = 'x'", "a expression with unresolved identifier is not on the list"),
    ("upper(str => topic) = 'x'", "a named argument expression is not on the list"),
    ("system.session.declared = 1", "there is no column system"),
    ("${env:HOME} = 'x'", "is no expression of Spark SQL"),
    ("", "from 1 to"),
    (" + ".join(["queue"] * 3000), "too complex"),
]


@pytest.fixture
def session(spark) -> SparkSession:
    return expression_session(spark, "a test", {})


def test_expressions_of_a_message_are_taken_with_their_type_and_columns(session):
    for sql, kind, columns in GOOD:
        checked = check_expression(session, COLUMNS, sql)
        assert (checked.type, checked.columns) == (kind, columns), sql


def test_what_reaches_out_or_changes_is_refused_and_told_quietly(session, capfd):
    session.udf.register("own_function", lambda value: value, "int")
    session.udf.register("soundex", lambda value: value)  # which Spark has, too: this setting decides
    session.conf.set("spark.sql.functionResolution.sessionOrder", "first")
    for sql, why in REFUSED:
        with pytest.raises(UsageError, match=why) as raised:
            check_expression(session, COLUMNS, sql)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000
    assert capfd.readouterr().err == ""


def test_nothing_is_put_into_the_text_of_an_expression_before_it_is_checked(spark, session):
    for text in ("${env:PATH}", "${system:java.home}", "${spark.app.name}", "${unknown}"):
        for sql, value in ((f"'{text}'", text), (f"r'-{text}'", f"-{text}"), (f"concat('a' '{text}')", f"a{text}")):
            check_expression(session, COLUMNS, sql)
            assert session.range(1).select(functions.expr(sql)).first()[0] == value
    with pytest.raises(AssertionError, match="before it parses"):
        check_expression(spark, COLUMNS, "1 = 1")
