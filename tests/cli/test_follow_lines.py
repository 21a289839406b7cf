"""What follow says while it runs."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from subprocess import PIPE

import pytest

from whence.cli.commands import main
from whence.cli.follow_lines import FollowLines, state_text
from whence.pipeline.follow_state import FollowState

UP = FollowState(log_end_offset=0, lag_bytes=0, lag_messages=0, lag_s=0.0)
STATE = FollowState(
    time_ms=1_763_251_200_000,
    log_end_offset=1_100_000,
    indexed_to_offset=1_000_000,
    lag_bytes=102_400,
    lag_messages=200,
    lag_s=0.21,
    batches=3,
    messages=1234,
    messages_per_s=1000.4,
    latency_s=0.345,
)


def test_a_line_tells_how_far_it_is():
    assert state_text(STATE) == (
        "behind by 100.0 KiB, 200 messages, 0.2 s, 1,000/s, the last found after 0.34 s, 1,234 messages, "
        "indexed to offset 1,000,000"
    )
    assert state_text(replace(UP, indexed_to_offset=7)) == "up with the log, indexed to offset 7"
    assert state_text(FollowState(indexed_to_offset=7)) == "the log is not there, indexed to offset 7"
    old = state_text(FollowState(lag_bytes=1024, lag_messages=2, lag_s=3723.4))
    assert old.startswith("behind by 1.0 KiB, 2 messages, 1 h 2 min, ")
    trouble = state_text(replace(UP, damaged=1, cuts=2))
    assert trouble.startswith("up with the log, 1 place could not be read, the log was cut 2 times, ")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def told_at(lines: FollowLines, clock: list[float], capsys, states: list[FollowState]):
    with lines:
        for state in states:
            clock[0] += 0.5
            lines(state)
    return capsys.readouterr()


def test_json_lines_come_when_something_was_indexed_and_now_and_then(clock, capsys):
    at_rest = [STATE] * 40
    busy = [FollowState(batches=number) for number in range(4, 14)]
    said = told_at(FollowLines("store", json=True, quiet=False), clock, capsys, [*at_rest, *busy])
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert said.err == ""
    assert [row["batches"] for row in rows] == [3, 3, 4, 6, 8, 10, 12]
    assert rows[0]["lag_messages"] == 200 and rows[0]["time_ms"] == STATE.time_ms


def test_elsewhere_than_on_a_terminal_a_line_comes_every_few_seconds(clock, capsys):
    states = [replace(UP, batches=number) for number in range(24)]
    said = told_at(FollowLines("store", json=False, quiet=False), clock, capsys, states)
    assert said.out == ""
    assert said.err.splitlines() == ["whence: up with the log, indexed to offset 0"] * 3
    said = told_at(FollowLines("store", json=False, quiet=True), clock, capsys, states)
    assert said.err == ""


def test_what_is_to_be_known_of_the_start_is_told_once(clock, capsys):
    states = [replace(UP, batches=number, notes=("x: is of \x1b[1manother log",)) for number in range(24)]
    said = told_at(FollowLines("store", json=False, quiet=False), clock, capsys, states)
    first, *others = said.err.splitlines()
    assert first == "whence: x: is of \\x1b[1manother log"
    assert others == ["whence: up with the log, indexed to offset 0"] * 3
    said = told_at(FollowLines("store", json=True, quiet=False), clock, capsys, states)
    notes = [json.loads(line)["notes"] for line in said.out.splitlines()]
    assert notes[0] == list(states[0].notes) and notes[1:] == [[]] * 11
    assert told_at(FollowLines("store", json=False, quiet=True), clock, capsys, states).err == ""


CHILD = """
import sys, time
from dataclasses import replace
from whence import door
from whence.cli import follow_lines
from whence.cli.commands import main
from whence.pipeline.follow_state import FollowState

def follow_store(path, *, watcher, stop, **asked):
    state = FollowState()
    while not stop.wait(0.001):
        state = replace(state, batches=state.batches + 1)
        watcher(state)
        if state.batches == 1000:
            sys.stderr.write("much is told\\n")
    state = replace(state, is_ended=True)
    watcher(state)
    return state

door.follow_store, follow_lines.JSON_S = follow_store, 0
sys.argv = ["whence", "follow", "store", "--json"]
sys.exit(main())
"""
MUCH = "much is told\n"


@pytest.fixture
def follower():
    """A follower of nothing, which tells more in a second than a pipe takes."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=PIPE, stderr=PIPE, text=True)
    yield child
    child.kill()
    child.communicate()


def test_who_reads_what_it_tells_and_goes_away_ends_it_without_a_word(follower):
    assert json.loads(follower.stdout.readline())["batches"] == 1
    follower.stdout.close()
    assert follower.wait(30) == 141
    assert follower.stderr.read().replace(MUCH, "") == ""


def test_who_does_not_read_what_it_tells_does_not_hold_it_up(follower):
    assert follower.stderr.readline() == MUCH
    follower.send_signal(signal.SIGTERM)
    assert follower.wait(30) == 0  # and not 143, as one that did not come to its end
    assert follower.stderr.read() == ""


def test_what_was_told_last_is_not_lost_on_who_reads_late(follower):
    assert follower.stderr.readline() == MUCH
    follower.send_signal(signal.SIGTERM)
    assert json.loads(follower.communicate(timeout=30)[0].splitlines()[-1])["is_ended"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["follow", "nowhere"], "nowhere: there is no such folder"),
        (["follow"], "the following arguments are required: STORE"),
        (["follow", "nowhere", "--metrics-port", "x"], "'x' is no whole number"),
    ],
)
def test_wrong_use_is_told_in_a_line(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
