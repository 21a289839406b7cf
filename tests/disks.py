"""Disks for tests, in the place of the real one: see ``whence.files.disk``."""

import errno
import os
from pathlib import Path

from whence.files.disk import Disk
from whence.formats.buffers import Buffer


class UnflushedDisk(Disk):
    """Flushes nothing, for where only the bytes matter: a real flush takes milliseconds."""

    def fsync(self, path: Path, descriptor: int) -> None:
        pass


class FailingDisk(UnflushedDisk):
    """Fails at one write or flush, and at all behind it: ``left`` of them go well before that."""

    def __init__(self, left: int, error: int = errno.ENOSPC) -> None:
        self.left = left
        self.error = error

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        self._count()
        return super().pwrite(path, descriptor, data, position)

    def fsync(self, path: Path, descriptor: int) -> None:
        self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))
