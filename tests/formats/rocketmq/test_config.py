"""Config files: fastjson's JSON, read leniently and in bounds, written so that RocketMQ reads it."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import golden as golden_data
from whence.errors import CorruptError, FormatError, TruncatedError, UsageError
from whence.formats.rocketmq.config import DEPTH_MAX, decode_config, encode_config

CASES = [
    (b"{}", {}),
    (b' \r\n\t{ "a" : 1 , "b" : [ ] } \n', {"a": 1, "b": []}),
    (b'{"offsetTable":{"t@g":{0:12,1:7}}}', {"offsetTable": {"t@g": {"0": 12, "1": 7}}}),
    (b'{"offsetTable":{"t@g":{"0":12,"1":7}}}', {"offsetTable": {"t@g": {"0": 12, "1": 7}}}),
    (b"{a:true,b_2:false,$c:null,-1:[1,-2,3.5,1e3]}", {"a": True, "b_2": False, "$c": None, "-1": [1, -2, 3.5, 1e3]}),
    (b'{"a":1,"a":2}', {"a": 2}),
    ('{"é":"订单 🚀"}'.encode(), {"é": "订单 🚀"}),
    (rb'{"a":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude80"}', {"a": '"\\/\b\f\n\r\té🚀'}),
    (rb'{"a":"\v\0\7\x0b\'"}', {"a": "\v\0\7\x0b'"}),  # escapes of fastjson only
    (b'{"a":"tab\tand\nline"}', {"a": "tab\tand\nline"}),
    (b'{"a":9223372036854775807}', {"a": 2**63 - 1}),
    (b'{"a":"\xff\xed\xa0\x80"}', {"a": "\ufffd\ufffd"}),
]

BAD = [
    (b"", TruncatedError, 0),
    (b"  \n", TruncatedError, 3),
    (b"[1]", CorruptError, 0),
    (b"null", CorruptError, 0),
    (b"{} x", CorruptError, 2),
    (b"{", TruncatedError, 1),
    (b'{"a', TruncatedError, 1),
    (b'{"a"', TruncatedError, 4),
    (b'{"a":', TruncatedError, 5),
    (b'{"a":1', TruncatedError, 6),
    (b'{"a":[1', TruncatedError, 7),
    (b'{"a":1,', TruncatedError, 7),
    (b'{"a":1 "b":2}', CorruptError, 7),
    (b'{"a" 1}', CorruptError, 5),
    (b'{"a":}', CorruptError, 5),
    (b"{:1}", CorruptError, 1),
    (b'{"a":1,}', CorruptError, 7),
    (b'{"a":NaN}', CorruptError, 5),
    (b'{"a":01}', CorruptError, 6),
    (rb'{"a":"\q"}', CorruptError, 5),
    (rb'{"a":"\u12"}', CorruptError, 5),
    ('{"é":?}'.encode(), CorruptError, 6),
    (b'{"a":' + b"9" * 5000 + b"}", CorruptError, 5),
    (b'{"a":' + b"[" * 100_000, CorruptError, 4 + DEPTH_MAX),
]

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
configs = st.dictionaries(texts, values, max_size=4)


@pytest.mark.parametrize(("data", "config"), CASES)
def test_decode(data, config):
    assert decode_config(data) == config


def test_text_will_do_too():
    assert decode_config('{"é":1}') == {"é": 1}


@pytest.mark.parametrize(("data", "kind", "position"), BAD)
def test_bad_text_is_named_with_its_byte(data, kind, position):
    with pytest.raises(kind) as caught:
        decode_config(data)
    assert type(caught.value) is kind
    assert caught.value.position == position


@pytest.mark.parametrize("name", golden_data.ALL)
def test_every_golden_config_file_decodes(golden, name):
    folder = golden(name).store / "config"
    for path in folder.glob("*.json"):
        config = decode_config(path.read_bytes())
        assert config == decode_config(encode_config(config))
    if folder.is_dir():
        topics = decode_config((folder / "topics.json").read_bytes())["topicConfigTable"]
        assert topics["TopicTest"]["topicName"] == "TopicTest"
        assert topics["TopicTest"]["readQueueNums"] == 4


def test_golden_consumer_offsets(golden):
    config = decode_config((golden("v5-clean").store / "config" / "consumerOffset.json").read_bytes())
    assert config["offsetTable"]["RetryTopic@cg_retry"] == {"0": 2, "1": 1, "2": 1, "3": 2}
    assert config["groupTopicMap"]["cg_retry"] == ["%RETRY%cg_retry", "RetryTopic"]


@given(configs)
def test_what_is_encoded_decodes_to_the_same_and_is_json(config):
    data = encode_config(config)
    assert data.isascii()
    assert decode_config(data) == config
    assert json.loads(data) == config
    assert decode_config(json.dumps(config, ensure_ascii=False).encode()) == config


@settings(max_examples=20)
@given(configs)
def test_a_config_cut_at_any_byte_raises(config):
    data = encode_config(config)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            decode_config(data[:size])


@given(st.binary(max_size=60) | st.text('{}[]":,\\u0eEtrufalsn-+. \n').map(str.encode))
def test_any_bytes_decode_or_raise_format_error(data):
    for text in (data, b'{"a":' + data, b'{"a":' + data + b"}"):
        try:
            assert isinstance(decode_config(text), dict)
        except FormatError as error:
            assert 0 <= error.position <= len(text)  # type: ignore[operator]


def test_ints_as_keys_are_written_as_fastjson_writes_them():
    assert encode_config({"offsetTable": {"t@g": {0: 12, 10: 7}}, "empty": {}, "list": [1, []]}) == (
        b'{\n\t"offsetTable":{\n\t\t"t@g":{\n\t\t\t0:12,\n\t\t\t10:7\n\t\t}\n\t},\n\t"empty":{},\n'
        b'\t"list":[\n\t\t1,\n\t\t[]\n\t]\n}'
    )


@pytest.mark.parametrize(
    "config", [{"a": float("nan")}, {"a": float("inf")}, {"a": object()}, {"a": b"x"}, {None: 1}, {True: 1}, {1.5: 1}]
)
def test_what_is_not_json_is_refused(config):
    with pytest.raises(UsageError):
        encode_config(config)


@pytest.mark.parametrize(
    "unit", [b'"', b"\\", b'"\\', b'{"', b"{a", b"{1", b" ", b'{"a":', b"-", b"1e", b"a", b'"a":1,', b"[1,"]
)
def test_time_grows_with_the_text_and_no_faster(unit):
    def seconds(count):
        text = b'{"a":' + unit * count
        start = time.process_time()
        with pytest.raises(FormatError):
            decode_config(text)
        return time.process_time() - start

    seconds(1000)
    assert seconds(80_000) < 50 * seconds(8000) + 0.1
