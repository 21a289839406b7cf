"""Archive: what expires becomes a store of its own, and no message is lost on the way, whatever happens."""

import json
import os
import shutil
import threading
import time
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.disks import FailingDisk, UnflushedDisk
from tests.golden import CLEAN, RECOVERED
from tests.reference import Record, build_index, build_queues, encode_queue_files, read_log
from tests.store.expiring import (
    MESSAGES,
    NOW,
    POLICY,
    ElsewhereDisk,
    FailingElsewhereDisk,
    Killed,
    KilledDisk,
    KilledElsewhereDisk,
    age,
    batch_entry,
    below,
    check_answers,
    expire,
    files_below,
    left_of,
    make_ext,
    names_below,
)
from tests.store_maker import FILE_SIZE, QUEUE_FILE_SIZE, MadeStore, make_store, message
from whence.door import open_stores
from whence.errors import LockedError, StoreError, UsageError
from whence.files import atomic
from whence.files.atomic import remove_unfinished
from whence.files.disk import Disk, DiskFile
from whence.files.lock import StoreLock
from whence.store.archive import ASIDE
from whence.store.expiry import Expiry
from whence.store.message_store import MessageStore

pytestmark = pytest.mark.slow

SLOTS, ITEMS = 7, 80


def write_topics(store: Path, *topics: str) -> None:
    (store / "config").mkdir(exist_ok=True)
    table = {topic: {"topicName": topic, "writeQueueNums": 4} for topic in topics}
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table, "dataVersion": {}}))


def topics_of(store: Path) -> list[str]:
    with MessageStore(store) as opened:
        return sorted(opened.config("topics.json")["topicConfigTable"])


@pytest.fixture
def made(tmp_path) -> MadeStore:
    made = make_store(tmp_path / "store", MESSAGES, slots=SLOTS, items=ITEMS)
    write_topics(made.folder, "T", "U")
    assert len(made.log_files) == 7
    return made


def check_is_the_store_of(archive: Path, records: list[Record], dialect: str, slots: int, items: int) -> None:
    """Queues and index of an archive are what a broker had written when the last of these records was stored."""
    expected = {}
    for (topic, queue), entries in build_queues(records).items():
        for number, data in enumerate(encode_queue_files(entries, QUEUE_FILE_SIZE)):
            expected[f"{topic}/{queue}/{number * QUEUE_FILE_SIZE:020}"] = data
    assert files_below(archive / "consumequeue") == expected
    index = [file.to_bytes() for file in build_index(records, dialect, slots, items) if file.items]
    assert [data for _, data in sorted(files_below(archive / "index").items())] == index


@st.composite
def messages(draw: st.DrawFn) -> list[Record]:
    """Some topics have keys in common, some messages have no key, and the clock steps back."""
    one = st.builds(
        message,
        keys=st.sampled_from(["", "a", "a b", "k k", "x y z a b c"]),
        tags=st.sampled_from(["", "t"]),
        unique_id=st.sampled_from(["", "id", "id-2"]),
        at=st.integers(-5000, 10_000_000),
        topic=st.sampled_from(["T", "U", "Aa", "BB", "SCHEDULE_TOPIC_XXXX"]),
        queue=st.integers(0, 1),
        sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
    )
    return draw(st.lists(one, min_size=8, max_size=80))


@pytest.mark.slow
@given(
    messages=messages(),
    cuts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    slots=st.integers(1, 9),
    items=st.integers(2, 30),
    dialect=st.sampled_from(["4.9", "5.3", "5.5"]),
    disk=st.sampled_from([UnflushedDisk(), ElsewhereDisk()]),
)
def test_archive_and_rest_answer_every_question_as_the_whole_store_did(
    tmp_path_factory, messages, cuts, slots, items, dialect, disk
):
    folder = tmp_path_factory.mktemp("archive")
    made = make_store(folder / "store", messages, slots=slots, items=items, dialect=dialect, file_size=1024)
    write_topics(made.folder, "T", "U", "Aa", "BB", "SCHEDULE_TOPIC_XXXX")
    logs = files_below(made.folder / "commitlog")
    archive = folder / "archive"
    for gone in cuts:
        begin = expire(made.folder, gone, disk, archive).new_begin_offset
    if begin == 0:
        assert not archive.exists()
        return
    check_answers([archive, made.folder], made.records)
    check_answers([made.folder], left_of(made, begin))
    check_answers([archive], below(made, begin))
    check_is_the_store_of(archive, below(made, begin), dialect, slots, items)
    assert files_below(archive / "commitlog") | files_below(made.folder / "commitlog") == logs
    assert names_below(archive / "commitlog").isdisjoint(names_below(made.folder / "commitlog"))
    shutil.rmtree(folder)


@pytest.mark.parametrize("part", [1, 2, 99])
@pytest.mark.parametrize("name", CLEAN + RECOVERED)
def test_archive_and_rest_of_a_golden_store_have_all_of_it(golden, tmp_path, name, part):
    store = golden(name).copy(tmp_path)
    records = golden(name).records
    before = {record.physical_offset for record in records}
    logs = len(list((store / "commitlog").iterdir()))
    begin = expire(store, logs // 2 if part == 2 else part, archive=tmp_path / "archive").new_begin_offset
    with whence.open(tmp_path / "archive") as archive, whence.open(store) as rest:
        found: set[int] = set()
        for opened in (archive, rest):
            answer = opened.find(since=0, limit=None, system_topics=True)
            assert answer.receipt.complete
            assert found.isdisjoint(message.physical_offset for message in answer)
            found |= {message.physical_offset for message in answer}
        assert found == before
        assert all(message.physical_offset < begin for message in archive.find(since=0, limit=None))
        for record in records[::7]:
            for key in record.keys:
                answer = archive.find(key=key, topic=record.topic, limit=None)
                assert [message.physical_offset for message in answer] == [
                    each.physical_offset
                    for each in reversed(records)
                    if each.physical_offset < begin and each.topic == record.topic and key in each.keys
                ]
                assert answer.receipt.complete and answer.receipt.damage == []


def test_a_key_is_found_through_the_index_of_the_archive_with_nothing_scanned(made, tmp_path):
    for gone in (2, 1, 3):
        begin = expire(made.folder, gone, archive=tmp_path / "archive").new_begin_offset
        check_answers([tmp_path / "archive"], below(made, begin), max_scanned=0)
        check_answers([made.folder], left_of(made, begin), max_scanned=0)
    assert begin == 6 * FILE_SIZE
    with whence.open(tmp_path / "archive") as archive:
        receipt = archive.find(key="k3").receipt
    assert (receipt.indexed_to_offset, receipt.index_source) == (begin, "broker")


class TestGoingOn:
    def test_it_says_what_was_moved_and_what_was_copied(self, made, tmp_path):
        first = expire(made.folder, 2, archive=tmp_path / "archive")
        again = expire(made.folder, 0, archive=tmp_path / "archive")
        assert len(first.log_files) == 2 and first.queue_files and first.index_files
        assert len(first.straddling_queue_files) == 4
        assert len(first.straddling_index_files) == 1
        assert (again.files, again.straddling_files) == ((), ())
        document = first.to_dict(dry_run=False)
        assert document["archive"] == str(tmp_path / "archive")
        assert len(document["copied_files"]) == 5

    def test_a_longer_copy_takes_the_place_of_a_shorter_one_and_the_file_itself_that_of_both(self, made, tmp_path):
        archive = tmp_path / "archive"
        newest = made.index_files[-1].name
        sizes: dict[str, list[int]] = {}
        for _ in range(6):
            begin = expire(made.folder, 1, archive=archive).new_begin_offset
            check_is_the_store_of(archive, below(made, begin), "5.5", SLOTS, ITEMS)
            for name, data in files_below(archive).items():
                sizes.setdefault(name, []).append(len(data.rstrip(b"\0")))
        grown = [name for name, each in sizes.items() if len(set(each)) > 1]
        assert any(name.startswith("consumequeue") for name in grown)
        assert any(name.startswith("index") for name in grown)
        assert f"index/{newest}" not in sizes

    def test_a_copy_that_is_ahead_of_a_restored_store_stays(self, made, tmp_path):
        shutil.copytree(made.folder, tmp_path / "backup")
        expire(made.folder, 4, archive=tmp_path / "archive")
        before = files_below(tmp_path / "archive")
        expired = expire(tmp_path / "backup", 2, archive=tmp_path / "archive")
        assert (len(expired.log_files), expired.straddling_files) == (2, ())
        assert files_below(tmp_path / "archive") == before
        check_answers([tmp_path / "backup"], left_of(made, 2 * FILE_SIZE))

    def test_topics_that_the_store_forgot_stay_known(self, made, tmp_path):
        archive = tmp_path / "archive"
        expire(made.folder, 2, archive=archive)
        assert topics_of(archive) == ["T", "U"]
        write_topics(made.folder, "U", "V")
        expire(made.folder, 1, archive=archive)
        assert topics_of(archive) == ["T", "U", "V"]

    @pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b'{"topicConfigTable": 7}'])
    def test_topics_that_cannot_be_read_are_told_by_the_queues(self, made, tmp_path, content):
        path = made.folder / "config" / "topics.json"
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        begin = expire(made.folder, 3, archive=tmp_path / "archive").new_begin_offset
        assert not (tmp_path / "archive" / "config").exists()
        check_answers([tmp_path / "archive"], below(made, begin))

    def test_checkpoint_and_abort_stay_behind(self, made, tmp_path):
        (made.folder / "checkpoint").write_bytes(bytes(4096))
        (made.folder / "abort").write_bytes(b"1")
        expire(made.folder, 3, archive=tmp_path / "archive")
        assert {path.name for path in (tmp_path / "archive").iterdir()} == {
            "commitlog",
            "consumequeue",
            "index",
            "config",
            "lock",
        }

    def test_strange_index_files_do_no_harm(self, made, tmp_path):
        for name, content in (("1", b"x"), ("2", b""), ("3", bytes(100)), ("note", b"x")):
            (made.folder / "index" / name).write_bytes(content)
        begin = expire(made.folder, 3, archive=tmp_path / "archive").new_begin_offset
        check_answers([made.folder / ".." / "archive"], below(made, begin), max_scanned=0)

    def test_batch_queues_and_ext_files_come_too(self, made, tmp_path):
        archive = tmp_path / "archive"
        queue = Path("batchconsumequeue", "B", "0")
        (made.folder / queue).mkdir(parents=True)
        data = b"".join(batch_entry(FILE_SIZE * number, number) for number in range(6))
        for base in range(0, len(data), 92):
            (made.folder / queue / f"{base:020}").write_bytes(data[base : base + 92])
        offsets = make_ext(made, unit_file=200)
        ext = Path("consumequeue_ext", "T", "0")
        units = b"".join(files_below(made.folder / ext)[name] for name in sorted(files_below(made.folder / ext)))
        for gone, kept in [(1, 1), (2, 3), (2, 5)]:
            begin = expire(made.folder, gone, archive=archive).new_begin_offset
            batches = b"".join(data for _, data in sorted(files_below(archive / queue).items()))
            assert batches.rstrip(b"\0") == data[: 46 * kept].rstrip(b"\0")
            archived = b"".join(data for _, data in sorted(files_below(archive / ext).items()))
            first_left = min(number for number, offset in offsets.items() if offset >= begin)
            assert archived.ljust(len(units), b"\0") == units[: 20 * first_left].ljust(len(units), b"\0")


@pytest.mark.slow
def test_a_store_is_archived_while_it_is_written_to(tmp_path):
    """Queue and index files straddle every cut, and grow meanwhile."""
    store, archive = tmp_path / "store", tmp_path / "archive"
    sizes = {"file_size": 16_384, "queue_file_size": 400, "slots": 97, "items": 300}
    cuts: set[int] = set()
    is_done = threading.Event()
    with whence.create(store, disk=UnflushedDisk(), **sizes) as opened:

        def write() -> None:
            for number in range(0, 3000, 10):
                keys = [[f"key-{number + each}", f"ten-{number}"] for each in range(10)]
                opened.append_batch("TU"[number % 3 == 0], [b"x" * 50] * 10, keys=keys, queue=number // 10 % 3)
                time.sleep(0.003)
            is_done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not is_done.is_set():
            opened.flush()
            cuts.add(opened.expire("0s", by="record", archive=archive).new_begin_offset)
        writer.join()
    assert len(cuts) > 3
    with open_stores([archive, store]) as both:
        assert [len(both.find(key=f"ten-{number}")) for number in range(0, 3000, 10)] == [10] * 300
        for number in range(0, 3000, 37):
            answer = both.find(key=f"key-{number}")
            assert (len(answer), answer.receipt.complete, answer.receipt.damage) == (1, True, [])
        assert both.find(key="key-7").receipt.scanned_bytes == 0
    with MessageStore(archive) as archived:
        assert archived.commit_log.end_offset() == max(cuts)
        for (topic, queue), entries in build_queues(read_log(archive)).items():
            assert archived.queue(topic, queue).end_offset() == len(entries)


class TestCrashes:
    @pytest.mark.slow
    @pytest.mark.parametrize("disk_kind", [KilledDisk, KilledElsewhereDisk])
    def test_killed_between_any_two_steps_all_is_there_and_a_second_run_finishes(self, made, tmp_path, disk_kind):
        """The archive has files of an earlier run, so that copies are replaced, too."""
        begun = tmp_path / "begun"
        expire(made.folder, 2, archive=tmp_path / "archive")
        write_topics(made.folder, "T", "U", "V")
        begun.mkdir()
        for name in ("store", "archive"):
            (tmp_path / name).rename(begun / name)
        whole = tmp_path / "whole"
        shutil.copytree(begun, whole)
        expire(whole / "store", 2, archive=whole / "archive")
        for steps in count():
            both = tmp_path / "killed"
            shutil.copytree(begun, both)
            store, archive = both / "store", both / "archive"
            disk = disk_kind(steps)
            try:
                expire(store, 2, disk, archive)
            except Killed:
                pass
            if steps % 7 == 0 or disk.left >= 0:
                self.check_all_is_there(made, store, archive, twice=disk_kind is KilledElsewhereDisk)
            begin = int(min(path.name for path in (store / "commitlog").iterdir()))
            expire(store, 4 - begin // FILE_SIZE, archive=archive)
            assert files_below(store) == files_below(whole / "store")
            assert files_below(archive) == files_below(whole / "archive")
            shutil.rmtree(both)
            if disk.left >= 0:
                break
        assert steps > 30

    def check_all_is_there(self, made: MadeStore, store: Path, archive: Path, *, twice: bool) -> None:
        with whence.open(archive) as archived, whence.open(store) as rest:
            places: list[int] = []
            for opened in (archived, rest):
                for question in ({"key": "every"}, {"key": "every", "topic": "T"}, {"since": 0}):
                    answer = opened.find(limit=None, **question)
                    assert answer.receipt.complete and not any(
                        damage.kind.hides_messages for damage in answer.receipt.damage
                    )
                places += [message.physical_offset for message in answer]
        assert sorted(set(places)) == [record.physical_offset for record in made.records]
        # A copy has its name before its source goes.
        files = {offset // FILE_SIZE for offset in places if places.count(offset) > 1}
        assert len(files) <= int(twice)

    def test_killed_during_the_first_run_the_archive_is_none_or_a_store(self, made, tmp_path):
        for steps in range(6):
            shutil.copytree(made.folder, tmp_path / "killed" / "store")
            archive = tmp_path / "killed" / "archive"
            with pytest.raises(Killed):
                expire(tmp_path / "killed" / "store", 2, KilledDisk(steps), archive)
            expire(tmp_path / "killed" / "store", 2 - len(list(archive.glob("commitlog/*"))), archive=archive)
            check_answers([archive], below(made, 2 * FILE_SIZE), max_scanned=0)
            shutil.rmtree(tmp_path / "killed")

    @pytest.mark.parametrize("disk_kind", [FailingDisk, FailingElsewhereDisk])
    def test_a_disk_that_fails_at_any_write_or_flush_is_told_and_nothing_is_lost(self, made, tmp_path, disk_kind):
        descriptors = len(os.listdir("/proc/self/fd"))
        for left in count():
            shutil.copytree(made.folder, tmp_path / "full" / "store")
            store, archive = tmp_path / "full" / "store", tmp_path / "full" / "archive"
            try:
                expire(store, 2, disk_kind(left), archive)
            except StoreError as error:
                assert "No space left" in str(error) and str(tmp_path) in str(error)
            else:
                break
            assert len(os.listdir("/proc/self/fd")) == descriptors
            assert not (archive / ASIDE).exists()
            logs = [path.name for folder in (store, archive) for path in folder.glob("commitlog/*")]
            assert set(logs) == {path.name for path in made.log_files}
            shutil.rmtree(tmp_path / "full")
        assert left > 20

    def test_an_interrupt_leaves_no_half_file(self, made, tmp_path, monkeypatch):
        """As the command line does it when the process must end at once."""
        monkeypatch.setattr(atomic, "_unfinished", set())  # what other tests of this process have open stays

        class InterruptedDisk(ElsewhereDisk):
            def fsync(self, path: Path, descriptor: int) -> None:
                if path.name == ASIDE:
                    remove_unfinished()
                    assert not path.exists()
                    raise Killed

        with pytest.raises(Killed):
            expire(made.folder, 2, InterruptedDisk(), tmp_path / "archive")
        assert names_below(tmp_path / "archive") == {"lock"}

    @pytest.mark.parametrize("case", ["renamed", "copied", "copied before"])
    def test_a_power_failure_takes_no_message(self, made, tmp_path, case):
        """What is not flushed is gone: a source goes only after the file and its name have come to stay."""
        archive = tmp_path / "archive"
        unflushed: set[Path] = set()
        base = UnflushedDisk if case == "renamed" else ElsewhereDisk

        class RecordingDisk(base):  # type: ignore[misc,valid-type]
            def create(self, path: Path, size: int, *, reserve: bool) -> DiskFile:
                unflushed.add(path)
                return super().create(path, size, reserve=reserve)

            def fsync(self, path: Path, descriptor: int) -> None:
                unflushed.discard(path)

            def rename(self, path: Path, target: Path) -> None:
                assert path not in unflushed
                super().rename(path, target)
                unflushed.add(target.parent)

            def remove(self, path: Path) -> None:
                if path.exists() and archive not in path.parents:
                    target = archive / path.relative_to(made.folder)
                    assert target.exists() and unflushed.isdisjoint([target, target.parent])
                super().remove(path)

            def flush_folder(self, folder: Path) -> None:
                if folder.parent == made.folder:
                    assert archive / folder.name not in unflushed
                unflushed.discard(folder)

        if case == "copied before":
            for path in (*made.log_files[:2], *made.index_files[:2]):
                copy = archive / path.relative_to(made.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
                unflushed |= {copy, copy.parent}
        expire(made.folder, 3, RecordingDisk(), archive)
        assert len(made.log_files) == 4
        check_answers([archive, made.folder], made.records)

    def test_what_a_crash_left_half_copied_is_made_anew(self, made, tmp_path):
        (tmp_path / "archive").mkdir()
        (tmp_path / "archive" / ASIDE).write_bytes(b"half")
        expire(made.folder, 2, ElsewhereDisk(), tmp_path / "archive")
        check_answers([tmp_path / "archive"], below(made, 2 * FILE_SIZE), max_scanned=0)


class TestOtherDisks:
    def test_a_copy_has_the_bytes_and_the_age_of_its_source(self, made, tmp_path):
        age(made.folder, 2)
        times = {path.name: path.stat().st_mtime_ns for path in made.log_files[:2]}
        expire(made.folder, 2, ElsewhereDisk(), tmp_path / "archive")
        assert {
            path.name: path.stat().st_mtime_ns for path in (tmp_path / "archive" / "commitlog").iterdir()
        } == times

    def test_a_real_one(self, made):
        other = Path("/dev/shm")
        if not other.is_dir() or other.stat().st_dev == made.folder.stat().st_dev:
            pytest.skip("needs two file systems")
        archive = other / f"whence-test-{os.getpid()}"
        try:
            begin = expire(made.folder, 3, Disk(), archive).new_begin_offset
            check_answers([archive, made.folder], made.records, max_scanned=0)
            check_is_the_store_of(archive, below(made, begin), "5.5", SLOTS, ITEMS)
        finally:
            shutil.rmtree(archive, ignore_errors=True)

    def test_a_file_without_anything_in_it_takes_no_room(self, made, tmp_path):
        """Index files are long and mostly empty at first."""
        queue = made.folder / "consumequeue" / "T" / "0"
        data = b"".join(data for _, data in sorted(files_below(queue).items()))
        shutil.rmtree(queue)
        queue.mkdir()
        (queue / f"{0:020}").write_bytes(data)
        os.truncate(queue / f"{0:020}", 8_000_000)
        expire(made.folder, 6, ElsewhereDisk(), tmp_path / "archive")
        copy = tmp_path / "archive" / "consumequeue" / "T" / "0" / f"{0:020}"
        assert copy.stat().st_size == 8_000_000
        assert copy.stat().st_blocks * 512 < 2_000_000


class TestRefusals:
    def check_refused(self, made: MadeStore, archive: Path, kind: type[Exception], match: str) -> None:
        """Also by a dry run; and nothing of the store is touched."""
        age(made.folder, 3)
        before = names_below(made.folder)
        expiry = Expiry(made.folder, POLICY, UnflushedDisk(), archive=archive)
        with pytest.raises(kind, match=match):
            expiry.plan(NOW)
        with pytest.raises(kind, match=match):
            expiry.run(NOW)
        assert names_below(made.folder) == before

    def test_a_log_that_does_not_follow(self, made, tmp_path):
        expire(made.folder, 2, archive=tmp_path / "archive")
        expire(made.folder, 1)
        self.check_refused(made, tmp_path / "archive", StoreError, r"from offset 0 to 8192 .* begins at 12288")

    def test_a_log_that_begins_before_the_archived_one(self, made, tmp_path):
        shutil.copytree(made.folder, tmp_path / "older")
        expire(made.folder, 2)
        expire(made.folder, 1, archive=tmp_path / "archive")
        older = MadeStore(tmp_path / "older", made.records, made.index)
        self.check_refused(older, tmp_path / "archive", StoreError, "does not follow")

    def test_files_of_another_size(self, made, tmp_path):
        other = make_store(tmp_path / "other", MESSAGES, file_size=2048)
        expire(other.folder, 2, archive=tmp_path / "archive")
        expire(made.folder, 1)
        self.check_refused(made, tmp_path / "archive", StoreError, "in files of 2048 bytes")

    def test_an_archive_in_the_store_and_the_other_way_round(self, made):
        for archive in (made.folder, made.folder / "archive", made.folder.parent):
            self.check_refused(made, archive, UsageError, "cannot lie in its store")
        link = made.folder.parent / "link"
        link.symlink_to(made.folder)
        self.check_refused(made, link / "archive", UsageError, "cannot lie in its store")

    def test_a_file(self, made, tmp_path):
        (tmp_path / "archive").touch()
        self.check_refused(made, tmp_path / "archive", UsageError, "is no folder")

    def test_a_folder_with_something_else_in_it(self, made, tmp_path):
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "letters").touch()
        self.check_refused(made, tmp_path / "home", UsageError, "it has letters in it")

    def test_a_store_that_whence_writes_to(self, made, tmp_path):
        shutil.copytree(made.folder, tmp_path / "owned")
        (tmp_path / "owned" / "whence.json").touch()
        self.check_refused(made, tmp_path / "owned", UsageError, "a store that is written to")

    def test_an_archive_that_another_process_writes_to(self, made, tmp_path):
        (tmp_path / "archive").mkdir()
        before = names_below(made.folder)
        with (
            StoreLock(tmp_path / "archive" / "lock"),
            pytest.raises(LockedError, match=f"process {os.getpid()} holds this store"),
        ):
            expire(made.folder, 2, archive=tmp_path / "archive")
        assert names_below(made.folder) == before
        expire(made.folder, 2, archive=tmp_path / "archive")

    @pytest.mark.parametrize(
        "name", ["commitlog/{}", "consumequeue/T/0/{}", "consumequeue/T/1/{}", "index/20260101120000000"]
    )
    @pytest.mark.parametrize("change", ["other bytes", "other length"])
    def test_a_different_file_of_the_same_name_is_not_written_over(self, made, tmp_path, name, change):
        archive = tmp_path / "archive"
        shutil.copytree(made.folder, tmp_path / "first")
        expire(tmp_path / "first", 1, archive=archive)
        path = archive / name.format(f"{0:020}")
        data = bytearray(path.read_bytes())
        if change == "other bytes":
            data[3 if "index" not in name else 40 + 4 * SLOTS + 20 * 3] ^= 1
        else:
            data += bytes(1000)
        path.write_bytes(data)
        expected = "is not a copy of|does not follow" if "commitlog" in name else "is not a copy of"
        with pytest.raises(StoreError, match=expected):
            expire(made.folder, 4, archive=archive)
        assert path.read_bytes() == data
        assert (made.folder / name.format(f"{0:020}")).exists()

    def test_a_link_that_leads_out_of_the_archive_is_not_followed(self, made, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "archive" / "commitlog").mkdir(parents=True)
        (tmp_path / "archive" / "consumequeue").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="a link leads elsewhere"):
            expire(made.folder, 2, archive=tmp_path / "archive")
        assert list((tmp_path / "elsewhere").iterdir()) == []


class TestDamage:
    def test_an_index_file_whose_counts_make_no_sense_is_scanned_for(self, made, tmp_path):
        straddling = next(file for file in made.index if file.end_physical_offset >= 2 * FILE_SIZE)
        path = made.index_files[made.index.index(straddling)]
        data = bytearray(path.read_bytes())
        data[16:24] = bytes(8)
        path.write_bytes(data)
        begin = expire(made.folder, 2, archive=tmp_path / "archive").new_begin_offset
        assert not (tmp_path / "archive" / "index" / path.name).exists()
        check_answers([tmp_path / "archive"], below(made, begin))

    def test_an_index_file_whose_last_message_is_damaged_is_scanned_for(self, made, tmp_path):
        last = below(made, 2 * FILE_SIZE)[-1]
        log = made.folder / "commitlog" / f"{FILE_SIZE:020}"
        data = bytearray(log.read_bytes())
        data[last.physical_offset - FILE_SIZE + 88] ^= 1
        log.write_bytes(data)
        expired = expire(made.folder, 2, archive=tmp_path / "archive")
        assert expired.straddling_index_files == ()
        with whence.open(tmp_path / "archive") as archive:
            assert len(archive.find(key="every", limit=None)) == len(below(made, last.physical_offset))

    def test_an_index_file_with_a_broken_chain_is_scanned_for(self, made, tmp_path):
        straddling = next(file for file in made.index if file.end_physical_offset >= 2 * FILE_SIZE)
        path = made.index_files[made.index.index(straddling)]
        data = bytearray(path.read_bytes())
        number = next(number for number, item in straddling.items.items() if item.previous_item)
        at = 40 + 4 * SLOTS + 20 * number + 16
        data[at : at + 4] = bytes(4)
        path.write_bytes(data)
        begin = expire(made.folder, 2, archive=tmp_path / "archive").new_begin_offset
        assert not (tmp_path / "archive" / "index" / path.name).exists()
        check_answers([tmp_path / "archive"], below(made, begin))
