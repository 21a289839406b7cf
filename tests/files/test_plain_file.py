"""PlainFile: pieces of a file, and its holes."""

import os

import pytest

from whence.errors import NotFoundError, StoreError
from whence.files.plain_file import PlainFile


def test_bytes_are_read_up_to_the_end(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdef")
    with PlainFile(tmp_path / "file") as plain:
        assert plain.size == 6
        assert [plain.read(0, 2), plain.read(4, 9), plain.read(7, 1)] == [b"ab", b"ef", b""]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match="absent"):
        PlainFile(tmp_path / "absent")
    with pytest.raises(StoreError, match="not a regular file"):
        PlainFile(tmp_path)


def test_pieces_of_data_are_told_without_the_holes(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"a" * 5000)
        file.seek(1 << 20)
        file.write(b"b")
        file.truncate(4 << 20)
    with PlainFile(path) as plain:
        assert plain.next_hole(0) == 8192
        assert plain.next_data(8192) == 1 << 20
        assert plain.data_pieces(100, 3000) == [
            (100, 3000),
            (3100, 3000),
            (6100, 2092),
            (1 << 20, 3000),
            ((1 << 20) + 3000, 1096),
        ]
        assert plain.data_pieces(2 << 20, 3000) == []
        assert plain.read(2 << 20, 1 << 20) == bytes(1 << 20)  # a hole that was read


def test_a_system_that_knows_no_holes_sees_all_as_data(tmp_path, monkeypatch):
    for name in ("SEEK_DATA", "SEEK_HOLE"):
        monkeypatch.delattr("os." + name)
    (tmp_path / "file").write_bytes(bytes(5000))
    with PlainFile(tmp_path / "file") as plain:
        assert plain.data_pieces(1000, 3000) == [(1000, 3000), (4000, 1000)]


def test_reserved_room_that_was_read_is_not_data_for_ever(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.pwrite(file.fileno(), b"a", 300_000)
        os.fsync(file.fileno())
    zeros = bytes(65_536)
    with PlainFile(path) as plain:
        plain.read(0, 1 << 20)
        assert plain.written_pieces(0, zeros) == [(262_144, 65_536)]
        assert plain.written_pieces(300_001, zeros) == []
        assert plain.data_pieces(1 << 19, 65_536) == []
