"""Folders: what is in them, and whether that may have changed since one last looked."""

import os
import time

import pytest

from whence.errors import NotFoundError, StoreError
from whence.files.folder import (
    SETTLED_NS,
    FolderWatch,
    OwnFile,
    entries_below,
    files_in,
    folders_in,
    is_folder,
    own_files_in,
    own_folders_in,
    remove_tree,
)

LONG_AGO_NS = 10**18


def settle(folder):
    """Give the folder a time long past, as if nothing had happened in it for years."""
    os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))


class TestFolderWatch:
    def test_a_folder_is_listed_at_first(self, tmp_path):
        assert FolderWatch(tmp_path).changed()

    def test_nothing_changed_where_the_folder_s_time_is_long_past(self, tmp_path):
        settle(tmp_path)
        watch = FolderWatch(tmp_path)
        assert watch.changed()
        assert not watch.changed()
        assert not watch.changed()

    def test_a_new_file_is_a_change(self, tmp_path):
        settle(tmp_path)
        watch = FolderWatch(tmp_path)
        watch.changed()
        (tmp_path / "new").touch()
        assert watch.changed()

    def test_a_folder_that_changed_just_now_is_listed_again(self, tmp_path):
        """A second change in the same tick of the kernel's clock would not show in its time."""
        (tmp_path / "new").touch()
        watch = FolderWatch(tmp_path)
        assert watch.changed()
        assert watch.changed()
        time.sleep(1.5 * SETTLED_NS / 1e9)
        assert watch.changed()
        assert not watch.changed()

    def test_another_folder_in_its_place_is_a_change(self, tmp_path):
        folder, other = tmp_path / "folder", tmp_path / "other"
        for each in (folder, other):
            each.mkdir()
            settle(each)
        watch = FolderWatch(folder)
        watch.changed()
        assert not watch.changed()
        folder.rmdir()
        other.rename(folder)
        assert watch.changed()

    def test_a_folder_that_goes_and_comes_back_is_a_change(self, tmp_path):
        folder = tmp_path / "folder"
        folder.mkdir()
        settle(folder)
        watch = FolderWatch(folder)
        watch.changed()
        away = folder.rename(tmp_path / "away")
        with pytest.raises(NotFoundError, match="folder: there is no such folder"):
            watch.changed()
        away.rename(folder)
        assert watch.changed()


def test_files_have_a_size_and_an_inode(tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "nowhere").symlink_to("absent")
    found = files_in(tmp_path)
    assert set(found) == {"a"}
    assert found["a"].size == 3
    (tmp_path / "aside").write_bytes(b"456")
    (tmp_path / "aside").rename(tmp_path / "a")
    assert files_in(tmp_path)["a"] != found["a"]


def test_folders_are_told_from_files(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert folders_in(tmp_path) == ["folder"]
    assert is_folder(tmp_path / "folder")
    assert not is_folder(tmp_path / "file")
    assert not is_folder(tmp_path / "absent")
    assert not is_folder(tmp_path / ("x" * 5000))


@pytest.mark.parametrize("look", [files_in, folders_in])
def test_what_is_no_folder_is_not_found(tmp_path, look):
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(NotFoundError, match=f"{name}: there is no such folder"):
            look(tmp_path / name)


@pytest.mark.parametrize("look", [files_in, folders_in])
def test_what_cannot_be_read_is_an_error_of_ours(tmp_path, look):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="loop: cannot be read"):
        look(tmp_path / "loop")


def test_what_a_link_leads_to_is_not_a_folders_own(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    (folder / "below").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "file").write_bytes(b"four")
    os.utime(folder / "file", ns=(LONG_AGO_NS, LONG_AGO_NS))
    (folder / "linked").symlink_to(folder / "file")
    (folder / "nowhere").symlink_to(tmp_path / "nothing")
    (folder / "linked folder").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe")
    assert own_files_in(folder) == {"file": OwnFile(4, LONG_AGO_NS // 1_000_000)}
    assert own_folders_in(folder) == ["below"]


@pytest.mark.parametrize("look", [own_files_in, own_folders_in])
def test_a_folder_that_is_not_there_has_nothing_of_its_own(tmp_path, look):
    with pytest.raises(NotFoundError, match="no such folder"):
        look(tmp_path / "nowhere")


def test_entries_below_a_folder_are_those_at_any_depth_and_not_behind_links(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert sorted(path for path, _ in entries_below(tmp_path)) == ["a", "a/b", "a/b/c", "a/b/file", "link"]
    with pytest.raises(NotFoundError):
        next(entries_below(tmp_path / "gone"))


def test_a_folder_is_removed_with_all_that_is_in_it_and_one_that_is_not_there_is_no_error(tmp_path):
    folder = tmp_path / "work"
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(20):
        (folder / str(number)).write_bytes(b"x")
        (folder / "deep" / "er" / str(number)).write_bytes(b"x")
    (tmp_path / "other").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "other")
    remove_tree(folder)
    remove_tree(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
