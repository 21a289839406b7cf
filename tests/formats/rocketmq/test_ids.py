"""Message ids of both kinds, and the hosts in them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden as golden_data
from tests.formats.rocketmq.messages import hosts, i8
from whence.errors import CorruptError, UsageError
from whence.formats.rocketmq.host import Host, decode_address, decode_host, encode_host
from whence.formats.rocketmq.ids import (
    UniqueId,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    encode_unique_id,
)

OFFSET_IDS = [
    ("0A00000700002A9F0000000000000400", Host("10.0.0.7", 10911), 1024),
    ("0000000000000000000000000000000100009A820000000000000789", Host("::1", 39554), 1929),
    ("FFFFFFFF0000FFFFFFFFFFFFFFFFFFFF", Host("255.255.255.255", 65535), -1),
]
UNIQUE_IDS = [
    # Made by a RocketMQ 5.5 client: the first message of golden v5-clean, born 2026-11-16 00:42:10.636 UTC.
    ("7F0000013C0630946E094D6601490000", UniqueId("127.0.0.1", 0x3C06, 0x30946E09, 1298530633, 0)),
    (
        "20010DB80000000000000000000000010001FFFFFFFF9FA523FFFFFF",
        UniqueId("2001:db8::1", 1, -1, 31 * 86_400_000 - 1, 65535),
    ),
]
NOT_IDS = ["", "order-4711", "0" * 31, "0" * 33, "0" * 55, "0" * 64]
NOT_IDS += ["g" * 32, " " + "0" * 31, "0x" + "0" * 30, "\uff10" * 32]

unique_ids = st.builds(
    UniqueId,
    st.ip_addresses().map(str),
    st.integers(0, 2**16 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)


@pytest.mark.parametrize(("text", "host", "physical_offset"), OFFSET_IDS)
def test_known_offset_ids(text, host, physical_offset):
    assert decode_offset_id(text) == decode_offset_id(text.lower()) == (host, physical_offset)
    assert encode_offset_id(host, physical_offset) == text


@pytest.mark.parametrize(("text", "unique_id"), UNIQUE_IDS)
def test_known_unique_ids(text, unique_id):
    assert decode_unique_id(text) == decode_unique_id(text.lower()) == unique_id
    assert encode_unique_id(unique_id) == text


@pytest.mark.parametrize("name", golden_data.ANSWERED)
def test_every_golden_id_is_read_as_rocketmq_reads_it(golden, name):
    for expected in golden(name).ids:
        host, physical_offset = decode_offset_id(expected["offset_message_id"])
        address, port = expected["host"].split("|")
        assert host == Host(ipaddress.ip_address(address).compressed, int(port))
        assert physical_offset == expected["physical_offset"]
        assert encode_offset_id(host, physical_offset) == expected["offset_message_id"]
        if expected["unique_key"] and len(expected["unique_key"]) == 32:
            unique_id = decode_unique_id(expected["unique_key"])
            assert encode_unique_id(unique_id) == expected["unique_key"]


@given(hosts, i8)
def test_an_offset_id_that_is_encoded_decodes_to_the_same(host, physical_offset):
    assert decode_offset_id(encode_offset_id(host, physical_offset)) == (host, physical_offset)


@given(unique_ids)
def test_a_unique_id_that_is_encoded_decodes_to_the_same(unique_id):
    assert decode_unique_id(encode_unique_id(unique_id)) == unique_id


@given(st.text() | st.text("0123456789abcdefABCDEF", min_size=31, max_size=57))
def test_any_text_is_an_id_or_corrupt(text):
    try:
        host, physical_offset = decode_offset_id(text)
        assert encode_offset_id(host, physical_offset) == text.upper()
        assert encode_unique_id(decode_unique_id(text)) == text.upper()
    except CorruptError:
        assert len(text) not in (32, 56) or set(text) - set("0123456789abcdefABCDEF")


@pytest.mark.parametrize("text", NOT_IDS)
def test_what_is_no_id_is_corrupt(text):
    for decode in (decode_offset_id, decode_unique_id):
        with pytest.raises(CorruptError, match="not a message id"):
            decode(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: encode_offset_id(Host("10.0.0.7", 1), 2**63),
        lambda: encode_offset_id(Host("broker-a", 1), 0),
        lambda: encode_unique_id(UniqueId("10.0.0.7", 65536, 0, 0, 0)),
        lambda: encode_unique_id(UniqueId("10.0.0.7", 1, 0, 2**32, 0)),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(UsageError):
        make()


# Hosts

HOSTS = [
    (Host("192.168.0.10", 53210), "c0a8000a 0000cfda", "192.168.0.10:53210"),
    (Host("2001:db8::42:8329", 1174), "20010db8 00000000 00000000 00428329 00000496", "[2001:db8::42:8329]:1174"),
    (Host("0.0.0.0", -1), "00000000 ffffffff", "0.0.0.0:-1"),
]


@pytest.mark.parametrize(("host", "data", "text"), HOSTS)
def test_known_hosts(host, data, text):
    assert decode_host(bytes.fromhex(data)) == host
    assert encode_host(host) == bytes.fromhex(data)
    assert str(host) == text


@pytest.mark.parametrize("size", [size for size in range(25) if size not in (8, 20)])
def test_a_host_of_another_size_is_corrupt(size):
    with pytest.raises(CorruptError):
        decode_host(bytes(size))


def test_an_address_of_another_size_is_corrupt():
    with pytest.raises(CorruptError):
        decode_address(bytes(5))
