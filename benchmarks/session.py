"""A Spark session that whence opens, beside one that Spark opens by itself: from a process's start to a first job.

Each round is a process of its own on all cores, whatever core this one is kept on. whence's first round makes the
archive of Spark's classes, if it is not there: it counts as warming up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

from benchmarks.harness import Comparison, Options, Peer, Result, Sample, Target, measure

WHENCE = """
from whence.pipeline.session import open_session
with open_session() as spark:
    tell(spark)
"""
SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").getOrCreate()
tell(spark)
spark.stop()
"""
TELL = """
import json, os, time
from pathlib import Path
started = time.perf_counter()

def taken(context):
    '''Wall time, and the CPU time of this process and of Java.'''
    fields = Path(f"/proc/{context._gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return time.perf_counter() - started, time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

def tell(spark):
    context = spark.sparkContext
    opened = taken(context)
    numbers = context.parallelize(range(context.defaultParallelism), context.defaultParallelism)
    total = numbers.map(lambda number: number).sum()
    print(json.dumps([opened, taken(context), total]))
"""


def results(options: Options) -> Iterator[Result]:
    peers = (("whence", session(WHENCE)), ("Spark", session(SPARK)))
    for part, work in enumerate(("open a session on all cores", "the same, and run a first job")):

        def sample(run: Callable[[int], list[Sample]], part: int = part) -> Callable[[int], Sample]:
            return lambda round_number: run(round_number)[part]

        yield measure(Comparison(work, [Peer(name, sample(run)) for name, run in peers], Target(2, 2.7)), options)


def session(code: str) -> Callable[[int], list[Sample]]:
    """What a process tells of a round: wall and CPU time until the session was open, and until the job was done."""

    @cache  # one process serves both comparisons
    def run(round_number: int) -> list[Sample]:
        done = subprocess.run(
            [sys.executable, "-c", TELL + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
            check=True,
        )
        opened, worked, total = json.loads(done.stdout.splitlines()[-1])
        return [Sample(wall, cpu, total) for wall, cpu in (opened, worked)]

    return run
