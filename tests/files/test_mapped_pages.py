"""Pages that are mapped before they are read."""

from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from whence.files.mapped_file import MappedFile
from whence.files.mapped_pages import AROUND, map_pages

SIZE = 1024 * PAGESIZE  # more than the system maps by itself around one that is touched


def mapped_size(address: int) -> int:
    """How much of the mapping that begins at an address is in memory, for this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


@pytest.mark.parametrize(("position", "size"), [(0, SIZE), (1, SIZE - 1), (PAGESIZE, 100 * PAGESIZE)])
def test_the_pages_of_a_stretch_are_mapped_before_they_are_read(tmp_path, position, size):
    """There may be more of them, where the system maps large ones; the last few may be left."""
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with MappedFile(tmp_path / "file") as file:
        data = np.frombuffer(file.data, np.uint8)
        assert mapped_size(data.ctypes.data) == 0
        map_pages(data[position : position + size])
        assert mapped_size(data.ctypes.data) > size - AROUND - PAGESIZE


def test_of_nothing_nothing_is_mapped(tmp_path):
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with MappedFile(tmp_path / "file") as file:
        data = np.frombuffer(file.data, np.uint8)
        map_pages(data[7:7])
        assert mapped_size(data.ctypes.data) == 0
