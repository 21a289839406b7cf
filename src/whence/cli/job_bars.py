"""Progress of jobs on Spark, on standard error: a bar for each on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from whence.cli.progress import LINE_S
from whence.cli.terminal import Screen, counted, size_text

if TYPE_CHECKING:
    from whence.pipeline.runner import JobState

BAR_WIDTH = 24


class JobBars:
    """Told how far each job is. Use it with ``with``: the bars go when the work ends."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._screen = Screen.of(sys.stderr)
        self._bars: Any = None
        self._numbers: dict[str, Any] = {}
        self._next = time.monotonic() + LINE_S

    def __call__(self, state: JobState) -> None:
        if self._quiet:
            return
        if self._screen.is_terminal:
            self._draw(state)
        else:
            self._write(state)

    def _draw(self, state: JobState) -> None:
        if not self._numbers:
            self._bars.remove_task(self._starting)
        shown = {"completed": state.share, "time": state_time(state), "text": state_text(state)}
        if state.name in self._numbers:
            self._bars.update(self._numbers[state.name], **shown)
        else:
            self._numbers[state.name] = self._bars.add_task(state.name, total=1.0, **shown)

    def _write(self, state: JobState) -> None:
        now = time.monotonic()
        if now < self._next and not (state.is_ended and state.elapsed_s > LINE_S):
            return
        told = filter(None, [f"{state.share:.0%}", state_text(state), state_time(state)])
        self._screen.line(f"whence: {state.name}: {', '.join(told)}")
        self._screen.stream.flush()
        self._next = now + LINE_S

    def __enter__(self) -> Self:
        if self._screen.is_terminal and not self._quiet:
            self._bars = _make_bars(self._screen)
            self._bars.start()
            self._starting = self._bars.add_task(
                "starting Spark", total=None, time="", text=""
            )  # which takes seconds
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bars is not None:
            self._bars.stop()


def state_text(state: JobState) -> str:
    """``3 of 16 tasks, 1.5 GiB of 4.0 GiB, 2,740,000 messages, 410.0 MiB/s``, or ``3 of 16 tasks, 120 files``."""
    parts = [f"{state.tasks_done} of {counted(state.tasks, 'task')}"]
    if state.tasks_failed:
        parts.append(f"{counted(state.tasks_failed, 'attempt')} failed")
    if state.bytes_total:
        parts.append(f"{size_text(state.bytes_done)} of {size_text(state.bytes_total)}")
    if state.messages:
        parts.append(f"{state.messages:,} messages")
    if state.files:
        parts.append("1 file" if state.files == 1 else f"{state.files:,} files")
    if state.bytes_done and state.elapsed_s > 0:
        parts.append(f"{size_text(int(state.bytes_done / state.elapsed_s))}/s")
    return ", ".join(parts)


def state_time(state: JobState) -> str:
    """``6 s left``; when it ended, how long it took."""
    if state.is_ended:
        return duration_text(state.elapsed_s)
    return "" if state.left_s is None else f"{duration_text(state.left_s)} left"


def duration_text(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``5 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _make_bars(screen: Screen) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    console = Console(file=screen.stream, width=screen.width, no_color=not screen.colours, force_terminal=True)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(BAR_WIDTH if (screen.width or 0) > 100 else BAR_WIDTH // 3),
        TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
        TextColumn("{task.fields[time]}", markup=False, table_column=Column(no_wrap=True)),
        # What is too much for a narrow terminal is cut here.
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        expand=True,
        console=console,
        transient=True,
        redirect_stdout=False,  # standard output may be a file, or another program
        redirect_stderr=False,
    )
