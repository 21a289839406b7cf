"""WholeIndex: what the maker of an index says of all its files, and where by that no message has items.

An index file tells of the messages between its first item and its last. Those without a key, an id or a tag have no
items: where they lie behind the last item, or between two files, the files cannot tell them from messages that were
left out. Who made all of the files can: ``sidecar.json`` says up to where the log is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader
from whence.store.index_file import IndexFile, Shape


@dataclass(frozen=True, slots=True)
class Reach:
    """What one file can be believed for: all messages between the records at ``begin`` and ``end``.

    Those two records themselves may have items in other files. ``begin_next`` and ``end_next`` are where the
    records behind them begin.
    """

    file: IndexFile
    header: IndexHeader
    begin_next: int
    end_next: int
    full: bool

    @property
    def begin(self) -> int:
        return self.header.begin_physical_offset

    @property
    def end(self) -> int:
        return self.header.end_physical_offset


@dataclass(frozen=True, slots=True)
class WholeIndex:
    """All index files of a folder, by name: no message of the ``indexed`` stretches has an item elsewhere.

    It was said before the files were looked at. A newest file that has grown since has more than ``newest_header``
    counts, and so may other files that came since: of messages behind what is ``indexed``.
    """

    folder: Path
    shape: Shape
    names: Sequence[str]
    newest_header: IndexHeader
    indexed: Sequence[tuple[int, int]]
    last_record_offset: int

    def bare(self, reaches: Iterable[Reach]) -> list[tuple[int, int]]:
        """The parts of the log whose messages have no items, oldest first; ``reaches``: of all files that are there.

        They lie before the first file, between one and the next, and behind the last. A file that is not there, or
        not what was said, may have had the items of all that its neighbours leave.
        """
        there = {reach.file.path.name: reach for reach in reaches if reach.file.path.parent == self.folder}
        indexed_to = self.indexed[-1][1] if self.indexed else 0
        if any(reach.begin < indexed_to for name, reach in there.items() if name not in self.names):
            return []  # somebody else has put items of these messages into a file of his own
        mine = [there[name] for name in self.names if name in there]
        if any(behind.begin < reach.end for reach, behind in pairwise(mine)):
            return []  # their names are not the ones that they were given
        return [
            (max(begin, first), min(end, behind))
            for begin, end in self._between(there, indexed_to)
            for first, behind in self.indexed
            if max(begin, first) < min(end, behind)
        ]

    def _between(self, there: dict[str, Reach], indexed_to: int) -> Iterator[tuple[int, int]]:
        position, is_known = 0, True
        for name in self._with_items():
            reach = there.get(name)
            if reach is None or not self._is_as_noted(name, reach):
                is_known = False
                continue
            if is_known:
                yield position, reach.begin
            position, is_known = reach.end_next, True
        if is_known:
            yield position, indexed_to

    def _with_items(self) -> Sequence[str]:
        """The files into which something was put: the newest may wait for its first item."""
        return self.names if self.newest_header.next_item > FIRST_ITEM else self.names[:-1]

    def _is_as_noted(self, name: str, reach: Reach) -> bool:
        """Whether a file has all that was said to be in it."""
        if name == self.names[-1]:
            return reach.header.has_grown_from(self.newest_header)
        return reach.header.item_count == self.shape.item_capacity
