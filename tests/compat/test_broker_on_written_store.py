"""A real broker serves a store that whence wrote, and mqadmin finds its messages; then whence goes on after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import whence
from tests.compat.live import LiveRocketMQ, free_port
from tests.crash.checks import check_answers, check_derived, check_index_source, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload
from tests.reference import Record, read_log

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SIZES = Sizes(65_536, 2000, 97, 400)  # as LiveRocketMQ has them


class Served:
    """One store; a broker on it comes and goes."""

    def __init__(self, rocketmq: LiveRocketMQ, port: int) -> None:
        self.rocketmq = rocketmq
        self.port = port
        self.workload = Workload(Random(1), 1_000_000)  # behind the numbers of the producer
        self.acknowledged: list[Acknowledged] = []

    def create(self) -> whence.WritableStore:
        host = f"127.0.0.1:{self.port}"
        return whence.create(self.rocketmq.store, store_host=host, **SIZES.arguments())

    def append(self, store: whence.WritableStore, count: int) -> None:
        for _ in range(count):
            acknowledged, failures = self.workload.put_some(store)
            assert not failures
            self.acknowledged += acknowledged

    def records(self) -> list[Record]:
        return check_log(self.rocketmq.store, self.acknowledged)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with LiveRocketMQ(tmp_path_factory.mktemp("served")) as rocketmq:
        rocketmq.start_name_server()
        yield Served(rocketmq, free_port(with_below=2))


def test_mqadmin_finds_what_whence_wrote(served: Served):
    with served.create() as store:
        served.append(store, 200)
    served.rocketmq.start_broker(served.port)
    # The broker may write messages of its own when it starts.
    records = [record for record in served.records() if record.topic == "orders"]
    record = next(record for record in records if record.stored_body)  # mqadmin does not show a message without one
    unique_id = str(record.unique_id)
    where = f"CommitLog Offset:    {record.physical_offset}\n"
    by_key = served.rocketmq.admin("queryMsgByKey", "-t", "orders", "-k", record.keys[0])
    assert f"@{unique_id}@{record.physical_offset}" in by_key, by_key
    for command, id in (("queryMsgById", record.offset_id), ("queryMsgByUniqueKey", unique_id)):
        shown = served.rocketmq.admin(command, "-t", "orders", "-i", id)
        assert where in shown and " ".join(record.key_tokens) in shown, shown
        body = Path(shown.partition("Message Body Path:")[2].split()[0])  # it writes it there, whoever asks
        assert body.read_bytes() == record.stored_body
        body.unlink()
    asked = [(record.topic, record.keys[0]) for record in records]
    assert served.rocketmq.query(asked) == [[record.physical_offset] for record in records]


def test_whence_goes_on_after_the_broker(served: Served):
    before = len(served.records())
    sent = list(served.rocketmq.send(0, 150, 1))
    served.rocketmq.kill_broker()
    with served.create() as store:
        served.append(store, 20)
        assert store.wait_dispatched(60)
        records = served.records()
        assert len(records) > before + len(sent)
        check_answers(store, records, Random(3))
        for each in sent:
            if each.sort in ("plain", "batch"):
                assert [m.unique_id for m in store.find(key=each.key, topic=each.topic)] == [each.unique_id]
        check_index_source(store, records)
    check_derived(served.rocketmq.store, SIZES, Path(served.rocketmq.folder) / "anew")


def test_the_broker_goes_on_after_whence(served: Served):
    served.rocketmq.start_broker(served.port)
    records = [record for record in read_log(served.rocketmq.store) if record.topic == "orders" and record.keys][-60:]
    asked = [(record.topic, record.keys[0]) for record in records]
    assert served.rocketmq.query(asked) == [[record.physical_offset] for record in records]
    assert len(list(served.rocketmq.send(1000, 20, 1))) >= 20
