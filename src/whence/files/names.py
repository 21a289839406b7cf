"""File names: where RocketMQ hides the address of what a file holds.

    commitlog/00000000001073741824               20 digits: byte offset of the file's first byte
    consumequeue/orders/3/00000000000006000000   the same, in one queue's own byte space
    index/20260101120000000                      creation time, local zone: year to millisecond, 17 digits

RocketMQ loads any name in ``index/`` that is a number, so any all-digit name counts as an index file here too.
"""

from __future__ import annotations

OFFSET_DIGITS = 20
OFFSET_MAX = 2**63 - 1
INDEX_DIGITS = 17


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


def is_digits(name: str) -> bool:
    """Whether a name is made of ASCII digits alone, as an index file's is."""
    return name.isascii() and name.isdigit()
