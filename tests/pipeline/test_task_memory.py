"""The memory of a task is bounded, however long its stretch is. What is asked is 200 MB beside the page cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import task_memory

pytestmark = pytest.mark.slow

LIMIT = 100_000_000
GROWTH_MAX = 24_000_000  # of what waits to be written in groups: 16 MiB, and a run of rows


def peaks(folder: Path, size: int) -> dict[str, int]:
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, task_memory.__file__, str(folder), str(size), str(LIMIT)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, int] = json.loads(ended.stdout)
    return told


def test_tasks_take_less_than_100_mb_and_no_more_for_a_log_three_times_as_long(tmp_path):
    """Those of a build, and those of a verify."""
    short, long = peaks(tmp_path / "short", 100_000_000), peaks(tmp_path / "long", 300_000_000)
    assert max(short.values()) > 10_000_000  # it is measured
    assert all(peak < LIMIT for peak in long.values()), long
    assert all(long[task] - peak < GROWTH_MAX for task, peak in short.items()), (short, long)
