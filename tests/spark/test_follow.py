"""``whence follow`` on real Spark: the files of a build, whatever is killed, while a log grows and readers read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import whence
from tests.crash.checks import check_answers, check_log, read_store
from tests.crash.following import made_files
from tests.spark.conftest import PYTHON_PATH
from tests.spark.follower_process import LIMIT_S, FollowerProcess, indexed_to
from tests.spark.growing import GrowingLog
from tests.spark.stores import check_store, foreign_store
from whence.door import Store, build_store, follow_store, verify_store
from whence.files.names import sidecar_of
from whence.pipeline.follow_state import FollowState
from whence.store.damage import DamageKind
from whence.store.sidecar import read_sidecar

pytestmark = pytest.mark.slow

SHAPE = {"slots": 31, "items": 100}
FIELDS = {"size": "length(body)", "word": "substr(hex(body), 1, 4)"}
STEPS = 24
WORKERS_KILLED_AT = (3, 7, 11, 14, 18, 22)  # while readers look on
KILLED = ["worker", "driver", "planner", "java", "driver"]
CLUSTER = ("--master", "local-cluster[2,1,512]", "--conf", "spark.executor.memory=512m")
HELD_UP_S = 8.0  # a process may be by others; the soak holds it to its two seconds
STOPS = 3  # a disk that others keep busy may take longer than a follower that is told to end waits for it


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some files of log, as a broker leaves it; and beside it what a build makes of it."""
    return foreign_store(tmp_path_factory.mktemp("source") / "store", 900)


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[str, bytes]:
    """The files of one build of all of it."""
    folder = tmp_path_factory.mktemp("built") / "sidecar"
    build_store(source, out=folder, fields=FIELDS, **SHAPE)
    return made_files(folder) | field_files(folder)


@pytest.fixture
def growing(source: Path, tmp_path: Path) -> GrowingLog:
    """The same store, of which nothing is written yet."""
    return GrowingLog(source, tmp_path / "store", Random(1))


def field_files(sidecar: Path) -> dict[str, bytes]:
    paths = (path for path in (sidecar / "fields").rglob("*") if path.is_file())
    return {str(path.relative_to(sidecar)): path.read_bytes() for path in paths}


def check_same(store: Path, expected: dict[str, bytes], *, with_fields: bool = False) -> None:
    found = made_files(sidecar_of(store)) | field_files(sidecar_of(store))
    wanted = {name: data for name, data in expected.items() if with_fields or not name.startswith("fields/")}
    assert sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name)) == []
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None and not claim.growing


# In one session


def test_once_leaves_the_files_of_a_build_and_goes_on_with_them(growing: GrowingLog, expected: dict[str, bytes]):
    states: list[FollowState] = []
    growing.grow(growing.end // 3)
    done = follow_store(growing.store, once=True, watcher=states.append, **SHAPE)
    assert states[-1] == done and done.is_ended and done.lag_bytes == 0
    growing.grow(growing.end // 2)
    build_store(growing.store, fields=FIELDS)  # goes on with what was followed
    growing.grow(growing.end)
    again = follow_store(growing.store, once=True)  # and the other way round
    assert 0 < again.messages < len(read_store(growing.store))
    assert (again.fields_to_offset, again.field_failure) == (growing.end, None)
    check_same(growing.store, expected, with_fields=True)
    assert not (sidecar_of(growing.store) / "checkpoint").exists()
    assert follow_store(growing.store, once=True).messages == 0
    assert verify_store(growing.store).is_healthy
    check_store(growing.store)


# In processes of their own


@pytest.fixture
def follow(growing: GrowingLog, tmp_path: Path) -> Callable[..., FollowerProcess]:
    """``follow(...)`` runs ``whence follow`` on the growing log."""
    sidecar_of(growing.store).mkdir()
    return partial(FollowerProcess, growing.store, "--slots", "31", "--items", "100", scratch=tmp_path / "tmp")


@pytest.fixture
def follow_on_cluster(follow) -> Callable[..., FollowerProcess]:
    """The same with executors in processes of their own."""
    return partial(follow, *CLUSTER, "--conf", f"spark.executorEnv.PYTHONPATH={PYTHON_PATH}")


def choose_key(store: Path, random: Random) -> tuple[str, list[int]]:
    """Some key, and the messages of the log that bear it."""
    records = check_log(store, ())
    key = random.choice([key for record in records for key in record.keys])
    return key, [record.physical_offset for record in records if key in record.keys]


def look(reader: Store, store: Path, random: Random) -> None:
    """Whatever is indexed by now: each message of a key is found, once."""
    key, wanted = choose_key(store, random)
    answer = reader.find(key=key, limit=None, system_topics=True)
    found = [message.physical_offset for message in answer][::-1]
    assert found[: len(wanted)] == wanted and sorted({*found}) == found, answer.receipt
    damage = [each for each in answer.receipt.damage if each.kind is not DamageKind.HALF_RECORD]
    assert answer.receipt.complete and not damage, answer.receipt


def look_by_spark(spark: SparkSession, store: Path, random: Random) -> None:
    key, wanted = choose_key(store, random)
    rows = spark.read.format("whence").option("rows", "key").load(str(store)).where(f"key = '{key}'")
    assert sorted(row.physical_offset for row in rows.select("physical_offset").collect()) == wanted


def test_a_log_is_followed_as_it_grows_and_ends_cleanly(follow, growing, expected, spark, tmp_path):
    """A reader that keeps the store open finds each message, and at the end through the index alone.

    Its workers are killed meanwhile.
    """
    random = Random(5)
    whence.spark.register(spark)
    growing.grow(1000)
    with follow("--json", "--metrics-port", "0") as follower, whence.open(growing.store) as reader:
        follower.await_more()
        second = [sys.executable, "-m", "whence", "follow", str(growing.store)]
        refused = subprocess.run(second, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH})
        assert refused.returncode == 2 and f"process {follower.child.pid} holds this store" in refused.stderr
        for step in range(1, STEPS + 1):
            thread = growing.in_background(growing.end * step // STEPS, 0.2)
            while thread.is_alive():
                look(reader, growing.store, random)
            if step in WORKERS_KILLED_AT:
                follower.kill_one("worker")
            elif step % 8 == 0:
                look_by_spark(spark, growing.store, random)
        follower.await_indexed(growing.end)
        records = read_store(growing.store)
        check_answers(reader, records, random)
        for record in records[-20:]:
            for key in record.keys:
                answer = reader.find(key=key, topic=record.topic, no_scan=True, limit=None)
                assert record.physical_offset in [message.physical_offset for message in answer]
        state = json.loads(follower.line())
        with urllib.request.urlopen(f"http://127.0.0.1:{state['metrics_port']}/metrics") as told:
            assert "whence_follow_messages_total" in told.read().decode()
        states = stop_cleanly(follow, follower)
    assert states[-1]["cuts"] == states[-1]["damaged"] == 0
    assert not list((tmp_path / "tmp").glob("whence-spark-*"))
    check_same(growing.store, expected)


def stop_cleanly(follow, follower: FollowerProcess) -> list[dict[str, Any]]:
    """End a follower of all there is as an operator does; what it told."""
    for _ in range(STOPS):
        status, out, err, took_s = follower.stop()
        if status != 128 + signal.SIGTERM:
            break
        with follow("--json") as follower:
            follower.line()
    assert (status, err) == (0, "")
    assert took_s < 2.0 + HELD_UP_S
    states: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert states[-1]["is_ended"] and states[-1]["lag_bytes"] == 0
    return states


def kill_all(follow, growing: GrowingLog, parts: list[str], seed: int) -> Counter[str]:
    """Kill these parts of followers, one after the other at random moments, while the log grows; which there were.

    A reader looks on all the while.
    """
    random, killed = Random(seed), Counter[str]()
    growing.grow(1000)  # there is something to ask for
    step = growing.end // (3 * len(parts))  # so that something is left to be written at the last kill
    piece_max = step // 8
    left = list(reversed(parts))
    while left:
        with follow("--quiet") as follower, looked_at(growing.store, seed):
            while left:
                part = left.pop()
                indexed = indexed_to(growing.store)
                growing.grow(growing.offset + step, piece_max)
                follower.await_indexed(indexed + 1)
                growing.grow(growing.offset + random.randint(1, step), piece_max)
                time.sleep(random.random() * 0.3)
                killed[part] += bool(follower.kill(part))
                growing.finish_record()
                check_store(growing.store, is_complete=False)
                if part in ("driver", "java"):
                    follower.child.wait(LIMIT_S)
                    assert part == "driver" or says_that_java_ended(follower), (follower.out, follower.err)
                    break
    return killed


def says_that_java_ended(follower: FollowerProcess) -> bool:
    """Whether one line says what happened."""
    return follower.child.returncode == 2 and follower.err.count("\n") == 1 and "Java" in follower.err


@contextmanager
def looked_at(store: Path, seed: int) -> Iterator[None]:
    """Have a reader that keeps the store open ask for one key after the other meanwhile."""
    random, is_over, looks = Random(seed), threading.Event(), list[int]()

    def look_on() -> None:
        with whence.open(store) as reader:
            while not is_over.is_set():
                look(reader, store, random)
                looks.append(len(looks))
                is_over.wait(0.1)  # there are two cores

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look_on)
        try:
            yield
        finally:
            is_over.set()
        looking.result()
    assert looks


def finish(growing: GrowingLog, expected: dict[str, bytes]) -> None:
    """What is left is followed, and all files are those of a build."""
    growing.grow(growing.end)
    follow_store(growing.store, once=True)
    check_same(growing.store, expected)
    check_store(growing.store)


def test_what_is_killed_of_a_follower_leaves_the_files_of_a_build(follow, growing, expected):
    assert kill_all(follow, growing, KILLED, 1) == Counter(KILLED)
    finish(growing, expected)


@pytest.mark.long(part=5, count=48)
def test_a_follower_that_is_killed_many_times_leaves_the_files_of_a_build(follow, growing, expected, long_count):
    parts = Random(3).choices(["driver", "java", "worker"], [2, 1, 3], k=long_count)
    killed = kill_all(follow, growing, parts, 3)
    print(killed)
    assert killed["driver"] and killed["java"] and killed["worker"]
    finish(growing, expected)


def test_a_follower_goes_on_without_an_executor_that_is_killed(follow_on_cluster, growing, expected):
    assert kill_all(follow_on_cluster, growing, ["executor"], 2) == Counter(["executor"])
    finish(growing, expected)


@pytest.mark.long(part=5, count=12)
def test_executors_that_are_killed_are_gone_on_without(follow_on_cluster, growing, expected, long_count):
    parts = Random(4).choices(["executor", "worker", "driver"], [6, 2, 1], k=long_count)
    killed = kill_all(follow_on_cluster, growing, parts, 2)
    print(killed)
    assert killed["executor"] and killed["driver"]
    finish(growing, expected)
