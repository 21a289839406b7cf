"""Reading one part of a plan: Arrow record batches of the rows that are wanted. What a task of the source does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import CorruptError, FormatError, NotFoundError
from whence.lookup.question import Question
from whence.lookup.search import candidates, is_queued
from whence.pipeline.source_filters import Wanted
from whence.pipeline.source_options import SourceOptions
from whence.pipeline.source_plan import Part, PartKind, Piece, plan_read, told
from whence.store.damage import Damage
from whence.store.log_file import LogFile
from whence.store.log_scan import FileScan, scan_rows
from whence.store.message_columns import ROWS_MAX, MessageColumns
from whence.store.message_store import MessageStore
from whence.store.opening import open_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What all tasks of a query share. It travels to them, and opens the store where it arrives."""

    options: SourceOptions
    names: tuple[str, ...]  # the columns
    wanted: Wanted

    def read(self, part: Part | None) -> Iterator[Any]:
        """The record batches of one part, or of all parts; none of them is empty."""
        with open_folder(self.options.path, self.options.out) as store:
            store.commit_log.use_kernel()
            parts = plan_read(store, self.options, self.wanted) if part is None else [part]
            yield from chain.from_iterable(map(PartReader(store, self).batches, parts))


class PartReader:
    """Reads parts of one opened store."""

    def __init__(self, store: MessageStore, read: SourceRead) -> None:
        self._store = store
        self._log = store.commit_log
        self._options = read.options
        self._wanted = read.wanted
        self._columns = MessageColumns(read.names, by_key=read.options.by_key)

    def batches(self, part: Part) -> Iterator[Any]:
        match part.kind:
            case PartKind.SCAN:
                made = self._scanned(part.pieces)
            case PartKind.INDEX:
                made = self._indexed(part.pieces)
            case PartKind.OFFSETS:
                made = self._at_offsets(part.offsets)
            case PartKind.DAMAGE:
                made = iter([self._columns.of_damage(part.damage)])
        for batch in made:
            kept = self._wanted.keep(batch)
            if kept.num_rows:
                yield kept

    # -- scan ------------------------------------------------------------------------------------------------

    def _scanned(self, pieces: Sequence[Piece]) -> Iterator[Any]:
        rows = scan_rows()
        for piece in pieces:
            try:
                file = self._log.file_of(piece.from_offset)
            except NotFoundError as error:
                self._lost(error)
                continue
            scan = FileScan(
                file, piece.from_offset - file.base, piece.to_offset - file.base, is_last=False, tags=False
            )
            told_count = 0
            for batch in scan.batches(*rows):
                yield from self._damage(scan, file, told_count)
                told_count = len(scan.damage)
                yield from self._of_rows(file, batch.data, self._wanted.rows(batch))
            yield from self._damage(scan, file, told_count)
            end = file.base + scan.position
            is_hole = bool(scan.holes) and scan.holes[-1][1] == scan.position  # nothing whole begins up to there
            is_cut = piece.to_offset == self._wanted.span("physical_offset").high + 1
            if end != piece.to_offset and not is_hole and not is_cut:
                raise CorruptError(
                    f"a record ends at offset {end}, and one should begin at {piece.to_offset}: what the sidecar "
                    'tells of this file does not fit; "whence repair" mends it, option("scan", "true") reads on',
                    position=min(scan.position, file.file.size),
                    path=file.file.path,
                )

    def _of_rows(self, file: LogFile, data: Any, rows: Any) -> Iterator[Any]:
        if not len(rows):
            return
        try:
            yield from self._columns.batches(data, file.base, rows)
        except FormatError as error:
            raise error.at(file.file.path) from None

    def _damage(self, scan: FileScan, file: LogFile, told_count: int) -> Iterator[Any]:
        """What the scan passed over since it was last asked, as far as that is in the range."""
        span = self._wanted.span("physical_offset")
        rows = []
        for damage, (begin, end) in zip(scan.damage[told_count:], scan.holes[told_count:], strict=True):
            if file.base + end <= span.low or file.base + begin > span.high:
                continue
            self._stop_at([damage])
            rows.append((file.base + begin, told(damage)))
        if rows:
            yield self._columns.of_damage(rows)

    # -- candidates ------------------------------------------------------------------------------------------

    def _indexed(self, pieces: Sequence[Piece]) -> Iterator[Any]:
        keys = self._wanted.index_keys
        assert keys is not None
        topics = self._wanted.texts.get("topic") or [None]
        for piece in pieces:
            questions = [
                Question(tuple(sorted(keys)), topic, limit=None, oldest_first=True, system_topics=True)
                for topic in topics
            ]
            yield from self._looked_up(questions, piece)

    def _at_offsets(self, offsets: Sequence[int]) -> Iterator[Any]:
        """The records that begin at some of these offsets, which are sorted."""
        found: list[int] = []
        damage: list[Damage] = []
        known: int | None = None  # where a record begins, or the file's end
        for offset in offsets:
            if is_queued(self._store, offset):
                known, damage = offset, []
            elif known is None or known < offset:
                # So that all walks together go through a file once.
                if known is None or self._log.base_of(known) != self._log.base_of(offset):
                    damage = []
                known = self._log.boundary_behind(offset, damage, known)
            if known == offset:
                found.append(offset)
            else:
                self._stop_at(damage)  # it may have hidden it
        yield from self._columns.at(self._log, np.array(found, np.int64), self._wanted.mask)

    def _looked_up(self, questions: Sequence[Question], within: Piece) -> Iterator[Any]:
        """The messages at the candidates of all questions. From the first that is none on, each is looked at."""
        found, done, whole = self._candidates(questions, within, whole=False), 0, False
        while done < len(found):
            some = found[done : done + ROWS_MAX]  # their records are looked at before the first batch is made
            made = self._columns.at(self._log, some, self._wanted.mask)
            try:
                first = next(made, None)
            except (FormatError, NotFoundError):
                if whole:
                    raise
                # An index may turn out to be damaged now: then it may have left something out before, too.
                checked = self._candidates(questions, within, whole=True)
                found, done, whole = np.setdiff1d(checked, found[:done], assume_unique=True), 0, True
                continue
            if first is not None:
                yield first
                yield from made
            done += len(some)

    def _candidates(self, questions: Sequence[Question], within: Piece, *, whole: bool) -> NDArray[np.int64]:
        """Where messages may lie that answer one of the questions, in order, each once."""
        found = [np.empty(0, np.int64)]
        for question in questions:
            offsets, damage = candidates(self._store, question, within, whole=whole)
            self._stop_at(damage)
            found.append(np.array(offsets, np.int64))
        return np.unique(np.concatenate(found))

    # -- what is missing -------------------------------------------------------------------------------------

    def _stop_at(self, damage: Sequence[Damage]) -> None:
        """An error for the first damage that hides messages, unless it is to be passed over."""
        for each in damage:
            if each.kind.hides_messages and not self._options.permissive:
                raise CorruptError(each.detail, position=each.position, path=each.path)

    def _lost(self, error: NotFoundError) -> None:
        if self._options.fail_on_data_loss:
            what = f'{error}; option("failOnDataLoss", "false") passes over what has expired since the query began'
            raise NotFoundError(what) from error
