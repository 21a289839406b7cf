"""Workload: random messages of all sorts for a store, and what the store acknowledged of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from tests.reference import SCHEDULE_TOPIC, Record

TOPICS = ("orders", "Aa", "BB", SCHEDULE_TOPIC)  # two of one hash
QUEUES = 2
DELAYS = (9, 18)  # levels: five minutes or more, so that no broker delivers them during a test
TAGS = (None, "paid", "TagA", "ü")
PUT_OK = "PUT_OK"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a store's files, as ``create`` takes them: so small that a hundred messages roll all of them."""

    file_size: int = 16_384
    queue_file_size: int = 400
    slots: int = 31
    items: int = 100

    def arguments(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Acknowledged:
    """One message that was put, as its writer knows it."""

    physical_offset: int
    queue_offset: int
    topic: str
    queue: int
    body_crc: int
    keys: tuple[str, ...]

    def is_in(self, record: Record) -> bool:
        """Whether the log has this very message."""
        return self == Acknowledged(
            record.physical_offset,
            record.queue_offset,
            record.topic,
            record.queue,
            zlib.crc32(record.stored_body),
            tuple(record.key_tokens),
        )


class Workload:
    """Messages by a random number generator. Each has a key of its own and shares others; ``number`` counts them."""

    def __init__(self, random: Random, first: int = 0) -> None:
        self.random = random
        self.number = first

    def put_some(self, store: Any) -> tuple[list[Acknowledged], list[str]]:
        """Append one message or a batch: what was acknowledged, and the status, with details, if it is not PUT_OK."""
        topic = self.random.choice(TOPICS)
        queue = self.random.randrange(QUEUES)
        if self.random.random() < 0.3:
            return self._put_batch(store, topic, queue, self.random.randint(1, 30))
        keys, body = self._keys(), self._body()
        properties = {"DELAY": str(self.random.randint(*DELAYS))} if topic == SCHEDULE_TOPIC else {}
        result = store.append(
            topic, body, keys=keys, tags=self.random.choice(TAGS), queue=queue, properties=properties
        )
        if result.status != PUT_OK:
            return [], [f"{result.status}: {result.detail}"]
        offsets = (result.physical_offset, result.queue_offset)
        return [Acknowledged(*offsets, topic, queue, zlib.crc32(body), tuple(keys))], []

    def _put_batch(self, store: Any, topic: str, queue: int, count: int) -> tuple[list[Acknowledged], list[str]]:
        keys = [self._keys() for _ in range(count)]
        bodies = [self._body() for _ in range(count)]
        tags: str | list[str | None] | None = self.random.choice(TAGS)
        if self.random.random() < 0.5:
            tags = [self.random.choice(TAGS) for _ in range(count)]
        result = store.append_batch(topic, bodies, keys=keys, tags=tags, queue=queue)
        if result.status != PUT_OK:
            return [], [f"{result.status}: {result.detail}"]
        offsets = [int(offset) for offset in result.physical_offsets]
        return list(self._batch(offsets, result.queue_offset, topic, queue, bodies, keys)), []

    def _batch(
        self,
        offsets: Sequence[int],
        queue_offset: int,
        topic: str,
        queue: int,
        bodies: Sequence[bytes],
        keys: Sequence[Sequence[str]],
    ) -> Iterator[Acknowledged]:
        for step, (offset, body, each) in enumerate(zip(offsets, bodies, keys, strict=True)):
            yield Acknowledged(offset, queue_offset + step, topic, queue, zlib.crc32(body), tuple(each))

    def _keys(self) -> list[str]:
        self.number += 1
        own = f"key-{self.number}"
        return [own, *self.random.choice([[], [], ["shared"], [f"few-{self.random.randrange(20)}", "schön"], [own]])]

    def _body(self) -> bytes:
        size = self.random.choice([0, 1, 40, 300, self.random.randrange(600), self.random.randrange(5000)])
        return self.random.randbytes(size)
