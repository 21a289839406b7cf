"""FileMaker: the next files of a log, made ahead of need by a thread of its own.

A new file is complete before anybody sees it: its room is taken (so that a full disk is an error here, and not in
the midst of a write), it is flushed, and so is its folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from whence.errors import StoreError
from whence.files.disk import ZEROS, Disk, DiskFile
from whence.files.pinned_pages import PinnedPages


class NewFile:
    """A file that was made. ``pages`` are held in memory if it was warmed up."""

    __slots__ = ("file", "pages")

    def __init__(self, file: DiskFile, pages: PinnedPages | None = None) -> None:
        self.file = file
        self.pages = pages

    def close(self) -> None:
        if self.pages is not None:
            self.pages.close()
        self.file.close()


class _Asked:
    """A file that is asked for: ``gate`` opens when it is ``made``, or could not be, for ``error``."""

    __slots__ = ("base", "error", "gate", "made")

    def __init__(self, base: int) -> None:
        self.base = base
        self.made: NewFile | None = None
        self.error: Exception | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def is_done(self) -> bool:
        return self.made is not None or self.error is not None


class FileMaker:
    """Makes files of one size. One thread asks for them and takes them.

    That thread may be interrupted at any point, by Ctrl-C. What it shares with the one that makes files can be left
    in no state for which the other waits without end: a SimpleQueue, and gates that only the maker opens.

    With ``warm_up`` zeros are written into a file before it is used, and it is held in memory as far as the system
    allows. That brings two things. A write finds its page in memory and need not make it. And a flush has only data
    to write: where nothing was written yet, the file system also has to note for each stretch that it is in use, in
    its journal, which is a second write to wait for. It costs the writing of each byte twice, and the memory.
    """

    def __init__(self, path_of: Callable[[int], Path], file_size: int, disk: Disk, *, warm_up: bool) -> None:
        self._path_of = path_of
        self._file_size = file_size
        self._disk = disk
        self._warm_up = warm_up
        self._is_closed = False
        self._asked: dict[int, _Asked] = {}
        self._to_make: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._make_all, name="whence-file-maker", daemon=True)
        self._thread.start()

    def ask(self, base: int) -> None:
        """Have the file made whose first byte has this offset; it is no error if it was asked for before."""
        if base not in self._asked:
            self._asked[base] = asked = _Asked(base)
            self._to_make.put(asked)

    def take(self, base: int, timeout_s: float) -> NewFile:
        """The file, as soon as it is there. A StoreError tells why it is not; one may ask again."""
        asked = self._asked.get(base)
        if asked is not None and asked.error is not None:
            del self._asked[base]  # it could not be made ahead; there may be room by now
        elif asked is not None and asked.made is not None and not asked.made.file.is_there():
            # A broker that is started by mistake removes it: it recovers a store before it looks at the lock.
            del self._asked[base]
            asked.made.close()
        self.ask(base)
        asked = self._asked[base]
        if not asked.is_done:
            asked.gate.acquire(timeout=timeout_s)
        if not asked.is_done:
            raise StoreError(f"{self._path_of(base)}: was not made within {timeout_s:g} s")
        del self._asked[base]
        if asked.made is None:
            assert asked.error is not None
            raise asked.error
        return asked.made

    def _make_all(self) -> None:
        """Make what is asked for, until nothing more is to come."""
        while (asked := self._to_make.get()) is not None:
            try:
                if self._is_closed:
                    raise StoreError(f"{self._path_of(asked.base)}: is not needed any more")
                asked.made = self._make(asked.base)
            except Exception as error:
                asked.error = error
            asked.gate.release()

    def _make(self, base: int) -> NewFile:
        path = self._path_of(base)
        self._disk.make_folder(path.parent)
        file = self._disk.create(path, self._file_size, reserve=True)
        pages = None
        try:
            if self._warm_up:
                self._write_zeros(file)
                pages = PinnedPages(file)
            file.flush()
            self._disk.flush_folder(path.parent)
        except BaseException:
            NewFile(file, pages).close()
            self._disk.remove(path)
            raise
        return NewFile(file, pages)

    def _write_zeros(self, file: DiskFile) -> None:
        for position in range(0, self._file_size, len(ZEROS)):
            if self._is_closed:
                raise StoreError(f"{file.path}: is not needed any more")
            file.write(memoryview(ZEROS)[: self._file_size - position], position)

    def close(self) -> None:
        """Remove the files that nobody took."""
        self._is_closed = True
        self._to_make.put(None)
        self._thread.join()
        for asked in self._asked.values():
            if asked.made is not None:
                asked.made.close()
                self._disk.remove(asked.made.file.path)
        self._asked.clear()
