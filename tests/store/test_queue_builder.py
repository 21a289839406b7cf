"""QueueBuilder: queues as RocketMQ appends to them, message by message."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import UnflushedDisk
from tests.reference import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    Record,
    encode_log_file,
    encode_properties,
    encode_record,
    java_hash,
)
from whence.errors import StoreError, UsageError
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE, FILLER, decode_entries
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Status, scan_stretch
from whence.store import queue_writer
from whence.store.queue_builder import BuiltQueues, QueueBuilder
from whence.store.queue_files import cut_queue

T = 1_700_000_000_000
FILE_SIZE = 100  # five entries
BASE = 4096


def build(
    folder: Path,
    records: Iterable[Record],
    *,
    rows: int = 50,
    file_size: int = FILE_SIZE,
    edit=lambda data: data,
    builder: QueueBuilder | None = None,
    from_offset: int = BASE,
) -> BuiltQueues:
    """Build the queues of records that lie from offset BASE on, ``rows`` of them in a batch."""
    log, left = encode_log_file(records, BASE, 1 << 20)
    assert not left
    data = np.frombuffer(edit(log), np.uint8)
    messages, items = np.empty(rows, SCANNED), np.empty(ITEMS_MAX, ITEMS)
    builder = builder or QueueBuilder(folder, file_size, UnflushedDisk())
    position, status = from_offset - BASE, Status.FULL
    while status == Status.FULL:
        result = scan_stretch(
            data, BASE, position, len(data), check_crc=True, tags=False, messages=messages, items=items
        )
        builder.put(data, BASE, messages[: result.message_count])
        position, status = result.next_position, result.status
    assert status == Status.ZERO
    return builder.finish()


def entries_of(folder: Path) -> list[tuple[int, int, int]]:
    """What the files of one queue hold, from the first one on: offset, size and tags code."""
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return [tuple(row) for row in decode_entries(data).tolist()]


def place(records: Iterable[Record]) -> list[Record]:
    """The records with their physical offsets and sizes."""
    placed = []
    offset = BASE
    for record in records:
        size = len(encode_record(record))
        placed.append(replace(record, physical_offset=offset, size=size))
        offset += size
    return placed


def entry(record: Record) -> tuple[int, int, int]:
    return record.physical_offset, record.size, java_hash(record.tags) if record.tags else 0


EMPTY = (0, 0, 0)
FILLED = tuple(decode_entries(FILLER)[0].tolist())


def test_queues_of_topics_with_equal_hashes_are_told_apart(tmp_path):
    topics = ("Aa", "BB", "AaBBAaBBAa", "BBAaAaBBBB")
    assert len({java_hash(topic + "#") for topic in topics}) == 2
    order = [*topics, *topics[::-1], "Aa", "Aa", "BB", "Aa"]
    records = place(
        [Record(topic=topic, queue=1, queue_offset=order[:at].count(topic)) for at, topic in enumerate(order)]
    )
    assert build(tmp_path, records).queue_count == 4
    for topic in topics:
        expected = [entry(record) for record in records if record.topic == topic]
        assert entries_of(tmp_path / topic / "1")[: len(expected)] == expected


@pytest.mark.parametrize("kept", [slice(1, None), slice(2, None, 3), slice(5, 9)])
def test_rows_need_not_be_all_of_those_that_were_scanned(tmp_path, kept):
    """A row tells of a record with the same topic, which may not be among those that are put."""
    records = place([Record(topic=topic, queue=queue) for topic in ("Aa", "BB") * 3 for queue in (0, 1)])
    log, _ = encode_log_file(records, BASE, 1 << 20)
    data = np.frombuffer(log, np.uint8)
    messages, items = np.empty(len(records), SCANNED), np.empty(ITEMS_MAX, ITEMS)
    scan_stretch(data, BASE, 0, len(data), check_crc=True, tags=False, messages=messages, items=items)
    builder = QueueBuilder(tmp_path, FILE_SIZE, UnflushedDisk())
    builder.put(data, BASE, messages[kept].copy())
    assert builder.finish().entry_count == len(records[kept])
    for record in records[kept]:
        expected = [entry(one) for one in records[kept] if (one.topic, one.queue) == (record.topic, record.queue)]
        assert entries_of(tmp_path / record.topic / str(record.queue))[: len(expected)] == expected


def test_a_queue_that_begins_later_has_fillers_before_its_first_entry(tmp_path):
    records = place([Record(queue_offset=12), Record(queue_offset=13)])
    build(tmp_path, records)
    (path,) = (tmp_path / "TopicTest" / "0").iterdir()
    assert path.name == f"{10 * ENTRY_SIZE:020d}"
    expected = [FILLED, FILLED, entry(records[0]), entry(records[1]), EMPTY]
    assert entries_of(path.parent) == expected


def test_a_queue_that_begins_with_a_file_has_no_fillers(tmp_path):
    records = place([Record(queue_offset=10)])
    build(tmp_path, records)
    assert entries_of(tmp_path / "TopicTest" / "0") == [entry(records[0])] + [EMPTY] * 4


def test_prepared_and_rolled_back_messages_are_in_no_queue(tmp_path):
    flags = [(PREPARED, 0), (0, 0), (ROLLBACK, 0), (COMMIT, 1)]
    records = place([Record(sys_flag=flag, queue_offset=queue_offset) for flag, queue_offset in flags])
    assert build(tmp_path, records).entry_count == 2
    assert entries_of(tmp_path / "TopicTest" / "0")[:2] == [entry(records[1]), entry(records[3])]


def test_a_queue_of_prepared_messages_alone_has_no_folder(tmp_path):
    assert build(tmp_path / "consumequeue", [Record(sys_flag=PREPARED)]).queue_count == 0
    assert not (tmp_path / "consumequeue").exists()


LEVELS = [  # text of DELAY, seconds; None where the code is the hash of the tags
    ("1", 1),
    ("2", 5),
    ("4", 30),
    ("14", 600),
    ("17", 3600),
    ("18", 7200),
    ("19", 7200),
    ("2147483647", 7200),
    ("+3", 10),
    ("003", 10),
    ("0", None),
    ("-3", None),
    ("x", None),
    ("3 ", None),
    ("+", None),
    ("2147483648", None),
    ("", None),
]


@pytest.mark.parametrize(("level", "seconds"), LEVELS)
def test_delayed_message_has_its_time_of_delivery_as_code(tmp_path, level, seconds):
    data = encode_properties({"TAGS": "TagA", "DELAY": level})
    delayed = Record(topic="SCHEDULE_TOPIC_XXXX", queue=2, properties_data=data, store_timestamp_ms=T)
    build(tmp_path, [delayed, replace(delayed, topic="Other")])
    code = java_hash("TagA") if seconds is None else T + 1000 * seconds
    assert entries_of(tmp_path / "SCHEDULE_TOPIC_XXXX" / "2")[0][2] == code
    assert entries_of(tmp_path / "Other" / "2")[0][2] == java_hash("TagA")


def test_tags_code_keeps_its_sign(tmp_path):
    data = encode_properties({"TAGS": "polygenelubricants"})
    build(tmp_path, [Record(properties_data=data)])
    assert entries_of(tmp_path / "TopicTest" / "0")[0][2] == -(2**31)


@pytest.mark.parametrize("topic", ["..", ".", "a/b", "../../etc", "x\0y", "a\\b"])
def test_a_topic_that_names_no_folder_is_told_and_left_out(tmp_path, topic):
    records = place([Record(topic=topic), Record(topic="T")])
    built = build(tmp_path / "consumequeue", records)
    assert built.without_folder == (topic,)
    assert (built.queue_count, built.entry_count) == (1, 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{0:020d}"]


def test_topics_that_java_reads_alike_are_one_queue(tmp_path):
    records = place([Record(topic=topic, queue_offset=number) for number, topic in enumerate(["a1b", "a2b", "a1b"])])

    def make_malformed(log: bytes) -> bytes:
        return log.replace(b"a1b", b"a\xffb").replace(b"a2b", b"a\xfeb")

    built = build(tmp_path, records, rows=2, edit=make_malformed)
    assert built.queue_count == 1
    assert entries_of(tmp_path / "a\ufffdb" / "0")[:3] == [entry(record) for record in records]


def test_file_size_is_rounded_up_to_whole_entries(tmp_path):
    build(tmp_path, [Record(queue_offset=number) for number in range(3)], file_size=39)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "TopicTest" / "0").iterdir()}
    assert sizes == {f"{0:020d}": 40, f"{40:020d}": 40}


def test_file_size_must_hold_something(tmp_path):
    with pytest.raises(UsageError, match="holds no entry"):
        QueueBuilder(tmp_path, 0, UnflushedDisk())


def test_many_queues_are_written_with_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_writer, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(queue_writer, "PENDING_MAX", 1000)
    queue_count = 700
    records = place(
        [
            Record(topic=f"A long name of a topic {number % 70}", queue=number // 70 - 3, queue_offset=round_number)
            for round_number in range(2)
            for number in range(queue_count)
        ]
    )
    built = build(tmp_path, records)
    assert (built.queue_count, built.entry_count, built.misplaced_count) == (queue_count, 2 * queue_count, 0)
    for first, second in zip(records, records[queue_count:], strict=False):
        expected = [entry(first), entry(second), EMPTY, EMPTY, EMPTY]
        assert entries_of(tmp_path / first.topic / str(first.queue)) == expected


# What ConsumeQueue.putMessagePositionInfo does, message by message.


def append_as_rocketmq(records: Iterable[Record]) -> tuple[dict[tuple[str, int], bytes], int, int]:
    queues: dict[tuple[str, int], bytes] = {}
    begins: dict[tuple[str, int], int] = {}
    dropped = misplaced = 0
    for record in records:
        key = (record.topic, record.queue)
        if key not in queues:
            queues[key] = FILLER * (record.queue_offset % (FILE_SIZE // ENTRY_SIZE))
            begins[key] = record.queue_offset - len(queues[key]) // ENTRY_SIZE
        current = begins[key] + len(queues[key]) // ENTRY_SIZE
        if record.queue_offset != 0 and record.queue_offset < current:
            dropped += 1
            continue
        misplaced += record.queue_offset != current
        physical_offset, size, code = entry(record)
        queues[key] += physical_offset.to_bytes(8, "big") + size.to_bytes(4, "big") + code.to_bytes(8, "big")
    return queues, dropped, misplaced


RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.sampled_from(
            ["T", "Aa", "BB", "a name of more than eight bytes", "a name of more than eight Bytes"]
        ),
        queue=st.integers(0, 2),
        queue_offset=st.integers(0, 12),
    ),
    min_size=1,
    max_size=60,
)


@given(records=RECORDS, rows=st.integers(1, 9))
def test_offsets_in_any_order_are_appended_as_rocketmq_does(tmp_path_factory, records, rows):
    folder = tmp_path_factory.mktemp("queues")
    records = place(records)
    built = build(folder, records, rows=rows)
    queues, dropped, misplaced = append_as_rocketmq(records)
    for (topic, queue), data in queues.items():
        files = sorted((folder / topic / str(queue)).iterdir())
        assert b"".join(path.read_bytes() for path in files) == data.ljust(FILE_SIZE * len(files), b"\0")
        assert len(files) == -(-len(data) // FILE_SIZE)
    assert (built.dropped_count, built.misplaced_count) == (dropped, misplaced)


@pytest.mark.parametrize("queue_offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_that_no_file_can_have_is_dropped(tmp_path, queue_offset):
    records = place([Record(queue_offset=queue_offset), Record(queue_offset=5), Record(queue_offset=queue_offset)])
    built = build(tmp_path, records)
    assert (built.dropped_count, built.entry_count) == (2, 1)
    assert entries_of(tmp_path / "TopicTest" / "0")[0] == entry(records[1])


# Queues that are there


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(records=RECORDS, data=st.data())
def test_queues_that_are_there_are_gone_on_with_to_the_same_bytes(tmp_path_factory, records, data):
    folder = tmp_path_factory.mktemp("queues")
    records = place(records)
    build(folder / "once", records)
    cut = data.draw(st.integers(0, len(records)))
    again = data.draw(st.integers(0, cut))  # those behind it are put once more
    build(folder / "new", records[:cut])
    build(folder / "new", records, from_offset=(records[again:] or records)[0].physical_offset)
    assert files_of(folder / "new") == files_of(folder / "once")


@given(records=RECORDS, rows=st.integers(1, 9))
def test_written_and_flushed_between_any_two_messages_the_bytes_are_the_same(tmp_path_factory, records, rows):
    folder = tmp_path_factory.mktemp("queues")
    records = place(records)
    build(folder / "once", records)

    class WritingBuilder(QueueBuilder):
        def put(self, *arguments) -> None:
            super().put(*arguments)
            self.flush()

    build(folder / "new", records, rows=rows, builder=WritingBuilder(folder / "new", FILE_SIZE, UnflushedDisk()))
    assert files_of(folder / "new") == files_of(folder / "once")


def test_the_end_of_a_queue_is_known_before_and_after_something_is_put(tmp_path):
    records = place([Record(queue_offset=number) for number in range(3, 9)])
    build(tmp_path, records[:4])
    builder = QueueBuilder(tmp_path, FILE_SIZE, UnflushedDisk())
    assert builder.end_offset("TopicTest", 0) == 7
    assert (builder.end_offset("TopicTest", 1), builder.end_offset("Other", 0)) == (0, 0)
    assert builder.end_offset("../TopicTest", 0) == 0
    build(tmp_path, records, builder=builder, from_offset=records[4].physical_offset)
    assert builder.end_offset("TopicTest", 0) == 9


def test_a_queue_that_was_cut_to_nothing_goes_on_at_its_offset(tmp_path):
    records = place([Record(queue_offset=10), Record(queue_offset=11)])
    build(tmp_path, records)
    cut_queue(tmp_path / "TopicTest" / "0", 0, UnflushedDisk())
    assert QueueBuilder(tmp_path, FILE_SIZE, UnflushedDisk()).end_offset("TopicTest", 0) == 10
    build(tmp_path, records)
    assert entries_of(tmp_path / "TopicTest" / "0")[:2] == [entry(records[0]), entry(records[1])]


@pytest.mark.parametrize("size", [0, FILE_SIZE])
@pytest.mark.parametrize("queue_offset", [0, 5, 12])
def test_a_file_that_was_made_before_a_crash_and_never_written_is_made_again(tmp_path, queue_offset, size):
    """A queue that begins at 12 needs two fillers: what is not written yet is not where it begins."""
    folder = tmp_path / "TopicTest" / "0"
    folder.mkdir(parents=True)
    (folder / f"{queue_offset // 5 * FILE_SIZE:020d}").write_bytes(bytes(size))
    records = place([Record(queue_offset=queue_offset + number) for number in range(3)])
    build(tmp_path, records)
    build(tmp_path / "once", records)
    assert files_of(tmp_path / "TopicTest") == files_of(tmp_path / "once" / "TopicTest")


def test_files_of_another_size_are_not_gone_on_with(tmp_path):
    records = place([Record(queue_offset=0), Record(queue_offset=1)])
    build(tmp_path, records[:1])
    with pytest.raises(StoreError, match="its files have 100 bytes; they cannot go on with 200"):
        build(tmp_path, records, file_size=200)


def test_flush_reaches_every_file_and_folder_that_changed_and_no_other(tmp_path):
    flushed: list[str] = []

    class NotingDisk(UnflushedDisk):
        def fsync(self, path: Path, descriptor: int) -> None:
            flushed.append(str(path.relative_to(tmp_path)))

    builder = QueueBuilder(tmp_path / "q", FILE_SIZE, NotingDisk())
    places = [("TU"[number % 2], number // 2) for number in range(10)] + [("T", 5), ("T", 6)]
    records = place([Record(topic=topic, queue_offset=queue_offset) for topic, queue_offset in places])
    build(tmp_path / "q", records[:10], builder=builder)
    both = {f"q/{topic}{rest}" for topic in "TU" for rest in ("", "/0", "/0/00000000000000000000")}
    assert set(flushed) == both | {".", "q"}
    flushed.clear()
    build(tmp_path / "q", records, builder=builder, from_offset=records[10].physical_offset)
    assert flushed == ["q/T/0/00000000000000000100", "q/T/0"]
    flushed.clear()
    builder.flush()
    assert flushed == []


def test_a_file_that_expires_before_it_is_flushed_is_passed_over(tmp_path):
    records = place([Record(queue_offset=number) for number in range(7)])
    builder = QueueBuilder(tmp_path, FILE_SIZE, UnflushedDisk())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "finish", builder.write)
        build(tmp_path, records, builder=builder)
    unflushed = builder.unflushed()
    (tmp_path / "TopicTest" / "0" / f"{0:020d}").unlink()
    unflushed.flush()
    assert len(unflushed.paths) == 2


@pytest.mark.slow
def test_ten_thousand_queues_are_written_within_the_limit_of_open_files(tmp_path):
    """In a process of its own, for a limit once lowered stays."""
    run = subprocess.run(
        [sys.executable, "-c", TEN_THOUSAND_QUEUES, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert len(list(tmp_path.glob("*/*/*"))) == 10_000
    for number in (0, 4711, 9999):
        assert [row[0] for row in entries_of(tmp_path / f"topic-{number // 4}" / str(number % 4))[:4]] == [
            number + 10_000 * round_number for round_number in range(3)
        ] + [0]


TEN_THOUSAND_QUEUES = """
import resource, sys
from pathlib import Path
import numpy as np
from tests.disks import UnflushedDisk
from whence.kernels.scan import SCANNED
from whence.store.queue_builder import QueueBuilder

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
names = [b"topic-%d" % (number // 4) for number in range(10_000)]
data = np.frombuffer(b"".join(names), np.uint8)
messages = np.zeros(len(names), SCANNED)
messages["topic_size"] = [len(name) for name in names]
messages["topic_hash"] = np.arange(len(names)) // 4
messages["queue"] = np.arange(len(names)) % 4
messages["size"] = 1
builder = QueueBuilder(Path(sys.argv[1]), 6_000_000, UnflushedDisk())
for round_number in range(3):
    messages["queue_offset"] = round_number
    messages["physical_offset"] = np.arange(len(names)) + 10_000 * round_number
    messages["topic_at"] = np.cumsum(messages["topic_size"]) - messages["topic_size"] - np.arange(len(names))
    builder.put(data, 10_000 * round_number, messages)
    builder.flush()
    builder.close()
    builder = QueueBuilder(Path(sys.argv[1]), 6_000_000, UnflushedDisk())
"""
