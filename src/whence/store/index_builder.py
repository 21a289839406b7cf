"""IndexBuilder: arrays in, finished index files out. The one engine of dispatch, batch and stream.

    builder = IndexBuilder(folder / "index", DEFAULT_SHAPE, Disk())
    builder.put(key_hashes, physical_offsets, store_timestamps_ms)      again and again, in the order of the log
    built = builder.finish()                                            the files, flushed

The bytes are those that a broker makes when it dispatches the same log, whatever the arrays are cut into. Items are
only ever appended, while slots are hit at random: so the slots of the one file that is being built are held in memory
in native order (20 MB), items are linked, encoded and written a chunk at a time, and slots and header follow when the
file is full. A build needs some tens of megabytes, however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.mapped_file import MappedFile
from whence.files.names import index_name
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    IndexHeader,
    decode_slots,
    encode_header,
    encode_slots,
    item_position,
    slot_position,
)
from whence.store.index_file import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 65_536  # items that are linked, encoded and written at once: they stay in the cache
SLOTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One index file, complete on disk up to the end that its header tells."""

    path: Path
    header: IndexHeader


class IndexBuilder:
    """Fills one index file after the other. One thread; nobody else writes to the folder.

    ``after`` is the newest file that is there already. If it has room it is gone on with (its slots must lead to
    counted items only, as they do after a recovery), otherwise the next file inherits its end. What a power failure
    leaves of an unfinished build is for recovery to judge: until a file is full or :meth:`finish` is called, its
    header does not count the items that were put.

    A builder puts what it is given. RocketMQ passes over messages that lie before the end of its index, and puts
    those of the last message twice: where to go on is the caller's to know.
    """

    def __init__(self, folder: Path, shape: Shape, disk: Disk, after: BuiltFile | None = None) -> None:
        if not (0 < shape.slot_capacity < 2**31 and 1 < shape.item_capacity < 2**31):
            raise UsageError(
                f"no item fits into an index file of {shape.slot_capacity} slots and {shape.item_capacity} items"
            )
        self._folder = folder
        self._shape = shape
        self._disk = disk
        self._built: list[BuiltFile] = []
        self._last_name = None if after is None else after.path.name
        self._file: DiskFile | None = None
        self._slots = np.zeros(shape.slot_capacity, np.int32)
        self._begin_file(None if after is None else after.header)
        self._is_asked_for = False
        if after is not None and after.header.next_item < shape.item_capacity:
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
        self._next_item = FIRST_ITEM

    def _go_on_with(self, last: BuiltFile) -> None:
        header = last.header
        self._begin_ms, self._end_ms = header.begin_timestamp_ms, header.end_timestamp_ms
        self._begin_offset, self._end_offset = header.begin_physical_offset, header.end_physical_offset
        self._slot_count, self._next_item = header.slot_count, header.next_item
        mapped = MappedFile(last.path)
        self._slots[:] = decode_slots(mapped.data[slot_position(0) : slot_position(self._shape.slot_capacity)])
        self._file = self._disk.open(last.path)

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
            self._finish_file()
            self._begin_file(self._built[-1].header)
            self._slots[:] = 0

    def _put_chunk(
        self,
        key_hashes: NDArray[np.int32],
        physical_offsets: NDArray[np.int64],
        store_timestamps_ms: NDArray[np.int64],
    ) -> None:
        """Put items that fit into the file and into the cache."""
        from whence.kernels.index_items import encode_linked_items

        is_first = self._next_item == FIRST_ITEM
        file = self._opened(int(store_timestamps_ms[0]))
        data, used = encode_linked_items(
            key_hashes, physical_offsets, store_timestamps_ms, self._begin_ms, self._next_item, self._slots
        )
        file.write(data, item_position(self._shape.slot_capacity, self._next_item))
        if is_first:
            self._begin_ms, self._begin_offset = int(store_timestamps_ms[0]), int(physical_offsets[0])
        self._end_ms, self._end_offset = int(store_timestamps_ms[-1]), int(physical_offsets[-1])
        self._slot_count += used
        self._next_item += len(key_hashes)

    # -- files -----------------------------------------------------------------------------------------------

    def _opened(self, first_timestamp_ms: int) -> DiskFile:
        """The file that is being built, made if it is not there yet."""
        if self._file is None:
            self._disk.make_folder(self._folder)
            self._last_name = index_name(first_timestamp_ms, self._last_name)
            # A broker's file takes room as it fills, and so does ours: a small log would need 420 MB otherwise.
            path = self._folder / self._last_name
            self._file = self._disk.create(path, self._shape.file_size, reserve=False)
        return self._file

    def _finish_file(self) -> None:
        """Write slots and header behind the items, and wait until all is on the disk."""
        file = self._opened(self._begin_ms)
        for first in range(0, len(self._slots), SLOTS_AT_ONCE):  # not all: that would be 20 MB more
            file.write(encode_slots(self._slots[first : first + SLOTS_AT_ONCE]), slot_position(first))
        file.write(encode_header(self.header), 0)
        file.flush()
        file.close()
        self._built.append(BuiltFile(file.path, self.header))
        self._file = None

    def finish(self) -> list[BuiltFile]:
        """Complete the last file and flush it: all files that were built, oldest first."""
        if self._is_asked_for:
            self._finish_file()
            self._disk.flush_folder(self._folder)
        self.close()
        return self._built

    def close(self) -> None:
        """Let go of a file that is not finished."""
        if self._file is not None:
            self._file.close()
            self._file = None
