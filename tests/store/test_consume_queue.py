"""ConsumeQueue: entries, ranges, and offsets by time with both boundaries."""

import os

import pytest

from tests.golden import ANSWERED, few_fast
from tests.reference import Entry as EntryTwin
from tests.reference import build_queues, first_at_or_after, last_at_or_before
from tests.store_maker import FILE_SIZE, QUEUE_FILE_SIZE, T, make_store, message
from whence.errors import CorruptError, NotFoundError
from whence.formats.rocketmq.consume_queue import FILLER
from whence.store.commit_log import CommitLog
from whence.store.consume_queue import Boundary, ConsumeQueue
from whence.store.message_store import MessageStore

ANSWERED_5 = [name for name in ANSWERED if not name.startswith("v4")]
HALF_RECORD = "v5-damaged-half-record"


def queue_of(store, topic, queue):
    """A queue that RocketMQ lists; None if it was never written to, for then it has no folder."""
    try:
        return store.queue(topic, queue)
    except NotFoundError:
        return None


def range_of(store, queue):
    return queue.begin_offset(), queue.end_offset()


def half_record(golden):
    """The message that RocketMQ keeps and we leave out (see test_commit_log.py)."""
    return golden(HALF_RECORD).messages[-1]


@pytest.mark.parametrize("name", ANSWERED)
def test_every_entry_is_as_rocketmq_gives_it(golden, opened, name):
    store = opened(name)
    assert golden(name).entries
    for known in golden(name).entries:
        entry = store.queue(known["topic"], known["queue_id"]).entry(known["queue_offset"])
        assert (entry.physical_offset, entry.size, entry.tags_code) == (
            known["physical_offset"],
            known["size"],
            known["tags_code"],
        )
        assert not entry.is_filler


@pytest.mark.parametrize("name", ANSWERED)
def test_ranges_are_those_of_rocketmq(golden, opened, name):
    """RocketMQ cuts a queue by lowering its end, the entries' bytes stay: the log tells where it ends."""
    store = opened(name)
    for known in golden(name).queue_ranges:
        queue = queue_of(store, known["topic"], known["queue_id"])
        wanted = (known["min_offset"], known["max_offset"])
        if queue is None:
            assert wanted == (0, 0)
            continue
        if name == HALF_RECORD:
            half = half_record(golden)
            if (half["topic"], half["queue_id"]) == (known["topic"], known["queue_id"]):
                wanted = (known["min_offset"], known["max_offset"] - 1)
        assert range_of(store, queue) == wanted


@pytest.mark.parametrize("name", ANSWERED_5)
def test_offsets_by_time_are_those_of_rocketmq(golden, opened, name):
    """4.9 has only one boundary, and answers with the first offset of a later file where it should not."""
    store = opened(name)
    half = half_record(golden) if name == HALF_RECORD else None
    for known in golden(name).offsets_by_time:
        topic, queue, timestamp_ms = known["topic"], known["queue_id"], known["timestamp"]
        wanted = {Boundary.LOWER: known["lower"], Boundary.UPPER: known["upper"]}
        if half is not None and (half["topic"], half["queue_id"]) == (topic, queue):
            wanted[Boundary.LOWER] = min(wanted[Boundary.LOWER], half["queue_offset"])
            wanted[Boundary.UPPER] = min(wanted[Boundary.UPPER], half["queue_offset"] - 1)
        for boundary, offset in wanted.items():
            assert store.offset_by_time(topic, queue, timestamp_ms, boundary) == offset, known


@pytest.mark.parametrize("name", few_fast(ANSWERED))
def test_offsets_by_time_are_exact_where_times_rise(golden, opened, name):
    """Held against the obvious twin, for every time that a queue holds and one millisecond beside it."""
    store = opened(name)
    end = store.commit_log.end_offset()
    records = [record for record in golden(name).records if record.physical_offset < end]
    stored = {record.physical_offset: record.store_timestamp_ms for record in records}
    for (topic, queue), entries in build_queues(records).items():
        times = [stored[entry.physical_offset] for _, entry in sorted(entries.items())]
        assert times == sorted(times)
        for time in sorted({time + step for time in times[:: 1 + len(times) // 25] for step in (-1, 0, 1)}):
            lower = store.offset_by_time(topic, queue, time, Boundary.LOWER)
            upper = store.offset_by_time(topic, queue, time, Boundary.UPPER)
            assert (lower, upper) == (first_at_or_after(times, time), max(0, last_at_or_before(times, time)))


@pytest.mark.parametrize("name", ANSWERED)
def test_the_messages_of_a_queue_are_read_through_its_entries(golden, opened, name):
    store = opened(name)
    end = store.commit_log.end_offset()
    for known in golden(name).queue_ranges:
        topic, queue = known["topic"], known["queue_id"]
        if queue_of(store, topic, queue) is None:
            continue
        wanted = [
            entry["physical_offset"]
            for entry in golden(name).entries
            if (entry["topic"], entry["queue_id"]) == (topic, queue) and entry["physical_offset"] < end
        ]
        messages = store.read_queue(topic, queue, 0, 10_000)
        assert [stored.physical_offset for stored in messages] == wanted
        assert [stored.queue_offset for stored in messages] == list(range(len(wanted)))


# -- made by hand -------------------------------------------------------------------------------------------


def open_queue(folder, topic="T", queue=0):
    return ConsumeQueue(folder / "consumequeue" / topic / str(queue), topic, queue, CommitLog(folder / "commitlog"))


def write_queue(folder, entries, *, base=0, file_size=QUEUE_FILE_SIZE):
    """One queue file of these entries, from queue offset ``base`` on; the rest is zero."""
    queue_folder = folder / "consumequeue" / "T" / "0"
    queue_folder.mkdir(parents=True, exist_ok=True)
    path = queue_folder / f"{20 * base:020d}"
    path.write_bytes(b"".join(entries).ljust(file_size, b"\0"))
    return path


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 25])
def test_a_queue_ends_behind_its_last_written_entry(tmp_path, count):
    """Ten entries fill a file; what was made ahead of need is zero."""
    make_store(tmp_path, [message(at=number) for number in range(count)])
    queue = open_queue(tmp_path)
    assert (queue.begin_offset(), queue.end_offset()) == (0, count)
    with pytest.raises(NotFoundError, match=f"no entry at offset {count}"):
        queue.entry(count)
    with pytest.raises(NotFoundError):
        queue.entry(10**9)


def test_a_queue_file_made_ahead_of_need_changes_nothing(tmp_path):
    make_store(tmp_path, [message() for _ in range(10)])
    write_queue(tmp_path, [], base=10)
    assert open_queue(tmp_path).end_offset() == 10


def test_an_empty_queue_begins_and_ends_at_0(tmp_path):
    make_store(tmp_path, [message()], queues=False)
    write_queue(tmp_path, [])
    queue = open_queue(tmp_path)
    assert (queue.begin_offset(), queue.end_offset()) == (0, 0)
    for boundary in Boundary:
        assert queue.offset_by_time(T, boundary) == 0


def test_entries_whose_messages_have_expired_are_passed_over(tmp_path):
    made = make_store(tmp_path, [message(at=number) for number in range(80)])
    assert len(made.log_files) > 1
    made.log_files[0].unlink()
    queue = open_queue(tmp_path)
    left = sum(offset >= FILE_SIZE for offset in made.offsets)
    assert (queue.begin_offset(), queue.end_offset()) == (80 - left, 80)
    assert queue.offset_by_time(0, Boundary.LOWER) == 80 - left
    assert queue.offset_by_time(0, Boundary.UPPER) == 80 - left


def test_a_queue_of_which_all_messages_have_expired_keeps_its_end(tmp_path):
    """A broker goes on there, and a consumer must not be sent back."""
    made = make_store(tmp_path, [message(topic="TU"[number > 15], at=number) for number in range(80)])
    made.log_files[0].unlink()
    assert made.offsets[15] < FILE_SIZE
    queue = open_queue(tmp_path)
    assert (queue.begin_offset(), queue.end_offset()) == (16, 16)


def test_fillers_lead_to_no_message(tmp_path):
    """A queue that did not begin at offset 0 is filled up to its first message.

    RocketMQ counts those fillers in after a restart, as long as the log's first file is there: their offset 0
    is not below the log's minimum 0 (specification, 4.3). Ours never does.
    """
    made = make_store(tmp_path, [message(at=number) for number in range(7)], queues=False)
    entries = [EntryTwin(record.physical_offset, record.size, 0).to_bytes() for record in made.records[4:]]
    write_queue(tmp_path, [FILLER] * 4 + entries)
    with MessageStore(tmp_path) as store:
        queue = store.queue("T", 0)
        assert range_of(store, queue) == (4, 7)
        assert queue.entry(3).is_filler
        assert not queue.entry(4).is_filler
        assert queue.entry(4).physical_offset == made.offsets[4]
        assert store.offset_by_time("T", 0, T, Boundary.LOWER) == 4
        assert store.offset_by_time("T", 0, T + 6, Boundary.UPPER) == 6


def test_a_queue_of_fillers_only_is_empty(tmp_path):
    make_store(tmp_path, [message()], queues=False)
    write_queue(tmp_path, [FILLER] * 10)
    queue = open_queue(tmp_path)
    begin, end = queue.begin_offset(), queue.end_offset()
    assert begin == end


def test_entries_behind_the_log_s_end_do_not_count(tmp_path):
    made = make_store(tmp_path, [message(at=number) for number in range(8)])
    data = made.log_files[0].read_bytes()
    made.log_files[0].write_bytes(data[: made.offsets[5]].ljust(FILE_SIZE, b"\0"))
    with MessageStore(tmp_path) as store:
        queue = store.queue("T", 0)
        assert range_of(store, queue) == (0, 5)
        assert store.offset_by_time("T", 0, T + 1000, Boundary.LOWER) == 5
        assert store.offset_by_time("T", 0, T + 1000, Boundary.UPPER) == 4
        assert [stored.queue_offset for stored in store.read_queue("T", 0, 0, 100)] == [0, 1, 2, 3, 4]


TIMES = [100, 100, 100, 300, 300]
BY_TIME = [  # the table of the specification, 4.4
    (50, 0, 0),
    (100, 0, 2),
    (200, 3, 2),
    (300, 3, 4),
    (400, 5, 4),
]


@pytest.mark.parametrize(("time", "lower", "upper"), BY_TIME)
def test_offset_by_time_follows_the_table_of_the_specification(tmp_path, time, lower, upper):
    make_store(tmp_path, [message(at=at) for at in TIMES])
    with MessageStore(tmp_path) as store:
        assert store.offset_by_time("T", 0, T + time, Boundary.LOWER) == lower
        assert store.offset_by_time("T", 0, T + time, Boundary.UPPER) == upper


def test_an_entry_that_leads_to_another_message_is_an_error(tmp_path):
    made = make_store(tmp_path, [message(at=number) for number in range(3)], queues=False)
    entries = [EntryTwin(record.physical_offset, record.size, 0).to_bytes() for record in made.records]
    write_queue(tmp_path, [entries[1], entries[0], entries[2]])
    with MessageStore(tmp_path) as store, pytest.raises(CorruptError, match="entry 0 leads to offset"):
        store.read_queue("T", 0, 0, 1)


def test_entries_appended_while_we_read_are_seen(tmp_path):
    made = make_store(tmp_path, [message(at=number) for number in range(12)], queues=False)
    entries = [EntryTwin(record.physical_offset, record.size, 0).to_bytes() for record in made.records]
    path = write_queue(tmp_path, entries[:3])
    queue = open_queue(tmp_path)
    assert queue.end_offset() == 3
    with path.open("r+b") as writer:
        writer.seek(60)
        writer.write(b"".join(entries[3:10]))
    assert queue.end_offset() == 10
    write_queue(tmp_path, entries[10:], base=10)
    assert queue.end_offset() == 12


def test_a_half_written_entry_is_not_taken(tmp_path):
    """Physical offset, size, tag: whatever part of them is there, the entry counts when its size is."""
    made = make_store(tmp_path, [message(at=number) for number in range(3)], queues=False)
    entries = [EntryTwin(record.physical_offset, record.size, 0).to_bytes() for record in made.records]
    path = write_queue(tmp_path, entries[:2])
    with MessageStore(tmp_path) as store:
        for written in range(20):
            with path.open("r+b") as writer:
                writer.seek(40)
                writer.write(entries[2][:written])
            messages = store.read_queue("T", 0, 0, 10)
            assert [stored.queue_offset for stored in messages] in ([0, 1], [0, 1, 2])
            assert len(messages) == 2 or entries[2][:written].rstrip(b"\0") == entries[2].rstrip(b"\0")


def test_a_queue_file_that_is_cut_inside_an_entry_ends_before_it(tmp_path):
    make_store(tmp_path, [message() for _ in range(5)])
    path = next((tmp_path / "consumequeue" / "T" / "0").iterdir())
    os.truncate(path, 79)
    assert open_queue(tmp_path).end_offset() == 3
