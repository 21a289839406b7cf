"""The pages of 1 GiB of CommitLog, mapped: by touching some of them, beside asking the system for them.

Both go through the log 4 MiB at a time, as a scan does.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import LOG_SIZE, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from whence.files.mapped_file import MappedFile
from whence.files.mapped_pages import map_pages
from whence.store.log_scan import AHEAD_SIZE

POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it


def results(options: Options) -> Iterator[Result]:
    log = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE).log_path

    def touch(file: MappedFile) -> int:
        data = np.frombuffer(file.data, np.uint8)
        for at in range(0, file.size, AHEAD_SIZE):
            map_pages(data[at : at + AHEAD_SIZE])
        return _read(data)

    def ask(mapped: mmap.mmap) -> int:
        for at in range(0, len(mapped), AHEAD_SIZE):
            mapped.madvise(POPULATE_READ, at, min(AHEAD_SIZE, len(mapped) - at))
        return _read(np.frombuffer(mapped, np.uint8))

    peers = [
        Peer("touched", _mapped(lambda: MappedFile(log), touch)),
        Peer("asked for", _mapped(lambda: _plain_map(log), ask)),
    ]
    yield measure(Comparison("pages of 1 GiB of log, mapped and read", peers, Target(1, 2)), options)


def _mapped(opened: Callable[[], Any], work: Callable[[Any], int]) -> Callable[[int], Any]:
    return timed(lambda _: opened(), work)


def _plain_map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)


def _read(data: NDArray[np.uint8]) -> int:
    """One byte of each page: those that were not mapped are now."""
    return int(data[:: mmap.PAGESIZE].sum(dtype=np.int64))
