"""ClassArchive: Spark's classes as Java has them in memory, in a file. A start that maps it takes half the time.

    file := <digest>-<crc>.jsa in whence's folder "spark"

Java writes such an archive when it ends ("AppCDS"), once, and a later start maps it. The digest covers the Java, the
jars and the options that the archive is for. The crc is that of the file's bytes: one that is damaged is removed and
made again. Java itself refuses an archive that does not fit and goes on without it. So an archive costs time or saves
it, and never decides whether Spark starts.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from whence.cache_folder import cache_folders, remove_old
from whence.pipeline.java import Java

READ_SIZE = 1 << 20


class ClassArchive:
    """The archive for one Java, one Spark and one list of options: mapped if it is there, else made by this start."""

    def __init__(self, java: Java, jars: Path, options: Sequence[str]) -> None:
        depends_on = (str(java.home), java.version, str(jars), jars.stat().st_mtime_ns, list(options))
        self._digest = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]
        self._folders = cache_folders("spark")
        self._aside: Path | None = None
        self.path = self._find()
        if self.path is None and self._folders:
            self._aside = self._folders[0] / f".{self._digest}-{os.getpid()}-{os.urandom(4).hex()}"

    @property
    def java_options(self) -> list[str]:
        """What Java has to be told: to map the archive, or to write it when it ends."""
        if self.path is not None:
            return [f"-XX:SharedArchiveFile={self.path}"]
        return [] if self._aside is None else [f"-XX:ArchiveClassesAtExit={self._aside}"]

    @property
    def is_wanted(self) -> bool:
        """Whether Java writes an archive when it ends, for which it takes some seconds."""
        return self._aside is not None

    def publish(self) -> None:
        """Give what Java wrote its name. To be called when Java has ended as it should."""
        if self._aside is None:
            return
        with suppress(OSError):  # a full disk, or a Java that does not make archives: the next start is slow, too
            path = self._aside.with_name(f"{self._digest}-{_crc(self._aside):08x}.jsa")
            self._aside.replace(path)
            remove_old(path)

    def discard(self) -> None:
        """Leave nothing of an archive that was not finished."""
        if self._aside is not None:
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)

    def _find(self) -> Path | None:
        for folder in self._folders:
            for path in folder.glob(f"{self._digest}-*.jsa"):
                try:
                    if path.name == f"{self._digest}-{_crc(path):08x}.jsa":
                        return path
                    path.unlink()
                except OSError:
                    pass  # not readable, or another process removed it
        return None


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(READ_SIZE):
            crc = zlib.crc32(piece, crc)
    return crc
