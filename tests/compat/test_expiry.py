"""RocketMQ as the judge of expiry: it lets the same files go, and opens what we leave and what we archive."""

import os
import time
from pathlib import Path

import pytest

from tests.compat.store import Seen, Sizes, StoreJudge, check_looks, check_queues
from tests.disks import UnflushedDisk
from tests.golden import GoldenStore
from tests.reference import Record, build_queues, query_offset, read_index
from tests.store.expiring import names_below
from whence.door import expire_store

pytestmark = [pytest.mark.compat, pytest.mark.slow]

STORES = [("5.5.0", "v5-clean"), ("4.9.5", "v4-clean")]
HOUR_S = 3600
FOREVER_MS = 2**63 - 1
# An hour is the least that RocketMQ keeps; it deletes by age at any hour, and by nothing else.
EXPIRING = {
    "fileReservedTime": "1",
    "deleteWhen": ";".join(map(str, range(24))),
    "cleanFileForciblyEnable": "false",
    "deleteFileBatchMax": "100",
    "deleteCommitLogFilesInterval": "0",
}


def sizes_of(store: GoldenStore) -> Sizes:
    return Sizes(store.commit_log_file_size, store.queue_file_size, store.slot_capacity, store.item_capacity)


def age(store: Path, count: int) -> None:
    """The oldest ``count`` log files were last written to two hours ago, the others just now."""
    now = time.time()
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        then = now - (2 * HOUR_S if number < count else 0)
        os.utime(path, (then, then))


def files_of(store: Path) -> set[str]:
    return {name for name in names_below(store) if name.startswith(("commitlog", "consumequeue/", "index"))}


@pytest.mark.parametrize("gone", [4, 99])
@pytest.mark.parametrize(("version", "name"), STORES)
def test_rocketmq_lets_the_same_files_go(golden, tmp_path, version, name, gone):
    ours, theirs = golden(name).copy(tmp_path / "ours"), golden(name).copy(tmp_path / "theirs")
    for store in (ours, theirs):
        age(store, gone)
    before = files_of(theirs)
    with StoreJudge(version, theirs, sizes_of(golden(name)), **EXPIRING) as judge:
        judge.expire()
        begin, _, _ = judge.offsets()
        ranges = judge.queues()
    expired = expire_store(ours, older_than="1h", in_place=True, disk=UnflushedDisk())
    assert len(expired.log_files) >= min(gone, 4)
    assert expired.new_begin_offset == begin
    assert before - files_of(ours) == before - files_of(theirs)
    with StoreJudge(version, ours, sizes_of(golden(name))) as judge:
        assert judge.queues() == ranges


def check_queries(judge: StoreJudge, store: GoldenStore, folder: Path, records: list[Record], begin: int) -> None:
    """RocketMQ finds by key what its index can give, and drops what lies below its log."""
    index = read_index(folder, store.slot_capacity, store.item_capacity)
    for topic, key in {(record.topic, key) for record in records[::5] for key in record.keys}:
        found = query_offset(index, f"{topic}#{key}", 64, 0, FOREVER_MS)
        expected = sorted(offset for offset in found if offset >= begin)
        if expected:
            assert judge.query(topic, key) == expected, (topic, key)


@pytest.mark.parametrize("gone", [1, 99])
@pytest.mark.parametrize(("version", "name"), STORES)
def test_rocketmq_opens_rest_and_archive_and_reads_every_message(golden, tmp_path, version, name, gone):
    store = golden(name)
    rest = store.copy(tmp_path)
    archive = tmp_path / "archive"
    for steps in (gone // 2, gone):  # the second time, the archive is gone on with
        age(rest, steps)
        expired = expire_store(rest, older_than="1h", in_place=True, archive=archive, disk=UnflushedDisk())
    begin = expired.new_begin_offset
    below = [record for record in store.records if record.physical_offset < begin]
    left = [record for record in store.records if record.physical_offset >= begin]
    assert below and left

    with StoreJudge(version, archive, sizes_of(store)) as judge:
        # It takes the blank at the end of its last file for free room.
        assert (judge.begin_offset, judge.end_offset) == (0, below[-1].physical_offset + below[-1].size)
        check_queues(judge, below)
        check_looks(judge, below)
        check_queries(judge, store, archive, below, 0)
        judge.stop()

    with StoreJudge(version, rest, sizes_of(store)) as judge:
        assert judge.begin_offset == begin
        check_looks(judge, left)
        ends = {place: max(entries) + 1 for place, entries in build_queues(store.records).items()}
        assert {place: end for place, (_, end) in judge.queues().items() if end} == ends
        records = {(record.topic, record.queue, record.queue_offset): record for record in left}
        queues = build_queues(left)
        for (topic, queue), entries in queues.items():
            expected = [Seen.of(records[topic, queue, queue_offset]) for queue_offset in sorted(entries)]
            assert judge.read(topic, queue) == expected, (topic, queue)
        check_queries(judge, store, rest, left, begin)
        # A queue of which all messages are gone goes on where it was.
        quiet = next(place for place in ends if place not in queues)
        put = judge.put(*quiet, b"body", "key")
        assert (put.status, put.queue_offset) == ("PUT_OK", ends[quiet])
        judge.stop()
