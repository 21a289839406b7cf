"""A queue that lies among those of the other kind: no reader finds it there, and a broker does not start on it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.test_repair import built_files, repair, verify, without_spark
from tests.store_maker import make_store, message
from whence.files.disk import Disk
from whence.pipeline.jobs import BuildOptions, build_indexes
from whence.store.findings import FindingKind
from whence.store.topic_table import TopicTable

__all__ = ["without_spark"]

Change = Callable[[Path, Path], None]


def make_batch_topic(store: Path, root: Path) -> None:
    """The topic is a batch topic now: its config came after its log."""
    TopicTable(store, Disk(), lambda: 0).make("T", 1, {"queue.type": "BatchCQ"})


def lose_config(store: Path, root: Path) -> None:
    """Nobody tells any more that another topic is one."""
    shutil.rmtree(store / "config")


def copy_queue(store: Path, root: Path) -> None:
    shutil.copytree(root / "consumequeue/T/0", root / "batchconsumequeue/T/0")


CHANGES: list[tuple[Change, bool]] = [
    (make_batch_topic, False),
    (make_batch_topic, True),
    (copy_queue, False),
    (copy_queue, True),
    (lose_config, False),
]


@pytest.fixture
def in_place() -> bool:
    return False


@pytest.fixture
def store(tmp_path, in_place) -> Path:
    records = [message(keys=f"k{number}", topic="TB"[number % 2], queue=number % 3) for number in range(200)]
    made = make_store(tmp_path / "store", records).folder
    TopicTable(made, Disk(), lambda: 0).make("B", 3, {"queue.type": "BatchCQ"})
    shutil.copytree(made, tmp_path / "fresh/store")
    build_indexes(made, BuildOptions(in_place=in_place))
    return made


def root_of(store: Path, *, in_place: bool) -> Path:
    return store if in_place else store.with_name("store.whence")


def all_files(store: Path) -> dict[str, dict[str, bytes]]:
    return {folder.name: built_files(folder) for folder in (store, store.with_name("store.whence"))}


def fresh(store: Path, *, in_place: bool) -> dict[str, dict[str, bytes]]:
    """As after the first build of the same log with the same config."""
    copy = store.parent / "fresh/store"
    shutil.rmtree(copy / "config")
    if (store / "config").exists():
        shutil.copytree(store / "config", copy / "config")
    build_indexes(copy, BuildOptions(in_place=in_place))
    return all_files(copy)


@pytest.mark.parametrize(("change", "in_place"), CHANGES)
def test_a_build_does_not_go_on_with_queues_of_the_other_kind(store, in_place, change):
    change(store, root_of(store, in_place=in_place))
    build_indexes(store, BuildOptions(in_place=in_place))
    assert all_files(store) == fresh(store, in_place=in_place)
    assert verify(store).damage == []
    assert build_indexes(store, BuildOptions(in_place=in_place)).tasks == 0


@pytest.mark.parametrize(("change", "in_place"), CHANGES)
def test_queues_of_the_other_kind_are_found_and_removed(store, in_place, change):
    change(store, root_of(store, in_place=in_place))
    found = verify(store)
    unexpected = [finding.path for finding in found.damage if finding.kind is FindingKind.UNEXPECTED]
    there = {path.parts[-4] for path in unexpected}
    assert there == {"consumequeue" if change is make_batch_topic else "batchconsumequeue"}
    assert repair(store, in_place=in_place).is_healthy
    assert not any(path.exists() for path in unexpected)
    assert all_files(store) == fresh(store, in_place=in_place)
    assert verify(store).damage == []


@pytest.mark.parametrize("in_place", [True])
def test_a_store_without_config_shows_its_batch_topics_by_their_queues(store):
    lose_config(store, store)
    before = all_files(store)
    assert verify(store).damage == []
    assert build_indexes(store, BuildOptions(in_place=True)).tasks == 0
    assert all_files(store) == before
