"""``whence export`` of 1 GiB of CommitLog on all cores, beside Spark writing the rows of the data source itself.

Both make Parquet with zstd in folders by day and topic, with the columns of the source; the session is open before.
whence flushes every file to the disk and sums it, Spark does neither. Both are counted when the clock has stopped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import whence
from benchmarks.build import first_files
from benchmarks.data import LOG_SIZE, cache_folder, long_log
from benchmarks.harness import Comparison, Options, Peer, Result, Sample, Target, measure, timed
from benchmarks.source import SETTINGS
from whence.door import export_store
from whence.pipeline.session import open_session


def results(options: Options) -> Iterator[Result]:
    files = sorted((long_log(8, LOG_SIZE >> 6 if options.is_small else LOG_SIZE) / "commitlog").iterdir())[:1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="export-", dir=cache_folder())))
        store, out = first_files(files, folder / "store"), folder / "out"
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        stack.callback(os.sched_setaffinity, 0, here)
        spark = stack.enter_context(open_session(SETTINGS))
        whence.spark.register(spark)

        def ours() -> None:
            export_store(store, out, question={"system_topics": True})

        def theirs() -> None:
            from pyspark.sql.functions import to_date

            rows = spark.read.format("whence").load(str(store)).withColumn("day", to_date("store_time"))
            rows.write.option("compression", "zstd").partitionBy("day", "topic").parquet(str(out))

        peers = [Peer("whence export", _counted(out, ours)), Peer("Spark, through the source", _counted(out, theirs))]
        few = replace(options, rounds=min(options.rounds, 3), warm_up=min(options.warm_up, 1))
        yield measure(Comparison("export of 1 GiB to Parquet", peers, Target(2, 4)), few)


def _counted(out: Path, write: Callable[[], None]) -> Callable[[int], Sample]:
    """A peer that writes into an empty folder; its check is how many rows are there then."""

    def prepare(_: int) -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()

    def work(_: None) -> int:
        write()
        return 0

    def run(number: int) -> Sample:
        from pyarrow import dataset

        sample = timed(prepare, work)(number)
        written: Any = dataset.dataset(out, format="parquet", partitioning="hive")
        return replace(sample, check=written.count_rows())

    return run
