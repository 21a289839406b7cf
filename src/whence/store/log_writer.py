"""LogWriter: the end of a CommitLog, to which bytes are appended.

    |  file n-1, full   blank |  file n  ........ end_offset   zeros |  file n+1, made ahead
                                   flushed_offset

A record never lies across two files, and 8 bytes stay free behind it: where a record does not fit, a blank fills the
file and the record begins the next one. The next file is made ahead of need (file_maker.py).

Records are written with ``pwrite``, not through a map (docs/design/0007): a disk that fails gives an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from whence.errors import StoreError, UsageError
from whence.files.disk import Disk, DiskFile
from whence.files.names import offset_name
from whence.formats.buffers import Buffer
from whence.formats.rocketmq.message import BLANK_SIZE_MIN, encode_blank
from whence.store.file_maker import FileMaker, NewFile

FILE_TIMEOUT_S = 5.0  # RocketMQ waits as long for its next file
FILE_SIZE_MAX = 2**31 - 1  # the size of a blank is an i4


class LogWriter:
    """Appends to the files of a CommitLog.

    One thread at a time appends (the store's put lock sees to that); another may flush meanwhile. ``end_offset`` and
    ``flushed_offset`` only grow, and any thread may read them.

    After a write has failed nothing is appended any more, for nobody knows what lies at the end. After a flush has
    failed nothing is flushed any more either: the system may have dropped what it could not write, and a second
    flush would not tell. Both raise the first ``failure`` from then on. A disk without room for the next file is no
    failure of that kind: what is there stays good, and later calls try again.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        file_size: int,
        end_offset: int,
        disk: Disk,
        *,
        warm_up: bool = False,
        is_usable: Callable[[Path], bool] = lambda folder: True,
        file_timeout_s: float = FILE_TIMEOUT_S,
    ) -> None:
        """Go on at ``end_offset``. All before it is flushed, zeros lie behind it in its file, and no file follows.

        Files are spread over several ``folders`` by their number, as RocketMQ does it. One that is not usable now
        (read-only, nearly full) gets no new file, unless none is.
        """
        if not BLANK_SIZE_MIN < file_size <= FILE_SIZE_MAX:
            raise UsageError(f"a CommitLog file has {BLANK_SIZE_MIN + 1} to {FILE_SIZE_MAX} bytes, not {file_size}")
        if 0 < -end_offset % file_size < BLANK_SIZE_MIN:
            raise UsageError(
                f"no log ends at {end_offset}: a blank must fit behind it, in its file of {file_size} bytes"
            )
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.failure: StoreError | None = None  # why nothing is appended any more
        self.flush_failure: StoreError | None = None  # why nothing is flushed any more
        self._folders = sorted(folders)
        self._file_size = file_size
        self._disk = disk
        self._is_usable = is_usable
        self._file_timeout_s = file_timeout_s
        self._maker = FileMaker(self._new_path, file_size, disk, warm_up=warm_up)
        self._base = end_offset - end_offset % file_size
        self._file: DiskFile | None = None  # the one that is written to, from the first append on
        self._free = 0  # bytes in it
        # The files that may have something to flush, with their bases. One thread appends to it and one removes, and
        # each does it in one step of the interpreter.
        self._files: deque[tuple[int, NewFile]] = deque()
        self._flush_lock = threading.Lock()

    # -- appending -------------------------------------------------------------------------------------------

    @property
    def record_size_max(self) -> int:
        """The largest record, or batch of records, that a file can hold."""
        return self._file_size - BLANK_SIZE_MIN

    def room(self, size: int) -> int:
        """The offset at which ``size`` bytes can be written now. If this file has no room, the next one is begun."""
        if self._free < size + BLANK_SIZE_MIN or self.failure is not None:
            self._make_room(size)
        return self.end_offset

    def write(self, data: Buffer) -> None:
        """Append ``data``, for which there is :meth:`room`."""
        size = len(data)
        offset = self.end_offset
        assert self._file is not None and size + BLANK_SIZE_MIN <= self._free
        try:
            self._file.write(data, offset - self._base)
        except StoreError as error:
            self.failure = error
            raise
        self._free -= size
        self.end_offset = offset + size

    def stop(self, error: BaseException) -> None:
        """Append nothing any more, since an append was interrupted halfway: by Ctrl-C, or for want of memory."""
        if self.failure is None:
            self.failure = StoreError(f"an append was interrupted by {type(error).__name__}; open the store again")

    def _make_room(self, size: int) -> None:
        if self.failure is not None:
            raise self.failure
        assert size <= self.record_size_max
        if self._file is None and self.end_offset > self._base:
            self._begin(self._base, NewFile(self._disk.open(self._find(self._base))))
        if self._free >= size + BLANK_SIZE_MIN:
            return
        # The next file comes first: as long as there is none, the room in this one is good for smaller records.
        base = self._base if self._file is None else self._base + self._file_size
        made = self._maker.take(base, self._file_timeout_s)
        if self._file is not None:
            try:
                self._file.write(encode_blank(self._free), self.end_offset - self._base)
            except StoreError as error:
                self.failure = error
                made.close()
                self._disk.remove(made.file.path)
                raise
        self._begin(base, made)

    def _begin(self, base: int, new: NewFile) -> None:
        """Write to this file from now on, and have the next one made."""
        self._base = base
        self._file = new.file
        self._files.append((base, new))  # before the end moves into it, so that a flush up to the end finds it
        self.end_offset = max(self.end_offset, base)
        self._free = base + self._file_size - self.end_offset
        self._maker.ask(base + self._file_size)

    def _new_path(self, base: int) -> Path:
        usable = [folder for folder in self._folders if self._is_usable(folder)] or self._folders
        return usable[base // self._file_size % len(usable)] / offset_name(base)

    def _find(self, base: int) -> Path:
        """A file that is there: in any folder, for they may have been others when it was made."""
        paths = [folder / offset_name(base) for folder in self._folders]
        return next((path for path in paths if path.exists()), paths[0])

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Flush all that was written before this call; up to which offset that was."""
        with self._flush_lock:
            end_offset = self.end_offset
            if self.flush_failure is not None:
                raise self.flush_failure
            if end_offset == self.flushed_offset:
                return end_offset
            for base, new in tuple(self._files):
                if base >= end_offset:
                    break
                try:
                    new.file.flush()
                    if not new.file.is_there():
                        raise StoreError(f"{new.file.path}: was removed by another program while it was written")
                except StoreError as error:
                    self.flush_failure = error
                    self.failure = self.failure or error
                    raise
                if base + self._file_size <= end_offset:  # a blank ends it: nobody writes to it again
                    self._files.popleft()
                    new.close()
            self.flushed_offset = end_offset
            return end_offset

    def close(self) -> None:
        """Let go of all files, and remove those that were made ahead. Does not flush."""
        self._maker.close()
        with self._flush_lock:
            self.flush_failure = self.failure = StoreError("the CommitLog is closed")
            while self._files:
                self._files.popleft()[1].close()
