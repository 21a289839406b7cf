"""QueueCheck: the files of one queue held against the entries that the log has for it.

    check = QueueCheck(folder, file_size, begin_offset=log.begin_offset, end_offset=scanned_to)
    findings = check.run(runs)             entries and their queue offsets, in the order of the log

What brokers do is no damage, unless the files are whence's own (``is_exact``):

    expired            entries that lead before the log's begin, at the beginning of the queue
    fillers            before the first entry
    a cut queue        keeps the bytes of entries that lead behind the log's end
    a lost message     has no entry, and those behind it lie at smaller offsets than they should
    a delayed message  its entry has the time of delivery, and how long a level waits can be configured
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from whence.errors import NotFoundError, StoreError
from whence.files.file_sequence import FileSequence
from whence.files.folder import files_in, is_folder
from whence.files.map_pool import MapPool
from whence.files.mapped_file import MappedFile
from whence.files.names import OFFSET_MAX, offset_name, parse_offset_name
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.consume_queue import (
    BATCH_ENTRY,
    ENTRY,
    EXT_ADDRESS_MAX,
    EXT_UNIT,
    EXT_UNIT_SIZE_MIN,
)
from whence.formats.rocketmq.topics import DELAY
from whence.store.findings import LISTED_MAX, Finding, FindingKind, Findings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Run: TypeAlias = tuple[NDArray[np.void], NDArray[np.int64]]

REPAIR = "build this queue anew from the log"
_KINDS = {
    "MISSING": FindingKind.MISSING,
    "DANGLING": FindingKind.DANGLING,
    "ENTRY": FindingKind.WRONG_ENTRY,
    "EMPTY": FindingKind.WRONG_ENTRY,
    "FILLER": FindingKind.WRONG_ENTRY,
    "NOT_ZERO": FindingKind.NOT_ZERO,
}


@dataclass(slots=True)
class QueueFindings(Findings):
    """What a check found. Counts below are no damage."""

    entry_count: int = 0  # that lead to their messages
    expired_count: int = 0
    dropped_count: int = 0  # messages whose place was taken by others before
    late_count: int = 0  # messages at the end that have no entry yet
    ahead_count: int = 0  # entries that lead behind what was scanned


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """One queue. ``folder`` is that of its files, which need not be there.

    ``begin_offset``, ``end_offset``: of the log as it was scanned. What leads before it has expired.
    ``is_open``: the last messages may not have been dispatched yet.
    ``is_exact``: whence made it, so that nothing a broker does counts.
    """

    folder: Path
    file_size: int
    begin_offset: int
    end_offset: int
    is_batch: bool = False
    is_open: bool = False
    is_exact: bool = False

    def run(self, expected: Iterable[Run]) -> QueueFindings:
        """Check the queue. ``expected``: the entries that the log has for it, as runs of any size.

        Entries are ENTRY, or BATCH_ENTRY. Of an entry that leads to an ext unit, the unit's code is looked at.
        """
        started = self.start()
        for entries, queue_offsets in expected:
            started.put(entries, queue_offsets)
        return started.finish()

    def start(self, maps: MapPool | None = None) -> StartedCheck:
        """Begin a check, for one who meets the runs of many queues in turn, with a pool of maps for all of them."""
        return StartedCheck(self, MapPool() if maps is None else maps)


@dataclass(frozen=True, slots=True)
class _Window:
    """Entries ``first`` to ``behind - 1``, of one file or where none is; ``size``: bytes of it to look at."""

    first: int
    behind: int
    path: Path | None = None
    size: int = 0


class StartedCheck:
    """One check of one queue. Any number may be under way: a file is mapped while it is looked at, or pooled."""

    def __init__(self, check: QueueCheck, maps: MapPool) -> None:
        from whence.kernels.checks import FAULT
        from whence.kernels.queue_checks import FAULT_KINDS, QUEUE_MATCH, QUEUE_RULES

        self.check = check
        self.found = QueueFindings()
        self._maps = maps
        self.entry = BATCH_ENTRY if check.is_batch else ENTRY
        any_code = not check.is_exact and check.folder.parent.name == DELAY
        limits = (self.entry.itemsize, check.begin_offset, check.end_offset)
        self._rules = np.array([(*limits, check.is_exact, any_code)], QUEUE_RULES)
        self._match = np.zeros(1, QUEUE_MATCH)
        self._faults, self._counts = np.zeros(LISTED_MAX, FAULT), np.zeros(FAULT_KINDS, np.int64)
        self._windows = self._all_windows()
        self._window = next(self._windows)

    def put(self, entries: NDArray[np.void], queue_offsets: NDArray[np.int64]) -> None:
        """Hold the next run of expected entries against the files."""
        from whence.kernels.queue_checks import match_entries

        data = np.frombuffer(entries.astype(self.entry, copy=False).tobytes(), np.uint8)
        offsets = np.array(queue_offsets, np.int64)
        while len(offsets):
            room = (self._data(self._window), self._window.first, self._window.behind)
            done = match_entries(*room, self._rules, self._match, data, offsets, self._faults, self._counts)
            data, offsets = data[self.entry.itemsize * done :], offsets[done:]
            if len(offsets):
                self._leave(is_last=False)
                self._window = next(self._windows)

    def _leave(self, *, is_last: bool) -> None:
        from whence.kernels.queue_checks import pass_entries

        room = (self._data(self._window), self._window.first, self._window.behind)
        pass_entries(*room, self._rules, self._match, is_last, self._faults, self._counts)

    def finish(self) -> QueueFindings:
        """Nothing more is expected: look at what the files have behind that."""
        from whence.kernels.queue_checks import QueueFault

        match, found = self._match, self.found
        if self.check.is_open:
            self._forgive_late()
        self._leave(is_last=True)
        for window in self._windows:
            self._window = window
            self._leave(is_last=True)
        for fault, number, expected, value in self._faults[: int(match["listed"][0])].tolist():
            self._list(QueueFault(fault), number, expected, value)
        for kind in QueueFault:
            found.count(_KINDS[kind.name], int(self._counts[kind]))
        found.entry_count, found.expired_count = int(match["placed"][0]), int(match["expired"][0])
        found.dropped_count, found.ahead_count = int(match["dropped"][0]), int(match["ahead"][0])
        return found

    def _forgive_late(self) -> None:
        """Take back what was told of messages at the end that have no entry: it will come."""
        from whence.kernels.queue_checks import QueueFault

        match = self._match
        self.found.late_count = int(match["late"][0])
        if self.found.late_count:
            self._counts[QueueFault.MISSING] -= self.found.late_count
            first = int(match["listed_before"][0])
            listed = self._faults[first : int(match["listed"][0])]
            others = listed[listed["kind"] != QueueFault.MISSING]
            self._faults[first : first + len(others)] = others
            match["listed"] = first + len(others)

    def _list(self, fault: object, number: int, expected: int, found: int) -> None:
        """Put a fault into words."""
        from whence.kernels.queue_checks import QueueFault

        if fault is QueueFault.MISSING:
            there = "is not written" if found < 0 else f"leads to offset {found}"
            detail = f"entry {number} should lead to the message at offset {expected}, but {there}"
        elif fault is QueueFault.DANGLING:
            detail = f"entry {number} leads to offset {found}, where no message of this queue lies"
        elif fault is QueueFault.ENTRY:
            detail = f"entry {number} leads to the message at offset {expected}, but tells another size or code of it"
        elif fault is QueueFault.EMPTY:
            detail = f"entry {number} is not written, but entries behind it are"
        elif fault is QueueFault.FILLER:
            detail = f"entry {number} is a filler, but lies behind entries"
        else:
            detail = f"entry {number} leads to offset {found}, but lies behind the last message of the queue"
        position = number * self.entry.itemsize
        in_file = position % self.check.file_size
        path = self.check.folder / offset_name(position - in_file)
        assert isinstance(fault, QueueFault)
        self.found.list(Finding(path, in_file, _KINDS[fault.name], detail, REPAIR))

    # -- files -----------------------------------------------------------------------------------------------

    def _all_windows(self) -> Iterator[_Window]:
        """The queue from entry 0 on, file by file, without an end."""
        check, entry_size, first = self.check, self.entry.itemsize, 0
        for base, path, size in self._files():
            number = base // entry_size
            if number > first:
                yield _Window(first, number)
            first = number + check.file_size // entry_size
            yield _Window(number, first, path, self._written_size(path, size))
        yield _Window(first, OFFSET_MAX)

    def _files(self) -> list[tuple[int, Path, int]]:
        """Base offset, path and size of each file that can be one."""
        folder, file_size = self.check.folder, self.check.file_size
        try:
            there = files_in(folder)
        except NotFoundError:
            return []
        except StoreError as error:
            self._find(FindingKind.UNREADABLE, folder, 0, str(error))
            return []
        files = []
        for name in sorted(there):
            base, size = parse_offset_name(name), there[name].size
            if base is None:
                continue
            if base % file_size:
                what = f"no file of a queue begins at byte {base}, where files have {file_size} bytes"
                self._find(FindingKind.WRONG_SIZE, folder / name, 0, what)
                continue
            if size == 0 and name == max(there) and self.check.is_open:
                continue  # it is being made
            if size != file_size:
                what = f"the file has {size} bytes, not {file_size}"
                self._find(FindingKind.WRONG_SIZE, folder / name, min(size, file_size), what)
            files.append((base, folder / name, size))
        return files

    def _find(self, kind: FindingKind, path: Path, position: int, detail: str) -> None:
        self.found.add(Finding(path, position, kind, detail, REPAIR))

    def _written_size(self, path: Path, size: int) -> int:
        """How many bytes of a file there are to look at: nothing is written in the hole at its end."""
        try:
            with PlainFile(path) as file:
                pieces = file.data_pieces(0, self.check.file_size)
        except StoreError as error:
            self._find(FindingKind.UNREADABLE, path, 0, str(error))
            return 0
        entry_size = self.entry.itemsize
        end = min(pieces[-1][0] + pieces[-1][1] if pieces else 0, self.check.file_size)
        return min(-(-end // entry_size), size // entry_size) * entry_size

    def _mapped(self, path: Path) -> MappedFile | None:
        try:
            return self._maps.get(path) or self._maps.put(path, MappedFile(path))
        except StoreError as error:
            self._find(FindingKind.UNREADABLE, path, 0, str(error))
            return None

    def _data(self, window: _Window) -> NDArray[np.uint8]:
        """What a file has."""
        mapped = None if window.path is None or not window.size else self._mapped(window.path)
        if mapped is None:
            return np.frombuffer(b"", np.uint8)
        data = np.frombuffer(mapped.data[: window.size], np.uint8)
        if not self.check.is_batch and (data.view(ENTRY)["tags_code"] <= EXT_ADDRESS_MAX).any():
            data = self._with_codes(data)
        return data

    def _with_codes(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Entries with the codes of the ext units to which they lead. What leads to none keeps its address."""
        queue = self.check.folder
        folder = queue.parent.parent.with_name("consumequeue_ext") / queue.parent.name / queue.name
        if not is_folder(folder):
            return data
        entries = data.view(ENTRY).copy()
        files = FileSequence(folder)
        try:
            codes = entries["tags_code"].astype(np.int64)
            positions = codes + np.int64(-(2**63))  # minus an address's lowest; it wraps around
            for base in files.bases:
                ext = np.frombuffer(files.file(base).data, np.uint8)
                inside = (codes <= EXT_ADDRESS_MAX) & (positions >= base)
                inside &= positions <= base + len(ext) - EXT_UNIT_SIZE_MIN
                at = positions[inside, None] - base + np.arange(EXT_UNIT_SIZE_MIN)
                units = ext[at].reshape(-1).view(EXT_UNIT)
                rows = np.flatnonzero(inside)[units["size"] >= EXT_UNIT_SIZE_MIN]
                entries["tags_code"][rows] = units["tags_code"][units["size"] >= EXT_UNIT_SIZE_MIN]
        finally:
            files.close()
        return np.frombuffer(entries.tobytes(), np.uint8)
