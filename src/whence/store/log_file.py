"""LogFile: the records of one CommitLog file, whole and damaged."""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from whence.errors import FormatError
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.message import MAGIC_V1, MAGIC_V2, MESSAGE_HEAD, Message
from whence.store.scan import AnySieve, Reason, ScanEnd, scan_bulk, scan_plain, whole_record

# Below this many bytes plain Python is done before Numba is loaded; benchmarks/threshold.py measures it.
PLAIN_SCAN_MAX = 32 * 1048576
PLAIN_STEP = 65536  # how often it is asked whether the plain road is still the shorter one
SEARCH_FACTOR = 4  # a search for the next whole record checks so many times the file's bytes at most

MAGIC_AT = 4
MAGIC_START = struct.pack(">i", MAGIC_V1)[:3]
assert struct.pack(">i", MAGIC_V2).startswith(MAGIC_START)
_SIZE_AND_OFFSET = struct.Struct(">i24xq")
HEAD_SIZE = MESSAGE_HEAD.itemsize


class Found(NamedTuple):
    """The position of the next whole record, or the one at which the search for it was given up."""

    position: int | None
    given_up_at: int | None

    def __str__(self) -> str:
        if self.position is not None:
            return f"the next whole record begins at byte {self.position}"
        if self.given_up_at is not None:
            return f"the search for a whole record behind it was given up at byte {self.given_up_at}"
        return "nothing whole lies behind it in this file"


NOTHING_FOUND = Found(None, None)


class PlainBudget:
    """How many bytes may still be scanned in plain Python before it pays to load the kernel."""

    def __init__(self) -> None:
        self.left = PLAIN_SCAN_MAX


class LogFile:
    """One mapped file of the CommitLog, whose first byte has physical offset ``base``."""

    def __init__(self, file: MappedFile, base: int, budget: PlainBudget) -> None:
        self.file = file
        self.base = base
        self._budget = budget

    def record(self, position: int) -> tuple[Message, int]:
        """The whole record at this position, and the position behind it; a FormatError if there is none."""
        return whole_record(self.file.data, self.base, position)

    def what_is_at(self, position: int) -> ScanEnd:
        """What stands at this position: a record (reason END), a blank, nothing, or damage."""
        return scan_plain(self.file.data, self.base, position, position + 1)

    def walk(
        self, position: int, end: int, sieve: AnySieve | None = None, offsets: array[int] | None = None
    ) -> ScanEnd:
        """Walk over the whole records that begin in ``[position, end)``, up to the first that is not.

        Physical offsets of those that pass the sieve are appended to ``offsets``. In plain Python while that is
        cheaper than loading the kernel.
        """
        taken: array[int] = array("q") if offsets is None else offsets

        def take(message: Message) -> None:
            if sieve is not None and sieve.takes(message):
                taken.append(message.physical_offset)

        last = -1
        end = min(end, self.file.size)
        while position < end:
            if self._budget.left > 0:
                stopped = scan_plain(self.file.data, self.base, position, min(end, position + PLAIN_STEP), take)
                self._budget.left -= stopped.position - position
            else:
                stopped = scan_bulk(self.file.data, self.base, position, end, sieve, taken)
            position, last = stopped.position, max(last, stopped.last)
            if stopped.reason is not Reason.END:
                return ScanEnd(position, last, stopped.reason, stopped.detail)
        return ScanEnd(position, last, Reason.END)

    def resume(self, position: int) -> Found:
        """Where the log goes on behind a record that fails: behind its size if a whole one is there, else by search.

        The size is tried first, since the body of the failing record may hold the bytes of whole ones.
        """
        size = int.from_bytes(self.file.data[position : position + 4], "big", signed=True)
        if 0 < size < self.file.size - position:
            if self.what_is_at(position + size).reason in (Reason.END, Reason.BLANK):
                return Found(position + size, None)
        return self.next_whole(position + 1)

    def next_whole(self, position: int) -> Found:
        """The next whole record that begins at or behind this position. A record's magic tells where one may begin.

        Bytes may be made so that many long records seem to begin and each fails its checksum at the end; so the
        search takes no more than some times the file's size, and says so if it was given up.
        """
        file = self.file
        left = SEARCH_FACTOR * file.size
        for at in file.occurrences(MAGIC_START, position + MAGIC_AT):
            start = at - MAGIC_AT
            if start + HEAD_SIZE > file.size:
                break
            size, physical_offset = _SIZE_AND_OFFSET.unpack_from(file.data, start)
            if physical_offset != self.base + start or not 0 < size <= file.size - start:
                continue
            left -= size
            if left < 0:
                return Found(None, start)
            try:
                self.record(start)
            except FormatError:
                continue
            return Found(start, None)
        return NOTHING_FOUND
