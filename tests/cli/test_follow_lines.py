"""What follow says while it runs."""

import json

import pytest

from whence.cli.commands import main
from whence.cli.follow_lines import FollowLines, state_text
from whence.pipeline.follow_state import FollowState

STATE = FollowState(
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
    assert state_text(FollowState(indexed_to_offset=7)) == "up with the log, indexed to offset 7"
    old = state_text(FollowState(lag_bytes=1024, lag_messages=2, lag_s=3723.4))
    assert old.startswith("behind by 1.0 KiB, 2 messages, 1 h 2 min, ")
    trouble = state_text(FollowState(damaged=1, cuts=2))
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
    assert rows[0]["lag_messages"] == 200 and rows[0]["time_ms"] > 0


def test_elsewhere_than_on_a_terminal_a_line_comes_every_few_seconds(clock, capsys):
    states = [FollowState(batches=number) for number in range(24)]
    said = told_at(FollowLines("store", json=False, quiet=False), clock, capsys, states)
    assert said.out == ""
    assert said.err.splitlines() == ["whence: up with the log, indexed to offset 0"] * 3
    said = told_at(FollowLines("store", json=False, quiet=True), clock, capsys, states)
    assert said.err == ""


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
