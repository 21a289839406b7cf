"""Folders: what is in them, and whether that may have changed since one last looked."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from whence.errors import NotFoundError, StoreError
from whence.files.names import is_digits

# A folder's time has the grain of the kernel's clock, and network disks keep it for a while. A listing that is not
# older than the folder's time by this much may lack a file that was made in the same tick.
SETTLED_NS = 100_000_000
FILES_MAX = 1 << 20  # where the system sets no limit


class FolderWatch:
    """Tells cheaply that nothing changed: one ``stat``, about a microsecond."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._name = str(folder)
        self._seen: tuple[int, int] | None = None
        self._settled = False

    def changed(self) -> bool:
        """Whether the folder should be listed now. NotFoundError if it is not there, or no folder."""
        try:
            status = os.stat(self._name)
        except OSError as error:
            self._seen = None
            raise _not_listed(self.folder, error) from None
        seen = (status.st_mtime_ns, status.st_ino)
        if seen == self._seen and self._settled:
            return False
        self._seen = seen
        self._settled = time.time_ns() - status.st_mtime_ns > SETTLED_NS
        return True


class FileState(NamedTuple):
    """By ``inode`` one sees that a file took another's place under the same name."""

    size: int
    inode: int


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that can be done.

    Two of its files at once: to let go of large ones takes the system long.
    """
    with suppress(OSError):
        files = iter([path for path in folder.iterdir() if path.is_file()])

        def remove_files() -> None:
            for path in files:
                with suppress(OSError):
                    path.unlink()

        beside = Thread(target=remove_files, daemon=True)
        beside.start()
        remove_files()
        beside.join()
    shutil.rmtree(folder, ignore_errors=True)


def files_in(folder: Path) -> dict[str, FileState]:
    """What is in a folder, by name, without what leads nowhere."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:
                    continue  # deleted since the folder was listed, or a link to nothing
                found[entry.name] = FileState(status.st_size, status.st_ino)
    except OSError as error:
        raise _not_listed(folder, error) from None
    return found


def digit_names(folder: Path) -> list[str]:
    """The files of a folder whose names are digits alone, in order."""
    try:
        return sorted(name for name in files_in(folder) if is_digits(name))
    except NotFoundError:
        return []


def folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise _not_listed(folder, error) from None


class OwnFile(NamedTuple):
    """A regular file that lies in a folder itself."""

    size: int
    modified_ms: int


def own_files_in(folder: Path) -> dict[str, OwnFile]:
    """The regular files of a folder, by name. What a link leads to lies elsewhere, and is not among them."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # deleted since the folder was listed
                if stat.S_ISREG(status.st_mode):
                    found[entry.name] = OwnFile(status.st_size, status.st_mtime_ns // 1_000_000)
    except OSError as error:
        raise _not_listed(folder, error) from None
    return found


def own_folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder, without links to folders elsewhere."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise _not_listed(folder, error) from None


def entries_below(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All that lies in a folder at any depth, with its path from there. A link is one entry, wherever it leads to."""
    todo = [""]
    while todo:
        begin = todo.pop()
        try:
            with os.scandir(folder / begin) as entries:
                for entry in entries:
                    yield begin + entry.name, entry
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(f"{begin}{entry.name}/")
        except OSError as error:
            raise _not_listed(folder / begin, error) from None


def free_descriptors() -> int:
    """How many files the process may still open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return FILES_MAX
    return limit - len(os.listdir("/proc/self/fd"))


def is_file(path: Path) -> bool:
    """Whether a file is there; False also for what cannot be looked at."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there; False also for what cannot be looked at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _not_listed(folder: Path, error: OSError) -> StoreError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"{folder}: there is no such folder")
    return StoreError(f"{folder}: cannot be read: {error.strerror}")
