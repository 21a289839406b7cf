"""PinnedPages: keep a file's pages in memory, where the system allows it."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from whence.files.disk import DiskFile


class PinnedPages:
    """All pages of a file, asked for and locked in memory until :meth:`close`.

    Locking needs a right (RLIMIT_MEMLOCK is 8 MiB for most users); without it ``is_locked`` is False, and the system
    may drop pages as it likes. Nothing is read or written through the map: it only holds the pages.
    """

    def __init__(self, file: DiskFile) -> None:
        self._map = file.map()
        with suppress(OSError):  # it is a hint
            self._map.madvise(mmap.MADV_WILLNEED)
        self.is_locked = self._lock()

    def _lock(self) -> bool:
        libc = ctypes.CDLL(None, use_errno=True)
        view = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        try:
            return bool(libc.mlock(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(self._map))) == 0)
        finally:
            del view  # or the map could not be closed

    def close(self) -> None:
        """Let go of the pages: what is unmapped is not locked either."""
        self._map.close()
