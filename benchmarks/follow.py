"""``whence follow``: how soon a message is found, how fast it catches up, and what it costs when nothing comes.

Catching up is measured in an open session, beside ``whence build`` of the same 4 GiB. The rest is measured on
``whence follow`` in its own process, all cores for it and for who writes:

- the sustained rate while another process writes 4 GiB, as fast as it can but at most 512 MiB ahead of what is
  indexed, into files made at their full size: through a map it took 6.8 s of the cores' time, most of it for page
  faults, and 4.3 s so. Beside RocketMQ, which dispatches the same log with its own index, flushes nothing, and has
  all cores and nobody beside it;
- how soon a message is found while a thread here appends 1,000 a second as a broker does: for each of them the time
  until ``sidecar.json``, which is looked at every two milliseconds, says that it is indexed. That the last one is
  found then without a scan is looked at, too. A round tells the slowest but one in a hundred.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import whence
from benchmarks.build import build_peer, first_files
from benchmarks.data import LOG_SIZE, QUEUE_FILE_SIZE, cache_folder, long_log
from benchmarks.harness import Comparison, Options, Peer, Result, Sample, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.files.disk import Disk
from whence.files.names import sidecar_of
from whence.pipeline.follow import Follow
from whence.pipeline.runner import Runner
from whence.pipeline.session import open_session
from whence.store.commit_log import CommitLog
from whence.store.follower import GROUP, Follower, FollowSettings
from whence.store.index_file import DEFAULT_SHAPE
from whence.store.log_scan import LogScan
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar
from whence.store.spill import Recipe

FILES = 4
RATE = 1000  # messages a second
CATCHING_UP = "catching up 4 GiB"
SUSTAINED = "4 GiB, sustained"
LATENCY = f"from append to found, {RATE:,} messages a second"
AT_REST = "at rest"
PERCENTILE = 0.99
LOOK_S = 0.002
REST_S = 6.0  # until it looks at the log less often
AHEAD = 512 << 20  # bytes that the writer is ahead at most
WRITER = """
import os, pathlib, sys, time
from whence.files.names import sidecar_of
from whence.store.sidecar import read_sidecar

store, position, ahead, sources = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
indexed_to = 0
for source in map(pathlib.Path, sources):
    base, size = int(source.name), source.stat().st_size
    path, mode = store / "commitlog" / source.name, "rb+" if position > base else "wb+"
    with source.open("rb") as data, path.open(mode) as log:
        log.truncate(size)
        data.seek(position - base)
        while piece := data.read(1 << 20):
            while position - indexed_to > ahead:
                time.sleep(0.005)
                indexed_to = read_sidecar(sidecar_of(store)).indexed_to
            os.pwrite(log.fileno(), piece, position - base)
            position += len(piece)
"""


def results(options: Options) -> Iterator[Result]:
    file_size = LOG_SIZE >> 6 if options.is_small else LOG_SIZE
    files = sorted((long_log(8, file_size) / "commitlog").iterdir())[:FILES]
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # for RocketMQ, too
    try:
        with tempfile.TemporaryDirectory(prefix="follow-", dir=cache_folder()) as name:
            folder = Path(name)
            if options.wants(CATCHING_UP):
                yield _caught_up(folder, files, options)
            if options.wants(SUSTAINED):
                yield _beside_rocketmq(folder, files, file_size, options)
            if options.wants(LATENCY) or options.wants(AT_REST):
                yield from _live(folder, files[0], file_size, options)
    finally:
        os.sched_setaffinity(0, here)


def _caught_up(folder: Path, files: Sequence[Path], options: Options) -> Result:
    with open_session() as spark:
        store = first_files(files, folder / "log")
        build = build_peer(Runner(spark), store, folder)
        peers = [Peer("follow --once", _follow(spark, store, folder)), Peer("build", build)]
        return measure(Comparison(CATCHING_UP, peers, Target(2, 1.2, "times as long")), options)


def _beside_rocketmq(folder: Path, files: Sequence[Path], file_size: int, options: Options) -> Result:
    with java_peer(options, "Rebuild", str(folder / "java"), *map(str, files)) as java:
        peers = [Peer("follow, a writer beside it", lambda _: _sustained(folder / "sustained", files, file_size))]
        if java is not None:
            peers.append(java.task("load"))
        return measure(Comparison(SUSTAINED, peers, Target(1, 5)), options)


def _live(folder: Path, source: Path, file_size: int, options: Options) -> Iterator[Result]:
    seconds = 2.0 if options.is_small else 20.0
    with closing(Live(folder / "live", source, file_size)) as live:
        peers = [Peer("99th percentile", lambda _: live.latency(seconds))]
        yield measure(Comparison(LATENCY, peers, Target(1.5, 0.6, "s")), options)
        peers = [Peer("all its processes", lambda _: live.at_rest(seconds))]
        yield measure(Comparison(AT_REST, peers, Target(0.05, 0.01, "of a core")), options)


def _follow(spark: Any, store: Path, folder: Path) -> Callable[[int], Sample]:
    """Follow all of a log once, in an open session."""
    sidecar = folder / "followed"
    recipe = Recipe(tags=True, batch_topics=(), groups=GROUP + 1, flush=False)

    def emptied(_: int) -> tuple[Follow, CommitLog]:
        shutil.rmtree(sidecar, ignore_errors=True)
        sidecar.mkdir()
        log = CommitLog(store / "commitlog")
        log.use_kernel()
        settings = FollowSettings(DEFAULT_SHAPE, Dialect.V5_5, QUEUE_FILE_SIZE)
        follower = Follower(log, sidecar, settings, None, Disk())
        return Follow(spark, follower, store / "commitlog", sidecar, lambda: recipe, Disk()), log

    def work(prepared: tuple[Follow, CommitLog]) -> int:
        return prepared[0].run(threading.Event(), lambda state: None, once=True).messages

    def finish(prepared: tuple[Follow, CommitLog]) -> None:
        prepared[0].close()
        prepared[1].close()

    return timed(emptied, work, finish)


class Followed:
    """A log whose first record is there, and the process that follows it."""

    def __init__(self, folder: Path, source: Path, file_size: int) -> None:
        self.store, self._told = folder / "store", folder / "told.jsonl"
        shutil.rmtree(folder, ignore_errors=True)
        (self.store / "commitlog").mkdir(parents=True)
        log = CommitLog(source.parent)
        self._ends = [0]
        for batch in LogScan(log, 0, file_size, tags=False, check_crc=False):
            rows = batch.messages
            self._ends += (rows["physical_offset"] + rows["size"]).tolist()
            if len(self._ends) > 1_000_000:
                break
        self._source = log.file_of(0).file.data
        path = self.store / "commitlog" / source.name
        with path.open("wb") as file:
            file.truncate(file_size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), file_size)
        self._count = 0
        command = [sys.executable, "-m", "whence", "follow", str(self.store), "--json"]
        with self._told.open("wb") as told:
            self._child = subprocess.Popen(command, start_new_session=True, stdout=told)
        self.append(1)
        self.await_indexed(self.end_offset)

    @property
    def end_offset(self) -> int:
        return self._ends[self._count]

    def append(self, count: int) -> None:
        begin, end = self._ends[self._count], self._ends[self._count + count]
        self._map[begin:end] = self._source[begin:end]
        self._count += count

    def await_indexed(self, offset: int) -> None:
        while self.indexed_to() < offset:
            if self._child.poll() is not None:
                raise SystemExit("whence follow ended")
            time.sleep(LOOK_S)

    def indexed_to(self) -> int:
        claim = read_sidecar(sidecar_of(self.store))
        return 0 if claim is None else claim.indexed_to

    def cpu_s(self) -> float:
        """CPU time of the follower, its Java and their workers; what ended is counted by who waited for it."""
        return sum(self.cpu_ticks().values()) / os.sysconf("SC_CLK_TCK")

    def cpu_ticks(self) -> dict[int, int]:
        """The same of each process."""
        ticks = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._child.pid:
                ticks[int(path.name)] = sum(map(int, fields[11:15]))
        return ticks

    def close(self) -> int:
        """End it; how many messages it has indexed."""
        self._child.send_signal(signal.SIGTERM)
        self._child.wait()
        return int(json.loads(self._told.read_text().splitlines()[-1])["messages"])


def _sustained(folder: Path, files: Sequence[Path], file_size: int) -> Sample:
    """How long it takes until all is indexed that another process writes meanwhile."""
    followed = Followed(folder, files[0], file_size)
    end_offset = CommitLog(files[0].parent).file_size * len(files)
    command = [
        sys.executable,
        "-c",
        WRITER,
        str(followed.store),
        str(followed.end_offset),
        str(AHEAD),
        *map(str, files),
    ]
    cpu, wall = followed.cpu_s(), time.perf_counter()
    with subprocess.Popen(command) as writer:
        followed.await_indexed(end_offset)
        wall, cpu = time.perf_counter() - wall, followed.cpu_s() - cpu
        if writer.wait():
            raise SystemExit("the writer failed")
    sample = Sample(wall, cpu, followed.close())
    shutil.rmtree(folder)
    return sample


class Live(Followed):
    """A log that grows by so many messages a second."""

    def latency(self, seconds: float) -> Sample:
        """Append for so long; how soon all but one in a hundred of the messages were indexed."""
        first = self._count
        appended: list[float] = []
        begun = time.monotonic()

        def append() -> None:
            while (elapsed := time.monotonic() - begun) < seconds:
                due = min(int(elapsed * RATE), len(self._ends) - 2 - first)
                if due > len(appended):
                    now = time.monotonic()
                    self.append(due - len(appended))
                    appended.extend([now] * (due - len(appended)))
                time.sleep(0.001)

        thread = threading.Thread(target=append)
        thread.start()
        latencies: list[float] = []
        cpu = self.cpu_s()
        seen = None
        while thread.is_alive() or len(latencies) < len(appended):
            state = os.stat(sidecar_of(self.store) / "sidecar.json").st_mtime_ns
            if state != seen:
                seen, now, indexed_to = state, time.monotonic(), self.indexed_to()
                while len(latencies) < len(appended) and self._ends[first + len(latencies) + 1] <= indexed_to:
                    latencies.append(now - appended[len(latencies)])
            time.sleep(LOOK_S)
        with whence.open(self.store) as reader:
            message = reader.find(offset=self._ends[self._count - 1]).messages[0]
            found = reader.find(key=message.keys[0], topic=message.topic, no_scan=True)
            assert message.physical_offset in [each.physical_offset for each in found], found.receipt
        return Sample(sorted(latencies)[int(PERCENTILE * len(latencies))], self.cpu_s() - cpu)

    def at_rest(self, seconds: float) -> Sample:
        """What part of a core it takes while nothing comes."""
        time.sleep(REST_S)
        before = self.cpu_ticks()
        time.sleep(seconds)
        # A worker that ends takes its past with it, as far as nobody waited for it.
        ticks = sum(max(ticks - before.get(pid, 0), 0) for pid, ticks in self.cpu_ticks().items())
        taken = ticks / os.sysconf("SC_CLK_TCK")
        return Sample(taken / seconds, taken)
