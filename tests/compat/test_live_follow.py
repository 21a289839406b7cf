"""A real broker, written to by its own client, is followed: every message is found through the index alone."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

import whence
from tests.compat.live import LiveRocketMQ, Sent
from tests.compat.test_live_broker import DELIVERED, check_body
from tests.crash.following import made_files
from tests.lookup.judge import offsets
from tests.spark.follower_process import LIMIT_S, FollowerProcess
from whence.door import Store, build_store
from whence.files.names import sidecar_of
from whence.pipeline.session import open_session
from whence.store.commit_log import CommitLog
from whence.store.sidecar import read_sidecar

pytestmark = [pytest.mark.compat, pytest.mark.slow]


REST_S = 0.1  # of the reader, between its rounds: it shares the cores with a broker, a client and Spark


@pytest.fixture
def rocketmq(tmp_path: Path) -> Iterator[LiveRocketMQ]:
    with LiveRocketMQ(tmp_path) as rocketmq:
        rocketmq.start_name_server()
        rocketmq.start_broker()
        yield rocketmq


def hammer(folder: Path, stop: Event, outcomes: Queue[str]) -> None:
    """Ask for one message after the other, in a process of its own, and compare with what a scan of the log says."""
    rounds = 0
    try:
        with whence.open(folder) as store:
            while not stop.is_set():
                for message in random.choices(store.find(since=0, limit=100).messages, k=10):
                    asked = {"topic": message.topic, "key": message.keys[0], "limit": None}
                    found, judged = store.find(**asked), store.find(**asked, scan=True)
                    end = found.receipt.searched_to_offset
                    assert offsets(found) == [offset for offset in offsets(judged) if offset < end], found.receipt
                    rounds += 1
                time.sleep(REST_S)
        outcomes.put(f"ok: {rounds}")
    except BaseException as error:
        outcomes.put(f"{type(error).__name__}: {error}")
        raise


@contextmanager
def hammered(store: Path) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stop, outcomes = context.Event(), context.Queue()
    reader = context.Process(target=hammer, args=(store, stop, outcomes))
    reader.start()
    try:
        yield
    finally:
        stop.set()
        outcome = outcomes.get(timeout=LIMIT_S)
        reader.join()
    assert outcome.startswith("ok: ") and int(outcome.split()[1]) > 10, outcome


class Followed:
    """A broker, the follower of its store, and all that the broker acknowledged since."""

    def __init__(self, rocketmq: LiveRocketMQ, follower: FollowerProcess) -> None:
        self.rocketmq = rocketmq
        self.follower = follower
        self.sent: list[Sent] = []
        self._first = 1

    def send(self, count: int, *, killed_after: int | None = None) -> None:
        """Send, and find all of it. ``killed_after``: so many messages later the broker is killed."""
        sent: list[Sent] = []
        with self._opened() as reader:
            for each in self.rocketmq.send(self._first, count, 2):
                sent.append(each)
                if len(sent) == killed_after:
                    self.rocketmq.kill_broker()
                elif len(sent) % 50 == 0:  # whatever is indexed or not: all that was acknowledged is found
                    assert len(reader.find(key=each.key, topic=each.topic)) == (each.sort in DELIVERED)
            assert (len(sent) < count) == (killed_after is not None)
            with closing(CommitLog(self.rocketmq.store / "commitlog")) as log:
                self.follower.await_indexed(log.end_offset())  # not all that is sent comes back with its offset
            for each in sent:
                check_found(reader, each)
        self._first += count
        self.sent += sent

    def _opened(self) -> Store:
        """The store without the broker's own indexes: what is found is found through ours."""
        view = self.rocketmq.folder / "view"
        view.mkdir(exist_ok=True)
        if not (view / "commitlog").exists():
            (view / "commitlog").symlink_to(self.rocketmq.store / "commitlog")
        return whence.open(view, out=sidecar_of(self.rocketmq.store))

    def check_all(self) -> None:
        with self._opened() as reader:
            for each in self.sent:
                check_found(reader, each)


def check_found(store: Store, sent: Sent) -> None:
    """An acknowledged message is found once, whole, and nothing is scanned for it."""
    answer = store.find(key=sent.key, topic=sent.topic, no_scan=True)
    if sent.sort in DELIVERED:
        assert [message.unique_id for message in answer] == [sent.unique_id], f"{sent} {answer.receipt}"
        check_body(answer.messages[0])
    receipt = answer.receipt
    assert receipt.index_source == "whence" and receipt.damage == [] and receipt.scanned_bytes == 0, receipt


@contextmanager
def followed(rocketmq: LiveRocketMQ, tmp_path: Path) -> Iterator[Followed]:
    """Follow a broker's store; at the end all is found, and the files are those of a build."""
    for _ in rocketmq.send(0, 1, 1):
        pass  # there is a store now
    store = rocketmq.store
    sidecar_of(store).mkdir()
    with FollowerProcess(store, scratch=tmp_path / "tmp") as follower, hammered(store):
        follower.await_more()
        run = Followed(rocketmq, follower)
        yield run
        rocketmq.kill_broker()
        run.check_all()
        status, out, err, _ = follower.stop()
    assert status == 0, (out, err)
    assert Counter(each.sort for each in run.sent).keys() == {*DELIVERED, "commit", "rollback", "delay"}
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None and len(claim.index_names) > 2 and len(list((store / "commitlog").iterdir())) > 2
    with open_session():  # for both
        build_store(store)  # what came since
        build_store(store, out=tmp_path / "built")
    assert made_files(sidecar_of(store)) == made_files(tmp_path / "built")


def test_all_kinds_of_messages_are_followed_while_the_broker_is_killed_and_restarted(
    rocketmq: LiveRocketMQ, tmp_path: Path
):
    with followed(rocketmq, tmp_path) as run:
        run.send(100_000, killed_after=300)
        rocketmq.start_broker()
        run.send(200)


@pytest.mark.long(part=5, count=4)
def test_a_broker_is_followed_that_is_stopped_and_killed_again_and_again(
    rocketmq: LiveRocketMQ, tmp_path: Path, long_count: int
):
    with followed(rocketmq, tmp_path) as run:
        for number in range(long_count):
            run.send(100_000, killed_after=300 + 50 * number)
            rocketmq.start_broker()
            run.send(500)
            rocketmq.stop_broker()
            run.check_all()
            rocketmq.start_broker()
        run.send(200)
