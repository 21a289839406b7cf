"""Time blocks of scanned messages: where the first of each 64 KiB begins, and the times of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK
from whence.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_TIMES = np.dtype([("position", np.int64), ("smallest_ms", np.int64), ("largest_ms", np.int64)])
"""A TIME_BLOCK in the machine's byte order."""


def encode_time_blocks(messages: NDArray[np.void], base_offset: int) -> NDArray[np.void]:
    """The entries of messages (SCANNED), which are in order, of the CommitLog file that begins at ``base_offset``."""
    if not len(messages):
        return np.empty(0, TIME_BLOCK)
    first, last = ((int(messages["physical_offset"][at]) - base_offset) // BLOCK_SIZE for at in (0, -1))
    blocks = np.empty(min(last - first + 1, len(messages)), BLOCK_TIMES)
    return blocks[: fill_blocks(messages, base_offset, blocks)].astype(TIME_BLOCK)


@kernel
def fill_blocks(messages: Any, base_offset: int, blocks: Any) -> int:
    """Fill ``blocks`` (BLOCK_TIMES), one for each in which a message begins; how many."""
    count = 0
    end = -1  # of the block at hand
    for at in range(len(messages)):
        position = messages[at].physical_offset - base_offset
        time = messages[at].store_timestamp_ms
        if position >= end:
            end = position - position % BLOCK_SIZE + BLOCK_SIZE
            block = blocks[count]
            block.position = position
            block.smallest_ms = time
            block.largest_ms = time
            count += 1
        else:
            block = blocks[count - 1]
            block.smallest_ms = min(block.smallest_ms, time)
            block.largest_ms = max(block.largest_ms, time)
    return count
