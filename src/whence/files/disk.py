"""Disk: every change to a file of a store goes through here, so that a test can put a failing one in its place."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Self

from whence.errors import StoreError
from whence.files.plain_file import PlainFile
from whence.formats.buffers import Buffer

MODE = 0o644
ZEROS = bytes(1 << 20)
COPY_AT_ONCE = 1 << 20
SYNC_FILE_RANGE_WRITE = 2
AT_FDCWD = -100
RENAME_EXCHANGE = 2
NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DiskFile:
    """One file, open for writing at any position. What is not flushed may be gone after a power failure."""

    def __init__(self, path: Path, descriptor: int, disk: Disk) -> None:
        self.path = path
        self.descriptor = descriptor
        self._disk = disk

    def write(self, data: Buffer, position: int) -> None:
        """Write all of ``data``: where the disk takes less at a time, in several steps."""
        if data.__class__ is not bytes:
            data = memoryview(data).cast("B")
        try:  # every message that is appended comes through here, so no context manager, and no view of bytes
            while (written := self._disk.pwrite(self.path, self.descriptor, data, position)) < len(data):
                data = memoryview(data)[written:]
                position += written
        except OSError as error:
            raise _error(self.path, "cannot be written", error) from error

    def begin_flush(self, position: int, size: int) -> None:
        """Let the disk begin to write these bytes, and do not wait: :meth:`flush` has less to wait for then."""
        self._disk.begin_flush(self.descriptor, position, size)

    def flush(self) -> None:
        """Wait until all that was written is on the disk."""
        with _named(self.path, "cannot be flushed"):
            self._disk.fsync(self.path, self.descriptor)

    def map(self) -> mmap.mmap:
        """All of the file, to be written through memory; :meth:`flush` flushes that too.

        Only of a file whose room is reserved: where the disk has none for a page that is written through a map, the
        process is killed.
        """
        with _named(self.path, "cannot be mapped"):
            return mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)

    def set_modified(self, modified_ms: int) -> None:
        """Give the file another time of its last change: a copy is as old as what it was copied from."""
        with _named(self.path, "cannot be given a time"):
            os.utime(self.descriptor, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def is_there(self) -> bool:
        """Whether its name still leads to it: somebody may have removed it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the file; a second call does nothing. Does not flush."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Disk:
    """The operating system's files. Every error is a StoreError that names the path."""

    flushes_at_once = 16
    """One flush waits for a turn of the disk; those that wait side by side share it: 32 took as long as two."""

    def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
        """Make a new file of ``size`` zero bytes.

        ``reserve`` takes the room for them now, so that a full disk is told here and not later; otherwise the file
        takes room as it is written. If the room is not there, the file is not there either.
        """
        file = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "cannot be made")
        try:
            with _named(path, f"cannot be made with {size} bytes"):
                if reserve and size:
                    self.reserve(path, file.descriptor, size)
                else:
                    os.ftruncate(file.descriptor, size)
        except StoreError:
            file.close()
            self.remove(path)
            raise
        return file

    def open(self, path: Path) -> DiskFile:
        """Open a file that is there, to write to it."""
        return self._open(path, os.O_RDWR, "cannot be opened to be written")

    def _open(self, path: Path, flags: int, what: str) -> DiskFile:
        with _named(path, what):
            return DiskFile(path, os.open(path, flags | os.O_CLOEXEC, MODE), self)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, if they are not there; each lasts once this returns."""
        self.make_folders([folder])

    def make_folders(self, folders: Iterable[Path]) -> None:
        """Make many folders."""
        changed: dict[Path, None] = {}
        for folder in folders:
            missing = []
            while not folder.is_dir():
                missing.append(folder)
                folder = folder.parent
            for one in reversed(missing):
                self.add_folder(one)
                changed[one.parent] = None
        self.flush_folders(changed)

    def add_folder(self, folder: Path) -> None:
        """Make a folder in one that is there, if it is not; it lasts once that one is flushed."""
        with _named(folder, "cannot be made"):
            folder.mkdir(exist_ok=True)

    def flush_folder(self, folder: Path) -> None:
        """Make what was created, renamed and removed in a folder last."""
        with _named(folder, "cannot be flushed"):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.fsync(folder, descriptor)
            finally:
                os.close(descriptor)

    def flush_folders(self, folders: Iterable[Path]) -> None:
        """Flush many folders, in no order."""
        self._side_by_side(self.flush_folder, folders)

    def flush_files(self, paths: Iterable[Path]) -> None:
        """Flush many files, in no order."""
        self._side_by_side(self.flush_file, paths)

    def _side_by_side(self, flush: Callable[[Path], None], paths: Iterable[Path]) -> None:
        todo = list(paths)
        left, errors = iter(todo), list[Exception]()

        def flush_left() -> None:
            for path in left:
                if errors:
                    return
                try:
                    flush(path)
                except Exception as error:
                    errors.append(error)

        threads = [Thread(target=flush_left, daemon=True) for _ in todo[1 : self.flushes_at_once]]
        for thread in threads:
            thread.start()
        flush_left()
        for thread in threads:
            thread.join()
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # or it would lead to itself by its traceback, and keep files open that it passed by

    def flush_file(self, path: Path) -> None:
        """Make what was written to a file last, whoever wrote it; one that is gone by now needs nothing."""
        try:
            file = self.open(path)
        except StoreError:
            if path.exists():
                raise
            return
        with file:
            file.flush()

    def reserve(self, path: Path, descriptor: int, size: int) -> None:
        """Take the room for ``size`` zero bytes: by asking for it or, where one cannot, by writing them."""
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in NO_FALLOCATE:
                raise
            position = 0
            while position < size:
                position += os.pwrite(descriptor, ZEROS[: size - position], position)

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        """Write the first bytes of ``data`` and tell how many. All writing ends here: a test can fail or record."""
        return os.pwrite(descriptor, data, position)

    def fsync(self, path: Path, descriptor: int) -> None:
        """Flush a file or a folder. All flushing ends here.

        Of a file its data and what is needed to read them back: its times may be older after a power failure.
        """
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)

    def begin_flush(self, descriptor: int, position: int, size: int) -> None:
        """Let the disk begin to write; where the system cannot be told to, a flush does all."""
        sync_file_range = _sync_file_range()
        if sync_file_range is not None:
            sync_file_range(descriptor, ctypes.c_int64(position), ctypes.c_int64(size), SYNC_FILE_RANGE_WRITE)

    def replace(self, path: Path, data: bytes) -> None:
        """Make a small file, or put it in the place of the one before: after a crash it is one of both, whole."""
        aside = aside_of(path)
        self.remove(aside)
        with self.create(aside, 0, reserve=False) as file:
            file.write(data, 0)
            file.flush()
        self.rename(aside, path)
        self.flush_folder(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name, in place of what has that name."""
        with _named(path, f"cannot be renamed to {target.name}"):
            path.replace(target)

    def copy(self, path: Path, target: Path) -> None:
        """Copy a file to a new one, and do not flush it; its holes stay holes."""
        with PlainFile(path) as there, self.create(target, there.size, reserve=False) as file:
            for at, size in there.data_pieces(0, COPY_AT_ONCE):
                file.write(there.read(at, size), at)

    def move(self, path: Path, target: Path) -> None:
        """Rename a file, also to another disk, which cannot be done in one step.

        There it is copied beside the target first, and is gone from its old place only when that lasts: so there is
        always one of both, whole. A copy that a kill left goes when the same file is moved again.
        """
        try:
            self.rename(path, target)
            return
        except StoreError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EXDEV:
                raise
        aside = aside_of(target)
        self.remove(aside)
        try:
            self.copy(path, aside)
            self.flush_file(aside)
        except StoreError:
            self.remove(aside)  # the disk may be full of it
            raise
        self.rename(aside, target)
        self.flush_folder(target.parent)
        self.remove(path)

    def exchange(self, path: Path, target: Path) -> None:
        """Give each of two folders the other's name: nobody sees a moment in which one of the names is not there.

        Where the system cannot do that there is such a moment.
        """
        with _named(path, f"cannot take the place of {target}"):
            renameat2 = _renameat2()
            names = os.fsencode(path), os.fsencode(target)
            if renameat2 is None or renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
                between = path.with_name(f"{path.name}.old")
                target.rename(between)
                path.rename(target)
                between.rename(path)

    def remove(self, path: Path) -> None:
        """Remove a file; it is no error if it is not there."""
        with _named(path, "cannot be removed"):
            path.unlink(missing_ok=True)


def aside_of(path: Path) -> Path:
    """Where a file is written before it takes its place; no reader takes it for one of its own."""
    return path.with_name(f".{path.name}.new")


@cache
def _sync_file_range() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None


@cache
def _renameat2() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None


@contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error(path, what, error) from error


def _error(path: Path, what: str, error: OSError) -> StoreError:
    return StoreError(f"{path}: {what}: {error.strerror or error}")
