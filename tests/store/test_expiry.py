"""Expiry: which files go, in which order, and that the rest answers right at any point of it."""

import os
import shutil
from dataclasses import replace
from datetime import UTC
from itertools import count
from pathlib import Path

import pytest

import whence
from tests.disks import FailingDisk, UnflushedDisk
from tests.golden import CLEAN, CRASHED, RECOVERED
from tests.reference import IndexFileTwin, expired_files
from tests.store.expiring import (
    KEEP_MS,
    MESSAGES,
    NOW,
    POLICY,
    Killed,
    KilledDisk,
    age,
    batch_entry,
    check_answers,
    expire,
    left_of,
    make_ext,
    names_below,
    set_time,
)
from tests.store_maker import FILE_SIZE, QUEUE_FILE_SIZE, MadeStore, make_store, write_index
from whence.errors import StoreError
from whence.store import expiry as expiry_module
from whence.store.expiry import Expiry
from whence.store.expiry_policy import HOUR_MS, AgeBy, ExpiryPolicy
from whence.store.message_store import MessageStore

pytestmark = pytest.mark.slow


@pytest.fixture
def made(tmp_path) -> MadeStore:
    made = make_store(tmp_path / "store", MESSAGES, items=80)
    assert len(made.log_files) == 7
    return made


@pytest.mark.parametrize("part", ["none", "one", "half", "all"])
@pytest.mark.parametrize("name", CLEAN + RECOVERED + CRASHED)
def test_a_golden_store_keeps_what_rocketmq_would_keep(golden, tmp_path, name, part):
    store = golden(name).copy(tmp_path)
    before = names_below(store)
    logs = sorted(path.name for path in (store / "commitlog").iterdir())
    gone = {"none": 0, "one": 1, "half": len(logs) // 2, "all": len(logs)}[part]
    expired = expire(store, gone)
    # The last file stays, and those that were made ahead of need.
    left = [base for base in map(int, logs) if base <= golden(name).records[-1].physical_offset]
    begin = left[min(gone, len(left) - 1)]
    expected = {f"commitlog/{base:020}" for base in left if base < begin} | set(
        expired_files(golden(name).store, begin)
    )
    assert {expired.name_of(file) for file in expired.files} == before - names_below(store) == expected
    assert (expired.begin_offset, expired.new_begin_offset) == (0, begin)
    with MessageStore(store) as opened:
        assert [message.physical_offset for message in opened.scan()] == [
            record.physical_offset for record in golden(name).records if record.physical_offset >= begin
        ]


@pytest.mark.parametrize("gone", range(8))
def test_what_is_left_answers_every_question_and_scans_nothing_for_a_key(made, gone):
    begin = expire(made.folder, gone).new_begin_offset
    assert begin == min(gone, 6) * FILE_SIZE
    check_answers([made.folder], left_of(made, begin), max_scanned=0)
    with whence.open(made.folder) as store:
        for record in made.records[: -len(left_of(made, begin))]:
            answer = store.find(offset=record.physical_offset)
            assert (len(answer), answer.receipt.why_empty) == (0, "expired")


def test_files_go_oldest_first_and_up_to_the_first_that_is_young(made):
    age(made.folder, 7)
    os.utime(made.log_files[2])
    expired = Expiry(made.folder, POLICY, UnflushedDisk()).run(NOW)
    assert [file.path.name for file in expired.log_files] == [f"{base:020}" for base in (0, FILE_SIZE)]


def test_a_file_that_was_made_ahead_of_need_is_not_the_last(made):
    (made.folder / "commitlog" / f"{7 * FILE_SIZE:020}").write_bytes(bytes(FILE_SIZE))
    (made.folder / "commitlog" / f"{8 * FILE_SIZE:020}").write_bytes(bytes(FILE_SIZE))
    assert expire(made.folder, 9).new_begin_offset == 6 * FILE_SIZE
    check_answers([made.folder], left_of(made, 6 * FILE_SIZE))


@pytest.mark.parametrize("content", [b"", bytes(FILE_SIZE)])
def test_a_log_without_a_message_keeps_its_file(tmp_path, content):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020}").write_bytes(content)
    (tmp_path / "commitlog" / f"{len(content) or 1:020}").write_bytes(content)
    assert expire(tmp_path, 2).files == ()


def test_an_empty_log_has_nothing_to_let_go_of(tmp_path):
    (tmp_path / "commitlog").mkdir()
    assert expire(tmp_path, 0).files == ()


class TestAges:
    def test_by_record_a_file_was_finished_when_the_record_behind_it_was_stored(self, made):
        """A copy: all files are new."""
        firsts: dict[int, int] = {}
        for record in made.records:
            firsts.setdefault(record.physical_offset // FILE_SIZE, record.store_timestamp_ms)
        policy = replace(POLICY, age_by=AgeBy.RECORD)
        expiry = Expiry(made.folder, policy, UnflushedDisk())
        for gone in range(1, 7):
            plan = expiry.plan(firsts[gone] + KEEP_MS)
            assert [file.finished_ms for file in plan.log_files] == [firsts[number] for number in range(1, gone + 1)]
            assert len(expiry.plan(firsts[gone] + KEEP_MS - 1).log_files) == gone - 1

    def test_by_record_damage_at_a_files_begin_is_passed_over(self, made):
        path = made.log_files[3]
        path.write_bytes(bytes(600) + path.read_bytes()[600:])
        policy = replace(POLICY, age_by=AgeBy.RECORD)
        plan = Expiry(made.folder, policy, UnflushedDisk()).plan(NOW)
        behind = [record for record in made.records if record.physical_offset >= 3 * FILE_SIZE + 600]
        assert plan.log_files[2].finished_ms == behind[0].store_timestamp_ms
        assert len(plan.log_files) == 6

    def test_by_file_a_copy_is_new(self, made):
        age(made.folder, 0)
        assert Expiry(made.folder, POLICY, UnflushedDisk()).plan(NOW).files == ()


class TestRounds:
    def test_a_round_takes_a_batch_and_the_next_goes_on(self, made):
        age(made.folder, 7)
        expiry = Expiry(made.folder, replace(POLICY, batch_max=4), UnflushedDisk())
        assert [len(expiry.run(NOW).log_files) for _ in range(3)] == [4, 2, 0]
        check_answers([made.folder], left_of(made, 6 * FILE_SIZE))

    def test_a_round_at_which_nothing_changed_looks_at_no_queue(self, made, monkeypatch):
        age(made.folder, 3)
        expiry = Expiry(made.folder, POLICY, UnflushedDisk())
        assert expiry.run(NOW).queue_files
        monkeypatch.setattr(expiry_module, "old_queue_files", None)
        assert expiry.run(NOW).files == ()

    def test_the_hour_and_the_disk_decide(self, made):
        age(made.folder, 2)
        used: list[int] = []

        def disk_usage(folder: Path) -> tuple[int, int, int]:
            return 100, used[-1], 100 - used[-1]

        expiry = Expiry(made.folder, ExpiryPolicy(zone=UTC), UnflushedDisk(), disk_usage=disk_usage)
        midnight = NOW // (24 * HOUR_MS) * 24 * HOUR_MS
        for path in made.log_files[:2]:
            set_time(path, midnight - KEEP_MS)
        for path in made.log_files[2:]:
            set_time(path, midnight)
        went = []
        for hour, percent in [(3, 9), (4, 9), (5, 9), (12, 75), (12, 76), (12, 85), (12, 86), (12, 90), (12, 91)]:
            used.append(percent)
            plan = expiry.plan(midnight + hour * HOUR_MS)
            went.append((len(plan.log_files), plan.is_full))
        assert went == [
            *((0, False), (2, False), (0, False)),
            *((0, False), (2, False), (2, False), (6, False), (6, False), (6, True)),
        ]

    def test_a_disk_that_tells_nothing_lets_old_files_go_at_any_hour(self, made):
        def no_disk(folder: Path) -> tuple[int, int, int]:
            raise OSError("no such disk")

        age(made.folder, 2)
        policy = ExpiryPolicy(hours=(), zone=UTC)
        assert len(Expiry(made.folder, policy, UnflushedDisk(), disk_usage=no_disk).plan(NOW).log_files) == 2
        assert len(Expiry(made.folder, policy, UnflushedDisk()).plan(NOW).log_files) == 0

    def test_what_is_not_dispatched_yet_stays(self, made):
        age(made.folder, 7)
        expiry = Expiry(made.folder, POLICY, UnflushedDisk())
        for keep_from, gone in [(0, 0), (FILE_SIZE - 1, 0), (FILE_SIZE, 1), (3 * FILE_SIZE + 5, 3)]:
            assert len(expiry.plan(NOW, keep_from).log_files) == gone


class TestQueues:
    def test_a_damaged_last_entry_takes_no_others_with_it(self, made):
        queue = made.folder / "consumequeue" / "T" / "0"
        path = sorted(queue.iterdir())[2]
        data = path.read_bytes()
        path.write_bytes(data[:-20] + bytes(20))
        begin = int.from_bytes(data[100:108], "big")
        gone = begin // FILE_SIZE
        assert 0 < gone < 6
        expire(made.folder, gone)
        assert path.exists()

    def test_batch_queues_follow_too(self, made):
        queue = made.folder / "batchconsumequeue" / "B" / "0"
        queue.mkdir(parents=True)
        for number in range(3):
            entries = [batch_entry(FILE_SIZE * (2 * number + half), 2 * number + half) for half in range(2)]
            (queue / f"{number * 92:020}").write_bytes(b"".join(entries))
        expired = expire(made.folder, 3)
        assert [str(file.path.relative_to(queue)) for file in expired.queue_files if queue in file.path.parents] == [
            f"{0:020}"
        ]
        assert len(list(queue.iterdir())) == 2
        expire(made.folder, 7)
        assert sorted(path.name for path in queue.iterdir()) == [f"{184:020}"]

    def test_ext_files_before_the_unit_of_the_first_entry_that_is_left_go(self, made):
        """RocketMQ keeps a file that ends exactly there."""
        units = make_ext(made, unit_file=200)
        begin = 3 * FILE_SIZE
        first_left = min(queue_offset for queue_offset, offset in units.items() if offset >= begin)
        expired = expire(made.folder, 3)
        gone = [int(file.path.name) for file in expired.queue_files if "consumequeue_ext" in file.path.parts]
        assert gone == [base for base in range(0, 20 * len(units), 200) if base + 200 < 20 * first_left]
        assert gone

    def test_strange_names_and_folders_stay(self, made):
        strangers = [
            made.folder / "consumequeue" / "T" / "0" / "0000000000000000000x",
            made.folder / "consumequeue" / "T" / "0" / "123",
            made.folder / "consumequeue" / "T" / "x" / f"{0:020}",
            made.folder / "consumequeue" / "T" / f"{0:020}",
            made.folder / "commitlog" / "note",
            made.folder / "index" / "note",
            made.folder / "index" / "1",
        ]
        for path in strangers:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x")
        (made.folder / "consumequeue" / "empty" / "0").mkdir(parents=True)
        expire(made.folder, 7)
        assert all(path.exists() for path in strangers)


class TestIndex:
    def test_the_newest_file_stays_though_all_its_messages_are_gone(self, made):
        shutil.rmtree(made.folder / "index")
        write_index(made.folder, made.index[:2])
        assert made.index[1].end_physical_offset < 3 * FILE_SIZE
        first, second = made.index_files
        assert [file.path for file in expire(made.folder, 3).index_files] == [first]
        assert made.index_files == [second]
        check_answers([made.folder], left_of(made, 3 * FILE_SIZE))

    def test_the_newest_by_name_stays_though_nothing_is_in_it(self, made):
        write_index(made.folder, [IndexFileTwin(7, 80)], first_name=20991231000000000)
        gone = sum(file.end_physical_offset < 6 * FILE_SIZE for file in made.index)
        assert len(expire(made.folder, 7).index_files) == gone > 5
        assert made.index_files[-1].name == "20991231000000000"

    def test_names_of_local_time_that_ran_backwards_do_no_harm(self, made):
        """After a daylight-saving fold the newest file has not the last name (weak point 17)."""
        newest = made.index_files[-1]
        newest.rename(newest.with_name("20200101000000000"))
        expired = expire(made.folder, 6)
        assert expired.index_files
        assert (made.folder / "index" / "20200101000000000").exists()
        check_answers([made.folder], left_of(made, 6 * FILE_SIZE), max_scanned=0)


class TestLinks:
    @pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
    def test_a_folder_that_lies_elsewhere_is_refused(self, made, tmp_path, name):
        (made.folder / name).rename(tmp_path / "elsewhere")
        (made.folder / name).symlink_to(tmp_path / "elsewhere")
        before = names_below(tmp_path)
        with pytest.raises(StoreError, match=f"{name}: is a link"):
            expire(made.folder, 7)
        assert names_below(tmp_path) == before

    def test_a_log_file_that_lies_elsewhere_is_refused(self, made, tmp_path):
        age(made.folder, 7)
        made.log_files[1].rename(tmp_path / "elsewhere")
        made.log_files[0].with_name(f"{FILE_SIZE:020}").symlink_to(tmp_path / "elsewhere")
        before = names_below(made.folder)
        with pytest.raises(StoreError, match=f"{FILE_SIZE:020}: is no regular file"):
            Expiry(made.folder, POLICY, UnflushedDisk()).run(NOW)
        assert names_below(made.folder) == before

    def test_queues_and_index_files_that_lie_elsewhere_stay(self, made, tmp_path):
        (made.folder / "consumequeue" / "T").rename(tmp_path / "T")
        (made.folder / "consumequeue" / "T").symlink_to(tmp_path / "T")
        file = made.index_files[0]
        file.rename(tmp_path / "index-file")
        file.symlink_to(tmp_path / "index-file")
        before = names_below(tmp_path / "T")
        expired = expire(made.folder, 7)
        assert expired.queue_files and expired.index_files
        assert names_below(tmp_path / "T") == before
        assert file.is_symlink() and (tmp_path / "index-file").exists()


class TestCrashes:
    @pytest.mark.slow
    def test_killed_between_any_two_steps_the_store_answers_right_and_a_second_run_finishes(self, made, tmp_path):
        whole = tmp_path / "whole"
        shutil.copytree(made.folder, whole)
        expire(whole, 4)
        for steps in count():
            store = tmp_path / f"killed-{steps}"
            shutil.copytree(made.folder, store)
            try:
                expire(store, 4, KilledDisk(steps))
            except Killed:
                begin = int(min(path.name for path in (store / "commitlog").iterdir()))
                if steps % 3 == 0:
                    check_answers([store], left_of(made, begin), max_scanned=0)
                expire(store, 4 - begin // FILE_SIZE)
                assert names_below(store) == names_below(whole)
                shutil.rmtree(store)
            else:
                break
        assert steps > 15
        check_answers([whole], left_of(made, 4 * FILE_SIZE), max_scanned=0)

    def test_a_power_failure_leaves_no_gap(self, made):
        """What was removed is back, but for what was flushed before: files go one by one, the log's before all."""
        steps: list[tuple[str, Path]] = []

        class RecordingDisk(UnflushedDisk):
            def remove(self, path: Path) -> None:
                steps.append(("remove", path))

            def flush_folder(self, folder: Path) -> None:
                steps.append(("flush", folder))

        expire(made.folder, 7, RecordingDisk())
        removed: set[Path] = set()
        for what, path in steps:
            if what == "flush":
                removed = {each for each in removed if each.parent != path}
            else:
                assert {each.parent for each in removed}.isdisjoint([path.parent, made.folder / "commitlog"])
                removed.add(path)
        assert len(steps) > 30

    @pytest.mark.parametrize("left", [0, 1, 5])
    def test_a_folder_that_cannot_be_flushed_is_told(self, made, left):
        with pytest.raises(StoreError, match="cannot be flushed"):
            expire(made.folder, 7, FailingDisk(left))


def test_readers_that_are_open_see_it(made):
    with whence.open(made.folder) as store, MessageStore(made.folder) as opened:
        assert len(store.find(key="every", limit=None)) == 185
        assert opened.queue("T", 0).begin_offset() == 0
        expire(made.folder, 4)
        left = left_of(made, 4 * FILE_SIZE)
        assert len(store.find(key="every", limit=None)) == len(left)
        assert len(store.find(key="k3")) == 0
        assert len(list(opened.scan())) == len(left)
        assert opened.queue("T", 0).begin_offset() == min(
            record.queue_offset for record in left if (record.topic, record.queue) == ("T", 0)
        )


def test_what_went_is_told_as_json(made):
    expired = expire(made.folder, 2)
    assert expired.to_dict(dry_run=False) == {
        "store": str(made.folder),
        "archive": None,
        "dry_run": False,
        "begin_offset": {"before": 0, "after": 2 * FILE_SIZE},
        "bytes": 2 * FILE_SIZE
        + len(expired.queue_files) * QUEUE_FILE_SIZE
        + len(expired.index_files) * len(made.index[0].to_bytes()),
        "log_files": [f"commitlog/{base:020}" for base in (0, FILE_SIZE)],
        "queue_files": [str(file.path.relative_to(made.folder)) for file in expired.queue_files],
        "index_files": [str(file.path.relative_to(made.folder)) for file in expired.index_files],
        "copied_files": [],
    }
    assert expired.queue_files and expired.index_files
