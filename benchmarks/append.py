"""Append messages of 300 bytes with two keys; beside ``DefaultMessageStore.putMessage``.

A call counts whole: from texts and bytes to the answer, unique id and all. Both stores dispatch to queues and index
meanwhile. RocketMQ has no append of many messages that were not encoded by a client before, so a batch stands beside
its one message a call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import whence
from benchmarks.data import cache_folder
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence import WritableStore
from whence.store.put_result import PutStatus

TOPIC = "orders"
TAGS = "paid"
BODY = bytes(31 * i & 0xFF for i in range(300))
BATCH = 1000
THREADS = 32
COUNT = 200_000
SYNC_COUNT = 6_400
SETTLE_S = 0.5


Keys = list[tuple[str, str]]


def results(options: Options) -> Iterator[Result]:
    count, sync_count = (COUNT >> 6, SYNC_COUNT >> 6) if options.is_small else (COUNT, SYNC_COUNT)
    keys = [(f"order-{1_000_000_000 + i}", f"buyer-{1_000_000_000 + i}") for i in range(count + 1)]
    cache_folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="append-", dir=cache_folder()))

    def ours(flush: str, work: Callable[[WritableStore, Keys], int], keys: Keys) -> Peer:
        def opened(_: int) -> WritableStore:
            store = whence.create(folder / "new", flush=flush)
            store.append(TOPIC, BODY, keys=keys[0], tags=TAGS)  # makes the first file
            os.sync()  # what other rounds have written and removed is not to be waited for in this one:
            time.sleep(SETTLE_S)  # a file system tells the disk what room is free a moment later
            return store

        def close(store: WritableStore) -> None:
            store.close()
            shutil.rmtree(folder / "new")

        return Peer("whence", timed(opened, lambda store: work(store, keys[1:]), close))

    try:
        with java_peer(options, "Append", str(folder / "java"), *map(str, (count, sync_count, THREADS))) as java:

            def comparison(what: str, mine: Peer, task: str, target: Target, amount: int) -> Comparison:
                theirs = [] if java is None else [java.task(task)]
                return Comparison(what, [mine, *theirs], target if theirs else None, amount, "message")

            batches, single = ours("async", _append_batches, keys), ours("async", _append_all, keys)
            sync = ours("sync", _append_in_threads, keys[: sync_count + 1])
            work = f"append_batch of {BATCH:,}"
            yield measure(comparison(work, batches, "append", Target(2, 5), count), options)
            yield measure(comparison("append", single, "append", Target(0.25, 0.6), count), options)
            work = f"append from {THREADS} threads, sync flush"
            yield measure(comparison(work, sync, "sync", Target(0.8, 1), sync_count), options)
    finally:
        shutil.rmtree(folder)


def _append_batches(store: WritableStore, keys: Keys) -> int:
    for first in range(0, len(keys), BATCH):
        some = keys[first : first + BATCH]
        result = store.append_batch(TOPIC, [BODY] * len(some), keys=some, tags=TAGS)
        assert result.status is PutStatus.PUT_OK
    before_last, last = result.physical_offsets[-2:].tolist()
    return int(2 * last - before_last)  # where the log ends: all records have one size


def _append_all(store: WritableStore, keys: Keys) -> int:
    for some in keys:
        result = store.append(TOPIC, BODY, keys=some, tags=TAGS)
        assert result.status is PutStatus.PUT_OK
    return result.physical_offset + result.size


def _append_in_threads(store: WritableStore, keys: Keys) -> int:
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
