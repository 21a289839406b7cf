"""``whence.json``: what whence keeps in a store of its own, beside RocketMQ's files.

    version                        1; a newer one is refused
    file_size, queue_file_size     of the files of log and queues: they never change
    slots, items, dialect          of the index
    log_folders                    where the log's files lie, if not in commitlog/; from the store's folder
    flushed                        how far queues and index were on the disk; the log was as far, at least. How many
                                   bytes all queues had then, by which one sees that none is gone
    last_record                    the head of the last record before that, by which one sees that it is the same log
    newest_index                   name and header of the newest index file, as it was on the disk
    older_index_files              names of those before it
    writer                         the process that writes now, if it holds the store's lock; 0 after a clean end

It is written aside and renamed, after the flushes that it speaks of. So a crash leaves the one before, which says
less and is just as true. What another program writes into the store it does not know: then the log is longer, or
the newest index file is another one, and :mod:`whence.store.recovery` believes the part that is still the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from whence.errors import FormatError, NotFoundError, UsageError, WhenceError
from whence.files.disk import Disk
from whence.files.lock import lock_holder
from whence.files.mapped_file import read_whole
from whence.files.names import is_digits
from whence.formats.own_json import decode_own_json, number, text
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE
from whence.formats.rocketmq.index_file import IndexHeader
from whence.formats.rocketmq.message import RECORD_SIZE_MIN
from whence.store.commit_log import CommitLog
from whence.store.index_file import DEFAULT_SHAPE, IndexFile, Shape
from whence.store.log_file import HEAD_SIZE
from whence.store.message_store import Dialect

NAME = "whence.json"
VERSION = 1
SIZE_MAX = 16 * 1048576
NO_INDEX = IndexHeader(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store is made with, once: the defaults are RocketMQ's."""

    file_size: int = 1 << 30
    queue_file_size: int = 6_000_000
    slots: int = DEFAULT_SHAPE.slot_capacity
    items: int = DEFAULT_SHAPE.item_capacity
    dialect: Dialect = Dialect.V5_5
    log_folders: tuple[str, ...] = ("commitlog",)

    def __post_init__(self) -> None:
        if not RECORD_SIZE_MIN + 8 <= self.file_size < 2**31:
            raise UsageError(
                f"a log file of {self.file_size} bytes: RocketMQ's have 1 GiB, less than 2 GiB is possible"
            )
        if not ENTRY_SIZE <= self.queue_file_size < 2**31:
            raise UsageError(f"a queue file of {self.queue_file_size} bytes: RocketMQ's have 6,000,000")
        if not (0 < self.slots < 2**31 and 1 < self.items < 2**31 and self.shape.file_size < 2**31):
            raise UsageError(
                f"an index file of {self.slots} slots and {self.items} items: RocketMQ's have 5,000,000 and "
                "20,000,000; it has at least 1 slot and 2 items, and less than 2 GiB"
            )
        if not self.log_folders:
            raise UsageError("a log needs a folder")

    @property
    def shape(self) -> Shape:
        """Of the index files."""
        return Shape(self.slots, self.items)

    def log_paths(self, folder: Path) -> list[Path]:
        """The folders of the log of the store in ``folder``."""
        return [folder / name for name in self.log_folders]


@dataclass(frozen=True, slots=True)
class Flushed:
    """How far a store is on the disk: what is dispatched of the messages before these physical offsets."""

    queues: int = 0
    index: int = 0
    last_record_offset: int = -1
    last_record: bytes = b""
    index_name: str = ""  # "" before the first index file
    index_header: IndexHeader = NO_INDEX
    older_index_names: tuple[str, ...] = ()
    queues_size: int = 0


@dataclass(frozen=True, slots=True)
class Ownership:
    """All of ``whence.json``."""

    settings: Settings
    flushed: Flushed
    writer: int = 0

    def write(self, folder: Path, disk: Disk) -> None:
        """Put it into the store, in place of the one before."""
        flushed = self.flushed
        document = {
            "version": VERSION,
            **asdict(self.settings),
            "flushed": {"queues": flushed.queues, "index": flushed.index, "queues_size": flushed.queues_size},
            "last_record": {"offset": flushed.last_record_offset, "head": flushed.last_record.hex()},
            "newest_index": {"name": flushed.index_name, **asdict(flushed.index_header)},
            "older_index_files": flushed.older_index_names,
            "writer": self.writer,
        }
        disk.replace(folder / NAME, (json.dumps(document, indent=1) + "\n").encode())


def is_same_log(log: CommitLog, flushed: Flushed) -> bool:
    """Whether the log up to the flushed point is still the one that was flushed: then a record ends there."""
    offset = flushed.last_record_offset
    if offset < log.begin_offset:
        return True  # nothing was flushed yet, or all of it has expired
    return log.raw(offset, HEAD_SIZE) == flushed.last_record


def is_indexed_by_us(folder: Path, files: Sequence[IndexFile]) -> bool:
    """Whether whence made a store's index, all of it.

    That is so if the newest file is as whence left it, or if a whence that holds the lock is putting into it now.
    """
    try:
        ownership = read_ownership(folder)
    except WhenceError:
        return False
    if ownership is None:
        return False
    if ownership.writer > 0 and lock_holder(folder / "lock") == ownership.writer:
        return True
    name, newest = ownership.flushed.index_name, ownership.flushed.index_header
    try:
        headers = {file.path.name: file.header() for file in files}
    except (FormatError, NotFoundError):
        return False
    is_as_left = headers.get(name) == newest
    return is_as_left and all(file.end_physical_offset <= newest.end_physical_offset for file in headers.values())


def read_ownership(folder: Path) -> Ownership | None:
    """What a store's ``whence.json`` says; None if it has none, and so is not ours."""
    path = folder / NAME
    try:
        data = read_whole(path, SIZE_MAX)
    except NotFoundError:
        return None
    try:
        return decode_own_json(data, VERSION, _decode)
    except FormatError as error:
        raise error.at(path) from error


def _decode(document: dict[str, Any]) -> Ownership:
    given = {field.name: document[field.name] for field in fields(Settings)}
    for name in ("file_size", "queue_file_size", "slots", "items"):
        number(given[name])
    given["dialect"] = Dialect(given["dialect"])
    given["log_folders"] = tuple(text(name) for name in given["log_folders"])
    flushed, last, newest = document["flushed"], document["last_record"], document["newest_index"]
    name = text(newest["name"])
    older_names = tuple(text(older) for older in document["older_index_files"])
    for each in (*older_names, name):
        if each and not is_digits(each):
            raise ValueError(f"an index file is not named {each!r}")
    header = IndexHeader(*(number(newest[field.name]) for field in fields(IndexHeader)))
    return Ownership(
        Settings(**given),
        Flushed(
            queues=number(flushed["queues"]),
            index=number(flushed["index"]),
            last_record_offset=number(last["offset"]),
            last_record=bytes.fromhex(text(last["head"])),
            index_name=name,
            index_header=header,
            older_index_names=older_names,
            queues_size=number(flushed["queues_size"]),
        ),
        number(document["writer"]),
    )
