"""Others deleted, restored or damaged files of a store while it was closed: it is right again, or refuses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_index_source, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload
from tests.disks import UnflushedDisk
from tests.reference import read_log

pytestmark = pytest.mark.usefixtures("small_batch_queues")

SIZES = Sizes(16_384, 400, 31, 100)
Harm = Callable[[Path, Path], object]
"""What is done to a store; the second folder is the store as it was some messages earlier."""


def create(folder: Path, **more: bool) -> whence.WritableStore:
    return whence.create(folder, disk=UnflushedDisk(), **SIZES.arguments(), **more)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of some hundred messages that was closed twice; beside it lies a copy from in between."""
    workload = Workload(Random(1))
    for _ in range(2):
        with create(tmp_path / "store") as store:
            for _ in range(25):
                _, failures = workload.put_some(store)
                assert not failures
        if not (tmp_path / "earlier").exists():
            shutil.copytree(tmp_path / "store", tmp_path / "earlier")
    return tmp_path / "store"


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder)


def touch(*paths: Path) -> None:
    for path in paths:
        path.touch()


def restored(name: str) -> Harm:
    return lambda store, earlier: shutil.copyfile(earlier / name, store / name)


def restore_folder(source: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(source, folder)


def killed(harm: Harm) -> Harm:
    """The same to a store that was not closed."""

    def harm_killed(store: Path, earlier: Path) -> None:
        (store / "abort").write_text("1")
        harm(store, earlier)

    return harm_killed


NO_LOSS: dict[str, Harm] = {
    "nothing happened": lambda store, _: None,
    "the index is gone": lambda store, _: shutil.rmtree(store / "index"),
    "the newest index file is gone": lambda store, _: newest(store / "index").unlink(),
    "the newest index file is empty": lambda store, _: newest(store / "index").write_bytes(b""),
    "the newest index file is cut": lambda store, _: os.truncate(newest(store / "index"), 1000),
    "all queues are gone": lambda store, _: shutil.rmtree(store / "consumequeue"),
    "queues and index are gone": lambda store, _: remove(store / "consumequeue", store / "index"),
    "a topic's queues are gone": lambda store, _: shutil.rmtree(store / "consumequeue" / "orders"),
    "a queue is gone": lambda store, _: shutil.rmtree(store / "consumequeue" / "orders" / "0"),
    "a queue's newest file is gone": lambda store, _: newest(store / "consumequeue" / "orders" / "0").unlink(),
    "whence.json is older": restored("whence.json"),
    "the checkpoint is gone": lambda store, _: (store / "checkpoint").unlink(),
    "the checkpoint is garbage": lambda store, _: (store / "checkpoint").write_bytes(b"\xff" * 4096),
    "the topics are gone": lambda store, _: (store / "config" / "topics.json").unlink(),
    "there are other files": lambda store, _: touch(store / "commitlog" / "x", store / "index" / "x", store / "x"),
}
LOSS: dict[str, Harm] = {
    "the log's last file is zero": lambda store, _: newest(store / "commitlog").write_bytes(bytes(SIZES.file_size)),
    "the log's last file is cut": lambda store, _: os.truncate(newest(store / "commitlog"), 1000),
}
GONE: dict[str, Harm] = {
    "all of it": lambda store, _: shutil.rmtree(store / "commitlog"),
    "its last file": lambda store, _: newest(store / "commitlog").unlink(),
    "what was appended since a backup": lambda store, earlier: restore_folder(
        earlier / "commitlog", store / "commitlog"
    ),
}


def check_again(folder: Path, before: list[Acknowledged]) -> None:
    """All that the log still had is there, and the store goes on and is right to the last byte."""
    workload = Workload(Random(2), 1_000_000)
    with create(folder) as store:
        for _ in range(10):
            acknowledged, failures = workload.put_some(store)
            assert not failures
            before = before + acknowledged
        assert store.wait_dispatched(60)
        records = check_log(folder, before)
        assert len(records) == len(before)
        check_answers(store, records, Random(3))
        check_index_source(store, records)
    check_derived(folder, SIZES, folder.parent / "anew")


def told(folder: Path) -> list[Acknowledged]:
    return [Acknowledged.of(record) for record in read_log(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("what", NO_LOSS)
def test_what_can_be_made_from_the_log_is_made_again(store, what, is_killed):
    before = told(store)
    harm = NO_LOSS[what]
    (killed(harm) if is_killed else harm)(store, store.with_name("earlier"))
    check_again(store, before)


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("what", LOSS)
def test_queues_and_index_follow_a_log_that_lost_its_end(store, what, is_killed):
    harm = LOSS[what]
    (killed(harm) if is_killed else harm)(store, store.with_name("earlier"))
    check_again(store, told(store))


@pytest.mark.parametrize("what", GONE)
def test_a_log_of_which_files_are_gone_is_not_gone_on_with(store, what):
    """A disk may not be mounted. Who knows better can take the store over as it is."""
    GONE[what](store, store.with_name("earlier"))
    left = told(store) if (store / "commitlog").is_dir() else []
    with pytest.raises(whence.StoreError, match=r"commitlog: the log reached to offset \d+ and is gone"):
        create(store)
    (store / "whence.json").unlink()
    create(store, adopt=True).close()
    check_again(store, left)


def test_a_store_whose_whence_json_is_gone_is_taken_over_only_where_that_is_asked_for(store):
    before = told(store)
    (store / "whence.json").unlink()
    with pytest.raises(whence.UsageError, match="adopt=True"):
        create(store)
    create(store, adopt=True).close()
    check_again(store, before)


@pytest.mark.parametrize("name", ["whence.json", "config/topics.json"])
def test_a_small_file_that_cannot_be_read_is_told(store, name):
    (store / name).write_bytes(b"{")
    with pytest.raises(whence.WhenceError, match=name):
        create(store)
