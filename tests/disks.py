"""Disks for tests, in the place of the real one: see ``whence.files.disk``."""

from pathlib import Path

from whence.files.disk import Disk


class UnflushedDisk(Disk):
    """Flushes nothing, for where only the bytes matter: a real flush takes milliseconds."""

    def fsync(self, path: Path, descriptor: int) -> None:
        pass
