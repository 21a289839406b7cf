"""``spark.read.format("whence")`` over 4 GiB of CommitLog, in a session that is warm.

A key that the index finds, beside the same query without it: the log is scanned, and rows are tested by kernels
before they are made, or all of them are handed to Spark. And beside one that finds nothing to read: what Spark and
the source take for a query at all. Each query is asked of a ``load()`` of its own, as one types it.

A count of all messages beside the scan kernel in plain processes, as many as cores: the rows of the count are one
narrow column, which is all that Spark needs for it, but each of them passes through Java.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import whence
from benchmarks.build import PlainProcesses, first_files
from benchmarks.data import LOG_SIZE, cache_folder, long_log
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from whence.door import build_store
from whence.files.mapped_file import MappedFile
from whence.pipeline.scanning import cut_stretches
from whence.pipeline.session import SparkSettings, open_session
from whence.store.commit_log import CommitLog
from whence.store.log_file import LogFile, PlainBudget
from whence.store.log_scan import FileScan, scan_rows

FILES = 4
KEYS = 200
# Sessions of whence's own jobs do without Java's second compiler, for rows do not pass through it there.
SETTINGS = SparkSettings(conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"})


def results(options: Options) -> Iterator[Result]:
    file_size = LOG_SIZE >> 6 if options.is_small else LOG_SIZE
    files = sorted((long_log(8, file_size) / "commitlog").iterdir())[:FILES]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="source-", dir=cache_folder())))
        store = first_files(files, folder / "store")
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        stack.callback(os.sched_setaffinity, 0, here)
        plain = stack.enter_context(PlainProcesses())
        spark = stack.enter_context(open_session(SETTINGS))
        build_store(store)
        whence.spark.register(spark)

        def load(**given: str) -> Any:
            return spark.read.format("whence").options(**given).load(str(store))

        def where(condition: str, **given: str) -> Callable[[int], Any]:
            def ask(number: int) -> int:
                key = keys[number % len(keys)]
                return len(load(rows="key", **given).where(f"key = '{key}' and {condition}").collect())

            return timed(lambda number: number, ask)

        sample = load(rows="key", endingOffsets=str(file_size // 64), columns="key,topic")
        topic = sample.first()["topic"]
        keys = [row["key"] for row in sample.where(f"topic = '{topic}' and key like 'order-%'").limit(KEYS).collect()]
        by_topic = f"topic = '{topic}'"
        few = replace(options, rounds=min(options.rounds, 3), warm_up=min(options.warm_up, 1))
        peers = [
            Peer("where key = …", where(by_topic)),
            Peer("by a scan, rows tested by kernels", where(by_topic, scan="true")),
            Peer("by a scan, rows tested by Spark", where(by_topic, pushdown="never")),
        ]
        yield measure(Comparison("a key of 4 GiB", peers, Target(50, 200)), few)
        found = where(by_topic)
        nothing = _without_check(where("topic = 'no such topic'"))
        peers = [Peer("where key = …", _without_check(found)), Peer("of a topic that is not there", nothing)]
        yield measure(Comparison("a key of 4 GiB", peers, Target(2, 1.2, "times as long")), options)

        count = timed(lambda number: load(columns="size"), lambda frame: int(frame.count()))
        peers = [Peer("count() through the source", count), Peer("the scan kernel", _scan(plain, store))]
        yield measure(Comparison("count of 4 GiB", peers, Target(4, 2, "times as long")), options)


def _without_check(run: Callable[[int], Any]) -> Callable[[int], Any]:
    """The two peers are to give different answers."""

    def checked(number: int) -> Any:
        sample = run(number)
        return type(sample)(sample.wall_s, sample.cpu_s)

    return checked


def _scan(plain: PlainProcesses, store: Path) -> Callable[[int], Any]:
    log = CommitLog(store / "commitlog")
    stretches = cut_stretches(log, 0, plain.slots, None)
    log.close()

    def work(_: int) -> int:
        return sum(plain.map("scan", _count_stretch, stretches))

    return timed(lambda number: number, work)


def _count_stretch(stretch: Any) -> int:
    """Records of a stretch, by the kernel alone; it begins where the first whole record does."""
    file = LogFile(MappedFile(Path(stretch.path)), stretch.base, PlainBudget())
    position = stretch.from_offset - stretch.base
    if not stretch.is_exact:
        found = file.next_whole(position)
        assert found.position is not None
        position = found.position
    scan = FileScan(file, position, stretch.to_offset - stretch.base, is_last=stretch.is_last, tags=False)
    return sum(len(batch.messages) for batch in scan.batches(*scan_rows()))
