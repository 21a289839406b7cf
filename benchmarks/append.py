"""Append messages of 300 bytes with two keys; beside ``DefaultMessageStore.putMessage``.

A call counts whole: from texts and bytes to the answer, unique id and all. Neither side dispatches what it appends:
RocketMQ's dispatching thread is held back. Where :func:`results` gets a function that opens a store which does, it
is let go. RocketMQ has no append of many messages that were not encoded by a client before, so a batch stands beside
its one message a call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.data import cache_folder
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.files.disk import Disk
from whence.formats.rocketmq.host import Host
from whence.store.appender import Appender
from whence.store.flusher import Flusher, FlushMode
from whence.store.log_writer import LogWriter
from whence.store.put_result import BatchResult, PutResult, PutStatus

TOPIC = "orders"
TAGS = "paid"
BODY = bytes(31 * i & 0xFF for i in range(300))
BATCH = 1000
THREADS = 32
FILE_SIZE = 1 << 30
COUNT = 200_000
SYNC_COUNT = 6_400


class Store(Protocol):
    """What is measured; ``whence.create`` gives one, too."""

    def append(self, topic: str, body: bytes, *, keys: Sequence[str], tags: str) -> PutResult: ...
    def append_batch(
        self, topic: str, bodies: Sequence[bytes], *, keys: Sequence[Sequence[str]], tags: str
    ) -> BatchResult: ...
    def close(self) -> None: ...


class LogStore:
    """A CommitLog that is appended to, and nothing else of a store."""

    def __init__(self, folder: Path, flush: str) -> None:
        self._log = LogWriter([folder / "commitlog"], FILE_SIZE, 0, Disk())
        self._flusher = Flusher(self._log, FlushMode(flush))
        self._appender = Appender(
            self._log, lambda topic, queue: 0, store_host=Host("127.0.0.1", 10911), flusher=self._flusher
        )
        self.append = self._appender.append
        self.append_batch = self._appender.append_batch

    def close(self) -> None:
        self._appender.close()
        self._flusher.close()
        self._log.close()


Keys = list[tuple[str, str]]


def results(
    options: Options, open_store: Callable[[Path, str], Store] = LogStore, *, dispatches: bool = False
) -> Iterator[Result]:
    """``open_store`` gets a folder, and ``sync`` or ``async``."""
    count, sync_count = (COUNT >> 6, SYNC_COUNT >> 6) if options.is_small else (COUNT, SYNC_COUNT)
    keys = [(f"order-{1_000_000_000 + i}", f"buyer-{1_000_000_000 + i}") for i in range(count + 1)]
    cache_folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="append-", dir=cache_folder()))

    def whence(flush: str, work: Callable[[Store, Keys], int], keys: Keys) -> Peer:
        def opened(_: int) -> Store:
            store = open_store(folder / "new", flush)
            store.append(TOPIC, BODY, keys=keys[0], tags=TAGS)  # makes the first file
            os.sync()  # what other rounds have written and removed is not to be waited for in this one
            return store

        def close(store: Store) -> None:
            store.close()
            shutil.rmtree(folder / "new")

        return Peer("whence", timed(opened, lambda store: work(store, keys[1:]), close))

    try:
        with java_peer(options, "Append", str(folder / "java"), *map(str, (count, sync_count, THREADS))) as java:

            def comparison(what: str, ours: Peer, task: str, target: Target, amount: int) -> Comparison:
                theirs = [] if java is None else [java.task(f"{task}-dispatch" if dispatches else task)]
                return Comparison(what, [ours, *theirs], target if theirs else None, amount, "message")

            batches, single = whence("async", _append_batches, keys), whence("async", _append_all, keys)
            sync = whence("sync", _append_in_threads, keys[: sync_count + 1])
            work = f"append_batch of {BATCH:,}"
            yield measure(comparison(work, batches, "append", Target(2, 5), count), options)
            yield measure(comparison("append", single, "append", Target(0.25, 0.6), count), options)
            work = f"append from {THREADS} threads, sync flush"
            yield measure(comparison(work, sync, "sync", Target(0.8, 1), sync_count), options)
    finally:
        shutil.rmtree(folder)


def _append_batches(store: Store, keys: Keys) -> int:
    for first in range(0, len(keys), BATCH):
        some = keys[first : first + BATCH]
        result = store.append_batch(TOPIC, [BODY] * len(some), keys=some, tags=TAGS)
        assert result.status is PutStatus.PUT_OK
    before_last, last = result.physical_offsets[-2:].tolist()
    return int(2 * last - before_last)  # where the log ends: all records have one size


def _append_all(store: Store, keys: Keys) -> int:
    for some in keys:
        result = store.append(TOPIC, BODY, keys=some, tags=TAGS)
        assert result.status is PutStatus.PUT_OK
    return result.physical_offset + result.size


def _append_in_threads(store: Store, keys: Keys) -> int:
    left = iter(keys)
    ends: list[int] = []

    def work() -> None:
        ends.append(max(_append_all(store, [some]) for some in left))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(ends)
