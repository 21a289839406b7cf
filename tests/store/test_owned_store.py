"""A store that whence writes: what is appended is found, and what is closed opens again."""

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import whence
from tests.disks import UnflushedDisk
from whence.door import WritableStore
from whence.store import dispatcher
from whence.store.expiry_policy import ALL_HOURS, ExpiryPolicy
from whence.store.message_store import read_checkpoint
from whence.store.owned_store import Options, own_store
from whence.store.ownership import Ownership, read_ownership

SIZES = {"file_size": 65536, "queue_file_size": 2000, "slots": 97, "items": 400}


def ownership_of(folder) -> Ownership:
    ownership = read_ownership(folder)
    assert ownership is not None
    return ownership


def create(folder, **options):
    return whence.create(folder, **{"disk": UnflushedDisk(), **SIZES, **options})


def test_what_is_appended_is_found_at_once_and_after_it_was_closed(tmp_path):
    with create(tmp_path / "store") as store:
        result = store.append(
            "orders", b"paid", keys=["order-4711", "customer-1"], tags="paid", queue=2, properties={"region": "eu"}
        )
        assert (result.status, result.physical_offset, result.queue_offset) == ("PUT_OK", 0, 0)
        for answer in (
            store.find(key="order-4711"),
            store.find(id=result.unique_id),
            store.find(id=result.offset_id),
        ):
            (found,) = answer
            assert (found.body, found.topic, found.queue, found.tags) == (b"paid", "orders", 2, "paid")
            assert found.properties["region"] == "eu"
            assert answer.receipt.complete
        for number in range(3):
            store.append("orders", b"more", keys=[f"more-{number}"])
    with whence.open(tmp_path / "store") as store:
        answer = store.find(key="customer-1", no_scan=True)
        assert [one.physical_offset for one in answer] == [0]
        assert (answer.receipt.index_source, answer.receipt.complete) == ("whence", True)


def test_a_store_is_gone_on_with_where_it_ended(tmp_path):
    offsets = []
    for turn in range(3):
        with create(tmp_path / "store") as store:
            for number in range(500):
                result = store.append("T", b"x" * 30, keys=[f"{turn}-{number}"], queue=number % 3)
                offsets.append((number % 3, result.queue_offset))
    for queue in range(3):
        assert [offset for of, offset in offsets if of == queue] == list(range(sum(of == queue for of, _ in offsets)))
    with whence.open(tmp_path / "store") as store:
        assert len(store.find(topic="T", limit=None).messages) == 1500
        for key in ("0-0", "1-499", "2-7"):
            assert len(store.find(key=key, no_scan=True).messages) == 1


def test_a_batch_is_found_as_single_messages_are(tmp_path):
    with create(tmp_path / "store") as store:
        bodies = [f"body {number}".encode() for number in range(3000)]
        result = store.append_batch("T", bodies, keys=[[f"key-{number}", "all"] for number in range(3000)], tags="t")
        assert (result.status, result.count) == ("PUT_OK", 3000)
        assert [one.body for one in store.find(key="key-2999")] == [b"body 2999"]
        assert len(store.find(key="all", limit=None).messages) == 3000
        store.wait_dispatched()
        assert store.dispatch_lag == 0
        answer = store.find(topic="T", queue=0, queue_offset=1234)
        assert [one.body for one in answer] == [b"body 1234"]


def test_threads_append_side_by_side(tmp_path):
    with create(tmp_path / "store", flush="sync") as store:

        def append(thread):
            for number in range(50):
                assert store.append("T", b"x", keys=[f"{thread}-{number}"], queue=thread).status == "PUT_OK"

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.find(topic="T", limit=None).messages) == 400
        assert all(len(store.find(key=f"{thread}-49").messages) == 1 for thread in range(8))


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path):
    with create(tmp_path / "store"):
        with pytest.raises(whence.LockedError, match=r"process \d+ holds this store"):
            create(tmp_path / "store")
        code = f"import whence; whence.create({str(tmp_path / 'store')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "LockedError" in other.stderr
    create(tmp_path / "store").close()


def test_what_a_store_was_made_with_cannot_be_changed(tmp_path):
    create(tmp_path / "store").close()
    with pytest.raises(whence.UsageError, match="was made with file_size=65536, which cannot become 131072"):
        create(tmp_path / "store", file_size=131072)
    with whence.create(tmp_path / "store") as store:  # what is not given is as it was
        assert store.append("T", b"x").status == "PUT_OK"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"flush": "never"}, "neither async nor sync"),
        ({"dialect": "6"}, "dialect '6' is not one of"),
        ({"store_host": "here"}, "not an address and a port"),
        ({"store_host": "host.example:1"}, "not an IP address"),
        ({"file_size": 50}, "a log file of 50 bytes"),
        ({"slots": 0}, "an index file of 0 slots"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, options, what):
    with pytest.raises(whence.UsageError, match=what):
        create(tmp_path / "store", **options)
    assert not (tmp_path / "store" / "commitlog").exists()
    create(tmp_path / "store").close()


def test_a_broker_finds_the_small_files_that_it_looks_for(tmp_path):
    with create(tmp_path / "store") as store:
        assert (tmp_path / "store" / "abort").read_text().isdigit()
        results = [store.append("T", b"x", keys=[f"{number}"], queue=3) for number in range(600)]
        store.flush()
        checkpoint = read_checkpoint(tmp_path / "store")
        assert checkpoint.queue_physical_offset == results[-1].physical_offset
        assert checkpoint.log_timestamp_ms == checkpoint.queue_timestamp_ms == results[-1].store_timestamp_ms
        assert 0 < checkpoint.index_timestamp_ms <= results[-1].store_timestamp_ms
        assert store.stores[0].config("topics.json")["topicConfigTable"]["T"]["readQueueNums"] == 4
    assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
    assert not (tmp_path / "store" / "abort").exists()


def test_what_is_appended_after_the_end_is_refused_with_the_reason(tmp_path):
    store = create(tmp_path / "store")
    store.close()
    store.close()
    result = store.append("T", b"x")
    assert (result.status, result.physical_offset) == ("SERVICE_NOT_AVAILABLE", -1)
    assert "closed" in result.detail


def test_the_log_lies_in_several_folders_if_it_is_told_to(tmp_path):
    folders = [tmp_path / "disk1" / "log", tmp_path / "disk2" / "log"]
    with create(tmp_path / "store", log_folders=folders) as store:
        for number in range(1500):
            store.append("T", b"x" * 200, keys=[f"key-{number}"])
    assert all(len(list(folder.iterdir())) > 2 for folder in folders)
    with whence.open(tmp_path / "store") as store:
        assert all(len(store.find(key=f"key-{number}").messages) == 1 for number in range(0, 1500, 100))
    with whence.create(tmp_path / "store") as store:
        assert store.append("T", b"x").queue_offset == 1500


def test_delayed_and_transactional_messages_enter_the_queues_that_a_broker_puts_them_into(tmp_path):
    with create(tmp_path / "store") as store:
        store.append("SCHEDULE_TOPIC_XXXX", b"x", queue=2, properties={"DELAY": "3"})
        store.append("T", b"prepared", keys=["p"], sys_flag=0x4)
        store.append("T", b"committed", keys=["c"], sys_flag=0x8)
        store.append("T", b"rolled back", keys=["r"], sys_flag=0xC)
        store.wait_dispatched()
        queue = store.stores[0].queue("T", 0)
        assert queue.end_offset() == 1
        assert [one.body for one in store.find(key="p")] == [b"prepared"]
        assert not store.find(key="r").messages
        delayed = store.stores[0].queue("SCHEDULE_TOPIC_XXXX", 2).entry(0)
        assert delayed.tags_code == store.find(topic="SCHEDULE_TOPIC_XXXX").messages[0].store_timestamp_ms + 10_000


def test_the_note_of_the_store_tells_how_far_all_is_flushed(tmp_path):
    with create(tmp_path / "store") as store:
        assert ownership_of(tmp_path / "store").writer > 0
        result = store.append("T", b"x", keys=["k"])
        end = result.physical_offset + result.size
        store.flush()
        flushed = ownership_of(tmp_path / "store").flushed
        assert (flushed.queues, flushed.index, flushed.last_record_offset) == (end, end, result.physical_offset)
    assert ownership_of(tmp_path / "store").writer == 0


def test_a_store_that_was_closed_is_believed_when_it_is_opened_again(tmp_path):
    with create(tmp_path / "store") as store:
        result = store.append("T", b"x", keys=["k"])
    with create(tmp_path / "store") as store:
        end = result.physical_offset + result.size
        assert store.recovered.end_offset == store.recovered.flushed.queues == store.recovered.flushed.index == end
        assert store.recovered.newest_index is not None


class TestExpiry:
    def test_old_files_go_while_the_store_is_written_to(self, tmp_path):
        now_ms = [1_700_000_000_000]
        with create(tmp_path / "store", clock=lambda: now_ms[0]) as store:
            for number in range(1000):
                store.append("T", b"x" * 200, keys=[f"key-{number}"])
            now_ms[0] += 100 * 3_600_000
            store.append("T", b"x", keys=["new"])
            store.flush()
            expired = store.expire("72h", by="record")
            assert len(expired.log_files) > 2
            answer = store.find(key="key-0")
            assert (answer.messages, answer.receipt.complete) == ([], True)
            assert expired.new_begin_offset == answer.receipt.searched_from_offset > 0
            assert len(store.find(key="key-999").messages) == len(store.find(key="new").messages) == 1
            store.append("T", b"x", keys=["after"])
        with create(tmp_path / "store") as store:
            assert store.recovered.cut == []
            assert len(store.find(key="after").messages) == 1

    def test_an_archive_keeps_what_goes(self, tmp_path):
        now_ms = [1_700_000_000_000]
        with create(tmp_path / "store", clock=lambda: now_ms[0]) as store:
            for number in range(1000):
                store.append("T", b"x" * 200, keys=[f"key-{number}"])
            store.flush()
            now_ms[0] += 100 * 3_600_000
            store.expire("72h", by="record", archive=tmp_path / "archive")
            assert not store.find(key="key-0").messages
        with whence.open(tmp_path / "archive") as archive:
            assert len(archive.find(key="key-0").messages) == 1

    def test_a_store_that_keeps_for_a_time_lets_go_by_itself(self, tmp_path):
        policy = ExpiryPolicy(0, ALL_HOURS)
        with own(tmp_path / "store", Options(expiry=policy, expiry_interval_s=0.01)) as store:
            for _ in range(1000):
                store.append("T", b"x" * 200)
            store.flush()
            wait_until(lambda: not (tmp_path / "store" / "commitlog" / f"{0:020d}").exists())
            assert store.append("T", b"x").status == "PUT_OK"

    def test_nothing_is_appended_while_the_disk_is_full(self, tmp_path, monkeypatch):
        used = [95]
        monkeypatch.setattr(shutil, "disk_usage", lambda path: (100, used[0], 100 - used[0]))
        with own(tmp_path / "store", Options(expiry=ExpiryPolicy(), expiry_interval_s=0.01)) as store:
            wait_until(lambda: store.append("T", b"x").status == "SERVICE_NOT_AVAILABLE")
            assert "full" in store.append("T", b"x").detail
            used[0] = 50
            wait_until(lambda: store.append("T", b"x").status == "PUT_OK")


def own(folder, options):
    return WritableStore(own_store(folder, SIZES, options, disk=UnflushedDisk()))


def wait_until(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_closed_store_has_no_file_open(tmp_path):
    gc.collect()
    gc.disable()
    try:
        with create(tmp_path / "store", file_size=16384) as store:
            for number in range(100):
                store.append("T", b"x" * 500, keys=[f"key-{number}"])
            store.wait_dispatched()
            store.find(key="key-3")
            assert open_files(tmp_path)
        assert open_files(tmp_path) == []
    finally:
        gc.enable()


def open_files(folder):
    """Files below a folder that this process has open, or mapped."""
    text = Path("/proc/self/maps").read_text()
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            descriptors.append(str(Path("/proc/self/fd", name).readlink()))
    return [line for line in (*descriptors, *text.splitlines()) if str(folder) in line]


class SlowDisk(UnflushedDisk):
    """A flush of the log takes a while, if it is told to."""

    is_slow = False

    def fsync(self, path, descriptor):
        if self.is_slow and "commitlog" in str(path):
            time.sleep(0.3)


def test_what_nobody_waited_for_is_dispatched_when_it_is_flushed(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatcher, "IDLE_S", 60)
    disk = SlowDisk()
    with create(tmp_path / "store", flush="sync", disk=disk) as store:
        disk.is_slow = True
        for _ in range(3):
            result = store.append("T", b"x", wait=False)
            end = result.physical_offset + result.size
            wait_until(lambda end=end: store._owned.dispatcher.dispatched_offset >= end)


def test_an_append_that_is_interrupted_while_it_waits_harms_no_later_one(tmp_path):
    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    disk = SlowDisk()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with whence.create(tmp_path / "store", flush="sync", disk=disk, flush_timeout_s=5, **SIZES) as store:
            store.append("T", b"1")
            disk.is_slow = True
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(StopError):
                store.append("T", b"2")
            disk.is_slow = False
            for _ in range(3):
                result = store.append("T", b"3")
                assert result.status == "PUT_OK"
                assert store._owned.log.flushed_offset >= result.physical_offset + result.size
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_limit_of_open_files_is_heeded(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 110, limits[1]))
    try:
        with create(tmp_path / "store") as store:
            for queue in range(300):
                assert store.append("T", b"x", queue=queue).status == "PUT_OK"
            store.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_made_ahead_that_somebody_removed_is_made_again(tmp_path):
    """A broker that is started by mistake recovers the store, and removes it, before it sees the lock."""
    with create(tmp_path / "store", file_size=16384) as store:
        store.append("T", bytes(1000))
        ahead = tmp_path / "store" / "commitlog" / f"{16384:020d}"
        wait_until(lambda: ahead.exists() and ahead.stat().st_size == 16384)
        time.sleep(0.05)
        ahead.unlink()
        for _ in range(40):
            assert store.append("T", bytes(1000)).status == "PUT_OK"
    with whence.open(tmp_path / "store") as opened:
        assert len(opened.find(topic="T", limit=None).messages) == 41


def test_a_log_file_that_somebody_removes_while_it_is_written_is_told(tmp_path):
    store = create(tmp_path / "store", flush="sync")
    assert store.append("T", b"x").status == "PUT_OK"
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    result = store.append("T", b"x")
    assert result.status == "FLUSH_DISK_TIMEOUT"
    assert "removed by another program" in result.detail
    assert store.append("T", b"x").status == "SERVICE_NOT_AVAILABLE"
    with pytest.raises(whence.StoreError, match="removed by another program"):
        store.close()


def test_a_disk_that_is_nearly_full_gets_no_new_log_files_while_another_has_room(tmp_path, monkeypatch):
    folders = [tmp_path / "a" / "log", tmp_path / "b" / "log"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (100, 95, 5) if path == folders[0] else (100, 10, 90))
    with create(tmp_path / "store", log_folders=folders, file_size=16384) as store:
        for number in range(200):
            assert store.append("T", b"x" * 500, keys=[f"key-{number}"]).status == "PUT_OK"
        assert list(folders[0].iterdir()) == []
        assert len(store.find(key="key-0").messages) == 1


def test_an_index_file_that_another_program_wrote_to_is_made_again(tmp_path):
    """As a broker does that is started by mistake: it dispatches, and then sees that the store is locked."""
    with create(tmp_path / "store") as store:
        for number in range(50):
            store.append("T", b"x", keys=[f"key-{number}"])
        store.flush()
        (path,) = (tmp_path / "store" / "index").iterdir()
        with path.open("r+b") as file:
            file.seek(36)
            file.write((70).to_bytes(4, "big"))
            file.seek(40 + 4 * 97 + 20 * 12)
            file.write(bytes(range(20)))
        for number in range(50, 100):
            store.append("T", b"x", keys=[f"key-{number}"])
        assert len(store.find(key="key-60").messages) == 1
    with create(tmp_path / "store") as store:
        for number in range(100):
            answer = store.find(key=f"key-{number}", no_scan=True)
            assert (len(answer.messages), answer.receipt.complete, answer.receipt.damage) == (1, True, [])
