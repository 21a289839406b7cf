"""Export: the messages that find gives, in files that others read; whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import whence
from tests.golden import ALL, ANSWERED, few_fast
from tests.pipeline.test_build import OneByOne, build
from tests.reference import COMPRESSED
from tests.store_maker import FILE_SIZE, MadeStore, T, make_store, message
from whence.errors import LockedError, UsageError
from whence.files.lock import StoreLock
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.message import Message
from whence.lookup.answer import as_json, message_to_dict
from whence.lookup.asked_keys import read_keys
from whence.lookup.field_search import FieldScan
from whence.lookup.question import make_question
from whence.pipeline import export_files, export_tasks
from whence.pipeline.export import Exported, ExportOptions, Tools, export_with
from whence.pipeline.export_files import Format, day_of, escaped
from whence.pipeline.export_tasks import Met, PartRows
from whence.store import log_scan, message_columns
from whence.store.index_file import Shape
from whence.store.log_file import LogFile, PlainBudget
from whence.store.message_columns import COLUMNS
from whence.store.message_store import Dialect
from whence.store.opening import open_folder

DAY = 86_400_000
MESSAGES = [
    message(
        keys=f"k{number % 7} every",
        tags=("a", "b", "")[number % 3],
        unique_id=f"id-{number}",
        at=number * DAY // 8,
        topic=("orders", "%RETRY%group", "rmq_sys_own", "pay/ments?=x")[number % 4],
        queue=number % 2,
        body=(b"\xff\xfe" if number % 5 == 0 else b"body %d, " % number) * 40,
    )
    for number in range(40)
]


@contextmanager
def plain_tools() -> Iterator[Tools]:
    def never(*_: Any) -> Any:
        raise AssertionError("nothing is asked of Spark here")

    yield Tools(OneByOne(), never, never)


@contextmanager
def tools_with_where() -> Iterator[Tools]:
    """Tools whose ``where`` knows two expressions, and gives offsets as Spark would."""

    def where(parts: Any, row_filter: Any, sql: str, work: Path) -> Any:
        rest = {"odd": 1, "false": 2}[sql]
        found = []
        met = Met(0)
        for part in parts:
            with MappedFile(Path(part.path)) as mapped:
                rows = PartRows(part, LogFile(mapped, part.base, PlainBudget()), row_filter)
                true = [some["physical_offset"][some["queue_offset"] % 2 == rest].tobytes() for some in rows]
            met |= rows.met
            path = work / str(part.number)
            path.write_bytes(b"".join(true))
            found.append(replace(part, offsets_path=str(path)))
        return found, [], met

    yield Tools(OneByOne(), where, lambda *_: [])


def export(store: Path, target: Path, *, tools: Any = plain_tools, **given: Any) -> Exported:
    """``given``: a question, and the options of an export."""
    names = ("format", "rebuild", "jobs", "part_size", "where", "out")
    options = {name: given.pop(name) for name in names if name in given}
    options["format"] = Format(options.get("format", "parquet"))
    keys = tuple(read_keys(given.pop("keys", [])))
    with open_folder(store) as opened:
        question = make_question(0, **given)
        return export_with(opened, question, ExportOptions(target=target, **options), tools, keys)


def become_link(path: Path) -> None:
    """Move a file or a folder elsewhere, with a link to it in its place."""
    elsewhere = next(each for each in path.parents if each.name == "out").with_name("elsewhere")
    path.symlink_to(path.rename(elsewhere))


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    return make_store(tmp_path / "store", MESSAGES)


def build_index(made: MadeStore) -> None:
    sidecar = made.folder.with_name("store.whence")
    build(made.folder, sidecar, shape=Shape(7, 20), dialect=Dialect.V5_5, queue_file_size=200)


def found(store: Path, **question: Any) -> list[Message]:
    with whence.open(store) as opened:
        answer = opened.find(**{"since": -(2**62), **question}, limit=None, oldest_first=True)
    return answer.messages


def rows_of(target: Path) -> list[dict[str, Any]]:
    """The rows of all Parquet files, in the order of the log, as other programs see them."""
    return sorted(pq.read_table(target).to_pylist(), key=lambda row: row["physical_offset"])


def files_of(target: Path) -> dict[str, str]:
    return {
        str(path.relative_to(target)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }


class TestParquet:
    def test_has_the_messages_of_the_log_by_day_and_topic(self, made, tmp_path):
        exported = export(made.folder, tmp_path / "out", system_topics=True)
        rows = rows_of(tmp_path / "out")
        messages = found(made.folder, system_topics=True)
        assert exported.messages == len(rows) == len(messages) == len(MESSAGES)
        for row, stored in zip(rows, messages, strict=True):
            wanted = {name: getattr(stored, name) for name in COLUMNS}
            wanted |= {"keys": list(stored.keys), "properties": list(stored.properties.items()), "damage": None}
            assert row == wanted | {"day": str(stored.store_time.date())}

    def test_names_files_by_their_first_message(self, made, tmp_path):
        export(made.folder, tmp_path / "out", topic="orders")
        paths = sorted((tmp_path / "out").rglob("*.parquet"))
        for path in paths:
            rows = pq.ParquetFile(path).read().to_pylist()
            offsets = [row["physical_offset"] for row in rows]
            assert path.name == f"part-{offsets[0]:020d}.parquet"
            assert offsets == sorted(offsets)
            days = {str(found(made.folder, offset=offset)[0].store_time.date()) for offset in offsets}
            assert {path.parent.parent.name.removeprefix("day=")} == days
        assert {path.parent.name for path in paths} == {"topic=orders"}

    @pytest.mark.parametrize("name", few_fast(ALL))
    def test_of_stores_that_rocketmq_wrote(self, golden, tmp_path, name):
        export(golden(name).store, tmp_path / "out")
        offsets = [row["physical_offset"] for row in rows_of(tmp_path / "out")]
        assert offsets == [each.physical_offset for each in found(golden(name).store)]

    def test_writes_many_topics_with_few_files_open(self, tmp_path, monkeypatch):
        monkeypatch.setattr(export_tasks, "ROWS_AT_ONCE", 7)
        monkeypatch.setattr(export_files, "OPEN_MAX", 2)
        monkeypatch.setattr(export_files, "WAITING_SIZE_MAX", 500)
        monkeypatch.setattr(export_files, "ROW_GROUP_SIZE", 2000)
        records = [message(topic=f"topic-{number * 7 % 5}", at=number, body=b"b" * 50) for number in range(60)]
        made = make_store(tmp_path / "store", records, file_size=65536)
        first = export(made.folder, tmp_path / "out")
        assert [row["physical_offset"] for row in rows_of(tmp_path / "out")] == made.offsets
        assert len(first.files) > 5
        assert files_of(tmp_path / "out") == files_of(export(made.folder, tmp_path / "again").target)


class TestLines:
    @pytest.mark.parametrize("name", few_fast(ANSWERED))
    def test_of_json_are_those_of_find(self, golden, tmp_path, name):
        export(golden(name).store, tmp_path / "out", format="jsonl")
        paths = sorted((tmp_path / "out").glob("*.jsonl"))
        lines = [line for path in paths for line in path.read_text("ascii").splitlines()]
        assert lines == [as_json(message_to_dict(each, body=True)) for each in found(golden(name).store)]

    def test_of_a_body_that_cannot_be_decompressed_are_those_of_find(self, tmp_path):
        bad = replace(message(body=b"no zip"), sys_flag=COMPRESSED)
        made = make_store(tmp_path / "store", [message(), bad, message(body=b"last")])
        export(made.folder, tmp_path / "out", format="jsonl")
        [path] = (tmp_path / "out").glob("*.jsonl")
        lines = path.read_text().splitlines()
        assert lines == [as_json(message_to_dict(each, body=True)) for each in found(made.folder)]
        assert json.loads(lines[1])["body_encoding"] == "stored_base64"
        export(made.folder, tmp_path / "table")
        _, row, _ = rows_of(tmp_path / "table")
        assert row["body"] is None and "decompress" in row["damage"]

    def test_of_csv_are_those_of_find(self, made, tmp_path):
        from whence.cli.render import answer_csv
        from whence.cli.terminal import Screen

        export(made.folder, tmp_path / "out", format="csv", since=0)
        with whence.open(made.folder) as opened:
            answer = opened.find(since=0, limit=None, oldest_first=True)
        text = io.StringIO()
        answer_csv(answer, Screen(text), body=True)
        rows = list(csv.reader(io.StringIO(text.getvalue())))
        paths = sorted((tmp_path / "out").glob("*.csv"))
        exported = [list(csv.reader(path.open(newline=""))) for path in paths]
        assert {tuple(part[0]) for part in exported} == {tuple(rows[0])}
        assert [row for part in exported for row in part[1:]] == rows[1:]

    def test_of_bulk_have_the_offset_id_and_are_not_too_long_for_one_request(self, tmp_path, monkeypatch):
        monkeypatch.setattr(export_files, "BULK_SIZE_MAX", 3000)
        bodies = [b"\0" * (number * 37 % 300) for number in range(40)]
        bodies[7] = b"\0" * 1000  # six times as long in JSON
        made = make_store(tmp_path / "store", [message(body=body) for body in bodies], file_size=65536)
        export(made.folder, tmp_path / "out", format="bulk")
        paths = sorted((tmp_path / "out").glob("*.ndjson"))
        lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        ids = [each.offset_id for each in found(made.folder)]
        assert [line["index"]["_id"] for line in lines[::2]] == ids == [line["offset_id"] for line in lines[1::2]]
        too_long = [path.name for path in paths if path.stat().st_size > 3000]
        assert too_long == [f"part-{made.offsets[7]:020d}.ndjson"]
        for path, behind in pairwise(paths):
            first = b"".join(behind.read_bytes().splitlines(keepends=True)[:2])
            assert path.stat().st_size + len(first) > 3000


QUESTIONS: list[dict[str, Any]] = [
    {},
    {"system_topics": True},
    {"topic": "orders"},
    {"topic": "rmq_sys_own"},
    {"topic": "no such topic"},
    {"tag": "b"},
    {"tag": "no such tag"},
    {"tag": "no such tag", "since": T + DAY},
    {"topic": "orders", "queue": 0, "tag": "a"},
    {"topic": "orders", "queue": 7},
    {"topic": "orders", "since": T + 900 * DAY},
    {"topic": "no such topic", "since": T + 900 * DAY},
    {"since": T + 900 * DAY},
    {"since": T + 900 * DAY, "scan": True},
    {"since": T + DAY, "until": T + 3 * DAY},
    {"until": T},
    {"key": "k3"},
    {"key": ["k3", "k4"], "topic": "orders"},
    {"key": "every", "since": T + DAY},
    {"key": "no such key"},
    {"key": "k3", "topic": "no such topic"},
    {"id": "id-6"},
    {"id": "no such id"},
    {"topic": "orders", "queue": 0, "queue_offset": 2},
    {"offset": 0},
    {"offset": 1},
    {"key": "k3", "tag": "b"},
    {"id": "id-6", "topic": "no such topic"},
    {"scan": True, "key": "k1"},
    {"scan": True, "since": T + DAY},
    {"scan": True, "id": "id-6"},
    {"scan": True, "offset": 0},
    {"scan": True, "topic": "orders", "queue": 0, "queue_offset": 2},
    {"no_scan": True, "offset": 0},
]


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_exports_what_find_finds(made, tmp_path, question, is_built):
    if is_built:
        build_index(made)
    exported = export(made.folder, tmp_path / "out", format="jsonl", part_size=1000, **question)
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    with whence.open(made.folder) as opened:
        answer = opened.find(**question, limit=None, oldest_first=True)
    assert lines == [message_to_dict(each, body=True) for each in answer]
    assert exported.receipt.complete
    assert exported.receipt.searched_to_offset == made.end_offset
    assert exported.receipt.why_empty == answer.receipt.why_empty


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"topic": "orders", "queue": 0}, "filtered"),
        ({"key": "k4", "topic": "orders"}, "filtered"),
        ({"key": "no such key"}, "no_such_key"),
        ({"topic": "orders", "queue": 0, "tag": "no such tag"}, "filtered"),
        ({"topic": "no such topic"}, "no_such_topic"),
        ({"since": T + 900 * DAY}, "outside_window"),
    ],
)
def test_of_nothing_for_which_where_is_true_is_told_why(made, tmp_path, question, why):
    exported = export(made.folder, tmp_path / "out", tools=tools_with_where, where="false", **question)
    assert (exported.messages, exported.receipt.why_empty) == (0, why)
    assert json.loads((tmp_path / "out" / "_export.json").read_text())["receipt"]["why_empty"] == why


def test_of_nothing_that_damage_may_hide_says_so(made, tmp_path):
    data = bytearray(made.log_files[0].read_bytes())
    data[made.offsets[1] + 88] ^= 1
    made.log_files[0].write_bytes(data)
    assert export(made.folder, tmp_path / "out", tag="no such tag").receipt.why_empty == "damaged"


def test_a_field_that_trusts_no_index_exports_what_is_evaluated_and_meets_the_rest(made, tmp_path):
    asked: list[tuple[Any, ...]] = []

    def evaluate(store: Any, fields: Any, begin: int, end: int) -> FieldScan:
        asked.append((fields, begin, end))
        return FieldScan(made.offsets[:20], [])

    @contextmanager
    def tools() -> Iterator[Tools]:
        yield Tools(OneByOne(), lambda *_: [], evaluate)

    question = {"field": "n=1", "scan": True, "topic": "orders"}
    exported = export(made.folder, tmp_path / "out", tools=tools, format="jsonl", **question)
    paths = sorted((tmp_path / "out").glob("*.jsonl"))
    there = [json.loads(line)["physical_offset"] for path in paths for line in path.read_text().splitlines()]
    assert there == made.offsets[:20:4]
    assert asked == [((("n", "1"),), 0, made.end_offset)]
    assert (exported.receipt.verified_by, exported.receipt.index_source) == ("log", "none")
    assert exported.receipt.complete and exported.bytes_read == made.end_offset


def test_what_no_index_leads_to_is_not_exported_without_a_scan(made, tmp_path):
    for question in ({}, {"topic": "orders"}, {"since": T}, {"tag": "a"}):
        with pytest.raises(UsageError, match="no index answers this question"):
            export(made.folder, tmp_path / "out", no_scan=True, **question)
    assert not (tmp_path / "out").exists()
    assert export(made.folder, tmp_path / "out", no_scan=True, keys=[b"k3"]).messages


@pytest.mark.parametrize("is_built", [False, True])
def test_very_many_keys_export_what_few_would(made, tmp_path, is_built):
    if is_built:
        build_index(made)
    keys = [f"k{number}" for number in range(3, 20_000)]
    exported = export(made.folder, tmp_path / "many", format="jsonl", topic="orders", keys=keys)
    export(
        made.folder, tmp_path / "few", format="jsonl", topic="orders", key=[f"k{number}" for number in range(3, 9)]
    )
    many, few = files_of(tmp_path / "many"), files_of(tmp_path / "few")
    assert many.pop("_export.json") != few.pop("_export.json")
    assert many == few and exported.messages
    told = json.loads((tmp_path / "many" / "_export.json").read_text())["question"]
    assert told["keys"] == len(keys) and len(told["keys_sha256"]) == 64
    with pytest.raises(UsageError, match="cannot be asked together"):
        export(made.folder, tmp_path / "other", keys=keys, offset=0)


class TestASecondRun:
    def test_gives_the_same_names_and_bytes_with_any_number_of_tasks(self, made, tmp_path):
        for format in Format:
            first = export(made.folder, tmp_path / "a", format=format, part_size=1500, rebuild=True)
            files = files_of(tmp_path / "a")
            for jobs in (1, 2, 3, 100):
                again = export(made.folder, tmp_path / "b", format=format, part_size=1500, jobs=jobs, rebuild=True)
                assert files_of(tmp_path / "b") == files
                assert again.tasks <= jobs
            again = export(made.folder, tmp_path / "a", format=format, part_size=1500)
            assert [file.sha256 for file in again.files] == [file.sha256 for file in first.files]
            assert files_of(tmp_path / "a") == files

    def test_gives_the_same_whether_an_index_is_there_or_not(self, made, tmp_path):
        window = {"since": T + DAY, "until": T + 3 * DAY, "part_size": 3000}
        export(made.folder, tmp_path / "a", **window)
        build_index(made)
        export(made.folder, tmp_path / "b", **window)
        a, b = files_of(tmp_path / "a"), files_of(tmp_path / "b")
        assert a.pop("_export.json") and b.pop("_export.json")
        assert a == b

    @pytest.mark.parametrize("format", Format)
    def test_is_cut_at_the_same_messages_with_and_without_an_index(self, tmp_path, monkeypatch, format):
        for limited, name in ((log_scan, "ROWS"), (export_tasks, "ROWS_AT_ONCE"), (message_columns, "ROWS_MAX")):
            monkeypatch.setattr(limited, name, 40)
        for name, size in (("ROW_GROUP_SIZE", 12_000), ("WAITING_SIZE_MAX", 20_000), ("BULK_SIZE_MAX", 20_000)):
            monkeypatch.setattr(export_files, name, size)
        records = [
            message(
                keys="every" if number % 3 else "",
                at=number,
                topic=("orders", "orders", "payments", "%RETRY%group")[number % 4],
                body=bytes([97 + number % 26]) * (number * 37 % 500),
            )
            for number in range(700)
        ]
        made = make_store(tmp_path / "store", records, file_size=200_000, indexed=0, queues=False)
        questions: list[dict[str, Any]] = [
            {},
            {"since": T + 221, "until": T + 517},
            {"since": T + 221, "topic": "orders"},
            {"since": T + 221, "where": "odd"},
            {"key": "every"},
        ]

        def names_and_sums(question: dict[str, Any], jobs: int, **given: Any) -> dict[str, str]:
            given |= {"format": format, "jobs": jobs, "part_size": 100_000, "tools": tools_with_where, **question}
            export(made.folder, tmp_path / "out", rebuild=True, **given)
            files = files_of(tmp_path / "out")
            del files["_export.json"]
            return files

        wanted = [names_and_sums(question, 1) for question in questions]
        assert {len(files) for files in wanted} != {1}
        build(
            made.folder, tmp_path / "store.whence", shape=Shape(50, 500), dialect=Dialect.V5_5, queue_file_size=20_000
        )
        assert wanted == [names_and_sums(question, 3) for question in questions]
        assert wanted == [names_and_sums(question, 7, scan=True) for question in questions]

    def test_keeps_the_files_of_a_part_when_the_log_has_grown(self, tmp_path):
        made = make_store(tmp_path / "store", MESSAGES[:25])
        export(made.folder, tmp_path / "out", format="jsonl", part_size=FILE_SIZE)
        before = files_of(tmp_path / "out")
        shutil.rmtree(made.folder)
        make_store(made.folder, MESSAGES)
        export(made.folder, tmp_path / "out", format="jsonl", part_size=FILE_SIZE)
        after = files_of(tmp_path / "out")
        *full, _ = [name for name in before if name != "_export.json"]
        assert full and all(after[name] == before[name] for name in full)


class TestTheReceipt:
    def test_tells_what_was_asked_and_searched_and_each_file(self, made, tmp_path):
        exported = export(made.folder, tmp_path / "out", topic="orders")
        told = json.loads((tmp_path / "out" / "_export.json").read_text())
        assert (told["version"], told["kind"], told["format"]) == (1, "export", "parquet")
        assert told["question"] == {
            "topic": "orders",
            "since_ms": None,
            "until_ms": None,
            "limit": None,
            "oldest_first": True,
        }
        assert told["receipt"]["complete"] and told["receipt"]["searched_to_offset"] == made.end_offset
        assert told["messages"] == exported.messages == 10
        sums = files_of(tmp_path / "out")
        del sums["_export.json"]
        assert {file["path"]: file["sha256"] for file in told["files"]} == sums
        for file in told["files"]:
            path = tmp_path / "out" / file["path"]
            offsets = [row["physical_offset"] for row in pq.ParquetFile(path).read().to_pylist()]
            assert (file["from_offset"], file["to_offset"], file["messages"]) == (
                offsets[0],
                offsets[-1],
                len(offsets),
            )
            assert file["bytes"] == path.stat().st_size

    def test_tells_of_damage_that_hid_messages(self, made, tmp_path):
        first, second, *_ = made.log_files
        data = bytearray(first.read_bytes())
        data[made.offsets[1] + 88] ^= 1
        first.write_bytes(data)
        second.unlink()
        exported = export(made.folder, tmp_path / "out", system_topics=True)
        assert not exported.receipt.complete and exported.receipt.damaged
        assert [damage.kind for damage in exported.receipt.damage] == ["bad_record", "gap"]
        left = [o for o in made.offsets if o != made.offsets[1] and not FILE_SIZE <= o < 2 * FILE_SIZE]
        assert [row["physical_offset"] for row in rows_of(tmp_path / "out")] == left

    def test_of_a_log_without_messages_is_there_too(self, tmp_path):
        (tmp_path / "store" / "commitlog").mkdir(parents=True)
        exported = export(tmp_path / "store", tmp_path / "out")
        assert (exported.messages, exported.receipt.complete) == (0, True)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["_export.json"]


class TestTheFolder:
    def test_is_not_there_before_it_is_whole_and_nothing_is_left_beside_it(self, made, tmp_path):
        class Dying(OneByOne):
            def map(self, *args: Any, **given: Any) -> list[Any]:
                super().map(*args, **given)
                assert not (tmp_path / "out").exists()
                raise KeyboardInterrupt

        @contextmanager
        def dying() -> Iterator[Tools]:
            yield Tools(Dying(), lambda *_: [], lambda *_: [])

        with pytest.raises(KeyboardInterrupt):
            export(made.folder, tmp_path / "out", tools=dying)
        assert {path.name for path in tmp_path.iterdir()} == {"store"}

    def test_keeps_what_was_there_until_the_new_is_whole(self, made, tmp_path):
        export(made.folder, tmp_path / "out", topic="orders")
        before = files_of(tmp_path / "out")

        class Looking(OneByOne):
            def map(self, *args: Any, **given: Any) -> list[Any]:
                done = super().map(*args, **given)
                assert files_of(tmp_path / "out") == before
                return done

        @contextmanager
        def looking() -> Iterator[Tools]:
            yield Tools(Looking(), lambda *_: [], lambda *_: [])

        export(made.folder, tmp_path / "out", tools=looking, rebuild=True)
        assert files_of(tmp_path / "out") != before
        assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}

    def test_can_be_an_empty_one_that_is_there(self, made, tmp_path):
        (tmp_path / "out").mkdir()
        assert export(made.folder, tmp_path / "out").messages

    def test_what_a_killed_export_left_is_removed(self, made, tmp_path):
        left = tmp_path / ".out.whence" / "0123456789abcdef" / "tasks"
        left.mkdir(parents=True)
        (left / "000000").write_bytes(b"half")
        export(made.folder, tmp_path / "out")
        assert not (tmp_path / ".out.whence").exists()

    def test_that_another_export_writes_is_refused(self, made, tmp_path):
        (tmp_path / ".out.whence").mkdir()
        with (
            StoreLock(tmp_path / ".out.whence" / "lock"),
            pytest.raises(LockedError, match="somebody is writing there"),
        ):
            export(made.folder, tmp_path / "out")

    @pytest.mark.parametrize(
        ("make", "complaint"),
        [
            (lambda out: (out / "mine.txt").write_text(""), "is not empty, and no export of whence's"),
            (lambda out: (out / "_export.json").write_text("{}"), "its _export.json is not whence's"),
        ],
    )
    def test_that_is_not_ours_is_refused(self, made, tmp_path, make, complaint):
        out = tmp_path / "out"
        out.mkdir()
        make(out)
        with pytest.raises(UsageError, match=complaint):
            export(made.folder, out, rebuild=True)
        assert len(list(out.iterdir())) == 1

    def test_that_holds_another_export_is_refused_unless_it_may_be_replaced(self, made, tmp_path):
        out = tmp_path / "out"
        export(made.folder, out, topic="orders")
        export(made.folder, out, topic="orders")
        with pytest.raises(UsageError, match="holds another export; name another folder, or say --rebuild"):
            export(made.folder, out, tag="a")
        with pytest.raises(UsageError, match=r"holds the export of another window \(an age, as 24h, is another time"):
            export(made.folder, out, topic="orders", since=T)
        (out / "notes").mkdir()
        with pytest.raises(UsageError, match="has what no export put there, as 'notes'"):
            export(made.folder, out, tag="a", rebuild=True)
        (out / "notes").rmdir()
        assert export(made.folder, out, tag="a", rebuild=True).messages == len(found(made.folder, tag="a"))

    @pytest.mark.parametrize(
        "put",
        [
            lambda folder: (folder / "mine.parquet").touch(),
            lambda folder: (folder / "mine").mkdir(),
            lambda folder: (folder.parent / "topic=mine").mkdir(),
            lambda folder: (folder.parent / "topic").symlink_to(folder),
            lambda folder: become_link(folder),
            lambda folder: become_link(next(folder.iterdir())),
        ],
    )
    def test_in_whose_folders_others_put_something_is_refused_even_if_that_is_late(self, made, tmp_path, put):
        out = tmp_path / "out"
        there: set[Path] = set()

        @contextmanager
        def late_tools() -> Iterator[Tools]:
            put(next(out.glob("day=*/topic=*")))
            there.update(out.rglob("*"))
            with plain_tools() as tools:
                yield tools

        export(made.folder, out)
        export(made.folder, out)
        for tools in (late_tools, plain_tools):
            with pytest.raises(UsageError, match="has what no export put there, as 'day="):
                export(made.folder, out, tools=tools, rebuild=True)
            assert {*out.rglob("*")} == there

    @pytest.mark.parametrize("place", ["store", "store/out", "store.whence", "store.whence/out"])
    @pytest.mark.parametrize("is_there", [False, True])
    def test_in_the_store_or_its_sidecar_is_refused(self, made, tmp_path, place, is_there):
        if is_there:
            (tmp_path / "store.whence").mkdir()
        with pytest.raises(UsageError, match="which is only read"):
            export(made.folder, tmp_path / place)
        with pytest.raises(UsageError, match="which is only read"):
            export(made.folder, tmp_path / place, out=tmp_path / "other")
        with pytest.raises(UsageError, match="which is only read"):
            export(made.folder, tmp_path / "other" / place, out=tmp_path / "other")
        assert (tmp_path / "store.whence").exists() is is_there
        assert not (tmp_path / "other").exists()

    def test_that_a_link_leads_to_is_made_and_replaced_there(self, made, tmp_path):
        (tmp_path / "link").symlink_to("elsewhere/out")
        for _ in range(2):
            export(made.folder, tmp_path / "link", topic="orders")
            assert (tmp_path / "link").readlink() == Path("elsewhere/out")
            assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["out"]
            assert len(rows_of(tmp_path / "elsewhere" / "out")) == 10

    def test_whose_place_no_other_can_take_is_refused_at_once(self, made, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        for target, what in ((Path("/"), "a disk is mounted there"), (Path(), "you are in it")):
            with pytest.raises(UsageError, match=f"{what}.*name a folder in it"):
                export(made.folder, target)
        assert {path.name for path in tmp_path.iterdir()} == {"store", "here"}


STRANGE_TOPICS = [
    "../../etc",
    "..",
    ".",
    "/",
    "a/b",
    "a\\b",
    "a=b",
    "%41",
    "new\nline",
    "*?[x]",
    "日本",
    "a b",
    "x" * 127,
]


class TestNames:
    def test_of_strange_topics_stay_in_the_folder_and_come_back(self, tmp_path):
        made = make_store(tmp_path / "store", [message(topic=topic) for topic in STRANGE_TOPICS], queues=False)
        export(made.folder, tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} == {"store", "out"}
        assert [row["topic"] for row in rows_of(tmp_path / "out")] == STRANGE_TOPICS
        depths = Counter(
            len(path.relative_to(tmp_path / "out").parts) for path in (tmp_path / "out").rglob("*.parquet")
        )
        assert depths == {3: len(STRANGE_TOPICS)}

    def test_of_topics_that_no_folder_can_have_are_told(self, tmp_path):
        topics = ["", "%" * 90, ":" * 100, "good"]
        made = make_store(tmp_path / "store", [message(topic=topic) for topic in topics * 2], queues=False)
        exported = export(made.folder, tmp_path / "out")
        rows = rows_of(tmp_path / "out")
        assert [row["topic"] for row in rows] == [None, None, None, "good"] * 2
        assert [row["physical_offset"] for row in rows] == made.offsets
        assert exported.without_folder == tuple(sorted(topics[:3]))

    def test_are_escaped_as_hive_does(self):
        assert escaped("%RETRY%a:b") == "%25RETRY%25a%3Ab"
        assert escaped("") is None

    def test_of_days_are_in_utc(self, tmp_path):
        times = [-1, 0, DAY - 1, DAY, 2**62]
        records = [replace(message(), store_timestamp_ms=time) for time in times]
        made = make_store(tmp_path / "store", records, queues=False)
        export(made.folder, tmp_path / "out")
        assert [row["day"] for row in rows_of(tmp_path / "out")] == [
            "1969-12-31",
            "1970-01-01",
            "1970-01-01",
            "1970-01-02",
            None,
        ]
        assert day_of(20_000) == "2024-10-04"
