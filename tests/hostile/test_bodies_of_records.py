"""Bodies are a producer's own bytes. They may hold whole records, or a million beginnings of records."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import whence
from tests.hostile.forge import (
    FILE_SIZE,
    HEAD_SIZE,
    edit,
    message,
    numbered,
    within,
    write_index,
    write_log,
    write_queues,
)
from tests.reference import Record, encode_record, i32, i64

MIB = 1048576
BOTH_ROADS = [{}, {"scan": True}]


def nested(key: str, physical_offset: int) -> bytes:
    """A whole record, with the right offset and checksums, to be put at this offset."""
    return encode_record(message(key, b"from within a body", queue_offset=1, physical_offset=physical_offset))


def store_with_nested_record(folder: Path) -> tuple[Path, list[Record], int]:
    """Three messages; the body of the second one holds a whole record, that bears the third's queue offset."""
    store = folder / "store"
    first = message("first")
    outer_at = len(encode_record(first))
    inner_at = outer_at + HEAD_SIZE + 100
    body = b"." * 100 + nested("inner", inner_at) + b"." * 100
    records = write_log(store, numbered([first, message("outer", body), message("last")]))
    assert (store / "commitlog" / ("0" * 20)).read_bytes()[inner_at:].startswith(nested("inner", inner_at))
    return store, records, inner_at


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize("mode", [{}, {"scan": True}, {"no_scan": True}])
def test_offset_within_a_body_is_no_message(tmp_path: Path, mode: dict[str, bool], with_queues: bool):
    store, records, inner_at = store_with_nested_record(tmp_path)
    if with_queues:
        write_queues(store, records)
    with whence.open(store) as opened:
        assert list(opened.find(offset=inner_at, **mode)) == []
        assert [m.physical_offset for m in opened.find(offset=records[1].physical_offset)] == [
            records[1].physical_offset
        ]
        inner_id = replace(records[1], physical_offset=inner_at).offset_id
        assert list(opened.find(id=inner_id, **mode)) == []


@pytest.mark.parametrize("mode", BOTH_ROADS)
@pytest.mark.parametrize("indexed", [True, False])
def test_record_within_a_body_bears_no_key(tmp_path: Path, indexed: bool, mode: dict[str, bool]):
    store, records, _ = store_with_nested_record(tmp_path)
    if indexed:
        write_index(store, records)
    with whence.open(store) as opened:
        for question in ({"key": "inner"}, {"key": "inner", "topic": "TopicTest"}):
            answer = opened.find(**question, **mode)
            assert list(answer) == [] and answer.receipt.complete
        assert [m.keys for m in opened.find(since=0, limit=None)] == [("last",), ("outer",), ("first",)]


def add_next_file(store: Path) -> None:
    """A whole log file behind the others, so that damage in those is damage and not the log's end."""
    files = sorted((store / "commitlog").iterdir())
    size = files[0].stat().st_size
    write_log(store, [message("next file")], size, len(files) * size)


def test_scan_hops_over_a_damaged_record_by_its_size(tmp_path: Path):
    store, records, _ = store_with_nested_record(tmp_path)
    add_next_file(store)
    edit(store / "commitlog" / ("0" * 20), records[1].physical_offset + HEAD_SIZE + 3, b"!")
    with whence.open(store) as opened:
        answer = opened.find(since=0, limit=None)
        assert [m.keys for m in answer] == [("next", "file"), ("last",), ("first",)]
        assert not answer.receipt.complete
        assert [(d.kind, d.position) for d in answer.receipt.damage if d.kind == "bad_record"] == [
            ("bad_record", records[1].physical_offset),
            ("bad_record", records[2].physical_offset + records[2].size),
        ]
        assert list(opened.find(key="inner")) == []


def test_damage_after_the_last_whole_record_answers_nothing_from_within_it(tmp_path: Path):
    """The record whose body holds another one is the log's last, and fails."""
    store, records, inner_at = store_with_nested_record(tmp_path)
    outer, last = records[1], records[2]
    edit(store / "commitlog" / ("0" * 20), last.physical_offset, bytes(last.size))
    edit(store / "commitlog" / ("0" * 20), outer.physical_offset + HEAD_SIZE + 3, b"!")
    with whence.open(store) as opened:
        for mode in BOTH_ROADS:
            assert list(opened.find(key="inner", **mode)) == []
            assert [m.keys for m in opened.find(since=0, **mode)] == [("first",)]
            assert list(opened.find(offset=inner_at, **mode)) == []


# Time: what looks for the next whole record must not be made to work for each of a million beginnings.


def store_with_failing_record(folder: Path, body: bytes) -> Path:
    """A record with this body, whose size is damaged, so that the next whole record has to be looked for."""
    store = folder / "store"
    file_size = len(body) + FILE_SIZE
    records = write_log(store, [message("first"), message("hostile", body), message("last")], file_size)
    edit(store / "commitlog" / ("0" * 20), records[1].physical_offset, i32(2**31 - 1))
    add_next_file(store)
    return store


def many_magics(size: int) -> bytes:
    return bytes.fromhex("daa320a7") * (size // 4)


def many_heads(size: int) -> bytes:
    """Heads that claim sizes of a few hundred bytes, none of which add up."""
    random = Random(1)
    head = bytes.fromhex("daa320a7") + bytes(76) + i32(16)
    return b"".join(i32(random.randrange(91, 1000)) + head for _ in range(size // 88))


def many_long_records(size: int, starts_at: int) -> bytes:
    """Records that all end where the body ends, and all add up; only their checksums fail.

    Each one's head lies in the body of the one before, so that each costs the checksum of all that follows.
    """
    tail = b"\x09TopicTest" + b"\0\0"
    count = (size - len(tail)) // HEAD_SIZE
    end = count * HEAD_SIZE + len(tail)
    heads = []
    for number in range(count):
        at = number * HEAD_SIZE
        head = bytearray(HEAD_SIZE)
        head[0:4] = i32(end - at)
        head[4:8] = bytes.fromhex("daa320a7")
        head[8:12] = i32(1)
        head[28:36] = i64(starts_at + at)
        head[84:88] = i32(end - at - HEAD_SIZE - len(tail))
        heads.append(bytes(head))
    return b"".join(heads) + tail


BODIES = {
    "magics": many_magics(8 * MIB),
    "heads": many_heads(8 * MIB),
    "long records": many_long_records(8 * MIB, len(encode_record(message("first"))) + HEAD_SIZE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_search_for_the_next_whole_record_takes_linear_time(tmp_path: Path, name: str):
    store = store_with_failing_record(tmp_path, BODIES[name])
    with whence.open(store) as opened, within(20):
        answer = opened.find(since=0)
        assert not answer.receipt.complete
        assert {m.keys for m in answer} <= {("first",), ("last",), ("next", "file")}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_look_behind_the_logs_end_takes_linear_time(tmp_path: Path, name: str):
    """The same, but nothing whole follows: this is done at every opening of a crashed store."""
    store = tmp_path / "store"
    records = write_log(store, [message("first"), message("hostile", BODIES[name])], len(BODIES[name]) + FILE_SIZE)
    edit(store / "commitlog" / ("0" * 20), records[1].physical_offset, i32(2**31 - 1))
    with whence.open(store) as opened, within(20):
        assert [m.keys for m in opened.find(key="first")] == [("first",)]


@pytest.mark.slow
def test_many_failing_records_take_linear_time(tmp_path: Path):
    """Each one sends the scan on a search; the next whole record is near."""
    store = tmp_path / "store"
    records = write_log(store, [message(f"k{number}", b"x" * 200) for number in range(100_000)], 64 * MIB)
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    for record in records[1:-1:10]:
        data[record.physical_offset : record.physical_offset + 4] = i32(-1)
    path.write_bytes(data)
    add_next_file(store)
    with whence.open(store) as opened, within(30):
        answer = opened.find(key="k99999")
        assert [m.keys for m in answer] == [("k99999",)] and not answer.receipt.complete
