"""FieldSearch: the messages whose fields have the values that were asked, without a look at the expression.

    topic, value -> hash -> slot -> chain -> items with this hash -> those with the same 128 bits beside them

What no index file of a field covers cannot be decided here. If a message lies there that meets the rest of the
question, the answer is not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from whence.errors import CorruptError, NotFoundError
from whence.files.names import OFFSET_MAX
from whence.formats.field_values import value_hash
from whence.formats.hashing import key_hash
from whence.formats.rocketmq.message import Message
from whence.lookup.answer import Receipt
from whence.lookup.question import Question
from whence.store.damage import Damage
from whence.store.field_index import FieldCover, FieldFile, FieldIndex
from whence.store.index import Cover
from whence.store.index_file import IndexFile
from whence.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Hit:
    """An item that leads to a message with the value, as far as its file is right."""

    physical_offset: int
    value_hash: bytes
    number: int
    file: FieldFile
    index: FieldIndex


Hits = Iterator[tuple[int, list[list[Hit]]]]
"""Physical offsets in the order of the question and, field by field, the items that lead there."""


class FieldScan(NamedTuple):
    """What an evaluation of expressions found: physical offsets, in order, and damage that it met.

    ``undecided``: where messages lie whose values nobody knows, as a body that an expression looks at cannot be read;
    None if they are very many.
    """

    offsets: Sequence[int]
    damage: Sequence[Damage]
    undecided: Sequence[int] | None = ()


Evaluate = Callable[[MessageStore, Sequence[tuple[str, str]], int, int], FieldScan]
"""Looks for the messages of a store, between two offsets, whose fields have these values: on Spark."""


class BeginAnewError(Exception):
    """An index file that was believed has a damaged chain, or is gone: what it gave so far may lack messages, too."""


class FieldSearch:
    """The fields of a question, in one store.

    ``topics``: those in which values are looked up. ``span``: between which offsets. ``scan`` gives the messages of a
    part of the log that may answer the question, as far as can be told without the fields. ``step`` is told each
    step, ``add_why`` why nothing may be found. The receipt is written to.
    """

    def __init__(
        self,
        store: MessageStore,
        question: Question,
        receipt: Receipt,
        cover: Cover,
        topics: Sequence[str],
        span: tuple[int, int],
        scan: Callable[[int, int], Iterator[Message]],
        step: Callable[..., None],
        add_why: Callable[[str], None],
    ) -> None:
        self._store = store
        self._question = question
        self._receipt = receipt
        self._cover = cover
        self._topics = topics
        self._span = span
        self._scan = scan
        self._step = step
        self._add_why = add_why
        self._values = [value for _, value in question.fields]
        self._indexes = [store.field(name) for name, _ in question.fields]
        self._covers = [index.cover(store.commit_log) for index in self._indexes]
        self._matched: list[list[Hit]] = []  # of the candidate that was given last
        self._tell_cover()

    def _tell_cover(self) -> None:
        receipt, log = self._receipt, self._store.commit_log
        receipt.verified_by = "value_hash"
        receipt.index_files = receipt.index_files_skipped = sum(cover.file_count for cover in self._covers)
        for cover in self._covers:
            receipt.damage += cover.not_used
            for damage in cover.not_used:
                self._step("skipped", file=damage.path, why=damage.detail)
        covered_to = [cover.covered[-1][1] if cover.covered else 0 for cover in self._covers]
        if all(covered_to):
            receipt.index_source = "whence"
            receipt.indexed_to_offset = min(covered_to)
            last = self._indexes[covered_to.index(min(covered_to))].claim.last_record_offset
            if last >= log.begin_offset:
                receipt.indexed_to_timestamp_ms = log.read(last).store_timestamp_ms

    def candidates(self) -> Iterator[int]:
        """Physical offsets, in the order of the question; :meth:`is_hit` tells what the message there has to be."""
        oldest_first, is_found = self._question.oldest_first, False
        pieces = self._uncovered()
        for offset, matched in _common([self._hits(number) for number in range(len(self._values))], oldest_first):
            while pieces and (pieces[-1][0] < offset if oldest_first else pieces[-1][0] > offset):
                self._look_at(*pieces.pop())
            self._matched, is_found = matched, True
            yield offset
        while pieces:
            self._look_at(*pieces.pop())
        if not is_found:
            self._look_into_expired()

    def is_hit(self, message: Message) -> bool:
        """Whether the candidate that was given last is one, now that its message is read.

        The hash is over topic and value together, and ``a#b`` with value ``c`` reads like ``a`` with value ``b#c``.
        """
        for value, hits in zip(self._values, self._matched, strict=True):
            wanted = value_hash(message.topic, value)
            if all(hit.value_hash != wanted for hit in hits):
                return False
        for hit in (hit for hits in self._matched for hit in hits):
            if not hit.file.fits_time(hit.number, message.store_timestamp_ms):
                what = f"item {hit.number} leads to offset {hit.physical_offset}, but tells another time"
                raise self._broken(hit, what)
        return True

    def not_a_record(self) -> BeginAnewError:
        """No record begins where the candidate that was given last should be."""
        hit = self._matched[0][0]
        what = f"item {hit.number} leads to offset {hit.physical_offset}, where no record begins"
        return self._broken(hit, what)

    def _broken(self, hit: Hit, what: str) -> BeginAnewError:
        file = hit.file.file
        return self._without(
            hit.index, file, CorruptError(what, position=file.item_position(hit.number), path=file.path)
        )

    def _without(self, index: FieldIndex, file: IndexFile, error: CorruptError) -> BeginAnewError:
        self._step("bad_chain", file=file, why=str(error))
        index.distrust(file, error)
        return BeginAnewError()

    # -- what is covered -------------------------------------------------------------------------------------

    def _hits(self, number: int) -> Hits:
        index, cover, wanted = self._indexes[number], self._covers[number], self._wanted(self._values[number])
        files = cover.files if self._question.oldest_first else reversed(cover.files)
        found = (hit for file in files for hit in self._walk(index, cover, file, wanted))
        for offset, hits in groupby(found, key=attrgetter("physical_offset")):
            yield offset, [list(hits)]

    def _wanted(self, value: str) -> dict[int, set[bytes]]:
        """What a value is looked for by: hashes, and the bits beside an item of each."""
        wanted: dict[int, set[bytes]] = {}
        for topic in self._topics:
            wanted.setdefault(key_hash(topic, value), set()).add(value_hash(topic, value))
        return wanted

    def _walk(
        self, index: FieldIndex, cover: FieldCover, file: FieldFile, wanted: dict[int, set[bytes]]
    ) -> Iterator[Hit]:
        """The hits of one file. If a chain is damaged, or it is gone, the search begins anew without it."""
        begin, end = file.header.begin_physical_offset, file.header.end_physical_offset
        if end < self._cover.begin_offset:
            self._step("skipped", file=file.file, why="its part of the log has expired")
            return
        if end < self._span[0] or begin >= self._span[1]:
            self._step("skipped", file=file.file, why="the page before went past it")
            return
        self._receipt.index_files_skipped -= 1
        self._step("index_file", file=file.file, from_offset=begin, to_offset=end + 1)
        chains = [self._chain(index, file, *each) for each in wanted.items()]
        newest_first = merge(*chains, key=attrgetter("physical_offset"), reverse=True)
        hits = (hit for hit in newest_first if cover.covers(hit.physical_offset))
        try:
            yield from reversed(list(hits)) if self._question.oldest_first else hits
        except CorruptError as error:
            raise self._without(index, file.file, error) from error
        except NotFoundError as error:
            self._step("skipped", file=file.file, why=str(error))
            index.forget(file.file)
            raise BeginAnewError from error

    def _chain(self, index: FieldIndex, file: FieldFile, wanted: int, bits: set[bytes]) -> Iterator[Hit]:
        """The items of a chain that are hits, newest first."""
        newer_offset = OFFSET_MAX
        for number, item_hash, physical_offset in file.walk(wanted):
            self._receipt.items_visited += 1
            if physical_offset > newer_offset:
                what = f"item {number} leads to offset {physical_offset}, a newer one to {newer_offset}"
                raise CorruptError(what, position=file.file.item_position(number), path=file.file.path)
            newer_offset = physical_offset
            self._step(
                "item",
                file=file.file,
                wanted=wanted,
                number=number,
                key_hash=item_hash,
                physical_offset=physical_offset,
            )
            if item_hash == wanted and (found := file.value_hash(number)) in bits:
                yield Hit(physical_offset, found, number, file, index)

    def _look_into_expired(self) -> None:
        """Whether messages had the value that are gone; asked only when nothing was found."""
        for index, cover, value in zip(self._indexes, self._covers, self._values, strict=True):
            for file in cover.files:
                if file.header.begin_physical_offset >= self._cover.begin_offset:
                    break
                hits = (hit for each in self._wanted(value).items() for hit in self._chain(index, file, *each))
                try:
                    if any(hit.physical_offset < self._cover.begin_offset for hit in hits):
                        self._add_why("probably_expired")
                        return
                except (CorruptError, NotFoundError):
                    continue  # where it covers what is left of the log, the walk has told it

    # -- what is not -----------------------------------------------------------------------------------------

    def _uncovered(self) -> list[tuple[int, int]]:
        """What a field does not cover, in pieces of one log file each; the last one is to be looked at first."""
        log = self._store.commit_log
        parts = {
            part
            for cover in self._covers
            for part in cover.uncovered(self._cover.begin_offset, self._cover.end_offset)
        }
        pieces = {piece for part in parts for piece in log.pieces(*part)}
        first, behind = self._span
        return sorted(
            (piece for piece in pieces if piece[1] > first and piece[0] < behind),
            reverse=self._question.oldest_first,
        )

    def _look_at(self, from_offset: int, to_offset: int) -> None:
        """See whether a message lies there that may be one of those that were asked for."""
        first, behind = self._span
        if any(first <= message.physical_offset < behind for message in self._scan(from_offset, to_offset)):
            self._receipt.complete = False
            self._add_why("not_indexed")


def _common(streams: list[Hits], oldest_first: bool) -> Hits:
    """What all streams have, which come in the same order."""
    if len(streams) == 1:
        yield from streams[0]
        return
    heads = [next(stream, None) for stream in streams]
    while all(heads):
        offsets = [head[0] for head in heads if head is not None]
        furthest = max(offsets) if oldest_first else min(offsets)
        is_common = min(offsets) == max(offsets)
        if is_common:
            yield furthest, [hits for head in heads if head is not None for hits in head[1]]
        heads = [
            next(stream, None) if head is not None and (is_common or head[0] != furthest) else head
            for stream, head in zip(streams, heads, strict=True)
        ]
