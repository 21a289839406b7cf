"""Explain: the walk of a search, told step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whence.formats.hashing import key_hash
from whence.formats.rocketmq.index_file import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, item_position, slot_position
from whence.lookup.answer import Answer
from whence.lookup.question import ScanMode
from whence.store.index_file import IndexFile

STEPS_MAX = 10_000  # a hot key's chain has millions of items; the counts in the receipt go on


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the search did; ``details`` are plain values."""

    name: str
    details: dict[str, Any]


class Recorder:
    """Keeps the steps of one search."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, name: str, **details: Any) -> None:
        if len(self.steps) < STEPS_MAX:
            self.steps.append(Step(name, dict(_plain(name, details))))


def _plain(name: str, details: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Details in JSON's terms; an index file becomes its name, slot and byte positions."""
    file = details.get("file")
    for key, value in details.items():
        if isinstance(value, IndexFile):
            yield key, value.path.name
        else:
            yield key, list(value) if isinstance(value, tuple) else value
    if isinstance(file, IndexFile) and file.shape is not None:
        if name == "index_file":
            yield "slots", file.shape.slot_capacity
            yield "items", file.header().next_item - 1
        elif name == "item":
            slot = details["wanted"] % file.shape.slot_capacity
            yield "slot", slot
            yield "slot_position", slot_position(slot)
            yield "position", item_position(file.shape.slot_capacity, details["number"])


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer and how it came about."""

    answer: Answer
    steps: list[Step]

    @property
    def hashes(self) -> dict[int, list[str]]:
        """What was looked for in the index files: hashes, and the texts ``topic#key`` (or value) that each is of."""
        question = self.answer.question
        is_place = question.offset is not None or question.queue_offset is not None
        if question.scan is ScanMode.EVERYTHING or (is_place and not question.fields):
            return {}
        topics = [question.topic] if question.topic is not None else self._topics()
        texts = question.keys if question.id is None else (question.id,)
        if question.fields:
            texts = tuple(value for _, value in question.fields)
        found: dict[int, list[str]] = {}
        for topic in topics:
            for text in texts:
                found.setdefault(key_hash(topic, text), []).append(f"{topic}#{text}")
        return found

    def _topics(self) -> list[str]:
        return next((step.details["topics"] for step in self.steps if step.name == "topics"), [])

    @property
    def bytes_read(self) -> int:
        """Bytes of index and log that were looked at; of rejected candidates only the items."""
        receipt = self.answer.receipt
        walked = receipt.index_files - receipt.index_files_skipped if receipt.index_source != "none" else 0
        seams: int = sum(
            step.details["to_offset"] - step.details["from_offset"]
            for step in self.steps
            if step.name == "scan" and step.details["seam"]
        )
        return (
            walked * (HEADER_SIZE + SLOT_SIZE * len(self.hashes))
            + receipt.items_visited * ITEM_SIZE
            + receipt.scanned_bytes
            + seams
            + sum(message.size for message in self.answer.messages)
        )

    def to_dict(self, *, body: bool = False) -> dict[str, Any]:
        """The JSON form: the answer's, with the walk before it."""
        return {
            "hashes": [{"key_hash": number, "texts": texts} for number, texts in self.hashes.items()],
            "steps": [{"step": step.name, **step.details} for step in self.steps],
            "bytes_read": self.bytes_read,
            **self.answer.to_dict(body=body),
        }
