"""Apache's message store opens what whence wrote, whole or killed, and goes on; then whence goes on after it.

The log, read by the twin, is what both are held against.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whence
from tests.compat.store import DIALECTS, VERSIONS, Sizes, StoreJudge, check_looks, check_queues
from tests.crash.checks import check_answers, check_derived, check_index_source, check_log
from tests.crash.workload import LOG_FOLDERS, SORTS, SORTS_OF_4_9, Acknowledged, Workload
from tests.crash.workload import Sizes as OurSizes
from tests.crash.writer import Writers, run_until_killed
from tests.reference import Record, build_index, query_offset, read_log

pytestmark = [pytest.mark.compat, pytest.mark.slow]

OURS = OurSizes(65_536, 2000, 97, 400)
THEIRS = Sizes(65_536, 2000, 97, 400)
FOREVER_MS = 2**63 - 1


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


class SharedStore:
    """A store that whence and RocketMQ write in turn; ``acknowledged`` is what either said is in it."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.version = version
        self.random = Random(version)
        self.acknowledged: list[Acknowledged] = []
        self.settings: dict[str, Any] = {}
        self.sorts = SORTS if version == "5.5.0" else SORTS_OF_4_9
        self.workload = Workload(self.random, sorts=self.sorts)

    def create(self) -> whence.WritableStore:
        return whence.create(self.folder, dialect=DIALECTS[self.version], **OURS.arguments(), **self.settings)

    def judge(self) -> StoreJudge:
        return StoreJudge(self.version, self.folder, THEIRS)

    def append(self, store: whence.WritableStore, count: int) -> None:
        for _ in range(count):
            acknowledged, failures = self.workload.put_some(store)
            assert not failures
            self.acknowledged += acknowledged

    def put(self, judge: StoreJudge, count: int) -> None:
        """RocketMQ puts messages of its own."""
        for _ in range(count):
            self.workload.number += 1
            topic, queue = self.random.choice(["orders", "Aa", "theirs"]), self.random.randrange(3)
            body, key = self.random.randbytes(self.random.randrange(2000)), f"key-{self.workload.number}"
            put = judge.put(topic, queue, body, f"{key} shared", self.random.choice(["", "TagA"]), {"UNIQ_KEY": key})
            assert put.status == "PUT_OK"

    def check_ours(self) -> list[Record]:
        """whence goes on: all is there, the index is complete and its own, and a message more is found at once."""
        with self.create() as store:
            assert store.wait_dispatched(60)
            check_answers(store, check_log(self.folder, self.acknowledged), self.random)
            self.append(store, 1)
            assert store.wait_dispatched(60)
            records = check_log(self.folder, self.acknowledged)
            check_answers(store, records, self.random)
            check_index_source(store, records)
        check_derived(self.folder, OURS, self.folder.parent / "anew", DIALECTS[self.version])
        return records


def check_queries(judge: StoreJudge, records: Sequence[Record]) -> None:
    """RocketMQ answers each key as it would of an index that it had built itself."""
    index = build_index(records, DIALECTS[judge.version], THEIRS.slots, THEIRS.items)
    texts = {(record.topic, key) for record in records for key in [*record.keys, record.unique_id] if key}
    for topic, key in sorted(texts):
        expected = query_offset(index, f"{topic}#{key}", 64, 0, FOREVER_MS)
        assert judge.query(topic, key) == sorted(expected), (topic, key)


def check_theirs(judge: StoreJudge, records: Sequence[Record]) -> None:
    """RocketMQ has every message, in the log and in its queue."""
    end = records[-1].physical_offset + records[-1].size
    next_file = -(-end // THEIRS.log) * THEIRS.log  # where the log ends if its writer came to the blank
    assert judge.end_offset in (end, next_file)
    check_queues(judge, records)
    check_looks(judge, records)


def test_rocketmq_reads_every_message_and_answers_every_key(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    with shared.create() as store:
        shared.append(store, 300)
    records = check_log(shared.folder, shared.acknowledged)
    for part, least in (("commitlog", 5), ("index", 5), ("consumequeue/orders/0", 2)):
        assert len(list((shared.folder / part).iterdir())) >= least
    with shared.judge() as judge:
        check_theirs(judge, records)
        check_queries(judge, records)
        judge.stop()
    assert check_log(shared.folder, shared.acknowledged) == records


def test_whence_goes_on_after_rocketmq_and_rocketmq_after_whence(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    with shared.create() as store:
        shared.append(store, 60)
    for _ in range(2):
        with shared.judge() as judge:
            check_theirs(judge, read_log(shared.folder))
            shared.put(judge, 120)
            batch = judge.put_batch("orders", 1, [(b"one", "key-one shared"), (b"two", "key-two")])
            assert batch.status == "PUT_OK"
            judge.stop()
        count = len(read_log(shared.folder))
        records = shared.check_ours()
        assert len(records) > count
    with shared.judge() as judge:
        check_theirs(judge, records)
        check_queries(judge, records)


def test_whence_goes_on_after_a_rocketmq_that_was_killed(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    with shared.create() as store:
        shared.append(store, 60)
    for _ in range(2):
        with shared.judge() as judge:
            shared.put(judge, 150)
            judge.kill()
        before = read_log(shared.folder)
        assert len(before) > len(shared.acknowledged)
        assert shared.check_ours()[: len(before)] == before


def test_whence_adopts_a_store_that_rocketmq_made(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    for _ in range(2):
        with shared.judge() as judge:
            shared.put(judge, 150)
            judge.kill()
    before = read_log(shared.folder)
    with whence.create(shared.folder, dialect=DIALECTS[version], adopt=True, **OURS.arguments()) as store:
        assert store.wait_dispatched(60)
    assert shared.check_ours()[: len(before)] == before


def test_rocketmq_recovers_a_store_whose_writer_was_killed(tmp_path, version):
    """It loses no message. Of its index it loses what it always does after a crash; whence makes that whole again."""
    shared = SharedStore(tmp_path / "store", version)
    with Writers() as writers:
        for kill in range(4):
            writers.start(
                shared.folder,
                seed=kill,
                first=10_000 * kill,
                count=2000,
                flush="sync" if kill % 2 else "async",
                arguments=OURS.arguments() | {"dialect": DIALECTS[version]},
                sorts=shared.sorts,
            )
            shared.acknowledged += run_until_killed(writers, shared.random)
            shared.workload.number = 10_000 * kill + 5000
            if not (shared.folder / "commitlog").exists():
                continue
            copy = tmp_path / f"copy-{kill}"
            shutil.copytree(shared.folder, copy)
            records = check_log(shared.folder, shared.acknowledged)
            with StoreJudge(version, copy, THEIRS) as judge:
                if records:
                    check_theirs(judge, records)
                assert judge.put("orders", 0, b"one more").status == "PUT_OK"
                judge.stop()
            if kill == 2:  # and whence after it
                shutil.rmtree(shared.folder)
                copy.rename(shared.folder)
                shared.check_ours()


PUTS: list[dict[str, Any]] = [
    {"body": b"", "keys": ""},
    {"body": b"plain"},
    {"body": b"x" * 3000, "keys": "one two", "tags": "TagA"},
    {"body": "ü".encode(), "keys": "schön 订单", "tags": "ü", "properties": {"name": "value with spaces", "n": "1"}},
    {"body": b"delayed", "properties": {"DELAY": "18"}, "topic": "SCHEDULE_TOPIC_XXXX", "queue": 17},
    {"body": b"retry", "topic": "%RETRY%group", "properties": {"RETRY_TOPIC": "orders"}},
    {"body": b"long topic", "topic": "t" * 127},
    {"body": b"wait", "properties": {"WAIT": "false"}},
    {"body": b"crc", "properties": {"__CRC32#": "0000000000"}},
    {"body": b"properties", "properties": {"p": "x" * (32_767 - 100)}},
    {"body": b"too many properties", "properties": {"p": "x" * 32_767}},
    {"body": bytes(4_194_304), "topic": "large"},
    {"body": bytes(4_194_305), "topic": "large"},
    {"body": b"after all of them"},
]


def test_whence_puts_the_record_that_rocketmq_puts(tmp_path):
    """Status, offsets, every field but the times and hosts; properties in any order."""
    version = "5.5.0"  # 4.9 leaves the last separator of the properties out, and has other statuses
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    sizes = Sizes(16 << 20, 2000, 97, 400)
    statuses, expected = [], []
    with StoreJudge(version, theirs, sizes) as judge:
        for number, put in enumerate(PUTS):
            result = judge.put(**_given(put, number))
            expected.append((result.status, result.physical_offsets[0], result.queue_offset))
        judge.stop()
    arguments = {"file_size": sizes.log, "queue_file_size": 2000, "slots": 97, "items": 400}
    with whence.create(ours, dialect=DIALECTS[version], **arguments) as store:
        for number, put in enumerate(PUTS):
            given = _given(put, number)
            answer = store.append(**given | {"keys": given["keys"].split(), "tags": given["tags"] or None})
            statuses.append((answer.status, answer.physical_offset, answer.queue_offset))
    assert statuses == expected
    for one, other in zip(read_log(ours), read_log(theirs), strict=True):
        assert one.properties == other.properties
        assert _without_times(one) == _without_times(other)


def _given(put: dict[str, Any], number: int) -> dict[str, Any]:
    """All arguments of a put."""
    properties = put.get("properties", {}) | {"UNIQ_KEY": f"id-{number}"}
    return {"topic": "orders", "queue": 1, "keys": "", "tags": "", **put, "properties": properties}


def _without_times(record: Record) -> Record:
    return replace(
        record,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host=("127.0.0.1", 0),
        properties_data=b"".join(sorted(record.properties_data.split(b"\x02"))),
    )


def test_a_broker_that_is_started_by_mistake_spoils_nothing(tmp_path, version):
    """It recovers the store, and deletes files behind the log's end, before it sees that the store is locked."""
    shared = SharedStore(tmp_path / "store", version)
    with shared.create() as store:
        shared.append(store, 80)
        with pytest.raises(AssertionError, match="Lock failed"):
            shared.judge()
        shared.append(store, 100)
    shared.check_ours()


def test_whence_does_not_touch_a_store_that_rocketmq_holds(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    with shared.create() as store:
        shared.append(store, 20)
    with shared.judge() as judge:
        files = {path: path.stat().st_mtime_ns for path in shared.folder.rglob("*") if path.is_file()}
        with pytest.raises(whence.LockedError, match=f"process {judge.pid} holds this store"):
            shared.create()
        assert {path: path.stat().st_mtime_ns for path in shared.folder.rglob("*") if path.is_file()} == files
        judge.stop()
    shared.check_ours()


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_rocketmq_reads_a_log_in_several_folders(tmp_path, version, is_killed):
    shared = SharedStore(tmp_path / "store", version)
    shared.settings = {"log_folders": LOG_FOLDERS}
    with shared.create() as store:
        shared.append(store, 100)
        assert store.wait_dispatched(60)
        if is_killed:
            shutil.copytree(shared.folder, tmp_path / "killed")
    shared.folder = tmp_path / "killed" if is_killed else shared.folder
    records = check_log(shared.folder, shared.acknowledged)
    paths = ",".join(str(shared.folder / name) for name in LOG_FOLDERS)
    with StoreJudge(version, shared.folder, THEIRS, storePathCommitLog=paths) as judge:
        check_theirs(judge, records)
        shared.put(judge, 200)
        judge.stop()
    assert {len(list((shared.folder / name).iterdir())) > 2 for name in LOG_FOLDERS} == {True}
    shared.check_ours()


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_rocketmq_verifies_the_checksums_of_whole_records(tmp_path, is_killed):
    """Those it does not know it would cut off, with all behind them, when it recovers."""
    shared = SharedStore(tmp_path / "store", "5.5.0")
    shared.settings = {"record_crc": True}
    with shared.create() as store:
        shared.append(store, 100)
        assert store.wait_dispatched(60)
        if is_killed:
            shutil.copytree(shared.folder, tmp_path / "killed")
    shared.folder = tmp_path / "killed" if is_killed else shared.folder
    records = check_log(shared.folder, shared.acknowledged)
    settings = {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}
    with StoreJudge("5.5.0", shared.folder, THEIRS, **settings) as judge:
        check_theirs(judge, records)
        shared.put(judge, 50)
        judge.stop()
    shared.check_ours()


def test_rocketmq_reads_records_with_ipv6_hosts(tmp_path, version):
    shared = SharedStore(tmp_path / "store", version)
    shared.settings = {"store_host": "[2001:db8::1]:10911"}
    with shared.create() as store:
        shared.append(store, 40)
    records = check_log(shared.folder, shared.acknowledged)
    assert {record.store_host for record in records} == {("2001:db8::1", 10911)}
    with shared.judge() as judge:
        check_theirs(judge, records)
        check_queries(judge, records)
        judge.stop()
    shared.check_ours()
