"""A log that is not there, as where its disk is not mounted: what was made of it stays."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import whence
from tests.pipeline.test_repair import files_in, repair, verify, without_spark
from tests.pipeline.test_verify import files_of
from tests.store_maker import make_store, message
from whence.errors import StoreError
from whence.files.disk import Disk
from whence.pipeline.follow_plan import FollowPlan, Ticket
from whence.pipeline.jobs import BuildOptions, build_indexes
from whence.store.commit_log import CommitLog
from whence.store.follower import Follower, FollowSettings
from whence.store.sidecar import read_sidecar

__all__ = ["without_spark"]

GONE = r"^{}: the log reached to offset [0-9]+ and is gone; is its disk mounted\?$"


def lose_files(log: Path) -> None:
    for path in log.iterdir():
        path.unlink()


def empty_files(log: Path) -> None:
    for path in log.iterdir():
        path.write_bytes(b"")


@pytest.fixture(params=[lose_files, empty_files])
def lose(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    function: Callable[[Path], None] = request.param
    return function


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", [message(keys=f"key-{n}") for n in range(30)], items=20).folder


def check_refused(store: Path, job: Callable[[], object]) -> None:
    """An error tells that the log is gone, and all is left as it is."""
    before = files_without_locks(store.parent)
    with pytest.raises(StoreError, match=GONE.format(store / "commitlog")):
        job()
    assert files_without_locks(store.parent) == before


def files_without_locks(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(folder).items() if not name.endswith(("/lock", "/abort"))}


@pytest.mark.parametrize("built", [None, {}, {"in_place": True}])
@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"in_place": True, "rebuild": True}])
def test_a_build_removes_nothing_where_the_log_is_gone(store, lose, built, options):
    if built is not None:
        build_indexes(store, BuildOptions(**built))
    lose(store / "commitlog")
    check_refused(store, lambda: build_indexes(store, BuildOptions(**options)))


MADE = ["store/index", "store/consumequeue", "store.whence/sidecar.json", "store.whence/index"]


@pytest.mark.parametrize("kept", MADE)
def test_each_thing_that_was_made_of_a_log_tells_that_it_was_there(store, lose, kept):
    build_indexes(store, BuildOptions())
    lose(store / "commitlog")
    for path in (*store.iterdir(), *store.with_name("store.whence").iterdir()):
        if path.is_dir() and path.name != "commitlog" and path != store.parent / kept:
            shutil.rmtree(path)
    if kept != "store.whence/sidecar.json":
        (store.with_name("store.whence") / "sidecar.json").unlink()
    check_refused(store, lambda: build_indexes(store, BuildOptions()))


def test_a_rebuild_makes_a_sidecar_anew_though_the_log_is_gone(store, lose):
    build_indexes(store, BuildOptions())
    index, queues = (files_of(store / kind) for kind in ("index", "consumequeue"))
    lose(store / "commitlog")
    assert build_indexes(store, BuildOptions(rebuild=True)).to_offset == 0
    assert files_in(store.with_name("store.whence"), "index") == []
    assert (files_of(store / "index"), files_of(store / "consumequeue")) == (index, queues)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"dry_run": True}])
def test_a_repair_removes_nothing_where_the_log_is_gone(store, lose, is_built, options):
    if is_built:
        build_indexes(store, BuildOptions())
    lose(store / "commitlog")
    check_refused(store, lambda: repair(store, **options))


@pytest.mark.parametrize("keys", ["", "k"])
def test_a_verify_tells_that_the_log_is_gone(tmp_path, lose, keys):
    store = make_store(tmp_path / "store", [message(keys=keys) for _ in range(30)], items=20).folder
    lose(store / "commitlog")
    found = verify(store)
    (finding,) = found.damage
    assert not found.is_badly_indexed  # which a repair would be said to mend
    assert (finding.kind, finding.path) == ("gap", store / "commitlog")
    assert "is gone; is its disk mounted?" in finding.detail


def test_an_empty_store_that_is_new_is_built_and_healthy(tmp_path):
    store = tmp_path / "store"
    for name in ("commitlog", "index", "consumequeue/T/0"):
        (store / name).mkdir(parents=True)
    (store / "consumequeue/T/0" / f"{0:020}").write_bytes(bytes(200))  # as a broker makes it ahead of need
    for options in ({}, {}, {"rebuild": True}, {"in_place": True}):
        assert build_indexes(store, BuildOptions(**options)).to_offset == 0
    assert verify(store).damage == []
    assert repair(store).is_healthy


def test_a_store_of_our_own_whose_log_is_gone_is_not_mended(tmp_path):
    with whence.create(tmp_path / "store", file_size=65536, slots=7, items=20, queue_file_size=200) as opened:
        opened.append("T", b"body", keys=["k"])
    lose_files(tmp_path / "store/commitlog")
    for job in (lambda: build_indexes(tmp_path / "store", BuildOptions()), lambda: repair(tmp_path / "store")):
        check_refused(tmp_path / "store", job)


def test_a_follower_waits_for_a_log_whose_files_are_empty(store, lose):
    """What it made of it stays until the log is there again."""
    sidecar = store.with_name("store.whence")
    claim = build_indexes(store, BuildOptions()).sidecar
    kept, before = files_of(store / "commitlog"), files_of(sidecar)
    lose(store / "commitlog")
    log = CommitLog(store / "commitlog")
    settings = FollowSettings(claim.shape, claim.dialect, claim.queue_file_size)
    follower = Follower(log, sidecar, settings, read_sidecar(sidecar), Disk())
    assert not follower.check()
    assert FollowPlan(CommitLog(store / "commitlog"), sidecar, None).latest(Ticket(7)) == Ticket(7)
    follower.close()
    assert files_of(sidecar) == before
    for name, data in kept.items():
        (store / "commitlog" / name).write_bytes(data)
    assert build_indexes(store, BuildOptions()).messages == 0
