"""Question: what is asked, in the words of the command line and of ``store.find``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypedDict, Unpack

from whence.errors import UsageError

LIMIT_DEFAULT = 64
LIMIT_MAX = 2**31 - 1
KEY_SIZE_MAX = 32767  # properties, which hold the keys, are no longer
KEYS_MAX = 10_000
FIELDS_MAX = 16
TIME_MAX_MS = 2**63 - 1

_AGE = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_AGE_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH_MS = re.compile(r"-?[0-9]{1,19}")

Time = int | str | datetime


class ScanMode(Enum):
    """What may be scanned: what no index covers (the answer stays exact), the whole log, or nothing."""

    UNCOVERED = "uncovered"
    EVERYTHING = "everything"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Question:
    """One question. A message answers it if it meets every member that is set, all fields, and any one of the keys.

    Times are epoch milliseconds, both ends included. ``asked_times`` keeps how they were worded, for a cursor must
    know its question again although ``15m`` means another instant by then.
    """

    keys: tuple[str, ...] = ()
    topic: str | None = None
    id: str | None = None
    offset: int | None = None
    queue: int | None = None
    queue_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tag: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    limit: int | None = LIMIT_DEFAULT
    cursor: str | None = None
    oldest_first: bool = False
    system_topics: bool = False
    scan: ScanMode = ScanMode.UNCOVERED
    asked_times: tuple[str | None, str | None] = (None, None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON shows it: the usual members, and every other that was asked."""
        shown: dict[str, Any] = {}
        if len(self.keys) == 1:
            shown["key"] = self.keys[0]
        elif self.keys:
            shown["keys"] = list(self.keys)
        shown |= {
            "topic": self.topic,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "limit": self.limit,
        }
        for name in ("id", "offset", "queue", "queue_offset", "tag", "cursor"):
            if getattr(self, name) is not None:
                shown[name] = getattr(self, name)
        if self.fields:
            texts = [f"{name}={value}" for name, value in self.fields]
            shown |= {"field": texts[0]} if len(texts) == 1 else {"fields": texts}
        for name in ("oldest_first", "system_topics"):
            if getattr(self, name):
                shown[name] = True
        if self.scan is not ScanMode.UNCOVERED:
            shown["scan" if self.scan is ScanMode.EVERYTHING else "no_scan"] = True
        return shown


class Asked(TypedDict, total=False):
    """What a caller may give: QUESTION's options with underscores. Only what is set is asked."""

    key: str | bytes | Iterable[str | bytes] | None
    topic: str | None
    id: str | None
    offset: int | None
    queue: int | None
    queue_offset: int | None
    since: Time | None
    until: Time | None
    tag: str | None
    field: str | Iterable[str] | Mapping[str, str] | None
    limit: int | None
    cursor: str | None
    oldest_first: bool
    system_topics: bool
    scan: bool
    no_scan: bool


class AskedOfMany(TypedDict, total=False):
    """What can be asked of very many keys at once. The limit is that of each key."""

    topic: str | None
    queue: int | None
    since: Time | None
    until: Time | None
    tag: str | None
    limit: int | None
    oldest_first: bool
    system_topics: bool
    scan: bool
    no_scan: bool


def make_question(now_ms: int, **asked: Unpack[Asked]) -> Question:
    """A checked question from what a caller gave; UsageError says what cannot be asked."""
    unknown = asked.keys() - Asked.__annotations__.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: a question has {', '.join(Asked.__annotations__)}")
    since, until, limit = asked.get("since"), asked.get("until"), asked.get("limit", LIMIT_DEFAULT)
    offset, queue, queue_offset = asked.get("offset"), asked.get("queue"), asked.get("queue_offset")
    topic, id = asked.get("topic"), asked.get("id")
    scan, no_scan = asked.get("scan", False), asked.get("no_scan", False)
    keys = _keys(asked.get("key"))
    since_ms, until_ms = parse_time(since, now_ms), parse_time(until, now_ms)
    if limit is not None and not 1 <= limit <= LIMIT_MAX:
        raise UsageError(
            f"limit {limit} must be at least 1; leave it out for {LIMIT_DEFAULT}, ask for all with --all"
        )
    if offset is not None and offset < 0:
        raise UsageError(f"offset {offset} is negative")
    if queue_offset is not None and queue_offset < 0:
        raise UsageError(f"queue offset {queue_offset} is negative")
    if queue_offset is not None and (queue is None or topic is None):
        raise UsageError(
            "a queue offset needs the queue and the topic it counts in: --topic T --queue Q --queue-offset N"
        )
    if queue is not None and topic is None:
        raise UsageError("a queue needs the topic it belongs to: --topic T --queue Q")
    if queue is not None and queue < 0:
        raise UsageError(f"queue {queue} is negative")
    if scan and no_scan:
        raise UsageError("--scan and --no-scan exclude each other")
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise UsageError(f"the window ends ({until_ms}) before it begins ({since_ms})")
    if id == "":
        raise UsageError("the id is empty")
    return Question(
        keys=keys,
        topic=topic,
        id=id,
        offset=offset,
        queue=queue,
        queue_offset=queue_offset,
        since_ms=since_ms,
        until_ms=until_ms,
        tag=asked.get("tag"),
        fields=_fields(asked.get("field")),
        limit=limit,
        cursor=asked.get("cursor"),
        oldest_first=asked.get("oldest_first", False),
        system_topics=asked.get("system_topics", False),
        scan=ScanMode.EVERYTHING if scan else ScanMode.NOTHING if no_scan else ScanMode.UNCOVERED,
        asked_times=(_worded(since), _worded(until)),
    )


def _keys(key: str | bytes | Iterable[str | bytes] | None) -> tuple[str, ...]:
    if key is None:
        return ()
    given = (key,) if isinstance(key, str | bytes) else tuple(key)
    if len(given) > KEYS_MAX:
        raise UsageError(f"{len(given)} keys are too many for one question; {KEYS_MAX} can be asked")
    keys = []
    for each in given:
        try:
            text = each if isinstance(each, str) else each.decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"the key {each!r} is not UTF-8, as all keys of RocketMQ are") from None
        if not text:
            raise UsageError("the key is empty")
        if len(text) > KEY_SIZE_MAX:
            raise UsageError(f"the key has {len(text)} characters; {KEY_SIZE_MAX} can be stored")
        keys.append(text)
    return tuple(dict.fromkeys(keys))


def _fields(field: str | Iterable[str] | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Names and values of fields: ``order=4711``, several of these, or a dict."""
    if field is None:
        return ()
    if isinstance(field, Mapping):
        pairs = list(field.items())
    else:
        pairs = [parse_field(each) for each in ((field,) if isinstance(field, str) else field)]
    if len(pairs) > FIELDS_MAX:
        raise UsageError(f"{len(pairs)} fields are too many for one question; {FIELDS_MAX} can be asked")
    for name, value in pairs:
        try:
            value.encode()
        except (UnicodeEncodeError, AttributeError):
            raise UsageError(f"the value {value!r} of the field {name} is no text") from None
    return tuple(dict.fromkeys(pairs))


def parse_field(text: str) -> tuple[str, str]:
    """Name and value of a field that is given as ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text[:80]!r} asks for no field; give its name and value, as order=4711")
    return name, value


def parse_time(time: Time | None, now_ms: int) -> int | None:
    """Epoch milliseconds of a time: a datetime, epoch ms, ISO 8601 or an age as ``15m``. Without a zone it is UTC."""
    if time is None:
        return None
    if isinstance(time, datetime):
        return _epoch_ms(time)
    if isinstance(time, int):
        found = time
    elif _EPOCH_MS.fullmatch(time):
        found = int(time)
    elif _AGE.fullmatch(time):
        found = now_ms - parse_age(time)
    else:
        try:
            return _epoch_ms(datetime.fromisoformat(time))
        except ValueError:
            raise UsageError(
                f"{time!r} is no time; give ISO 8601 (2026-01-31T12:00:00Z), epoch milliseconds or an age (15m, 3d)"
            ) from None
    if not -TIME_MAX_MS <= found <= TIME_MAX_MS:
        raise UsageError(f"the time {time} is out of range")
    return found


def parse_age(text: str) -> int:
    """Milliseconds of an age as ``15m``, ``72h`` or ``3d``."""
    age = _AGE.fullmatch(text)
    if age is None:
        raise UsageError(f"{text!r} is no age; give a number and one of {', '.join(_AGE_MS)}, as 15m, 72h or 3d")
    return int(age[1]) * _AGE_MS[age[2]]


def _epoch_ms(time: datetime) -> int:
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 1000 + delta.microseconds // 1000


def _worded(time: Time | None) -> str | None:
    return None if time is None else time.isoformat() if isinstance(time, datetime) else str(time)
