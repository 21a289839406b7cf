"""Who may let a sidecar grow, and who may judge it: what is refused before Spark is started."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whence
from tests.crash.following import Made, random_messages, write_log
from tests.disks import UnflushedDisk
from tests.store_maker import FILE_SIZE, place
from whence.door import build_store, follow_store, repair_store, verify_store
from whence.errors import LockedError, StoreError, UsageError
from whence.files.lock import StoreLock
from whence.files.names import sidecar_of
from whence.store.index_file import Shape
from whence.store.sidecar import read_sidecar


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose sidecar a follower left as one that is killed does."""
    store = tmp_path / "store"
    write_log(store, place(random_messages(Random(1), 20)), file_size=FILE_SIZE)
    Made(Shape(7, 20)).follow(store, sidecar_of(store), Random(1))
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None
    replace(claim, growing=True).write(sidecar_of(store), UnflushedDisk())
    return store


@pytest.mark.parametrize("job", [follow_store, build_store, repair_store])
def test_who_holds_the_sidecar_is_told(store: Path, job: Callable[[Path], Any]):
    is_told = pytest.raises(LockedError, match=f"process {os.getpid()} holds this store")
    with StoreLock(sidecar_of(store) / "lock"), is_told:
        job(store)


def test_a_sidecar_that_grows_is_not_verified(store: Path):
    is_told = pytest.raises(LockedError, match=f"process {os.getpid()} lets it grow")
    with StoreLock(sidecar_of(store) / "lock"), is_told:
        verify_store(store)
    with pytest.raises(StoreError, match="a whence follow was killed"):
        verify_store(store)


def test_a_store_of_whences_own_is_not_followed(tmp_path: Path):
    with whence.create(tmp_path / "store"):
        pass
    with pytest.raises(UsageError, match="is whence's own"):
        follow_store(tmp_path / "store", once=True)


def test_a_sidecar_in_the_store_itself_is_refused(store: Path):
    with pytest.raises(UsageError, match="lies in the store"):
        follow_store(store, out=store / "sidecar", once=True)
