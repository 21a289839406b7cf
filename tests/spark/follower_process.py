"""``whence follow`` in a process of its own, and what there is of it to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.spark.conftest import PYTHON_PATH
from tests.spark.processes import kill_all, processes
from whence.files.names import sidecar_of
from whence.store.sidecar import read_sidecar

LIMIT_S = 300  # a first start on a new machine compiles kernels, beside other tests

PARTS = {
    "driver": " whence follow ",
    "java": "org.apache.spark.deploy.SparkSubmit",
    "executor": "CoarseGrainedExecutorBackend",
    "worker": "whence.pipeline.daemon",
    "planner": "python_streaming_source_runner",
}
"""What can be killed, by how it is called. Without its driver or its Java a follower ends."""


def indexed_to(store: Path) -> int:
    """Up to where the log of a store is indexed, as its sidecar says."""
    claim = read_sidecar(sidecar_of(store)) if sidecar_of(store).is_dir() else None
    return 0 if claim is None else claim.indexed_to


class FollowerProcess:
    """One follower. What is left of it ends with the ``with`` block."""

    def __init__(self, store: Path, *arguments: str, scratch: Path) -> None:
        self.store = store
        scratch.mkdir(exist_ok=True)
        self._said = Path(tempfile.mkdtemp(prefix="said-", dir=scratch))
        # Files, for a pipe that nobody reads would stop it after some minutes.
        with (self._said / "out").open("wb") as out, (self._said / "err").open("wb") as err:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "whence", "follow", str(store), *arguments],
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(scratch)},
                start_new_session=True,
            )

    def await_indexed(self, offset: int) -> None:
        """Wait until the log is indexed up to this offset."""
        deadline = time.monotonic() + LIMIT_S
        while indexed_to(self.store) < offset:
            assert self.child.poll() is None, (self.out, self.err)
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def await_more(self) -> None:
        """Wait until something more is indexed."""
        self.await_indexed(indexed_to(self.store) + 1)

    @property
    def out(self) -> str:
        """What it has said on standard output."""
        return (self._said / "out").read_text()

    @property
    def err(self) -> str:
        """What it has said on standard error."""
        return (self._said / "err").read_text()

    def line(self) -> str:
        """The first line that it says on standard output."""
        deadline = time.monotonic() + LIMIT_S
        while "\n" not in self.out:
            assert self.child.poll() is None and time.monotonic() < deadline, self.err
            time.sleep(0.02)
        return self.out.partition("\n")[0]

    def kill(self, part: str) -> int:
        """Kill a part of it; how many processes that was."""
        killed = [pid for pid, called in processes(self.child.pid).items() if PARTS[part] in called]
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(killed)

    def kill_one(self, part: str) -> None:
        """Kill a part of it as soon as there is one."""
        deadline = time.monotonic() + LIMIT_S
        while not self.kill(part):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> tuple[int, str, str, float]:
        """End it as an operator does: its status, what it said, and how long that took."""
        begun = time.monotonic()
        self.child.terminate()
        status = self.child.wait(LIMIT_S)
        return status, self.out, self.err, time.monotonic() - begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill_all(self.child.pid)
        self.child.wait()
