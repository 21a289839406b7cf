"""Batch queues, light queues and ext queues: written, gone on with, read, and asked for by their offsets."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.disks import UnflushedDisk
from tests.reference import PREPARED, Record, encode_properties, i16, i32, i64, java_hash
from tests.store.test_queue_builder import BASE, build, files_of
from tests.store.test_queue_builder import place as at_base
from tests.store_maker import T, log_bytes
from whence.door import open_stores
from whence.errors import CorruptError, NotFoundError, UsageError
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, FILLER, decode_batch_entries, decode_entries
from whence.store import log_file
from whence.store.consume_queue import Boundary
from whence.store.message_store import MessageStore
from whence.store.queue_builder import QueueBuilder
from whence.store.queue_files import cut_queue

FILE_SIZE = 100
BATCH_FILE_SIZE = 3 * 46
EXT_FILE_SIZE = 90  # four units, and ten bytes


def batch(count: int, queue_offset: int, *, topic: str = "B", at: int = 0, **properties: str) -> Record:
    given = {"INNER_NUM": str(count), "INNER_BASE": str(queue_offset)} | properties
    return Record(
        topic=topic,
        queue_offset=queue_offset,
        store_timestamp_ms=T + at,
        sys_flag=0xC0,
        properties_data=encode_properties(given),
    )


def lit(queue_offset: int, **places: int) -> Record:
    """A message that is in the light queues of these names, at these offsets."""
    names = ",".join(f"%LMQ%{name}" for name in places)
    offsets = ",".join(map(str, places.values()))
    properties = {"TAGS": "t", "INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    return Record(topic="L", queue=1, queue_offset=queue_offset, properties_data=encode_properties(properties))


def builder(folder: Path, **settings: int) -> QueueBuilder:
    return QueueBuilder(
        folder / "consumequeue",
        FILE_SIZE,
        UnflushedDisk(),
        is_batch=lambda topic: topic.startswith("B"),
        batch_file_size=BATCH_FILE_SIZE,
        **settings,
    )


def put(folder: Path, records: list[Record], from_number: int = 0, **settings: int) -> QueueBuilder:
    made = builder(folder, **settings)
    from_offset = records[from_number].physical_offset if from_number < len(records) else BASE
    build(folder, records, builder=made, from_offset=from_offset, rows=4)
    return made


# Batch queues


def batch_entry(record: Record, base: int, count: int) -> bytes:
    code = java_hash(record.tags) if record.tags else 0
    data = i64(record.physical_offset) + i32(record.size) + i64(code) + i64(record.store_timestamp_ms)
    return data + i64(base) + i16(count) + i32(-1) + i32(0)


BATCHES = at_base(
    [
        batch(5, 3, TAGS="t"),
        replace(batch(1, 8, at=10), sys_flag=0, properties_data=b""),  # one message, as any topic has it
        batch(3, 9, at=20),
        replace(batch(1, 0), sys_flag=PREPARED),
        batch(2, 12, at=30),
        batch(1, 14, at=40),
    ]
)
PLACES = [(0, 3, 5), (1, 8, 1), (2, 9, 3), (4, 12, 2), (5, 14, 1)]  # number in BATCHES, first queue offset, count


def test_a_batch_queue_has_an_entry_for_each_record(tmp_path):
    put(tmp_path, BATCHES)
    data = b"".join(batch_entry(BATCHES[number], base, count) for number, base, count in PLACES)
    files = sorted((tmp_path / "batchconsumequeue" / "B" / "0").iterdir())
    assert [path.name for path in files] == [f"{0:020d}", f"{BATCH_FILE_SIZE:020d}"]
    assert b"".join(path.read_bytes() for path in files) == data.ljust(2 * BATCH_FILE_SIZE, b"\0")
    assert not (tmp_path / "consumequeue").exists()


@pytest.mark.parametrize("cut", range(len(BATCHES) + 1))
@pytest.mark.parametrize("again", range(3))
def test_a_batch_queue_that_is_there_is_gone_on_with(tmp_path, cut, again):
    put(tmp_path / "once", BATCHES)
    put(tmp_path / "new", BATCHES[:cut])
    put(tmp_path / "new", BATCHES, from_number=max(cut - again, 0))
    assert files_of(tmp_path / "new") == files_of(tmp_path / "once")


def test_the_end_of_a_batch_queue_is_behind_the_last_message_of_its_last_batch(tmp_path):
    assert builder(tmp_path).end_offset("B", 0) == 0
    made = put(tmp_path, BATCHES[:3])
    assert made.end_offset("B", 0) == builder(tmp_path).end_offset("B", 0) == 12
    cut_queue(tmp_path / "batchconsumequeue" / "B" / "0", BATCHES[2].physical_offset, UnflushedDisk(), BATCH_ENTRY)
    assert builder(tmp_path).end_offset("B", 0) == 9
    put(tmp_path, BATCHES, from_number=2)
    put(tmp_path / "once", BATCHES)
    assert files_of(tmp_path / "batchconsumequeue") == files_of(tmp_path / "once" / "batchconsumequeue")


@pytest.mark.parametrize(("count", "base"), [("0", "4"), ("-1", "4"), ("x", "4"), ("3", "-4")])
def test_a_batch_that_no_entry_can_tell_is_in_no_queue(tmp_path, count, base):
    records = at_base([batch(1, 0), batch(1, 4, INNER_NUM=count, INNER_BASE=base), batch(2, 1)])
    built = build(tmp_path, records, builder=builder(tmp_path))
    assert (built.entry_count, built.dropped_count) == (2, 1)
    (path,) = (tmp_path / "batchconsumequeue" / "B" / "0").iterdir()
    assert decode_batch_entries(path.read_bytes())["base_offset"].tolist() == [0, 1, 0]


def test_batch_files_hold_whole_entries(tmp_path):
    with pytest.raises(UsageError, match="holds no entry"):
        QueueBuilder(tmp_path, FILE_SIZE, UnflushedDisk(), batch_file_size=0)


# Light queues


def entry(record: Record) -> tuple[int, int, int]:
    return record.physical_offset, record.size, java_hash("t")


def entries_of(folder: Path) -> list[tuple[int, int, int]]:
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return [tuple(row) for row in decode_entries(data).tolist()]


LIT = at_base([lit(0, a=0), lit(1, a=1, b=7), lit(2), lit(3, b=8, a=2), lit(4, b=9)])


def test_a_message_is_in_each_of_its_light_queues(tmp_path):
    put(tmp_path, LIT)
    folder = tmp_path / "consumequeue"
    assert entries_of(folder / "L" / "1")[:5] == [entry(record) for record in LIT]
    assert entries_of(folder / "%LMQ%a" / "0")[:4] == [*(entry(LIT[number]) for number in (0, 1, 3)), (0, 0, 0)]
    filler = tuple(decode_entries(FILLER)[0].tolist())
    assert entries_of(folder / "%LMQ%b" / "0") == [
        filler,
        filler,
        *(entry(LIT[number]) for number in (1, 3, 4)),
    ]


@pytest.mark.parametrize("cut", range(len(LIT) + 1))
@pytest.mark.parametrize("again", range(3))
def test_a_light_queue_that_is_there_is_gone_on_with(tmp_path, cut, again):
    put(tmp_path / "once", LIT)
    put(tmp_path / "new", LIT[:cut])
    made = put(tmp_path / "new", LIT, from_number=max(cut - again, 0))
    assert files_of(tmp_path / "new") == files_of(tmp_path / "once")
    assert made.end_offset("%LMQ%b", 0) == builder(tmp_path / "new").end_offset("%LMQ%b", 0) == 10


def test_messages_that_are_sent_to_a_light_queue_itself_come_in_their_order(tmp_path):
    sent = [lit(0, a=0), Record(topic="%LMQ%a", queue_offset=1), lit(1, a=2), Record(topic="%LMQ%a", queue_offset=3)]
    records = at_base(sent)
    put(tmp_path, records)
    offsets = [row[0] for row in entries_of(tmp_path / "consumequeue" / "%LMQ%a" / "0")]
    assert offsets[:4] == [record.physical_offset for record in records]


def test_a_prepared_message_is_in_no_light_queue(tmp_path):
    put(tmp_path, at_base([replace(lit(0, a=0), sys_flag=PREPARED), lit(0)]))
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["L"]


def test_a_message_of_a_batch_queue_is_in_no_light_queue(tmp_path):
    put(tmp_path, at_base([replace(lit(0, a=0), topic="B")]))
    assert not (tmp_path / "consumequeue").exists()


# Ext queues


TAGGED = at_base(
    [
        Record(
            queue_offset=number,
            store_timestamp_ms=T + number,
            properties_data=encode_properties({"TAGS": f"t{number}"}),
        )
        for number in range(11)
    ]
)


def unit(record: Record) -> bytes:
    return i16(20) + i64(java_hash(record.tags or "")) + i64(record.store_timestamp_ms) + i16(0)


def test_each_entry_leads_to_its_ext_unit(tmp_path):
    put(tmp_path, TAGGED, ext_file_size=EXT_FILE_SIZE)
    files = files_of(tmp_path / "consumequeue_ext" / "TopicTest" / "0")
    units = [unit(record) for record in TAGGED]
    assert files == {
        f"{0:020d}": b"".join(units[:4]) + i16(-1) + bytes(8),
        f"{90:020d}": b"".join(units[4:8]) + i16(-1) + bytes(8),
        f"{180:020d}": b"".join(units[8:]) + bytes(30),
    }
    addresses = [row[2] + 2**63 for row in entries_of(tmp_path / "consumequeue" / "TopicTest" / "0")[:11]]
    assert addresses == [0, 20, 40, 60, 90, 110, 130, 150, 180, 200, 220]


@pytest.mark.parametrize("cut", range(len(TAGGED) + 1))
@pytest.mark.parametrize("again", range(3))
def test_an_ext_queue_that_is_there_is_gone_on_with(tmp_path, cut, again):
    put(tmp_path / "once", TAGGED, ext_file_size=EXT_FILE_SIZE)
    put(tmp_path / "new", TAGGED[:cut], ext_file_size=EXT_FILE_SIZE)
    put(tmp_path / "new", TAGGED, from_number=max(cut - again, 0), ext_file_size=EXT_FILE_SIZE)
    assert files_of(tmp_path / "new") == files_of(tmp_path / "once")


@pytest.mark.parametrize("kept", range(len(TAGGED)))
def test_ext_units_behind_a_cut_queue_are_written_over(tmp_path, kept):
    put(tmp_path / "once", TAGGED, ext_file_size=EXT_FILE_SIZE)
    put(tmp_path / "new", TAGGED, ext_file_size=EXT_FILE_SIZE)
    folder = tmp_path / "new" / "consumequeue" / "TopicTest" / "0"
    cut_queue(folder, TAGGED[kept].physical_offset, UnflushedDisk())
    put(tmp_path / "new", TAGGED, from_number=kept, ext_file_size=EXT_FILE_SIZE)
    assert files_of(tmp_path / "new") == files_of(tmp_path / "once")


def test_units_with_bit_maps_are_gone_on_behind(tmp_path):
    put(tmp_path, TAGGED[:1], ext_file_size=EXT_FILE_SIZE)
    (path,) = (tmp_path / "consumequeue_ext" / "TopicTest" / "0").iterdir()
    data = path.read_bytes()
    path.write_bytes(i16(25) + data[2:18] + i16(5) + b"abcde" + bytes(65))
    put(tmp_path, TAGGED[:2], from_number=1, ext_file_size=EXT_FILE_SIZE)
    assert path.read_bytes()[25:45] == unit(TAGGED[1])
    assert entries_of(tmp_path / "consumequeue" / "TopicTest" / "0")[1][2] == 25 - 2**63


def test_ext_units_are_gone_on_with_where_they_were_not_written_for_a_while(tmp_path):
    put(tmp_path, TAGGED[:2], ext_file_size=EXT_FILE_SIZE)
    put(tmp_path, TAGGED[:3], from_number=2)
    put(tmp_path, TAGGED[:4], from_number=3, ext_file_size=EXT_FILE_SIZE)
    codes = [row[2] for row in entries_of(tmp_path / "consumequeue" / "TopicTest" / "0")[:4]]
    assert codes == [-(2**63), 20 - 2**63, java_hash("t2"), 40 - 2**63]
    with open_queue(tmp_path, TAGGED) as store:
        queue = store.queue("TopicTest", 0)
        assert [queue.tags_code(queue.entry(number)) for number in range(4)] == [
            java_hash(f"t{number}") for number in range(4)
        ]


def test_light_queues_have_no_ext_units(tmp_path):
    put(tmp_path, LIT, ext_file_size=EXT_FILE_SIZE)
    assert [path.name for path in (tmp_path / "consumequeue_ext").iterdir()] == ["L"]
    assert entries_of(tmp_path / "consumequeue" / "%LMQ%a" / "0")[0][2] == java_hash("t")


def test_an_ext_unit_that_is_not_there_is_told(tmp_path):
    put(tmp_path, TAGGED, ext_file_size=EXT_FILE_SIZE)
    with open_queue(tmp_path, TAGGED) as store:
        queue = store.queue("TopicTest", 0)
        last = queue.entry(10)
        with pytest.raises(NotFoundError, match="has no unit at 270"):
            queue.tags_code(replace(last, tags_code=270 - 2**63))
        with pytest.raises(NotFoundError, match="has no unit at 240"):
            queue.tags_code(replace(last, tags_code=240 - 2**63))


@pytest.mark.parametrize("size", [0, 23])
def test_ext_files_that_hold_nothing_are_refused(tmp_path, size):
    with pytest.raises(UsageError, match="holds no unit"):
        builder(tmp_path, ext_file_size=size)


# Reading


def open_queue(folder: Path, records: Iterable[Record]) -> MessageStore:
    """The store with the log of these records, which lie from BASE on in one file."""
    (folder / "commitlog").mkdir(exist_ok=True)
    for name, data in log_bytes(records, base=BASE, file_size=8 * BASE).items():
        (folder / "commitlog" / name).write_bytes(data)
    return MessageStore(folder)


def test_a_batch_is_found_by_each_of_its_offsets(tmp_path):
    put(tmp_path, BATCHES)
    with open_queue(tmp_path, BATCHES) as store:
        queue = store.queue("B", 0)
        assert (queue.begin_offset(), queue.end_offset()) == (3, 15)
        for number, base, count in PLACES:
            for queue_offset in range(base, base + count):
                found = queue.entry(queue_offset)
                assert (found.queue_offset, found.message_count) == (base, count)
                assert queue.read(found).physical_offset == BATCHES[number].physical_offset
        for queue_offset in (-1, 0, 2, 15, 2**62):
            with pytest.raises(NotFoundError, match=f"has no entry at offset {queue_offset}"):
                queue.entry(queue_offset)
        assert store.queues("B") == [0]
        assert "B" in store.topics()


def test_a_queue_gives_each_batch_once(tmp_path):
    put(tmp_path, BATCHES)
    with open_queue(tmp_path, BATCHES) as store:
        expected = [BATCHES[number].physical_offset for number, _, _ in PLACES]
        assert [message.physical_offset for message in store.read_queue("B", 0, 3, 100)] == expected
        assert [message.physical_offset for message in store.read_queue("B", 0, 7, 3)] == expected[:3]
        assert store.read_queue("B", 0, 15, 3) == []


def test_offset_by_time_of_a_batch_queue(tmp_path):
    put(tmp_path, BATCHES)
    cases = [(-1, 3, 3), (0, 3, 7), (5, 8, 7), (10, 8, 8), (20, 9, 11), (39, 14, 13), (40, 14, 14), (50, 15, 14)]
    with open_queue(tmp_path, BATCHES) as store:
        for at, lower, upper in cases:
            assert store.offset_by_time("B", 0, T + at) == lower, at
            assert store.offset_by_time("B", 0, T + at, Boundary.UPPER) == upper, at


def test_a_batch_entry_that_leads_elsewhere_is_corrupt(tmp_path):
    put(tmp_path, BATCHES)
    path = tmp_path / "batchconsumequeue" / "B" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[46:58] = data[0:12]
    path.write_bytes(data)
    with open_queue(tmp_path, BATCHES) as store:
        queue = store.queue("B", 0)
        with pytest.raises(CorruptError, match=f"{path.name} at byte 46: entry 8 leads to offset"):
            queue.read(queue.entry(8))


def test_batches_whose_records_are_gone_are_behind_the_end(tmp_path):
    put(tmp_path, BATCHES)
    with open_queue(tmp_path, BATCHES[:4]) as store:
        assert store.queue("B", 0).end_offset() == 12


def test_a_light_queue_is_read_by_the_offsets_that_its_messages_name(tmp_path):
    put(tmp_path, LIT)
    with open_queue(tmp_path, LIT) as store:
        queue = store.queue("%LMQ%b", 0)
        assert (queue.begin_offset(), queue.end_offset()) == (7, 10)
        assert [message.physical_offset for message in store.read_queue("%LMQ%b", 0, 5, 100)] == [
            LIT[number].physical_offset for number in (1, 3, 4)
        ]


# Questions


@pytest.fixture(params=["queue", "scan", "kernel"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Through the queue, or by a scan of the log in plain Python or with the kernel."""
    if request.param == "kernel":
        monkeypatch.setattr(log_file, "PLAIN_SCAN_MAX", 0)
    return {} if request.param == "queue" else {"scan": True}


def test_find_by_queue_offset_finds_batches_and_messages_of_light_queues(tmp_path, road):
    records = at_base([*BATCHES, *LIT])
    put(tmp_path, records)
    open_queue(tmp_path, records).close()
    with open_stores([tmp_path]) as store:

        def find(topic: str, queue_offset: int) -> list[int]:
            answer = store.find(topic=topic, queue=0, queue_offset=queue_offset, **road)
            assert answer.receipt.complete
            return [message.physical_offset for message in answer]

        for number, base, count in PLACES:
            for queue_offset in range(base, base + count):
                assert find("B", queue_offset) == [records[number].physical_offset]
        assert find("B", 0) == find("B", 15) == []
        light = {("a", 0): 0, ("a", 1): 1, ("b", 7): 1, ("a", 2): 3, ("b", 8): 3, ("b", 9): 4}
        for (name, queue_offset), number in light.items():
            assert find(f"%LMQ%{name}", queue_offset) == [records[len(BATCHES) + number].physical_offset]
        assert find("%LMQ%a", 3) == find("%LMQ%b", 0) == find("%LMQ%c", 0) == []
