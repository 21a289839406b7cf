"""The same messages put into a store of ours and into RocketMQ's own: the same answers, and the same log."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.compat.maven import classpath, java_program
from tests.disks import UnflushedDisk
from tests.reference import Record, encode_properties, encode_record, scan_log_file
from whence.formats.rocketmq.body import BatchItem, encode_batch
from whence.formats.rocketmq.host import Host, encode_address
from whence.store.appender import Appender
from whence.store.log_writer import LogWriter
from whence.store.put_result import BatchResult, PutResult

pytestmark = [pytest.mark.compat, pytest.mark.slow]

ROCKETMQ = ["org.apache.rocketmq:rocketmq-store:5.5.0"]
JAVA_OPTIONS = "--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED"
FILE_SIZE = 40_000
MESSAGE_SIZE_MAX = 4_000
PUTS = 400
BATCH_TOPIC = "Batched"
STORE_HOSTS = [Host("10.0.0.7", 10911), Host("2001:db8::7", 10911)]
BORN_HOSTS = [Host("192.168.0.10", 53210), Host("::1", 9)]

Ask = Callable[[Sequence[str]], list[str]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory) -> Iterator[Ask]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")  # where RocketMQ logs
        patch.setenv("JDK_JAVA_OPTIONS", f"{JAVA_OPTIONS} -Duser.home={home}")
        with java_program("Puts", classpath(ROCKETMQ)) as ask:
            yield ask


def java_host(host: Host) -> str:
    return f"{encode_address(host.address).hex()}:{host.port}"


class Both:
    """Puts each message into both stores; theirs first, for our clock follows its."""

    def __init__(self, ask: Ask, folder: Path, store_host: Host, record_crc: bool) -> None:
        self.ask = ask
        self.folder = folder
        self.store_host = store_host
        self.now_ms = 0
        self.log = LogWriter([folder / "ours" / "commitlog"], FILE_SIZE, 0, UnflushedDisk())
        self.appender = Appender(
            self.log,
            lambda topic, queue: 0,
            store_host=store_host,
            message_size_max=MESSAGE_SIZE_MAX,
            record_crc=record_crc,
            is_batch_topic=lambda topic: topic == BATCH_TOPIC,
            clock=lambda: self.now_ms,
        )
        words = (folder / "theirs", FILE_SIZE, MESSAGE_SIZE_MAX, str(record_crc).lower(), BATCH_TOPIC)
        assert ask([f"open {' '.join(map(str, words))}"]) == ["open"]

    def put(self, what: str, topic: str, body: bytes, properties: dict[str, str], **fields: Any) -> str:
        """``what`` is put, batch or inner. Gives the status, which both must have."""
        birth: dict[str, Any] = {"born_timestamp_ms": 12345, "born_host": BORN_HOSTS[0], "queue": 0} | fields
        sys_flag = birth.pop("sys_flag", 0)
        stored = properties
        if what == "inner":  # what their broker does before the store has it
            count = sum(1 for _ in decode_sizes(body))
            stored = properties | {"INNER_NUM": str(count)}
        request = (
            "batch" if what == "batch" else "put",
            topic.encode().hex(),
            birth["queue"],
            birth.get("flag", 0),
            sys_flag | (0xC0 if what == "inner" else 0),
            birth["born_timestamp_ms"],
            java_host(birth["born_host"]),
            java_host(self.store_host),
            birth.get("reconsume_times", 0),
            birth.get("prepared_transaction_offset", 0),
            encode_properties(stored).hex(),
            body.hex(),
        )
        (answer,) = self.ask([" ".join(map(str, request))])
        status, *rest = answer.split(" ")
        if rest:
            self.now_ms = int(rest[3])
        result: PutResult | BatchResult
        settings: dict[str, Any] = birth | {"properties": properties, "sys_flag": sys_flag}
        if what == "batch":
            settings.pop("flag", None)
            result = self.appender.append_client_batch(topic, body, **settings)
        elif what == "inner":
            result = self.appender.append_inner_batch(topic, body, **settings)
        else:
            result = self.appender.append(topic, body, **settings)
        assert result.status == status, (what, topic, properties, result.detail)
        if rest:
            offset, queue_offset, size, _, ids = rest
            assert result.queue_offset == int(queue_offset)
            if isinstance(result, BatchResult):
                assert int(result.physical_offsets[0]) == int(offset)
                assert result.offset_ids == ids.split(",")
            else:
                assert (result.physical_offset, result.size, result.offset_id) == (int(offset), int(size), ids)
        return status

    def close(self) -> None:
        self.appender.close()
        self.log.close()


def decode_sizes(body: bytes) -> Iterator[int]:
    position = 0
    while position < len(body):
        size = int.from_bytes(body[position : position + 4], "big")
        yield size
        position += size


def any_batch(source: random.Random) -> bytes:
    return encode_batch(
        BatchItem(
            source.randrange(-(2**31), 2**31),
            source.randbytes(source.randrange(100)),
            encode_properties({"UNIQ_KEY": f"{source.randrange(10**9)}", "KEYS": "a b"}),
        )
        for _ in range(source.randrange(1, 12))
    )


def any_put(source: random.Random) -> dict[str, Any]:
    properties = {"UNIQ_KEY": f"{source.randrange(10**9)}"}
    if source.random() < 0.7:
        properties |= {"KEYS": f"order-{source.randrange(100)} é", "TAGS": source.choice(["paid", "订单"])}
    fields: dict[str, Any] = {
        "queue": source.randrange(3),
        "born_host": source.choice(BORN_HOSTS),
        "born_timestamp_ms": source.randrange(2**40),
        "reconsume_times": source.randrange(5),
    }
    what = source.choice(["put", "put", "put", "batch", "inner", "light"])
    if what == "put":
        fields |= {"flag": source.randrange(-(2**31), 2**31), "prepared_transaction_offset": source.randrange(2**40)}
        fields["sys_flag"] = source.choice([0, 0, 0x4, 0x8, 0xC, 0x1 | 0x300])
        topic = source.choice(["T", "TopicTest", "%RETRY%" + "g" * 150])
        body = source.randbytes(source.choice([0, 1, 10, 300, 3_000]))
    elif what == "light":
        names = ["%LMQ%a", "%LMQ%b", "other", ""]
        properties["INNER_MULTI_DISPATCH"] = ",".join(source.choices(names, k=source.randrange(1, 4))) or "other"
        topic, body, what = source.choice(["T", "Lit", "%DLQ%g"]), b"light", "put"
    else:
        topic, body = (BATCH_TOPIC if what == "inner" else source.choice(["T", BATCH_TOPIC])), any_batch(source)
    return {"what": what, "topic": topic, "body": body, "properties": properties} | fields


LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("PUT_OK", {"body": b"x" * MESSAGE_SIZE_MAX}),
    ("MESSAGE_ILLEGAL", {"body": b"x" * (MESSAGE_SIZE_MAX + 1)}),
    ("MESSAGE_ILLEGAL", {"properties": {"UNIQ_KEY": "u", "INNER_NUM": "1"}}),
    ("MESSAGE_ILLEGAL", {"what": "inner", "body": encode_batch([BatchItem(0, b"b", b"")])}),
    ("MESSAGE_ILLEGAL", {"what": "batch", "body": encode_batch([BatchItem(0, b"b", b"")]), "sys_flag": 0x4}),
    (
        "MESSAGE_ILLEGAL",
        {"what": "batch", "body": encode_batch([BatchItem(0, b"b", b"")]), "properties": {"DELAY": "1"}},
    ),
    ("MESSAGE_ILLEGAL", {"body": b"x" * 3_900, "properties": {"UNIQ_KEY": "u", "INNER_MULTI_DISPATCH": "%LMQ%a"}}),
]


@pytest.mark.parametrize(("store_host", "record_crc"), [(STORE_HOSTS[0], False), (STORE_HOSTS[1], True)])
def test_both_stores_answer_alike_and_have_the_same_log(ask, tmp_path, store_host, record_crc):
    source = random.Random(20260107)
    both = Both(ask, tmp_path, store_host, record_crc)
    for expected, limit in LIMITS:
        put = {"what": "put", "topic": "T", "body": b"", "properties": {"UNIQ_KEY": "u"}} | limit
        assert both.put(**put) == expected
    for size, expected in ((32_767, "PUT_OK"), (32_768, "PROPERTIES_SIZE_EXCEEDED")):
        value = "x" * (size - len("UNIQ_KEY.u.p..") - 20 * record_crc)
        assert both.put("put", "T", b"", {"UNIQ_KEY": "u", "p": value}) == expected
    light = {"UNIQ_KEY": "u", "p": "x" * 32_700, "INNER_MULTI_DISPATCH": "%LMQ%a"}
    assert both.put("put", "T", b"", light) == "MESSAGE_ILLEGAL"
    for _ in range(PUTS):
        both.put(**any_put(source))
    both.close()
    check_logs(tmp_path / "ours" / "commitlog", tmp_path / "theirs" / "commitlog", both.log.end_offset)


def check_logs(ours: Path, theirs: Path, end_offset: int) -> None:
    files = range(0, end_offset, FILE_SIZE)
    assert len(files) > 5
    reordered = 0
    for base in files:
        our_data, their_data = ((folder / f"{base:020d}").read_bytes() for folder in (ours, theirs))
        our_records, their_records = (scan_log_file(data) for data in (our_data, their_data))
        assert our_records[1:] == their_records[1:], "both end at the same byte, for the same reason"
        for mine, their in zip(our_records[0], their_records[0], strict=True):
            if encode_record(mine) != encode_record(their):
                # Light queues and inner batches: RocketMQ writes these properties in the order of a hash map.
                assert {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET"} & mine.properties.keys() or (
                    b"INNER_MULTI_QUEUE_OFFSET\x01\x02" in mine.properties_data
                )
                assert without_order(mine) == without_order(their)
                reordered += 1
    assert 0 < reordered < PUTS


def without_order(record: Record) -> tuple[Any, ...]:
    """A record whose properties have no order; its CRC, which depends on that, is left out."""
    properties = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
    fields = (getattr(record, name) for name in Record.__dataclass_fields__ if name != "properties_data")
    return (*fields, properties, len(record.properties_data))
