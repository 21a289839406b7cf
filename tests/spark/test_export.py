"""``whence export`` on Spark: as a user runs it, and as other programs read what it made."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whence
from tests.golden import GoldenStore
from tests.reference import COMPRESSED
from tests.spark.outside import STEERED, STEERED_VALUE, given_outside
from tests.spark.processes import AT_ONCE_S, starting
from tests.spark.stores import foreign_store
from tests.store_maker import make_store, message
from whence.cli.commands import main
from whence.door import build_store, export_store
from whence.errors import StoreError, UsageError
from whence.formats.rocketmq.message import Message
from whence.lookup.answer import as_json, message_to_dict
from whence.pipeline.export_tasks import Part, RowFilter
from whence.pipeline.export_where import Where
from whence.pipeline.runner import JobState, Runner
from whence.pipeline.session import SparkSettings

pytestmark = pytest.mark.slow

LIMIT_S = 60
KILLS = 2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_store(tmp_path_factory.mktemp("made") / "store", 600)


def found(store: Path, **question: Any) -> list[Message]:
    with whence.open(store) as opened:
        return opened.find(**{"since": 0, **question}, limit=None, oldest_first=True).messages


def lines_of(target: Path) -> list[str]:
    return [line for path in sorted(target.glob("*.jsonl")) for line in path.read_text("ascii").splitlines()]


WHERES: list[tuple[str, Callable[[Message], bool]]] = [
    ("QUEUE = 1", lambda message: message.queue == 1),
    ("length(body) % 3 = 0", lambda message: len(message.body) % 3 == 0),
    ("physical_offset > 5000 and topic <> 'no'", lambda message: message.physical_offset > 5000),
    ("size(keys) > 1 or properties['UNIQ_KEY'] is null", lambda each: len(each.keys) > 1 or each.unique_id is None),
    ("false", lambda message: False),
]


def test_where_takes_the_messages_for_which_it_is_true(spark, store, tmp_path):
    messages = found(store)
    for number, (sql, is_true) in enumerate(WHERES):
        exported = export_store(store, tmp_path / str(number), format="jsonl", where=sql)
        wanted = [as_json(message_to_dict(each, body=True)) for each in messages if is_true(each)]
        assert lines_of(tmp_path / str(number)) == wanted, sql
        assert exported.receipt.complete and exported.receipt.searched_to_offset > 0
        assert exported.receipt.why_empty == (None if wanted else "filtered")
    key = next(each.keys[0] for each in messages if each.keys)
    export_store(store, tmp_path / "key", format="jsonl", question={"key": key}, where="queue >= 0")
    assert lines_of(tmp_path / "key") == [as_json(message_to_dict(each, body=True)) for each in found(store, key=key)]


def test_where_tells_damage_as_a_scan_does(spark, golden: Callable[[str], GoldenStore], tmp_path):
    damaged = golden("v5-damaged-body-flip").store
    plain = export_store(damaged, tmp_path / "plain")
    never = export_store(damaged, tmp_path / "never", where="false")
    assert never.receipt.damage == plain.receipt.damage
    asked = export_store(damaged, tmp_path / "asked", where="queue >= 0")
    assert asked.receipt.damage == plain.receipt.damage and asked.receipt.damage
    assert (asked.receipt.complete, asked.messages) == (plain.receipt.complete, plain.messages)


def test_where_tells_the_bodies_that_it_could_not_look_into_as_fields_do(spark, tmp_path):
    bodies = [b"other" if number == 3 else zlib.compress(b"body") for number in range(6)]
    made = make_store(tmp_path / "store", [message(keys="k", body=body, sys_flag=COMPRESSED) for body in bodies])
    is_body = "cast(body as string) = 'body'"
    for number, (sql, question, count) in enumerate(
        [(is_body, {}, 5), (f"not ({is_body})", {}, 0), (f"not ({is_body})", {"key": "k"}, 0)]
    ):
        exported = export_store(made.folder, tmp_path / str(number), where=sql, question=question)
        (damage,) = exported.receipt.damage
        assert (damage.kind, damage.position) == ("bad_body", made.records[3].physical_offset)
        assert (exported.messages, exported.receipt.complete, exported.is_healthy) == (count, False, False)
    exported = export_store(made.folder, tmp_path / "out", where="body_size > 0")
    assert (exported.messages, exported.receipt.complete, exported.receipt.damage) == (6, True, [])
    assert build_store(made.folder, fields={"body": "body"}).damage == (damage,)


def test_where_that_is_no_answer_or_fails_is_told_in_a_line(spark, store, tmp_path):
    for sql, why in [
        ("queue", "is of type int; it must be true or false"),
        ("rand() > 0.5", "the function rand is not on the list"),
        ("reflect('java.lang.Math', 'random') is null", "the function reflect is not on the list"),
        ("topic in (select 1)", "is not on the list"),
        ("cast(topic as int) = 1", "CAST_INVALID_INPUT"),
    ]:
        with pytest.raises(UsageError, match=why) as raised:
            export_store(store, tmp_path / "out", where=sql)
        assert "\n" not in str(raised.value) and "==" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_where_that_fails_names_the_first_message_that_is_asked_for_and_fails(spark, store, tmp_path):
    messages = found(store)
    topic, key = messages[-1].topic, next(each.keys[0] for each in reversed(messages) if each.keys)
    failing = messages[len(messages) // 2].physical_offset
    questions: list[dict[str, Any]] = [{}, {"topic": topic}, {"key": key}]
    for question in questions:
        first = next(each for each in found(store, **question) if each.physical_offset >= failing)
        where = f"if(physical_offset < {failing}, 1, cast('x' || queue as int)) = 1"
        why = rf"^--where fails on the message at physical offset {first.physical_offset}: \[CAST_INVALID_INPUT\] "
        with pytest.raises(UsageError, match=why):
            export_store(store, tmp_path / "out", where=where, question=question)
    assert not (tmp_path / "out").exists()


def test_where_is_in_utc_wherever_it_is_asked_unless_a_setting_says_otherwise(spark, store, tmp_path):
    messages = found(store)
    middle = messages[len(messages) // 2].store_time.replace(tzinfo=None)
    zone, ansi = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
    asked: dict[str, Any] = {"format": "jsonl", "where": f"store_time < '{middle}'"}
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Asia/Tokyo")
    try:
        exported = export_store(store, tmp_path / "out", **asked)
    finally:
        spark.conf.set(zone, before)
    assert exported.messages == len([each for each in messages if each.store_time.replace(tzinfo=None) < middle]) > 0
    told = json.loads((tmp_path / "out" / "_export.json").read_text())
    assert told["where_settings"] == {zone: "UTC", ansi: "true"}
    in_tokyo = SparkSettings(conf={zone: "Asia/Tokyo"})
    with pytest.raises(UsageError, match="holds another export"):
        export_store(store, tmp_path / "out", **asked, spark=in_tokyo)
    assert export_store(store, tmp_path / "out", **asked, spark=in_tokyo, rebuild=True).messages == 0
    with pytest.raises(UsageError, match=f"--where: {zone} cannot be 'Nowhere'"):
        export_store(store, tmp_path / "out", **asked, spark=SparkSettings(conf={zone: "Nowhere"}), rebuild=True)


def test_settings_that_somebody_gives_spark_change_no_answer_of_where(spark, store, tmp_path):
    with given_outside(spark):
        exported = export_store(store, tmp_path / "out", where=f"{STEERED} = r'{STEERED_VALUE}'")
    assert exported.messages == len(found(store))


def test_a_disk_that_cannot_be_written_to_ends_where_at_once_and_is_told_as_it_is(spark, store, tmp_path):
    path = min((store / "commitlog").iterdir())
    part = Part(0, str(path), 0, ((0, path.stat().st_size),))
    ended: list[JobState] = []
    where = Where(spark, Runner(spark, ended.append), {})
    with pytest.raises(StoreError, match=f"^{tmp_path}/gone/.* cannot be"):
        where([part], RowFilter(), "queue >= 0", tmp_path / "gone")
    assert ended[-1].is_ended and not ended[-1].tasks_failed


def test_fields_are_exported_from_their_index_and_without_one(spark, tmp_path):
    store = foreign_store(tmp_path / "store", 300)
    build_store(store, fields={"key": "keys", "place": "topic || ' ' || queue"})
    messages = found(store)
    key = next(message.keys[0] for message in reversed(messages) if message.keys)
    place = f"{messages[-1].topic} {messages[-1].queue}"
    questions: list[dict[str, Any]] = [
        {"field": {"place": place}},
        {"field": {"key": key, "place": place}, "since": messages[len(messages) // 2].store_time},
        {"field": {"key": "none"}},
    ]
    wanted = []
    with whence.open(store) as opened:
        for question in questions:
            answer = opened.find(**question, limit=None, oldest_first=True)
            assert answer.receipt.complete
            wanted.append([as_json(message_to_dict(each, body=True)) for each in answer])
    assert wanted[0] and not wanted[2]
    for number, question in enumerate(questions):
        exported = export_store(store, tmp_path / f"index-{number}", format="jsonl", question=question)
        assert lines_of(tmp_path / f"index-{number}") == wanted[number], question
        assert (exported.receipt.complete, exported.receipt.verified_by) == (True, "value_hash")
    for path in store.with_name("store.whence").glob("fields/*/values/*"):
        path.write_bytes(bytes(path.stat().st_size))  # no index leads anywhere now
    for number, question in enumerate(questions):
        target = tmp_path / f"scan-{number}"
        exported = export_store(store, target, format="jsonl", question={**question, "scan": True})
        assert lines_of(target) == wanted[number], question
        assert (exported.receipt.complete, exported.receipt.verified_by) == (True, "log")
    where = export_store(
        store, tmp_path / "where", format="jsonl", question={**questions[0], "scan": True}, where="queue < 0"
    )
    assert (where.messages, where.receipt.complete) == (0, True)


def test_the_command_exports_a_field_without_its_index(spark, store, tmp_path, capsys):
    build_store(store, fields={"place": "topic || ' ' || queue"})
    message = found(store)[0]
    wanted = [each for each in found(store) if (each.topic, each.queue) == (message.topic, message.queue)]
    asked = ["--field", f"place={message.topic} {message.queue}", "--scan"]
    assert main(["export", str(store), "-o", str(tmp_path / "out"), *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["messages"] == len(wanted) and told["receipt"]["verified_by"] == "log"
    assert main(["find", str(store), *asked, "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["messages"]) == len(wanted)


def test_spark_reads_what_was_exported(spark, store, tmp_path):
    messages = found(store)
    export_store(store, tmp_path / "table")
    table = spark.read.option("basePath", str(tmp_path / "table")).parquet(str(tmp_path / "table"))
    rows = table.select("topic", "physical_offset", "keys", "body", "day").orderBy("physical_offset").collect()
    assert [tuple(row)[:4] for row in rows] == [
        (each.topic, each.physical_offset, list(each.keys), each.body) for each in messages
    ]
    assert {str(row["day"]) for row in rows} == {str(each.store_time.date()) for each in messages}
    export_store(store, tmp_path / "lines", format="jsonl")
    assert spark.read.json(str(tmp_path / "lines")).count() == len(messages)
    export_store(store, tmp_path / "csv", format="csv")
    read = (
        spark.read.option("header", True).option("multiLine", True).option("escape", '"').csv(str(tmp_path / "csv"))
    )
    ids = [row[0] for row in read.select("offset_id").collect()]
    assert sorted(ids) == sorted(each.offset_id for each in messages)


def test_the_command_tells_what_it_made(spark, store, tmp_path, capsys):
    assert main(["export", str(store), "-o", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(tmp_path / "out")
    assert told["messages"] == len(found(store)) == sum(file["messages"] for file in told["files"])
    assert told["bytes"] == sum((tmp_path / "out" / file["path"]).stat().st_size for file in told["files"])
    assert main(["export", str(store), "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert f"{told['messages']} messages were written to {tmp_path / 'out'}" in " ".join(text.split()).replace(
        ",", ""
    )
    assert "It is complete" in text
    assert main(["export", str(store), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    keys = [key for each in found(store) for key in each.keys]
    (tmp_path / "keys").write_text("\n".join(keys) + "\n")
    (tmp_path / "more").write_text("\n".join([*keys, *(f"no-{number}" for number in range(20_000))]))
    for name in ("keys", "more"):
        arguments = ["export", str(store), "-o", str(tmp_path / f"of-{name}"), "--keys-from", str(tmp_path / name)]
        assert main([*arguments, "--format", "jsonl", "--quiet"]) == 0
        assert lines_of(tmp_path / f"of-{name}") == [
            as_json(message_to_dict(each, body=True)) for each in found(store) if each.keys
        ]
    assert main(["export", str(store), "-o", str(tmp_path / "out"), "--topic", "other"]) == 2
    assert "holds another export" in capsys.readouterr().err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start(...)`` runs ``whence export`` in a session of its own."""
    with starting(tmp_path / "tmp") as run:
        yield partial(run, sys.executable, "-m", "whence", "export")


def await_files(child: subprocess.Popen[str], aside: Path, count: int) -> None:
    """Wait until tasks have begun so many files, or the export has ended."""
    deadline = time.monotonic() + LIMIT_S
    while child.poll() is None and len(list(aside.glob("*/tasks/*/*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_export_that_is_killed_leaves_nothing_to_be_seen_and_the_next_is_whole(start, store, tmp_path):
    random, target, aside = Random(1), tmp_path / "out", tmp_path / ".out.whence"
    killed = 0
    for _ in range(KILLS):
        child = start(store, "-o", target)
        await_files(child, aside, random.randrange(1, 12))
        child.kill()
        child.wait()
        killed += child.returncode == -signal.SIGKILL
        assert not target.exists() or (target / "_export.json").exists()
    assert killed
    out, err = start(store, "-o", target, "--json").communicate(timeout=LIMIT_S)
    assert json.loads(out)["messages"] == len(found(store)), err
    assert not aside.exists()


def test_ctrl_c_ends_an_export_within_a_second_and_leaves_nothing(start, store, tmp_path):
    target, aside = tmp_path / "out", tmp_path / ".out.whence"
    child = start(store, "-o", target)
    await_files(child, aside, 1)
    interrupted = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_S)
    assert time.monotonic() - interrupted < AT_ONCE_S
    assert (child.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "whence: interrupted"
    assert not target.exists() and not aside.exists()


def test_a_folder_in_the_way_is_told_before_spark_is_started(start, store, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    began = time.monotonic()
    with pytest.raises(UsageError, match="is not empty"):
        export_store(store, tmp_path / "out")
    assert time.monotonic() - began < 1
