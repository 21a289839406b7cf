"""``whence build`` on real Spark: the same bytes wherever tasks run, and whatever becomes of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark import builder, mender
from tests.spark.conftest import PYTHON_PATH, QUICK
from tests.spark.stores import DERIVED, check_store, make_store, sums
from whence.door import build_store
from whence.pipeline import build as build_module
from whence.pipeline import jobs
from whence.pipeline.runner import Runner
from whence.pipeline.tasks import IndexTask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    return make_store(tmp_path_factory.mktemp("made"), 300)


@pytest.fixture
def build(store: Path, tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """A build in a process of its own: what it printed, and where its tasks ran."""

    def run(master: str, conf: dict[str, str] | None = None, fault: str = "", jobs: int = 5) -> SimpleNamespace:
        marks = tmp_path / f"marks-{os.urandom(4).hex()}"
        marks.mkdir()
        asked: dict[str, Any] = {
            "store": str(store),
            "master": master,
            "conf": conf or {},
            "marks": str(marks),
            "fault": fault,
            "jobs": jobs,
        }
        ended = subprocess.run(
            [sys.executable, builder.__file__, json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path)},
        )
        assert ended.returncode == 0, ended.stderr
        built = json.loads(ended.stdout.splitlines()[-1])
        return SimpleNamespace(
            **built, places=builder.places(marks), marks=sorted(path.name for path in marks.iterdir())
        )

    return run


def check_built(store: Path, built: SimpleNamespace, expected: dict[str, str]) -> None:
    """All is published and right, nothing else is left, and what was told of it is so."""
    sidecar = store.with_name("store.whence")
    assert sums(sidecar) == expected
    told = {str(Path(file["path"]).relative_to(sidecar)): file["sha256"] for file in built.files}
    assert {name: sum for name, sum in told.items() if not name.startswith("times/")} == expected
    assert sorted(path.name for path in sidecar.iterdir() if path.name not in DERIVED) == [
        "lock",
        "sidecar.json",
        "times",
    ]
    check_store(store)


# Where tasks run, and what becomes of them


def test_a_local_build_equals_the_dispatch_though_a_task_fails_in_each_pass(build, store, expected):
    """An error of the system, which Spark tries again, when all was written."""
    built = build("local[1,4]", fault="error")
    assert len({place.daemon for place in built.places}) == 1
    assert len(built.places) == built.tasks + 2
    check_built(store, built, expected)


def test_a_local_build_equals_the_dispatch_though_a_process_is_killed_in_each_pass(build, store, expected):
    built = build("local[2,4]", fault="killed worker")
    assert len({place.java for place in built.places}) == 1
    assert len({place.worker for place in built.places}) >= 4
    assert len(built.places) > built.tasks
    check_built(store, built, expected)


def test_a_build_in_executors_equals_the_dispatch_though_one_is_killed_in_each_pass(build, store, expected):
    built = build("local-cluster[2,1,1024]", {"spark.executor.extraJavaOptions": QUICK}, fault="killed executor")
    assert "first-scan" in built.marks and "first-build" in built.marks
    assert len({place.java for place in built.places}) >= 3
    check_built(store, built, expected)


def test_a_build_on_a_cluster_equals_the_dispatch_though_slow_tasks_get_twins(build, store, expected, cluster):
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    built = build(cluster.master, cluster.conf | conf, fault="slow")
    assert {place.java_parent for place in built.places} == cluster.workers
    assert len(built.places) > built.tasks
    check_built(store, built, expected)


def test_a_build_on_a_cluster_is_verified_broken_and_mended_there(store, expected, cluster, tmp_path):
    asked = {"store": str(store), "master": cluster.master, "conf": cluster.conf}
    ended = subprocess.run(
        [sys.executable, mender.__file__, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["is_local"] is False
    assert told["damaged"] == [[told["broken"]], []]
    assert told["mended"] == [told["broken"]]
    sidecar = store.with_name("store.whence")
    assert sums(sidecar) == expected
    assert not list(sidecar.glob("verify-*"))
    check_store(store)


def test_two_tasks_that_fill_one_index_file_side_by_side_equal_the_dispatch(spark, store, expected, monkeypatch):
    given: list[Any] = []

    class NotingRunner(Runner):
        def map(self, name: str, task: Any, inputs: Sequence[Any], *, size_of: Any = None) -> list[Any]:
            given.extend(inputs)
            return super().map(name, task, inputs, size_of=size_of)

    monkeypatch.setattr(jobs, "Runner", NotingRunner)
    monkeypatch.setattr(build_module, "HALVED_FROM", 2)
    build_store(store, jobs=64)
    assert sums(store.with_name("store.whence")) == expected
    halved = [task for task in given if isinstance(task, IndexTask) and task.file]
    assert len(halved) == 2 * sum(task.leaves for task in halved) == 2 * sum(name[:5] == "index" for name in expected)


def test_a_build_in_this_process_equals_the_dispatch(spark, store, expected):
    built = build_store(store, jobs=7)
    assert sums(store.with_name("store.whence")) == expected
    assert built.messages >= 300
    check_store(store)
