"""map_pages: the pages of a stretch of a map at once, and not one after the other as they are touched."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it, and its madvise would hold the interpreter


def map_pages(address: int, size: int) -> None:
    """Map the pages that lie in ``size`` bytes from an address on. Where the system cannot, touching them will."""
    madvise = _madvise()
    if madvise is not None:
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(address + size - first, 0)), POPULATE_READ)


@cache
def _madvise() -> Callable[..., int] | None:
    return ctypes.CDLL(None).madvise if sys.platform == "linux" else None
