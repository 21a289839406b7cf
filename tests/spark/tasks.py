"""Tasks for tests: functions of a module that workers can import, as every task is."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from whence.errors import CorruptError


@dataclass(frozen=True)
class Place:
    """Where a task ran: its process, the daemon that forked it, the Java that started the daemon."""

    worker: int
    daemon: int
    java: int
    java_parent: int
    has_kernels: bool
    python: str
    spark_from: str


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def where(number: int) -> Place:
    time.sleep(0.2)  # so that no worker takes all tasks
    return place()


def place() -> Place:
    """Where this is."""
    import pyspark

    daemon = os.getppid()
    java = parent_of(daemon)
    has_kernels = "whence.kernels.scan" in sys.modules
    return Place(os.getpid(), daemon, java, parent_of(java), has_kernels, sys.executable, str(pyspark.__file__))


@dataclass(frozen=True)
class Counted:
    number: int
    message_count: int

    @property
    def files(self) -> list[str]:
        return ["file"] * self.number


def count(number: int) -> Counted:
    return Counted(number, number * 100)


def fail_with_damage(number: int) -> int:
    """Some inputs are damaged; the others take a while."""
    if number % 10 == 3:
        raise CorruptError("a checksum disagrees", position=number, path="commitlog/0")
    time.sleep(0.3)
    return number


def fail_with_a_bug(marks: str) -> None:
    """Leaves a mark for each attempt."""
    Path(marks, f"attempt-{time.monotonic_ns()}").touch()
    raise ValueError("two lines\nof words")


def die(number: int) -> int:
    if number == 1:
        os._exit(3)
    return number


def die_once(marks: str) -> int:
    mark = Path(marks, "died")
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return os.getpid()


def socket_families(number: int) -> list[str]:
    """Of all sockets that a worker has open."""
    time.sleep(0.2)  # so that no worker takes all tasks
    families = []
    for path in Path("/proc/self/fd").iterdir():
        if path.is_socket():
            with socket(fileno=os.dup(int(path.name))) as opened:
                families.append(opened.family.name)
    return families


def sleep(mark: str) -> int:
    """Tells who runs it, and runs for longer than any test waits."""
    Path(mark).write_text(str(os.getpid()))
    time.sleep(120)
    return 0
