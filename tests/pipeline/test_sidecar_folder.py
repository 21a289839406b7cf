"""The folder of a sidecar: what is in it already, and is not whence's, stays."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.pipeline.test_repair import without_spark
from tests.pipeline.test_verify import files_of
from tests.store_maker import make_store, message
from whence.errors import StoreError, UnsupportedError, UsageError
from whence.pipeline.build import Build
from whence.pipeline.follow_jobs import FollowOptions, follow_indexes
from whence.pipeline.jobs import BuildOptions, JobOptions, build_indexes
from whence.pipeline.judged import RepairOptions
from whence.pipeline.verify import work_folder
from whence.pipeline.verify_jobs import repair_indexes, verify_indexes
from whence.store.index_file import Shape
from whence.store.sidecar import read_sidecar

__all__ = ["without_spark"]

JOBS: list[Callable[[Path, Path], object]] = [
    lambda store, out: build_indexes(store, BuildOptions(out=out)),
    lambda store, out: build_indexes(store, BuildOptions(out=out, rebuild=True)),
    lambda store, out: build_indexes(store, BuildOptions(out=out, in_place=True)),
    lambda store, out: follow_indexes(store, FollowOptions(out=out), lambda state: None, threading.Event()),
    lambda store, out: verify_indexes(store, JobOptions(out=out)),
    lambda store, out: repair_indexes(store, RepairOptions(out=out)),
    lambda store, out: repair_indexes(store, RepairOptions(out=out, dry_run=True)),
]
USERS = ["work/thesis/ch1", "work/loose.txt", "verify-notes/n.txt", "index/2024", "times/2023", "consumequeue/a/b/7"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", [message(keys=f"key-{n}") for n in range(30)], items=20).folder


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"a user's own")
    return folder


@pytest.mark.parametrize("name", [*USERS, "notes.txt", "lock", "checkpoint", "sidecar.json.bak"])
@pytest.mark.parametrize("job", JOBS)
def test_a_folder_with_something_else_in_it_is_refused_and_stays_as_it_is(store, tmp_path, job, name):
    out = put(tmp_path / "out", name)
    before, first = files_of(store), name.partition("/")[0]
    with pytest.raises(UsageError, match=f"^--out {out}: is neither a sidecar nor empty, it has {first} in it; name"):
        job(store, out)
    assert files_of(out) == {name: b"a user's own"}
    assert files_of(store) == before


@pytest.mark.parametrize("job", JOBS)
def test_a_copy_of_a_brokers_index_is_no_sidecar(store, tmp_path, job):
    out = tmp_path / "copy"
    for name in ("index", "consumequeue"):
        shutil.copytree(store / name, out / name)
    before = files_of(out)
    with pytest.raises(UsageError, match="is neither a sidecar nor empty, it has consumequeue in it"):
        job(store, out)
    assert files_of(out) == before


def test_the_folder_beside_a_store_may_be_a_users_too(store):
    beside = put(store.with_name("store.whence"), *USERS)
    with pytest.raises(UsageError, match=f"^{beside}: is neither a sidecar nor empty, it has .*; name a new .*--out"):
        build_indexes(store, BuildOptions())
    assert set(files_of(beside)) == {*USERS}


def test_what_a_user_put_into_a_sidecar_stays(store):
    build_indexes(store, BuildOptions())
    beside, kept = store.with_name("store.whence"), ("work/thesis/ch1", "work/loose.txt", "verify-notes/n.txt")
    put(beside, *kept)
    left = ["work/0123456789abcdef", "work/fields-0123456789abcdef", "work/follow", "verify-empty"]
    for options in (BuildOptions(), BuildOptions(rebuild=True)):
        for name in left:
            (beside / name).mkdir(parents=True)
        build_indexes(store, options)
        with work_folder(beside, is_local=False):
            assert not any((beside / name).exists() for name in left)
        assert {*kept} <= {*files_of(beside)}


@pytest.mark.parametrize("moment", ["_prepare", "_publish", "_remove_others"])
def test_a_first_build_that_was_killed_is_gone_on_with(store, tmp_path, monkeypatch, moment):
    class KilledError(Exception):
        pass

    out, run = tmp_path / "out", getattr(Build, moment)

    def run_and_die(self, *given):
        run(self, *given) if moment == "_prepare" else None
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Build, moment, run_and_die)
        with pytest.raises(KilledError):
            build_indexes(store, BuildOptions(out=out))
    assert read_sidecar(out) is None
    assert (out / "index").exists() is (moment == "_remove_others")
    verify, *repairs = JOBS[4:]
    if moment == "_remove_others":
        with pytest.raises(StoreError, match="a whence build was killed"):
            verify(store, out)
    else:
        verify(store, out)
    for job in repairs:
        job(store, out)
    assert build_indexes(store, BuildOptions(out=out)).sidecar == read_sidecar(out)


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"lock": b""},
        {"lock": b"lock", "checkpoint/offsets/0": b"", "work/follow/1/x": b""},
        {"lock": b"lock", ".sidecar.json.new": b"{"},
        {"cut/00000000000000000000": b"a torn tail"},
        {"verify-abc/lock": b"lock", "verify-abc/spill": b""},
    ],
)
def test_what_others_left_that_were_killed_before_there_was_a_sidecar_is_no_strangers(store, tmp_path, left):
    out = tmp_path / "out"
    out.mkdir()
    for name, data in left.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    assert build_indexes(store, BuildOptions(out=out)).messages == 30


# Sidecars of other stores


def test_a_folder_that_is_the_sidecar_of_another_log_is_refused(store, tmp_path):
    other = make_store(tmp_path / "other", [message(keys="k", at=5000 + n) for n in range(40)]).folder
    out = tmp_path / "idx"
    build_indexes(other, BuildOptions(out=out))
    before = files_of(out)
    for job in (JOBS[0], JOBS[2], JOBS[3], JOBS[5]):
        with pytest.raises(UsageError, match=f"^--out {out}: is the sidecar of another log, .*--rebuild"):
            job(store, out)
        assert files_of(out) == before
    assert not verify_indexes(store, JobOptions(out=out)).is_healthy
    assert build_indexes(store, BuildOptions(out=out, rebuild=True)).messages == 30


def test_a_sidecar_of_a_log_that_was_cut_is_built_anew_wherever_it_is(store, tmp_path):
    out = tmp_path / "idx"
    last_offset = build_indexes(store, BuildOptions(out=out)).sidecar.last_record_offset
    log_file = max((store / "commitlog").iterdir())
    data = log_file.read_bytes()
    end = last_offset - int(log_file.name)
    log_file.write_bytes(data[:end] + bytes(len(data) - end))
    assert build_indexes(store, BuildOptions(out=out)).messages == 29


def test_a_sidecar_of_which_nothing_can_be_told_is_built_anew(store, tmp_path):
    other = make_store(tmp_path / "other", [message() for _ in range(40)]).folder  # it has no keys, and so no index
    out = tmp_path / "idx"
    build_indexes(other, BuildOptions(out=out))
    assert build_indexes(store, BuildOptions(out=out)).messages == 30


# Places where none can be


@pytest.mark.parametrize("out", ["file", "file/below", "link", "link/below"])
def test_a_place_where_no_sidecar_can_be_is_told_with_what_to_do(store, tmp_path, out):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    what = f"{tmp_path / out[:4]} is a (file|link that leads nowhere), and a sidecar is a folder; name another"
    with pytest.raises(UsageError, match=f"^--out {tmp_path / out}: {what} folder with --out$"):
        build_indexes(store, BuildOptions(out=tmp_path / out))
    store.with_name("store.whence").symlink_to(tmp_path / out)
    with pytest.raises(
        UsageError, match=r"/store\.whence(: .*)? is a (file|link .*); name another folder with --out$"
    ):
        build_indexes(store, BuildOptions())


def test_a_disk_that_is_only_read_is_told_with_what_to_do(tmp_path):
    with small_disk(tmp_path / "disk", 48 << 20) as disk:
        store = make_store(disk / "store", [message(keys=f"key-{n}") for n in range(30)], items=20).folder
        options = BuildOptions(shape=Shape(7, 20))
        for what in ("cannot be made", "cannot be opened to be locked"):
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            with pytest.raises(StoreError, match=rf"/store\.whence.*: {what}: Read-only .*; name another .* --out$"):
                build_indexes(store, options)
            build_indexes(store, replace(options, out=tmp_path / "elsewhere"))
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            build_indexes(store, options)


def test_a_newer_sidecar_is_told_with_what_to_do(store):
    build_indexes(store, BuildOptions())
    path = store.with_name("store.whence") / "sidecar.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(UnsupportedError, match=r"knows 1 of rocketmq; use a newer whence, or name another .*--out"):
        build_indexes(store, BuildOptions())
