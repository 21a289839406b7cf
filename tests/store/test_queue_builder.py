"""QueueBuilder: queues as RocketMQ appends to them, message by message."""

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
from whence.errors import UsageError
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE, FILLER, decode_entries
from whence.kernels.scan import ITEMS, ITEMS_MAX, SCANNED, Status, scan_stretch
from whence.store import queue_builder
from whence.store.queue_builder import BuiltQueues, QueueBuilder

T = 1_700_000_000_000
FILE_SIZE = 100  # five entries
BASE = 4096


def build(
    folder: Path, records: Iterable[Record], *, rows: int = 50, file_size: int = FILE_SIZE, edit=lambda data: data
) -> BuiltQueues:
    """Build the queues of records that lie from offset BASE on, ``rows`` of them in a batch."""
    log, left = encode_log_file(records, BASE, 1 << 20)
    assert not left
    data = np.frombuffer(edit(log), np.uint8)
    messages, items = np.empty(rows, SCANNED), np.empty(ITEMS_MAX, ITEMS)
    builder = QueueBuilder(folder, file_size, UnflushedDisk())
    position, status = 0, Status.FULL
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
    records = place([Record(topic=topic, queue=1) for topic in ("Aa", "BB", "AaBBAaBBAa", "BBAaAaBBBB")])
    assert len({java_hash(record.topic + "#") for record in records}) == 2
    assert build(tmp_path, records).queue_count == 4
    for record in records:
        assert entries_of(tmp_path / record.topic / "1")[0] == entry(record)


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
    monkeypatch.setattr(queue_builder, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(queue_builder, "PENDING_MAX", 1000)
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
