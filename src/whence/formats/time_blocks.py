"""Time blocks: the sparse time index of one CommitLog file, whence's own.

    file := entry*                                                           big-endian

    entry  at  type  field
            0  i4    position      of the first record that begins in a block of 64 KiB, in the CommitLog file
            4  i8    smallest_ms   store time of the records that begin in the block
           12  i8    largest_ms    the same

One entry for each block in which a record begins, in order. A block is ``position // 65536``. Both the smallest and
the largest time are kept, so that a clock that was put back does no harm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whence.errors import TruncatedError
from whence.formats.buffers import Buffer

TIME_BLOCK = np.dtype([("position", ">i4"), ("smallest_ms", ">i8"), ("largest_ms", ">i8")])
BLOCK_SIZE = 65536
assert TIME_BLOCK.itemsize == 20


def decode_time_blocks(data: Buffer) -> NDArray[np.void]:
    """View ``data`` as entries, without a copy."""
    extra = len(data) % TIME_BLOCK.itemsize
    if extra:
        raise TruncatedError(f"the last entry has {extra} of 20 bytes", position=len(data) - extra)
    return np.frombuffer(data, TIME_BLOCK)


def join_time_blocks(before: NDArray[np.void], behind: NDArray[np.void]) -> NDArray[np.void]:
    """The entries of records and of those behind them, which may begin in the block in which the others end."""
    if not len(before) or not len(behind) or block_of(before[-1]) != block_of(behind[0]):
        return np.concatenate([before, behind], dtype=TIME_BLOCK)  # which else is in native order
    joined = np.concatenate([before, behind[1:]], dtype=TIME_BLOCK)
    last = joined[len(before) - 1]
    last["smallest_ms"] = min(last["smallest_ms"], behind[0]["smallest_ms"])
    last["largest_ms"] = max(last["largest_ms"], behind[0]["largest_ms"])
    return joined


def block_of(entry: np.void) -> int:
    """The number of the block that an entry tells of."""
    return int(entry["position"]) // BLOCK_SIZE
