"""Whether a sidecar is of this log: cut or grown it is the same, and another one is known by its records."""

import shutil

import pytest

from tests.pipeline.test_build import SMALL, build
from tests.store_maker import FILE_SIZE, make_store, message
from whence.store.commit_log import CommitLog
from whence.store.same_log import is_of_another
from whence.store.sidecar import read_sidecar


def records(count, *, at=0, keys="k"):
    return [message(keys=keys, at=at + number) for number in range(count)]


@pytest.fixture
def made(tmp_path):
    made = make_store(tmp_path / "store", records(100))
    build(made.folder, tmp_path / "sidecar", **SMALL)
    return made


def is_another(store, sidecar):
    claim = read_sidecar(sidecar)
    assert claim is not None
    log = CommitLog(store / "commitlog")
    try:
        return is_of_another(claim, log, sidecar, sidecar)
    finally:
        log.close()


def cut(made, offset):
    """Let the log end here, as after a crash."""
    for number, path in enumerate(made.log_files):
        kept = max(0, offset - number * FILE_SIZE)
        if kept:
            path.write_bytes(path.read_bytes()[:kept].ljust(FILE_SIZE, b"\0"))
        elif number:
            path.unlink()
        else:
            path.write_bytes(bytes(FILE_SIZE))


def test_a_log_that_was_cut_anywhere_is_the_same(tmp_path, made):
    for offset in reversed(made.offsets):
        cut(made, offset)
        assert not is_another(made.folder, tmp_path / "sidecar")


@pytest.mark.parametrize("kept", [1, 2, 50, 99])
@pytest.mark.parametrize("count", [1, 100])
def test_and_so_it_is_if_it_was_written_anew_behind_that(tmp_path, made, kept, count):
    shutil.rmtree(made.folder)
    make_store(made.folder, [*records(kept), *records(count, at=5000)])
    assert not is_another(made.folder, tmp_path / "sidecar")


def test_the_marks_of_a_log_tell_it_where_no_index_does(tmp_path, made):
    shutil.rmtree(made.folder)
    grown = make_store(made.folder, records(150))
    build(made.folder, tmp_path / "sidecar", **SMALL)
    shutil.rmtree(tmp_path / "sidecar/index")
    cut(grown, grown.offsets[120])
    assert not is_another(made.folder, tmp_path / "sidecar")


@pytest.mark.parametrize(("count", "base"), [(1, 0), (50, 0), (50, FILE_SIZE), (100, 0), (200, 0), (200, FILE_SIZE)])
def test_another_log_is_known_by_any_record(tmp_path, made, count, base):
    shutil.rmtree(made.folder)
    make_store(made.folder, records(count, at=5000), base=base)
    assert is_another(made.folder, tmp_path / "sidecar")


def test_where_nothing_is_left_to_compare_it_may_be_the_same(tmp_path, made):
    shutil.rmtree(tmp_path / "sidecar/index")
    cut(made, 0)
    assert not is_another(made.folder, tmp_path / "sidecar")
    shutil.rmtree(made.folder)
    make_store(made.folder, records(9, at=5000), base=64 * FILE_SIZE)  # all that was indexed has expired
    assert not is_another(made.folder, tmp_path / "sidecar")
