"""Commands in processes of their own, and all that these start."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.spark.conftest import PYTHON_PATH
from whence.pipeline.java import find_java

AT_ONCE_S = 3.0  # what is interrupted ends within a second; others may keep the cores and the disk busy meanwhile


@contextmanager
def starting(scratch: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Gives what runs a command in a session of its own. What is left of that ends with the block.

    ``scratch`` is where it has its temporary files.
    """
    started: list[subprocess.Popen[str]] = []
    scratch.mkdir(exist_ok=True)

    def run(*command: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        started.append(child)
        return child

    try:
        yield run
    finally:
        for child in started:
            kill_all(child.pid)
            child.communicate()


def processes(session: int) -> dict[int, str]:
    """All that runs in a session, and how it was called."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            state, _, _, number = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
    return found


def kill_all(session: int) -> None:
    """Kill all that runs in a session."""
    for pid in processes(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


SCRIPT = """\
#!/bin/sh
"{java}" "$@"
case "$*" in
    *launcher.Main*) ;;
    *deploy.SparkSubmit*) sleep 30 ;;
esac
"""


def lingering_java(home: Path) -> Path:
    """A home of Java whose process stays a while when the Java that it started is gone."""
    java = find_java(os.environ)
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.format(java=java.home_for_spark(home.with_name("real")) / "bin" / "java"))
    script.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{java.version}"\n')
    return home


def kill_java(session: int) -> None:
    """Kill the Java that runs Spark in a session, and not what started it."""
    for pid, called in processes(session).items():
        if "deploy.SparkSubmit" in called and not called.startswith("/bin/sh"):
            os.kill(pid, signal.SIGKILL)
