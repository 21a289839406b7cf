"""Peers in Java: Apache's own classes, brought by Maven and driven through benchmarks/java.

Jars and compiled classes are kept in the cache folder; a second run starts at once and needs no Maven. Where
Java or Maven is missing, :func:`java_peer` says so, and we run alone.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.data import cache_folder
from benchmarks.harness import Options, Peer, Sample

ROCKETMQ = "5.5.0"  # the newest version of which all parts are in Maven Central; the golden data has it, too
SOURCES = Path(__file__).parent / "java"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>whence</groupId>
  <artifactId>judges</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-store</artifactId>
      <version>{ROCKETMQ}</version>
    </dependency>
  </dependencies>
</project>
"""
# One core is what we have, too, so the collector that needs no second one. IndexFile and CommitLog look into buffers.
JVM_OPTIONS = (
    "-Xms512m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


class JavaPeer:
    """A running Java program that does one task after the other, each when it is told to."""

    def __init__(self, class_path: str, main_class: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="whence-peer-")
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # RocketMQ writes its logs below user.home.
                ["java", *JVM_OPTIONS, f"-Duser.home={self._folder.name}", "-cp", class_path, main_class]
                + [argument.replace("{folder}", self._folder.name) for argument in arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder.name,
            )
        self._answer()

    def task(self, task: str) -> Peer:
        def run(round_number: int) -> Sample:
            assert self._process.stdin is not None
            print(task, round_number, file=self._process.stdin, flush=True)
            wall_ns, cpu_ns, check = (int(word) for word in self._answer())
            return Sample(wall_ns / 1e9, cpu_ns / 1e9, check)

        return Peer(f"RocketMQ {ROCKETMQ} (Java)", run)

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("peer "):
                return line.split()[1:]
        raise SystemExit(f"the Java peer ended early:\n{self._log.read_text()[-4000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # the end of its input is the end of the peer
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def java_peer(options: Options, main_class: str, *arguments: str) -> AbstractContextManager[JavaPeer | None]:
    """The running peer, or None where there can be none. ``{folder}`` in an argument is a folder of its own."""
    path = _class_path() if options.with_java else None
    return nullcontext() if path is None else JavaPeer(path, main_class, *arguments)


def _class_path() -> str | None:
    """Apache's jars and our peers, compiled; None, with the reason on standard error, where that cannot be."""
    folder = cache_folder() / "judges" / f"rocketmq-store-{ROCKETMQ}"
    if shutil.which("java") is None or shutil.which("javac") is None:
        print("no java and javac on the PATH: whence runs alone, without Apache's classes", file=sys.stderr)
        return None
    if not (folder / "lib").exists():
        if shutil.which("mvn") is None:
            print(f"no mvn on the PATH and no {folder}: whence runs alone, without Apache's classes", file=sys.stderr)
            return None
        _bring_jars(folder)
    sources = sorted(SOURCES.glob("*.java"))
    stamp = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = folder / f"classes-{stamp}"
    if not classes.exists():
        aside = Path(tempfile.mkdtemp(dir=folder))
        subprocess.run(["javac", "-nowarn", "-cp", f"{folder}/lib/*", "-d", aside, *sources], check=True)
        aside.rename(classes)
    return f"{classes}:{folder}/lib/*"


def _bring_jars(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM)
    print(f"bringing RocketMQ {ROCKETMQ} from Maven to {folder}", file=sys.stderr)
    aside = Path(tempfile.mkdtemp(dir=folder))
    subprocess.run(
        ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={aside}"],
        cwd=folder,
        check=True,
        stdout=sys.stderr,
    )
    aside.rename(folder / "lib")
