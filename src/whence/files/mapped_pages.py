"""map_pages: the pages of a stretch of a map at once, and not one after the other as they are touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AROUND = 65536  # bytes that Linux maps around one that is touched, of what it has in memory


def map_pages(data: NDArray[np.uint8]) -> None:
    """Map the pages of mapped bytes, by touching some of them.

    To ask for it, with MADV_POPULATE_READ, takes three times as long, for then Linux looks at each page by itself
    (benchmarks/map_pages.py).
    """
    data[::AROUND].max(initial=0)
