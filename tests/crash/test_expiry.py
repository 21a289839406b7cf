"""The power fails while old files go, or move to an archive: what is left answers right, and the next run goes on."""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from tests.disks import PowerLossDisk, UnflushedDisk
from tests.store.expiring import NOW, POLICY, age, check_answers
from tests.store_maker import make_store, message
from whence.store.expiry import Expiry

pytestmark = pytest.mark.slow

SEEDS = 60


def lose_power_once(root: Path, seed: int) -> None:
    random = Random(seed)
    messages = [
        message(keys=f"k{number} k{number % 5}", tags="t", topic="TU"[number % 2], queue=number % 3, body=bytes(400))
        for number in range(60)
    ]
    made = make_store(root / "store", messages)
    with_archive = random.random() < 0.5
    stores = [root / "store", root / "archive"] if with_archive else [root / "store"]
    age(made.folder, random.randint(1, len(made.log_files) - 1))
    disk = PowerLossDisk(root, Random(seed + 1), write_back=random.choice([0.0, 0.1]))
    left = root.parent / f"left-{seed}"
    disk.fail_after(random.randrange(80), left)
    Expiry(root / "store", POLICY, disk, archive=stores[1] if with_archive else None).run(NOW)
    if not disk.has_failed:
        disk.fail(left)

    stores = [left / folder.name for folder in stores if (left / folder.name / "commitlog").is_dir()]
    begin = 0 if with_archive else min(int(path.name) for path in (left / "store" / "commitlog").iterdir())
    kept = [record for record in made.records if record.physical_offset >= begin]
    check_answers(stores, kept)
    Expiry(left / "store", POLICY, UnflushedDisk(), archive=left / "archive" if with_archive else None).run(NOW)
    begin = 0 if with_archive else min(int(path.name) for path in (left / "store" / "commitlog").iterdir())
    check_answers(
        [left / "store", left / "archive"] if with_archive else [left / "store"],
        [record for record in made.records if record.physical_offset >= begin],
    )
    rmtree(left)


def lose_power(folder: Path, seeds: range) -> None:
    for seed in seeds:
        root = folder / str(seed)
        root.mkdir()
        try:
            lose_power_once(root, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}, in {root} and {folder / f'left-{seed}'}")
            raise
        rmtree(root)


def test_a_power_failure_while_files_expire_spoils_nothing(tmp_path: Path):
    lose_power(tmp_path, range(SEEDS))


@pytest.mark.long(part=2, count=2000)
def test_thousands_of_power_failures_while_files_expire_spoil_nothing(tmp_path: Path, long_count: int):
    lose_power(tmp_path, range(SEEDS, SEEDS + long_count))
