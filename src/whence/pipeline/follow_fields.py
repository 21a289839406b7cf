"""When a follower builds fields: in turns, between which the index goes on.

    turns = FieldTurns(follower, puts, meter, sidecar, build, slots)
    turns.take()        behind each batch: if it is time for it, some of what is missing
    turns.finish()      at the end, when there is nothing else to do: all of it

To evaluate fields takes Spark as long as hundreds of batches of the index, and after a change of Spark's version they
are built anew from the log's begin. So a turn is bounded. As long as more is missing, the next one follows the next
batch (follow_plan.py sees to it that there is one).

A field whose expression fails on a message is tried again now and then, and is left out of the turns between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from whence.errors import WhenceError
from whence.pipeline.follow_puts import Puts
from whence.pipeline.follow_state import FollowMeter
from whence.store.follower import Follower
from whence.store.sidecar import Sidecar, read_sidecar

FIELDS_S = 10.0  # fields are built so often at most, and in a tenth of the time
FIELDS_SHARE = 10
FIELDS_AGAIN_S = 60.0  # those that failed are tried again
SLOT_SIZE = 128 * 1048576  # bytes of log that a slot evaluates in one turn, in about a second
TURN_SIZE_MAX = 1 << 30  # and all together: one thread links them

Publishing = Callable[[], AbstractContextManager[None]]
FieldsBuilt = tuple[Sidecar, Mapping[str, WhenceError]]
"""What is to be said then; and why fields failed, by their names."""
BuildFields = Callable[[Sidecar, Publishing, int | None, Collection[str]], FieldsBuilt]
"""Builds what is missing of fields, up to where a sidecar says that the log is indexed: so many bytes of log, or all.

Those of the names that it is given stay as they are. While it publishes, it enters what it is given.
"""


def no_fields(claim: Sidecar, publishing: Publishing, turn_size: int | None, left: Collection[str]) -> FieldsBuilt:
    """Builds nothing."""
    return claim, {}


class FieldTurns:
    """Builds fields now and then. For the thread that puts."""

    def __init__(
        self,
        follower: Follower,
        puts: Puts,
        meter: FollowMeter,
        sidecar: Path,
        build: BuildFields,
        slots: int,
    ) -> None:
        self._follower = follower
        self._puts = puts
        self._meter = meter
        self._sidecar = sidecar
        self._build = build
        self._turn_size = min(slots * SLOT_SIZE, TURN_SIZE_MAX)
        self._due_at = 0.0
        self._failures: dict[str, WhenceError] = {}  # of fields that are left out until it is time to try them again
        self._again_at = 0.0

    def take(self) -> None:
        """Build some of what is missing, if it is time for that."""
        if time.monotonic() >= self._due_at and not self._puts.is_ended:
            self._take(self._turn_size)

    def finish(self) -> None:
        """Build all that is missing."""
        self._take(None)

    def _take(self, size: int | None) -> None:
        """One turn. Where a field fails, or all of it does, the rest goes on."""
        claim, begun = self._follower.claim, time.monotonic()
        if not claim.fields:
            return
        if begun >= self._again_at:
            self._failures = {}
        wait_s = FIELDS_S
        failures: Mapping[str, WhenceError] = {}
        try:
            after, failures = self._build(claim, self._puts.publishing, size, self._failures.keys())
        except WhenceError as error:
            if self._puts.is_ended:
                return  # which is why
            after = read_sidecar(self._sidecar) or claim  # some of them may be forgotten by now
            self._meter.field_failure, wait_s = str(error), FIELDS_AGAIN_S
        else:
            self._failures |= failures
            self._meter.field_failure = next(map(str, self._failures.values()), None)
            if after.fields != claim.fields and is_behind(after, self._failures):
                wait_s = 0.0
        self._follower.take_fields(after)
        ended = time.monotonic()
        share_s = FIELDS_SHARE * (ended - begun)
        self._due_at = ended + (max(wait_s, share_s) if wait_s else 0.0)
        if failures:
            self._again_at = ended + max(FIELDS_AGAIN_S, share_s)


def is_behind(claim: Sidecar, left: Collection[str] = ()) -> bool:
    """Whether a field, but for those of these names, is indexed less far than the log."""
    return any(field.indexed_to < claim.indexed_to for name, field in claim.fields.items() if name not in left)
