"""Archive: a folder that takes what expires of a store, and is a store itself.

    with Archive(folder, Disk()) as archive:
        archive.take_log_file(path)                  oldest first, each behind the one before
        archive.copy_topics(store)
        archive.take_queue_file(path, name)          moved
        archive.copy_queue_file(path, name, kept)    its first bytes, and zeros behind them: as it was at the cut
        archive.take_index_file(path)
        archive.copy_index_file(path, cut)           the items of messages below the cut, linked anew

A file comes by a rename or, from another disk, as a copy that is flushed and named before its source goes. So a
message is always in one of both stores at least. All of it may be done again after a crash, and goes on where that
was: what is here already is compared, and a different file is never written over. Of a file that straddled an
earlier cut there is a copy with less in it, and a longer one takes its place.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from whence.errors import FormatError, NotFoundError, StoreError, UsageError
from whence.files.atomic import unfinished
from whence.files.disk import Disk, DiskFile
from whence.files.file_sequence import FileSequence
from whence.files.folder import is_folder, own_files_in
from whence.files.lock import StoreLock
from whence.files.mapped_file import MappedFile, read_whole
from whence.files.names import OFFSET_MAX, is_digits
from whence.formats.rocketmq.config import decode_config, encode_config
from whence.formats.rocketmq.index_file import FIRST_ITEM, HEADER_SIZE, decode_header, encode_header, item_position
from whence.store.commit_log import CommitLog
from whence.store.index_cut import linked_slots, write_slots
from whence.store.index_file import IndexFile, Shape
from whence.store.message_store import CONFIG_SIZE_MAX
from whence.store.old_files import QUEUE_ENTRY_SIZES, size_below

PIECE = 1 << 20  # bytes that are compared or copied at once
ASIDE = ".whence-incoming"
"""What is being copied. Not in the folder of its file: RocketMQ takes any name there for an offset."""
TOPICS = Path("config", "topics.json")
TOPIC_TABLE = "topicConfigTable"


class Archive:
    """One archive. It has one writer: from ``with`` on, the process holds its lock."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self._lock: StoreLock | None = None

    def check(self, store: Path, begin: int, file_size: int) -> int | None:
        """Where the log that is archived here ends; None if none is.

        An error says why a store cannot be archived here: its log, which begins at this offset, has to go on where
        the archived one ends, or to begin with a file that is here already.
        """
        _refuse_nesting(store, self.folder)
        if not self.folder.exists():
            return None
        if not is_folder(self.folder):
            raise UsageError(f"{self.folder}: is no folder, as an archive is")
        if (self.folder / "whence.json").exists():
            raise UsageError(f"{self.folder}: is a store that is written to, not an archive; name another folder")
        if not is_folder(self.folder / "commitlog"):
            strangers = [name for name in os.listdir(self.folder) if name not in ("lock", ASIDE)]
            if strangers:
                raise UsageError(
                    f"{self.folder}: is neither an archive nor empty, it has {sorted(strangers)[0]} in it; "
                    "name another folder"
                )
            return None
        log = FileSequence(self.folder / "commitlog")
        if not log.bases:
            return None
        end = log.bases[-1] + log.file_size
        if (begin not in log.bases and begin != end) or file_size != log.file_size:
            raise StoreError(
                f"{self.folder}: holds a log from offset {log.begin_offset} to {end} in files of {log.file_size} "
                f"bytes; that of {store} begins at {begin}, has files of {file_size}, and so does not follow; "
                "archive it into another folder"
            )
        return end

    def __enter__(self) -> Self:
        self._disk.make_folder(self.folder)
        self._lock = StoreLock(self.folder / "lock")
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    # -- the log and the topics ------------------------------------------------------------------------------

    def take_log_file(self, path: Path) -> None:
        """Move a log file here."""
        target = self.folder / "commitlog" / path.name
        there, source = self._there(target), MappedFile(path)
        if there is not None:
            _agree(there, source, 0, source.size)
        self._take(path, target, is_here=there is not None)

    def copy_topics(self, store: Path) -> None:
        """Make the store's topics known here, beside those that are already; they may be gone from the store later.

        Queues name their topics, too. So where the store's own list cannot be read, that is no error.
        """
        wanted, known = _topics_of(store), _topics_of(self.folder)
        table = {**known.get(TOPIC_TABLE, {}), **wanted.get(TOPIC_TABLE, {})}
        if wanted and known.get(TOPIC_TABLE) != table:
            data = encode_config({**wanted, TOPIC_TABLE: table})
            with self._aside() as aside:
                with self._disk.create(aside, 0, reserve=False) as file:
                    file.write(data, 0)
                    file.flush()
                self._publish(aside, self.folder / TOPICS)

    # -- queues ----------------------------------------------------------------------------------------------

    def take_queue_file(self, path: Path, name: Path) -> None:
        """Move a file of a queue, or an ext file, here; ``name`` is its path from the store's folder."""
        target = self.folder / name
        source = MappedFile(path)
        self._take(path, target, is_here=self._holds(target, source, name, source.size))

    def copy_queue_file(self, path: Path, name: Path, kept: int) -> bool:
        """Copy the first ``kept`` bytes of a file of a queue; False if they are here already."""
        target = self.folder / name
        source = MappedFile(path)
        if self._holds(target, source, name, kept):
            return False
        self._copy(source, target, kept)
        return True

    def _holds(self, target: Path, source: MappedFile, name: Path, kept: int) -> bool:
        """Whether the first ``kept`` bytes of a queue file are here. A copy with less must be the same so far."""
        there = self._there(target)
        if there is None:
            return False
        entry_size = QUEUE_ENTRY_SIZES.get(name.parts[0])
        written = _written_size(there) if entry_size is None else size_below(there, entry_size, OFFSET_MAX)
        _agree(there, source, 0, min(written, kept))
        return written >= kept

    # -- the index -------------------------------------------------------------------------------------------

    def take_index_file(self, path: Path) -> None:
        """Move an index file here."""
        source = IndexFile(path)
        target = self.folder / "index" / path.name
        self._take(path, target, is_here=self._has_items(target, source, source.header().next_item))

    def copy_index_file(self, path: Path, cut: int) -> bool:
        """Copy the items of messages below offset ``cut``; False if they are here already.

        False, too, for a file that makes no sense, and for one whose last message below the cut cannot be read: a
        reader would not believe it. The part of the log that it covers is scanned.
        """
        source, mapped = IndexFile(path), MappedFile(path)
        target = self.folder / "index" / path.name
        shape = source.resolve_shape(_shapes_in(path.parent))
        if shape is None:
            return False
        header = source.header()
        numbers = range(FIRST_ITEM, header.next_item)
        next_item = FIRST_ITEM + bisect_left(numbers, cut, key=lambda number: source.item(number)[1])
        if next_item == FIRST_ITEM or self._has_items(target, source, next_item):
            return False
        _, end_offset = source.item(next_item - 1)
        log = CommitLog(self.folder / "commitlog")
        try:
            end_timestamp_ms = log.read(end_offset).store_timestamp_ms  # items know seconds only
            slots = linked_slots(mapped, shape, next_item)
        except (FormatError, NotFoundError):
            return False
        finally:
            log.close()
        header = replace(
            header,
            end_timestamp_ms=end_timestamp_ms,
            end_physical_offset=end_offset,
            slot_count=int(np.count_nonzero(slots)),
            item_count=next_item,
        )
        first, end = (item_position(shape.slot_capacity, number) for number in (FIRST_ITEM, next_item))
        with self._aside() as aside:
            with self._disk.create(aside, shape.file_size, reserve=False) as file:
                _copy_bytes(mapped, file, first, end)
                write_slots(file, slots)
                file.write(encode_header(header), 0)
                file.flush()
            self._publish(aside, target)
        return True

    def _has_items(self, target: Path, source: IndexFile, next_item: int) -> bool:
        """Whether the items below this number are here. A copy with fewer must have the same."""
        there, file = self._there(target), MappedFile(source.path)
        if there is None:
            return False
        shape = source.resolve_shape(_shapes_in(source.path.parent))
        if shape is None:
            _agree(there, file, 0, file.size)
            return True
        here = decode_header(there.data).next_item
        numbers = (FIRST_ITEM, min(here, next_item))
        _agree(there, file, *(item_position(shape.slot_capacity, number) for number in numbers))
        return here >= next_item

    # -- files -----------------------------------------------------------------------------------------------

    def _there(self, target: Path) -> MappedFile | None:
        """What has the place of a file now; an error if that is no file of the archive itself."""
        if target.resolve() != self.folder.resolve() / target.relative_to(self.folder):
            raise StoreError(f"{target}: a link leads elsewhere from here; an archive has its files in itself")
        return MappedFile(target) if target.exists() else None

    def _take(self, path: Path, target: Path, *, is_here: bool) -> None:
        """Move a file to its place, or remove it if all of it is there."""
        self._disk.make_folder(target.parent)
        if not is_here:
            try:
                self._disk.rename(path, target)
            except StoreError as error:
                if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV):
                    raise
                source = MappedFile(path)
                self._copy(source, target, source.size)
                is_here = True
        if is_here:
            with self._disk.open(target) as file:  # who made it may not have come to that
                file.flush()
        self._disk.flush_folder(target.parent)
        if is_here:
            self._disk.remove(path)
        self._disk.flush_folder(path.parent)

    def _copy(self, source: MappedFile, target: Path, kept: int) -> None:
        """Make a file of the same length and age with the first ``kept`` bytes of another. Zeros take no room."""
        with self._aside() as aside:
            with self._disk.create(aside, source.size, reserve=False) as file:
                _copy_bytes(source, file, 0, kept)
                file.flush()
                file.set_modified(source.path.stat().st_mtime_ns // 1_000_000)
            self._publish(aside, target)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """A name for a file that is being written. Nothing is left of it if that fails."""
        aside = self.folder / ASIDE
        self._disk.remove(aside)
        with unfinished(aside):
            try:
                yield aside
            except BaseException:
                with suppress(StoreError):
                    self._disk.remove(aside)
                raise

    def _publish(self, aside: Path, target: Path) -> None:
        self._disk.make_folder(target.parent)
        self._disk.rename(aside, target)
        self._disk.flush_folder(target.parent)


def _copy_bytes(source: MappedFile, file: DiskFile, begin: int, end: int) -> None:
    """Copy some bytes of a file to the same place of another; zeros are there already."""
    for at in range(begin, end, PIECE):
        piece = source.data[at : min(at + PIECE, end)].tobytes()
        if piece.count(0) < len(piece):
            file.write(piece, at)


def _shapes_in(folder: Path) -> Iterator[Shape]:
    """The shapes of index files that show them."""
    for name, file in sorted(own_files_in(folder).items()):
        if is_digits(name) and file.size >= HEADER_SIZE:
            shape = IndexFile(folder / name).resolve_shape(())
            if shape is not None:
                yield shape


def _topics_of(store: Path) -> dict[str, Any]:
    """What ``topics.json`` of a store says; nothing if it is not there, or no such file."""
    try:
        document = decode_config(read_whole(store / TOPICS, CONFIG_SIZE_MAX))
    except (FormatError, StoreError):
        return {}
    return document if isinstance(document.get(TOPIC_TABLE), dict) else {}


def _agree(there: MappedFile, source: MappedFile, begin: int, end: int) -> None:
    """StoreError if two files differ in length or between these bytes."""
    if there.size != source.size:
        raise _different(there, source)
    for at in range(begin, end, PIECE):
        piece = slice(at, min(at + PIECE, end))
        if there.data[piece].tobytes() != source.data[piece].tobytes():
            raise _different(there, source)


def _different(there: MappedFile, source: MappedFile) -> StoreError:
    return StoreError(
        f"{there.path}: is there already, and is not a copy of {source.path}; nothing was written over, "
        "archive into another folder"
    )


def _written_size(mapped: MappedFile) -> int:
    """The size of a file without the zeros at its end."""
    end = mapped.next_hole(0)
    while end:
        piece = mapped.data[max(end - PIECE, 0) : end].tobytes()
        left = piece.rstrip(b"\0")
        if left:
            return end - len(piece) + len(left)
        end -= len(piece)
    return 0


def _refuse_nesting(store: Path, archive: Path) -> None:
    paths = [os.path.realpath(path) for path in (store, archive)]
    if os.path.commonpath(paths) in paths:
        raise UsageError(f"{archive}: an archive cannot lie in its store, nor the store in it; name another folder")
