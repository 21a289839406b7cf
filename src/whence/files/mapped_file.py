"""MappedFile: one file, mapped for reading."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from whence.errors import StoreError
from whence.files.plain_file import PlainFile, open_regular

PIECE_SIZE_MIN = 4096
PIECE_SIZE_MAX = 1048576
ZEROS = bytes(PIECE_SIZE_MAX + 64)


class MappedFile:
    """One file of a store, mapped read-only. Any number may be open on a file that a broker is writing.

    ``data`` is a view of the map, ``size`` the file's length when it was mapped; by ``inode`` one tells it from
    another of the same name. What a writer puts into the mapped part shows in ``data`` at once; a file that grew is
    opened again. An empty file has an empty view.
    """

    __slots__ = ("_map", "data", "inode", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self.data = memoryview(b"")
        descriptor = open_regular(path)
        try:
            status = os.fstat(descriptor)
            self.size, self.inode = status.st_size, status.st_ino
            if self.size:
                self._map = mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ)
                self.data = memoryview(self._map)
        except (OSError, ValueError) as error:
            raise StoreError(f"{path}: cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)

    def occurrences(self, pattern: bytes, position: int) -> Iterator[int]:
        """The positions of ``pattern`` at or behind ``position``, in order. Holes of the file are passed over."""
        overlap = len(pattern) - 1
        piece_size = PIECE_SIZE_MIN
        while position < self.size:
            # Pieces as bytes: bytes.find is several times faster than mmap.find in Python 3.11.
            piece = bytes(self.data[position : position + piece_size + overlap])
            position += piece_size
            if piece == ZEROS[: len(piece)]:
                position = self.next_data(position)
            else:
                at = piece.find(pattern)
                while at >= 0:
                    yield position - piece_size + at
                    at = piece.find(pattern, at + 1)
            piece_size = min(2 * piece_size, PIECE_SIZE_MAX)

    def next_data(self, position: int) -> int:
        """The first position at or behind this one that is not in a hole; the file's end if there is none."""
        try:
            with PlainFile(self.path) as file:
                return min(file.next_data(position), self.size)
        except StoreError:
            return position  # it is gone: nobody tells

    def next_hole(self, position: int) -> int:
        """The first position at or behind this one that is in a hole, as far as can be told; else the file's end."""
        try:
            with PlainFile(self.path) as file:
                return min(file.next_hole(position), self.size)
        except StoreError:
            return self.size

    def close(self) -> None:
        """Give the map back. Views that callers still hold keep it alive until they go."""
        self.data = memoryview(b"")
        self._map = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_whole(path: Path, size_max: int) -> bytes:
    """A small file's bytes; one larger than ``size_max`` is refused."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > size_max:
            raise StoreError(f"{path}: has {size} bytes; what it should be has at most {size_max}")
        return file.read(size)
