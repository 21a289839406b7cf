"""Disks for tests, in the place of the real one: see ``whence.files.disk``."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest

from whence.files.disk import Disk, DiskFile
from whence.formats.buffers import Buffer

SECTOR = 512


class UnflushedDisk(Disk):
    """Flushes nothing, for where only the bytes matter: a real flush takes milliseconds."""

    def fsync(self, path: Path, descriptor: int) -> None:
        pass


class FailingDisk(UnflushedDisk):
    """Fails at one write or flush, and at all behind it: ``left`` of them go well before that.

    ``times`` is how many fail until all goes well again. ``part`` is a word of the paths that are meant: others never
    fail and do not count. To take the room for a file is a write, too. ``failed`` tells what failed.
    """

    def __init__(self, left: int, error: int = errno.ENOSPC, *, times: int | None = None, part: str = "") -> None:
        self.left = left
        self.error = error
        self.times = times
        self.part = part
        self.failed: list[tuple[str, Path]] = []
        self._lock = threading.Lock()

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        self._count("write", path)
        return super().pwrite(path, descriptor, data, position)

    def fsync(self, path: Path, descriptor: int) -> None:
        self._count("flush", path)

    def reserve(self, path: Path, descriptor: int, size: int) -> None:
        self._count("reserve", path)
        super().reserve(path, descriptor, size)

    def _count(self, step: str, path: Path) -> None:
        if self.part not in str(path):
            return
        with self._lock:
            self.left -= 1
            if self.left >= 0 or (self.times is not None and len(self.failed) >= self.times):
                return
            self.failed.append((step, path))
        raise OSError(self.error, os.strerror(self.error))


# Power loss


@dataclass(eq=False)
class _File:
    """A file, whatever its name is. ``flushed`` is what the disk has of it for sure."""

    path: Path
    flushed: bytes = b""
    last: bytes | None = None  # what it held when its last name was taken away

    def now(self) -> bytes:
        return self.path.read_bytes() if self.last is None else self.last


_Names = dict[str, "_File | _Folder"]


@dataclass(frozen=True, eq=False)
class _Step:
    """What was done to the names of a folder; ``other`` is the folder to or from which a file moved."""

    number: int
    do: Callable[[_Names], object]
    other: "_Folder | None" = None


@dataclass(eq=False)
class _Folder:
    """A folder: the names that the disk has for sure, and what was done to them since, in order."""

    names: _Names = field(default_factory=dict)
    pending: list[_Step] = field(default_factory=list)

    def after(self, count: int) -> _Names:
        """The names after so many of the steps that are not flushed."""
        names = dict(self.names)
        for step in self.pending[:count]:
            step.do(names)
        return names

    def now(self) -> _Names:
        return self.after(len(self.pending))

    def flush(self, count: int) -> None:
        """Make so many steps last. A move is one step in two folders, so it lasts in the other one, too."""
        steps = self.pending[:count]
        self.names = self.after(count)
        del self.pending[:count]
        for step in steps:
            if step.other is not None:
                step.other.flush(sum(each.number <= step.number for each in step.other.pending))


class PowerLossDisk(Disk):
    """Knows what of a folder is on the disk for sure, and makes what a power failure could leave of the rest.

    A file is on the disk as it was when it was last flushed, a folder's names as they were when the folder was. Of
    what came later anything may be there: each 512-byte sector is old or new, whatever became of its neighbours, a
    file that grew has its old or its new size, and of what happened to names in one folder only the first steps may
    have happened (or, as a journal has it, of what happened in all of them). A file that was flushed is gone if its
    name was not. The system may also write to the disk before it is told to: ``write_back`` is how likely it is that
    it does so before any one step.

    What was written through a map is seen, for contents are compared. Nothing is really flushed, since the machine
    stays on. All below ``root`` must be changed through this disk; what lies elsewhere is none of its business.
    """

    flushes_at_once = 1  # so that what one seed does is done again in the same order

    def __init__(self, root: Path, random: Random, *, write_back: float = 0.0) -> None:
        self.root = root
        self.has_failed = False
        self._random = random
        self._write_back = write_back
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._steps = 0
        self._failure: tuple[int, Path] | None = None
        self._tree = self._read(root)

    @property
    def steps(self) -> int:
        """How many there were."""
        return self._steps

    # -- power failures --------------------------------------------------------------------------------------

    def fail_after(self, steps: int, target: Path) -> None:
        """Make what a power failure could leave into ``target``, just before a later step; then ``has_failed``.

        The program goes on and does not see it.
        """
        self._failure = (self._steps + steps, target)

    def fail(self, target: Path) -> None:
        """Make what a power failure could leave now into ``target``, which is not there yet."""
        with self._lock:
            self.has_failed = True
            self._failure = None
            self._notice_folders()
            self._write_tree(target, self._tree, self._choose_steps())

    def fail_once(self, target: Path) -> None:
        """The same, unless it has failed by now: another thread may be at a step that was chosen for it."""
        with self._lock:
            if not self.has_failed:
                self.fail(target)

    def kill(self, target: Path) -> None:
        """Copy all as it is now: what a program leaves that is killed on a machine that stays on."""
        with self._lock:
            shutil.copytree(self.root, target)

    def _before_step(self) -> None:
        self._steps += 1
        if self._failure is not None and self._steps > self._failure[0]:
            self.fail(self._failure[1])
        if self._write_back and self._random.random() < self._write_back:
            self._write_some_back()

    def _choose_steps(self) -> Callable[[_Folder], int]:
        """How many of a folder's steps have happened: by one time for all of them, or each folder by its own."""
        has_moves = any(step.other is not None for folder in self._folders(self._tree) for step in folder.pending)
        if self._random.random() < 0.5 and not has_moves:
            return lambda folder: self._random.randint(0, len(folder.pending))
        last = self._random.randint(0, self._steps)
        return lambda folder: sum(step.number <= last for step in folder.pending)

    def _write_tree(self, target: Path, folder: _Folder, step_count: Callable[[_Folder], int]) -> None:
        target.mkdir()
        for name, node in folder.after(step_count(folder)).items():
            if isinstance(node, _Folder):
                self._write_tree(target / name, node, step_count)
            else:
                (target / name).write_bytes(self._survives(node))
                if node.last is None:
                    shutil.copystat(node.path, target / name)  # how old a file is matters to who lets files expire

    def _survives(self, file: _File) -> bytes:
        """What may be on the disk of a file."""
        now, flushed = file.now(), file.flushed
        if now == flushed:
            return flushed
        size = len(self._random.choice([now, flushed]))
        chance = self._random.choice([0.0, 1.0, self._random.random()])
        sectors = -(-size // SECTOR)
        old, new = (
            np.frombuffer(data[:size].ljust(sectors * SECTOR, b"\0"), np.uint8).reshape(sectors, SECTOR)
            for data in (flushed, now)
        )
        is_new = np.array([self._random.random() < chance for _ in range(sectors)], bool)
        return np.where(is_new[:, None], new, old).tobytes()[:size]

    def _write_some_back(self) -> None:
        self._notice_folders()
        for folder in self._folders(self._tree):
            folder.flush(self._random.randint(0, len(folder.pending)))
        for file in self._files.values():
            file.flushed = self._survives(file)

    # -- what happens ----------------------------------------------------------------------------------------

    def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
        if not self._has(path):
            return super().create(path, size, reserve=reserve)
        with self._lock:
            self._before_step()
            self._notice_folders()
            made = super().create(path, size, reserve=reserve)
            file = _File(path)
            self._files[os.fstat(made.descriptor).st_ino] = file
            self._note(path.parent, _naming(path.name, file))
            return made

    def rename(self, path: Path, target: Path) -> None:
        if not self._has(path):
            super().rename(path, target)
            return
        with self._lock:
            self._before_step()
            self._notice_folders()
            file = self._files[os.stat(path).st_ino]
            if target.exists():
                self._forget(target)
            super().rename(path, target)
            file.path = target
            source, other = self._folder(path.parent), self._folder(target.parent)
            if source is other:
                self._note(path.parent, _renaming(path.name, target.name, file))
            else:
                source.pending.append(_Step(self._steps, lambda names: names.pop(path.name, None), other))
                other.pending.append(_Step(self._steps, _naming(target.name, file), source))

    def remove(self, path: Path) -> None:
        if not self._has(path):
            super().remove(path)
            return
        with self._lock:
            self._before_step()
            self._notice_folders()
            if path.exists():
                self._forget(path)
                super().remove(path)
                self._note(path.parent, lambda names: names.pop(path.name, None))

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        with self._lock:
            self._before_step()
            return super().pwrite(path, descriptor, data, position)

    def fsync(self, path: Path, descriptor: int) -> None:
        with self._lock:
            self._before_step()
            if not self._has(path):
                pass
            elif path.is_dir():
                self._notice_folders()
                folder = self._folder(path)
                folder.flush(len(folder.pending))
            else:
                file = self._files[os.fstat(descriptor).st_ino]
                file.flushed = os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    # -- the tree --------------------------------------------------------------------------------------------

    def _has(self, path: Path) -> bool:
        return self.root == path or self.root in path.parents

    def _read(self, path: Path) -> _Folder:
        """A folder as it is now, all of it flushed."""
        folder = _Folder()
        for entry in path.iterdir() if path.is_dir() else ():
            if entry.is_dir():
                folder.names[entry.name] = self._read(entry)
            else:
                file = _File(entry, entry.read_bytes())
                self._files[entry.stat().st_ino] = file
                folder.names[entry.name] = file
        return folder

    def _folder(self, path: Path) -> _Folder:
        folder = self._tree
        for name in path.relative_to(self.root).parts:
            found = folder.now()[name]
            assert isinstance(found, _Folder), path
            folder = found
        return folder

    def _folders(self, folder: _Folder) -> Iterator[_Folder]:
        yield folder
        for node in folder.now().values():
            if isinstance(node, _Folder):
                yield from self._folders(node)

    def _note(self, path: Path, do: Callable[[_Names], object]) -> None:
        self._folder(path).pending.append(_Step(self._steps, do))

    def _forget(self, path: Path) -> None:
        """A file's last name goes; but after a power failure it may have it still."""
        file = self._files.pop(os.stat(path).st_ino)
        file.last = path.read_bytes()

    def _notice_folders(self) -> None:
        """New folders are seen, for they are made by nobody's step; a new file that is seen is a mistake."""
        self._notice(self.root, self._tree)

    def _notice(self, path: Path, folder: _Folder) -> None:
        known = folder.now()
        for entry in path.iterdir() if path.is_dir() else ():
            if entry.name not in known:
                assert entry.is_dir() or entry.name == "lock", f"{entry} was not made through the disk"
                if entry.is_dir():
                    known[entry.name] = _Folder()
                    folder.pending.append(_Step(self._steps, _naming(entry.name, known[entry.name])))
        for name, node in known.items():
            if isinstance(node, _Folder):
                self._notice(path / name, node)


def _naming(name: str, node: _File | _Folder) -> Callable[[_Names], object]:
    return lambda names: names.__setitem__(name, node)


def _renaming(name: str, new_name: str, file: _File) -> Callable[[_Names], object]:
    def rename(names: _Names) -> None:
        names.pop(name, None)
        names[new_name] = file

    return rename


@contextmanager
def small_disk(folder: Path, size: int, kind: str = "tmpfs") -> Iterator[Path]:
    """A real disk of so many bytes, mounted at ``folder``; where that is not allowed, the test is skipped."""
    folder.mkdir()
    commands = [["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]]
    if kind == "ext4":
        image = folder.with_suffix(".image")
        image.write_bytes(bytes(size))
        commands = [["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for command in commands:
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no small disk can be mounted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
