"""The data source without Spark: options, filters, plan and read, held against a plain decode of every message."""

import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from pyspark.sql.types import StructType
from pyspark.sql.worker.data_source_pushdown_filters import deserializeFilter

from tests.golden import ALL, few_fast
from tests.pipeline import source_rows
from tests.pipeline.source_rows import (
    EPOCH,
    FILE_SIZE,
    Row,
    all_rows,
    build_sidecar,
    make_odd_store,
    meet,
    options_of,
    plan,
    read,
    rows_of,
    some_filters,
)
from tests.reference import Record, encode_record
from tests.store_maker import MadeStore, T, make_store, message
from whence.errors import CorruptError, NotFoundError, UsageError
from whence.formats.hashing import key_hash
from whence.formats.rocketmq.body import decompress_body
from whence.formats.rocketmq.index_file import ITEM, item_position
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK
from whence.pipeline import source_options, source_plan, source_read
from whence.pipeline.source import WhenceSource, register
from whence.pipeline.source_filters import Condition, Span, Wanted, read_filters
from whence.pipeline.source_options import parse_options
from whence.pipeline.source_plan import PartKind
from whence.store import message_columns
from whence.store.log_file import LogFile
from whence.store.message_columns import COLUMNS, DAMAGE, TYPES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    """A store whose first messages a sidecar covers. It is only read."""
    return make_odd_store(tmp_path_factory.mktemp("source") / "store")


@pytest.fixture
def small_parts(monkeypatch):
    """Lets scans be cut at each block."""
    monkeypatch.setattr(source_plan, "PART_SIZE", 1)


# -- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["message", "key"])
@pytest.mark.parametrize("partitions", ["1", "7", "1000"])
def test_without_filters_every_message_is_there_in_log_order(odd: MadeStore, rows: str, partitions: str):
    expected = all_rows(odd.folder, by_key=rows == "key")
    assert len(expected) > 500
    assert read(odd.folder, rows=rows, minPartitions=partitions) == expected
    parts, _ = plan(odd.folder, rows=rows, minPartitions=partitions)
    assert len(parts) >= min(int(partitions), 9), "a part for each block at most"
    edges = [edge for part in parts for piece in part.pieces for edge in piece]
    assert edges[0] == 0 and edges[-1] == odd.end_offset
    assert edges[1:-1:2] == edges[2::2], "each part begins where the one before ends"


def row_of(record: Record) -> Row:
    """The columns of a message as the twin decodes it."""

    def time(at_ms: int) -> datetime:
        return EPOCH + timedelta(milliseconds=at_ms)

    names = ["topic", "queue", "queue_offset", "physical_offset", "keys", "tags", "offset_id", "size", "flag"]
    names += ["reconsume_times", "sys_flag", "store_timestamp_ms", "born_timestamp_ms"]
    return {name: getattr(record, name) for name in names} | {
        "store_time": time(record.store_timestamp_ms),
        "born_time": time(record.born_timestamp_ms),
        "unique_id": None if record.is_rollback else record.unique_id,
        "properties": record.properties,
        "body": decompress_body(record.stored_body, record.sys_flag),
        "body_size": len(record.stored_body),
    }


@pytest.mark.parametrize("name", few_fast(ALL))
def test_rows_of_stores_that_rocketmq_wrote_are_what_the_twin_decodes(golden: Any, name: str):
    store, records = golden(name).store, golden(name).records
    mode, end = {}, records[-1].physical_offset + records[-1].size
    if "body-flip" in name:  # the log ends there, and whole records lie behind it
        mode = {"mode": "permissive"}
    elif b"\0" in records[-1].properties_data:
        records = records[:-1]  # half of it is on the disk, which its checksum, that of its body, does not tell
    expected = [row_of(record) for record in records]
    for rows in ("message", "key"):
        found = read(store, rows=rows, **mode)
        if mode:
            assert [row["physical_offset"] for row in found if row[DAMAGE] is not None] == [end]
            found = [row for row in found if row.pop(DAMAGE) is None]
        for row in found:
            row["properties"] = dict(row["properties"])
        if rows == "key":
            expected = [{"key": key} | row for row in expected for key in row["keys"]]
        assert found == expected
        assert len(found) > 100


def in_order(rows: list[Row]) -> list[Row]:
    """As they lie in the log: what an index covers is given before the rest."""
    return sorted(rows, key=lambda row: row["physical_offset"])


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["false", "true"])
@pytest.mark.parametrize("rows", ["message", "key"])
def test_pushed_filters_give_what_they_mean(odd: MadeStore, small_parts, rows: str, scan: str):
    expected = all_rows(odd.folder, by_key=rows == "key")
    names = expected[0].keys()
    random = Random(f"{rows} {scan}")
    found_some = 0
    for number in range(250):
        filters = some_filters(random, expected, names)
        wanted = meet(expected, filters)
        found_some += bool(wanted)
        assert in_order(read(odd.folder, filters, rows=rows, scan=scan)) == wanted, f"{number}: {filters}"
    assert found_some > 60


@pytest.mark.parametrize("options", [{"startingOffsets": "40001", "endingOffsets": "400000"}, {"endingOffsets": "1"}])
def test_options_of_offsets_and_times_are_met_beside_the_filters(odd: MadeStore, options: dict[str, str]):
    rows = all_rows(odd.folder, by_key=True)
    low, high = int(options.get("startingOffsets", 0)), int(options["endingOffsets"])
    since, until = T + 1000, T + 4000
    times = {"startingTimestamp": str(since), "endingTimestamp": str(until)}
    for filters in (
        [],
        [EqualTo(("key",), "a")],
        [EqualTo(("unique_id",), "u-shared")],
        [EqualTo(("topic",), "тема")],
    ):
        wanted = [row for row in meet(rows, filters) if low <= row["physical_offset"] < high]
        assert read(odd.folder, filters, rows="key", **options) == wanted
        wanted = [row for row in meet(rows, filters) if since <= row["store_timestamp_ms"] < until]
        assert read(odd.folder, filters, rows="key", columns="key,topic,unique_id,size", **times) == [
            {name: row[name] for name in ("key", "topic", "unique_id", "size")} for row in wanted
        ]


def test_a_key_is_looked_up_in_every_topic_and_where_no_index_is(odd: MadeStore):
    parts, reader = plan(odd.folder, [EqualTo(("key",), "a")], rows="key")
    assert [part.kind for part in parts] == [PartKind.INDEX, PartKind.SCAN]
    rows = rows_of(reader, parts)
    assert {row["topic"] for row in rows} == {"orders", "payments", "тема", "RMQ_SYS_TRANS_HALF_TOPIC"}
    assert rows == meet(all_rows(odd.folder, by_key=True), [EqualTo(("key",), "a")])
    indexed_to = parts[0].pieces[-1].to_offset
    assert any(row["physical_offset"] >= indexed_to for row in rows), "in the stretch that no index covers, too"


@pytest.mark.parametrize("count", [64, 65, 700])
@pytest.mark.parametrize("column", ["key", "unique_id"])
@pytest.mark.parametrize("road", ["index", "scan", "too many"])
def test_any_number_of_keys_can_be_asked(odd: MadeStore, monkeypatch, count: int, column: str, road: str):
    rows = all_rows(odd.folder, by_key=True)
    borne = sorted({row[column] for row in rows if row[column] and "\ufffd" not in row[column]})
    asked = tuple(Random(count).sample(borne, 60)) + tuple(f"nosuch-{number}" for number in range(count - 60))
    lookups = count * 4  # in each topic
    monkeypatch.setattr(source_plan, "LOOKUPS_MAX", lookups - 1 if road == "too many" else lookups)
    filters = [In((column,), asked)]
    parts, reader = plan(odd.folder, filters, rows="key", scan="true" if road == "scan" else "false")
    assert (PartKind.INDEX in {part.kind for part in parts}) == (road == "index")
    wanted = meet(rows, filters)
    assert in_order(rows_of(reader, parts)) == wanted and len(wanted) >= 60
    parts, _ = plan(odd.folder, [*filters, EqualTo(("topic",), "orders")], rows="key")
    assert parts[0].kind is PartKind.INDEX, "in one topic there are few enough"


def test_what_contradicts_itself_reads_nothing(odd: MadeStore):
    for filters in (
        [EqualTo(("key",), "a"), EqualTo(("key",), "b")],
        [GreaterThan(("queue",), 5), LessThan(("queue",), 2)],
        [In(("topic",), ())],
        [EqualTo(("store_time",), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC))],
        [EqualTo(("offset_id",), "no id")],
    ):
        assert plan(odd.folder, filters, rows="key")[0] == []


def test_the_end_is_that_of_the_plan_though_the_log_grows(odd: MadeStore, tmp_path):
    folder = tmp_path / "store"
    (folder / "commitlog").mkdir(parents=True)
    path = folder / "commitlog" / odd.log_files[0].name
    whole = odd.log_files[0].read_bytes()
    half = odd.offsets[40]
    path.write_bytes(whole[:half] + bytes(len(whole) - half))
    parts, reader = plan(folder)
    path.write_bytes(whole)
    assert [row["physical_offset"] for row in rows_of(reader, parts)] == odd.offsets[:40]
    assert len(read(folder)) > 40


def test_many_offsets_walk_through_each_file_once_where_no_queue_leads_to_them(tmp_path, monkeypatch):
    within = encode_record(message(keys="within", body=b"w" * 90))
    records = [message(keys=f"k{number}", at=number, body=b"b" * 99 + within) for number in range(300)]
    made = make_store(tmp_path / "store", records, file_size=1 << 15, indexed=0, queues=False)
    walked: list[int] = []
    plain_walk = LogFile.walk

    def walk(file: LogFile, position: int, *others: Any) -> Any:
        stopped = plain_walk(file, position, *others)
        walked.append(stopped.position - position)
        return stopped

    monkeypatch.setattr(LogFile, "walk", walk)
    behind = [offset + size for offset, size in zip(made.offsets, (1, 88 + 99) * 150, strict=True)]
    wanted = made.offsets[::3]
    parts, reader = plan(made.folder, [In(("physical_offset",), (*wanted, *behind, -1, 1 << 40))])
    assert [part.kind for part in parts] == [PartKind.OFFSETS]
    walked.clear()
    assert [row["physical_offset"] for row in rows_of(reader, parts)] == wanted
    assert made.end_offset * 0.9 < sum(walked) < made.end_offset * 1.5

    hurt(made.log_files[1], made.offsets[150] % (1 << 15) + 100)
    before = [offset for offset in wanted if offset < made.offsets[150]]
    assert read(made.folder, [In(("physical_offset",), before)], columns="physical_offset")
    with pytest.raises(CorruptError, match=f"{made.log_files[1].name} at byte"):
        read(made.folder, [In(("physical_offset",), (*wanted, made.offsets[152] + 1))])


# -- index and time blocks are claims ------------------------------------------------------------------------


@pytest.fixture
def own(odd: MadeStore, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(odd.folder.with_name("store.whence"), tmp_path / "store.whence")
    return Path(shutil.copytree(odd.folder, tmp_path / "store"))


KEY_A = [EqualTo(("key",), "a")]


def test_an_index_file_that_goes_after_the_plan_does_no_harm(own: Path):
    parts, reader = plan(own, KEY_A, rows="key")
    assert parts[0].kind is PartKind.INDEX
    wanted = meet(all_rows(own, by_key=True), KEY_A)
    shutil.rmtree(own.with_name("store.whence"))
    assert rows_of(reader, parts) == wanted


def test_a_damaged_chain_is_scanned_around(own: Path):
    for path in (own.with_name("store.whence") / "index").iterdir():
        data = bytearray(path.read_bytes())
        for item in range(1, 200):
            at = 40 + 4 * 50 + 20 * item + 16
            data[at : at + 4] = (200).to_bytes(4, "big")  # a chain never leads to a newer item
        path.write_bytes(data)
    assert in_order(read(own, KEY_A, rows="key")) == meet(all_rows(own, by_key=True), KEY_A)


@pytest.fixture
def common(tmp_path, monkeypatch) -> MadeStore:
    """600 messages that bear one key, of which 20 are read at once."""
    for module in (message_columns, source_read):
        monkeypatch.setattr(module, "ROWS_MAX", 20)
    records = [message(keys=f"every k{number}", at=number, body=b"b" * 8000) for number in range(600)]
    made = make_store(tmp_path / "store", records, file_size=1 << 20, indexed=0, queues=False)
    build_sidecar(made.folder, items=5000)
    return made


EVERY = [EqualTo(("key",), "every")]


def test_a_key_that_very_many_messages_bear_takes_the_memory_of_a_few(common: MadeStore):
    parts, reader = plan(common.folder, EVERY, rows="key", columns="key,physical_offset,body")
    assert [part.kind for part in parts] == [PartKind.INDEX]
    next(reader.read(parts[0]))  # all that has to be loaded and compiled is by now
    offsets: list[int] = []
    tracemalloc.start()
    for batch in reader.read(parts[0]):
        if not offsets:
            tracemalloc.reset_peak()  # what opens a store has room for a scan
        offsets += batch.column("physical_offset").to_pylist()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert offsets == common.offsets
    assert peak < 600 * 8000 / 4, peak


@pytest.mark.parametrize("harm", ["of the log", "of the index"])
def test_damage_that_is_met_late_among_very_many_takes_no_message_twice_and_none_away(common: MadeStore, harm: str):
    bad = common.offsets[500]
    mode = {}
    if harm == "of the log":
        base = bad - bad % (1 << 20)
        hurt(common.folder / "commitlog" / f"{base:020d}", bad - base + 100)
        with pytest.raises(CorruptError, match=f"at byte {bad - base}"):
            read(common.folder, EVERY, rows="key")
        mode = {"mode": "permissive"}
    else:
        (path,) = (common.folder.with_name("store.whence") / "index").iterdir()
        items = np.frombuffer(path.read_bytes(), ITEM, 1200, item_position(50, 1)).copy()
        every = np.flatnonzero(items["key_hash"] == key_hash("T", "every"))
        items["physical_offset"][every[500]] += 4  # leads to no record
        items["previous_item"][every[30]] = 0  # and the 30 before it are cut off
        path.write_bytes(
            path.read_bytes()[: item_position(50, 1)] + items.tobytes() + path.read_bytes()[item_position(50, 1201) :]
        )
    rows = read(common.folder, EVERY, rows="key", columns="key,physical_offset", **mode)
    found = sorted(row["physical_offset"] for row in rows)
    assert found == [offset for offset in common.offsets if harm == "of the index" or offset != bad]


WINDOW = [GreaterThanOrEqual(("store_timestamp_ms",), T + 1500), LessThanOrEqual(("store_timestamp_ms",), T + 1600)]


@pytest.mark.parametrize("harm", ["none", "gone", "cut", "of another log", "no claim", "asked for"])
def test_time_blocks_are_used_only_if_they_can_be_believed(own: Path, small_parts, harm: str):
    sidecar = own.with_name("store.whence")
    options = {}
    match harm:
        case "gone":
            shutil.rmtree(sidecar / "times")
        case "cut":
            for path in (sidecar / "times").iterdir():
                path.write_bytes(path.read_bytes()[:-1])
        case "of another log":
            claim = json.loads((sidecar / "sidecar.json").read_text())
            claim["last_record"]["head"] = "00" * 48
            (sidecar / "sidecar.json").write_text(json.dumps(claim))
        case "no claim":
            (sidecar / "sidecar.json").unlink()
        case "asked for":
            options = {"scan": "true"}
    parts, reader = plan(own, WINDOW, **options)
    assert rows_of(reader, parts) == meet(all_rows(own), WINDOW)
    size = sum(part.size for part in parts)
    assert (size < FILE_SIZE * 2) == (harm == "none"), size


def test_time_blocks_that_do_not_fit_are_an_error_and_not_a_wrong_answer(own: Path, small_parts):
    for path in (own.with_name("store.whence") / "times").iterdir():
        blocks = np.frombuffer(path.read_bytes(), TIME_BLOCK).copy()
        blocks["position"][1:] += 1
        path.write_bytes(blocks.tobytes())
    with pytest.raises(CorruptError, match=r"commitlog/0+ at byte \d+: .*whence repair"):
        read(own)
    assert read(own, scan="true") == all_rows(own)


# -- damage --------------------------------------------------------------------------------------------------


def hurt(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_damage_is_an_error_that_names_file_and_position(own: Path, odd: MadeStore):
    bad = next(record for record in odd.records if record.physical_offset > FILE_SIZE and record.stored_body)
    log_file = sorted((own / "commitlog").iterdir())[1]
    hurt(log_file, bad.physical_offset - FILE_SIZE + 100)
    with pytest.raises(CorruptError) as caught:
        read(own)
    assert (caught.value.path, caught.value.position) == (str(log_file), bad.physical_offset - FILE_SIZE)
    with pytest.raises(CorruptError):
        read(own, [EqualTo(("physical_offset",), bad.physical_offset)])
    assert read(own, [LessThan(("physical_offset",), FILE_SIZE)]), "what is not read is not looked at"

    rows = read(own, mode="permissive")
    (told,) = [row for row in rows if row[DAMAGE] is not None]
    assert told["physical_offset"] == bad.physical_offset and told["topic"] is None
    assert str(log_file) in told[DAMAGE] and f"byte {bad.physical_offset - FILE_SIZE}" in told[DAMAGE]
    good = [row for row in all_rows(odd.folder) if row["physical_offset"] != bad.physical_offset]
    assert [row for row in rows if row is not told] == [row | {DAMAGE: None} for row in good]
    assert [row["physical_offset"] for row in rows] == odd.offsets, "in its place"
    for filters in ([IsNotNull((DAMAGE,))], [EqualTo(("physical_offset",), bad.physical_offset)]):
        assert read(own, filters, mode="permissive") == [told]
    assert read(own, [IsNotNull(("topic",))], mode="permissive") == [row for row in rows if row is not told]
    assert read(own, [StringContains((DAMAGE,), "byte")], mode="permissive", columns="size") == [
        {"size": None, DAMAGE: told[DAMAGE]}
    ]


@pytest.mark.parametrize("rows", ["message", "key"])
def test_pushed_filters_are_met_by_the_rows_of_damage_too(own: Path, odd: MadeStore, small_parts, rows: str):
    first, second, third = odd.log_files
    hurt(own / "commitlog" / first.name, odd.offsets[70] + 100)
    (own / "commitlog" / second.name).unlink()
    hurt(own / "commitlog" / third.name, odd.offsets[-10] % FILE_SIZE + 100)
    every = in_order(read(own, rows=rows, mode="permissive"))
    messages = [row for row in every if row[DAMAGE] is None]
    told = [row["physical_offset"] for row in every if row[DAMAGE] is not None]
    assert told == [odd.offsets[70], FILE_SIZE, odd.offsets[-10]]
    names = [name for name in every[0] if name != DAMAGE]
    random = Random(rows)
    for number in range(60):
        filters = some_filters(random, messages, names) if random.random() < 0.6 else []
        at = random.choice([EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual])
        filters += random.choice(
            [
                [IsNull((DAMAGE,))],
                [IsNotNull((DAMAGE,)), StringContains((DAMAGE,), "record")],
                [IsNull(("topic",))],
                [EqualNullSafe(("queue",), None)],
                [at(("physical_offset",), random.choice(told) + random.choice([-1, 0, 1]))],
                [In(("physical_offset",), (*told, 0, None))],
            ]
        )
        scan = random.choice(["false", "true"])
        found = in_order(read(own, filters, rows=rows, mode="permissive", scan=scan))
        assert found == meet(every, filters), f"{number}: {filters}"


@pytest.mark.parametrize("size", [1500, 70_000])
def test_damage_may_lie_where_a_scan_is_cut(own: Path, small_parts, size: int):
    (first, *_), _ = plan(own)
    cut, count = first.pieces[-1].to_offset, len(all_rows(own))
    path = own / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[: cut - 1200] + bytes(size) + data[cut - 1200 + size :])
    expected = [row for row in read(own, mode="permissive", scan="true") if row[DAMAGE] is None]
    assert len(expected) < count
    for filters in ([], [EqualTo(("topic",), "orders")], [LessThan(("store_timestamp_ms",), T + 5000)]):
        rows = read(own, [*filters, IsNull((DAMAGE,))], mode="permissive")
        assert rows == meet(expected, filters), filters
    told = [row["physical_offset"] for row in read(own, mode="permissive") if row[DAMAGE]]
    assert told[0] < cut == told[1]


def test_a_missing_log_file_is_an_error_or_a_row(own: Path, odd: MadeStore):
    log_file = sorted((own / "commitlog").iterdir())[1]
    log_file.unlink()
    with pytest.raises(CorruptError, match="the log has no bytes from offset 262144 to 524288"):
        read(own)
    with pytest.raises(CorruptError, match="the log has no bytes"):
        read(own, KEY_A, rows="key")
    assert read(own, [LessThan(("physical_offset",), 1000)]) == meet(
        all_rows(odd.folder), [LessThan(("physical_offset",), 1000)]
    )
    rows = read(own, mode="permissive")
    assert [row["physical_offset"] for row in rows if row[DAMAGE]] == [FILE_SIZE]
    kept = [row for row in all_rows(odd.folder) if not FILE_SIZE <= row["physical_offset"] < 2 * FILE_SIZE]
    assert [row for row in rows if not row[DAMAGE]] == [row | {DAMAGE: None} for row in kept]


def test_whole_records_behind_the_end_are_not_passed_over_in_silence(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}", body=b"b" * 90) for number in range(12)])
    hurt(made.log_files[0], made.offsets[6] + 100)
    with pytest.raises(CorruptError, match="5 whole records were found behind it"):
        read(made.folder)
    rows = read(made.folder, mode="permissive")
    assert [row["physical_offset"] for row in rows if row[DAMAGE]] == [made.offsets[6]]
    assert len(rows) == 7
    assert len(read(made.folder, [LessThan(("physical_offset",), made.offsets[6])])) == 6


def test_what_has_expired_is_an_error_unless_it_is_to_be_passed_over(own: Path):
    parts, reader = plan(own)
    first, *_ = sorted((own / "commitlog").iterdir())
    first.unlink()
    with pytest.raises(NotFoundError, match="failOnDataLoss"):
        rows_of(reader, parts)
    with pytest.raises(NotFoundError, match="startingOffsets 17 lies before the log's begin, at 262144"):
        read(own, startingOffsets="17")
    rows = read(own, startingOffsets="17", failOnDataLoss="false")
    assert rows == read(own) == all_rows(own)
    parts, reader = plan(own, failOnDataLoss="false")
    sorted((own / "commitlog").iterdir())[0].unlink()
    assert rows_of(reader, parts) == all_rows(own)


def test_an_empty_store_has_no_rows(tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert read(tmp_path / "store") == read(tmp_path / "store", mode="permissive") == []


# -- what is read --------------------------------------------------------------------------------------------

TOUCHED = """
import json, re, sys
from pathlib import Path
from pyspark.sql import datasource
from tests.pipeline.source_rows import plan, rows_of
from whence.kernels import picked, scan
from whence.store import log_file, message_store, scan as plain

folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
filters = [getattr(datasource, kind)((column,), value) for kind, column, value in asked["filters"]]
read = {"records": 0, "pages": {}}

def counted(module, name, size_of):
    function = getattr(module, name)
    def counting(*arguments, **named):
        result = function(*arguments, **named)
        read["records"] += size_of(result, *arguments)
        return result
    setattr(module, name, counting)

# All that looks at records: the kernel that scans, the one that reads at offsets, and plain Python.
counted(scan, "scan_stretch", lambda result, data, base, position, end: result.next_position - position)
counted(picked, "scan_records", lambda count, data, base, positions, rows: int(rows["size"][:count].sum()))
for module in (log_file, plain):
    counted(module, "whole_record", lambda result, data, base, position: result[1] - position)

def note(close):
    # Pages of the store's files, and of its sidecar's, that this process has touched, before they are given back.
    def closing(self):
        sizes, path = {}, None
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                path = line.split(None, 5)[5] if len(line.split(None, 5)) > 5 else None
            elif line.startswith("Rss:") and path and path.startswith(str(folder)):
                kind = Path(path).parent.name
                sizes[kind] = sizes.get(kind, 0) + 1024 * int(line.split()[1])
        for kind, size in sizes.items():
            read["pages"][kind] = max(read["pages"].get(kind, 0), size)
        close(self)
    return closing

message_store.MessageStore.close = note(message_store.MessageStore.close)
parts, reader = plan(folder, filters, **asked["options"])
rows = rows_of(reader, parts)
print(json.dumps({"rows": len(rows), "read": read}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    """64 MiB of log in four files, and its sidecar."""
    folder = tmp_path_factory.mktemp("large") / "store"
    records = [
        message(keys=f"k{number}", topic="orders", at=number * 10, body=bytes([number % 251]) * 32_000)
        for number in range(2000)
    ]
    made = make_store(folder, records, file_size=1 << 24, indexed=0, queues=False)
    build_sidecar(folder, items=3000)
    return made


def touched(store: Path, filters: list[tuple[str, str, object]], **options: str) -> dict[str, int]:
    """How much a query reads, in a process of its own: bytes of records, and of mapped pages; and its rows."""
    run = subprocess.run(
        [sys.executable, "-c", TOUCHED, str(store), json.dumps({"filters": filters, "options": options})],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    pages = told["read"]["pages"]
    return {
        "rows": told["rows"],
        "records": told["read"]["records"],
        "log pages": pages.get("commitlog", 0),
        "index pages": pages.get("index", 0),
    }


# To believe the index, the records at its begin and end are read, some of its last items' messages, and 128 KiB of
# log before its end; to find the log's end, the first record of each file. Each query does so when it is planned, and
# when it is read. A page that is touched may bring 2 MiB with it.
BELIEF = 4 * 131_072 + 40 * 32_100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells which pages were touched")
def test_a_key_reads_index_pages_and_its_messages_only(large: MadeStore):
    log_size = large.end_offset
    everything = touched(large.folder, [("EqualTo", "key", "k700")], rows="key", scan="true")
    assert everything["rows"] == 1
    assert everything["records"] >= log_size and everything["log pages"] > log_size * 0.95
    nothing = touched(large.folder, [("EqualTo", "key", "nosuch")], rows="key")
    assert nothing["rows"] == 0 and nothing["records"] < BELIEF
    found = touched(large.folder, [("EqualTo", "key", "k700")], rows="key")
    assert found["rows"] == 1
    assert 0 < found["records"] - nothing["records"] < 2 * 32_100, "its message, and no other"
    assert found["log pages"] < log_size // 2 and 0 < found["index pages"] < 262_144, found
    several = touched(large.folder, [("In", "key", [f"k{number}" for number in range(0, 2000, 400)])], rows="key")
    assert several["rows"] == 5
    assert several["records"] - nothing["records"] < 6 * 32_100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells which pages were touched")
def test_a_window_of_time_reads_its_stretch_only(large: MadeStore):
    window = [
        ("GreaterThanOrEqual", "store_timestamp_ms", T + 10_000),
        ("LessThan", "store_timestamp_ms", T + 10_500),
    ]
    stretch = 50 * 32_100
    found = touched(large.folder, window)
    assert found["rows"] == 50
    assert stretch <= found["records"] < stretch + 2 * BLOCK_SIZE + BELIEF, found
    assert found["log pages"] < large.end_offset // 2, found
    at = large.offsets[1000]
    offsets = [("GreaterThanOrEqual", "physical_offset", at), ("LessThan", "physical_offset", at + 50)]
    found = touched(large.folder, offsets)
    assert found["rows"] == 1 and found["records"] < 2 * BLOCK_SIZE + BELIEF, found


# -- filters -------------------------------------------------------------------------------------------------


def test_filters_of_other_kinds_are_left_to_spark():
    class ArrayContains:  # a kind that a later Spark may have
        attribute = ("topic",)
        value = "x"

    left = [
        EqualTo(("properties", "TAGS"), "paid"),
        EqualTo(("body",), b"x"),
        EqualTo(("keys",), ["a"]),
        IsNotNull(("properties",)),
        EqualTo(("nosuch",), 1),
        EqualTo(("store_time",), datetime(2026, 1, 1)),  # no zone
        EqualTo(("topic",), 7),
        EqualTo(("queue",), True),
        EqualTo(("queue",), 2**31),
        EqualTo(("queue",), 1.0),
        In(("queue",), (1, "x")),
        EqualTo(("topic",), "\ufffd"),  # as Spark writes bytes that are no UTF-8
        EqualTo(("flag",), 1),
        ArrayContains(),
    ]
    names = [name for name in COLUMNS if name != "flag"]
    pushed = [EqualTo(("topic",), "x"), Not(In(("queue",), (1, None))), Not(Not(EqualTo(("queue",), 1)))]
    conditions, back = read_filters([*left, *pushed], names)
    assert [id(each) for each in back] == [id(each) for each in left]
    assert conditions == [
        Condition("topic", "=", ("x",)),
        Condition("queue", "in", (1,), has_null=True, is_negated=True),
        Condition("queue", "=", (1,)),
    ]


def pushed(attribute: str, name: str, *micros: int) -> dict[str, Any]:
    """A filter of times as Spark sends it: its constant is a Variant."""
    times = [b"\x30" + at.to_bytes(8, "little", signed=True) for at in micros]
    value = times[0] if name != "In" else bytes([3, len(times), *range(0, 9 * len(times) + 1, 9)]) + b"".join(times)
    variant = {"value": b64encode(value).decode(), "metadata": b64encode(b"\x01\x00\x00").decode()}
    return {"name": name, "columnPath": [attribute], "value": variant, "isNegated": False}


def test_times_that_python_has_no_value_for_are_left_to_spark(odd: MadeStore):
    """As Spark's own process does it: it makes a reader, decodes filters and hands them over."""
    source = WhenceSource({"path": str(odd.folder), "pushdown": "always"})
    schema = StructType().add("store_time", "timestamp").add("born_time", "timestamp")
    year_9999, year_10000, year_0 = 253_402_300_799_999_999, 253_402_300_800_000_000, -62_135_596_800_000_001
    sent = [
        pushed("store_time", "LessThan", year_10000),
        pushed("store_time", "LessThan", year_9999),
        pushed("store_time", "GreaterThan", year_0),
        pushed("store_time", "In", 0, -(2**63), 1),
        pushed("store_time", "In", 0, 1),
        pushed("born_time", "GreaterThanOrEqual", year_0 + 1),
    ]
    reader = source.reader(schema)
    filters: list[Any] = [deserializeFilter(each) for each in sent]
    assert [*reader.pushFilters(filters)] == [filters[0], filters[2], filters[3]]
    assert filters[1].value == datetime.max.replace(tzinfo=UTC)
    for after in (lambda reader: reader.pushFilters([]), lambda reader: reader.partitions()):
        after(source.reader(schema))
        with pytest.raises(OverflowError):
            deserializeFilter(sent[0])


def test_times_are_narrowed_to_the_milliseconds_that_can_meet_them():
    def span(*filters: object) -> Span:
        conditions, left = read_filters(filters, list(COLUMNS))
        assert not left
        return Wanted.of(conditions).span("store_timestamp_ms")

    time = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)  # 1000.5 ms
    column = ("store_time",)
    assert span(GreaterThanOrEqual(column, time)) == Span(low=1001) == span(GreaterThan(column, time))
    assert span(LessThanOrEqual(column, time)) == Span(high=1000) == span(LessThan(column, time))
    time = time.replace(microsecond=0)
    assert span(GreaterThan(column, time)) == Span(low=1001)
    assert span(LessThan(column, time)) == Span(high=999)
    assert span(EqualNullSafe(column, time.astimezone(timezone(timedelta(hours=9))))) == Span(1000, 1000)
    assert span(In(column, (time, time + timedelta(seconds=1)))) == Span(1000, 2000)
    assert span(Not(EqualTo(column, time)), IsNotNull(column)) == Span()
    assert span(EqualTo(("born_time",), time)) == Span()


# -- options -------------------------------------------------------------------------------------------------


def test_options_are_read_in_any_case():
    options = parse_options(
        {
            "PATH": "/store",
            "Rows": "KEY",
            "columns": "key, topic ,size",
            "startingoffsets": "Earliest",
            "endingOffsets": "500",
            "startingTimestamp": "2026-01-01T00:00:00Z",
            "endingTimestamp": "1767225600001",
            "minPartitions": "3",
            "failOnDataLoss": "False",
            "mode": "Permissive",
            "maxBytesPerTrigger": "1000",
            "pushdown": "never",
        }
    )
    assert options.by_key and options.columns == ("key", "topic", "size", "damage")
    assert (options.starting, options.ending) == ("earliest", 500)
    assert options.ending_ms == 1 + (options.starting_ms or 0)
    assert (options.min_partitions, options.max_bytes_per_trigger) == (3, 1000)
    assert not options.fail_on_data_loss and options.permissive and options.pushdown == "never"
    assert options.schema == "key string, topic string, size int, damage string"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"compression": "x"}, "option 'compression' is not known; there are path, out, rows, columns"),
        ({"row": "key"}, "option 'row' is not known; did you mean rows?"),
        ({"startingOffset": "0"}, "did you mean startingOffsets?"),
        ({"topic": "x"}, 'topic is a column: where\\("topic = …"\\) asks for it'),
        ({"subscribe": "x"}, "option 'subscribe' is not known; topic is a column"),
        ({"key": "x"}, 'rows of keys have it, option\\("rows", "key"\\), and where'),
        ({"location": "/store"}, "no table of a catalog: create temporary view"),
        ({"rows": "row"}, "option rows is message or key, not 'row'"),
        ({"mode": "dropmalformed"}, "option mode is failfast or permissive"),
        ({"columns": "topic,nosuch"}, "no column 'nosuch'; there are topic, queue"),
        ({"columns": "key"}, 'option\\("rows", "key"\\)'),
        ({"columns": "damage"}, "permissive"),
        ({"columns": "size,size"}, "names 'size' twice"),
        ({"columns": ""}, "no column ''"),
        ({"startingOffsets": "-1"}, "is earliest, latest or a physical offset, not '-1'"),
        ({"startingOffsets": '{"topic":{"0":23}}'}, "is earliest, latest or a physical offset"),
        ({"endingOffsets": str(2**63)}, "is earliest, latest or a physical offset"),
        ({"minPartitions": "0"}, "a whole number above 0"),
        ({"startingTimestamp": "soon"}, "option startingTimestamp: 'soon' is no time"),
        ({"startingOffsets": "7", "endingOffsets": "5"}, "startingOffsets 7 lies behind endingOffsets 5"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp 9 lies behind endingTimestamp 8"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"scan": "1"}, "false or true"),
    ],
)
def test_a_wrong_option_is_told(given: dict[str, str], what: str):
    with pytest.raises(UsageError, match=what):
        parse_options({"path": "/store"} | given)


def test_a_store_is_not_written_by_spark_and_only_a_session_knows_it():
    source = WhenceSource({"path": "/store"})
    for write in (source.writer, source.streamWriter):
        with pytest.raises(UsageError, match="Spark only reads stores"):
            write(StructType(), True)
    with pytest.raises(UsageError, match=r"takes a session of Spark .* not a NoneType"):
        register(None)


def test_a_batch_has_one_path_and_an_end_behind_its_begin(odd: MadeStore):
    with pytest.raises(UsageError, match="no path is given"):
        parse_options({})
    with pytest.raises(UsageError, match="several paths"):
        parse_options({"paths": '["a","b"]'})
    for options in ({"startingOffsets": "latest"}, {"endingOffsets": "earliest"}):
        with pytest.raises(UsageError, match="latest is for its end"):
            read(odd.folder, **options)
    with pytest.raises(NotFoundError, match="there is no such folder"):
        read(odd.folder.with_name("nosuch"))
    with pytest.raises(NotFoundError, match="whence build"):
        read(odd.folder, out=str(odd.folder.with_name("nosuch")))
    assert options_of(odd.folder).columns == tuple(COLUMNS)
    assert source_rows.plan(odd.folder, startingOffsets="earliest", endingOffsets="latest")[0]


def test_the_page_on_spark_has_every_column_and_every_option():
    page = (ROOT / "docs" / "spark.md").read_text()
    columns, options = (page.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in ("Columns", "Options"))
    told = re.findall(r"^\| `(\w+)` \| `([\w<>,]+)` \|", columns, re.MULTILINE)
    assert told == [*TYPES.items()]
    assert re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE) == [*source_options.NAMES]
