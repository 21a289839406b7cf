"""FileSequence: equal-sized files of a folder, or of several, addressed as one run of bytes."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

from whence.errors import CorruptError
from whence.files.folder import FileState, FolderWatch, files_in
from whence.files.map_pool import MapPool
from whence.files.mapped_file import MappedFile
from whence.files.names import offset_name, parse_offset_name


class FileSequence:
    """The files ``<20 digits>`` of a folder: byte ``offset`` lies in the file whose name is the last not above it.

    Several folders may share them, as RocketMQ spreads its log over several disks.

    A broker deletes the oldest files and adds new ones while we read: :meth:`refresh` looks again when the folder
    changed. Names that are no offsets are passed over, as RocketMQ does. Nothing promises that files are there
    without a gap, nor that each is whole: :attr:`file_size` is what names and lengths show.
    """

    def __init__(self, folder: Path, *more: Path) -> None:
        self.folder = folder
        self._folders = (folder, *more)
        self.bases: list[int] = []
        self.file_size = 0
        self._found: dict[int, FileState] = {}
        self._paths: dict[int, Path] = {}
        self._names: dict[int, str] = {}
        self._watches = [FolderWatch(one) for one in self._folders]
        self._size_is_sure = False  # whether files may still grow, as that of a store being copied does
        self._maps = MapPool()
        self.refresh()

    def refresh(self) -> bool:
        """Look at the folder again if it changed; True if files came, went or grew."""
        changed = [watch.changed() for watch in self._watches]  # each has to look, whatever another one saw
        if not any(changed) and (self._size_is_sure or not self._lengths_changed()):
            return False
        found: dict[int, FileState] = {}
        paths: dict[int, Path] = {}
        for folder in self._folders:
            for name, state in files_in(folder).items():
                base = parse_offset_name(name)
                if base is not None:
                    found[base] = state
                    paths[base] = folder / name
        if found == self._found:
            return False
        self._maps.keep({base for base, state in found.items() if self._found.get(base) == state})
        self._found = found
        self._paths = paths
        self._names = {base: str(path) for base, path in paths.items()}  # making a Path takes longer than a stat
        self.bases = sorted(found)
        steps = [after - before for before, after in pairwise(self.bases)]
        # All files should have one size: that of the longest, or the smallest step between names if files overlap
        # otherwise. (With the only file between two of them missing, a step is twice the size.)
        self.file_size = min([max((state.size for state in found.values()), default=0), *steps])
        self._size_is_sure = self.file_size in steps
        return True

    def _lengths_changed(self) -> bool:
        try:
            return any(os.stat(self._names[base]).st_size != state.size for base, state in self._found.items())
        except OSError:
            return True

    def path_of(self, base: int) -> Path:
        """Where the file with this base offset is, or would be."""
        return self._paths.get(base) or self.folder / offset_name(base)

    @property
    def begin_offset(self) -> int:
        """Offset of the first byte; 0 if there is no file."""
        return self.bases[0] if self.bases else 0

    def base_of(self, offset: int) -> int | None:
        """Base offset of the file that should hold this byte; None if there is none."""
        number = bisect_right(self.bases, offset) - 1
        if number < 0 or offset >= self.bases[number] + self.file_size:
            return None
        return self.bases[number]

    def file(self, base: int) -> MappedFile:
        """The file with this base offset, mapped. One that grew since it was mapped is mapped again."""
        mapped = self._maps.get(base)
        if mapped is not None and (mapped.size >= self.file_size or not _grew(mapped)):
            return mapped
        mapped = MappedFile(self.path_of(base))
        if mapped.size > self.file_size:
            raise self._overlap(mapped)
        return self._maps.put(base, mapped)

    def _overlap(self, mapped: MappedFile) -> CorruptError:
        """Why a file cannot be as long as it is: it is too long itself, or two names lie too close together."""
        sizes = [state.size for state in self._found.values()]
        if sizes.count(self.file_size) > 1 and sum(size > self.file_size for size in sizes) == 1:
            what = (
                f"the file has {mapped.size} bytes, but the next one begins {self.file_size} bytes behind its start"
            )
            return CorruptError(what, position=self.file_size, path=mapped.path)
        before, behind = next(pair for pair in pairwise(self.bases) if pair[1] - pair[0] == self.file_size)
        return CorruptError(
            f"the name says that the file begins {self.file_size} bytes behind {offset_name(before)}, but files here "
            f"have {mapped.size}; move away the one of the two that does not belong here",
            position=0,
            path=self.path_of(behind),
        )

    def gaps(self) -> list[tuple[int, int]]:
        """Stretches ``(from, to)`` before the last file that no file holds: one is missing, or too short."""
        ends = [base + min(self._found[base].size, self.file_size) for base in self.bases]
        return [(end, base) for end, base in zip(ends, self.bases[1:], strict=False) if end < base]

    def close(self) -> None:
        self._maps.clear()


def _grew(mapped: MappedFile) -> bool:
    try:
        return mapped.path.stat().st_size != mapped.size
    except OSError:
        return False  # deleted: what is mapped can still be read
