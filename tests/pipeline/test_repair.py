"""Repair: after any damage to index, queues and sidecar all is as a fresh build makes it, and a verify is content."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import whence
from tests.disks import small_disk
from tests.golden import CLEAN, DAMAGED, DIRECT, RECOVERED, GoldenStore
from tests.pipeline.test_build import OneByOne
from tests.pipeline.test_verify import files_of
from tests.store_maker import make_store, message
from whence.errors import LockedError, StoreError, UsageError
from whence.files.disk import Disk
from whence.files.lock import StoreLock
from whence.formats.rocketmq.checkpoint import decode_checkpoint, encode_checkpoint
from whence.pipeline import jobs, verify_jobs
from whence.pipeline.jobs import BuildOptions, JobOptions, build_indexes
from whence.pipeline.judged import RepairOptions
from whence.pipeline.repair import Repaired
from whence.pipeline.verify import Verified
from whence.pipeline.verify_jobs import repair_indexes, verify_indexes
from whence.store.findings import LISTED_MAX, FindingKind
from whence.store.message_store import Dialect


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process: what Spark does with them is tested elsewhere."""

    @contextmanager
    def no_session(*_: object, **__: object) -> Iterator[None]:
        yield None

    for module in (jobs, verify_jobs):
        monkeypatch.setattr(module, "open_session", no_session)
        monkeypatch.setattr(module, "Runner", lambda spark, watcher: OneByOne())


def copy_of(golden: GoldenStore, folder: Path) -> Path:
    return golden.copy(folder)


def build(store: Path) -> None:
    build_indexes(store, BuildOptions())


def verify(store: Path) -> Verified:
    return verify_indexes(store, JobOptions())


def repair(store: Path, **options) -> Repaired:
    return repair_indexes(store, RepairOptions(**options))


def built_files(folder: Path) -> dict[str, bytes]:
    """All that a build made, without the lock."""
    return {name: data for name, data in files_of(folder).items() if name != "lock"}


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def files_in(folder: Path, kind: str) -> list[Path]:
    if (folder / kind).is_file():
        return [folder / kind]
    return sorted(path for path in (folder / kind).rglob("*") if path.is_file())


Damage = Callable[[Path], None]


def deleted(kind: str, number: int) -> Damage:
    return lambda folder: files_in(folder, kind)[number].unlink()


def changed(kind: str, number: int, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        path = files_in(folder, kind)[number]
        path.write_bytes(change(path.read_bytes()))

    return damage


def all_deleted(kind: str) -> Damage:
    def damage(folder: Path) -> None:
        for path in files_in(folder, kind):
            path.unlink()

    return damage


def claim(**members: object) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "sidecar.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | members))

    return damage


def more(member: str, count: int) -> Damage:
    def damage(folder: Path) -> None:
        claim(**{member: json.loads((folder / "sidecar.json").read_text())[member] + count})(folder)

    return damage


def same_size(folder: Path) -> None:
    document = json.loads((folder / "sidecar.json").read_text())
    claim(slots=document["slots"] + 5, items=document["items"] - 1)(folder)


def wrong_newest(folder: Path) -> None:
    document = json.loads((folder / "sidecar.json").read_text())
    document["newest_index"]["end_timestamp_ms"] += 1
    (folder / "sidecar.json").write_text(json.dumps(document))


def up_to_newest(folder: Path) -> None:
    """Up to where the newest index file begins."""
    document = json.loads((folder / "sidecar.json").read_text())
    claim(indexed=[[0, document["newest_index"]["begin_physical_offset"]]])(folder)


def extra_index_file(folder: Path) -> None:
    path = files_in(folder, "index")[-1]
    path.with_name(str(int(path.name) + 1)).write_bytes(path.read_bytes())


NOBODYS = (bytes(6) + b"\1" * 14) * 100  # entries that lead to offset 257

DAMAGES: dict[str, Damage] = {
    "first index file deleted": deleted("index", 0),
    "index file in the middle deleted": deleted("index", 2),
    "last index file deleted": deleted("index", -1),
    "all index files deleted": all_deleted("index"),
    "index file empty": changed("index", 1, lambda data: b""),
    "index file cut": changed("index", 1, lambda data: data[:-100]),
    "index file longer": changed("index", 1, lambda data: data + b"\0"),
    "index file zero": changed("index", 1, lambda data: bytes(len(data))),
    "index header zero": changed("index", 1, lambda data: bytes(40) + data[40:]),
    "index header garbage": changed("index", 1, lambda data: b"\x7f" * 40 + data[40:]),
    "last index header zero": changed("index", -1, lambda data: bytes(40) + data[40:]),
    "index page lost": changed("index", 1, lambda data: data[:1000] + bytes(1000) + data[2000:]),
    "two index files swapped": lambda folder: _swap(*files_in(folder, "index")[1:3]),
    "index file renamed": lambda folder: _rename(files_in(folder, "index")[1]),
    "extra index file": extra_index_file,
    "queue file deleted": deleted("consumequeue", 3),
    "all queue files deleted": all_deleted("consumequeue"),
    "queue file empty": changed("consumequeue", 0, lambda data: b""),
    "queue file cut": changed("consumequeue", 0, lambda data: data[:-7]),
    "queue file zero": changed("consumequeue", 0, lambda data: bytes(len(data))),
    "queue file garbage": changed("consumequeue", 0, lambda data: b"\xa5" * len(data)),
    "queue file of nobody": lambda folder: _write(folder / "consumequeue/Nobody/0" / f"{0:020d}", NOBODYS),
    "times deleted": deleted("times", 0),
    "times cut": changed("times", 0, lambda data: data[:-1]),
    "times changed": changed("times", 0, lambda data: data[:5] + b"\xff" + data[6:]),
    "times of nobody": lambda folder: _write(folder / "times" / f"{65536 * 1000:020d}", b"\1" * 20),
    "sidecar.json deleted": lambda folder: (folder / "sidecar.json").unlink(),
    "sidecar.json empty": lambda folder: _write(folder / "sidecar.json", b""),
    "sidecar.json garbage": lambda folder: _write(folder / "sidecar.json", b"\xff\xfe{"),
    "sidecar.json with another header": wrong_newest,
    "sidecar.json without index files": claim(index_files=[]),
    "sidecar.json with other stretches": claim(indexed=[[0, 100], [200, 300]]),
    "sidecar.json without stretches": claim(indexed=[]),
    "sidecar.json that ends at an earlier record": up_to_newest,
    "sidecar.json with another size of the queues": claim(queues_size=5),
    "sidecar.json with more slots": claim(slots=8),
    "sidecar.json with more items": more("items", 1),
    "sidecar.json with fewer items": more("items", -1),
    "sidecar.json with other slots and items of the same size": same_size,
    "sidecar.json with another dialect": claim(dialect="4.9"),
    "sidecar.json with larger queue files": more("queue_file_size", 20),
    "sidecar.json with smaller queue files": more("queue_file_size", -40),
    "sidecar.json with other topics": claim(other_topics=["a/b"]),
    "sidecar.json of another log": claim(last_record={"offset": 0, "head": "00" * 20}),
}


def _swap(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def _rename(path: Path) -> None:
    path.rename(path.with_name(str(int(path.name) + 1)))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def built(golden, tmp_path) -> Path:
    store = copy_of(golden("v5-direct"), tmp_path)
    build(store)
    return store


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_was_built_is_as_a_fresh_build_again(built, damage):
    sidecar = built.with_name("store.whence")
    fresh, log = built_files(sidecar), files_of(built)
    assert verify(built).damage == []
    damage(sidecar)
    broken = files_of(sidecar)
    found = verify(built)
    assert not found.is_healthy
    assert files_of(sidecar) == broken
    repaired = repair(built)
    assert repaired.is_healthy
    assert repaired.mended
    assert verify(built).damage == []
    assert built_files(sidecar) == fresh
    assert files_of(built) == log


@pytest.mark.parametrize("member", [{"dialect": "4.9"}, {"slots": 8}, {"items": 21}, {"queue_file_size": 6_000_020}])
def test_a_wrong_claim_about_a_single_file_is_told_by_what_a_build_would_choose(tmp_path, member):
    """The file is one witness, and the claim another."""
    store = make_store(tmp_path / "store", [message(keys=f"k{n}", tags="t") for n in range(8)], queues=False).folder
    build(store)
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    claim(**member)(sidecar)
    (finding,) = verify(store).damage
    assert (finding.path.name, finding.kind) == ("sidecar.json", "wrong_claim")
    assert len(repair(store).mended) == 1
    assert built_files(sidecar) == fresh
    for path in (files_in(sidecar, "index")[0], files_in(sidecar, "consumequeue")[0]):
        path.write_bytes(path.read_bytes()[:-100])  # it has the size that another shape would give it
    assert not verify(store).is_healthy
    repair(store)
    assert built_files(sidecar) == fresh


def test_an_index_without_tags_is_not_taken_for_one_with_them(golden, tmp_path):
    store = copy_of(golden("v5-direct"), tmp_path)
    build_indexes(store, BuildOptions(dialect=Dialect.V4_9))
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    assert verify(store).damage == []
    claim(dialect="5.5")(sidecar)
    assert [finding.kind for finding in verify(store).damage] == ["wrong_claim"]
    repair(store)
    assert verify(store).damage == []
    told = {"sidecar.json": b"4.9 or 5.3, which make the same files"}
    assert built_files(sidecar) | told == fresh | told


def test_topics_that_no_folder_can_be_named_after_are_known_to_the_sidecar(tmp_path):
    """Without that a question that names no topic would not look for them."""
    topics = ["a/b", "T", "a/b", "T", ".."]
    store = make_store(tmp_path / "store", [message(topic=topic, keys="k") for topic in topics], queues=False).folder
    shutil.rmtree(store / "index")
    build(store)
    with whence.open(store) as opened:
        assert [found.topic for found in opened.find(key="k").messages] == topics[::-1]
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    claim(other_topics=["a/b"])(sidecar)
    assert [finding.kind for finding in verify(store).damage] == ["wrong_claim"]
    repair(store)
    assert verify(store).damage == []
    assert built_files(sidecar) == fresh


def test_more_damaged_time_blocks_than_are_listed_of_one_file_are_all_mended(tmp_path):
    """One task checks those of many files of the log."""
    count = LISTED_MAX + 10
    records = [message(keys=f"k{number}", body=b"b" * 1500) for number in range(count)]
    store = make_store(tmp_path / "store", records, file_size=2048, items=100, queues=False).folder
    build(store)
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    shutil.rmtree(sidecar / "times")
    found = verify(store)
    assert len({finding.path for finding in found.damage}) == len(repair(store).mended) == count
    assert verify(store).damage == []
    assert built_files(sidecar) == fresh


@pytest.mark.slow
def test_any_changed_byte_of_a_sidecar_is_found_and_mended(built):
    sidecar = built.with_name("store.whence")
    fresh = built_files(sidecar)
    chosen = random.Random(7)
    for _ in range(60):
        path = chosen.choice(
            [path for kind in ("index", "consumequeue", "times") for path in files_in(sidecar, kind)]
        )
        flip(path, chosen.randrange(path.stat().st_size), 1 << chosen.randrange(8))
        assert not verify(built).is_healthy, path
        repair(built)
        assert built_files(sidecar) == fresh


def test_nothing_is_changed_where_nothing_is_damaged(built):
    before = built_files(built.with_name("store.whence"))
    repaired = repair(built)
    assert (repaired.mended, repaired.left, repaired.found) == ([], [], 0)
    assert built_files(built.with_name("store.whence")) == before


def test_a_dry_run_tells_and_changes_nothing(built):
    sidecar = built.with_name("store.whence")
    files_in(sidecar, "index")[1].unlink()
    before = files_of(sidecar)
    repaired = repair(built, dry_run=True)
    assert not repaired.is_healthy
    assert repaired.left[0].repair == "build this index file anew from the log"
    assert files_of(sidecar) == before


def hows(planned: Repaired) -> set[str]:
    return {finding.repair for finding in planned.left}


def test_a_dry_run_tells_what_a_repair_with_these_options_does(golden, tmp_path):
    store = copy_of(golden("v5-damaged-body-flip"), tmp_path)
    deleted("consumequeue", 0)(store)
    changed("checkpoint", 0, ahead_of_the_log)(store)
    sidecar = store.with_name("store.whence")
    cut, checkpoint = (
        "keep a copy of them aside and cut them off",
        "write it anew, with values that the log bears out",
    )
    queue, index = "build this queue anew from the log", "build this index file anew from the log"
    anew = f"build all indexes anew into {sidecar}"
    assert hows(repair(store, dry_run=True)) == {anew, f"with --cut-tail, {cut}", f"with --in-place, {checkpoint}"}
    in_place = {"in_place": True, "dry_run": True}
    assert hows(repair(store, **in_place)) == {queue, index, f"with --cut-tail, {cut}", checkpoint}
    assert hows(repair(store, **in_place, cut_tail=True)) == {queue, index, cut, checkpoint}
    all_deleted("index")(store)
    assert hows(repair(store, **in_place, cut_tail=True)) == {queue, "build the index", cut, checkpoint}
    assert hows(repair(store, dry_run=True)) == {anew, f"with --cut-tail, {cut}", f"with --in-place, {checkpoint}"}
    assert not sidecar.exists()
    repair(store)
    assert hows(repair(store, **in_place)) == {queue, "build the index", f"with --cut-tail, {cut}", checkpoint}
    assert hows(repair(store, dry_run=True)) == {f"with --cut-tail, {cut}"}


def test_verify_and_repair_count_the_same(golden, tmp_path):
    store = copy_of(golden("v5-direct"), tmp_path)
    build(store)
    changed("index", 2, lambda data: data[:1000] + bytes(len(data) - 1000))(store.with_name("store.whence"))
    all_deleted("consumequeue")(store.with_name("store.whence"))
    found = verify(store)
    planned, repaired = repair(store, dry_run=True), repair(store)
    assert found.unlisted > 0
    for each in (planned, repaired):
        assert (each.found, each.unlisted) == (len(found.damage) + found.unlisted, found.unlisted)
        assert each.to_dict()["unlisted"] == found.unlisted


def test_a_dry_run_after_a_killed_follower_tells_that_repair_puts_that_right_first(built):
    sidecar = built.with_name("store.whence")
    claim(growing=True)(sidecar)
    before = files_of(sidecar)
    planned = repair(built, dry_run=True)
    assert (planned.found, planned.is_healthy) == (1, False)
    assert hows(planned) == {"put that right, and then mend what is damaged"}
    assert files_of(sidecar) == before
    with StoreLock(sidecar / "lock"), pytest.raises(LockedError, match="end that whence follow"):
        repair(built, dry_run=True)
    assert repair(built).is_healthy
    assert verify(built).is_healthy


@pytest.mark.parametrize("place", [".", "sub", "commitlog"])
def test_a_sidecar_in_the_store_is_refused_before_anything_is_written(golden, tmp_path, place):
    """Beside it, in a store of another's, not even a lock is left."""
    store = copy_of(golden("v5-clean"), tmp_path)
    files_in(store, "index")[0].unlink()
    before = sorted(store.rglob("*"))
    with pytest.raises(UsageError, match="lies in the store"):
        verify_indexes(store, JobOptions(out=store / place))
    for options in ({}, {"in_place": True}, {"dry_run": True}):
        with pytest.raises(UsageError, match="lies in the store"):
            repair(store, out=store / place, **options)
    assert sorted(store.rglob("*")) == before


# -- a log that grows and expires


def grown(golden: GoldenStore, folder: Path, count: int) -> tuple[Path, Callable[[], None]]:
    """A store that has the first files of its log, and what lets it have the others, too."""
    store = copy_of(golden, folder)
    later = sorted((store / "commitlog").iterdir())[count:]
    aside = folder / "later"
    aside.mkdir()
    for path in later:
        path.rename(aside / path.name)

    def grow() -> None:
        for path in later:
            (aside / path.name).rename(path)

    return store, grow


def test_what_the_log_got_since_the_build_is_no_damage(golden, tmp_path):
    store, grow = grown(golden("v5-direct"), tmp_path, 4)
    build(store)
    grow()
    assert verify(store).damage == []
    sidecar = store.with_name("store.whence")
    before = built_files(sidecar)
    for kind in ("index", "consumequeue", "times"):
        for path in files_in(sidecar, kind):
            flip(path, path.stat().st_size // 3)
    assert repair(store).is_healthy
    assert verify(store).damage == []
    assert built_files(sidecar) == before
    build(store)
    assert verify(store).damage == []
    shutil.rmtree(sidecar / "index")
    repair(store)
    fresh = built_files(sidecar)
    build_indexes(store, BuildOptions(rebuild=True))
    assert built_files(sidecar) == fresh


def test_what_expired_since_the_build_is_no_damage(golden, tmp_path):
    store = copy_of(golden("v5-direct"), tmp_path)
    build(store)
    for path in sorted((store / "commitlog").iterdir())[:5]:
        path.unlink()
    found = verify(store)
    assert found.damage == []
    assert found.from_offset == 5 * 16384
    sidecar = store.with_name("store.whence")
    before = built_files(sidecar)
    chosen = random.Random(3)
    for path in [*files_in(sidecar, "index")[3:], *files_in(sidecar, "times")[5:]]:
        flip(path, chosen.randrange(path.stat().st_size))
    assert not verify(store).is_healthy
    assert repair(store).is_healthy
    assert verify(store).damage == []
    after = built_files(sidecar)
    assert {name: data for name, data in after.items() if name not in before} == {}


# -- a broker's store

FOREIGN: dict[str, Damage] = {
    name: damage for name, damage in DAMAGES.items() if "sidecar" not in name and "times" not in name
}
for_brokers = pytest.mark.parametrize("damage", FOREIGN.values(), ids=FOREIGN)
HARMLESS = {"two index files swapped", "index file renamed", "extra index file"}
"""What is no damage to a broker's index: its files' names tell nothing, and it may have a stretch twice."""


@for_brokers
@pytest.mark.parametrize("in_place", [True, False])
def test_a_brokers_store_is_mended_itself_or_by_a_sidecar(golden, tmp_path, damage, in_place):
    store = copy_of(golden("v5-clean"), tmp_path)
    healthy = files_of(store)
    damage(store)
    broken = files_of(store)
    name = next(name for name, other in FOREIGN.items() if other is damage)
    assert verify(store).is_healthy is (name in HARMLESS), name
    assert files_of(store) == broken
    assert not store.with_name("store.whence").exists()
    repaired = repair(store, in_place=in_place)
    assert repaired.is_healthy
    found = verify(store)
    assert found.damage == []
    if not in_place:
        assert files_of(store) == broken
        assert (found.root == store) is (name in HARMLESS)
    elif name not in {*HARMLESS, "all queue files deleted"}:  # nothing tells their size then
        assert {name for name in files_of(store) if name.startswith("commitlog")} == {
            name for name in healthy if name.startswith("commitlog")
        }
        assert files_of(store / "consumequeue") == {
            name.removeprefix("consumequeue/"): data
            for name, data in healthy.items()
            if name.startswith("consumequeue/")
        }


@for_brokers
def test_a_store_that_was_built_in_place_is_as_it_was_again(golden, tmp_path, damage):
    store = copy_of(golden("v5-direct"), tmp_path)
    build_indexes(store, BuildOptions(in_place=True))
    assert verify(store).damage == []
    healthy = files_of(store)
    damage(store)
    is_grown = damage is extra_index_file or damage is FOREIGN["index file renamed"]  # as if a broker had gone on
    assert verify(store).is_healthy is is_grown
    assert repair(store, in_place=True).is_healthy
    assert verify(store).damage == []
    assert is_grown or files_of(store) == healthy


@pytest.mark.parametrize("name", CLEAN + DIRECT + RECOVERED + DAMAGED)
def test_a_brokers_store_is_healthy_once_it_is_mended(golden, tmp_path, name):
    store = copy_of(golden(name), tmp_path)
    is_crashed = (store / "abort").exists()
    was_healthy = verify(store).is_healthy
    repaired = repair(store, in_place=True, cut_tail=True)
    assert repaired.is_healthy
    assert bool(repaired.mended) is not was_healthy
    assert is_crashed or verify(store).damage == []


@pytest.mark.parametrize(
    "also",
    [
        lambda sidecar: None,
        deleted("index", 1),
        lambda sidecar: _write(sidecar / "sidecar.json", b"garbage"),
    ],
    ids=["a healthy sidecar", "a damaged sidecar", "a sidecar that nobody can believe"],
)
def test_a_brokers_store_is_mended_in_place_beside(golden, tmp_path, also):
    store = copy_of(golden("v5-clean"), tmp_path)
    deleted("index", 0)(store)
    deleted("consumequeue", 3)(store)
    repair(store)
    sidecar = store.with_name("store.whence")
    built = built_files(sidecar)
    also(sidecar)
    planned = repair(store, in_place=True, dry_run=True)
    repaired = repair(store, in_place=True)
    assert repaired.is_healthy
    assert planned.found == repaired.found
    mended = {Path(each.path).relative_to(store) for each in repaired.mended if store in Path(each.path).parents}
    assert {path.parts[0] for path in mended} == {"index", "consumequeue"}
    assert built_files(sidecar) == built
    assert verify(store).damage == []
    shutil.rmtree(sidecar)
    assert verify(store).damage == []


def test_an_index_that_is_built_in_place_takes_the_place_of_the_sidecars(golden, tmp_path):
    store = copy_of(golden("v5-clean"), tmp_path)
    build(store)
    all_deleted("index")(store)
    assert repair(store, in_place=True).is_healthy
    found = verify(store)
    assert (found.damage, found.root) == ([], store)


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_checkpoint_is_mended_whatever_becomes_of_the_index(golden, tmp_path, is_indexed):
    store = copy_of(golden("v5-clean"), tmp_path)
    changed("checkpoint", 0, ahead_of_the_log)(store)
    if not is_indexed:
        all_deleted("index")(store)
    shutil.copytree(store, tmp_path / "copy" / "store")
    assert repair(store, in_place=True).is_healthy
    assert verify(store).damage == []
    store = tmp_path / "copy" / "store"
    assert {finding.kind for finding in repair(store).left} == {"wrong_checkpoint"}


def ahead_of_the_log(data: bytes) -> bytes:
    times = dict.fromkeys(("log_timestamp_ms", "queue_timestamp_ms", "index_timestamp_ms"), 1 << 42)
    return encode_checkpoint(replace(decode_checkpoint(data), **times)).ljust(len(data), b"\0")


def test_a_hole_of_a_brokers_index_is_filled_with_what_a_broker_would_have_put(golden, tmp_path):
    store = copy_of(golden("v5-recovered-b"), tmp_path)
    repair(store, in_place=True)
    crashed = golden("v5-crashed-b").store
    mended, dispatched = files_in(store, "index"), files_in(crashed, "index")
    assert [path.read_bytes() for path in mended] == [path.read_bytes() for path in dispatched]


# -- the log


def test_a_torn_tail_is_cut_only_if_that_is_asked_for(golden, tmp_path):
    store = copy_of(golden("v5-damaged-body-flip"), tmp_path)
    log = files_of(store / "commitlog")
    repaired = repair(store, in_place=True)
    assert [finding.kind for finding in repaired.left] == ["records_behind_end"]
    assert files_of(store / "commitlog") == log
    with pytest.raises(UsageError, match="say --in-place"):
        repair(store, cut_tail=True)
    assert repair(store, in_place=True, cut_tail=True).is_healthy
    assert verify(store).damage == []
    cut = next((store.with_name("store.whence") / "cut").iterdir())
    name, end = f"{1048576:020d}", 1162291
    assert files_of(store / "commitlog")[name] == log[name][: end - 1048576].ljust(131072, b"\0")
    assert cut.read_bytes().rstrip(b"\0") == log[name][int(cut.name) - 1048576 :].rstrip(b"\0")


def test_damage_inside_the_log_stays_listed_and_the_indexes_agree_with_the_rest(golden, tmp_path):
    store = copy_of(golden("v5-direct-crc"), tmp_path)
    build(store)
    for path in sorted((store / "commitlog").iterdir())[1:5]:
        flip(path, 5000)
    found = verify(store)
    assert [finding.kind for finding in found.log_damage] == ["bad_record"] * 4
    assert found.index[FindingKind.DANGLING] > 0
    repaired = repair(store)
    assert [finding.kind for finding in repaired.left] == ["bad_record"] * 4
    assert [finding.kind for finding in verify(store).damage] == ["bad_record"] * 4
    (store / "commitlog" / f"{2 * 16384:020d}").unlink()
    assert {finding.kind for finding in verify(store).log_damage} == {"bad_record", "gap"}
    repair(store)
    assert {finding.kind for finding in verify(store).damage} == {"bad_record", "gap"}


# -- whence's own store


def own(folder: Path, count: int = 400) -> Path:
    with whence.create(folder / "store", file_size=16384, queue_file_size=1000, slots=31, items=120) as store:
        for number in range(count):
            store.append("orders", b"body", keys=[f"key-{number}"], tags="paid", queue=number % 3)
    return folder / "store"


OWN = {name: damage for name, damage in FOREIGN.items() if name not in ("extra index file", "index file renamed")}


@pytest.mark.parametrize("damage", OWN.values(), ids=OWN)
def test_a_store_of_our_own_is_as_it_was_again(tmp_path, damage):
    store = own(tmp_path)
    assert verify(store).damage == []
    healthy = files_of(store)
    damage(store)
    assert not verify(store).is_healthy
    repaired = repair(store)
    assert repaired.is_healthy
    assert verify(store).damage == []
    after = files_of(store)
    assert {name: data for name, data in after.items() if name != "whence.json"} == {
        name: data for name, data in healthy.items() if name != "whence.json"
    }
    with whence.create(store) as opened:
        assert opened.find(key="key-7", topic="orders").receipt.index_source == "whence"
        opened.append("orders", b"more", keys=["more"])
    assert verify(store).damage == []


def test_a_store_of_our_own_is_left_alone_where_only_its_sidecar_cannot_be_believed(tmp_path):
    store = own(tmp_path)
    build(store)
    sidecar = store.with_name("store.whence")
    files, built = files_of(store), built_files(sidecar)
    _write(sidecar / "sidecar.json", b"garbage")
    assert repair(store).is_healthy
    assert verify(store).damage == []
    assert files_of(store) == files
    assert built_files(sidecar) == built


def test_a_store_that_is_being_written_is_healthy(tmp_path):
    store = own(tmp_path)
    with whence.create(store) as opened:
        opened.append("orders", b"more", keys=["more"])
        found = verify(store)
        assert found.damage == []
        with pytest.raises(LockedError, match="holds this store"):
            repair(store)


# -- locks


def test_a_sidecar_that_is_being_built_is_not_mended(built):
    with StoreLock(built.with_name("store.whence") / "lock"), pytest.raises(LockedError, match="somebody is writing"):
        repair(built)


def test_a_store_whose_broker_runs_is_not_mended_in_place(golden, tmp_path):
    store = copy_of(golden("v5-clean"), tmp_path)
    with StoreLock(store / "lock"), pytest.raises(LockedError, match="somebody is writing"):
        repair(store, in_place=True)


def test_a_verify_leaves_nothing_behind_and_takes_away_what_others_left(built):
    sidecar = built.with_name("store.whence")
    (sidecar / "verify-killed").mkdir()
    (sidecar / "verify-running").mkdir()
    with StoreLock(sidecar / "verify-running" / "lock"):
        verify(built)
        assert {path.name for path in sidecar.glob("verify-*")} == {"verify-running"}


def test_a_sidecar_that_cannot_be_written_is_verified(golden, tmp_path):
    store = copy_of(golden("v5-direct"), tmp_path)
    with small_disk(tmp_path / "disk", 48 << 20) as disk:
        sidecar = disk / "sidecar"
        build_indexes(store, BuildOptions(out=sidecar))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (sidecar / "more").touch()
        found = verify_indexes(store, JobOptions(out=sidecar))
        assert (found.damage, found.root) == ([], sidecar)
        with pytest.raises(StoreError, match="Read-only"):
            repair_indexes(store, RepairOptions(out=sidecar))


# -- a repair that is killed


class Killed(Exception):
    pass


class KilledDisk(Disk):
    """Ends the process, as it were, at the rename of that number."""

    def __init__(self, left: int) -> None:
        self.left = left

    def rename(self, path: Path, target: Path) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        super().rename(path, target)


def test_a_repair_may_be_killed_at_any_step(built, monkeypatch):
    sidecar = built.with_name("store.whence")
    fresh = built_files(sidecar)
    for step in range(100):
        for kind in ("index", "consumequeue", "times"):
            for number in (1, 2):
                flip(files_in(sidecar, kind)[number], 0)
        with monkeypatch.context() as patch:
            patch.setattr(verify_jobs, "Disk", lambda step=step: KilledDisk(step))
            try:
                repair(built)
            except Killed:
                pass
            else:
                break
        repair(built)
        assert verify(built).damage == []
        assert built_files(sidecar) == fresh
    assert step > 5
    assert built_files(sidecar) == fresh


# -- anything


def damage_anything(root: Path, kinds: list[str], chosen: random.Random) -> None:
    """Change bytes, lose pages, cut, lengthen, delete, rename and mix up files."""
    for _ in range(chosen.choice([1, 1, 2, 5, 20])):
        kind = chosen.choice(kinds)
        files = files_in(root, kind)
        if not files:
            continue
        path = chosen.choice(files)
        data = bytearray(path.read_bytes())
        what = chosen.random() * (0.7 if kind == "checkpoint" else 1)  # it is one file, of any size
        if what < 0.6 and data:
            for _ in range(chosen.choice([1, 1, 3, 30])):
                data[chosen.randrange(len(data))] = chosen.randrange(256)
            path.write_bytes(data)
        elif what < 0.7 and data:
            begin = chosen.randrange(len(data))
            end = chosen.randrange(begin, len(data) + 1)
            data[begin:end] = bytes(end - begin) if chosen.random() < 0.5 else chosen.randbytes(end - begin)
            path.write_bytes(data)
        elif what < 0.75:
            path.unlink()
        elif what < 0.8:
            path.write_bytes(data[: chosen.randrange(len(data) + 1)])
        elif what < 0.85:
            path.write_bytes(data + chosen.randbytes(chosen.randrange(1, 50)))
        elif what < 0.95:
            path.write_bytes(chosen.choice(files).read_bytes())
        else:
            path.rename(path.with_name(str(int(path.name) + chosen.choice([1, 100, 2000])).zfill(len(path.name))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_some_damage_is_mended(golden, tmp_path, seed):
    mend_anything(golden, tmp_path, seed)


@pytest.mark.long(part=3, count=300)
def test_any_damage_is_mended(golden, tmp_path, long_count):
    for seed in range(long_count):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        mend_anything(golden, tmp_path, seed)


def mend_anything(golden: Callable[[str], GoldenStore], folder: Path, seed: int) -> None:
    """Damage a sidecar, or a broker's store, and mend it."""
    chosen = random.Random(seed)
    store = copy_of(golden(chosen.choice(["v5-direct", "v53-clean", "v5-clean"])), folder)
    in_place = chosen.random() < 0.5
    fresh: dict[str, bytes] = {}
    root, kinds = store, ["index", "index", "consumequeue", "checkpoint"]
    if not in_place:
        build(store)
        kinds.remove("checkpoint")
        root = store.with_name("store.whence")
        kinds.append("times")
        fresh = built_files(root)
    log = files_of(store / "commitlog")
    damage_anything(root, kinds, chosen)
    if not in_place:
        assert verify(store).is_healthy is (built_files(root) == fresh), seed
    assert repair(store, in_place=in_place).is_healthy, seed
    assert verify(store).damage == [], seed
    assert in_place or built_files(root) == fresh, seed
    assert files_of(store / "commitlog") == log
