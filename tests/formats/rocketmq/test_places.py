"""In which queues a message is: its own, and those that its properties tell of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import Record, encode_properties, encode_record
from whence.formats.rocketmq.message import Message, decode_message
from whence.formats.rocketmq.places import inner_batch, light_queue_offsets, offsets_in_queue


def message(topic: str = "T", queue: int = 2, queue_offset: int = 7, **properties: str) -> Message:
    record = Record(
        topic=topic, queue=queue, queue_offset=queue_offset, properties_data=encode_properties(properties)
    )
    return decode_message(encode_record(record))[0]


BATCHES = [
    ({"INNER_BASE": "7", "INNER_NUM": "5"}, (7, 5)),
    ({"INNER_BASE": "+7", "INNER_NUM": "005"}, (7, 5)),
    ({"INNER_BASE": "7"}, None),
    ({"INNER_NUM": "5"}, None),
    ({}, None),
    ({"INNER_BASE": "x", "INNER_NUM": "5"}, (-1, 5)),
    ({"INNER_BASE": "-2", "INNER_NUM": "5"}, (-1, 5)),
    ({"INNER_BASE": "7", "INNER_NUM": "32768"}, (7, -1)),
    ({"INNER_BASE": str(2**63), "INNER_NUM": "32767"}, (-1, 32767)),
    ({"INNER_BASE": "٧", "INNER_NUM": "1_0"}, (-1, -1)),
]


@pytest.mark.parametrize(("properties", "batch"), BATCHES)
def test_an_inner_batch_tells_its_first_offset_and_its_count(properties, batch):
    assert inner_batch(properties) == batch


LIGHT = [  # names, offsets, what they come to
    ("%LMQ%a", "4", [("%LMQ%a", 4)]),
    ("%LMQ%a,%LMQ%b", "4,0", [("%LMQ%a", 4), ("%LMQ%b", 0)]),
    ("%LMQ%a,%LMQ%b,", "4,0,", [("%LMQ%a", 4), ("%LMQ%b", 0)]),
    ("%LMQ%a,%LMQ%b", "4", []),
    ("%LMQ%a", "4,5", []),
    ("%LMQ%a,other,%LMQ%b", "4,,5", [("%LMQ%a", 4), ("%LMQ%b", 5)]),
    ("%LMQ%a/b,%LMQ%c", "4,5", [("%LMQ%c", 5)]),
    ("%LMQ%a,%LMQ%b", "x,5", [("%LMQ%b", 5)]),
    ("%LMQ%a,%LMQ%b", "-1,5", [("%LMQ%b", 5)]),
    ("", "", []),
    (",", ",", []),
]


@pytest.mark.parametrize(("names", "offsets", "places"), LIGHT)
def test_light_queues_are_named_beside_their_offsets(names, offsets, places):
    properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    assert light_queue_offsets("T", properties) == places


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_messages_of_some_topics_are_in_no_light_queue(topic):
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "4"}
    assert light_queue_offsets(topic, properties) == []
    assert light_queue_offsets("%DLQ%group", properties) == [("%LMQ%a", 4)]


@given(st.dictionaries(st.sampled_from(["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"]), st.text()))
def test_any_text_names_light_queues_or_none(properties):
    for name, queue_offset in light_queue_offsets("T", properties):
        assert name.startswith("%LMQ%")
        assert 0 <= queue_offset < 2**63


def test_a_message_takes_its_offset_in_its_queue():
    assert offsets_in_queue(message(), "T", 2) == range(7, 8)
    assert not offsets_in_queue(message(), "T", 1)
    assert not offsets_in_queue(message(), "U", 2)


def test_an_inner_batch_takes_as_many_offsets_as_it_has_messages():
    assert offsets_in_queue(message(INNER_BASE="7", INNER_NUM="5"), "T", 2) == range(7, 12)


def test_a_message_takes_an_offset_in_each_of_its_light_queues():
    lit = message(INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b", INNER_MULTI_QUEUE_OFFSET="4,0")
    assert offsets_in_queue(lit, "%LMQ%a", 0) == range(4, 5)
    assert offsets_in_queue(lit, "%LMQ%b", 0) == range(1)
    assert offsets_in_queue(lit, "T", 2) == range(7, 8)
    assert not offsets_in_queue(lit, "%LMQ%a", 1)
    assert not offsets_in_queue(lit, "%LMQ%c", 0)
