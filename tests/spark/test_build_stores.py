"""Stores of all sorts, built in this process on real Spark: owned, growing, in place, strange, on bad disks."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whence
from tests.compat.store import DIALECTS, VERSIONS, StoreJudge, check_looks, check_queues
from tests.compat.store import Sizes as RocketMQSizes
from tests.crash.checks import check_answers, check_derived, check_log, read_store
from tests.crash.workload import Acknowledged, Workload
from tests.crash.writer import Writers
from tests.disks import small_disk
from tests.reference import build_index, query_offset, read_log
from tests.spark.stores import (
    DERIVED,
    SIZES,
    check_store,
    check_visible,
    dispatched_sums,
    foreign_store,
    sums,
    write_store,
)
from whence.door import build_store, follow_store, repair_store, verify_store
from whence.errors import FullError, StoreError, UnsupportedError, UsageError, WhenceError
from whence.pipeline.follow_state import FollowState
from whence.pipeline.runner import JobState
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of whence's own. Tests take copies."""
    return write_store(tmp_path_factory.mktemp("made") / "store", 200)


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


@pytest.fixture
def store(own: Path) -> Path:
    """The same as a broker would leave it."""
    (own / "whence.json").unlink()
    return own


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    return tmp_path / "store.whence"


# Stores of whence's own


def test_a_store_of_our_own_gets_what_is_not_rocketmqs(own, sidecar):
    before = sums(own)
    built = build_store(own)
    assert {file.kind for file in built.files} == {"times"}
    assert sums(own) == before and sums(sidecar) == {}
    check_store(own)


def test_a_store_of_our_own_is_rebuilt_with_the_same_bytes_and_goes_on(own, sidecar, tmp_path):
    before = sums(own)
    build_store(own, rebuild=True)
    assert sums(own) == before
    check_store(own)
    write_store(own, 50, first=1000, seed=2)
    check_store(own)
    check_derived(own, SIZES, tmp_path / "anew")
    build_store(own)
    assert len(list((sidecar / "times").iterdir())) == len({*map(str, (own / "commitlog").iterdir())})
    check_store(own)


def test_what_a_killed_writer_left_is_recovered_by_a_build(tmp_path):
    folder = tmp_path / "store"
    with Writers() as writers:
        writers.start(folder, flush="async", arguments=SIZES.arguments(), seed=1, first=0, count=100_000)
        acknowledged: list[Acknowledged | str] = []
        while len(acknowledged) < 150:
            acknowledged += writers.heard()
        acknowledged += writers.kill()
    assert (folder / "abort").exists()
    for rebuild in (False, True):
        build_store(folder, rebuild=rebuild)
        assert not (folder / "abort").exists()
        check_store(folder)
        check_derived(folder, SIZES, tmp_path / "anew")
    check_log(folder, [each for each in acknowledged if isinstance(each, Acknowledged)])


# In place


def test_a_build_in_place_leaves_what_a_build_makes_and_nothing_else(store, sidecar, tmp_path):
    expected = dispatched_sums(store, tmp_path / "anew")
    shutil.rmtree(store / "batchconsumequeue")  # some are missing
    (store / "index" / f"{20200101000000000}").write_bytes(next((store / "index").iterdir()).read_bytes())
    (store / "consumequeue/Gone/3").mkdir(parents=True)
    (store / "consumequeue/Gone/3" / f"{0:020}").write_bytes(bytes(SIZES.queue_file_size))
    build_store(store, in_place=True)
    assert sums(sidecar) == {}
    assert sorted(sums(store).values()) == sorted(expected.values())  # index files have local names
    check_store(store)
    before = sums(store)
    assert build_store(store, in_place=True).messages == 0
    assert sums(store) == before
    write_more(store)  # a broker goes on, with index files of its own
    build_store(store, in_place=True)
    expected = dispatched_sums(store, tmp_path / "later")
    assert sorted(sums(store).values()) == sorted(expected.values())
    check_store(store)


def test_a_sidecar_does_not_lie_in_the_store(store):
    """It would take the place of what a broker has there, whose lock nobody looked at."""
    before = sums(store)
    (store / "link").symlink_to(store)
    for out in (store, store / "index", store / "new/sidecar", store / "link"):
        with pytest.raises(UsageError, match=f"--out {out}: lies in the store"):
            build_store(store, out=out)
    assert sums(store) == before and not (store / "new").exists()


def test_a_sidecar_is_no_store(store, tmp_path):
    other = Path(shutil.copytree(store, tmp_path / "other"))
    with pytest.raises(UsageError, match=f"--out {other}: is a store itself"):
        build_store(store, out=other)
    assert sums(other) == sums(store)


def test_what_a_killed_build_left_goes_when_nothing_is_to_be_done(store, sidecar):
    build_store(store)
    (sidecar / "work/0123456789abcdef").mkdir(parents=True)
    assert build_store(store).messages == 0
    assert not (sidecar / "work").exists()


@pytest.mark.compat
@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_opens_a_store_that_was_built_in_place_and_goes_on(tmp_path, version):
    """Its own index and queues make room for those of a build, which goes on after it again."""
    store = tmp_path / "store"
    theirs = RocketMQSizes(SIZES.file_size, SIZES.queue_file_size, SIZES.slots, SIZES.items)

    def put(judge: StoreJudge, first: int, count: int) -> None:
        for number in range(first, first + count):
            put = judge.put(
                "orders", number % 3, b"body", f"key-{number} shared", "TagA", {"UNIQ_KEY": f"id-{number}"}
            )
            assert put.status == "PUT_OK"

    with StoreJudge(version, store, theirs) as judge:
        put(judge, 0, 300)
        judge.stop()
    for kind in ("index", "consumequeue"):
        for path in list((store / kind).rglob("*"))[:3]:
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))
    for first in (1000, 2000):
        build_store(store, in_place=True, dialect=DIALECTS[version], slots=SIZES.slots, items=SIZES.items)
        records = read_log(store)
        with whence.open(store) as opened:
            check_answers(opened, records, Random(1))
        with StoreJudge(version, store, theirs) as judge:
            check_queues(judge, records)
            check_looks(judge, records)
            index = build_index(records, DIALECTS[version], SIZES.slots, SIZES.items)
            for key in ["shared", *(key for record in records[::7] for key in record.keys)]:
                expected = query_offset(index, f"orders#{key}", 64, 0, 2**63 - 1)
                assert judge.query("orders", key) == sorted(expected), key
            put(judge, first, 40)
            judge.stop()
    assert len(records) == 340


# A log that grows


def test_a_log_that_is_written_while_it_is_built_is_indexed_as_far_as_is_told(tmp_path, sidecar):
    folder = write_store(tmp_path / "written", 50)
    with Writers() as writers:
        writers.start(folder, flush="async", arguments=SIZES.arguments(), seed=1, first=1000, count=100_000)
        store = tmp_path / "store"
        store.mkdir()
        for name in ("commitlog", "consumequeue", "index", "config"):  # so it is not whence's
            (store / name).symlink_to(folder / name)
        ends = []
        for _ in range(4):
            while not list(writers.heard()):
                time.sleep(0.01)
            built = build_store(store)
            ends.append(built.to_offset)
            records = read_store(store)
            # Behind a record another begins, or a blank, which may not have been there yet.
            assert built.to_offset in {at for r in records for at in (r.physical_offset, r.physical_offset + r.size)}
            assert built.damage == ()
            with whence.open(store) as opened:
                for key in ("shared", f"key-{1 + 13 * len(ends)}"):
                    answer = opened.find(key=key, limit=None, system_topics=True)
                    offsets = [each.physical_offset for each in answer.messages]
                    assert answer.receipt.complete and answer.receipt.damage == []
                    assert {r.physical_offset for r in records if key in r.keys and not r.is_rollback} <= {*offsets}
        writers.kill()
    assert ends == sorted(set(ends)), ends
    build_store(store)
    assert sums(sidecar) == dispatched_sums(store, tmp_path / "anew")
    check_store(store)


# Disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 48 << 20) as folder:
        yield folder


def leave_free(disk: Path, size: int) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while (left := shutil.disk_usage(disk).free - size) > 0:
            file.write(bytes(min(left, 1 << 20)))
            file.flush()
    return ballast


def check_full(store: Path, sidecar: Path, ballast: Path, error: StoreError, expected: dict[str, str]) -> None:
    assert str(ballast.parent) in str(error) and "\n" not in str(error)
    check_visible(sidecar)
    check_store(store, is_complete=False, out=sidecar)
    ballast.unlink()
    build_store(store, out=sidecar, jobs=5)
    assert sums(sidecar) == expected
    assert not (sidecar / "work").exists()


def test_a_disk_that_is_full_in_pass_one_is_told_and_the_next_build_is_right(store, disk, tmp_path):
    expected = dispatched_sums(store, tmp_path / "anew")
    ballast = leave_free(disk, 15 << 20)
    with pytest.raises(FullError) as failed:
        build_store(store, out=disk / "sidecar", jobs=5)
    assert not (disk / "sidecar/index").exists()
    check_full(store, disk / "sidecar", ballast, failed.value, expected)


def test_a_disk_that_is_full_in_pass_two_is_told_and_the_next_build_is_right(store, disk, tmp_path):
    expected = dispatched_sums(store, tmp_path / "anew")
    ballasts: list[Path] = []

    def fill(state: JobState) -> None:
        if state.name == "scan" and state.is_ended:
            ballasts.append(leave_free(disk, 60_000))

    with pytest.raises(StoreError) as failed:
        build_store(store, out=disk / "sidecar", jobs=5, watcher=fill)
    check_full(store, disk / "sidecar", ballasts[0], failed.value, expected)


def test_a_sidecar_that_cannot_be_written_is_told(store, disk, tmp_path):
    build_store(store, out=disk / "sidecar")
    write_more(store)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for out in (disk / "sidecar", disk / "new"):
        with pytest.raises(StoreError, match=f"^{out}.*: Read-only file system$"):
            build_store(store, out=out)
    check_store(store, is_complete=False, out=disk / "sidecar")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    build_store(store, out=disk / "sidecar")
    assert sums(disk / "sidecar") == dispatched_sums(store, tmp_path / "anew")


def write_more(store: Path, count: int = 30, seed: int = 7) -> None:
    """Let a store that is not whence's grow."""
    with whence.create(store, adopt=True, **SIZES.arguments()) as opened:
        workload = Workload(Random(seed), 5000)
        while workload.number < 5000 + count:
            workload.put_some(opened)
    (store / "whence.json").unlink()


# Sidecars that are not what they seem

HUGE = 10**30
LIES: list[tuple[str, Any]] = [
    ("version", 2),
    ("version", HUGE),
    ("version", "1"),
    ("kind", "kafka"),
    ("dialect", "6.0"),
    ("slots", 0),
    ("slots", 2**62),
    ("items", 1),
    ("queue_file_size", 0),
    ("indexed", []),
    ("indexed", [[0, 2**62]]),
    ("indexed", [[0, 7]]),
    ("indexed", {"0": 1}),
    ("last_record", {"offset": -1, "head": ""}),
    ("last_record", {"offset": 2**62, "head": "00"}),
    ("last_record", None),
    ("index_files", ["../../../etc/passwd"]),
    ("index_files", []),
    ("index_files", ["0" * 17] * 1000),
    ("newest_index", {}),
    ("in_place", True),
    ("other_topics", ["../..", "/", ""]),
    ("fields", []),
]
TEXTS = [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}']


def check_lie(store: Path, sidecar: Path, lie: Any) -> None:
    """Answers stay right; a build says what is wrong, or makes it right."""
    try:
        check_store(store, is_complete=False)
        try:
            build_store(store)
        except UnsupportedError as error:  # of a newer whence
            assert str(sidecar / "sidecar.json") in str(error)
            return
        except WhenceError as error:
            assert "\n" not in str(error) and str(sidecar) in str(error), error
            build_store(store, rebuild=True, slots=SIZES.slots, items=SIZES.items)
        check_store(store, is_complete=False)
    except BaseException as error:
        error.add_note(f"sidecar.json with {lie}"[:300])
        raise


def test_a_sidecar_that_lies_makes_no_answer_wrong(store, sidecar, tmp_path):
    build_store(store)
    told = json.loads((sidecar / "sidecar.json").read_bytes())
    shutil.copytree(sidecar, tmp_path / "kept")
    for name, value in LIES:
        (sidecar / "sidecar.json").write_text(json.dumps(told | {name: value}))
        check_lie(store, sidecar, (name, value))
        shutil.rmtree(sidecar)
        shutil.copytree(tmp_path / "kept", sidecar)


def test_a_sidecar_without_sense_makes_no_answer_wrong_and_is_built_anew(store, sidecar):
    build_store(store)
    good = sums(sidecar)
    for text in TEXTS:
        (sidecar / "sidecar.json").write_bytes(text)
        check_store(store, is_complete=False)
        build_store(store)
        assert sums(sidecar) == good
        check_store(store)


def test_a_sidecar_of_another_store_makes_no_answer_wrong(store, sidecar, tmp_path):
    other = foreign_store(tmp_path / "other", 150, seed=9)
    build_store(other)
    shutil.copytree(tmp_path / "other.whence", sidecar)
    check_store(store, is_complete=False, is_foreign=True)
    build_store(store)
    assert sums(sidecar) == dispatched_sums(store, tmp_path / "anew")
    check_store(store)


def follow_once(store: Path) -> FollowState:
    return follow_store(store, once=True)


@pytest.mark.parametrize("job", [build_store, repair_store, follow_once])
def test_the_sidecar_of_another_store_decides_nothing(golden, store, tmp_path, job):
    """Neither shape nor dialect nor fields are of this log: its own index shows them."""
    made = golden("v53-clean")
    own = made.copy(tmp_path / "golden")
    build_store(store, fields={"size": "cast(body_size as string)"})
    store.with_name("store.whence").rename(sidecar := own.with_name(f"{own.name}.whence"))
    result = job(own)
    told = read_sidecar(sidecar)
    assert told is not None
    assert told.shape == Shape(made.slot_capacity, made.item_capacity)
    assert (told.dialect, told.fields) == (Dialect.V5_3, {})
    assert [path.read_bytes() for path in sorted((sidecar / "index").iterdir())] == [
        path.read_bytes() for path in sorted((own / "index").iterdir())
    ]
    if job is not repair_store:
        [note] = result.notes
        assert note.startswith(f"{sidecar / 'sidecar.json'}: is of another log") and note.endswith("size")
        assert build_store(own).notes == ()


def test_a_log_that_was_cut_keeps_the_shape_and_the_fields_of_its_sidecar(store, sidecar):
    shutil.rmtree(store / "index")
    build_store(store, slots=31, items=200, dialect="5.3", fields={"size": "cast(body_size as string)"})
    log = sorted((store / "commitlog").iterdir())
    for path in log[1:]:
        path.unlink()
    assert build_store(store).notes == ()
    told = read_sidecar(sidecar)
    assert told is not None
    assert (told.shape, told.dialect, list(told.fields)) == (Shape(31, 200), Dialect.V5_3, ["size"])


def test_what_a_crashed_broker_left_of_its_topics_hinders_no_job(store, sidecar, tmp_path):
    """It is half written, beside the file of before. Without that, the store's queues tell which are of batches."""
    good = dispatched_sums(store, tmp_path / "anew")
    topics = store / "config/topics.json"
    backup = topics.rename(topics.with_name("topics.json.bak"))
    half = backup.read_bytes()[:87]
    for left, told in ((half, "topics.json.bak counts"), (b"", "batchconsumequeue")):
        topics.write_bytes(left)
        built = build_store(store, rebuild=True)
        assert sums(sidecar) == good
        [note] = built.notes
        assert note.startswith(str(topics)) and told in note
        assert build_store(store).to_dict()["notes"] == [note]
        found = verify_store(store)
        assert (found.damage, found.habits) == ([], (note,))
        assert repair_store(store).is_healthy
        assert topics.read_bytes() == left
        backup.unlink(missing_ok=True)


def test_a_sidecar_of_a_log_that_was_cut_and_written_anew_makes_no_answer_wrong(store, sidecar, tmp_path):
    build_store(store)
    log = sorted((store / "commitlog").iterdir())
    for path in log[1:]:
        path.unlink()
    for kind in DERIVED:
        shutil.rmtree(store / kind, ignore_errors=True)
    write_more(store, 150)
    check_store(store, is_complete=False, is_foreign=True)
    build_store(store)
    assert sums(sidecar) == dispatched_sums(store, tmp_path / "anew")
    check_store(store)


# Files in the log that do not belong there


def add_text(log: Path) -> None:
    (log / "notes.txt").write_text("do not delete")


def add_folder(log: Path) -> None:
    (log / f"{SIZES.file_size * 100:020}").mkdir()
    (log / "lost+found").mkdir()


def add_odd_name(log: Path) -> None:
    shutil.copy(min(log.iterdir()), log / "123")
    shutil.copy(min(log.iterdir()), log / f"{SIZES.file_size:020}.bak")


def add_empty_last(log: Path) -> None:
    base = int(max(path.name for path in log.iterdir())) + SIZES.file_size
    (log / f"{base:020}").write_bytes(b"")


def add_zeros_behind(log: Path) -> None:
    for _ in range(2):
        base = int(max(path.name for path in log.iterdir())) + SIZES.file_size
        (log / f"{base:020}").write_bytes(bytes(SIZES.file_size))


def cut_last(log: Path) -> None:
    last = max(log.iterdir())
    last.write_bytes(last.read_bytes()[:30_000])


def cut_middle(log: Path) -> None:
    middle = sorted(log.iterdir())[1]
    middle.write_bytes(middle.read_bytes()[:30_000])


def lose_middle(log: Path) -> None:
    sorted(log.iterdir())[1].unlink()


def lose_first(log: Path) -> None:
    min(log.iterdir()).unlink()


def overwrite_middle(log: Path) -> None:
    middle = sorted(log.iterdir())[1]
    data = bytearray(middle.read_bytes())
    data[20_000:40_000] = Random(1).randbytes(20_000)
    middle.write_bytes(data)


def lead_nowhere(log: Path) -> None:
    base = int(max(path.name for path in log.iterdir())) + SIZES.file_size
    (log / f"{base:020}").symlink_to(log / "nowhere")


def add_foreign_number(log: Path) -> None:
    (log / f"{7:020}").write_bytes(b"not of the log")


STRANGE = [
    add_text,
    add_foreign_number,
    add_folder,
    add_odd_name,
    add_empty_last,
    add_zeros_behind,
    cut_last,
    cut_middle,
    lose_middle,
    lose_first,
    overwrite_middle,
    lead_nowhere,
]


@pytest.mark.parametrize("spoil", STRANGE)
def test_a_log_with_strange_files_gives_what_its_dispatch_gives_or_is_told(store, sidecar, tmp_path, spoil):
    spoil(store / "commitlog")
    try:
        expected = dispatched_sums(store, tmp_path / "anew")
    except WhenceError as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            build_store(store)
        return
    build_store(store, jobs=5)
    assert sums(sidecar) == expected
    with whence.open(store) as opened:
        for key in ("shared", "few-1", "few-7"):
            by_index = opened.find(key=key, limit=None)
            by_scan = opened.find(key=key, limit=None, scan=True)
            assert [m.physical_offset for m in by_index] == [m.physical_offset for m in by_scan]
            assert by_index.receipt.complete == by_scan.receipt.complete
    assert build_store(store, jobs=5).messages == 0
