"""What the numbers were measured on: without it they mean nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    return {
        "processor": f"{_field('/proc/cpuinfo', 'model name') or platform.processor()}, {os.cpu_count()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "load": "{:.2f} processes in the last minute, {:.2f} in five".format(*os.getloadavg()),
    }


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in ("whence", "numpy", "numba", "llvmlite"):
        found[name] = version(name)
    java = java_version()
    if java is not None:
        found["Java"] = java
    return found


def java_version() -> str | None:
    """What ``java -version`` says of itself; None where there is no Java."""
    if shutil.which("java") is None:
        return None
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return told.splitlines()[0].split('"')[1]


def _field(path: str, name: str) -> str:
    """The first value of ``name : value`` lines; "" where the system has no such file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def _memory() -> str:
    kilobytes = _field("/proc/meminfo", "MemTotal").removesuffix(" kB")
    return f"{int(kilobytes) / 2**20:.0f} GiB" if kilobytes else "unknown"
