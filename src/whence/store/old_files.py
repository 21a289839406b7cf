"""Old files: which files of queues and index lead only below an offset of the log, and which straddle it.

Follows RocketMQ 5.5 MappedFileQueue.deleteExpiredFileByOffset, ConsumeQueueExt and IndexService.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from whence.errors import NotFoundError
from whence.files.folder import OwnFile, own_files_in, own_folders_in
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits, parse_offset_name
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY_SIZE, ENTRY_SIZE, ext_position, is_ext_address
from whence.formats.rocketmq.index_file import HEADER_SIZE, IndexHeader, decode_header

QUEUE_ENTRY_SIZES = {"consumequeue": ENTRY_SIZE, "batchconsumequeue": BATCH_ENTRY_SIZE}
EXT = "consumequeue_ext"
_ENTRY_HEAD = struct.Struct(">qiq")  # physical offset, size and tags code: with these, entries of both kinds begin


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file that goes, or one that straddles the cut: its first ``kept`` bytes belong below."""

    path: Path
    size: int
    finished_ms: int = 0  # of a log file
    kept: int = 0


def old_queue_files(store: Path, begin: int) -> tuple[list[OldFile], list[OldFile]]:
    """Queue files that lead only below offset ``begin``, and those with entries below it that stay.

    Of each queue the leading files go, and never the last: it tells where the queue goes on.
    """
    going: list[OldFile] = []
    straddling: list[OldFile] = []
    for kind, entry_size in QUEUE_ENTRY_SIZES.items():
        for topic in _folders(store / kind):
            for queue in filter(is_digits, _folders(store / kind / topic)):
                files = _offset_files(store / kind / topic / queue)
                if not files:
                    continue
                count = _count_below(files, entry_size, begin)
                going += files[:count]
                left = MappedFile(files[count].path)
                kept = size_below(left, entry_size, begin)
                if kept:
                    straddling.append(replace(files[count], kept=kept))
                if kind == "consumequeue":
                    ext_files = _offset_files(store / EXT / topic / queue)
                    position = _ext_position(left.data, kept)
                    going += _ext_files_below(ext_files, position)
                    straddling += _ext_files_across(ext_files, position)
    return going, straddling


def old_index_files(store: Path, begin: int) -> tuple[list[OldFile], list[OldFile]]:
    """Index files that end below offset ``begin``, and those that begin below it and stay. The newest always does."""
    folder = store / "index"
    found: list[tuple[IndexHeader, OldFile]] = []
    for name, file in sorted(_files(folder).items()):
        if is_digits(name) and file.size >= HEADER_SIZE:
            path = folder / name
            found.append((decode_header(MappedFile(path).data), OldFile(path, file.size)))
    # Names tell local time: the newest by its name need not be the one that ends last. It may be empty yet.
    newest = {file for _, file in found[-1:]}
    newest |= {file for _, file in sorted(found, key=lambda each: each[0].end_physical_offset)[-1:]}
    going = [file for header, file in found if header.end_physical_offset < begin and file not in newest]
    straddling = [
        file
        for header, file in found
        if file not in going and header.item_count > 1 and header.begin_physical_offset < begin
    ]
    return going, straddling


def size_below(mapped: MappedFile, entry_size: int, begin: int) -> int:
    """How many bytes of a queue file are entries that lead below offset ``begin``; fillers count as such."""

    def is_behind(number: int) -> bool:
        physical_offset, size, _ = _ENTRY_HEAD.unpack_from(mapped.data, number * entry_size)
        return bool(size <= 0 or physical_offset >= begin)

    # Nothing is written in a hole, and to look there takes longer than all else.
    count = min(mapped.next_hole(0) // entry_size + 1, mapped.size // entry_size)
    return entry_size * bisect_left(range(count), True, key=is_behind)


def _count_below(files: Sequence[OldFile], entry_size: int, begin: int) -> int:
    """How many of a queue's files go: the leading ones, never the last, whose entries all lead below ``begin``."""
    for number, file in enumerate(files[:-1]):
        data = MappedFile(file.path).data
        last = len(data) // entry_size - 1
        if last < 0 or _ENTRY_HEAD.unpack_from(data, last * entry_size)[0] >= begin:
            return number
        # RocketMQ looks at the last entry alone. A damaged one must not take others with it.
        if np.ndarray((last + 1,), ">i8", data, 0, (entry_size,)).max() >= begin:
            return number
    return len(files) - 1


def _ext_position(data: memoryview, position: int) -> int | None:
    """Where the ext unit of the entry at this position lies, among all ext files; None if it has none."""
    if position + ENTRY_SIZE > len(data):
        return None
    _, size, tags_code = _ENTRY_HEAD.unpack_from(data, position)
    return ext_position(tags_code) if size > 0 and is_ext_address(tags_code) else None


def _ext_files_below(files: Sequence[OldFile], position: int | None) -> list[OldFile]:
    """Ext files that end before this position, never the last; none if nothing tells which units are left."""
    if position is None:
        return []
    return [file for file in files[:-1] if _base_of(file) + file.size < position]


def _ext_files_across(files: Sequence[OldFile], position: int | None) -> list[OldFile]:
    """The other ext files, as far as they lie before this position; whole, if there is none."""
    if position is None:
        return [replace(file, kept=file.size) for file in files]
    below = _ext_files_below(files, position)
    return [
        replace(file, kept=min(file.size, position - _base_of(file)))
        for file in files
        if file not in below and _base_of(file) < position
    ]


def _base_of(file: OldFile) -> int:
    return int(file.path.name)


def _offset_files(folder: Path) -> list[OldFile]:
    """The files of one queue, in order."""
    return [
        OldFile(folder / name, file.size)
        for name, file in sorted(_files(folder).items())
        if parse_offset_name(name) is not None
    ]


def _files(folder: Path) -> dict[str, OwnFile]:
    try:
        return own_files_in(folder)
    except NotFoundError:
        return {}


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(own_folders_in(folder))
    except NotFoundError:
        return []
