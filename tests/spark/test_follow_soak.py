"""A follower that runs for long: its memory stays what it was, and nothing it was given is missing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import whence
from tests.spark.follower_process import FollowerProcess
from tests.spark.growing import AppendedLog
from tests.spark.processes import processes
from whence.files.names import sidecar_of

pytestmark = pytest.mark.slow

RATE = 1000  # messages a second
FILE_SIZE = 16 * 1048576
SLOPE_MAX = 60.0  # MiB an hour, of some hundred: below what the measurement itself wavers by


def memory_mib(follower: FollowerProcess) -> float:
    """What all its processes hold, apart from files that are mapped; what several share counts once.

    The pages of a log that is mapped are the system's, which keeps as many as it has room for.
    """
    total = 0
    for pid in processes(follower.child.pid):
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            )
        except OSError:
            continue
        total += sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss"))
    return total / 1024


@pytest.mark.long(part=5, count=15)
def test_memory_stays_flat_while_a_log_is_followed(tmp_path: Path, long_count: int):
    """``long_count``: for so many minutes."""
    log = AppendedLog(tmp_path / "store", FILE_SIZE)
    log.append(1000)
    sidecar_of(log.store).mkdir()
    seconds, memory = [], []
    with FollowerProcess(log.store, "--json", scratch=tmp_path / "tmp") as follower:
        follower.await_indexed(log.offset)
        begun = time.monotonic()
        first, measured_at = log.count, 0.0
        while (elapsed := time.monotonic() - begun) < 60 * long_count:
            log.append(max(int(elapsed * RATE) - (log.count - first), 0))
            if elapsed >= measured_at:
                seconds.append(elapsed)
                memory.append(memory_mib(follower))
                measured_at += 5.0
            time.sleep(0.01)
        follower.await_indexed(log.offset)
        status, out, err, took_s = follower.stop()
    assert (status, err) == (0, "") and took_s < 2.0
    states = [json.loads(line) for line in out.splitlines()]
    assert states[-1]["messages"] == log.count and states[-1]["lag_bytes"] == 0
    later = len(seconds) // 3  # Java grows until it has seen all of its work
    slope = np.polyfit(seconds[later:], memory[later:], 1)[0] * 3600
    latencies = sorted(state["latency_s"] for state in states if state["latency_s"] is not None)
    print(
        f"{log.count} messages in {seconds[-1]:.0f} s; memory {memory[later]:.0f} MiB after a third, "
        f"{memory[-1]:.0f} at the end, {slope:+.1f} MiB an hour; latency {latencies[len(latencies) // 2]:.2f} s, "
        f"{latencies[-len(latencies) // 100]:.2f} s for one in a hundred"
    )
    with whence.open(log.store) as reader:
        for number in range(0, log.count, max(log.count // 2000, 1)):
            answer = reader.find(key=f"key-{number}", topic="T", no_scan=True)
            assert len(answer) == 1 and answer.receipt.complete, (number, answer.receipt)
    assert slope < SLOPE_MAX
