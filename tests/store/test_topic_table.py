import json

import pytest

from tests.disks import UnflushedDisk
from whence.errors import CorruptError, FormatError, UsageError
from whence.formats.rocketmq.config import decode_config
from whence.store.topic_table import TopicTable


def table(folder, **how):
    return TopicTable(folder, UnflushedDisk(), lambda: 1_700_000_000_500, **how)


def written(folder):
    return decode_config((folder / "config" / "topics.json").read_bytes())


def test_a_topic_is_made_as_a_broker_keeps_it(tmp_path):
    table(tmp_path).make("orders", 4)
    assert written(tmp_path) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_500},
        "topicConfigTable": {
            "orders": {
                "attributes": {},
                "order": False,
                "perm": 6,
                "readQueueNums": 4,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "orders",
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        },
    }


def test_a_topic_gets_the_queues_that_are_written_to(tmp_path):
    topics = table(tmp_path)
    topics.need("orders", 0)
    topics.need("orders", 7)
    topics.need("orders", 3)
    assert topics.queue_count("orders") == table(tmp_path).queue_count("orders") == 8
    assert written(tmp_path)["dataVersion"]["counter"] == 2


def test_light_queues_are_no_topics(tmp_path):
    topics = table(tmp_path)
    topics.need("%LMQ%$orders$eu", 0)
    assert "%LMQ%$orders$eu" not in topics
    assert not (tmp_path / "config").exists()


def test_what_a_broker_wrote_stays(tmp_path, golden):
    store = golden("v5-clean").copy(tmp_path)
    before = written(store)
    table(store).make("new", 1)
    after = written(store)
    assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1
    assert {**before["topicConfigTable"], "new": after["topicConfigTable"]["new"]} == after["topicConfigTable"]


def test_unknown_members_of_the_file_stay(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {}, "other": [1]}))
    table(tmp_path).make("a", 1)
    assert written(tmp_path)["other"] == [1]


def test_a_topic_of_batches_is_known_by_its_attribute(tmp_path):
    topics = table(tmp_path)
    topics.make("b", 1, {"queue.type": "BatchCQ"})
    topics.make("b", 2)
    topics.make("c", 1)
    assert [topics.is_batch(topic) for topic in ("b", "c", "d")] == [True, False, False]


@pytest.mark.parametrize(("topic", "queues"), [("../up", 1), ("", 1), ("a", 0), ("a", 65537)])
def test_what_can_be_no_topic_is_refused(tmp_path, topic, queues):
    with pytest.raises(UsageError, match="topic"):
        table(tmp_path).make(topic, queues)


def test_a_file_that_is_no_config_is_refused_with_its_name(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("[")
    with pytest.raises(CorruptError, match=r"topics\.json"):
        table(tmp_path)


@pytest.fixture
def crashed(tmp_path):
    """A broker had made a topic of batches, and then rewrote its file when it was killed."""
    topics = table(tmp_path)
    topics.make("b", 1, {"queue.type": "BatchCQ"})
    path = tmp_path / "config" / "topics.json"
    path.with_name("topics.json.bak").write_bytes(path.read_bytes())
    return path


@pytest.mark.parametrize("left", [None, b"", b" ", b'{"topicConfigTable":{"b":{"ord', b"\0" * 100])
def test_what_a_crashed_broker_left_counts_for_nothing_and_the_file_before_it_does(tmp_path, crashed, left):
    crashed.unlink()
    if left is not None:
        crashed.write_bytes(left)
    asked = table(tmp_path, only_read=True)
    assert asked.batch_topics() == ("b",)
    assert len(asked.notes) == (left is not None)
    assert all(note.startswith(str(crashed)) and "topics.json.bak" in note for note in asked.notes)
    assert (crashed.read_bytes() if crashed.exists() else None) == left
    table(tmp_path).make("new", 1)
    assert set(written(tmp_path)["topicConfigTable"]) == {"b", "new"}
    assert table(tmp_path).batch_topics() == ("b",)


@pytest.mark.parametrize("backup", [None, b"", b"["])
def test_where_no_file_can_be_read_only_who_writes_nothing_goes_on(tmp_path, crashed, backup):
    crashed.write_bytes(b"")
    spare = crashed.with_name("topics.json.bak")
    spare.unlink()
    if backup is not None:
        spare.write_bytes(backup)
    with pytest.raises(FormatError, match=r"topics\.json"):
        table(tmp_path)
    assert table(tmp_path, only_read=True).batch_topics() == ()
    (tmp_path / "batchconsumequeue" / "b" / "0").mkdir(parents=True)
    asked = table(tmp_path, only_read=True)
    assert asked.batch_topics() == ("b",)
    [note] = asked.notes
    assert note.startswith(str(crashed)) and "batchconsumequeue" in note


def test_a_topic_that_whence_made_is_not_lost_with_the_file_that_a_broker_wrote(tmp_path, crashed):
    table(tmp_path).make("c", 1, {"queue.type": "BatchCQ"})
    crashed.write_bytes(b"")
    assert table(tmp_path).batch_topics() == ("b", "c")


def test_what_a_broker_writes_is_noticed_by_who_began_while_it_did_so(tmp_path, crashed):
    whole = crashed.read_bytes()
    crashed.unlink()
    asked = table(tmp_path, only_read=True)
    crashed.write_bytes(whole.replace(b'"b"', b'"d"'))
    asked.refresh()
    assert asked.batch_topics() == ("d",)


def test_what_a_broker_changes_is_noticed_but_not_what_it_writes_by_half(tmp_path):
    here, broker = table(tmp_path), table(tmp_path)
    broker.make("orders", 4)
    assert "orders" not in here
    here.refresh()
    assert here.queue_count("orders") == 4
    path = tmp_path / "config" / "topics.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    here.refresh()
    assert "orders" in here
    path.unlink()
    here.refresh()
    assert "orders" in here
    broker.make("returns", 1)
    here.refresh()
    assert "returns" in here
