"""The scan kernel, held against RocketMQ's own CommitLogs, and against its twin on any bytes."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import ALL, CLEAN, DIRECT, RECOVERED, GoldenStore, few_fast
from tests.kernels.scan_twin import Scan, assert_alike, judge, scan_by_kernel
from tests.reference import (
    SCHEDULE_TOPIC,
    Record,
    crc_property,
    encode_blank,
    encode_record,
    i32,
    index_texts,
    text_hash,
)
from tests.strategies import log_files, property_blobs
from whence.errors import UsageError
from whence.kernels.picked import scan_records
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Kind, Status, scan_stretch


def log_files_of(golden: GoldenStore) -> Iterator[tuple[bytes, int]]:
    for path in sorted((golden.store / "commitlog").iterdir()):
        yield path.read_bytes(), int(path.name)


def whole_log(golden: GoldenStore) -> Iterator[Scan]:
    """The scan of each file of the log, up to the file where it ends."""
    for data, base_offset in log_files_of(golden):
        scan = scan_by_kernel(data, base_offset, 0, len(data), check_crc=True, tags=golden.dialect == "5.5")
        yield scan
        if scan.status != Status.BLANK:
            return


@pytest.mark.parametrize("name", few_fast(ALL))
def test_scan_finds_every_message_that_rocketmq_reads(golden: Callable[[str], GoldenStore], name: str):
    found = [message for scan in whole_log(golden(name)) for message in scan.messages]
    damaged_from = golden(name).records[-1].physical_offset + 1
    expected = [message for message in golden(name).messages if message["position"] < damaged_from]
    assert len(found) == len(expected)
    for message, answer in zip(found, expected, strict=True):
        properties = answer["properties"]
        assert message["physical_offset"] == answer["physical_offset"] == answer["position"]
        assert message["size"] == answer["size"]
        assert message["store_timestamp_ms"] == answer["store_timestamp"]
        assert message["queue"] == answer["queue_id"]
        assert message["queue_offset"] == answer["queue_offset"]
        assert message["sys_flag"] == answer["sys_flag"]
        assert message["topic"] == answer["topic"]
        assert message["keys"] == properties.get("KEYS", "")
        assert message["tags"] == properties.get("TAGS", "")
        assert message["unique_id"] == properties.get("UNIQ_KEY", "")
        assert message["delay_level"] == properties.get("DELAY", "")


@pytest.mark.parametrize("name", few_fast(ALL))
def test_scan_ends_each_file_where_rocketmq_does(golden: Callable[[str], GoldenStore], name: str):
    files = list(log_files_of(golden(name)))
    for scan, answer, (data, base_offset) in zip(
        whole_log(golden(name)), golden(name).log_files, files, strict=False
    ):
        if answer["ends_with"] == "blank":
            assert (scan.status, scan.detail, scan.position) == (Status.BLANK, answer["blank_size"], len(data))
        elif "damaged" not in name:
            assert (scan.status, base_offset + scan.position) == (Status.ZERO, answer["end_offset"])


@pytest.mark.parametrize("name", few_fast(CLEAN + DIRECT + RECOVERED))
def test_tags_code_is_that_of_the_queue_entry(golden: Callable[[str], GoldenStore], name: str):
    scanned = {message["physical_offset"]: message for scan in whole_log(golden(name)) for message in scan.messages}
    entries = [entry for entry in golden(name).entries if entry["topic"] != SCHEDULE_TOPIC]
    assert len(entries) > 200
    for entry in entries:
        message = scanned[entry["physical_offset"]]
        assert (message["tags_code"], message["size"]) == (entry["tags_code"], entry["size"])
        assert (message["topic"], message["queue"]) == (entry["topic"], entry["queue_id"])
        assert message["queue_offset"] == entry["queue_offset"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_items_are_those_that_the_broker_indexes_in_its_order(golden: Callable[[str], GoldenStore], name: str):
    found = [
        (item["key_hash"], item["physical_offset"], item["store_timestamp_ms"])
        for scan in whole_log(golden(name))
        for item in scan.items
    ]
    assert found == [
        (text_hash(text), record.physical_offset, record.store_timestamp_ms)
        for record in golden(name).records
        for text in index_texts(record, golden(name).dialect)
    ]


@pytest.mark.parametrize(("name", "status"), [("v5-damaged-body-flip", Status.BAD_CRC)])
def test_damage_in_a_body_ends_a_checked_scan_only(golden: Callable[[str], GoldenStore], name: str, status: Status):
    (path, position, _, _) = golden(name).damage[0]
    data = (golden(name).store / path).read_bytes()
    base_offset = int(Path(path).name)
    checked = assert_alike(data, base_offset, check_crc=True)
    unchecked = assert_alike(data, base_offset, check_crc=False)
    assert checked.status == status
    assert checked.position < position
    assert checked.messages == unchecked.messages[: len(checked.messages)]
    assert len(unchecked.messages) > len(checked.messages)


# Cases by hand: one record whose bytes are changed, and what the scan says of it.

BASE_OFFSET = 1 << 40
RECORD = Record(topic="TopicTest", physical_offset=BASE_OFFSET, stored_body=b"body", properties_data=b"KEYS\x01k\x02")
GOOD = encode_record(RECORD)


def patched(position: int, new: bytes, data: bytes = GOOD) -> bytes:
    return data[:position] + new + data[position + len(new) :]


BODY_SIZE_AT, TOPIC_SIZE_AT = 84, 88 + 4
PROPERTIES_SIZE_AT = TOPIC_SIZE_AT + 1 + len("TopicTest")
ENDINGS = [
    (b"", Status.END, 0),
    (bytes(7), Status.TRUNCATED, 8),
    (bytes(8), Status.ZERO, 0),
    (i32(0) + i32(1), Status.BAD_MAGIC, 1),
    (i32(1) + i32(0), Status.BAD_MAGIC, 0),
    (encode_blank(8), Status.BLANK, 8),
    (encode_blank(100), Status.BLANK, 100),
    (encode_blank(100)[:99], Status.TRUNCATED, 100),
    (patched(0, i32(7), encode_blank(8)), Status.BAD_SIZE, 7),
    (patched(0, i32(-1), encode_blank(8)), Status.BAD_SIZE, -1),
    (GOOD[:-1], Status.TRUNCATED, len(GOOD)),
    (GOOD[:20], Status.TRUNCATED, len(GOOD)),
    (patched(0, i32(2**31 - 1)), Status.TRUNCATED, 2**31 - 1),
    (patched(0, i32(90)), Status.BAD_SIZE, 90),
    (patched(0, i32(-1)), Status.BAD_SIZE, -1),
    (patched(0, i32(-(2**31))), Status.BAD_SIZE, -(2**31)),
    (patched(0, i32(91)), Status.BAD_LENGTH, 4),
    (patched(0, i32(len(GOOD) - 1)), Status.BAD_LENGTH, 7),
    (patched(39, b"\x30", patched(0, i32(len(GOOD)))), Status.BAD_SIZE, len(GOOD)),
    (patched(BODY_SIZE_AT, i32(-1)), Status.BAD_LENGTH, -1),
    (patched(BODY_SIZE_AT, i32(2**31 - 1)), Status.BAD_LENGTH, 2**31 - 1),
    (patched(TOPIC_SIZE_AT, b"\x80"), Status.BAD_LENGTH, -128),
    (patched(TOPIC_SIZE_AT, b"\x7f"), Status.BAD_LENGTH, 127),
    (patched(PROPERTIES_SIZE_AT, b"\xff\xff"), Status.BAD_LENGTH, -1),
    (patched(PROPERTIES_SIZE_AT, b"\x00\x08"), Status.BAD_LENGTH, 8),
    (patched(PROPERTIES_SIZE_AT, b"\x00\x06"), Status.BAD_SUM, len(GOOD) - 1),
    (encode_record(replace(RECORD, physical_offset=BASE_OFFSET + 1)), Status.BAD_OFFSET, BASE_OFFSET + 1),
    (patched(8, i32(0)), Status.BAD_CRC, int.from_bytes(GOOD[8:12], "big")),
]


@pytest.mark.parametrize(("data", "status", "detail"), ENDINGS)
def test_scan_says_why_it_ends(data: bytes, status: Status, detail: int):
    scan = assert_alike(data, BASE_OFFSET, check_crc=True)
    assert (scan.status, scan.detail) == (status, detail)
    assert scan.position == (detail if status == Status.BLANK else 0)
    assert not scan.messages


@pytest.mark.parametrize("ending", [ending for ending, status, _ in ENDINGS if status < Status.BAD_MAGIC])
def test_what_comes_before_the_end_is_taken(ending: bytes):
    second = encode_record(replace(RECORD, physical_offset=BASE_OFFSET + len(GOOD), properties_data=b""))
    scan = assert_alike(GOOD + second + ending, BASE_OFFSET, check_crc=True)
    assert [message["size"] for message in scan.messages] == [len(GOOD), len(second)]


PROPERTIES = [
    # bytes, then keys, tags and unique id that count
    (b"KEYS\x01a\x02TAGS\x01b\x02UNIQ_KEY\x01c\x02", "a", "b", "c"),
    (b"UNIQ_KEY\x01c\x02TAGS\x01b\x02KEYS\x01a", "a", "b", "c"),
    (b"KEYS\x01a\x02KEYS\x01b\x02", "b", "", ""),
    (b"KEYS\x01a\x02KEYS\x01\x02", "a", "", ""),
    (b"KEYS\x01a\x02KEYS\x02", "a", "", ""),
    (b"KEYS\x01\x01\x02", "\x01", "", ""),
    (b"\x01KEYS\x01a\x02", "", "", ""),
    (b"\x02\x02KEYS\x01a\x02\x02", "a", "", ""),
    (b"KEYS", "", "", ""),
    (b"KEYS\x01", "", "", ""),
    (b"keys\x01a\x02", "", "", ""),
    (b"KEYSS\x01a\x02XKEYS\x01a\x02", "", "", ""),
    (b"UNIQ_KEY\x02\x01c\x02UNIQ_KEYS\x01c\x02UNIQ_KEY", "", "", ""),
    (b"UNIQ_KEY\x01\x02UNIQ_KEY\x01", "", "", ""),
    (b"KEYS\x01" + b"k" * 32761, "k" * 32761, "", ""),
    (
        b"WAIT\x01true\x02" * 20 + b"KEYS\x01" + b"k" * 63 + b" " + b"k" * 64 + b"\x02",
        "k" * 63 + " " + "k" * 64,
        "",
        "",
    ),
    ("KEYS\x01schlüssel 键 🚀\x02TAGS\x01日本\x02UNIQ_KEY\x01é\x02".encode(), "schlüssel 键 🚀", "日本", "é"),
    (b"KEYS\x01\xed\xa0\x80 \xff\xf0\x9f\x02TAGS\x01\xc0\x80", "\ufffd \ufffd\ufffd", "\ufffd\ufffd", ""),
]


@pytest.mark.parametrize(("properties_data", "keys", "tags", "unique_id"), PROPERTIES)
def test_properties_are_read_as_rocketmq_reads_them(properties_data: bytes, keys: str, tags: str, unique_id: str):
    data = encode_record(replace(RECORD, properties_data=properties_data))
    (message,) = assert_alike(data, BASE_OFFSET, check_crc=True).messages
    assert (message["keys"], message["tags"], message["unique_id"]) == (keys, tags, unique_id)


@pytest.mark.parametrize("size", [*range(140), 255, 256, 32767])
def test_texts_of_any_size_are_hashed_whole(size: int):
    """Also where 64 bytes are compared, 32 hashed and 8 loaded at once, and the record is the last of the data."""
    text = bytes(ord("a") + i % 26 for i in range(size))
    for properties_data in (
        b"KEYS\x01" + text,
        b"UNIQ_KEY\x01" + text + b"\x02",
        text + b"\x02TAGS\x01" + text[:100],
    ):
        version = 1 if size <= 127 else 2
        record = replace(RECORD, topic=text.decode(), version=version, properties_data=properties_data[:32767])
        assert_alike(encode_record(record), BASE_OFFSET, check_crc=True)


def test_a_rollback_record_has_no_items():
    properties_data = b"KEYS\x01a b\x02UNIQ_KEY\x01c\x02TAGS\x01d\x02"
    kinds = {}
    for bits in (0x0, 0x4, 0x8, 0xC):
        data = encode_record(replace(RECORD, sys_flag=bits, properties_data=properties_data))
        scan = assert_alike(data, BASE_OFFSET, check_crc=True)
        kinds[bits] = [item["kind"] for item in scan.items]
        assert scan.messages[0]["unique_id"] == "c"
    indexed = [Kind.UNIQUE_ID, Kind.KEY, Kind.KEY, Kind.TAGS]
    assert kinds == {0x0: indexed, 0x4: indexed, 0x8: indexed, 0xC: []}


def test_tags_are_items_only_when_asked_for():
    data = encode_record(replace(RECORD, properties_data=b"KEYS\x01a\x02TAGS\x01d\x02"))
    assert [item["key"] for item in assert_alike(data, BASE_OFFSET, check_crc=True, tags=False).items] == ["a"]
    assert [item["key"] for item in assert_alike(data, BASE_OFFSET, check_crc=True, tags=True).items] == ["a", "d"]


INNER = [  # properties, whether one of them tells of an inner batch or of light queues
    (b"INNER_NUM\x015\x02", True),
    (b"KEYS\x01a\x02INNER_MULTI_DISPATCH\x01%LMQ%a", True),
    (b"INNER_\x02KEYS\x01a\x02", True),  # it is looked at more closely by those who want to know
    (b"INNER\x01a\x02", False),
    (b"INNER", False),
    (b"XINNER_NUM\x015\x02", False),
    (b"KEYS\x01INNER_NUM\x02", False),
    (b"INSTANCE_ID\x01a\x02", False),
    (b"", False),
]


@pytest.mark.parametrize(("properties_data", "has_inner"), INNER)
def test_inner_batches_and_light_queues_are_marked(properties_data: bytes, has_inner: bool):
    data = encode_record(replace(RECORD, properties_data=properties_data)) + b"ER_NUM\x01"
    scan = assert_alike(data, BASE_OFFSET, check_crc=True)
    assert scan.messages[0]["has_inner"] == has_inner


def test_record_crc_covers_topic_and_properties():
    data = encode_record(replace(RECORD, properties_data=RECORD.properties_data + bytes(20)))
    data = data[:-20] + crc_property(data[:-20])
    for front in (b"", encode_record(replace(RECORD, physical_offset=BASE_OFFSET - len(GOOD)))):
        base_offset = BASE_OFFSET - len(front)
        assert len(assert_alike(front + data, base_offset, check_crc=True).messages) == 1 + bool(front)
        for position in (TOPIC_SIZE_AT + 2, PROPERTIES_SIZE_AT + 3, len(data) - 3):
            flipped = patched(position, bytes([data[position] ^ 1]), data)
            assert assert_alike(front + flipped, base_offset, check_crc=True).status == Status.BAD_CRC
            assert assert_alike(front + flipped, base_offset, check_crc=False).status == Status.END


def test_a_record_leads_to_one_with_the_same_topic_before_it():
    """Topics of equal hashes share a place, where the one that was met last stands."""
    data, starts = b"", []
    topics = ("Aa", "Bb", "Aa", "Aa", "BB", "Aa", "Bb", "Ab", "Aa")
    for topic in topics:
        starts.append(len(data))
        data += encode_record(replace(RECORD, topic=topic, physical_offset=BASE_OFFSET + len(data)))
    messages, items = np.zeros(9, SCANNED), np.zeros(ITEMS_MAX, ITEMS)
    scan_stretch(
        np.frombuffer(data, np.uint8),
        BASE_OFFSET,
        0,
        len(data),
        check_crc=True,
        tags=False,
        messages=messages,
        items=items,
    )
    led_to = np.array(starts) - messages["topic_before"]
    assert [starts.index(start) for start in led_to] == [0, 1, 0, 0, 4, 5, 1, 7, 5]


@pytest.mark.slow
def test_scan_goes_on_where_there_was_no_room():
    """With rows for one message and items for one that is all keys, each call takes one."""
    most_keys = b"KEYS\x01" + b"k " * 16381
    data = b""
    for properties_data in (most_keys, most_keys, b"KEYS\x01a b\x02", b"", most_keys):
        record = replace(RECORD, physical_offset=BASE_OFFSET + len(data), properties_data=properties_data)
        data += encode_record(record)
    whole = assert_alike(data, BASE_OFFSET, check_crc=True)
    assert len(whole.messages) == 5
    assert scan_by_kernel(data, BASE_OFFSET, 0, len(data), check_crc=True, tags=True, rows=1) == whole

    messages, items = np.zeros(9, SCANNED), np.zeros(ITEMS_MAX, ITEMS)
    array = np.frombuffer(data, np.uint8)
    room = {"messages": messages, "items": items}
    result = scan_stretch(array, BASE_OFFSET, 0, len(data), check_crc=False, tags=False, **room)
    assert (result.message_count, result.item_count, result.status) == (1, 16381, Status.FULL)
    assert result.next_position == messages["size"][0]


def test_wrong_arguments_are_refused_before_the_kernel_runs():
    data, messages, items = np.zeros(100, np.uint8), np.zeros(1, SCANNED), np.zeros(ITEMS_MAX, ITEMS)

    def scan(data=data, position=0, end=100, messages=messages, items=items):
        return scan_stretch(data, 0, position, end, check_crc=True, tags=True, messages=messages, items=items)

    assert scan().status == Status.ZERO
    for wrong in (
        {"position": -1},
        {"position": 101},
        {"end": 101},
        {"position": 60, "end": 59},
        {"data": data.view(np.int8)},
        {"data": data[::2], "end": 50},
        {"data": data.reshape(10, 10), "end": 10},
        {"messages": messages[:0]},
        {"messages": items},
        {"items": items[1:]},
        {"items": np.zeros(2 * ITEMS_MAX, ITEMS)[::2]},
    ):
        with pytest.raises(UsageError):
            scan(**wrong)


@pytest.mark.slow
@given(log_files(blobs=property_blobs()), st.booleans(), st.booleans())
def test_kernel_and_twin_find_the_same(log_file: tuple[bytes, int, list[Record]], check_crc: bool, tags: bool):
    data, base_offset, placed = log_file
    scan = assert_alike(data, base_offset, check_crc=check_crc, tags=tags)
    assert [message["physical_offset"] for message in scan.messages] == [record.physical_offset for record in placed]


@given(st.binary(max_size=400), st.integers(0, 2**62))
def test_any_bytes_are_scanned_as_the_twin_does(data: bytes, base_offset: int):
    assert_alike(data, base_offset, check_crc=True)


@pytest.mark.slow
@given(log_files(file_size=2048, blobs=property_blobs()), st.data())
@settings(max_examples=50)
def test_a_stretch_that_is_cut_anywhere_never_gives_a_wrong_row(
    log_file: tuple[bytes, int, list[Record]], drawn: st.DataObject
):
    data, base_offset, _ = log_file
    whole = assert_alike(data, base_offset, check_crc=True)
    end = drawn.draw(st.integers(0, len(data)))
    cut = assert_alike(data[:end], base_offset, check_crc=True)
    inside = scan_by_kernel(data, base_offset, 0, end, check_crc=True, tags=True)
    assert cut == inside
    assert cut.messages == whole.messages[: len(cut.messages)]
    assert cut.position <= end


def mutations(golden: Callable[[str], GoldenStore], count: int, seed: int) -> Iterator[tuple[bytes, int]]:
    """Stretches of a few records from golden logs, each with one to three wounds."""
    chance = random.Random(seed)
    logs = [
        log for name in ("v5-clean", "v5-direct", "v5-direct-crc", "v4-clean") for log in log_files_of(golden(name))
    ]
    starts = [
        [
            message["physical_offset"] - base
            for message in scan_by_kernel(data, base, 0, len(data), check_crc=False, tags=False, rows=1000).messages
        ]
        for data, base in logs
    ]
    for _ in range(count):
        number = chance.randrange(len(logs))
        data, base_offset = logs[number]
        first = chance.randrange(len(starts[number]))
        start = starts[number][first]
        last = min(first + chance.randrange(1, 6), len(starts[number]) - 1)
        stretch = bytearray(data[start : starts[number][last] + chance.choice([0, 0, 8, 50])])
        for _ in range(chance.randrange(1, 4)):
            wound(stretch, chance)
        yield bytes(stretch), base_offset + start


def wound(stretch: bytearray, chance: random.Random) -> None:
    if not stretch:
        return
    at = chance.randrange(len(stretch))
    kind = chance.randrange(7)
    if kind == 0:
        stretch[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        stretch[at] = chance.choice(b"\x00\x01\x02 K\x7f\x80\xff")
    elif kind == 2:
        del stretch[at:]
    elif kind == 3:
        del stretch[at : at + chance.randrange(1, 9)]
    elif kind == 4:
        stretch[at:at] = stretch[chance.randrange(len(stretch)) :][: chance.randrange(1, 40)]
    elif kind == 5:
        at = chance.choice([0, 4, 36, 84, 108, at])  # size, magic, sys_flag, body size with IPv4 and IPv6 hosts
        stretch[at : at + 4] = i32(chance.choice([0, 1, -1, 90, 91, 92, 115, 2**31 - 1, -(2**31), len(stretch)]))
    else:
        other = chance.randrange(len(stretch))
        stretch[at : at + 8], stretch[other : other + 8] = stretch[other : other + 8], stretch[at : at + 8]


@pytest.mark.slow
def test_mutated_stretches_are_scanned_as_the_twin_does(golden: Callable[[str], GoldenStore]):
    seen = set()
    for number, (data, base_offset) in enumerate(mutations(golden, 3000, seed=20261116)):
        seen.add(assert_alike(data, base_offset, check_crc=number % 2 == 0).status)
    assert seen >= set(Status) - {Status.FULL, Status.BLANK}


def test_a_record_alone_is_whole_if_a_scan_takes_it(golden: Callable[[str], GoldenStore]):
    row = np.zeros(1, SCANNED)
    taken = 0
    for data, base_offset in mutations(golden, 3000, seed=20261118):
        array = np.frombuffer(data, np.uint8)
        is_whole = bool(data) and judge(data, base_offset, check_crc=True)[0] == Status.END
        assert scan_records(array, base_offset, np.zeros(1, np.int64), row) == is_whole
        assert scan_records(array, base_offset + 1, np.zeros(1, np.int64), row) == 0
        taken += is_whole
    assert 500 < taken < 2500


@pytest.mark.long(part=1, count=200_000)
def test_many_mutated_stretches_are_scanned_as_the_twin_does(golden: Callable[[str], GoldenStore], long_count: int):
    for number, (data, base_offset) in enumerate(mutations(golden, long_count, seed=1)):
        assert_alike(data, base_offset, check_crc=number % 2 == 0)


BETWEEN_GUARDS = """
import ctypes, mmap, sys
import numpy as np
from whence.kernels.picked import scan_records
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Status, scan_stretch

PAGE = mmap.PAGESIZE
stretches = np.load(sys.argv[1], allow_pickle=False)
sizes, data = stretches["sizes"], stretches["data"].tobytes()
pages = -(-int(sizes.max()) // PAGE)
memory = mmap.mmap(-1, (pages + 2) * PAGE)
whole = np.frombuffer(memory, np.uint8)
protect = ctypes.CDLL(None, use_errno=True).mprotect
for page in (0, pages + 1):
    assert protect(ctypes.c_void_p(whole.ctypes.data + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0
inner = whole[PAGE:-PAGE]
messages, items = np.zeros(50, SCANNED), np.zeros(ITEMS_MAX, ITEMS)
at = taken = 0
for size in sizes.tolist():
    for stretch in (inner[:size], inner[len(inner) - size:]):
        stretch[:] = np.frombuffer(data[at : at + size], np.uint8)
        base_offset = int.from_bytes(data[at + 28 : at + 36], "big", signed=True)
        for check_crc in (False, True):
            position = 0
            while True:
                result = scan_stretch(stretch, base_offset, position, size, check_crc=check_crc, tags=True,
                                      messages=messages, items=items)
                position = result.next_position
                taken += result.message_count
                if result.status != Status.FULL:
                    break
        for position in (-1, 0, 1, size - 91, size - 8, size - 1, size, 2**40):
            scan_records(stretch, base_offset, np.array([position]), messages)
    at += size
print(taken)
"""


def test_nothing_outside_the_data_is_read(golden: Callable[[str], GoldenStore], tmp_path: Path):
    """Stretches lie between two pages that may not be read, close to the one and then to the other."""
    stretches = [data for data, _ in mutations(golden, 2000, seed=7)]
    for data, base_offset in log_files_of(golden("v5-direct-crc")):
        scan = scan_by_kernel(data, base_offset, 0, len(data), check_crc=True, tags=False)
        for message in scan.messages[:20]:
            start = message["physical_offset"] - base_offset
            stretches.append(data[start : start + message["size"]])
    path = tmp_path / "stretches.npz"
    np.savez(path, sizes=[len(data) for data in stretches], data=np.frombuffer(b"".join(stretches), np.uint8))
    run = subprocess.run([sys.executable, "-c", BETWEEN_GUARDS, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, f"status {run.returncode}: {run.stderr}"
    assert int(run.stdout) > 2000
