"""Verify: what brokers wrote is healthy, and nothing that whence built can change unnoticed."""

from pathlib import Path

import pytest

from tests.golden import CLEAN, CRASHED, DIRECT, GoldenStore
from tests.pipeline.test_build import OneByOne, build, settings_of
from whence.files.disk import Disk
from whence.pipeline.verify import Verified, Verify, VerifyPlace, VerifySettings, work_folder
from whence.store.commit_log import CommitLog
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


@pytest.mark.parametrize("jobs", [1, 7])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_what_a_broker_wrote_is_healthy(golden, name, jobs):
    found = verify_store(golden(name), golden(name).store, jobs=jobs)
    assert found.damage == []
    assert found.is_healthy
    assert found.messages == len(golden(name).records)
    assert found.items == sum(header["index_count"] - 1 for header in golden(name).headers)


@pytest.mark.parametrize("name", ["v4-recovered", "v53-recovered", "v5-recovered-a", "v5-recovered-b"])
def test_recovery(golden, name):
    found = verify_store(golden(name), golden(name).store)
    print(found.to_dict())
    assert found.is_healthy is (name != "v5-recovered-b")


@pytest.mark.parametrize("name", ["v5-damaged-body-flip", "v5-damaged-half-record", "v5-damaged-lost-page"])
def test_damaged(golden, name):
    found = verify_store(golden(name), golden(name).store)
    d = found.to_dict()
    d["damage"] = d["damage"][:4]
    print(d)


@pytest.mark.parametrize("jobs", [1, 7])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_what_was_built_is_healthy(golden, tmp_path, name, jobs):
    store = golden(name)
    build(store.store, tmp_path / "sidecar", **settings_of(store))
    before = files_of(tmp_path)
    found = verify_sidecar(store, store.store, tmp_path / "sidecar", jobs=jobs)
    assert found.damage == []
    assert files_of(tmp_path) == before
