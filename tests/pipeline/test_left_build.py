"""Verify and repair beside a build, and after one that was killed: what is ahead of sidecar.json is no damage."""

import shutil
from pathlib import Path

import pytest

from tests.disks import UnflushedDisk
from tests.pipeline.test_build import (
    SMALL,
    DyingDisk,
    DyingRunner,
    Killed,
    OneByOne,
    build,
    grow,
    published,
    unflushed,
)
from tests.pipeline.test_build_faults import begin_store, check_answered, records, try_build
from tests.pipeline.test_repair import files_in, flip, repair, verify, without_spark
from whence.errors import LockedError, StoreError
from whence.files.lock import StoreLock
from whence.pipeline import verify as verify_module
from whence.pipeline.jobs import BuildOptions, build_indexes
from whence.pipeline.left_build import let_go
from whence.store.index_file import Shape

__all__ = ["unflushed", "without_spark"]
KILLED = "a whence build was killed"


@pytest.fixture
def store(tmp_path):
    """A store that was built, and has more messages since: some of them for the files that are there."""
    store = begin_store(tmp_path / "store", records(40))
    build(store, tmp_path / "store.whence", **SMALL)
    grow(store, records(60))
    return store


@pytest.fixture
def sidecar(store):
    return store.with_name("store.whence")


def copied(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


ROOMY = SMALL | {"shape": Shape(7, 500)}  # one index file, which gets longer


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SMALL, ROOMY, SMALL | {"rebuild": True}], ids=["more files", "longer", "anew"])
def test_wherever_a_build_was_killed_nothing_is_told_damaged_and_all_is_put_right(tmp_path, settings):
    store, sidecar = begin_store(tmp_path / "store", records(40)), tmp_path / "store.whence"
    fresh = tmp_path / "fresh"
    build(store, sidecar, **settings)
    grow(store, records(60))
    build(store, fresh, **settings)
    before = copied(sidecar, tmp_path / "before")
    told = []
    for left in range(1000):
        copied(before, sidecar)
        if try_build(store, sidecar, disk=DyingDisk(left), **settings):
            break
        killed = copied(sidecar, tmp_path / "killed")
        try:
            told.append("" if verify(store).is_healthy else "damaged")
            assert repair(store, dry_run=True).is_healthy
        except StoreError as error:
            told.append(str(error))
            with pytest.raises(StoreError, match=KILLED):
                repair(store, dry_run=True)
        assert published(sidecar) == published(killed)
        build_indexes(store, BuildOptions(jobs=5))
        assert verify(store).is_healthy
        assert published(sidecar) == published(fresh)

        copied(killed, sidecar)
        assert repair(store).is_healthy
        assert verify(store).is_healthy
        check_answered(store, sidecar, records(60))
        build_indexes(store, BuildOptions(jobs=5))
        assert published(sidecar) == published(fresh)
    assert all(KILLED in each for each in told if each)
    assert told[0] == "" and "" in told[1:] and any(told)
    shutil.rmtree(tmp_path / "killed")


def test_a_build_that_was_killed_in_its_scan_hides_no_damage(store, sidecar):
    for left in (0, 1, 3):
        with pytest.raises(Killed):
            build(store, sidecar, DyingRunner(left), jobs=5, **SMALL)
        assert (sidecar / "work").is_dir()
        assert verify(store).is_healthy
        flip(files_in(sidecar, "index")[0], 60)
        assert not verify(store).is_healthy
        flip(files_in(sidecar, "index")[0], 60)


def test_verify_beside_a_build_that_publishes_says_so(store, sidecar, monkeypatch):
    scan = verify_module.Verify._scan

    def publishing(self):
        taken = scan(self)
        build_indexes(store, BuildOptions(jobs=5))
        return taken

    monkeypatch.setattr(verify_module.Verify, "_scan", publishing)
    with pytest.raises(StoreError, match="a whence build was at work there meanwhile"):
        verify(store)
    assert verify(store).is_healthy  # the next one has nothing to publish


def test_verify_beside_who_holds_the_sidecar_is_right_unless_something_is_damaged(store, sidecar):
    with StoreLock(sidecar / "lock"):
        assert verify(store).is_healthy
        flip(files_in(sidecar, "index")[0], 60)
        with pytest.raises(LockedError, match="is at work there"):
            verify(store)
    assert not verify(store).is_healthy


def test_what_is_let_go_of_is_gone_at_once(store, sidecar):
    try_build(store, sidecar, disk=DyingDisk(8))
    [left] = (sidecar / "work").iterdir()
    names = sorted(path.name for path in left.iterdir())
    assert any(name.endswith(".made") for name in names)
    let_go(sidecar, UnflushedDisk())
    assert not (sidecar / "work").exists()
    let_go(sidecar, UnflushedDisk())
    runner = OneByOne()
    build(store, sidecar, runner, **SMALL)
    assert "scan" in runner.ran
