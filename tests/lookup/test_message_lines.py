"""Lines that kernels write are those that plain Python writes of the same messages."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whence.formats.rocketmq.message import Message
from whence.lookup import message_lines
from whence.lookup.answer import MESSAGE_FIELDS, as_json, message_to_dict

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("store_timestamp_ms", pa.int64()),
        ("born_timestamp_ms", pa.int64()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("unique_id", pa.string()),
        ("offset_id", pa.string()),
        ("size", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("body_size", pa.int32()),
        ("sys_flag", pa.int32()),
    ]
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "plain",
        'say "hi"',
        "a\\b",
        "a,b",
        "\n",
        "\r",
        "\t\b\f\x00\x1f\x7f",
        "\x80\x9f",
        "é",
        "日本",
        "😀\U0010ffff",
        "\ufffd\ud7ff",
    ]
)
BODY = (
    TEXT.map(str.encode)
    | st.binary(max_size=9)
    | st.sampled_from([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x80\x80\x80"])
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-12, 12)
ROW = st.fixed_dictionaries(
    {
        "topic": TEXT,
        "queue": I32,
        "queue_offset": I64,
        "physical_offset": I64,
        "store_timestamp_ms": I64,
        "born_timestamp_ms": I64,
        "keys": st.lists(TEXT, max_size=3),
        "tags": TEXT | st.none(),
        "unique_id": TEXT | st.none(),
        "offset_id": TEXT,
        "size": I32,
        "reconsume_times": I32,
        "properties": st.dictionaries(TEXT, TEXT, max_size=3),
        "body": BODY,
        "body_size": I32,
        "sys_flag": st.sampled_from([0, 1, 4, 8, 0x31]),  # no rollback
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=8)


def batch_of(rows: list[dict[str, Any]], first: int = 0) -> Any:
    """A record batch of the rows from ``first`` on, which is a piece of a longer one."""
    given_rows = [row | {"properties": list(row["properties"].items())} for row in rows]
    return pa.RecordBatch.from_pylist(given_rows, schema=SCHEMA).slice(first)


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """The message as JSON has it."""
    try:
        body, encoding = row["body"].decode(), "utf8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(row["body"]).decode(), "base64"
    shown = row | {"body": body, "body_encoding": encoding}
    return {name: shown[name] for name in MESSAGE_FIELDS}


def never(physical_offset: int) -> Message:
    raise AssertionError("all bodies are there")


def text_of(lines: Any) -> str:
    """All of the lines; where the messages end is where their lines do."""
    pieces = list(lines)
    for data, ends in pieces:
        assert ends[-1] == len(data) and all(data[end - 1] == ord("\n") for end in ends)
    return b"".join(data for data, _ in pieces).decode()


@given(rows=ROWS, data=st.data())
def test_json_lines_are_those_of_find(rows, data):
    first = data.draw(st.integers(0, len(rows) - 1))
    lines = text_of(message_lines.json_lines(batch_of(rows, first), never))
    assert lines == "".join(as_json(expected(row)) + "\n" for row in rows[first:])


@given(rows=ROWS)
def test_bulk_lines_have_the_offset_id_before_each_message(rows):
    lines = text_of(message_lines.bulk_lines(batch_of(rows), never)).splitlines()
    assert [json.loads(line) for line in lines[::2]] == [{"index": {"_id": row["offset_id"]}} for row in rows]
    assert lines[1::2] == [as_json(expected(row)) for row in rows]


@given(rows=ROWS, data=st.data())
def test_csv_lines_are_read_back_as_those_of_find(rows, data):
    first = data.draw(st.integers(0, len(rows) - 1))
    lines = text_of(message_lines.csv_lines(batch_of(rows, first), never))
    text = message_lines.CSV_HEAD.decode() + lines
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    wanted = []
    for row in rows[first:]:
        shown = expected(row)
        shown["keys"] = " ".join(shown["keys"])
        shown["properties"] = json.dumps(shown["properties"], ensure_ascii=False)
        wanted.append({name: "" if value is None else str(value) for name, value in shown.items()})
    assert read == wanted


def test_the_messages_of_a_store_are_written_as_find_writes_them(golden):
    """And those whose columns do not tell all: a body that cannot be decompressed, the unique id of a rollback."""
    import whence
    from tests.golden import ANSWERED

    with whence.open(golden(ANSWERED[0]).store) as store:
        messages = store.find(since=0, limit=None, oldest_first=True, system_topics=True).messages
    rows = [
        {name: getattr(message, name) for name in message_lines.LINE_COLUMNS}
        | {"keys": list(message.keys), "properties": message.properties}
        for message in messages
    ]
    for number in (0, 3, 4, len(rows) - 1):
        rows[number]["body"] = None
    for number in (1, 2, 6):
        rows[number] |= {"unique_id": None, "sys_flag": rows[number]["sys_flag"] | 0xC}
    by_offset = {message.physical_offset: message for message in messages}
    lines = text_of(message_lines.json_lines(batch_of(rows), by_offset.__getitem__))
    assert lines == "".join(as_json(message_to_dict(message, body=True)) + "\n" for message in messages)
