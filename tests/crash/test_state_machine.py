"""A store against a plain list: whatever is done to it, in whatever order, it answers as the list does.

A kill is a copy of the folder as it is at that instant, and a power failure what ``PowerLossDisk`` leaves of it: in
both cases the store goes on in the new folder, and the one that was left behind is let go of.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import whence
from tests.crash.checks import check_derived, check_log
from tests.crash.workload import PUT_OK, Acknowledged, Sizes
from tests.disks import PowerLossDisk
from tests.lookup.judge import offsets
from whence.door import expire_store

SIZES = Sizes(4096, 100, 7, 20)
START_MS = 1_700_000_000_000

TOPICS = st.sampled_from(["orders", "Aa", "BB"])
QUEUES = st.integers(0, 1)
BODIES = st.binary(max_size=400) | st.integers(0, 900).map(bytes)
KEYS = st.lists(st.sampled_from(["a", "b", "c", "ü", "order-1"]), max_size=3)
TAGS = st.sampled_from([None, "t", "u"])


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class StoreMachine(RuleBasedStateMachine):
    """``messages`` are in the log, in its order; the first ``flushed`` of them were promised to last."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="whence-machine-"))
        self.clock = Clock()
        self.random = Random(1)
        self.generation = 0
        self.messages: list[Acknowledged] = []
        self.tags: dict[int, str | None] = {}
        self.times: dict[int, int] = {}
        self.flushed = 0
        self.has_expired = False

    @initialize(
        flush=st.sampled_from(["async", "sync"]), write_back=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 99)
    )
    def create(self, flush: str, write_back: float, seed: int) -> None:
        self.flush_mode = flush
        self.write_back = write_back
        self.random = Random(seed)
        self.open()

    @property
    def folder(self) -> Path:
        return self.root / f"store-{self.generation}"

    def open(self) -> None:
        self.disk = PowerLossDisk(self.folder, Random(self.random.random()), write_back=self.write_back)
        self.store = whence.create(
            self.folder, flush=self.flush_mode, disk=self.disk, clock=self.clock, **SIZES.arguments()
        )

    # -- writing ---------------------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue=QUEUES, body=BODIES, keys=KEYS, tags=TAGS)
    def append(self, topic: str, queue: int, body: bytes, keys: list[str], tags: str | None) -> None:
        result = self.store.append(topic, body, keys=keys, tags=tags, queue=queue)
        assert result.status == PUT_OK, result
        self._add([result.physical_offset], result.queue_offset, topic, queue, [body], [keys], [tags])

    @rule(
        topic=TOPICS,
        queue=QUEUES,
        rows=st.lists(st.tuples(BODIES, KEYS, TAGS), min_size=1, max_size=12),
    )
    def append_batch(self, topic: str, queue: int, rows: list[tuple[bytes, list[str], str | None]]) -> None:
        bodies, keys, tags = ([row[column] for row in rows] for column in range(3))
        result = self.store.append_batch(topic, bodies, keys=keys, tags=tags, queue=queue)
        assert result.status == PUT_OK, result
        physical_offsets = [int(offset) for offset in result.physical_offsets]
        self._add(physical_offsets, result.queue_offset, topic, queue, bodies, keys, tags)

    def _add(self, physical_offsets, queue_offset, topic, queue, bodies, keys, tags) -> None:
        now_ms = self.clock()
        for step, offset in enumerate(physical_offsets):
            crc = zlib.crc32(bodies[step])
            self.messages.append(Acknowledged(offset, queue_offset + step, topic, queue, crc, tuple(keys[step])))
            self.tags[offset] = tags[step]
            self.times[offset] = now_ms
        if self.flush_mode == "sync":
            self.flushed = len(self.messages)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.flushed = len(self.messages)

    @rule(step_ms=st.sampled_from([-7_200_000, -500, 1, 1000, 90_000, 86_400_000]))
    def step_clock(self, step_ms: int) -> None:
        self.clock.now_ms += step_ms

    @rule(keep_s=st.sampled_from([0, 60, 3600, 72 * 3600]))
    def expire(self, keep_s: int) -> None:
        """Leading log files go if the message behind them is old enough; the last file stays."""
        self.store.close()
        clock_s = self.clock() / 1000
        expire_store(self.folder, older_than=f"{keep_s}s", by="record", clock=lambda: clock_s, disk=self.disk)
        self.open()
        self.flushed = len(self.messages)
        begin = min((int(path.name) for path in (self.folder / "commitlog").iterdir()), default=0)
        gone = [each for each in self.messages if each.physical_offset < begin]
        if gone:
            self.has_expired = True
            assert begin <= self.messages[-1].physical_offset
            behind = self.messages[len(gone)]
            assert self.times[behind.physical_offset] <= self.clock() - 1000 * keep_s
        self.messages = self.messages[len(gone) :]
        self.flushed = max(0, self.flushed - len(gone))

    # -- ending ----------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()
        self.flushed = len(self.messages)
        self._check_log()

    @rule()
    def kill(self) -> None:
        left_behind = self.store
        self.disk.kill(self.root / f"store-{self.generation + 1}")
        self._go_on(left_behind)
        self._check_log()

    @rule()
    def lose_power(self) -> None:
        left_behind = self.store
        self.disk.fail(self.root / f"store-{self.generation + 1}")
        self._go_on(left_behind)
        kept = len(check_log(self.folder, self.messages[: self.flushed]))
        assert kept <= len(self.messages)
        self.messages = self.messages[:kept]
        self._check_log()

    def _go_on(self, left_behind: whence.WritableStore) -> None:
        left_behind.close()
        shutil.rmtree(self.folder)
        self.generation += 1
        self.open()

    def _check_log(self) -> None:
        """The log has these messages and no other."""
        assert len(check_log(self.folder, self.messages)) == len(self.messages)

    # -- asking ----------------------------------------------------------------------------------------------

    def _ask(self, expected: list[Acknowledged], **question: object) -> None:
        answer = self.store.find(limit=None, **question)
        assert offsets(answer) == [each.physical_offset for each in reversed(expected)], (question, answer.receipt)
        assert answer.receipt.complete and answer.receipt.damage == [], (question, answer.receipt)

    @rule(topic=TOPICS, key=st.sampled_from(["a", "b", "c", "ü", "order-1", "none"]))
    def find_key(self, topic: str, key: str) -> None:
        self._ask([each for each in self.messages if key in each.keys and each.topic == topic], key=key, topic=topic)
        self._ask([each for each in self.messages if key in each.keys], key=key)

    @rule(since_s=st.integers(-100, 100), until_s=st.integers(-100, 100))
    def find_window(self, since_s: int, until_s: int) -> None:
        now_ms = self.clock()
        since_ms, until_ms = sorted((now_ms + 1000 * since_s, now_ms + 1000 * until_s))
        inside = [each for each in self.messages if since_ms <= self.times[each.physical_offset] <= until_ms]
        self._ask(inside, since=since_ms, until=until_ms)

    @rule(topic=TOPICS, tag=st.sampled_from(["t", "u", "none"]))
    def find_tag(self, topic: str, tag: str) -> None:
        tagged = [each for each in self.messages if each.topic == topic and self.tags[each.physical_offset] == tag]
        self._ask(tagged, topic=topic, tag=tag)

    # How much a power failure leaves is not Hypothesis's choice: so what it draws must not depend on that.

    @rule(number=st.integers(0, 1000))
    def find_one(self, number: int) -> None:
        if not self.messages:
            return
        each = self.messages[number % len(self.messages)]
        self._ask([each], offset=each.physical_offset)
        self._ask([each], topic=each.topic, queue=each.queue, queue_offset=each.queue_offset)
        (message,) = self.store.find(offset=each.physical_offset)
        assert zlib.crc32(message.body) == each.body_crc and message.tags == self.tags[each.physical_offset]
        assert message.store_timestamp_ms == self.times[each.physical_offset]
        self._ask([each], id=message.offset_id)
        self._ask([each], id=message.unique_id)

    @rule(behind=st.integers(0, 3))
    def find_nothing_behind_a_queues_end(self, behind: int) -> None:
        if not self.messages:
            return
        last = self.messages[-1]
        end = max(each.queue_offset for each in self.messages if (each.topic, each.queue) == (last.topic, last.queue))
        self._ask([], topic=last.topic, queue=last.queue, queue_offset=end + 1 + behind)

    @invariant()
    def nothing_is_behind_for_long(self) -> None:
        if self.random.random() < 0.1:
            assert self.store.wait_dispatched(60)
            assert self.store.dispatch_lag == 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.store.close()
                self._check_log()
                if not self.has_expired:
                    check_derived(self.folder, SIZES, self.root / "anew")
        finally:
            shutil.rmtree(self.root)


@pytest.mark.slow
def test_store_equals_a_plain_list():
    run_state_machine_as_test(StoreMachine, settings=settings(max_examples=30, stateful_step_count=40))


@pytest.mark.long(part=2, count=500)
def test_store_equals_a_plain_list_in_thousands_of_lives(long_count: int):
    run_state_machine_as_test(StoreMachine, settings=settings(max_examples=long_count, stateful_step_count=60))
