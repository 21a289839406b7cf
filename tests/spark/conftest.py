"""A Spark session that the tests of a process share, and sessions in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from whence.pipeline.runner import Runner
from whence.pipeline.session import open_session

ROOT = Path(__file__).parent.parent.parent
SPARK = Path(pyspark.__file__).parent
CHILD = Path(__file__).with_name("child.py")
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""What makes a Java that lives for seconds take half of the time: Spark's own processes are such, and executors."""
PYTHON_PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""Workers import the tasks of tests/ as they import whence: from the path."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHON_PATH)
        with open_session() as session:
            yield session


@pytest.fixture
def runner(spark: SparkSession) -> Runner:
    return Runner(spark)


@pytest.fixture
def store(made: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of the store that the test's module made."""
    return Path(shutil.copytree(made[0], tmp_path / "store"))


@pytest.fixture
def expected(made: tuple[Path, dict[str, str]]) -> dict[str, str]:
    """The sums of what its dispatch makes of its log."""
    return made[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start(asked, **environment)`` runs child.py, which has a session of its own; a value None unsets a name."""
    started = []

    def run(
        asked: dict[str, Any], command: tuple[object, ...] = (sys.executable,), **environment: str | None
    ) -> subprocess.Popen[str]:
        (tmp_path / "tmp").mkdir(exist_ok=True)
        changed = {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path / "tmp")} | environment
        kept = {name: value for name, value in os.environ.items() if name not in changed}
        child = subprocess.Popen(
            [*map(str, command), str(CHILD), json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {name: value for name, value in changed.items() if value is not None},
        )
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()


@pytest.fixture
def session(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What such a process learned. It leaves nothing behind and says nothing but progress, if that."""

    def run(asked: dict[str, Any] | None = None, *, is_quiet: bool = True, **environment: Any) -> dict[str, Any]:
        child = start({"inputs": [0, 1, 2, 3]} | (asked or {}), **environment)
        out, err = child.communicate(timeout=100)
        assert child.returncode == 0, err
        assert not is_quiet or all(line.startswith("whence: job: ") for line in err.splitlines()), err
        assert not list((tmp_path / "tmp").glob("whence-spark-*"))
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A standalone master and two workers of one core, in processes of their own, on ports that the system chose.

    Each worker has an address of its own: Spark gives no task to one host twice at once.
    """
    folder = tmp_path_factory.mktemp("cluster")
    processes = []
    environment = os.environ | {
        "SPARK_HOME": str(SPARK),
        "SPARK_WORKER_DIR": str(folder / "workers"),
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_LAUNCHER_OPTS": QUICK,
    }

    def begin(name: str, role: str, host: str, *arguments: str) -> tuple[int, Path]:
        log = folder / f"{name}.log"
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        ports = ["--host", host, "--port", "0", "--webui-port", "0"]
        with log.open("w") as file:
            process = subprocess.Popen([*command, *ports, *arguments], stdout=file, stderr=file, env=environment)
        processes.append(process)
        return process.pid, log

    def await_word(log: Path, word: str) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = [line for line in log.read_text().splitlines() if word in line]
            if lines:
                return lines[0].partition(word)[2].split()[0]
            time.sleep(0.1)
        raise AssertionError(log.read_text())

    try:
        _, log = begin("master", "master.Master", "127.0.0.1")
        master = await_word(log, "Starting Spark master at ")
        size = ["--cores", "1", "--memory", "1g"]
        workers = [
            begin(f"worker-{number}", "worker.Worker", f"127.0.0.{number}", *size, master) for number in (1, 2)
        ]
        for _, log in workers:
            await_word(log, "Successfully registered with master ")
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
        }
        yield SimpleNamespace(master=master, workers={process for process, _ in workers}, conf=conf)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
