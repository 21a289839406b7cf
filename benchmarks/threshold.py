"""From which size on the scan of an unindexed stretch is worth loading the compiled kernel.

Plain Python starts at once and is slow; the kernel is fast, but Numba and the compiled code have to be loaded
first. Both run as whole processes. ``PLAIN_SCAN_MAX`` in store/commit_log.py stands where their times cross.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.cli import process
from benchmarks.data import LOG_SIZE, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, measure

SIZES_MIB = (1, 2, 4, 8, 16, 32)
HEAD = """
import sys
from array import array
from pathlib import Path
from whence.files.mapped_file import MappedFile
from whence.store.scan import Sieve, scan_bulk, scan_plain
data, end, sieve = MappedFile(Path(sys.argv[1])).data, int(sys.argv[2]), Sieve(keys=("no such key",))
"""
PLAIN = f"{HEAD}scan_plain(data, 0, 0, end, sieve.takes)"
KERNEL = f"{HEAD}scan_bulk(data, 0, 0, end, sieve, array('q'))"


def results(options: Options) -> Iterator[Result]:
    log = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE).log_path
    for size_mib in SIZES_MIB[:1] if options.is_small else SIZES_MIB:
        arguments = [str(log), str(size_mib << 20)]
        peers = [
            Peer("plain Python", process([sys.executable, "-c", PLAIN, *arguments])),
            Peer("with the kernel", process([sys.executable, "-c", KERNEL, *arguments])),
        ]
        yield measure(Comparison(f"scan of {size_mib} MiB in a process of its own", peers), options)
