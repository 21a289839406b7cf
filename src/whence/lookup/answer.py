"""Answer: the messages, and the receipt that tells what was searched to find them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from whence.errors import FormatError
from whence.formats.rocketmq.message import Message
from whence.lookup.question import Question
from whence.store.damage import Damage, DamageKind

MESSAGE_FIELDS = (
    "topic",
    "queue",
    "queue_offset",
    "physical_offset",
    "store_timestamp_ms",
    "born_timestamp_ms",
    "keys",
    "tags",
    "unique_id",
    "offset_id",
    "size",
    "reconsume_times",
    "properties",
    "body",
    "body_size",
    "body_encoding",
)
"""The members of a message in JSON and CSV, in their order."""


@dataclass(slots=True)
class Receipt:
    """What was searched, how far the index reaches, and whether anything was cut off.

    ``complete``: everything in ``[searched_from_offset, searched_to_offset)`` was looked at, through an index or by
    a scan. ``truncated``: at least one more message answers the question; ``cursor`` goes on there.
    """

    complete: bool = True
    truncated: bool = False
    cursor: str | None = None
    why_empty: str | None = None
    searched_from_offset: int = 0
    searched_to_offset: int = 0
    index_source: str = "none"
    topics_from: str | None = None
    verified_by: str = "log"
    indexed_to_offset: int | None = None
    indexed_to_timestamp_ms: int | None = None
    scanned_bytes: int = 0
    index_files: int = 0
    index_files_skipped: int = 0
    items_visited: int = 0
    candidates: int = 0
    rejected: int = 0
    damage: list[Damage] = field(default_factory=list)
    elapsed_us: int = 0
    logs: list[LogReceipt] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether the answer is not complete because of damage; a cut tail is none."""
        return not self.complete and any(damage.kind is not DamageKind.HALF_RECORD for damage in self.damage)

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {name: getattr(self, name) for name in Receipt.__dataclass_fields__}
        shown["damage"] = [
            {"path": d.path, "position": d.position, "kind": str(d.kind), "detail": d.detail} for d in self.damage
        ]
        shown["logs"] = [{"store": log.store, **log.receipt.to_dict()} for log in self.logs]
        return shown


@dataclass(frozen=True, slots=True)
class LogReceipt:
    """The receipt of one of several stores."""

    store: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found. Iterate over it for the messages."""

    question: Question
    messages: list[Message]
    receipt: Receipt

    @property
    def cursor(self) -> str | None:
        """Give it to the next ``find`` to go on; None if nothing is left."""
        return self.receipt.cursor

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def to_dict(self, *, body: bool = False) -> dict[str, Any]:
        """The JSON form; ``body`` adds the bodies."""
        return {
            "question": self.question.to_dict(),
            "messages": [message_to_dict(message, body=body) for message in self.messages],
            "receipt": self.receipt.to_dict(),
        }


def message_to_dict(message: Message, *, body: bool = False) -> dict[str, Any]:
    """A message in JSON's terms. A body that is not UTF-8 is given as base64."""
    text, encoding = _body_text(message) if body else (None, None)
    return {
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "keys": list(message.keys),
        "tags": message.tags,
        "unique_id": message.unique_id,
        "offset_id": message.offset_id,
        "size": message.size,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
        "body": text,
        "body_size": message.body_size,
        "body_encoding": encoding,
    }


def csv_fields(message: Message, *, body: bool) -> dict[str, Any]:
    """A message in CSV's terms."""
    shown = message_to_dict(message, body=body)
    shown["keys"] = " ".join(shown["keys"])
    shown["properties"] = json.dumps(shown["properties"], ensure_ascii=False)
    return shown


def as_json(document: Any) -> str:
    """One JSON document, in ASCII: text from a log cannot reach a terminal raw."""
    # DEL is the one control character that JSON leaves as it is; it can only stand inside a string.
    return json.dumps(document).replace("\x7f", "\\u007f")


def _body_text(message: Message) -> tuple[str, str]:
    """A body and its encoding. One that cannot be decompressed is given as it is stored; it spoils no other."""
    try:
        body = message.body
    except FormatError:
        return base64.b64encode(message.stored_body).decode("ascii"), "stored_base64"
    try:
        return body.decode("utf-8"), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"
