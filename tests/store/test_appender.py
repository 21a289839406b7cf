"""Appending: records byte for byte as the twin encodes them, every limit, and nothing acknowledged that is lost."""

import errno
import os
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tests.disks import FailingDisk, UnflushedDisk
from tests.reference import Record, encode_blank, encode_properties, encode_record, read_log, scan_log_file
from tests.strategies import HOSTS, HOSTS_V4, I32, KEYS, PROPERTY_TEXTS
from whence.errors import StoreError, UsageError
from whence.files.disk import Disk
from whence.formats.rocketmq.body import BatchItem, compress_body, encode_batch
from whence.formats.rocketmq.host import Host
from whence.formats.rocketmq.sys_flag import Compression
from whence.store.appender import Appender
from whence.store.flusher import Flusher
from whence.store.log_writer import LogWriter
from whence.store.put_result import BatchResult, PutResult, PutStatus
from whence.store.unique_ids import UniqueIds, id_texts

T = 1_700_000_000_000
STORE_HOST = ("10.0.0.7", 10911)
FILE_SIZE = 1 << 16
OK = PutStatus.PUT_OK
ILLEGAL = PutStatus.MESSAGE_ILLEGAL
BATCH_TOPIC = "Batched"


class Store:
    """A log with an appender, in a folder. Its clock goes one millisecond a call, if it is not told otherwise."""

    def __init__(
        self,
        folder: Path,
        *,
        end_offset: int = 0,
        file_size: int = FILE_SIZE,
        disk: Disk | None = None,
        flush: str | None = None,
        store_host: tuple[str, int] = STORE_HOST,
        ends: dict[tuple[str, int], int] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.log = LogWriter([folder / "commitlog"], file_size, end_offset, disk or UnflushedDisk())
        self.flusher = None if flush is None else Flusher(self.log, flush)
        self.asked: list[tuple[str, int]] = []
        self.ends = ends or {}
        clock = count(T)
        settings = {
            "clock": lambda: next(clock),
            "ids": UniqueIds(store_host[0], 1, 2),
            "is_batch_topic": lambda topic: topic == BATCH_TOPIC,
        } | settings
        self.appender = Appender(
            self.log, self._end_of, store_host=Host(*store_host), flusher=self.flusher, **settings
        )
        self.append = self.appender.append
        self.append_batch = self.appender.append_batch

    def _end_of(self, topic: str, queue: int) -> int:
        self.asked.append((topic, queue))
        return self.ends.get((topic, queue), 0)

    def records(self) -> list[Record]:
        return read_log(self.folder)

    def close(self) -> None:
        self.appender.close()
        try:
            if self.flusher is not None:
                self.flusher.close()
        finally:
            self.log.close()


@pytest.fixture
def opened(tmp_path):
    """``opened(...)`` is a Store in ``tmp_path``, closed when the test ends."""
    stores = []

    def open_store(**settings) -> Store:
        stores.append(Store(tmp_path, **settings))
        return stores[-1]

    yield open_store
    for store in stores:
        try:
            store.close()
        except StoreError:
            pass  # a test about failures has looked at it


@pytest.fixture
def store(opened):
    return opened()


def own(result: PutResult) -> str:
    return f"UNIQ_KEY\x01{result.unique_id}\x02"


# One record


def test_a_message_becomes_the_record_that_the_twin_encodes(store):
    result = store.append("orders", b"hello", keys=["a", "b"], tags="paid", queue=3, properties={"x": "y"}, flag=-7)
    expected = Record(
        topic="orders",
        queue=3,
        flag=-7,
        born_timestamp_ms=T,
        born_host=STORE_HOST,
        store_timestamp_ms=T,
        store_host=STORE_HOST,
        stored_body=b"hello",
        properties_data=f"{own(result)}KEYS\x01a b\x02TAGS\x01paid\x02x\x01y\x02".encode(),
    )
    data = encode_record(expected)
    assert (store.folder / "commitlog" / f"{0:020d}").read_bytes() == data.ljust(FILE_SIZE, b"\0")
    assert result == PutResult(OK, 0, 0, result.unique_id, T, len(data), reference.encode_host(STORE_HOST), detail="")
    assert result.offset_id == expected.offset_id
    assert reference.decode_record(data).unique_id == result.unique_id


MESSAGES: list[dict[str, Any]] = [
    {},
    {"body": b""},
    {"properties": {"UNIQ_KEY": "mine"}},
    {"keys": ("é", "订单", "🚀"), "tags": "é"},
    {"keys": [], "tags": ""},
    {"body": bytearray(b"array")},
    {"body": memoryview(b"view")},
    {"topic": "%RETRY%" + "g" * 200},
    {"topic": "t" * 127},
    {"queue": 2**31 - 1},
    {"born_host": ("2001:db8::1", 2**16 - 1)},
    {"born_host": ("192.168.0.10", 53210), "born_timestamp_ms": 12345},
    {"sys_flag": 0x8, "prepared_transaction_offset": 2**40, "reconsume_times": 3},
    {"sys_flag": 0x4},
    {"sys_flag": 0xC},
    {"sys_flag": 0x1 | 0x300},
    {"sys_flag": 0x30},
    {"flag": -(2**31)},
]


@pytest.mark.parametrize("record_crc", [False, True])
@pytest.mark.parametrize("store_host", [STORE_HOST, ("fe80::1", 10911)])
def test_every_kind_of_message_becomes_the_record_that_the_twin_encodes(opened, store_host, record_crc):
    store = opened(store_host=store_host, record_crc=record_crc)
    data = b""
    ends: dict[tuple[str, int], int] = {}
    for number, message in enumerate(MESSAGES):
        given: dict[str, Any] = {"topic": "T", "body": b"body"} | message
        born_host = given.get("born_host", store_host)
        result = store.append(**given | ({"born_host": Host(*born_host)} if "born_host" in given else {}))
        assert (result.status, result.physical_offset) == (OK, len(data))
        topic, queue = given["topic"], given.get("queue", 0)
        sys_flag = given.get("sys_flag", 0) & ~0x30
        queue_offset = 0
        if sys_flag & 0xC not in (0x4, 0xC):
            queue_offset = ends.get((topic, queue), 0)
            ends[topic, queue] = queue_offset + 1
        properties = dict(given.get("properties", {}))
        properties_data = b"" if "UNIQ_KEY" in properties else own(result).encode()
        if given.get("keys"):
            properties_data += encode_properties({"KEYS": " ".join(given["keys"])})
        if given.get("tags"):
            properties_data += encode_properties({"TAGS": given["tags"]})
        properties_data += encode_properties(properties)
        record = Record(
            topic=topic,
            queue=queue,
            queue_offset=queue_offset,
            physical_offset=len(data),
            flag=given.get("flag", 0),
            sys_flag=sys_flag | 0x10 * (":" in born_host[0]) | 0x20 * (":" in store_host[0]),
            born_timestamp_ms=given.get("born_timestamp_ms", T + number),
            born_host=born_host,
            store_timestamp_ms=T + number,
            store_host=store_host,
            reconsume_times=given.get("reconsume_times", 0),
            prepared_transaction_offset=given.get("prepared_transaction_offset", 0),
            stored_body=bytes(given["body"]),
            properties_data=properties_data,
            version=2 if len(topic) > 127 else 1,
        )
        encoded = encode_record(record)
        if record_crc:
            encoded = encode_record(replace(record, properties_data=properties_data + bytes(20)))[:-20]
            encoded += reference.crc_property(encoded)
        assert (result.queue_offset, result.size) == (queue_offset, len(encoded))
        data += encoded
    assert (store.folder / "commitlog" / f"{0:020d}").read_bytes() == data.ljust(FILE_SIZE, b"\0")


def test_a_record_crc_takes_the_place_of_one_that_came_in(opened):
    store = opened(record_crc=True)
    store.append("T", b"b", properties={"__CRC32#": "1234567890", "UNIQ_KEY": "u"})
    store.append_batch("T", [b"b"], properties={"__CRC32#": "1234567890", "UNIQ_KEY": "u"})
    store.append_batch("T", [b"b"], properties=[{"__CRC32#": "1234567890", "UNIQ_KEY": "u"}])
    items = [BatchItem(0, b"b", b"__CRC32#\x011234567890\x02UNIQ_KEY\x01u\x02"), BatchItem(0, b"b", b"UNIQ_KEY\x01u")]
    store.appender.append_client_batch("T", encode_batch(items))
    for record in store.records():
        data = encode_record(record)
        assert data[-20:] == reference.crc_property(data[:-20])
        assert record.properties_data[:-20] == b"UNIQ_KEY\x01u\x02"
    assert len(store.records()) == 5


def test_queues_go_on_where_they_are_told_to_and_are_asked_for_once(opened):
    store = opened(ends={("T", 1): 41})
    offsets = [store.append("T", b"", queue=queue).queue_offset for queue in (1, 0, 1, 0, 1)]
    assert offsets == [41, 0, 42, 1, 43]
    assert store.append_batch("T", [b"", b""], queue=1).queue_offset == 44
    assert store.append("T", b"", queue=1).queue_offset == 46
    assert store.asked == [("T", 1), ("T", 0)]


def test_prepared_and_rollback_records_take_no_queue_offset(store):
    offsets = [store.append("T", b"", sys_flag=flag).queue_offset for flag in (0, 0x4, 0x8, 0xC, 0)]
    assert offsets == [0, 0, 1, 0, 2]


def test_store_time_and_ids_come_from_the_given_clock(opened):
    times = iter([T + 5, T + 3, T + 3])
    store = opened(clock=lambda: next(times))
    results = [store.append("T", b"") for _ in range(3)]
    assert [result.store_timestamp_ms for result in results] == [T + 5, T + 3, T + 3]
    assert [result.unique_id[-4:] for result in results] == ["0000", "0001", "0002"]
    assert len({result.unique_id for result in results}) == 3


def test_a_log_is_gone_on_with_behind_its_end(opened):
    first = opened()
    end = first.append("T", b"one").size
    first.close()
    second = opened(end_offset=end, ends={("T", 0): 1})
    assert second.append("T", b"two").physical_offset == end
    assert [record.stored_body for record in second.records()] == [b"one", b"two"]


# Limits and statuses


def properties_of_size(size: int) -> dict[str, str]:
    """Properties that take so many bytes, with a UNIQ_KEY among them."""
    return {"UNIQ_KEY": "u", "p": "x" * (size - len("UNIQ_KEY.u.") - len("p.."))}


BODY_MAX = 10_000
EMPTY = 91 + 1 + 11  # a record of topic "T" with UNIQ_KEY = u and nothing else

REFUSED: list[tuple[dict[str, Any], PutStatus, str]] = [
    ({"body": b"x" * (BODY_MAX + 1)}, ILLEGAL, "body takes 10001 bytes; 10000 fit"),
    ({"body": None}, ILLEGAL, "without a body"),
    ({"topic": "t" * 128}, ILLEGAL, "takes 128 bytes; 127 fit"),
    ({"topic": "é" * 64}, ILLEGAL, "takes 128 bytes; 127 fit"),
    ({"topic": "%RETRY%" + "g" * 249}, ILLEGAL, "takes 256 bytes; 255 fit"),
    ({"topic": "%DLQ%" + "g" * 123}, ILLEGAL, "takes 128 bytes; 127 fit"),
    ({"properties": properties_of_size(32_768)}, PutStatus.PROPERTIES_SIZE_EXCEEDED, "32768 bytes; 32767 fit"),
    (
        {"body": b"x" * (BODY_MAX + 1), "properties": properties_of_size(32_768)},
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        "32768 bytes; 32767 fit",
    ),
    ({"properties": {"INNER_NUM": "2"}}, ILLEGAL, "no inner batch"),
    ({"sys_flag": 0x80}, ILLEGAL, "inner batch"),
    ({"topic": BATCH_TOPIC, "sys_flag": 0x80}, ILLEGAL, "inner batch"),
    ({"topic": BATCH_TOPIC, "inner_count": 2}, ILLEGAL, "inner batch"),
]
TAKEN: list[dict[str, Any]] = [
    {"body": b"x" * BODY_MAX},
    {"topic": "t" * 127},
    {"topic": "%RETRY%" + "g" * 248},
    {"properties": properties_of_size(32_767)},
    {"body": b"x" * BODY_MAX, "properties": properties_of_size(32_767)},
]


@pytest.mark.parametrize(("message", "status", "detail"), REFUSED)
def test_what_breaks_a_limit_is_refused_with_rocketmqs_status(opened, message, status, detail):
    store = opened(message_size_max=BODY_MAX, file_size=1 << 20)
    result = store.append(**{"topic": "T", "body": b""} | message)
    assert result.status is status
    assert detail in result.detail
    assert result == PutResult(status, -1, -1, "", detail=result.detail)
    assert result.offset_id == ""
    assert store.log.end_offset == 0
    assert store.append("T", b"").queue_offset == 0, "no queue offset is lost"


@pytest.mark.parametrize("message", TAKEN)
def test_what_just_keeps_the_limits_is_taken(opened, message):
    store = opened(message_size_max=BODY_MAX, file_size=1 << 20)
    result = store.append(**{"topic": "T", "body": b""} | message)
    assert (result.status, result.detail) == (OK, "")
    assert len(store.records()) == 1


def test_a_record_that_fits_into_no_file_is_illegal(opened):
    store = opened(file_size=1000)
    largest = 1000 - 8 - EMPTY
    assert store.append("T", b"x" * largest, properties={"UNIQ_KEY": "u"}).status is OK
    result = store.append("T", b"x" * (largest + 1), properties={"UNIQ_KEY": "u"})
    assert (result.status, result.detail) == (ILLEGAL, "the record takes 993 bytes; a file of the log holds 992")
    result = store.append_batch("T", [b"", b"x" * (largest + 1)], properties={"UNIQ_KEY": "u"})
    assert (result.status, result.detail) == (
        ILLEGAL,
        "message 1 of the batch: the record takes 993 bytes; a file of the log holds 992",
    )


def test_a_record_crc_counts_among_the_properties(opened):
    store = opened(record_crc=True)
    assert store.append("T", b"", properties=properties_of_size(32_748)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert store.append("T", b"", properties=properties_of_size(32_747)).status is OK


WRONG: list[dict[str, Any]] = [
    {"topic": ""},
    {"topic": "a/b"},
    {"topic": ".."},
    {"topic": "a\0b"},
    {"topic": "\ud800"},
    {"topic": 5},
    {"topic": b"T"},
    {"queue": -1},
    {"queue": 2**31},
    {"queue": "0"},
    {"body": "text"},
    {"body": 5},
    {"keys": "one text"},
    {"keys": ["a b"]},
    {"keys": ["a", ""]},
    {"keys": [""]},
    {"keys": ["a\x02"]},
    {"keys": ["\ud800"]},
    {"keys": [b"a"]},
    {"keys": 5},
    {"tags": "a\x02"},
    {"tags": ["a"]},
    {"tags": "\udc00"},
    {"properties": {"a": ""}},
    {"properties": {"": "a"}},
    {"properties": {"a\x01": "a"}},
    {"properties": {"a": "\x02"}},
    {"properties": {"a": 5}},
    {"properties": {5: "a"}},
    {"properties": ["a"]},
    {"properties": {"KEYS": "a"}, "keys": ["b"]},
    {"properties": {"TAGS": "a"}, "tags": "b"},
    {"flag": 2**31},
    {"flag": "0"},
    {"reconsume_times": 2**31},
    {"prepared_transaction_offset": 2**63},
    {"born_timestamp_ms": 2**63},
    {"born_host": Host("localhost", 1)},
    {"properties": {"INNER_MULTI_DISPATCH": "%LMQ%a/b"}},
]


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_call_raises_and_changes_nothing(store, message):
    with pytest.raises(UsageError):
        store.append(**{"topic": "T", "body": b""} | message)
    assert store.log.end_offset == 0
    assert store.append("T", b"").queue_offset == 0, "the lock is free, and no queue offset is lost"


def test_an_unknown_end_of_a_queue_is_an_unknown_error(opened):
    class Gone(dict[Any, Any]):
        def get(self, *_: Any) -> Any:
            raise StoreError("the queue file is gone")

    store = opened()
    store.ends = Gone()
    result = store.append("T", b"")
    assert result.status is PutStatus.UNKNOWN_ERROR
    assert "the queue file is gone" in result.detail


def test_a_store_that_is_closed_or_refuses_says_why(store):
    store.appender.refusal = "the disk is 92 % full"
    for result in (store.append("T", b""), store.append_batch("T", [b""])):
        assert (result.status, result.detail) == (PutStatus.SERVICE_NOT_AVAILABLE, "the disk is 92 % full")
    store.appender.refusal = ""
    assert store.append("T", b"").status is OK
    store.appender.close()
    result = store.append("T", b"")
    assert (result.status, result.detail) == (PutStatus.SERVICE_NOT_AVAILABLE, "the store is closed")


def test_who_waits_too_long_for_others_is_turned_away(opened):
    begun, go = threading.Event(), threading.Event()

    class StuckDisk(UnflushedDisk):
        def pwrite(self, *arguments: Any) -> int:
            begun.set()
            assert go.wait(30)
            return super().pwrite(*arguments)

    store = opened(disk=StuckDisk(), busy_s=0.01)
    thread = threading.Thread(target=store.append, args=("T", b"slow"))
    thread.start()
    assert begun.wait(30)
    time.sleep(0.05)
    for result in (store.append("T", b""), store.append_batch("T", [b""])):
        assert (result.status, result.detail) == (
            PutStatus.OS_PAGE_CACHE_BUSY,
            "another append takes more than 0.01 s",
        )
    go.set()
    thread.join()
    assert store.append("T", b"").queue_offset == 1


@pytest.mark.parametrize("is_batch", [False, True])
def test_an_append_that_is_interrupted_halfway_is_the_last(opened, is_batch):
    class InterruptedDisk(UnflushedDisk):
        def pwrite(self, *arguments: Any) -> int:
            super().pwrite(*arguments)
            raise KeyboardInterrupt

    store = opened(disk=InterruptedDisk())
    with pytest.raises(KeyboardInterrupt):
        store.append_batch("T", [b""]) if is_batch else store.append("T", b"")
    result = store.append("T", b"")
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert result.detail == "an append was interrupted by KeyboardInterrupt; open the store again"


# Batches


def columns(draw: st.DrawFn, length: int) -> dict[str, Any]:
    """Keys, tags and properties for so many messages, each as a column, as one for all, or not at all."""
    keys = draw(st.none() | st.lists(st.lists(KEYS, max_size=3), min_size=length, max_size=length))
    tags = draw(st.none() | PROPERTY_TEXTS | st.lists(st.none() | PROPERTY_TEXTS, min_size=length, max_size=length))
    names = st.sampled_from(["a", "é", "UNIQ_KEY", "WAIT"])
    one = st.dictionaries(names, PROPERTY_TEXTS, max_size=2)
    properties = draw(st.none() | one | st.lists(one, min_size=length, max_size=length))
    return {"keys": keys, "tags": tags, "properties": properties}


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    bodies = draw(st.lists(st.binary(max_size=200), max_size=20))
    return {
        "topic": draw(st.sampled_from(["T", "TopicTest", "%RETRY%" + "g" * 130])),
        "bodies": bodies,
        "queue": draw(st.integers(0, 3)),
        "flag": draw(I32),
        "sys_flag": draw(st.sampled_from([0, 0x1, 0x30])),
        "born_timestamp_ms": draw(st.none() | st.integers(0, 2**41)),
        "born_host": draw(st.none() | HOSTS.map(lambda host: Host(*host))),
        "reconsume_times": draw(I32),
    } | columns(draw, len(bodies))


def one_by_one(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a batch, for ``append``."""
    rest = {name: batch[name] for name in batch.keys() - {"bodies", "keys", "tags", "properties"}}

    def column(name: str) -> list[Any]:
        value = batch[name]
        return value if isinstance(value, list) else [value] * len(batch["bodies"])

    messages = zip(batch["bodies"], column("keys"), column("tags"), column("properties"), strict=True)
    return [
        rest | {"body": body, "keys": keys or (), "tags": tags, "properties": properties}
        for body, keys, tags, properties in messages
    ]


@given(
    several=st.lists(batches(), max_size=3),
    record_crc=st.booleans(),
    store_host=HOSTS_V4 | st.just(("fe80::1", 10911)),
)
def test_a_batch_leaves_the_bytes_of_its_messages_one_by_one(tmp_path_factory, several, record_crc, store_host):
    settings: dict[str, Any] = {"record_crc": record_crc, "store_host": store_host, "clock": lambda: T}
    settings["file_size"] = 1 << 18
    single = Store(tmp_path_factory.mktemp("single"), **settings)
    batched = Store(tmp_path_factory.mktemp("batched"), **settings)
    try:
        for batch in several:
            expected = [single.append(**message) for message in one_by_one(batch)]
            result = batched.append_batch(**batch)
            assert (result.status, result.count, result.detail) == (OK, len(expected), "")
            assert result.physical_offsets.tolist() == [one.physical_offset for one in expected]
            assert result.unique_ids == [one.unique_id for one in expected]
            assert result.offset_ids == [one.offset_id for one in expected]
            if expected:
                assert (result.queue_offset, result.store_timestamp_ms) == (expected[0].queue_offset, T)
        assert single.log.end_offset == batched.log.end_offset
        if several and single.log.end_offset:
            ours, theirs = ((one.folder / "commitlog" / f"{0:020d}").read_bytes() for one in (batched, single))
            assert ours == theirs
    finally:
        single.close()
        batched.close()


def test_a_batch_rolls_as_a_unit(opened):
    store = opened(file_size=1000, clock=lambda: T)
    first = store.append("T", b"x" * 500, properties={"UNIQ_KEY": "u"})
    result = store.append_batch("T", [b"y" * 100] * 2, properties={"UNIQ_KEY": "u"})
    assert first.size + 8 + 2 * (EMPTY + 100) > 1000 > first.size + 8 + EMPTY + 100, "one of the two would fit"
    assert result.physical_offsets.tolist() == [1000, 1000 + EMPTY + 100]
    data = (store.folder / "commitlog" / f"{0:020d}").read_bytes()
    assert data[first.size :] == encode_blank(1000 - first.size)


@pytest.mark.parametrize(("behind", "rolls"), [(7, True), (8, False), (9, False)])
def test_a_batch_rolls_where_no_blank_would_fit_behind_it(opened, behind, rolls):
    store = opened(file_size=1000)
    size = 3 * EMPTY
    store.append("T", b"x" * (1000 - size - behind - EMPTY), properties={"UNIQ_KEY": "u"})
    result = store.append_batch("T", [b""] * 3, properties={"UNIQ_KEY": "u"})
    assert int(result.physical_offsets[0]) == (1000 if rolls else 1000 - size - behind)


def test_a_batch_larger_than_the_largest_message_is_put_in_several_steps(opened):
    store = opened(message_size_max=1000, file_size=4000)
    result = store.append_batch("T", [b"x" * 397] * 7 + [b"y" * 999] + [b"z"], properties={"UNIQ_KEY": "u"})
    assert (result.status, result.count, result.queue_offset) == (OK, 9, 0)
    records = store.records()
    assert [record.physical_offset for record in records] == result.physical_offsets.tolist()
    assert [record.queue_offset for record in records] == list(range(9))
    assert EMPTY + 397 == 500
    times = [record.store_timestamp_ms - result.store_timestamp_ms for record in records]
    assert times == [0, 0, 1, 1, 2, 2, 3, 4, 5], "two records of 500 bytes a step; the large one has one for itself"
    assert result.physical_offsets.tolist() == [0, 500, 1000, 1500, 2000, 2500, 3000, 4000, 4000 + EMPTY + 999]


def test_a_batch_of_which_one_message_is_refused_is_not_put_at_all(opened):
    store = opened(message_size_max=BODY_MAX)
    result = store.append_batch("T", [b"", b"x" * (BODY_MAX + 1), b""])
    assert isinstance(result, BatchResult)
    assert (result.status, result.count, result.queue_offset) == (ILLEGAL, 0, -1)
    assert result.detail == "message 1 of the batch: the body takes 10001 bytes; 10000 fit"
    assert (result.unique_ids, result.offset_ids) == ([], [])
    result = store.append_batch("T", [b"", b""], tags=["", "x" * 32_768])
    assert result.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert "message 1 of the batch" in result.detail
    assert store.log.end_offset == 0


@pytest.mark.parametrize(
    ("batch", "detail"),
    [
        ({"sys_flag": 0x4}, "transaction"),
        ({"sys_flag": 0x8}, "transaction"),
        ({"properties": {"DELAY": "3"}}, "cannot be delayed"),
        ({"properties": [{}, {"DELAY": "1"}]}, "cannot be delayed"),
        ({"properties": {"DELAY": "soon"}}, "not a number"),
        ({"properties": {"INNER_NUM": "2"}}, "no inner batch"),
        ({"topic": "t" * 128}, "127 fit"),
    ],
)
def test_what_no_batch_can_be_is_illegal(store, batch, detail):
    result = store.append_batch(**{"topic": "T", "bodies": [b"", b""]} | batch)
    assert result.status is ILLEGAL
    assert detail in result.detail
    assert store.append_batch("T", [b""], properties={"DELAY": "0"}).status is OK


@pytest.mark.parametrize(
    "batch",
    [
        {"bodies": [b"", "text"]},
        {"bodies": [b"", None]},
        {"bodies": 5},
        {"keys": [["a"]]},
        {"keys": ["ab", "cd"]},
        {"keys": [["a"], "cd"]},
        {"keys": [["a b"], []]},
        {"keys": [[""], ["a b"]]},
        {"keys": [["", "a b"], ["c"]]},
        {"keys": [["a", ""], []]},
        {"keys": [["a\x02b"], []]},
        {"keys": [["a\x02b c"], ["d"]]},
        {"keys": [["a"], [5]]},
        {"keys": [["a"], 5]},
        {"keys": [["\ud800"], []]},
        {"tags": ["a"]},
        {"tags": ["a", 5]},
        {"tags": ["a\x02", ""]},
        {"tags": "a\x02"},
        {"properties": [{}]},
        {"properties": {"a": ""}},
        {"properties": {"KEYS": "a"}, "keys": [["b"], []]},
        {"properties": {"INNER_MULTI_DISPATCH": "%LMQ%a"}},
        {"flag": 2**31},
        {"flag": "one"},
        {"born_timestamp_ms": 2**63},
    ],
)
def test_a_wrong_batch_raises_and_changes_nothing(store, batch):
    with pytest.raises(UsageError):
        store.append_batch(**{"topic": "T", "bodies": [b"x", b"y"]} | batch)
    assert store.log.end_offset == 0
    assert store.append("T", b"").queue_offset == 0


def test_no_messages_are_put_without_a_trace(store):
    result = store.append_batch("T", [], keys=[])
    assert (result.status, result.count, result.unique_ids) == (OK, 0, [])
    assert store.log.end_offset == 0


# Client batches and inner batches

ITEMS = [
    BatchItem(number, b"body" * number, encode_properties({"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"}))
    for number in range(4)
]


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_client_batch_becomes_a_record_for_each_item(opened, record_crc):
    store = opened(ends={("T", 2): 10}, record_crc=record_crc)
    result = store.appender.append_client_batch(
        "T", encode_batch(ITEMS), queue=2, born_timestamp_ms=5, reconsume_times=1, born_host=Host("::1", 9)
    )
    assert (result.status, result.count, result.queue_offset) == (OK, 4, 10)
    assert result.unique_ids == ["u0", "u1", "u2", "u3"]
    records = store.records()
    assert [record.physical_offset for record in records] == result.physical_offsets.tolist()
    assert [record.offset_id for record in records] == result.offset_ids
    for number, (record, item) in enumerate(zip(records, ITEMS, strict=True)):
        assert (record.stored_body, record.flag, record.queue_offset) == (item.body, item.flag, 10 + number)
        assert record.properties_data[: len(item.properties_data)] == item.properties_data
        assert (record.born_timestamp_ms, record.reconsume_times, record.born_host) == (5, 1, ("::1", 9))
        assert len({record.store_timestamp_ms for record in records}) == 1


@pytest.mark.parametrize(
    ("data", "settings", "detail"),
    [
        (b"x" * (BODY_MAX + 1), {}, "body takes 10001 bytes"),
        (b"\0\0\0", {}, "no batch of messages"),
        (encode_batch(ITEMS)[:-1], {}, "no batch of messages"),
        (encode_batch(ITEMS), {"sys_flag": 0x4}, "transaction"),
        (encode_batch(ITEMS), {"properties": {"DELAY": "1"}}, "delayed"),
        (encode_batch([BatchItem(0, b"", b"")] * 400), {}, "fits into no file"),
    ],
)
def test_a_client_batch_that_cannot_be_is_illegal(opened, data, settings, detail):
    store = opened(message_size_max=BODY_MAX, file_size=30_000)
    result = store.appender.append_client_batch("T", data, **settings)
    assert (result.status, result.count) == (ILLEGAL, 0)
    assert detail in result.detail
    assert store.log.end_offset == 0


def test_a_client_batch_is_one_step_however_many_small_messages_it_has(opened):
    store = opened(message_size_max=BODY_MAX, file_size=1 << 18)
    items = [BatchItem(0, b"", b"")] * (BODY_MAX // 22)
    result = store.appender.append_client_batch("T", encode_batch(items))
    assert (result.status, result.count) == (OK, len(items))
    assert result.unique_ids == [""] * len(items)
    assert len({record.store_timestamp_ms for record in store.records()}) == 1
    assert store.log.end_offset > BODY_MAX


def test_an_inner_batch_is_one_record_that_takes_many_queue_offsets(opened):
    store = opened(ends={(BATCH_TOPIC, 0): 100})
    data = encode_batch(ITEMS)
    properties = {"UNIQ_KEY": "u", "INNER_BASE": "7"}
    results = [store.appender.append_inner_batch(BATCH_TOPIC, data, properties=properties) for _ in range(2)]
    zipped = compress_body(data, Compression.ZLIB)
    results.append(store.appender.append_inner_batch(BATCH_TOPIC, zipped, sys_flag=0x301, keys=["k"]))
    results.append(store.append(BATCH_TOPIC, b"single"))
    assert [result.queue_offset for result in results] == [100, 104, 108, 112]
    records = store.records()
    assert [record.queue_offset for record in records] == [100, 104, 108, 112]
    assert [record.sys_flag for record in records] == [0xC0, 0xC0, 0x3C1, 0]
    assert records[1].properties == {"UNIQ_KEY": "u", "INNER_NUM": "4", "INNER_BASE": "104"}
    assert records[2].properties["KEYS"] == "k"
    assert records[0].stored_body == data
    assert records[3].properties.keys() == {"UNIQ_KEY"}


@pytest.mark.parametrize(
    ("topic", "data", "detail"),
    [
        ("T", encode_batch(ITEMS), "no batch queues"),
        (BATCH_TOPIC, b"", "has 1 to 32767 messages, not 0"),
        (BATCH_TOPIC, encode_batch([BatchItem(0, b"", b"")] * 32_768), "not 32768"),
        (BATCH_TOPIC, b"rubbish", "no batch of messages"),
    ],
)
def test_an_inner_batch_that_cannot_be_is_illegal(store, topic, data, detail):
    result = store.appender.append_inner_batch(topic, data)
    assert result.status is ILLEGAL
    assert detail in result.detail


# Light queues


def test_light_queues_get_their_offsets_in_the_record(opened):
    store = opened(ends={("%LMQ%b", 0): 5})

    def put(names: str, topic: str = "T", **more: str) -> Record:
        assert store.append(topic, b"", properties={"INNER_MULTI_DISPATCH": names} | more).status is OK
        return store.records()[-1]

    def offsets(record: Record) -> str | None:
        return record.properties.get("INNER_MULTI_QUEUE_OFFSET")

    assert offsets(put("%LMQ%a,%LMQ%b")) == "0,5"
    assert offsets(put("%LMQ%b,other,%LMQ%a,,")) == "6,,1"
    assert offsets(put("%LMQ%b,%LMQ%b")) == "7,7"
    assert offsets(put("%LMQ%b", INNER_MULTI_QUEUE_OFFSET="77")) == "9"
    assert b"INNER_MULTI_QUEUE_OFFSET\x01\x02" in put("other").properties_data
    assert offsets(put("  ")) is None
    for topic in ("%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"):
        assert offsets(put("%LMQ%a", topic)) is None
    assert [record.queue_offset for record in store.records() if record.topic == "T"] == list(range(6))
    assert offsets(put("%LMQ%a")) == "2"


def test_a_message_for_light_queues_must_be_no_larger_than_the_largest_body(opened):
    store = opened(message_size_max=BODY_MAX)
    light = {"UNIQ_KEY": "u", "INNER_MULTI_DISPATCH": "%LMQ%a"}
    size = store.append("T", b"", properties=light).size
    assert store.append("T", b"x" * (BODY_MAX - size), properties=light).status is OK
    result = store.append("T", b"x" * (BODY_MAX - size + 1), properties=light)
    assert (result.status, "light queues" in result.detail) == (ILLEGAL, True)
    result = store.append("T", b"", properties=light | {"p": "x" * 32_700})
    assert (result.status, "light queues" in result.detail) == (ILLEGAL, True)
    store.append("T", b"", properties=light)
    last = store.records()[-1].properties
    assert last["INNER_MULTI_QUEUE_OFFSET"] == "2", "what was refused took no offset"


def test_there_may_be_a_largest_count_of_light_queues(opened):
    store = opened(light_queues=["%LMQ%a", "%LMQ%b"], light_queue_count_max=3)

    def status(names: str) -> PutStatus:
        return store.append("T", b"", properties={"INNER_MULTI_DISPATCH": names}).status

    assert status("%LMQ%a,%LMQ%c") is OK
    assert status("%LMQ%d") is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert status("%LMQ%c,%LMQ%b,other") is OK


# Many threads


def test_threads_append_whole_records_and_queue_offsets_without_gaps(tmp_path):
    woken = threading.Event()
    store = Store(tmp_path, file_size=1 << 14, flush="sync", clock=lambda: T, on_append=woken.set)
    results: list[tuple[int, PutResult]] = []
    batched: list[tuple[int, BatchResult]] = []

    def work(number: int) -> None:
        for turn in range(40):
            body = bytes([number]) * (turn % 7 * 50)
            if turn % 10 == 9:
                batched.append((number, store.append_batch("T", [body] * 5, queue=number % 3)))
            else:
                results.append((number, store.append("T", body, queue=number % 3, keys=[f"{number}-{turn}"])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert woken.is_set()
    records = store.records()
    assert len(records) == 8 * (36 + 4 * 5)
    for queue in range(3):
        offsets = [record.queue_offset for record in records if record.queue == queue]
        assert offsets == list(range(len(offsets)))
    at = {record.physical_offset: record for record in records}
    assert {result.status for _, result in results} == {result.status for _, result in batched} == {OK}
    for number, result in results:
        record = at[result.physical_offset]
        assert (record.queue, record.queue_offset) == (number % 3, result.queue_offset)
        assert (record.unique_id, record.size) == (result.unique_id, result.size)
    for number, batch in batched:
        for step, offset in enumerate(batch.physical_offsets.tolist()):
            assert (at[offset].queue, at[offset].queue_offset) == (number % 3, batch.queue_offset + step)
            assert at[offset].unique_id == batch.unique_ids[step]
    assert len({record.unique_id for record in records}) == len(records)


# Flushing


class HeldDisk(UnflushedDisk):
    """Its flushes of log files wait until they may; ``flushed`` is the log's end when the last one began."""

    def __init__(self) -> None:
        self.may_flush = threading.Event()
        self.error: int | None = None

    def fsync(self, path: Path, descriptor: int) -> None:
        if not path.is_dir() and self.is_live:
            assert self.may_flush.wait(30)
            if self.error is not None:
                raise OSError(self.error, "made up")

    is_live = False


def test_only_who_waits_learns_when_the_flush_is_done(opened):
    disk = HeldDisk()
    store = opened(disk=disk, flush="sync")
    store.append("T", b"", wait=False)
    disk.is_live = True
    assert store.append("T", b"", wait=False).status is OK
    assert store.append("T", b"", properties={"WAIT": "false"}).status is OK
    assert store.append("T", b"", properties={"WAIT": "no"}).status is OK, "all but true is false, as in Java"
    assert store.append_batch("T", [b""], wait=False).status is OK
    assert store.append_batch("T", [b"", b""], properties=[{}, {"WAIT": "false"}]).status is OK
    assert store.appender.append_client_batch("T", b"", properties={"WAIT": "false"}).status is OK
    told: list[Any] = []
    threads = [
        threading.Thread(target=lambda call=call: told.append(call()))
        for call in (
            lambda: store.append("T", b"", properties={"WAIT": "TRUE"}),
            lambda: store.append("T", b""),
            lambda: store.append_batch("T", [b""]),
        )
    ]
    for thread in threads:
        thread.start()
    while len(store.records()) < 10:
        pass
    assert told == []
    disk.may_flush.set()
    for thread in threads:
        thread.join()
    assert [result.status for result in told] == [OK] * 3
    assert store.log.flushed_offset == store.log.end_offset


def test_a_late_flush_is_told_and_the_message_is_in_the_log(opened):
    disk = HeldDisk()
    store = opened(disk=disk, flush="sync")
    store.flusher.timeout_s = 0.01
    store.append("T", b"", wait=False)
    disk.is_live = True
    result = store.append("T", b"late")
    assert (result.status, result.detail) == (PutStatus.FLUSH_DISK_TIMEOUT, "not flushed within 0.01 s")
    assert (result.physical_offset > 0, result.queue_offset) == (True, 1)
    batch = store.append_batch("T", [b"late"])
    assert (batch.status, batch.count, batch.queue_offset) == (PutStatus.FLUSH_DISK_TIMEOUT, 1, 2)
    disk.may_flush.set()
    assert len(store.records()) == 3


def test_after_a_flush_that_failed_the_store_takes_nothing_and_says_why(opened):
    disk = HeldDisk()
    store = opened(disk=disk, flush="sync")
    store.append("T", b"", wait=False)
    disk.is_live, disk.error = True, errno.EIO
    disk.may_flush.set()
    result = store.append("T", b"lost?")
    assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert "cannot be flushed: made up" in result.detail
    disk.error = None
    for later in (store.append("T", b""), store.append_batch("T", [b""])):
        assert later.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "cannot be flushed: made up" in later.detail
    with pytest.raises(StoreError, match="made up"):
        store.close()


# Failing disks


FAILED = {PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED}


def some_appends(store: Store) -> list[PutResult | BatchResult]:
    """Over several files."""
    results: list[PutResult | BatchResult] = []
    for number in range(6):
        results.append(store.append("T", bytes([number]) * 300, keys=[f"k{number}"]))
        results.append(store.append_batch("T", [bytes([number]) * 50] * 2))
    return results


def placed(result: PutResult | BatchResult) -> list[tuple[int, str]]:
    """Where the messages lie that a result speaks of, and their ids."""
    if isinstance(result, BatchResult):
        return list(zip(result.physical_offsets.tolist(), result.unique_ids, strict=True))
    return [] if result.physical_offset < 0 else [(result.physical_offset, result.unique_id)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_whatever_step_of_the_disk_fails_nothing_that_was_acknowledged_is_lost(tmp_path, flush, error):
    for left in count():
        disk = FailingDisk(left, error)
        store = Store(tmp_path / str(left), file_size=1000, disk=disk, flush=flush)
        results = some_appends(store)
        records = store.records() if (store.folder / "commitlog").is_dir() else []
        told = [place for result in results for place in placed(result)]
        assert told == [(record.physical_offset, record.unique_id) for record in records]
        assert [record.queue_offset for record in records] == list(range(len(records)))
        for result in results:
            assert result.status is OK or result.status in FAILED
            assert (result.status is OK) == (result.detail == "")
            if result.status is OK and flush == "sync":
                assert placed(result)[-1][0] < store.log.flushed_offset
        statuses = [result.status for result in results]
        if PutStatus.CREATE_MAPPED_FILE_FAILED not in statuses and statuses[0] is OK:
            assert OK not in statuses[statuses.count(OK) :], "nothing is taken after a failure"
        try:
            store.close()
        except StoreError as failure:
            assert os.strerror(error) in str(failure)
        if disk.left >= 0:
            assert set(statuses) == {OK}
            break
    assert left > 20


def test_a_full_disk_refuses_what_needs_a_new_file_and_takes_it_when_there_is_room(opened):
    class FullDisk(UnflushedDisk):
        is_full = False

        def reserve(self, path: Path, descriptor: int, size: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().reserve(path, descriptor, size)

    disk = FullDisk()
    store = opened(disk=disk, file_size=1000)
    disk.is_full = True
    result = store.append("T", b"")
    assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert "No space left on device" in result.detail
    assert store.append_batch("T", [b""]).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    disk.is_full = False
    assert store.append("T", b"").status is OK
    disk.is_full = True
    sizes = [b"x" * 800] * 3
    batch = store.append_batch("T", sizes)
    assert (batch.status, batch.count) in [(PutStatus.CREATE_MAPPED_FILE_FAILED, number) for number in (0, 1)]
    assert batch.count == len(batch.physical_offsets) == len(batch.unique_ids) == len(batch.offset_ids)
    disk.is_full = False
    assert store.append("T", b"x" * 800).queue_offset == 1 + batch.count
    assert [record.queue_offset for record in store.records()] == list(range(2 + batch.count))


def test_the_ids_of_a_batch_are_made_when_they_are_asked_for(store):
    result = store.append_batch("T", [b""] * 3)
    assert "unique_ids" not in vars(result)
    assert result.unique_ids == id_texts(result.unique_ids[0][:-12], int(result.unique_ids[0][-12:], 16), 3)
    assert [scan_log_file(path.read_bytes())[0][2].unique_id for path in (store.folder / "commitlog").glob("*0")] == [
        result.unique_ids[2]
    ]
