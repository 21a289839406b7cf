"""Messages on their way in: what is worked out, and what is refused."""

import pytest
from hypothesis import given

from tests import golden as golden_data
from tests import reference
from tests.formats.rocketmq.messages import messages
from whence.errors import UsageError
from whence.formats.rocketmq.host import Host
from whence.formats.rocketmq.message import decode_message, encode_message, verify_message
from whence.formats.rocketmq.new_message import add_record_crc, new_message


@pytest.mark.parametrize(("topic", "version"), [("t" * 127, 1), ("t" * 128, 2), ("é" * 63, 1), ("é" * 64, 2)])
def test_a_topic_beyond_127_bytes_makes_a_version_2_record(topic, version):
    message = new_message(topic)
    assert message.version == version
    assert decode_message(encode_message(message))[0].topic == topic


@pytest.mark.parametrize(
    ("born_host", "store_host", "sys_flag"),
    [
        ("127.0.0.1", "127.0.0.1", 0x01),
        ("::1", "127.0.0.1", 0x11),
        ("127.0.0.1", "::1", 0x21),
        ("fe80::1", "2001:db8::ff00:42:8329", 0x31),
    ],
)
def test_hosts_set_their_bits_in_sys_flag(born_host, store_host, sys_flag):
    for given_flag in (0x01, 0x31):
        message = new_message("t", sys_flag=given_flag, born_host=Host(born_host, 1), store_host=Host(store_host, 2))
        assert message.sys_flag == sys_flag
        assert decode_message(encode_message(message))[0].born_host == Host(born_host, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: new_message("t", queue=2**31),
        lambda: new_message("t", physical_offset=2**63),
        lambda: new_message("t" * 128, version=1),
        lambda: new_message("t" * 32768),
        lambda: new_message("t", properties=b"x" * 32768),
        lambda: new_message("t", properties={"a": "x" * 32765}),
        lambda: new_message("\ud800"),
        lambda: new_message("t", born_host=Host("localhost", 1)),
        lambda: new_message("t", born_host=Host("127.0.0.1", 2**31)),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(UsageError):
        encode_message(make())


@given(messages())
def test_a_record_crc_is_added_as_the_twin_adds_it(message):
    with_crc = add_record_crc(message)
    record = encode_message(with_crc)
    verify_message(record, 0, with_crc)
    assert with_crc.size == len(record)
    assert record[-20:] == reference.crc_property(record[:-20])
    assert {**with_crc.properties, "__CRC32#": ""} == {**message.properties, "__CRC32#": ""}


def test_a_record_crc_takes_the_place_of_one_that_came_in():
    message = new_message("t", properties={"__CRC32#": "1", "a": "b"})
    once = add_record_crc(message)
    assert once.properties_data.startswith(b"a\x01b\x02__CRC32#\x01")
    assert add_record_crc(once) == once


def test_a_separator_goes_before_the_record_crc_where_it_is_missing():
    assert add_record_crc(new_message("t", properties=b"a\x01b")).properties_data[:12] == b"a\x01b\x02__CRC32#"
    assert add_record_crc(new_message("t")).properties_data[:8] == b"__CRC32#"


def test_golden_record_crcs_are_those_that_we_add(golden):
    store = golden("v5-direct-crc").store
    count = 0
    for path in sorted((store / "commitlog").iterdir()):
        data, position = path.read_bytes(), 0
        for record in reference.scan_log_file(data)[0]:
            message, end = decode_message(data, position)
            assert message.properties_data[-20:-12] == b"__CRC32#"
            bare = new_message(
                record.topic,
                record.stored_body,
                properties=message.properties_data[:-20],
                version=message.version,
                born_host=message.born_host,
                store_host=message.store_host,
                **{
                    name: getattr(message, name)
                    for name in (
                        "queue",
                        "queue_offset",
                        "physical_offset",
                        "flag",
                        "sys_flag",
                        "born_timestamp_ms",
                        "store_timestamp_ms",
                        "reconsume_times",
                        "prepared_transaction_offset",
                    )
                },
            )
            assert encode_message(add_record_crc(bare)) == data[position:end]
            position = end
            count += 1
    assert count == len(golden("v5-direct-crc").messages)
    assert "v5-direct-crc" in golden_data.ALL
