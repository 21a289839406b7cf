"""The plan of following a log: how far a batch goes, and its stretches. Plain data, without Spark.

    ticket = plan.latest(ticket, limit)      another one if there is something to do
    plan.stretches(ticket, slots)            what is to be scanned for it: from where sidecar.json says, to its offset

Where a batch begins is told by ``sidecar.json`` alone, which the batch before wrote. So a batch that is run again, or
by another process, takes what is missing and nothing twice, and Spark's own memory of offsets may be of any age.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from whence.errors import NotFoundError
from whence.pipeline.plan import LogFilePlace, cut_log, stretch_size
from whence.store.commit_log import CommitLog
from whence.store.sidecar import Claim, Sidecar
from whence.store.spill import Stretch

STRETCH_SIZE_MAX = 256 * 1048576  # bytes: what is scanned is put while the rest is scanned
POLL_S = 0.02  # between two looks at the log, while it grows
POLL_AT_REST_S = 0.1
REST_S = 5.0  # after so long without growth
FIELDS_S = 5.0  # and so long after it fields that lag get a batch of their own
FIELDS_MAX_S = 600.0  # which comes less often if it does not help


@dataclass(frozen=True, slots=True)
class Ticket:
    """What Spark keeps of a batch: up to which offset it goes.

    ``turn`` makes two differ that go to the same offset: when a batch has to come although the log did not grow, for
    it was cut, or what is indexed was, or something has expired.
    """

    offset: int
    turn: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Ticket:
        return cls(int(document["offset"]), int(document["turn"]))


class FollowPlan:
    """Plans batches over one log, and what a sidecar says is indexed of it. For one thread.

    ``target``: how far it goes at most; None for as far as the log does.
    """

    def __init__(self, log: CommitLog, sidecar: Path, target: int | None = None) -> None:
        self._log = log
        self._claim = Claim(sidecar)
        self.target = target
        self._grown_at = time.monotonic()
        self._begin_offset: int | None = None  # of the log, when a batch came
        self._fields_s = FIELDS_S
        self._fields_at = self._grown_at
        self._fields_to: int | None = None  # how far they were together when a batch came for them
        log.use_kernel()

    def indexed_to(self) -> int | None:
        """Up to where the log is indexed; None if what is said of that is not true of it any more."""
        claim = self._claim.read()
        if claim is None or not claim.indexed:
            return self._log.begin_offset
        return claim.indexed_to if is_current(claim, self._log) else None

    def first(self) -> Ticket:
        """Before the first batch."""
        try:
            self._log.refresh()
            return Ticket(self.indexed_to() or 0)
        except NotFoundError:
            return Ticket(0)

    def latest(self, start: Ticket, limit: int | None = None) -> Ticket:
        """How far a batch behind ``start`` goes; ``start`` itself if there is nothing to do.

        ``limit``: bytes. Whole files of the log are taken as long as they fit, one at least; then what the last has.
        """
        try:
            return self._latest(start, limit)
        except NotFoundError:
            return start  # a file went since it was looked for, or all of them with the disk that they are on

    def _latest(self, start: Ticket, limit: int | None) -> Ticket:
        log = self._log
        log.refresh()
        if not log.is_there:
            return start  # nothing is there yet, or its disk is not there at the moment
        ticket = self._next(start, limit)
        if ticket == start and self.target is None and self._begin_offset not in (None, log.begin_offset):
            ticket = replace(start, turn=start.turn + 1)  # so that who follows lets go of what has expired
        if ticket != start or self._begin_offset is None:
            self._begin_offset = log.begin_offset
        return ticket

    def _next(self, start: Ticket, limit: int | None) -> Ticket:
        begin = self.indexed_to()
        if begin is None:
            return replace(start, turn=start.turn + 1)
        end = self._end(start, begin, limit)
        if end <= begin:
            return replace(start, turn=start.turn + 1) if self._is_field_due() else start
        ticket = replace(start, offset=end)
        return ticket if ticket != start else replace(start, turn=start.turn + 1)

    def _end(self, start: Ticket, begin: int, limit: int | None) -> int:
        if self.target is not None and (limit is None or self.target - begin <= limit):
            return self.target if start.offset < self.target else min(self.target, self._log.end_offset(begin))
        log, last_base = self._log, self._log.last_written_base()
        end = begin
        for base in log.bases:
            behind = min(base + log.file_size, last_base)
            if begin < behind and (end == begin or limit is None or behind - begin <= limit):
                end = behind
        if end == begin or (end == last_base and (limit is None or end + log.file_size - begin <= limit)):
            end = log.end_offset(boundary=max(begin, last_base))
        return end if self.target is None else min(end, self.target)

    def _is_field_due(self) -> bool:
        """Whether a field is behind the index for some time: then a batch comes although the log did not grow.

        So it is as soon as the batch before brought it a part of the way (follow_fields.py).
        """
        claim, now = self._claim.read(), time.monotonic()
        if claim is None or all(field.indexed_to >= claim.indexed_to for field in claim.fields.values()):
            self._fields_s, self._fields_at, self._fields_to = FIELDS_S, now, None
            return False
        if self.target is not None:
            return False
        fields_to = sum(field.indexed_to for field in claim.fields.values())
        if self._fields_to is not None and fields_to > self._fields_to:
            self._fields_s = 0.0  # they came some way, and go on at once
        if now - self._fields_at < self._fields_s:
            return False
        self._fields_s, self._fields_at = max(FIELDS_S, min(2 * self._fields_s, FIELDS_MAX_S)), now
        self._fields_to = fields_to
        return True

    def wait(self, start: Ticket, limit: int | None, timeout_s: float) -> Ticket:
        """The same, as soon as there is something to do; ``start`` when time is up. It costs next to nothing."""
        deadline = time.monotonic() + timeout_s
        while True:
            ticket = self.latest(start, limit)
            now = time.monotonic()
            if ticket != start:
                self._grown_at = now
                return ticket
            if now >= deadline:
                return start
            poll_s = POLL_S if now - self._grown_at < REST_S else POLL_AT_REST_S
            time.sleep(min(poll_s, deadline - now))

    def log_end(self) -> int:
        """Where the log ends now; 0 if it is not there."""
        try:
            return self._log.end_offset()
        except NotFoundError:
            return 0

    def stretches(self, ticket: Ticket, slots: int) -> list[Stretch]:
        """What a batch scans. None if nothing is left to do, or the log is not the one that is indexed."""
        try:
            return self._stretches(ticket, slots)
        except NotFoundError:
            return []  # as in latest()

    def _stretches(self, ticket: Ticket, slots: int) -> list[Stretch]:
        log = self._log
        log.refresh()
        begin, end = self.indexed_to(), ticket.offset
        if begin is None or begin >= end:
            return []
        pieces = log.pieces(begin, end)
        files = [LogFilePlace(str(log.path_of(at)[0]), log.base_of(at) or 0, log.file_size) for at, _ in pieces]
        size = min(stretch_size(sum(to - at for at, to in pieces), slots, None), STRETCH_SIZE_MAX)
        cut = [stretch for stretch in cut_log(files, begin, size) if stretch.from_offset < end]
        # The log is known to go on to the end: a record that fails before it is damage.
        return [replace(each, to_offset=min(each.to_offset, end), is_last=False) for each in cut]


def is_current(claim: Sidecar, log: CommitLog) -> bool:
    """Whether what is indexed can be gone on with: the log is still the one that it was, and nothing is lost."""
    return claim.indexed_to >= log.begin_offset and claim.is_of(log) and not claim.lacks_file(log)
