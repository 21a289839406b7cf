"""Write aside, flush, rename: a file is there whole, or as it was before."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from whence.errors import StoreError

_unfinished: set[Path] = set()
"""What is being written aside now."""


@contextmanager
def write_aside(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` at the end of the ``with``.

    If that ends in an error or in Ctrl-C, ``path`` is as it was and nothing else is left. A link is followed, and
    what is no regular file (a pipe, ``/dev/null``) is written to as it stands, for it must not be replaced.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and stat.S_ISDIR(mode):
        raise StoreError(f"{path}: is a folder; name a file in it")
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    aside = target.parent / f".whence-{os.getpid()}-{os.urandom(4).hex()}"
    with unfinished(aside):
        try:  # from before the file is there: Ctrl-C may come as soon as it is
            try:
                descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(descriptor, stat.S_IMODE(mode))
                yield file
                file.flush()
                os.fsync(descriptor)
            aside.replace(target)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
    _flush_folder(target.parent)


@contextmanager
def unfinished(aside: Path) -> Iterator[None]:
    """While this lasts, :func:`remove_unfinished` removes ``aside``, a file or a folder with all that is in it."""
    _unfinished.add(aside)
    try:
        yield
    finally:
        _unfinished.discard(aside)


def remove_unfinished() -> None:
    """Remove what is being written aside: for a process that must end at once."""
    for aside in tuple(_unfinished):
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
            continue
        with suppress(OSError):
            aside.unlink()


def _flush_folder(folder: Path) -> None:
    """Make a rename last. A folder that cannot be flushed (some network disks) is left to its system."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
