"""whence reads what a real broker is writing at the same time, after it was killed, and after it came back.

One broker serves all tests of this module, in their order: each goes on where the one before left it.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

import whence
from tests.compat.live import LiveRocketMQ, Sent
from whence.door import Store
from whence.formats.rocketmq.message import Message

pytestmark = [pytest.mark.compat, pytest.mark.slow]

READERS = 2
DELIVERED = ("plain", "batch", "compressed")
"""Sorts that lie in their topic when they are acknowledged; of the others only a copy does, and later."""
SETTLED_S = 20
REST_S = 0.05  # of a reader, between its rounds: they share the cores with the broker and its client


class Session:
    """The broker, and all that it acknowledged so far."""

    def __init__(self, rocketmq: LiveRocketMQ) -> None:
        self.rocketmq = rocketmq
        self.sent: list[Sent] = []
        self.first = 0

    def send(self, count: int, pause_ms: int) -> Iterator[Sent]:
        first, self.first = self.first, self.first + count
        for each in self.rocketmq.send(first, count, pause_ms):
            self.sent.append(each)
            yield each


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with LiveRocketMQ(tmp_path_factory.mktemp("live")) as rocketmq:
        rocketmq.start_name_server()
        rocketmq.start_broker()
        yield Session(rocketmq)


def check(store: Store, sent: Sent, **mode: bool) -> None:
    """An acknowledged message is found once, whole, where the broker said, and the receipt is complete."""
    answer = store.find(key=sent.key, topic=sent.topic, **mode)
    receipt = answer.receipt
    assert receipt.complete and receipt.damage == [], (sent, receipt)
    if sent.sort in DELIVERED:
        assert [m.unique_id for m in answer] == [sent.unique_id], (sent, receipt)
        message = answer.messages[0]
        assert (message.queue, message.queue_offset, message.offset_id) == (
            sent.queue,
            sent.queue_offset,
            sent.offset_id,
        )
        assert sent.key in message.keys
        check_body(message)


def check_body(message: Message) -> None:
    """A body is its first key again and again."""
    key = message.keys[0].encode()
    assert message.body == key * (len(message.body) // len(key)) and message.body


def read_on(folder: Path, stop: Event, outcomes: "SimpleQueue[str]") -> None:
    """One reader, in a process of its own: whatever it sees, now and again later, is whole and there once."""
    random.seed(1)
    rounds = 0
    seen: dict[str, str] = {}
    try:
        store = whence.open(folder)
        while not stop.is_set() or rounds == 0:
            rounds += 1
            if rounds % 20 == 0:
                store.close()
                store = whence.open(folder)
            answer = store.find(since=0, limit=200 if rounds % 10 else None)
            assert answer.receipt.complete and answer.receipt.damage == [], answer.receipt
            offsets = [message.physical_offset for message in answer]
            assert offsets == sorted(set(offsets), reverse=True)
            for message in answer:
                check_body(message)
                seen[message.keys[0]] = message.topic
            for key in random.sample(sorted(seen), min(20, len(seen))):
                again = store.find(key=key, topic=seen[key])
                assert again.receipt.complete and again.receipt.damage == [], again.receipt
                assert [message.keys[0] for message in again] == [key], (key, again.receipt)
            time.sleep(REST_S)
        outcomes.put(f"ok: {rounds} rounds, {len(seen)} messages seen")
    except BaseException as error:
        outcomes.put(f"{type(error).__name__}: {error}")
        raise


def test_every_acknowledged_message_is_found_at_once(session: Session):
    context = multiprocessing.get_context("spawn")
    stop, outcomes = context.Event(), context.SimpleQueue()
    readers = [context.Process(target=read_on, args=(session.rocketmq.store, stop, outcomes)) for _ in range(READERS)]
    store: Store | None = None
    try:
        for sent in session.send(1200, 8):
            if store is None:
                store = whence.open(session.rocketmq.store)
                for reader in readers:
                    reader.start()
            check(store, sent)
            check(store, random.choice(session.sent))
    finally:
        stop.set()
        results = [outcomes.get() for reader in readers if reader.pid is not None]
        for reader in readers:
            if reader.pid is not None:
                reader.join()
    assert len(session.sent) >= 1200
    assert Counter(sent.sort for sent in session.sent).keys() == {*DELIVERED, "commit", "rollback", "delay"}
    assert [result.split(":")[0] for result in results] == ["ok"] * READERS, results
    with whence.open(session.rocketmq.store) as fresh:
        for sent in session.sent:
            check(fresh, sent)
        shared = [m.unique_id for m in fresh.find(key="shared", limit=None)]
        assert sorted(map(str, shared)) == sorted(sent.unique_id for sent in session.sent if sent.sort == "plain")


def test_transactions_and_delays_are_found_where_they_ended(session: Session):
    """A committed or delayed message is copied into its topic soon; one that was rolled back never is."""
    deadline = time.monotonic() + SETTLED_S
    expected = {"commit": 1, "delay": 1, "rollback": 0}
    with whence.open(session.rocketmq.store) as store:
        for sent in session.sent:
            if sent.sort not in expected:
                continue
            while len(store.find(key=sent.key, topic=sent.topic)) < expected[sent.sort]:
                assert time.monotonic() < deadline, sent
                time.sleep(0.1)
            answer = store.find(key=sent.key, system_topics=True)
            assert len(answer) == expected[sent.sort] + 1 and answer.receipt.complete
            assert len({message.unique_id for message in answer}) == 1


def test_find_equals_the_brokers_own_answers(session: Session):
    sample = random.Random(2).sample([sent for sent in session.sent if sent.sort in DELIVERED], 150)
    asked = [(sent.topic, sent.key) for sent in sample] + [("orders", "no-such-key")]
    with whence.open(session.rocketmq.store) as store:
        ours = [sorted(m.physical_offset for m in store.find(key=key, topic=topic)) for topic, key in asked]
    assert session.rocketmq.query(asked) == ours


def test_all_is_found_when_the_broker_was_killed(session: Session):
    """The kill comes in the middle of sending; what was acknowledged before it is there, with no broker."""
    for number, sent in enumerate(session.send(100_000, 1)):
        assert sent.key
        if number == 300:
            session.rocketmq.kill_broker()
    with whence.open(session.rocketmq.store) as store:
        for sent in session.sent:
            check(store, sent)
        check_whole_log(store, session)


def check_whole_log(store: Store, session: Session) -> None:
    """By a scan of all that is there: nothing doubled, nothing half, nothing lost."""
    answer = store.find(since=0, limit=None, scan=True)
    assert answer.receipt.complete and answer.receipt.damage == []
    ids = Counter(message.unique_id for message in answer)
    # A broker that was killed delivers some delayed messages once more, so these may be there twice.
    assert {ids[sent.unique_id] for sent in session.sent if sent.sort in DELIVERED} == {1}
    for message in answer:
        check_body(message)


def test_all_is_found_when_the_broker_came_back(session: Session):
    """Recovery deletes index files and writes them anew in part: what no index covers any more is scanned."""
    session.rocketmq.start_broker()
    with whence.open(session.rocketmq.store) as store:
        for sent in session.send(200, 2):
            check(store, sent)
            check(store, random.choice(session.sent))
        for sent in session.sent:
            check(store, sent)
        check_whole_log(store, session)
        sample = [sent for sent in session.sent if sent.sort in DELIVERED][-50:]
        asked = [(sent.topic, sent.key) for sent in sample]
        ours = [[m.physical_offset for m in store.find(key=key, topic=topic)] for topic, key in asked]
    assert session.rocketmq.query(asked) == ours
