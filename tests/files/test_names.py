"""File names: where RocketMQ hides the address of what a file holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.files.names import OFFSET_MAX, index_name, is_digits, offset_name, parse_index_name, parse_offset_name

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
