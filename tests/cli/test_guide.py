"""The guide is true: its examples run, and every command and option is in it."""

import argparse
import re

import pytest

from tests.cli.guide import BLOCK, GUIDE, PYTHON, commands, prepare, ran, timeless
from tests.cli.shared_session import shared_session
from whence.cli.commands import COMMANDS, Status
from whence.cli.render import WHY_EMPTY
from whence.lookup.answer import Receipt
from whence.store.inspection import Kind

TEXT = GUIDE.read_text("utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_guide(command):
    assert f"whence {command} " in TEXT


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_guide(command):
    _, make_parser, _ = COMMANDS[command]
    options = [action for action in make_parser()._actions if not isinstance(action, argparse._HelpAction)]
    missing = [name for action in options for name in action.option_strings if f"`{name}" not in TEXT]
    assert missing == []


def test_every_member_of_the_receipt_is_in_the_guide():
    assert [name for name in Receipt.__dataclass_fields__ if f"`{name}`" not in TEXT] == []


def test_every_reason_for_an_empty_answer_is_in_the_guide():
    assert [why for why in WHY_EMPTY if f"`{why}`" not in TEXT] == []


def test_every_exit_status_and_kind_of_file_is_in_the_guide():
    assert [status for status in Status if not re.search(rf"^\| {status:d} \|", TEXT, re.MULTILINE)] == []
    assert [kind for kind in Kind if f"`{kind}`" not in TEXT] == []


@pytest.mark.slow
def test_every_example_of_the_guide_prints_what_it_says(tmp_path):
    prepare(tmp_path)
    with shared_session() as job:
        for block in BLOCK.findall(TEXT):
            for shown, printed in zip(commands(block), ran(block, tmp_path, job), strict=True):
                assert [timeless(text) for text in printed] == [timeless(text) for text in shown]


@pytest.mark.slow
def test_python_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for source in PYTHON.findall(TEXT):
        exec(compile(source, str(GUIDE), "exec"), {})
    assert "674988" in capsys.readouterr().out
