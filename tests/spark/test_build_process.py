"""``whence build`` as a user runs it, in a process that is killed, stopped, or in the way of another."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

import whence
from tests.spark.processes import AT_ONCE_S, starting
from tests.spark.stores import check_store, check_visible, make_store, sums, write_store
from whence.files.lock import StoreLock, lock_holder

pytestmark = pytest.mark.slow

KILLS = 3
LIMIT_S = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    return make_store(tmp_path_factory.mktemp("made"), 600)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start(...)`` runs ``whence build`` in a session of its own."""
    with starting(tmp_path / "tmp") as run:
        yield partial(run, sys.executable, "-m", "whence", "build")


MOMENTS = {"scan": "work/*/*.json", "build": "work/*/*.made", "publish": "*/*/*/0*"}
"""What there is more and more of, in each part of a build."""


def await_moment(child: subprocess.Popen[str], sidecar: Path, moment: str, count: int) -> None:
    """Wait until there is so much more than there was, or the build has ended."""
    before = len(list(sidecar.glob(MOMENTS[moment])))
    deadline = time.monotonic() + LIMIT_S
    while child.poll() is None and len(list(sidecar.glob(MOMENTS[moment]))) < before + count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def killed_builds(start, store: Path, seed: int, count: int) -> list[str]:
    """Kill builds at random moments, and look each time what there is; in which part of a build that was."""
    random, sidecar, killed = Random(seed), store.with_name("store.whence"), []
    for number in range(count):
        moment = list(MOMENTS)[number % len(MOMENTS)]
        child = start(store, "--jobs", "20")
        await_moment(child, sidecar, moment, random.randrange(1, 7))
        time.sleep(random.random() * 0.05)
        child.kill()
        child.wait()
        if child.returncode == -signal.SIGKILL:
            killed.append(moment)
        check_visible(sidecar)
        check_store(store, is_complete=False)
        if moment == "publish" or child.returncode == 0:  # there is little left to be done
            shutil.rmtree(sidecar)
    return killed


def check_goes_on(start, store: Path, expected: dict[str, str]) -> None:
    sidecar = store.with_name("store.whence")
    out, err = start(store, "--jobs", "20").communicate(timeout=LIMIT_S)
    assert "messages" in out, err
    assert sums(sidecar) == expected
    assert not (sidecar / "work").exists()
    check_store(store)


def test_a_build_that_is_killed_is_gone_on_with(start, store, expected):
    assert set(killed_builds(start, store, 1, KILLS)) == {*MOMENTS}
    check_goes_on(start, store, expected)


@pytest.mark.long(part=3, count=40)
def test_a_build_that_is_killed_many_times_is_gone_on_with(start, store, expected, long_count):
    killed = killed_builds(start, store, 2, long_count)
    assert set(killed) == {*MOMENTS}
    print(Counter(killed))
    check_goes_on(start, store, expected)


def test_ctrl_c_ends_a_build_within_a_second_and_the_next_goes_on(start, store, expected):
    sidecar = store.with_name("store.whence")
    child = start(store)
    await_moment(child, sidecar, "build", 1)
    interrupted = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_S)
    assert time.monotonic() - interrupted < AT_ONCE_S
    assert (child.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "whence: interrupted"
    check_visible(sidecar)
    check_store(store, is_complete=False)
    check_goes_on(start, store, expected)


# In the way of another


def complaint(child: subprocess.Popen[str]) -> str:
    """What a build says that does nothing: one line."""
    out, err = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, out) == (2, ""), err
    assert err.startswith("whence: ") and err.count("\n") == 1, err
    return err


def test_of_two_builds_at_once_the_second_says_so_and_stops(start, store, expected):
    sidecar = store.with_name("store.whence")
    first = start(store)
    deadline = time.monotonic() + LIMIT_S
    while lock_holder(sidecar / "lock") is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = start(store)
    assert complaint(second) == (
        f"whence: {sidecar}: somebody is writing there; {sidecar / 'lock'}: process {first.pid} holds this store; "
        "a store has one writer, stop that one first\n"
    )
    assert first.communicate(timeout=LIMIT_S) and first.returncode == 0
    assert sums(sidecar) == expected


def test_a_build_in_place_is_refused_while_a_broker_holds_the_store(start, store):
    before = sums(store)
    with StoreLock(store / "lock"):
        assert f"{store}: somebody is writing there; " in complaint(start(store, "--in-place"))
    assert sums(store) == before


def test_a_build_of_a_store_of_our_own_is_refused_while_it_is_written(start, tmp_path):
    write_store(tmp_path / "own", 10)
    with whence.create(tmp_path / "own"):
        assert f"process {os.getpid()} holds this store" in complaint(start(tmp_path / "own"))
