"""How a follower is, for who looks at it: one line that is drawn again on a terminal, now and then a line elsewhere.

With ``--json`` a line of JSON on standard output when something was indexed, at most one a second, and every ten
seconds. What a user should know of the start is told once, first of all.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Self, TextIO

from whence.cli.job_bars import duration_text
from whence.cli.terminal import Screen, counted, printable, size_text

if TYPE_CHECKING:
    from whence.pipeline.follow_state import FollowState

LINE_S = 5.0
JSON_S = 1.0
AT_REST_S = 10.0
MINUTE_S = 60.0
WAITING_MAX = 100  # of texts that nobody has read yet


class Outlet:
    """Writes to a stream in a thread of its own: who tells never waits for who reads, who may have stopped.

    Of what is too much for that one the oldest is dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: Queue[str | None] = Queue(WAITING_MAX)
        self._failure: OSError | None = None
        self._thread = Thread(target=self._write, name="whence-lines", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """See that somebody is there; BrokenPipeError if that one went away."""
        if self._failure is not None:
            raise self._failure

    def write(self, text: str) -> None:
        if self._waiting.full():
            with suppress(Empty):  # it was taken just now
                self._waiting.get_nowait()
        self._waiting.put_nowait(text)

    def close(self) -> None:
        """Wait until all is taken."""
        self._waiting.put(None)
        self._thread.join()
        self.check()

    def _write(self) -> None:
        while (text := self._waiting.get()) is not None:
            if self._failure is None:
                try:
                    self._stream.write(text)
                    self._stream.flush()
                except OSError as error:
                    self._failure = error


class FollowLines:
    """Told how a follower is. Use it with ``with``: the line goes when the work ends."""

    def __init__(self, store: str, *, json: bool, quiet: bool) -> None:
        self._store = store
        self._json = json
        self._quiet = quiet
        self._screen = Screen.of(sys.stderr)
        self._outlet = Outlet(sys.stdout if json else sys.stderr)
        self._is_drawn = False
        self._is_start_told = False
        self._told_at = 0.0
        self._told: FollowState | None = None

    def __call__(self, state: FollowState) -> None:
        self._outlet.check()
        if self._json:
            self._write_json(state)
            return
        if self._quiet:
            return
        self._write_start(state)
        if self._screen.is_terminal and not state.is_ended:
            self._outlet.write(f"\r{state_text(state)[: (self._screen.width or 80) - 1]}\x1b[K")
            self._is_drawn = True
        else:
            self._write_line(state)

    def _write_start(self, state: FollowState) -> None:
        """Tell once what a user should know of the start, and where metrics are."""
        told = [printable(note) for note in state.notes]
        if state.metrics_port is not None:
            told.append(f"metrics at http://127.0.0.1:{state.metrics_port}/metrics")
        if told and not self._is_start_told:
            self._clear()
            self._outlet.write("".join(f"whence: {line}\n" for line in told))
        self._is_start_told = True

    def _write_json(self, state: FollowState) -> None:
        now = time.monotonic()
        is_new = self._told is None or _news(state) != _news(self._told)
        if state.is_ended or now - self._told_at >= (JSON_S if is_new else AT_REST_S):
            told = state if self._told is None else replace(state, notes=())  # which the first line tells
            self._outlet.write(json.dumps(told.to_dict()) + "\n")
            self._told, self._told_at = state, now

    def _write_line(self, state: FollowState) -> None:
        now = time.monotonic()
        is_new = self._told is None or _news(state) != _news(self._told)
        if state.is_ended or now - self._told_at >= (LINE_S if is_new else 12 * LINE_S):
            self._clear()
            self._outlet.write(f"whence: {state_text(state)}\n")
            self._told, self._told_at = state, now

    def _clear(self) -> None:
        if self._is_drawn:
            self._outlet.write("\r\x1b[K")
            self._is_drawn = False

    def __enter__(self) -> Self:
        if self._screen.is_terminal and not (self._quiet or self._json):
            self._outlet.write(f"\rstarting Spark to follow {self._store}\x1b[K")
            self._is_drawn = True
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._clear()
        finally:
            self._outlet.close()


def _news(state: FollowState) -> tuple[int, int, bool]:
    """What is told soon if it changes."""
    return state.batches, state.cuts, state.log_end_offset is None


def state_text(state: FollowState) -> str:
    """``up with the log, 1,000/s, the last found after 0.21 s, 3,412 messages, indexed to offset 1,073,741``.

    What matters most comes first: a narrow terminal cuts the rest.
    """
    if state.lag_bytes is None or state.lag_s is None:
        parts = ["the log is not there"]
    elif state.lag_bytes:
        lag = f"{state.lag_s:.1f} s" if state.lag_s < MINUTE_S else duration_text(state.lag_s)
        parts = [f"behind by {size_text(state.lag_bytes)}, {state.lag_messages:,} messages, {lag}"]
    else:
        parts = ["up with the log"]
    if state.fields_to_offset is not None and state.fields_to_offset < state.indexed_to_offset:
        parts.append(f"fields up to {state.fields_to_offset:,}")
    if state.field_failure is not None:
        parts.append(f"not all fields are followed: {state.field_failure}")
    if state.damaged:
        parts.append(f"{counted(state.damaged, 'place')} could not be read")
    if state.cuts:
        parts.append(f"the log was cut {counted(state.cuts, 'time')}")
    if state.messages_per_s >= 1:
        parts.append(f"{state.messages_per_s:,.0f}/s")
    if state.latency_s is not None:
        parts.append(f"the last found after {state.latency_s:.2f} s")
    if state.messages:
        parts.append(f"{state.messages:,} messages")
    parts.append(f"indexed to offset {state.indexed_to_offset:,}")
    return ", ".join(parts)
