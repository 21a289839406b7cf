import errno
import os

import pytest

from tests.disks import UnflushedDisk
from whence.errors import StoreError
from whence.store.queue_writer import QueueRun, QueueWriter


class FullDisk(UnflushedDisk):
    """Takes so many writes, and then none until it has room again."""

    left = 0

    def pwrite(self, path, descriptor, data, position):
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= 1
        return super().pwrite(path, descriptor, data, position)


@pytest.mark.parametrize("left", range(5))
def test_what_could_not_be_written_is_written_once_when_there_is_room_again(tmp_path, left):
    disk = FullDisk()
    writer = QueueWriter(disk)
    runs = [QueueRun(tmp_path / name, 40, 20) for name in ("a", "b")]
    expected = {}
    for run in runs:
        run.folder.mkdir()
        (run.folder / f"{0:020d}").write_bytes(bytes(40))
        entries = bytes(range(1, 81))
        expected[run] = (bytes(20) + entries).ljust(120, b"\0")
        writer.append(run, entries)
    disk.left = left
    with pytest.raises(StoreError, match="No space left"):
        writer.write()
    disk.left = 100
    writer.write()
    writer.close()
    for run in runs:
        assert b"".join(path.read_bytes() for path in sorted(run.folder.iterdir())) == expected[run]
        assert run.position == 100
