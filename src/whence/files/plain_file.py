"""PlainFile: one file, read a piece at a time; and where it has holes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Self

from whence.errors import NotFoundError, StoreError


class PlainFile:
    """One file, open for reading: for a few bytes of it, which are read sooner than it is mapped.

    ``size`` is its length when it was opened.
    """

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_regular(path)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, position: int, size: int) -> bytes:
        """The bytes from a position on; fewer at the end of the file."""
        try:
            return os.pread(self._descriptor, size, position)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read: {error.strerror}") from error

    def next_data(self, position: int) -> int:
        """The first position at or behind this one that is not in a hole; the file's end if there is none."""
        return self._seek(position, "SEEK_DATA", position)

    def next_hole(self, position: int) -> int:
        """The first position at or behind this one that is in a hole, as far as can be told; else the file's end."""
        return self._seek(position, "SEEK_HOLE", self.size)

    def data_pieces(self, position: int, size_max: int) -> list[tuple[int, int]]:
        """Where the file may hold something from this position on: positions and sizes, in order.

        All are looked for before one is read: a page that was read counts as data, and so do those read ahead.
        """
        pieces = []
        while (position := self.next_data(position)) < self.size:
            hole = self.next_hole(position)
            pieces += [(at, min(size_max, hole - at)) for at in range(position, hole, size_max)]
            position = hole
        return pieces

    def written_pieces(self, position: int, zeros: bytes) -> list[tuple[int, int]]:
        """The pieces from this position on, each as long as ``zeros`` at most, that hold anything but zeros.

        What was read does not stay in memory: zeros in room that is only reserved would count as data the next time.
        """
        pieces = self.data_pieces(position, len(zeros))
        written = [(at, size) for at, size in pieces if not zeros.startswith(self.read(at, size))]
        if len(written) < len(pieces):
            os.posix_fadvise(self._descriptor, position, 0, os.POSIX_FADV_DONTNEED)
        return written

    def _seek(self, position: int, what: str, unknown: int) -> int:
        if not hasattr(os, what):
            return unknown
        try:
            return max(position, os.lseek(self._descriptor, position, getattr(os, what)))
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else unknown

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file; anything else (a pipe would block) is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path}: is not a regular file")
    return descriptor


def open_stream(path: Path) -> BinaryIO:
    """A file that is read from its start to its end, once: a pipe will do."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error
