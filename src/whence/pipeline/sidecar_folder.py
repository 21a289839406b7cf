"""The folder of a sidecar: whether one that is there is whence's to write to, and what others left in it.

Jobs remove from a sidecar what they did not put there. A folder that has something else in it is refused before the
first of its files goes; and in a sidecar only what whence itself names goes from beside the indexes.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from whence.errors import StoreError, UsageError
from whence.files.disk import aside_of
from whence.files.folder import folders_in, is_folder, remove_tree
from whence.files.lock import StoreLock, is_lock_file
from whence.store.field_claim import FOLDER as FIELDS
from whence.store.log_tail import CUT
from whence.store.queue_files import QUEUES
from whence.store.sidecar import NAME

LOCK = "lock"
WORK = "work"
FOLLOW = "follow"  # in work/
FIELDS_WORK = "fields"  # what the names of their folders in work/ begin with
GONE = "gone"  # and of those that are being removed
CHECKPOINT = "checkpoint"
VERIFY_PREFIX = "verify-"
BUILT = ("index", *QUEUES, "times")
LOCKED_NAMES = {LOCK, *BUILT, FIELDS, WORK, CHECKPOINT, CUT, aside_of(Path(NAME)).name}
"""All that is put into a sidecar before its first ``sidecar.json``, by who holds its lock, which stays there."""
WORK_NAME = re.compile(rf"(?:(?:{FIELDS_WORK}|{GONE})-)?[0-9a-f]{{16}}|{FOLLOW}")
"""Of a build, of its fields, and of a follower, in work/."""


def check_sidecar_folder(folder: Path, given: str) -> None:
    """UsageError if a sidecar cannot lie in a folder that was ``given`` so, or something else lies there."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not is_folder(there):
        what = "is a link that leads nowhere" if there.is_symlink() else "is a file"
        where = "" if given == str(there) else f"{given}: "
        raise UsageError(f"{where}{there} {what}, and a sidecar is a folder; name another folder with --out")
    if there != folder:
        return
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise StoreError(f"{given}: cannot be read: {error.strerror}; name another folder with --out") from error
    known = LOCKED_NAMES if is_lock_file(folder / LOCK) else {CUT}
    stranger = next((name for name in names if name not in known and not _is_of_verify(folder / name)), None)
    if stranger is not None and NAME not in names:
        raise UsageError(
            f"{given}: is neither a sidecar nor empty, it has {stranger} in it; "
            "name a new or an empty folder with --out"
        )


def left_in_work(work: Path) -> list[str]:
    """The names of the folders in ``work/`` that are of jobs."""
    return [name for name in folders_in(work) if WORK_NAME.fullmatch(name)] if is_folder(work) else []


def remove_left_in_work(work: Path, kept: str | None = None) -> None:
    """Remove what others left in ``work/`` that were killed, and then the folder itself if nothing else is in it."""
    for name in left_in_work(work):
        if name != kept:
            remove_tree(work / name)
    with suppress(OSError):
        work.rmdir()


def remove_left_by_verify(sidecar: Path) -> None:
    """Remove the work folders of jobs that were killed, in a sidecar."""
    for name in folders_in(sidecar):
        folder = sidecar / name
        if _is_of_verify(folder):
            try:
                with StoreLock(folder / LOCK):
                    shutil.rmtree(folder, ignore_errors=True)
            except StoreError:
                continue  # its job runs


def _is_of_verify(folder: Path) -> bool:
    """Whether this is a folder for the work of a verify: with its lock in it, or with nothing yet."""
    if not folder.name.startswith(VERIFY_PREFIX) or folder.is_symlink():
        return False
    try:
        return is_lock_file(folder / LOCK) or next(folder.iterdir(), None) is None
    except OSError:
        return False  # a file, or it went just now
