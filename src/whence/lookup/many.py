"""Find many: a batch join of keys against the index, by kernels over arrays.

    keys x topics -> hashes -> chains of all of them at once -> candidates, sorted by offset
    -> records checked in the log -> rows by key

It is :mod:`whence.lookup.search` for very many keys: the same segments, the same candidates, and a message answers
for the same reasons. A row is a key and a message that bears it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.errors import CorruptError, FormatError, NotFoundError
from whence.files.names import OFFSET_MAX
from whence.formats.hashing import decode_java_utf8
from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.topics import is_system_topic
from whence.lookup.answer import Receipt
from whence.lookup.asked_keys import AskedKeys
from whence.lookup.cursor import NO_POSITION
from whence.lookup.field_search import BeginAnewError
from whence.lookup.question import Question, ScanMode
from whence.lookup.search import LogSearch, Progress
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.index import Segment
from whence.store.index_file import IndexFile
from whence.store.message_store import MessageStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOOKUPS = 4_194_304  # chains that are walked in one batch at most: keys times topics
KEYS_AT_ONCE = 1_048_576  # keys in one batch at most; with fewer, their records lie further apart in the log
CHECKED = 16_384  # candidates that are checked in one kernel call

_Candidates = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""Numbers of keys, and physical offsets."""


class Scanned(NamedTuple):
    """What a scan found in a part of the log: numbers of keys, in order; where their records lie; and damage."""

    key_numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    damage: list[Damage]

    def of_keys(self, first: int, behind: int) -> _Candidates:
        """What was found of some keys."""
        begin, end = np.searchsorted(self.key_numbers, (first, behind))
        return self.key_numbers[begin:end], self.offsets[begin:end]


def scan_part(log: CommitLog, keys: AskedKeys, from_offset: int, to_offset: int) -> Scanned:
    """Look for keys in a part of one log file. The scan goes on behind damage."""
    log.use_kernel()
    sieve = _KeySieve(keys)
    damage: list[Damage] = []
    log.scan(from_offset, to_offset, sieve, damage)
    return Scanned(*sieve.candidates(), damage)


class Rows(NamedTuple):
    """Rows (ROW) as they were found, and the numbers of those that count, by key.

    To bring the rows themselves in order would take as much memory again, fresh memory, which is dear in a virtual
    machine: up to 90 ms for a million rows, beside 10 ms for the order (benchmarks/find_many.py).
    """

    all: NDArray[np.void]
    order: NDArray[np.int64]


class Topics:
    """Topics that rows name by a number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, data: bytes) -> int:
        """The number of a topic, as it lies in a record."""
        number = self._numbers.get(data)
        if number is None:
            name = decode_java_utf8(data)
            number = self._numbers[data] = len(self.names)
            self.names.append(name)
        return number


class KeysSearch(LogSearch):
    """Keys put to one store: :meth:`scan` first, then :meth:`rows` of some keys after the other, then ``finish``."""

    def __init__(
        self,
        store: MessageStore,
        question: Question,
        keys: AskedKeys,
        topics: Topics,
        *,
        number: int = 0,
        end_offset: int = OFFSET_MAX,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(store, question, NO_POSITION, None, progress, (0, end_offset))
        self.is_broken = False
        self._keys = keys
        self._found_topics = topics
        self._number = number
        self._asked_topics = [] if question.scan is ScanMode.EVERYTHING else self._topics()
        searched = [
            segment
            for segment in self._segments_for_keys(scans_all=not self._asked_topics)
            if segment.from_offset < self._below and segment.to_offset > self._from
        ]
        if any(segment.is_told for segment in searched):
            self.receipt.index_source = store.index_source()
        self._segments = [
            segment if segment.file is not None else replace(segment, to_offset=min(segment.to_offset, self._below))
            for segment in searched
            if not segment.bare
        ]
        self.receipt.index_files_skipped -= sum(segment.file is not None for segment in self._segments)
        self._scanned: dict[int, Scanned] = {}
        self._is_topic_fit: dict[int, bool] = {}
        self._checker: Any = None
        self._room: Any = None
        store.commit_log.use_kernel()

    @property
    def end_offset(self) -> int:
        """What lies behind it was not looked at."""
        return self._below

    @property
    def batch_size(self) -> int:
        """How many keys are asked at once."""
        return min(KEYS_AT_ONCE, max(LOOKUPS // max(len(self._asked_topics), 1), 1))

    @property
    def to_scan(self) -> list[tuple[int, int]]:
        """The parts of the log that are scanned, each in one log file."""
        if self.question.scan is ScanMode.NOTHING:
            return [(part.from_offset, part.to_offset) for part in self._segments if part.file is None and part.seam]
        return [(part.from_offset, part.to_offset) for part in self._segments if part.file is None]

    def scan(self, known: Mapping[tuple[int, int], Scanned] = MappingProxyType({})) -> None:
        """Look for all the keys in what no index covers. ``known``: what was found there already."""

        def scan(begin: int, end: int, damage: list[Damage]) -> Sequence[int]:
            found = known.get((begin, end))
            if found is None:
                found = scan_part(self.store.commit_log, self._keys, begin, end)
            self._scanned[begin] = found
            damage += found.damage
            return ()

        for segment in self._segments:
            if segment.file is None:
                for _ in self._scan(segment, scan):
                    pass

    def rows(self, first: int, behind: int) -> Rows:
        """The rows of keys ``first`` to ``behind - 1``, those of a key newest first (or oldest first).

        The next call takes their place.
        """
        from whence.kernels.candidates import ROW, order_by_key

        hashes = self._keys.key_hashes(self._asked_topics, first, behind)
        found = []
        for segment in self._segments:
            if segment.file is None:
                if segment.from_offset not in self._scanned:
                    continue  # as asked
                numbers, offsets = self._scanned[segment.from_offset].of_keys(first, behind)
            else:
                numbers, offsets = self._walk_file(segment, segment.file, hashes, first, behind)
            if segment.from_offset < self._from or segment.to_offset > self._below:
                is_inside = (offsets >= self._from) & (offsets < self._below)
                numbers, offsets = numbers[is_inside], offsets[is_inside]
            if len(numbers):
                found.append((*_by_offset(numbers, offsets), segment.file))
        candidate_count = sum(len(offsets) for _, offsets, _ in found)
        if self._room is None or len(self._room) < candidate_count:
            self._room = np.empty(candidate_count, ROW)
        rows: NDArray[np.void] = self._room
        count = 0
        for numbers, offsets, file in found:
            count += self._checked(numbers, offsets, file, rows[count:])
        rows = rows[:count]
        order = np.empty(count, np.int64)
        places = np.zeros(behind - first + 1, np.int64)
        order = order[: int(order_by_key(rows, first, self.question.oldest_first, places, order))]
        self.receipt.candidates -= count - len(order)
        return Rows(rows, order)

    def finish(self, last_given: int | None, *, empty: bool) -> Receipt:
        if empty and self._asked_topics and not self._whys:
            self._look_for_expired()
        return super().finish(last_given, empty=empty)

    def _look_for_expired(self) -> None:
        """Whether the index knew one of the keys in messages that are gone."""
        from whence.kernels.chains import walk_chains

        begin_offset = self.cover.begin_offset
        files = {*self.cover.expired, *(segment.file for segment in self._segments if segment.file is not None)}
        for file in files:
            try:
                if file.shape is None or file.header().begin_physical_offset >= begin_offset:
                    continue
                for first in range(0, len(self._keys), self.batch_size):
                    behind = min(first + self.batch_size, len(self._keys))
                    hashes = self._keys.key_hashes(self._asked_topics, first, behind)
                    shape, bad_links = file.shape, np.empty(len(hashes), np.int64)
                    walk = walk_chains(file.data, shape.slot_capacity, shape.item_capacity, hashes, bad_links)
                    if any((found["physical_offset"] < begin_offset).any() for found in walk):
                        self._whys.add("probably_expired")
                        return
            except (CorruptError, NotFoundError):
                continue  # where it covers what is left of the log, the walk has told it

    def _broken(self, file: IndexFile, error: CorruptError) -> BeginAnewError:
        self.is_broken = True
        return super()._broken(file, error)

    # -- candidates ------------------------------------------------------------------------------------------

    def _walk_file(
        self, segment: Segment, file: IndexFile, hashes: NDArray[np.int32], first: int, behind: int
    ) -> _Candidates:
        """The candidates that one index file gives."""
        from whence.kernels.chains import NO_DAMAGE, walk_chains

        within = max(segment.from_offset, self._from), min(segment.to_offset, self._below)
        assert file.shape is not None
        bad_links = np.empty(len(hashes), np.int64)
        try:
            walk = walk_chains(
                file.data, file.shape.slot_capacity, file.shape.item_capacity, hashes, bad_links, within=within
            )
            found = []
            try:
                while True:
                    found.append(next(walk))
            except StopIteration as ended:
                self.receipt.items_visited += ended.value
        except NotFoundError as error:
            self.store.index.forget(file)
            raise BeginAnewError from error
        if (bad_links != NO_DAMAGE).any():
            raise self._broken(file, self._damage_of(segment, file, hashes, bad_links))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers = np.concatenate([each["key_number"] for each in found])
        if len(self._asked_topics) > 1:
            numbers %= behind - first
        return numbers + first, np.concatenate([each["physical_offset"] for each in found])

    def _damage_of(
        self, segment: Segment, file: IndexFile, hashes: NDArray[np.int32], bad_links: NDArray[np.int64]
    ) -> CorruptError:
        """What is wrong with a chain, in the words of the plain walk."""
        from whence.kernels.chains import NO_DAMAGE, chain_damage

        number = int(np.argmax(bad_links != NO_DAMAGE))
        try:
            for _ in self._chain(segment, file, int(hashes[number])):
                pass
        except CorruptError as error:
            return error
        assert file.shape is not None
        data = np.frombuffer(file.data, np.uint8)  # a writer has mended it meanwhile
        damage = chain_damage(data, file.shape.slot_capacity, file.shape.item_capacity, int(bad_links[number]))
        return CorruptError(damage.what, position=damage.position, path=file.path)

    # -- decisions -------------------------------------------------------------------------------------------

    def _checked(
        self, numbers: NDArray[np.int64], offsets: NDArray[np.int64], walked: IndexFile | None, out: NDArray[np.void]
    ) -> int:
        """Fill ``out`` with the rows of candidates, sorted by offset, that answer the question; how many."""
        from whence.kernels.candidates import Checker

        if self._checker is None:
            self._checker = Checker(CHECKED)
        self.receipt.candidates += len(offsets)
        count = 0
        log = self.store.commit_log
        for begin, end in log.pieces(int(offsets[0]), int(offsets[-1]) + 1):
            first, behind = np.searchsorted(offsets, (begin, end))
            for at in range(first, behind, CHECKED):
                chunk = slice(at, min(at + CHECKED, behind))
                count += self._check_chunk(numbers[chunk], offsets[chunk], walked, out[count:])
        self.receipt.rejected += len(offsets) - count
        return count

    def _check_chunk(
        self,
        key_numbers: NDArray[np.int64],
        offsets: NDArray[np.int64],
        walked: IndexFile | None,
        out: NDArray[np.void],
    ) -> int:
        """Fill ``out`` with the rows of candidates in one log file that answer; how many."""
        from whence.kernels.candidates import ANY, EVER, NOT_WHOLE, Fit

        checker, keys, question = self._checker, self._keys, self.question
        count = len(offsets)
        try:
            file = self.store.commit_log.file_of(int(offsets[0]))
        except NotFoundError:
            return 0  # it has expired since the question was put
        data, base = np.frombuffer(file.file.data, np.uint8), file.base
        bad_count, names = checker.check(data, base, key_numbers, offsets, keys.data, keys.starts, keys.sizes)
        if bad_count:
            bad = offsets[checker.found[:count] == NOT_WHOLE]
            self._look_at_bad(np.unique(bad).tolist(), walked)
        numbers = [self._found_topics.number(name) for name in names]
        topics = np.array(numbers, np.int32)
        are_fit = np.array([self._is_fit(number) for number in numbers], np.bool_)
        has_tag = np.empty(0, np.bool_)
        if question.tag is not None:
            has_tag = checker.have_tag(data, base, count, question.tag)
        fit = Fit(
            ANY if question.queue is None else question.queue,
            ANY if question.since_ms is None else question.since_ms,
            EVER if question.until_ms is None else question.until_ms,
        )
        put = checker.put(count, topics, are_fit, fit, has_tag, self._number, out)
        self._topic_seen |= question.topic is not None and put.topic_seen
        if put.is_outside:
            self._whys.add("outside_window")
        if put.is_filtered:
            self._whys.add("filtered")
        return int(put.rows)

    def _is_fit(self, number: int) -> bool:
        """Whether messages of this topic answer."""
        fit = self._is_topic_fit.get(number)
        if fit is None:
            name, question = self._found_topics.names[number], self.question
            fit = name == question.topic
            if question.topic is None:
                fit = question.system_topics or not is_system_topic(name)
            self._is_topic_fit[number] = fit
        return fit

    def _look_at_bad(self, offsets: list[int], walked: IndexFile | None) -> None:
        """What the plain road says of records that are not whole: damage of the log, or an index file that lies."""
        boundary = None
        for physical_offset in offsets:
            try:
                self.store.read(physical_offset)
            except (FormatError, NotFoundError) as error:
                if walked is not None:
                    log = self.store.commit_log
                    if not log.is_boundary(physical_offset, [], boundary):
                        what = f"an item leads to offset {physical_offset}, where no record begins"
                        raise self._broken(walked, CorruptError(what, path=walked.path)) from error
                    boundary = physical_offset
                self._damaged(physical_offset, error)


def _by_offset(numbers: NDArray[np.int64], offsets: NDArray[np.int64]) -> _Candidates:
    """Candidates in order of offsets. Both are sorted as one number, where one holds them: an eighth of the time."""
    least, bits = int(offsets.min()), int(numbers.max()).bit_length()
    if (int(offsets.max()) - least).bit_length() + bits > 63:
        order = np.argsort(offsets)
        return numbers[order], offsets[order]
    both = offsets - least << bits | numbers
    both.sort()
    return both & (1 << bits) - 1, (both >> bits) + least


class _KeySieve:
    """Notes which records of a scan bear which of the keys; it lets none through."""

    def __init__(self, keys: AskedKeys) -> None:
        from whence.kernels.key_table import CLEAN_SIZE

        self._keys = keys
        self._clean = np.empty(CLEAN_SIZE, np.uint8)
        self._numbers = [np.empty(0, np.int64)]
        self._offsets = [np.empty(0, np.int64)]

    def candidates(self) -> _Candidates:
        """What was noted, by key."""
        numbers, offsets = np.concatenate(self._numbers), np.concatenate(self._offsets)
        order = np.argsort(numbers, kind="stable")
        return numbers[order], offsets[order]

    def rows(
        self, messages: NDArray[Any], items: NDArray[Any], data: NDArray[np.uint8], base: int
    ) -> NDArray[np.int64]:
        from whence.kernels.candidates import find_in_items

        keys = self._keys
        numbers, offsets = np.empty((2, len(items)), np.int64)
        count = find_in_items(
            data,
            base,
            items,
            keys.data,
            keys.starts,
            keys.sizes,
            keys.hashes,
            keys.table,
            self._clean,
            numbers,
            offsets,
        )
        if count:
            self._numbers.append(numbers[:count].copy())
            self._offsets.append(offsets[:count].copy())
        return np.empty(0, np.int64)

    def takes(self, message: Message) -> bool:
        """Note one record that the plain road met."""
        for key in message.keys:
            number = self._keys.number(key)
            if number is not None:
                self._numbers.append(np.array([number], np.int64))
                self._offsets.append(np.array([message.physical_offset], np.int64))
        return False
