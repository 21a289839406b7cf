"""File names: where RocketMQ hides the address of what a file holds.

    commitlog/00000000001073741824               20 digits: byte offset of the file's first byte
    consumequeue/orders/3/00000000000006000000   the same, in one queue's own byte space
    index/20260101120000000                      creation time, local zone: year to millisecond, 17 digits

RocketMQ loads any name in ``index/`` that is a number, so any all-digit name counts as an index file here too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

OFFSET_DIGITS = 20
OFFSET_MAX = 2**63 - 1
INDEX_DIGITS = 17
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INDEX_NAME_MS_MAX = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def offset_name(offset: int) -> str:
    """The name of the file whose first byte has this offset."""
    assert 0 <= offset <= OFFSET_MAX
    return f"{offset:020d}"


def parse_offset_name(name: str) -> int | None:
    """The offset that a name stands for; None if it is not such a name."""
    if len(name) != OFFSET_DIGITS or not is_digits(name):
        return None
    offset = int(name)
    return offset if offset <= OFFSET_MAX else None


def index_name(first_timestamp_ms: int, after: str | None = None) -> str:
    """The name of an index file whose first item was stored then, in UTC; later than the name ``after``.

    A name has to differ from all others and its year to have four digits. So a time that no calendar of that kind has
    gives the nearest that has, and equal times give names one millisecond apart.
    """
    milliseconds = min(max(first_timestamp_ms, 0), _INDEX_NAME_MS_MAX)
    if after is not None:
        milliseconds = max(milliseconds, parse_index_name(after) + 1)
    time = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"


def parse_index_name(name: str) -> int:
    """The time that the name of an index file stands for, in milliseconds, if it is in UTC; -1 if it is no time."""
    if len(name) != INDEX_DIGITS or not is_digits(name):
        return -1
    try:
        time = datetime.strptime(name[:-3], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return (time - _EPOCH) // timedelta(milliseconds=1) + int(name[-3:])


def is_digits(name: str) -> bool:
    """Whether a name is made of ASCII digits alone, as an index file's is."""
    return name.isascii() and name.isdigit()
