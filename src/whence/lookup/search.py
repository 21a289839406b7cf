"""Search: which files can hold it -> slot -> chain -> candidates -> verified messages.

An index item, a queue entry or a row of a scan is a candidate: a physical offset. The message that lies there,
read whole and checked, decides whether it answers the question, so no collision and no stale item reaches the
caller, none eats the limit, and a window is exact to the millisecond at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import repeat
from typing import Any, Protocol

from whence.errors import CorruptError, FormatError, NotFoundError, UsageError
from whence.files.names import OFFSET_MAX
from whence.formats.hashing import key_hash
from whence.formats.rocketmq.host import Host
from whence.formats.rocketmq.ids import decode_offset_id
from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.places import offsets_in_queue
from whence.formats.rocketmq.topics import is_system_topic
from whence.lookup.answer import Answer, LogReceipt, Receipt
from whence.lookup.cursor import NO_POSITION, decode_cursor, encode_cursor, resume
from whence.lookup.field_search import BeginAnewError, Evaluate, FieldSearch
from whence.lookup.question import Question, ScanMode
from whence.store.consume_queue import ConsumeQueue, Entry
from whence.store.damage import Damage, DamageKind
from whence.store.index import Segment
from whence.store.index_file import IndexFile
from whence.store.message_store import MessageStore
from whence.store.scan import Sieve

Progress = Callable[[int, int], None]
"""Told how many bytes of how many were scanned."""


class Tracer(Protocol):
    """Is told each step of a search; ``explain`` is one."""

    def step(self, name: str, **details: Any) -> None: ...


def find(
    stores: Sequence[MessageStore],
    question: Question,
    *,
    tracer: Tracer | None = None,
    progress: Progress | None = None,
    evaluate: Evaluate | None = None,
) -> Answer:
    """Put one question to one or several stores. ``evaluate``: who evaluates fields, if no index is to be trusted."""
    positions = [NO_POSITION] * len(stores)
    if question.cursor is not None:
        cursor = decode_cursor(question.cursor, question, len(stores))
        question, positions = resume(question, cursor), list(cursor.positions)
    while True:
        try:
            return _find(stores, question, positions, tracer, progress, evaluate)
        except BeginAnewError:
            continue  # at most once for each index file: it is not used any more


def find_offsets(
    store: MessageStore, question: Question, evaluate: Evaluate | None = None
) -> tuple[list[int], Receipt]:
    """Where all messages that answer the question lie, in order; for who takes many and reads them himself."""
    while True:
        search = LogSearch(store, question, NO_POSITION, None, None, evaluate=evaluate)
        try:
            offsets = [message.physical_offset for message in search.messages()]
        except BeginAnewError:
            continue
        return offsets, search.finish(None, empty=not offsets)


def candidates(
    store: MessageStore, question: Question, within: tuple[int, int], *, whole: bool = False
) -> tuple[list[int], list[Damage]]:
    """Physical offsets between two offsets where a message may lie that answers the question; and damage met.

    For who reads them all at once and looks himself. ``whole``: those that are whole records, each looked at.
    """
    while True:
        search = LogSearch(store, question, NO_POSITION, None, None, within)
        try:
            offsets = [offset for offset in search.candidates() if not whole or search.read(offset) is not None]
        except BeginAnewError:
            continue
        return offsets, search.receipt.damage


def _find(
    stores: Sequence[MessageStore],
    question: Question,
    positions: Sequence[int],
    tracer: Tracer | None,
    progress: Progress | None,
    evaluate: Evaluate | None,
) -> Answer:
    searches = [
        LogSearch(store, question, position, tracer, progress, evaluate=evaluate)
        for store, position in zip(stores, positions, strict=True)
    ]
    positions = list(positions)
    found: list[Message] = []
    truncated = False
    for message, number in _merged(searches, question):
        if question.limit is not None and len(found) == question.limit:
            truncated = True
            break
        found.append(message)
        positions[number] = message.physical_offset
    receipts = [
        search.finish(positions[number] if truncated else None, empty=not found)
        for number, search in enumerate(searches)
    ]
    receipt = receipts[0] if len(receipts) == 1 else join_receipts(stores, receipts, empty=not found)
    if truncated:
        receipt.truncated = True
        receipt.cursor = encode_cursor(question, tuple(positions))
    return Answer(question, found, receipt)


def _merged(searches: list[LogSearch], question: Question) -> Iterator[tuple[Message, int]]:
    """The messages of all logs with their log's number: each log by position, the logs by store time."""
    streams = [zip(search.messages(), repeat(number)) for number, search in enumerate(searches)]
    if len(streams) == 1:
        return streams[0]
    return merge(*streams, key=lambda pair: pair[0].store_timestamp_ms, reverse=not question.oldest_first)


def join_receipts(stores: Sequence[MessageStore], receipts: list[Receipt], *, empty: bool) -> Receipt:
    """One receipt over several logs: sums, and the weakest of each claim. Offsets are in ``logs``."""
    sources = {receipt.index_source for receipt in receipts}
    topics_from = {receipt.topics_from for receipt in receipts}
    joined = Receipt(
        complete=all(receipt.complete for receipt in receipts),
        index_source=next(source for source in INDEX_SOURCES if source in sources),
        topics_from=next((source for source in TOPICS_SOURCES if source in topics_from), None),
        verified_by=receipts[0].verified_by,
        logs=[LogReceipt(str(store.folder), receipt) for store, receipt in zip(stores, receipts, strict=True)],
        damage=[damage for receipt in receipts for damage in receipt.damage],
    )
    for name in (
        "scanned_bytes",
        "index_files",
        "index_files_skipped",
        "items_visited",
        "candidates",
        "rejected",
    ):
        setattr(joined, name, sum(getattr(receipt, name) for receipt in receipts))
    if empty:
        reasons = {receipt.why_empty for receipt in receipts}
        if len(reasons) > 1:
            reasons.discard("no_such_topic")  # a topic that one of them has is a topic
        joined.why_empty = next((why for why in WHY_EMPTY if why in reasons), None)
    return joined


def is_queued(store: MessageStore, physical_offset: int) -> bool:
    """Whether a whole record lies here, and its queue leads to it."""
    try:
        message = store.read(physical_offset)
        return (
            store.queue(message.topic, message.queue).entry(message.queue_offset).physical_offset == physical_offset
        )
    except (FormatError, NotFoundError):
        return False


def _entry_of(queue: ConsumeQueue, queue_offset: int) -> Entry | None:
    """The entry of a queue offset; None if its file has expired."""
    try:
        return queue.entry(queue_offset)
    except NotFoundError:
        return None


WHY_EMPTY = (
    "damaged",
    "not_indexed",
    "no_such_topic",
    "expired",
    "beyond_end",
    "outside_window",
    "filtered",
    "probably_expired",
    "no_such_key",
)
"""Why nothing was found; the first that applies is told."""
INDEX_SOURCES = ("broker", "whence", "none")
TOPICS_SOURCES = ("broker", "sidecar", "log", "question")
"""Who made the index, and who tells which topics there are: the one that proves least first."""


class LogSearch:
    """One question put to one store. Take :meth:`messages` as far as wanted, then :meth:`finish`."""

    def __init__(
        self,
        store: MessageStore,
        question: Question,
        position: int,
        tracer: Tracer | None,
        progress: Progress | None,
        within: tuple[int, int] = (0, OFFSET_MAX),
        evaluate: Evaluate | None = None,
    ) -> None:
        self.store = store
        self._evaluate = evaluate
        self.question = question
        self.tracer = tracer
        self.progress = progress
        self.receipt = Receipt()
        self.cover = store.cover()
        self.receipt.index_files = self.receipt.index_files_skipped = self.cover.file_count
        self._whys: set[str] = set()
        self._topic_seen = False
        self._fields: FieldSearch | None = None
        self._walked: IndexFile | None = None  # the file that gave the candidate which is looked at
        self._looked: list[tuple[int, int]] | None = None  # the places that were looked at; None: the whole log
        self._below = min(self.cover.end_offset, within[1])
        self._from = max(self.cover.begin_offset, within[0])
        if position != NO_POSITION:
            if question.oldest_first:
                self._from = position + 1
            else:
                self._below = position

    # -- roads -----------------------------------------------------------------------------------------------

    def messages(self) -> Iterator[Message]:
        """The messages that answer the question, in order, each once."""
        for physical_offset in self.candidates():
            message = self._verified(physical_offset)
            if message is not None:
                yield message

    def candidates(self) -> Iterator[int]:
        """Where messages that answer the question may lie, in order, each once."""
        question = self.question
        if question.fields and question.scan is ScanMode.EVERYTHING:
            met = self._evaluated()
        elif question.fields:
            met = self._with_fields()
        elif question.offset is not None:
            met = self._at_offset(question.offset)
        elif question.queue_offset is not None:
            met = self._at_queue_offset()
        elif question.id is not None:
            met = self._with_id(question.id)
        elif question.keys:
            met = self._with_keys(question.keys)
        else:
            met = self._in_window()
        last = -1
        for physical_offset in met:
            if physical_offset == last or not self._from <= physical_offset < self._below:
                continue
            last = physical_offset
            self.receipt.candidates += 1
            yield physical_offset

    def _at_offset(self, physical_offset: int) -> Iterator[int]:
        self._looked = [(physical_offset, physical_offset + 1)]
        if physical_offset < self.cover.begin_offset:
            self._whys.add("expired")
        elif physical_offset >= self.cover.end_offset:
            self._whys.add("beyond_end")
        elif self._is_record(physical_offset):
            yield physical_offset

    def _is_record(self, physical_offset: int) -> bool:
        """Whether a record begins here, not only bytes that look like one: a body may hold a whole record.

        The queue proves it, where it leads here; else a walk from the file's start does. That is no scan.
        """
        if is_queued(self.store, physical_offset):
            return True
        damage: list[Damage] = []
        met = self.store.commit_log.is_boundary(physical_offset, damage)
        if not met:
            self.receipt.damage += damage  # they may have hidden it
        return met

    def _at_queue_offset(self) -> Iterator[int]:
        topic, queue, queue_offset = self.question.topic, self.question.queue, self.question.queue_offset
        assert topic is not None and queue is not None and queue_offset is not None
        from_offset, to_offset = self.cover.begin_offset, self.cover.end_offset
        try:
            consume_queue = self.store.queue(topic, queue)
            begin, end = consume_queue.begin_offset(), consume_queue.end_offset()
            entry = _entry_of(consume_queue, queue_offset) if queue_offset < end else None
            if entry is not None:
                self._looked = [(entry.physical_offset, entry.end)]
                if not entry.is_filler:
                    self._step("queue", queue_offset=queue_offset, physical_offset=entry.physical_offset)
                    if entry.physical_offset < from_offset:
                        self._whys.add("expired")
                        return
                    if self.store.commit_log.base_of(entry.physical_offset) is not None:
                        consume_queue.read(entry)
                        yield entry.physical_offset
                    return
            # Messages of a queue lie in the log in the order of their queue offsets: what the queue does not
            # hold lies before its first entry or behind its last.
            if queue_offset >= end > begin:
                from_offset = consume_queue.read(consume_queue.entry(end - 1)).physical_offset
                self._whys.add("beyond_end")
            elif queue_offset < begin:
                if begin < end:
                    to_offset = consume_queue.read(consume_queue.entry(begin)).physical_offset
                self._whys.add("expired")
        except NotFoundError:
            pass
        except FormatError as error:
            self.receipt.damage.append(Damage.from_error(DamageKind.BAD_QUEUE, error))
        self._looked = [(from_offset, to_offset + 1)]  # what lies behind the log's end counts, if that is the end
        pieces = self.store.commit_log.pieces(from_offset, to_offset)
        yield from self._scan_log(pieces, Sieve(topic=topic, queue=queue, queue_offset=queue_offset))

    def _with_id(self, text: str) -> Iterator[int]:
        """By offset id, unique id or key: whatever it is."""
        direct: list[int] = []
        try:
            host, physical_offset = decode_offset_id(text)
        except CorruptError:
            pass
        else:
            if 0 <= physical_offset < self.cover.begin_offset:
                if self._is_of_this_log(host):
                    self._whys.add("expired")
            elif 0 <= physical_offset < self.cover.end_offset and self._is_record(physical_offset):
                direct = [physical_offset]
        return merge(direct, self._with_keys((text,)), reverse=not self.question.oldest_first)

    def _is_of_this_log(self, host: Host) -> bool:
        """Whether this log's broker gives out ids of that host: most unique ids could be offset ids by their look."""
        try:
            return self.store.read(self.cover.begin_offset).store_host == host
        except (FormatError, NotFoundError):
            return True

    def _with_keys(self, keys: tuple[str, ...]) -> Iterator[int]:
        """Candidates in log order: from index files where they cover the log, by a scan elsewhere."""
        question, receipt = self.question, self.receipt
        hashes = set() if question.scan is ScanMode.EVERYTHING else self._hashes(keys)
        segments = self._segments_for_keys(scans_all=not hashes)
        for segment in segments if question.oldest_first else reversed(segments):
            if segment.to_offset <= self._from or segment.from_offset >= self._below:
                self._step("skipped", file=segment.file, why="the page before went past it")
                continue
            if receipt.index_source == "none" and segment.is_told:
                receipt.index_source = self.store.index_source()
            if segment.bare:
                self._step("bare", from_offset=segment.from_offset, to_offset=segment.to_offset)
            elif segment.file is None:
                yield from self._scan_for_keys(segment, keys)
            else:
                receipt.index_files_skipped -= 1
                yield from self._walk(segment, segment.file, hashes)
        if hashes and not self._whys and receipt.candidates == receipt.rejected:
            self._look_into_expired(hashes)

    def _with_fields(self) -> Iterator[int]:
        """Candidates from the index files of fields. What they do not cover cannot be decided."""
        topics = self._topics()
        self._fields = FieldSearch(
            self.store,
            self.question,
            self.receipt,
            self.cover,
            topics,
            (self._from, self._below),
            self._possible,
            self._step,
            self._whys.add,
        )
        if not topics and self.cover.begin_offset < self.cover.end_offset:
            self.receipt.complete = False  # nothing tells which topics there are
            self._whys.add("not_indexed")
        yield from self._fields.candidates()

    def _evaluated(self) -> Iterator[int]:
        """Candidates by the expressions of fields, evaluated for every message that the pages before have left."""
        question, begin, end = self.question, self.cover.begin_offset, self._below
        if self._evaluate is None:
            raise UsageError("no index is trusted with --scan: a field is evaluated on Spark then, by find or export")
        scanned = self._evaluate(self.store, question.fields, begin, end)
        self.receipt.topics_from = "log" if question.topic is None else "question"
        self.receipt.damage += scanned.damage
        self.receipt.scanned_bytes += sum(
            behind - first for first, behind in self.store.commit_log.pieces(begin, end)
        )
        if scanned.undecided is None or any(map(self._may_answer, scanned.undecided)):
            self.receipt.complete = False
        self._step("scan", from_offset=begin, to_offset=end, seam=False, hits=len(scanned.offsets))
        yield from scanned.offsets if question.oldest_first else reversed(scanned.offsets)

    def _may_answer(self, physical_offset: int) -> bool:
        """Whether the message that lies here meets the question, apart from its fields."""
        if not self._from <= physical_offset < self._below:
            return False
        message = self.read(physical_offset)
        return message is not None and _differs(self.question, message) is None

    def _possible(self, from_offset: int, to_offset: int) -> Iterator[Message]:
        """The messages of a part of the log that meet the question, apart from its fields."""
        question, log = self.question, self.store.commit_log
        sieve = Sieve((), question.topic, question.since_ms, question.until_ms, question.queue)
        segment = Segment(from_offset, to_offset, None)
        for offset in self._scan(segment, lambda begin, end, damage: log.scan(begin, end, sieve, damage)):
            message = self.store.read(offset)
            if not message.is_rollback and _differs(question, message) is None:
                yield message

    def _in_window(self) -> Iterator[int]:
        """No key is asked: the log itself is scanned, but for parts that a sidecar's time blocks rule out."""
        question = self.question
        sieve = Sieve((), question.topic, question.since_ms, question.until_ms, question.queue)
        pieces = self.store.commit_log.pieces(self.cover.begin_offset, self.cover.end_offset)
        if question.scan is not ScanMode.EVERYTHING:
            whole, pieces = pieces, self.store.window_stretches(question.since_ms, question.until_ms)
            kept = sum(end - begin for begin, end in pieces)
            ruled_out = sum(end - begin for begin, end in whole) - kept
            if ruled_out:
                self._step("time_blocks", kept_bytes=kept, ruled_out_bytes=ruled_out)
        yield from self._scan_log(pieces, sieve)
        if self.receipt.candidates == 0 and not (question.since_ms is None and question.until_ms is None):
            self._whys.add("outside_window")

    # -- candidates ------------------------------------------------------------------------------------------

    def _walk(self, segment: Segment, file: IndexFile, hashes: set[int]) -> Iterator[int]:
        """Candidates of one index file. If a chain is damaged, or it is gone, the search begins anew without it."""
        self._walked = file
        self._step("index_file", file=file, from_offset=segment.from_offset, to_offset=segment.to_offset)
        chains = [self._chain(segment, file, wanted) for wanted in hashes]
        newest_first = chains[0] if len(chains) == 1 else merge(*chains, reverse=True)
        try:
            yield from reversed(list(newest_first)) if self.question.oldest_first else newest_first
        except CorruptError as error:
            raise self._broken(file, error) from error
        except NotFoundError as error:
            self._step("skipped", file=file, why=str(error))
            self.store.index.forget(file)
            raise BeginAnewError from error
        self._walked = None

    def _broken(self, file: IndexFile, error: CorruptError) -> BeginAnewError:
        self._step("bad_chain", file=file, why=str(error))
        self.store.index.distrust(file, error)
        return BeginAnewError()

    def _chain(self, segment: Segment, file: IndexFile, wanted: int) -> Iterator[int]:
        """Offsets of the items with this hash that lie in the segment, newest first."""
        receipt = self.receipt
        newer_offset = OFFSET_MAX
        for number, item_hash, physical_offset in file.walk(wanted):
            receipt.items_visited += 1
            if physical_offset > newer_offset:
                # A broker passes over a message below the last one it put, so offsets never rise along a chain.
                what = f"item {number} leads to offset {physical_offset}, a newer one to {newer_offset}"
                raise CorruptError(what, position=file.item_position(number), path=file.path)
            newer_offset = physical_offset
            if self.tracer is not None:
                self._step(
                    "item",
                    file=file,
                    wanted=wanted,
                    number=number,
                    key_hash=item_hash,
                    physical_offset=physical_offset,
                )
            if physical_offset < segment.from_offset:
                return  # nothing of this segment follows
            if item_hash == wanted and physical_offset < segment.to_offset:
                yield physical_offset

    def _scan_for_keys(self, segment: Segment, keys: tuple[str, ...]) -> Iterator[int]:
        stretch_keys = self.store.stretch_keys
        return self._scan(segment, lambda begin, end, damage: stretch_keys.candidates(begin, end, keys, damage))

    def _scan_log(self, pieces: Sequence[tuple[int, int]], sieve: Sieve) -> Iterator[int]:
        """A scan of the log itself, piece by piece, so that an answer that is full spares the rest."""
        log = self.store.commit_log
        for begin, end in pieces if self.question.oldest_first else reversed(pieces):
            if begin < self._below and end > self._from:
                segment = Segment(begin, end, None)
                yield from self._scan(segment, lambda begin, end, damage: log.scan(begin, end, sieve, damage))

    def _scan(self, segment: Segment, scan: Callable[[int, int, list[Damage]], Sequence[int]]) -> Iterator[int]:
        """Candidates of a stretch of one log file that no index covers."""
        question, receipt = self.question, self.receipt
        if question.scan is ScanMode.NOTHING and not segment.seam:
            receipt.complete = False
            self._whys.add("not_indexed")
            self._step("not_scanned", from_offset=segment.from_offset, to_offset=segment.to_offset)
            return
        begin, end = segment.from_offset, segment.to_offset
        offsets = scan(begin, end, receipt.damage)
        if not segment.seam:
            receipt.scanned_bytes += end - begin
            if self.progress is not None:
                self.progress(receipt.scanned_bytes, self.cover.end_offset - self.cover.begin_offset)
        if self.tracer is not None:
            self._step("scan", from_offset=begin, to_offset=end, seam=segment.seam, hits=len(offsets))
        yield from offsets if question.oldest_first else reversed(offsets)

    def _look_into_expired(self, hashes: set[int]) -> None:
        """Whether the index knew the key in messages that are gone; asked only when nothing else was found."""
        begin_offset = self.cover.begin_offset
        straddling = {segment.file for segment in self.cover.segments if segment.file is not None}
        for file in (*self.cover.expired, *straddling):
            try:
                if file.header().begin_physical_offset >= begin_offset:
                    continue
                for wanted in hashes:
                    if any(item[1] == wanted and item[2] < begin_offset for item in file.walk(wanted)):
                        self._whys.add("probably_expired")
                        return
            except (CorruptError, NotFoundError):
                continue  # where it covers what is left of the log, the walk has told it

    def _hashes(self, keys: tuple[str, ...]) -> set[int]:
        """What the index files hold for the keys: a key's hash depends on its topic."""
        return {key_hash(topic, key) for topic in self._topics() for key in keys}

    def _topics(self) -> list[str]:
        """The topics in which something is looked up."""
        question = self.question
        if question.topic is not None:
            self.receipt.topics_from = "question"
            return [question.topic]
        self.receipt.topics_from = self.store.topics_source()
        wants_system = question.system_topics or question.id is not None or question.offset is not None
        topics = [topic for topic in self.store.topics() if wants_system or not is_system_topic(topic)]
        self._step("topics", topics=sorted(topics))
        return topics

    def _segments_for_keys(self, *, scans_all: bool) -> Sequence[Segment]:
        """The log from start to end, as it is looked through for keys.

        ``scans_all``: without an index, as asked or since nothing tells which topics there are.
        """
        receipt, cover = self.receipt, self.cover
        if scans_all:
            receipt.topics_from = "log" if self.question.topic is None else "question"
            pieces = self.store.commit_log.pieces(cover.begin_offset, cover.end_offset)
            return [Segment(begin, end, None) for begin, end in pieces]
        receipt.damage += cover.not_used
        receipt.indexed_to_offset = cover.indexed_to_offset
        receipt.indexed_to_timestamp_ms = cover.indexed_to_timestamp_ms
        for file in cover.expired:
            self._step("skipped", file=file, why="its part of the log has expired")
        for damage in cover.not_used:
            self._step("skipped", file=damage.path, why=damage.detail)
        return cover.segments

    # -- decisions -------------------------------------------------------------------------------------------

    def _verified(self, physical_offset: int) -> Message | None:
        """The message at a candidate's offset, if it answers the question."""
        message = self.read(physical_offset)
        if message is None:
            return None
        why_not = self._why_not(message)
        if why_not is None:
            if self.tracer is not None:
                self._step("verified", physical_offset=physical_offset, topic=message.topic, keys=message.keys)
            return message
        self.receipt.rejected += 1
        self._step("rejected", physical_offset=physical_offset, why=why_not)
        return None

    def read(self, physical_offset: int) -> Message | None:
        """The message at a candidate's offset; None if none is there, which is damage."""
        try:
            return self.store.read(physical_offset)
        except (FormatError, NotFoundError) as error:
            self.receipt.rejected += 1
            self._step("rejected", physical_offset=physical_offset, why=str(error))
            if self._fields is not None and not self.store.commit_log.is_boundary(physical_offset, []):
                raise self._fields.not_a_record() from error
            if self._walked is not None and not self.store.commit_log.is_boundary(physical_offset, []):
                what = f"an item leads to offset {physical_offset}, where no record begins"
                raise self._broken(self._walked, CorruptError(what, path=self._walked.path)) from error
            self._damaged(physical_offset, error)
            return None

    def _why_not(self, message: Message) -> str | None:
        """Why a message does not answer the question; None if it does."""
        question = self.question
        if self._fields is not None and not self._fields.is_hit(message):
            return "its topic and value read alike, but are others"
        differs = _differs(question, message)
        if differs is None:
            self._topic_seen = True
            return None
        why_not, reason = differs
        if message.topic == question.topic or reason is not None:
            self._topic_seen = True
        if reason is not None:
            self._whys.add(reason)
        return why_not

    def _damaged(self, physical_offset: int, error: FormatError | NotFoundError) -> None:
        """A record that should be there cannot be read. A gap is told as a whole, by :meth:`finish`."""
        if isinstance(error, FormatError):
            path, position = self.store.commit_log.path_of(physical_offset)
            self.receipt.damage.append(Damage(str(path), position, DamageKind.BAD_RECORD, error.what))

    # -- receipt ---------------------------------------------------------------------------------------------

    def finish(self, last_given: int | None, *, empty: bool) -> Receipt:
        """The receipt. ``last_given``: where the answer was cut off; None if it was not."""
        receipt, cover, question = self.receipt, self.cover, self.question
        if receipt.scanned_bytes:
            self.store.commit_log.refresh()  # files that expired during the scan may not have been looked at
        receipt.searched_from_offset = max(self._from, self.store.commit_log.begin_offset)
        receipt.searched_to_offset = self._below
        if last_given is not None:
            # What was not given yet counts as not searched, although a message of it may have been looked at.
            if question.oldest_first:
                receipt.searched_to_offset = max(self._from, last_given + 1)
            else:
                receipt.searched_from_offset = self._below if last_given == NO_POSITION else last_given
        # What lies behind the log's end counts where that end was looked at.
        looked = self._looked or [(receipt.searched_from_offset, receipt.searched_to_offset + 1)]
        receipt.damage += [
            damage
            for begin, end, damage in cover.log_damage
            if any(begin < looked_to and end > looked_from for looked_from, looked_to in looked)
        ]
        if receipt.damage:
            receipt.damage = list(dict.fromkeys(receipt.damage))
        if any(damage.kind.hides_messages for damage in receipt.damage):
            receipt.complete = False
        if empty:
            if question.fields and _names_some(question):
                self._look_without_fields()
            receipt.why_empty = self._why_empty()
        return receipt

    def _look_without_fields(self) -> None:
        """Whether messages meet the question but for its fields; asked only when nothing was found."""
        other = LogSearch(self.store, replace(self.question, fields=()), NO_POSITION, None, None)
        if next(other.messages(), None) is not None:
            self._whys.add("filtered")
        self._whys |= other._whys & {"expired", "beyond_end", "outside_window", "filtered", "probably_expired"}
        self._topic_seen |= other._topic_seen

    def _why_empty(self) -> str:
        whys = set(self._whys)
        if self.receipt.damaged:
            whys.add("damaged")
        topic = self.question.topic
        if topic is not None and not self._topic_seen and not self._is_topic(topic):
            whys.add("no_such_topic")
        return next((why for why in WHY_EMPTY if why in whys), "no_such_key")

    def _is_topic(self, topic: str) -> bool:
        """Whether a queue, the configuration or, where those tell nothing or nothing is trusted, the log has it."""
        topics = self.store.topics()
        if topic in topics or self.question.scan is ScanMode.NOTHING:
            return topic in topics
        if topics and self.question.scan is not ScanMode.EVERYTHING:
            return False
        sieve = Sieve(topic=topic)
        log = self.store.commit_log
        return any(log.scan(*piece, sieve, []) for piece in log.pieces(self._from, self._below))

    def _step(self, name: str, **details: Any) -> None:
        if self.tracer is not None:
            self.tracer.step(name, **details)


def _differs(question: Question, message: Message) -> tuple[str, str | None] | None:
    """Why a message does not answer a question, its fields apart; None if it does.

    In words, and what it is as a reason for an empty answer, where it is one.
    """
    if question.keys and not any(key in message.keys for key in question.keys):
        return "it does not bear the key: another one has the same hash", None
    if question.id is not None and not _has_id(message, question.id):
        return "it does not bear the id: another one has the same hash", None
    if question.offset is not None and message.physical_offset != question.offset:
        return "it lies elsewhere", None
    if question.queue_offset is not None:
        assert question.topic is not None and question.queue is not None
        is_there = question.queue_offset in offsets_in_queue(message, question.topic, question.queue)
        if not is_there or message.is_prepared or message.is_rollback:
            return "it is not in the queue at that offset", None
    elif question.topic is not None:
        if message.topic != question.topic:
            return f"its topic is {message.topic}", None
    elif (
        not question.system_topics
        and question.id is None
        and question.offset is None
        and is_system_topic(message.topic)
    ):
        return f"its topic {message.topic} is a system topic", None
    if question.queue_offset is None and question.queue is not None and message.queue != question.queue:
        return f"its queue is {message.queue}", None
    stored = message.store_timestamp_ms
    if (question.since_ms is not None and stored < question.since_ms) or (
        question.until_ms is not None and stored > question.until_ms
    ):
        return f"it was stored at {stored}, outside the window", "outside_window"
    if question.tag is not None and message.tags != question.tag:
        return f"its tag is {message.tags}", "filtered"
    return None


def _names_some(question: Question) -> bool:
    """Whether a question asks for messages that are few, its fields apart."""
    return bool(question.keys) or any(
        asked is not None for asked in (question.id, question.offset, question.queue_offset)
    )


def _has_id(message: Message, text: str) -> bool:
    return (
        message.offset_id == text.upper()
        or (message.unique_id == text and not message.is_rollback)
        or text in message.keys
    )
