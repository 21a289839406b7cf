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
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

from whence.cache_folder import cache_folders, remove_old
from whence.files.atomic import unfinished
from whence.pipeline.java import Java

READ_SIZE = 1 << 20


class ClassArchive:
    """The archive for one Java, one Spark and one list of options: mapped if it is there, else made by this start."""

    def __init__(self, java: Java, jars: Path, options: Sequence[str], made_in: Path) -> None:
        """``made_in``: where Java may write one. It does so even if whoever started it is gone."""
        depends_on = (str(java.home), java.version, str(jars), jars.stat().st_mtime_ns, list(options))
        self._digest = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]
        self._folders = cache_folders("spark")
        self._made = made_in / "classes.jsa"
        self.path = self._find()

    @property
    def java_options(self) -> list[str]:
        """What Java has to be told: to map the archive, or to write it when it ends."""
        if self.path is not None:
            return [f"-XX:SharedArchiveFile={self.path}"]
        return [f"-XX:ArchiveClassesAtExit={self._made}"] if self._folders else []

    def keep(self) -> None:
        """Keep what Java wrote, if it did. To be called when Java has ended as it should."""
        if self.path is not None or not self._folders or not self._made.is_file():
            return
        path = self._folders[0] / f"{self._digest}-{_crc(self._made):08x}.jsa"
        aside = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
        with unfinished(aside):
            try:
                shutil.copyfile(self._made, aside)
                aside.replace(path)
                remove_old(path)
            except OSError:  # a full disk: the next start is slow, too
                aside.unlink(missing_ok=True)

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
