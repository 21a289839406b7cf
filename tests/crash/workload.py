"""Workload: random messages of all sorts for a store, and what the store acknowledged of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from tests.reference import COMMIT, PREPARED, ROLLBACK, SCHEDULE_TOPIC, Record
from whence.store.queue_builder import QueueBuilder

TOPICS = ("orders", "Aa", "BB", SCHEDULE_TOPIC)  # two of one hash
BATCH_TOPIC = "batches"  # its queues are batch queues, where a topic can have such
QUEUES = 2
DELAYS = (9, 18)  # levels: five minutes or more, so that no broker delivers them during a test
TAGS = (None, "paid", "TagA", "ü")
LIGHT_QUEUES = ("%LMQ%one", "%LMQ%one,%LMQ%two", "%LMQ%two")
PUT_OK = "PUT_OK"
BATCH_FILE_SIZE = 4600
LOG_FOLDERS = ("log-a", "log-b")  # of a store with several

SORTS = ("plain",) * 10 + ("batch",) * 5 + ("client batch", "light", "inner batch") + ("transaction",) * 2
SORTS_OF_4_9 = tuple(sort for sort in SORTS if sort != "inner batch")
"""What a store may be given that RocketMQ 4.9 has to understand."""


def set_batch_file_size(size: int) -> int:
    """Let this process make files of batch queues with this size; gives the size that they had."""
    settings = QueueBuilder.__init__.__kwdefaults__ or {}
    before: int = settings["batch_file_size"]
    settings["batch_file_size"] = size
    return before


@dataclass(frozen=True)
class Sizes:
    """Sizes of a store's files, as ``create`` takes them: so small that a hundred messages roll all of them."""

    file_size: int = 16_384
    queue_file_size: int = 400
    slots: int = 31
    items: int = 100

    def arguments(self) -> dict[str, Any]:
        return asdict(self)


def random_settings(random: Random) -> dict[str, Any]:
    """Further arguments of ``create``: mostly none."""
    settings: dict[str, Any] = {}
    if random.random() < 0.3:
        settings["log_folders"] = LOG_FOLDERS
    if random.random() < 0.3:
        settings["record_crc"] = True
    if random.random() < 0.1:
        settings["warm_up"] = True
    return settings


@dataclass(frozen=True)
class Acknowledged:
    """One message that was put, as its writer knows it."""

    physical_offset: int
    queue_offset: int
    topic: str
    queue: int
    body_crc: int
    keys: tuple[str, ...]

    @classmethod
    def of(cls, record: Record) -> Acknowledged:
        """What the writer of a record in the log was told."""
        return cls(
            record.physical_offset,
            record.queue_offset,
            record.topic,
            record.queue,
            zlib.crc32(record.stored_body),
            tuple(record.properties.get("KEYS", "").split()),
        )


Outcome = tuple[list[Acknowledged], list[str]]
"""What was acknowledged, and the status, with details, if it is not PUT_OK."""


class Workload:
    """Messages by a random number generator. Each has a key of its own and shares others; ``number`` counts them."""

    def __init__(self, random: Random, first: int = 0, sorts: Sequence[str] = SORTS) -> None:
        self.random = random
        self.number = first
        self.sorts = sorts

    def put_some(self, store: Any) -> Outcome:
        """Append one message, or some at once."""
        sort = self.random.choice(self.sorts)
        topic, queue = self.random.choice(TOPICS), self.random.randrange(QUEUES)
        if sort in ("batch", "client batch"):
            return self._put_batch(store, sort, topic, queue)
        given: dict[str, Any] = {"keys": self._keys(), "tags": self.random.choice(TAGS), "queue": queue}
        if sort == "inner batch":
            store.make_topic(BATCH_TOPIC, QUEUES, {"queue.type": "BatchCQ"})
            body = b"".join(_item(self._body(), []) for _ in range(self.random.randint(1, 5)))
            result = store.append_inner_batch(BATCH_TOPIC, body, **given)
            return _outcome([result.physical_offset], result, BATCH_TOPIC, queue, [body], [given["keys"]])
        if sort == "light":
            topic = "orders"  # delayed messages enter no light queues
            given["properties"] = {"INNER_MULTI_DISPATCH": self.random.choice(LIGHT_QUEUES)}
        elif sort == "transaction":
            given["sys_flag"] = self.random.choice([PREPARED, COMMIT, ROLLBACK])
        if topic == SCHEDULE_TOPIC:
            given["properties"] = {"DELAY": str(self.random.randint(*DELAYS))}
        body = self._body()
        result = store.append(topic, body, **given)
        return _outcome([result.physical_offset], result, topic, queue, [body], [given["keys"]])

    def _put_batch(self, store: Any, sort: str, topic: str, queue: int) -> Outcome:
        count = self.random.randint(1, 30 if sort == "batch" else 3)
        keys = [self._keys() for _ in range(count)]
        bodies = [self._body() for _ in range(count)]
        if sort == "batch":
            tags: str | list[str | None] | None = self.random.choice(TAGS)
            if self.random.random() < 0.5:
                tags = [self.random.choice(TAGS) for _ in range(count)]
            result = store.append_batch(topic, bodies, keys=keys, tags=tags, queue=queue)
        else:
            result = store.append_client_batch(topic, b"".join(map(_item, bodies, keys)), queue=queue)
        return _outcome([int(offset) for offset in result.physical_offsets], result, topic, queue, bodies, keys)

    def _keys(self) -> list[str]:
        self.number += 1
        own = f"key-{self.number}"
        return [own, *self.random.choice([[], [], ["shared"], [f"few-{self.random.randrange(20)}", "schön"], [own]])]

    def _body(self) -> bytes:
        size = self.random.choice([0, 1, 40, 300, self.random.randrange(600), self.random.randrange(5000)])
        return self.random.randbytes(size)


def _outcome(
    offsets: Sequence[int],
    result: Any,
    topic: str,
    queue: int,
    bodies: Sequence[bytes],
    keys: Sequence[Sequence[str]],
) -> Outcome:
    if result.status != PUT_OK:
        return [], [f"{result.status}: {result.detail}"]
    acknowledged = [
        Acknowledged(offset, result.queue_offset + step, topic, queue, zlib.crc32(body), tuple(each))
        for step, (offset, body, each) in enumerate(zip(offsets, bodies, keys, strict=True))
    ]
    return acknowledged, []


def _item(body: bytes, keys: Sequence[str]) -> bytes:
    """One message of a client's batch."""
    properties = f"KEYS\x01{' '.join(keys)}\x02".encode() if keys else b""
    size = 22 + len(body) + len(properties)
    return struct.pack(">5i", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
