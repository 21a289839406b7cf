"""Progress of jobs on Spark: bars on a terminal, lines elsewhere, nothing if it is not wanted."""

import io
import re
import sys

import pytest

from whence.cli import job_bars
from whence.cli.job_bars import JobBars, duration_text, state_text, state_time

runner = pytest.importorskip("whence.pipeline.runner")

GIB = 1 << 30
HALF = runner.JobState(
    "scan",
    tasks=16,
    tasks_done=8,
    tasks_running=2,
    bytes_total=4 * GIB,
    bytes_done=GIB,
    messages=2_000_000,
    elapsed_s=10,
)

TEXTS = [
    (HALF, "8 of 16 tasks, 1.0 GiB of 4.0 GiB, 2,000,000 messages, 102.4 MiB/s", "30 s left"),
    (runner.JobState("link", tasks=1), "0 of 1 task", ""),
    (runner.JobState("build", tasks=8, tasks_done=2, files=1, elapsed_s=2), "2 of 8 tasks, 1 file", "6 s left"),
    (runner.JobState("export", tasks=2, tasks_done=1, bytes_total=GIB, bytes_done=GIB // 2, messages=1000, files=1200,
                     elapsed_s=8),
     "1 of 2 tasks, 512.0 MiB of 1.0 GiB, 1,000 messages, 1,200 files, 64.0 MiB/s", "8 s left"),
    (runner.JobState("link", tasks=4, tasks_done=1, tasks_failed=2, elapsed_s=60),
     "1 of 4 tasks, 2 attempts failed", "3 min 0 s left"),
    (runner.JobState("link", tasks=4, tasks_done=4, elapsed_s=3.4, is_ended=True), "4 of 4 tasks", "3 s"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "text", "time"), TEXTS)
def test_a_state_in_words(state, text, time):
    assert state_text(state) == text
    assert state_time(state) == time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (18_600, "5 h 10 min")]
)
def test_durations_in_words(seconds, text):
    assert duration_text(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(job_bars, "LINE_S", 0)


def shown(monkeypatch, stream, *, quiet=False):
    monkeypatch.setattr(sys, "stderr", stream)
    with JobBars(quiet=quiet) as bars:
        bars(HALF)
        bars(runner.JobState("link", tasks=3, tasks_done=1, files=17))
    return stream.getvalue()


def test_a_terminal_sees_a_bar_for_each_job_which_goes_at_the_end(monkeypatch, at_once):
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(monkeypatch, Terminal())
    assert "starting Spark" in text
    assert "scan" in text and "25%" in text and "8 of 16 tasks, 1.0 GiB of 4.0 GiB" in text
    assert "link" in text and "1 of 3 tasks, 17 files" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back
    assert text.rstrip("\r").endswith("\x1b[2K")


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_narrow_terminal_still_sees_name_share_and_time(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(monkeypatch, Terminal()))  # without styles
    drawn = [line for line in re.split(r"[\r\n]|\x1b\[[0-9?]*[a-zA-Z]", text) if line.startswith("scan ")]
    assert drawn
    assert all("25%" in line and "30 s left" in line and "8 of 16" in line for line in drawn)
    assert all(len(line) <= columns for line in drawn)


def test_elsewhere_there_are_lines(monkeypatch, at_once):
    assert shown(monkeypatch, io.StringIO()).splitlines() == [
        f"whence: scan: 25%, {state_text(HALF)}, 30 s left",
        "whence: link: 33%, 1 of 3 tasks, 17 files, 0 s left",
    ]


def test_quick_work_shows_no_line(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_quiet_shows_nothing(monkeypatch, at_once, stream):
    assert shown(monkeypatch, stream(), quiet=True) == ""
