"""Disk: what is written is there, and every error is ours and names its path."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from tests.disks import small_disk
from whence.errors import StoreError
from whence.files.disk import Disk
from whence.formats.buffers import Buffer


class SlowDisk(Disk):
    """Takes three bytes at a time, as a signal or a quota may make a disk do."""

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        return super().pwrite(path, descriptor, data[:3], position)


class CountingDisk(Disk):
    """Tells what was flushed, and by how many at the same time: each waits a moment for others."""

    def __init__(self) -> None:
        self.flushed: list[str] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def fsync(self, path: Path, descriptor: int) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.flushed.append(path.name)
        time.sleep(0.02)
        with self._lock:
            self._now -= 1
        if path.name == "broken":
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class BrokenDisk(Disk):
    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(self, path: Path, descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("reserve", [True, False])
def test_created_file_is_all_zero_and_takes_room_when_asked_to(tmp_path, reserve):
    with Disk().create(tmp_path / "f", 1 << 20, reserve=reserve):
        status = (tmp_path / "f").stat()
        assert status.st_size == 1 << 20
        assert (status.st_blocks * 512 >= 1 << 20) == reserve
    assert not any((tmp_path / "f").read_bytes())


def test_empty_file_can_be_reserved(tmp_path):
    Disk().create(tmp_path / "f", 0, reserve=True).close()
    assert (tmp_path / "f").read_bytes() == b""


def test_file_that_is_there_is_not_created_again(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(StoreError, match="f: cannot be made: File exists"):
        Disk().create(tmp_path / "f", 8, reserve=False)
    assert (tmp_path / "f").read_bytes() == b"old"


def test_file_that_finds_no_room_is_not_left_behind(tmp_path):
    with pytest.raises(StoreError, match="f: cannot be made with"):
        Disk().create(tmp_path / "f", 2**62, reserve=True)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("disk", [Disk(), SlowDisk()], ids=["whole", "three bytes at a time"])
def test_write_puts_all_bytes_at_their_position(tmp_path, disk):
    with disk.create(tmp_path / "f", 12, reserve=False) as file:
        file.write(b"0123456789", 1)
        file.flush()
    with disk.open(tmp_path / "f") as file:
        file.write(memoryview(b"ab"), 11)
    assert (tmp_path / "f").read_bytes() == b"\x000123456789ab"


def test_errors_name_the_path_and_what_failed(tmp_path):
    with BrokenDisk().create(tmp_path / "f", 8, reserve=False) as file:
        with pytest.raises(StoreError, match=f"{tmp_path}/f: cannot be written: No space left"):
            file.write(b"x", 0)
        with pytest.raises(StoreError, match=f"{tmp_path}/f: cannot be flushed: Input/output error"):
            file.flush()
    with pytest.raises(StoreError, match=f"{tmp_path}: cannot be flushed: Input/output error"):
        BrokenDisk().flush_folder(tmp_path)
    with pytest.raises(StoreError, match="absent: cannot be opened to be written: No such file"):
        Disk().open(tmp_path / "absent")


def test_folders_are_made_with_those_above_them(tmp_path):
    Disk().make_folder(tmp_path / "a" / "b" / "c")
    Disk().make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: cannot be made"):
        Disk().make_folder(tmp_path / "file" / "x")


def test_many_files_and_folders_are_flushed_side_by_side(tmp_path):
    disk, names = CountingDisk(), [f"{number:03}" for number in range(100)]
    disk.make_folders(tmp_path / name for name in names)
    assert disk.flushed == [tmp_path.name]
    disk.flush_folders(tmp_path / name for name in names)
    files = [tmp_path / name / f"{name}.file" for name in names]
    for path in files:
        path.touch()
    disk.flush_files([*files, tmp_path / "gone"])
    assert sorted(disk.flushed[1:]) == sorted([*names, *(path.name for path in files)])
    assert 1 < disk.most <= Disk.flushes_at_once


def test_one_flush_that_fails_among_many_is_told(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "broken", *map(str, range(50)))]
    for path in paths:
        path.touch()
    with pytest.raises(StoreError, match="broken: cannot be flushed: Input/output error"):
        CountingDisk().flush_files(paths)


def test_rename_and_remove(tmp_path):
    disk = Disk()
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "f").write_bytes(b"old")
    disk.rename(tmp_path / "new", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"new"
    disk.remove(tmp_path / "f")
    disk.remove(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="f: cannot be renamed to g"):
        disk.rename(tmp_path / "f", tmp_path / "g")


@pytest.fixture
def other(tmp_path):
    """A folder on another disk, with 256 KiB."""
    with small_disk(tmp_path / "other", 1 << 18) as folder:
        yield folder


def test_a_file_is_moved_to_another_disk_in_place_of_what_is_there(tmp_path, other):
    size = 1 << 20
    with (tmp_path / "file").open("wb") as file:
        file.write(b"begin")
        file.seek(size - 3)
        file.write(b"end")
    (other / "target").write_bytes(b"old")
    (other / ".target.new").write_bytes(b"what a kill left")
    with pytest.raises(StoreError, match="file: cannot be renamed to target: Invalid cross-device link"):
        Disk().rename(tmp_path / "file", other / "target")
    Disk().move(tmp_path / "file", other / "target")
    assert (other / "target").read_bytes() == b"begin".ljust(size - 3, b"\0") + b"end"  # holes took no room
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert [path.name for path in other.iterdir()] == ["target"]


def test_a_file_for_which_another_disk_has_no_room_stays_where_it_is(tmp_path, other):
    (tmp_path / "file").write_bytes(b"x" * (1 << 19))
    (other / "target").write_bytes(b"old")
    with pytest.raises(StoreError, match=f"{other}/.target.new: cannot be written: No space left"):
        Disk().move(tmp_path / "file", other / "target")
    assert (tmp_path / "file").stat().st_size == 1 << 19
    assert [path.name for path in other.iterdir()] == ["target"]
    assert (other / "target").read_bytes() == b"old"


def test_a_file_that_is_moved_to_another_disk_is_there_wherever_that_was_ended(tmp_path, other):
    class DyingDisk(Disk):
        """Dies at one of its steps."""

        left = 0

        def _count(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        def rename(self, path: Path, target: Path) -> None:
            self._count()
            super().rename(path, target)

        def remove(self, path: Path) -> None:
            self._count()
            super().remove(path)

        def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
            self._count()
            return super().pwrite(path, descriptor, data, position)

        def fsync(self, path: Path, descriptor: int) -> None:
            self._count()

    source, target, ended = tmp_path / "file", other / "target", 0
    while True:
        source.write_bytes(b"new")
        target.write_bytes(b"old")
        disk = DyingDisk()
        disk.left = ended
        try:
            disk.move(source, target)
            break
        except KeyboardInterrupt:
            ended += 1
        assert source.exists() or target.read_bytes() == b"new"
        assert target.read_bytes() in (b"old", b"new")
        if source.exists():
            Disk().move(source, target)
        assert target.read_bytes() == b"new"
        assert [path.name for path in other.iterdir()] == ["target"]
    assert ended == 7


def test_closing_twice_closes_nothing_else(tmp_path):
    file = Disk().create(tmp_path / "f", 1, reserve=False)
    descriptor = file.descriptor
    file.close()
    other = os.open(tmp_path, os.O_RDONLY)
    assert other == descriptor
    file.close()
    os.fstat(other)
    os.close(other)


def test_a_mapped_file_is_written_through_memory(tmp_path):
    with Disk().create(tmp_path / "file", 8192, reserve=True) as file:
        mapped = file.map()
        mapped[4096:4100] = b"here"
        file.flush()
        mapped.close()
    assert (tmp_path / "file").read_bytes() == bytes(4096) + b"here" + bytes(4092)


def test_room_is_taken_by_writing_where_it_cannot_be_asked_for(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    size = 3 * 1048576 + 17
    Disk().create(tmp_path / "file", size, reserve=True).close()
    status = (tmp_path / "file").stat()
    assert (status.st_size, status.st_blocks * 512 >= size) == (size, True)


def test_a_small_file_is_replaced_whole(tmp_path):
    path = tmp_path / "small"
    Disk().replace(path, b"one")
    Disk().replace(path, b"two")
    assert path.read_bytes() == b"two"
    (tmp_path / ".small.new").write_bytes(b"what a crash left")
    Disk().replace(path, b"3")
    assert path.read_bytes() == b"3"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_can_be_given_the_time_of_another(tmp_path):
    with Disk().create(tmp_path / "file", 1, reserve=False) as file:
        file.set_modified(1_700_000_000_123)
    assert (tmp_path / "file").stat().st_mtime_ns == 1_700_000_000_123_000_000


def test_a_file_is_flushed_by_its_name_unless_it_is_gone(tmp_path):
    flushed = []

    class NotingDisk(Disk):
        def fsync(self, path: Path, descriptor: int) -> None:
            flushed.append(path.name)

    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    NotingDisk().flush_file(tmp_path / "file")
    NotingDisk().flush_file(tmp_path / "gone")
    assert flushed == ["file"]
    with pytest.raises(StoreError, match="folder: cannot be opened"):
        NotingDisk().flush_file(tmp_path / "folder")
