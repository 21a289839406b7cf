"""Apache's own message store as a judge: ``StoreJudge.java`` in the hands of a test.

    with StoreJudge("5.5.0", folder, sizes) as judge:
        judge.queues()                      {("orders", 0): (0, 17), ...}
        judge.read("orders", 0)             what a consumer of that queue would get
        judge.query("orders", "order-1")    physical offsets that RocketMQ's index gives
        judge.put("orders", 0, b"...")      RocketMQ goes on with the store
        judge.stop()                        or judge.kill()

What a test forgets to stop is killed at the end of the ``with`` block.
"""

import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compat.maven import QUICK, classpath, compiled, java_tool
from tests.reference import PREPARED, ROLLBACK, TRANSACTION_BITS, Record

VERSIONS = ("5.5.0", "4.9.5")
DIALECTS = {"5.5.0": "5.5", "4.9.5": "4.9"}
OPENS = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
FOREVER_MS = 2**63 - 1
ANSWERS_MAX = 64
"""RocketMQ never gives more."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a store's files, small by default so that a few hundred messages roll all of them."""

    log: int = 65_536
    queue: int = 2000
    slots: int = 97
    items: int = 400

    def settings(self) -> dict[str, str]:
        return {
            "mappedFileSizeCommitLog": str(self.log),
            "mappedFileSizeConsumeQueue": str(self.queue),
            "maxHashSlotNum": str(self.slots),
            "maxIndexNum": str(self.items),
            "enableLmq": "true",
            "enableMultiDispatch": "true",
        }


@dataclass(frozen=True)
class Seen:
    """A message as RocketMQ read it. ``keys`` is the whole property, words and all."""

    physical_offset: int
    size: int
    queue_offset: int
    body_crc: int
    unique_id: str
    keys: str
    tags: str

    @classmethod
    def parse(cls, text: str) -> "Seen":
        offset, size, queue_offset, crc, unique_id, keys, tags = text.split(",")
        return cls(
            int(offset),
            int(size),
            int(queue_offset),
            int(crc),
            _from_hex(unique_id),
            _from_hex(keys),
            _from_hex(tags),
        )

    @classmethod
    def of(cls, record: Record) -> "Seen":
        """What RocketMQ has to say of a record that the twin read."""
        return cls(
            record.physical_offset,
            record.size,
            record.queue_offset,
            zlib.crc32(record.stored_body),
            record.unique_id or "",
            record.properties.get("KEYS", ""),
            record.tags or "",
        )


@dataclass(frozen=True)
class Put:
    status: str
    physical_offsets: tuple[int, ...]
    queue_offset: int

    @classmethod
    def parse(cls, text: str) -> "Put":
        status, offsets, queue_offset = text.split(",")
        return cls(status, tuple(map(int, offsets.split(";"))), int(queue_offset))


class StoreJudge:
    """A DefaultMessageStore that has loaded and started ``folder``, in a process of its own."""

    def __init__(self, version: str, folder: Path, sizes: Sizes, **settings: str) -> None:
        self.version = version
        self.folder = folder
        self._home = tempfile.TemporaryDirectory(prefix="whence-judge-")
        self._log = Path(self._home.name) / "standard-error"
        command = [java_tool(), "-Xmx256m", *QUICK]
        command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS]
        # Logs go to the home folder, native libraries to the folder for temporary files.
        command += [f"-Duser.home={self._home.name}", f"-Djava.io.tmpdir={self._home.name}"]
        command += ["-cp", _compiled(version), "StoreJudge", str(folder)]
        command += [f"{name}={value}" for name, value in (sizes.settings() | settings).items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self._home.name
            )
        try:
            word, *offsets = self._answer().split()
        except BaseException:
            self.kill()
            raise
        assert word == "ready"
        self.begin_offset, self.end_offset, _ = map(int, offsets)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.endswith("\n"), f"RocketMQ {self.version} ended:\n{self._what_it_said()}"
        return line.removesuffix("\n")

    def _what_it_said(self) -> str:
        """Standard error, and the errors in its logs."""
        said = self._log.read_text(errors="replace")[-3000:]
        for path in sorted(Path(self._home.name).rglob("*.log")):
            lines = [
                line for line in path.read_text(errors="replace").splitlines() if "ERROR" in line or "Except" in line
            ]
            said += "".join(f"\n{path.name}: {line}" for line in lines[-20:])
        return said

    def offsets(self) -> tuple[int, int, int]:
        """Smallest and largest physical offset, and how many bytes are not dispatched."""
        begin, end, behind = self.ask("offsets").split()
        return int(begin), int(end), int(behind)

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Smallest queue offset of each queue, and the one behind the largest."""
        queues = {}
        for each in self.ask("queues").split():
            topic, queue, smallest, largest = each.rsplit(",", 3)
            queues[topic, int(queue)] = int(smallest), int(largest)
        return queues

    def read(self, topic: str, queue: int) -> list[Seen]:
        return [Seen.parse(each) for each in self.ask("read", topic, str(queue)).split()]

    def query(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> list[int]:
        return [int(each) for each in self.ask("query", topic, _hex(key), str(begin_ms), str(end_ms)).split()]

    def look(self, physical_offset: int) -> Seen | None:
        said = self.ask("look", str(physical_offset))
        return None if said == "-" else Seen.parse(said)

    def expire(self) -> None:
        """Let RocketMQ delete the files that have expired by its settings."""
        assert self.ask("expire") == "expired"

    def put(
        self,
        topic: str,
        queue: int,
        body: bytes,
        keys: str = "",
        tags: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> Put:
        text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
        said = self.ask("put", topic, str(queue), body.hex() or "-", _hex(keys), _hex(tags), _hex(text))
        return Put.parse(said)

    def put_batch(self, topic: str, queue: int, items: Iterable[tuple[bytes, str]]) -> Put:
        """Put bodies with their keys as a client's batch."""
        return Put.parse(
            self.ask("batch", topic, str(queue), *(f"{body.hex()}:{_hex(keys)}" for body, keys in items))
        )

    def flush(self) -> None:
        assert self.ask("flush") == "flushed"

    def stop(self) -> None:
        """Stop as a broker does at its end; then the store is closed cleanly, or this fails."""
        assert self.ask("shutdown") == "stopped"
        self.kill()
        assert not (self.folder / "abort").exists(), self._what_it_said()

    def kill(self) -> None:
        """SIGKILL; a second call does nothing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._home.cleanup()


def check_queues(judge: StoreJudge, records: Sequence[Record]) -> None:
    """Every queue gives every message that it should, in order and whole: light queues and batch queues, too."""
    expected: dict[tuple[str, int], list[Seen]] = {}
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        if record.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            continue
        properties = record.properties
        places = {(record.topic, record.queue): record.queue_offset + int(properties.get("INNER_NUM", 1))}
        lights, offsets = (properties.get(f"INNER_MULTI_{name}", "") for name in ("DISPATCH", "QUEUE_OFFSET"))
        if lights:
            places |= {
                (light, 0): int(offset) + 1
                for light, offset in zip(lights.split(","), offsets.split(","), strict=True)
            }
        ends |= places
        for place in places:
            expected.setdefault(place, []).append(Seen.of(record))
    assert {place: largest for place, (_, largest) in judge.queues().items() if largest} == ends
    for place, messages in expected.items():
        assert judge.read(*place) == messages, place


def check_looks(judge: StoreJudge, records: Sequence[Record]) -> None:
    """Every record of the log is found at its physical offset."""
    for record in records:
        assert judge.look(record.physical_offset) == Seen.of(record), record


def _compiled(version: str) -> str:
    """The class path of that version with the judge."""
    jars = classpath([f"org.apache.rocketmq:rocketmq-store:{version}"])
    return compiled(Path(__file__).parent / "StoreJudge.java", jars)


def _hex(text: str) -> str:
    return text.encode().hex() or "-"


def _from_hex(word: str) -> str:
    return "" if word == "-" else bytes.fromhex(word).decode()
