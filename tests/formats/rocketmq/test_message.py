"""A record: golden bytes, round trips, any bytes, cuts, and sizes that lie."""

import copy
import hashlib
import ipaddress
import mmap
import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden as golden_data
from tests import reference
from tests.formats.rocketmq.messages import EXAMPLE, messages
from whence.errors import CorruptError, FormatError, TruncatedError, UsageError
from whence.formats.rocketmq.host import Host
from whence.formats.rocketmq.message import (
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MESSAGE_HEAD,
    Message,
    MessageHead,
    decode_blank,
    decode_message,
    decode_start,
    encode_blank,
    encode_message,
    record_size,
    verify_message,
    whole_head,
)
from whence.formats.rocketmq.new_message import add_record_crc, new_message
from whence.formats.rocketmq.sys_flag import Transaction


def as_recorded(message):
    """The message in the words of a golden ``messages.jsonl``."""
    is_compressed = message.sys_flag & 1
    return {
        "physical_offset": message.physical_offset,
        "size": message.size,
        "topic": message.topic,
        "queue_id": message.queue,
        "queue_offset": message.queue_offset,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "body_crc": message.body_crc,
        "born_timestamp": message.born_timestamp_ms,
        "born_host": java_text(message.born_host),
        "store_timestamp": message.store_timestamp_ms,
        "store_host": java_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "offset_message_id": message.offset_id,
        "body_size": message.body_size,
        "body_sha256": hashlib.sha256(message.stored_body).hexdigest(),
        "inflated_size": len(message.body) if is_compressed else None,
        "inflated_sha256": hashlib.sha256(message.body).hexdigest() if is_compressed else None,
        "properties": message.properties,
    }


def java_text(host):
    """``2001:db8:0:0:0:0:0:1|80``: Java does not shorten an address."""
    address = ipaddress.ip_address(host.address)
    if address.version == 6:
        return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":")) + f"|{host.port}"
    return f"{address}|{host.port}"


def as_twin(message):
    """The message as the twin would have decoded it."""
    names = [name for name in reference.Record.__dataclass_fields__ if not name.endswith("_host")]
    return reference.Record(
        born_host=(message.born_host.address, message.born_host.port),
        store_host=(message.store_host.address, message.store_host.port),
        **{name: getattr(message, name) for name in names},
    )


# Golden bytes


def test_worked_example_decodes_to_its_values():
    message, end = decode_message(EXAMPLE)
    assert end == len(EXAMPLE) == message.size == 131
    assert (message.version, message.topic, message.queue, message.queue_offset) == (1, "TopicTest", 1, 5)
    assert (message.physical_offset, message.flag, message.sys_flag) == (1024, 0, 0)
    assert (message.born_host, message.store_host) == (Host("192.168.0.10", 53210), Host("10.0.0.7", 10911))
    assert message.born_time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.store_timestamp_ms == 1700000000123
    assert message.store_time == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (0, 0)
    assert (message.body, message.stored_body, message.body_size) == (b"hello", b"hello", 5)
    assert message.body_crc == 907060870
    assert message.properties == {"KEYS": "OrderID188", "TAGS": "TagA"}
    assert (message.keys, message.tags, message.unique_id) == (("OrderID188",), "TagA", None)
    assert message.offset_id == "0A00000700002A9F0000000000000400"
    verify_message(EXAMPLE, 0, message)
    assert encode_message(message) == EXAMPLE


@pytest.mark.parametrize("name", golden_data.few_fast(golden_data.ALL))
def test_every_golden_message_decodes_as_rocketmq_read_it_and_encodes_back(golden, name):
    folder, file_size = golden(name).store / "commitlog", golden(name).commit_log_file_size
    files = {int(path.name): path.read_bytes() for path in folder.iterdir()}
    for expected in golden(name).messages:
        base_offset = expected["position"] // file_size * file_size
        data, position = files[base_offset], expected["position"] - base_offset
        message, end = decode_message(data, position)
        assert {"position": base_offset + position, **as_recorded(message)} == expected
        assert encode_message(message) == data[position:end]
        verify_message(data, position, message)


@pytest.mark.parametrize("name", golden_data.ALL)
def test_every_golden_file_ends_in_its_blank_or_in_zeros(golden, name):
    for expected in golden(name).log_files:
        data = (golden(name).store / "commitlog" / expected["file"]).read_bytes()
        end = expected["end_offset"] - int(expected["file"])
        if expected["ends_with"] == "blank":
            assert decode_start(data, end) == (expected["blank_size"], MAGIC_BLANK)
            assert decode_blank(data, end) == expected["blank_size"] == len(data) - end
            assert encode_blank(expected["blank_size"]) == data[end : end + 8]
        elif expected["ends_with"] == "zeros":
            with pytest.raises(CorruptError, match="magic 0x00000000"):
                decode_message(data, end)


# Round trips


@given(messages())
def test_what_is_encoded_decodes_to_the_same(message):
    record = encode_message(message)
    assert len(record) == message.size
    assert decode_message(b"before" + record + b"behind", 6) == (message, 6 + len(record))
    assert as_twin(message) == reference.decode_record(record)
    assert reference.encode_record(as_twin(message)) == record


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind):
    assert decode_message(kind(b"\0\0" + EXAMPLE), 2)[0] == decode_message(EXAMPLE)[0]


def test_a_memory_map_will_do_and_can_be_closed_while_the_message_lives(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(EXAMPLE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        message, _ = decode_message(data)
        verify_message(data, 0, message)
    assert message.body == b"hello"


# Any bytes


@given(st.binary(max_size=300), st.integers(-400, 400))
def test_any_bytes_decode_or_raise_format_error(data, position):
    with_start = EXAMPLE[:8] + data
    for buffer in (data, with_start):
        try:
            message, end = decode_message(buffer, position)
        except FormatError:
            continue
        else:
            assert 0 <= position < end <= len(buffer)
            assert end - position == message.size


@given(messages(), st.data())
def test_a_changed_record_decodes_like_its_twin_or_raises(message, data):
    record = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = reference.decode_record(bytes(record))
    except reference.NotARecord:
        with pytest.raises(FormatError):
            decode_message(record)
    else:
        decoded, end = decode_message(record)
        assert (as_twin(decoded), end) == (expected, len(record))
        decoded.properties, decoded.keys, repr(decoded)


@given(messages())
def test_a_record_cut_at_any_byte_is_truncated(message):
    record = encode_message(message)
    for size in range(len(record)):
        with pytest.raises(TruncatedError):
            decode_message(record[:size])


@pytest.mark.parametrize("position", [-1, -131, 131, 1000, 2**70, -(2**70)])
def test_a_position_outside_the_buffer_is_truncated(position):
    with pytest.raises(TruncatedError):
        decode_message(EXAMPLE, position)


# Sizes and magic that lie. The example has its body size at 84, topic size at 93, properties size at 103.
LIES = [
    (0, "00000000", CorruptError, 0),
    (0, "ffffff00", CorruptError, 0),
    (0, "0000005a", CorruptError, 0),
    (0, "00000082", CorruptError, 103),
    (0, "00000084", TruncatedError, 0),
    (0, "7fffffff", TruncatedError, 0),
    (4, "00000000", CorruptError, 4),
    (4, "cbd43194", CorruptError, 4),
    (36, "00000010", CorruptError, 96),
    (84, "ffffffff", CorruptError, 84),
    (84, "7fffffff", CorruptError, 84),
    (84, "80000000", CorruptError, 84),
    (84, "00000006", CorruptError, 94),
    (93, "ff", CorruptError, 93),
    (93, "80", CorruptError, 93),
    (93, "7f", CorruptError, 93),
    (93, "0a", CorruptError, 104),
    (103, "ffff", CorruptError, 103),
    (103, "0019", CorruptError, 103),
    (103, "001b", CorruptError, 103),
    (103, "7fff", CorruptError, 103),
]


@pytest.mark.parametrize(("at", "lie", "kind", "position"), LIES)
def test_a_size_that_lies_is_named_with_its_position(at, lie, kind, position):
    record = bytearray(EXAMPLE)
    record[at : at + len(lie) // 2] = bytes.fromhex(lie)
    with pytest.raises(kind) as caught:
        decode_message(b"xyz" + record, 3)
    assert type(caught.value) is kind
    assert caught.value.position == 3 + position


def test_a_version_2_record_has_a_topic_size_of_two_bytes():
    record = encode_message(new_message("t", version=2))
    assert record[88:91] == b"\x00\x01t"
    lying = bytearray(record)
    lying[88:90] = b"\xff\xff"
    with pytest.raises(CorruptError, match="topic of -1 bytes"):
        decode_message(lying)


def test_a_topic_that_is_not_utf8_is_read_as_java_reads_it_and_not_written_again():
    record = bytearray(EXAMPLE)
    record[95] = 0xFF
    message, _ = decode_message(record)
    assert message.topic == "T\ufffdpicTest"
    with pytest.raises(UsageError, match="was not UTF-8"):
        encode_message(message)


# Checksums


def test_a_changed_body_is_noticed_a_changed_topic_only_by_a_record_crc():
    message, _ = decode_message(EXAMPLE)
    with_crc = encode_message(add_record_crc(message))
    for at, noticed_without in ((90, True), (95, False), (110, False)):
        for record, noticed in ((EXAMPLE, noticed_without), (with_crc, True)):
            changed = bytearray(record)
            changed[at] ^= 0x20
            decoded, _ = decode_message(changed)
            if noticed:
                with pytest.raises(CorruptError, match="CRC"):
                    verify_message(changed, 0, decoded)
            else:
                verify_message(changed, 0, decoded)


@pytest.mark.parametrize("at", range(12, 151))
def test_a_record_crc_notices_every_changed_byte(at):
    record = bytearray(encode_message(add_record_crc(decode_message(EXAMPLE)[0])))
    record[at] ^= 0x01
    try:
        message, _ = decode_message(record)
    except FormatError:
        return
    if at < 131 or 140 <= at < 150:
        with pytest.raises(CorruptError, match="CRC"):
            verify_message(record, 0, message)
    else:
        # Without its name there is no record CRC left to check: this is the one blind spot.
        verify_message(record, 0, message)


def test_an_empty_body_has_no_crc_to_check():
    message = new_message("t")
    lying = bytearray(encode_message(message))
    lying[8:12] = b"\x11\x22\x33\x44"
    verify_message(lying, 0, decode_message(lying)[0])


# What a message says

KEYS = [
    ("a", ("a",), ("a",)),
    ("a b", ("a", "b"), ("a", "b")),
    (" a  b ", ("a", "b"), ("a", "b")),
    ("rep rep rep", ("rep", "rep", "rep"), ("rep",)),
    ("b a b", ("b", "a", "b"), ("b", "a")),
    ("   ", (), ()),
    ("a\tb\u3000c", ("a\tb\u3000c",), ("a\tb\u3000c",)),
]


@pytest.mark.parametrize(("text", "index_keys", "keys"), KEYS)
def test_keys_are_cut_at_single_spaces(text, index_keys, keys):
    message = new_message("t", properties={"KEYS": text})
    assert (message.index_keys, message.keys) == (index_keys, keys)


def test_only_a_rollback_bears_no_keys():
    for transaction in Transaction:
        message = new_message("t", properties={"KEYS": "k", "UNIQ_KEY": "u"}, sys_flag=transaction)
        assert message.is_rollback == (transaction is Transaction.ROLLBACK)
        assert message.is_prepared == (transaction is Transaction.PREPARED)
        assert message.keys == message.index_keys == (() if message.is_rollback else ("k",))
        assert message.properties["KEYS"] == "k"


def test_a_message_without_properties_has_neither_keys_nor_tags_nor_id():
    message = new_message("t")
    assert (message.keys, message.tags, message.unique_id, message.properties) == ((), None, None, {})


def test_a_message_is_a_value():
    message, _ = decode_message(EXAMPLE)
    other, _ = decode_message(EXAMPLE)
    assert message == other
    assert hash(message) == hash(other)
    assert message != new_message("t")
    assert message != EXAMPLE
    assert message == copy.copy(message) == pickle.loads(pickle.dumps(message))
    message.properties["KEYS"] = "changed"
    assert message.keys == ("OrderID188",)
    for name in dir(Message):
        if not name.startswith("_"):
            with pytest.raises(AttributeError):
                setattr(message, name, None)
    with pytest.raises(AttributeError):
        message.other = None  # type: ignore[attr-defined]


def test_a_message_shows_what_one_looks_for():
    assert repr(decode_message(EXAMPLE)[0]) == (
        "Message(topic='TopicTest', queue=1, queue_offset=5, physical_offset=1024, "
        "store_timestamp_ms=1700000000123, keys=('OrderID188',), tags='TagA', size=131)"
    )


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 253402300800000])
def test_a_time_beyond_the_calendar_is_corrupt(timestamp_ms):
    message = new_message("t", store_timestamp_ms=timestamp_ms)
    with pytest.raises(CorruptError, match="beyond the year 9999"):
        _ = message.store_time


def test_a_time_before_1970_is_a_time():
    assert new_message("t", born_timestamp_ms=-1).born_time == datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)


# Layout


@pytest.mark.parametrize(("sys_flag", "size"), [(0x00, 88), (0x10, 100), (0x20, 100), (0x30, 112)])
def test_hosts_make_the_head_longer(sys_flag, size):
    head = whole_head(sys_flag)
    assert head.itemsize == size
    assert head.names == MessageHead._fields
    assert head.names[: len(MESSAGE_HEAD.names or ())] == MESSAGE_HEAD.names
    assert record_size(3, 4, 5, sys_flag, 1) == size + 3 + 4 + 5 + 1 + 2
    assert record_size(3, 4, 5, sys_flag, 2) == size + 3 + 4 + 5 + 2 + 2


# Blanks


def test_a_blank_is_known_by_its_magic_and_holds_at_least_itself():
    assert encode_blank(4096) == bytes.fromhex("00001000 cbd43194")
    assert decode_blank(b"x" + encode_blank(4096), 1) == 4096
    with pytest.raises(CorruptError, match="not that of a blank"):
        decode_blank(EXAMPLE)
    with pytest.raises(CorruptError, match="blank of 7 bytes"):
        decode_blank(bytes.fromhex("00000007 cbd43194"))
    with pytest.raises(UsageError):
        encode_blank(BLANK_SIZE_MIN - 1)
    for size in range(BLANK_SIZE_MIN):
        with pytest.raises(TruncatedError):
            decode_blank(encode_blank(100)[:size])
