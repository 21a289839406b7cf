"""Spills: what is read back is what the log has, and a file that was cut or altered is never more than wrong."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import UnflushedDisk
from tests.reference import (
    PREPARED,
    ROLLBACK,
    SCHEDULE_TOPIC,
    TRANSACTION_BITS,
    Record,
    encode_log_file,
    encode_properties,
    encode_record,
    index_texts,
    tags_code,
    text_hash,
    time_blocks,
)
from whence.errors import CorruptError, FormatError, TruncatedError
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY
from whence.formats.time_blocks import decode_time_blocks
from whence.kernels.checks import OPTIONAL
from whence.kernels.queues import QUEUED
from whence.store import log_scan, spill
from whence.store.spill import NOWHERE, Recipe, Spilled, Stretch, group_of, read_spilled, spill_stretch
from whence.store.spilled import SpilledItems, spilled_items, spilled_runs, spilled_times

T = 1_700_000_000_000
BASE = 3 << 30  # a position in the log's file is far from an offset
FILE_SIZE = 1 << 20
I64_MAX = 2**63 - 1


def record(
    topic: str = "T",
    queue: int = 0,
    queue_offset: int = 0,
    time: int = T,
    keys: str = "",
    tags: str = "",
    sys_flag: int = 0,
    body_size: int = 0,
    **properties: str,
) -> Record:
    given_properties = {"KEYS": keys, "TAGS": tags} | properties
    return Record(
        topic=topic,
        queue=queue,
        queue_offset=queue_offset,
        store_timestamp_ms=time,
        sys_flag=sys_flag,
        stored_body=bytes(body_size),
        properties_data=encode_properties({name: value for name, value in given_properties.items() if value}),
    )


def spilled(folder: Path, records: Iterable[Record], *, groups: int = 3, marks: bool = False) -> Spilled:
    """Spill a log file of these records, which has batch queues in topic B, as "s"."""
    data, left = encode_log_file(records, BASE, FILE_SIZE)
    assert not left
    path = folder / f"{BASE:020d}"
    path.write_bytes(data)
    stretch = Stretch(0, str(path), BASE, BASE, BASE + FILE_SIZE, is_exact=True, is_last=True)
    recipe = Recipe(tags=True, batch_topics=("B",), groups=groups, flush=False, marks=marks)
    return spill_stretch(stretch, recipe, folder, "s", UnflushedDisk())


def placed(records: Iterable[Record]) -> list[Record]:
    """The records with their offsets and sizes."""
    found, offset = [], BASE
    for each in records:
        size = len(encode_record(each))
        found.append(replace(each, physical_offset=offset, size=size))
        offset += size
    return found


def expected_items(records: Iterable[Record]) -> list[tuple[int, int, int]]:
    return [
        (text_hash(text), each.physical_offset, each.store_timestamp_ms)
        for each in records
        for text in index_texts(each, "5.5")
    ]


def expected_rows(records: Iterable[Record]) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """By topic and queue: offset, queue offset, tags code and size of each message in the order of the log.

    Of a batch queue: its entries, with the number of messages and the first's queue offset.
    """
    queues: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for each in records:
        if each.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            continue
        code = (tags_code(each) + 2**63) % 2**64 - 2**63
        rows = queues.setdefault((each.topic, each.queue), [])
        properties = each.properties
        if each.topic == "B":
            base = int(properties.get("INNER_BASE", each.queue_offset))
            count = int(properties.get("INNER_NUM", 1))
            rows.append((each.physical_offset, each.size, code, each.store_timestamp_ms, base, count, -1, 0))
            continue
        rows.append((each.physical_offset, each.queue_offset, code, each.size))
        names = [name for name in properties.get("INNER_MULTI_DISPATCH", "").split(",") if name]
        offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        for name, offset in zip(names, offsets, strict=False):
            queues.setdefault((name, 0), []).append((each.physical_offset, int(offset), code, each.size))
    return queues


def read_items(folder: Path, first: int, count: int) -> list[tuple[int, int, int]]:
    found = []
    for items in spilled_items(folder, "s", first, count):
        found += list(zip(*(column.tolist() for column in items), strict=True))
    return found


def read_rows(folder: Path, groups: int) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for group in range(groups):
        for topic, queue, rows in spilled_runs(folder, "s", group):
            assert group_of(topic, queue, groups) == group
            assert rows.dtype == (BATCH_ENTRY if topic == "B" else QUEUED)
            found.setdefault((topic, queue), []).extend(rows.tolist())
    return found


I64 = st.integers(-(2**63), I64_MAX)
TIMES = st.integers(T, T + 10**7) | st.sampled_from([0, 2**31, -(2**63), I64_MAX]) | I64
QUEUE_OFFSETS = st.integers(0, 5) | st.sampled_from([-(2**63), I64_MAX - 1, I64_MAX]) | I64
RECORDS = st.lists(
    st.builds(
        record,
        topic=st.sampled_from(["T", "U", "ü" * 9]),
        queue=st.integers(0, 3),
        queue_offset=QUEUE_OFFSETS,
        time=TIMES,
        keys=st.sampled_from(["", "a", "a b", "k k k"]),
        tags=st.sampled_from(["", "t"]),
        sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
        body_size=st.sampled_from([0, 0, 0, 40_000]),
    )
    | st.builds(
        record,
        topic=st.just(SCHEDULE_TOPIC),
        time=TIMES,
        tags=st.just("t"),
        DELAY=st.sampled_from(["", "1", "18", "99"]),
    )
    | st.builds(
        record,
        topic=st.just("B"),
        queue=st.integers(0, 1),
        queue_offset=st.integers(0, 9),
        time=TIMES,
        tags=st.sampled_from(["", "t"]),
        INNER_NUM=st.integers(1, 9).map(str),
        INNER_BASE=st.integers(0, 9).map(str),
        sys_flag=st.just(0xC0),
    )
    | st.builds(
        record,
        topic=st.just("L"),
        keys=st.just("k"),
        INNER_MULTI_DISPATCH=st.just("%LMQ%a,%LMQ%b"),
        INNER_MULTI_QUEUE_OFFSET=st.tuples(st.integers(0, 5), st.integers(0, I64_MAX)).map(
            lambda offsets: f"{offsets[0]},{offsets[1]}"
        ),
    ),
    max_size=25,
)


@given(
    records=RECORDS.map(placed),
    rows=st.integers(1, 9),
    rows_held=st.integers(1, 9),
    groups=st.integers(1, 5),
    data=st.data(),
)
def test_what_is_read_back_is_what_the_log_has(tmp_path_factory, records, rows, rows_held, groups, data):
    folder = tmp_path_factory.mktemp("spill")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_scan, "ROWS", rows)
        patch.setattr(spill, "ROWS_MAX", rows_held)
        told = spilled(folder, records, groups=groups)
    items = expected_items(records)
    assert (told.message_count, told.item_count) == (len(records), len(items))
    assert told.last_offset == (records[-1].physical_offset if records else NOWHERE)
    assert told.end_offset == (records[-1].physical_offset + records[-1].size if records else BASE)
    assert read_spilled(folder / "s.json") == told
    assert read_items(folder, 0, len(items)) == items
    assert read_rows(folder, groups) == expected_rows(records)
    blocks = time_blocks((each.physical_offset - BASE, each.store_timestamp_ms) for each in records)
    assert decode_time_blocks(spilled_times(folder, "s")).tolist() == blocks

    first = data.draw(st.integers(0, len(items)))
    count = data.draw(st.integers(0, len(items) - first))
    assert read_items(folder, first, count) == items[first : first + count]
    with SpilledItems(folder, "s") as found:
        places = [found.place(number) for number in range(len(items))]
        assert places == [(offset, time) for _, offset, time in items]
        for each in records:
            own = [number for number, (_, offset, _) in enumerate(items) if offset == each.physical_offset]
            got = found.of_message(each.physical_offset)
            if got is None:
                assert own == []
            else:
                assert (got.first, got.key_hashes.tolist()) == (own[0], [items[number][0] for number in own])
            assert found.of_message(each.physical_offset + 1) is None


SEVERAL = placed(
    [
        record(keys="a b", tags="t", queue_offset=7),
        record(topic="U", queue=1, keys="c", queue_offset=2**40),
        record(topic="B", queue_offset=3, keys="d", INNER_NUM="4", INNER_BASE="3", sys_flag=0xC0),
        record(topic=SCHEDULE_TOPIC, keys="e", DELAY="3"),
        record(topic="L", keys="f", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b", INNER_MULTI_QUEUE_OFFSET="0,9"),
        record(keys="g", queue_offset=8, time=2**50),
        record(topic="U", queue=1, keys="h", queue_offset=1),
        record(keys="i", queue_offset=9, sys_flag=PREPARED),
    ]
)


@pytest.mark.parametrize(
    ("records", "name", "width"),
    [
        ([record(keys="a", time=T), record(keys="a", time=T + 2**31 - 1)], "items", 4),
        ([record(keys="a", time=T), record(keys="a", time=T + 2**31)], "items", 8),
        ([record(keys="a", time=T), record(keys="a", time=T - 2**31)], "items", 4),
        ([record(keys="a", time=T), record(keys="a", time=T - 2**31 - 1)], "items", 8),
        ([record(tags="t"), record(tags="u")], "queues", 4),
        ([record(topic=SCHEDULE_TOPIC, DELAY="1", time=T)], "queues", 8),
    ],
)
def test_numbers_that_need_64_bits_get_them(tmp_path, records, name, width):
    records = placed(records)
    spilled(tmp_path, records, groups=1)
    data = (tmp_path / f"s.{name}").read_bytes()
    if name == "items":
        (chunk,) = np.frombuffer(data[-24 - spill.CHUNK.itemsize : -24], spill.CHUNK)
        assert chunk["time_size"] == width
    else:
        assert spill.RUN_HEAD.unpack_from(data)[1] == width
    assert read_items(tmp_path, 0, len(expected_items(records))) == expected_items(records)
    assert read_rows(tmp_path, 1) == expected_rows(records)


@pytest.mark.parametrize(
    ("offsets", "is_in_order"),
    [
        ([5], True),
        ([0, 1, 2], True),
        ([0, 0, 0], False),
        ([0, 2, 3], False),
        ([3, 2, 1], False),
        ([I64_MAX - 1, I64_MAX], True),
        ([I64_MAX - 5, I64_MAX], False),
        ([-(2**63), -(2**63) + 1], True),
    ],
)
def test_queue_offsets_are_written_if_they_do_not_follow_each_other(tmp_path, offsets, is_in_order):
    records = placed([record(queue_offset=offset) for offset in offsets])
    spilled(tmp_path, records, groups=1)
    assert spill.RUN_HEAD.unpack_from((tmp_path / "s.queues").read_bytes())[2] == is_in_order
    assert read_rows(tmp_path, 1) == expected_rows(records)


def test_a_stretch_without_records_spills_nothing(tmp_path):
    told = spilled(tmp_path, [])
    assert (told.begin_offset, told.end_offset, told.last_offset, told.is_log_end) == (BASE, BASE, NOWHERE, True)
    assert (told.message_count, told.item_count, told.ends_bare) == (0, 0, False)
    assert read_rows(tmp_path, 3) == {}
    with SpilledItems(tmp_path, "s") as items:
        assert items.of_message(BASE) is None


def test_topics_that_no_folder_can_be_named_after_are_told_and_have_no_rows(tmp_path):
    told = spilled(tmp_path, [record(topic=topic) for topic in ["a/b", "T", "..", "a/b"]])
    assert told.without_folder == ("a/b", "..")
    assert read_spilled(tmp_path / "s.json") == told
    assert {topic for topic, _ in read_rows(tmp_path, 3)} == {"T"}


@pytest.mark.parametrize(("last", "ends_bare"), [(record(), True), (record(keys="a"), False)])
def test_it_is_told_whether_the_last_message_has_no_items(tmp_path, last, ends_bare):
    assert spilled(tmp_path, [record(keys="a"), last]).ends_bare is ends_bare


def test_marks_are_on_what_some_brokers_leave_out(tmp_path):
    records = placed([record(keys="a", tags="t"), record(keys="a", tags="t", sys_flag=PREPARED), record(keys="b")])
    spilled(tmp_path, records, marks=True)
    read = [key_hash for key_hash, _, _ in read_items(tmp_path, 0, 5)]
    plain = [key_hash for key_hash, _, _ in expected_items(records)]
    assert [key_hash & ~OPTIONAL for key_hash in read] == plain
    assert [key_hash < 0 for key_hash in read] == [False, True, True, True, False]


def test_items_that_are_not_there_are_told(tmp_path):
    records = placed([record(keys="a b"), record(keys="c")])
    spilled(tmp_path, records)
    assert len(expected_items(records)) == 3
    for first, count in ((0, 4), (3, 1), (10**12, 1), (-1, 1)):
        with pytest.raises(TruncatedError, match=r"s\.items at byte .* has 3 items, and none of number"):
            read_items(tmp_path, first, count)
    with SpilledItems(tmp_path, "s") as items, pytest.raises(TruncatedError):
        items.place(3)


# Files that are not as they were written


def read_all(folder: Path) -> None:
    """Read a spill of SEVERAL in every way there is."""
    with SpilledItems(folder, "s") as items:
        for each in SEVERAL:
            items.of_message(each.physical_offset)
        for number in range(len(expected_items(SEVERAL))):
            items.place(number)
        for _ in items.read(0, len(expected_items(SEVERAL))):
            pass


def read_queues(folder: Path) -> None:
    for group in range(3):
        for _ in spilled_runs(folder, "s", group):
            pass


READERS: list[tuple[str, Callable[[Path], None]]] = [("s.items", read_all), ("s.queues", read_queues)]


def attempt(read: Callable[[Path], None], folder: Path, name: str) -> bool:
    """Whether it can be read; if not, the error names the file."""
    try:
        read(folder)
    except FormatError as error:
        assert str(folder / name) in str(error)
        return False
    return True


@pytest.mark.parametrize(("name", "read"), READERS, ids=["items", "queues"])
def test_a_spill_that_was_cut_anywhere_is_told_or_wrong_at_worst(tmp_path, monkeypatch, name, read):
    monkeypatch.setattr(spill, "ROWS_MAX", 4)
    spilled(tmp_path, SEVERAL)
    data = (tmp_path / name).read_bytes()
    read(tmp_path)
    failed = 0
    for size in range(len(data)):
        (tmp_path / name).write_bytes(data[:size])
        failed += not attempt(read, tmp_path, name)
    assert failed > 0.9 * len(data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "read"), READERS, ids=["items", "queues"])
def test_a_spill_that_was_altered_anywhere_is_wrong_at_worst(tmp_path, monkeypatch, name, read):
    monkeypatch.setattr(spill, "ROWS_MAX", 4)
    spilled(tmp_path, SEVERAL)
    data = (tmp_path / name).read_bytes()
    values = [b"\0", b"\x01", b"\x7f", b"\xff", b"\0" * 8, b"\xff" * 8, (2**62).to_bytes(8, "little")]
    failed = 0
    for at in range(len(data)):
        for value in values:
            altered = data[:at] + value + data[at + len(value) :]
            (tmp_path / name).write_bytes(altered[: len(data)])
            failed += not attempt(read, tmp_path, name)
    assert failed > len(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_are_a_format_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("spill")
    for name, read in READERS:
        (folder / name).write_bytes(data)
        attempt(read, folder, name)


def test_messages_that_claim_more_items_than_there_are_are_refused(tmp_path):
    """They would be unpacked behind the end of the arrays."""
    spilled(tmp_path, [record(keys="a"), record(keys="b")])
    data = bytearray((tmp_path / "s.items").read_bytes())
    (chunk,) = np.frombuffer(data[-24 - spill.CHUNK.itemsize : -24], spill.CHUNK)
    counts_at = int(chunk["at"]) + 2 * 4 + 2 * 4 + 2 * int(chunk["time_size"])
    assert data[counts_at : counts_at + 4] == b"\1\0\1\0"
    data[counts_at : counts_at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "s.items").write_bytes(data)
    with pytest.raises(CorruptError, match="chunk 0 has 2 items, and its messages have another number"):
        list(spilled_items(tmp_path, "s", 0, 1))


def test_a_spills_note_that_was_cut_or_altered_is_a_corrupt_error_or_another_note(tmp_path):
    spilled(tmp_path, SEVERAL)
    path = tmp_path / "s.json"
    data = path.read_bytes()
    source = Random(1)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptError, match=str(path)):
            read_spilled(path)
        altered = bytearray(data)
        altered[size] = source.randrange(256)
        path.write_bytes(altered)
        try:
            read_spilled(path)
        except CorruptError as error:
            assert str(path) in str(error)
    for hostile in (b"[" * 100_000, b"7", b"[]", json.dumps({"damage": 7}).encode()):
        path.write_bytes(hostile)
        with pytest.raises(CorruptError, match=str(path)):
            read_spilled(path)
