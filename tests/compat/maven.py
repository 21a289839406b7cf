"""Real Java for the comparisons: jars from Maven Central, kept outside the tree, and small programs to run on them.

Where java or mvn is missing, or the jars cannot be had, the calling test is skipped with the reason.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "java"

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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whence" / "judges"
    folder = cache / hashlib.sha256("\n".join(sorted(artifacts)).encode()).hexdigest()[:16]
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


@contextmanager
def java_program(name: str, jars: Sequence[Path] = ()) -> Iterator[Callable[[Sequence[str]], list[str]]]:
    """Run ``java/<name>.java``; what it gives takes lines and returns the line that the program says to each."""
    command = [java_tool(), "-Dfile.encoding=UTF-8"]
    if jars:
        command += ["-cp", os.pathsep.join(map(str, jars))]
    command.append(str(SOURCES / f"{name}.java"))
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
