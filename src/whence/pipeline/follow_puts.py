"""Puts: the publishing side of a follower. Spills go into its files in the order of the log, and readers are told.

    puts = Puts(follower, log, meter)
    from_offset = puts.begin()        where a batch goes on
    with puts.as_they_come(work):     in a thread of its own, while tasks still spill what comes behind
        ...                           the tasks
    puts.finish(work, taken)          what did not come in order, and all is published

A spill is put early if it begins where the one before ended: only the way from the start proves where a record
begins. What is not so is left to who joins the stretches (plan.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from whence.errors import NotFoundError, StoreError
from whence.pipeline.follow_state import FollowMeter, stored_ms
from whence.pipeline.tasks import spill_number
from whence.store.commit_log import CommitLog
from whence.store.follower import Follower
from whence.store.spill import Spilled, read_spilled

LOOK_S = 0.01  # between two looks for the next spill
PUBLISHED_SIZE = 1 << 30  # bytes of log: so much is not kept from readers until its batch ends


class Puts:
    """Puts and publishes, or has ended. One thread at a time puts; any may end it.

    ``log`` is a reader of its own. ``is_locked``: whether nobody else can hold the lock of what is written to.
    """

    def __init__(
        self,
        follower: Follower,
        log: CommitLog,
        meter: FollowMeter,
        is_locked: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_locked = is_locked
        self._follower = follower
        self._log = log
        self._meter = meter
        self._lock = threading.Lock()  # who has it changes the sidecar, or ends
        self._is_ended = False
        self._waiting: list[Spilled] = []  # put, and not published
        self._put_to = 0
        self._oldest_ms: int | None = None  # of what waits
        self._begun = 0.0
        self._count = 0  # spills of the batch that were put

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def end(self) -> None:
        """End between two publications: behind this, nothing of the sidecar changes any more."""
        with self._lock:
            self._is_ended = True
            if self._is_locked():
                self._follower.close()
            else:
                self._follower.let_go()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Holds off the end, for who publishes on its own; behind that, the sidecar may be another process's."""
        with self._lock:
            if self._is_ended:
                raise StoreError("nothing is published any more, for the follower has ended")
            self._check_lock()
            yield

    # -- a batch -----------------------------------------------------------------------------------------------------

    def begin(self) -> int | None:
        """From where on a batch is put; None if there is no log, or it has ended."""
        with self._lock:
            if self._is_ended or not self._check():
                return None
            with suppress(NotFoundError):  # it went just now, which the next look at it tells
                self._log.refresh()  # what has expired is let go of
            self._follower.go_back()
            self._put_to = self._follower.end_offset
        self._waiting, self._count, self._begun = [], 0, time.monotonic()
        return self._put_to

    @contextmanager
    def as_they_come(self, work: Path) -> Iterator[None]:
        """Put what tasks leave in ``work`` meanwhile, as long as it comes in order.

        If the tasks fail, what was put of them is published: it is right, and the next batch goes on behind it.
        """
        stopped, failures = threading.Event(), list[BaseException]()

        def put() -> None:
            try:
                while not stopped.is_set():
                    spilled = self._next_spill(work)
                    if spilled is None:
                        stopped.wait(LOOK_S)
                    elif spilled.begin_offset != self._put_to or not self._put(work, spilled):
                        return
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=put, name="whence-puts", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            stopped.set()
            thread.join()
            if not failures:
                self._publish()
            raise
        finally:
            stopped.set()
            thread.join()
            if failures:
                raise failures[0]

    def finish(self, work: Path, taken: Sequence[Spilled]) -> None:
        """Put what is missing of a batch, whose spills are those ``taken``, and publish all of it."""
        for spilled in taken[self._count :]:
            if not self._put(work, spilled):
                return
        self._publish()

    def _next_spill(self, work: Path) -> Spilled | None:
        """The spill behind those that were put, if a task has left it."""
        begin = spill_number(self._count)
        with os.scandir(work) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(begin) and entry.name.endswith(".json")]
        return read_spilled(work / names[0]) if names else None

    def _put(self, work: Path, spilled: Spilled) -> bool:
        """Put a spill; False if something was cut since its batch was planned, or all has ended."""
        try:
            if not self._waiting:
                self._log.refresh()
                self._oldest_ms = stored_ms(self._log, self._put_to)
            spilled = self._up_to_log_end(spilled)
        except NotFoundError:
            return False  # the log's folder went, as with a disk
        with self._lock:
            if not self._is_as_put():
                return False
            self._follower.put_spill(work, spilled)
            self._put_to = self._follower.end_offset
        self._waiting.append(spilled)
        self._count += 1
        if self._put_to - self._follower.claim.indexed_to >= PUBLISHED_SIZE:
            self._publish()
        return True

    def _up_to_log_end(self, spilled: Spilled) -> Spilled:
        """A spill without what it could not read at its end, if that is where the log ends now.

        A broker that starts again after a crash cuts what it cannot prove, and will write there: this is no damage.
        """
        if not spilled.holes or spilled.holes[-1][1] < spilled.end_offset:
            return spilled
        hole = spilled.holes[-1][0]
        if self._log.end_offset() > hole:
            return spilled
        damage = tuple(each for each in spilled.damage if int(Path(each.path).name) + each.position < hole)
        return replace(spilled, end_offset=hole, holes=spilled.holes[:-1], damage=damage)

    def _publish(self) -> None:
        """Let readers see what waits."""
        taken, self._waiting = self._waiting, []
        if not taken:
            return
        with self._lock:
            if not self._is_as_put():
                return
            self._follower.publish(taken[-1].end_offset, [hole for each in taken for hole in each.holes])
            self._put_to = self._follower.end_offset
        latency_s = None
        if self._oldest_ms is not None and self._oldest_ms >= self._meter.started_ms:
            latency_s = time.time() - self._oldest_ms / 1000
        now = time.monotonic()
        self._meter.count(taken, now - self._begun, latency_s)
        self._begun = now

    def _is_as_put(self) -> bool:
        """Whether all is as it was left here. If the log was cut, the index is cut, too, and it is not."""
        return not self._is_ended and self._check() and self._follower.end_offset == self._put_to

    def _check(self) -> bool:
        """Whether the log is there."""
        self._check_lock()
        indexed_to = self._follower.claim.indexed_to
        is_there = self._follower.check()
        if self._follower.claim.indexed_to < indexed_to:
            self._meter.count_cut()
        return is_there

    def _check_lock(self) -> None:
        if not self._is_locked():
            raise StoreError(
                f"{self._follower.folder}: was removed or replaced while it was written to; start again, and what is "
                "missing is made anew"
            )
