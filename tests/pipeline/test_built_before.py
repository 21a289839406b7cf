"""What an earlier build left and said is looked at before the next one says that nothing is missing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.following import write_log
from tests.pipeline.test_build import Killed, grow
from tests.pipeline.test_build_faults import BEGUN, DyingAtTheEnd, begin_store
from tests.pipeline.test_repair import Damage, build, built_files, claim, copy_of, deleted, verify, without_spark
from tests.store_maker import FILE_SIZE, make_store, message, place
from whence.pipeline import jobs
from whence.pipeline.build import Built
from whence.pipeline.jobs import BuildOptions, build_indexes

__all__ = ["without_spark"]


def newest_index(**members: Callable[[int], int]) -> Damage:
    """Lets the header of the newest index file be noted otherwise."""

    def damage(folder: Path) -> None:
        newest = json.loads((folder / "sidecar.json").read_text())["newest_index"]
        claim(newest_index=newest | {name: change(newest[name]) for name, change in members.items()})(folder)

    return damage


def indexed_further(folder: Path) -> None:
    ((begin, end),) = json.loads((folder / "sidecar.json").read_text())["indexed"]
    claim(indexed=[[begin, end + 200_000]])(folder)


WRONG = {
    "the first time blocks are gone": deleted("times", 0),
    "time blocks in the middle are gone": deleted("times", 2),
    "one item less is noted": newest_index(item_count=lambda count: count - 1),
    "many items less are noted": newest_index(item_count=lambda count: count // 2),
    "one slot less is noted": newest_index(slot_count=lambda count: count - 1),
    "an earlier end of the index is noted": newest_index(end_physical_offset=lambda offset: offset - 1),
    "an end behind the log's is noted": indexed_further,
}


@pytest.mark.parametrize("damage", WRONG.values(), ids=WRONG)
def test_what_cannot_be_gone_on_with_is_built_anew(golden, tmp_path, damage):
    store = copy_of(golden("v5-direct"), tmp_path)
    build(store)
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    damage(sidecar)
    build(store)
    assert built_files(sidecar) == fresh
    assert verify(store).damage == []


def built(store: Path) -> Built:
    return build_indexes(store, BuildOptions())


def kinds(found: Built) -> list[str]:
    return [str(damage.kind) for damage in found.damage]


@pytest.mark.parametrize("name", ["v5-direct", "v5-clean", "v5-damaged-body-flip"])
def test_a_build_of_a_log_that_is_indexed_does_nothing(golden, tmp_path, name):
    store = copy_of(golden(name), tmp_path)
    first = built(store)
    again = built(store)
    assert (again.messages, again.files, again.tasks) == (0, (), 0)
    assert (again.to_offset, again.damage) == (first.to_offset, first.damage)


def test_a_log_file_that_is_damaged_all_over_or_blank_needs_no_time_blocks_to_be_complete(tmp_path):
    store = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(120)]).folder
    for damaged in (store / "commitlog" / f"{FILE_SIZE:020d}", store / "commitlog" / f"{2 * FILE_SIZE:020d}"):
        damaged.write_bytes(b"\xff" * FILE_SIZE)
    built(store)
    (tmp_path / "store.whence/times" / f"{FILE_SIZE:020d}").unlink()  # a follower of before made none
    assert built(store).tasks == 0


def test_a_build_tells_what_lies_behind_the_end_of_a_log(golden, tmp_path):
    store = copy_of(golden("v5-damaged-body-flip"), tmp_path)
    for _ in range(2):
        found = built(store)
        assert kinds(found) == ["records_behind_end"]
        assert "38 whole records" in found.damage[0].detail
        assert not found.is_healthy


def test_a_log_whose_first_record_is_damaged_is_not_complete(tmp_path):
    store = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(20)]).folder
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        found = built(store)
        assert (found.to_offset, kinds(found)) == (0, ["records_behind_end"])


def test_what_a_killed_build_published_goes_also_where_nothing_is_to_be_built(tmp_path, monkeypatch):
    """The log has lost all behind what the last build said."""
    store = begin_store(tmp_path / "store", BEGUN)
    build(store)
    fresh = built_files(tmp_path / "store.whence")
    grow(store, [*BEGUN, message(keys="x", topic="V", at=99_999)])
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "Disk", DyingAtTheEnd)
        with pytest.raises(Killed):
            build(store)
    assert built_files(tmp_path / "store.whence") != fresh
    write_log(store, place(BEGUN), file_size=FILE_SIZE)
    build(store)
    assert built_files(tmp_path / "store.whence") == fresh
    assert built(store).tasks == 0
