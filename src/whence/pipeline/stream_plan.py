"""The plan of a stream over a growing log: plain data in and out, without Spark.

    first    where a stream begins: at the log's begin or end, at an offset, at a time
    latest   how far it can go now, within a limit; only over records that are whole
    behind   what stands at the log's end, if that is damage: whole records lie behind it, and stay there
    cut      what lies between two places, in stretches that tasks read side by side

A :class:`Place` says where a stream is, and by which record one sees that the log is still the one it was. All of a
stream's memory is in it: who stops and comes back with the same place goes on there, and takes no message twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from whence.errors import FormatError, NotFoundError, UsageError
from whence.formats.rocketmq.message import BLANK_SIZE_MIN
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import HEAD_SIZE
from whence.store.log_scan import Batch, LogScan
from whence.store.scan import Sieve

NOWHERE = -1
STRETCH_SIZE = 64 * 1048576  # bytes that one task reads: below that it takes longer to start than to run
STILL_S = 1.0  # a broker that writes a record is done with it by then
EMPTY_S = 10.0  # before one looks behind an end where nothing is written: such is every log that is at rest
LOOK_MAX_S = 600.0  # between two looks, each of which reads what is written of the file
OLDER_MS = 1000  # a clock may be put back by less; a broker does not start in less


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is: all records before ``offset`` are done.

    ``record`` is where one of them begins, the last as far as it is known, and ``head`` its first bytes; NOWHERE and
    nothing if none was met yet. An ``offset`` of NOWHERE is the begin of a log that has no file yet.
    """

    offset: int
    record: int = NOWHERE
    head: bytes = b""
    lost: int = 0  # bytes of log that had expired before they were read

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it in a checkpoint and shows it in a query's progress."""
        told = {"offset": self.offset, "record": self.record, "head": self.head.hex()}
        return told | {"lost_bytes": self.lost} if self.lost else told

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Place:
        """What :meth:`to_json` gave, maybe long ago."""
        try:
            numbers = [document["offset"], document["record"], document.get("lost_bytes", 0)]
            if not all(isinstance(number, int) and number >= NOWHERE for number in numbers):
                raise ValueError("an offset is a whole number")
            return cls(numbers[0], numbers[1], bytes.fromhex(document["head"]), numbers[2])
        except (KeyError, TypeError, ValueError) as error:
            what = f"{document!r} is no place of a stream of whence's: {error!r}"
            raise UsageError(f"{what}; name another checkpoint") from error


class Loss(NamedTuple):
    """What a stream cannot read any more: from where on it can, and what to say of it."""

    begin_offset: int
    lost: int
    detail: str


class Behind(NamedTuple):
    """What lies behind the log's end; ``damage`` tells it, as to who reads all of the log.

    ``is_older``: it was stored before the last record that counts. So it is after a crash: the broker was started
    again, went on where it cut its log, and will write over the rest.
    """

    damage: Damage
    is_older: bool


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one batch takes: whole records of so many bytes, but one at least; or so many files of the log."""

    max_bytes: int | None = None
    max_files: int | None = None


NO_LIMIT = Limit()


class StreamPlan:
    """Plans a stream over one log, which may grow, roll, expire and be cut meanwhile. For one thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._rest = NOWHERE  # the end at which the stream waits
        self._look_at_s = 0.0
        self._pause_s = 0.0
        log.use_kernel()

    # -- where to begin --------------------------------------------------------------------------------------------

    def begin(self) -> Place:
        """The first byte that is there."""
        self._log.refresh()
        return Place(self._log.begin_offset if self._log.bases else NOWHERE)

    def end(self) -> Place:
        """Behind the last whole record."""
        begin = self.begin()
        return begin if begin.offset == NOWHERE else self._reached(begin, self._log.end_offset())

    def at_offset(self, offset: int) -> Place:
        """An offset where a record begins, or will. What lies before the log's begin has expired: then that."""
        begin, end = self.begin(), self.end()
        if offset <= begin.offset:
            return begin
        if offset == end.offset:
            return end
        if offset > end.offset:
            raise UsageError(f"offset {offset} lies behind the log's end, at {max(end.offset, 0)}")
        if not self._log.is_boundary(offset, []):
            raise UsageError(
                f"no record begins at offset {offset}; give a message's physical_offset, or a startingTimestamp"
            )
        return self._at_record(offset)

    def at_time(self, timestamp_ms: int, within: Sequence[tuple[int, int]] | None = None) -> Place:
        """The first record that was stored then or later; the log's end if there is none yet.

        ``within``: the parts of the log that can hold one, where time blocks tell it. All of it is scanned otherwise.
        """
        begin, end = self.begin(), self.end()
        sieve = Sieve(since_ms=timestamp_ms)
        for piece_begin, piece_end in self._log.pieces(begin.offset, end.offset) if within is None else within:
            found = self._log.scan(piece_begin, min(piece_end, end.offset), sieve, [])
            if found:
                return self._at_record(found[0])
        return end

    def _at_record(self, offset: int) -> Place:
        """The place before a record. The first of its file, if that is another one, tells that it is the same log."""
        base = self._log.base_of(offset)
        if base is None or base == offset:
            return Place(offset)
        return Place(offset, base, self._log.raw(base, HEAD_SIZE))

    # -- how far ---------------------------------------------------------------------------------------------------

    def loss(self, start: Place) -> Loss | None:
        """What went since the stream was at this place, and has not been read; None if nothing did."""
        log = self._log
        log.refresh()
        begin = log.begin_offset
        if start.offset == NOWHERE or not log.bases:
            return None  # a log without a file says nothing: its disk may not be there at the moment
        if start.offset < begin:
            lost = begin - start.offset
            detail = f"the log begins at offset {begin} by now, and the stream is at {start.offset}"
            return Loss(begin, lost, f"{detail}: {lost} bytes have expired before they were read")
        if start.record >= begin and log.raw(start.record, HEAD_SIZE) != start.head:
            detail = f"another record than before, or none, lies at offset {start.record}"
            return Loss(begin, 0, f"{detail}: the log was cut, or it is another one")
        return None

    def from_where(self, start: Place) -> Place:
        """Where the stream can go on: at the place itself, or behind what was lost."""
        if start.offset == NOWHERE:
            return self.begin()
        loss = self.loss(start)
        return start if loss is None else Place(loss.begin_offset, lost=start.lost + loss.lost)

    def latest(self, start: Place, limit: Limit = NO_LIMIT, target: Place | None = None) -> Place:
        """How far a batch that begins at ``start`` goes: to the log's end, if the limit and ``target`` allow it.

        It is ``start`` itself if nothing is there. The end is where whole records end: see :class:`CommitLog`.
        """
        begin = self.from_where(start)
        if begin.offset == NOWHERE:
            return start
        end = self._log.end_offset(boundary=begin.offset)
        if target is not None:
            end = min(end, target.offset)
        if end <= begin.offset:
            return start if begin.offset == start.offset else begin
        if limit.max_files is not None:
            end = self._file_limit(begin.offset, limit.max_files, end)
        if limit.max_bytes is not None:
            return self._byte_limit(begin, limit.max_bytes, end)
        return self._reached(begin, end)

    def _file_limit(self, begin: int, max_files: int, end: int) -> int:
        pieces = self._log.pieces(begin, end)
        if len(pieces) <= max_files:
            return end
        return pieces[max_files][0]

    def _byte_limit(self, begin: Place, max_bytes: int, end: int) -> Place:
        """The place behind as many whole records as have so many bytes; behind one, if that has more."""
        last = begin
        left = max_bytes
        for batch in self._batches(begin.offset, end):
            sizes = np.cumsum(batch.messages["size"], dtype=np.int64)
            count = int(np.searchsorted(sizes, left, side="right"))
            if count == len(sizes):
                left -= int(sizes[-1])
                last = self._behind(batch, count, begin)
                continue
            if count or last is begin:
                last = self._behind(batch, max(count, 1), begin)
            return last
        return replace(last, offset=end)

    def _behind(self, batch: Batch, count: int, begin: Place) -> Place:
        """The place behind the first ``count`` records of a batch."""
        row = batch.messages[count - 1]
        record = int(row["physical_offset"])
        head = batch.data[record - batch.base_offset :][:HEAD_SIZE].tobytes()
        return Place(record + int(row["size"]), record, head, begin.lost)

    def _reached(self, begin: Place, end: int) -> Place:
        """The place at an end that is known, with the last record before it, if it can be told at once."""
        log = self._log
        record = log.last_offset
        if not begin.offset <= record < end:
            record = self._last_record(begin.offset, end)
        if record == NOWHERE:
            return replace(begin, offset=end)
        return Place(end, record, log.raw(record, HEAD_SIZE), begin.lost)

    def _last_record(self, begin: int, end: int) -> int:
        """The last record before an end; NOWHERE if there is none behind ``begin``."""
        for piece_begin, piece_end in reversed(self._log.pieces(begin, end)):
            last = NOWHERE
            for batch in self._batches(piece_begin, piece_end):
                last = int(batch.messages["physical_offset"][-1])
            if last != NOWHERE:
                return last
        return NOWHERE

    # -- behind the end --------------------------------------------------------------------------------------------

    def behind(self, place: Place, *, is_last: bool = False) -> Behind | None:
        """What lies behind a place at which nothing is left to do, if that is the log's end and whole records do.

        One that is being written is none of them, also where a crash left older ones behind it: they are looked at
        twice. A look reads much, so few are taken at one place; ``is_last``: no other call will come.
        """
        if place.offset == NOWHERE or not (self._is_due(place.offset) or is_last) or not self._ends_at(place.offset):
            return None
        first, given_up_at = self._log.first_behind(place.offset)
        if first is not None and self._is_older(first, place.record):
            path, position = self._log.path_of(place.offset)
            detail = (
                f"the log ends here, at offset {place.offset}; a record behind it, at offset {first}, is older than "
                "the last before it, as after a crash of the broker"
            )
            return Behind(Damage(str(path), position, DamageKind.RECORDS_BEHIND_END, detail), is_older=True)
        if first is None and given_up_at is None:
            return None
        time.sleep(STILL_S)
        found = [each for each in self._log.damage_behind(place.offset) if each.kind.hides_messages]
        return Behind(found[0], is_older=False) if found and self._ends_at(place.offset) else None

    def _ends_at(self, offset: int) -> bool:
        return self._log.end_offset(boundary=offset) == offset

    def _is_due(self, offset: int) -> bool:
        """Whether it is time to look behind this end, at which the stream may have been before."""
        now = time.monotonic()
        if offset != self._rest:
            self._rest, self._pause_s = offset, STILL_S
            self._look_at_s = now if any(self._log.raw(offset, BLANK_SIZE_MIN)) else now + EMPTY_S
        if now < self._look_at_s:
            return False
        self._look_at_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LOOK_MAX_S)
        return True

    def _is_older(self, behind: int, before: int) -> bool:
        """Whether the record behind the end was stored well before the last one that counts, if that is known."""
        try:
            times = [self._log.read(offset).store_timestamp_ms for offset in (behind, before) if offset != NOWHERE]
        except (FormatError, NotFoundError):
            return False
        return len(times) == 2 and times[0] < times[1] - OLDER_MS

    def pass_end(self, place: Place) -> Place:
        """The log's end for who takes what stands at ``place``, its end until now, for damage within it."""
        return self._reached(place, self._log.pass_end(place.offset))

    # -- stretches -------------------------------------------------------------------------------------------------

    def cut(self, start: Place, end: Place, size: int = STRETCH_SIZE) -> list[tuple[int, int]]:
        """What lies between two places, in stretches that tasks read side by side; see :meth:`cut_between`."""
        begin = self.from_where(start).offset
        if begin == NOWHERE or self.loss(end) is not None:
            return []  # what was to be read went before it could be
        return self.cut_between(begin, end.offset, size)

    def cut_between(self, begin: int, end: int, size: int) -> list[tuple[int, int]]:
        """What lies between two offsets where records begin, cut at the first record of each block of this size.

        Blocks are counted from offset 0. So a part of the log is cut alike, whatever lies before and behind it. Each
        stretch lies in one file of the log, and a message belongs to the one in which it begins.
        """
        stretches = []
        for piece_begin, piece_end in self._log.pieces(begin, end):
            cuts = [piece_begin]
            next_cut = piece_begin // size * size + size
            if next_cut < piece_end:
                for batch in self._batches(piece_begin, piece_end):
                    offsets = batch.messages["physical_offset"]
                    while offsets[-1] >= next_cut:
                        cuts.append(int(offsets[np.searchsorted(offsets, next_cut)]))
                        next_cut = cuts[-1] // size * size + size
            stretches += list(zip(cuts, [*cuts[1:], piece_end], strict=True))
        return stretches

    def _batches(self, begin: int, end: int) -> LogScan:
        """The records between two boundaries. Their checksums are looked at by who reads them."""
        return LogScan(self._log, begin, end, tags=False, check_crc=False)
