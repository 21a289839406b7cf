"""The twins of reference.py against what RocketMQ itself wrote and answered.

Where a test of whence disagrees with a twin, this file says that the twin is right.
"""

import hashlib
import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given

from tests import strategies
from tests.golden import ALL, ANSWERED, CLEAN, CRASHED, DAMAGED, DIRECT, INDEX_FILES, RECOVERED
from tests.reference import (
    ROLLBACK,
    BrokenChain,
    IndexFileTwin,
    Record,
    build_index,
    build_queues,
    crc32,
    crc32_by_bits,
    crc_property,
    decode_java_utf8,
    decode_properties,
    decode_record,
    encode_blank,
    encode_properties,
    encode_queue_files,
    encode_record,
    find,
    first_at_or_after,
    fold_hash,
    java_hash,
    key_hash,
    last_at_or_before,
    link_items,
    offset_by_time,
    query_offset,
    read_index,
    read_log,
    recovery_start,
    scan_log_file,
    text_hash,
    utf16_units,
    walk,
)

T = 1_700_000_000_000
EVER = 2**63 - 1

pytestmark = pytest.mark.slow  # the twins do not change, and reading all golden data takes ten seconds


# Text


HASHES = [  # topic, key, UTF-16 units of topic#key, hashCode
    ("TopicTest", "MessageKey", 20, 638347386),
    ("TopicTest", "OrderID188", 20, -1231271670),
    ("TopicTest", "订单-2024-0001", 22, 309183062),
    ("TopicTest", "🚀launch", 18, 426388312),
    ("", "a", 2, 1182),
    ("", "", 1, 35),
    ("T", "Aa", 4, 2538191),
    ("T", "BB", 4, 2538191),
    ("%RETRY%grp", "é", 12, 995969801),
    ("TopicTest", "UaAahTbH", 18, -(2**31)),
    ("", "SCgR9MYG", 9, -(2**31)),
]


@pytest.mark.parametrize(("topic", "key", "unit_count", "hash_code"), HASHES)
def test_key_hashes_of_the_worked_example(topic, key, unit_count, hash_code):
    assert len(utf16_units(f"{topic}#{key}")) == unit_count
    assert java_hash(f"{topic}#{key}") == hash_code
    assert key_hash(topic, key) == (0 if hash_code == -(2**31) else abs(hash_code))


def test_the_one_hash_without_absolute_value_folds_to_zero():
    assert java_hash("polygenelubricants") == -(2**31)
    assert fold_hash(-(2**31)) == 0


JAVA_UTF8 = [  # bytes, what new String(bytes, UTF_8) gives (JDK 17)
    ("61 c3a9 e8aea2 f09f9a80", "aé订🚀"),
    ("80 61", "\ufffda"),
    ("c0 80", "\ufffd\ufffd"),
    ("c3", "\ufffd"),
    ("c3 61", "\ufffda"),
    ("e0 80 80", "\ufffd\ufffd\ufffd"),
    ("e0 a0", "\ufffd"),
    ("e8 ae 61", "\ufffda"),
    ("eda080", "\ufffd"),  # Python's "replace" gives three
    ("eda0bd edba80", "\ufffd\ufffd"),
    ("eda0", "\ufffd"),
    ("eda061", "\ufffda"),
    ("f0 80 80 80", "\ufffd\ufffd\ufffd\ufffd"),
    ("f0 90 80", "\ufffd"),
    ("f0 90 80 61", "\ufffda"),
    ("f0 90 61", "\ufffda"),
    ("f4 90 80 80", "\ufffd\ufffd\ufffd\ufffd"),
    ("f5 80", "\ufffd\ufffd"),
    ("ff", "\ufffd"),
]


@pytest.mark.parametrize(("data", "text"), JAVA_UTF8)
def test_malformed_utf8_is_replaced_as_java_does(data, text):
    assert decode_java_utf8(bytes.fromhex(data)) == text


PROPERTIES = [
    (b"", {}),
    (b"K\x01v\x02", {"K": "v"}),
    (b"K\x01v", {"K": "v"}),
    (b"K\x01v\x02T\x01w", {"K": "v", "T": "w"}),
    (b"\x01v\x02K\x01\x02\x02K\x02", {}),
    (b"K\x01a\x01b\x02", {"K": "a\x01b"}),
    (b"K\x01a\x02K\x01b\x02", {"K": "b"}),
]


@pytest.mark.parametrize(("data", "properties"), PROPERTIES)
def test_properties_without_name_or_value_disappear(data, properties):
    assert decode_properties(data) == properties


# Records

RECORD = bytes.fromhex(
    """00000083 daa320a7 3610a686 00000001 00000000
    0000000000000005 0000000000000400 00000000
    0000018bcfe56800 c0a8000a0000cfda
    0000018bcfe5687b 0a00000700002a9f
    00000000 0000000000000000
    00000005 68656c6c6f
    09 546f70696354657374
    001a 4b455953014f72646572494431383802 544147530154616741 02"""
)


def test_the_record_of_the_worked_example():
    record = decode_record(RECORD)
    assert record == Record(
        topic="TopicTest",
        queue=1,
        queue_offset=5,
        physical_offset=1024,
        born_timestamp_ms=T,
        born_host=("192.168.0.10", 53210),
        store_timestamp_ms=T + 123,
        store_host=("10.0.0.7", 10911),
        stored_body=b"hello",
        properties_data=encode_properties({"KEYS": "OrderID188", "TAGS": "TagA"}),
        size=131,
        body_crc=907060870,
    )
    assert encode_record(record) == RECORD
    assert record.offset_id == "0A00000700002A9F0000000000000400"
    entry = build_queues([record])["TopicTest", 1][5]
    assert entry.to_bytes().hex(" ", 4) == "00000000 00000400 00000083 00000000 0027a807"


def test_the_record_of_the_worked_example_with_a_checksum_of_itself():
    head = bytearray(RECORD)
    head[0:4] = (151).to_bytes(4, "big")
    properties_at = len(RECORD) - 26
    head[properties_at - 2 : properties_at] = (46).to_bytes(2, "big")
    tail = crc_property(bytes(head))
    assert tail == b"__CRC32#\x013066240151\x02"
    assert decode_record(bytes(head) + tail).properties["__CRC32#"] == "3066240151"


def test_crc32_bit_by_bit_is_zlibs_without_the_highest_bit():
    assert crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    for data in (b"", b"a", b"123456789", bytes(range(256))):
        assert crc32_by_bits(data) == crc32(data)


def host(text):
    """RocketMQ prints a host as address|port, an IPv6 address without the :: of the short form."""
    address, port = text.split("|")
    return str(ipaddress.ip_address(address)), int(port)


@pytest.mark.parametrize("name", ALL)
def test_every_record_is_decoded_as_rocketmq_decodes_it(golden, name):
    expected = golden(name).messages
    records = read_log(golden(name).store, check_crc=False)[: len(expected)]
    assert len(records) == len(expected)
    for record, message in zip(records, expected, strict=True):
        assert record.physical_offset == message["physical_offset"] == message["position"]
        assert record.size == message["size"]
        assert record.topic == message["topic"]
        assert record.queue == message["queue_id"]
        assert record.queue_offset == message["queue_offset"]
        assert record.sys_flag == message["sys_flag"]
        assert record.flag == message["flag"]
        assert record.body_crc == message["body_crc"]
        assert record.born_timestamp_ms == message["born_timestamp"]
        assert record.born_host == host(message["born_host"])
        assert record.store_timestamp_ms == message["store_timestamp"]
        assert record.store_host == host(message["store_host"])
        assert record.reconsume_times == message["reconsume_times"]
        assert record.prepared_transaction_offset == message["prepared_transaction_offset"]
        assert record.offset_id == message["offset_message_id"]
        assert len(record.stored_body) == message["body_size"]
        assert hashlib.sha256(record.stored_body).hexdigest() == message["body_sha256"]
        assert record.properties == message["properties"]


@pytest.mark.parametrize("name", DIRECT)
def test_every_record_is_encoded_to_the_same_bytes(golden, name):
    for path in sorted((golden(name).store / "commitlog").iterdir()):
        data = path.read_bytes()
        records, end, _ = scan_log_file(data)
        assert b"".join(map(encode_record, records)) == data[:end]


def test_the_checksum_property_fits_every_record(golden):
    for record in read_log(golden("v5-direct-crc").store):
        data = encode_record(record)
        assert crc_property(data[:-20]) == data[-20:]


@pytest.mark.parametrize("name", ALL)
def test_log_files_end_as_rocketmq_says(golden, name):
    folder = golden(name).store / "commitlog"
    for file in golden(name).log_files:
        data = (folder / file["file"]).read_bytes()
        records, end, ending = scan_log_file(data)
        assert len(records) == file["messages"]
        assert int(file["file"]) + end == file["end_offset"]
        assert (ending == "blank") == (file["ends_with"] == "blank")
        if ending == "blank":
            assert data[end : end + 8] == encode_blank(file["blank_size"])[:8]


@pytest.mark.parametrize("name", ANSWERED)
def test_the_log_ends_at_the_first_record_that_fails(golden, name):
    start, end = golden(name).log_range
    records = golden(name).records
    assert records[0].physical_offset == start
    assert records[-1].physical_offset + records[-1].size == end


def test_without_the_checksum_a_flipped_body_byte_goes_unnoticed(golden):
    store = golden("v5-damaged-body-flip").store
    assert len(read_log(store, check_crc=False)) > len(read_log(store))


# Index files


def example(slot_capacity):
    """The worked example: hashes 16, 29, 29, 8, 16, 16. A text of one character has its number as hash."""
    file = IndexFileTwin(slot_capacity, 8)
    for number, (hash_number, late_ms) in enumerate(
        zip([16, 29, 29, 8, 16, 16], [0, 500, 1000, 2500, 2999, 4000], strict=True)
    ):
        assert text_hash(chr(hash_number)) == hash_number
        assert file.put(chr(hash_number), 200 * number, T + late_ms)
    return file


EXAMPLE_ITEMS = [
    "00000010 00000000 00000000 00000000 00000000",
    "0000001d 00000000 000000c8 00000000 00000001",
    "0000001d 00000000 00000190 00000001 00000002",
    "00000008 00000000 00000258 00000002 00000000",
    "00000010 00000000 00000320 00000002 00000003",
    "00000010 00000000 000003e8 00000004 00000005",
]


def test_the_index_file_of_the_worked_example_with_13_slots():
    file = example(13)
    data = file.to_bytes()
    assert len(data) == 252
    header = "0000018bcfe56800 0000018bcfe577a0 0000000000000000 00000000000003e8 00000002 00000007"
    assert data[:40] == bytes.fromhex(header)
    assert file.slots == {3: 6, 8: 4}
    assert data[52:56] == (6).to_bytes(4, "big")
    assert data[72:76] == (4).to_bytes(4, "big")
    assert data[92:112] == bytes(20)
    assert [data[at : at + 20].hex(" ", 4) for at in range(112, 232, 20)] == EXAMPLE_ITEMS
    assert data[232:] == bytes(20)


@pytest.mark.parametrize("slot_capacity", [10, 5_000_000])
def test_the_index_file_of_the_worked_example_without_shared_slots(slot_capacity):
    file = example(slot_capacity)
    assert file.slots == {16 % slot_capacity: 6, 8: 4, 29 % slot_capacity: 3}
    assert [item.previous_item for item in file.items.values()] == [0, 0, 2, 0, 1, 5]
    assert file.slot_count == 3


@pytest.mark.parametrize("slot_capacity", [13, 10])
def test_the_questions_of_the_worked_example(slot_capacity):
    file = example(slot_capacity)

    def select(hash_number, limit=64):
        found: list[int] = []
        file.select(chr(hash_number), limit, 0, EVER, found)
        return found

    assert select(16) == walk(file, 16) == [1000, 800, 0]
    assert select(29) == walk(file, 29) == [400, 200]
    assert select(29, limit=1) == [400]
    assert select(3) == walk(file, 3) == []
    assert file.put("x", 1200, T)
    assert not file.put("x", 1400, T)


def test_linking_and_walking_the_sequence_of_the_worked_example():
    slots = [0] * 13
    assert link_items([16, 29, 29, 8, 16, 16], 1, slots) == [0, 1, 2, 0, 3, 5]
    assert (slots[3], slots[8]) == (6, 4)


def test_a_cycle_is_noticed():
    file = example(13)
    file.items[1].previous_item = 6
    with pytest.raises(BrokenChain):
        walk(file, 29)


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_puts_make_the_same_file_as_rocketmqs_class(case):
    file = IndexFileTwin(case.settings["slots"], case.settings["items"])
    file.begin_timestamp_ms = file.end_timestamp_ms = case.settings["initial_end_timestamp"]
    file.begin_physical_offset = file.end_physical_offset = case.settings["initial_end_physical_offset"]
    for text, physical_offset, store_timestamp_ms, accepted in case.puts:
        assert file.put(text, physical_offset, store_timestamp_ms) == accepted
    assert file.to_bytes() == case.path.read_bytes()


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_select_answers_as_rocketmqs_class(case):
    file = IndexFileTwin.from_bytes(case.path.read_bytes(), case.settings["slots"], case.settings["items"])
    for text, limit, begin, end, is_time_matched, offsets in case.queries:
        found: list[int] = []
        file.select(text, limit, begin, end, found)
        assert found == offsets
        assert file.is_time_matched(begin, end) == is_time_matched


def index_of(golden_store):
    return read_index(golden_store.store, golden_store.slot_capacity, golden_store.item_capacity)


@pytest.mark.parametrize("name", ALL)
def test_index_headers_are_read_as_rocketmq_reads_them(golden, name):
    for file, header in zip(index_of(golden(name)), golden(name).headers, strict=True):
        assert file.begin_timestamp_ms == header["begin_timestamp"]
        assert file.end_timestamp_ms == header["end_timestamp"]
        assert file.begin_physical_offset == header["begin_physical_offset"]
        assert file.end_physical_offset == header["end_physical_offset"]
        assert file.slot_count == header["hash_slot_count"]
        assert file.next_item == header["index_count"]


@pytest.mark.parametrize("name", ANSWERED)
def test_query_offset_answers_as_rocketmqs_service(golden, name):
    files = index_of(golden(name))
    assert golden(name).queries
    for query in golden(name).queries:
        name_in_text = "T#" + query["key"] if query.get("index_type") == "T" else query["key"]
        text = f"{query['topic']}#{name_in_text}"
        assert query_offset(files, text, query["max"], query["begin"], query["end"]) == query["index_offsets"]


@pytest.mark.parametrize("name", ANSWERED)
def test_query_offset_finds_ids_as_rocketmqs_service(golden, name):
    files = index_of(golden(name))
    for answer in golden(name).ids:
        if answer["unique_key"] is not None:
            text = f"{answer['topic']}#{answer['unique_key']}"
            assert query_offset(files, text, 64, 0, EVER) == answer["index_offsets"]


# Dispatch


@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_dispatch_builds_rocketmqs_index_files_byte_for_byte(golden, name):
    store = golden(name)
    built = build_index(store.records, store.dialect, store.slot_capacity, store.item_capacity)
    paths = sorted((store.store / "index").iterdir())
    for file, path in zip(built, paths, strict=True):
        assert file.to_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", RECOVERED + DAMAGED)
def test_recovery_drops_new_index_files_and_indexes_again_from_the_start_of_a_log_file(golden, name):
    """What lies between the kept files and that start is in no index any more: weak point 12."""
    store, crashed = golden(name), golden(golden(name).base)
    newest_kept_ms = crashed.checkpoint["indexMsgTimestamp"]
    kept = [file for file in index_of(crashed) if file.end_timestamp_ms <= newest_kept_ms]
    log_files = [
        [record for record in store.records if record.physical_offset // store.commit_log_file_size == number]
        for number in range(len(crashed.log_files))
    ]
    start = recovery_start(log_files, store.dialect, crashed.checkpoint)
    again = [record for records in log_files[start:] for record in records]
    built = build_index(again, store.dialect, store.slot_capacity, store.item_capacity, kept)
    paths = sorted((store.store / "index").iterdir())
    for file, path in zip(built, paths, strict=True):
        assert file.to_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", [name for name in ALL if name not in DAMAGED])
def test_dispatch_builds_rocketmqs_queue_files_byte_for_byte(golden, name):
    store = golden(name)
    folder = store.store / "consumequeue"
    queues = build_queues(store.records)
    assert queues.keys() == {(path.parent.name, int(path.name)) for path in folder.glob("*/*")}
    for (topic, queue), entries in queues.items():
        paths = sorted((folder / topic / str(queue)).iterdir())
        for data, path in zip(encode_queue_files(entries, store.queue_file_size), paths, strict=True):
            assert data == path.read_bytes(), path


@pytest.mark.parametrize("name", [name for name in ANSWERED if name != "v5-damaged-half-record"])
def test_dispatch_builds_the_entries_that_rocketmq_serves(golden, name):
    """Of a damaged store too; there the files hold more, for what recovery cuts is not wiped."""
    assert built_entries(golden(name)) == served_entries(golden(name))


def test_half_a_record_keeps_the_entry_of_the_whole_one(golden):
    """The queue has the tag of a message whose tag is lost: recovery does not write an entry again."""
    store = golden("v5-damaged-half-record")
    built, served = built_entries(store), served_entries(store)
    (differing,) = [place for place in served if served[place] != built[place]]
    last, whole = store.records[-1], golden(store.base).records[-1]
    assert last.tags is None
    assert built[differing] == (last.physical_offset, last.size, 0)
    assert served[differing] == (last.physical_offset, last.size, java_hash(whole.tags))


def built_entries(store):
    return {
        (topic, queue, queue_offset): (entry.physical_offset, entry.size, entry.tags_code)
        for (topic, queue), entries in build_queues(store.records).items()
        for queue_offset, entry in entries.items()
    }


def served_entries(store):
    return {
        (entry["topic"], entry["queue_id"], entry["queue_offset"]): (
            entry["physical_offset"],
            entry["size"],
            entry["tags_code"],
        )
        for entry in store.entries
    }


# Answers


@pytest.mark.parametrize("name", [name for name in ANSWERED if not name.startswith("v4")])
def test_offset_by_time_answers_as_rocketmq(golden, name):
    """4.9 is left out: it chooses the file by its modification time, which a copy does not keep."""
    store = golden(name)
    times = {record.physical_offset: record.store_timestamp_ms for record in store.records}
    per_file = store.queue_file_size // 20
    for query in store.offsets_by_time:
        queue_times = [
            times[entry["physical_offset"]]
            for entry in store.entries
            if (entry["topic"], entry["queue_id"]) == (query["topic"], query["queue_id"])
        ]
        files = [queue_times[at : at + per_file] for at in range(0, len(queue_times), per_file)]
        assert offset_by_time(files, query["timestamp"], upper=False) == query["lower"] == query["offset"]
        assert offset_by_time(files, query["timestamp"], upper=True) == query["upper"]
        # As long as times ascend, RocketMQ's search and the exact rule agree.
        assert queue_times == sorted(queue_times)
        assert first_at_or_after(queue_times, query["timestamp"]) == query["lower"]
        assert max(0, last_at_or_before(queue_times, query["timestamp"])) == query["upper"]


@pytest.mark.parametrize(
    ("timestamp_ms", "lower", "upper"), [(50, 0, 0), (100, 0, 2), (200, 3, 2), (300, 3, 4), (400, 5, 4)]
)
def test_the_offsets_by_time_of_the_worked_example(timestamp_ms, lower, upper):
    times = [100, 100, 100, 300, 300]
    for files in ([times], [times[:2], times[2:]]):
        assert offset_by_time(files, timestamp_ms, upper=False) == lower
        assert offset_by_time(files, timestamp_ms, upper=True) == upper


@pytest.mark.parametrize("name", CLEAN)
def test_a_brute_force_find_agrees_with_what_a_client_was_given(golden, name):
    """The client was given less only where RocketMQ's cap or a window in whole seconds cut it short."""
    store = golden(name)
    files = index_of(store)
    compared = 0
    for query in store.live_queries:
        given = sorted(set(query.get("client_offsets", [])), reverse=True)
        messages = find(store.records, key=query["key"], topic=query["topic"])
        found = [message.physical_offset for message in messages]
        assert set(given) <= set(found)
        text = f"{query['topic']}#{query['key']}"
        limit = min(query["max"], 64)
        is_all_time = (query["begin"], query["end"]) == (0, EVER)
        if is_all_time and len(query_offset(files, text, limit, 0, EVER)) < limit:
            assert given == found
            compared += 1
    assert compared > 100


def test_find_by_the_exact_rule():
    def record(number, **properties):
        return Record(
            physical_offset=number,
            store_timestamp_ms=T + number,
            properties_data=encode_properties(properties),
        )

    first = record(1, KEYS="a b a", UNIQ_KEY="X1")
    second = record(2, KEYS="b", UNIQ_KEY="X2")
    undone = replace(record(3, KEYS="a", UNIQ_KEY="X3"), sys_flag=ROLLBACK)
    half = replace(record(4, KEYS="a", UNIQ_KEY="X1"), topic="RMQ_SYS_TRANS_HALF_TOPIC")
    log = [first, second, undone, half]

    assert find(log, key="a") == [first]
    assert find(log, key="b") == [second, first]
    assert find(log, key="a b a") == []
    assert find(log, key="X1") == []
    assert find(log, key="a", system_topics=True) == [half, first]
    assert find(log, key="a", topic="RMQ_SYS_TRANS_HALF_TOPIC") == [half]
    assert find(log, unique_id="X1") == [half, first]
    assert find(log, unique_id="X3") == []
    assert find(log, since_ms=T + 2, until_ms=T + 3) == [undone, second]
    assert find(log, key="b", since_ms=T + 2) == [second]
    assert find(log, key="b", until_ms=T + 1) == [first]


# Round trips of the twins themselves, over the strategies that the other tests use


@given(strategies.properties())
def test_properties_come_back_from_their_bytes(properties):
    assert decode_properties(encode_properties(properties)) == properties


@given(strategies.log_files(blobs=strategies.property_blobs()))
def test_records_come_back_from_a_log_file(log_file):
    data, base_offset, written = log_file
    records, end, ending = scan_log_file(data)
    assert [replace(record, size=0, body_crc=0) for record in records] == written
    assert b"".join(map(encode_record, records)) == data[:end]
    assert all(record.physical_offset >= base_offset for record in records)
    assert ending in ("blank", "magic 00000000")
