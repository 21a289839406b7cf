"""Build: what was left behind, lost or changed between two builds. The next one equals one from scratch."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whence
from tests.crash.checks import check_answers
from tests.crash.following import write_log
from tests.disks import PowerLossDisk
from tests.pipeline.test_build import (
    SMALL,
    DyingDisk,
    DyingRunner,
    Killed,
    OneByOne,
    build,
    grow,
    published,
    short_stretches,
    unflushed,
)
from tests.pipeline.test_verify import run
from tests.reference import Record, encode_properties
from tests.store.test_dispatch import files_below
from tests.store_maker import FILE_SIZE, log_bytes, make_store, message, place
from whence.errors import CorruptError
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import decode_header
from whence.pipeline import build as build_module
from whence.pipeline import plan, tasks
from whence.pipeline.build import QUEUE_FOLDERS, Build, BuildPlace, BuildSettings
from whence.pipeline.tasks import read_made, sha256_of
from whence.pipeline.verify import VerifyPlace, VerifySettings
from whence.store import spill
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar

__all__ = ["short_stretches", "unflushed"]
pytestmark = pytest.mark.usefixtures("short_stretches")


def records(count: int, *, prefix: str = "k", bare: bool = False) -> list[Record]:
    return [
        message(
            keys="" if bare else f"{prefix}{number} {prefix}",
            tags="" if bare else "t",
            topic="TU"[number % 2],
            queue=number % 3,
            at=number,
        )
        for number in range(count)
    ]


def begin_store(folder: Path, messages: list[Record]) -> Path:
    """A store of which there is the log alone."""
    (folder / "commitlog").mkdir(parents=True)
    grow(folder, messages)
    return folder


def try_build(
    store: Path,
    sidecar: Path,
    runner: OneByOne | None = None,
    disk: Disk | None = None,
    root: Path | None = None,
    **settings,
) -> bool:
    """Build; whether it got to its end."""
    sidecar.mkdir(exist_ok=True)
    log = CommitLog(store / "commitlog")
    given = BuildSettings(**{"jobs": 5} | SMALL | settings)
    try:
        place = BuildPlace(sidecar, root or sidecar)
        Build(log, place, given, read_sidecar(sidecar), runner or OneByOne(), disk or Disk()).run()
    except Killed:
        return False
    finally:
        log.close()
    return True


def check_answered(store: Path, sidecar: Path, messages: list[Record]) -> None:
    with whence.open(store, out=sidecar) as opened:
        check_answers(opened, place(messages), Random(1), keys_asked=30)


def check_as_new(store: Path, sidecar: Path, scratch: Path) -> None:
    """What is published is what a build from scratch publishes."""
    build(store, scratch, jobs=3, **SMALL)
    assert published(sidecar) == published(scratch)
    shutil.rmtree(scratch)


# What a reader sees while a build publishes


def first_build(store: Path, sidecar: Path) -> None:
    grow(store, records(60))


def more_messages(store: Path, sidecar: Path) -> None:
    grow(store, records(40))
    try_build(store, sidecar)
    grow(store, records(60))


def build_anew(store: Path, sidecar: Path) -> None:
    grow(store, records(60))
    try_build(store, sidecar)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "settings"),
    [
        (first_build, {}),
        (more_messages, {}),
        (build_anew, {"rebuild": True, "shape": Shape(12, 19), "queue_file_size": 400}),  # index files of one length
    ],
)
def test_a_reader_gets_full_answers_wherever_a_build_was_killed_while_it_published(tmp_path, prepare, settings):
    messages = records(60)
    for left in range(10_000):
        store, sidecar = tmp_path / f"{left}/store", tmp_path / f"{left}/sidecar"
        begin_store(store, messages)
        prepare(store, sidecar)
        is_done = try_build(store, sidecar, disk=DyingDisk(left), **settings)
        check_answered(store, sidecar, messages)
        if is_done:
            break
        shutil.rmtree(tmp_path / str(left))
    assert left > 10


@pytest.mark.slow
def test_a_reader_gets_full_answers_wherever_a_build_in_place_was_killed(tmp_path):
    """The store has a broker's index and queues, whose files go one by one."""
    messages = records(60)
    for left in range(10_000):
        store, sidecar = tmp_path / f"{left}/store", tmp_path / f"{left}/sidecar"
        make_store(store, messages)
        is_done = try_build(store, sidecar, disk=DyingDisk(left), root=store)
        check_answered(store, sidecar, messages)
        if is_done:
            break
        shutil.rmtree(tmp_path / str(left))
    assert left > 10


# What a killed build left


@pytest.mark.slow
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("first", "second", "third"), [(50, 51, 60), (19, 40, 90)])
def test_a_log_that_grew_twice_while_a_build_was_killed_is_built_as_from_scratch(
    tmp_path, bare, first, second, third
):
    messages = records(third, bare=bare)
    for left in range(10_000):
        folder = tmp_path / str(left)
        store, sidecar = begin_store(folder / "store", messages[:first]), folder / "sidecar"
        try_build(store, sidecar)
        grow(store, messages[:second])
        is_done = try_build(store, sidecar, disk=DyingDisk(left))
        grow(store, messages[:third])
        try_build(store, sidecar)
        check_as_new(store, sidecar, folder / "new")
        shutil.rmtree(folder)
        if is_done:
            break


@pytest.mark.slow
def test_a_build_that_was_killed_while_it_published_more_scans_nothing_again(tmp_path):
    scanned = []
    for left in range(10_000):
        folder = tmp_path / str(left)
        store, sidecar = begin_store(folder / "store", records(40)), folder / "sidecar"
        try_build(store, sidecar)
        (sidecar / "index" / ("9" * 17)).write_bytes(b"of nobody")
        grow(store, records(70))
        if try_build(store, sidecar, disk=DyingDisk(left)):
            break
        if list(sidecar.glob("work/*/*.made")):
            again = OneByOne()
            try_build(store, sidecar, again)
            scanned.append("scan" in again.ran)
        else:
            try_build(store, sidecar)
        check_as_new(store, sidecar, folder / "new")
    check_as_new(store, sidecar, folder / "new")
    assert len(scanned) > 10 and not any(scanned), scanned


def expire(store: Path, files_left: int = 4) -> int:
    """Delete the oldest files of the log; where it begins now."""
    names = sorted((store / "commitlog").iterdir())
    for path in names[:-files_left]:
        path.unlink()
    return int(names[-files_left:][0].name)


def check_nothing_expired(sidecar: Path, begin: int) -> None:
    """There are a few files of what is in the log, and nothing leads only below its begin but the newest ones."""
    claim = read_sidecar(sidecar)
    assert claim is not None
    names = sorted(path.name for path in (sidecar / "index").iterdir())
    assert tuple(names) == claim.index_names
    headers = [decode_header((sidecar / "index" / name).read_bytes()) for name in names]
    assert all(header.end_physical_offset >= begin for header in headers[:-1])
    assert min(int(path.name) for path in (sidecar / "times").iterdir()) >= begin
    for queue in (sidecar / "consumequeue").glob("*/*"):
        *older, _ = sorted(queue.iterdir())
        assert all(int.from_bytes(path.read_bytes()[-20:-12], "big") >= begin for path in older)


def test_a_sidecar_lets_go_of_what_has_expired_from_the_log(tmp_path):
    store, sidecar = begin_store(tmp_path / "store", records(200)), tmp_path / "sidecar"
    try_build(store, sidecar)
    kept = 0
    for count in range(300, 700, 100):
        messages = place(records(count))
        write_log(store, [each for each in messages if each.physical_offset >= kept], file_size=FILE_SIZE)
        kept = expire(store)
        built = build(store, sidecar, jobs=3, **SMALL)
        assert built.from_offset > 0
        check_nothing_expired(sidecar, kept)
        left = [record for record in messages if record.physical_offset >= kept]
        with whence.open(store, out=sidecar) as opened:
            check_answers(opened, left, Random(count), keys_asked=20)
            assert opened.find(key="k", no_scan=True).receipt.complete
        claim = read_sidecar(sidecar)
        assert claim is not None
        place_of = VerifyPlace(store, sidecar, sidecar, claim.index_names, claim.indexed_to, claim, is_exact=True)
        assert run(place_of, VerifySettings(SMALL["shape"], Dialect.V5_5, SMALL["queue_file_size"])).damage == []


@pytest.mark.slow
def test_a_build_that_was_killed_while_it_let_go_of_what_has_expired_is_gone_on_with(tmp_path):
    begin_store(tmp_path / "store", records(200))
    try_build(tmp_path / "store", tmp_path / "sidecar")
    grow(tmp_path / "store", records(260))
    begin = expire(tmp_path / "store")
    left = [record for record in place(records(260)) if record.physical_offset >= begin]
    for steps in range(0, 10_000, 11):
        store, sidecar = tmp_path / f"{steps}/store", tmp_path / f"{steps}/sidecar"
        shutil.copytree(tmp_path / "store", store)
        shutil.copytree(tmp_path / "sidecar", sidecar)
        is_done = try_build(store, sidecar, disk=DyingDisk(steps))
        with whence.open(store, out=sidecar) as opened:
            check_answers(opened, left, Random(steps), keys_asked=5)
        write_log(store, [each for each in place(records(270)) if each.physical_offset >= begin], file_size=FILE_SIZE)
        assert try_build(store, sidecar)
        check_nothing_expired(sidecar, begin)
        shutil.rmtree(store.parent)
        if is_done:
            break


@pytest.mark.parametrize("bare", [0, 3])
def test_an_index_file_that_got_longer_is_cut_where_the_log_lost_what_was_put(tmp_path, bare):
    """A build was killed as it published, and the machine stopped: of the log there is less than of its index."""
    store, sidecar = begin_store(tmp_path / "store", records(40)), tmp_path / "sidecar"
    try_build(store, sidecar)
    before = tmp_path / "before"
    shutil.copytree(sidecar, before)
    write_log(store, place(records(70)), file_size=FILE_SIZE)
    try_build(store, sidecar)
    claim = read_sidecar(before)
    assert claim is not None
    newest = claim.index_names[-1]
    assert (sidecar / "index" / newest).read_bytes() != (before / "index" / newest).read_bytes()
    shutil.copy(sidecar / "index" / newest, before / "index" / newest)
    write_log(store, place([*records(40), *records(bare, bare=True)]), file_size=FILE_SIZE)
    assert build(store, before, jobs=3, **SMALL).from_offset == claim.indexed_to
    check_as_new(store, before, tmp_path / "new")


def inner_batch(queue_offset: int, count: int) -> Record:
    given = {"INNER_NUM": str(count), "INNER_BASE": str(queue_offset), "KEYS": f"b{queue_offset}"}
    return replace(message(topic="B"), properties_data=encode_properties(given))


def lit(name: str, queue_offset: int) -> Record:
    """A message that is in a light queue, too."""
    given = {"INNER_MULTI_DISPATCH": f"%LMQ%{name}", "INNER_MULTI_QUEUE_OFFSET": str(queue_offset)}
    return replace(message(topic="T"), properties_data=encode_properties(given))


BATCHES = [inner_batch(2 * number, 2) for number in range(4)]
BEGUN = [*records(30), *BATCHES, *(lit("a", number) for number in range(4))]
TAILS = {
    "nothing": [],
    "fewer": [message(keys="x", topic="T", at=10_000)],
    "in the same queues": [message(keys=f"x{number}", topic="UT"[number % 2], at=-number) for number in range(25)],
    "in others": [message(keys=f"x{number}", topic="V", queue=number) for number in range(3)],
    "in batch queues": [inner_batch(8 + 3 * number, 3) for number in range(5)],
    "in light queues": [lit("ab"[number % 2], 4 * (number % 2 == 0) + number // 2) for number in range(8)],
    "in a queue that begins with fillers": [lit("c", 5), lit("c", 6)],
    "in one that begins with more of them": [lit("c", 17)],
    "in more files of a queue": [message(keys=f"x{number}", at=20_000) for number in range(45)],
}


class DyingAtTheEnd(Disk):
    """Dies when all is published, and sidecar.json is to say so."""

    def rename(self, path: Path, target: Path) -> None:
        if target.name == "sidecar.json":
            raise Killed
        super().rename(path, target)


def lose_tail(folder: Path, lost: list[Record], came: list[Record], disk: Disk, *, in_place: bool = False) -> bool:
    """Build, be killed in a build of a tail that the log loses then, and build another; whether none was killed."""
    store, sidecar = begin_store(folder / "store", BEGUN), folder / "sidecar"
    root, batches = store if in_place else sidecar, {"batch_topics": ("B",)}
    assert try_build(store, sidecar, root=root, **batches)
    write_log(store, place([*BEGUN, *lost]), file_size=FILE_SIZE)
    is_done = try_build(store, sidecar, disk=disk, root=root, **batches)
    write_log(store, place([*BEGUN, *came]), file_size=FILE_SIZE)
    assert try_build(store, sidecar, root=root, **batches)
    build(store, folder / "new", **SMALL, **batches)
    for kind in ("index", *QUEUE_FOLDERS):
        assert files_below(root / kind) == files_below(folder / "new" / kind)
    if not in_place:
        assert published(sidecar) == published(folder / "new")
    return is_done


@pytest.mark.parametrize("came", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("lost", [tail for tail in TAILS if tail != "nothing"])
def test_what_a_killed_build_published_of_a_tail_that_the_log_lost_goes(tmp_path, lost, came):
    """The machine stopped: what is in the log behind the last build is another tail, or nothing."""
    for in_place in (False, True):
        assert not lose_tail(tmp_path / str(in_place), TAILS[lost], came, DyingAtTheEnd(), in_place=in_place)


@pytest.mark.slow
@pytest.mark.parametrize("came", ["nothing", "in others"])
def test_a_tail_may_be_lost_wherever_its_build_was_killed(tmp_path, came):
    for left in range(10_000):
        if lose_tail(tmp_path / str(left), TAILS["in the same queues"], TAILS[came], DyingDisk(left)):
            break
        shutil.rmtree(tmp_path / str(left))
    assert left > 10


def test_time_blocks_that_a_killed_build_published_are_not_made_twice(tmp_path):
    messages = [message(at=number * 7 % 1000, body=bytes(1500)) for number in range(240)]

    def grow_long(count: int) -> None:
        for name, data in log_bytes(place(messages[:count], file_size=1 << 20), file_size=1 << 20).items():
            (tmp_path / "store/commitlog" / name).write_bytes(data)

    (tmp_path / "store/commitlog").mkdir(parents=True)
    store, sidecar = tmp_path / "store", tmp_path / "sidecar"
    for left in range(10_000):
        shutil.rmtree(sidecar, ignore_errors=True)
        grow_long(50)
        try_build(store, sidecar)
        grow_long(120)
        is_done = try_build(store, sidecar, disk=DyingDisk(left))
        grow_long(240)
        try_build(store, sidecar)
        check_as_new(store, sidecar, tmp_path / "new")
        if is_done:
            break


POWER_FAILURES = 12


def grown(folder: Path, count: int) -> tuple[Path, Path]:
    """A store that was built, and has grown since to so many messages."""
    store = begin_store(folder / "store", records(32))
    try_build(store, folder / "sidecar")
    grow(store, records(count))
    return store, folder / "sidecar"


@pytest.mark.slow
@pytest.mark.parametrize(("is_local", "settings"), [(False, {}), (True, {"rebuild": True})], ids=["more", "anew"])
def test_what_a_power_failure_leaves_of_a_build_is_gone_on_with(tmp_path, monkeypatch, is_local, settings):
    """After it another build goes on, and equals one from scratch; before, readers get full answers."""
    monkeypatch.setattr(OneByOne, "is_local", is_local)
    store, sidecar = grown(tmp_path / "grown", 64)
    build(store, tmp_path / "new", **SMALL)
    new = published(tmp_path / "new")

    shutil.copytree(sidecar, tmp_path / "built")

    def lose_power(number: int, after: int) -> PowerLossDisk:
        """Build on a disk that loses power, and leave what it has then."""
        shutil.rmtree(sidecar)
        shutil.copytree(tmp_path / "built", sidecar)
        disk = PowerLossDisk(sidecar, Random(number), write_back=0.02 * (number % 3))
        disk.fail_after(after, tmp_path / str(number))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tasks, "Disk", lambda: disk)
            assert try_build(store, sidecar, disk=disk, jobs=2, **settings)
        return disk

    steps = lose_power(0, 1 << 30).steps
    for number in range(1, POWER_FAILURES + 1):
        assert lose_power(number, steps * number // (POWER_FAILURES + 1)).has_failed
        shutil.rmtree(sidecar)
        (tmp_path / str(number)).rename(sidecar)
        check_answered(store, sidecar, records(64))
        with pytest.MonkeyPatch.context() as patch:
            for module in (build_module, spill):
                patch.setattr(module, "machine_id", lambda: "the same, started again")
            try_build(store, sidecar, jobs=2)
        assert published(sidecar) == new, number


class DyingBehind(OneByOne):
    """Dies when all tasks of a job have ended."""

    def map(self, name, task, inputs, *, size_of=None):
        done = super().map(name, task, inputs)
        if name == "build":
            raise Killed
        return done


@pytest.mark.parametrize("left", [0, 8])
def test_what_a_task_noted_is_there_after_any_power_failure(tmp_path, monkeypatch, left):
    """Also if there was nothing to put to a file that it copied: a build that was killed had published it."""
    monkeypatch.setattr(OneByOne, "is_local", False)
    store, sidecar = grown(tmp_path, 36)  # no queue gets another file
    if left:
        assert not try_build(store, sidecar, disk=DyingDisk(left))
        grow(store, records(37))
    disk = PowerLossDisk(sidecar, Random(1))
    monkeypatch.setattr(tasks, "Disk", lambda: disk)
    assert not try_build(store, sidecar, DyingBehind(), disk=disk)
    noted = 0
    for _ in range(40):
        disk.fail(tmp_path / "left")
        for note in (tmp_path / "left/work").glob("*/*.made"):
            with suppress(CorruptError):
                for path in (Path(file.path) for file in read_made(note).files):
                    if path.exists():  # not published by the build that was killed
                        assert (tmp_path / "left" / path.relative_to(sidecar)).read_bytes() == path.read_bytes()
                        noted += 1
        shutil.rmtree(tmp_path / "left")
    assert noted > 20


@pytest.mark.parametrize("left", [1, 4, 8, 12])
def test_what_a_killed_build_took_from_a_log_that_was_written_anew_counts_for_nothing(tmp_path, left):
    store, sidecar = begin_store(tmp_path / "store", records(60)), tmp_path / "sidecar"
    assert not try_build(store, sidecar, DyingRunner(left))
    others = records(60, prefix="x")
    grow(store, others)
    try_build(store, sidecar)
    check_as_new(store, sidecar, tmp_path / "new")
    check_answered(store, sidecar, others)


@pytest.mark.parametrize("ending", ["json", "made"])
def test_notes_that_a_power_failure_emptied_count_for_nothing(tmp_path, ending):
    store, sidecar = begin_store(tmp_path / "store", records(60)), tmp_path / "sidecar"
    assert not try_build(store, sidecar, DyingRunner(12))
    notes = list(sidecar.rglob(f"*.{ending}"))
    for note in notes:
        note.write_bytes(b"")
    assert notes
    try_build(store, sidecar)
    check_as_new(store, sidecar, tmp_path / "new")


@pytest.mark.parametrize("left", [2, 6, 12, 18])
def test_what_a_killed_build_published_may_be_removed(tmp_path, left):
    store, sidecar = begin_store(tmp_path / "store", records(60)), tmp_path / "sidecar"
    assert not try_build(store, sidecar, disk=DyingDisk(left))
    for path in list(sidecar.iterdir()):
        if path.is_dir() and path.name != "work":
            shutil.rmtree(path)
    try_build(store, sidecar)
    check_as_new(store, sidecar, tmp_path / "new")


def test_index_files_that_begin_in_the_same_millisecond_do_not_take_each_others_place(tmp_path):
    messages = [message(keys=f"k{number}", at=number // 70) for number in range(200)]
    store, sidecar = begin_store(tmp_path / "store", messages[:30]), tmp_path / "sidecar"
    for count in (30, 50, 95, 120, 200):
        grow(store, messages[:count])
        try_build(store, sidecar)
        check_as_new(store, sidecar, tmp_path / "new")
    check_answered(store, sidecar, messages)


def settings_told(sidecar: Path) -> dict[str, Any]:
    """As a build has them that is not told any."""
    known = read_sidecar(sidecar)
    assert known is not None
    return {"shape": known.shape, "dialect": known.dialect, "queue_file_size": known.queue_file_size}


def test_a_build_anew_in_another_dialect_that_was_killed_leaves_nothing_of_both(tmp_path):
    """Index files of both dialects have the same length, and some the same name."""
    messages, store, sidecar = records(30), tmp_path / "store", tmp_path / "sidecar"
    begin_store(store, messages)
    news = {dialect: tmp_path / dialect for dialect in (Dialect.V4_9, Dialect.V5_5)}
    for dialect, new in news.items():
        try_build(store, new, dialect=dialect)
    told = []
    for left in range(10_000):
        shutil.rmtree(sidecar, ignore_errors=True)
        shutil.copytree(news[Dialect.V4_9], sidecar)
        is_done = try_build(store, sidecar, disk=DyingDisk(left), dialect=Dialect.V5_5, rebuild=True)
        if left % 11 == 0:
            check_answered(store, sidecar, messages)
        again = OneByOne()
        try_build(store, sidecar, again, **settings_told(sidecar))
        told.append(settings_told(sidecar)["dialect"])
        assert published(sidecar) == published(news[told[-1]]), left
        if is_done:
            break
        assert "build" not in again.ran  # what its tasks had made is taken
    assert told == sorted(told) and told[0] is Dialect.V4_9 and len(told) > 20


def test_a_build_that_was_killed_takes_what_one_without_sums_scanned(tmp_path):
    store, sidecar = begin_store(tmp_path / "store", records(60)), tmp_path / "sidecar"
    assert not try_build(store, sidecar, DyingRunner(12))
    again = OneByOne()
    sidecar.mkdir(exist_ok=True)
    built = build(store, sidecar, again, jobs=5, with_sums=True, **SMALL)
    assert "scan" not in again.ran
    assert {file.sha256 for file in built.files} == {sha256_of(Path(file.path)) for file in built.files}
    check_as_new(store, sidecar, tmp_path / "new")


def test_a_build_that_was_killed_scans_only_what_the_log_has_more(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "STRETCH_SIZE_MIN", FILE_SIZE)
    messages = records(300)
    store, sidecar = begin_store(tmp_path / "store", messages[:200]), tmp_path / "sidecar"
    before = len(list((store / "commitlog").iterdir()))
    assert not try_build(store, sidecar, DyingRunner(before), jobs=None)
    for path, data in log_bytes(place(messages)).items():
        if not (store / "commitlog" / path).exists() or (store / "commitlog" / path).read_bytes() != data:
            (store / "commitlog" / path).write_bytes(data)
    again = OneByOne()
    try_build(store, sidecar, again, jobs=None)
    assert before > 4
    assert again.ran.count("scan") == len(list((store / "commitlog").iterdir())) - before + 1
    check_as_new(store, sidecar, tmp_path / "new")


# What became of the log, and of what was published


def test_a_log_file_that_is_damaged_all_over_does_not_make_later_builds_begin_anew(tmp_path):
    messages = records(120)
    store, sidecar = begin_store(tmp_path / "store", messages[:100]), tmp_path / "sidecar"
    damaged = sorted((store / "commitlog").iterdir())[1]
    good = damaged.read_bytes()
    damaged.write_bytes(bytes(100) + b"\xff" * (FILE_SIZE - 100))
    built = build(store, sidecar, jobs=5, **SMALL)
    grow(store, messages)
    damaged.write_bytes(bytes(100) + b"\xff" * (FILE_SIZE - 100))
    more = build(store, sidecar, jobs=5, **SMALL)
    assert more.from_offset == built.to_offset > 2 * FILE_SIZE
    check_as_new(store, sidecar, tmp_path / "new")
    damaged.write_bytes(good)  # from a copy elsewhere
    assert build(store, sidecar, jobs=5, **SMALL).messages == 120
    check_as_new(store, sidecar, tmp_path / "new")


def test_a_log_file_that_is_there_again_is_indexed(tmp_path):
    messages = records(120)
    store, sidecar = begin_store(tmp_path / "store", messages), tmp_path / "sidecar"
    for missing in sorted((store / "commitlog").iterdir())[:2]:
        data = missing.read_bytes()
        missing.unlink()
        try_build(store, sidecar)
        missing.write_bytes(data)
        try_build(store, sidecar)
        check_as_new(store, sidecar, tmp_path / "new")
        check_answered(store, sidecar, messages)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 3])


@pytest.mark.parametrize("spoil", [Path.unlink, cut])
@pytest.mark.parametrize("kind", ["index", "times"])
def test_files_that_cannot_be_gone_on_with_are_made_anew(tmp_path, kind: str, spoil: Callable[[Path], None]):
    store, sidecar = begin_store(tmp_path / "store", records(40)), tmp_path / "sidecar"
    try_build(store, sidecar)
    for path in (sidecar / kind).iterdir():
        spoil(path)
    grow(store, records(70))
    try_build(store, sidecar)
    check_as_new(store, sidecar, tmp_path / "new")


@pytest.mark.parametrize("spoil", [Path.unlink, cut, lambda path: path.write_bytes(bytes(200))])
def test_queues_that_cannot_be_gone_on_with_are_made_anew(tmp_path, spoil: Callable[[Path], None]):
    store, sidecar = begin_store(tmp_path / "store", records(40)), tmp_path / "sidecar"
    try_build(store, sidecar)
    spoil(max((sidecar / "consumequeue/T/0").iterdir()))
    grow(store, records(70))
    try_build(store, sidecar)
    check_as_new(store, sidecar, tmp_path / "new")


def test_a_foreign_file_in_a_queue_is_left_alone(tmp_path):
    """A network disk gives files that are deleted while they are open such names."""
    store, sidecar = begin_store(tmp_path / "store", records(40)), tmp_path / "sidecar"
    try_build(store, sidecar)
    foreign = sidecar / "consumequeue/T/0/zz.nfs0001"
    foreign.write_bytes(b"foreign")
    grow(store, records(70))
    try_build(store, sidecar)
    assert foreign.read_bytes() == b"foreign"
    foreign.unlink()
    check_as_new(store, sidecar, tmp_path / "new")
