"""Rebuild index and queues from 1 GiB of CommitLog, checksums checked; beside ``DefaultMessageStore.load()``.

RocketMQ finds a store that has nothing but its log, and dispatches all of it while it recovers. It does not flush
what it made: so the comparison is without flushing, and what flushing adds stands beside it. Its log stays open, so
closing ours is not timed either.
"""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import LOG_SIZE, QUEUE_FILE_SIZE, SampleStore, cache_folder, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.files.disk import Disk
from whence.store.commit_log import CommitLog
from whence.store.dispatch import dispatch_log
from whence.store.index_file import DEFAULT_SHAPE
from whence.store.message_store import Dialect


class UnflushedDisk(Disk):
    def fsync(self, path: Path, descriptor: int) -> None:
        pass

    def begin_flush(self, descriptor: int, position: int, size: int) -> None:
        pass


def results(options: Options) -> Iterator[Result]:
    sample = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    folder = Path(tempfile.mkdtemp(prefix="rebuild-", dir=cache_folder()))
    try:
        with java_peer(options, "Rebuild", str(folder / "java"), str(sample.log_path)) as java:
            peers = [_whence("whence", sample, folder / "new", UnflushedDisk())]
            peers.append(_whence("whence, flushed", sample, folder / "new", Disk()))
            if java is not None:
                peers.append(java.task("load"))
            work = "index and queues from 1 GiB of CommitLog, CRC"
            yield measure(Comparison(work, peers, Target(10, 15) if java else None), options)
        for path in sample.path.glob("consumequeue/*/*/*"):
            assert filecmp.cmp(path, folder / "new" / path.relative_to(sample.path), shallow=False)
        (theirs,), (ours,) = ((at / "index").iterdir() for at in (sample.path, folder / "new"))
        assert filecmp.cmp(theirs, ours, shallow=False)
    finally:
        shutil.rmtree(folder)


def _whence(name: str, sample: SampleStore, folder: Path, disk: Disk) -> Peer:
    logs: list[CommitLog] = []

    def emptied(_: int) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def rebuild(folder: Path) -> int:
        logs.append(CommitLog(sample.path / "commitlog"))
        done = dispatch_log(
            logs[-1],
            folder,
            slots=DEFAULT_SHAPE.slot_capacity,
            items=DEFAULT_SHAPE.item_capacity,
            queue_file_size=QUEUE_FILE_SIZE,
            dialect=Dialect.V5_5,
            disk=disk,
        )
        return done.queues.entry_count

    return Peer(name, timed(emptied, rebuild, lambda _: logs.pop().close()))
