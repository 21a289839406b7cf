"""The command line, run as a user runs it: in a process of its own, or, for long tables of cases, in this one."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from whence.cli.commands import main

COMMAND = [sys.executable, "-m", "whence"]


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def whence() -> Callable[..., Ran]:
    """``whence("find", store, "--key", "a")``: the real command."""

    def run(*arguments: object, env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env=os.environ | (env or {}),
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The same in this process, which takes milliseconds."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(int(status), captured.out, captured.err)

    return run
