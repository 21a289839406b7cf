"""Progress on standard error: a bar on a terminal, now and then a line elsewhere, nothing for quick work."""

from __future__ import annotations

import sys
import time
from typing import Self

from whence.cli.terminal import Screen, size_text

QUIET_S = 0.7  # work that is done by then shows nothing
REDRAW_S = 0.1
LINE_S = 5.0
BAR_WIDTH = 30


class Progress:
    """Told how many bytes of how many are done. Use it with ``with``: the bar goes when the work ends."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._what = what
        self._quiet = quiet
        self._screen = Screen.of(sys.stderr)
        self._started = time.monotonic()
        self._next = self._started + (QUIET_S if self._screen.is_terminal else LINE_S)
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        share = min(done / total, 1.0) if total > 0 else 1.0
        elapsed = now - self._started
        text = f"{self._what} {size_text(done)} of {size_text(total)}, {share:.0%}, {elapsed:.0f} s"
        if self._screen.is_terminal:
            bar = "#" * int(BAR_WIDTH * share)
            self._screen.stream.write(f"\r[{bar:<{BAR_WIDTH}}] {text}\x1b[K")
            self._screen.stream.flush()
            self._drawn = True
            self._next = now + REDRAW_S
        else:
            self._screen.line(f"whence: {text}")
            self._screen.stream.flush()
            self._next = now + LINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            self._screen.stream.write("\r\x1b[K")
            self._screen.stream.flush()
