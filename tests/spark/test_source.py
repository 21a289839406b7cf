"""``spark.read.format("whence")`` on real Spark."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import reduce
from operator import and_
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as all of Spark's users write it
from pyspark.sql.datasource import EqualTo

import whence
from tests.golden import FEW
from tests.pipeline.source_rows import FILE_SIZE, Row, all_rows, make_odd_store, meet, some_filters
from tests.spark.conftest import PYTHON_PATH, ROOT
from tests.store_maker import MadeStore, T
from whence.pipeline import fresh_scans
from whence.store.message_columns import COLUMNS, DAMAGE, TYPES

pytestmark = pytest.mark.slow

ZONE = "Asia/Tokyo"


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> Iterator[SparkSession]:
    whence.spark.register(spark)
    whence.spark.register(spark)  # a second time does no harm
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(zone))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    return make_odd_store(tmp_path_factory.mktemp("source") / "store", 400, 350)


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("whence").options(**options).load(str(path))


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows as plain dicts, in log order. Arrow keeps a time's zone; Row makes it one without."""
    rows = frame.toArrow().to_pylist()
    return sorted(rows, key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("name", FEW)
def test_golden_stores_come_out_as_a_plain_decode_reads_them(registered: SparkSession, golden, name: str):
    store = golden(name).store
    options = {"mode": "permissive"} if "damaged" in name else {}
    found = rows_of(load(registered, store, **options))
    decoded = [row for row in found if row.pop(DAMAGE, None) is None]
    assert decoded == all_rows(store)
    by_key = rows_of(load(registered, store, rows="key", **options).drop(DAMAGE).where("key is not null"))
    assert by_key == all_rows(store, by_key=True)


def test_the_schema_is_the_one_that_is_promised(registered: SparkSession, odd: MadeStore):
    assert dict(load(registered, odd.folder).dtypes) == COLUMNS
    assert load(registered, odd.folder, rows="key", mode="permissive").dtypes == list(TYPES.items())
    chosen = load(registered, odd.folder, columns="size,topic")
    assert chosen.dtypes == [("size", "int"), ("topic", "string")]
    assert chosen.count() == len(odd.records)
    given = registered.read.format("whence").schema("queue int, topic string").load(str(odd.folder))
    assert given.where("queue = 1").count() == sum(record.queue == 1 for record in odd.records)
    with pytest.raises(PySparkException, match="column queue bigint"):
        registered.read.format("whence").schema("queue bigint").load(str(odd.folder)).count()


SQL = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


def column_of(each: Any, suffix: str = "") -> Any:
    """A filter of the source as a column of Spark's, over columns of these names with a suffix."""
    kind = type(each).__name__
    if kind == "Not":
        return ~column_of(each.child, suffix)
    column = F.col(each.attribute[0] + suffix)
    match kind:
        case "In":
            return column.isin(*each.value) if each.value else F.lit(False)
        case "IsNull":
            return column.isNull()
        case "IsNotNull":
            return column.isNotNull()
        case "EqualNullSafe":
            return column.eqNullSafe(each.value)
        case "StringStartsWith":
            return column.startswith(each.value)
        case "StringEndsWith":
            return column.endswith(each.value)
        case "StringContains":
            return column.contains(each.value)
    compared: Any = {
        "=": column == each.value,
        "<": column < each.value,
        "<=": column <= each.value,
        ">": column > each.value,
        ">=": column >= each.value,
    }[SQL[kind]]
    return compared


def some_condition(random: Random, rows: list[Row], suffix: str) -> Any:
    """Filters joined by AND, now and then with an OR somewhere, or with what Spark keeps for itself."""

    def joined() -> Any:
        columns = [column_of(each, suffix) for each in some_filters(random, rows, rows[0].keys())]
        if random.random() < 0.3:
            columns.append(F.size(f"keys{suffix}") < 3)
        return reduce(and_, columns)

    condition = joined()
    match random.choice(["and", "and", "and", "either", "and either"]):
        case "either":
            return condition | joined()
        case "and either":
            return condition & (joined() | joined())
    return condition


@pytest.mark.parametrize("rows", ["message", "key"])
def test_a_pushed_filter_gives_what_spark_itself_gives(registered: SparkSession, odd: MadeStore, rows: str):
    # One DataFrame for all: what one query pushed down must not show in another.
    pushed = load(registered, odd.folder, rows=rows)
    kept = load(registered, odd.folder, rows=rows, pushdown="never").cache()
    expected = all_rows(odd.folder, by_key=rows == "key")
    random = Random(rows)
    pushed_some = 0
    for number in range(40):
        suffix = random.choice(["", "", "_there"])  # under a projection that names all columns anew
        condition = some_condition(random, expected, suffix)
        offsets = ["physical_offset", "key"] if rows == "key" else ["physical_offset"]
        found, wanted = (
            frame.select([F.col(name).alias(name + suffix) for name in frame.columns] if suffix else "*")
            .where(condition)
            .select([name + suffix for name in offsets])
            .collect()
            for frame in (pushed, kept)
        )
        assert sorted(map(tuple, found)) == sorted(map(tuple, wanted)), f"{number}: {condition}"
        pushed_some += bool(found)
    kept.unpersist()
    assert pushed_some > 12
    assert pushed.count() == len(expected)


def test_queries_of_one_load_do_not_disturb_each_other(registered: SparkSession, odd: MadeStore):
    frame = load(registered, odd.folder, rows="key")
    rows = all_rows(odd.folder, by_key=True)
    counts = {key: sum(row["key"] == key for row in rows) for key in ("a", "ключ", "k7")}
    assert all(counts.values())
    first = frame.where("key = 'a'")
    first.explain()
    assert frame.where("key = 'ключ'").count() == counts["ключ"]
    assert frame.count() == len(rows)
    assert len(first.collect()) == len(first.collect()) == counts["a"]
    both = first.unionByName(frame.where("key = 'ключ'")).groupBy("key").count()
    assert {row["key"]: row["count"] for row in both.collect()} == {key: counts[key] for key in ("a", "ключ")}
    pairs = first.alias("l").join(frame.where("key = 'k7'").alias("r"), F.expr("l.topic = r.topic"))
    by_topic = [(row["key"], row["topic"]) for row in rows]
    assert pairs.count() == sum(by_topic.count(("k7", topic)) for key, topic in by_topic if key == "a")
    frame.createOrReplaceTempView("keys_of_odd")
    sql = "select (select count(*) from keys_of_odd where key = 'a') a, count(*) n from keys_of_odd where key = 'k7'"
    assert tuple(registered.sql(sql).first() or ()) == (counts["a"], counts["k7"])
    cached = frame.where("key = 'a'").cache()
    assert cached.count() == counts["a"] and frame.where("key = 'k7'").count() == counts["k7"]
    cached.unpersist()


def test_who_registers_is_warned_where_filters_narrow_nothing(spark: SparkSession, odd: MadeStore, tmp_path):
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        whence.spark.register(spark)
        patch.setattr(fresh_scans, "RULE", "whence.Another")
        patch.setattr(fresh_scans, "SOURCE", tmp_path / "Another.java")
        fresh_scans.SOURCE.write_text("package whence; class Another extends Nothing {}")
        with pytest.warns(UserWarning, match=r'narrow nothing.*"pushdown", "always".*CompileException.*Nothing'):
            whence.spark.register(spark)
    keys, rows = load(spark, odd.folder, rows="key", columns="key"), all_rows(odd.folder, by_key=True)
    assert keys.where("key = 'a'").count() == sum(row["key"] == "a" for row in rows)
    assert keys.count() == len(rows), "nothing was narrowed that another query may use"
    whence.spark.register(spark)


def test_what_is_appended_is_in_the_next_query(registered: SparkSession, odd: MadeStore, tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    path = tmp_path / "store" / "commitlog" / odd.log_files[0].name
    whole = odd.log_files[0].read_bytes()
    half = odd.offsets[40]
    path.write_bytes(whole[:half] + bytes(len(whole) - half))
    frame = load(registered, tmp_path / "store", columns="size")
    assert frame.count() == 40
    path.write_bytes(whole)
    assert frame.count() == sum(offset < FILE_SIZE for offset in odd.offsets)


def test_the_plan_shows_what_is_pushed_down(registered: SparkSession, odd: MadeStore, capsys):
    load(registered, odd.folder, rows="key").where(
        "key in ('a', 'b') and topic = 'orders' and size(keys) > 1"
    ).explain("formatted")
    shown = re.sub(r"#\d+L?", "", capsys.readouterr().out)
    assert "Condition : (size(keys, false) > 1)" in shown
    assert re.search(r"PushedFilters: .*EqualTo\(topic,orders\)", shown) and "In(key, [a,b])" in shown
    load(registered, odd.folder).select(F.col("topic").alias("place")).where("place = 'orders'").explain("formatted")
    assert "EqualTo(topic,orders)" in capsys.readouterr().out
    load(registered, odd.folder, pushdown="never").where("topic = 'x'").explain("formatted")
    assert "EqualTo" not in capsys.readouterr().out


def test_the_plans_on_the_page_are_those_that_spark_prints(registered: SparkSession, odd: MadeStore, capsys):
    java: Any = registered._jvm
    registered.conf.set("spark.sql.session.timeZone", java.java.util.TimeZone.getDefault().getID())  # that of plans
    page = (ROOT / "docs" / "spark.md").read_text()
    shown = re.findall(r"```python\n(keys|messages)(.*explain.*)\n```\n```\n((?:.|\n)*?)```", page)
    assert len(shown) == 2
    printed = []
    for name, query, plan in shown:
        columns = ",".join(re.findall(r"(\w+):", plan.partition("ReadSchema: ")[2].partition("\n")[0]))
        frame = load(registered, odd.folder, rows="key" if name == "keys" else "message", columns=columns)
        eval(f"frame{query}", {"frame": frame})
        printed.append(capsys.readouterr().out)
    registered.conf.set("spark.sql.session.timeZone", ZONE)
    for whole, (*_, part) in zip(printed, shown, strict=True):
        whole, part = (re.sub(r"#\d+L?", "", text).strip() for text in (whole, part))
        assert whole.startswith(part), whole


def test_damage_is_told_with_file_and_position(registered: SparkSession, odd: MadeStore, tmp_path):
    own = Path(shutil.copytree(odd.folder, tmp_path / "store"))
    bad = next(record for record in odd.records if record.stored_body)
    path = own / "commitlog" / odd.log_files[0].name
    data = bytearray(path.read_bytes())
    data[bad.physical_offset + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=f"{path.name} at byte {bad.physical_offset}"):
        load(registered, own).count()
    (told,) = load(registered, own, mode="permissive").where("damage is not null").collect()
    assert f"at byte {bad.physical_offset}" in told["damage"]
    assert load(registered, own, mode="permissive").where("damage is null").count() == len(odd.records) - 1


def test_a_wrong_option_or_path_is_told_when_the_source_is_loaded(registered: SparkSession, odd: MadeStore):
    with pytest.raises(AnalysisException, match="option 'topics' is not known; topic is a column"):
        load(registered, odd.folder, topics="x")
    with pytest.raises(AnalysisException, match="there is no such folder"):
        load(registered, odd.folder.with_name("nosuch")).count()


def test_times_are_compared_in_the_zone_of_the_session(registered: SparkSession, odd: MadeStore):
    frame = load(registered, odd.folder)
    rows = all_rows(odd.folder)
    begin = "to_timestamp('2023-11-15 07:13:21')"  # of Tokyo: T + 1000
    wanted = [row for row in rows if row["store_timestamp_ms"] >= T + 1000]
    assert frame.where(f"store_time >= {begin}").count() == len(wanted) > 0
    bounds = meet(rows, [])[:1]
    assert bounds and frame.where(F.col("store_time") == bounds[0]["store_time"]).count() > 0


def test_constants_that_python_has_no_value_for_are_compared_by_spark(registered: SparkSession, odd: MadeStore):
    frame = load(registered, odd.folder, rows="key")
    wanted = meet(all_rows(odd.folder, by_key=True), [EqualTo(("key",), "a")])
    for condition, count in (
        ("store_time < timestamp'+10000-01-01' and store_time > timestamp'0001-01-01'", len(wanted)),  # in Tokyo
        ("store_time in (timestamp'-4000-01-01', timestamp'2023-11-15 00:00:00')", 0),
        ("startswith(unique_id, cast(X'FF' as string))", 0),  # which is not U+FFFD, that some begin with
    ):
        assert frame.where(f"key = 'a' and {condition}").count() == count, condition


FOREIGN = """
import sys
from pyspark.sql import SparkSession
import whence
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1").getOrCreate()
)
whence.spark.register(spark)
frame = spark.read.format("whence").option("rows", "key").load(sys.argv[1])
print(frame.where("key = 'a'").count())
spark.stop()
"""


def test_a_session_that_is_not_ours_reads_as_well(odd: MadeStore, tmp_path):
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
    environment.pop("PYSPARK_PYTHON", None)  # tasks run in the Python that asks, whatever the path leads to
    run = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(odd.folder)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=200,
    )
    rows = all_rows(odd.folder, by_key=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(sum(row["key"] == "a" for row in rows))]
