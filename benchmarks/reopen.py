"""Reopen a store of 4 GiB whose writer was killed; beside ``DefaultMessageStore.load()``.

Both find what a writer of ours left at SIGKILL: its page cache is there, its ``abort`` file, its checkpoint. Both are
done when log, queues and index are whole again and messages could be appended. RocketMQ scans at least its last log
file and dispatches it again, and the index that it loses it does not get back; whence believes what it has noted as
flushed, and looks at the rest. RocketMQ does not flush what it made: so the comparison is without flushing, and what
flushing adds stands beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import whence
from benchmarks.data import LOG_SIZE, KilledStore, cache_folder, killed_store
from benchmarks.harness import Comparison, Options, Peer, Result, Sample, Target, measure, timed
from benchmarks.java_peer import java_peer
from benchmarks.rebuild import UnflushedDisk
from whence.files.disk import Disk


def results(options: Options) -> Iterator[Result]:
    killed = killed_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    folder = Path(tempfile.mkdtemp(prefix="reopen-", dir=cache_folder()))
    ours, flushed = _Whence(killed, folder / "ours", UnflushedDisk()), _Whence(killed, folder / "flushed", Disk())
    try:
        with java_peer(options, "Reopen", str(folder / "java"), *map(str, killed.sizes)) as java:
            peers = [Peer("whence", timed(ours.left, ours.reopen))]
            peers.append(Peer("whence, flushed", timed(flushed.left, flushed.reopen)))
            if java is not None:
                theirs = java.task("load")

                def load(round_number: int) -> Sample:
                    _lay_out(killed.path, folder / "java", round_number)
                    return theirs.run(round_number)

                peers.append(Peer(theirs.name, load))
            work = "reopening a store of 4 GiB after kill -9"
            yield measure(Comparison(work, peers, Target(3, 10) if java else None), options)
    finally:
        ours.close()
        flushed.close()
        shutil.rmtree(folder)


class _Whence:
    """Reopens a fresh copy in each round, and closes the one of the round before."""

    def __init__(self, killed: KilledStore, folder: Path, disk: Disk) -> None:
        self._killed = killed
        self._folder = folder
        self._disk = disk
        self._store: whence.WritableStore | None = None

    def left(self, round_number: int) -> Path:
        self.close()
        return _lay_out(self._killed.path, self._folder, round_number)

    def reopen(self, folder: Path) -> int:
        self._store = whence.create(folder, disk=self._disk)
        assert self._store.wait_dispatched(60)
        return self._store.recovered.end_offset

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _lay_out(store: Path, folder: Path, round_number: int) -> Path:
    """The store as it was left, for one round; the one of the round before goes.

    What no recovery writes to is a link. The rest is copied, and flushed, so that a recovery flushes its own alone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / str(round_number)
    target.mkdir(parents=True)
    for path in sorted(store.rglob("*")):
        copy = target / path.relative_to(store)
        if path.is_dir():
            copy.mkdir()
        elif _is_only_read(path, store):
            os.link(path, copy)
        else:
            shutil.copyfile(path, copy)
            with copy.open("rb") as copied:
                os.fsync(copied.fileno())
    return target


def _is_only_read(path: Path, store: Path) -> bool:
    """Log files, and all but the newest file of the index and of each queue."""
    sort = path.relative_to(store).parts[0]
    return sort == "commitlog" or (sort in ("index", "consumequeue") and path != max(path.parent.iterdir()))
