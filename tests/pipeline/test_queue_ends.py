"""A queue of which the log has no message any more goes on where it ended, whatever is built anew or mended."""

import shutil
from pathlib import Path

import pytest

import whence
from tests.pipeline.test_repair import Killed, KilledDisk, changed, files_in, repair, verify, without_spark
from tests.pipeline.test_verify import files_of
from tests.reference import i32, i64
from tests.store_maker import FILE_SIZE, make_store, message
from whence.pipeline import verify_jobs
from whence.pipeline.jobs import BuildOptions, build_indexes
from whence.store.queue_files import queue_folders, queue_tail
from whence.store.sidecar import read_sidecar

__all__ = ["without_spark"]

IDLE_COUNT = 20
MESSAGES = [
    message(
        topic="Idle" if number < IDLE_COUNT else ["Busy", "Fading"][number < 40 and number % 2], keys=f"k{number}"
    )
    for number in range(195)
]
"""With the first files of their log the messages of Idle expire, and some of Fading."""


def ends(store: Path) -> dict[str, int]:
    """Where each queue goes on."""
    return {folder.parent.name: queue_tail(folder, entry).position for folder, entry in queue_folders(store)}


def expired_broker_store(folder: Path) -> Path:
    return expire(make_store(folder / "store", MESSAGES).folder)


def expired_own_store(folder: Path) -> Path:
    store = folder / "store"
    with whence.create(store, file_size=FILE_SIZE, queue_file_size=200, slots=7, items=30) as opened:
        for each in MESSAGES:
            opened.append(each.topic, b"body" * 10, keys=["key"], queue=0)
    return expire(store)


def expire(store: Path) -> Path:
    (store / "commitlog" / f"{0:020d}").unlink()
    return store


def next_offset(store: Path, topic: str) -> int:
    with whence.create(store) as opened:
        return opened.append(topic, b"more", queue=0).queue_offset


DAMAGES = {
    "an entry leads elsewhere": lambda data: data[:6] + b"\x20" + data[7:],
    "the last entry is changed": lambda data: data[:186] + b"\x20" + data[187:],
    "the file is longer": lambda data: data + b"\0",
    "all is garbage": lambda data: b"\xa5" * len(data),
}


@pytest.fixture(params=[expired_broker_store, expired_own_store], ids=["broker", "own"])
def expired(request, tmp_path) -> Path:
    return request.param(tmp_path)


def test_a_queue_goes_on_where_it_ended_wherever_its_repair_was_killed(expired, monkeypatch):
    """At no moment its file is missing: nothing but that tells where the queue goes on."""
    before = ends(expired)
    is_killed, step = True, 0
    while is_killed:
        changed("consumequeue/Idle", -1, DAMAGES["an entry leads elsewhere"])(expired)
        with monkeypatch.context() as patch:
            patch.setattr(verify_jobs, "Disk", lambda step=step: KilledDisk(step))
            try:
                repair(expired, in_place=True)
                is_killed = False
            except Killed:
                assert ends(expired) == before
        assert repair(expired, in_place=True).is_healthy
        assert ends(expired) == before
        step += 1
    assert step > 2
    assert verify(expired).damage == []


def test_a_queue_without_messages_goes_on_where_it_ended_after_a_build(expired):
    before = ends(expired)
    assert before["Idle"] == 20 * IDLE_COUNT
    assert verify(expired).damage == []
    idle = files_of(expired / "consumequeue/Idle")
    build_indexes(expired, BuildOptions(in_place=True, rebuild=True))
    assert ends(expired) == before
    assert dict([max(idle.items())]) == files_of(expired / "consumequeue/Idle")
    assert verify(expired).damage == []
    build_indexes(expired, BuildOptions(in_place=True))
    assert ends(expired) == before


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("topic", ["Idle", "Fading"])
def test_a_queue_goes_on_where_it_ended_after_its_newest_file_is_mended(expired, change, topic):
    before = ends(expired)
    changed(f"consumequeue/{topic}", -1, change)(expired)
    assert not verify(expired).is_healthy
    assert repair(expired, in_place=True).is_healthy
    assert verify(expired).damage == []
    assert ends(expired) == before
    build_indexes(expired, BuildOptions(in_place=True, rebuild=True))
    assert ends(expired) == before
    assert verify(expired).damage == []


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_build_mends_the_end_of_a_queue_without_messages(tmp_path, change):
    store = expired_broker_store(tmp_path)
    before = ends(store)
    changed("consumequeue/Idle", -1, change)(store)
    build_indexes(store, BuildOptions(in_place=True))
    assert ends(store) == before
    assert verify(store).damage == []


def test_the_next_message_of_a_queue_follows_on_those_that_have_expired(tmp_path):
    store = expired_own_store(tmp_path)
    shutil.copytree(store, tmp_path / "copy" / "store")
    build_indexes(store, BuildOptions(rebuild=True))
    assert next_offset(store, "Idle") == IDLE_COUNT
    store = tmp_path / "copy" / "store"
    changed("consumequeue/Idle", -1, DAMAGES["an entry leads elsewhere"])(store)
    assert repair(store).is_healthy
    assert next_offset(store, "Idle") == IDLE_COUNT
    assert verify(store).damage == []


def test_where_only_the_index_is_lost_a_repair_leaves_the_queues_as_they_are(expired):
    before = files_of(expired / "consumequeue")
    shutil.rmtree(expired / "index")
    assert not verify(expired).is_healthy
    assert repair(expired, in_place=True).is_healthy
    assert files_of(expired / "consumequeue") == before
    assert verify(expired).damage == []
    if not (expired / "whence.json").exists():  # a repair says nothing of a broker's queues, and a build makes them
        claim = read_sidecar(expired.with_name("store.whence"))
        assert claim is not None
        assert not claim.has_queues
        build_indexes(expired, BuildOptions(in_place=True))
        claim = read_sidecar(expired.with_name("store.whence"))
        assert claim is not None
        assert claim.has_queues
        assert verify(expired).damage == []


def test_what_brokers_do_to_queues_is_no_damage_after_a_repair_of_the_index(tmp_path):
    store = make_store(tmp_path / "store", MESSAGES).folder
    behind = i64(1 << 40) + i32(90) + i64(0)
    changed("consumequeue/Busy", -1, lambda data: data[:100] + behind + data[120:])(store)
    assert verify(store).damage == []  # as after a crash: an entry that leads behind the end of the log
    shutil.rmtree(store / "index")
    assert repair(store, in_place=True).is_healthy
    assert verify(store).damage == []


def test_a_queue_is_mended_beside_an_index_that_is_lost(expired):
    before = ends(expired)
    shutil.rmtree(expired / "index")
    for topic in ("Idle", "Busy"):
        changed(f"consumequeue/{topic}", -1, DAMAGES["an entry leads elsewhere"])(expired)
    assert repair(expired, in_place=True).is_healthy
    assert ends(expired) == before
    assert verify(expired).damage == []


def test_a_queue_whose_messages_cannot_be_read_goes_on_where_it_ended(tmp_path):
    """It is not known to be of nobody: its messages lay in the part of the log that is damaged."""
    store = make_store(tmp_path / "store", MESSAGES).folder
    before = ends(store)
    changed("commitlog", 0, lambda data: b"\x55" * len(data))(store)
    repair(store, in_place=True)
    assert {finding.kind for finding in verify(store).damage} == {"bad_record"}
    assert ends(store) == before


def test_a_queue_of_which_a_whole_log_has_no_message_goes(tmp_path):
    store = make_store(tmp_path / "store", MESSAGES).folder
    shutil.copytree(store / "consumequeue/Busy", store / "consumequeue/Nobody")
    build_indexes(store, BuildOptions(in_place=True))
    assert files_in(store, "consumequeue/Nobody") == []
    assert verify(store).damage == []
