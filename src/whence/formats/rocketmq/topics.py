"""Names of topics: which are RocketMQ's own, and which can be a folder.

A queue lies in ``consumequeue/<topic>/<queue>/``, so a name that comes out of a damaged record must not be
taken for a path before ``can_be_folder`` has seen it.

Follows RocketMQ 5.5 TopicValidator.java and MixAll.java.
"""

from __future__ import annotations

import re

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_HALF = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
CHECKED_TOO_OFTEN = "TRANS_CHECK_MAX_TIME_TOPIC"
DELAY = "SCHEDULE_TOPIC_XXXX"
TIMER = "rmq_sys_wheel_timer"
TRACE = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"

SYSTEM_TOPICS = frozenset(
    {
        HALF,
        OP_HALF,
        ROCKSDB_HALF,
        ROCKSDB_OP_HALF,
        CHECKED_TOO_OFTEN,
        DELAY,
        TRACE,
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
    }
)
_VALID = re.compile(r"[%|a-zA-Z0-9_-]+")


def is_system_topic(topic: str) -> bool:
    """True if RocketMQ keeps ``topic`` for its own work. Retries and dead letters are messages of users."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def valid_topic(topic: str) -> bool:
    """True if RocketMQ lets a user make a topic of this name."""
    may_be_long = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return _VALID.fullmatch(topic) is not None and len(topic) <= (255 if may_be_long else 127)


def can_be_folder(topic: str) -> bool:
    """True if ``topic`` names one folder and nothing else.

    Wider than ``valid_topic``: light queues have names that no user could give a topic (``%LMQ%$orders$eu``).
    """
    try:
        size = len(topic.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return 0 < size <= 255 and topic not in (".", "..") and not set(topic) & {"/", "\\", "\0"}
