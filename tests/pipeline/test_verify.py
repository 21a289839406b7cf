"""Verify: what brokers wrote is healthy, and nothing that whence built can change unnoticed."""

import tempfile
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.golden import CLEAN, CRASHED, DIRECT, GoldenStore
from tests.pipeline.test_build import OneByOne, build, settings_of
from tests.reference import PREPARED, ROLLBACK, Record, build_index, encode_blank, encode_record
from tests.store_maker import FILE_SIZE, T, make_store, message, place, write_index
from whence.files.disk import Disk
from whence.formats.rocketmq.checkpoint import Checkpoint, encode_checkpoint
from whence.pipeline.verify import Verified, Verify, VerifyPlace, VerifySettings, work_folder
from whence.store.commit_log import CommitLog
from whence.store.findings import LISTED_MAX, FindingKind
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar


def verify_store(store: GoldenStore, folder: Path, *, jobs: int | None = None) -> Verified:
    """Verify the files of a broker."""
    place = VerifyPlace(folder, folder.with_name("no.whence"), folder, is_live=(folder / "abort").exists())
    settings = VerifySettings(dialect=Dialect(store.dialect), jobs=jobs)
    return run(place, settings)


def run(place: VerifyPlace, settings: VerifySettings) -> Verified:
    log = CommitLog(place.store / "commitlog")
    try:
        with work_folder(place.sidecar, is_local=True) as work:
            return Verify(log, place, settings, OneByOne(), work, Disk()).run()
    finally:
        log.close()


def verify_sidecar(store: GoldenStore, folder: Path, sidecar: Path, *, jobs: int | None = None) -> Verified:
    """Verify what a build made."""
    claim = read_sidecar(sidecar)
    assert claim is not None
    place = VerifyPlace(folder, sidecar, sidecar, claim.index_names, claim.indexed_to, claim, is_exact=True)
    settings = VerifySettings(claim.shape, claim.dialect, claim.queue_file_size, jobs=jobs)
    return run(place, settings)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_build_of_a_log_of_blanks_alone_is_healthy(tmp_path, count):
    store, sidecar = tmp_path / "store", tmp_path / "sidecar"
    (store / "commitlog").mkdir(parents=True)
    for number in range(max(count, 1)):
        blank = encode_blank(FILE_SIZE) if number < count else b""
        (store / "commitlog" / f"{FILE_SIZE * number:020d}").write_bytes(blank.ljust(FILE_SIZE, b"\0"))
    shape, dialect, queue_file_size = Shape(7, 20), Dialect.V5_5, 200
    built = build(store, sidecar, shape=shape, dialect=dialect, queue_file_size=queue_file_size)
    assert built.messages == 0
    claim = read_sidecar(sidecar)
    assert claim is not None
    place = VerifyPlace(store, sidecar, sidecar, claim.index_names, claim.indexed_to, claim, is_exact=True)
    found = run(place, VerifySettings(shape, dialect, queue_file_size))
    assert (found.damage, found.is_healthy) == ([], True)


@pytest.mark.parametrize("jobs", [1, 7])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_what_a_broker_wrote_is_healthy(golden, name, jobs):
    found = verify_store(golden(name), golden(name).store, jobs=jobs)
    assert found.damage == []
    assert found.is_healthy
    assert found.messages == len(golden(name).records)
    assert found.items == sum(header["index_count"] - 1 for header in golden(name).headers)


@pytest.mark.parametrize("asked", Dialect)
@pytest.mark.parametrize("name", ["v4-clean", "v53-clean", "v5-clean"])
def test_the_dialect_that_is_told_is_the_one_that_is_seen(golden, name, asked):
    store = golden(name).store
    found = run(place_of(store), VerifySettings(dialect=asked))
    assert found.damage == []
    assert found.dialect == golden(name).dialect


TWICE = "items are there twice, as after a restart of the broker"


@pytest.mark.parametrize(
    ("name", "habits", "missing", "log_damage"),
    [
        ("v4-recovered", [f"2 {TWICE}", "776 items of tags or half messages are left out"], 0, []),
        ("v53-recovered", [f"2 {TWICE}", "1106 items of tags or half messages are left out"], 0, []),
        ("v5-recovered-a", [f"3 {TWICE}"], 0, []),
        ("v5-recovered-b", [], 1035, []),
        ("v5-damaged-body-flip", [], 1035, ["records_behind_end"]),
        ("v5-damaged-half-record", [f"3 {TWICE}"], 0, ["half_record"]),
        ("v5-damaged-lost-page", [f"3 {TWICE}"], 0, []),
    ],
)
def test_what_a_broker_leaves_after_a_crash_is_told_apart_from_damage(golden, name, habits, missing, log_damage):
    """It repeats the message at which it begins again, and leaves a hole where that is too far on."""
    found = verify_store(golden(name), golden(name).store)
    assert [finding.kind for finding in found.log_damage] == log_damage
    assert found.index == ({"missing": missing} if missing else {})
    assert found.is_healthy is not (missing or log_damage)
    assert len(found.habits) == len(habits)
    assert all(habit.startswith(expected) for habit, expected in zip(found.habits, habits, strict=True))
    assert found.dialect == golden(name).dialect
    assert found.queues == {}
    is_half = name == "v5-damaged-half-record"  # its time is in the checkpoint
    assert [finding.kind for finding in found.checkpoint_findings] == (["wrong_checkpoint"] if is_half else [])
    listed = [finding for finding in found.damage if finding not in found.log_damage + found.checkpoint_findings]
    assert len(listed) == min(missing, LISTED_MAX)
    if missing:
        assert found.unlisted == missing - LISTED_MAX
        assert len(listed) + found.unlisted == missing
        assert listed[0].path.name == sorted(path.name for path in (golden(name).store / "index").iterdir())[-1]


@pytest.mark.parametrize("jobs", [1, 7])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_what_was_built_is_healthy(golden, tmp_path, name, jobs):
    store = golden(name)
    build(store.store, tmp_path / "sidecar", **settings_of(store))
    before = files_of(tmp_path)
    found = verify_sidecar(store, store.store, tmp_path / "sidecar", jobs=jobs)
    assert found.damage == []
    assert files_of(tmp_path) == before


# -- made stores


def place_of(folder: Path, *, is_live: bool = False) -> VerifyPlace:
    return VerifyPlace(folder, folder.with_name("no.whence"), folder, is_live=is_live)


def messages(count: int) -> list[Record]:
    return [message(keys=f"k{number}", tags="t", queue=number % 2, at=1000 * number) for number in range(count)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_index_that_lags_behind_is_late_while_a_broker_runs_and_damaged_otherwise(tmp_path, jobs):
    made = make_store(tmp_path / "store", messages(30), items=10, indexed=25)
    found = run(place_of(made.folder, is_live=True), VerifySettings(jobs=jobs))
    assert found.damage == []
    assert found.habits == ("10 items are not in the index yet: the broker runs, or was killed",)
    found = run(place_of(made.folder), VerifySettings(jobs=jobs))
    assert found.index == {"missing": 5}  # and five tags, which need not be there


def test_half_messages_may_be_indexed_or_not(tmp_path):
    records = [*messages(5), *(message(keys=f"half{n}", sys_flag=PREPARED) for n in range(5)), *messages(5)]
    made = make_store(tmp_path / "all", records)
    assert run(place_of(made.folder), VerifySettings()).damage == []
    some = make_store(tmp_path / "some", records, indexed=0)
    write_index(some.folder, build_index([r for r in some.records if not r.sys_flag], "5.5", 7, 20))
    assert run(place_of(some.folder), VerifySettings()).damage == []


def test_a_rollback_record_bears_no_key(tmp_path):
    made = make_store(tmp_path / "store", [*messages(5), message(keys="gone", sys_flag=ROLLBACK), *messages(5)])
    assert run(place_of(made.folder), VerifySettings()).damage == []


def test_brokers_before_4_7_1_count_every_put(tmp_path):
    made = make_store(tmp_path / "store", messages(30), items=10)
    for path in made.index_files:
        data = bytearray(path.read_bytes())
        data[32:36] = (int.from_bytes(data[36:40], "big") - 1).to_bytes(4, "big")
        path.write_bytes(data)
    found = run(place_of(made.folder), VerifySettings())
    assert found.damage == []
    assert found.habits == ("slot counts of the index count every item, as brokers before 4.7.1 do",)


def test_files_whose_names_a_clock_that_was_put_back_gave_are_healthy(tmp_path):
    made = make_store(tmp_path / "store", messages(30), items=10)
    names = [path.name for path in made.index_files]
    for number, path in enumerate(made.index_files):
        path.rename(path.with_name(f"aside{number}"))
    for number, name in enumerate(names[1:] + names[:1]):
        (made.folder / "index" / f"aside{number}").rename(made.folder / "index" / name)
    assert run(place_of(made.folder), VerifySettings()).damage == []


def test_a_store_without_any_index_lacks_it(tmp_path):
    made = make_store(tmp_path / "store", messages(10), indexed=0, queues=False)
    found = run(place_of(made.folder), VerifySettings())
    assert found.index == {"missing": 20}
    assert found.queues == {"missing": 10}
    assert found.to_dict()["indexes"] == {"items": 0, "files": 0, "missing": 20, "dangling": 0, "wrong": 0}


def test_an_empty_store_is_healthy(tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    found = run(place_of(tmp_path / "store"), VerifySettings())
    assert (found.damage, found.messages, found.items) == ([], 0, 0)
    made = make_store(tmp_path / "bare", [message() for _ in range(3)])
    assert run(place_of(made.folder), VerifySettings()).damage == []


@pytest.mark.parametrize(
    ("checkpoint", "positions"),
    [
        (Checkpoint(T + 9000, T + 9000, T, 0, 0, 500), []),
        (Checkpoint(), []),
        (Checkpoint(T + 9001, T + 9000, T, 0, 0, 500), [0]),
        (Checkpoint(T, T, T + 9001, 0, 2**40, 2**40), [16, 32, 40]),
    ],
)
def test_a_checkpoint_is_not_ahead_of_the_log(tmp_path, checkpoint, positions):
    made = make_store(tmp_path / "store", messages(10))
    (made.folder / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    found = run(place_of(made.folder), VerifySettings())
    assert [(finding.kind, finding.position) for finding in found.damage] == [
        ("wrong_checkpoint", position) for position in positions
    ]
    (made.folder / "checkpoint").write_bytes(b"short")
    assert [finding.kind for finding in run(place_of(made.folder), VerifySettings()).damage] == ["unreadable"]


def test_an_index_of_another_store_leads_nowhere(tmp_path):
    made = make_store(tmp_path / "store", messages(30), items=100)
    other = make_store(tmp_path / "other", [message(keys=f"x{n}", body=b"longer" * n) for n in range(25)], items=100)
    made.index_files[0].write_bytes(other.index_files[0].read_bytes())
    found = run(place_of(made.folder), VerifySettings())
    assert found.index[FindingKind.MISSING] == 30
    assert found.index[FindingKind.DANGLING] > 0


def test_a_file_in_the_making_is_none_yet(tmp_path):
    made = make_store(tmp_path / "store", messages(10))
    (made.folder / "index" / "20270101120000000").write_bytes(b"")
    (made.folder / "consumequeue" / "T" / "0" / f"{10000:020d}").write_bytes(b"")
    assert run(place_of(made.folder, is_live=True), VerifySettings()).damage == []
    assert {finding.kind for finding in run(place_of(made.folder), VerifySettings()).damage} == {"wrong_size"}


def test_a_body_that_holds_whole_records_fools_no_stretch(tmp_path):
    """As a body that is a copy of a part of a log, whose offsets and checksums are right where it lies."""
    records = place(messages(12), file_size=1 << 18)
    inner = b"".join(encode_record(record) for record in records)
    outer = message(keys="outer", body=inner * 100)
    made = make_store(tmp_path / "store", [*messages(3), outer, *messages(3)], file_size=1 << 18)
    found = run(place_of(made.folder), VerifySettings(jobs=7))
    assert found.damage == []
    assert found.messages == 7


# -- the work folder


@pytest.mark.parametrize("is_there", [False, True])
def test_the_work_of_a_verify_on_a_cluster_lies_in_the_sidecar_and_leaves_nothing(tmp_path, is_there):
    sidecar = tmp_path / "store.whence"
    if is_there:
        sidecar.mkdir()
    with work_folder(sidecar, is_local=False) as work:
        assert work.parent == sidecar
        (work / "spill").write_bytes(b"rows")
    assert list(tmp_path.iterdir()) == ([sidecar] if is_there else [])
    assert not is_there or not list(sidecar.iterdir())


def test_a_work_folder_that_another_verify_takes_for_left_behind_is_made_again(tmp_path, monkeypatch):
    """Between its making and its lock nothing tells them apart."""
    made: list[str] = []

    def make(**given: Any) -> str:
        made.append(mkdtemp(**given))
        folder = made[-1]
        if len(made) == 1:
            with work_folder(tmp_path, is_local=True):
                assert not Path(folder).exists()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with work_folder(tmp_path, is_local=True) as work:
        assert work.is_dir()
        assert (str(work), len(made)) == (made[-1], 3)
    assert not list(tmp_path.iterdir())
