"""How a follower is: what it has done, how fast, and how far the log is ahead of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from whence.errors import FormatError, NotFoundError, StoreError
from whence.store.commit_log import CommitLog
from whence.store.log_scan import LogScan
from whence.store.sidecar import Sidecar
from whence.store.spill import Spilled

COUNTED_SIZE = 16 * 1048576  # of so much log the messages are counted; of more they are reckoned
RATE_S = 10.0  # over so long a time rates are told
LATENCY_BOUNDS_S = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.5, 5.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class FollowState:
    """How a follower is. Sums are those since it was started; what lags is what the log has and the index not yet.

    While the log is not there, nobody knows where it ends: None.
    """

    time_ms: int = 0  # when it was so
    log_end_offset: int | None = None
    indexed_to_offset: int = 0
    lag_bytes: int | None = None
    lag_messages: int | None = None  # about, where it is much
    lag_s: float | None = None  # the age of the oldest message that is not indexed
    batches: int = 0
    messages: int = 0
    items: int = 0
    bytes_read: int = 0
    damaged: int = 0  # places of the log that could not be read
    cuts: int = 0  # how often the log was cut, or was another one, and the index was cut with it
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    latency_s: float | None = None
    """From when the last batch's oldest message was stored until it could be found; none if it was there before."""
    batch_s: float | None = None  # how long that batch took
    fields_to_offset: int | None = None  # up to where all fields are indexed, where there are some
    field_failure: str | None = None  # why not all fields are followed, until that is tried again
    metrics_port: int | None = None  # where Prometheus is answered
    notes: tuple[str, ...] = ()  # what else a user should know of the start
    is_ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As ``follow --json`` has it."""
        return {name: round(value, 3) if type(value) is float else value for name, value in asdict(self).items()}


FollowWatcher = Callable[[FollowState], None]
"""Told about twice a second how a follower is, and once when it ended."""


class FollowMeter:
    """Counts what is done, and looks how far the log is. ``log`` is a reader of its own.

    One thread counts, another one asks.
    """

    def __init__(self, log: CommitLog) -> None:
        self.started_ms = time.time() * 1000
        self._log = log
        log.use_kernel()
        self._lock = threading.Lock()
        self._done = FollowState()
        self._rates: list[tuple[float, int, int]] = [(time.monotonic(), 0, 0)]
        self._latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._latency_sum_s = 0.0
        self.field_failure: str | None = None
        self.metrics_port: int | None = None
        self.notes: tuple[str, ...] = ()

    # -- what is done ----------------------------------------------------------------------------------------------

    def count(self, taken: Sequence[Spilled], batch_s: float, latency_s: float | None) -> None:
        """One batch was published."""
        with self._lock:
            done = self._done
            self._done = replace(
                done,
                batches=done.batches + 1,
                messages=done.messages + sum(each.message_count for each in taken),
                items=done.items + sum(each.item_count for each in taken),
                bytes_read=done.bytes_read + sum(each.end_offset - each.begin_offset for each in taken),
                damaged=done.damaged + sum(len(each.damage) for each in taken),
                latency_s=latency_s,
                batch_s=batch_s,
            )
            if latency_s is not None:
                self._latencies[sum(latency_s > bound for bound in LATENCY_BOUNDS_S)] += 1
                self._latency_sum_s += latency_s

    def count_cut(self) -> None:
        """The log was cut."""
        with self._lock:
            self._done = replace(self._done, cuts=self._done.cuts + 1)

    def latencies(self) -> tuple[list[int], float]:
        """How many batches took up to each of LATENCY_BOUNDS_S, and longer; and all of them together."""
        with self._lock:
            return list(self._latencies), self._latency_sum_s

    # -- how far the log is ----------------------------------------------------------------------------------------

    def state(self, claim: Sidecar, *, is_ended: bool = False) -> FollowState:
        """How it is now, if this is what ``sidecar.json`` says. Costs little while nothing lags."""
        with self._lock:
            done = self._done
        now = time.monotonic()
        self._rates = [each for each in self._rates if now - each[0] <= RATE_S] or self._rates[-1:]
        at, messages, size = self._rates[0]
        elapsed_s = max(now - at, 0.001)
        self._rates.append((now, done.messages, done.bytes_read))
        with suppress(NotFoundError):  # its disk is not there, or a file went just now
            done = self._with_lag(done, claim)
        return replace(
            done,
            time_ms=round(time.time() * 1000),
            indexed_to_offset=claim.indexed_to,
            messages_per_s=(done.messages - messages) / elapsed_s,
            bytes_per_s=(done.bytes_read - size) / elapsed_s,
            fields_to_offset=min((field.indexed_to for field in claim.fields.values()), default=None),
            field_failure=self.field_failure,
            metrics_port=self.metrics_port,
            notes=self.notes,
            is_ended=is_ended,
        )

    def _with_lag(self, done: FollowState, claim: Sidecar) -> FollowState:
        begin, end = self._ahead(claim)
        lag_bytes = sum(to - at for at, to in self._log.pieces(begin, end))
        return replace(
            done,
            log_end_offset=end,
            lag_bytes=lag_bytes,
            lag_messages=self._lag_messages(begin, end, lag_bytes, done),
            lag_s=self._lag_s(begin) if lag_bytes else 0.0,
        )

    def _ahead(self, claim: Sidecar) -> tuple[int, int]:
        """From where to where the log is not indexed."""
        log = self._log
        log.refresh()
        if not log.is_there:
            raise NotFoundError("the log has no byte")
        if not claim.indexed or not claim.is_of(log):
            return log.begin_offset, log.end_offset()
        begin = max(claim.indexed_to, log.begin_offset)
        if begin < (last_base := log.last_written_base()):
            return begin, max(log.end_offset(boundary=last_base), begin)
        return begin, max(log.end_offset(boundary=begin), begin)

    def _lag_messages(self, begin: int, end: int, size: int, done: FollowState) -> int:
        """How many messages lag; of much log, as many as there were in as much before."""
        if size > COUNTED_SIZE and done.messages:
            return round(size * done.messages / max(done.bytes_read, 1))
        end = min(end, begin + COUNTED_SIZE)
        counted = sum(len(batch.messages) for batch in LogScan(self._log, begin, end, tags=False, check_crc=False))
        return counted if size <= COUNTED_SIZE else round(counted * size / COUNTED_SIZE)

    def _lag_s(self, begin: int) -> float:
        """How old the first message is that is not indexed."""
        oldest_ms = stored_ms(self._log, begin)
        return 0.0 if oldest_ms is None else max(time.time() - oldest_ms / 1000, 0.0)

    def close(self) -> None:
        self._log.close()


def stored_ms(log: CommitLog, physical_offset: int) -> int | None:
    """When the message was stored that begins here, or behind the blank that does."""
    with suppress(FormatError, StoreError):
        return log.read(log.next_boundary(physical_offset)).store_timestamp_ms
    return None
