"""IndexFile: its shape, found in its bytes, and the walk of a chain, which always ends."""

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import ALL, INDEX_FILES, GoldenIndexFile
from tests.reference import IndexFileTwin, i32, i64, text_hash, walk
from tests.store_maker import T
from whence.errors import CorruptError, NotFoundError, TruncatedError
from whence.files.map_pool import MapPool
from whence.store.index_file import DEFAULT_SHAPE, IndexFile, Shape

NAME = "20260101120000000"


def write(folder, twin):
    path = folder / NAME
    path.write_bytes(twin.to_bytes())
    return path


def open_file(path, shape=None):
    file = IndexFile(path)
    if shape is None:
        file.resolve_shape(())
    else:
        file.shape = shape
    return file


def twin_of(hashes, *, slots=13, items=8, first_offset=0):
    """A file in which item i has hashes[i - 1], as RocketMQ would put texts of these hashes."""
    twin = IndexFileTwin(slots, items)
    for number, key_hash in enumerate(hashes):
        assert twin.put(text_of(key_hash), first_offset + 200 * number, T + 500 * number)
    return twin


def text_of(key_hash):
    """A text with this Java hash, for small ones: its UTF-16 units are the digits of the number in base 31."""
    digits = []
    while key_hash:
        key_hash, digit = divmod(key_hash, 31)
        digits.append(chr(digit))
    return "".join(reversed(digits))


def offsets(file, key_hash):
    return [offset for _, item_hash, offset in file.walk(key_hash) if item_hash == key_hash]


# -- the worked example of the specification, 11.1 -----------------------------------------------------------

EXAMPLE = [16, 29, 29, 8, 16, 16]
EXAMPLE_ANSWERS = {16: [1000, 800, 0], 29: [400, 200], 8: [600], 3: [], 5: []}
EXAMPLE_WALKS = {13: {29: [6, 5, 3, 2, 1], 8: [4], 5: []}, 10: {16: [6, 5, 1], 29: [3, 2], 8: [4]}}


def test_the_texts_of_this_module_have_the_hashes_they_should():
    for key_hash in (*EXAMPLE_ANSWERS, 0, 12345, 2**31 - 1):
        assert text_hash(text_of(key_hash)) == key_hash


@pytest.mark.parametrize("slots", [13, 10])
def test_the_worked_example_answers_as_specified(tmp_path, slots):
    file = open_file(write(tmp_path, twin_of(EXAMPLE, slots=slots)), Shape(slots, 8))
    for key_hash, answer in EXAMPLE_ANSWERS.items():
        assert offsets(file, key_hash) == answer
    for key_hash, numbers in EXAMPLE_WALKS[slots].items():
        assert [number for number, _, _ in file.walk(key_hash)] == numbers


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_a_walk_gives_every_item_that_rocketmq_put_newest_first(case: GoldenIndexFile):
    """Files of RocketMQ's IndexFile class alone."""
    shape = Shape(case.settings["slots"], case.settings["items"])
    wanted: dict[int, list[int]] = {}
    for text, offset, _, was_accepted in case.puts:
        if was_accepted:
            wanted.setdefault(text_hash(text), []).insert(0, offset)
    file = open_file(case.path, shape)
    for key_hash, answer in wanted.items():
        assert offsets(file, key_hash) == answer
    assert offsets(file, text_hash("absent#key")) == wanted.get(text_hash("absent#key"), [])


# -- shape --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_the_shape_of_every_golden_file_is_found_by_itself(golden, name):
    """Alone, without a sibling's help, whether it is full or not."""
    known = golden(name)
    for header in known.headers:
        if header["index_count"] > 1:
            file = IndexFile(known.store / "index" / header["file"])
            assert file.resolve_shape(()) == Shape(known.slot_capacity, known.item_capacity), header


@pytest.mark.parametrize("name", ALL)
def test_the_header_of_every_golden_file_is_as_rocketmq_reads_it(golden, name):
    for known in golden(name).headers:
        header = IndexFile(golden(name).store / "index" / known["file"]).header()
        assert (
            header.begin_timestamp_ms,
            header.end_timestamp_ms,
            header.begin_physical_offset,
            header.end_physical_offset,
            header.slot_count,
            header.next_item,
        ) == (
            known["begin_timestamp"],
            known["end_timestamp"],
            known["begin_physical_offset"],
            known["end_physical_offset"],
            known["hash_slot_count"],
            known["index_count"],
        )


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 97, 1000])
@pytest.mark.parametrize("items", [2, 3, 8, 400])
@pytest.mark.parametrize("filled", [0.01, 0.3, 0.99, 1])
def test_a_shape_is_found_for_any_counts_and_any_filling(tmp_path, slots, items, filled):
    twin = IndexFileTwin(slots, items)
    for number in range(max(1, int((items - 1) * filled))):
        twin.put(f"T#key-{number}", 1000 + 100 * number, T + number)
    shape = IndexFile(write(tmp_path, twin)).resolve_shape(())
    assert shape is not None
    if shape != Shape(slots, items):
        # Few items may fit several shapes; then the one that was found leads to the same answers.
        file = open_file(tmp_path / NAME, shape)
        for number in range(twin.next_item - 1):
            assert 1000 + 100 * number in offsets(file, text_hash(f"T#key-{number}"))


@settings(max_examples=400)
@given(
    slots=st.sampled_from([1, 2, 3, 5, 7, 13, 31, 97]),
    items=st.sampled_from([3, 10, 20, 60, 200]),
    messages=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=40),
    first_offset=st.sampled_from([0, 5000]),
)
def test_a_shape_that_is_found_leads_to_every_item(tmp_path_factory, slots, items, messages, first_offset):
    """Few slots and few keys fit more shapes than one; the wrong one would miss messages and not know it."""
    twin = IndexFileTwin(slots, items)
    wanted: dict[int, list[int]] = {}
    for number, keys in enumerate(messages):
        for key in keys:
            if twin.put(f"T#k{key}", first_offset + 110 * number, T + number):
                wanted.setdefault(text_hash(f"T#k{key}"), []).insert(0, first_offset + 110 * number)
    file = IndexFile(write(tmp_path_factory.mktemp("shape"), twin))
    if file.resolve_shape(()) is None:
        return  # then its part of the log is scanned
    for key_hash, answer in wanted.items():
        assert offsets(file, key_hash) == answer


def test_rocketmq_s_default_counts_need_no_search(tmp_path):
    """A sparse file of 420 MB with three items."""
    path = tmp_path / NAME
    twin = IndexFileTwin(DEFAULT_SHAPE.slot_capacity, DEFAULT_SHAPE.item_capacity)
    for number in range(3):
        twin.put(f"T#{number}", 100 * number, T)
    with path.open("wb") as writer:
        os.truncate(path, DEFAULT_SHAPE.file_size)
        header = i64(T) + i64(T) + i64(0) + i64(200) + i32(twin.slot_count) + i32(twin.next_item)
        writer.write(header)
        for slot, number in twin.slots.items():
            writer.seek(40 + 4 * slot)
            writer.write(i32(number))
        for number, item in twin.items.items():
            writer.seek(40 + 4 * twin.slot_capacity + 20 * number)
            writer.write(
                i32(item.key_hash) + i64(item.physical_offset) + i32(item.time_diff_s) + i32(item.previous_item)
            )
    file = IndexFile(path)
    assert file.resolve_shape(()) == DEFAULT_SHAPE
    assert offsets(file, text_hash("T#2")) == [200]


@pytest.mark.parametrize("wrong", [Shape(12, 8), Shape(14, 8), Shape(13, 7), Shape(8, 9), Shape(18, 7)])
def test_wrong_counts_do_not_fit(tmp_path, wrong):
    file = IndexFile(write(tmp_path, twin_of(EXAMPLE)))
    assert file.fits(Shape(13, 8))
    assert not file.fits(wrong)


def test_a_hint_that_does_not_fit_is_passed_over(tmp_path):
    file = IndexFile(write(tmp_path, twin_of(EXAMPLE)))
    assert file.resolve_shape([Shape(18, 7), Shape(1, 2)]) == Shape(13, 8)


def rename_over(path):
    other = path.with_name("new")
    shutil.copyfile(path, other)
    other.replace(path)


CHANGES = {
    "gone": Path.unlink,
    "another inode": rename_over,
    "an inode that was given again": lambda path: path.write_bytes(twin_of(EXAMPLE[:-1]).to_bytes()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_file_of_the_same_name_is_not_taken_for_the_one_before(tmp_path, change):
    path, maps = write(tmp_path, twin_of(EXAMPLE)), MapPool()
    file = IndexFile(path, maps)
    header = file.header()
    maps.clear()  # as it is when many others were looked at
    assert file.header() == header
    maps.clear()
    change(path)
    with pytest.raises(NotFoundError):
        file.header()


NO_SHAPE = {
    "all zero": lambda data: bytes(len(data)),
    "no items": lambda data: data[:36] + i32(1) + data[40:],
    "negative count": lambda data: data[:36] + i32(-5) + data[40:],
    "more items than bytes": lambda data: data[:36] + i32(10_000) + data[40:],
    "another end offset": lambda data: data[:24] + i64(123456) + data[32:],
    "items of zeros": lambda data: data[: 40 + 4 * 13] + bytes(len(data) - 40 - 4 * 13),
    "slots of zeros": lambda data: data[:40] + bytes(4 * 13) + data[40 + 4 * 13 :],
    "one byte more": lambda data: data + b"\0",
    "cut in the items": lambda data: data[:-70],
}


@pytest.mark.parametrize("damage", NO_SHAPE)
def test_bytes_that_make_no_sense_have_no_shape(tmp_path, damage):
    path = tmp_path / NAME
    path.write_bytes(NO_SHAPE[damage](twin_of(EXAMPLE, items=20).to_bytes()))
    assert IndexFile(path).resolve_shape(()) is None


@pytest.mark.parametrize("size", [0, 1, 39])
def test_a_file_shorter_than_a_header_is_an_error_with_file_and_byte(tmp_path, size):
    path = tmp_path / NAME
    path.write_bytes(bytes(size))
    with pytest.raises(TruncatedError, match="header alone takes 40") as error:
        IndexFile(path).header()
    assert (error.value.path, error.value.position) == (str(path), size)


# -- chains that cannot be ----------------------------------------------------------------------------------


def item_at(number, slots=13):
    return 40 + 4 * slots + 20 * number


def damaged(folder, position, data, hashes=EXAMPLE):
    path = write(folder, twin_of(hashes))
    with path.open("r+b") as writer:
        writer.seek(position)
        writer.write(data)
    return open_file(path, Shape(13, 8))


CANNOT_BE = [
    # what, where, bytes there, asked hash, byte named
    ("a slot beyond the last item", 40 + 4 * 3, i32(8), 29, 40 + 4 * 3),
    ("a negative slot", 40 + 4 * 3, i32(-1), 29, 40 + 4 * 3),
    ("an item that points to itself", item_at(5) + 16, i32(5), 29, item_at(5) + 16),
    ("an item that points to a newer one", item_at(3) + 16, i32(5), 29, item_at(3) + 16),
    ("an item that points beyond the file", item_at(3) + 16, i32(2**31 - 1), 29, item_at(3) + 16),
    ("a negative link", item_at(3) + 16, i32(-7), 29, item_at(3) + 16),
    ("a link into another slot's chain", item_at(6) + 16, i32(4), 29, item_at(4)),
    ("a hash of another slot", item_at(2), i32(30), 29, item_at(2)),
    ("a negative hash", item_at(2), i32(-29), 29, item_at(2)),
]


@pytest.mark.parametrize(
    ("what", "position", "data", "asked", "named"), CANNOT_BE, ids=[case[0] for case in CANNOT_BE]
)
def test_a_link_that_cannot_be_is_an_error_with_file_and_byte(tmp_path, what, position, data, asked, named):
    file = damaged(tmp_path, position, data)
    with pytest.raises(CorruptError) as error:
        list(file.walk(asked))
    assert (error.value.path, error.value.position) == (str(tmp_path / NAME), named)


def test_what_comes_before_a_bad_link_is_given(tmp_path):
    file = damaged(tmp_path, item_at(3) + 16, i32(-7))
    walk_on = file.walk(29)
    assert [next(walk_on)[0] for _ in range(3)] == [6, 5, 3]
    with pytest.raises(CorruptError):
        next(walk_on)


def test_an_item_of_zeros_in_a_chain_is_damage_in_slot_0_too(tmp_path):
    """A page that was lost reads as hash 0, offset 0, end of chain: in slot 0 nothing else tells."""
    hashes = [0, 26, 13, 0]
    file = damaged(tmp_path, item_at(3), bytes(20), hashes)
    with pytest.raises(CorruptError) as error:
        list(file.walk(26))
    assert error.value.position == item_at(3)


def test_items_above_the_count_are_followed_to_the_older_part_of_the_chain(tmp_path):
    """A writer sets the slot before it raises the count, and may be stopped in between."""
    path = write(tmp_path, twin_of(EXAMPLE))
    data = bytearray(path.read_bytes())
    data[24:32], data[36:40] = i64(800), i32(6)  # as if item 6 were being put
    path.write_bytes(data)
    file = IndexFile(path)
    assert file.resolve_shape(()) == Shape(13, 8)
    assert [number for number, _, _ in file.walk(16)] == [6, 5, 3, 2, 1]


@given(
    hashes=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    slots=st.integers(1, 20),
    junk=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=8)), max_size=3),
)
def test_a_walk_over_any_bytes_ends_in_an_answer_or_an_error(tmp_path_factory, hashes, slots, junk):
    twin = twin_of(hashes, slots=slots, items=len(hashes) + 3, first_offset=200)
    data = bytearray(twin.to_bytes())
    for position, some in junk:
        position %= len(data)
        data[position : position + len(some)] = some[: len(data) - position]
    path = tmp_path_factory.mktemp("junk") / NAME
    path.write_bytes(data)
    file = open_file(path, Shape(slots, len(hashes) + 3))
    for key_hash in range(60):
        try:
            found = list(file.walk(key_hash))
        except CorruptError as error:
            assert error.path == str(path)
            assert error.position in range(40, len(data))
            assert junk
            continue
        numbers = [number for number, _, _ in found]
        assert numbers == sorted(numbers, reverse=True)
        if not junk:
            assert offsets(file, key_hash) == walk(twin, key_hash)


def test_a_header_is_read_as_one_value(tmp_path):
    path = write(tmp_path, twin_of(EXAMPLE))
    file = IndexFile(path)
    assert struct.unpack(">4q2i", file.header_bytes()) == (T, T + 2500, 0, 1000, 2, 7)
    assert replace(file.header(), item_count=0).next_item == 1
