"""ExpiryPolicy: RocketMQ's rules, with a clock and disks that a table gives."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from whence.errors import UsageError
from whence.store.expiry_policy import ALL_HOURS, UNKNOWN, Decision, ExpiryPolicy, parse_hours, used_percent

HOUR_MS = 3_600_000
DUE = Decision(is_due=True, is_forced=False, is_full=False)
FORCED = Decision(is_due=True, is_forced=True, is_full=False)
FULL = Decision(is_due=True, is_forced=True, is_full=True)
NOTHING = Decision(is_due=False, is_forced=False, is_full=False)


def at(hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 3, 1, hour, minute, tzinfo=UTC).timestamp() * 1000)


HOURS = [
    ("04", at(3, 59), NOTHING),
    ("04", at(4), DUE),
    ("04", at(4, 59), DUE),
    ("04", at(5), NOTHING),
    ("04;16", at(16), DUE),
    ("4;16;", at(4), DUE),
    ("04;16", at(15), NOTHING),
    ("0", at(0), DUE),
    ("23", at(23), DUE),
]


@pytest.mark.parametrize(("hours", "now_ms", "decision"), HOURS)
def test_old_files_go_during_the_hours_that_are_named(hours, now_ms, decision):
    policy = ExpiryPolicy(hours=parse_hours(hours), zone=UTC)
    assert policy.decide(now_ms, [10]) == policy.decide(now_ms, []) == decision


def test_hours_are_those_of_the_zone():
    tokyo = timezone(timedelta(hours=9))
    assert [hour for hour in range(24) if ExpiryPolicy(zone=tokyo).decide(at(hour), []).is_due] == [19]
    berlin = ExpiryPolicy(zone=ZoneInfo("Europe/Berlin"))
    summer = int(datetime(2026, 7, 1, 2, 30, tzinfo=UTC).timestamp() * 1000)
    assert berlin.decide(summer, []).is_due
    assert berlin.decide(at(3, 30), []).is_due  # in winter


@pytest.mark.parametrize("hours", ["", ";", "4;;5", "24", "-1", "four", " 4", "4;16 ", "4,16", "٤", "9" * 5000])
def test_what_is_no_hour_is_refused(hours):
    with pytest.raises(UsageError, match="are no hours"):
        parse_hours(hours)


# What is used of each disk, in percent, and what follows from that at an hour at which nothing is due.
USED = [
    ([0, 0], NOTHING),
    ([75, 75], NOTHING),
    ([76, 10], DUE),
    ([10, 76], DUE),
    ([85, 85], DUE),
    ([86, 10], FORCED),
    ([10, 86], FORCED),
    ([90, 90], FORCED),
    ([91, 10], FULL),
    ([10, 91], FULL),
    ([100, 100], FULL),
    ([UNKNOWN, 10], DUE),
    ([10, UNKNOWN], DUE),
    ([UNKNOWN, 91], FULL),
]


@pytest.mark.parametrize(("used", "decision"), USED)
def test_a_full_disk_lets_old_files_go_at_any_hour_then_young_ones_then_stops_writing(used, decision):
    assert ExpiryPolicy(zone=UTC).decide(at(12), used) == decision


# What was set, and the least that then counts as too much, forces, and is full: RocketMQ clamps each.
CLAMPED = [
    ({}, (76, 86, 91)),
    ({"used_max": 5}, (11, 86, 91)),
    ({"used_max": 50}, (51, 86, 91)),
    ({"used_max": 99, "used_forcing": 99, "used_full": 99}, (86, 86, 91)),
    ({"used_forcing": 5}, (31, 31, 91)),
    ({"used_forcing": 50}, (51, 51, 91)),
    ({"used_full": 5}, (36, 36, 36)),
    ({"used_full": 60}, (61, 61, 61)),
]


@pytest.mark.parametrize(("settings", "limits"), CLAMPED)
def test_limits_are_clamped_as_in_rocketmq(settings, limits):
    policy = ExpiryPolicy(zone=UTC, **settings)
    decisions = [policy.decide(at(12), [percent]) for percent in range(101)]
    for name, limit in zip(("is_due", "is_forced", "is_full"), limits, strict=True):
        assert [percent for percent in range(101) if getattr(decisions[percent], name)] == list(range(limit, 101))


def test_young_files_stay_on_a_full_disk_if_that_is_not_allowed():
    policy = ExpiryPolicy(zone=UTC, may_force=False)
    assert policy.decide(at(12), [95]) == Decision(is_due=True, is_forced=False, is_full=True)


NOW = at(4)
OLD, YOUNG = NOW - 72 * HOUR_MS, NOW - 72 * HOUR_MS + 1

COUNTED = [
    (DUE, [], 0),
    (DUE, [OLD], 1),
    (DUE, [YOUNG], 0),
    (DUE, [OLD, OLD, YOUNG, OLD], 2),
    (DUE, [YOUNG, OLD, OLD], 0),
    (DUE, [OLD] * 12, 10),
    (NOTHING, [OLD] * 12, 0),
    (FORCED, [YOUNG, OLD, YOUNG], 3),
    (FORCED, [YOUNG] * 12, 10),
    (FULL, [NOW + HOUR_MS], 1),
]


@pytest.mark.parametrize(("decision", "times_ms", "count"), COUNTED)
def test_the_oldest_files_go_up_to_the_first_that_is_too_young(decision, times_ms, count):
    assert ExpiryPolicy(zone=UTC).count(decision, NOW, times_ms) == count


@pytest.mark.parametrize(("batch_max", "count"), [(None, 25), (25, 25), (3, 3), (1, 1), (0, 1)])
def test_a_round_takes_a_batch(batch_max, count):
    assert ExpiryPolicy(batch_max=batch_max).count(DUE, NOW, [OLD] * 25) == count


def test_no_file_is_asked_for_its_age_that_need_not_be():
    asked = []

    def times():
        for number, time_ms in enumerate([OLD, YOUNG, OLD]):
            asked.append(number)
            yield time_ms

    assert ExpiryPolicy().count(DUE, NOW, times()) == 1
    assert asked == [0, 1]


def test_wrong_settings_are_refused():
    with pytest.raises(UsageError, match="-1 ms"):
        ExpiryPolicy(keep_ms=-1)
    with pytest.raises(UsageError, match="0 to 23"):
        ExpiryPolicy(hours=(4, 24))
    assert ExpiryPolicy(hours=ALL_HOURS, zone=UTC).decide(at(12), []) == DUE


@pytest.mark.parametrize(
    ("used", "free", "percent"),
    [(0, 100, 0), (1, 99, 1), (1, 999, 1), (999, 1, 100), (749, 251, 75), (750, 250, 75), (751, 249, 76), (0, 0, -1)],
)
def test_a_disks_usage_is_rounded_up_as_df_has_it(used, free, percent):
    assert used_percent(used, free) == percent
