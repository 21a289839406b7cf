"""The examples of docs/guide.md, run and compared: what the guide shows is what whence prints.

    python -m tests.cli.guide        puts the real output into the guide, after a change that is meant

A block ``console`` holds commands, each after ``$ ``, and what they print. They run one after the other, in one
folder that holds the sample store as ``demo/store``. Elapsed times differ from run to run and are not compared. A
command with ``--cursor`` gets the cursor that was printed last. Jobs run in one Spark session, but for that of
``find --scan``, which starts its own as each does where a user types it.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cli.shared_session import shared_session
from whence.cli.demo import unpack_sample

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CURSOR = re.compile(r"--cursor\s+([\w-]{40,})")
ELAPSED = re.compile(r"(elapsed +)[0-9.]+( ms)|(\"elapsed_us\": )[0-9]+")
SETUP = """set -o pipefail
whence() {{
    case $1 in
        build | follow | verify | repair | export) {job} "$@" ;;
        *) {python} -m whence "$@" ;;
    esac
}}
"""


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what the guide says that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def ran(block: str, folder: Path, job: list[str]) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what it prints. ``job``: the words before the command of a job."""
    cursor = ""
    for command, _ in commands(block):
        command = CURSOR.sub(f"--cursor {cursor}", command)
        output = run(command, folder, job)
        cursor = next(iter(CURSOR.findall(output)), cursor)
        yield command, output


def run(command: str, folder: Path, job: list[str]) -> str:
    """What a command prints, standard error included."""
    setup = SETUP.format(job=shlex.join(job), python=shlex.quote(sys.executable))
    done = subprocess.run(
        ["bash", "-c", setup + command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=180,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


def timeless(text: str) -> str:
    return ELAPSED.sub(r"\1\3-\2", text)


def prepare(folder: Path) -> None:
    unpack_sample(folder / "demo")


def write() -> None:
    with tempfile.TemporaryDirectory() as name, shared_session() as job:
        folder = Path(name)
        prepare(folder)

        def filled(match: re.Match[str]) -> str:
            text = "".join(f"$ {command}\n{output}" for command, output in ran(match[1], folder, job))
            return f"```console\n{text}```"

        GUIDE.write_text(BLOCK.sub(filled, GUIDE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    write()
