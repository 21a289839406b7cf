"""Pages that are mapped before they are touched."""

from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from whence.files.mapped_file import MappedFile
from whence.files.mapped_pages import map_pages

SIZE = 1024 * PAGESIZE  # more than the system maps by itself around one that is touched


def mapped_size(address: int) -> int:
    """How much of the mapping that begins at an address is in memory, for this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


@pytest.mark.parametrize(("position", "size"), [(0, SIZE), (1, SIZE - 1), (PAGESIZE, 100 * PAGESIZE)])
def test_the_pages_of_a_stretch_are_mapped_before_they_are_touched(tmp_path, position, size):
    """There may be more of them, where the system maps large ones."""
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with MappedFile(tmp_path / "file") as file:
        address = np.frombuffer(file.data, np.uint8).ctypes.data
        assert mapped_size(address) == 0
        map_pages(address + position, size)
        assert mapped_size(address) >= size - size % PAGESIZE


def test_a_stretch_in_which_no_page_begins_maps_none(tmp_path):
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with MappedFile(tmp_path / "file") as file:
        address = np.frombuffer(file.data, np.uint8).ctypes.data
        map_pages(address + 7, 9)
        assert mapped_size(address) == 0


def test_what_cannot_be_mapped_is_no_error(tmp_path):
    (tmp_path / "file").write_bytes(bytes(PAGESIZE))
    with MappedFile(tmp_path / "file") as file:
        map_pages(np.frombuffer(file.data, np.uint8).ctypes.data, SIZE << 20)
