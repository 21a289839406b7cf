"""The disks that tests put in the place of the real one do to a store what they say."""

import errno
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.disks import SECTOR, FailingDisk, PowerLossDisk
from whence.errors import StoreError

FAILURES = 200
"""Power failures of one scenario: enough to see each thing that may be left."""


def left_after(root: Path, disk: PowerLossDisk, number: int) -> Path:
    """What one of many power failures leaves."""
    target = root.parent / f"left-{number}"
    disk.fail(target)
    return target


def outcomes(root: Path, disk: PowerLossDisk, name: str) -> Counter[bytes | None]:
    """What a file holds after power failures; None where it is not there."""
    seen: Counter[bytes | None] = Counter()
    for number in range(FAILURES):
        path = left_after(root, disk, number) / name
        seen[path.read_bytes() if path.exists() else None] += 1
    return seen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_what_was_there_and_what_was_flushed_with_its_name_is_left(root):
    (root / "folder").mkdir()
    (root / "folder" / "old").write_bytes(b"old")
    disk = PowerLossDisk(root, Random(1))
    file = disk.create(root / "new", 1000, reserve=True)
    file.write(b"data", 600)
    file.flush()
    disk.flush_folder(root)
    for number in range(20):
        left = left_after(root, disk, number)
        assert (left / "new").read_bytes() == (root / "new").read_bytes()
        assert (left / "folder" / "old").read_bytes() == b"old"
    assert disk.has_failed


def test_each_sector_that_was_not_flushed_is_old_or_new(root):
    (root / "file").write_bytes(b"a" * (2 * SECTOR + 100))
    disk = PowerLossDisk(root, Random(1))
    with disk.open(root / "file") as file:
        file.write(b"b" * (2 * SECTOR + 100), 0)
        seen = outcomes(root, disk, "file")
    expected = {
        first * SECTOR + second * SECTOR + third * 100
        for first in (b"a", b"b")
        for second in (b"a", b"b")
        for third in (b"a", b"b")
    }
    assert seen.keys() == expected


def test_what_was_written_through_a_map_is_lost_until_it_is_flushed(root):
    disk = PowerLossDisk(root, Random(1))
    file = disk.create(root / "file", SECTOR, reserve=True)
    file.flush()
    disk.flush_folder(root)
    with file.map() as view:
        view[:4] = b"data"
        assert {data and data[:4] for data in outcomes(root, disk, "file")} == {bytes(4), b"data"}
        file.flush()
        (root.parent / "again").mkdir()
        disk.fail(root.parent / "again" / "left")
    assert (root.parent / "again" / "left" / "file").read_bytes()[:4] == b"data"


def test_a_new_file_may_be_empty_or_gone_though_it_was_flushed(root):
    disk = PowerLossDisk(root, Random(1))
    file = disk.create(root / "file", SECTOR, reserve=True)
    file.write(b"data", 0)
    assert {data if data is None else data[:4] for data in outcomes(root, disk, "file")} == {
        None,
        b"",
        bytes(4),
        b"data",
    }
    file.flush()
    for number in range(FAILURES):
        (root.parent / f"left-{number}").rename(root.parent / f"seen-{number}")
    assert {data if data is None else data[:4] for data in outcomes(root, disk, "file")} == {None, b"data"}


def test_a_rename_happens_whole_or_not_at_all(root):
    (root / "file").write_bytes(b"old")
    disk = PowerLossDisk(root, Random(1))
    with disk.create(root / "aside", 3, reserve=False) as file:
        file.write(b"new", 0)
        file.flush()
    disk.rename(root / "aside", root / "file")
    seen = Counter(
        tuple(sorted((path.name, path.read_bytes()) for path in left_after(root, disk, number).iterdir()))
        for number in range(FAILURES)
    )
    assert seen.keys() == {(("file", b"old"),), (("aside", b"new"), ("file", b"old")), (("file", b"new"),)}


def test_a_file_that_moves_is_in_one_of_two_folders(root):
    for name in "ab":
        (root / name).mkdir()
    (root / "a" / "file").write_bytes(b"data")
    for flushed in (None, "a", "b"):
        disk = PowerLossDisk(root, Random(1))
        disk.rename(root / "a" / "file", root / "b" / "moved")
        if flushed is not None:
            disk.flush_folder(root / flushed)
        seen = set()
        for number in range(20):
            left = left_after(root, disk, number)
            seen.add(tuple(str(path.relative_to(left)) for path in left.rglob("*") if path.is_file()))
            shutil.rmtree(left)
        assert seen == ({("a/file",), ("b/moved",)} if flushed is None else {("b/moved",)})
        (root / "b" / "moved").rename(root / "a" / "file")


def test_a_file_that_was_replaced_is_the_new_one_or_the_old_one_whole(root):
    seen = set()
    for number in range(FAILURES):
        (root / "file").write_bytes(b"old" * 400)
        disk = PowerLossDisk(root, Random(number))
        disk.fail_after(number % 10, root.parent / f"left-{number}")
        disk.replace(root / "file", b"new" * 500)
        if disk.has_failed:
            seen.add((root.parent / f"left-{number}" / "file").read_bytes())
    assert seen == {b"old" * 400, b"new" * 500}


def test_a_removed_file_may_be_back_with_what_it_held(root):
    (root / "file").write_bytes(b"old")
    disk = PowerLossDisk(root, Random(1))
    with disk.open(root / "file") as file:
        file.write(b"new", 0)
    disk.remove(root / "file")
    assert outcomes(root, disk, "file").keys() == {None, b"old", b"new"}
    disk.flush_folder(root)
    disk.fail(root.parent / "left")
    assert not (root.parent / "left" / "file").exists()


def test_a_folder_that_was_made_through_the_disk_lasts(root):
    disk = PowerLossDisk(root, Random(1))
    disk.make_folder(root / "one" / "two")
    for number in range(20):
        assert (left_after(root, disk, number) / "one" / "two").is_dir()


def test_a_folder_whose_name_is_not_flushed_may_be_gone_with_all_that_was_flushed_in_it(root):
    disk = PowerLossDisk(root, Random(1))
    (root / "folder").mkdir()
    disk.create(root / "folder" / "file", 4, reserve=True).flush()
    disk.flush_folder(root / "folder")
    assert {data is None for data in outcomes(root, disk, "folder/file")} == {True, False}


def test_steps_in_several_folders_happen_by_one_time_or_each_by_its_own(root):
    for name in "ab":
        (root / name).mkdir()
    disk = PowerLossDisk(root, Random(1))
    for number in range(4):
        disk.create(root / "ab"[number % 2] / str(number), 1, reserve=True)
    seen = set()
    for number in range(FAILURES):
        left = left_after(root, disk, number)
        seen.add(tuple(sorted(int(path.name) for path in left.rglob("*") if path.is_file())))
    assert {(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)} < seen  # in order
    assert {(1, 3), (0, 2)} < seen  # the later step of one folder, the earlier of the other not
    assert not {each for each in seen if 2 in each and 0 not in each}  # but never against the order of one folder


def test_the_system_may_write_before_it_is_told_to(root):
    (root / "file").write_bytes(b"0" * SECTOR)
    seen = set()
    for seed in range(FAILURES):
        disk = PowerLossDisk(root, Random(seed), write_back=0.5)
        with disk.open(root / "file") as file:
            for letter in b"123":
                file.write(bytes([letter]) * SECTOR, 0)
        disk.fail(root.parent / f"left-{seed}")
        seen.add((root.parent / f"left-{seed}" / "file").read_bytes()[:1])
        (root / "file").write_bytes(b"0" * SECTOR)
    assert seen == {b"0", b"1", b"2", b"3"}


def test_power_can_fail_in_the_middle_while_the_program_goes_on(root):
    (root / "file").write_bytes(bytes(3))
    disk = PowerLossDisk(root, Random(1))
    target = root.parent / "left"
    disk.fail_after(4, target)
    failed = []
    with disk.open(root / "file") as file:
        for number in range(3):
            file.write(b"x", number)
            file.flush()
            failed.append(disk.has_failed)
    assert failed == [False, False, True]
    assert (target / "file").read_bytes() == b"xx\0"
    assert (root / "file").read_bytes() == b"xxx"


def test_a_killed_program_leaves_all_that_it_wrote(root):
    disk = PowerLossDisk(root, Random(1))
    with disk.create(root / "file", SECTOR, reserve=True) as file, file.map() as view:
        file.write(b"ab", 0)
        view[1:3] = b"cd"
        disk.kill(root.parent / "left")
    assert (root.parent / "left" / "file").read_bytes() == b"acd".ljust(SECTOR, b"\0")
    assert not disk.has_failed


def test_a_file_that_is_made_behind_its_back_is_told(root):
    disk = PowerLossDisk(root, Random(1))
    (root / "file").write_bytes(b"")
    with pytest.raises(AssertionError, match="not made through the disk"):
        disk.fail(root.parent / "left")


def test_what_lies_elsewhere_is_left_alone(root):
    disk = PowerLossDisk(root, Random(1))
    elsewhere = root.parent / "elsewhere"
    disk.make_folder(elsewhere)
    disk.replace(elsewhere / "file", b"data")
    disk.remove(elsewhere / "none")
    assert (elsewhere / "file").read_bytes() == b"data"
    disk.fail(root.parent / "left")
    assert list((root.parent / "left").iterdir()) == []


def test_a_failing_disk_fails_where_and_as_often_as_it_is_told(tmp_path):
    disk = FailingDisk(2, errno.EIO, times=1, part="meant")
    with (
        disk.create(tmp_path / "meant", 10, reserve=True) as meant,
        disk.create(tmp_path / "x", 10, reserve=True) as x,
    ):
        x.write(b"a", 0)
        x.flush()
        meant.write(b"a", 0)
        with pytest.raises(StoreError, match="meant: cannot be flushed: Input/output error"):
            meant.flush()
        meant.flush()
    assert disk.failed == [("flush", tmp_path / "meant")]
    with pytest.raises(StoreError, match="No space left"):
        FailingDisk(0).create(tmp_path / "full", 10, reserve=True)
    assert not (tmp_path / "full").exists()
