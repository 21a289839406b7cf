"""A live index file: what readers see of it while it grows, and what is left of it after a crash."""

import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import FailingDisk, UnflushedDisk
from tests.reference import i32, i64
from tests.store.test_index_builder import EXAMPLE, ROWS, SHAPES, Row, build, bytes_of, put
from whence.errors import CorruptError, StoreError, UsageError
from whence.files.disk import Disk
from whence.formats.buffers import Buffer
from whence.formats.rocketmq.index_file import IndexHeader, decode_header, item_position, slot_position
from whence.kernels import index_items
from whence.store import index_builder, index_cut
from whence.store.index_builder import BuiltFile, FlushedIndex, IndexBuilder
from whence.store.index_cut import cut_index_file
from whence.store.index_file import IndexFile, Shape

T = 1_700_000_000_000


def live(
    folder: Path, shape: Shape, disk: Disk | None = None, after: BuiltFile | None = None, *, ordered: bool = False
) -> IndexBuilder:
    return IndexBuilder(folder, shape, disk or UnflushedDisk(), after, live=True, ordered=ordered)


def header_of(rows: Sequence[Row], shape: Shape) -> IndexHeader:
    """The header of one file with these rows."""
    slot_count = len({key_hash % shape.slot_capacity for key_hash, _, _ in rows})
    first, last = rows[0], rows[-1]
    return IndexHeader(first[2], last[2], first[1], last[1], slot_count, len(rows) + 1)


@given(st.lists(ROWS, min_size=1, max_size=40), SHAPES, st.data())
def test_a_live_builder_writes_the_bytes_of_a_build_at_once(tmp_path_factory, rows, shape, data):
    folder = tmp_path_factory.mktemp("live")
    builder = live(folder / "live", shape, ordered=data.draw(st.booleans()))
    left = rows
    while left:
        taken = data.draw(st.integers(1, len(left)))
        put(builder, left[:taken])
        left = left[taken:]
        if data.draw(st.booleans()):
            builder.flush()
    built = builder.finish()
    at_once = build(folder / "once", rows, shape)
    assert bytes_of(built) == bytes_of(at_once)
    assert [file.header for file in built] == [file.header for file in at_once]
    assert [file.path.name for file in built] == [file.path.name for file in at_once]


def test_what_was_put_is_in_the_file_when_put_returns(tmp_path):
    shape = Shape(5, 20)
    builder = live(tmp_path / "live", shape)
    for number, row in enumerate(EXAMPLE, 1):
        put(builder, [row])
        (path,) = (tmp_path / "live").iterdir()
        (expected,) = build(tmp_path / f"once{number}", EXAMPLE[:number], shape)
        assert path.read_bytes() == expected.path.read_bytes()
    builder.close()


class FlushedStates(UnflushedDisk):
    """Keeps what a file had each time it was flushed."""

    def __init__(self) -> None:
        self.states: list[bytes] = []

    def fsync(self, path: Path, descriptor: int) -> None:
        if path.is_file():
            self.states.append(path.read_bytes())


def test_slots_lead_to_the_items_of_an_ordered_builder_once_these_are_flushed(tmp_path):
    shape, disk = Shape(5, 20), FlushedStates()
    builder = live(tmp_path / "live", shape, disk, ordered=True)
    (expected,) = build(tmp_path / "once", EXAMPLE, shape)
    all_of_it, items_at = expected.path.read_bytes(), item_position(shape.slot_capacity, 1)
    put(builder, EXAMPLE)
    builder.flush()
    items_only, published = disk.states
    assert items_only[items_at:] == all_of_it[items_at:] and not any(items_only[slot_position(0) : items_at])
    assert decode_header(items_only).item_count == 1
    assert published == all_of_it
    builder.close()


def test_a_live_file_takes_its_room_at_once(tmp_path):
    builder = live(tmp_path, Shape(5000, 20_000))
    put(builder, EXAMPLE)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 >= Shape(5000, 20_000).file_size
    builder.close()


def test_a_file_without_its_room_gets_it_for_what_is_written_through_the_map(tmp_path):
    shape = Shape(500_000, 20_000)
    (built,) = build(tmp_path / "built", EXAMPLE[:3], shape)
    sparse = BuiltFile(tmp_path / built.path.name, built.header)
    data = built.path.read_bytes()
    with sparse.path.open("wb") as file:  # as a broker leaves it: what was never touched is a hole
        for at in range(0, len(data), 4096):
            if any(data[at : at + 4096]):
                os.pwrite(file.fileno(), data[at : at + 4096], at)
        file.truncate(len(data))
    assert sparse.path.stat().st_blocks * 512 < slot_position(shape.slot_capacity)
    builder = live(tmp_path, shape, after=sparse)
    assert sparse.path.stat().st_blocks * 512 >= slot_position(shape.slot_capacity)
    put(builder, EXAMPLE[3:])
    assert bytes_of(builder.finish()) == bytes_of(build(tmp_path / "once", EXAMPLE, shape))


def test_flush_tells_what_lasts_and_goes_on(tmp_path):
    flushed: list[str] = []

    class NotingDisk(UnflushedDisk):
        def fsync(self, path: Path, descriptor: int) -> None:
            flushed.append(path.name)

    shape = Shape(5, 4)  # three items a file
    builder = live(tmp_path / "index", shape, NotingDisk())
    assert builder.flush() == FlushedIndex(None, None)
    put(builder, EXAMPLE[:2])
    flushed.clear()
    first = builder.flush().newest
    assert first is not None
    assert first == BuiltFile(first.path, header_of(EXAMPLE[:2], shape))
    assert flushed == [first.path.name, "index"]
    put(builder, EXAMPLE[2:5])
    assert builder.unflushed_full_count == 1
    flushed.clear()
    told = builder.flush()
    assert told.full == BuiltFile(first.path, header_of(EXAMPLE[:3], shape))
    assert told.newest is not None
    assert sorted(flushed[:2]) == [first.path.name, told.newest.path.name] and flushed[2:] == ["index"]
    assert builder.unflushed_full_count == 0
    put(builder, EXAMPLE[5:])
    flushed.clear()
    assert builder.flush().full is None
    assert len(flushed) == 2
    builder.finish()


def test_what_was_taken_to_be_flushed_is_told_as_it_was_then(tmp_path):
    builder = live(tmp_path, Shape(5, 20))
    put(builder, EXAMPLE[:2])
    unflushed = builder.unflushed()
    put(builder, EXAMPLE[2:])
    newest = unflushed.flush().newest
    assert newest is not None
    assert newest.header.next_item == 3
    builder.close()


# Readers


def walk_all(
    path: Path, shape: Shape, row_count: int, ready: Event, done: Event, rounds: "multiprocessing.Queue[int]"
) -> None:
    """Walk all chains again and again: every item that the count counts is found, and each that is found is whole."""
    file = IndexFile(path)
    file.shape = shape
    data = file.data
    ready.set()
    number_of_rounds = 0
    while not done.is_set() or number_of_rounds == 0:
        for _ in range(500):  # the newest counted item is in its chain, and what leads that chain is whole
            newest = int.from_bytes(data[36:40], "big") - 1
            slot_at = slot_position(reader_row(newest)[0] % shape.slot_capacity)
            head = int.from_bytes(data[slot_at : slot_at + 4], "big")
            assert head >= newest
            assert file.item(head) == reader_row(head)[:2]
        counted = set(range(1, file.header().next_item))
        found = set()
        for slot in range(shape.slot_capacity):
            for number, key_hash, physical_offset in file.walk(slot):
                assert (key_hash, physical_offset) == reader_row(number)[:2]
                found.add(number)
        assert counted <= found, sorted(counted - found)[:5]
        number_of_rounds += 1
    assert len(found) <= row_count
    rounds.put(number_of_rounds)


def reader_row(number: int) -> Row:
    return (number * number * 7919 % 2**31, number * 1000 + 7, T + number)


def test_readers_of_another_process_find_every_counted_item_at_any_moment(tmp_path):
    shape = Shape(53, 12_001)
    rows = [reader_row(number) for number in range(1, 12_001)]
    builder = live(tmp_path, shape)
    put(builder, rows[:1])
    (path,) = tmp_path.iterdir()
    context = multiprocessing.get_context("spawn")
    ready, done, rounds = context.Event(), context.Event(), context.Queue()
    reader = context.Process(target=walk_all, args=(path, shape, len(rows), ready, done, rounds))
    reader.start()
    try:
        assert ready.wait(60)
        position = 1
        for size in (1, 2, 3, 5, 8, 60) * 150:
            put(builder, rows[position : position + size])
            position += size
            time.sleep(0.0005)  # the reader needs some time for a round
    finally:
        done.set()
        builder.close()
        reader.join(60)
    assert reader.exitcode == 0
    assert rounds.get() > 1
    assert position > len(rows) // 2


# Crashes


def images(folder: Path, rows: Sequence[Row], shape: Shape, chunk: int) -> list[tuple[Path, bytes]]:
    """The newest file as it is between any two writes of a live builder that puts ``chunk`` rows at a time.

    What goes through the map is written here as the kernel does it, one field at a time.
    """
    seen: list[tuple[Path, bytes]] = []
    written: list[Path] = []

    class CopyingDisk(UnflushedDisk):
        def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
            written.append(path)
            os.pwrite(descriptor, data[: len(data) // 2], position)
            look()
            size = super().pwrite(path, descriptor, data, position)
            look()
            return size

    def look() -> None:
        seen.append((written[-1], written[-1].read_bytes()))

    def store(file: np.ndarray, position: int, data: bytes) -> None:
        file[position : position + len(data)] = np.frombuffer(data, np.uint8)
        look()

    def publish(file: np.ndarray, key_hashes: np.ndarray, slots: np.ndarray, header: IndexHeader) -> None:
        for key_hash in key_hashes.tolist():
            slot = key_hash % len(slots)
            store(file, slot_position(slot), i32(int(slots[slot])))
        store(file, 0, i64(header.begin_timestamp_ms))
        store(file, 8, i64(header.end_timestamp_ms))
        store(file, 16, i64(header.begin_physical_offset))
        store(file, 24, i64(header.end_physical_offset))
        store(file, 32, i32(header.slot_count))
        store(file, 36, i32(header.item_count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_items, "publish_items", publish)
        builder = live(folder, shape, CopyingDisk())
        for first in range(0, len(rows), chunk):
            put(builder, rows[first : first + chunk])
        builder.close()
    return seen


CRASH_ROWS = [(number * number * 7 % 61, 100 * number, T + 300 * number) for number in range(1, 18)]
CRASH_SHAPE = Shape(5, 30)


@pytest.mark.parametrize("chunk", [1, 2, 5, 17])
def test_from_any_moment_of_a_crash_a_builder_goes_on_to_the_same_bytes(tmp_path, chunk):
    (whole,) = build(tmp_path / "once", CRASH_ROWS, CRASH_SHAPE)
    number_of_images = 0
    for path, image in images(tmp_path / "live", CRASH_ROWS, CRASH_SHAPE, chunk):
        folder = tmp_path / f"crashed{number_of_images}"
        folder.mkdir()
        (folder / path.name).write_bytes(image)
        item_count = decode_header(image).next_item - 1
        header = header_of(CRASH_ROWS[:item_count], CRASH_SHAPE) if item_count else IndexHeader(0, 0, 0, 0, 0, 1)
        builder = live(folder, CRASH_SHAPE, after=BuiltFile(folder / path.name, header))
        kept = (folder / path.name).read_bytes()
        if item_count:
            (expected,) = build(tmp_path / f"kept{number_of_images}", CRASH_ROWS[:item_count], CRASH_SHAPE)
            assert kept == expected.path.read_bytes()
        put(builder, CRASH_ROWS[item_count:])
        builder.close()
        assert (folder / path.name).read_bytes() == whole.path.read_bytes()
        number_of_images += 1
    assert number_of_images > 25


def test_from_any_moment_of_a_crash_a_file_can_be_cut_to_any_items_that_count(tmp_path):
    kept = [b""] + [
        build(tmp_path / f"kept{number}", CRASH_ROWS[:number], CRASH_SHAPE)[0].path.read_bytes()
        for number in range(1, len(CRASH_ROWS) + 1)
    ]
    path = tmp_path / "20231114221320100"
    for _, image in images(tmp_path / "live", CRASH_ROWS, CRASH_SHAPE, 5):
        for number in range(1, decode_header(image).next_item):
            path.write_bytes(image)
            header = header_of(CRASH_ROWS[:number], CRASH_SHAPE)
            assert cut_index_file(path, CRASH_SHAPE, replace(header, slot_count=99), UnflushedDisk()) == header
            assert path.read_bytes() == kept[number]


def test_a_cut_that_is_interrupted_at_any_write_can_be_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(index_cut, "SLOTS_AT_ONCE", 2)
    monkeypatch.setattr(index_cut, "ZEROED_AT_ONCE", 33)
    (whole,) = build(tmp_path / "whole", CRASH_ROWS, CRASH_SHAPE)
    (cut,) = build(tmp_path / "cut", CRASH_ROWS[:6], CRASH_SHAPE)
    path = tmp_path / whole.path.name
    for left in count():
        shutil.copyfile(whole.path, path)
        try:
            cut_index_file(path, CRASH_SHAPE, cut.header, FailingDisk(left))
            break
        except StoreError:
            readable = IndexFile(path)
            readable.shape = CRASH_SHAPE
            for slot in range(CRASH_SHAPE.slot_capacity):  # every item that is kept is found at any moment
                kept = [number for number in range(6, 0, -1) if CRASH_ROWS[number - 1][0] % 5 == slot]
                assert [number for number, _, _ in readable.walk(slot) if number <= 6] == kept
            assert cut_index_file(path, CRASH_SHAPE, cut.header, UnflushedDisk()) == cut.header
            assert path.read_bytes() == cut.path.read_bytes()
    assert left > 5
    assert path.read_bytes() == cut.path.read_bytes()


def test_heads_whose_chain_is_lost_above_the_count_are_made_anew_from_the_items_below(tmp_path):
    (built,) = build(tmp_path / "index", CRASH_ROWS, CRASH_SHAPE)
    data = bytearray(built.path.read_bytes())
    at = item_position(CRASH_SHAPE.slot_capacity, 12)
    data[at : at + 20 * 6] = bytes(20 * 6)  # items 12 to 17: a page that did not reach the disk
    built.path.write_bytes(data)
    builder = live(
        tmp_path / "index", CRASH_SHAPE, after=BuiltFile(built.path, header_of(CRASH_ROWS[:11], CRASH_SHAPE))
    )
    put(builder, CRASH_ROWS[11:])
    builder.close()
    (once,) = build(tmp_path / "once", CRASH_ROWS, CRASH_SHAPE)
    assert built.path.read_bytes() == once.path.read_bytes()


def test_a_lost_item_below_the_cut_is_told(tmp_path):
    (built,) = build(tmp_path / "index", CRASH_ROWS, CRASH_SHAPE)
    data = bytearray(built.path.read_bytes())
    at = item_position(CRASH_SHAPE.slot_capacity, 4)
    data[at : at + 20] = bytes(20)
    built.path.write_bytes(data)
    with pytest.raises(CorruptError, match=f"{built.path.name} at byte {at}: item 4 was lost"):
        cut_index_file(built.path, CRASH_SHAPE, header_of(CRASH_ROWS[:11], CRASH_SHAPE), UnflushedDisk())
    assert built.path.read_bytes() == data


def test_a_file_of_another_shape_is_not_cut(tmp_path):
    (built,) = build(tmp_path / "index", CRASH_ROWS, CRASH_SHAPE)
    with pytest.raises(CorruptError, match="has 660 bytes; with 5 slots and 31 items it has 680"):
        cut_index_file(built.path, Shape(5, 31), built.header, UnflushedDisk())
    with pytest.raises(UsageError, match="cannot have 30 items"):
        cut_index_file(built.path, CRASH_SHAPE, IndexHeader(0, 0, 0, 0, 0, 31), UnflushedDisk())


# Errors


@pytest.mark.parametrize("is_live", [True, False])
def test_what_could_not_be_put_can_be_put_again(tmp_path, is_live, monkeypatch):
    """The disk fails at each write in turn; then the same rows behind those that were put give the same bytes."""
    monkeypatch.setattr(index_builder, "CHUNK", 3)
    shape = Shape(5, 6)
    expected = bytes_of(build(tmp_path / "once", CRASH_ROWS, shape))
    for left in count():
        disk = FailingDisk(left)
        builder = IndexBuilder(tmp_path / f"new{left}", shape, disk, live=is_live)
        try:
            put(builder, CRASH_ROWS)
            break
        except StoreError:
            disk.left = 10**6
            put(builder, CRASH_ROWS[builder.put_count :])
        assert bytes_of(builder.finish()) == expected
    assert left > 10
    assert builder.put_count == len(CRASH_ROWS)


def test_a_file_that_cannot_be_completed_when_it_is_made_is_not_left_there(tmp_path):
    disk = FailingDisk(2)  # the folder is flushed and the room is taken, the header cannot be written
    builder = live(tmp_path / "index", CRASH_SHAPE, disk)
    with pytest.raises(StoreError, match="cannot be written"):
        put(builder, CRASH_ROWS)
    assert list((tmp_path / "index").iterdir()) == []
    disk.left = 100
    put(builder, CRASH_ROWS)
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["20231114221320300"]
    builder.close()
