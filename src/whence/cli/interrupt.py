"""Ctrl-C: the process ends within a second, whatever it is doing, and leaves no half file.

Python raises KeyboardInterrupt when its own code runs next. That can be late, while a compiler or a kernel runs on,
and it can be lost: raised inside a callback of a library it is printed and forgotten, or becomes another error. So a
thread waits beside the work. It gives the usual way a moment, and then ends the process itself.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Never

from whence.cli.terminal import complain
from whence.files.atomic import remove_unfinished

GRACE_S = 0.5
HANDED_OVER_GRACE_S = 0.6  # after Ctrl-C, which a person waits for
REMOVAL_S = 0.3  # what is not removed by then stays
STATUS_BASE = 128  # the shell's rule: 128 and the signal's number


class Interrupts:
    """Remembers which signal came, from :meth:`watch` on; one for a process, made by its main thread."""

    def __init__(self) -> None:
        self.number = 0
        self.is_told = False
        self.is_handed_over = False
        self._grace_s = GRACE_S
        self._ended_with: int | None = None

    def watch(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._raise)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # The number of a signal is written there at once, before any Python code runs.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        _thread.start_new_thread(self._wait, (reading,))

    def hand_over(self, stop: Callable[[], None], grace_s: float) -> None:
        """Call ``stop`` at the first signal, in place of raising: for work that is there to be ended.

        It has so long to end, after Ctrl-C less, and what it returns then is what it was: not an interruption.
        """

        def end(number: int, frame: object) -> None:
            self.number = number
            _thread.start_new_thread(stop, ())  # this one may hold what ``stop`` needs, wherever the signal came

        self.is_handed_over, self._grace_s = True, grace_s
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)

    def has_ended(self, status: int) -> None:
        """What was handed over has ended, with this status. To clean up may be cut short, and changes nothing."""
        self._ended_with = status

    def leave(self, status: int) -> None:
        """End the process now, if it was told to end and what was handed over has ended.

        Python takes itself apart with all libraries first, for up to two seconds on a busy machine, and nothing is
        left to do.
        """
        if self.is_handed_over and self.number:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):  # who read it is gone
                    stream.flush()
            os._exit(status)

    @property
    def status(self) -> int:
        return STATUS_BASE + (self.number or signal.SIGINT) if self._ended_with is None else self._ended_with

    def tell(self) -> None:
        self.is_told = True
        complain("interrupted")

    def _raise(self, number: int, frame: object) -> Never:
        self.number = number  # the thread below may learn it later than this one ends
        raise KeyboardInterrupt

    def _wait(self, reading: int) -> None:
        self.number = os.read(reading, 1)[0]
        is_short = self.is_handed_over and self.number == signal.SIGINT
        time.sleep(HANDED_OVER_GRACE_S if is_short else self._grace_s)
        removed = _thread.allocate_lock()
        removed.acquire()

        def remove() -> None:
            remove_unfinished()
            removed.release()

        _thread.start_new_thread(remove, ())  # a slow disk takes its time
        removed.acquire(timeout=REMOVAL_S)
        if self._ended_with is None and not self.is_told:
            self.tell()
        os._exit(self.status)
