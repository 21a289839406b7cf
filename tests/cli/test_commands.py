"""What a script sees of whence: exit statuses, JSON, files, and one line for each error."""

import csv
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND
from tests.golden import ALL
from tests.store_maker import make_store, message
from whence import __version__, errors
from whence.cli.commands import COMMANDS, STATUS_OF_ERROR, Status, main

# The contract: names and order are those of the interface, and may grow only at its hands.
ANSWER = ["question", "messages", "receipt"]
MESSAGE = [
    "topic", "queue", "queue_offset", "physical_offset", "store_timestamp_ms", "born_timestamp_ms", "keys", "tags",
    "unique_id", "offset_id", "size", "reconsume_times", "properties", "body", "body_size", "body_encoding",
]  # fmt: skip
RECEIPT = [
    "complete", "truncated", "cursor", "why_empty", "searched_from_offset", "searched_to_offset", "index_source",
    "topics_from", "verified_by", "indexed_to_offset", "indexed_to_timestamp_ms", "scanned_bytes", "index_files",
    "index_files_skipped", "items_visited", "candidates", "rejected", "damage", "elapsed_us", "logs",
]  # fmt: skip


# Exit statuses


def test_status_0_if_something_is_found(whence, golden):
    ran = whence("find", golden("v5-clean").store, "--key", "order-1")
    assert (ran.status, ran.err) == (0, "")
    assert "24 messages, newest first. The answer is complete." in ran.out


def test_status_1_if_nothing_matches_and_the_answer_is_complete(whence, golden):
    ran = whence("find", golden("v5-clean").store, "--key", "order-4711")
    assert (ran.status, ran.err) == (1, "")
    assert "No messages. The answer is complete." in ran.out
    assert "Why: all of it was searched" in ran.out


def test_status_2_for_wrong_use(whence, tmp_path):
    ran = whence("find", tmp_path / "nowhere", "--key", "a")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"whence: {tmp_path}/nowhere: there is no such folder\n"


def test_status_3_for_damage_comes_before_all_others(whence, golden):
    store = golden("v5-damaged-body-flip").store
    found = whence("find", store, "--key", "hot-key", "--all")
    assert found.status == 3
    assert "NOT complete" in found.out
    assert f"{store}/commitlog/00000000000001048576 at byte 113715" in " ".join(found.out.split())
    assert whence("find", store, "--key", "order-4711").status == 3


def test_status_4_if_the_index_does_not_cover_all_and_no_scan_was_given(whence, tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{n}") for n in range(40)], indexed=20)
    assert whence("find", made.folder, "--key", "k39", "--no-scan").status == 4
    assert whence("find", made.folder, "--key", "k39").status == 0


def test_explain_has_the_statuses_of_find(here, golden):
    store = golden("v5-clean").store
    assert here("explain", store, "--key", "order-1").status == 0
    assert here("explain", store, "--key", "order-4711").status == 1
    assert here("explain", golden("v5-damaged-body-flip").store, "--key", "nobody").status == 3


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_every_error_has_a_status(kind):
    if issubclass(kind, Exception):
        expected = Status.DAMAGE if issubclass(kind, errors.FormatError) else Status.WRONG_USE
        assert next(status for error, status in STATUS_OF_ERROR if issubclass(kind, error)) is expected


def test_fault_of_our_own_is_never_taken_for_an_answer(here, golden, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("whence.door.open_stores", fail)
    ran = here("find", golden("v5-clean").store, "--key", "a")
    assert ran.status == 70
    assert ran.err == "whence: a fault of whence itself: ZeroDivisionError: oops; --debug shows where\n"


# Wrong use

STORE = "STORE"
WRONG = [
    ([], "no command was given"),
    (["frob"], "'frob' is no command; there are find, explain, inspect, build, follow, verify, repair, export, "),
    (["--json", "find"], "the command comes first"),
    (["find"], "required: STORE"),
    (["find", STORE], "nothing is asked; give --key"),
    (["explain", STORE, "--limit", "3"], "nothing is asked; give --key"),
    (["find", STORE, "--key"], "argument --key: expected one argument"),
    (["find", STORE, "--key", ""], "the key is empty"),
    (["find", STORE, "--keys", "a"], "unrecognized arguments: --keys"),
    (["find", STORE, "--field", "a=b"], "no field a is indexed, none is"),
    (["find", STORE, "--field", "a"], "asks for no field; give its name and value"),
    (["find", STORE, "--offset", "-5"], "offset -5 is negative"),
    (["find", STORE, "--offset", "5.5"], "'5.5' is no whole number"),
    (["find", STORE, "--offset", "1" + "0" * 30], "does not fit into 64 bits"),
    (["find", STORE, "--offset", "9" * 5000], "does not fit into 64 bits"),
    (["find", STORE, "--queue-offset", "5"], "a queue offset needs the queue and the topic"),
    (["find", STORE, "--key", "a", "--since", "yesterday"], "'yesterday' is no time; give ISO 8601"),
    (["find", STORE, "--key", "a", "--since", "2026-02-01", "--until", "2026-01-01"], "ends"),
    (["find", STORE, "--key", "a", "--cursor", "nonsense"], "'nonsense' is no cursor"),
    (["find", STORE, "--key-hex", "zz"], "is not hexadecimal"),
    (["find", STORE, "--key-hex", "ff"], "is not UTF-8"),
    (["find", STORE, "--key", "a", "--limit", "0"], "limit 0"),
    (["find", STORE, "--key", "a", "--limit", "1", "--all"], "not allowed with argument"),
    (["find", STORE, "--key", "a", "--scan", "--no-scan"], "not allowed with argument"),
    (["find", STORE, "--key", "a", "--dialect", "3.2"], "dialect '3.2' is not one of"),
    (["find", STORE, "--key", "a", "--slots", "5"], "--slots and --items go together"),
    (["find", STORE, "--key", "a", "--slots", "5", "--items", "7"], "do not fit"),
    (["find", STORE, "--key", "a", "--json", "--format", "csv"], "exclude each other"),
    (["find", STORE, "--key", "a", "--format", "xml"], "invalid choice: 'xml'"),
    (["find", STORE, "--key", "a", "-o", "STORE/commitlog/out"], "which is only read"),
    (["find", "file://STORE", "--key", "a", "-o", "STORE/out"], "which is only read"),
    (["inspect", "STORE/checkpoint", "-o", "STORE/checkpoint"], "which is only read"),
    (["find", STORE, "--key", "a", "--log-file", "STORE/log"], "which is only read"),
    (["find", STORE, "--key", "a", "-o", "/nowhere/out"], "/nowhere/out: cannot be written"),
    (["find", STORE + "/commitlog", "--key", "a"], "give the folder above it"),
    (["inspect", STORE], "is a folder; give one file, for example"),
    (["inspect", STORE + "/nothing"], "there is no such file"),
    (["inspect", STORE + "/checkpoint", "--limit", "0"], "limit 0 must be at least 1"),
    (["inspect", STORE + "/checkpoint", "--from", "-1"], "--from -1 is negative"),
    (["inspect", STORE + "/checkpoint", "--kind", "song"], "invalid choice: 'song'"),
]


@pytest.mark.parametrize(("typed", "says"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_wrong_use_is_told_in_one_line(here, golden, typed, says):
    store = str(golden("v5-clean").store)
    ran = here(*(argument.replace(STORE, store) for argument in typed))
    *_, line = ran.err.splitlines()
    assert (ran.status, ran.out) == (2, "")
    assert line.startswith("whence: ")
    assert says in line
    assert "Traceback" not in ran.err
    assert not typed or len(ran.err.splitlines()) == 1


def test_debug_shows_the_traceback(here, tmp_path):
    ran = here("find", tmp_path / "nowhere", "--key", "a", "--debug")
    assert ran.status == 2
    assert "Traceback (most recent call last)" in ran.err


def test_text_of_an_error_is_made_harmless(here, tmp_path):
    ran = here("find", tmp_path / "\x1b[2J", "--key", "a")
    assert "\\x1b[2J" in ran.err
    assert "\x1b" not in ran.err


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(here, command):
    ran = here(command, "--help")
    assert ran.status == 0
    assert f"examples:\n  whence {command}" in ran.out
    assert all(option in ran.out for option in ("--json", "--quiet", "--debug", "--log-file F"))


def test_help_lists_the_commands(here):
    ran = here("--help")
    assert ran.status == 0
    assert all(f"  {command} " in ran.out for command in COMMANDS)


def test_version(here):
    ran = here("--version")
    assert (ran.status, ran.out) == (0, f"whence {__version__}\n")


# JSON and its sisters


@pytest.mark.parametrize("name", ALL)
def test_find_prints_one_json_document_of_the_agreed_form(here, golden, name):
    ran = here("find", golden(name).store, "--key", "hot-key", "--json", "--limit", "3")
    document = json.loads(ran.out)
    assert list(document) == ANSWER
    assert document["question"] == {
        "key": "hot-key", "topic": None, "since_ms": None, "until_ms": None, "limit": 3,
    }  # fmt: skip
    assert all(list(message) == MESSAGE for message in document["messages"])
    assert list(document["receipt"]) == RECEIPT
    assert ran.out.isascii()
    assert ran.out.count("\n") == 1


def test_body_is_added_when_it_is_asked_for(here, golden):
    question = ["find", golden("v5-clean").store, "--key", "compress-zstd-1", "--json"]
    (without,) = json.loads(here(*question).out)["messages"]
    (with_body,) = json.loads(here(*question, "--body").out)["messages"]
    assert (without["body"], without["body_encoding"]) == (None, None)
    assert with_body["body_encoding"] == "utf8"
    assert len(with_body["body"]) > with_body["body_size"]


def test_every_option_of_the_question_reaches_the_question(here, golden):
    asked = [
        "--topic", "TopicTest", "--queue", 3, "--since", "2026-11-16", "--until", "1794789778000", "--tag", "Ordered",
        "--key", "a", "--key-hex", "c3a9", "--key", "b", "--oldest-first", "--system-topics", "--scan", "--all",
    ]  # fmt: skip
    shown = json.loads(here("find", golden("v5-clean").store, *asked, "--json").out)["question"]
    assert shown == {
        "keys": ["a", "é", "b"], "topic": "TopicTest", "since_ms": 1794787200000, "until_ms": 1794789778000,
        "limit": None, "queue": 3, "tag": "Ordered", "oldest_first": True, "system_topics": True, "scan": True,
    }  # fmt: skip


@pytest.mark.parametrize("asked", [["--offset", 674988], ["--id", "7F00000100002A9F00000000000A4CAC"],
                                   ["--topic", "Order-Events_2", "--queue", 1, "--queue-offset", 110]])  # fmt: skip
def test_one_message_by_its_place(here, golden, asked):
    (found,) = json.loads(here("find", golden("v5-clean").store, *asked, "--json").out)["messages"]
    assert found["unique_id"] == "7F0000013C0630946E094D666C3E06CE"


def test_json_lines_hold_one_message_each_and_the_receipt_goes_to_standard_error(here, golden):
    question = ["find", golden("v5-clean").store, "--key", "order-1", "--format", "jsonl"]
    ran = here(*question)
    assert [list(json.loads(line)) for line in ran.out.splitlines()] == [MESSAGE] * 24
    assert list(json.loads(ran.err)["receipt"]) == RECEIPT
    assert here(*question, "--quiet").err == ""


def test_csv_has_a_header_and_a_row_for_each_message(here, golden):
    question = ["find", golden("v5-clean").store, "--format", "csv", "--key"]
    rows = list(csv.reader(io.StringIO(here(*question, "order-1").out)))
    assert rows[0] == MESSAGE
    assert [row[MESSAGE.index("keys")] for row in rows[1:]] == ["order-1"] * 24
    nothing = here(*question, "nobody", "--quiet")
    assert (nothing.out, nothing.err) == (",".join(MESSAGE) + "\n", "")


def test_several_stores_give_one_answer(here, golden):
    stores = [golden("v5-clean").store, golden("v53-clean").store]
    document = json.loads(here("find", *stores, "--key", "hot-key", "--json", "--all").out)
    times = [message["store_timestamp_ms"] for message in document["messages"]]
    assert times == sorted(times, reverse=True)
    assert [log["store"] for log in document["receipt"]["logs"]] == [str(store) for store in stores]
    alone = [json.loads(here("find", s, "--key", "hot-key", "--json", "--all").out)["messages"] for s in stores]
    assert len(times) == sum(map(len, alone))


@pytest.mark.parametrize("names", [["v5-clean"], ["v4-clean", "v53-clean", "v5-clean"]])
def test_cursor_goes_on_until_all_is_given(here, golden, names):
    question = ["find", *(golden(name).store for name in names), "--key", "order-1", "--json"]
    everything = json.loads(here(*question, "--all").out)["messages"]
    given: list[object] = []
    cursor: list[str] = []
    for _ in range(len(everything)):
        answer = json.loads(here(*question, "--limit", "7", *cursor).out)
        given += answer["messages"]
        if not answer["receipt"]["truncated"]:
            break
        cursor = ["--cursor", answer["receipt"]["cursor"]]
    assert given == everything


def test_quiet_leaves_the_messages_and_what_is_wrong(here, golden):
    ran = here("find", golden("v5-clean").store, "--key", "order-1", "--limit", "2", "--quiet")
    assert len(ran.out.splitlines()) == 3
    damaged = here("find", golden("v5-damaged-body-flip").store, "--key", "nobody", "--quiet")
    assert "NOT complete" in damaged.out
    assert "searched" not in damaged.out


# Files


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_output_file_holds_what_would_be_printed(here, golden, tmp_path, form):
    question = ["find", golden("v5-clean").store, "--key", "订单-2024-0001", "--format", form]
    out = tmp_path / "out"
    ran = here(*question, "-o", out)
    printed, written = here(*question).out, out.read_text("utf-8")
    assert ran.out == ""
    assert f"written to {out}" in ran.err
    if form in ("jsonl", "csv"):
        assert written == printed
    assert "2024-0001" in written
    assert os.listdir(tmp_path) == ["out"]


def test_output_file_stays_as_it_was_when_a_question_fails(here, golden, tmp_path):
    out = tmp_path / "out"
    out.write_text("before")
    ran = here("find", golden("v5-clean").store, "--key", "a", "--cursor", "nonsense", "-o", out)
    assert ran.status == 2
    assert out.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_output_file_keeps_its_mode_and_a_device_is_not_replaced(here, golden, tmp_path):
    out = tmp_path / "out"
    out.touch(0o600)
    (tmp_path / "link").symlink_to(out)
    question = ["find", golden("v5-clean").store, "--key", "order-1"]
    assert here(*question, "-o", tmp_path / "link").status == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert out.stat().st_size > 0
    assert (tmp_path / "link").is_symlink()
    assert here(*question, "-o", "/dev/null").status == 0
    assert Path("/dev/null").is_char_device()


def test_log_file_gets_a_line_for_start_end_and_error(here, golden, tmp_path):
    log = tmp_path / "log"
    here("find", golden("v5-clean").store, "--key", "order-4711", "--log-file", log)
    here("find", tmp_path / "nowhere", "--key", "a", "--log-file", log)
    lines = log.read_text().splitlines()
    assert [line.split(" ", 3)[3][:30] for line in lines if " INFO " in line] == [
        f"whence {__version__} started: ['find',"[:30],
        "ended with status 1",
        f"whence {__version__} started: ['find',"[:30],
        "ended with status 2",
    ]
    assert any(" ERROR " in line and "there is no such folder" in line for line in lines)


# The process


def test_closed_pipe_ends_quietly(golden):
    store = golden("v5-clean").store
    finding = subprocess.Popen(
        [*COMMAND, "find", str(store), "--key", "hot-key", "--all", "--body", "--format", "jsonl", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert finding.stdout is not None
    assert finding.stderr is not None
    finding.stdout.read(1)
    finding.stdout.close()
    assert finding.stderr.read() == b""
    assert finding.wait(30) == 0


@pytest.fixture(scope="module")
def big_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that takes seconds to scan, and has no index."""
    folder = tmp_path_factory.mktemp("big") / "store"
    records = [message(keys=f"k{n}", body=b"x" * 100) for n in range(60_000)]
    return make_store(folder, records, file_size=1 << 24, indexed=0, queues=False).folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_ends_within_a_second_and_leaves_no_half_file(big_store, tmp_path, number, status):
    out = tmp_path / "out"
    finding = subprocess.Popen(
        [*COMMAND, "find", str(big_store), "--key", "nobody", "--scan", "-o", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not os.listdir(tmp_path):  # the file is written aside, so the work has begun
        time.sleep(0.01)
    assert not out.exists()
    started = time.monotonic()
    finding.send_signal(number)
    _, errors_shown = finding.communicate(timeout=30)
    assert time.monotonic() - started < 1
    assert finding.returncode == status
    assert errors_shown == "whence: interrupted\n"
    assert os.listdir(tmp_path) == []


BUDGET = """
import sys
from whence.cli.commands import main
status = main(sys.argv[1:])
heavy = {"numba", "llvmlite", "pyarrow", "pandas", "pyspark", "py4j", "rich", "asyncio", "logging"}
heavy |= {"lz4", "zstandard"}
print(status, sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize("asked", [["--key", "order-1"], ["--key", "nobody", "--scan"], ["--since", "2026-11-16"],
                                   ["--key", "order-1", "--json"]])  # fmt: skip
def test_find_loads_no_more_than_it_needs(golden, asked):
    command = [COMMAND[0], "-c", BUDGET, "find", str(golden("v5-clean").store), *asked, "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] in ("0 []", "1 []")


def test_main_takes_a_list_of_arguments(capsys, golden):
    assert main(["find", str(golden("v5-clean").store), "--key", "order-1"]) is Status.DONE
    assert capsys.readouterr().out
