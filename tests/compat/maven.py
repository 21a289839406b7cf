"""Real Java for the comparisons: jars from Maven Central, kept outside the tree, and small programs to run on them.

Programs are compiled once and kept beside the jars. All run with QUICK: none lives for more than seconds.

Where java or mvn is missing, or the jars cannot be had, the calling test is skipped with the reason.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "java"
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
"""What makes a short run shorter: Java's second compiler takes longer than it saves."""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>whence</groupId><artifactId>judges</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def java_tool(name: str = "java") -> str:
    """The path of java or mvn."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name} on the PATH")
    return path


def classpath(artifacts: Sequence[str]) -> list[Path]:
    """The jars of ``group:artifact:version`` artifacts and of all that they need, fetched once."""
    folder = _cache() / hashlib.sha256("\n".join(sorted(artifacts)).encode()).hexdigest()[:16]
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
        command = [java_tool("mvn"), "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
        except subprocess.SubprocessError as error:
            pytest.skip(f"mvn could not fetch {', '.join(artifacts)}: {error}")
        (folder / "complete").touch()
    return sorted((folder / "jars").glob("*.jar"))


def compiled(source: Path, jars: Sequence[Path] = ()) -> str:
    """The class path of a program and its jars. The program is compiled if it never was."""
    folder = jars[0].parent.parent if jars else _cache()
    classes = folder / f"classes-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    class_path = os.pathsep.join([str(classes), *map(str, jars)])
    if not classes.exists():
        folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder))
        command = [java_tool("javac"), "-nowarn", "-encoding", "UTF-8", "-cp", class_path, "-d", aside, source]
        subprocess.run(command, check=True, timeout=120)
        try:
            aside.rename(classes)
        except OSError:  # another process was faster
            assert classes.exists()
    return class_path


@contextmanager
def java_program(name: str, jars: Sequence[Path] = ()) -> Iterator[Callable[[Sequence[str]], list[str]]]:
    """Run ``java/<name>.java``; what it gives takes lines and returns the line that the program says to each."""
    command = [java_tool(), *QUICK, "-cp", compiled(SOURCES / f"{name}.java", jars), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(lines: Sequence[str]) -> list[str]:
            said = []
            for line in lines:
                questions.write(line + "\n")
                questions.flush()
                answer = answers.readline()
                assert answer.endswith("\n"), f"{name}.java ended; see what it wrote to standard error"
                said.append(answer.removesuffix("\n"))
            return said

        try:
            yield ask
        finally:
            questions.close()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whence" / "judges"
