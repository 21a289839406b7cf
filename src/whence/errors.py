"""What can go wrong, by kind; every message says what, where and, where we know it, what to do.

WhenceError
  FormatError       the bytes are not as the format says; knows position and path
    TruncatedError    they end too soon: the normal end of a log after a crash
    CorruptError      magic, checksum or link disagree
    UnsupportedError  a version or flag that we do not read
  StoreError        NotFoundError, FullError, SealedError, LockedError
  UsageError        a wrong option or argument; the CLI prints it without a traceback
"""

from __future__ import annotations

import os
from typing import Self


class WhenceError(Exception):
    """Base of every error that whence raises on purpose."""


class FormatError(WhenceError):
    """The bytes are not as the format says.

    ``formats/`` and ``kernels/`` know the position in the buffer they were given; the floor that opened the
    file adds its path, and moves the position to one in the file, with :meth:`at`.
    """

    def __init__(self, what: str, *, position: int | None = None, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.position = position
        self.path = None if path is None else os.fspath(path)

    def __str__(self) -> str:
        where = " ".join(
            part
            for part in (self.path, None if self.position is None else f"at byte {self.position}")
            if part is not None
        )
        return f"{where}: {self.what}" if where else self.what

    def at(self, path: str | os.PathLike[str], position: int | None = None) -> Self:
        """The same error, with the file it was found in; ``position`` replaces the one in the buffer."""
        return type(self)(self.what, position=self.position if position is None else position, path=path)


class TruncatedError(FormatError):
    """The bytes end too soon: the normal end of a log after a crash."""


class CorruptError(FormatError):
    """A magic number, checksum, size or link disagrees with the rest."""


class UnsupportedError(FormatError):
    """A version or flag that whence does not read."""


class StoreError(WhenceError):
    """A store cannot do what was asked."""


class NotFoundError(StoreError):
    """Nothing is at that address."""


class FullError(StoreError):
    """No room is left, in a file or on the disk."""


class SealedError(StoreError):
    """The file takes no more writes."""


class LockedError(StoreError):
    """Another process holds the store."""


class UsageError(WhenceError):
    """A wrong option or argument."""
