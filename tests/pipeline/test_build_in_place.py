"""Build in place, into a store that is a disk of its own: the sidecar beside it lies on another one."""

import shutil
from pathlib import Path

import pytest

import whence
from tests.disks import small_disk
from tests.pipeline.test_build import DyingDisk, OneByOne, grow, published, short_stretches, unflushed
from tests.pipeline.test_build_faults import begin_store, check_answered, records, try_build
from tests.pipeline.test_repair import flip, repair, verify, without_spark
from tests.reference import Record
from tests.store.test_dispatch import files_below
from tests.store_maker import log_bytes, message, place
from whence.errors import FullError
from whence.files.names import sidecar_of
from whence.pipeline.jobs import BuildOptions, build_indexes
from whence.store.index_file import Shape
from whence.store.message_store import MessageStore

__all__ = ["short_stretches", "unflushed", "without_spark"]
pytestmark = pytest.mark.usefixtures("short_stretches")


@pytest.fixture
def mounted(tmp_path):
    """A store that is a disk of its own: what lies beside it is on another one."""
    with small_disk(tmp_path / "store", 2 << 20) as folder:
        yield begin_store(folder, records(60))


def in_place(store: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_below(store).items() if not name.startswith("commitlog/")}


def test_a_store_on_another_disk_than_its_sidecar_is_built_in_place(mounted, tmp_path):
    sidecar, local, there = tmp_path / "sidecar", begin_store(tmp_path / "local", records(60)), tmp_path / "there"
    for count, settings in ((60, {}), (90, {}), (90, {"rebuild": True, "shape": Shape(12, 30)})):
        for store, beside in ((mounted, sidecar), (local, there)):
            grow(store, records(count))
            try_build(store, beside, root=store, **settings)
        assert in_place(mounted) == in_place(local) != {}
        assert published(sidecar) == published(there)
        assert not (sidecar / "work").exists()
    check_answered(mounted, sidecar, records(90))


def test_a_build_in_place_on_another_disk_is_gone_on_with_wherever_it_was_killed(mounted, tmp_path):
    sidecar, local = tmp_path / "sidecar", begin_store(tmp_path / "local", records(60))
    try_build(local, tmp_path / "there", root=local)
    for left in range(0, 10_000, 11):
        for path in (sidecar, mounted / "index", mounted / "consumequeue"):
            shutil.rmtree(path, ignore_errors=True)
        is_done = try_build(mounted, sidecar, disk=DyingDisk(left), root=mounted)
        if not is_done:
            try_build(mounted, sidecar, root=mounted)
        assert in_place(mounted) == in_place(local)
        assert published(sidecar) == published(tmp_path / "there")
        if is_done:
            break
    assert left > 50


def test_a_copy_that_a_killed_build_in_place_left_goes_when_all_is_built_anew(mounted, tmp_path):
    left = [mounted / "index" / f".{'9' * 17}.new", mounted / "consumequeue/Gone/0" / f".{0:020}.new"]
    for path in left:
        path.parent.mkdir(parents=True)
        path.touch()
    try_build(mounted, tmp_path / "sidecar", root=mounted)
    assert not any(path.exists() for path in left)


def test_too_little_room_on_the_disk_of_a_store_that_is_built_in_place_is_told_before_the_work_begins(tmp_path):
    messages = [message(keys="k", body=bytes(3000)) for _ in range(4000)]
    log = log_bytes(place(messages, file_size=1 << 22), file_size=1 << 22)
    with small_disk(tmp_path / "store", sum(map(len, log.values())) + 50_000) as store:
        (store / "commitlog").mkdir()
        for name, data in log.items():
            (store / "commitlog" / name).write_bytes(data)
        runner = OneByOne()
        with pytest.raises(FullError, match=f"{store}: the build needs about [0-9,]+ bytes of room, its disk has"):
            try_build(store, tmp_path / "sidecar", runner, root=store)
        assert runner.ran == []


def test_a_store_on_another_disk_than_its_sidecar_is_repaired_in_place(golden, tmp_path):
    with small_disk(tmp_path / "store", 32 << 20) as store:
        shutil.copytree(golden("v5-clean").copy(tmp_path / "copy"), store, dirs_exist_ok=True)
        build_indexes(store, BuildOptions(in_place=True))
        built = in_place(store)
        flip(min((store / "index").iterdir()), 300)
        flip(min((store / "consumequeue").glob("*/*/*")), 6)
        (store / "index" / ("9" * 17)).write_bytes(b"of nobody")
        assert not verify(store).is_healthy
        assert repair(store, in_place=True).is_healthy
        assert in_place(store) == built
        assert verify(store).is_healthy


def into_sidecar(store: Path) -> dict[str, bytes]:
    files = published(sidecar_of(store))
    return {name: data for name, data in files.items() if name.startswith(("index/", "consumequeue/"))}


def read_queues(store: MessageStore, placed: list[Record]) -> list[int]:
    """The messages that are not where their queues say, by their number."""
    return [
        number
        for number, record in enumerate(placed)
        if [each.physical_offset for each in store.read_queue(record.topic, record.queue, record.queue_offset)]
        != [record.physical_offset]
    ]


def test_what_an_earlier_build_left_in_the_sidecar_is_not_read_and_goes(tmp_path):
    store = begin_store(tmp_path / "store", records(60))
    sidecar = sidecar_of(store)
    assert try_build(store, sidecar)
    with MessageStore(store, sidecar=sidecar) as reader, whence.open(store) as opened:
        assert read_queues(reader, place(records(60))) == []
        grow(store, records(90))
        left = {path: path.read_bytes() for path in sidecar.rglob("*") if path.is_file() and path.parent != sidecar}
        assert try_build(store, sidecar, root=store)
        assert in_place(store)
        assert into_sidecar(store) == {}
        assert not (sidecar / "index").exists() and not (sidecar / "consumequeue").exists()
        for path, data in left.items():  # as if the build had been killed when it had just said so, and worse
            if "times" not in path.parts:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes(len(data)))
        for queues in (reader, MessageStore(store, sidecar=sidecar)):
            assert read_queues(queues, place(records(90))) == []
            assert queues.queues("T") == [0, 1, 2]
        for record in place(records(90)):
            answer = opened.find(topic=record.topic, queue=record.queue, queue_offset=record.queue_offset)
            assert [message.physical_offset for message in answer] == [record.physical_offset]
        assert verify(store).is_healthy
    check_answered(store, sidecar, records(90))
    grow(store, records(95))
    assert try_build(store, sidecar, root=store)
    assert into_sidecar(store) == {}


def test_a_build_into_the_sidecar_leaves_the_store_as_one_in_place_made_it(tmp_path):
    store = begin_store(tmp_path / "store", records(60))
    sidecar = sidecar_of(store)
    assert try_build(store, sidecar, root=store)
    before = in_place(store)
    grow(store, records(90))
    with MessageStore(store, sidecar=sidecar) as reader:
        assert read_queues(reader, place(records(90))) == list(range(60, 90))
        assert try_build(store, sidecar)
        assert read_queues(reader, place(records(90))) == []
    assert in_place(store) == before
    assert verify(store).is_healthy
    check_answered(store, sidecar, records(90))
