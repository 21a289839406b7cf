"""A writer is killed again and again: what it was acknowledged is there, and the store is right.

The page cache survives a kill, so that in both modes nothing that was acknowledged may be missing. Of power failures,
where the modes differ, ``test_power_loss.py`` tells. A failure names its round; its store is kept as it was left.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_index_source, check_log
from tests.crash.workload import BATCH_FILE_SIZE, Acknowledged, Sizes, random_settings
from tests.crash.writer import Writers, run_until_killed
from tests.disks import UnflushedDisk
from tests.lookup.judge import offsets
from tests.reference import SCHEDULE_TOPIC, Record
from whence.formats.rocketmq.topics import is_system_topic

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_batch_queues")]

KILLS = 60
KILLS_OF_A_STORE = 10
KEYS_ASKED = 15
MESSAGES_MAX = 3000  # of one thread of a writer that is not killed in time
READING_S = 4


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with Writers() as writers:
        yield writers


class KilledStore:
    """One store and all that its writers were acknowledged."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.folder = folder / f"store-{seed}"
        self.random = Random(seed)
        self.flush = self.random.choice(["async", "sync"])
        items = self.random.choice([50, 200, 100_000])
        self.sizes = Sizes(self.random.choice([16_384, 65_536]), self.random.choice([100, 400]), 31, items)
        self.arguments = self.sizes.arguments() | random_settings(self.random)
        self.acknowledged: list[Acknowledged] = []
        self.scratch = folder / "scratch"
        self.reader: whence.Store | None = None

    def kill_once(self, writers: Writers) -> None:
        """Let a writer append, kill it, and look at what it left."""
        writers.start(
            self.folder,
            batch_file_size=BATCH_FILE_SIZE,
            seed=self.random.randrange(2**32),
            first=len(self.acknowledged) * 100_000,  # behind all numbers that were used
            count=MESSAGES_MAX,
            threads=self.random.choice([1, 1, 4]),
            flush=self.flush,
            arguments=self.arguments,
        )
        self.acknowledged += run_until_killed(writers, self.random)
        if not (self.folder / "whence.json").exists():
            assert not self.acknowledged  # there is no store yet
            return
        self.reader = self.reader or whence.open(self.folder)
        with whence.open(self.folder) as store:
            for reader in (store, self.reader):
                self.check_read(reader)
        if self.random.random() < 0.5:
            self.check_reopened(self.folder)
            self.check_read(self.reader)
        else:  # the next writer recovers it, too
            copytree(self.folder, self.scratch / "copy")
            self.check_reopened(self.scratch / "copy")
            rmtree(self.scratch)

    def check_read(self, reader: whence.Store) -> None:
        """A reader finds all in a store that was killed; it may have been there before, through several lives."""
        records = check_log(self.folder, self.acknowledged)
        check_answers(reader, records, self.random, is_left=True, keys_asked=KEYS_ASKED)

    def check_reopened(self, folder: Path) -> None:
        before = check_log(folder, self.acknowledged)
        with whence.create(folder, flush=self.flush, disk=UnflushedDisk(), **self.arguments) as store:
            store.wait_dispatched(60)
            records = check_log(folder, self.acknowledged)
            assert records == before
            check_answers(store, records, self.random, keys_asked=KEYS_ASKED)
            if has_index(records):
                check_index_source(store, records)
        assert not (folder / "abort").exists()
        check_derived(folder, self.sizes, self.scratch / "anew")
        with whence.open(folder) as store:
            check_answers(store, records, self.random, keys_asked=KEYS_ASKED)
            if has_index(records):
                check_index_source(store, records)


def has_index(records: list[Record]) -> bool:
    """Whether a question without a topic is answered by an index: it covers a record, and not the broker's alone.

    It covers what lies between the first and the last of the records that have items.
    """
    is_asked = any(not is_system_topic(record.topic) for record in records)
    return is_asked and sum(not record.is_rollback for record in records) > 2


def kill_store(writers: Writers, folder: Path, seed: int) -> int:
    """Kill the writers of one store; gives how many messages they were acknowledged."""
    store = KilledStore(folder, seed)
    for number in range(KILLS_OF_A_STORE):
        try:
            store.kill_once(writers)
        except BaseException as error:
            error.add_note(f"kill {number} of the store with seed {seed} ({store.flush}, {store.arguments})")
            raise
    if store.reader is not None:
        store.reader.close()
    rmtree(store.folder)
    return len(store.acknowledged)


def kill_stores(writers: Writers, folder: Path, kills: int, first_seed: int) -> None:
    seeds = range(first_seed, first_seed + -(-kills // KILLS_OF_A_STORE))
    acknowledged = sum(kill_store(writers, folder, seed) for seed in seeds)
    print(f"{kills} kills, {acknowledged} messages were acknowledged and found")
    assert acknowledged > 10 * kills  # otherwise the kills came before there was anything to lose


def test_nothing_acknowledged_is_lost_in_sixty_kills(writers: Writers, tmp_path: Path):
    kill_stores(writers, tmp_path, KILLS, first_seed=0)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_a_writer_was_acknowledged_is_found_by_others_at_once(writers: Writers, tmp_path: Path, flush: str):
    """Another process asks while the writer appends, rolls and dispatches: nothing is missing, half, or doubled."""
    random = Random(1)
    sizes = Sizes(16_384, 400, 31, 100)
    acknowledged: list[Acknowledged] = []
    order = {"seed": 1, "first": 0, "count": 5000, "threads": 2, "sorts": ["plain", "batch"]}
    writers.start(tmp_path / "store", flush=flush, arguments=sizes.arguments(), **order)
    sources: set[str] = set()
    deadline = time.monotonic() + READING_S
    store: whence.Store | None = None
    while time.monotonic() < deadline:
        acknowledged += [each for each in writers.heard() if isinstance(each, Acknowledged)]
        if not acknowledged:
            continue
        store = store or whence.open(tmp_path / "store")
        for each in (acknowledged[-1], random.choice(acknowledged)):
            answer = store.find(key=each.keys[0], topic=each.topic)
            assert offsets(answer) == [each.physical_offset], (each, answer.receipt)
            assert answer.receipt.complete and answer.receipt.damage == [], answer.receipt
            sources.add(answer.receipt.index_source)
            (message,) = answer
            assert (message.queue_offset, zlib.crc32(message.body)) == (each.queue_offset, each.body_crc)
        shared = offsets(store.find(key="shared", limit=None))
        assert shared == sorted(set(shared), reverse=True)
        visible = {each.physical_offset for each in acknowledged if each.topic != SCHEDULE_TOPIC}
        assert {each.physical_offset for each in acknowledged if "shared" in each.keys} & visible <= set(shared)
    assert store is not None
    store.close()
    writers.kill()
    assert sources <= {"none", "whence"}, sources  # the writer holds the lock, so the index is its own
    assert len(acknowledged) > 500


@pytest.mark.long(part=2, count=2000)
def test_nothing_acknowledged_is_lost_in_two_thousand_kills(writers: Writers, tmp_path: Path, long_count: int):
    kill_stores(writers, tmp_path, long_count, first_seed=1000)
