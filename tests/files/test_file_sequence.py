"""FileSequence: equal-sized files of one folder, addressed as one run of bytes."""

import os

import pytest

from whence.errors import CorruptError, NotFoundError, StoreError
from whence.files.file_sequence import FileSequence
from whence.files.map_pool import OPEN_MAPS_MAX
from whence.files.names import offset_name

SIZE = 100


def put(folder, base, data=None):
    """A file whose bytes tell its base."""
    path = folder / offset_name(base)
    path.write_bytes(bytes([base // SIZE % 256]) * SIZE if data is None else data)
    return path


def test_a_byte_lies_in_the_last_file_that_does_not_begin_above_it(tmp_path):
    for base in (0, 100, 200):
        put(tmp_path, base)
    files = FileSequence(tmp_path)
    assert (files.bases, files.file_size, files.begin_offset) == ([0, 100, 200], SIZE, 0)
    for offset, holder in [(0, 0), (99, 0), (100, 100), (199, 100), (299, 200), (300, None), (-1, None)]:
        assert files.base_of(offset) == holder
    assert bytes(files.file(200).data) == b"\2" * SIZE
    assert files.gaps() == []


def test_a_sequence_whose_oldest_files_are_gone_begins_later(tmp_path):
    for base in (300, 400):
        put(tmp_path, base)
    files = FileSequence(tmp_path)
    assert files.begin_offset == 300
    assert files.base_of(299) is None
    assert files.base_of(300) == 300


def test_an_empty_folder_has_no_files_and_no_size(tmp_path):
    files = FileSequence(tmp_path)
    assert (files.bases, files.file_size, files.begin_offset, files.gaps()) == ([], 0, 0, [])
    assert files.base_of(0) is None


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(NotFoundError, match="absent"):
        FileSequence(tmp_path / "absent")


def test_a_folder_that_vanishes_is_named(tmp_path):
    folder = tmp_path / "queue"
    folder.mkdir()
    files = FileSequence(folder)
    folder.rmdir()
    with pytest.raises(NotFoundError, match="queue"):
        files.refresh()


@pytest.mark.parametrize(
    "name", ["abort", "0", "00000000000000000200.tmp", "0000000000000000020x", "99999999999999999999"]
)
def test_names_that_are_no_offsets_are_passed_over(tmp_path, name):
    put(tmp_path, 0)
    put(tmp_path, 100)
    (tmp_path / name).write_bytes(b"junk")
    assert FileSequence(tmp_path).bases == [0, 100]


def test_a_folder_with_the_name_of_a_file_is_told_when_it_is_read(tmp_path):
    put(tmp_path, 0)
    (tmp_path / offset_name(100)).mkdir()
    files = FileSequence(tmp_path)
    assert bytes(files.file(0).data) == bytes(SIZE)
    with pytest.raises(StoreError, match="not a regular file"):
        files.file(100)


def test_the_size_is_the_smallest_step_between_names(tmp_path):
    for base in (0, 100, 300):
        put(tmp_path, base)
    files = FileSequence(tmp_path)
    assert files.file_size == SIZE
    assert files.gaps() == [(200, 300)]
    assert files.base_of(250) is None


def test_several_missing_files_are_several_gaps(tmp_path):
    for base in (0, 100, 300, 400, 700):
        put(tmp_path, base)
    assert FileSequence(tmp_path).gaps() == [(200, 300), (500, 700)]


def test_of_three_files_without_the_middle_one_the_lengths_show_the_size(tmp_path):
    for base in (0, 200):
        put(tmp_path, base)
    files = FileSequence(tmp_path)
    assert files.file_size == SIZE
    assert files.gaps() == [(100, 200)]
    assert files.base_of(100) is None


def test_of_a_single_file_the_length_is_the_size(tmp_path):
    put(tmp_path, 500)
    files = FileSequence(tmp_path)
    assert files.file_size == SIZE
    assert files.base_of(599) == 500


def test_a_file_longer_than_its_neighbours_allow_is_an_error_with_file_and_byte(tmp_path):
    put(tmp_path, 0)
    path = put(tmp_path, 100, bytes(130))
    put(tmp_path, 200)
    with pytest.raises(CorruptError) as error:
        FileSequence(tmp_path).file(100)
    assert (error.value.path, error.value.position) == (str(path), 100)


def test_a_file_shorter_than_its_neighbours_is_given_as_it_is(tmp_path):
    put(tmp_path, 0, bytes(70))
    put(tmp_path, 100)
    assert FileSequence(tmp_path).file(0).size == 70


class TestWhileABrokerWrites:
    def test_refresh_notices_a_new_file(self, tmp_path):
        put(tmp_path, 0)
        files = FileSequence(tmp_path)
        assert not files.refresh()
        put(tmp_path, 100)
        assert files.refresh()
        assert files.bases == [0, 100]
        assert not files.refresh()

    def test_refresh_notices_a_deleted_file(self, tmp_path):
        for base in (0, 100, 200):
            put(tmp_path, base)
        files = FileSequence(tmp_path)
        files.file(0)
        (tmp_path / offset_name(0)).unlink()
        assert files.refresh()
        assert (files.bases, files.begin_offset, files.base_of(50)) == ([100, 200], 100, None)

    def test_a_file_that_goes_between_refresh_and_read_is_an_error_with_its_name(self, tmp_path):
        for base in (0, 100):
            put(tmp_path, base)
        files = FileSequence(tmp_path)
        (tmp_path / offset_name(0)).unlink()
        with pytest.raises(NotFoundError, match=offset_name(0)):
            files.file(0)

    def test_a_file_that_was_mapped_stays_readable_until_the_next_refresh(self, tmp_path):
        for base in (0, 100):
            put(tmp_path, base)
        files = FileSequence(tmp_path)
        mapped = files.file(0)
        (tmp_path / offset_name(0)).unlink()
        assert bytes(mapped.data) == bytes(SIZE)
        assert files.file(0) is mapped

    def test_other_files_in_the_folder_are_no_change(self, tmp_path):
        put(tmp_path, 0)
        files = FileSequence(tmp_path)
        (tmp_path / "notes.txt").touch()
        assert not files.refresh()

    def test_a_file_that_grows_is_mapped_again(self, tmp_path):
        put(tmp_path, 0)
        path = put(tmp_path, 100, b"ab")
        files = FileSequence(tmp_path)
        assert bytes(files.file(100).data) == b"ab"
        with path.open("ab") as writer:
            writer.write(b"cd")
        assert bytes(files.file(100).data) == b"abcd"

    def test_the_only_file_may_be_seen_before_it_has_its_size(self, tmp_path):
        """RocketMQ makes a file empty and then sets its length: a reader may come in between."""
        path = put(tmp_path, 0, b"")
        files = FileSequence(tmp_path)
        assert files.base_of(0) is None
        os.truncate(path, SIZE)
        files.refresh()
        assert files.file_size == SIZE
        assert files.base_of(SIZE - 1) == 0

    def test_two_files_made_in_one_tick_of_the_clock_are_both_seen(self, tmp_path):
        """A folder's time has the grain of the kernel's clock: a second change in one grain leaves it alike."""
        put(tmp_path, 0)
        put(tmp_path, 100)
        files = FileSequence(tmp_path)
        tick = os.stat(tmp_path)
        put(tmp_path, 200)
        os.utime(tmp_path, ns=(tick.st_atime_ns, tick.st_mtime_ns))
        files.refresh()
        assert files.bases == [0, 100, 200]


def test_few_files_stay_open_however_many_are_read(tmp_path):
    count = OPEN_MAPS_MAX + 6
    for number in range(count):
        put(tmp_path, number * SIZE)
    files = FileSequence(tmp_path)
    for _ in range(2):
        for number in range(count):
            assert files.file(number * SIZE).data[0] == number % 256
    assert len(files._maps) == OPEN_MAPS_MAX
    files.close()
    assert files.file(0).data[0] == 0


def test_files_of_several_folders_are_one_sequence(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for number in range(4):
        folders[number % 2].mkdir(exist_ok=True)
        (folders[number % 2] / f"{number * 100:020d}").write_bytes(bytes([number]) * 100)
    files = FileSequence(*folders)
    assert files.bases == [0, 100, 200, 300]
    assert [files.file(base).data[0] for base in files.bases] == [0, 1, 2, 3]
    assert [files.path_of(base).parent.name for base in files.bases] == ["a", "b", "a", "b"]
    assert not files.gaps()
    (folders[1] / f"{100:020d}").unlink()
    assert files.refresh()
    assert files.gaps() == [(100, 200)]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("foreign", [7, 107, 393])
def test_two_files_whose_names_lie_too_close_together_are_both_named(tmp_path, count, foreign):
    for number in range(count):
        put(tmp_path, number * SIZE)
    put(tmp_path, foreign, b"not of the log")
    files = FileSequence(tmp_path)
    healthy = [base for base in files.bases if base != foreign]
    before, behind = min(zip(files.bases, files.bases[1:], strict=False), key=lambda pair: pair[1] - pair[0])
    if behind - before >= SIZE:
        assert bytes(files.file(0).data) == bytes(SIZE)  # it lies where a file could
        return
    for base in healthy:
        with pytest.raises(CorruptError, match="move away the one of the two") as error:
            files.file(base)
        assert f"begins {behind - before} bytes behind {offset_name(before)}, but" in str(error.value)
        assert (error.value.path, error.value.position) == (str(tmp_path / offset_name(behind)), 0)
    (tmp_path / offset_name(foreign)).unlink()
    files.refresh()
    assert bytes(files.file(0).data) == bytes(SIZE)


def test_a_file_that_is_too_long_itself_is_named(tmp_path):
    for base in (0, 100, 200):
        put(tmp_path, base)
    path = put(tmp_path, 100, bytes(SIZE + 1))
    with pytest.raises(CorruptError, match="has 101 bytes, but the next one begins 100 bytes") as error:
        FileSequence(tmp_path).file(100)
    assert error.value.path == str(path)
