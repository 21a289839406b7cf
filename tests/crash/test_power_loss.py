"""The power fails while a store is written, and again while it recovers: what was flushed is there, and all is right.

In sync mode that is all that was acknowledged, in async mode all that was acknowledged before the last flush. A
failure names its seed; what the power failure left is kept below the test's folder, beside the store.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload, random_settings
from tests.disks import PowerLossDisk, UnflushedDisk

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_batch_queues")]

SEEDS = 50
STEPS_MAX = 600  # of the disk, until the power fails
APPENDS_MAX = 60


class Scenario:
    """A store on a disk that loses power; ``promised`` is what must be there afterwards."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.flush = self.random.choice(["async", "sync"])
        self.sizes = Sizes(16_384, self.random.choice([100, 4000]), 31, self.random.choice([9, 50, 200]))
        self.settings = random_settings(self.random)
        self.write_back = self.random.choice([0.0, 0.0, 0.02, 0.3])
        self.promised: list[Acknowledged] = []
        self.count = 0

    def __str__(self) -> str:
        return f"{self.flush}, {self.sizes}, {self.settings}, write_back {self.write_back}"

    def lose_power(self, store: Path, left: Path) -> None:
        """Go on with ``store``; ``left`` is what a power failure makes of it at some moment."""
        disk = PowerLossDisk(store, Random(self.random.randrange(2**32)), write_back=self.write_back)
        disk.fail_after(self.random.choice([self.random.randrange(30), self.random.randrange(STEPS_MAX)]), left)
        workload = Workload(self.random, self.count)
        appends = self.random.randrange(APPENDS_MAX)
        opened = whence.create(store, flush=self.flush, disk=disk, **self.sizes.arguments(), **self.settings)
        try:
            self._append(opened, disk, workload, appends)
            if self.random.random() < 0.5:
                disk.fail_once(left)
        finally:
            opened.close()
        disk.fail_once(left)
        self.count = workload.number + 1

    def _append(self, store: whence.WritableStore, disk: PowerLossDisk, workload: Workload, appends: int) -> None:
        waiting: list[Acknowledged] = []
        for _ in range(appends):
            acknowledged, failures = workload.put_some(store)
            assert not failures, failures
            waiting += acknowledged
            chance = self.random.random()
            if chance < 0.1:
                store.flush()
            elif chance < 0.2:
                assert store.wait_dispatched(60)
            if disk.has_failed:
                return
            if self.flush == "sync" or chance < 0.1:
                self.promised += waiting
                waiting = []

    def check(self, folder: Path) -> None:
        """The store opens, has what was promised, goes on, and is right to the last byte."""
        disk = UnflushedDisk()
        workload = Workload(self.random, self.count)
        with whence.create(folder, flush=self.flush, disk=disk, **self.sizes.arguments(), **self.settings) as store:
            assert store.wait_dispatched(60)
            check_answers(store, check_log(folder, self.promised), self.random)
            for _ in range(5):
                acknowledged, failures = workload.put_some(store)
                assert not failures, failures
                self.promised += acknowledged
        records = check_log(folder, self.promised)
        check_derived(folder, self.sizes, self.folder / "anew")
        with whence.open(folder) as store:
            check_answers(store, records, self.random)


def lose_power_once(folder: Path, seed: int) -> int:
    """One scenario; gives how many messages were promised."""
    folder.mkdir(parents=True)
    scenario = Scenario(folder, seed)
    first, second = folder / "left", folder / "left-again"
    try:
        scenario.lose_power(folder / "store", first)
        if scenario.random.random() < 0.5:
            copytree(first, folder / "left-as-it-was")
            scenario.lose_power(first, second)
            first = second
        copytree(first, folder / "checked")
        scenario.check(folder / "checked")
    except BaseException as error:
        error.add_note(f"seed {seed}: {scenario}, {folder}")
        raise
    rmtree(folder)
    return len(scenario.promised)


def lose_power(folder: Path, seeds: range) -> None:
    promised = sum(lose_power_once(folder / str(seed), seed) for seed in seeds)
    print(f"{len(seeds)} power failures, {promised} messages were flushed and found")


def test_what_was_flushed_survives_power_failures(tmp_path: Path):
    lose_power(tmp_path, range(SEEDS))


@pytest.mark.long(part=2, count=1500)
def test_what_was_flushed_survives_thousands_of_power_failures(tmp_path: Path, long_count: int):
    lose_power(tmp_path, range(SEEDS, SEEDS + long_count))
