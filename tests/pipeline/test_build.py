"""Build: with any number of tasks the files of one dispatch, and so RocketMQ's own."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import small_disk
from tests.golden import CLEAN, CRASHED, DIRECT, GoldenStore
from tests.reference import Record, encode_record
from tests.store.test_dispatch import MESSAGES, dispatch_store, files_below, in_header_order
from tests.store_maker import FILE_SIZE, QUEUE_FILE_SIZE, log_bytes, make_store, message, place
from whence.errors import FullError, WhenceError
from whence.files.disk import Disk
from whence.formats.time_blocks import BLOCK_SIZE, decode_time_blocks
from whence.pipeline import build as build_module
from whence.pipeline import plan
from whence.pipeline.build import Build, BuildPlace, BuildSettings, Built
from whence.pipeline.tasks import Kind
from whence.store import spill
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar


class OneByOne:
    """Runs tasks in this process, one after the other."""

    is_local, has_twins = True, False

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.ran: list[str] = []

    def map(
        self,
        name: str,
        task: Callable[[Any], Any],
        inputs: Sequence[Any],
        *,
        size_of: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        self.ran += [name] * len(inputs)
        return [task(each) for each in inputs]


def build(store: Path, sidecar: Path, runner: OneByOne | None = None, fields=None, **settings) -> Built:
    log = CommitLog(store / "commitlog")
    sidecar.mkdir(exist_ok=True)
    try:
        given = BuildSettings(**settings)
        known = read_sidecar(sidecar)
        place = BuildPlace(sidecar, sidecar)
        return Build(log, place, given, known, runner or OneByOne(), Disk(), fields or {}).run()
    finally:
        log.close()


def settings_of(store: GoldenStore) -> dict[str, Any]:
    return {
        "shape": Shape(store.slot_capacity, store.item_capacity),
        "dialect": Dialect(store.dialect),
        "queue_file_size": store.queue_file_size,
    }


@pytest.mark.parametrize("jobs", [1, 17, 29, 64])  # no log has as many as 17 files, each of which is a task at least
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_a_build_gives_rocketmqs_bytes_with_any_number_of_tasks(golden, tmp_path, short_stretches, name, jobs):
    store, runner = golden(name), OneByOne()
    built = build(store.store, tmp_path / "sidecar", runner, jobs=jobs, **settings_of(store))
    assert runner.ran.count("scan") >= jobs
    assert files_below(tmp_path / "sidecar/consumequeue") == files_below(store.store / "consumequeue")
    assert in_header_order(tmp_path / "sidecar/index") == in_header_order(store.store / "index")
    assert built.messages == len(store.records)
    assert not (tmp_path / "sidecar/work").exists()


class LastFirst(OneByOne):
    """The other way round."""

    def map(self, name, task, inputs, *, size_of=None):
        return super().map(name, task, inputs[::-1])[::-1]


@pytest.mark.parametrize("runner", [OneByOne, LastFirst])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_two_tasks_that_fill_one_index_file_give_rocketmqs_bytes(golden, tmp_path, monkeypatch, name, runner):
    monkeypatch.setattr(build_module, "HALVED_FROM", 2)
    store, runner = golden(name), runner(slots=30)
    built = build(store.store, tmp_path / "sidecar", runner, **settings_of(store))
    assert in_header_order(tmp_path / "sidecar/index") == in_header_order(store.store / "index")
    build(store.store, tmp_path / "whole", jobs=1, **settings_of(store))
    assert published(tmp_path / "sidecar") == published(tmp_path / "whole")
    halved = [file for file in built.files if file.kind is Kind.INDEX and file.items > 1]
    assert runner.ran.count("build") > 2 * len(halved) > 0


SMALL = {"shape": Shape(7, 20), "dialect": Dialect.V5_5, "queue_file_size": QUEUE_FILE_SIZE}


@pytest.fixture(autouse=True)
def unflushed(monkeypatch):
    """Tests of files, not of the disk: nothing waits for it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@pytest.fixture
def short_stretches(monkeypatch):
    """Lets stretches be as short as 128 bytes, so that small logs are cut into many."""
    monkeypatch.setattr(plan, "BLOCK_SIZE", 128)


def published(sidecar: Path) -> dict[str, bytes]:
    """What a sidecar has for readers."""
    return {name: data for name, data in files_below(sidecar).items() if name != "lock"}


def dispatched(store: Path, folder: Path, **settings) -> dict[str, bytes]:
    dispatch_store(
        store,
        folder,
        slots=settings["shape"].slot_capacity,
        items=settings["shape"].item_capacity,
        queue_file_size=settings["queue_file_size"],
        dialect=settings["dialect"],
    )
    return files_below(folder)


def without_own(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(("index/", "consumequeue/"))}


@pytest.mark.slow
@given(
    messages=MESSAGES,
    slots=st.integers(1, 9),
    items=st.integers(2, 9),
    jobs=st.integers(1, 40),
    dialect=st.sampled_from(list(Dialect)),
)
def test_a_build_equals_the_dispatch_of_the_same_log(tmp_path_factory, messages, slots, items, jobs, dialect):
    folder = tmp_path_factory.mktemp("build")
    made = make_store(folder / "store", messages, slots=slots, items=items, dialect=dialect)
    settings = {"shape": Shape(slots, items), "dialect": dialect, "queue_file_size": QUEUE_FILE_SIZE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "BLOCK_SIZE", 128)
        built = build(made.folder, folder / "sidecar", jobs=jobs, **settings)
    assert without_own(published(folder / "sidecar")) == dispatched(made.folder, folder / "new", **settings)
    assert built.messages == len(messages)
    assert (built.from_offset, built.to_offset) == (0, made.end_offset)


@pytest.mark.parametrize("jobs", [1, 2, 3, 7, 64])
def test_a_log_of_one_file_that_is_cut_for_any_number_of_tasks_gives_what_its_dispatch_gives(
    tmp_path, short_stretches, jobs
):
    records = [
        message(keys=f"k{number} k", tags="t", topic="TU"[number % 2], queue=number % 3, at=number)
        for number in range(400)
    ]
    made, runner = make_store(tmp_path / "store", records, file_size=1 << 16), OneByOne()
    built = build(made.folder, tmp_path / "sidecar", runner, jobs=jobs, **SMALL)
    assert len(made.log_files) == 1
    assert runner.ran.count("scan") == jobs >= len(built.taken) > jobs // 2  # nothing lies in the last ones
    assert without_own(published(tmp_path / "sidecar")) == dispatched(made.folder, tmp_path / "own", **SMALL)


def with_records_in_bodies(count: int) -> list[Record]:
    """Messages whose bodies hold whole records, with right offsets and checksums, that lead on to each other."""
    records: list[Record] = []
    for number in range(count):
        plain = [*records, message(keys=f"real{number}", body=bytes(700))]
        at = place(plain)[-1].physical_offset + 88  # the body begins there
        body = b""
        for fake in range(4):
            inside = message(keys=f"fake{number}.{fake}", body=bytes(60))
            body += encode_record(replace(inside, physical_offset=at + len(body)))
        records.append(message(keys=f"real{number}", body=body.ljust(700, b"\0")))
    return records


@pytest.mark.parametrize("jobs", [1, 2, 5, 20, 40])
def test_records_in_bodies_are_no_messages(tmp_path, short_stretches, jobs):
    made = make_store(tmp_path / "store", with_records_in_bodies(20))
    head = encode_record(made.records[3])
    assert head.find(b"fake3.0") > 0
    runner = OneByOne()
    built = build(made.folder, tmp_path / "sidecar", runner, jobs=jobs, **SMALL)
    assert built.messages == 20
    assert without_own(published(tmp_path / "sidecar")) == dispatched(made.folder, tmp_path / "new", **SMALL)
    stretches = plan.cut_log(log_places(made.folder), 0, plan.stretch_size(5 * FILE_SIZE, 2, jobs))
    if jobs == 40:  # stretches that began in a body were scanned again
        assert runner.ran.count("scan") > len(stretches)


def log_places(folder: Path) -> list[plan.LogFilePlace]:
    files = sorted((folder / "commitlog").iterdir())
    return [plan.LogFilePlace(str(file), int(file.name), file.stat().st_size) for file in files]


def test_time_blocks_have_the_smallest_and_largest_time_of_each_64_kib(tmp_path):
    times = [5000, 100, 9000, 200, 7000] * 60
    records = [message(keys=f"k{number}", at=at, body=bytes(1500)) for number, at in enumerate(times)]
    made = make_store(tmp_path / "store", records, file_size=1 << 18)
    build(made.folder, tmp_path / "sidecar", jobs=3, **SMALL)
    for file in made.log_files:
        base = int(file.name)
        expected: dict[int, tuple[int, int, int]] = {}
        for record in made.records:
            if base <= record.physical_offset < base + (1 << 18):
                at = record.physical_offset - base
                first, low, high = expected.get(at // BLOCK_SIZE, (at, 2**62, 0))
                time = record.store_timestamp_ms
                expected[at // BLOCK_SIZE] = (first, min(low, time), max(high, time))
        blocks = decode_time_blocks((tmp_path / "sidecar/times" / file.name).read_bytes())
        assert blocks.tolist() == list(expected.values())


def grow(folder: Path, records: list[Record]) -> None:
    """Write the log of these messages over what is there: it has grown."""
    for name, data in log_bytes(place(records)).items():
        (folder / "commitlog" / name).write_bytes(data)


def test_a_build_of_a_log_that_grew_equals_one_from_scratch(tmp_path, short_stretches):
    records = [
        message(keys=f"k{number} k", tags="t", topic="TU"[number % 2], queue=number % 3, at=number)
        for number in range(150)
    ]
    store, sidecar = tmp_path / "store", tmp_path / "sidecar"
    made = make_store(store, records[:1], queues=False, indexed=0)
    for count in (1, 1, 2, 9, 40, 41, 100, 149, 150):
        grow(store, records[:count])
        runner = OneByOne()
        built = build(store, sidecar, runner, jobs=5, **SMALL)
        build(store, tmp_path / f"new{count}", jobs=3, rebuild=True, **SMALL)
        assert published(sidecar) == published(tmp_path / f"new{count}"), count
        if built.messages == 0:
            assert runner.ran.count("build") == 0
        for path in (tmp_path / f"new{count}").rglob("*"):
            if path.is_file():
                path.unlink()
    assert made.folder == store


def test_a_log_that_was_replaced_is_built_anew(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(30)])
    build(made.folder, tmp_path / "sidecar", **SMALL)
    other = [message(keys=f"other{number}", at=5) for number in range(30)]
    grow(made.folder, other)
    built = build(made.folder, tmp_path / "sidecar", **SMALL)
    assert built.messages == 30
    assert without_own(published(tmp_path / "sidecar")) == dispatched(made.folder, tmp_path / "new", **SMALL)


class Killed(BaseException):
    """The driver dies."""


class DyingRunner(OneByOne):
    """Dies after so many tasks."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def map(self, name, task, inputs, *, size_of=None):
        def run(each):
            if self.left == 0:
                raise Killed
            self.left -= 1
            return task(each)

        return super().map(name, run, inputs)


class DyingDisk(Disk):
    """Dies at the n-th change that a driver makes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def rename(self, path: Path, target: Path) -> None:
        self._count()
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


def sample(folder: Path, count: int = 60) -> Path:
    records = [
        message(keys=f"k{number} k", tags="t", topic="TU"[number % 2], queue=number % 3, at=number)
        for number in range(count)
    ]
    return make_store(folder, records).folder


@pytest.mark.slow
def test_a_build_that_was_killed_after_any_task_is_gone_on_with(tmp_path, short_stretches):
    store = sample(tmp_path / "store")
    whole = OneByOne()
    build(store, tmp_path / "whole", whole, jobs=8, **SMALL)
    for left in range(len(whole.ran)):
        sidecar = tmp_path / f"sidecar{left}"
        with pytest.raises(Killed):
            build(store, sidecar, DyingRunner(left), jobs=8, **SMALL)
        assert not any((sidecar / kind).exists() for kind in ("index", "consumequeue", "times", "sidecar.json"))
        again = OneByOne()
        build(store, sidecar, again, jobs=8, **SMALL)
        assert published(sidecar) == published(tmp_path / "whole")
        assert len(again.ran) == len(whole.ran) - left  # what was done is not done again


@pytest.mark.slow
def test_an_index_file_that_one_of_two_tasks_filled_is_made_anew(tmp_path, short_stretches, monkeypatch):
    monkeypatch.setattr(build_module, "HALVED_FROM", 2)
    store = sample(tmp_path / "store")
    build(store, tmp_path / "whole", jobs=1, **SMALL)
    for left in range(24, 40):
        sidecar = tmp_path / f"sidecar{left}"
        with pytest.raises(Killed):
            build(store, sidecar, DyingRunner(left), jobs=20, **SMALL)
        build(store, sidecar, jobs=20, **SMALL)
        assert published(sidecar) == published(tmp_path / "whole")


@pytest.mark.parametrize("left", [b"", bytes(500)])
def test_what_a_power_failure_left_of_a_stretch_is_scanned_again(tmp_path, short_stretches, left):
    store = sample(tmp_path / "store")
    whole = OneByOne()
    build(store, tmp_path / "whole", whole, jobs=8, **SMALL)
    with pytest.raises(Killed):
        build(store, tmp_path / "sidecar", DyingRunner(5), jobs=8, **SMALL)
    for note in sorted((tmp_path / "sidecar/work").glob("*/*.json"))[:2]:
        note.write_bytes(left)
    again = OneByOne()
    build(store, tmp_path / "sidecar", again, jobs=8, **SMALL)
    assert published(tmp_path / "sidecar") == published(tmp_path / "whole")
    assert len(again.ran) == len(whole.ran) - 3


def test_a_build_that_was_killed_while_it_published_is_gone_on_with(tmp_path, short_stretches):
    store = sample(tmp_path / "store")
    build(store, tmp_path / "whole", jobs=4, **SMALL)
    sidecar = tmp_path / "sidecar"
    for left in range(10_000):
        shutil.rmtree(sidecar, ignore_errors=True)
        sidecar.mkdir()
        log = CommitLog(store / "commitlog")
        given = BuildSettings(jobs=4, **SMALL)
        try:
            Build(log, BuildPlace(sidecar, sidecar), given, None, OneByOne(), DyingDisk(left)).run()
            break
        except Killed:
            pass
        finally:
            log.close()
        again = OneByOne()
        build(store, sidecar, again, jobs=4, **SMALL)
        assert published(sidecar) == published(tmp_path / "whole")
    assert left > 20
    assert published(sidecar) == published(tmp_path / "whole")


def test_a_task_that_runs_twice_and_one_that_ends_late_change_nothing(tmp_path, short_stretches):
    """A speculative twin, and a zombie whose driver has gone on without it."""
    store = sample(tmp_path / "store")
    build(store, tmp_path / "whole", jobs=4, **SMALL)
    late: list[Callable[[], Any]] = []

    class Twins(OneByOne):
        def map(self, name, task, inputs, *, size_of=None):
            late.extend(partial(task, each) for each in inputs)
            for each in inputs:
                task(each)
            return super().map(name, task, inputs)

    build(store, tmp_path / "sidecar", Twins(), jobs=4, **SMALL)
    assert published(tmp_path / "sidecar") == published(tmp_path / "whole")
    for zombie in late:
        with suppress(WhenceError, OSError):
            zombie()
    assert published(tmp_path / "sidecar") == published(tmp_path / "whole")
    assert not (tmp_path / "sidecar/work").exists()


def test_a_gap_in_the_log_is_told_and_the_rest_is_indexed(tmp_path, short_stretches):
    store = sample(tmp_path / "store", 120)
    files = sorted((store / "commitlog").iterdir())
    assert len(files) >= 4
    files[1].unlink()
    built = build(store, tmp_path / "sidecar", jobs=6, **SMALL)
    known = read_sidecar(tmp_path / "sidecar")
    assert known is not None
    assert known.indexed == ((0, FILE_SIZE), (2 * FILE_SIZE, built.to_offset))
    assert [damage.kind.value for damage in built.damage] == ["gap"]
    assert without_own(published(tmp_path / "sidecar")) == dispatched(store, tmp_path / "new", **SMALL)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_log_gives_what_its_dispatch_gives(tmp_path, short_stretches, seed):
    random = Random(seed)
    store = sample(tmp_path / "store", 120)
    for path in random.sample(sorted((store / "commitlog").iterdir()), 2):
        data = bytearray(path.read_bytes())
        for _ in range(random.randrange(1, 4)):
            at, size = random.randrange(len(data)), random.choice([1, 1, 8, 300, 4000])
            data[at : at + size] = random.choice([random.randbytes(size), bytes(size)])[: len(data) - at]
        path.write_bytes(data)
    try:
        expected = dispatched(store, tmp_path / "new", **SMALL)
    except WhenceError:
        return
    jobs = random.choice([1, 3, 17, 60])
    build(store, tmp_path / "sidecar", jobs=jobs, **SMALL)
    assert without_own(published(tmp_path / "sidecar")) == expected


def test_too_little_room_is_told_before_the_work_begins(tmp_path, monkeypatch):
    store = make_store(
        tmp_path / "store", [message(keys="k", body=bytes(3000)) for _ in range(4000)], file_size=1 << 22
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000))
    runner = OneByOne()
    with pytest.raises(FullError, match=r"sidecar: the build needs about [0-9,]+ bytes of room, its disk has 50,000"):
        build(store.folder, tmp_path / "sidecar", runner, **SMALL)
    assert runner.ran == []


def test_what_a_killed_build_left_is_room_that_the_next_one_does_not_need_again(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "FREE_MIN", 0)
    settings = SMALL | {"shape": Shape(100, 5000), "queue_file_size": 80_000}
    messages = [message(keys="k", body=bytes(3000)) for _ in range(4000)]
    store = make_store(tmp_path / "store", messages, file_size=1 << 22).folder
    scans = len(list((store / "commitlog").iterdir()))
    with small_disk(tmp_path / "sidecar", 1 << 20) as sidecar:
        with pytest.raises(Killed):
            build(store, sidecar, DyingRunner(scans), **settings)
        ballast = sidecar / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(sidecar).free - 250_000))
        with pytest.raises(FullError, match=r"the build needs about 26[0-9],[0-9]{3} bytes of room"):
            build(store, sidecar / "other", **settings)
        again = OneByOne()
        assert build(store, sidecar, again, **settings).messages == 4000
        assert "scan" not in again.ran


def test_a_build_that_goes_on_needs_room_for_a_copy_of_the_newest_index_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "FREE_MIN", 0)
    settings = SMALL | {"shape": Shape(1000, 100_000), "queue_file_size": 80_000}
    messages = [message(keys=f"{number} k", body=bytes(100)) for number in range(4000)]
    store = make_store(tmp_path / "store", messages[:3999], file_size=1 << 22).folder
    with small_disk(tmp_path / "sidecar", 1 << 20) as sidecar:
        build(store, sidecar, **settings)
        for name, data in log_bytes(place(messages, file_size=1 << 22), file_size=1 << 22).items():
            (store / "commitlog" / name).write_bytes(data)
        ballast = sidecar / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(sidecar).free - 50_000))
        runner = OneByOne()
        with pytest.raises(FullError, match=r"sidecar: the build needs about 1[0-9]{2},[0-9]{3} bytes of room"):
            build(store, sidecar, runner, **settings)
        assert runner.ran == []


def test_a_disk_that_gets_full_while_spills_grow_is_told(tmp_path, monkeypatch):
    store = sample(tmp_path / "store")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    with pytest.raises(FullError, match="its disk is full"):
        build(store, tmp_path / "sidecar", **SMALL)
    assert not (tmp_path / "sidecar/index").exists()


def test_an_empty_log_is_indexed_at_once(tmp_path):
    (tmp_path / "store/commitlog").mkdir(parents=True)
    built = build(tmp_path / "store", tmp_path / "sidecar", **SMALL)
    assert (built.messages, built.files) == (0, ())
    (tmp_path / "store/commitlog" / f"{0:020}").write_bytes(bytes(FILE_SIZE))
    built = build(tmp_path / "store", tmp_path / "sidecar", **SMALL)
    assert (built.messages, built.files) == (0, ())
