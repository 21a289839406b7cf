"""Where whence keeps what it can make again: compiled kernels, and Java's archive of Spark's classes.

    $XDG_CACHE_HOME/whence/<name> (~/.cache/whence/<name>), or whence-<user number> in the folder for temporary
    files where that one cannot be had

What lies there is code. A folder is trusted only if it belongs to this user and nobody else may write to it. Delete
it whenever you like.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

KEPT_S = 183 * 24 * 3600


def cache_folders(name: str) -> tuple[Path, ...]:
    """The folders that may be used, best first, made if they are not there; none if no folder can be trusted."""
    # A user without a home keeps the "~", which makes the path a relative one.
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    candidates = [
        Path(shared, "whence", name),
        Path(tempfile.gettempdir(), f"whence-{os.geteuid()}"),
    ]
    return tuple(folder for folder in candidates if folder.is_absolute() and _is_private(folder))


def _is_private(folder: Path) -> bool:
    """Whether ``folder`` is this user's alone to write to; made if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    others_write = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & others_write


def remove_old(newest: Path) -> None:
    """Remove what lies beside ``newest`` and is half a year older."""
    oldest = newest.stat().st_mtime - KEPT_S
    for path in newest.parent.iterdir():
        if path.stat().st_mtime < oldest:
            path.unlink()
