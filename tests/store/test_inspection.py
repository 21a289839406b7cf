"""What ``whence inspect`` tells of a file is what lies in it, and no file makes it fall over."""

import json
import os
import random
import shutil
import struct
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import whence
from tests.disks import UnflushedDisk
from tests.golden import ALL, INDEX_FILES, few_fast
from tests.store_maker import make_store, message
from whence.errors import CorruptError, NotFoundError, StoreError, UnsupportedError, UsageError, WhenceError
from whence.files.mapped_file import MappedFile
from whence.formats.field_values import value_hash
from whence.formats.rocketmq.checkpoint import Checkpoint, encode_checkpoint
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY, FILLER, ExtUnit, encode_ext_unit
from whence.formats.rocketmq.index_file import ITEM, IndexHeader, decode_items
from whence.formats.rocketmq.message import encode_blank
from whence.formats.rocketmq.timer import (
    TIMER_UNIT,
    WHEEL_SLOT,
    TimerCheckpoint,
    encode_timer_checkpoint,
    encode_timer_log,
)
from whence.formats.time_blocks import TIME_BLOCK
from whence.store.damage import DamageKind
from whence.store.field_claim import FieldClaim
from whence.store.inspection import Kind, inspect_file, kind_of_bytes, kind_of_path
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar

FOLDERS = {
    "commitlog": Kind.COMMIT_LOG,
    "consumequeue": Kind.CONSUME_QUEUE,
    "index": Kind.INDEX_FILE,
    "config": Kind.CONFIG,
    "checkpoint": Kind.CHECKPOINT,
    "abort": Kind.ABORT,
    "lock": Kind.LOCK,
}


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


# Kinds


@pytest.mark.parametrize("name", ALL)
def test_every_file_of_a_store_is_known_by_its_path(golden, name):
    store = golden(name).store
    for path in files_of(store):
        assert kind_of_path(path) is FOLDERS[path.relative_to(store).parts[0]]


@pytest.mark.parametrize("name", ALL)
def test_file_that_was_copied_away_is_known_by_its_bytes(golden, name):
    store = golden(name).store
    for path in files_of(store):
        with MappedFile(path) as file:
            if any(file.data):  # a file that was made ahead of need could be anything
                assert kind_of_bytes(file) is kind_of_path(path), path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("timerwheel", Kind.TIMER_WHEEL),
        ("timerwheel.104857600", Kind.TIMER_WHEEL),
        ("timerlog/" + "0" * 20, Kind.TIMER_LOG),
        ("config/timercheck", Kind.TIMER_CHECKPOINT),
        ("config/timermetrics", Kind.CONFIG),
        ("config/topics.json.bak", Kind.CONFIG),
        ("whence.json", Kind.OWNERSHIP),
        ("sidecar.json", Kind.SIDECAR),
        ("times/" + "0" * 20, Kind.TIME_BLOCKS),
        ("times/readme", None),
        ("consumequeue_ext/T/0/" + "0" * 20, Kind.CONSUME_QUEUE_EXT),
        ("batchconsumequeue/T/0/" + "0" * 20, Kind.BATCH_CONSUME_QUEUE),
        ("commitlog/readme", None),
        ("somewhere/" + "0" * 20, None),
    ],
)
def test_paths_that_golden_stores_lack(path, kind):
    assert kind_of_path(Path("store") / path) is kind


def test_kind_that_is_given_overrules_the_guess(golden, tmp_path):
    source = golden("v5-clean").store / "checkpoint"
    copy = shutil.copy(source, tmp_path / "x")
    assert inspect_file(copy).kind is Kind.CHECKPOINT
    assert inspect_file(copy, kind="timercheck").kind is Kind.TIMER_CHECKPOINT
    with pytest.raises(CorruptError, match=f"{copy} at byte 0"):
        inspect_file(copy, kind="config")


def test_what_is_no_file_of_a_store_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello, world\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, error, says in (
        ("text", NotFoundError, "is like no file of a RocketMQ store; if it is one, say which with --kind"),
        ("empty", NotFoundError, "is like no file of a RocketMQ store"),
        ("pipe", StoreError, "is not a regular file"),
        ("missing", NotFoundError, "there is no such file"),
        (".", UsageError, "is a folder; give one file, for example"),
    ):
        with pytest.raises(error, match=says):
            inspect_file(tmp_path / name)


# Golden files


@pytest.mark.parametrize("name", few_fast(ALL))
def test_commit_log_files_hold_the_golden_messages(golden, name):
    store = golden(name).store
    messages = {message["position"]: message for message in golden(name).messages}
    seen = 0
    for path in sorted((store / "commitlog").iterdir()):
        inspection = inspect_file(path, limit=None)
        for row in inspection.rows:
            expected = messages.get(row["physical_offset"])
            if expected is None:
                continue  # behind a record that fails, where RocketMQ looks no further
            seen += 1
            for ours in ("topic", "size", "queue_offset", "store_timestamp_ms", "born_timestamp_ms"):
                assert row[ours] == expected.get(ours, row[ours])
    assert seen == len(messages)


@pytest.mark.parametrize("name", ["v4-clean", "v53-clean", "v5-clean", "v5-direct", "v5-direct-crc"])
def test_commit_log_file_says_where_it_ends_and_why(golden, name):
    for expected in golden(name).log_files:
        inspection = inspect_file(golden(name).store / "commitlog" / expected["file"])
        assert inspection.facts["records"] == expected["messages"]
        assert inspection.damage == []
        if expected["ends_with"] == "blank":
            words = f"a blank of {expected['blank_size']} bytes fills the rest; the log goes on in the next file"
            assert inspection.facts["ends_because"] == words
            assert inspection.facts["ends_at_byte"] == inspection.size - expected["blank_size"]
        else:
            assert inspection.facts["ends_because"] == "nothing is written behind it"


def test_record_that_fails_is_damage_with_its_byte(golden):
    ((_, position, _, _),) = golden("v5-damaged-body-flip").damage
    path = golden("v5-damaged-body-flip").store / "commitlog" / "00000000000001048576"
    inspection = inspect_file(path)
    (damage,) = inspection.damage
    assert damage.path == str(path)
    assert damage.position < position
    assert "the next whole record begins at byte" in damage.detail


def test_half_record_is_told(golden):
    log = golden("v5-damaged-half-record").store / "commitlog"
    words = [inspect_file(path).facts["ends_because"] for path in sorted(log.iterdir())]
    assert any("may be half written" in text for text in words)


@pytest.mark.parametrize("name", ALL)
def test_index_files_say_what_their_headers_say(golden, name):
    for expected in golden(name).headers:
        path = golden(name).store / "index" / expected["file"]
        inspection = inspect_file(path, limit=None)
        facts = inspection.facts
        assert facts["begin_timestamp_ms"] == expected["begin_timestamp"]
        assert facts["end_timestamp_ms"] == expected["end_timestamp"]
        assert facts["begin_physical_offset"] == expected["begin_physical_offset"]
        assert facts["end_physical_offset"] == expected["end_physical_offset"]
        assert facts["slots_in_use"] == facts["slots_counted"] == expected["hash_slot_count"]
        assert facts["items"] == len(inspection.rows) == expected["index_count"] - 1
        assert (facts["slot_capacity"], facts["item_capacity"]) == (
            golden(name).slot_capacity,
            golden(name).item_capacity,
        )
        data = path.read_bytes()
        for row in inspection.rows:
            (item,) = decode_items(data[row["position"] : row["position"] + ITEM.itemsize])
            assert tuple(item.item()) == tuple(
                row[field] for field in ("key_hash", "physical_offset", "time_diff_s", "previous_item")
            )
        lengths = Counter(row["slot"] for row in inspection.rows)
        longest = facts["longest_chains"]
        assert [chain["length"] for chain in longest] == sorted(lengths.values(), reverse=True)[: len(longest)]
        assert all(lengths[chain["slot"]] == chain["length"] for chain in longest)
        assert inspection.damage == []


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_index_files_that_stand_alone_are_understood(case):
    inspection = inspect_file(case.path, slots=case.settings["slots"], items=case.settings["items"])
    assert inspection.facts["items"] == sum(accepted for *_, accepted in case.puts)


@pytest.mark.parametrize("name", ["v4-clean", "v5-clean", "v5-direct", "v5-recovered-a"])
def test_queue_files_hold_the_golden_entries(golden, name):
    entries: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for path in sorted((golden(name).store / "consumequeue").rglob("0*")):
        if path.is_file():
            inspection = inspect_file(path, limit=None)
            assert inspection.damage == []
            queue = entries.setdefault((inspection.facts["topic"], inspection.facts["queue"]), [])
            queue += [(row["queue_offset"], row["physical_offset"]) for row in inspection.rows]
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for entry in golden(name).entries:
        queue = expected.setdefault((entry["topic"], entry["queue_id"]), [])
        queue.append((entry["queue_offset"], entry["physical_offset"]))
    assert {queue: rows for queue, rows in entries.items() if rows} == expected


@pytest.mark.parametrize("name", ALL)
def test_checkpoints_say_what_they_noted(golden, name):
    facts = inspect_file(golden(name).store / "checkpoint").facts
    expected = golden(name).checkpoint
    assert facts["log_timestamp_ms"] == expected["physicMsgTimestamp"]
    assert facts["queue_timestamp_ms"] == expected["logicsMsgTimestamp"]
    assert facts["index_timestamp_ms"] == expected["indexMsgTimestamp"]


@pytest.mark.parametrize("name", ALL)
def test_every_golden_file_is_shown_as_plain_data(golden, name):
    for path in files_of(golden(name).store):
        shown = inspect_file(path).to_dict()
        assert json.loads(json.dumps(shown)) == shown
        assert shown["path"] == str(path)
        assert len(shown["rows"]) <= 20


def test_config_shows_a_row_for_each_entry(golden):
    inspection = inspect_file(golden("v5-clean").store / "config" / "topics.json", limit=None)
    assert "TopicTest" in [row["name"] for row in inspection.rows]
    assert inspection.facts["topicConfigTable"] == len(inspection.rows)


def test_what_whence_keeps_is_told_as_such(tmp_path):
    with whence.create(tmp_path / "store", file_size=65536, slots=7, items=4, disk=UnflushedDisk()) as store:
        for _ in range(3):
            store.append("T", b"body", keys=["a", "b"])
    inspection = inspect_file(tmp_path / "store" / "whence.json")
    assert "What whence keeps" in inspection.words
    facts = inspection.facts
    assert (facts["file_size"], facts["dialect"], facts["log_folders"], facts["writer"]) == (
        65536,
        "5.5",
        "commitlog",
        0,
    )
    index_names = sorted(path.name for path in (tmp_path / "store" / "index").iterdir())
    assert [row["older_index_file"] for row in inspection.rows] + [facts["newest_index_name"]] == index_names
    assert facts["flushed_queues"] == facts["flushed_index"] > facts["last_record_offset"] > 0


FIELD = FieldClaim(
    sql="get_json_object(cast(body as string), '$.city')",
    session_zone="Europe/Paris",
    ansi=True,
    spark="4.0.1",
    slots=97,
    items=400,
    indexed=((0, 65000),),
    last_record_offset=65000,
    last_record=b"\x02" * 48,
    index_names=("20250101120000000",),
    newest_header=IndexHeader(6, 5, 4, 3, 2, 7),
)
SIDECAR = Sidecar(
    dialect=Dialect.V5_3,
    slots=97,
    items=400,
    queue_file_size=2000,
    indexed=((0, 65536), (131072, 200000)),
    last_record_offset=199000,
    last_record=b"\x01\xff" * 24,
    index_names=tuple(f"202601011200000{number:02d}" for number in range(25)),
    newest_header=IndexHeader(1_700_000_000_000, 1_700_000_001_000, 190000, 199000, 8, 12),
    other_topics=("a/b",),
    fields={"city": FIELD},
    marks=((100, b"\x02" * 48),),
    growing=True,
)


def test_what_a_sidecar_claims_is_told(tmp_path):
    SIDECAR.write(tmp_path, UnflushedDisk())
    inspection = inspect_file(tmp_path / "sidecar.json")
    assert "by which one sees that it is the same log" in inspection.words
    assert inspection.facts == {
        "dialect": "5.3",
        "slot_capacity": 97,
        "item_capacity": 400,
        "queue_file_size": 2000,
        "index_and_queues_are_in": "the sidecar",
        "index_files": 25,
        "last_record_offset": 199000,
        "last_record_head": "01ff" * 24,
        "other_topics": "a/b",
        "marks": 1,
        "is_growing": True,
        "indexed": [{"from_offset": 0, "to_offset": 65536}, {"from_offset": 131072, "to_offset": 200000}],
        "newest_index": [asdict(SIDECAR.newest_header)],
        "fields": [
            {
                "name": "city",
                "indexed_to": 65000,
                "index_files": 1,
                "session_zone": "Europe/Paris",
                "ansi": True,
                "spark": "4.0.1",
                "sql": "get_json_object(cast(body as string), '$.city')",
            }
        ],
    }
    assert [row["index_file"] for row in inspection.rows] == list(SIDECAR.index_names[:20])
    assert inspection.next_start == 20
    assert json.loads(json.dumps(inspection.to_dict())) == inspection.to_dict()


def test_a_sidecar_that_has_nothing_yet_says_so(tmp_path):
    Sidecar(Dialect.V5_5, 97, 400, 2000, in_place=True).write(tmp_path, UnflushedDisk())
    inspection = inspect_file(tmp_path / "sidecar.json")
    facts = inspection.facts
    assert (facts["indexed"], facts["last_record_offset"], facts["index_files"]) == ([], None, 0)
    assert facts["index_and_queues_are_in"] == "the store"
    assert inspection.rows == []


def test_a_sidecar_that_is_cut_anywhere_or_newer_is_refused_with_its_name(tmp_path):
    SIDECAR.write(tmp_path, UnflushedDisk())
    path = tmp_path / "sidecar.json"
    data = path.read_bytes()
    for size in range(len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptError, match=str(path)):
            inspect_file(path)
    path.write_bytes(data.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(UnsupportedError, match=f"{path}: version 2 of kind 'rocketmq', where this whence knows 1"):
        inspect_file(path)


def values_file(folder: Path, data: bytes) -> Path:
    path = folder / "fields/city/values/20260101120000000"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_values_of_a_field_are_told_item_by_item(tmp_path):
    hashes = b"".join(value_hash("T", city) for city in ("Paris", "Rome", "Oslo"))
    inspection = inspect_file(values_file(tmp_path, bytes(16) + hashes), start=2)
    assert (inspection.kind, inspection.facts, inspection.damage) == (Kind.FIELD_VALUES, {"items": 3}, [])
    assert inspection.rows == [
        {"item": 2, "position": 32, "value_hash": hashes[16:32].hex()},
        {"item": 3, "position": 48, "value_hash": hashes[32:].hex()},
    ]


@pytest.mark.parametrize(
    ("data", "position"), [(bytes(16) + b"x" * 15, 16), (b"x" * 32, 0), (b"", 0), (b"\0" * 15 + b"\1", 0)]
)
def test_values_that_cannot_be_right_are_told(tmp_path, data, position):
    inspection = inspect_file(values_file(tmp_path, data))
    assert [(damage.kind, damage.position) for damage in inspection.damage] == [(DamageKind.BAD_VALUES, position)]


BLOCKS = np.array([(0, 5, 9), (65536, 3, 3), (200_000, -7, 2**62)], TIME_BLOCK)


def times_file(folder: Path, data: bytes) -> Path:
    path = folder / "times" / f"{2**20:020d}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_time_blocks_show_what_each_entry_says(tmp_path):
    path = times_file(tmp_path, BLOCKS.tobytes())
    inspection = inspect_file(path)
    assert inspection.facts == {
        "begin_offset": 2**20,
        "entries": 3,
        "smallest_timestamp_ms": -7,
        "largest_timestamp_ms": 2**62,
    }
    names = ("number", "position", "physical_offset", "block", "smallest_timestamp_ms", "largest_timestamp_ms")
    assert [tuple(row[name] for name in names) for row in inspection.rows] == [
        (0, 0, 2**20, 0, 5, 9),
        (1, 65536, 2**20 + 65536, 1, 3, 3),
        (2, 200_000, 2**20 + 200_000, 3, -7, 2**62),
    ]
    assert inspection.damage == []
    assert inspect_file(path, start=1, limit=1).next_start == 2
    elsewhere = Path(shutil.copy(path, tmp_path / "x"))
    assert [row["physical_offset"] for row in inspect_file(elsewhere, kind="times").rows] == [None] * 3


@pytest.mark.parametrize(
    ("entries", "damage"),
    [
        ([], []),
        ([(0, 5, 9), (65535, 5, 9)], [(20, "entry 1 is of position 65535, in no later block")]),
        ([(65536, 5, 9), (0, 5, 9), (70000, 5, 9)], [(20, "entry 1 is of position 0, in no later block")]),
        ([(-1, 5, 9), (0, 5, 9)], [(0, "entry 0 is of position -1")]),
        ([(0, 9, 5)], [(0, "entry 0 has smallest time 9, which is later than its largest, 5")]),
        ([(0, 9, 5)] * 30, [(20 * number, f"entry {number}") for number in range(10)]),
    ],
)
def test_entries_of_time_blocks_that_cannot_be_are_damage(tmp_path, entries, damage):
    found = inspect_file(times_file(tmp_path, np.array(entries, TIME_BLOCK).tobytes())).damage
    assert [(each.position, each.kind) for each in found] == [(position, "bad_times") for position, _ in damage]
    for each, (_, detail) in zip(found, damage, strict=True):
        assert each.detail.startswith(detail)


def test_time_blocks_that_are_cut_anywhere_show_the_whole_entries(tmp_path):
    data = BLOCKS.tobytes()
    everything = inspect_file(times_file(tmp_path, data)).rows
    for size in range(len(data)):
        inspection = inspect_file(times_file(tmp_path, data[:size]))
        assert inspection.rows == everything[: size // 20]
        cut = [(size // 20 * 20, f"the last entry has {size % 20} of 20 bytes")] if size % 20 else []
        assert [(damage.position, damage.detail) for damage in inspection.damage] == cut


def test_abort_names_its_process(golden):
    inspection = inspect_file(golden("v5-crashed-a").store / "abort")
    assert inspection.facts["process"].isdigit()
    assert "crashed" in inspection.words


# Rows


@pytest.mark.parametrize("path", ["commitlog/00000000000000065536", "index/20261116004210875",
                                  "consumequeue/TopicTest/0/00000000000000000000", "config/topics.json"])  # fmt: skip
def test_rows_can_be_read_page_by_page(golden, path):
    file = golden("v5-clean").store / path
    everything = inspect_file(file, limit=None)
    assert everything.next_start is None
    rows, start = [], None
    while True:
        page = inspect_file(file, start=start, limit=7)
        assert len(page.rows) <= 7
        rows += page.rows
        start = page.next_start
        if start is None:
            break
    assert rows == everything.rows
    assert inspect_file(file, start=10**12).rows == []


def test_start_between_two_records_goes_on_with_the_next(golden):
    file = golden("v5-clean").store / "commitlog" / "00000000000000000000"
    assert inspect_file(file, start=1, limit=1).rows[0]["position"] == 256


# Files that golden stores lack


def test_queue_file_with_fillers_and_ext_addresses(tmp_path):
    path = tmp_path / "consumequeue" / "T" / "3" / f"{200:020d}"
    path.parent.mkdir(parents=True)
    entries = np.array([(1000, 100, 5), (1100, 100, -(2**63) + 40)], ENTRY)
    path.write_bytes(FILLER * 2 + entries.tobytes() + bytes(40))
    inspection = inspect_file(path)
    assert inspection.facts["fillers"] == 2
    assert inspection.facts["entries"] == 4
    assert [row["queue_offset"] for row in inspection.rows] == [10, 11, 12, 13]
    assert inspection.rows[0]["note"].startswith("filler")
    assert inspection.rows[3]["note"] == "see byte 40 of consumequeue_ext"


def test_queue_file_that_falls_or_goes_on_behind_its_end_is_damaged(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(np.array([(500, 9, 0), (400, 9, 0), (0, 0, 0), (700, 9, 0)], ENTRY).tobytes())
    inspection = inspect_file(path, kind="consumequeue")
    assert [(damage.position, damage.kind) for damage in inspection.damage] == [(20, "bad_queue"), (40, "bad_queue")]


def test_batch_queue(tmp_path):
    path = tmp_path / "batchconsumequeue" / "T" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    entries = np.zeros(5, BATCH_ENTRY)
    entries[0] = (0, 400, 0, 1_700_000_000_000, 0, 10, -1, 0)
    entries[1] = (400, 300, 0, 1_700_000_000_001, 10, 5, -1, 0)
    path.write_bytes(entries.tobytes())
    inspection = inspect_file(path)
    assert inspection.facts["messages"] == 15
    assert [row["base_offset"] for row in inspection.rows] == [0, 10]
    with MappedFile(path) as file:
        assert kind_of_bytes(file) is Kind.BATCH_CONSUME_QUEUE


def test_queue_ext(tmp_path):
    path = tmp_path / "consumequeue_ext" / "T" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    units = [ExtUnit(7, 1_700_000_000_000, bytes([number]) * number) for number in range(5)]
    data = b"".join(map(encode_ext_unit, units))
    path.write_bytes(data + b"\xff\xff" + bytes(100))
    inspection = inspect_file(path, limit=2)
    assert inspection.facts["units"] == 5
    assert inspection.facts["ends_at_byte"] == len(data)
    assert [row["bitmap"] for row in inspection.rows] == ["", "01"]
    assert inspection.next_start == 41
    assert [row["bitmap"] for row in inspect_file(path, start=41).rows] == ["0202", "030303", "04040404"]
    path.write_bytes(data + struct.pack(">h", 5))
    assert [(damage.position, damage.kind) for damage in inspect_file(path).damage] == [(len(data), "bad_queue")]


def test_timer_files(tmp_path):
    units = np.zeros(2, TIMER_UNIT)
    units[0] = (52, -1, 1, 1_700_000_000_000, 5000, 100, 300, 7, 0)
    units[1] = (52, 0, 5, 1_700_000_001_000, 4000, 400, 300, 7, 0)
    log = tmp_path / "timerlog" / ("0" * 20)
    log.parent.mkdir()
    log.write_bytes(encode_timer_log(units, 100) + bytes(84))
    inspection = inspect_file(log)
    assert inspection.facts["units"] == 2
    assert [row["due_timestamp_ms"] for row in inspection.rows] == [1_700_000_005_000] * 2
    assert [row["magic"] for row in inspection.rows] == ["set", "set|deletes"]

    wheel = tmp_path / "timerwheel"
    slots = np.zeros(100, WHEEL_SLOT)
    slots[5] = (1_700_000_005, 0, 52, 2, 0)
    wheel.write_bytes(slots.tobytes())
    inspection = inspect_file(wheel)
    assert inspection.facts == {"slot_capacity": 100, "slots_in_use": 1, "units": 2}
    assert inspection.rows == [
        {"number": 5, "position": 160, "time": 1_700_000_005, "first_position": 0, "last_position": 52,
         "unit_count": 2, "magic": 0}
    ]  # fmt: skip
    with MappedFile(wheel) as file:
        assert kind_of_bytes(file) is Kind.TIMER_WHEEL

    check = tmp_path / "timercheck"
    check.write_bytes(encode_timer_checkpoint(TimerCheckpoint(read_timestamp_ms=1_700_000_000_000)))
    assert inspect_file(check).facts["read_timestamp_ms"] == 1_700_000_000_000


def test_new_index_file_is_empty_and_not_damaged(tmp_path):
    made = make_store(tmp_path / "store", [message(keys="a")])
    (path,) = made.index_files
    path.write_bytes(bytes(path.stat().st_size))
    inspection = inspect_file(path)
    assert inspection.damage == []
    assert "Nothing was put into this one yet" in inspection.words


def test_index_file_takes_its_counts_from_a_neighbour(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{n}", at=n) for n in range(60)])
    first, *_, last = made.index_files
    last.write_bytes(bytes(40) + bytes(last.stat().st_size - 40))
    assert inspect_file(last).facts["capacities_from"] == f"its neighbour {first.name}"


def test_index_file_whose_counts_make_no_sense_is_damage(tmp_path):
    path = tmp_path / "index" / "20260101120000000"
    path.parent.mkdir()
    path.write_bytes(random.Random(1).randbytes(4000))
    (damage,) = inspect_file(path).damage
    assert "--slots" in damage.detail
    with pytest.raises(UsageError, match="has 4000 bytes"):
        inspect_file(path, slots=10, items=20)


def test_wrong_links_of_an_index_file_are_told_with_their_byte(golden, tmp_path):
    path = Path(shutil.copy(golden("v5-clean").store / "index" / "20261116004210875", tmp_path))
    data = bytearray(path.read_bytes())
    row = inspect_file(path, kind="index", start=300, limit=1).rows[0]
    data[row["position"] + 16 : row["position"] + 20] = struct.pack(">i", 399)
    data[40:44] = struct.pack(">i", 10**6)
    path.write_bytes(data)
    damage = inspect_file(path, kind="index", slots=97, items=400).damage
    assert [found.position for found in damage] == [row["position"] + 16, 40]


def test_log_file_that_ends_in_a_cut_record_is_not_called_damaged(tmp_path):
    made = make_store(tmp_path / "store", [message(keys="a"), message(keys="b")])
    (path,) = made.log_files
    data = bytearray(path.read_bytes())
    data[made.end_offset - 10 : made.end_offset] = bytes(10)
    data[made.offsets[1] + 84] ^= 1
    path.write_bytes(data)
    inspection = inspect_file(path)
    assert inspection.damage == []
    assert inspection.facts["ends_at_byte"] == made.offsets[1]
    assert "usual where a log ends after a crash" in inspection.facts["ends_because"]


def test_log_file_that_is_a_blank_alone(tmp_path):
    path = tmp_path / "commitlog" / ("0" * 20)
    path.parent.mkdir()
    path.write_bytes(encode_blank(4096) + bytes(4088))
    inspection = inspect_file(path)
    assert inspection.facts["records"] == 0
    assert inspection.facts["ends_because"].startswith("a blank of 4096 bytes")


def test_checkpoint_that_is_cut_is_an_error_with_file_and_byte(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(encode_checkpoint(Checkpoint())[:47])
    with pytest.raises(WhenceError, match=f"{path} at byte 47"):
        inspect_file(path)


# Hostile bytes

EDITS = [b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("size", [0, 1, 7, 39, 40, 91, 4096, 5000])
def test_any_bytes_give_an_inspection_or_a_whence_error(tmp_path, kind, size):
    source = random.Random(f"{kind} {size}")
    for number, data in enumerate((bytes(size), source.randbytes(size), b"\xff" * size, b"{" * size)):
        path = tmp_path / f"x{number}"
        path.write_bytes(data)
        try:
            json.dumps(inspect_file(path, kind=kind).to_dict())
        except WhenceError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("path", ["commitlog/00000000000000720896", "index/20261116004238024", "config/topics.json",
                                  "consumequeue/TopicTest/3/00000000000000002000", "checkpoint"])  # fmt: skip
def test_mutated_files_give_an_inspection_or_a_whence_error(golden, tmp_path, path):
    data = (golden("v5-clean").store / path).read_bytes()
    copy = tmp_path / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    source = random.Random(path)
    for _ in range(60):
        mutated = bytearray(data)
        for _ in range(source.randrange(1, 8)):
            at = source.randrange(min(len(mutated), 3000))
            mutated[at : at + source.choice([1, 4])] = source.choice(
                [b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"]
            )
        copy.write_bytes(mutated[: source.choice([len(mutated), source.randrange(len(mutated))])])
        try:
            json.dumps(inspect_file(copy).to_dict())
        except WhenceError as error:
            assert str(copy) in str(error)


def test_file_of_nothing_but_false_starts_ends_in_bounded_time(tmp_path):
    path = tmp_path / "commitlog" / ("0" * 20)
    path.parent.mkdir()
    path.write_bytes(struct.pack(">ii", 2_000_000, -626843481) * 250_000)
    inspection = inspect_file(path)
    assert inspection.facts["records"] == 0
