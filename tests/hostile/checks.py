"""Questions to a damaged store, and what each answer must be whatever the damage.

Sound: every message of an answer is, byte for byte, a whole record that lies in the log at its offset, and answers
the question. Honest: an answer that calls itself complete holds every message that the undamaged log would give
and that still lies there; and if one of those cannot be read any more, although the log goes on behind it, the
answer does not call itself complete. What may lie is excused: an index whose bytes were altered inside, where the
question is answered from it; and the log's end, where nobody can tell a cut from a stop.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from tests.hostile.mutations import CONFIG, INDEX, LOG, QUEUE, Content, Mutation, Special, Target
from tests.reference import PREPARED, TRANSACTION_BITS, NotARecord, Record, crc32, decode_record, is_system_topic
from whence.lookup.answer import Answer
from whence.lookup.search import WHY_EMPTY

LIMIT_DEFAULT = 64


@dataclass(frozen=True)
class Asked:
    """A question as ``store.find`` takes it."""

    arguments: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())

    @property
    def limit(self) -> int | None:
        limit: int | None = self.arguments.get("limit", LIMIT_DEFAULT)
        return limit

    def options(self) -> list[str]:
        """The same for the command line."""
        given = []
        for name, value in self.arguments.items():
            option = "--" + name.replace("_", "-")
            if value is None:
                given.append("--all")  # no limit
            else:
                given.append(option if value is True else f"{option}={value}")
        return given

    @property
    def relies_on(self) -> set[str]:
        """Kinds of files that are believed in part: whoever alters them can hide messages."""
        if self.arguments.get("queue_offset") is not None:
            return {QUEUE}
        if not self.arguments.get("scan") and ("key" in self.arguments or "id" in self.arguments):
            # Without a topic, the queues' folders and config/topics.json tell which topics there are.
            return {INDEX} if "topic" in self.arguments else {INDEX, CONFIG}
        return set()

    def matches(self, record: Record) -> bool:
        """The rule of INTERFACE.md, over the twin's record."""
        asked = self.arguments
        name = asked.get("id")
        key = asked.get("key")
        if key is not None and key not in record.keys:
            return False
        if name is not None and not (
            record.offset_id == name.upper()
            or (record.unique_id == name and not record.is_rollback)
            or name in record.keys
        ):
            return False
        if "offset" in asked and record.physical_offset != asked["offset"]:
            return False
        if "topic" in asked:
            if record.topic != asked["topic"]:
                return False
        elif is_system_topic(record.topic) and "offset" not in asked and name is None:
            return False
        if "queue" in asked and record.queue != asked["queue"]:
            return False
        if "queue_offset" in asked and (
            record.queue_offset != asked["queue_offset"]
            or record.is_rollback
            or record.sys_flag & TRANSACTION_BITS == PREPARED
        ):
            return False
        return (
            asked.get("since", -(2**63)) <= record.store_timestamp_ms <= asked.get("until", 2**63)
            and asked.get("tag", record.tags) == record.tags
        )


def ask(target: Target, random: Random) -> list[Asked]:
    """A handful of questions to a store, one of each sort."""
    record, other = random.choice(target.records), random.choice(target.records)
    keyed = random.choice([record for record in target.records if record.keys])
    key = random.choice(keyed.keys) if random.random() < 0.9 else "no-such-key"
    times = sorted((record.store_timestamp_ms, other.store_timestamp_ms))
    window = {"since": times[0], "until": times[1]}
    ids = [record.offset_id, record.unique_id or record.offset_id, key, "no-such-id", "0" * 32]
    within = random.choice((0, 0, 0, 1, 4, 91, random.randrange(record.size)))
    asked: list[dict[str, Any]] = [
        {"key": key, "topic": keyed.topic},
        {"key": key, **random.choice(({"scan": True}, {"no_scan": True}, {"limit": None}, window))},
        {"id": random.choice(ids)},
        {"offset": record.physical_offset + within},
        {"topic": other.topic, "queue": other.queue, "queue_offset": other.queue_offset},
        random.choice(({**window, "limit": None}, window, {"topic": record.topic, "tag": record.tags})),
    ]
    for question in asked:
        if random.random() < 0.2:
            question["oldest_first"] = True
        if random.random() < 0.1:
            question["limit"] = random.choice((1, 2, 10))
        if question.get("tag", "") is None:
            del question["tag"]
    return [Asked(question) for question in asked]


@dataclass
class DamagedStore:
    """A store after a mutation, as far as the checks need to know it."""

    target: Target
    mutation: Mutation

    @cached_property
    def files(self) -> dict[str, Content]:
        return self.mutation.files(self.target)

    @cached_property
    def log_files(self) -> dict[int, Content]:
        """By base offset. What is no file at all is as good as deleted."""
        absent = (None, Special.FOLDER, Special.LOOP, Special.NOWHERE)
        names = (name for name, content in self.files.items() if name.startswith(LOG) and content not in absent)
        numbers = (name.rpartition("/")[2] for name in names)
        return {
            int(number): self.files[f"{LOG}/{number}"]
            for number in numbers
            if len(number) == 20 and number.isascii() and number.isdigit()
        }

    def record_at(self, physical_offset: int) -> Record | None:
        """The whole record that lies at this offset, by the twin's rule."""
        base = max((base for base in self.log_files if base <= physical_offset), default=None)
        data = None if base is None else self.log_files[base]
        if base is None or not isinstance(data, bytes):
            return None
        before, before_data = self.target.by_offset.get(physical_offset, (None, b""))
        if before is not None and data.startswith(before_data, physical_offset - base):
            return before  # to decode it anew would take most of a case's time
        try:
            record = decode_record(data, physical_offset - base)
        except NotARecord:
            return None
        is_whole = record.physical_offset == physical_offset and (
            not record.stored_body or crc32(record.stored_body) == record.body_crc
        )
        return record if is_whole else None

    @cached_property
    def begin_offset(self) -> int:
        return min(self.log_files, default=0)

    @cached_property
    def last_intact(self) -> int:
        """Offset of the last record that is as it was: the log must go on at least to here."""
        if not self.mutation.touches_log:
            return self.target.records[-1].physical_offset
        intact = (r.physical_offset for r in reversed(self.target.records) if self.record_at(r.physical_offset) == r)
        return next(intact, -1)


def complaints(store: DamagedStore, asked: Asked, answer: Answer) -> Iterator[str]:
    """What is wrong with an answer."""
    yield from _unsound(store, asked, answer)
    yield from _dishonest(store, asked, answer)
    receipt = answer.receipt
    offsets = [message.physical_offset for message in answer]
    if offsets != sorted(set(offsets), reverse=not asked.arguments.get("oldest_first")):
        yield f"messages are not in order, or doubled: {offsets}"
    if asked.limit is not None and len(offsets) > asked.limit:
        yield f"{len(offsets)} messages, {asked.limit} were asked"
    if receipt.truncated != (receipt.cursor is not None):
        yield f"truncated is {receipt.truncated}, the cursor {receipt.cursor}"
    if (receipt.why_empty in WHY_EMPTY) != (not offsets) or (offsets and receipt.why_empty is not None):
        yield f"{len(offsets)} messages, and why_empty is {receipt.why_empty}"
    if not store.mutation.touches_log and not receipt.complete and not asked.arguments.get("no_scan"):
        yield f"the log is whole, and yet the answer is not complete: {receipt.damage}"
    for damage in receipt.damage:
        if damage.position < 0 or not damage.path or not damage.detail:
            yield f"damage does not say where it is: {damage}"
    json.dumps(answer.to_dict())


def _unsound(store: DamagedStore, asked: Asked, answer: Answer) -> Iterator[str]:
    for message in answer:
        record = store.record_at(message.physical_offset)
        if record is None:
            yield f"no record lies at offset {message.physical_offset} of an answered message"
            continue
        if not asked.matches(record):
            yield f"the message at offset {message.physical_offset} does not answer the question"
        for name in Record.__dataclass_fields__:
            given, stored = getattr(message, name), getattr(record, name)
            if name.endswith("host"):
                given = (given.address, given.port)
            if given != stored:
                yield f"{name} of the message at {message.physical_offset} is {given!r}, stored is {stored!r}"


def _dishonest(store: DamagedStore, asked: Asked, answer: Answer) -> Iterator[str]:
    mutation = store.mutation
    if mutation.log_moved or not answer.receipt.complete or asked.relies_on & mutation.edited:
        return
    given = {message.physical_offset for message in answer}
    reached = [answer.receipt.searched_from_offset, answer.receipt.searched_to_offset]
    for record in store.target.records:
        offset = record.physical_offset
        if offset in given or not asked.matches(record) or offset < store.begin_offset:
            continue
        if answer.receipt.truncated and not reached[0] <= offset < reached[1]:
            continue
        now = record if not mutation.touches_log else store.record_at(offset)
        if now == record:
            yield f"the answer is complete and lacks the message at {offset}, which is whole"
        elif now is None and offset < store.last_intact:
            yield f"the answer is complete, but the message at {offset} is damaged"
