"""TimeBlocks: which parts of a log can hold the messages of a time window, by the sidecar's sparse time index.

Blocks are a claim, as index files are: they count only where ``sidecar.json`` says that the log is indexed, while the
log is still the one that was, and while a file of them is what a file of blocks can be. Everything else can hold
anything. While a follower lets them grow, its last entry may be in the making: then that block can hold anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whence.errors import FormatError, StoreError
from whence.files.mapped_file import read_whole
from whence.files.names import offset_name
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK, block_of, decode_time_blocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whence.store.commit_log import CommitLog
    from whence.store.sidecar import Sidecar

Stretches = list[tuple[int, int]]

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1


class TimeBlocks:
    """The time blocks of one log, in the folder ``times/`` of a sidecar that says ``claim`` of itself."""

    def __init__(self, log: CommitLog, folder: Path, claim: Sidecar) -> None:
        self._log = log
        self._folder = folder
        self._indexed = claim.indexed if claim.is_of(log) else ()
        self._is_growing = claim.growing

    def stretches(self, from_offset: int, to_offset: int, since_ms: int | None, until_ms: int | None) -> Stretches:
        """The parts of ``[from_offset, to_offset)`` that can hold a record of the window, both ends included.

        Both offsets are where records begin, and so is the begin of every part. None reaches over the end of a file.
        """
        found: Stretches = []
        for begin, end in self._log.pieces(from_offset, to_offset):
            base = self._log.base_of(begin)
            assert base is not None
            is_indexed = any(first < end and begin < last for first, last in self._indexed)
            blocks = self._blocks(base) if is_indexed else None
            position = begin
            for first, last in [] if blocks is None else self._ruled_out(blocks, base, end, since_ms, until_ms):
                if position < first:
                    found.append((position, first))
                position = max(position, last)
            if position < end:
                found.append((position, end))
        return found

    def _ruled_out(
        self, blocks: NDArray[np.void], base: int, end: int, since_ms: int | None, until_ms: int | None
    ) -> Stretches:
        """The parts of one file, up to ``end``, whose blocks do not meet the window.

        A block counts if all of it is indexed. It ends where the next begins: what is said to be indexed may end
        anywhere, should the sidecar lie, and a scan has to begin where a record does.
        """
        begins = blocks["position"].astype("i8") + base
        ends = begins.copy()
        ends[:-1], ends[-1] = begins[1:], max(end, int(begins[-1]))
        misses = begins < begins[:1]  # none
        if since_ms is not None:
            misses |= blocks["largest_ms"] < since_ms
        if until_ms is not None:
            misses |= blocks["smallest_ms"] > until_ms
        is_indexed = misses & False
        for first, last in self._indexed:
            is_indexed |= (begins >= first) & (ends <= last)
        numbers = (misses & is_indexed).nonzero()[0].tolist()
        return [(int(begins[number]), int(ends[number])) for number in numbers]

    def begins(self, from_offset: int, to_offset: int) -> list[int]:
        """Where records begin between two offsets of one file, as far as blocks tell: one place for each block.

        That a record begins there was proven by the way from the start of the file, which no look at bytes can do.
        """
        base = self._log.base_of(from_offset)
        blocks = None if base is None or not self._indexed else self._blocks(base)
        if base is None or blocks is None:
            return []
        begins = blocks["position"].astype("i8") + base
        meets = (begins >= from_offset) & (begins < to_offset)
        is_indexed = meets & False
        for first, last in self._indexed:
            is_indexed |= (begins >= first) & (begins < last)
        found: list[int] = begins[meets & is_indexed].tolist()
        return found

    def _blocks(self, base: int) -> NDArray[np.void] | None:
        """The blocks of the log's file at ``base``; None if they are not there, or are none."""
        try:
            size_max = -(-self._log.file_size // BLOCK_SIZE) * TIME_BLOCK.itemsize
            data = read_whole(self._folder / offset_name(base), size_max)
            blocks = self._grown(data, base) if self._is_growing else decode_time_blocks(data)
        except (FormatError, StoreError):
            return None
        positions = blocks["position"]
        numbers = positions // BLOCK_SIZE
        is_whole = len(blocks) and (numbers[1:] > numbers[:-1]).all() and positions[0] >= 0
        return blocks if is_whole and (blocks["smallest_ms"] <= blocks["largest_ms"]).all() else None

    def _grown(self, data: bytes, base: int) -> NDArray[np.void]:
        """The blocks that are said to be there; the last, if the log was indexed up to it, can hold any time."""
        indexed_to = self._indexed[-1][1]
        blocks = decode_time_blocks(data[: len(data) // TIME_BLOCK.itemsize * TIME_BLOCK.itemsize])
        behind = (blocks["position"] >= indexed_to - base).nonzero()[0]
        blocks = (blocks[: behind[0]] if len(behind) else blocks).copy()
        if len(blocks) and indexed_to < base + min((block_of(blocks[-1]) + 1) * BLOCK_SIZE, self._log.file_size):
            blocks[-1]["smallest_ms"], blocks[-1]["largest_ms"] = TIME_MIN, TIME_MAX
        return blocks
