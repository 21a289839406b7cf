"""MessageStore: one RocketMQ store folder, for reading; the door for everyone above."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from whence.errors import CorruptError, FormatError, NotFoundError, StoreError, UsageError
from whence.files.folder import folders_in, is_file, is_folder
from whence.files.mapped_file import read_whole
from whence.files.names import OFFSET_MAX
from whence.formats.hashing import key_hash, tag_hash
from whence.formats.rocketmq.checkpoint import CHECKPOINT_SIZE, Checkpoint, decode_checkpoint
from whence.formats.rocketmq.config import decode_config
from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.properties import VALUE_END
from whence.formats.rocketmq.topics import can_be_folder
from whence.store.commit_log import CommitLog
from whence.store.consume_queue import BatchQueue, Boundary, ConsumeQueue
from whence.store.index import Cover, Index
from whence.store.index_file import IndexFile, Shape
from whence.store.stretch_keys import StretchKeys

if TYPE_CHECKING:
    from whence.store.field_index import FieldIndex
    from whence.store.sidecar import Claim, Sidecar
    from whence.store.time_blocks import TimeBlocks
    from whence.store.whole_index import WholeIndex

BATCH_QUEUES = "batchconsumequeue"
QUEUE_FOLDERS = ("consumequeue", BATCH_QUEUES)
QUEUES_OPEN_MAX = 256
CONFIG_SIZE_MAX = 16 * 1048576
DIALECT_SAMPLE = 1048576  # bytes of log looked at, in each index file's part, to tell which version wrote it


class Dialect(StrEnum):
    """The version that wrote an index. 5.5 (since 5.4) also indexes the tag; 4.9 ends properties differently."""

    V4_9 = "4.9"
    V5_3 = "5.3"
    V5_5 = "5.5"


class MessageStore:
    """A store folder: CommitLog, ConsumeQueues, index, checkpoint and config. Reads, and changes nothing.

    With a ``sidecar``, index and queues are looked for there first.

    One object is for one thread; any number of objects and processes may read one store, also while a broker
    writes to it. What was appended since the last call is seen by the next one.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape | None = None,
        dialect: Dialect | None = None,
        log_folders: Sequence[Path] = (),
        sidecar: Path | None = None,
    ) -> None:
        log_folders = log_folders or [folder / "commitlog"]
        if not all(map(is_folder, log_folders)):
            raise NotFoundError(f"{folder}: is no RocketMQ store, it has no folder commitlog/")
        self.folder = folder
        self.sidecar = sidecar
        self.roots = (folder,) if sidecar is None else (sidecar, folder)
        """Where index and queues are looked for, in this order."""
        self.commit_log = CommitLog(*log_folders)
        self.asked_shape = shape
        self.index = Index(*(root / "index" for root in self.roots), shape=shape)
        self.stretch_keys = StretchKeys(self.commit_log)
        self.asked_dialect = dialect
        self._queues: OrderedDict[tuple[str, int], ConsumeQueue] = OrderedDict()
        self._roots_of_queues: tuple[Path, ...] = self.roots
        self._cover: Cover | None = None
        self._cover_state: tuple[object, ...] = ()
        self._claim: Claim | None = None
        self._source: tuple[Cover, str] | None = None
        self._topics: tuple[tuple[int, ...], frozenset[str]] | None = None
        self._fields: dict[str, FieldIndex] = {}

    # -- messages --------------------------------------------------------------------------------------------

    def read(self, physical_offset: int) -> Message:
        """The message at this offset of the CommitLog; see :meth:`CommitLog.read`."""
        return self.commit_log.read(physical_offset)

    def read_queue(self, topic: str, queue: int, queue_offset: int, count: int = 1) -> list[Message]:
        """Up to ``count`` messages of a queue from this offset on, in order; fillers are passed over.

        An inner batch, which holds several of them, is one message here.
        """
        found = []
        consume_queue = self.queue(topic, queue)
        end = min(queue_offset + count, consume_queue.end_offset())
        while queue_offset < end:
            entry = consume_queue.entry(queue_offset)
            if not entry.is_filler:
                found.append(consume_queue.read(entry))
            queue_offset = entry.next_queue_offset
        return found

    def scan(self, from_offset: int | None = None, to_offset: int | None = None) -> Iterator[Message]:
        """Every message of a stretch of the log, in order. ``from_offset`` is where a record begins."""
        begin = self.commit_log.begin_offset if from_offset is None else from_offset
        end = self.commit_log.end_offset() if to_offset is None else to_offset
        return self.commit_log.messages(begin, end)

    # -- addresses -------------------------------------------------------------------------------------------

    def candidates(self, topic: str, key: str) -> Iterator[int]:
        """Physical offsets that the index files give for a key or unique id, newest file first; not verified.

        What no index file covers is not in it: :meth:`cover` tells which part of the log that is.
        """
        wanted = key_hash(topic, key)
        for segment in reversed(self.cover().segments):
            if segment.file is not None:
                for _, item_hash, physical_offset in segment.file.walk(wanted):
                    if item_hash == wanted:
                        yield physical_offset

    def offset_by_time(self, topic: str, queue: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """The queue offset for a store time; see :meth:`ConsumeQueue.offset_by_time`."""
        return self.queue(topic, queue).offset_by_time(timestamp_ms, boundary)

    def window_stretches(self, since_ms: int | None, until_ms: int | None) -> list[tuple[int, int]]:
        """The parts of the log that can hold messages of a time window, each in one file, oldest first.

        All of the log, unless a sidecar has time blocks of it.
        """
        cover = self.cover()
        blocks = None if since_ms is None and until_ms is None else self.time_blocks()
        if blocks is None:
            return self.commit_log.pieces(cover.begin_offset, cover.end_offset)
        return blocks.stretches(cover.begin_offset, cover.end_offset, since_ms, until_ms)

    def time_blocks(self) -> TimeBlocks | None:
        """The sparse time index of a sidecar; None if there is none."""
        claim = self.claim()
        if self.sidecar is None or claim is None:
            return None
        from whence.store.time_blocks import TimeBlocks

        return TimeBlocks(self.commit_log, self.sidecar / "times", claim)

    def cover(self) -> Cover:
        """Which part of the log the index covers now. Costs microseconds while nothing changes."""
        claim = self.claim()
        state = (self.commit_log.state(), self.index.state(), claim)
        if self._cover is None or state != self._cover_state:
            self._cover = self.index.cover(self.commit_log, self._limits(claim), self._whole_index(claim))
            # The log may have grown while it was asked what lies behind its end: then the next question looks again.
            is_current = self._cover.end_offset == self.commit_log.seen_end_offset
            self._cover_state = (self.commit_log.state(), *state[1:]) if is_current else ()
        return self._cover

    def claim(self) -> Sidecar | None:
        """What the sidecar says of itself; None if there is none."""
        if self.sidecar is None:
            return None
        if self._claim is None:
            from whence.store.sidecar import Claim

            self._claim = Claim(self.sidecar)
        return self._claim.read()

    def _limits(self, claim: Sidecar | None) -> dict[Path, Sequence[tuple[int, int]]]:
        """Between which offsets index files that a build made are believed: where it could read the log.

        They reach over gaps and records that fail. What was not there may be there again, and what could not be read
        is told by who reads it.
        """
        if self.sidecar is None:
            return {}
        own = self.sidecar / "index"
        if claim is None or not claim.indexed or not claim.is_of(self.commit_log):
            return {own: ()}
        if not claim.in_place:
            return {own: claim.indexed}
        begins, ends = zip(*claim.indexed, strict=True)
        # Before what was built, and behind it, a broker's files are what they always are.
        return {own: (), self.folder / "index": tuple(zip((0, *begins[1:]), (*ends[:-1], OFFSET_MAX), strict=True))}

    def _whole_index(self, claim: Sidecar | None) -> WholeIndex | None:
        """What the sidecar says of all its index files together, if it was a build or a follower that made them.

        A store of whence's own makes its index itself: of that a sidecar knows nothing. Where no file was made, no
        index was: the first message asks for one, even if it has no items.
        """
        if self.sidecar is None or claim is None or is_file(self.folder / "whence.json") or not claim.index_names:
            return None
        return claim.whole_index(self.folder if claim.in_place else self.sidecar, self.commit_log)

    def index_source(self) -> str:
        """Who made the index that covers the log now: ``whence``, if all of it is whence's own, or ``broker``."""
        cover = self.cover()
        if self._source is None or self._source[0] is not cover:
            used = [segment.file for segment in cover.segments if segment.file is not None]
            is_bare = not used and any(segment.bare for segment in cover.segments)
            is_ours = is_bare or self._is_indexed_by_us(used)
            self._source = (cover, "whence" if is_ours else "broker")
        return self._source[1]

    def _is_indexed_by_us(self, used: list[IndexFile]) -> bool:
        """Whether whence made all of these: as builds, or as the store's writer."""
        claim = self.claim()
        if used and self.sidecar is not None and claim is not None:
            root = self.folder if claim.in_place else self.sidecar
            used = [file for file in used if not claim.has_made(file, root)]
            if not used:
                return True
        own = self.folder / "index"
        if not is_file(self.folder / "whence.json") or any(file.path.parent != own for file in used):
            return False
        from whence.store.ownership import is_indexed_by_us

        return is_indexed_by_us(self.folder, [file for file in self.index.files if file.path.parent == own])

    def field(self, name: str) -> FieldIndex:
        """The index of a field; UsageError if none of this name is indexed."""
        from whence.store.field_index import FieldIndex

        claim = self.claim()
        noted = None if claim is None else claim.fields.get(name)
        if noted is None:
            raise self._no_field(name)
        assert self.sidecar is not None
        known = self._fields.get(name)
        if known is None or known.claim != noted:
            known = self._fields[name] = FieldIndex(self.sidecar / "fields" / name, noted)
        return known

    def _no_field(self, name: str) -> UsageError:
        from whence.store.field_claim import check_field_name
        from whence.store.sidecar import read_sidecar

        check_field_name(name)
        claim = None if self.sidecar is None else read_sidecar(self.sidecar)  # which tells if it cannot be read
        names = [] if claim is None else sorted(claim.fields)
        there = f"the fields are {', '.join(names)}" if names else "none is"
        return UsageError(
            f"{self.folder}: no field {name} is indexed, {there}; "
            f'whence build {self.folder} --field {name}="SQL" does it'
        )

    # -- queues and topics -----------------------------------------------------------------------------------

    def queue_roots(self) -> tuple[Path, ...]:
        """Where queues are looked for, in this order: not in a sidecar that says that they lie in the store.

        It may have some of before, which nobody lets grow and nobody verifies.
        """
        claim = self.claim()
        return self.roots if claim is None or not claim.in_place else (self.folder,)

    def queue_folder(self, topic: str, queue: int) -> Path:
        """The folder of a queue; a topic that is no plain name never becomes a path."""
        if not can_be_folder(topic) or queue < 0:
            raise NotFoundError(f"topic {topic!r} has no queue {queue}")
        places = [root / kind / topic / str(queue) for root in self.queue_roots() for kind in QUEUE_FOLDERS]
        return next(filter(is_folder, places), self.folder / QUEUE_FOLDERS[0] / topic / str(queue))

    def queue(self, topic: str, queue: int) -> ConsumeQueue:
        if (roots := self.queue_roots()) != self._roots_of_queues:
            self._close_queues()
            self._roots_of_queues = roots
        found = self._queues.get((topic, queue))
        if found is None:
            folder = self.queue_folder(topic, queue)
            if not is_folder(folder):
                raise NotFoundError(f"{folder}: there is no such queue")
            self.cover()  # finds the log's end the short way, from where the index ends
            kind = BatchQueue if folder.parents[1].name == BATCH_QUEUES else ConsumeQueue
            found = self._queues[topic, queue] = kind(folder, topic, queue, self.commit_log)
            while len(self._queues) > QUEUES_OPEN_MAX:
                self._queues.popitem(last=False)[1].close()
        self._queues.move_to_end((topic, queue))
        return found

    def queues(self, topic: str) -> list[int]:
        """The queues of a topic that have a folder."""
        if not can_be_folder(topic):
            return []
        places = (root / kind / topic for root in self.queue_roots() for kind in QUEUE_FOLDERS)
        names = {name for place in places for name in _folders_in(place)}
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def topics_source(self) -> str:
        """Who tells which topics there are: the ``sidecar``, which was built from the log, or the ``broker``."""
        is_told = self.sidecar in self.queue_roots() and is_folder(self.sidecar / "consumequeue")
        return "sidecar" if is_told and self.index_source() == "whence" else "broker"

    def topics(self) -> frozenset[str]:
        """The topics that the queue folders, the sidecar and ``config/topics.json`` name."""
        places = [root / kind for root in self.queue_roots() for kind in QUEUE_FOLDERS]
        state = tuple(_modified(folder) for folder in (*places, self.folder / "config", *self.roots))
        if self._topics is None or self._topics[0] != state:
            names = {name for place in places for name in _folders_in(place)}
            try:
                table = self.config("topics.json").get("topicConfigTable")
                names |= set(table) if isinstance(table, dict) else set()
            except (FormatError, StoreError):
                pass  # a broker that stopped in the middle leaves it empty; the folders tell
            claim = self.claim()
            if claim is not None:
                names |= set(claim.other_topics)
            self._topics = (state, frozenset(names))
        return self._topics[1]

    # -- small files -----------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        return read_checkpoint(self.folder)

    def config(self, name: str) -> dict[str, Any]:
        """One JSON file of ``config/``, as the broker left it."""
        path = self.folder / "config" / name
        try:
            return decode_config(read_whole(path, CONFIG_SIZE_MAX))
        except FormatError as error:
            raise error.at(path) from None

    def dialect(self) -> Dialect:
        """Which version wrote the index: as asked, else what the newest file shows, else 5.5."""
        if self.asked_dialect is not None:
            return self.asked_dialect
        self.index.refresh()
        if not self.index.files:
            return Dialect.V5_5  # without a look for the end of the log, which may take a scan of it
        for segment in reversed(self.cover().segments):
            if segment.file is not None:
                try:
                    shown = self._shown_dialect(segment.file, segment.from_offset, segment.to_offset)
                except CorruptError:
                    continue  # its chains are damaged; another one will tell
                if shown is not None:
                    return shown
        return Dialect.V5_5

    def _shown_dialect(self, file: IndexFile, from_offset: int, to_offset: int) -> Dialect | None:
        """What the first tagged messages that a file covers tell; None if there are none."""
        for message in self.commit_log.messages(from_offset, min(to_offset, from_offset + DIALECT_SAMPLE)):
            if message.tags is None or message.is_rollback:
                continue
            tagged = tag_hash(message.topic, message.tags)
            if any(item[1:] == (tagged, message.physical_offset) for item in file.walk(tagged)):
                return Dialect.V5_5
            return Dialect.V5_3 if message.properties_data.endswith(VALUE_END.encode()) else Dialect.V4_9
        return None

    def _close_queues(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

    def close(self) -> None:
        self._close_queues()
        for field in self._fields.values():
            field.close()
        self.index.close()
        self.commit_log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of the store in this folder."""
    path = folder / "checkpoint"
    try:
        return decode_checkpoint(read_whole(path, CHECKPOINT_SIZE))
    except FormatError as error:
        raise error.at(path) from None


def _folders_in(folder: Path) -> list[str]:
    """Names of folders; none if the folder is not there or cannot be read."""
    try:
        return folders_in(folder)
    except StoreError:
        return []


def _modified(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -1
