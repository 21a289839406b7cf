"""File names: where RocketMQ hides the address of what a file holds."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.files.names import (
    OFFSET_MAX,
    index_name,
    is_digits,
    offset_name,
    parse_index_name,
    parse_offset_name,
    shown_zone,
)

NAMES = [
    (0, "00000000000000000000"),
    (1073741824, "00000000001073741824"),
    (6_000_000, "00000000000006000000"),
    (OFFSET_MAX, "09223372036854775807"),
]

NO_OFFSETS = [
    "",
    "abort",
    "0",
    "0000000000000000000",  # 19 digits
    "000000000000000000000",  # 21
    "0000000000107374182x",
    "-0000000001073741824",
    "+0000000001073741824",
    " 0000000001073741824",
    "0000_000000_00000000",
    "00000000001073741824.tmp",
    "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠",  # digits, but not ASCII
    "²0000000000000000000",
    "09223372036854775808",  # above what an i8 holds
    "99999999999999999999",
]


@pytest.mark.parametrize(("offset", "name"), NAMES)
def test_a_file_is_named_by_its_first_byte_s_offset_in_20_digits(offset, name):
    assert offset_name(offset) == name
    assert parse_offset_name(name) == offset


@pytest.mark.parametrize("name", NO_OFFSETS)
def test_other_names_stand_for_no_offset(name):
    assert parse_offset_name(name) is None


@given(st.integers(0, OFFSET_MAX))
def test_names_sort_as_their_offsets_do(offset):
    other = offset // 2
    assert (offset_name(other) <= offset_name(offset)) == (other <= offset)
    assert parse_offset_name(offset_name(offset)) == offset


@given(st.text())
def test_any_name_is_an_offset_or_none(name):
    offset = parse_offset_name(name)
    assert offset is None or offset_name(offset) == name


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("20260101120000000", True),
        ("20260101120000000001", True),  # RocketMQ takes any number
        ("7", True),
        ("", False),
        ("20260101120000000.bak", False),
        ("-1", False),
        ("٢٠٢٦", False),
    ],
)
def test_an_index_file_has_any_name_of_ascii_digits(name, counts):
    assert is_digits(name) is counts


INDEX_TIMES = [  # milliseconds, the name
    (0, "19700101000000000"),
    (1_700_000_000_007, "20231114221320007"),
    (1_709_210_096_999, "20240229123456999"),
    (253_370_764_800_000, "99990101000000000"),
]


@pytest.mark.parametrize(("milliseconds", "name"), INDEX_TIMES)
def test_index_names_are_times_in_utc(milliseconds, name):
    assert index_name(milliseconds) == name
    assert parse_index_name(name) == milliseconds


@pytest.mark.parametrize("milliseconds", [-1, -(2**63)])
def test_time_before_the_epoch_is_named_as_the_epoch(milliseconds):
    assert index_name(milliseconds) == "19700101000000000"


def test_time_that_no_name_can_tell_is_named_as_the_last_that_can():
    assert index_name(2**63 - 1) == "99990101000000000"
    assert index_name(2**63 - 1, "99990101000000000") == "99990101000000001"


def test_index_name_is_later_than_the_one_before():
    assert index_name(5000, "19700101000004999") == "19700101000005000"
    assert index_name(5000, "19700101000005000") == "19700101000005001"
    assert index_name(5000, "20231231235959999") == "20240101000000000"


@pytest.mark.parametrize("name", ["", "20231314221320007", "20230230000000000", "2023111422132000x", "1" * 18])
def test_name_that_is_no_time_stands_for_none(name):
    assert parse_index_name(name) == -1


# Zones

BERLIN = "Europe/Berlin"
FOLD_MS = 1_761_440_400_000  # 2025-10-26 01:00 UTC: clocks there go back from 3:00 to 2:00
MINUTE_MS = 60_000


@pytest.fixture
def machine_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """``machine_zone(name)`` puts this machine there."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


def test_index_names_are_in_the_zone_that_is_asked_for(machine_zone):
    machine_zone(BERLIN)
    assert index_name(1_700_000_000_007, zone=timezone(timedelta(hours=-5))) == "20231114171320007"
    assert index_name(1_700_000_000_007, zone=None) == "20231114231320007"
    assert index_name(1_689_000_000_000, zone=None) == "20230710164000000"  # summer
    assert index_name(1_700_000_000_007) == "20231114221320007"


def test_clocks_that_are_put_back_give_no_earlier_name(machine_zone):
    machine_zone(BERLIN)
    before = index_name(FOLD_MS - 10 * MINUTE_MS, zone=None)
    assert before == "20251026025000000"
    after = index_name(FOLD_MS + 10 * MINUTE_MS, before, zone=None)  # the clock shows 2:10 once more
    assert after == "20251026025000001"
    assert index_name(FOLD_MS + 10 * MINUTE_MS, after, zone=None) == "20251026025000002"
    assert index_name(FOLD_MS + 55 * MINUTE_MS, after, zone=None) == "20251026025500000"


@given(st.integers(0, 10**13), st.lists(st.integers(-(10**8), 10**8), max_size=20), st.sampled_from([-18, 0, 22, 56]))
def test_names_only_rise_whatever_the_clock_does(begin, steps, quarter_hours):
    zone = timezone(timedelta(minutes=15 * quarter_hours))
    names = [index_name(begin, zone=zone)]
    for step in steps:
        begin += step
        names.append(index_name(begin, names[-1], zone))
    assert names == sorted(set(names))


HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize("hours", [-12, -9.5, -3, 5.75, 8, 13, 14])
@pytest.mark.parametrize("late_ms", [0, 3, 59_000])
def test_a_name_shows_its_zone_by_whole_quarter_hours(machine_zone, hours, late_ms):
    machine_zone(BERLIN)
    name = index_name(1_700_000_000_007 + int(hours * HOUR_MS) + late_ms)
    assert shown_zone(name, 1_700_000_000_007) == timezone(timedelta(hours=hours))


def test_a_name_that_shows_the_machines_clock_leaves_the_zone_to_the_machine(machine_zone):
    machine_zone(BERLIN)
    assert shown_zone(index_name(1_700_000_000_007, zone=None), 1_700_000_000_007) is None
    assert shown_zone(index_name(1_689_000_000_000, zone=None), 1_689_000_000_000) is None
    machine_zone("UTC")
    assert shown_zone(index_name(1_700_000_000_007), 1_700_000_000_007) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("7", "no time"),
        (index_name(1_700_000_000_007 + 5 * MINUTE_MS), "dispatched minutes later"),
        (index_name(1_700_000_000_007 + 20 * HOUR_MS), "no zone is that far"),
        (index_name(1_700_000_000_007 - 20 * HOUR_MS), "no zone is that far"),
    ],
)
def test_a_name_that_shows_no_clock_leaves_the_zone_to_the_machine(machine_zone, name, why):
    machine_zone(BERLIN)
    assert shown_zone(name, 1_700_000_000_007) is None, why


def test_a_zone_once_shown_is_shown_again_by_the_names_that_follow(machine_zone):
    machine_zone(BERLIN)
    zone = shown_zone(index_name(1_700_000_000_007 + 8 * HOUR_MS), 1_700_000_000_007)
    following = index_name(1_700_000_900_000, "20231115061320007", zone)
    assert shown_zone(following, 1_700_000_900_000) == zone
