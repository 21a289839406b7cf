"""Kernels for a plain processor, without the vectors and multiplications that this one may have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
TESTS = [
    f"test_{name}.py" for name in ("hashing", "checksums", "scan", "records", "columns", "candidates", "field_values")
]


@pytest.mark.slow
def test_kernels_for_a_plain_processor_pass_the_same_tests():
    folder = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *(str(folder / name) for name in TESTS)],
        env=os.environ | PLAIN,
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" in run.stdout, "the tests of crc32_by_folding ran, so this was no plain processor"
