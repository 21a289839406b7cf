"""Follower: index, queues and time blocks of a sidecar grow in place as the log does.

    follower = Follower(log, folder, settings, read_sidecar(folder), disk)
    while follower.check():                         the log is the one that is indexed, or what is not was cut
        follower.put_spill(work, spilled)           again and again, in the order of the log
        follower.publish(end_offset)                all of it lasts, and then readers may believe it

    queues, items, time blocks      written
    items, then slots and count     flushed, in that order: no slot leads to an item that is not on the disk
    queues, time blocks             flushed
    sidecar.json                    says how far: who reads takes that first, and believes no more

``sidecar.json`` is the truth: what the files have behind it is not known to be right after a crash. It is proven by
the log or cut, and put again. The finished files are those of a build, byte for byte, however the log was cut and
whatever was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import NotFoundError, StoreError
from whence.files.disk import Disk
from whence.files.folder import files_in, is_file, is_folder
from whence.files.names import is_digits
from whence.formats.rocketmq.index_file import FIRST_ITEM, NO_HEADER
from whence.formats.time_blocks import TIME_BLOCK
from whence.store.commit_log import CommitLog
from whence.store.growing_times import GrowingTimes, lacks_times
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.index_recovery import IndexRecovery
from whence.store.log_scan import Batch, LogScan
from whence.store.message_store import Dialect
from whence.store.queue_builder import QueueBuilder
from whence.store.queue_files import cut_queue, misplaced_queues, queue_folders
from whence.store.sidecar import (
    NAME,
    UNKNOWN_SIZE,
    Mark,
    Sidecar,
    indexed_stretches,
    join_indexed,
    thinned_marks,
)
from whence.store.sidecar_expiry import expired_of
from whence.store.spill import NOWHERE, Spilled
from whence.store.spilled import spilled_items, spilled_runs, spilled_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = 0
"""The queues of a spill are in one group: one thread puts all of them."""


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How index and queues are made."""

    shape: Shape
    dialect: Dialect
    queue_file_size: int
    is_batch: Callable[[str], bool] = lambda topic: False

    @property
    def tags(self) -> bool:
        """Whether tags are indexed."""
        return self.dialect is Dialect.V5_5

    def made(self, claim: Sidecar) -> bool:
        """Whether what is there was made like this, and lies in the sidecar."""
        made = (claim.shape, claim.dialect, claim.queue_file_size)
        return made == (self.shape, self.dialect, self.queue_file_size) and not claim.in_place


class Follower:
    """Lets the files of one sidecar grow. One thread, of the process that holds the sidecar's lock.

    ``log`` is a reader of its own; ``known``: what ``sidecar.json`` says. :meth:`check` comes first, and again
    before anything is put.
    """

    def __init__(
        self, log: CommitLog, folder: Path, settings: FollowSettings, known: Sidecar | None, disk: Disk
    ) -> None:
        self._log = log
        self._folder = folder
        self._settings = settings
        self._disk = disk
        self._claim = known or self._nothing()
        self._times = GrowingTimes(folder / "times", disk)
        self._queues: QueueBuilder | None = None
        self._index: IndexBuilder | None = None
        self._names: list[str] = []
        self._full: BuiltFile | None = None  # the newest index file that takes no more items
        self._index_from = 0  # items of messages before that are in the index
        self._queues_size = 0  # before anything was put
        self._end = 0  # before that all is put
        self._looked_to = 0  # and before that published; what is indexed ends before it if nothing can be read there
        self._marks: list[Mark] = []  # of what was put, and is not published
        self._is_settled = False
        self._expired_to = 0  # up to this offset, all that leads into the log has gone

    # -- what is there ---------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The sidecar."""
        return self._folder

    @property
    def claim(self) -> Sidecar:
        """What ``sidecar.json`` says."""
        return self._claim

    @property
    def end_offset(self) -> int:
        """Where the next record that is put begins: all before it is published, or was put since."""
        return self._end

    def check(self) -> bool:
        """See that the log is still the one that is indexed. What is not of it any more is cut; then all is right.

        So it is at the start, too, whatever was killed. False while the log has no byte: its disk may not be there.
        """
        try:
            self._log.refresh()
            is_right = self._is_settled and self._is_current()
        except NotFoundError:
            return False  # its folder is not there, or a file went since it was looked for
        if not self._log.is_there:
            return False
        if not is_right:
            self.let_go()
            self._settle()
        if self._log.begin_offset != self._expired_to:
            self._expire(self._log.begin_offset)
        return True

    def _is_current(self) -> bool:
        claim, begin_offset = self._claim, self._log.begin_offset
        if not claim.indexed and begin_offset != self._expired_to:
            return False  # what is put, and not published, begins elsewhere
        return (
            self._end >= begin_offset
            and claim.is_of(self._log)
            and not claim.lacks_file(self._log)
            and is_file(self._folder / NAME)
        )

    def _nothing(self) -> Sidecar:
        settings = self._settings
        return Sidecar(
            settings.dialect,
            settings.shape.slot_capacity,
            settings.shape.item_capacity,
            settings.queue_file_size,
            growing=True,
        )

    def _settle(self) -> None:
        """Bring all files to what the log proves of them, and ``sidecar.json`` to what they are."""
        claim = self._believable()
        if claim is None or not self._recover(claim):
            self._clear()
        self._is_settled = True

    def _believable(self) -> Sidecar | None:
        """What of ``sidecar.json`` is still true of the log; None if nothing is that could be gone on with."""
        claim: Sidecar | None = self._claim
        assert claim is not None
        if not self._settings.made(claim) or self._has_misplaced_queues():
            return None
        if not claim.is_of(self._log):
            claim = claim.cut_to_mark(self._log)
        else:  # the log's end is looked for behind what is indexed, so that must not be more than there is
            claim = replace(claim, indexed=claim.believed(self._log))
        if claim is None or not claim.indexed:
            return None
        if not max(self._log.begin_offset, claim.last_record_offset + 1) <= claim.indexed_to:
            return None
        if claim.lacks_file(self._log) or lacks_times(self._log, self._folder / "times", claim):
            return None
        return claim

    def _has_misplaced_queues(self) -> bool:
        """Whether a topic's queues are of another kind now: then nobody looks for them where they are."""
        topics = {folder.parent.name for folder, _ in queue_folders(self._folder)}
        return any(misplaced_queues(self._folder, set(filter(self._settings.is_batch, topics))))

    def _clear(self) -> None:
        """Begin anew, at the log's first record. First nothing is believed any more, then it goes."""
        self._claim = replace(self._nothing(), fields=self._claim.fields)
        self._claim.write(self._folder, self._disk)
        self._times.clear()
        for folder, _ in queue_folders(self._folder):
            self._remove_files(folder)
        self._remove_files(self._folder / "index")
        self._queues_size = 0
        self._begin(self._log.begin_offset, self._log.begin_offset, ())

    def _remove_files(self, folder: Path) -> None:
        names = [name for name in files_in(folder) if is_digits(name)] if is_folder(folder) else []
        for name in names:
            self._disk.remove(folder / name)
        if names:
            self._disk.flush_folder(folder)

    def _expire(self, begin_offset: int) -> None:
        """Let go of what leads only to messages that have expired, as a broker does of its own."""
        claim, gone = expired_of(self._folder, self._claim, begin_offset)
        names = {path.name for path in gone if path.parent == self._folder / "index"}
        self._names = [name for name in self._names if name not in names]
        if claim != self._claim:
            self._claim = claim
            self._claim.write(self._folder, self._disk)
        for path in gone:
            self._disk.remove(path)
        self._disk.flush_folders({path.parent for path in gone})
        self._times.remove_before(begin_offset, self._log.file_size)
        self._expired_to = begin_offset

    # -- after a crash ---------------------------------------------------------------------------------------

    def _recover(self, claim: Sidecar) -> bool:
        """Go on with what ``claim`` says; False if the files are not what they should be.

        Nothing here depends on how far an earlier recovery came: it may be killed at any point and run again.
        """
        self._claim = replace(claim, growing=True)
        self._claim.write(self._folder, self._disk)
        log, settings, indexed_to = self._log, self._settings, claim.indexed_to
        log_end = log.end_offset(boundary=indexed_to)
        size = sum(
            cut_queue(folder, indexed_to, self._disk, entry).size for folder, entry in queue_folders(self._folder)
        )
        times_from = self._times.go_on(log, indexed_to, claim.last_record_offset)
        if claim.queues_size not in (UNKNOWN_SIZE, size) or times_from is None:
            return False
        index = IndexRecovery(
            self._folder / "index",
            settings.shape,
            log,
            self._disk,
            names=claim.index_names,
            newest_header=claim.newest_header,
            tags=settings.tags,
        ).run(indexed_to, log_end)
        self._queues_size = size
        self._begin(indexed_to, index.offset, () if index.newest is None else (*index.flushed[:-1], index.newest))
        self._put_again(times_from)
        return True

    def _begin(self, end_offset: int, index_from: int, files: Sequence[BuiltFile]) -> None:
        """Take up the files that are there."""
        settings = self._settings
        self._end = self._looked_to = end_offset
        self._index_from = index_from
        self._names = [file.path.name for file in files]
        is_full = bool(files) and files[-1].header.next_item >= settings.shape.item_capacity
        self._full = next(iter(files[-1:] if is_full else files[-2:-1]), None)
        self._marks = []
        self._queues = QueueBuilder(
            self._folder / "consumequeue", settings.queue_file_size, self._disk, is_batch=settings.is_batch
        )
        self._index = self._builder(files[-1] if files else None)

    def _builder(self, after: BuiltFile | None) -> IndexBuilder:
        folder = self._folder / "index"
        return IndexBuilder(folder, self._settings.shape, self._disk, after, live=True, ordered=True, reserve=False)

    def _put_again(self, times_from: int) -> None:
        """Bring all to one point: that up to which it was published, or up to which the index is proven.

        Of what is published the times of the last block may be missing, and the items of an index file that is gone.
        """
        assert self._queues is not None
        indexed_to, to_offset = self._end, max(self._end, self._index_from)
        scan = LogScan(
            self._log, min(times_from, self._index_from), to_offset, tags=self._settings.tags, check_crc=False
        )
        for batch in scan:
            offsets = batch.messages["physical_offset"]
            new = batch.messages[int(np.searchsorted(offsets, indexed_to)) :]
            if len(new):
                self._queues.put(batch.data, batch.base_offset, new)
                self._marks.append(batch.last_record)
            self._put_items(batch)
            self._put_times(batch, int(np.searchsorted(offsets, times_from)))
        self.publish(to_offset, [hole for hole in scan.holes if hole[0] >= indexed_to])

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, batch: Batch) -> None:
        """Put the next records of the log."""
        assert self._queues is not None
        self._queues.put(batch.data, batch.base_offset, batch.messages)
        self._put_items(batch)
        self._put_times(batch, 0)
        self._marks.append(batch.last_record)
        self._end = batch.end_offset

    def put_spill(self, work: Path, spilled: Spilled) -> None:
        """Put what was taken from the next stretch of the log, in spills of one group."""
        assert self._queues is not None
        if spilled.begin_offset == NOWHERE:
            return
        if spilled.begin_offset < self._end or self._log.pieces(self._end, spilled.begin_offset):
            raise StoreError(f"offset {self._end} is to be indexed next, and not {spilled.begin_offset}")
        base = self._log.base_of(spilled.begin_offset)
        if base is None:
            raise StoreError(f"offset {spilled.begin_offset}: its file of the log is gone")
        self._is_settled = False  # what is there by half, if this fails, is not what is said to be there
        for run in spilled_runs(work, spilled.name, GROUP):
            self._queues.put_rows(*run)
        for items in spilled_items(work, spilled.name, 0, spilled.item_count):
            self._put_columns(*items)
        if spilled.message_count:
            self._put_bare(spilled.last_offset, is_bare=spilled.ends_bare)
            self._marks.append((spilled.last_offset, bytes.fromhex(spilled.last_head)))
        self._times.put(base, np.frombuffer(spilled_times(work, spilled.name), TIME_BLOCK))
        self._end = spilled.end_offset
        self._is_settled = True

    def _put_items(self, batch: Batch) -> None:
        items = batch.items
        self._put_columns(items["key_hash"], items["physical_offset"], items["store_timestamp_ms"])
        is_bare = not len(items) or int(items["message"][-1]) != len(batch.messages) - 1
        self._put_bare(int(batch.messages["physical_offset"][-1]), is_bare=is_bare)

    def _put_columns(
        self, hashes: NDArray[np.int32], offsets: NDArray[np.int64], timestamps_ms: NDArray[np.int64]
    ) -> None:
        """Put items, but for those that the index has already."""
        first = int(np.searchsorted(offsets, self._index_from))
        if first < len(hashes):
            self._name_anew()
            assert self._index is not None
            self._index.put(hashes[first:], offsets[first:], timestamps_ms[first:])

    def _put_bare(self, last_offset: int, *, is_bare: bool) -> None:
        """Let the last message, which has no items, ask for a file, unless it did so when it was first put."""
        assert self._index is not None
        if is_bare and (last_offset >= self._index_from or last_offset > self._index.header.end_physical_offset):
            self._index.ask_for_file()

    def _name_anew(self) -> None:
        """Remove an index file without items: one that has some is named by the first of them."""
        index = self._index
        assert index is not None
        newest = index.newest
        if newest is None or newest.header.next_item != FIRST_ITEM:
            return
        index.close()
        self._disk.remove(newest.path)
        self._disk.flush_folder(newest.path.parent)
        self._names = [name for name in self._names if name != newest.path.name]
        self._index = self._builder(self._full)
        self._index.ask_for_file()

    def _put_times(self, batch: Batch, first: int) -> None:
        from whence.kernels.time_blocks import encode_time_blocks

        self._times.put(batch.base_offset, encode_time_blocks(batch.messages[first:], batch.base_offset))

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(self, end_offset: int, holes: Sequence[tuple[int, int]] = ()) -> Sidecar:
        """Make all that was put last, and then say so. The log was looked at up to ``end_offset``.

        ``holes``: from where to where nothing could be read since the last time.
        """
        queues, index = self._queues, self._index
        assert queues is not None and index is not None
        index.complete()
        queues.write()
        queues.unflushed().flush()
        flushed = index.unflushed()
        self._full = flushed.full[-1] if flushed.full else self._full
        newest = flushed.newest
        names = [file.path.name for file in (*flushed.full, newest) if file is not None]
        self._names += [name for name in dict.fromkeys(names) if name not in self._names]
        flushed.flush()
        claim, from_offset = self._claim, self._indexed_to
        self._times.complete(self._log, from_offset, end_offset)
        self._times.flush()

        marks = [*claim.marks, (claim.last_record_offset, claim.last_record), *self._marks]
        last = marks.pop()
        self._claim = replace(
            claim,
            indexed=join_indexed(
                claim.indexed,
                indexed_stretches(self._log, from_offset, end_offset, [(from_offset, self._looked_to), *holes]),
            ),
            last_record_offset=last[0],
            last_record=last[1],
            marks=thinned_marks([mark for mark in marks if mark[0] >= self._log.begin_offset], end_offset),
            index_names=tuple(self._names),
            newest_header=NO_HEADER if newest is None else newest.header,
            queues_size=self._queues_size + queues.grown_size,
            other_topics=tuple(sorted({*claim.other_topics, *queues.without_folder})),
        )
        self._claim.write(self._folder, self._disk)
        self._end = max(self._end, end_offset)
        self._looked_to = end_offset
        self._marks = []
        return self._claim

    @property
    def _indexed_to(self) -> int:
        return self._claim.indexed_to if self._claim.indexed else self._log.begin_offset

    def go_back(self) -> None:
        """Go on where ``sidecar.json`` says, as who reads it plans, if all that was put is published.

        What could not be read at the end of that is looked at again.
        """
        if self._end == self._looked_to:
            self._end = self._looked_to = min(self._end, self._indexed_to)

    def take_fields(self, claim: Sidecar) -> None:
        """Go on with what was said of fields meanwhile."""
        self._claim = replace(self._claim, fields=claim.fields)

    def close(self) -> None:
        """End. If all that was put is published, what is there needs no recovery."""
        is_clean = self._is_settled and self._end == self._claim.indexed_to
        self.let_go()
        if is_clean and self._claim.growing:
            self._claim = replace(self._claim, growing=False)
            self._claim.write(self._folder, self._disk)

    def let_go(self) -> None:
        """Close the files, and say nothing: what is there may be somebody else's by now."""
        self._is_settled = False
        for part in (self._queues, self._index):
            if part is not None:
                part.close()
        self._times.close()
