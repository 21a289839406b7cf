"""ExtWriter: an ext unit for each entry of a queue. The entry leads to it, where the code of its tags would be.

Units of one queue lie one behind the other. One that would leave fewer than four bytes of its file free goes to the
next file, behind the mark that says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import UsageError
from whence.files.disk import Disk
from whence.files.file_sequence import FileSequence
from whence.files.folder import is_folder
from whence.formats.rocketmq.consume_queue import (
    EXT_END_DATA,
    EXT_FREE_SIZE,
    EXT_UNIT,
    EXT_UNIT_SIZE_MIN,
    decode_ext_unit,
    ext_address,
    ext_position,
    is_ext_address,
)
from whence.store.queue_files import cut_run
from whence.store.queue_writer import QueueRun, QueueWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ExtWriter:
    """Writes the ext units of all queues. One thread.

    Bit maps are what a broker computes for the filters of its consumers. whence has none, so that all units that it
    writes are as small as can be; behind others it goes on.
    """

    def __init__(self, folder: Path, file_size: int, writer: QueueWriter, disk: Disk) -> None:
        if file_size < EXT_UNIT_SIZE_MIN + EXT_FREE_SIZE:
            raise UsageError(f"an ext file of {file_size} bytes holds no unit")
        self._folder = folder
        self._file_size = file_size
        self._writer = writer
        self._disk = disk
        self._runs: dict[tuple[str, int], QueueRun] = {}
        self._ends: dict[tuple[str, int], int] = {}  # of the units that were put, also of those that wait

    def go_on(self, topic: str, queue: int, last_code: int | None) -> None:
        """Go on behind the unit to which the last entry of a queue leads; what lies behind that is nobody's."""
        folder = self._folder / topic / str(queue)
        if not is_folder(folder):
            return
        files = FileSequence(folder)
        try:
            if last_code is None:
                end = files.begin_offset
            elif is_ext_address(last_code):
                position = ext_position(last_code)
                end = position + self._unit_size(files, position)
            else:
                end = self._written_end(files)
        finally:
            files.close()
        cut_run(folder, end, self._disk)
        self._runs[topic, queue] = QueueRun(folder, self._file_size, end)
        self._ends[topic, queue] = end

    def _unit_size(self, files: FileSequence, position: int) -> int:
        """The size of the unit at this position; 0 if there is none."""
        base = files.base_of(position)
        if base is None:
            return 0
        unit, _ = decode_ext_unit(files.file(base).data, position - base)
        return 0 if unit is None else unit.size

    def _written_end(self, files: FileSequence) -> int:
        """Behind the last unit there is."""
        end = files.bases[-1] if files.bases else 0
        while size := self._unit_size(files, end):
            end += size
        return end

    def replace_codes(
        self, topic: str, queue: int, entries: NDArray[np.void], store_timestamps_ms: NDArray[np.int64]
    ) -> None:
        """Write the units of entries of one queue, and put their addresses in the place of the codes."""
        run = self._runs.get((topic, queue))
        if run is None:
            folder = self._folder / topic / str(queue)
            self._writer.make_folder(self._folder, folder)
            run = self._runs[topic, queue] = QueueRun(folder, self._file_size, 0)
            self._ends[topic, queue] = 0
        end, done = self._ends[topic, queue], 0
        while done < len(entries):
            left = self._file_size - end % self._file_size
            taken = slice(done, min(len(entries), done + (left - EXT_FREE_SIZE) // EXT_UNIT_SIZE_MIN))
            units = np.zeros(taken.stop - done, EXT_UNIT)
            units["size"] = EXT_UNIT_SIZE_MIN
            units["tags_code"] = entries["tags_code"][taken]
            units["store_timestamp_ms"] = store_timestamps_ms[taken]
            entries["tags_code"][taken] = ext_address(end) + EXT_UNIT_SIZE_MIN * np.arange(len(units))
            data = units.tobytes()
            if taken.stop < len(entries):  # the next one does not fit
                data = (data + EXT_END_DATA).ljust(left, b"\0")
            self._writer.append(run, data)
            end += len(data)
            done = taken.stop
        self._ends[topic, queue] = end
