"""Topic names: RocketMQ's own, allowed ones, and those that must not become a path."""

import pytest

from whence.formats.rocketmq import topics
from whence.formats.rocketmq.topics import can_be_folder, is_system_topic, valid_topic

SYSTEM = [
    topics.HALF,
    topics.OP_HALF,
    topics.ROCKSDB_HALF,
    topics.ROCKSDB_OP_HALF,
    topics.CHECKED_TOO_OFTEN,
    topics.DELAY,
    topics.TIMER,
    topics.TRACE,
    "TBW102",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
]
OF_USERS = ["orders", "%RETRY%billing", "%DLQ%billing", "%LMQ%$orders$eu", "RMQ_SYS_", "tbw102", ""]

VALID = ["orders", "Mix%Pipe|x", "a-b_c", "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "t" * 127]
NOT_VALID = ["", " ", "a b", "a.b", "a/b", "é", "a$b", "a\n", "t" * 128, "%RETRY%" + "g" * 249]
FOLDERS = [*VALID, "%LMQ%$orders$eu", "a.b", "é", "t" * 255, "..."]
NOT_FOLDERS = ["", ".", "..", "a/b", "/", "../etc", "a\0b", "a\\b", "t" * 256, "é" * 128, "\ud800"]


@pytest.mark.parametrize("topic", SYSTEM)
def test_topics_of_rocketmq(topic):
    assert is_system_topic(topic)


@pytest.mark.parametrize("topic", OF_USERS)
def test_topics_of_users(topic):
    assert not is_system_topic(topic)


@pytest.mark.parametrize(("topic", "expected"), [(t, True) for t in VALID] + [(t, False) for t in NOT_VALID])
def test_what_a_user_may_call_a_topic(topic, expected):
    assert valid_topic(topic) is expected


@pytest.mark.parametrize(("topic", "expected"), [(t, True) for t in FOLDERS] + [(t, False) for t in NOT_FOLDERS])
def test_what_can_be_the_name_of_a_folder(topic, expected):
    assert can_be_folder(topic) is expected
