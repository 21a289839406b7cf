"""IndexBuilder against RocketMQ's own files and against the twin, byte for byte."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import UnflushedDisk
from tests.golden import INDEX_FILES
from tests.reference import IndexFileTwin, text_hash
from whence.errors import UsageError
from whence.files.names import parse_index_name
from whence.formats.rocketmq.index_file import IndexHeader
from whence.store import index_builder
from whence.store.index_builder import BuiltFile, IndexBuilder
from whence.store.index_file import Shape

T = 1_700_000_000_000

Row = tuple[int, int, int]  # key hash, physical offset, store time


def put(builder: IndexBuilder, rows: Sequence[Row]) -> None:
    hashes, offsets, times = zip(*rows, strict=True) if rows else ((), (), ())
    builder.put(np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(times, np.int64))


def build(folder: Path, rows: Sequence[Row], shape: Shape, after: BuiltFile | None = None) -> list[BuiltFile]:
    builder = IndexBuilder(folder, shape, UnflushedDisk(), after)
    put(builder, rows)
    return builder.finish()


def bytes_of(built: Iterable[BuiltFile]) -> list[bytes]:
    return [file.path.read_bytes() for file in built]


def twins(messages: Iterable[Sequence[Row]], shape: Shape) -> list[IndexFileTwin]:
    """What a broker makes of messages, each with the rows of its keys, as tests/reference.py tells it."""
    files = [IndexFileTwin(shape.slot_capacity, shape.item_capacity)]

    def last_file() -> IndexFileTwin:
        if files[-1].is_full:
            end_ms, end_offset = max(0, files[-1].end_timestamp_ms), max(0, files[-1].end_physical_offset)
            files.append(
                IndexFileTwin(shape.slot_capacity, shape.item_capacity, end_ms, end_ms, end_offset, end_offset)
            )
        return files[-1]

    for rows in messages:
        last_file()
        for key_hash, physical_offset, store_timestamp_ms in rows:
            assert last_file().put(chr(key_hash), physical_offset, store_timestamp_ms)
    return files


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_puts_of_rocketmqs_class_give_its_bytes(tmp_path, case):
    shape = Shape(case.settings["slots"], case.settings["items"])
    end_ms, end_offset = case.settings["initial_end_timestamp"], case.settings["initial_end_physical_offset"]
    full = IndexHeader(0, end_ms, 0, end_offset, 0, shape.item_capacity)
    rows = [(text_hash(text), offset, time) for text, offset, time, accepted in case.puts if accepted]
    (built,) = build(tmp_path, rows, shape, BuiltFile(Path("20000101000000000"), full))
    assert built.path.read_bytes() == case.path.read_bytes()


EXAMPLE = [(16, 0, T), (29, 200, T + 500), (29, 400, T + 1000), (8, 600, T + 2500), (16, 800, T + 2999)]
EXAMPLE += [(16, 1000, T + 4000)]


@pytest.mark.parametrize(
    ("slots", "slot_numbers", "previous_items"),
    [(13, {3: 6, 8: 4}, [0, 1, 2, 0, 3, 5]), (10, {6: 6, 8: 4, 9: 3}, [0, 0, 2, 0, 1, 5])],
)
def test_worked_example(tmp_path, slots, slot_numbers, previous_items):
    (built,) = build(tmp_path, EXAMPLE, Shape(slots, 8))
    data = built.path.read_bytes()
    header = f"0000018bcfe56800 0000018bcfe577a0 0000000000000000 00000000000003e8 {len(slot_numbers):08x} 00000007"
    assert data[:40] == bytes.fromhex(header)
    found = [int.from_bytes(data[40 + 4 * slot : 44 + 4 * slot], "big") for slot in range(slots)]
    assert found == [slot_numbers.get(slot, 0) for slot in range(slots)]
    items = [data[40 + 4 * slots + 20 * number :][:20] for number in range(8)]
    assert items[0] == items[7] == bytes(20)
    assert [int.from_bytes(item[16:], "big") for item in items[1:7]] == previous_items
    assert items[6].hex(" ", 4) == "00000010 00000000 000003e8 00000004 00000005"


ROWS = st.tuples(st.integers(0, 60), st.integers(0, 2**63 - 1), st.integers(-(2**40), 2**42))
MESSAGES = st.lists(st.lists(ROWS, max_size=7), min_size=1, max_size=25)
SHAPES = st.builds(Shape, st.integers(1, 40), st.integers(2, 12))


@given(MESSAGES, SHAPES, st.data())
def test_any_batches_give_the_bytes_of_the_twin(messages, shape, data):
    """A file may roll inside a message, between two, or at a message without keys."""
    cuts = data.draw(st.sets(st.integers(0, len(messages))))
    chunk = data.draw(st.integers(1, 9))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_builder, "CHUNK", chunk)
        builder = IndexBuilder(Path(folder), shape, UnflushedDisk())
        edges = sorted(cuts | {0, len(messages)})
        for begin, end in pairwise(edges):
            put(builder, [row for rows in messages[begin:end] for row in rows])
            if not messages[end - 1]:
                builder.ask_for_file()
        built = builder.finish()
        expected = twins(messages, shape)
        assert bytes_of(built) == [twin.to_bytes() for twin in expected]
        assert [file.header.next_item for file in built] == [twin.next_item for twin in expected]
        assert [path.name for path in sorted(Path(folder).iterdir())] == [file.path.name for file in built]


@given(st.lists(ROWS, min_size=1, max_size=40), st.sampled_from("<>"))
def test_fields_of_rows_are_put_as_they_are(rows, order):
    """Whatever lies between them, and in whatever byte order they are."""
    shape = Shape(7, 50)
    table = np.array(
        [(1, key_hash, 2, offset, time_ms) for key_hash, offset, time_ms in rows],
        f"i1, {order}i4, i2, {order}i8, {order}i8",
    )
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        builder = IndexBuilder(Path(folder), shape, UnflushedDisk())
        builder.put(table["f1"], table["f3"], table["f4"])
        assert bytes_of(builder.finish()) == bytes_of(build(Path(other), rows, shape))


@given(st.lists(ROWS, min_size=1, max_size=40), SHAPES, st.data())
def test_going_on_behind_the_newest_file_gives_the_same_bytes(rows, shape, data):
    cut = data.draw(st.integers(1, len(rows)))
    with TemporaryDirectory() as once, TemporaryDirectory() as twice:
        at_once = build(Path(once), rows, shape)
        first = build(Path(twice), rows[:cut], shape)
        build(Path(twice), rows[cut:], shape, first[-1])
        assert [path.read_bytes() for path in sorted(Path(twice).iterdir())] == bytes_of(at_once)


def test_files_are_named_by_their_first_items_time_and_never_alike(tmp_path):
    rows = [(1, 0, T + 7), (2, 1, T + 5000), (3, 2, T), (4, 3, -5), (5, 4, 2**62)]
    names = [file.path.name for file in build(tmp_path, rows, Shape(5, 2))]
    assert names[:2] == ["20231114221320007", "20231114221325000"]
    assert names[2:4] == ["20231114221325001", "20231114221325002"]
    assert names[4] == "99990101000000000"
    assert [parse_index_name(name) for name in names[:2]] == [T + 7, T + 5000]


def test_a_message_without_keys_makes_the_next_file_begin(tmp_path):
    builder = IndexBuilder(tmp_path, Shape(5, 2), UnflushedDisk())
    put(builder, [(1, 100, T)])
    builder.ask_for_file()
    full, empty = builder.finish()
    assert full.header == IndexHeader(T, T, 100, 100, 1, 2)
    assert empty.header == IndexHeader(T, T, 100, 100, 0, 1)
    assert empty.path.name == "20231114221320001"


def test_nothing_put_makes_no_file(tmp_path):
    assert IndexBuilder(tmp_path / "index", Shape(5, 8), UnflushedDisk()).finish() == []
    assert not (tmp_path / "index").exists()


def test_an_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "20231114221320000").write_bytes(b"mine")
    with pytest.raises(Exception, match="20231114221320000: cannot be made"):
        build(tmp_path, EXAMPLE, Shape(5, 8))
    assert (tmp_path / "20231114221320000").read_bytes() == b"mine"


@pytest.mark.parametrize("shape", [Shape(0, 8), Shape(5, 1), Shape(2**31, 8)])
def test_a_shape_that_holds_no_item_is_refused(tmp_path, shape):
    with pytest.raises(UsageError, match="no item fits"):
        IndexBuilder(tmp_path, shape, UnflushedDisk())


def test_columns_of_different_length_are_refused(tmp_path):
    builder = IndexBuilder(tmp_path, Shape(5, 8), UnflushedDisk())
    with pytest.raises(UsageError, match="make no items"):
        builder.put(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))
