"""MappedFile: one file, mapped for reading."""

import os
import threading
from pathlib import Path

import pytest

from whence.errors import NotFoundError, StoreError
from whence.files.mapped_file import PIECE_SIZE_MAX, MappedFile, read_whole


def test_the_view_is_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"whence")
    with MappedFile(path) as file:
        assert (file.size, bytes(file.data)) == (6, b"whence")


def test_an_empty_file_has_an_empty_view(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with MappedFile(path) as file:
        assert (file.size, bytes(file.data)) == (0, b"")
        assert list(file.occurrences(b"x", 0)) == []


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "absent"
    with pytest.raises(NotFoundError, match=str(path)):
        MappedFile(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="not a regular file"):
        MappedFile(tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    refused = threading.Event()

    def read():
        with pytest.raises(StoreError, match="not a regular file"):
            MappedFile(path)
        refused.set()

    threading.Thread(target=read, daemon=True).start()
    assert refused.wait(5)


def test_a_link_to_a_file_is_followed_and_a_dangling_one_is_missing(tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("absent")
    assert bytes(MappedFile(tmp_path / "link").data) == b"bytes"
    with pytest.raises(NotFoundError):
        MappedFile(tmp_path / "dangling")


def test_what_a_writer_puts_into_the_mapped_part_shows_at_once(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with MappedFile(path) as file, path.open("r+b") as writer:
        writer.seek(4)
        writer.write(b"new")
        writer.flush()
        assert bytes(file.data) == b"\0\0\0\0new\0\0\0"


def test_what_was_appended_shows_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    before = MappedFile(path)
    with path.open("ab") as writer:
        writer.write(b" and new")
    assert (before.size, bytes(before.data)) == (3, b"old")
    assert bytes(MappedFile(path).data) == b"old and new"


def test_a_file_that_is_deleted_stays_readable_while_it_is_open(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"still here")
    with MappedFile(path) as file:
        path.unlink()
        assert bytes(file.data) == b"still here"


def test_a_view_outlives_the_file_it_was_taken_from(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    file = MappedFile(path)
    view = file.data[1:3]
    file.close()
    assert bytes(view) == b"yt"
    assert bytes(file.data) == b""


def test_no_descriptor_is_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    descriptors = Path("/dev/fd")  # of this process, on Linux and macOS
    before = len(list(descriptors.iterdir()))
    files = [MappedFile(path) for _ in range(3)]
    # Python's mmap duplicates the descriptor it is given: one for each map, none of ours.
    assert len(list(descriptors.iterdir())) <= before + len(files)


class TestOccurrences:
    """The search for a pattern, over pieces and holes."""

    @pytest.mark.parametrize(
        "at",
        [0, 1, PIECE_SIZE_MAX - 3, PIECE_SIZE_MAX - 1, PIECE_SIZE_MAX, PIECE_SIZE_MAX + 1, 2 * PIECE_SIZE_MAX - 2],
    )
    def test_a_pattern_is_found_once_wherever_it_lies(self, tmp_path, at):
        path = tmp_path / "file"
        path.write_bytes(b"\1" * at + b"needle" + b"\1" * 100)
        with MappedFile(path) as file:
            assert list(file.occurrences(b"needle", 0)) == [at]
            assert list(file.occurrences(b"needle", at)) == [at]
            assert list(file.occurrences(b"needle", at + 1)) == []

    def test_occurrences_may_overlap_and_come_in_order(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"aaaa.aa")
        with MappedFile(path) as file:
            assert list(file.occurrences(b"aa", 0)) == [0, 1, 2, 5]

    def test_a_hole_before_the_pattern_is_passed_over(self, tmp_path):
        path = tmp_path / "sparse"
        with path.open("wb") as writer:
            writer.seek(64 * PIECE_SIZE_MAX)
            writer.write(b"needle")
        with MappedFile(path) as file:
            assert list(file.occurrences(b"needle", 0)) == [64 * PIECE_SIZE_MAX]

    def test_a_hole_to_the_end_holds_nothing(self, tmp_path):
        path = tmp_path / "sparse"
        path.write_bytes(b"needle")
        os.truncate(path, 64 * PIECE_SIZE_MAX)
        with MappedFile(path) as file:
            assert list(file.occurrences(b"needle", 1)) == []


class TestReadWhole:
    def test_a_small_file_is_read_at_once(self, tmp_path):
        path = tmp_path / "checkpoint"
        path.write_bytes(b"bytes")
        assert read_whole(path, 5) == b"bytes"

    def test_a_file_larger_than_it_should_be_is_refused(self, tmp_path):
        path = tmp_path / "checkpoint"
        path.write_bytes(b"bytes")
        with pytest.raises(StoreError, match="has 5 bytes"):
            read_whole(path, 4)

    def test_a_missing_file_and_a_folder_are_named(self, tmp_path):
        with pytest.raises(NotFoundError, match="absent"):
            read_whole(tmp_path / "absent", 10)
        with pytest.raises(StoreError, match="not a regular file"):
            read_whole(tmp_path, 10)
