"""Dispatch: RocketMQ's own logs, dispatched anew, give RocketMQ's own queues and index files."""

import os
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import FailingDisk, UnflushedDisk
from tests.golden import CLEAN, CRASHED, DIRECT, GoldenStore
from tests.reference import build_index, build_queues, encode_queue_files
from tests.store_maker import QUEUE_FILE_SIZE, MadeStore, make_store, message
from whence.errors import StoreError
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import decode_header
from whence.store import log_scan
from whence.store.commit_log import CommitLog
from whence.store.dispatch import Dispatched, dispatch_log
from whence.store.message_store import Dialect


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_header_order(folder: Path) -> list[bytes]:
    """Index files from the oldest to the newest; their names are the clock's."""

    def place(data: bytes) -> tuple[int, int]:
        header = decode_header(data)
        return header.begin_physical_offset, header.end_physical_offset

    return sorted((path.read_bytes() for path in folder.iterdir()), key=place)


def dispatch_store(store: Path, folder: Path, disk: Disk | None = None, **settings) -> Dispatched:
    log = CommitLog(store / "commitlog")
    try:
        return dispatch_log(log, folder, disk=disk or UnflushedDisk(), **settings)
    finally:
        log.close()


def dispatch_golden(store: GoldenStore, folder: Path) -> Dispatched:
    return dispatch_store(
        store.store,
        folder,
        slots=store.slot_capacity,
        items=store.item_capacity,
        queue_file_size=store.queue_file_size,
        dialect=Dialect(store.dialect),
    )


@pytest.mark.parametrize("rows", [1, 7, log_scan.ROWS])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_dispatch_gives_rocketmqs_bytes(golden, tmp_path, monkeypatch, name, rows):
    monkeypatch.setattr(log_scan, "ROWS", rows)
    store = golden(name)
    done = dispatch_golden(store, tmp_path)
    assert files_below(tmp_path / "consumequeue") == files_below(store.store / "consumequeue")
    assert in_header_order(tmp_path / "index") == in_header_order(store.store / "index")
    assert [file.path.read_bytes() for file in done.index_files] == in_header_order(tmp_path / "index")
    assert [file.path.name for file in done.index_files] == sorted(
        path.name for path in (tmp_path / "index").iterdir()
    )
    assert done.message_count == len(store.records)
    assert done.item_count == sum(file.header.next_item - 1 for file in done.index_files)
    assert done.damage == ()
    assert (done.from_offset, done.to_offset) == (0, CommitLog(store.store / "commitlog").end_offset())
    assert (done.queues.dropped_count, done.queues.misplaced_count, done.queues.without_folder) == (0, 0, ())


MESSAGES = st.lists(
    st.builds(
        message,
        keys=st.sampled_from(["", "a", "a b", "k k", "x y z a b c"]),
        tags=st.sampled_from(["", "t", "ü"]),
        unique_id=st.sampled_from(["", "id"]),
        at=st.integers(-5000, 10_000_000),
        topic=st.sampled_from(["T", "U", "Aa", "BB", "SCHEDULE_TOPIC_XXXX"]),
        queue=st.integers(0, 3),
        sys_flag=st.sampled_from([0, 0, 4, 8, 12]),
    ),
    min_size=1,
    max_size=60,
)


@given(
    messages=MESSAGES,
    slots=st.integers(1, 9),
    items=st.integers(2, 9),
    rows=st.integers(1, 9),
    dialect=st.sampled_from(list(Dialect)),
)
def test_dispatch_equals_the_twin(tmp_path_factory, messages, slots, items, rows, dialect):
    folder = tmp_path_factory.mktemp("dispatch")
    made = make_store(folder / "store", messages, slots=slots, items=items, dialect=dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_scan, "ROWS", rows)
        done = dispatch_store(
            made.folder,
            folder / "new",
            slots=slots,
            items=items,
            queue_file_size=QUEUE_FILE_SIZE,
            dialect=dialect,
        )
    assert [file.path.read_bytes() for file in done.index_files] == [
        file.to_bytes() for file in build_index(made.records, dialect, slots, items)
    ]
    for (topic, queue), entries in build_queues(made.records).items():
        files = sorted((folder / "new" / "consumequeue" / topic / str(queue)).iterdir())
        assert [file.read_bytes() for file in files] == encode_queue_files(entries, QUEUE_FILE_SIZE)
    assert done.queues.queue_count == len(build_queues(made.records))


def small(made: MadeStore, folder: Path, disk: Disk | None = None) -> Dispatched:
    return dispatch_store(made.folder, folder, disk, slots=7, items=20, queue_file_size=200, dialect=Dialect.V5_5)


def test_a_damaged_record_is_told_and_what_lies_behind_it_is_dispatched(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}", body=b"b" * 600) for number in range(12)])
    path = made.log_files[0]
    data = bytearray(path.read_bytes())
    data[made.records[1].physical_offset + 100] ^= 1
    path.write_bytes(data)
    done = small(made, tmp_path / "new")
    assert done.message_count == 11
    (damage,) = done.damage
    assert (damage.position, damage.path) == (made.records[1].physical_offset, str(path))
    assert done.queues.misplaced_count == 10


def test_an_empty_log_gives_nothing(tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020}").write_bytes(bytes(4096))
    done = small(MadeStore(tmp_path / "store", [], []), tmp_path / "new")
    assert (done.message_count, done.index_files, done.queues.queue_count) == (0, (), 0)


def test_what_is_there_already_is_not_written_over(tmp_path):
    made = make_store(tmp_path / "store", [message(keys="k")])
    with pytest.raises(StoreError, match="index: is there already"):
        small(made, made.folder)


def test_a_disk_that_fails_at_any_write_or_flush_is_told_and_leaves_no_file_open(tmp_path):
    messages = [message(keys=f"k{number} k", topic="TU"[number % 2], tags="t") for number in range(25)]
    made = make_store(tmp_path / "store", messages)
    descriptors = len(os.listdir("/proc/self/fd"))
    for left in count():
        try:
            small(made, tmp_path / f"new{left}", FailingDisk(left))
        except StoreError as error:
            assert str(tmp_path) in str(error) and "No space left" in str(error)
        else:
            break
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert left > 30
    assert files_below(tmp_path / f"new{left}" / "consumequeue") == files_below(made.folder / "consumequeue")
