"""QueueWriter: bytes appended to many runs of files side by side, with few of them open.

run = QueueRun(folder, file_size, position)
writer.append(run, data)       waits for more
writer.write()                 readers find what was appended
writer.unflushed().flush()     it lasts
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from whence.files.disk import Disk, DiskFile
from whence.files.folder import free_descriptors, is_file
from whence.files.names import offset_name

OPEN_FILES_MAX = 256
PENDING_MAX = 16 * 1048576  # bytes that wait to be written, so that those of a run are written many at a time


@dataclass(frozen=True, slots=True)
class UnflushedQueues:
    """What was written when this was taken. Any thread may flush it, also while more is written."""

    paths: tuple[Path, ...]
    folders: tuple[Path, ...]
    disk: Disk

    def flush(self) -> None:
        """Wait until all of it is on the disk. Linux tells an error of writing to who asks, whoever wrote.

        What has expired meanwhile is passed over.
        """
        self.disk.flush_files(self.paths)
        self.disk.flush_folders(self.folders)


class QueueRun:
    """Files of one size in one folder, written one behind the other; what is appended waits in ``pending``."""

    __slots__ = ("file_size", "folder", "pending", "position")

    def __init__(self, folder: Path, file_size: int, position: int) -> None:
        self.folder = folder
        self.file_size = file_size
        self.position = position  # in all files together: what waits is written here
        self.pending: list[bytes | memoryview] = []


class QueueWriter:
    """Writes to any number of runs. One thread.

    A file takes room as it is written, so that a thousand queues of a few messages are small. At most
    OPEN_FILES_MAX are open at once, and no more than a quarter of what the process may still open.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open_max = min(OPEN_FILES_MAX, max(free_descriptors() // 4, 1))
        self._open: OrderedDict[Path, DiskFile] = OrderedDict()
        self._pending: list[QueueRun] = []
        self._pending_size = 0
        self._unflushed: dict[Path, None] = {}
        self._changed_folders: dict[Path, None] = {}

    def make_folder(self, root: Path, folder: Path) -> None:
        """Make the folder of a run, two below ``root``. A flush of each would take longer than all else."""
        self._disk.make_folder(root)
        self._disk.add_folder(folder.parent)
        self._disk.add_folder(folder)
        self._changed_folders |= {root: None, folder.parent: None}

    def append(self, run: QueueRun, data: bytes | memoryview) -> None:
        """Append to a run, now or when more has come together."""
        if not run.pending:
            self._pending.append(run)
        run.pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= PENDING_MAX:
            self.write()

    def write(self) -> None:
        """Write all that waits. After an error it may be tried again: then the same bytes go to the same places."""
        for run in self._pending:
            self._write(run, memoryview(b"".join(run.pending)))
            run.pending.clear()
        self._pending.clear()
        self._pending_size = 0

    def _write(self, run: QueueRun, data: memoryview) -> None:
        end = run.position
        while data:
            position = end % run.file_size
            path = run.folder / offset_name(end - position)
            taken = min(len(data), run.file_size - position)
            file = self._opened(path, run.file_size if position == 0 else 0)
            file.write(data[:taken], position)
            self._unflushed[path] = None
            end += taken
            data = data[taken:]
            if position + taken == run.file_size:
                file.close()
                del self._open[path]
        run.position = end

    def _opened(self, path: Path, new_size: int) -> DiskFile:
        """A file to write to; it is made if it has a ``new_size``."""
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= self._open_max:
                self._open.popitem(last=False)[1].close()
            if new_size and not is_file(path):  # it is there after a write that failed
                file = self._disk.create(path, new_size, reserve=False)
                self._changed_folders[path.parent] = None
            else:
                file = self._disk.open(path)
            self._open[path] = file
        self._open.move_to_end(path)
        return file

    def unflushed(self) -> UnflushedQueues:
        """What has to be flushed for all to last that was written until now. Taken once, and flushed once."""
        paths, self._unflushed = tuple(self._unflushed), {}
        folders, self._changed_folders = tuple(self._changed_folders), {}
        return UnflushedQueues(paths, folders, self._disk)

    def close(self) -> None:
        """Let go of all files. What waits is not written."""
        while self._open:
            self._open.popitem()[1].close()
