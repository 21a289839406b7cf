"""Readers that stay while a store is recovered: what recovery cuts and makes again, they never miss."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import whence
from tests.disks import UnflushedDisk
from whence.files import map_pool
from whence.store.ownership import read_ownership
from whence.store.recovery import Recovery

SIZES = {"file_size": 65_536, "queue_file_size": 400, "slots": 31, "items": 20}
COUNT = 60
RECOVERIES = 40


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A store of which only the first messages are known to be flushed, in the first of several full index files."""
    folder = tmp_path / "store"
    with whence.create(folder, disk=UnflushedDisk(), **SIZES) as store:
        for number in range(COUNT):
            store.append("T", b"body", keys=[f"k{number}"])
            if number == 2:
                store.flush()
                earlier = (folder / "whence.json").read_bytes()
    (tmp_path / "earlier").write_bytes(earlier)
    crash(folder)
    return folder


def crash(folder: Path) -> None:
    """Make a closed store one that was killed early."""
    (folder / "whence.json").write_bytes((folder.parent / "earlier").read_bytes())
    (folder / "abort").write_text("1")


def check(reader: whence.Store, number: int) -> None:
    answer = reader.find(key=f"k{number}", topic="T")
    assert [message.queue_offset for message in answer] == [number], answer.receipt
    answer = reader.find(topic="T", queue=0, queue_offset=number)
    assert [message.queue_offset for message in answer] == [number], answer.receipt


@pytest.mark.parametrize("open_maps_max", [1, 64])
def test_a_reader_sees_that_full_files_were_cut(crashed: Path, monkeypatch: pytest.MonkeyPatch, open_maps_max: int):
    """The start that cuts them is killed before it has made them again. A reader may have them mapped or not."""
    monkeypatch.setattr(map_pool, "OPEN_MAPS_MAX", open_maps_max)
    with whence.open(crashed) as reader:
        for number in range(COUNT):
            check(reader, number)
        ownership = read_ownership(crashed)
        assert ownership is not None
        Recovery(crashed, ownership, UnflushedDisk(), is_clean=False).run()
        for number in range(COUNT):
            check(reader, number)


@pytest.mark.slow
@pytest.mark.parametrize("open_maps_max", [1, 64])
def test_a_reader_misses_nothing_while_a_store_recovers(
    crashed: Path, monkeypatch: pytest.MonkeyPatch, open_maps_max: int
):
    monkeypatch.setattr(map_pool, "OPEN_MAPS_MAX", open_maps_max)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        number = 0
        try:
            with whence.open(crashed) as reader:
                while not is_over.is_set():
                    check(reader, number % COUNT)
                    number += 1
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for _ in range(RECOVERIES):
        whence.create(crashed, disk=UnflushedDisk(), **SIZES).close()
        crash(crashed)
    is_over.set()
    for thread in readers:
        thread.join()
    assert not failures, failures
