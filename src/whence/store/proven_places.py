"""ProvenPlaces: where in a CommitLog file records begin, and which times lie between: what time blocks tell.

No look at bytes can prove that a record begins somewhere: only the way from the start of the file can. A build went
that way, and its time blocks (formats/time_blocks.py) keep a record's place for each 64 KiB, with the smallest and
the largest store time of those that begin there. So who needs a window of time need not read all of a file.

They are a claim, as all of a sidecar is: believed only between the offsets that ``sidecar.json`` says are indexed,
and only if the log still has the last record that it names. What it does not cover is one piece, and has to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.errors import FormatError, StoreError
from whence.files.mapped_file import read_whole
from whence.files.names import offset_name
from whence.formats.time_blocks import BLOCK_SIZE, TIME_BLOCK, decode_time_blocks
from whence.store.message_store import MessageStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMES_SIZE_MAX = 1 << 20  # a file of the log is smaller than 2 GiB
assert 2**31 // BLOCK_SIZE * TIME_BLOCK.itemsize <= TIMES_SIZE_MAX


class Piece(NamedTuple):
    """A stretch of one log file. Where it begins a record does, and where it ends the next one, or nothing more."""

    from_offset: int
    to_offset: int


class ProvenPlaces:
    """Cuts the log of one store into pieces. ``trusts``: whether time blocks are believed at all."""

    def __init__(self, store: MessageStore, *, trusts: bool = True) -> None:
        self._store = store
        self._log = store.commit_log
        self._indexed: list[tuple[int, int]] = []
        claim = store.claim() if trusts else None
        for begin, end in sorted(claim.indexed) if claim is not None and claim.is_of(self._log) else ():
            begin = max(begin, self._indexed[-1][1]) if self._indexed else begin
            if begin < end:
                self._indexed.append((begin, end))

    def pieces(
        self, from_offset: int, to_offset: int, size: int, since_ms: int | None = None, until_ms: int | None = None
    ) -> Iterator[Piece]:
        """The log between two offsets in pieces of about this size, oldest first, without what the window rules out.

        ``to_offset`` is where the log ends, or a record begins. The first piece may begin before ``from_offset``: at
        the nearest place that is proven.
        """
        base = self._log.base_of(from_offset)
        for begin, end in self._log.pieces(from_offset if base is None else base, to_offset):
            yield from self._of_file(begin, end, from_offset, size, since_ms, until_ms)

    def _of_file(
        self, begin: int, end: int, from_offset: int, size: int, since_ms: int | None, until_ms: int | None
    ) -> Iterator[Piece]:
        """Pieces of one log file, of which ``begin`` is the first byte."""
        starts, wanted = np.array([begin]), np.ones(1, np.bool_)
        is_whole = end - begin <= size and from_offset <= begin and since_ms is None and until_ms is None
        blocks = None if is_whole else self._blocks(begin)
        if blocks is not None:
            in_window = np.ones(len(blocks), np.bool_)
            if since_ms is not None:
                in_window &= blocks["largest_ms"] >= since_ms
            if until_ms is not None:
                in_window &= blocks["smallest_ms"] <= until_ms
            for indexed_from, indexed_to in self._indexed:
                low, high = max(indexed_from, begin), min(indexed_to, end)
                if low < high:
                    cuts, keeps = _known(low - begin, high - begin, blocks["position"].astype(np.int64), in_window)
                    is_before = starts < low
                    starts = np.concatenate([starts[is_before], cuts + begin, [high]])
                    wanted = np.concatenate([wanted[is_before], keeps, [True]])
        yield from _joined(starts, wanted, end, from_offset, size)

    def _blocks(self, base: int) -> NDArray[np.void] | None:
        """The time blocks of the log file that begins here; None if there are none that make sense."""
        if self._store.sidecar is None or not self._indexed:
            return None
        try:
            data = read_whole(self._store.sidecar / "times" / offset_name(base), TIMES_SIZE_MAX)
            blocks = decode_time_blocks(data)
        except (FormatError, StoreError):
            return None
        positions = blocks["position"].astype(np.int64)
        in_order = (np.diff(positions) > 0).all() and (not len(positions) or positions[0] >= 0)
        return blocks if in_order and (blocks["smallest_ms"] <= blocks["largest_ms"]).all() else None


def _known(
    low: int, high: int, positions: NDArray[np.int64], in_window: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where records begin between two positions of a file, and whether each piece from there on is in the window."""
    first, behind = np.searchsorted(positions, [low, high], "left").tolist()
    cuts, keeps = positions[first:behind], in_window[first:behind]
    if len(cuts) and cuts[0] == low:
        return cuts, keeps
    # The block of ``low`` began before it, and its times are those of what lies here, too. Else nothing is known.
    is_told = first > 0 and positions[first - 1] // BLOCK_SIZE == low // BLOCK_SIZE
    return np.concatenate([[low], cuts]), np.concatenate([[bool(in_window[first - 1]) if is_told else True], keeps])


def _joined(
    starts: NDArray[np.int64], wanted: NDArray[np.bool_], end: int, from_offset: int, size: int
) -> Iterator[Piece]:
    """Neighbours that are wanted become one piece, until it has its size."""
    ends = np.append(starts[1:], end)
    wanted = wanted & (ends > from_offset) & (starts < ends)
    changes = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    for first, behind in changes.reshape(-1, 2).tolist():
        while first < behind:
            cut = first + int(np.searchsorted(ends[first:behind], starts[first] + size, "right"))
            cut = max(cut, first + 1)
            yield Piece(int(starts[first]), int(ends[cut - 1]))
            first = cut
