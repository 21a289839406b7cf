"""Starts Spark's Python workers: Spark's own daemon, with what every task needs loaded before it forks.

A worker is a fork of this process. What is imported here is there at once in each of them, and shared: the first
task that runs a kernel would otherwise import Numba for a second. Spark runs this as
``python -m whence.pipeline.daemon`` (``spark.python.daemon.module``), once on each executor.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def main() -> None:
    # Threads do not survive a fork, and what they held stays locked.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    _leave_the_zip()
    from pyspark.daemon import manager

    from whence.kernels import load_kernels

    load_kernels()
    gc.collect()
    gc.freeze()  # a collection in a worker would touch, and so copy, every page that it shares with this process
    manager()


def _leave_the_zip() -> None:
    """Import pyspark from where it is installed, and not from the archive in it that Spark puts on the path.

    The archive has no compiled files, so importing from it takes each worker 0.8 s more. A pyspark that is installed
    elsewhere may be of another version than the Spark that runs, and is left alone.
    """
    outside = [entry for entry in sys.path if not entry.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", outside)
    if installed is None or installed.origin is None:
        return
    archives = Path(installed.origin).parent / "python" / "lib"
    sys.path[:] = [entry for entry in sys.path if not (entry.endswith(".zip") and Path(entry).parent == archives)]


if __name__ == "__main__":
    main()
