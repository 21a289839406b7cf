"""Pages of a file that stay in memory, as far as the system allows."""

from pathlib import Path

from whence.files.disk import Disk
from whence.files.pinned_pages import PinnedPages

SIZE = 64 * 1024


def locked_size() -> int:
    """How much memory of this process is locked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmLck:"))


def test_pages_are_locked_as_long_as_they_are_held_if_that_is_allowed(tmp_path):
    before = locked_size()
    with Disk().create(tmp_path / "file", SIZE, reserve=True) as file:
        pages = PinnedPages(file)
        assert locked_size() - before == (SIZE if pages.is_locked else 0)
        file.write(b"written all the same", 0)
        pages.close()
        assert locked_size() == before
    assert (tmp_path / "file").read_bytes().startswith(b"written all the same\0")
