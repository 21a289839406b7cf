"""A real RocketMQ on this machine: name server, broker, and programs that send to it and ask it.

All listens on 127.0.0.1, on ports that the system chose. What was started is stopped with the ``with`` block, also
when a test fails in it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compat.maven import QUICK, classpath, compiled, java_tool

VERSION = "5.5.0"
ARTIFACTS = tuple(
    f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in ("namesrv", "broker", "tools", "client", "store")
)
START_LIMIT_S = 90
PORTS_TRIED = 5  # somebody else may take one that was free before it is listened on
GET_ROUTE = 105  # request code GET_ROUTEINFO_BY_TOPIC
NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
BIND_FAILURES = ("BindException", "Address already in use")
OPENS = ("java.nio", "sun.nio.ch", "jdk.internal.ref")

BROKER_CONF = """
brokerName=live
brokerClusterName=live
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
namesrvAddr=127.0.0.1:{name_server_port}
listenPort={port}
haListenPort={ha_port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=97
maxIndexNum=400
timerWheelEnable=false
diskMaxUsedSpaceRatio=95
fileReservedTime=720000
transactionCheckInterval=3600000
"""


@dataclass(frozen=True)
class Sent:
    """One message that the broker acknowledged."""

    sort: str
    topic: str
    key: str
    offset_id: str
    unique_id: str
    queue: int
    queue_offset: int

    @classmethod
    def parse(cls, line: str) -> "Sent":
        _, sort, topic, key, offset_id, unique_id, queue, queue_offset = line.split("\t")
        return cls(sort, topic, key, offset_id, unique_id, int(queue), int(queue_offset))


class PortTakenError(Exception):
    """Somebody else listens where this was to listen."""


class LiveRocketMQ:
    """A name server and a broker with small files, so that they roll every few seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.jars = classpath(ARTIFACTS)
        self.name_server_port = 0
        self._name_server: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.name_server_port}"

    def start_name_server(self) -> None:
        """Start the name server, on any port, and wait until it says that it is there."""
        self.name_server_port = on_free_port(self._start_name_server, free_port)

    def _start_name_server(self, port: int) -> None:
        conf = self.folder / "namesrv.conf"
        conf.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        self._name_server = self._start(NAME_SERVER, conf, "-Xmx128m")
        try:
            self._wait(lambda: "boot success" in self._said(NAME_SERVER))
        except PortTakenError:
            self._name_server = None
            raise

    def start_broker(self, port: int | None = None) -> None:
        """Start the broker, on this port or on any, and wait until clients can find it."""
        assert self._broker is None, "a broker is running"
        if port is not None:
            self._start_broker(port)
        else:
            on_free_port(self._start_broker, lambda: free_port(with_below=2))  # it also listens two ports below

    def _start_broker(self, port: int) -> None:
        conf = self.folder / "broker.conf"
        conf.write_text(
            BROKER_CONF.format(
                name_server_port=self.name_server_port, port=port, ha_port=free_port(), store=self.store
            )
        )
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS]
        self._broker = self._start(BROKER, conf, "-Xmx512m", *opens)
        try:
            self._wait(lambda: self._has_route("TBW102", port))
        except PortTakenError:
            self._broker = None
            raise

    def kill_broker(self) -> None:
        """As a power switch does it, but for the page cache, which survives."""
        assert self._broker is not None
        self._broker.send_signal(signal.SIGKILL)
        self._broker.wait()
        self._broker = None

    def stop_broker(self) -> None:
        """As an operator does it, which takes a broker a quarter of a minute."""
        assert self._broker is not None
        self._broker.terminate()
        self._broker.wait()
        self._broker = None

    def program(self, name: str, *arguments: str) -> list[str]:
        """The command that runs one of the Java programs beside this file."""
        class_path = compiled(Path(__file__).parent / f"{name}.java", self.jars)
        return [*self._java("-Xmx256m", class_path=class_path), name, self.address, *arguments]

    def send(self, first: int, count: int, pause_ms: int) -> Iterator[Sent]:
        """Send, and give each message as soon as it is acknowledged. Ends when all are sent or the broker is gone."""
        command = self.program("Producer", str(first), str(count), str(pause_ms))
        log = (self.folder / "producer.log").open("ab")
        with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith(("done", "stopped")):
                        return
                    if line.startswith("acknowledged\t"):  # its libraries print too
                        yield Sent.parse(line.rstrip("\n"))
                raise AssertionError(f"the producer died: {(self.folder / 'producer.log').read_text()[-2000:]}")
            finally:
                process.kill()

    def query(self, asked: Sequence[tuple[str, str]]) -> list[list[int]]:
        """What the broker itself answers for topics and keys: physical offsets."""
        lines = "".join(f"{topic}\t{key}\n" for topic, key in asked)
        result = subprocess.run(
            self.program("Query"), input=lines, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr[-2000:]
        answers = [line.split() for line in result.stdout.splitlines() if line.startswith("answer")]
        return [[int(offset) for offset in offsets] for _, *offsets in answers]

    def admin(self, command: str, *arguments: str) -> str:
        """What ``mqadmin`` prints."""
        main_class = "org.apache.rocketmq.tools.command.MQAdminStartup"
        result = subprocess.run(
            [*self._java("-Xmx256m"), main_class, command, "-n", self.address, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "ROCKETMQ_HOME": str(self.folder)},
        )
        assert result.returncode == 0 and "Exception" not in result.stderr, result.stderr[-2000:]
        return "\n".join(line for line in result.stdout.splitlines() if "|-" not in line)

    def _java(self, *options: str, class_path: str = "") -> list[str]:
        # Logs go to the home folder, native libraries to the folder for temporary files.
        folders = [f"-Duser.home={self.folder}", f"-Djava.io.tmpdir={self.folder}"]
        class_path = class_path or os.pathsep.join(map(str, self.jars))
        return [java_tool(), *QUICK, *options, *folders, "-cp", class_path]

    def _start(self, main_class: str, conf: Path, *options: str) -> subprocess.Popen[bytes]:
        command = [*self._java(*options), main_class, "-c", str(conf)]
        with self._log_of(main_class).open("wb") as log:
            environment = {**os.environ, "ROCKETMQ_HOME": str(self.folder)}
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _log_of(self, main_class: str) -> Path:
        return self.folder / f"{main_class.rpartition('.')[2]}.log"

    def _said(self, main_class: str) -> str:
        return self._log_of(main_class).read_text(errors="replace")

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        started = time.monotonic()
        while True:
            for main_class, process in ((NAME_SERVER, self._name_server), (BROKER, self._broker)):
                if process is not None and process.poll() is not None:
                    if any(word in self._said(main_class) for word in BIND_FAILURES):
                        raise PortTakenError
                    raise AssertionError(f"ended with {process.poll()}; see {self.folder}")
            if is_ready():
                return
            assert time.monotonic() - started < START_LIMIT_S, f"not ready after {START_LIMIT_S} s"
            time.sleep(0.2)

    def _has_route(self, topic: str, port: int) -> bool:
        """Ask the name server for a topic's route, in RocketMQ's own frames, and look for the broker's port in it."""
        request = {"code": GET_ROUTE, "language": "PYTHON", "version": 0, "opaque": 1, "flag": 0}
        header = json.dumps({**request, "extFields": {"topic": topic}}).encode()
        frame = len(header).to_bytes(4, "big") + header
        try:
            with socket.create_connection(("127.0.0.1", self.name_server_port), 2) as connection:
                connection.sendall(len(frame).to_bytes(4, "big") + frame)
                reader = connection.makefile("rb")
                response = reader.read(int.from_bytes(reader.read(4), "big"))
        except OSError:
            return False
        return f"127.0.0.1:{port}".encode() in response

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._broker, self._name_server):
            if process is not None:
                process.kill()  # a clean stop takes a broker 17 s, and nobody reads the store any more
                process.wait()


def on_free_port(start: Callable[[int], None], choose: Callable[[], int]) -> int:
    """Start something on a port that is free; which that was."""
    for _ in range(PORTS_TRIED):
        port = choose()
        with contextlib.suppress(PortTakenError):
            start(port)
            return port
    raise AssertionError(f"{PORTS_TRIED} ports, one after the other, were taken by others")


def free_port(with_below: int = 0) -> int:
    """A port that nobody listens on now; also the one so many below, if that is asked."""
    while True:
        with socket.socket() as probe, socket.socket() as below:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if not with_below:
                return port
            with contextlib.suppress(OSError):
                below.bind(("127.0.0.1", port - with_below))
                return port
