"""The messages of a proven stretch of log, in batches of rows: each time the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whence.errors import CorruptError
from whence.files.mapped_file import MappedFile
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.store.commit_log import CommitLog
from whence.store.log_file import LogFile, PlainBudget
from whence.store.log_scan import FileScan, scan_rows
from whence.store.spill import Spilled, Stretch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class StretchRows(NamedTuple):
    """Some messages of one log file, in order. The arrays are used again for the next ones."""

    data: NDArray[np.uint8]  # the file
    rows: NDArray[np.void]  # SCANNED


def proven_stretches(log: CommitLog, taken: Sequence[Spilled]) -> list[Stretch]:
    """What a scan of the log took, as stretches whose beginnings and ends are known; without those that are empty."""
    stretches: list[Stretch] = []
    for spilled in taken:
        base = log.base_of(spilled.begin_offset) if spilled.message_count else None
        if base is not None:
            path, _ = log.path_of(spilled.begin_offset)
            end = min(spilled.end_offset, base + log.file_size)
            stretches.append(
                Stretch(len(stretches), str(path), base, spilled.begin_offset, end, is_exact=True, is_last=False)
            )
    return stretches


def stretch_rows(stretch: Stretch) -> Iterator[StretchRows]:
    """All whole messages of a proven stretch, but those with rollback bits, which bear nothing that is indexed."""
    with MappedFile(Path(stretch.path)) as mapped:
        file = LogFile(mapped, stretch.base, PlainBudget())
        begin, end = stretch.from_offset - stretch.base, stretch.to_offset - stretch.base
        scan = FileScan(file, begin, end, is_last=False, tags=False)
        for batch in scan.batches(*scan_rows()):
            rows = batch.messages
            is_rollback = rows["sys_flag"] & TRANSACTION_MASK == Transaction.ROLLBACK
            if is_rollback.any():  # seldom: a copy of all rows takes half as long as the scan
                rows = rows[~is_rollback]
            if len(rows):
                yield StretchRows(batch.data, rows)
        if scan.position < end:
            what = f"the log was to go on up to byte {end}, and does not any more; somebody changed it meanwhile"
            raise CorruptError(what, position=scan.position, path=stretch.path)
