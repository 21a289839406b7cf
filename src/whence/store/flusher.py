"""Flusher: the thread that flushes a CommitLog, and whom appenders wait for.

    async   every half second, if four pages or more were written; every ten seconds, if anything was
    sync    whenever an appender waits. All that was appended while one flush ran is covered by the next: however
            many threads append, one of them has to wait for two flushes at most (group commit)

The intervals are RocketMQ's. A flush that fails is the last one: the log takes nothing more (see log_writer.py), and
everybody who waits is told.

Each waiting thread has a lock of its own to sleep on. One condition for all of them would wake every thread for every
flush, only to have them queue up for it again. To let the first thread that waits do the flush itself was no faster
(32 threads, benchmarks/append.py), and that thread could not give up after its five seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from whence.errors import StoreError
from whence.store.log_writer import LogWriter
from whence.store.put_result import PutStatus

PAGE_SIZE = 4096
PAGES_MIN = 4


class FlushMode(StrEnum):
    ASYNC = "async"
    SYNC = "sync"


class Flusher:
    """Flushes one log, from here until :meth:`close`. Any number of threads may wait.

    ``on_flush`` is called after each flush: those who do not wait learn of it so.
    """

    def __init__(
        self,
        log: LogWriter,
        mode: FlushMode | str,
        *,
        interval_s: float = 0.5,
        thorough_interval_s: float = 10.0,
        timeout_s: float = 5.0,
        on_flush: Callable[[], object] = lambda: None,
    ) -> None:
        self.mode = FlushMode(mode)
        self.timeout_s = timeout_s
        self._log = log
        self._interval_s = interval_s
        self._thorough_interval_s = thorough_interval_s
        self._on_flush = on_flush
        self._is_closed = False
        self._gates = threading.local()  # the lock that a thread sleeps on
        self._lock = threading.Lock()  # of what follows
        self._waiting: list[threading.Lock] = []
        self._is_woken = False  # the thread was told that there is something to do, and has not begun yet
        self._wake = threading.Lock()  # what the thread itself sleeps on
        self._wake.acquire()
        self._thread = threading.Thread(target=self._run, name="whence-flusher", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is flushed any more."""
        return self._log.flush_failure

    def wait(self, offset: int) -> PutStatus:
        """Wait until the log is flushed up to ``offset``: PUT_OK. Too late, or never: FLUSH_DISK_TIMEOUT."""
        log = self._log
        if log.flushed_offset >= offset:
            return PutStatus.PUT_OK
        deadline = time.monotonic() + self.timeout_s
        while log.flush_failure is None and (left_s := deadline - time.monotonic()) > 0:
            is_open = False
            try:
                gate = self._gate()
                with self._lock:
                    if self._is_closed:
                        break
                    self._waiting.append(gate)
                    self._wake_up()
                is_open = gate.acquire(timeout=left_s)
            finally:
                if not is_open:  # too late, or interrupted: it may be opened yet, when nobody waits for it
                    self._gates.gate = None
            if log.flushed_offset >= offset:
                return PutStatus.PUT_OK
        return PutStatus.FLUSH_DISK_TIMEOUT

    def _gate(self) -> threading.Lock:
        gate: threading.Lock | None = getattr(self._gates, "gate", None)
        if gate is None:
            gate = self._gates.gate = threading.Lock()
            gate.acquire()
        return gate

    def flush_soon(self) -> None:
        """Have the log flushed without waiting for it."""
        with self._lock:
            self._wake_up()

    def _wake_up(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake.release()

    def _run(self) -> None:
        timeout_s = -1 if self.mode is FlushMode.SYNC else self._interval_s  # -1: none
        thorough_at = time.monotonic() + self._thorough_interval_s
        while not self._is_closed:
            waiting: list[threading.Lock] = []
            is_due = self._wake.acquire(timeout=timeout_s)
            if is_due:
                self._let_others_come()
                with self._lock:
                    self._is_woken = False
                    waiting, self._waiting = self._waiting, waiting
            pages = self._log.end_offset // PAGE_SIZE - self._log.flushed_offset // PAGE_SIZE
            if time.monotonic() >= thorough_at:
                is_due = True
                thorough_at = time.monotonic() + self._thorough_interval_s
            if is_due or pages >= PAGES_MIN:
                self._flush()  # covers all who wait: they had appended before
            for gate in waiting:
                gate.release()
            self._on_flush()

    def _let_others_come(self) -> None:
        """Let threads run that are about to wait, as long as each turn brings some: one flush then serves more.

        Those that the last flush has served have just begun to append again. Without this a flush served 12 of 32
        threads, and a message took half as much time again of the processor.
        """
        count = 0
        while count < len(self._waiting):
            count = len(self._waiting)
            os.sched_yield()

    def _flush(self) -> None:
        try:
            self._log.flush()
        except StoreError:
            pass  # the log keeps it as its failure; who waits or appends, and who closes, is told
        except Exception as error:
            self._log.flush_failure = self._log.failure = StoreError(f"the flusher failed: {error!r}")

    def close(self) -> None:
        """End the thread and flush for the last time. Raises what the log has failed at, if anything."""
        with self._lock:
            self._is_closed = True
            self._wake_up()
        self._thread.join()
        self._log.flush()
        if self._log.failure is not None:
            raise self._log.failure
