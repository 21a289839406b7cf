"""The JSON form of an answer: member by member as INTERFACE.md says."""

import base64
import json

import pytest

import whence
from tests.golden import ALL, few_fast
from tests.lookup.judge import offsets
from tests.store_maker import FILE_SIZE, T, make_store, message

INTERFACE = """
{"question": {"key": "order-4711", "topic": "orders", "since_ms": null, "until_ms": null, "limit": 64},
 "messages": [{"topic": "orders", "queue": 2, "queue_offset": 1841, "physical_offset": 5112377,
               "store_timestamp_ms": 1763251200123, "born_timestamp_ms": 1763251200101, "keys": ["order-4711"],
               "tags": "paid", "unique_id": "7F00...", "offset_id": "7F00...", "size": 512, "reconsume_times": 0,
               "properties": {}, "body": null, "body_size": 300, "body_encoding": null}],
 "receipt": {"complete": true, "truncated": false, "cursor": null, "why_empty": null,
             "searched_from_offset": 0, "searched_to_offset": 104857600, "index_source": "whence",
             "topics_from": "question", "verified_by": "log",
             "indexed_to_offset": 104857600, "indexed_to_timestamp_ms": 1763251999000, "scanned_bytes": 0,
             "index_files": 7, "index_files_skipped": 5, "items_visited": 4, "candidates": 1, "rejected": 0,
             "damage": [], "elapsed_us": 412, "logs": []}}
"""
EXAMPLE = json.loads(INTERFACE)


@pytest.fixture
def made(tmp_path):
    records = [
        message(
            keys="order-4711 other", tags="paid", unique_id="7F00", topic="orders", queue=2, at=5, body=b"a body"
        ),
        message(keys="bytes", topic="orders", body=b"\xff\xfe"),
        message(topic="orders", body=b""),
    ]
    return make_store(tmp_path, records)


def asked(folder, *, body=False, **question):
    with whence.open(folder) as store:
        return json.loads(json.dumps(store.find(**question).to_dict(body=body)))


def test_the_members_are_those_of_the_interface_in_its_order(made):
    answer = asked(made.folder, key="order-4711", topic="orders")
    assert list(answer) == list(EXAMPLE)
    for part in ("question", "receipt"):
        assert list(answer[part]) == list(EXAMPLE[part])
    assert list(answer["messages"][0]) == list(EXAMPLE["messages"][0])


def test_their_types_are_those_of_the_interface(made):
    answer = asked(made.folder, key="order-4711", topic="orders")
    for shown, example in (
        (answer["question"], EXAMPLE["question"]),
        (answer["messages"][0], EXAMPLE["messages"][0]),
        (answer["receipt"], EXAMPLE["receipt"]),
    ):
        for name, value in example.items():
            assert type(shown[name]) is type(value), name


def test_a_message_is_shown_whole(made):
    record = made.records[0]
    [shown] = asked(made.folder, key="order-4711")["messages"]
    assert shown == {
        "topic": "orders",
        "queue": 2,
        "queue_offset": 0,
        "physical_offset": 0,
        "store_timestamp_ms": T + 5,
        "born_timestamp_ms": T + 5,
        "keys": ["order-4711", "other"],
        "tags": "paid",
        "unique_id": "7F00",
        "offset_id": record.offset_id,
        "size": record.size,
        "reconsume_times": 0,
        "properties": {"KEYS": "order-4711 other", "TAGS": "paid", "UNIQ_KEY": "7F00"},
        "body": None,
        "body_size": 6,
        "body_encoding": None,
    }


@pytest.mark.parametrize(
    ("number", "body", "encoding"),
    [(0, "a body", "utf8"), (1, base64.b64encode(b"\xff\xfe").decode(), "base64"), (2, "", "utf8")],
)
def test_bodies_are_text_if_they_are_and_base64_otherwise(made, number, body, encoding):
    [shown] = asked(made.folder, offset=made.offsets[number], body=True)["messages"]
    assert (shown["body"], shown["body_encoding"]) == (body, encoding)


def test_what_a_message_lacks_is_null(made):
    [shown] = asked(made.folder, offset=made.offsets[2])["messages"]
    assert (shown["keys"], shown["tags"], shown["unique_id"], shown["properties"]) == ([], None, None, {})


def test_the_body_is_shown_after_decompression(asked_golden):
    for name in ("v4-clean", "v5-clean"):
        store, records = asked_golden(name)
        compressed = [record for record in records if record.sys_flag & 1]
        assert compressed
        for record in compressed[:6]:
            [shown] = store.find(offset=record.physical_offset).to_dict(body=True)["messages"]
            assert shown["body_size"] == len(record.stored_body)
            text = shown["body"]
            plain = text.encode() if shown["body_encoding"] == "utf8" else base64.b64decode(text)
            assert len(plain) >= 4096


@pytest.fixture
def asked_golden(request):
    opened = request.getfixturevalue("asked")
    judges = request.getfixturevalue("judge")
    return lambda name: (opened(name), judges(name).records)


QUESTIONS = [
    # what is asked, what is shown beside topic, since_ms, until_ms and limit
    ({"key": "a"}, {"key": "a"}),
    ({"key": ["a", "b"]}, {"keys": ["a", "b"]}),
    ({"key": ["a", "a"]}, {"key": "a"}),
    ({"id": "7F00"}, {"id": "7F00"}),
    ({"offset": 0}, {"offset": 0}),
    ({"topic": "orders", "queue": 2, "queue_offset": 0}, {"topic": "orders", "queue": 2, "queue_offset": 0}),
    ({"tag": "paid"}, {"tag": "paid"}),
    ({"since": T, "until": "2023-11-14T22:13:20.500Z"}, {"since_ms": T, "until_ms": T + 500}),
    ({"limit": None}, {"limit": None}),
    ({"limit": 3, "oldest_first": True}, {"limit": 3, "oldest_first": True}),
    ({"system_topics": True}, {"system_topics": True}),
    ({"scan": True}, {"scan": True}),
    ({"key": "a", "no_scan": True}, {"key": "a", "no_scan": True}),
]


@pytest.mark.parametrize(("question", "shown"), QUESTIONS)
def test_the_question_shows_every_member_that_was_asked(made, question, shown):
    usual = {"topic": None, "since_ms": None, "until_ms": None, "limit": 64}
    assert asked(made.folder, **question)["question"] == usual | shown


def test_the_question_of_a_page_shows_its_cursor(made):
    with whence.open(made.folder) as store:
        cursor = store.find(topic="orders", limit=1).cursor
        assert store.find(topic="orders", limit=1, cursor=cursor).to_dict()["question"]["cursor"] == cursor


def test_damage_says_where_what_and_why(tmp_path):
    made = make_store(tmp_path, [message(keys="k") for _ in range(160)])
    made.log_files[1].unlink()
    receipt = asked(tmp_path, key="k", limit=None)["receipt"]
    gap = next(damage for damage in receipt["damage"] if damage["kind"] == "gap")
    assert list(gap) == ["path", "position", "kind", "detail"]
    assert gap["path"] == str(made.folder / "commitlog" / f"{FILE_SIZE:020d}")
    assert gap["position"] == 0
    assert receipt["complete"] is False


def test_an_answer_is_iterated_over_for_its_messages(made):
    with whence.open(made.folder) as store:
        answer = store.find(topic="orders")
    assert [found.physical_offset for found in answer] == offsets(answer) == made.offsets[::-1]
    assert len(answer) == 3
    assert answer.messages[0].body == b""
    assert answer.cursor is None
    assert answer.receipt.elapsed_us > 0


@pytest.mark.parametrize("name", few_fast(ALL))
def test_every_message_of_a_golden_set_becomes_json(asked_golden, name):
    """Also those with bodies that cannot be expanded, broken text, and all kinds of hosts."""
    store, records = asked_golden(name)
    answer = store.find(limit=None, system_topics=True)
    shown = json.loads(json.dumps(answer.to_dict(body=True)))
    assert [found["physical_offset"] for found in shown["messages"]] == [
        record.physical_offset for record in reversed(records)
    ]
    assert [found["properties"] for found in shown["messages"]] == [record.properties for record in reversed(records)]
    assert [found["offset_id"] for found in shown["messages"]] == [record.offset_id for record in reversed(records)]
