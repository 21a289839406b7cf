"""``whence find --keys-from``: few keys as one question, many as rows, in every format."""

import csv
import io
import json
import os
import subprocess
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from pyarrow import parquet

import whence as whence_package
from tests.cli.conftest import COMMAND
from tests.golden import GoldenStore
from tests.reference import i32
from tests.store_maker import make_store, message
from whence.lookup import question
from whence.lookup.many_columns import POSITIONS

KEYS = ["order-1", "nobody", "Aa", "hot-key", "order-1"]
TEXT = "order-1\r\nnobody\n\nAa\nhot-key\norder-1"


@pytest.fixture
def clean(golden) -> GoldenStore:
    return golden("v5-clean")


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def answer(clean):
    """What the rows must be."""
    with whence_package.open(clean.store) as store:
        yield store.answer_many(KEYS)


def without_time(document):
    document["receipt"].pop("elapsed_us")
    return document


class TestFewKeys:
    def test_are_one_question_in_the_form_of_find(self, here, clean, keys_file):
        few = here("find", clean.store, "--keys-from", keys_file, "--json")
        asked = here("find", clean.store, *(word for key in KEYS for word in ("--key", key)), "--json")
        assert few.status == asked.status == 0
        assert without_time(json.loads(few.out)) == without_time(json.loads(asked.out))

    def test_stand_behind_those_of_the_command_line(self, here, clean, keys_file):
        ran = here("find", clean.store, "--key", "first", "--keys-from", keys_file, "--json")
        assert json.loads(ran.out)["question"]["keys"] == ["first", *KEYS[:-1]]

    def test_can_come_from_standard_input(self, clean):
        command = [*COMMAND, "find", str(clean.store), "--keys-from", "-", "--json"]
        ran = subprocess.run(command, input=TEXT.encode(), capture_output=True, timeout=60)
        assert json.loads(ran.stdout)["question"]["keys"] == KEYS[:-1]

    def test_can_be_explained(self, here, clean, tmp_path):
        path = tmp_path / "one.txt"
        path.write_text("order-1\n")
        ran = here("explain", clean.store, "--keys-from", path, "--json")
        assert json.loads(ran.out)["question"]["key"] == "order-1"

    def test_become_rows_if_they_are_too_many_for_one_question(self, here, clean, tmp_path, monkeypatch):
        monkeypatch.setattr(question, "KEYS_MAX", 3)
        path = tmp_path / "keys.txt"
        for text, is_rows in (
            ("a b c", False),
            ("a b c ", False),
            ("a b c d", True),
            ("a b c d ", True),
            ("a b  c", True),
            ("a b c  ", True),
        ):
            path.write_text(text.replace(" ", "\n"))
            ran = here("find", clean.store, "--keys-from", path, "--json")
            assert ("keys" in json.loads(ran.out)["receipt"]) is is_rows
        assert here("find", clean.store, "--keys-from", path, "--rows", "message").status == 2
        assert here("explain", clean.store, "--keys-from", path).status == 2

    def test_count_with_those_of_the_command_line(self, here, clean, tmp_path, monkeypatch):
        monkeypatch.setattr(question, "KEYS_MAX", 3)
        path = tmp_path / "keys.txt"
        for text, is_rows in (("", False), ("a", False), ("a\n", False), ("a\nb", True), ("a\nb\n", True)):
            path.write_text(text)
            named = ("--key", "order-1", "--key", "nobody", *(["--key", "Aa"] if not text else []))
            ran = here("find", clean.store, *named, "--keys-from", path, "--json")
            assert ran.status == 0
            assert ("keys" in json.loads(ran.out)["receipt"]) is is_rows


class TestRows:
    def test_as_json_have_the_form_of_find_and_their_key(self, here, clean, keys_file, answer):
        ran = here("find", clean.store, "--keys-from", keys_file, "--rows", "key", "--json")
        document = json.loads(ran.out)
        assert (ran.status, ran.err) == (0, "")
        assert list(document) == ["question", "messages", "receipt"]
        assert document["messages"] == answer.table.to_pylist()
        assert without_time(document)["receipt"] == without_time({"receipt": answer.receipt.to_dict()})["receipt"]
        assert document["question"]["limit"] is None

    @pytest.mark.parametrize("form", ["json", "jsonl", "csv", "table"])
    def test_end_without_a_word_where_their_reader_goes_away(self, tmp_path, form):
        """Before they are all written there is no receipt, from which the exit status would come."""
        records = [message(keys="k", tags="t" * 99) for _ in range(2000)]
        make_store(tmp_path / "store", records, file_size=1 << 19)
        command = [*COMMAND, "find", str(tmp_path / "store"), "--key", "k", "--rows", "key", "--format", form]
        finding = subprocess.Popen(
            [*command, "--columns", "topic,tags"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": ""},  # else Python itself takes a cut write for a whole one
        )
        assert finding.stdout is not None
        assert finding.stdout.read(10)
        finding.stdout.close()
        assert finding.communicate(timeout=30)[1] == b""
        assert finding.returncode == 141

    def test_as_json_lines(self, here, clean, keys_file, answer):
        ran = here("find", clean.store, "--keys-from", keys_file, "--rows", "key", "--format", "jsonl")
        assert [json.loads(line) for line in ran.out.splitlines()] == answer.table.to_pylist()
        assert json.loads(ran.err)["receipt"]["keys_missing"] == 1

    def test_as_csv(self, here, clean, keys_file, answer):
        ran = here("find", clean.store, "--keys-from", keys_file, "--rows", "key", "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(ran.out)))
        wanted = [{name: str(value) for name, value in row.items()} for row in answer.table.to_pylist()]
        assert rows == wanted
        assert "rows for 4 keys; 1 of them is in no message. The answer is complete." in ran.err

    def test_as_a_table(self, here, clean, keys_file, answer):
        ran = here("find", clean.store, "--keys-from", keys_file, "--rows", "key")
        lines = ran.out.splitlines()
        assert lines[0].split()[:2] == ["key", "topic"]
        assert [line.split()[0] for line in lines[1 : len(answer) + 1]] == answer.table["key"].to_pylist()
        assert lines[len(answer) + 2].startswith(f"{len(answer)} rows for 4 keys; 1 of them is in no message.")

    @pytest.mark.parametrize("name", ["arrow", "parquet"])
    def test_as_a_file(self, here, clean, keys_file, answer, tmp_path, name):
        out = tmp_path / "found"
        ran = here("find", clean.store, "--keys-from", keys_file, "--format", name, "-o", out)
        read = parquet.read_table(out) if name == "parquet" else pa.ipc.open_file(out).read_all()
        assert ran.status == 0
        assert read.equals(answer.table)
        assert ran.err.endswith(f"whence: {len(answer)} rows written to {out}\n")

    @pytest.mark.parametrize("name", ["json", "jsonl", "csv", "arrow", "parquet"])
    def test_have_the_format_that_their_file_ends_in(self, here, clean, keys_file, tmp_path, name):
        asked = ("find", clean.store, "--keys-from", keys_file, "--rows", "key", "--quiet", "-o")
        by_ending, by_option = tmp_path / f"found.{name}", tmp_path / "found"
        assert here(*asked, by_ending).status == here(*asked, by_option, "--format", name).status == 0
        if name == "json":
            read = [without_time(json.loads(path.read_text())) for path in (by_ending, by_option)]
        else:
            read = [path.read_bytes() for path in (by_ending, by_option)]
        assert read[0] == read[1]
        assert here(*asked, by_ending, "--format", "table").status == 0
        assert by_ending.read_text().startswith("key ")

    def test_with_bodies_are_whole_messages(self, here, clean, keys_file):
        arguments = ("find", clean.store, "--keys-from", keys_file, "--body", "--format", "jsonl", "--all")
        rows = [json.loads(line) for line in here(*arguments, "--rows", "key").out.splitlines()]
        messages = {
            found["physical_offset"]: found for found in map(json.loads, here(*arguments, "--quiet").out.splitlines())
        }
        for row in rows:
            assert row.pop("key") in row["keys"]
            assert row == messages[row["physical_offset"]]

    def test_have_the_columns_that_are_named(self, here, clean, keys_file):
        arguments = ("find", clean.store, "--keys-from", keys_file, "--columns", "tags, physical_offset", "--quiet")
        ran = here(*arguments, "--format", "csv")
        assert ran.out.splitlines()[0] == "key,tags,physical_offset"
        ran = here(*arguments, "--format", "csv", "--body", "--limit", "1")
        assert ran.out.splitlines()[0] == "key,tags,physical_offset,body,body_encoding"
        assert len(ran.out.splitlines()) == 4

    def test_show_times_alike_in_every_text(self, here, tmp_path):
        times = [1763278701321, -1, 0, 2**62]
        records = [replace(message(keys="k"), store_timestamp_ms=time, born_timestamp_ms=time) for time in times]
        make_store(tmp_path / "store", records, queues=False, indexed=0)
        wanted = ["2025-11-16T07:38:21.321Z", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", None]
        columns = ("--columns", "store_time,born_time")
        asked = ("find", tmp_path / "store", "--key", "k", "--oldest-first", "--quiet", *columns, "--format")
        lines = here(*asked, "jsonl").out.splitlines()
        assert [json.loads(line) for line in lines] == [
            {"key": "k", "store_time": time, "born_time": time} for time in wanted
        ]
        assert here(*asked, "csv").out.splitlines()[1:] == [f"k,{time or ''},{time or ''}" for time in wanted]
        shown = [line.split() for line in here(*asked, "table").out.splitlines()[1:]]
        assert shown[:3] == [["k", time, time] for time in wanted[:3]]

    def test_leave_the_missing_keys_in_a_file(self, here, clean, keys_file, tmp_path):
        missing = tmp_path / "missing.txt"
        ran = here("find", clean.store, "--keys-from", keys_file, "--missing", missing, "--format", "csv")
        assert ran.status == 0
        assert missing.read_text() == "nobody\n"

    def test_of_keys_that_the_command_line_names(self, here, clean, answer):
        named = [word for key in KEYS for word in ("--key", key)]
        ran = here("find", clean.store, *named, "--rows", "key", "--json")
        assert json.loads(ran.out)["messages"] == answer.table.to_pylist()

    def test_of_none(self, here, clean, tmp_path):
        path = tmp_path / "keys.txt"
        path.write_text("nobody\nnowhere\n")
        ran = here("find", clean.store, "--keys-from", path, "--rows", "key")
        assert ran.status == 1
        assert ran.out.startswith("No rows for 2 keys; 2 of them are in no message. The answer is complete.\n  Why: ")

    def test_take_the_other_members_of_a_question(self, here, clean, keys_file):
        with whence_package.open(clean.store) as store:
            times = sorted(found.store_timestamp_ms for found in store.find(key="hot-key", limit=None))
            asked = {"topic": "TopicTest", "since": times[5], "until": times[-5], "oldest_first": True, "limit": 3}
            wanted = store.answer_many(KEYS, **asked)
        ran = here("find", clean.store, "--keys-from", keys_file, "--rows", "key", "--json", "--topic", "TopicTest",
                   "--since", times[5], "--until", times[-5], "--oldest-first", "--limit", 3, "--scan")  # fmt: skip
        document = json.loads(ran.out)
        assert document["messages"] == wanted.table.to_pylist()
        assert document["receipt"]["truncated"]
        assert document["receipt"]["scanned_bytes"] > 0

    def test_that_no_index_covers_are_left_out_with_no_scan(self, here, tmp_path):
        made = make_store(tmp_path / "store", [message(keys=f"k{n}") for n in range(9)], indexed=0)
        ran = here("find", made.folder, "--key", "k1", "--rows", "key", "--no-scan")
        assert ran.status == 4
        assert "NOT complete" in ran.out

    def test_that_damage_hides_end_with_its_status(self, here, tmp_path):
        made = make_store(tmp_path / "store", [message(keys=f"k{n}") for n in range(60)], file_size=2048)
        log = made.log_files[0]
        data = bytearray(log.read_bytes())
        data[made.offsets[3] + 88] ^= 1
        log.write_bytes(data)
        ran = here("find", made.folder, "--key", "k3", "--key", "k4", "--rows", "key", "--json")
        assert ran.status == 3
        assert [row["key"] for row in json.loads(ran.out)["messages"]] == ["k4"]

    def test_of_a_broken_index_are_right_and_told(self, here, tmp_path):
        made = make_store(tmp_path / "store", [message(keys=f"k{n}") for n in range(9)], slots=1, items=100)
        [path] = made.index_files
        data = path.read_bytes()
        path.write_bytes(data[:40] + i32(2**31 - 1) + data[44:])
        ran = here("find", made.folder, "--key", "k3", "--rows", "key", "--quiet")
        assert ran.status == 0
        assert "bad_chain" in ran.out

    def test_never_reach_a_terminal_raw(self, here, tmp_path):
        key = "\x1b[31mred"
        make_store(tmp_path / "store", [message(keys=key)])
        path = tmp_path / "keys"
        path.write_text(key)
        for chosen in ("table", "json", "jsonl"):
            ran = here("find", tmp_path / "store", "--keys-from", path, "--rows", "key", "--format", chosen)
            assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rows", "key"], "--rows key needs keys: --key K or --keys-from FILE"),
        (["--format", "parquet", "-o", "x"], "--format parquet needs keys"),
        (["--key", "a", "--format", "parquet"], "--format parquet is for programs; name a file with -o"),
        (["-o", "x.parquet", "--topic", "T"], "-o x.parquet needs keys"),
        (["--key", "a", "--format", "arrow", "--rows", "message"], "--format arrow is for rows of keys"),
        (["--key", "a", "--columns", "topic", "--rows", "message"], "--columns is for rows of keys"),
        (["--key", "a", "--columns", "topic,size,topic"], "the column 'topic' is asked for twice"),
        (["--key", "a", "--columns", "nope"], "there is no column 'nope'; there are topic, queue"),
        (["--key", "a", "--rows", "key", "--id", "x"], "--id cannot be asked together with rows of keys"),
        (["--key", "a", "--rows", "key", "--cursor", "x"], "--cursor cannot be asked together with rows of keys"),
        (["--keys-from", "no such file"], "no such file: there is no such file"),
        (["--keys-from", "/dev/null"], "/dev/null: has no key in it"),
        (["--keys-from", "/dev/null", "--rows", "key", "--json"], "/dev/null: has no key in it"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(here, clean, arguments, why):
    ran = here("find", clean.store, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"whence: {why}")
    assert ran.err.count("\n") == 1


def test_a_key_that_is_not_utf8_is_named_by_its_line(here, clean, tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"a\n\xff\n")
    assert "key 2, b'\\xff', is not UTF-8" in here("find", clean.store, "--keys-from", path, "--rows", "key").err


def test_missing_keys_are_not_written_into_a_store(here, clean, keys_file):
    inside = clean.store / "missing"
    ran = here("find", clean.store, "--keys-from", keys_file, "--missing", inside, "--format", "csv")
    assert ran.status == 2
    assert not inside.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--keys-from", "KEYS", "-o", "OUT", "--missing", "OUT"], "-o and --missing are one file"),
        (["--keys-from", "KEYS", "--missing", "KEYS"], "--keys-from and --missing are one file"),
        (["--keys-from", "KEYS", "-o", "KEYS"], "--keys-from and -o are one file"),
        (["--keys-from", "KEYS", "--rows", "key", "-o", "LINK"], "--keys-from and -o are one file"),
        (["--keys-from", "KEYS", "--log-file", "KEYS"], "--keys-from and --log-file are one file"),
        (["--keys-from", "KEYS", "--log-file", "OUT", "-o", "sub/../OUT"], "-o and --log-file are one file"),
    ],
)
def test_no_file_is_written_over_by_another_output(here, clean, keys_file, tmp_path, monkeypatch, given, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LINK").symlink_to(keys_file)
    (tmp_path / "sub").mkdir()
    ran = here("find", clean.store, *(str(keys_file) if word == "KEYS" else word for word in given))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"whence: {why}, ")
    assert keys_file.read_bytes() == TEXT.encode()
    assert not (tmp_path / "OUT").exists()


def test_outputs_that_nobody_keeps_may_go_to_one_place(here, clean, keys_file):
    asked = ("find", clean.store, "--keys-from", keys_file, "--format", "csv", "--quiet")
    assert here(*asked, "-o", "/dev/null", "--missing", "/dev/null", "--log-file", "/dev/null").status == 0


def test_many_keys_from_a_file_are_answered_as_the_twin_answers(here, clean, tmp_path):
    known: dict[str, list[int]] = {}
    for record in clean.records:
        for key in record.keys:
            known.setdefault(key, []).append(record.physical_offset)
    keys = [*known, *(f"absent-{n}" for n in range(20_000))]
    Random(1).shuffle(keys)
    path = tmp_path / "keys"
    path.write_text("\n".join(keys))
    ran = here("find", clean.store, "--keys-from", path, "--format", "csv", "--system-topics", "--quiet")
    rows = [line.split(",") for line in ran.out.splitlines()[1:]]
    place = ["key", *POSITIONS].index("physical_offset")
    found: dict[str, list[int]] = {}
    for row in csv.reader(io.StringIO(ran.out)):
        if row[0] != "key":
            found.setdefault(row[0], []).append(int(row[place]))
    assert found == {key: known[key][::-1] for key in keys if key in known}
    assert list(found) == [key for key in keys if key in known]
    assert len(rows) == sum(map(len, known.values()))
