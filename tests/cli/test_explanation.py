"""What ``whence explain`` tells is true to the byte, and reads from top to bottom."""

import json
import struct

import pytest

from tests.reference import text_hash
from tests.store_maker import make_store, message


def test_every_byte_that_is_told_holds_what_is_told_of_it(here, golden):
    store = golden("v5-clean").store
    document = json.loads(here("explain", store, "--key", "order-1", "--json").out)
    items = [step for step in document["steps"] if step["step"] == "item"]
    assert len(items) == document["receipt"]["items_visited"]
    heads: set[tuple[str, int]] = set()
    for item in items:
        data = (store / "index" / item["file"]).read_bytes()
        at = item["position"]
        assert struct.unpack(">iq", data[at : at + 12]) == (item["key_hash"], item["physical_offset"])
        assert item["slot"] == item["wanted"] % 97
        if (item["file"], item["wanted"]) not in heads:  # the first of a chain is what its slot holds
            heads.add((item["file"], item["wanted"]))
            at = item["slot_position"]
            assert struct.unpack(">i", data[at : at + 4]) == (item["number"],)


def test_hashes_are_those_of_every_topic(here, golden):
    document = json.loads(here("explain", golden("v5-clean").store, "--key", "order-1", "--json").out)
    hashes = {text: entry["key_hash"] for entry in document["hashes"] for text in entry["texts"]}
    assert hashes["Order-Events_2#order-1"] == 764807002
    assert all(hashed == text_hash(text) for text, hashed in hashes.items())


@pytest.mark.parametrize("asked", [["--key", "order-1"], ["--offset", 674988], ["--since", 0],
                                   ["--id", "7F0000013C0630946E094D666C3E06CE"], ["--key", "nobody"],
                                   ["--topic", "TopicTest", "--queue", 3, "--queue-offset", 5]])  # fmt: skip
def test_explain_gives_the_answer_that_find_gives(here, golden, asked):
    store = golden("v5-clean").store
    explained = json.loads(here("explain", store, *asked, "--json").out)
    found = json.loads(here("find", store, *asked, "--json").out)
    assert explained["messages"] == found["messages"]
    assert explained["bytes_read"] > 0
    text = here("explain", store, *asked).out
    assert text.startswith("Question: ")
    assert "\n1. " in text
    assert "Read in all: " in text


def test_walk_to_one_message_is_told_step_by_step(here, golden):
    asked = ["--key", "order-1", "--topic", "Order-Events_2", "--limit", "2"]
    told = " ".join(here("explain", golden("v5-clean").store, *asked).out.split())
    for sentence in (
        "Question: key order-1, topic Order-Events_2, limit 2",
        'knows a message by the Java hash of "topic#key"',
        "764807002 Order-Events_2#order-1",
        "Index file 20261116004238024 covers offsets 685519 to 755070; it has 97 slots and 100 items.",
        "hash 764807002 modulo 97 is slot 26, at byte 144. It is empty: no such key here.",
        "hash 764807002 modulo 97 is slot 26, at byte 144. Its chain, newest first:",
        "392 8268 764807002 674988 read: it answers the question",
        "2 messages, newest first; more match. The answer is complete up to here.",
    ):
        assert sentence in told


def test_collision_is_told_as_one(here, golden):
    text = here("explain", golden("v5-clean").store, "--key", "Aa", "--topic", "TopicTest").out
    assert "read and rejected: it does not bear the key: another one has the same hash" in text
    assert "18961  read: it answers the question" in text


def test_key_that_repeats_in_one_message_is_told_once(here, tmp_path):
    records = [message(keys="first", unique_id="u0"), message(keys="a a a", unique_id="u1"), message(keys="last")]
    store = make_store(tmp_path / "store", records).folder
    text = here("explain", store, "--key", "a", "--topic", "T").out
    assert text.count("the same message once more") == 2
    assert "1 message. The answer is complete." in text


def test_what_no_index_covers_is_told(here, tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{n}") for n in range(40)], indexed=20)
    scanned = " ".join(here("explain", made.folder, "--key", "k39", "--topic", "T").out.split())
    assert "which no index file covers, is scanned" in scanned
    left = " ".join(here("explain", made.folder, "--key", "k39", "--topic", "T", "--no-scan").out.split())
    assert "--no-scan forbids to scan them. The answer is not complete." in left


def test_index_file_that_is_not_used_is_told_with_its_reason(here, golden, tmp_path):
    store = golden("v5-clean").copy(tmp_path)
    path = store / "index" / "20261116004236685"
    data = bytearray(path.read_bytes())
    data[0:8] = struct.pack(">q", 1)
    path.write_bytes(data)
    text = " ".join(here("explain", store, "--key", "order-1", "--topic", "Order-Events_2").out.split())
    assert "Index file 20261116004236685 is passed over: the header's begin time is 1, but" in text
    assert "24 messages" in text


def test_cyclic_chain_is_told_with_its_byte(here, golden, tmp_path):
    store = golden("v5-clean").copy(tmp_path)
    path = store / "index" / "20261116004236685"
    data = bytearray(path.read_bytes())
    data[7908 + 16 : 7908 + 20] = struct.pack(">i", 374)  # item 374, one of order-1, points to itself
    path.write_bytes(data)
    ran = here("explain", store, "--key", "order-1", "--topic", "Order-Events_2")
    assert "20261116004236685 at byte 7924: item 374 points to item 374" in " ".join(ran.out.split())
    assert "24 messages" in ran.out
