"""GrowingField: the newest index file of a field and its values, written to in place.

    field = GrowingField(folder / "fields" / "city", shape, disk, names, newest_header)
    field.put_spill(work, spilled)       again and again, in the order of the log
    names, header = field.finish()       it lasts; readers believe it when sidecar.json says so

A copy of the newest file, as a build makes one, would take some hundred megabytes for each few messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whence.files.disk import Disk
from whence.formats.field_values import values_position
from whence.formats.rocketmq.index_file import FIRST_ITEM, IndexHeader
from whence.store.field_spill import spilled_values
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.spill import Spilled
from whence.store.spilled import spilled_items


class GrowingField:
    """Goes on with files of a field that are as they were noted. One thread, of who holds the sidecar's lock."""

    def __init__(
        self, folder: Path, shape: Shape, disk: Disk, names: Sequence[str], newest_header: IndexHeader
    ) -> None:
        self._folder = folder
        self._capacity = shape.item_capacity
        self._disk = disk
        self._names = list(names)
        newest = BuiltFile(folder / "index" / names[-1], newest_header)
        self._index = IndexBuilder(folder / "index", shape, disk, newest, live=True, ordered=True, reserve=False)

    def put_spill(self, work: Path, spilled: Spilled) -> None:
        """Put the values of the next stretch of the log."""
        done = 0
        while done < spilled.item_count:
            item = self._index.header.next_item
            item = FIRST_ITEM if item >= self._capacity else item
            taken = min(self._capacity - item, spilled.item_count - done)
            for items in spilled_items(work, spilled.name, done, taken):
                self._index.put(*items)
            self._put_values(work, spilled.name, done, taken, item)
            done += taken

    def _put_values(self, work: Path, name: str, first: int, count: int, item: int) -> None:
        """Write the values of some items of the newest file, and flush them."""
        newest = self._index.newest
        assert newest is not None
        path, at = self._folder / "values" / newest.path.name, values_position(item)
        is_new = newest.path.name not in self._names
        with self._disk.create(path, 0, reserve=False) if is_new else self._disk.open(path) as file:
            if is_new:
                file.write(bytes(at), 0)
                self._names.append(newest.path.name)
            for piece in spilled_values(work, name, first, count):
                file.write(piece, at)
                at += len(piece)
            file.flush()
        if is_new:
            self._disk.flush_folder(path.parent)

    def finish(self) -> tuple[list[str], IndexHeader]:
        """Wait until all is on the disk: the names of all files, and the header of the newest."""
        newest = self._index.flush().newest
        assert newest is not None
        self._index.close()
        return self._names, newest.header

    def close(self) -> None:
        """Let go of what is not finished."""
        self._index.close()
