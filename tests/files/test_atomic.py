"""A file that is written aside is there whole, or as it was before."""

import os

import pytest

from whence.errors import StoreError
from whence.files import atomic
from whence.files.atomic import remove_unfinished, write_aside


def test_file_appears_when_all_is_written(tmp_path):
    path = tmp_path / "out"
    with write_aside(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_file_stays_as_it_was_when_writing_fails(tmp_path, error):
    path = tmp_path / "out"
    path.write_bytes(b"old")

    def write_half() -> None:
        with write_aside(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


def test_process_that_must_end_at_once_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_unfinished", set())  # what other tests of this process have open stays
    with pytest.raises(FileNotFoundError), write_aside(tmp_path / "out"):
        remove_unfinished()
    assert os.listdir(tmp_path) == []


def test_folder_that_is_not_there_is_an_error_with_its_path(tmp_path):
    path = tmp_path / "nowhere" / "out"
    with pytest.raises(StoreError, match=f"{path}: cannot be written"), write_aside(path):
        pass
    with pytest.raises(StoreError, match="is a folder"), write_aside(tmp_path):
        pass
