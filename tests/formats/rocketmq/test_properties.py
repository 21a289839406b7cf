"""Properties: what RocketMQ's decoder keeps, and what the encoder refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tests.formats.rocketmq.messages import properties
from whence.errors import UsageError
from whence.formats.rocketmq.properties import decode_properties, encode_properties, split_keys

CASES = [
    ({}, b""),
    ({"KEYS": "OrderID188", "TAGS": "TagA"}, b"KEYS\x01OrderID188\x02TAGS\x01TagA\x02"),
    ({"K": "v"}, b"K\x01v\x02"),
    ({"é": "订单 🚀"}, "é\x01订单 🚀\x02".encode()),
    ({"a": "b\x01c"}, b"a\x01b\x01c\x02"),
]

# Bytes that our encoder never makes, and what RocketMQ reads in them.
READ_ONLY = [
    (b"KEYS\x01a\x02TAGS\x01b", {"KEYS": "a", "TAGS": "b"}),  # as 4.9 writes it: nothing at the end
    (b"\x01v\x02", {}),
    (b"n\x01\x02", {}),
    (b"n\x02", {}),
    (b"\x02\x02\x02", {}),
    (b"\x01\x02\x01", {}),
    (b"n\x02v\x01w\x02", {"v": "w"}),  # a 01 behind the next 02 does not count
    (b"n\x01a\x02n\x01b\x02", {"n": "b"}),
    (b"n\x01\xed\xa0\x80\x02m\x01\xe4\xbd\x02", {"n": "\ufffd", "m": "\ufffd"}),
    (bytes(10), {}),
]


@pytest.mark.parametrize(("values", "data"), CASES)
def test_encode_and_decode(values, data):
    assert encode_properties(values) == data
    assert decode_properties(data) == values


@pytest.mark.parametrize(("data", "values"), READ_ONLY)
def test_decode_follows_rocketmq_where_the_bytes_are_odd(data, values):
    assert decode_properties(data) == values


@given(properties)
def test_what_is_encoded_decodes_to_the_same(values):
    data = encode_properties(values)
    assert decode_properties(data) == values
    assert decode_properties(data.removesuffix(b"\x02")) == values
    assert list(decode_properties(data)) == list(values)


@given(st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS", b"\xe4\xbd", b"\xed\xa0"])).map(b"".join))
def test_any_bytes_decode_as_the_twin_reads_them(data):
    assert decode_properties(data) == decode_properties(memoryview(data)) == reference.decode_properties(data)


@pytest.mark.parametrize(
    "values",
    [
        {"": "v"},
        {"n": ""},
        {"a\x01b": "v"},
        {"a\x02b": "v"},
        {"n": "a\x02b"},
        {"n": "\ud83d"},
        {"n": "x" * 32765},
    ],
)
def test_what_could_not_be_read_back_is_refused(values):
    with pytest.raises(UsageError):
        encode_properties(values)


def test_the_longest_properties_fit():
    assert len(encode_properties({"n": "x" * 32764})) == 32767


def test_keys_are_cut_at_each_space_and_at_nothing_else():
    assert split_keys(" a  b a\tc ") == ["a", "b", "a\tc"]
    assert split_keys("") == []
