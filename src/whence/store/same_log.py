"""Whether a sidecar is of this log at all, or of another one: it was moved here, or another store is in the place.

A log that was cut, and maybe written anew behind that, is still the one that was indexed: its expressions of fields
and the shape of its index stay. So whatever sidecar.json and the headers of index files tell of records is looked up
in the log. One of them that is there makes it the same log; it is another one if none is, though others are in their
places. Where nothing is left to compare, it may be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whence.errors import FormatError, StoreError
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.index_file import FIRST_ITEM, HEADER_SIZE, decode_header
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FOLDER
from whence.store.log_file import HEAD_SIZE
from whence.store.sidecar import Sidecar


def is_of_another(claim: Sidecar, log: CommitLog, sidecar: Path, root: Path) -> bool:
    """Whether ``sidecar`` is certainly not of this log. ``root`` has the index: the sidecar, or the store itself."""
    if claim.same_marks(log):
        return False
    first_mark = [*(offset for offset, _ in claim.marks), claim.last_record_offset][0]
    has_others = _has_record(log, first_mark)
    for offset, timestamp_ms in _indexed_records(claim, sidecar, root):
        if _stored_at(log, offset) == timestamp_ms:
            return False
        has_others |= _has_record(log, offset)
    return has_others


def _has_record(log: CommitLog, offset: int) -> bool:
    """Whether something is written here: what was cut off is zero, or is not there."""
    return any(log.raw(offset, HEAD_SIZE))


def _stored_at(log: CommitLog, offset: int) -> int | None:
    try:
        return log.read(offset).store_timestamp_ms
    except (FormatError, StoreError):
        return None


def _indexed_records(claim: Sidecar, sidecar: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Where records lie with which index files begin and end, and when these were stored."""
    paths = [root / "index" / name for name in claim.index_names]
    for field, noted in claim.fields.items():
        paths += [sidecar / FOLDER / field / "index" / name for name in noted.index_names]
    for path in paths:
        try:
            with PlainFile(path) as file:
                header = decode_header(file.read(0, HEADER_SIZE))
        except (FormatError, StoreError):
            continue
        if header.next_item > FIRST_ITEM:
            yield header.begin_physical_offset, header.begin_timestamp_ms
            yield header.end_physical_offset, header.end_timestamp_ms
