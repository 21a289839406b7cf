"""``whence find STORE --key K`` as a user types it, a whole process, on 1 GiB; beside ``import numpy``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.data import LOG_SIZE, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, Sample, Target, measure


def results(options: Options) -> Iterator[Result]:
    sample = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    number = sample.message_count // 3
    find = [str(Path(sys.executable).with_name("whence")), "find", str(sample.path), "--key", sample.key(number)]
    numpy = Peer('python -c "import numpy"', process([sys.executable, "-c", "import numpy"]))
    for work, command in (
        ("whence find STORE --key K", find),
        ("whence find STORE --key K --topic T --json", [*find, "--topic", sample.topic(number), "--json"]),
    ):
        peers = [Peer("whence", process(command)), numpy]
        yield measure(Comparison(work, peers, Target(3, 2, "times as long")), options)


def process(command: list[str]) -> Callable[[int], Sample]:
    """A peer that is a process of its own, from its start to its end."""

    def run(round_number: int) -> Sample:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
        return Sample(wall, usage.ru_utime + usage.ru_stime)

    return run
