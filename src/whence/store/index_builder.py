"""IndexBuilder: arrays in, index files out. The one engine of dispatch, batch and stream.

    builder = IndexBuilder(folder / "index", DEFAULT_SHAPE, Disk())
    builder.put(key_hashes, physical_offsets, store_timestamps_ms)      again and again, in the order of the log
    built = builder.finish()                                            the files, flushed

The bytes are those that a broker makes when it dispatches the same log, whatever the arrays are cut into. Items are
only ever appended, while slots are hit at random: so the slots of the one file that is being built are held in memory
in native order (20 MB), items are linked, encoded and written a chunk at a time, and slots and header follow when the
file is full. A build needs some tens of megabytes, however long the log is.

A live builder serves readers while it builds: slots and header follow each chunk of items, through a map.

    builder = IndexBuilder(folder / "index", DEFAULT_SHAPE, Disk(), newest, live=True)
    builder.put(...)                 is found by readers in all processes when this returns
    builder.flush()                  lasts when this returns; go on

An ordered one lets readers see items at :meth:`IndexBuilder.flush`, when they are on the disk: items are flushed,
then slots lead to them and the header counts them, and these are flushed. So whatever the power leaves, no slot leads
to an item that is not there, and who reads an index whose writer is gone finds all that was flushed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import StoreError, UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile
from whence.files.names import index_name
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    HEADER_SIZE,
    NO_ITEM,
    IndexHeader,
    encode_header,
    item_position,
)
from whence.store.index_cut import counted_slots, rewrite, write_slots
from whence.store.index_file import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 65_536  # items that are linked, encoded and written at once: they stay in the cache
FLUSHED_AT_ONCE = 8 * 1048576  # bytes of items that the disk is told to write
BLOCK_SIZE = 512  # of what stat() counts


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One index file, complete on disk up to the end that its header tells."""

    path: Path
    header: IndexHeader


@dataclass(frozen=True, slots=True)
class FlushedIndex:
    """What lasts. ``full``: the newest file that takes no more items; its end is what a checkpoint tells."""

    newest: BuiltFile | None
    full: BuiltFile | None


@dataclass(frozen=True, slots=True)
class UnflushedIndex:
    """What was put when this was taken. Any thread may flush it, also while more is put."""

    full: tuple[BuiltFile, ...]
    newest: BuiltFile | None
    folder: Path
    disk: Disk

    def flush(self) -> FlushedIndex:
        """Wait until all of it is on the disk. What has expired meanwhile is passed over."""
        files = [file.path for file in self.full]
        if self.newest is not None and self.newest.path not in files:
            files.append(self.newest.path)
        self.disk.flush_files(files)
        if files:
            self.disk.flush_folder(self.folder)
        return FlushedIndex(self.newest, self.full[-1] if self.full else None)


class IndexBuilder:
    """Fills one index file after the other. One thread; nobody else writes to the folder.

    ``after`` is the newest file that is there already. If it has room it is gone on with: what a writer that was
    killed left in it above the header's count is taken out first. Otherwise the next file inherits its end. What a
    power failure leaves of an unfinished build is for recovery to judge.

    ``live``: the header counts what was put when :meth:`put` returns, and readers find it. Otherwise it does so once
    the file is full, or :meth:`finish` is called. ``ordered``: it is live, but readers find items once they are
    flushed. ``reserve``: whether a live file takes all its room when it is begun, so that a full disk is told then;
    otherwise only its slots do. ``zone``: the one in which files are named, None for the machine's.

    A builder puts what it is given. RocketMQ passes over messages that lie before the end of its index, and puts
    those of the last message twice: where to go on is the caller's to know. After a put that failed, ``put_count``
    tells how many items were put since the builder was made: those behind them can be put again.

    ``file``: the one to fill, which the caller has made. Two builders may share it, each in a process of its own: one
    puts the first items and leaves (:meth:`leave`), the other passes over them (:meth:`pass_over`) and puts the rest.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        disk: Disk,
        after: BuiltFile | None = None,
        *,
        live: bool = False,
        ordered: bool = False,
        reserve: bool = True,
        zone: tzinfo | None = UTC,
        file: Path | None = None,
    ) -> None:
        if not (0 < shape.slot_capacity < 2**31 and 1 < shape.item_capacity < 2**31):
            raise UsageError(
                f"no item fits into an index file of {shape.slot_capacity} slots and {shape.item_capacity} items"
            )
        self._folder = folder
        self._shape = shape
        self._disk = disk
        self._live = live
        self._ordered = ordered
        self._unled: list[NDArray[np.int32]] = []  # hashes of items to which no slot leads yet
        self._told = b""  # the header that readers see
        self._reserve = live and reserve
        self._zone = zone
        self._built: list[BuiltFile] = []
        self._full: list[BuiltFile] = []  # that are not flushed yet
        self.newest = after  # the newest file that is there, with all that was put
        self._file: DiskFile | None = None
        self._map: NDArray[np.uint8] | None = None  # of the file, if readers look on
        # NumPy asks for huge pages where it need not give zeros: with small ones, linking took up to twice as long.
        self._slots = np.empty(shape.slot_capacity, np.int32)
        self._slots[:] = NO_ITEM
        self._begin_file(None if after is None else after.header)
        self._is_asked_for = False
        self.put_count = 0
        if file is not None:
            self._file = disk.open(file)
        elif after is not None and after.header.next_item < shape.item_capacity:
            self._go_on_with(after)

    @property
    def header(self) -> IndexHeader:
        """That of the file that is being built, all items counted that were put."""
        return IndexHeader(
            self._begin_ms, self._end_ms, self._begin_offset, self._end_offset, self._slot_count, self._next_item
        )

    def _begin_file(self, before: IndexHeader | None) -> None:
        """Set the next file to its beginning: it inherits the end of the one before, and has no name yet."""
        self._begin_ms = self._end_ms = 0 if before is None else max(before.end_timestamp_ms, 0)
        self._begin_offset = self._end_offset = 0 if before is None else max(before.end_physical_offset, 0)
        self._slot_count = 0
        self._next_item = self._begun_item = FIRST_ITEM

    def _go_on_with(self, last: BuiltFile) -> None:
        header = last.header
        self._begin_ms, self._end_ms = header.begin_timestamp_ms, header.end_timestamp_ms
        self._begin_offset, self._end_offset = header.begin_physical_offset, header.end_physical_offset
        self._next_item = self._begun_item = header.next_item
        with MappedFile(last.path) as mapped:
            self._slots = counted_slots(mapped, self._shape, self._next_item)
            self._slot_count = int(np.count_nonzero(self._slots))
            self._file = self._disk.open(last.path)
            try:
                rewrite(self._file, mapped, self._shape, self._slots, self.header)
                if self._live:
                    # Only what has its room on the disk may be written through a map.
                    is_sparse = last.path.stat().st_blocks * BLOCK_SIZE < self._shape.file_size
                    if is_sparse and mapped.next_hole(0) < item_position(self._shape.slot_capacity, 0):
                        write_slots(self._file, self._slots)
                    self._map = _mapped(self._file)
                    self._told = encode_header(self.header)
            except BaseException:
                self.close()
                raise

    # -- putting ---------------------------------------------------------------------------------------------

    def put(
        self,
        key_hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        store_timestamps_ms: NDArray[np.int64],
    ) -> None:
        """Put items, oldest first: of each message its unique id, its keys, its tags."""
        count = len(key_hashes)
        if len(physical_offsets) != count or len(store_timestamps_ms) != count:
            raise UsageError(
                f"{count} hashes, {len(physical_offsets)} offsets and {len(store_timestamps_ms)} times make no items"
            )
        # Fields of rows are taken as they are: to copy them took a quarter as long again.
        key_hashes = np.asarray(key_hashes, np.int32)
        physical_offsets = np.asarray(physical_offsets, np.int64)
        store_timestamps_ms = np.asarray(store_timestamps_ms, np.int64)
        done = 0
        while done < count:
            self.ask_for_file()
            taken = min(count - done, self._shape.item_capacity - self._next_item, CHUNK)
            chunk = slice(done, done + taken)
            self._put_chunk(key_hashes[chunk], physical_offsets[chunk], store_timestamps_ms[chunk])
            done += taken

    def ask_for_file(self) -> None:
        """Roll if the file is full, as RocketMQ does once for each message before it looks at its keys.

        So a message without a key, too, makes a broker begin a file: it is there when the build is finished, even
        if nothing was put into it.
        """
        self._is_asked_for = True
        if self._next_item >= self._shape.item_capacity:
            full = self._finish_file()
            if self._live:
                self._full.append(full)
            self._begin_file(full.header)
            self._slots[:] = 0

    def _put_chunk(
        self,
        key_hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        store_timestamps_ms: NDArray[np.int64],
    ) -> None:
        """Put items that fit into the file and into the cache."""
        from whence.kernels.index_items import encode_linked_items, unlink_items

        file = self._opened(int(store_timestamps_ms[0]))
        if self._map is not None and self._map[:HEADER_SIZE].tobytes() != self._told:
            raise StoreError(f"{file.path}: another program has written to it; it is made again at the next start")
        items = encode_linked_items(
            key_hashes, physical_offsets, store_timestamps_ms, self._begin_ms, self._next_item, self._slots
        )
        try:
            file.write(items.data, item_position(self._shape.slot_capacity, self._next_item))
        except BaseException:
            unlink_items(np.ascontiguousarray(key_hashes), items.previous_items, self._slots)
            raise
        self._count(physical_offsets, store_timestamps_ms, items.used)
        if not self._live or self._ordered:
            self._begin_flush(file)
        self.newest = BuiltFile(file.path, self.header)
        self.put_count += len(key_hashes)
        if self._live:
            # The caller may put its next items into the same array.
            self._unled.append(key_hashes.copy() if self._ordered else np.ascontiguousarray(key_hashes))
            if not self._ordered:
                self._lead()

    def _lead(self) -> None:
        """Let slots lead to the items that were put, and then the header count them."""
        from whence.kernels.index_items import publish_items

        if not self._unled:
            return
        assert self._file is not None and self._map is not None
        if self._ordered:
            self._file.flush()
        publish_items(self._map, np.concatenate(self._unled), self._slots, self.header)
        self._unled = []
        self._told = encode_header(self.header)

    def pass_over(
        self,
        key_hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        store_timestamps_ms: NDArray[np.int64],
    ) -> None:
        """Link the first items of the file, which another builder writes."""
        from whence.kernels.chains import link_items

        used = link_items(key_hashes, self._next_item, self._slots, np.empty(len(key_hashes), np.int32))
        self._count(physical_offsets, store_timestamps_ms, used)
        self._begun_item = self._next_item

    def _count(
        self, physical_offsets: NDArray[np.int64], store_timestamps_ms: NDArray[np.int64], used_slots: int
    ) -> None:
        """Let the header tell of items that were linked."""
        if self._next_item == FIRST_ITEM:
            self._begin_ms, self._begin_offset = int(store_timestamps_ms[0]), int(physical_offsets[0])
        self._end_ms, self._end_offset = int(store_timestamps_ms[-1]), int(physical_offsets[-1])
        self._slot_count += used_slots
        self._next_item += len(physical_offsets)

    def _begin_flush(self, file: DiskFile) -> None:
        """Let the disk write while items are linked: at the end there is little left to wait for."""
        begin, end = (item_position(self._shape.slot_capacity, item) for item in (self._begun_item, self._next_item))
        if end - begin >= FLUSHED_AT_ONCE:
            file.begin_flush(begin, end - begin)
            self._begun_item = self._next_item

    # -- files -----------------------------------------------------------------------------------------------

    def _opened(self, first_timestamp_ms: int) -> DiskFile:
        """The file that is being built, made if it is not there yet."""
        if self._file is None:
            last_name = None if self.newest is None else self.newest.path.name
            path = self._folder / index_name(first_timestamp_ms, last_name, self._zone)
            self._disk.make_folder(self._folder)
            # Without readers the file takes room as it fills, as a broker's does: a small log would need 420 MB.
            file = self._disk.create(path, self._shape.file_size, reserve=self._reserve)
            try:
                if self._live:
                    if not self._reserve:
                        write_slots(file, self._slots)
                    self._told = encode_header(self.header)
                    file.write(self._told, 0)
                    self._map = _mapped(file)
            except BaseException:
                file.close()
                self._disk.remove(path)
                raise
            self._file = file
            self.newest = BuiltFile(path, self.header)
        return self._file

    def complete(self) -> None:
        """Make the file that was asked for, if nothing was put into it yet."""
        if self._is_asked_for:
            self._opened(self._begin_ms)

    def _finish_file(self) -> BuiltFile:
        """Let go of a file when all of it is written. Without readers it is flushed here."""
        file = self._opened(self._begin_ms)
        built = BuiltFile(file.path, self.header)
        self._lead()
        if not self._live:
            write_slots(file, self._slots)
            file.write(encode_header(self.header), 0)
            file.flush()
        self._built.append(built)
        self.close()
        return built

    @property
    def unflushed_full_count(self) -> int:
        """How many files became full since the last flush."""
        return len(self._full)

    def unflushed(self) -> UnflushedIndex:
        """What has to be flushed for all to last that a live builder put until now. Taken once, and flushed once."""
        self._lead()
        full, self._full = tuple(self._full), []
        return UnflushedIndex(full, self.newest, self._folder, self._disk)

    def flush(self) -> FlushedIndex:
        """Wait until all that a live builder put is on the disk, and go on."""
        return self.unflushed().flush()

    def finish(self) -> list[BuiltFile]:
        """Complete the last file and flush it: all files that were built, oldest first."""
        if self._is_asked_for:
            self._finish_file()
            if self._live:
                self.flush()
            else:
                self._disk.flush_folder(self._folder)
        self.close()
        return self._built

    def leave(self) -> None:
        """Flush the items that were put. Slots and header are for the one who passes over them."""
        assert self._file is not None
        self._file.flush()
        self.close()

    def close(self) -> None:
        """Let go of a file that is not finished."""
        self._map = None
        self._unled = []
        if self._file is not None:
            self._file.close()
            self._file = None


def _mapped(file: DiskFile) -> NDArray[np.uint8]:
    return np.frombuffer(file.map(), np.uint8)
