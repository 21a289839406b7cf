"""File names: where RocketMQ hides the address of what a file holds.

    commitlog/00000000001073741824               20 digits: byte offset of the file's first byte
    consumequeue/orders/3/00000000000006000000   the same, in one queue's own byte space
    index/20260101120000000                      creation time, local zone: year to millisecond, 17 digits
    ../store.whence                              what whence keeps beside the store

RocketMQ loads any name in ``index/`` that is a number, so any all-digit name counts as an index file here too.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path

OFFSET_DIGITS = 20
OFFSET_MAX = 2**63 - 1
INDEX_DIGITS = 17
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_INDEX_NAME_MS_MAX = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // _MS
_QUARTER_HOUR_MS = 15 * 60_000  # every zone's distance from UTC is a whole number of these
_ZONE_MS_MAX = 14 * 3_600_000
_NAMED_LATE_MS_MAX = 60_000  # a broker names a file when it dispatches its first item: mostly at once


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


def index_name(first_timestamp_ms: int, after: str | None = None, zone: tzinfo | None = UTC) -> str:
    """The name of an index file whose first item was stored then; later than the name ``after``.

    ``zone`` is the one whose clocks the name shows, None that of this machine. A name has to differ from all others
    and its year to have four digits. So a time that no calendar of that kind has gives the nearest that has, and
    times that are equal, or that a clock shows twice because it was put back, give names one millisecond apart.
    """
    time = _EPOCH + timedelta(milliseconds=min(max(first_timestamp_ms, 0), _INDEX_NAME_MS_MAX))
    shown = time.astimezone(zone).replace(tzinfo=UTC)
    if after is not None:
        shown = max(shown, _EPOCH + timedelta(milliseconds=parse_index_name(after) + 1))
    return f"{shown:%Y%m%d%H%M%S}{shown.microsecond // 1000:03d}"


def parse_index_name(name: str) -> int:
    """The time that the name of an index file stands for, in milliseconds, if it is in UTC; -1 if it is no time."""
    if len(name) != INDEX_DIGITS or not is_digits(name):
        return -1
    try:
        time = datetime.strptime(name[:-3], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return (time - _EPOCH) // _MS + int(name[-3:])


def shown_zone(name: str, first_timestamp_ms: int) -> tzinfo | None:
    """The zone for the names that follow this one, of an index file whose first item was stored then.

    None, this machine's zone, if the name shows that one's clock, or no clock at all. Another zone is shown by its
    distance from UTC alone, so that its summer time is not known.
    """
    between = parse_index_name(name) - first_timestamp_ms
    distance = between // _QUARTER_HOUR_MS * _QUARTER_HOUR_MS
    is_shown = between - distance <= _NAMED_LATE_MS_MAX and -_ZONE_MS_MAX <= distance <= _ZONE_MS_MAX
    if not is_shown or index_name(first_timestamp_ms, zone=None) == index_name(first_timestamp_ms + distance):
        return None
    return timezone(timedelta(milliseconds=distance))


def sidecar_of(folder: Path) -> Path:
    """The folder beside a store for all that is not RocketMQ's."""
    path = Path(os.path.normpath(folder.absolute()))
    return path.with_name(path.name + ".whence")


def is_digits(name: str) -> bool:
    """Whether a name is made of ASCII digits alone, as an index file's is."""
    return name.isascii() and name.isdigit()
