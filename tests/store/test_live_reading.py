"""Reading while a broker writes: what is half there is never taken for whole, and what is whole is seen at once.

The writers here are plain Python, step by step or as a process of their own, in the order in which RocketMQ writes.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whence
from tests.lookup.judge import offsets
from tests.reference import IndexFileTwin, encode_blank, encode_record, i32, i64, text_hash
from tests.store_maker import FILE_SIZE, make_store, message, place
from whence.formats.rocketmq.index_file import item_position, slot_position

MESSAGES = [
    message(keys=f"k{number} every", unique_id=f"id-{number}", at=number, body=b"body %d" % number)
    for number in range(120)
]


def poke(path, position, data):
    """Write into a file that is there, as a broker does through its map."""
    with path.open("r+b") as writer:
        writer.seek(position)
        writer.write(data)


@pytest.fixture
def growing(tmp_path):
    """A store of three messages, room for more, and the record of a fourth."""
    made = make_store(tmp_path, MESSAGES[:3], indexed=0)
    [*_, fourth] = place(MESSAGES[:4])
    return made, fourth


@pytest.mark.usefixtures("road")
class TestARecordInTheMaking:
    def test_is_not_taken_before_its_last_byte_is_there(self, growing):
        made, fourth = growing
        data = encode_record(fourth)
        with whence.open(made.folder) as store:
            for written in range(len(data)):
                poke(made.log_files[0], fourth.physical_offset, data[:written])
                answer = store.find(key="every")
                assert offsets(answer) == made.offsets[::-1], written
                assert answer.receipt.complete
                assert answer.receipt.searched_to_offset == fourth.physical_offset
                assert offsets(store.find(key="k3")) == []
            poke(made.log_files[0], fourth.physical_offset, data)
            assert offsets(store.find(key="every")) == [fourth.physical_offset, *made.offsets[::-1]]
            assert offsets(store.find(key="k3")) == [fourth.physical_offset]

    def test_is_seen_whole_or_not_at_all_by_a_reader_that_comes_in_between(self, growing):
        """Every state again, for one that opens the store only then."""
        made, fourth = growing
        data = encode_record(fourth)
        for written in range(0, len(data) + 1, 5):
            poke(made.log_files[0], fourth.physical_offset, data[:written])
            with whence.open(made.folder) as store:
                assert offsets(store.find(key="every", scan=True)) == made.offsets[::-1]
                assert offsets(store.find(offset=fourth.physical_offset)) == []
                assert offsets(store.find(topic="T", queue=0, queue_offset=3)) == []

    def test_is_not_taken_before_its_body_is_there(self, growing):
        """Size, head, topic and properties first."""
        made, fourth = growing
        data = encode_record(fourth)
        begin, end = 88, 88 + len(fourth.stored_body)
        with whence.open(made.folder) as store:
            for written in range(end - begin):
                body = fourth.stored_body[:written].ljust(end - begin, b"\0")
                poke(made.log_files[0], fourth.physical_offset, data[:begin] + body + data[end:])
                assert offsets(store.find(key="every")) == made.offsets[::-1]
            poke(made.log_files[0], fourth.physical_offset, data)
            assert len(store.find(key="every")) == 4

    def test_is_not_taken_before_its_properties_are_there(self, growing):
        """The body's checksum leaves them out: only the zeros in them tell, as in golden v5-damaged-half-record."""
        made, fourth = growing
        data = encode_record(fourth)
        begin = len(data) - len(fourth.properties_data)
        with whence.open(made.folder) as store:
            for missing in range(begin, len(data)):
                state = data[:missing] + bytes(len(data) - missing)
                poke(made.log_files[0], fourth.physical_offset, state)
                answer = store.find(key="every")
                assert offsets(answer) == made.offsets[::-1]
                assert answer.receipt.complete
            for page in (begin, begin + 3):  # and if what was written later came first
                state = data[:begin] + bytes(page - begin) + data[page:]
                if page > begin:
                    poke(made.log_files[0], fourth.physical_offset, state)
                    assert offsets(store.find(key="every")) == made.offsets[::-1]
            poke(made.log_files[0], fourth.physical_offset, data)
            assert len(store.find(key="every")) == 4

    def test_without_properties_counts_as_soon_as_its_fields_add_up(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:3], indexed=0)
        [*_, bare] = place([*MESSAGES[:3], replace(message(), properties_data=b"", stored_body=b"bare")])
        data = encode_record(bare)
        with whence.open(tmp_path) as store:
            for written in range(len(data) - 3):
                poke(made.log_files[0], bare.physical_offset, data[:written])
                assert len(store.find(topic="T")) == 3
            poke(made.log_files[0], bare.physical_offset, data)
            assert len(store.find(topic="T")) == 4

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the road is the same for all
    @given(cuts=st.lists(st.integers(1, 200), max_size=6), junk=st.binary(min_size=1, max_size=40))
    def test_over_old_bytes_is_not_taken_either(self, tmp_path_factory, cuts, junk):
        """A log that was cut goes on over what lay there: no zeros tell what is not written yet."""
        folder = tmp_path_factory.mktemp("over")
        made = make_store(folder, MESSAGES[:3], indexed=0)
        [*_, fourth] = place(MESSAGES[:4])
        data = encode_record(fourth)
        old = (junk * 300)[: len(data) + 100]
        with whence.open(folder) as store:
            for cut in sorted({0, *cuts}):
                poke(made.log_files[0], fourth.physical_offset, data[:cut] + old[cut:])
                found = offsets(store.find(key="every"))
                if cut < len(data) - len(fourth.properties_data):
                    assert found == made.offsets[::-1]
            poke(made.log_files[0], fourth.physical_offset, data)
            assert offsets(store.find(key="every")) == [fourth.physical_offset, *made.offsets[::-1]]


@pytest.mark.usefixtures("road")
class TestTheRollToANewFile:
    def test_every_state_on_the_way_shows_what_is_whole(self, tmp_path):
        placed = place(MESSAGES)
        first = [record for record in placed if record.physical_offset < FILE_SIZE]
        second = [record for record in placed if FILE_SIZE <= record.physical_offset < 2 * FILE_SIZE]
        made = make_store(tmp_path, MESSAGES[: len(first)], indexed=0)
        wanted = [record.physical_offset for record in first]
        old, new = made.log_files[0], tmp_path / "commitlog" / f"{FILE_SIZE:020d}"
        blank = encode_blank(FILE_SIZE - first[-1].physical_offset - first[-1].size)
        end = first[-1].physical_offset + first[-1].size
        with whence.open(tmp_path) as store:

            def check(what):
                answer = store.find(key="every", limit=None, oldest_first=True)
                assert offsets(answer) == wanted, what
                assert answer.receipt.complete, what

            check("nothing yet")
            for written in range(1, 9):
                poke(old, end, blank[:written])
                check(f"{written} bytes of the blank")
            new.touch()
            check("the next file is empty")
            os.truncate(new, FILE_SIZE)
            check("the next file is all zero")
            (tmp_path / "commitlog" / f"{2 * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
            check("the one after it is there, too")
            for record in second[:3]:
                data = encode_record(record)
                for written in (1, 4, 8, 40, 90, len(data) - 1):
                    poke(new, record.physical_offset - FILE_SIZE, data[:written])
                    check(f"{written} bytes of record {record.physical_offset}")
                poke(new, record.physical_offset - FILE_SIZE, data)
                wanted.append(record.physical_offset)
                check(f"record {record.physical_offset}")

    def test_a_store_that_begins_empty_is_seen_to_grow(self, tmp_path):
        (tmp_path / "commitlog").mkdir()
        placed = place(MESSAGES)
        with whence.open(tmp_path) as store:
            assert offsets(store.find(key="every", topic="T")) == []
            path = tmp_path / "commitlog" / f"{0:020d}"
            path.touch()
            assert offsets(store.find(key="every", topic="T")) == []
            os.truncate(path, FILE_SIZE)
            assert offsets(store.find(key="every", topic="T")) == []
            poke(path, 0, encode_record(placed[0]))
            assert offsets(store.find(key="every", topic="T")) == [0]

    def test_a_file_that_grows_as_it_is_written_is_read_as_far_as_it_goes(self, tmp_path):
        """As a store that is being copied: no file has its size before its end."""
        placed = place(MESSAGES[:20])
        (tmp_path / "commitlog").mkdir()
        path = tmp_path / "commitlog" / f"{0:020d}"
        path.touch()
        data = b"".join(map(encode_record, placed))
        with whence.open(tmp_path) as store, path.open("ab", buffering=0) as writer:
            for at in range(0, len(data), 50):
                writer.write(data[at : at + 50])
                whole = [r.physical_offset for r in placed if r.physical_offset + r.size <= at + 50]
                assert offsets(store.find(topic="T", limit=None, oldest_first=True)) == whole

    def test_expired_files_that_go_while_we_read_are_no_error(self, tmp_path):
        """The oldest file is deleted in the middle of a scan that has not reached it yet."""
        made = make_store(tmp_path, MESSAGES, indexed=0)
        oldest = made.log_files[0]

        def broker(done, total):
            oldest.unlink(missing_ok=True)

        with whence.open(tmp_path) as store:
            answer = store.find(topic="T", limit=None, progress=broker)
            left = [offset for offset in reversed(made.offsets) if offset >= FILE_SIZE]
            assert [offset for offset in offsets(answer) if offset >= FILE_SIZE] == left
            assert len(offsets(answer)) in (len(left), len(made.offsets)) or not answer.receipt.complete
            answer = store.find(topic="T", limit=None)
            assert offsets(answer) == left
            assert answer.receipt.complete


# -- the index ----------------------------------------------------------------------------------------------


def put_in_steps(path, twin, text, record):
    """Put one item as RocketMQ does, and stop behind every write: item, slot, begin, counts, end."""
    number = twin.next_item
    slot = text_hash(text) % twin.slot_capacity
    slot_count = twin.slot_count
    assert twin.put(text, record.physical_offset, record.store_timestamp_ms)
    item = twin.items[number]
    at = item_position(twin.slot_capacity, number)
    writes = [
        (at, i32(item.key_hash)),
        (at + 4, i64(item.physical_offset)),
        (at + 12, i32(item.time_diff_s)),
        (at + 16, i32(item.previous_item)),
        (slot_position(slot), i32(number)),
    ]
    if number == 1:
        writes += [(16, i64(twin.begin_physical_offset)), (0, i64(twin.begin_timestamp_ms))]
    if twin.slot_count > slot_count:
        writes.append((32, i32(twin.slot_count)))
    writes += [(36, i32(number + 1)), (24, i64(twin.end_physical_offset)), (8, i64(twin.end_timestamp_ms))]
    for position, data in writes:
        poke(path, position, data)
        yield position


@pytest.mark.parametrize("slots", [1, 3, 31])
def test_an_index_file_that_grows_loses_no_older_part_of_a_chain(tmp_path, slots):
    """Wherever the writer is stopped, every message is found."""
    made = make_store(tmp_path, MESSAGES[:14], indexed=0)
    (tmp_path / "index").mkdir(exist_ok=True)
    names = iter(range(20260101120000000, 20260101120000100))
    items = 20
    before: IndexFileTwin | None = None
    twin, path = None, None
    with whence.open(tmp_path) as store:

        def check():
            for key in ("every", "k0", "k5", "k13", "absent"):
                answer = store.find(key=key, topic="T", limit=None)
                wanted = [record.physical_offset for record in reversed(made.records) if key in record.keys]
                assert offsets(answer) == wanted
                assert answer.receipt.complete

        for record in made.records:
            for key in [record.unique_id, *record.keys]:
                if twin is None or twin.is_full:
                    before, twin = twin, IndexFileTwin(slots, items)
                    path = tmp_path / "index" / str(next(names))
                    path.touch()
                    check()
                    os.truncate(path, 40 + 4 * slots + 20 * items)
                    check()
                    if before is not None:
                        twin.begin_timestamp_ms = twin.end_timestamp_ms = before.end_timestamp_ms
                        twin.begin_physical_offset = twin.end_physical_offset = before.end_physical_offset
                        for position, value in ((16, before.end_physical_offset), (0, before.end_timestamp_ms)):
                            poke(path, position, i64(value))
                            poke(path, position + 8, i64(value))
                            check()
                for _ in put_in_steps(path, twin, f"T#{key}", record):
                    check()
        receipt = store.find(key="every", topic="T", limit=None).receipt
    assert receipt.index_files == 3
    assert receipt.damage == []
    assert receipt.scanned_bytes == 0


def test_an_index_and_a_log_that_grow_together(tmp_path):
    """Message by message: first the log, then the index, as dispatch does it. Every state is answered in full."""
    made = make_store(tmp_path / "whole", MESSAGES[:30], items=1000, slots=31, indexed=0)
    folder = tmp_path / "store"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "index").mkdir()
    (folder / "consumequeue" / "T" / "0").mkdir(parents=True)
    log = folder / "commitlog" / f"{0:020d}"
    log.write_bytes(bytes(FILE_SIZE))
    twin = IndexFileTwin(31, 1000)
    index = folder / "index" / "20260101120000000"
    index.write_bytes(twin.to_bytes())
    with whence.open(folder) as store:
        for count, record in enumerate(made.records[:25], 1):
            poke(log, record.physical_offset, encode_record(record))
            wanted = made.offsets[:count][::-1]
            assert offsets(store.find(key="every", limit=None)) == wanted
            for key in record.keys:
                for _ in put_in_steps(index, twin, f"T#{key}", record):
                    pass
                assert offsets(store.find(key="every", limit=None)) == wanted
            answer = store.find(key=f"k{count - 1}")
            assert offsets(answer) == [record.physical_offset]
            assert answer.receipt.scanned_bytes == 0


# -- a writer of its own ------------------------------------------------------------------------------------

WRITER = """
import os, sys, time
from pathlib import Path
from tests.reference import encode_blank, encode_record
from tests.store.test_live_reading import MESSAGES
from tests.store_maker import FILE_SIZE, place

folder = Path(sys.argv[1])
files = {}
position = 0

def pwrite(offset, data):
    base = offset - offset % FILE_SIZE
    if base not in files:
        files[base] = os.open(folder / f"{base:020d}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(files[base], FILE_SIZE)
    os.pwrite(files[base], data, offset - base)

for number, record in enumerate(place(MESSAGES)):
    if record.physical_offset > position:
        pwrite(position, encode_blank(record.physical_offset - position)[:8])
    data = encode_record(record)
    for cut in (4, 8, 60, 92, len(data) - 9):
        pwrite(record.physical_offset, data[:cut])
        if number % 7 == 0:
            time.sleep(0.002)
    pwrite(record.physical_offset, data)
    position = record.physical_offset + len(data)
    print(position, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.slow
def test_a_process_that_writes_and_one_that_reads(tmp_path):
    """What the reader sees is always the beginning of what is written, complete, and never less than before."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    placed = place(MESSAGES)
    wanted = [record.physical_offset for record in placed]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        seen = -1
        polls = 0
        with whence.open(tmp_path) as store:
            while True:
                ended = writer.poll() is not None
                answer = store.find(key="every", topic="T", limit=None, oldest_first=True)
                found = offsets(answer)
                assert found == wanted[: len(found)]
                assert len(found) >= seen
                assert answer.receipt.complete, answer.receipt.damage
                seen = len(found)
                polls += 1
                if ended:
                    break
        assert writer.stdout is not None
        told = writer.stdout.read().split()
    assert writer.returncode == 0
    assert len(told) == len(wanted) == seen
    assert polls > 10


@pytest.mark.slow
def test_what_a_writer_has_told_is_seen_by_the_next_question(tmp_path):
    """The writer says where the log ends behind each record; from then on every answer has that record."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    placed = place(MESSAGES)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        assert writer.stdout is not None
        with whence.open(tmp_path) as store:
            for number, line in enumerate(writer.stdout):
                assert int(line) == placed[number].physical_offset + placed[number].size
                answer = store.find(key=f"k{number}", topic="T")
                assert offsets(answer) == [placed[number].physical_offset]
    assert writer.returncode == 0
    assert number == len(placed) - 1
