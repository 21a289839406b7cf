"""The formats beside RocketMQ's own classes: what we write they read, and what they write we read."""

import random

import pytest

from tests.compat.maven import classpath, java_program
from whence.formats.rocketmq.body import BatchItem, compress_body, decode_batch, decompress_body, encode_batch
from whence.formats.rocketmq.config import decode_config, encode_config
from whence.formats.rocketmq.consume_queue import (
    ExtUnit,
    decode_ext_unit,
    encode_ext_unit,
    ext_position,
    is_ext_address,
)
from whence.formats.rocketmq.host import Host, encode_address
from whence.formats.rocketmq.ids import (
    UniqueId,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    encode_unique_id,
)
from whence.formats.rocketmq.message import encode_message
from whence.formats.rocketmq.new_message import add_record_crc, new_message
from whence.formats.rocketmq.properties import decode_properties, encode_properties
from whence.formats.rocketmq.sys_flag import Compression, SysFlag, Transaction
from whence.formats.rocketmq.timer import (
    TimerCheckpoint,
    decode_timer_checkpoint,
    decode_timer_log,
    decode_wheel,
    encode_timer_checkpoint,
    encode_timer_log,
    encode_wheel,
)
from whence.formats.rocketmq.topics import SYSTEM_TOPICS, is_system_topic, valid_topic

pytestmark = [pytest.mark.compat, pytest.mark.slow]

ROCKETMQ = ["org.apache.rocketmq:rocketmq-store:5.5.0"]
# A version with fastjson, and one with fastjson2.
JSON = {"fastjson": ["org.apache.rocketmq:rocketmq-store:5.3.3"], "fastjson2": ROCKETMQ}

HOSTS = [Host("10.0.0.7", 10911), Host("255.255.255.255", 65535), Host("2001:db8::ff00:42:8329", 1), Host("::1", 80)]
TEXTS = ["a", "order-4711", "é", "订单", "🚀 launch", "  ", "a\x01b", "\u00a0\u3000", "\\\"'/<>&", "\ufffd"]


@pytest.fixture(scope="module")
def ask():
    """What RocketMQ 5.5's classes answer to each request."""
    with java_program("Formats", classpath(ROCKETMQ)) as ask:
        yield ask


@pytest.fixture(scope="module", params=JSON)
def ask_config(request):
    """What RocketMQ's JSON answers, with each of the libraries that it has used."""
    with java_program("ConfigFiles", classpath(JSON[request.param])) as ask:
        yield ask


def units(text):
    return text.encode("utf-16-be", "surrogatepass").hex()


def java_properties(properties):
    return "".join(
        f"{name}={value},"
        for name, value in sorted((units(name), units(value)) for name, value in properties.items())
    )


def java_host(host):
    return f"{encode_address(host.address).hex()}:{host.port}"


def any_messages(count):
    source = random.Random(20260102)
    for number in range(count):
        compression = source.choice([None, *Compression])
        body = bytes(source.choices(range(256), k=source.randrange(1, 200)))
        sys_flag = source.choice(list(Transaction)) | (
            0 if compression is None else compression << 8 | SysFlag.COMPRESSED
        )
        message = new_message(
            "T" * source.choice([1, 20, 127, 128, 200]),
            body if compression is None else compress_body(body, compression),
            properties={source.choice(TEXTS).replace("\x01", "") or "n": source.choice(TEXTS) for _ in range(4)},
            queue=number,
            queue_offset=number * 7,
            physical_offset=number * 1000,
            flag=source.randrange(-(2**31), 2**31),
            sys_flag=sys_flag,
            born_timestamp_ms=1700000000000 + number,
            born_host=source.choice(HOSTS),
            store_timestamp_ms=1700000000000 - number,
            store_host=source.choice(HOSTS),
            reconsume_times=number,
            prepared_transaction_offset=number * 5,
        )
        yield add_record_crc(message) if number % 3 == 0 else message


def test_rocketmq_reads_the_records_that_we_write(ask):
    messages = list(any_messages(300))
    answers = ask([f"record {encode_message(message).hex()}" for message in messages])
    for message, answer in zip(messages, answers, strict=True):
        expected = [
            units(message.topic),
            message.queue,
            message.queue_offset,
            message.physical_offset,
            message.flag,
            message.born_timestamp_ms,
            java_host(message.born_host),
            message.store_timestamp_ms,
            java_host(message.store_host),
            message.reconsume_times,
            message.prepared_transaction_offset,
            message.body_crc,
            message.size,
            message.body.hex(),
            java_properties(message.properties),
        ]
        assert answer.split(" ") == [str(value) for value in expected]


def test_properties_are_read_alike(ask):
    source = random.Random(20260103)
    parts = [b"\x01", b"\x02", b"a", b"KEYS", b"\xe4\xbd", b"\xed\xa0\x80", "é".encode(), "🚀".encode(), b"\x00"]
    data = [b"".join(source.choices(parts, k=source.randrange(12))) for _ in range(3000)]
    data += [encode_properties({"n": text}) for text in TEXTS]
    for one, answer in zip(data, ask([f"properties {one.hex()}" for one in data]), strict=True):
        assert java_properties(decode_properties(one)) == answer, one


def test_topics_are_judged_alike(ask):
    names = ["orders", "a b", "é", "a.b", "a$b", "%LMQ%x", "rmq_sys_x", "RMQ_SYS_x", "tbw102", "%RETRY%g", "%DLQ%g"]
    names += sorted(SYSTEM_TOPICS)
    names += [prefix + "t" * count for prefix in ("", "%RETRY%", "%DLQ%") for count in (120, 127, 128, 248, 250, 251)]
    for name, answer in zip(names, ask([f"topic {name.encode().hex()}" for name in names]), strict=True):
        assert f"{valid_topic(name)} {is_system_topic(name)}".lower() == answer, name


def test_ids_are_read_alike(ask):
    offset_ids = [encode_offset_id(host, offset) for host in HOSTS for offset in (0, 1024, 2**63 - 1, -1)]
    for text, answer in zip(offset_ids, ask([f"offset-id {text}" for text in offset_ids]), strict=True):
        host, offset = decode_offset_id(text)
        assert answer == f"{java_host(host)} {offset} {text}"
    unique_ids = [encode_unique_id(UniqueId(host.address, 40000, -5, 2**31 + 9, 65535)) for host in HOSTS]
    for text, answer in zip(unique_ids, ask([f"unique-id {text}" for text in unique_ids]), strict=True):
        unique_id = decode_unique_id(text)
        assert answer == f"{encode_address(unique_id.address).hex()} {unique_id.pid}"


def test_bodies_are_compressed_for_each_other(ask):
    bodies = [b"x", b"hello " * 1000, random.Random(1).randbytes(10_000)]
    pairs = [(compression, body) for compression in Compression for body in bodies]
    theirs = ask([f"compress {compression.value} {body.hex()}" for compression, body in pairs])
    for (compression, body), answer in zip(pairs, theirs, strict=True):
        assert decompress_body(bytes.fromhex(answer), compression << 8 | 1) == body
    ours = [f"decompress {compression.value} {compress_body(body, compression).hex()}" for compression, body in pairs]
    assert ask(ours) == [body.hex() for _, body in pairs]


def test_batches_are_read_alike(ask):
    items = [BatchItem(number, b"b" * number, encode_properties({"KEYS": f"k{number}"})) for number in range(1, 4)]
    (answer,) = ask([f"batch {encode_batch(items).hex()}"])
    assert answer == "".join(
        f"{item.flag} {item.body.hex()} {java_properties(decode_properties(item.properties_data))};" for item in items
    )
    assert decode_batch(encode_batch(items)) == items


def test_the_files_of_a_timer_are_read_and_encoded_back(ask, tmp_path):
    (answer,) = ask([f"timer {tmp_path}"])
    wheel = (tmp_path / "timerwheel").read_bytes()
    slots = decode_wheel(wheel)
    assert encode_wheel(slots) == wheel
    assert len(slots) == 10
    assert slots[1].tolist() == (1700000001, 0, 52, 2, 0)
    assert slots[3].tolist() == (1700000013, 104, 104, 1, 0)

    first, second = (path.read_bytes() for path in sorted((tmp_path / "timerlog").iterdir()))
    units_in_first = decode_timer_log(first)
    assert units_in_first["physical_offset"].tolist() == [0, 131]
    assert units_in_first["previous_position"].tolist() == [-1, 0]
    assert units_in_first["delay_ms"].tolist() == [1000, 999]
    assert encode_timer_log(units_in_first, blank_size=56).ljust(160, b"\0") == first
    assert decode_timer_log(second)["physical_offset"].tolist() == [262]
    assert encode_timer_log(decode_timer_log(second)).ljust(160, b"\0") == second

    checkpoint = decode_timer_checkpoint((tmp_path / "timercheck").read_bytes())
    assert checkpoint == TimerCheckpoint(1700000000000, 252, 3, 4, *map(int, answer.split(" ")))
    assert encode_timer_checkpoint(checkpoint) == (tmp_path / "timercheck").read_bytes()


def test_ext_units_are_read_and_encoded_back(ask, tmp_path):
    (answer,) = ask([f"ext {tmp_path}"])
    codes = [int(code) for code in answer.split()]
    assert all(map(is_ext_address, codes))
    assert [ext_position(code) for code in codes] == [0, 25, 70]
    first, second = (path.read_bytes() for path in sorted((tmp_path / "t" / "0").iterdir()))
    expected = [ExtUnit(number - 7, 1700000000000, bytes([1, 2, 3, 4, 5])) for number in range(3)]
    assert decode_ext_unit(first, 0) == (expected[0], 25)
    assert decode_ext_unit(first, 25) == (expected[1], 50)
    assert decode_ext_unit(first, 50) == (None, 70)
    assert decode_ext_unit(second, 0) == (expected[2], 25)
    assert decode_ext_unit(second, 25) == (None, 70)
    assert encode_ext_unit(expected[0]) == first[:25]


def test_rocketmq_reads_the_config_files_that_we_write(ask_config):
    offsets = {"orders@billing": {0: 12, 1: 7, 15: 2**63 - 1}, "%RETRY%g@g": {0: 0}}
    quoted = {name: {str(queue): offset for queue, offset in queues.items()} for name, queues in offsets.items()}
    topics = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 8, "perm": 6, "order": name == "b"}
        | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {}}
        for name in ("a", "b", "Mix%Pipe|x")
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
    requests = [
        ("offsets", {"offsetTable": offsets, "dataVersion": version}),
        ("offsets", {"offsetTable": quoted, "dataVersion": version}),
        ("topics", {"topicConfigTable": topics, "dataVersion": version}),
    ]
    answers = ask_config([f"{what} {encode_config(config).hex()}" for what, config in requests])
    offset_lines = "%RETRY%g@g 0 0,orders@billing 0 12,orders@billing 1 7,orders@billing 15 9223372036854775807,"
    assert answers == [offset_lines, offset_lines, "Mix%Pipe|x 4 8 6 false,a 4 8 6 false,b 4 8 6 true,"]


def test_we_read_the_config_files_that_rocketmq_writes(ask_config):
    texts = [*TEXTS, "".join(map(chr, range(1, 0x180))), "\u2028\u2029\ufeff", "\0"]
    answers = ask_config([f"write {text.encode().hex()}" for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        assert decode_config(bytes.fromhex(answer)) == {
            "text": text,
            f"key{text}": 1,
            "numbers": {"-1": 0, "0": 12, "10": 7},
        }
