"""Dispatcher: what is appended reaches queues and index, lasts when told so, and no failure loses or doubles it."""

import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from tests.disks import FailingDisk, UnflushedDisk
from tests.golden import CLEAN, CRASHED, DIRECT
from tests.reference import build_index, build_queues, encode_queue_files
from tests.store.test_dispatch import files_below, in_header_order
from tests.store_maker import QUEUE_FILE_SIZE, MadeStore, make_store, message
from whence.errors import StoreError
from whence.files.disk import Disk, DiskFile
from whence.formats.buffers import Buffer
from whence.store import dispatcher as dispatcher_module
from whence.store.commit_log import CommitLog
from whence.store.dispatcher import Dispatcher, Flushed
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.queue_builder import QueueBuilder

SLOTS, ITEMS = 7, 20
SHAPE = Shape(SLOTS, ITEMS)


@dataclass
class Bench:
    """A dispatcher over a log that is there, of which ``end`` is written."""

    store: Path
    folder: Path
    disk: Disk = field(default_factory=UnflushedDisk)
    shape: Shape = SHAPE
    queue_file_size: int = QUEUE_FILE_SIZE
    dialect: str = "5.5"
    end: int = 0
    flushed: list[Flushed] = field(default_factory=list)
    failures: list[StoreError] = field(default_factory=list)

    def dispatcher(self, from_offset: int = 0, after: BuiltFile | None = None, **settings) -> Dispatcher:
        index = IndexBuilder(self.folder / "index", self.shape, self.disk, after, live=True)
        queues = QueueBuilder(self.folder / "consumequeue", self.queue_file_size, self.disk)
        given = {"pause_s": 0.0, "index_try_pause_s": 0.0, "index_retry_s": 0.0} | settings
        return Dispatcher(
            CommitLog(self.store / "commitlog"),
            queues,
            index,
            from_offset=from_offset,
            end=lambda: self.end,
            dialect=Dialect(self.dialect),
            on_flushed=self.flushed.append,
            on_failure=self.failures.append,
            **given,
        )


def expect(made: MadeStore, folder: Path, records: int | None = None) -> None:
    """The files of this many messages are what the twins say."""
    placed = made.records[:records]
    twins = build_index(placed, "5.5", SLOTS, ITEMS)
    assert in_header_order(folder / "index") == [twin.to_bytes() for twin in twins]
    expected = {
        f"{topic}/{queue}/{number * QUEUE_FILE_SIZE:020d}": data
        for (topic, queue), entries in build_queues(placed).items()
        for number, data in enumerate(encode_queue_files(entries, QUEUE_FILE_SIZE))
    }
    assert files_below(folder / "consumequeue") == expected


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    """Messages of two topics, two to five items each, that fill several files of all kinds."""
    messages = [
        message(keys=f"k{number} k", topic="TU"[number % 2], tags="t", queue=number % 3, unique_id=f"id{number}")
        for number in range(60)
    ]
    return make_store(tmp_path / "store", messages)


@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_a_log_that_grows_in_odd_pieces_gives_rocketmqs_bytes(golden, tmp_path, name):
    store = golden(name)
    bench = Bench(
        store.store,
        tmp_path,
        shape=Shape(store.slot_capacity, store.item_capacity),
        queue_file_size=store.queue_file_size,
        dialect=store.dialect,
    )
    dispatcher = bench.dispatcher(flush_size=20_000)
    dispatcher.start()
    chance = random.Random(name)
    records = store.records
    while bench.end < records[-1].physical_offset + records[-1].size:
        record = records[chance.randrange(len(records))]
        if record.physical_offset > bench.end and chance.random() < 0.05:
            bench.end = record.physical_offset
            dispatcher.wake()
            if chance.random() < 0.3:
                assert dispatcher.wait_until(bench.end, 10)
        elif chance.random() < 0.001:
            bench.end = records[-1].physical_offset + records[-1].size
            dispatcher.wake()
    dispatcher.close()
    assert files_below(tmp_path / "consumequeue") == files_below(store.store / "consumequeue")
    assert in_header_order(tmp_path / "index") == in_header_order(store.store / "index")
    assert bench.flushed[-1].queues_offset == bench.flushed[-1].index_offset == bench.end
    assert bench.flushed[-1].last_physical_offset == records[-1].physical_offset
    assert bench.flushed[-1].last_timestamp_ms == records[-1].store_timestamp_ms
    newest = bench.flushed[-1].index.newest
    assert newest is not None
    assert newest.path == max((tmp_path / "index").iterdir())


def test_dispatch_goes_on_where_another_ended(made, tmp_path):
    bench = Bench(made.folder, tmp_path / "new")
    after: BuiltFile | None = None
    for offset in [*made.offsets[1::7], made.end_offset]:
        begin, bench.end = bench.end, offset
        dispatcher = bench.dispatcher(begin, after)
        dispatcher.start()
        dispatcher.close()
        after = bench.flushed[-1].index.newest
    expect(made, tmp_path / "new")


def test_dispatched_again_from_an_earlier_offset_the_queues_stay_the_same(made, tmp_path):
    bench = Bench(made.folder, tmp_path / "new", end=made.offsets[40])
    bench.dispatcher().close()
    again = bench.dispatcher(after=bench.flushed[-1].index.newest, index_offset=bench.flushed[-1].index_offset)
    bench.end = made.end_offset
    again.dispatch()
    again.close()
    expect(made, tmp_path / "new")


# Failures


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


class BrokenIndexDisk(UnflushedDisk):
    """Cannot make or write an index file while it is broken."""

    def __init__(self) -> None:
        self.broken = ""
        self.tries = 0

    def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
        self._fail("create", path)
        return super().create(path, size, reserve=reserve)

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        self._fail("write", path)
        return super().pwrite(path, descriptor, data, position)

    def fsync(self, path: Path, descriptor: int) -> None:
        self._fail("fsync", path)

    def _fail(self, step: str, path: Path) -> None:
        if step == self.broken and path.parent.name == "index":
            self.tries += 1
            raise StoreError(f"{path}: no")


@pytest.mark.parametrize("step", ["create", "write"])
def test_an_index_that_cannot_be_written_stays_behind_while_the_queues_go_on(made, tmp_path, step):
    disk = BrokenIndexDisk()
    bench = Bench(made.folder, tmp_path / "new", disk, end=made.offsets[10])
    dispatcher = bench.dispatcher()
    dispatcher.start()
    assert dispatcher.wait_until(bench.end, 10)
    disk.broken = step
    bench.end = made.end_offset
    dispatcher.wake()
    assert dispatcher.wait_until(bench.end, 10)
    until(lambda: dispatcher.index_is_behind, "told to be behind")
    assert dispatcher.index_offset < dispatcher.dispatched_offset
    assert "no" in str(dispatcher.index_failure)
    assert dispatcher.failure is None
    flushed = dispatcher.flush()
    assert (flushed.queues_offset, flushed.index_offset) == (bench.end, dispatcher.index_offset)
    disk.broken = ""
    until(lambda: not dispatcher.index_is_behind, "complete again")
    assert (dispatcher.index_offset, dispatcher.index_failure) == (bench.end, None)
    dispatcher.close()
    expect(made, tmp_path / "new")


def test_an_index_is_told_to_be_behind_after_three_tries_and_tried_again_later(made, tmp_path):
    disk = BrokenIndexDisk()
    disk.broken = "create"
    bench = Bench(made.folder, tmp_path / "new", disk, end=made.end_offset)
    dispatcher = bench.dispatcher(index_try_pause_s=0.05, index_retry_s=3600)
    dispatcher.start()
    assert dispatcher.wait_until(bench.end, 10)
    assert (dispatcher.index_is_behind, disk.tries) == (False, 1)
    until(lambda: dispatcher.index_is_behind, "told to be behind")
    time.sleep(0.15)
    assert disk.tries == 3
    dispatcher.close()
    assert not list((tmp_path / "new" / "index").iterdir())


def test_an_index_whose_flush_failed_is_left_to_recovery(made, tmp_path):
    disk = BrokenIndexDisk()
    bench = Bench(made.folder, tmp_path / "new", disk, end=made.offsets[10])
    dispatcher = bench.dispatcher()
    dispatcher.start()
    assert dispatcher.wait_until(bench.end, 10)
    first = dispatcher.flush()
    disk.broken = "fsync"
    bench.end = made.offsets[20]
    dispatcher.wait_until(bench.end, 10)
    second = dispatcher.flush()
    assert (second.queues_offset, second.index_offset, second.index) == (bench.end, first.index_offset, first.index)
    assert dispatcher.index_is_behind
    disk.broken = ""
    bench.end = made.end_offset
    dispatcher.close()
    assert bench.flushed[-1].queues_offset == made.end_offset
    assert bench.flushed[-1].index == first.index


def test_a_queue_that_cannot_be_written_ends_the_dispatch(made, tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    for left in count():
        folder = tmp_path / f"new{left}"
        bench = Bench(made.folder, folder, FailingDisk(left, part="consumequeue"), end=made.end_offset)
        dispatcher = bench.dispatcher(flush_size=2000)
        dispatcher.start()
        try:
            dispatcher.close()
        except StoreError as failure:
            assert (dispatcher.failure, bench.failures) == (failure, [failure])
            assert str(folder / "consumequeue") in str(failure)
            assert all(flushed.queues_offset < made.end_offset for flushed in bench.flushed)
            with pytest.raises(StoreError, match="consumequeue"):
                dispatcher.wait_until(made.end_offset + 1, 0)
            with pytest.raises(StoreError, match="consumequeue"):
                dispatcher.flush()
        else:
            break
    assert left > 20
    expect(made, folder)
    del dispatcher, bench
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4


class FlakyDisk(UnflushedDisk):
    """Each write fails once, after half of it was written, and then goes well."""

    def __init__(self) -> None:
        self.failed: set[tuple[Path, int]] = set()

    def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
        if path.parent.name == "index" and (path, -1) not in self.failed:
            self.failed.add((path, -1))
            raise StoreError(f"{path}: no")
        return super().create(path, size, reserve=reserve)

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        if path.parent.name == "index" and (path, position) not in self.failed:
            self.failed.add((path, position))
            os.pwrite(descriptor, data[: len(data) // 2], position)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pwrite(path, descriptor, data, position)


def test_an_index_of_which_every_write_fails_once_has_the_same_bytes(made, tmp_path):
    disk = FlakyDisk()
    bench = Bench(made.folder, tmp_path / "new", disk, end=made.end_offset)
    dispatcher = bench.dispatcher()
    dispatcher.start()
    until(lambda: dispatcher.index_offset == bench.end, "complete")
    dispatcher.close()
    assert len(disk.failed) > 20
    expect(made, tmp_path / "new")


# Threads


def test_what_is_appended_is_dispatched_though_nobody_waits_for_it(made, tmp_path):
    bench = Bench(made.folder, tmp_path / "new")
    dispatcher = bench.dispatcher(pause_s=0.002)
    dispatcher.start()
    for offset in [*made.offsets[1:], made.end_offset]:
        bench.end = offset
        dispatcher.wake()
    until(lambda: dispatcher.lag == 0, "dispatched")
    dispatcher.close()
    expect(made, tmp_path / "new")


def test_waiting_ends_when_the_time_is_up(made, tmp_path):
    dispatcher = Bench(made.folder, tmp_path / "new").dispatcher()
    dispatcher.start()
    assert not dispatcher.wait_until(1, 0.01)
    dispatcher.close()


def test_flushes_come_by_bytes_and_by_time(made, tmp_path):
    bench = Bench(made.folder, tmp_path / "new", end=made.end_offset)
    dispatcher = bench.dispatcher(flush_size=1, flush_interval_s=3600)
    dispatcher.start()
    until(lambda: bench.flushed, "flushed by bytes")
    dispatcher.close()
    bench = Bench(made.folder, tmp_path / "other", end=made.end_offset)
    dispatcher = bench.dispatcher(flush_interval_s=0.01)
    dispatcher.start()
    until(lambda: bench.flushed, "flushed by time")
    time.sleep(0.05)
    assert len(bench.flushed) <= 2  # where nothing is new, nothing is flushed
    dispatcher.close()


def test_a_checkpoint_that_cannot_be_written_ends_the_dispatch(made, tmp_path):
    bench = Bench(made.folder, tmp_path / "new", end=made.end_offset)

    def fail(flushed: Flushed) -> None:
        raise StoreError("checkpoint: no")

    dispatcher = bench.dispatcher()
    dispatcher._on_flushed = fail
    dispatcher.start()
    with pytest.raises(StoreError, match="checkpoint: no"):
        dispatcher.close()
    assert [str(failure) for failure in bench.failures] == ["checkpoint: no"]


def test_a_long_log_is_dispatched_in_rounds(made, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "ROUND_SIZE", 1)
    monkeypatch.setattr("whence.store.log_scan.ROWS", 3)
    bench = Bench(made.folder, tmp_path / "new", end=made.end_offset)
    dispatcher = bench.dispatcher(index_offset=0)
    seen: list[int] = []
    monkeypatch.setattr(dispatcher._queues, "write", lambda: seen.append(dispatcher._offset))
    dispatcher.dispatch()
    assert len(seen) >= len(made.records) // 3
    assert seen == sorted(seen)
    monkeypatch.undo()
    dispatcher.close()
    expect(made, tmp_path / "new")
