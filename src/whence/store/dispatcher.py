"""Dispatcher: takes what is appended to a CommitLog to its queues and its index, a moment later.

    append -> CommitLog -> dispatch thread -> QueueBuilder, then IndexBuilder     readers find it
                           flush thread    -> fsync, then ``on_flushed``          it lasts

Queues come first, and nothing of the index can stop them: an index that cannot be written stays behind, is tried
again, and is completed from the log. A queue that cannot be written ends the dispatch, and the store is to take no
more messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from whence.errors import StoreError, WhenceError
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.dispatch import put_items
from whence.store.index_builder import FlushedIndex, IndexBuilder, UnflushedIndex
from whence.store.log_scan import Batch, LogScan
from whence.store.message_store import Dialect
from whence.store.queue_builder import QueueBuilder

ROUND_SIZE = 64 * 1048576  # bytes of log that are dispatched before readers see them, and before others get a turn
BULK_SIZE = 1048576  # so much to do is done without a pause
# Threads that append need the interpreter, too: for each round of dispatch they lose more time than it takes. With
# the pauses below a tight loop of appends took 1.15 times as long as without dispatch, with 5 ms 1.3 times, with none
# 2.5 times.
RESTS = 20  # a pause is as long as so many rounds
PAUSE_MAX_S = 0.02
IDLE_S = 1.0
DAMAGE_MAX = 1000  # records that could not be read and are told


@dataclass(frozen=True, slots=True)
class Flushed:
    """How far queues and index are on the disk.

    All messages before ``queues_offset`` are in their queues, the last of them that of ``last_physical_offset``,
    stored at ``last_timestamp_ms`` (0 and 0 if none was dispatched since the dispatcher was made). All items of the
    messages before ``index_offset`` are in the index, and ``index_skip`` of those behind it. All queues together have
    grown by ``queues_grown_size`` bytes since the dispatcher was made.
    """

    queues_offset: int
    queues_grown_size: int
    last_physical_offset: int
    last_timestamp_ms: int
    index_offset: int
    index_skip: int
    index: FlushedIndex


class Dispatcher:
    """One thread that dispatches and one that flushes; any thread may call its methods.

    ``log`` is a reader of its own, and closed with it. ``end`` tells how far the log is written: up to there every
    record is whole. Queues go on at ``from_offset``, where a record begins or will; the index does so at
    ``index_offset``, if that is another one, behind the first ``index_skip`` items from there on, which it has.

    ``pause_s``: how long it waits at least between two rounds, unless somebody waits for it.
    ``on_failure`` is called once, with what ended the dispatch; ``failure`` keeps it.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueBuilder,
        index: IndexBuilder,
        *,
        from_offset: int,
        end: Callable[[], int],
        dialect: Dialect,
        index_offset: int | None = None,
        index_skip: int = 0,
        on_flushed: Callable[[Flushed], None] = lambda flushed: None,
        on_failure: Callable[[StoreError], None] = lambda failure: None,
        pause_s: float = 0.002,
        flush_size: int = 64 * 1048576,
        flush_interval_s: float = 10.0,
        index_tries: int = 3,
        index_try_pause_s: float = 1.0,
        index_retry_s: float = 10.0,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._end = end
        self._tags = dialect is Dialect.V5_5
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._pause_s = pause_s
        self._flush_size = flush_size
        self._flush_interval_s = flush_interval_s
        self._index_tries = index_tries
        self._index_try_pause_s = index_try_pause_s
        self._index_retry_s = index_retry_s

        self._offset = from_offset  # before it all is put into the queues
        self._written = from_offset  # and before this all is written, too
        self._last = (0, 0)
        self._index_at = (from_offset if index_offset is None else index_offset, index_skip)
        self._index_failed_tries = 0
        self._index_try_at = 0.0
        self._is_index_lost = False  # a flush of it failed: nobody knows what is on the disk
        self.index_failure: StoreError | None = None
        self.index_is_behind = False
        self.failure: StoreError | None = None
        self.damage: list[Damage] = []

        self._lock = threading.Lock()  # who has it puts, or takes what was put to flush it
        self._flush_lock = threading.Lock()
        self._flush_state = (self._offset, self._index_at)
        self._flushed_index = (self._index_at, FlushedIndex(index.newest, None))
        self._is_idle = False
        self._is_closing = False
        self._awake = threading.Event()
        self._flush_now = threading.Event()
        self._written_more = threading.Condition()
        self._waiting = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("whence-dispatch", self._dispatch_on), ("whence-dispatch-flush", self._flush_on))
        ]

    # -- for all threads -------------------------------------------------------------------------------------

    @property
    def dispatched_offset(self) -> int:
        """All messages before it are in their queues; and in the index, unless that is behind."""
        return self._written

    @property
    def index_offset(self) -> int:
        """All messages before it are in the index."""
        return self._index_at[0]

    @property
    def lag(self) -> int:
        """Bytes of the log that are written and not dispatched."""
        return max(self._end() - self._written, 0)

    def start(self) -> None:
        """Begin to dispatch."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Say that the log has grown. Costs next to nothing while the dispatcher is at work."""
        if self._is_idle:
            self._is_idle = False
            self._awake.set()

    def wait_until(self, offset: int, timeout_s: float | None = None) -> bool:
        """Wait until all before this offset is dispatched; False if time is up. Raises what ended the dispatch."""
        with self._written_more:
            self._waiting += 1
            self._awake.set()
            try:
                done = self._written_more.wait_for(
                    lambda: self._written >= offset or self.failure is not None, timeout_s
                )
            finally:
                self._waiting -= 1
        if self._written < offset and self.failure is not None:
            raise self.failure
        return done

    def flush(self) -> Flushed:
        """Wait until all that is dispatched by now is on the disk. Raises what ended the dispatch."""
        if self.failure is not None:
            raise self.failure
        try:
            return self._flush()
        except StoreError as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """Dispatch what is left, flush, and end. Raises what ended the dispatch before, if something did."""
        self._is_closing = True
        self._awake.set()
        self._flush_now.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        try:
            if self.failure is None:
                self._guarded(self._finish)
        finally:
            self._index.close()
            self._queues.close()
            self._log.close()
        if self.failure is not None:
            raise self.failure

    # -- dispatching -----------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Dispatch all there is, in this thread: for before the threads are started.

        An index that fails is left to them. A queue that fails is an error here.
        """
        while self._written < self._end():
            self._round()
        while self._is_index_due() and self.index_failure is None:
            self._catch_up()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the dispatch, and say so."""
        with self._written_more:
            if self.failure is not None:
                return
            self.failure = _as_store_error(error)
            self._written_more.notify_all()
        self._awake.set()
        self._flush_now.set()
        self._on_failure(self.failure)

    def _dispatch_on(self) -> None:
        while self.failure is None:
            begin_s = time.monotonic()
            to_do = self._end() - self._written
            if to_do > 0:
                self._round()
            if self._is_index_due():
                self._catch_up()
            elif to_do <= 0:
                if self._is_closing:
                    break
                self._sleep()
                continue
            if to_do < BULK_SIZE and not self._waiting and not self._is_closing:
                pause_s = min(max(RESTS * (time.monotonic() - begin_s), self._pause_s), PAUSE_MAX_S)
                self._awake.wait(pause_s)
                self._awake.clear()

    def _sleep(self) -> None:
        """Sleep until the log grows. Who appends sees that we sleep, or we see that there is more."""
        self._is_idle = True
        if self._end() <= self._written and not self._is_closing:
            until_try = self._index_try_at - time.monotonic()
            self._awake.wait(min(IDLE_S, until_try) if until_try > 0 else IDLE_S)
        self._is_idle = False
        self._awake.clear()

    def _round(self) -> None:
        """Dispatch what there is, or a part of it."""
        begin, end = self._offset, self._end()
        scan = LogScan(self._log, begin, end, tags=self._tags, check_crc=False)
        for batch in scan:
            with self._lock:
                self._queues.put(batch.data, batch.base_offset, batch.messages)
                if self._is_in_step():
                    self._put_index(batch)
                self._offset = batch.end_offset
                last = batch.messages[-1]
                self._last = (int(last["physical_offset"]), int(last["store_timestamp_ms"]))
            if self._offset - begin >= ROUND_SIZE:
                break
        else:
            with self._lock:
                if self._is_in_step():
                    self._index_at = (end, 0)
                self._offset = end
        with self._lock:
            self._queues.write()
        self.damage = (self.damage + scan.damage)[:DAMAGE_MAX]
        self._written = self._offset
        if self._waiting:
            with self._written_more:
                self._written_more.notify_all()
        if self._offset - self._flush_state[0] >= self._flush_size or self._index.unflushed_full_count:
            self._flush_now.set()

    # -- the index -------------------------------------------------------------------------------------------

    def _is_in_step(self) -> bool:
        return self._index_at == (self._offset, 0) and not self._is_index_lost

    def _is_index_due(self) -> bool:
        """Whether the index is behind and should be tried now."""
        if self._is_index_lost or self._index_at == (self._offset, 0):
            return False
        if self._index_failed_tries and self._is_closing:
            return False
        return time.monotonic() >= self._index_try_at

    def _catch_up(self) -> None:
        """Bring the index nearer to where the queues are."""
        begin, end = self._index_at[0], self._offset
        for batch in LogScan(self._log, begin, end, tags=self._tags, check_crc=False):
            with self._lock:
                if not self._put_index(batch):
                    return
            if batch.end_offset - begin >= ROUND_SIZE:
                return
        with self._lock:
            self._index_at = (end, 0)
        self.index_is_behind = False

    def _put_index(self, batch: Batch) -> bool:
        """Put what a batch has for the index, from where that stands; False if it failed."""
        offset, skip = self._index_at
        put_before = self._index.put_count
        try:
            put_items(self._index, batch, skip)
        except Exception as error:
            self._index_at = (offset, skip + self._index.put_count - put_before)
            self._index_failed_tries += 1
            is_behind = self._index_failed_tries >= self._index_tries
            self._index_try_at = time.monotonic() + (self._index_retry_s if is_behind else self._index_try_pause_s)
            self.index_failure, self.index_is_behind = _as_store_error(error), is_behind
            return False
        self._index_at = (batch.end_offset, max(skip - len(batch.items), 0))
        self._index_failed_tries = 0
        self.index_failure = None
        return True

    # -- flushing --------------------------------------------------------------------------------------------

    def _flush_on(self) -> None:
        while self.failure is None and not self._is_closing:
            self._flush_now.wait(self._flush_interval_s)
            self._flush_now.clear()
            if not self._is_closing and self._flush_state != (self._offset, self._index_at):
                self._flush()

    def _flush(self) -> Flushed:
        with self._flush_lock:
            with self._lock:
                self._queues.write()
                queues = self._queues.unflushed()
                index = self._index.unflushed()
                state = (self._offset, self._index_at)
                last_physical_offset, last_timestamp_ms = self._last
                grown_size = self._queues.grown_size
            self._flush_state = state
            queues.flush()
            if not self._is_index_lost:
                self._flush_index(index, state[1])
            (index_offset, index_skip), flushed_index = self._flushed_index
            flushed = Flushed(
                state[0],
                grown_size,
                last_physical_offset,
                last_timestamp_ms,
                index_offset,
                index_skip,
                flushed_index,
            )
            self._on_flushed(flushed)
            return flushed

    def _flush_index(self, index: UnflushedIndex, index_at: tuple[int, int]) -> None:
        try:
            flushed = index.flush()
        except StoreError as error:
            # What the disk has of it now nobody knows. The queues go on; recovery completes the index from the log.
            self._is_index_lost = self.index_is_behind = True
            self.index_failure = error
            return
        self._flushed_index = (index_at, FlushedIndex(flushed.newest, flushed.full or self._flushed_index[1].full))

    def _finish(self) -> None:
        """The last flush."""
        if self._is_in_step():
            try:
                self._index.complete()
            except StoreError as error:
                self.index_failure = error
        self._flush()


def _as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    failure = StoreError(f"dispatch failed: {error if isinstance(error, WhenceError) else repr(error)}")
    failure.__cause__ = error
    return failure
