"""``whence build`` of 4 GiB of CommitLog on all cores; beside ``DefaultMessageStore.load()`` on one.

Index, queues and time blocks are published and flushed; RocketMQ flushes nothing. The session is open before: what it
takes to open one is measured by ``session``. Beside Spark the same tasks run in plain processes, as many as cores.

The log is dispatched from 1, 2, 4 and 8 GiB as well: the time grows as the log does.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.data import LOG_SIZE, QUEUE_FILE_SIZE, cache_folder, long_log
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.files.disk import Disk
from whence.pipeline.build import Build, BuildPlace, BuildSettings
from whence.pipeline.runner import Runner
from whence.pipeline.session import open_session
from whence.pipeline.task_runner import TaskRunner
from whence.pipeline.verify import Verify, VerifyPlace, VerifySettings, work_folder
from whence.store.commit_log import CommitLog
from whence.store.index_file import DEFAULT_SHAPE
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar

SIZES = (1, 2, 4, 8)  # files of the log


def results(options: Options) -> Iterator[Result]:
    file_size = LOG_SIZE >> 6 if options.is_small else LOG_SIZE
    log = long_log(SIZES[-1], file_size)
    files = sorted((log / "commitlog").iterdir())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="build-", dir=cache_folder())))
        stores = {count: first_files(files[:count], folder / f"log-{count}") for count in SIZES}
        java = stack.enter_context(java_peer(options, "Rebuild", str(folder / "java"), *map(str, files[:4])))
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # Java stays where it was started
        stack.callback(os.sched_setaffinity, 0, here)
        plain = stack.enter_context(PlainProcesses())
        spark = Runner(stack.enter_context(open_session()))

        on_spark, in_processes = (build_peer(runner, stores[4], folder) for runner in (spark, plain))
        peers = [Peer("whence", on_spark), Peer("the same tasks in plain processes", in_processes)]
        yield measure(Comparison("the job itself", peers, Target(1.25, 1.1, "times as long")), options)
        if java is not None:
            peers = [Peer("whence", on_spark), java.task("load")]
            yield measure(Comparison("whence build of 4 GiB, flushed", peers, Target(12, 25)), options)
        peers = [Peer("verify", _verify(spark, stores[4], folder)), Peer("build", on_spark)]
        yield measure(Comparison("whence verify of 4 GiB", peers, Target(2, 1, "times as long")), options)

        measured = []
        for count in SIZES:
            comparison = Comparison(
                f"whence build of {count} GiB", [Peer("whence", build_peer(spark, stores[count], folder))]
            )
            result = measure(comparison, options)
            if result.samples:
                measured.append((math.log(count), math.log(result.median_s("whence"))))
            if len(measured) == len(SIZES):
                result = _with_exponent(result, measured)
            yield result


def _with_exponent(result: Result, measured: list[tuple[float, float]]) -> Result:
    """The result of the longest log, whose title tells how the time grew up to it."""
    sizes, times = zip(*measured, strict=True)
    size, time = sum(sizes) / len(sizes), sum(times) / len(times)
    exponent = sum((x - size) * (y - time) for x, y in measured) / sum((x - size) ** 2 for x in sizes)
    work = f"{result.comparison.work}: time grows with the size to the power of {exponent:.2f}"
    return Result(Comparison(work, result.comparison.peers), result.samples)


class PlainProcesses:
    """Runs tasks in as many processes as there are cores. They are forked when all kernels are loaded."""

    is_local, has_twins = True, False

    def __init__(self) -> None:
        self.slots = os.cpu_count() or 1
        self._pool = ProcessPoolExecutor(self.slots, get_context("fork"))

    def map(
        self,
        name: str,
        task: Callable[[Any], Any],
        inputs: Sequence[Any],
        *,
        size_of: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        return list(self._pool.map(task, inputs))

    def __enter__(self) -> PlainProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def first_files(files: Sequence[Path], store: Path) -> Path:
    """A store whose log is links to these files."""
    (store / "commitlog").mkdir(parents=True)
    for file in files:
        (store / "commitlog" / file.name).symlink_to(file)
    return store


def build_peer(runner: TaskRunner, store: Path, folder: Path) -> Callable[[int], Any]:
    sidecar = folder / "sidecar"

    def emptied(_: int) -> CommitLog:
        shutil.rmtree(sidecar, ignore_errors=True)
        sidecar.mkdir()
        os.sync()
        return CommitLog(store / "commitlog")

    def build(log: CommitLog) -> int:
        settings = BuildSettings(DEFAULT_SHAPE, Dialect.V5_5, QUEUE_FILE_SIZE)
        return Build(log, BuildPlace(sidecar, sidecar), settings, None, runner, Disk()).run().messages

    return timed(emptied, build, CommitLog.close)


def _verify(runner: TaskRunner, store: Path, folder: Path) -> Callable[[int], Any]:
    """Verify what the build of the round before left; the first round builds it."""
    sidecar, build = folder / "sidecar", build_peer(runner, store, folder)

    def built(round_number: int) -> CommitLog:
        if not (sidecar / "sidecar.json").exists():
            build(round_number)
        return CommitLog(store / "commitlog")

    def verify(log: CommitLog) -> int:
        claim = read_sidecar(sidecar)
        assert claim is not None
        place = VerifyPlace(store, sidecar, sidecar, claim.index_names, claim.indexed_to, claim=claim, is_exact=True)
        with work_folder(sidecar, is_local=True) as work:
            found = Verify(log, place, VerifySettings(DEFAULT_SHAPE), runner, work, Disk()).run()
        assert found.is_healthy, found.damage[:3]
        return found.messages

    return timed(built, verify, CommitLog.close)
