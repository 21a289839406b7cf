"""The newest index file after a crash: left as it is where the log proves it, else cut to what was flushed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import whence
from tests.disks import UnflushedDisk
from whence.formats.rocketmq.index_file import decode_header, item_position
from whence.store.index_builder import BuiltFile
from whence.store.ownership import read_ownership
from whence.store.recovery import Recovered, Recovery

SLOTS, ITEMS = 7, 40
SIZES = {"file_size": 65_536, "queue_file_size": 400, "slots": SLOTS, "items": ITEMS}
FLUSHED, COUNT = 5, 12  # messages, of two items each


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose writer was killed: ``flushed`` has its index file as it was when it was last flushed."""
    folder = tmp_path / "store"
    with whence.create(folder, disk=UnflushedDisk(), **SIZES) as store:
        for number in range(COUNT):
            store.append("T", b"body", keys=[f"k{number}"])
            if number == FLUSHED - 1:
                store.flush()
                shutil.copyfile(folder / "whence.json", tmp_path / "whence.json")
                shutil.copyfile(index_file(folder), tmp_path / "flushed")
    shutil.copyfile(tmp_path / "whence.json", folder / "whence.json")
    (folder / "abort").write_text("1")
    return folder


def index_file(folder: Path) -> Path:
    (path,) = (folder / "index").iterdir()
    return path


def recover(folder: Path) -> Recovered:
    ownership = read_ownership(folder)
    assert ownership is not None
    return Recovery(folder, ownership, UnflushedDisk(), is_clean=False).run()


def test_what_the_log_proves_stays_as_it_is(killed):
    path = index_file(killed)
    inode, data = path.stat().st_ino, path.read_bytes()
    recovered = recover(killed)
    assert (path.stat().st_ino, path.read_bytes()) == (inode, data)
    assert recovered.newest_index == BuiltFile(path, decode_header(data))
    assert recovered.index_offset == recovered.end_offset


def test_what_is_proven_is_noted_with_the_queues(killed):
    """Another program may cut the log behind the last record that is noted, before the store is opened again."""
    noted = read_ownership(killed)
    assert noted is not None
    recovered = recover(killed)
    assert recovered.flushed == noted.flushed
    assert recovered.index_offset > noted.flushed.index


def test_what_a_writer_did_not_finish_is_put_right_in_place(killed):
    """Items and slots are written before the header: readers count none of them, and need not see another file."""
    path = index_file(killed)
    flushed = (killed.parent / "flushed").read_bytes()
    path.write_bytes(flushed[:40] + path.read_bytes()[40:])
    inode = path.stat().st_ino
    recovered = recover(killed)
    assert (path.stat().st_ino, path.read_bytes()) == (inode, flushed)
    assert recovered.flushed.index_header == decode_header(flushed)


def words_that_changed(flushed: bytes, now: bytes) -> list[int]:
    return [at for at in range(0, len(now), 4) if flushed[at : at + 4] != now[at : at + 4]]


def test_whatever_of_it_was_lost_it_is_made_again(killed, tmp_path):
    """A power failure leaves the old bytes or the new ones, of any 4 of them."""
    flushed, whole = (tmp_path / "flushed").read_bytes(), index_file(killed).read_bytes()
    changed = words_that_changed(flushed, whole)
    assert len(changed) > 2 * (COUNT - FLUSHED) * 3
    for at in changed:
        folder = tmp_path / f"lost{at}"
        shutil.copytree(killed, folder)
        path = index_file(folder)
        path.write_bytes(whole[:at] + flushed[at : at + 4] + whole[at + 4 :])
        recover(folder)
        is_slot = 40 <= at < item_position(SLOTS, 0)  # items tell what a slot is
        assert path.read_bytes() == (whole if is_slot else flushed), at
        whence.create(folder, disk=UnflushedDisk(), **SIZES).close()
        assert path.read_bytes() == whole, at
        shutil.rmtree(folder)


def test_items_that_are_not_those_of_the_log_are_cut(killed):
    path = index_file(killed)
    inode, flushed, data = path.stat().st_ino, (killed.parent / "flushed").read_bytes(), bytearray(path.read_bytes())
    data[item_position(SLOTS, 2 * FLUSHED + 3) + 11] ^= 1  # a bit of a physical offset
    path.write_bytes(data)
    recovered = recover(killed)
    assert path.stat().st_ino != inode  # who has mapped the other one may believe its count
    assert path.read_bytes() == flushed
    assert recovered.flushed.index_header == decode_header(flushed)


def test_a_copy_that_a_crash_left_unfinished_goes(killed):
    path = index_file(killed)
    path.with_name(f".{path.name}.new").write_bytes(b"half")
    recover(killed)
    assert index_file(killed) == path


def test_where_a_copy_has_no_room_the_file_is_made_again(killed):
    class FullDisk(UnflushedDisk):
        def reserve(self, path: Path, descriptor: int, size: int) -> None:
            raise OSError(28, "No space left on device")

    path = index_file(killed)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[item_position(SLOTS, 2 * FLUSHED + 1)] ^= 1
    path.write_bytes(data)
    ownership = read_ownership(killed)
    assert ownership is not None
    recovered = Recovery(killed, ownership, FullDisk(), is_clean=False).run()
    assert not path.exists()
    assert recovered.flushed.index == 0
    whence.create(killed, disk=UnflushedDisk(), **SIZES).close()
    assert index_file(killed).read_bytes() == whole
