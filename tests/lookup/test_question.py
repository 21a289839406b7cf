"""Question: what can be asked, how times are read, and what is refused with a reason."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from whence.errors import UsageError
from whence.lookup.question import (
    KEY_SIZE_MAX,
    KEYS_MAX,
    LIMIT_MAX,
    Question,
    ScanMode,
    make_question,
    parse_age,
    parse_time,
)

NOW = 1_700_000_000_000

TIMES = [
    (0, 0),
    (1_700_000_000_123, 1_700_000_000_123),
    ("1700000000123", 1_700_000_000_123),
    ("-1", -1),
    ("2023-11-14T22:13:20Z", 1_700_000_000_000),
    ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
    ("2023-11-14T22:13:20.123999Z", 1_700_000_000_123),
    ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ("2023-11-14 22:13:20", 1_700_000_000_000),  # UTC if it names no zone
    ("2023-11-14", 1_699_920_000_000),
    ("1960-01-01", -315_619_200_000),
    ("0ms", NOW),
    ("250ms", NOW - 250),
    ("30s", NOW - 30_000),
    ("15m", NOW - 900_000),
    ("2h", NOW - 7_200_000),
    ("3d", NOW - 259_200_000),
    ("1w", NOW - 604_800_000),
    (datetime(2023, 11, 14, 22, 13, 20, 5000, UTC), 1_700_000_000_005),
    (datetime(2023, 11, 14, 22, 13, 20), 1_700_000_000_000),
    (datetime(2023, 11, 14, 14, 13, 20, tzinfo=timezone(timedelta(hours=-8))), 1_700_000_000_000),
    (None, None),
]


@pytest.mark.parametrize(("time", "epoch_ms"), TIMES)
def test_times_are_datetimes_iso_texts_epoch_milliseconds_or_ages(time, epoch_ms):
    assert parse_time(time, NOW) == epoch_ms


@pytest.mark.parametrize(
    "time", ["", "yesterday", "15", "15x", "1.5h", "-15m", "15 m", "2023-13-01", "１５m", "m", "99h h"]
)
def test_what_is_no_time_is_refused_with_examples(time):
    if time == "15":
        assert parse_time(time, NOW) == 15  # epoch milliseconds
        return
    with pytest.raises(UsageError, match="ISO 8601"):
        parse_time(time, NOW)


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1, "9" * 19, "999999999999w"])
def test_times_out_of_range_are_refused(time):
    with pytest.raises(UsageError, match="out of range"):
        parse_time(time, NOW)


REFUSED = [
    ({"limit": 0}, "at least 1"),
    ({"limit": -5}, "at least 1"),
    ({"limit": LIMIT_MAX + 1}, "limit"),
    ({"offset": -1}, "negative"),
    ({"topic": "T", "queue": 0, "queue_offset": -1}, "negative"),
    ({"topic": "T", "queue": -1}, "negative"),
    ({"queue_offset": 5}, "needs the queue and the topic"),
    ({"topic": "T", "queue_offset": 5}, "needs the queue and the topic"),
    ({"queue": 0, "queue_offset": 5}, "needs the queue and the topic"),
    ({"queue": 0}, "needs the topic"),
    ({"scan": True, "no_scan": True}, "exclude each other"),
    ({"since": 10, "until": 9}, "ends .9. before it begins .10."),
    ({"since": "1m", "until": "2m"}, "before it begins"),
    ({"key": ""}, "empty"),
    ({"key": ["a", ""]}, "empty"),
    ({"key": b"\xff"}, "not UTF-8"),
    ({"key": "x" * (KEY_SIZE_MAX + 1)}, "can be stored"),
    ({"key": [str(number) for number in range(KEYS_MAX + 1)]}, "too many"),
    ({"id": ""}, "empty"),
    ({"since": "soon"}, "no time"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_cannot_be_asked_is_refused_with_a_reason(asked, why):
    with pytest.raises(UsageError, match=why):
        make_question(now_ms=NOW, **asked)


def test_an_unknown_argument_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError):
        make_question(now_ms=NOW, kye="a")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("a", ("a",)),
        (b"a", ("a",)),
        ("é".encode(), ("é",)),
        (["a", b"b", "a"], ("a", "b")),
        (iter(["a", "b"]), ("a", "b")),
        ([], ()),
        (None, ()),
        ("a b", ("a b",)),
        (" ", (" ",)),
    ],
)
def test_keys_are_texts_or_their_bytes_one_or_several(key, keys):
    assert make_question(now_ms=NOW, key=key).keys == keys


def test_what_is_not_asked_has_its_default():
    question = make_question(now_ms=NOW)
    assert question == Question()
    assert (question.limit, question.scan) == (64, ScanMode.UNCOVERED)


def test_both_ends_of_a_window_may_be_one():
    question = make_question(now_ms=NOW, since=7, until=7)
    assert (question.since_ms, question.until_ms) == (7, 7)


@pytest.mark.parametrize(
    ("asked", "mode"),
    [({}, ScanMode.UNCOVERED), ({"scan": True}, ScanMode.EVERYTHING), ({"no_scan": True}, ScanMode.NOTHING)],
)
def test_what_may_be_scanned(asked, mode):
    assert make_question(now_ms=NOW, **asked).scan is mode


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [("0s", 0), ("5ms", 5), ("15m", 900_000), ("72h", 259_200_000), ("3d", 259_200_000), ("1w", 604_800_000)],
)
def test_an_age_is_a_number_and_its_unit(text, age_ms):
    assert parse_age(text) == age_ms


@pytest.mark.parametrize("text", ["", "72", "h", "-3d", "1.5h", "3 d", "72H", "2026-01-01", "1000000000000000h"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(UsageError, match="is no age"):
        parse_age(text)
