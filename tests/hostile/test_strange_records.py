"""Whole records whose fields hold what no broker would put there: names, keys, times, bodies."""

import io
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import whence
from tests.hostile.forge import (
    FILE_SIZE,
    edit,
    in_child,
    message,
    numbered,
    within,
    write_index,
    write_log,
    write_queues,
)
from tests.reference import COMPRESSED, Record, encode_properties, encode_record
from whence.cli.render import answer_table
from whence.cli.terminal import Screen
from whence.errors import CorruptError, WhenceError
from whence.lookup.answer import as_json

MIB = 1048576
BOTH_ROADS = [{}, {"scan": True}]

STRANGE_TOPICS = (
    "../../etc",
    "..",
    ".",
    "/",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "\0",
    "new\nline",
    "\x1b[2J\x1b[31mred",
    "\r\x07\x08",
    "\u202egpj.exe",
    "right\u200bhere",
    "x" * 127,
    "x" * 300,
    "x" * 32767,
    "订单" * 100,
    "🚀" * 60,
    "%RETRY%",
    "#",
    "a#b",
    " ",
    "",
)


def strange_topic_records() -> list[Record]:
    records = []
    for number, topic in enumerate(STRANGE_TOPICS):
        version = 1 if len(topic.encode()) < 128 else 2
        records.append(message(f"k{number}", topic=topic, version=version))
    return numbered(records)


@pytest.fixture
def strange_topics(tmp_path: Path) -> tuple[Path, list[Record]]:
    store = tmp_path / "store"
    records = write_log(store, strange_topic_records(), 4 * FILE_SIZE)
    write_index(store, records)
    return store, records


@pytest.mark.parametrize("mode", BOTH_ROADS)
def test_message_of_any_topic_is_found(strange_topics: tuple[Path, list[Record]], mode: dict[str, bool]):
    store, records = strange_topics
    with whence.open(store) as opened:
        for number, record in enumerate(records):
            for question in (
                {"key": f"k{number}", "topic": record.topic},
                {"offset": record.physical_offset},
                {"id": record.offset_id},
                {"topic": record.topic, "queue": 0, "queue_offset": record.queue_offset},
            ):
                answer = opened.find(**question, **mode)
                assert [m.physical_offset for m in answer] == [record.physical_offset], (question, answer.receipt)
                json.dumps(answer.to_dict(body=True))


def test_topic_never_leads_out_of_the_store(strange_topics: tuple[Path, list[Record]]):
    """Where such a topic's name would lead as a path lies a queue; nobody may open it."""
    store, _ = strange_topics
    traps = [
        store / "consumequeue" / "a" / "b" / "0",
        store.parent / "etc" / "0",
        store / "consumequeue" / "0",
        store / "0",
    ]
    for trap in traps:
        trap.mkdir(parents=True)
        os.mkfifo(trap / ("0" * 20))  # whoever opens it carelessly hangs
    with within(10), whence.open(store) as opened:
        for topic in STRANGE_TOPICS:
            for question in ({"topic": topic, "queue": 0, "queue_offset": 0}, {"topic": topic, "key": "k0"}):
                try:
                    opened.find(**question)
                except WhenceError as error:
                    assert "regular" not in str(error)


def test_nothing_that_a_terminal_obeys_reaches_it(strange_topics: tuple[Path, list[Record]]):
    store, _ = strange_topics
    with whence.open(store) as opened:
        answer = opened.find(since=0, limit=None)
    for is_terminal in (True, False):
        stream = io.StringIO()
        screen = Screen(stream, is_terminal=is_terminal)
        screen.colours = False
        answer_table(answer, screen, body=True)
        shown = stream.getvalue()
        assert shown.count("hello") == len(STRANGE_TOPICS)
        assert all(char.isprintable() or char == "\n" for char in shown)
    assert as_json(answer.to_dict()).isascii()


def store_of(folder: Path, *records: Record, file_size: int = FILE_SIZE) -> tuple[Path, list[Record]]:
    store = folder / "store"
    written = write_log(store, numbered([message("first"), *records, message("last")]), file_size)
    write_index(store, written, items=70_000)
    write_queues(store, written)
    return store, written


def find_each(store: Path, records: list[Record], **mode: bool) -> None:
    with whence.open(store) as opened:
        for record in records:
            answer = opened.find(offset=record.physical_offset, **mode)
            assert [m.physical_offset for m in answer] == [record.physical_offset]
        everything = opened.find(since=-(2**63) + 1, limit=None, system_topics=True, **mode)
        assert sorted(m.physical_offset for m in everything) == [r.physical_offset for r in records]
        shown = io.StringIO()
        answer_table(everything, Screen(shown), body=True)
        json.dumps(everything.to_dict(body=True))
        assert len(shown.getvalue().splitlines()) >= len(records)


@pytest.mark.parametrize("time", [-1, -(2**63) + 1, 2**63 - 1, -62135596800001, 253402300800000, 10**15, -(10**15)])
def test_time_beyond_any_calendar_is_shown(tmp_path: Path, time: int):
    strange = message("k", store_timestamp_ms=time, born_timestamp_ms=time)
    store, records = store_of(tmp_path, strange)
    find_each(store, records)
    with whence.open(store) as opened:
        answer = opened.find(key="k", topic="TopicTest")
        assert [m.store_timestamp_ms for m in answer] == [time]
        assert [m.keys for m in opened.find(since=time, until=time)] == [("k",)]
        for moment in ("store_time", "born_time"):
            try:
                getattr(answer.messages[0], moment)
            except WhenceError as error:
                assert str(time) in str(error)


@pytest.mark.parametrize("queue", [-1, -(2**31), 2**31 - 1])
def test_queue_of_any_number_is_shown(tmp_path: Path, queue: int):
    store = tmp_path / "store"
    records = write_log(store, [message("k", queue=queue), message("last")])
    find_each(store, records)


@pytest.mark.parametrize("queue", [2**31, 10**30, 10**300])
def test_question_for_a_queue_that_cannot_be(tmp_path: Path, queue: int):
    store, _ = store_of(tmp_path)
    with whence.open(store) as opened:
        for question in ({"queue_offset": 0}, {"queue_offset": 10**30}, {}):
            try:
                assert list(opened.find(topic="TopicTest", queue=queue, **question)) == []
            except whence.UsageError:
                pass


@pytest.mark.parametrize("number", [2**63, 10**30, 10**300])
def test_question_for_a_place_that_cannot_be(tmp_path: Path, number: int):
    store, _ = store_of(tmp_path)
    with whence.open(store) as opened:
        for question in ({"offset": number}, {"topic": "TopicTest", "queue": 0, "queue_offset": number}):
            answer = opened.find(**question)
            assert list(answer) == [] and answer.receipt.complete
        assert list(opened.find(id="7F00000100002A9FFFFFFFFFFFFFFFFF")) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"queue_offset": -1},
        {"queue_offset": -(2**63)},
        {"queue_offset": 2**63 - 1},
        {"flag": -1},
        {"sys_flag": -1 & ~0x30},
        {"sys_flag": 2**31 - 1 & ~0x30},
        {"reconsume_times": -1},
        {"prepared_transaction_offset": -1},
        {"born_host": ("255.255.255.255", -1)},
        {"stored_body": b""},
        {"topic": "T", "version": 2},
    ],
)
def test_field_of_any_value_is_shown(tmp_path: Path, fields: dict[str, object]):
    store = tmp_path / "store"
    records = write_log(store, [replace(message("k"), **fields), message("last")])
    with whence.open(store) as opened:
        answer = opened.find(offset=0)
        assert len(answer) == 1 and answer.receipt.complete
        json.dumps(answer.to_dict())
        assert [m.physical_offset for m in opened.find(offset=records[1].physical_offset)] == [
            records[1].physical_offset
        ]


# Properties


MANY_KEYS = tuple(f"{number:x}" for number in range(7_400))
KEYS_PROPERTIES = encode_properties({"KEYS": " ".join(MANY_KEYS)})
assert 32_000 < len(KEYS_PROPERTIES) < 32_768

STRANGE_PROPERTIES = {
    "many keys": KEYS_PROPERTIES,
    "one key sixteen thousand times": encode_properties({"KEYS": "a " * 16_000}),
    "a key of 32 KB": encode_properties({"KEYS": "k" * 32_000}),
    "a key of 10,000 wide characters": encode_properties({"KEYS": "订" * 10_000}),
    "nothing but separators": b"\x01" * 16_000 + b"\x02" * 16_000,
    "properties without values": b"a\x01\x02" * 10_000,
    "sixteen thousand names": b"".join(bytes((97 + n % 26, 97 + n // 26 % 26, 1, 97, 2)) for n in range(6_000)),
    "bytes that are no text": b"\xff" * 32_000,
    "half of a surrogate, again and again": b"KEYS\x01" + b"\xed\xa0\x80" * 10_000 + b"\x02",
    "zeros": bytes(32_000),
    "no end": b"KEYS\x01last-key",
    "keys twice": b"KEYS\x01one\x02KEYS\x01two\x02",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE_PROPERTIES)
@pytest.mark.parametrize("mode", BOTH_ROADS)
def test_properties_of_any_content_are_read(tmp_path: Path, name: str, mode: dict[str, bool]):
    records = [replace(message(), properties_data=STRANGE_PROPERTIES[name]) for _ in range(3)]
    store, written = store_of(tmp_path, *records, file_size=2 * FILE_SIZE)
    with within(10):
        find_each(store, written, **mode)
        with whence.open(store) as opened:
            for record in written:
                for key in record.keys[:2] + record.keys[-2:]:
                    expected = [r.physical_offset for r in reversed(written) if key in r.keys]
                    for topic in ({}, {"topic": "TopicTest"}):
                        answer = opened.find(key=key, **topic, **mode)
                        assert [m.physical_offset for m in answer] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE_PROPERTIES)
def test_table_on_a_terminal_is_made_in_time(tmp_path: Path, name: str):
    """A terminal has room for some eighty characters of a key of 32 KB."""
    store, _ = store_of(
        tmp_path, replace(message(), properties_data=STRANGE_PROPERTIES[name]), file_size=2 * FILE_SIZE
    )
    with whence.open(store) as opened, within(10):
        stream = io.StringIO()
        answer_table(opened.find(since=0), Screen(stream, is_terminal=True), body=False)


@pytest.mark.slow
@pytest.mark.parametrize("topic", [b"\xff" * 32_000, b"\xed\xa0\x80" * 10_000], ids=["no text", "surrogates"])
def test_topics_that_are_no_text_are_scanned_in_time(tmp_path: Path, topic: bytes):
    """16 MiB, as much as plain Python scans, in which each byte of each topic is malformed."""
    store = tmp_path / "store"
    plain = encode_record(message("k", topic="x" * len(topic), version=2))
    records = write_log(store, [message("k", topic="x" * len(topic), version=2) for _ in range(500)], 17 * MIB)
    assert records[1].physical_offset == len(plain)
    path = store / "commitlog" / ("0" * 20)
    path.write_bytes(path.read_bytes().replace(b"x" * len(topic), topic))
    with whence.open(store) as opened, within(30):
        assert len(opened.find(key="k", limit=None)) == 500


# Bodies that expand


def bomb(compression: str, size: int) -> tuple[bytes, int]:
    """Zeros, compressed, and the sys_flag that says how."""
    if compression == "zlib":
        return zlib.compress(bytes(size), 9), COMPRESSED
    if compression == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(bytes(size))), COMPRESSED | 1 << 8
    import zstandard

    return zstandard.compress(bytes(size)), COMPRESSED | 2 << 8


# A frame header that asks for a window of 3.75 TiB, then a block that repeats one byte.
ZSTD_WITH_HUGE_WINDOW = bytes.fromhex("28b52ffd 00 ff 030010 00")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_body_that_expands_without_end_is_refused(tmp_path: Path, compression: str):
    body, sys_flag = bomb(compression, 300 * MIB)
    store, _ = store_of(tmp_path, message("bomb", body, sys_flag=sys_flag), file_size=4 * MIB)

    def ask() -> str:
        with whence.open(store) as opened:
            answer = opened.find(key="bomb", topic="TopicTest")
            assert len(answer) == 1
            try:
                return f"{len(answer.messages[0].body)} bytes"
            except CorruptError as error:
                return str(error)

    with within(10):
        assert "more than" in in_child(ask, memory=400 * MIB)


def test_window_of_a_zstd_body_is_bounded(tmp_path: Path):
    store, _ = store_of(tmp_path, message("bomb", ZSTD_WITH_HUGE_WINDOW, sys_flag=COMPRESSED | 2 << 8))

    def ask() -> str:
        with whence.open(store) as opened:
            try:
                return f"{len(opened.find(key='bomb').messages[0].body)} bytes"
            except CorruptError as error:
                return str(error)

    assert "ZSTD" in in_child(ask, memory=400 * MIB)


@pytest.mark.parametrize("sys_flag", [COMPRESSED | kind << 8 for kind in (0, 1, 2, 7)])
@pytest.mark.parametrize(
    "body", [b"", b"x", bytes.fromhex("04224d18"), bytes.fromhex("28b52ffd"), bytes(9)], ids=bytes.hex
)
def test_body_that_cannot_be_expanded_spoils_no_other(tmp_path: Path, body: bytes, sys_flag: int):
    """``--body`` is asked for a page of messages, and one of them is not what its sysFlag says."""
    store, _ = store_of(tmp_path, message("bad", body, sys_flag=sys_flag))
    with whence.open(store) as opened:
        shown = opened.find(since=0).to_dict(body=True)
    assert [m["keys"] for m in shown["messages"]] == [["last"], ["bad"], ["first"]]
    assert shown["messages"][0]["body"] == "hello"
    json.dumps(shown)


# Small files


def nested_text(opening: str, depth: int) -> bytes:
    return b'{"topicConfigTable":' + opening.encode() * depth


CONFIGS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no JSON": lambda: b"\xff\xfe\0",
    "list": lambda: b"[]",
    "table is a list": lambda: b'{"topicConfigTable":[{},[],1]}',
    "table is a number": lambda: b'{"topicConfigTable":7}',
    "table is null": lambda: b'{"topicConfigTable":null}',
    "table is text": lambda: b'{"topicConfigTable":"TopicTest"}',
    "strange names": lambda: b'{"topicConfigTable":{"\\ud800":{},"":{},"../..":1,"\\u0000":{}}}',
    "deep lists": lambda: nested_text("[", 100_000),
    "deep objects": lambda: nested_text('{"a":', 100_000),
    "a hundred thousand topics": lambda: json.dumps(
        {"topicConfigTable": {f"t{n}": {} for n in range(100_000)}}
    ).encode(),
    "open string": lambda: b'{"' + b"\\" * 1_000_001,
    "many escapes": lambda: b'{"topicConfigTable":{"' + b"\\u00e9" * 300_000 + b'":{}}}',
    "a number of a million digits": lambda: b'{"a":' + b"9" * 1_000_000 + b"}",
    "spaces": lambda: b" " * 10_000_000 + b"{}",
    "100 MB of [": lambda: b"[" * 100_000_000,
    "100 MB of lists": lambda: b'{"topicConfigTable":[' + b"0," * 50_000_000 + b"0]}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_topic_configuration_of_any_content_hides_nothing(tmp_path: Path, name: str):
    store, _ = store_of(tmp_path, message("k"))
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_bytes(CONFIGS[name]())

    def ask() -> list[object]:
        with whence.open(store) as opened:
            answer = opened.find(key="k")
            return [len(answer), answer.receipt.complete]

    with within(20):
        assert in_child(ask, memory=1024 * MIB) == [1, True]


@pytest.mark.parametrize("data", [b"", b"x", bytes(47), b"\xff" * 48, b"\xff" * 4096, bytes(5000)])
def test_checkpoint_of_any_content_is_read_or_named(tmp_path: Path, data: bytes):
    store, _ = store_of(tmp_path)
    (store / "checkpoint").write_bytes(data)
    with whence.open(store) as opened:
        try:
            opened.stores[0].checkpoint()
        except WhenceError as error:
            assert "checkpoint" in str(error)
        assert len(opened.find(key="first")) == 1


def test_cursor_of_any_text_is_refused(tmp_path: Path):
    store, _ = store_of(tmp_path)
    with whence.open(store) as opened:
        good = opened.find(since=0, limit=1).cursor
        assert good is not None
        strange = [
            "",
            "A",
            "=",
            "é",
            "\0",
            "A" * 10_000,
            good[:-1],
            good + "A",
            good[::-1],
            "-" * 64,
            good.lower(),
            "\ud800",
        ]
        for cursor in strange:
            with pytest.raises(whence.UsageError):
                opened.find(since=0, limit=1, cursor=cursor)


def test_half_written_tail_is_no_message_at_any_cut(tmp_path: Path):
    """The last record is written up to each of its bytes in turn; the rest of the file is zero."""
    store, records = store_of(tmp_path)
    path = store / "commitlog" / ("0" * 20)
    last, whole = records[-1], path.read_bytes()
    for size in range(last.size):
        edit(path, last.physical_offset, whole[last.physical_offset :][:size].ljust(last.size, b"\0"))
        with whence.open(store) as opened:
            for mode in BOTH_ROADS:
                assert list(opened.find(key="last", **mode)) == []
                assert [m.keys for m in opened.find(key="first", **mode)] == [("first",)]
    edit(path, last.physical_offset, whole[last.physical_offset :][: last.size])
    with whence.open(store) as opened:
        assert len(opened.find(key="last")) == 1


@pytest.mark.slow
def test_command_ends_with_a_status_and_no_traceback(tmp_path: Path):
    store, _ = store_of(tmp_path, message("bad", b"x", sys_flag=COMPRESSED, store_timestamp_ms=2**62))
    for arguments in (["--since", "0", "--body"], ["--since", "0", "--body", "--json"], ["--offset", str(10**40)]):
        result = subprocess.run(
            [sys.executable, "-m", "whence", "find", str(store), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode in range(5), result.stderr
        assert "Traceback" not in result.stderr
