"""The SparkSession of a job: one that is active already, or one that is made here and stopped when the job is done.

Whose settings count, the first that names a thing wins: those of the caller (``--master``, ``--conf``); those of
spark-submit, or of the Spark that SPARK_HOME points to; ours. Ours are for one machine: all its cores, a session that
starts in less than half of the time that Spark takes by itself, nothing on the network but loopback, and nothing left
behind. What Spark would write to the terminal goes to the log file, or nowhere.

docs/cluster.md tells what a cluster needs.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

from whence.errors import StoreError, UsageError
from whence.files.atomic import unfinished
from whence.pipeline.class_archive import ClassArchive
from whence.pipeline.gateway import is_gone, quiet_if_gone, told_if_gone
from whence.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
LOCAL_MASTER = f"local[*,{TASK_ATTEMPTS}]"
"""All cores. Without the second number a local Spark gives up when a task fails once."""

SPARK_SUBMIT_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "pyspark-shell",
    "spark.ui.showConsoleProgress": "true",
}
"""What Spark takes where nobody named anything."""

TERSE = "-XX:TieredStopAtLevel=1"  # compile quickly: it starts sooner, and what runs long runs half as fast
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",  # messages mostly do not pass through the JVM: it has next to nothing to collect
    TERSE,  # nor anything to compile well
    "-Xshare:auto",
    "-Xlog:disable",  # an archive that does not fit is no news for a user
    "-XX:-UsePerfData",  # no files in /tmp
)
ROOMY = "-XX:NewSize=384m"
"""For what a row leaves behind, some kilobytes: with more room it is cleared away seldom. Spark gives Java 1 GiB."""
LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"

GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the Python that it starts
START_POLL_S = 0.02
STANDALONE = "spark://"
REACH_TIMEOUT_S = 5.0

SOCKET_PATH_MAX = 104  # the least that a system allows; Linux takes 108
SOCKET_NAME_SIZE = len("/.01234567-0123-0123-0123-0123456789ab.sock")
CLOSED_TIMEOUT_S = 3  # Java ends when its standard input does
END_TIMEOUT_S = 120  # the first time Java writes the archive of its classes then
SAID_SIZE = 65_536


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What a caller says about Spark. ``master`` None: all cores of this machine, unless Spark is configured."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def open_session(
    settings: SparkSettings | None = None, *, log_file: Path | None = None, moves_rows: bool = False
) -> Iterator[SparkSession]:
    """The session for the ``with``. An active one (in a notebook) is used and left running.

    ``log_file``: where to append what Spark has to say. ``moves_rows``: messages pass through Java, which has work to
    do then. A ``with`` that ends by Ctrl-C does not wait for Spark.
    """
    settings = settings or SparkSettings()
    if find_spec("pyspark") is None:
        raise UsageError("this runs on Spark, which is not installed: pip install 'whence[spark]'")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkContext._active_spark_context
    if active is not None:
        if settings.master not in (None, active.master):
            raise UsageError(
                f"a Spark session is active already, on {active.master}; stop it first, or do not ask for "
                f"master {settings.master}"
            )
        use_this_python(active)
        with told_if_gone(active._gateway):
            yield SparkSession.builder.getOrCreate()
        return
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ and "SPARK_LOCAL_REMOTE" not in os.environ:
        raise UsageError(
            "this process is a client of Spark Connect, which runs no tasks, and Spark allows no session beside it: "
            "do this in a process whose environment has no SPARK_CONNECT_MODE_ENABLED"
        )
    _quiet_gateway()
    with _own_folder() as folder:
        java_options = tuple(ROOMY if moves_rows and option == TERSE else option for option in JAVA_OPTIONS)
        starting = _Start(settings, folder, log_file, java_options)
        try:
            spark = starting.run()
            with told_if_gone(starting.gateway):
                yield spark
        except Exception:
            starting.stop()
            raise
        except BaseException:
            starting.kill()
            raise
        else:
            starting.stop()


def use_this_python(context: SparkContext) -> None:
    """Have tasks on this machine run in the Python that asks, unless PYSPARK_PYTHON names another.

    The one that Spark finds on the path by itself may know nothing of whence, as in a notebook.
    """
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for all that Spark writes on this machine, which goes when the session ends, however it ends."""
    folder = Path(tempfile.mkdtemp(prefix="whence-spark-"))
    with unfinished(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_not_of_gateway(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _quiet_gateway() -> None:
    """Keep the gateway to Java from telling on the terminal that Ctrl-C cut short what it said.

    From now on: a thread that waited for Java when that was ended may learn of it when all else is over.
    """
    logging.getLogger().addFilter(_is_not_of_gateway)  # it logs as if it were the program; a second time is none
    logging.getLogger("py4j").propagate = False  # and as itself, to what the other leaves behind on the terminal


class _Start:
    """Starts Java and in it Spark, and ends both. ``gateway`` leads to that Java, as soon as there is one."""

    def __init__(
        self, settings: SparkSettings, folder: Path, log_file: Path | None, java_options: tuple[str, ...]
    ) -> None:
        self._settings = settings
        self._own_java_options = java_options
        self._folder = folder
        self._log_path = log_file or folder / "spark.log"
        self._java: Popen[bytes] | None = None
        self.gateway: Any = None
        self._spark: SparkSession | None = None
        self._archive: ClassArchive | None = None

    def run(self) -> SparkSession:
        from pyspark import SparkContext

        if (self._settings.master or "").startswith(STANDALONE):
            _reach(str(self._settings.master))
        handler = signal.getsignal(signal.SIGINT)
        with _environment(self._variables()):
            self.gateway = SparkContext._gateway or self._start_java()
            with told_if_gone(self.gateway):
                self._spark = self._start_spark()
        # Spark's own handler talks to Java, and would do so in the midst of whatever this process says to Java.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
        return self._spark

    def _start_spark(self) -> SparkSession:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(self._conf(dict(SparkConf(_jvm=self.gateway.jvm).getAll())).items()))
        if conf.contains("spark.pyspark.python"):  # spark-submit knows it, a SparkContext does not
            os.environ["PYSPARK_PYTHON"] = str(conf.get("spark.pyspark.python"))
        try:
            context = SparkContext(conf=conf, gateway=self.gateway)
            workers = _start_workers(context) if str(context.master).startswith("local[") else None
            spark = SparkSession(context)
            _hush(context)
        except (Py4JError, ValueError) as error:
            master = conf.get("spark.master")
            raise StoreError(f"Spark does not start on {master}: {_first_line(error)}") from error
        if workers is not None:
            with suppress(Py4JError):  # what keeps workers from starting is told by the first job
                workers.get()
        return spark

    def stop(self) -> None:
        """End Spark, and then Java, if it was started here."""
        if self._is_java_gone():
            self.kill()  # somebody else ended it: there is nobody to talk to
            return
        if self._spark is not None:
            with quiet_if_gone(self.gateway):
                self._spark.stop()
        if self._java is None:
            return
        if self.gateway is not None:
            self._forget_java()
            with quiet_if_gone(self.gateway):
                self.gateway.shutdown()
        assert self._java.stdin is not None
        self._java.stdin.close()
        try:
            try:
                self._java.wait(CLOSED_TIMEOUT_S)
            except TimeoutExpired:  # a process that was forked meanwhile has its standard input open, too
                self._java.terminate()
                self._java.wait(END_TIMEOUT_S)
        except BaseException as error:
            self._end_java()
            if not isinstance(error, TimeoutExpired):
                raise
        if self._archive is not None and self._java.returncode == 0:
            self._archive.keep()

    def kill(self) -> None:
        """End all at once. Python's workers end with the Java that started them; tasks elsewhere, when it is gone."""
        if self._java is not None:
            self._end_java()
            self._forget_java()
        elif self._is_java_gone():
            self._forget_java()
        elif self._spark is not None:
            self._spark.stop()

    def _is_java_gone(self) -> bool:
        return self.gateway is not None and is_gone(self.gateway)

    def _end_java(self) -> None:
        assert self._java is not None
        with suppress(ProcessLookupError):
            os.killpg(self._java.pid, signal.SIGKILL)
        self._java.wait()

    def _forget_java(self) -> None:
        """Let the next session start a Java of its own. Spark would look for this one, which is gone."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkSession._instantiatedSession = None

    def _start_java(self) -> Any:
        """Start Java with the gateway through which Python talks to it; under spark-submit it is there already.

        Spark does the same, but does not say which process it started until that is ready, which takes seconds in
        which Ctrl-C may come.
        """
        from pyspark.find_spark_home import _find_spark_home
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        if GATEWAY_PORT in os.environ:
            return launch_gateway()
        conf = dict(self._settings.conf)
        if self._settings.master is not None:
            conf["spark.master"] = self._settings.master
        if not _is_configured():
            conf["spark.driver.extraJavaOptions"] = self._java_options()
        command = [str(Path(_find_spark_home(), "bin", "spark-submit"))]
        command += [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        told = self._folder / "gateway"
        variables = os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}
        with self._log_path.open("ab") as log:
            said_from = log.tell()
            # It ends when its standard input does. In a group of its own a terminal's Ctrl-C does not reach it.
            self._java = Popen(command, stdin=PIPE, stdout=log, stderr=log, env=variables, process_group=0)
        while not told.is_file():
            if self._java.poll() is not None:
                raise StoreError(f"Java does not start Spark: {self._said(said_from)}")
            time.sleep(START_POLL_S)
        with told.open("rb") as file:
            port, secret = read_int(file), UTF8Deserializer().loads(file)
        with _environment({GATEWAY_PORT: str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            gateway = launch_gateway()
        gateway.proc = self._java
        return gateway

    def _said(self, position: int) -> str:
        """The last that Java said, in one line."""
        with self._log_path.open("rb") as log:
            log.seek(position)
            lines = log.read(SAID_SIZE).decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip() and not line.startswith(("\tat ", "WARNING: "))]
        return " ".join(said[-3:]) or "it said nothing"

    def _java_options(self) -> str:
        from pyspark.find_spark_home import _find_spark_home

        self._archive = ClassArchive(
            find_java(os.environ), Path(_find_spark_home(), "jars"), self._own_java_options, self._folder
        )
        ours = [*self._own_java_options, f"-Djava.io.tmpdir={self._folder}", *self._archive.java_options]
        return " ".join([*ours, self._settings.conf.get("spark.driver.extraJavaOptions", "")])

    def _variables(self) -> dict[str, str]:
        """What Spark takes from the environment only. What is set there already stays, but for a Java too old."""
        variables = {
            "PYSPARK_PYTHON": sys.executable,  # not the first python3 of the PATH
            "SPARK_LAUNCHER_OPTS": LAUNCHER_OPTIONS,
            "SPARK_WORKER_DIR": str(self._folder / "workers"),  # of local-cluster; else it would lie in Spark's home
        }
        missing = {name: value for name, value in variables.items() if name not in os.environ}
        try:
            return missing | {"JAVA_HOME": str(find_java(os.environ).home_for_spark(self._folder))}
        except UsageError:
            if not _is_configured():  # else its own scripts may know one
                raise
            return missing

    def _conf(self, given: dict[str, str]) -> dict[str, str]:
        """Spark's settings: the caller's, those that Java was started with, and ours for what neither names."""
        given = {name: value for name, value in given.items() if SPARK_SUBMIT_DEFAULTS.get(name) != value}
        given |= self._settings.conf
        master = self._settings.master or given.get("spark.master", LOCAL_MASTER)
        ours = {
            "spark.app.name": "whence",
            "spark.python.daemon.module": "whence.pipeline.daemon",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN",
        }
        if master.startswith("local"):
            ours |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.local.dir": str(self._folder),
                "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
                "spark.sql.shuffle.partitions": str(os.cpu_count()),
                # An expression that takes all memory ends its task: else Spark ends Java, and all of the job with it.
                "spark.executor.killOnFatalError.depth": "0",
            }
            if len(str(self._folder)) + SOCKET_NAME_SIZE <= SOCKET_PATH_MAX:
                ours |= {
                    "spark.python.unix.domain.socket.enabled": "true",
                    "spark.python.unix.domain.socket.dir": str(self._folder),
                }
        return ours | given | {"spark.master": master}


def _start_workers(context: SparkContext) -> Any:
    """Have the workers started while Java loads what a session needs besides, which takes one core a second."""
    slots = context.defaultParallelism
    return context.parallelize(range(slots), slots).map(_do_nothing)._jrdd.countAsync()


def _hush(context: Any) -> None:
    """Keep the server to which Java sends sums from telling on the terminal that it was cut short.

    From the start on: Java may be ended by others. A sum that is missing ends its job with an error.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, client_address: None


def _do_nothing(number: int) -> None:
    time.sleep(0.05)  # so that no worker does it for another


def _reach(master: str) -> None:
    """See that one of the masters answers: Spark would try for a minute, and then say that it was stopped."""
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            failure = error
        else:
            return
    raise StoreError(f"{master}: no Spark master answers there: {failure}")


def _is_configured() -> bool:
    """Whether somebody configured a Spark, whose Java has options of its own."""
    return any(name in os.environ for name in ("SPARK_HOME", "SPARK_CONF_DIR", GATEWAY_PORT))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Spark starts: it hands this process's environment to Java, and looks at it itself."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                with suppress(KeyError):
                    del os.environ[name]
            else:
                os.environ[name] = value


def _first_line(error: Exception) -> str:
    """What went wrong, without Java's stack."""
    java_error = getattr(error, "java_exception", None)
    text = str(error if java_error is None else java_error.getMessage())
    return text.strip().partition("\n")[0]
