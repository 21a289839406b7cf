"""Fields on real Spark: expressions are Spark's, files are those of a plain loop over the messages."""

import json
import re
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whence
from tests.field_maker import field_files
from tests.lookup.judge import offsets
from tests.pipeline.field_builds import field_of, noted
from tests.reference import read_log
from tests.spark.outside import STEERED, STEERED_VALUE, given_outside
from tests.store_maker import T, make_store, message
from whence.door import build_store, export_store, follow_store, repair_store, verify_store
from whence.errors import UsageError
from whence.files.disk import Disk
from whence.pipeline import field_evaluation, field_frames, field_scan, field_steps
from whence.pipeline.expressions import FUNCTIONS
from whence.pipeline.field_evaluation import Definition, Evaluator
from whence.pipeline.field_sql import check_sql
from whence.pipeline.runner import Runner
from whence.pipeline.session import SparkSettings
from whence.store.message_columns import COLUMNS

pytestmark = pytest.mark.slow

SLOTS, ITEMS = 31, 60
COUNT = 300
COMPRESSED = 0x1


def body_of(number: int) -> bytes:
    if number % 50 == 7:
        return b"\xff\xfe no JSON"
    document = {"order": number // 3, "items": [{"sku": f"s{number % 5}"}, {"sku": f"s{number % 3}"}, {}]}
    if number % 4 == 0:
        document["note"] = "" if number % 8 else "größer\u0000"
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store that a broker might have left; tests take copies."""
    folder = tmp_path_factory.mktemp("fields") / "store"
    with whence.create(folder, file_size=32768, slots=SLOTS, items=ITEMS, queue_file_size=400) as store:
        for number in range(COUNT):
            body, flag = body_of(number), 0
            if number % 10 == 3:
                body, flag = zlib.compress(body), COMPRESSED
            store.append(
                f"T{number % 3}",
                body,
                keys=[f"k{number}", "every"],
                tags=None if number % 2 else "even",
                sys_flag=flag,
            )
    (folder / "whence.json").unlink()
    return folder


@pytest.fixture
def store(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def document_of(record) -> dict[str, Any]:
    body = zlib.decompress(record.stored_body) if record.sys_flag & COMPRESSED else record.stored_body
    try:
        return json.loads(body)
    except ValueError:
        return {}


def orders(record):
    return [str(document_of(record)["order"])] if document_of(record) else []


def skus(record):
    return [item["sku"] for item in document_of(record).get("items", []) if "sku" in item]


def notes(record):
    return [document_of(record)["note"]] if "note" in document_of(record) else []


ORDER = "get_json_object(cast(body as string), '$.order')"
SKUS = "from_json(cast(body as string), 'items array<struct<sku:string>>').items.sku"
VARIABLES = "transform(array(topic), topic -> transform(array(topic), x -> topic || x)[0])"
FIELDS = {
    "order": (ORDER, orders),
    "sku": (SKUS, skus),
    "note": ("get_json_object(cast(body as string), '$.note')", notes),
    "body": ("body", lambda record: [_text(record)]),
    "keys": ("keys", lambda record: record.key_tokens),
    "even": ("tags = 'even'", lambda record: ["true"] if record.tags else []),
    "hour": ("date_format(store_time, 'yyyy HH')", None),
    "constant": ("'x'", lambda record: ["x"]),
    "none": ("cast(null as string)", lambda record: []),
    "place": ("physical_offset", lambda record: [str(record.physical_offset)]),
}


def _text(record) -> str:
    body = zlib.decompress(record.stored_body) if record.sys_flag & COMPRESSED else record.stored_body
    return body.decode("utf-8", "replace")


def test_fields_are_built_as_spark_evaluates_them(spark, store):
    sidecar = store.with_name("store.whence")
    built = build_store(store, fields={name: sql for name, (sql, _) in FIELDS.items()}, jobs=3, with_sums=True)
    records = read_log(store)
    for name, (_, values) in FIELDS.items():
        if values is not None:
            assert field_of(sidecar, name) == field_files(records, values, SLOTS, ITEMS), name
    told = {field.name: field for field in built.fields}
    assert told["order"].items == told["order"].new_items == sum(len(orders(record)) for record in records)
    claim = noted(sidecar).fields["order"]
    assert (claim.sql, claim.ansi, claim.spark) == (ORDER, True, spark.version)
    assert claim.session_zone == spark.conf.get("spark.sql.session.timeZone")
    with whence.open(store) as opened:
        answer = opened.find(field={"order": "41", "sku": "s2"})
        assert offsets(answer) == [
            r.physical_offset for r in reversed(records) if "41" in orders(r) and "s2" in skus(r)
        ]
        assert answer.messages and answer.receipt.complete
    assert build_store(store).files == ()


def test_fields_are_the_same_with_one_message_in_a_row_of_sparks_and_with_many(spark, store, monkeypatch):
    fields = {f"of_{name}": name for name in COLUMNS if name != "properties"}
    fields |= {"comment": "substr(cast(body as string), 1, 20) -- its beginning", "case": "BODY", "var": VARIABLES}
    fields |= {"map": "properties['TAGS']", "member": "properties.UNIQ_KEY", "entries": "map_keys(properties)"}
    others = {"two": "topic || queue", "named": "upper(topic) as t"}  # of which each keeps all from being packed
    packed = []

    def noting(*given: Any) -> Any:
        packed.append(can_be_packed(*given))
        return packed[-1]

    can_be_packed = field_frames.can_be_packed
    monkeypatch.setattr(field_evaluation, "can_be_packed", noting)
    folder, found = store.with_name("store.whence"), []
    for other in ({}, *({name: sql} for name, sql in others.items())):
        shutil.rmtree(folder, ignore_errors=True)
        build_store(store, fields=fields | other)
        names = [path for path in (folder / "fields").rglob("*") if path.is_file()]
        found.append(
            {
                str(path.relative_to(folder)): path.read_bytes()
                for path in names
                if path.relative_to(folder).parts[1] in fields
            }
        )
    assert packed == [True, False, False]
    assert found[0] == found[1] == found[2]
    assert {name.split("/")[1] for name in found[0]} == fields.keys()


def test_a_row_of_sparks_has_few_messages_where_they_are_large(monkeypatch):
    monkeypatch.setattr(field_steps, "PACKED_SIZE", 1000)
    batch = pa.record_batch([pa.array([bytes(99)] * 50 + [bytes(9000)], pa.binary())], ["body"])
    packed = field_steps.packed(batch)
    assert packed.num_rows == len(batch) // 3 and packed.column(0).flatten().equals(batch.column(0))
    assert field_steps.packed(batch.slice(0, 50)).column(0).flatten().equals(batch.column(0).slice(0, 50))
    huge = field_steps.packed(batch.slice(50))
    assert huge.num_rows == 1 and huge.column(0).flatten().equals(batch.column(0).slice(50))


def test_a_field_goes_on_with_its_log_and_is_dropped_when_asked(spark, made, tmp_path):
    store = Path(shutil.copytree(made, tmp_path / "store"))
    sidecar = store.with_name("store.whence")
    last = sorted((store / "commitlog").iterdir())[-1]
    shutil.move(last, tmp_path / "kept")
    build_store(store, fields={"order": ORDER})
    shutil.move(tmp_path / "kept", last)
    built = build_store(store, jobs=5)
    assert [field.name for field in built.fields] == ["order"]
    assert built.fields[0].from_offset > 0
    assert field_of(sidecar, "order") == field_files(read_log(store), orders, SLOTS, ITEMS)
    build_store(store, fields={"order": ""})
    assert noted(sidecar).fields == {} and not list((sidecar / "fields").iterdir())


def test_an_expression_that_fails_names_the_first_message_it_fails_on(spark, store):
    records = read_log(store)
    failing = [record for record in records if document_of(record).get("order") == 41]
    with pytest.raises(UsageError) as told:
        build_store(store, fields={"a": ORDER, "b": f"100 / ({ORDER} - 41)"}, jobs=4)
    assert f"field b: its expression fails on the message at physical offset {failing[0].physical_offset}: " in str(
        told.value
    )
    assert "DIVIDE_BY_ZERO" in str(told.value)
    sidecar = noted(store.with_name("store.whence"))
    assert sidecar.indexed and sidecar.fields.keys() == {"a"}
    assert field_of(store.with_name("store.whence"), "a") == field_files(records, orders, SLOTS, ITEMS)
    assert not (store.with_name("store.whence") / "work").exists()


def test_a_field_that_fails_holds_up_no_other_in_builds_and_in_follow(spark, tmp_path):
    bodies = [str(number).encode() for number in range(50)] + [b"100", b"bad", b"101"]
    made = make_store(tmp_path / "whole", [message(body=body, topic="T") for body in bodies])
    store = make_store(tmp_path / "store", [message(body=body, topic="T") for body in bodies[:50]]).folder
    sidecar, bad = store.with_name("store.whence"), made.records[51].physical_offset
    fields = {"good": "cast(body as string)", "num": "cast(cast(body as string) as int)"}
    with pytest.raises(UsageError, match=r"^field bad: .* at physical offset 0: "):
        build_store(store, fields=fields | {"bad": "cast(topic as int)", "worse": "topic / 0"})
    assert noted(sidecar).fields.keys() == fields.keys()
    was = noted(sidecar).fields["num"]
    for path in (made.folder / "commitlog").iterdir():
        (store / "commitlog" / path.name).write_bytes(path.read_bytes())
    why = f"^field num: its expression fails on the message at physical offset {bad}: "

    def check(*names: str) -> None:
        claim = noted(sidecar)
        assert claim.fields.keys() == {"num", *names} and claim.fields["num"] == was
        assert {claim.fields[name].indexed_to for name in names} == {made.end_offset}
        with whence.open(store) as opened:
            answer = opened.find(field={"good": "100"})
            assert offsets(answer) == [made.offsets[50]] and answer.receipt.complete

    shutil.copytree(sidecar, tmp_path / "kept")
    state = follow_store(store, once=True)
    assert (state.fields_to_offset, state.is_ended) == (was.indexed_to, True)
    assert state.field_failure is not None and re.match(why, state.field_failure)
    check("good")
    shutil.rmtree(sidecar)
    shutil.copytree(tmp_path / "kept", sidecar)
    with pytest.raises(UsageError, match=why):
        build_store(store)
    check("good")
    with pytest.raises(UsageError, match=why):
        build_store(store, fields={"third": "topic"})
    check("good", "third")
    assert build_store(store, fields={"num": "try_cast(cast(body as string) as int)"}).fields[0].name == "num"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("cast(parse_json(cast(body as string)) as string)", "[MALFORMED_RECORD"),
        ("split(topic, cast(body as string))[0]", "PatternSyntaxException: Unclosed group"),
        ("regexp_extract(repeat('ab', if(body = X'28', 100000, 1)), '(a|b)*', 0)", "StackOverflowError"),
        ("size(array_repeat('x', if(body = X'28', 2147483647, 1)))", "Cannot create array with 2147483647 elements"),
    ],
)
def test_what_only_java_knows_as_an_error_names_its_message_too(spark, tmp_path, sql, why):
    with whence.create(tmp_path / "store", file_size=32768, slots=SLOTS, items=ITEMS) as store:
        last = [store.append("T", body) for body in (b"1", b"(")][-1]
    with pytest.raises(UsageError) as told:
        build_store(tmp_path / "store", fields={"f": sql})
    where = f"field f: its expression fails on the message at physical offset {last.physical_offset}: "
    assert str(told.value).startswith(where) and why in str(told.value) and "\n" not in str(told.value)


def test_damaged_fields_are_found_and_built_anew(spark, store):
    sidecar = store.with_name("store.whence")
    build_store(store, fields={"order": ORDER, "sku": SKUS})
    healthy = verify_store(store)
    assert healthy.is_healthy and set(healthy.fields) == {"order", "sku"}
    before = {name: field_of(sidecar, name) for name in ("order", "sku")}
    for kind, number, place in (("values", 1, 100), ("index", -1, 150)):
        path = sorted((sidecar / "fields/order" / kind).iterdir())[number]
        data = bytearray(path.read_bytes())
        data[place] ^= 4
        path.write_bytes(data)
    (sidecar / "fields/orphan").mkdir()
    found = verify_store(store, jobs=3)
    assert set(found.damaged_fields) == {"order", "orphan"} and not found.fields["sku"].damage
    told = repair_store(store, dry_run=True)
    assert not told.is_healthy and told.left
    repaired = repair_store(store)
    assert repaired.is_healthy
    assert {name: field_of(sidecar, name) for name in ("order", "sku")} == before
    assert verify_store(store).is_healthy
    (sidecar / "sidecar.json").write_text("{")  # with it nobody knows what the fields were
    assert repair_store(store).is_healthy
    found = verify_store(store)
    assert (found.damage, found.fields) == ([], {})


def test_an_expression_that_takes_all_memory_is_told_and_the_others_are_verified(spark, tmp_path):
    sidecar = tmp_path / "store.whence"
    with whence.create(tmp_path / "store", file_size=32768, slots=SLOTS, items=ITEMS) as store:
        store.append("T", b"1")
    build_store(tmp_path / "store", fields={"all": "'1'", "body": "body"})
    claim = noted(sidecar)
    all_memory = replace(claim.fields["all"], sql="length(repeat('x', 2147483647 - queue))")
    replace(claim, fields=claim.fields | {"all": all_memory}).write(sidecar, Disk())
    found = verify_store(tmp_path / "store").fields
    assert (found["body"].items, found["body"].damage) == (1, [])
    (damage,) = found["all"].damage
    assert "field all: its expression fails on the message at physical offset 0: java.lang.OutOf" in damage.detail


def test_a_scan_evaluates_expressions_and_trusts_no_index(spark, store, tmp_path):
    sidecar = store.with_name("store.whence")
    records = read_log(store)
    last = sorted((store / "commitlog").iterdir())[-1]
    shutil.move(last, tmp_path / "kept")
    build_store(store, fields={"order": ORDER, "sku": SKUS})
    shutil.move(tmp_path / "kept", last)
    for path in (sidecar / "fields/order/values").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    with whence.open(store) as opened:
        assert not opened.find(field="order=41").messages
        answer = opened.find(field="order=41", scan=True)
        assert offsets(answer) == [r.physical_offset for r in reversed(records) if "41" in orders(r)] != []
        receipt = answer.receipt
        assert (receipt.verified_by, receipt.index_source, receipt.complete) == ("log", "none", True)
        assert receipt.scanned_bytes == receipt.searched_to_offset
        newest = orders(records[-1])[0]
        assert not opened.find(field={"order": newest}).receipt.complete  # it came after the build
        both = opened.find(field={"order": newest, "sku": skus(records[-1])[0]}, scan=True, topic=records[-1].topic)
        assert offsets(both) == [records[-1].physical_offset] and both.receipt.complete
        page = opened.find(field="sku=s1", scan=True, limit=5)
        more = opened.find(field="sku=s1", scan=True, limit=None, cursor=page.cursor)
        right = [record.physical_offset for record in reversed(records) if "s1" in skus(record)]
        assert offsets(page) + offsets(more) == right
        assert opened.find(field="order=none", scan=True).receipt.why_empty == "no_such_key"
        with pytest.raises(UsageError, match="evaluated on Spark"):
            opened.explain(field="order=41", scan=True)


def test_a_scan_says_that_a_body_which_cannot_be_read_may_be_the_one(spark, tmp_path, monkeypatch):
    bodies = [b"word" if number == 3 else zlib.compress(b"word") for number in range(6)]
    made = make_store(
        tmp_path / "store",
        [message(keys="k", body=body, topic=f"T{number}", sys_flag=COMPRESSED) for number, body in enumerate(bodies)],
    )
    in_tokyo = SparkSettings(conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    fields = {"w": "cast(body as string)", "size": "body_size", "k": "keys"}
    build_store(made.folder, fields=fields, spark=in_tokyo)
    build_store(made.folder, fields={"zoned": "topic"})
    with whence.open(made.folder) as store:

        def ask(**question: Any) -> tuple[int, bool, str | None]:
            answer = store.find(scan=True, **question)
            receipt = answer.receipt
            assert receipt.damaged == (not receipt.complete)
            return len(answer), receipt.complete, receipt.why_empty

        assert ask(field="w=nobody") == (0, False, "damaged")
        assert ask(field="w=word") == (5, False, None)
        assert ask(field={"w": "nobody", "zoned": "T3"}) == (0, False, "damaged")
        assert ask(field="w=nobody", topic="T3", key="k") == (0, False, "damaged")
        for undoubted in ({"topic": "T2"}, {"key": "other"}, {"until": T - 1}):
            assert ask(field="w=nobody", **undoubted)[:2] == (0, True), undoubted
        assert ask(field={"w": "word", "zoned": "T2"}) == (1, True, None)
        assert ask(field={"size": "4", "k": "k"}) == (1, True, None)
        exported = export_store(
            made.folder, tmp_path / "out", question={"field": "w=word", "scan": True}, format="jsonl"
        )
        assert (exported.messages, exported.receipt.complete) == (5, False)
        monkeypatch.setattr(field_scan, "BODY_DAMAGE_MAX", 1)  # there may be more than are told
        assert ask(field="w=nobody", topic="T2") == (0, False, "damaged")


@pytest.mark.parametrize("name", ["v4-clean", "v5-damaged-lost-page", "v5-crashed-b"])
def test_a_scan_gives_what_the_index_gives_of_a_brokers_log(spark, golden, tmp_path, name):
    folder, records = golden(name).copy(tmp_path), golden(name).records
    build_store(folder, fields={"key": "keys", "place": "topic || ' ' || queue"})
    key = next(token for record in reversed(records) for token in record.key_tokens)
    place = f"{records[0].topic} {records[0].queue}"
    questions: list[dict[str, Any]] = [
        {"field": {"key": key}, "limit": None},
        {"field": {"place": place}, "limit": 3, "oldest_first": True},
        {"field": {"key": key, "place": place}, "system_topics": True},
        {
            "field": {"place": place},
            "topic": records[0].topic,
            "until": records[len(records) // 2].store_timestamp_ms,
        },
        {"field": {"key": "none"}},
    ]
    with whence.open(folder) as store:
        for question in questions:
            index, scan = store.find(**question), store.find(scan=True, **question)
            assert offsets(scan) == offsets(index), question
            for each in ("complete", "truncated", "why_empty", "searched_from_offset", "searched_to_offset"):
                assert getattr(scan.receipt, each) == getattr(index.receipt, each), (question, each)
            assert (index.receipt.verified_by, scan.receipt.verified_by) == ("value_hash", "log")
        assert store.find(field={"place": place}).messages


@pytest.fixture(scope="module")
def evaluator(spark) -> Evaluator:
    return Evaluator(spark, Runner(spark))


TYPE = json.dumps(
    {"type": "struct", "fields": [{"name": "a", "type": "date", "metadata": {"EXISTS_DEFAULT": "current_date()"}}]}
)

REFUSED = {
    "rand()": "rand",
    "uuid()": "uuid",
    "current_date": "there is no column current_date",
    "current_timestamp()": "current_timestamp",
    "now()": "now",
    "unix_timestamp()": "present time",
    "date 'today'": "depends on the clock",
    "cast('now' as timestamp) > store_time": "depends on the clock",
    "to_date(' Yesterday ')": "depends on the clock",
    "store_time > concat('to', 'day')": "depends on the clock",
    "date /**/ 'today'": "depends on the clock",
    "date r'today' -- date '2026-01-01'": "depends on the clock",
    r"tags = 'ä😀' and date 'tod\u0061y' > store_time": "depends on the clock",
    "date --\n 'now'": "depends on the clock",
    "timestamp '12:00'": "depends on the clock",
    "transform(keys, k -> date 'today')": "depends on the clock",
    "cast(nvl('today', 'x') as date)": "depends on the clock",
    "cast(left('today', 5) as date)": "depends on the clock",
    "to_date(left(substring(typeof(named_struct('today', tags)), 8), 5))": "depends on the clock",
    "date_add(get(array('today'), 0), 1)": "depends on the clock",
    "cast('T12:00' as timestamp)": "depends on the clock",
    "cast(array(time '12:00') as array<timestamp_ntz>)": "depends on the clock",
    "cast(tags as timestamp)": "give to_timestamp a format",  # 12:00 is that of the day on which it is made
    "store_time > get_json_object(cast(body as string), '$.at')": "give to_timestamp a format",
    "hour(tags)": "give to_timestamp a format",
    "cast(keys as array<timestamp>)[0]": "give to_timestamp a format",
    "from_json(cast(body as string), 'at timestamp').at": "give to_timestamp a format",
    "from_csv(tags, 'at timestamp').at": "give to_timestamp a format",
    "try_variant_get(try_parse_json(tags), '$.at', 'timestamp')": "give to_timestamp a format",
    "cast(parse_json(tags) as timestamp)": "give to_timestamp a format",
    "cast(cast(1 / 0 as string) as date)": "depends on the clock",
    "date_trunc(cast(1 / 0 as string), store_time) = 'today'": "depends on the clock",
    "reflect('java.lang.Runtime', 'getRuntime')": "reflect",
    "java_method('java.lang.Math', 'abs', 1)": "java_method",
    "try_reflect('a', 'b')": "try_reflect",
    "input_file_name()": "input_file_name",
    "monotonically_increasing_id()": "monotonically_increasing_id",
    "spark_partition_id()": "spark_partition_id",
    "from_xml(tags, 'a int', map('rowValidationXSDPath', '/etc/passwd'))": "from_xml",
    "from_protobuf(body, 'A', '/etc/passwd')": "from_protobuf",
    "xpath_string(cast(body as string), 'a/b')": "the function xpath_string",  # its DOCTYPE may name any file
    "xpath(cast(body as string), 'a/b')": "the function xpath",
    "format_string('%s', body)": "the function format_string",  # [B@1f2e3d, another one each time
    "printf('%h', properties)": "the function printf",
    "session_user": "there is no column",
    "version()": "version",
    "(select 1)": "scalar subquery",
    "exists (select 1)": "not on the list",
    "size in (select 1)": "not on the list",
    "sum(size)": "sum",
    "first(tags)": "aggregate",
    "row_number() over (order by size)": "window",
    "explode(keys)": "explode",
    "identifier('rand')()": "not on the list",
    "default.upper(tags)": "default.upper",
    "transform(keys, x -> current_date)": "there is no column current_date",
    "concat(transform(keys, now -> now)[0], transform(keys, x -> now)[0])": "there is no column now",
    "transform(keys, `current_date, x` -> current_date)": "there is no column current_date",
    "my_function(tags)": "my_function",
    f"from_json('{{}}', '{TYPE}').a": "has to be a text in SQL",
    f"from_json('{{}}', concat(' ', '{TYPE}')).a": "has to be a text in SQL",
    f"from_csv(tags, '{TYPE}').a": "has to be a text in SQL",
    f"try_variant_get(parse_json(tags), '$', '{TYPE}').a": "has to be a text in SQL",
    "nosuch": "there is no column nosuch",
    "*": "not on the list",
    ":x": "not on the list",
    "tags as a, size": "is no expression of Spark SQL",
    "1; drop table x": "is no expression of Spark SQL",
    "tags, size": "is no expression of Spark SQL",
    "upper(": "is no expression of Spark SQL",
    "upper(tags, size)": "is no expression of Spark SQL",
    "properties": "no text is made",
    "struct(tags)": "no text is made",
    "array(array(1))": "no text is made",
    "parse_json(tags)": "no text is made",
    "": "has 0 characters",
    "x" * 5000: "has 5000 characters",
}


def test_expressions_that_depend_on_more_than_the_message_are_refused(spark, evaluator):
    spark.udf.register("my_function", lambda text: text)
    for sql, why in REFUSED.items():
        with pytest.raises(UsageError, match=f"(?s)field f: .*{why}") as told:
            evaluator.check(Definition("f", sql, "UTC", True))
        assert "\n" not in str(told.value) and len(str(told.value)) < 900


ALLOWED = {
    ORDER: ("body",),
    SKUS: ("body",),
    "lower(topic) || '-' || coalesce(tags, '?')": ("topic", "tags"),
    "case when size > 5 and tags is not null then keys[0] else properties['a'] end": (
        "keys",
        "tags",
        "size",
        "properties",
    ),
    "transform(filter(keys, k -> k like 'k%'), (k, i) -> k || i || topic)": ("topic", "keys"),
    "extract(hour from store_time)": ("store_time",),
    "upper(TOPIC)": ("topic",),
    "tags = 'today'": ("tags",),
    "date '2026-01-31' < store_time and store_time < \"2027\"": ("store_time",),
    "to_date(left(tags, 10)) + make_interval(1) > timestamp_ntz' 2026-01-31 12:00'": ("tags",),
    "date_trunc(cast(1 / 0 as string), store_time)": ("store_time",),
    "try_to_timestamp(tags, 'yyyy-MM-dd HH:mm') > store_time": ("store_time", "tags"),
    "from_json(tags, 'timestamp string, at timestamp_ntz').timestamp": ("tags",),
    "hour(cast(tags as timestamp_ntz)) + hour(cast(date(tags) as timestamp))": ("tags",),
    "date_format(store_time, 'yyyy') || to_date(tags, 'yyyy')": ("store_time", "tags"),
    "try_cast(substring(tags from 1 for 2) as decimal(10, 2))": ("tags",),
    "variant_get(try_parse_json(cast(body as string)), '$.a', 'string')": ("body",),
    "timestamp_millis(born_timestamp_ms) - interval 1 day": ("born_timestamp_ms",),
    "queue_offset % 7 in (1, 2) or not (queue between 1 and 3)": ("queue", "queue_offset"),
    "named_struct('a', unique_id).a": ("unique_id",),
    "1": (),
}


def test_expressions_over_a_message_are_allowed_and_their_columns_known(evaluator):
    for sql, columns in ALLOWED.items():
        assert evaluator.check(Definition("f", sql, "UTC", True)).columns == columns, sql
    every = "concat_ws(' ', keys, " + ", ".join(f"cast({name} as string)" for name in COLUMNS if name != "keys") + ")"
    assert evaluator.check(Definition("f", every, "UTC", True)).columns == tuple(COLUMNS)


def test_functions_that_are_allowed_are_sparks_own(spark):
    there = {row[0] for row in spark.newSession().sql("show system functions").collect()}
    assert not FUNCTIONS - there
    assert not FUNCTIONS & {"reflect", "java_method", "rand", "now", "explode", "sum", "input_file_name"}


def test_settings_that_somebody_gives_spark_change_no_value(spark, evaluator):
    with given_outside(spark):
        session = evaluator._session(Definition("f", STEERED, "UTC", True))
        steered, found = (
            each.range(1).selectExpr(f"{STEERED} as value").first().value for each in (spark.newSession(), session)
        )
        with pytest.raises(Exception, match="DUPLICATED_MAP_KEY"):
            session.sql("select map('a', 1, 'a', 2)").collect()
    assert steered != found == STEERED_VALUE


def test_zone_and_ansi_mode_are_those_of_the_definition(spark, evaluator, store, tmp_path):
    session = evaluator._session(Definition("f", "1", "Asia/Tokyo", False))
    assert session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert session.conf.get("spark.sql.ansi.enabled") == "false"
    with pytest.raises(UsageError, match=r"field f: spark\.sql\.session\.timeZone cannot be 'nowhere'"):
        check_sql(evaluator._session(Definition("f", "1", "nowhere", True)), "f", "1")
    build_store(store, fields={"hour": "date_format(store_time, 'yyyy-MM-dd HH z')"})
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert build_store(store).fields == ()
        assert build_store(store, fields={"hour": "date_format(store_time, 'yyyy-MM-dd HH z')"}).fields == ()
        (field,) = build_store(store, fields={"day": "date_format(store_time, 'yyyy-MM-dd z')"}).fields
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    kept = noted(store.with_name("store.whence")).fields
    assert field.name == "day"
    assert (kept["hour"].session_zone, kept["day"].session_zone) == (zone, "Asia/Tokyo")
    given = SparkSettings(conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert [field.name for field in build_store(store, spark=given).fields] == ["hour"]
    assert noted(store.with_name("store.whence")).fields["hour"].session_zone == "Asia/Tokyo"
    assert build_store(store, spark=given).fields == ()
