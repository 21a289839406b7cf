"""UniqueIds: ids for messages that come without one, of the kind that Apache's clients make.

    id := prefix time_ms_of_month counter        see formats/rocketmq/ids.py

Time and counter together are one number of 48 bits that only ever grows: where more than 65,536 ids are taken in a
millisecond, or the clock steps back, it runs ahead of the clock. A new month begins at zero again, so there the part
that Apache's client fills with a hash of its class loader takes its next value. It begins at random, since on many
machines each process has the same number.
"""

from __future__ import annotations

import os
import time

from whence.formats.rocketmq.ids import IPV4_ID_SIZE, IPV6_ID_SIZE, UniqueId, encode_unique_id

COUNTER_BITS = 16
COUNTER_MAX = (1 << COUNTER_BITS) - 1
NUMBER_DIGITS = 12
_BYTES = [f"{number:02X}" for number in range(256)]


class UniqueIds:
    """Gives ids out, none of them twice. One thread at a time."""

    def __init__(self, address: str, pid: int | None = None, loader_hash: int | None = None) -> None:
        self.size = IPV6_ID_SIZE if ":" in address else IPV4_ID_SIZE  # of each id
        self._address = address
        self._pid = (os.getpid() if pid is None else pid) & 0xFFFF
        self._loader_hash = int.from_bytes(os.urandom(4), "big") if loader_hash is None else loader_hash
        self._prefix = ""  # what the ids of a month have in common
        self._month_ms = self._next_month_ms = 0
        self._now_ms = -1  # the time in the last id, which may be ahead of the clock
        self._counter = 0
        self._head = ""  # an id without its counter

    def take(self, now_ms: int) -> str:
        """One id."""
        counter = self._counter + 1
        if now_ms > self._now_ms:
            counter = self._move_to(now_ms)
        elif counter > COUNTER_MAX:
            counter = self._move_to(self._now_ms + 1)
        self._counter = counter
        return f"{self._head}{_BYTES[counter >> 8]}{_BYTES[counter & 0xFF]}"  # half the time of a format

    def take_many(self, now_ms: int, count: int) -> tuple[str, int]:
        """``count`` ids: what they begin with, and the number in the first, from which the others go on."""
        if count == 0:
            return self._prefix, 0
        self.take(now_ms)
        prefix, first = self._prefix, self._now_ms - self._month_ms << COUNTER_BITS | self._counter
        last = first + count - 1
        self._move_to(self._month_ms + (last >> COUNTER_BITS))
        self._counter = last & COUNTER_MAX
        return prefix, first

    def _move_to(self, now_ms: int) -> int:
        """Begin the ids of a millisecond, with the counter that is returned."""
        if now_ms >= self._next_month_ms:
            self._begin_month(now_ms)
        self._now_ms = now_ms
        self._head = f"{self._prefix}{now_ms - self._month_ms:08X}"
        return 0

    def _begin_month(self, now_ms: int) -> None:
        """Apache's clients count from the first of the month in the zone of their machine, too."""
        year, month, *_ = time.localtime(now_ms / 1000)
        self._month_ms, self._next_month_ms = (
            int(time.mktime((year, number, 1, 0, 0, 0, 0, 0, -1))) * 1000 for number in (month, month + 1)
        )
        self._loader_hash = (self._loader_hash + 1) % 2**32
        loader_hash = self._loader_hash - 2**32 if self._loader_hash >= 2**31 else self._loader_hash
        self._prefix = encode_unique_id(UniqueId(self._address, self._pid, loader_hash, 0, 0))[:-NUMBER_DIGITS]


def id_texts(prefix: str, first: int, count: int) -> list[str]:
    """The ids that :meth:`UniqueIds.take_many` gave."""
    return [f"{prefix}{number:0{NUMBER_DIGITS}X}" for number in range(first, first + count)]
