"""StoreLock: one writer at a time, whatever program it is.

The lock is a POSIX record lock on byte 0 of the file ``lock``, as Java's FileChannel takes it (``flock`` would not
exclude a broker). Such a lock has two traps. It does not exclude the process that holds it: so what this process
holds is kept in a table. And closing any descriptor of the file gives it up: so nothing here opens a file that is
in the table.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import Self

from whence.errors import LockedError, StoreError
from whence.files.folder import is_file
from whence.files.plain_file import PlainFile

CONTENT = b"lock"
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid: as Linux has it on 64 bits
_held: set[tuple[int, int]] = set()
_held_lock = threading.Lock()


class StoreLock:
    """The lock of one store, held from here until :meth:`close`. LockedError names the process that has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        with _held_lock:
            if _identity(path) in _held:
                raise _locked(path, os.getpid())
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                raise StoreError(f"{path}: cannot be opened to be locked: {error.strerror}") from error
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                os.pwrite(descriptor, CONTENT, 0)
            except OSError as error:
                holder = _holder(descriptor)
                os.close(descriptor)
                if holder is not None or isinstance(error, BlockingIOError | PermissionError):
                    raise _locked(path, holder) from None
                raise StoreError(f"{path}: cannot be locked: {error.strerror}") from error
            status = os.fstat(descriptor)
            self._descriptor = descriptor
            self._identity = (status.st_dev, status.st_ino)
            _held.add(self._identity)

    def is_there(self) -> bool:
        """Whether its file still is where it was: another process may lock one that has taken its place."""
        return _identity(self.path) == self._identity

    def close(self) -> None:
        """Give the lock up; a second call does nothing."""
        with _held_lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                _held.discard(self._identity)
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_holder(path: Path) -> int | None:
    """The process that holds the lock of a store now; None if nobody does."""
    with _held_lock:
        if _identity(path) in _held:
            return os.getpid()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            return _holder(descriptor)
        finally:
            os.close(descriptor)


def is_lock_file(path: Path) -> bool:
    """Whether a file is such a lock: its owner may have been killed before anything was in it."""
    with _held_lock:
        if _identity(path) in _held:
            return True
        if not is_file(path):
            return False
        with PlainFile(path) as file:
            return file.read(0, len(CONTENT) + 1) in (CONTENT, b"")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _holder(descriptor: int) -> int | None:
    """Who is in the way of an exclusive lock on byte 0. A holder on another machine has no number here: it is 0."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _locked(path: Path, holder: int | None) -> LockedError:
    who = f"process {holder}" if holder else "another process"
    return LockedError(f"{path}: {who} holds this store; a store has one writer, stop that one first")
