"""Explain: the walk of a search, told step by step; the same answer as ``find``."""

import json

import pytest

import whence
from tests.golden import ALL, few_fast
from tests.lookup.judge import offsets
from tests.reference import key_hash
from tests.store_maker import FILE_SIZE, make_store, message

MESSAGES = [message(keys=f"k{number} every", unique_id=f"id-{number}", tags="t", at=number) for number in range(60)]


def steps(explanation, name):
    return [step.details for step in explanation.steps if step.name == name]


@pytest.mark.parametrize("name", few_fast(ALL))
def test_the_answer_is_that_of_find(asked, judge, name):
    for key in [*judge(name).hot_keys[:3], "absent"]:
        explanation = asked(name).explain(key=key, limit=None)
        assert offsets(explanation.answer) == judge(name).by_key.get(key, [])
        found = asked(name).find(key=key, limit=None).receipt
        told = explanation.answer.receipt
        for member in ("complete", "items_visited", "candidates", "rejected", "index_files_skipped", "why_empty"):
            assert getattr(told, member) == getattr(found, member)


def test_every_item_that_was_visited_is_told_with_its_byte(tmp_path):
    made = make_store(tmp_path, MESSAGES, slots=7, items=100)
    with whence.open(tmp_path) as store:
        explanation = store.explain(key="k7", topic="T")
    items = steps(explanation, "item")
    assert len(items) == explanation.answer.receipt.items_visited > 0
    for item in items:
        data = (tmp_path / "index" / item["file"]).read_bytes()
        row = data[item["position"] : item["position"] + 20]
        assert int.from_bytes(row[:4], "big") == item["key_hash"]
        assert int.from_bytes(row[4:12], "big") == item["physical_offset"]
        assert item["slot_position"] == 40 + 4 * item["slot"]
        assert item["slot"] == item["wanted"] % 7
    assert [step["physical_offset"] for step in steps(explanation, "verified")] == [made.offsets[7]]


def test_rejects_are_told_with_their_reason(tmp_path):
    make_store(tmp_path, [message(keys="Aa"), message(keys="BB"), message(keys="BB"), message(keys="end")], items=100)
    with whence.open(tmp_path) as store:
        explanation = store.explain(key="Aa", topic="T")
    rejected = steps(explanation, "rejected")
    assert len(rejected) == 2
    assert all("same hash" in step["why"] for step in rejected)


def test_scans_and_what_was_not_scanned_are_told(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000, indexed=20)
    with whence.open(tmp_path) as store:
        scanned = steps(store.explain(key="k50"), "scan")
        not_scanned = steps(store.explain(key="k50", no_scan=True), "not_scanned")
    # Newest first, so the last stretch of the log comes first.
    assert scanned[0]["to_offset"] == made.end_offset
    assert not_scanned[0]["to_offset"] == made.end_offset
    assert not any(step["seam"] for step in scanned if step["to_offset"] - step["from_offset"] > FILE_SIZE // 2)


def test_files_that_were_skipped_are_told_with_their_reason(tmp_path):
    made = make_store(tmp_path, MESSAGES * 3, items=60)
    for path in made.log_files[:-1]:
        path.unlink()
    bad = made.index_files[-2]
    bad.write_bytes(b"")
    with whence.open(tmp_path) as store:
        skipped = steps(store.explain(key="k50", topic="T"), "skipped")
    whys = {str(step["file"]).rsplit("/", 1)[-1]: step["why"] for step in skipped}
    assert "expired" in whys[made.index_files[0].name]
    assert "header" in whys[bad.name]


def test_the_topics_that_were_asked_are_told(tmp_path):
    make_store(tmp_path, [message(keys="k", topic=topic) for topic in ("a", "b", "SCHEDULE_TOPIC_XXXX")])
    with whence.open(tmp_path) as store:
        assert steps(store.explain(key="k"), "topics") == [{"topics": ["a", "b"]}]


def test_texts_of_one_hash_are_told_together(tmp_path):
    """Aa and BB collide in every topic, so they are one walk."""
    make_store(tmp_path, [message(keys="Aa"), message(keys="BB")])
    with whence.open(tmp_path) as store:
        assert store.explain(key=["Aa", "BB"], topic="T").hashes == {key_hash("T", "Aa"): ["T#Aa", "T#BB"]}
        assert store.explain(key="Aa", scan=True).hashes == {}
        assert store.explain(offset=0).hashes == {}


def test_a_broken_chain_is_told(tmp_path):
    made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
    data = bytearray(made.index_files[0].read_bytes())
    data[40:44] = (999).to_bytes(4, "big")
    made.index_files[0].write_bytes(data)
    with whence.open(tmp_path) as store:
        assert steps(store.explain(key="k7", topic="T"), "bad_chain") or steps(
            store.explain(key="k7", topic="T"), "skipped"
        )


def test_it_becomes_json_with_the_steps_before_the_answer(tmp_path):
    make_store(tmp_path, MESSAGES)
    with whence.open(tmp_path) as store:
        shown = json.loads(json.dumps(store.explain(key="k7").to_dict()))
    assert list(shown) == ["hashes", "steps", "bytes_read", "question", "messages", "receipt"]
    assert shown["hashes"] == [{"key_hash": key_hash("T", "k7"), "texts": ["T#k7"]}]
    assert all("step" in step for step in shown["steps"])
    assert shown["bytes_read"] > shown["messages"][0]["size"]


def test_bytes_read_count_the_index_and_the_log(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000)
    with whence.open(tmp_path) as store:
        few = store.explain(key="k7", topic="T").bytes_read
        all_of_it = store.explain(key="k7", topic="T", scan=True).bytes_read
    assert few < made.end_offset < all_of_it
