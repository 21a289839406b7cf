"""What may be put into a store. What may not is refused with RocketMQ's status and a reason in words.

A wrong type, or a text that could not be read back, is a mistake in the call: UsageError.

    body         message_size_max                  MESSAGE_ILLEGAL
    properties   32,767 bytes                      PROPERTIES_SIZE_EXCEEDED
    topic        127 bytes, of retries 255         MESSAGE_ILLEGAL
    record       what a file holds                 MESSAGE_ILLEGAL; for light queues also message_size_max

RocketMQ has a limit of its own for a whole record, 64 KiB above that of the body, which the others keep from being
reached.

Follows HookUtils of RocketMQ 5.5's broker and DefaultMessageStore, CommitLog and MessageExtEncoder of its store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whence.errors import UsageError
from whence.formats.rocketmq.properties import (
    DELAY_LEVEL,
    INNER_BASE,
    INNER_COUNT,
    KEYS,
    LIGHT_QUEUES,
    NAME_END,
    RECORD_CRC,
    TAGS,
    WAIT,
)
from whence.formats.rocketmq.topics import (
    DEAD_LETTER_PREFIX,
    DELAY,
    LIGHT_QUEUE_PREFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    can_be_folder,
)
from whence.store.put_result import PutStatus

Properties = Mapping[str, str]

MESSAGE_SIZE_MAX = 4 * 1024 * 1024  # RocketMQ's default
TOPIC_SIZE_MAX = 127
RETRY_TOPIC_SIZE_MAX = 255
INNER_COUNT_MAX = 32_767  # an i2 in a batch queue
KEY_END = " "
_KEYS_START, _TAGS_START = f"{KEYS}{NAME_END}", f"{TAGS}{NAME_END}"


class RefusedError(Exception):
    """A message is not put: with which status, and why."""

    def __init__(self, status: PutStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def illegal(detail: str) -> RefusedError:
    return RefusedError(PutStatus.MESSAGE_ILLEGAL, detail)


def check_queue(topic: str, queue: int) -> None:
    """Refuse a topic that is too long, or that its queues could have no folder of, and a queue that has no number."""
    if not isinstance(topic, str) or not isinstance(queue, int):
        raise UsageError(f"topic {topic!r} and queue {queue!r} must be a text and a number")
    try:
        size = len(topic.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(f"topic {topic!r} holds half a character (a lone surrogate)") from error
    size_max = RETRY_TOPIC_SIZE_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_SIZE_MAX
    if size > size_max:
        raise illegal(f"topic {topic!r} takes {size} bytes; {size_max} fit")
    if not can_be_folder(topic):
        raise UsageError(f"topic {topic!r} cannot be the name of a folder, in which its queues would lie")
    if not 0 <= queue < 2**31:
        raise UsageError(f"queue {queue} of {topic!r}: queues are numbered from 0 to {2**31 - 1}")


def checked_body(body: object) -> bytes:
    """A body as bytes."""
    if body is None:
        raise illegal("a message without a body; an empty one is b''")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise UsageError(f"a body is bytes, not {type(body).__name__}")
    return bytes(body)


def join_keys_and_tags(keys: Sequence[str], tags: str | None) -> str:
    """The properties KEYS and TAGS, as far as there are any. A key that could not be found again is refused."""
    text = ""
    if keys:
        try:
            joined = " ".join(keys)
            if joined.count(" ") != len(keys) - 1 or "" in keys or "\x02" in joined or isinstance(keys, str):
                raise UsageError(
                    f"keys {keys!r} must be a list of texts, which are not empty and hold no space and no byte 02"
                )
        except TypeError as error:
            raise UsageError(f"keys are a list of texts: {error}") from error
        text = f"{_KEYS_START}{joined}\x02"
    if tags:
        if not isinstance(tags, str) or "\x02" in tags:
            raise UsageError(f"tags {tags!r} must be a text without the byte 02, which ends it")
        text = f"{text}{_TAGS_START}{tags}\x02"
    return text


def checked_properties(
    properties: Properties, *, has_keys: bool, has_tags: bool, inner_count: int = 0, drops_record_crc: bool = False
) -> dict[str, str]:
    """The properties to be stored, of which some may be refused, and some are ours to tell."""
    if not isinstance(properties, Mapping):
        raise UsageError(f"properties are names and values, not {type(properties).__name__}")
    given = dict(properties)
    for name, is_told in ((KEYS, has_keys), (TAGS, has_tags)):
        if is_told and name in given:
            raise UsageError(f"property {name} is told twice: by itself, and as {name.lower()}")
    if inner_count:
        given[INNER_COUNT] = str(inner_count)
        given.pop(INNER_BASE, None)
    elif INNER_COUNT in given:
        raise illegal(f"property {INNER_COUNT} of a message that is no inner batch")
    if drops_record_crc:
        given.pop(RECORD_CRC, None)
    return given


def check_delay(properties: Properties) -> None:
    """Refuse a delay, which no message of a batch can have."""
    try:
        is_delayed = int(properties.get(DELAY_LEVEL, 0)) > 0
    except ValueError as error:
        raise illegal(f"delay level {properties[DELAY_LEVEL]!r} is not a number") from error
    if is_delayed:
        raise illegal("the messages of a batch cannot be delayed")


def waits(properties: Properties) -> bool:
    """Whether the property WAIT lets a message wait for its flush."""
    return properties.get(WAIT, "true").lower() == "true"


def light_queue_names(topic: str, properties: Properties) -> list[str] | None:
    """The names in INNER_MULTI_DISPATCH, as Java splits them; None if the message enters no light queues."""
    value = properties.get(LIGHT_QUEUES, "")
    forbidden = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX)
    if not value.strip() or topic.startswith(forbidden) or topic == DELAY:
        return None
    names = value.split(",")
    while names and not names[-1]:
        names.pop()
    for name in names:
        if is_light_queue(name) and not can_be_folder(name):
            raise UsageError(f"light queue {name!r} cannot be the name of a folder")
    return names


def is_light_queue(name: str) -> bool:
    return name.startswith(LIGHT_QUEUE_PREFIX)
