"""How ``whence follow`` ends: told to, interrupted, or because its Java is gone. And what is left of it: nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.spark.follower_process import LIMIT_S, indexed_to
from tests.spark.growing import AppendedLog
from tests.spark.processes import AT_ONCE_S, kill_java, lingering_java, processes, starting
from whence.cli.commands import FOLLOW_GRACE_S
from whence.files.names import sidecar_of
from whence.pipeline.gateway import JAVA_GONE

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path) -> AppendedLog:
    log = AppendedLog(tmp_path / "store", 1 << 20)
    log.append(1000)
    sidecar_of(log.store).mkdir()
    return log


@pytest.fixture
def follow(log: AppendedLog, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``follow(...)`` runs ``whence follow`` on that log, in a session of its own."""
    with starting(tmp_path / "tmp") as run:
        yield partial(run, sys.executable, "-m", "whence", "follow", log.store, "--quiet")


def await_that(is_so: Callable[[], object], child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def await_indexed(child: subprocess.Popen[str], store: Path, offset: int) -> None:
    await_that(lambda: indexed_to(store) >= offset, child)


def ended(child: subprocess.Popen[str]) -> tuple[int, list[str], float]:
    """How a process ends: its status, what it says, and how long that takes."""
    begun = time.monotonic()
    _, err = child.communicate(timeout=LIMIT_S)
    return child.returncode, err.splitlines(), time.monotonic() - begun


def check_nothing_left(child: subprocess.Popen[str], scratch: Path) -> None:
    deadline = time.monotonic() + 10
    while processes(child.pid) and time.monotonic() < deadline:  # Java ends with us at the latest, workers with it
        time.sleep(0.02)
    assert not processes(child.pid)
    assert not list(scratch.glob("whence-spark-*"))


@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGTERM, 0.0), (signal.SIGINT, 1.0)])
def test_what_is_interrupted_while_spark_starts_leaves_nothing(follow, log, tmp_path, number, delay_s):
    child = follow()
    await_that(lambda: list((tmp_path / "tmp").glob("whence-spark-*")), child)
    time.sleep(delay_s)
    child.send_signal(number)
    status, err, took_s = ended(child)
    assert (status, err) == (128 + number, ["whence: interrupted"])
    assert took_s < AT_ONCE_S
    check_nothing_left(child, tmp_path / "tmp")


def test_an_interrupted_once_does_not_say_that_all_is_done(follow, log, tmp_path):
    child = follow("--once")
    await_that((sidecar_of(log.store) / "checkpoint" / "metadata").exists, child)
    child.terminate()
    status, err, took_s = ended(child)
    assert (status, err) == (128 + signal.SIGTERM, ["whence: interrupted"])
    assert took_s < AT_ONCE_S
    check_nothing_left(child, tmp_path / "tmp")


@pytest.fixture
def growing(log: AppendedLog) -> Iterator[AppendedLog]:
    """The log, appended to all the while: a follower ends in the midst of its work."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.02):
            log.append(5)

    thread = threading.Thread(target=write)
    thread.start()
    yield log
    is_over.set()
    thread.join()


def test_a_follower_that_is_told_to_end_says_nothing_that_is_not_its_own(follow, growing, tmp_path):
    """Whoever waits for Java when that goes has much to say: none of it is for an operator."""
    child = follow()
    await_indexed(child, growing.store, growing.offset + 1)
    child.terminate()
    status, err, took_s = ended(child)
    expected = 0
    if status == 128 + signal.SIGTERM and took_s >= FOLLOW_GRACE_S:  # a disk that others keep busy
        expected, err = status, [line for line in err if line != "whence: interrupted"]
    assert (status, err) == (expected, [])
    assert took_s < AT_ONCE_S
    check_nothing_left(child, tmp_path / "tmp")


def test_a_java_that_is_gone_is_told_in_one_line_though_what_started_it_is_there(
    follow, growing, tmp_path, monkeypatch
):
    monkeypatch.setenv("JAVA_HOME", str(lingering_java(tmp_path / "java")))
    child = follow()
    await_indexed(child, growing.store, growing.offset + 1)
    kill_java(child.pid)
    status, err, _ = ended(child)
    assert (status, err) == (2, [f"whence: {JAVA_GONE}"])
    check_nothing_left(child, tmp_path / "tmp")


def test_what_the_gateway_says_of_a_java_that_is_gone_is_kept_from_the_terminal():
    """Its first word of its own leaves a handler on the root logger, which is there for all that comes behind."""
    said = (
        "import logging, py4j.java_gateway; from whence.pipeline.session import _quiet_gateway; _quiet_gateway();"
        "logging.basicConfig();"
        "py4j.java_gateway.logger.error('gone'); logging.getLogger('py4j.clientserver').error('gone');"
        "logging.getLogger('theirs').error('heard')"
    )
    child = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True)
    assert (child.stderr, child.returncode) == ("ERROR:theirs:heard\n", 0)
