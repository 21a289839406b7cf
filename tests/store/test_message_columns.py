"""Columns of messages hold what a decode of each message by itself gives."""

import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import ALL, GoldenStore
from tests.reference import ROLLBACK, Record, encode_log_file, encode_properties
from tests.store_maker import make_store, message
from tests.strategies import log_files, property_blobs
from whence.errors import CorruptError, FormatError, UsageError
from whence.formats.rocketmq.message import Message, decode_message
from whence.kernels import columns as kernels
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Status, scan_stretch
from whence.store import message_columns
from whence.store.commit_log import CommitLog
from whence.store.log_scan import LogScan
from whence.store.message_columns import COLUMNS, DAMAGE, KEY, MessageColumns

COMPRESSED = 1
ZLIB = 3 << 8


def values_of(message: Message) -> dict[str, Any]:
    """What the columns of a message must hold."""
    values: dict[str, Any] = {}
    for name in COLUMNS:
        try:
            values[name] = getattr(message, name)
        except CorruptError:
            assert name.endswith("_time")  # no calendar has it
            values[name] = None
    if message.is_rollback:
        values["unique_id"] = None  # no index has it
    return values | {"keys": list(message.keys), "properties": [*message.properties.items()]}


def rows_by_key(messages: list[Message]) -> list[dict[str, Any]]:
    return [{"key": key} | values_of(message) for message in messages for key in message.keys]


def scan(data: bytes, base_offset: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a file as an array, and the rows of its records."""
    array = np.frombuffer(data, np.uint8)
    rows, items = np.empty(1000, SCANNED), np.empty(ITEMS_MAX * 4, ITEMS)
    result = scan_stretch(array, base_offset, 0, len(data), check_crc=True, tags=False, messages=rows, items=items)
    assert result.status in (Status.ZERO, Status.BLANK, Status.END)
    return array, rows[: result.message_count]


def decoded(data: bytes, rows: np.ndarray, base_offset: int) -> list[Message]:
    return [decode_message(data, int(offset) - base_offset)[0] for offset in rows["physical_offset"]]


def rows_of(batches: Iterator[Any]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        rows += batch.to_pylist()
    return rows


def file_of(records: list[Record], size: int = 1 << 20) -> bytes:
    data, left = encode_log_file(records, 0, size)
    assert not left
    return data


@pytest.mark.parametrize("name", ALL)
def test_every_golden_message_has_the_values_of_its_decode(golden: Callable[[str], GoldenStore], name: str):
    log = CommitLog(golden(name).store / "commitlog")
    columns, key_columns = MessageColumns(), MessageColumns((KEY, *COLUMNS), by_key=True)
    found, found_keys = [], []
    for batch in LogScan(log, log.begin_offset, tags=False):
        found += rows_of(columns.batches(batch.data, batch.base_offset, batch.messages))
        found_keys += rows_of(key_columns.batches(batch.data, batch.base_offset, batch.messages))
    messages = list(log.messages(log.begin_offset, log.end_offset()))
    assert messages
    assert found == [values_of(message) for message in messages]
    assert found_keys == rows_by_key(messages)
    offsets = np.array([message.physical_offset for message in messages])[::-7]
    assert rows_of(columns.at(log, offsets)) == [values_of(message) for message in messages[::-7]]
    log.close()


@given(log_files(blobs=property_blobs()))
def test_odd_properties_come_out_as_a_decode_reads_them(made: tuple[bytes, int, list[Record]]):
    data, base_offset, _ = made
    array, rows = scan(data, base_offset)
    messages = decoded(data, rows, base_offset)
    assert rows_of(MessageColumns().batches(array, base_offset, rows)) == [values_of(one) for one in messages]
    by_key = MessageColumns((KEY, *COLUMNS), by_key=True)
    assert rows_of(by_key.batches(array, base_offset, rows)) == rows_by_key(messages)


# Pieces of texts that decode to the same, or nearly, and what separates them.
_PIECES = [b"K", b"KEYS", b"a", b"\xff", b"\xfe", b"\xed\xa0\x80", b"\xe2\x82", "é€😀".encode(), b"\xef\xbf\xbd"]
_MARKS = [b"\x01", b"\x02", b" ", b"\x01\x02", b"\x02KEYS\x01", b"\x02TAGS\x01", b"\x02UNIQ_KEY\x01"]


@given(st.lists(st.lists(st.sampled_from(_PIECES + _MARKS), max_size=60).map(b"".join), min_size=1, max_size=4))
def test_malformed_texts_that_decode_alike_are_one(blobs: list[bytes]):
    data = file_of([Record(properties_data=blob) for blob in blobs])
    array, rows = scan(data, 0)
    messages = decoded(data, rows, 0)
    names = (KEY, "keys", "tags", "unique_id", "properties")
    expected = [{name: row[name] for name in names} for row in rows_by_key(messages)]
    assert rows_of(MessageColumns(names, by_key=True).batches(array, 0, rows)) == expected
    expected = [{name: values_of(one)[name] for name in names[1:]} for one in messages]
    assert rows_of(MessageColumns(names[1:]).batches(array, 0, rows)) == expected


def test_a_topic_of_malformed_bytes_is_decoded_as_java_does():
    (made,) = [file_of([Record(topic="TopicXX", properties_data=encode_properties({"KEYS": "k"}))])]
    for bad in (b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc3\xa9\xff"):
        data = made.replace(b"TopicXX", b"Top" + bad + b"c")
        array, rows = scan(data, 0)
        (found,) = rows_of(MessageColumns(("topic", "keys")).batches(array, 0, rows))
        assert found == {"topic": decoded(data, rows, 0)[0].topic, "keys": ["k"]}


@pytest.mark.parametrize("count", [15, 16, 17, 18, 40, 5000])
def test_very_many_keys_and_properties_are_told_apart(count: int):
    # Each comes twice, in another order; texts of two letters have few hashes.
    keys = [f"{number:x}" for number in range(count)]
    names = [f"n{number:x}" for number in range(min(count, 1500))]
    twice = "".join(f"{name}\x01{value}\x02" for value in "ab" for name in names)
    data = file_of(
        [
            Record(properties_data=f"KEYS\x01{' '.join([*keys, *reversed(keys)][:6000])}\x02".encode()),
            Record(properties_data=twice.encode()),
            Record(properties_data=f"KEYS\x01{' '.join(reversed(keys))}\x02".encode()),
        ]
    )
    array, rows = scan(data, 0)
    messages = decoded(data, rows, 0)
    assert [len(message.keys) for message in messages] == [count, 0, count]
    assert len(messages[1].properties) == len(names)
    found = rows_of(MessageColumns(("keys", "properties")).batches(array, 0, rows))
    assert found == [{name: values_of(one)[name] for name in ("keys", "properties")} for one in messages]


def test_a_rollback_bears_no_key_and_no_unique_id():
    blob = encode_properties({"KEYS": "a b", "UNIQ_KEY": "u"})
    data = file_of([Record(sys_flag=ROLLBACK, properties_data=blob), Record(properties_data=blob)])
    array, rows = scan(data, 0)
    assert rows_of(MessageColumns(("keys", "unique_id")).batches(array, 0, rows)) == [
        {"keys": [], "unique_id": None},
        {"keys": ["a", "b"], "unique_id": "u"},
    ]
    assert rows_of(MessageColumns((KEY,), by_key=True).batches(array, 0, rows)) == [{KEY: "a"}, {KEY: "b"}]


def compressed(body: bytes, keys: str = "") -> Record:
    blob = encode_properties({"KEYS": keys}) if keys else b""
    return Record(sys_flag=COMPRESSED | ZLIB, stored_body=zlib.compress(body), properties_data=blob)


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(message_columns, "ROWS_MAX", 5)
    monkeypatch.setattr(message_columns, "BYTES_MAX", 4000)
    small, large = Record(stored_body=b"s" * 10), Record(stored_body=b"l" * 9000)
    data = file_of([small] * 12 + [large, small, large, large] + [compressed(b"c" * 3000)] * 3 + [small])
    array, rows = scan(data, 0)
    batches = list(MessageColumns().batches(array, 0, rows))
    assert [batch.num_rows for batch in batches] == [5, 5, 2, 1, 1, 1, 1, 1, 1, 2]
    messages = decoded(data, rows, 0)
    assert rows_of(iter(batches)) == [values_of(message) for message in messages]
    assert [batch.num_rows for batch in MessageColumns(("size",)).batches(array, 0, rows)][:2] == [5, 5]
    with pytest.raises(UsageError, match="do not fit into one batch"):
        MessageColumns().batch(array, 0, rows)
    assert MessageColumns(("size",)).batch(array, 0, rows[:2]).num_rows == 2
    assert MessageColumns().batch(array, 0, rows[:0]).num_rows == 0


def test_a_large_body_is_not_repeated_for_all_keys_in_one_batch(monkeypatch):
    monkeypatch.setattr(message_columns, "BYTES_MAX", 10_000)
    keys = " ".join(f"key-{number}" for number in range(40))
    data = file_of(
        [Record(stored_body=b"b" * 3000, properties_data=f"KEYS\x01{keys}".encode()), compressed(b"z" * 3000, keys)]
    )
    array, rows = scan(data, 0)
    batches = list(MessageColumns((KEY, "body"), by_key=True).batches(array, 0, rows))
    assert all(batch.num_rows <= 3 for batch in batches)
    expected = [{"key": key, "body": body * 3000} for body in (b"b", b"z") for key in keys.split()]
    assert rows_of(iter(batches)) == expected


def test_a_body_that_cannot_be_decompressed_is_an_error_or_damage():
    good = compressed(b"good" * 50)
    bad = replace(good, stored_body=good.stored_body[:-9] + b"x" * 9)
    strange = replace(good, sys_flag=COMPRESSED | 7 << 8)
    data = file_of([good, bad, Record(stored_body=b"plain"), strange])
    array, rows = scan(data, 0)
    messages = decoded(data, rows, 0)
    columns = MessageColumns(("physical_offset", "body"))
    with pytest.raises(CorruptError, match="ZLIB body") as caught:
        rows_of(columns.batches(array, 0, rows))
    assert caught.value.position == rows["physical_offset"][1]
    with pytest.raises(FormatError, match="compression type 7"):
        rows_of(columns.batches(array, 0, rows[3:]))
    found = rows_of(MessageColumns(("body", DAMAGE)).batches(array, 0, rows))
    errors: list[dict[str, Any]] = []
    for one in messages:
        try:
            errors.append({"body": one.body, "damage": None})
        except FormatError as error:
            errors.append({"body": None, "damage": error.what})
    assert found == errors
    assert [row["body"] for row in found] == [b"good" * 50, None, b"plain", None]


def test_records_at_offsets_come_in_the_order_asked_for(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}", body=b"b" * 900) for number in range(24)])
    log = CommitLog(made.folder / "commitlog")
    wanted = np.array([made.offsets[number] for number in (20, 0, 7, 7, 23, 1)])
    columns = MessageColumns(("physical_offset", "keys"))
    assert [row["physical_offset"] for row in rows_of(columns.at(log, wanted))] == wanted.tolist()
    assert list(columns.at(log, wanted[:0])) == []
    with pytest.raises(CorruptError, match="commitlog/00000000000000000000 at byte 5"):
        list(columns.at(log, np.array([0, 1])))
    log.close()


def test_damage_is_left_out_as_the_scan_leaves_it_out(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}", body=b"b" * 900) for number in range(24)])
    first = made.log_files[0]
    data = bytearray(first.read_bytes())
    data[made.offsets[1] + 100] ^= 1
    first.write_bytes(data)
    log = CommitLog(made.folder / "commitlog")
    log_scan = LogScan(log, 0, tags=False)
    columns = MessageColumns(("physical_offset",))
    found = [
        row["physical_offset"]
        for batch in log_scan
        for row in rows_of(columns.batches(batch.data, batch.base_offset, batch.messages))
    ]
    assert found == [offset for offset in made.offsets if offset != made.offsets[1]]
    assert [damage.position for damage in log_scan.damage] == [made.offsets[1]]
    log.close()


def test_a_batch_does_not_change_when_the_scan_goes_on():
    data = file_of([Record(queue=1, topic="one"), Record(queue=2, topic="two")])
    array, rows = scan(data, 0)
    rows = rows.copy()
    batch = MessageColumns().batch(array, 0, rows[:1])
    before = batch.to_pylist()
    rows[:] = rows[1]
    assert batch.to_pylist() == before


@pytest.mark.parametrize(
    "times", [(-(2**63), 2**63 - 1), (253_402_300_799_999, -62_135_596_800_000), (0, 253_402_300_800_000)]
)
def test_times_beyond_all_calendars_are_null(times: tuple[int, int]):
    stored, born = times
    data = file_of([Record(store_timestamp_ms=stored, born_timestamp_ms=born)])
    array, rows = scan(data, 0)
    (found,) = rows_of(MessageColumns().batches(array, 0, rows))
    assert found == values_of(decoded(data, rows, 0)[0])


def test_columns_are_chosen_and_ordered_by_name():
    data = file_of([Record(topic="T", queue=7)])
    array, rows = scan(data, 0)
    columns = MessageColumns(("queue", "topic"))
    assert columns.schema == pa.schema([("queue", pa.int32()), ("topic", pa.string())])
    assert columns.batch(array, 0, rows).to_pylist() == [{"queue": 7, "topic": "T"}]
    for names, what in (
        (["nosuch"], "no column 'nosuch'"),
        (["key"], "no column 'key'"),
        (["size", "size"], "once"),
        ([], "none"),
    ):
        with pytest.raises(UsageError, match=what):
            MessageColumns(names)


@pytest.mark.parametrize("name", [KEY, *COLUMNS, DAMAGE])
def test_each_column_can_stand_alone(name: str):
    data = file_of([Record(stored_body=b"body", properties_data=b"KEYS\x01a b\x02TAGS\x01t")])
    array, rows = scan(data, 0)
    for by_key in {True, name == KEY}:
        found = MessageColumns((name,), by_key=by_key).batch(array, 0, rows).to_pylist()
        expected = ({"damage": None} | row for row in rows_by_key(decoded(data, rows, 0)))
        assert found == [{name: row[name]} for row in expected][: 2 if by_key else 1]


def test_numbers_of_the_kernels_are_those_used():
    assert message_columns._KEYS == kernels.KEYS and message_columns._PROPERTIES == kernels.PROPERTIES
    assert message_columns._UNIQUE_ID == kernels.UNIQUE_ID and message_columns._TAGS == kernels.TAGS
    assert message_columns._BODY_SIZE == kernels.BODY_SIZE and message_columns._HOST_SIZE == kernels.HOST_SIZE


def test_types_are_those_that_spark_makes_of_their_names():
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    by_name = {
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "array<string>": types.ArrayType(types.StringType()),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    names = (KEY, *COLUMNS, DAMAGE)
    wanted = types.StructType([types.StructField(name, by_name[message_columns.TYPES[name]]) for name in names])
    assert MessageColumns(names, by_key=True).schema == to_arrow_schema(wanted, timezone="UTC")


def test_columns_do_not_load_pandas():
    code = """
import sys
from tests.store.test_message_columns import *
array, rows = scan(file_of([compressed(b"x", "a b"), replace(compressed(b""), stored_body=b"bad")]), 0)
columns = MessageColumns((*COLUMNS, DAMAGE))
assert columns.batch(array, 0, rows).column(DAMAGE).null_count == 1
columns.empty()
print("pandas" in sys.modules)
"""
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert run.stdout.strip() == "False", run.stderr
