"""The sidecar: what whence keeps beside a store that is not its own, and the checks before it is believed.

    <STORE>.whence/                       or the folder of --out
      sidecar.json                        published last
      index/<17 digits>                   in RocketMQ's bytes, named in UTC
      consumequeue/<topic>/<queue>/<20 digits>, batchconsumequeue/...
      times/<20 digits>                   time blocks, one file for each file of the CommitLog
      fields/<name>/index/<17 digits>     the same as index/, over the values of a field
      fields/<name>/values/<17 digits>    beside each of them the hashes of its items' values
      lock                                of the one process that may write here
      work/                               what a build has not published yet

    version                        1; a newer one is refused
    kind                           what kind of store it belongs to: rocketmq
    dialect, slots, items          of the index
    queue_file_size                of the files of queues
    indexed                        from where to where in the log, one pair for each unbroken stretch
    last_record                    the head of the last record before that, by which one sees that it is the same log
    marks                          the same of some records before it, by which one sees how much of it is the same
    index_files                    names, in order
    newest_index                   header of the last of them
    queues_size                    how many bytes all queues had, by which one sees that none is gone; -1: not known
                                   (0, if index files alone were built in place: the queues are a broker's)
    in_place                       whether index and queues lie in the store itself
    other_topics                   those that have no queue here, since no folder can have their name
    growing                        whether a follower lets the files grow in place: they may have more than is said
    fields                         of each indexed field its SQL, and how far it is indexed: see field_claim.py

It is a claim: who reads an index file looks whether the log bears its header out, whatever is said here. What is
said here tells a build, or a follower, where to go on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from whence.errors import FormatError, NotFoundError, UnsupportedError
from whence.files.disk import Disk
from whence.files.mapped_file import read_whole
from whence.formats.own_json import decode_own_json, number, text
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE
from whence.formats.rocketmq.index_file import NO_HEADER, IndexHeader
from whence.store.commit_log import CommitLog
from whence.store.field_claim import (
    FieldClaim,
    check_index_names,
    check_shape,
    decode_fields,
    decode_noted_header,
    decode_stretches,
    is_same_record,
)
from whence.store.index_file import IndexFile, Shape
from whence.store.message_store import Dialect
from whence.store.scan import Reason
from whence.store.whole_index import WholeIndex

NAME = "sidecar.json"
VERSION = 1
KIND = "rocketmq"
SIZE_MAX = 64 * 1048576
UNKNOWN_SIZE = -1
MARKS_MAX = 1000
MARKS_APART = 4  # of two marks that are kept, the older is at most so many times as far from the end

Mark = tuple[int, bytes]
"""Where a record begins, and its first bytes."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """All of ``sidecar.json``."""

    dialect: Dialect
    slots: int
    items: int
    queue_file_size: int
    indexed: tuple[tuple[int, int], ...] = ()
    last_record_offset: int = -1
    last_record: bytes = b""
    index_names: tuple[str, ...] = ()
    newest_header: IndexHeader = NO_HEADER
    queues_size: int = 0
    in_place: bool = False
    other_topics: tuple[str, ...] = ()
    fields: dict[str, FieldClaim] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()  # oldest first
    growing: bool = False

    @property
    def shape(self) -> Shape:
        """Of the index files."""
        return Shape(self.slots, self.items)

    @property
    def indexed_to(self) -> int:
        """Where the log is not indexed any more; 0 if nothing of it is."""
        return self.indexed[-1][1] if self.indexed else 0

    @property
    def has_queues(self) -> bool:
        """Whether whence made the queues, too. Where a repair built nothing but the index in place, it did not."""
        return not self.in_place or self.queues_size != 0

    def has_made(self, file: IndexFile, root: Path) -> bool:
        """Whether whence made this index file of ``root``, and nobody else has put more into it."""
        name = file.path.name
        if file.path.parent != root / "index" or name not in self.index_names:
            return False
        return self.growing or name != self.index_names[-1] or file.header() == self.newest_header

    def is_of(self, log: CommitLog) -> bool:
        """Whether the log is still the one that was indexed, as far as that is there."""
        return self.same_marks(log) == len(self.marks) + 1

    def same_marks(self, log: CommitLog) -> int:
        """How many of the marks, and then the last record, the log still bears, up to the first that it does not."""
        marks = (*self.marks, (self.last_record_offset, self.last_record))
        for count, mark in enumerate(marks):
            if not is_same_record(log, *mark):
                return count
        return len(marks)

    def believed(self, log: CommitLog) -> tuple[tuple[int, int], ...]:
        """What of the log is indexed for sure: nothing of another log, and behind the last record only blanks.

        A log that lost what followed its last record in a crash may have gone on there with others.
        """
        if not self.is_of(log):
            return ()
        end = self.last_record_offset + int.from_bytes(self.last_record[:4], "big")
        end = max(end, self.indexed[0][0] if self.indexed else 0, log.begin_offset)
        while (behind := log.next_boundary(end)) > end:
            end = behind
        return tuple((begin, min(to, end)) for begin, to in self.indexed if begin < end)

    def whole_index(self, root: Path, log: CommitLog) -> WholeIndex:
        """What is said of all index files below ``root``, where they were made."""
        return WholeIndex(
            root / "index",
            self.shape,
            self.index_names,
            self.newest_header,
            self.believed(log),
            self.last_record_offset,
        )

    def lacks_file(self, log: CommitLog) -> bool:
        """Whether a file came into the log late: behind it the log was indexed before it was there."""
        size = log.file_size
        if len(self.indexed) == 1 and self.indexed[0][0] < log.begin_offset + size:
            return False  # this is asked some ten times a second, and a log has thousands of files
        late = [base for base in log.bases if base < self.indexed_to and not meets(base, base + size, self.indexed)]
        return any(log.file_of(base).what_is_at(0).reason is Reason.END for base in late)  # else all of it is damaged

    def cut_to_mark(self, log: CommitLog) -> Sidecar | None:
        """What is true of a log that was cut, and maybe written anew behind that: as much as its marks tell.

        None if they tell nothing. It is said before anything is cut: the names of files, and what they have, are
        those of before, and nobody knows the queues' size.
        """
        marks = (*self.marks, (self.last_record_offset, self.last_record))[: self.same_marks(log)]
        if not marks or marks[-1][0] < log.begin_offset:
            return None
        offset, head = marks[-1]
        end = offset + int.from_bytes(head[:4], "big")
        indexed = tuple((begin, min(to, end)) for begin, to in self.indexed if begin < end)
        return replace(
            self,
            indexed=indexed,
            last_record_offset=offset,
            last_record=head,
            marks=marks[:-1],
            queues_size=UNKNOWN_SIZE,
        )

    def write(self, folder: Path, disk: Disk) -> None:
        """Put it into a sidecar, in place of the one before."""
        document = {
            "version": VERSION,
            "kind": KIND,
            "dialect": self.dialect,
            "slots": self.slots,
            "items": self.items,
            "queue_file_size": self.queue_file_size,
            "indexed": self.indexed,
            "last_record": {"offset": self.last_record_offset, "head": self.last_record.hex()},
            "marks": [{"offset": offset, "head": head.hex()} for offset, head in self.marks],
            "index_files": self.index_names,
            "newest_index": asdict(self.newest_header),
            "queues_size": self.queues_size,
            "in_place": self.in_place,
            "other_topics": self.other_topics,
            "growing": self.growing,
            "fields": {name: claim.to_document() for name, claim in self.fields.items()},
        }
        disk.replace(folder / NAME, (json.dumps(document, indent=1) + "\n").encode())


def read_sidecar(folder: Path) -> Sidecar | None:
    """What a sidecar says of itself; None if it says nothing."""
    path = folder / NAME
    try:
        data = read_whole(path, SIZE_MAX)
    except NotFoundError:
        return None
    try:
        return decode_sidecar(data)
    except UnsupportedError as error:
        advice = "use a newer whence, or name another folder with --out"
        raise UnsupportedError(f"{error.what}; {advice}", path=path) from error
    except FormatError as error:
        raise error.at(path) from error


def decode_sidecar(data: bytes) -> Sidecar:
    """What the bytes of a ``sidecar.json`` say."""
    return decode_own_json(data, VERSION, _decode, KIND)


def thinned_marks(marks: Sequence[Mark], end_offset: int) -> tuple[Mark, ...]:
    """Few of many marks, which are oldest first: close together near the log's end, and far from it far apart.

    So a log that was cut is known to be the same up to not much before the cut, and there are some tens of marks in
    a log of any size.
    """
    kept: list[Mark] = []
    for mark in reversed(marks):
        if len(kept) > 1 and end_offset - mark[0] <= MARKS_APART * (end_offset - kept[-2][0]):
            kept.pop()
        kept.append(mark)
    return tuple(reversed(kept))


def indexed_stretches(
    log: CommitLog, begin: int, end: int, holes: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """``[begin, end)`` of a log as unbroken stretches: without its gaps, and ``holes`` that cannot be read."""
    gaps = [(gap_begin, gap_end) for gap_begin, gap_end, _ in log.gaps(end)]
    stretches = []
    for hole_begin, hole_end in sorted([*gaps, *holes]):
        if begin < min(hole_begin, end):
            stretches.append((begin, min(hole_begin, end)))
        begin = max(begin, hole_end)
    return [*stretches, (begin, end)] if begin < end else stretches


def meets(from_offset: int, to_offset: int, stretches: Sequence[tuple[int, int]]) -> bool:
    """Whether something of ``[from_offset, to_offset)`` is in one of the stretches."""
    return any(begin < to_offset and from_offset < end for begin, end in stretches)


def join_indexed(before: Sequence[tuple[int, int]], behind: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches, and those behind them, of which the first may go on where the last one before ends."""
    if before and behind and before[-1][1] == behind[0][0]:
        return (*before[:-1], (before[-1][0], behind[0][1]), *behind[1:])
    return (*before, *behind)


class Claim:
    """What the sidecar in a folder says of itself, read again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None
        self._sidecar: Sidecar | None = None

    def read(self) -> Sidecar | None:
        """What it says now; None if nothing, nothing that makes sense, or what only a newer whence understands."""
        try:
            status = os.stat(self._folder / NAME)
        except OSError:
            self._seen = self._sidecar = None
            return None
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen != self._seen:
            try:
                self._sidecar = read_sidecar(self._folder)
            except FormatError:
                self._sidecar = None
            self._seen = seen
        return self._sidecar


def _decode(document: dict[str, Any]) -> Sidecar:
    last, names = document["last_record"], tuple(map(text, document["index_files"]))
    shape = check_shape(Shape(number(document["slots"]), number(document["items"])))
    queue_file_size = number(document["queue_file_size"])
    if not ENTRY_SIZE <= queue_file_size < 2**31:
        raise ValueError(f"no file of a queue has {queue_file_size} bytes")
    return Sidecar(
        dialect=Dialect(document["dialect"]),
        slots=shape.slot_capacity,
        items=shape.item_capacity,
        queue_file_size=queue_file_size,
        indexed=decode_stretches(document["indexed"]),
        last_record_offset=number(last["offset"]),
        last_record=bytes.fromhex(text(last["head"])),
        index_names=check_index_names(names),
        newest_header=decode_noted_header(document["newest_index"]),
        queues_size=number(document["queues_size"]),
        in_place=document["in_place"] is True,
        other_topics=tuple(map(text, document["other_topics"])),
        fields=decode_fields(document["fields"]),
        marks=_decode_marks(document.get("marks", [])),
        growing=document.get("growing") is True,
    )


def _decode_marks(documents: Any) -> tuple[Mark, ...]:
    """Marks, which a sidecar of before did not have."""
    if len(documents) > MARKS_MAX:
        raise ValueError(f"{len(documents)} marks are too many")
    marks = tuple((number(each["offset"]), bytes.fromhex(text(each["head"]))) for each in documents)
    if any(before >= behind for (before, _), (behind, _) in pairwise(marks)):
        raise ValueError("marks are not in the order of the log")
    return marks
