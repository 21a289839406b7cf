"""In which queues a message is: its own, and those that its properties tell of.

    INNER_NUM, INNER_BASE                            an inner batch: so many messages, from this queue offset on
    INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET   light queues: their names, and the message's offset in each

Names and offsets are lists with commas between. The one queue of a light queue has number 0. Follows RocketMQ 5.5
CommitLog.java, ConsumeQueue.java and MultiDispatchUtils.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.properties import INNER_BASE, INNER_COUNT, LIGHT_QUEUE_OFFSETS, LIGHT_QUEUES
from whence.formats.rocketmq.topics import DELAY, LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, can_be_folder

LIGHT_QUEUE = 0
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_NO_NUMBER = -1
_I8_MAX = 2**63 - 1
_I2_MAX = 2**15 - 1


def offsets_in_queue(message: Message, topic: str, queue: int) -> range:
    """The queue offsets that a message takes in a queue: one, as many as an inner batch has messages, or none."""
    if (message.topic, message.queue) == (topic, queue):
        base, count = inner_batch(message.properties) or (message.queue_offset, 1)
        return range(base, base + count)
    if queue == LIGHT_QUEUE and topic.startswith(LIGHT_QUEUE_PREFIX):
        for name, queue_offset in light_queue_offsets(message.topic, message.properties):
            if name == topic:
                return range(queue_offset, queue_offset + 1)
    return range(0)


def inner_batch(properties: Mapping[str, str]) -> tuple[int, int] | None:
    """First queue offset and count of the messages in an inner batch; None if it is none.

    What is no number, or too large, is -1: such a record is in no queue.
    """
    if INNER_BASE not in properties or INNER_COUNT not in properties:
        return None
    return _number(properties[INNER_BASE], _I8_MAX), _number(properties[INNER_COUNT], _I2_MAX)


def light_queue_offsets(topic: str, properties: Mapping[str, str]) -> list[tuple[str, int]]:
    """Name and queue offset of each light queue that a message of this topic is in, in order.

    Names that are no light queue's, and offsets that are no number, are passed over. If there are not as many offsets
    as names, the message is in none.
    """
    if topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) or topic == DELAY:
        return []
    names, offsets = _split(properties.get(LIGHT_QUEUES, "")), _split(properties.get(LIGHT_QUEUE_OFFSETS, ""))
    if len(names) != len(offsets):
        return []
    return [
        (name, number)
        for name, offset in zip(names, offsets, strict=True)
        if name.startswith(LIGHT_QUEUE_PREFIX) and can_be_folder(name) and (number := _number(offset, _I8_MAX)) >= 0
    ]


def _number(text: str, largest: int) -> int:
    if not _NUMBER.fullmatch(text):
        return _NO_NUMBER
    number = int(text)
    return number if 0 <= number <= largest else _NO_NUMBER


def _split(text: str) -> list[str]:
    """As Java splits: empty pieces at the end do not count."""
    pieces = text.split(",")
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces
