"""A process that appends until it is killed: ``python -m tests.crash.writer DESCRIPTOR``, used through Writers.

To start Python and load the kernels takes a second. So that is done once, in a process which then forks one writer
for each order that it reads. What a writer was acknowledged it tells on the pipe DESCRIPTOR, a line a message, after
``append`` has returned and before the next one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import whence
from tests.crash.workload import SORTS, Acknowledged, Sizes, Workload, set_batch_file_size

OPENED = "opened"
LIMIT_S = 60


class Writers:
    """The parent's side: starts writers one after the other, hears what they are acknowledged, and kills them."""

    def __init__(self) -> None:
        self._heard, told = os.pipe()
        os.set_blocking(self._heard, False)
        self._buffer = b""
        self._pid = 0
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.writer", str(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[told],
            cwd=Path(__file__).parents[2],
        )
        os.close(told)
        assert self._said() == "ready"

    def start(self, folder: Path, **order: Any) -> None:
        """Start a writer. ``first`` numbers its first message; each of its threads ends after ``count``."""
        assert self._server.stdin is not None
        if self._pid:
            self.kill()  # what a test that failed left running
        self._server.stdin.write(json.dumps({"folder": str(folder), **order}) + "\n")
        self._server.stdin.flush()
        self._pid = int(self._said())

    def heard(self) -> Iterator[Acknowledged | str]:
        """What the writer has told since the last time: that it opened the store, and what it was acknowledged."""
        try:
            while data := os.read(self._heard, 1 << 16):
                self._buffer += data
        except BlockingIOError:
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            told = json.loads(line)
            yield told if isinstance(told, str) else Acknowledged(**told | {"keys": tuple(told["keys"])})

    def kill(self) -> list[Acknowledged | str]:
        """SIGKILL, and what it had told before. An error of the writer's own is raised here."""
        os.kill(self._pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> list[Acknowledged | str]:
        """Wait until the writer has ended, by itself or killed."""
        status = self._said()
        self._pid = 0
        told = list(self.heard())
        self._buffer = b""  # half a line is no acknowledgement
        assert status in ("0", str(-signal.SIGKILL)), f"the writer ended with {status}; see what it wrote"
        return told

    def _said(self) -> str:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the process that forks writers has ended"
        return line.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        os.close(self._heard)


def run_until_killed(writers: Writers, random: Random) -> list[Acknowledged]:
    """Hear the writer that was started, and kill it at a random moment: while it opens the store, or later."""
    told: list[Acknowledged | str] = []
    if random.random() < 0.3:
        time.sleep(random.random() * 0.03)
    else:
        wanted = random.choice([1, 10, random.randint(2, 400)])
        deadline = time.monotonic() + LIMIT_S
        while len(told) < wanted:
            assert time.monotonic() < deadline, f"only {len(told)} acknowledgements after {LIMIT_S} s"
            told += writers.heard()
            time.sleep(0.0005)
        time.sleep(random.random() * 0.005)
    told += writers.kill()
    return [each for each in told if isinstance(each, Acknowledged)]


# The other side


class Writer:
    """Opens the store and appends, in one thread or in several; tells, and at last closes the store."""

    def __init__(self, order: dict[str, Any], told: int) -> None:
        self._order = order
        self._told = told
        self._lock = threading.Lock()
        if "batch_file_size" in order:
            set_batch_file_size(order["batch_file_size"])
        self._store = whence.create(order["folder"], flush=order["flush"], **order["arguments"])
        self._tell([OPENED])

    def run(self) -> None:
        count = self._order.get("threads", 1)
        with ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(self._append, number) for number in range(count)]:
                done.result()
        self._store.close()

    def _append(self, thread: int) -> None:
        random = Random(self._order["seed"] + thread)
        sorts = self._order.get("sorts", SORTS)
        workload = Workload(random, self._order["first"] + thread * self._order["count"], sorts)
        last = workload.number + self._order["count"]
        while workload.number < last:
            acknowledged, failures = workload.put_some(self._store)
            assert not failures, failures
            self._tell([asdict(each) for each in acknowledged])
            if random.random() < 0.02:
                self._store.flush()
            if random.random() < 0.05:
                time.sleep(random.random() * 0.01)  # so that what runs beside the appends gets on

    def _tell(self, what: list[Any]) -> None:
        data = "".join(json.dumps(each) + "\n" for each in what).encode()
        with self._lock:
            while data:
                data = data[os.write(self._told, data) :]


def _warm_up() -> None:
    """Load and compile all that a writer needs, and leave no thread behind."""
    with tempfile.TemporaryDirectory() as folder:
        for flush in ("async", "sync"):
            store = whence.create(Path(folder) / flush, flush=flush, **Sizes().arguments())
            for _ in range(20):
                Workload(Random(1)).put_some(store)
            store.close()


def main(told: int) -> None:
    _warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(sys.stdin.fileno())
            try:
                Writer(json.loads(line), told).run()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
