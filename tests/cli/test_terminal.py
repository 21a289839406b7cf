"""What reaches a terminal: nothing that it would obey, and lines that fit."""

import io
import json

import pytest

from tests.store_maker import make_store, message
from whence.cli.progress import Progress
from whence.cli.terminal import Screen, counted, printable, size_text, time_text, width_of

HOSTILE = [
    ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
    ("a\rb\nc\td", "a\\x0db\\x0ac\\x09d"),
    ("\x7f\x9b31m", "\\x7f\\x9b31m"),
    ("moc.\u202egnp.exe\u2066", "moc.\\u202egnp.exe\\u2066"),
    ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
    ("\U000e0041", "\\U000e0041"),
    ("\udcff", "\\udcff"),
]
HARMLESS = ["order-1", "订单-2024-0001", "🚀launch", "é", "", "a b"]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_what_a_terminal_obeys_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_stays(text):
    assert printable(text) == text


@pytest.mark.parametrize(("text", "shown"), HOSTILE[:-1])
def test_hostile_text_of_a_log_never_reaches_the_output_raw(here, tmp_path, text, shown):
    # A space separates keys, 01 and 02 separate properties: none of them is in these texts.
    evil = message(topic=text, keys=text, tags=text, unique_id=text, body=text.encode())
    store = make_store(tmp_path / "store", [evil], indexed=0, queues=False).folder
    for arguments in (
        ["find", store, "--since", 0, "--body"],
        ["find", store, "--since", 0, "--body", "--json"],
        ["find", store, "--since", 0, "--body", "--format", "jsonl"],
        ["find", store, "--key", text, "--topic", text],
        ["explain", store, "--key", text, "--topic", text],
        ["explain", store, "--key", text, "--topic", text, "--json"],
        ["inspect", store / "commitlog" / ("0" * 20)],
        ["inspect", store / "commitlog" / ("0" * 20), "--json"],
    ):
        ran = here(*arguments)
        assert ran.status == 0
        assert all(line.isprintable() for line in (ran.out + ran.err).split("\n"))
        if "--json" not in arguments and "jsonl" not in arguments:
            assert shown in ran.out or text == HOSTILE[1][0]


def test_json_gives_hostile_text_back_exactly(here, tmp_path):
    text = HOSTILE[0][0]
    store = make_store(tmp_path / "store", [message(keys=text)], indexed=0).folder
    (found,) = json.loads(here("find", store, "--since", 0, "--json").out)["messages"]
    assert found["keys"] == [text]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_table_fits_the_terminal_and_numbers_are_never_cut(terminal):
    screen = Screen.of(terminal)
    rows = [("topic" * 20, 2**63 - 1, "订单" * 30), ("b", 7, None)]
    _, *lines = screen.table_lines(("topic", "offset", "key"), rows)
    assert width_of(lines[0]) == 80
    assert "9223372036854775807" in lines[0]
    assert lines[0].count("…") == 2


def test_nothing_is_cut_or_coloured_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen.of(io.StringIO())
    screen.table(("name",), [("x" * 300,)])
    assert isinstance(screen.stream, io.StringIO)
    assert screen.stream.getvalue() == f"name\n{'x' * 300}\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_switched_off(terminal, monkeypatch, name, value):
    assert Screen.of(terminal).bold("a") == "\x1b[1ma\x1b[0m"
    monkeypatch.setenv(name, value)
    assert Screen.of(terminal).bold("a") == "a"


def test_messages_take_two_lines_where_a_table_would_cut_ids(terminal, golden):
    import whence
    from whence.cli.render import answer_table

    with whence.open(golden("v5-clean").store) as store:
        answer = store.find(key="order-1", limit=2)
    answer_table(answer, Screen.of(terminal), body=False)
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[1] == "    keys order-1  tags Ordered  id 7F0000013C0630946E094D666C3E06CE"


TIMES = [
    (1794789758015, "2026-11-16T00:42:38.015Z"),
    (0, "1970-01-01T00:00:00.000Z"),
    (-1, "1969-12-31T23:59:59.999Z"),
    (2**63 - 1, "9223372036854775807 ms"),
    (-(2**63), "-9223372036854775808 ms"),
]


@pytest.mark.parametrize(("timestamp_ms", "text"), TIMES)
def test_any_time_can_be_shown(timestamp_ms, text):
    assert time_text(timestamp_ms) == text


def test_numbers_in_words():
    assert [size_text(size) for size in (0, 1, 1023, 1024, 1572864)] == [
        "0 bytes", "1 byte", "1023 bytes", "1.0 KiB", "1.5 MiB",
    ]  # fmt: skip
    assert [counted(count, "hash", "hashes") for count in (0, 1, 2)] == ["no hashes", "1 hash", "2 hashes"]


def test_widths_of_characters():
    assert [width_of(text) for text in ("a", "订", "é", "e\u0301")] == [1, 2, 1, 1]


# Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("whence.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_quick_work_shows_no_progress(clock, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("scanned", quiet=False) as progress:
        clock[0] = 0.5
        progress(10, 100)
    assert terminal.getvalue() == ""


def test_bar_on_a_terminal_grows_and_goes(clock, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("scanned", quiet=False) as progress:
        clock[0] = 2.0
        progress(512, 1024)
        progress(600, 1024)  # too soon for another one
    assert terminal.getvalue() == f"\r[{'#' * 15:<30}] scanned 512 bytes of 1.0 KiB, 50%, 2 s\x1b[K\r\x1b[K"


def test_line_now_and_then_where_there_is_no_terminal(clock, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    with Progress("scanned", quiet=False) as progress:
        for clock[0] in (1.0, 5.5, 7.0, 11.0):
            progress(int(clock[0] * 10), 110)
    assert errors.getvalue().splitlines() == [
        "whence: scanned 55 bytes of 110 bytes, 50%, 6 s",
        "whence: scanned 110 bytes of 110 bytes, 100%, 11 s",
    ]


def test_quiet_shows_no_progress(clock, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("scanned", quiet=True) as progress:
        clock[0] = 60.0
        progress(1, 2)
    assert terminal.getvalue() == ""
