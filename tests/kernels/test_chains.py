"""Chains: linking and walking, held against RocketMQ's own files, the twins, and the store's plain walk."""

import contextlib
import mmap
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import ALL, INDEX_FILES, GoldenIndexFile, GoldenStore
from tests.reference import IndexFileTwin, Item, i32, signed, text_hash
from tests.reference import link_items as link_items_twin
from tests.reference import walk as walk_twin
from whence.errors import CorruptError, TruncatedError, UsageError
from whence.kernels.chain_walker import chain_walker
from whence.kernels.chains import NO_DAMAGE, chain_damage, file_view, hash_texts, link_items, walk_chains
from whence.store.index_file import IndexFile, Shape

KEY_HASHES = st.integers(0, 2**31 - 1) | st.integers(0, 40)
Walked = tuple[list[tuple[int, int]], int]  # (item number, physical offset) of what was found; position of damage


def walk(
    data: bytes, slot_capacity: int, item_capacity: int, key_hashes: Sequence[int], found_capacity: int = 65_536
) -> list[Walked]:
    """What the kernel finds, key by key."""
    found: list[list[tuple[int, int]]] = [[] for _ in key_hashes]
    bad_links = np.empty(len(key_hashes), np.int64)
    for rows in walk_chains(
        data,
        slot_capacity,
        item_capacity,
        np.array(key_hashes, np.int32),
        bad_links,
        found_capacity=found_capacity,
    ):
        assert 0 < len(rows) <= found_capacity
        for key_number, item_number, physical_offset in rows.tolist():
            found[key_number].append((item_number, physical_offset))
    return list(zip(found, bad_links.tolist(), strict=True))


def walk_by_the_rules(data: bytes, slot_capacity: int, item_capacity: int, key_hash: int) -> Walked:
    """The rules of chains.py, one sentence a line."""
    found: list[tuple[int, int]] = []
    items_at = 40 + 4 * slot_capacity
    slot = key_hash % slot_capacity
    at = 40 + 4 * slot
    older_than = item_capacity
    while True:
        number = signed(data[at : at + 4])
        if number < 0 or number >= older_than:
            return found, at
        if number == 0:
            return found, NO_DAMAGE
        at = items_at + 20 * number
        item_hash, physical_offset = signed(data[at : at + 4]), signed(data[at + 4 : at + 12])
        if item_hash < 0 or item_hash % slot_capacity != slot:
            return found, at
        if data[at : at + 20] == bytes(20):
            return found, at
        if item_hash == key_hash:
            found.append((number, physical_offset))
        older_than = number
        at += 16


def file_of(slot_capacity: int, item_capacity: int, key_hashes: Sequence[int]) -> IndexFileTwin:
    """A file whose item ``i`` has the i-th hash, counted from 1, and offset ``100 * i``."""
    slots = [0] * slot_capacity
    previous_items = link_items_twin(key_hashes, 1, slots)
    file = IndexFileTwin(slot_capacity, item_capacity, next_item=len(key_hashes) + 1)
    file.slots = {slot: number for slot, number in enumerate(slots) if number}
    for number, (key_hash, previous_item) in enumerate(zip(key_hashes, previous_items, strict=True), 1):
        file.items[number] = Item(key_hash, 100 * number, 0, previous_item)
    return file


# Linking


@given(st.lists(st.lists(KEY_HASHES, max_size=50), max_size=4), st.integers(1, 20))
def test_linking_in_pieces_equals_the_twin(pieces, slot_capacity):
    slots_twin = [0] * slot_capacity
    slots = np.zeros(slot_capacity, np.int32)
    first_item = 1
    used = 0
    for piece in pieces:
        previous_items = np.full(len(piece), -1, np.int32)
        used += link_items(np.array(piece, np.int32), first_item, slots, previous_items)
        assert previous_items.tolist() == link_items_twin(piece, first_item, slots_twin)
        first_item += len(piece)
    assert slots.tolist() == slots_twin
    assert used == sum(number != 0 for number in slots_twin)


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_linking_gives_the_slots_and_links_that_rocketmq_wrote(case: GoldenIndexFile):
    data = case.path.read_bytes()
    slot_capacity, item_capacity = case.settings["slots"], case.settings["items"]
    texts = [text for text, _, _, accepted in case.puts if accepted]
    slots = np.zeros(slot_capacity, np.int32)
    previous_items = np.empty(len(texts), np.int32)
    used = link_items(np.array([text_hash(text) for text in texts], np.int32), 1, slots, previous_items)

    file = IndexFileTwin.from_bytes(data, slot_capacity, item_capacity)
    assert slots.astype(">i4").tobytes() == data[40 : 40 + 4 * slot_capacity]
    assert previous_items.tolist() == [file.items[number].previous_item for number in range(1, file.next_item)]
    assert used == case.settings["hash_slot_count"]


# Walking


@given(st.lists(st.text(max_size=70)))
def test_hashes_of_many_texts_equal_the_twin(texts):
    encoded = [text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    key_hashes = hash_texts(np.frombuffer(b"".join(encoded) + b" ", np.uint8), ends)
    assert key_hashes.tolist() == [text_hash(text.decode()) for text in encoded]


def test_walk_of_the_worked_example_is_newest_first():
    case = next(case for case in INDEX_FILES if case.name == "example-s13-p6")
    walked = walk(case.path.read_bytes(), 13, 8, [16, 29, 3, 8])
    assert [found for found, _ in walked] == [
        [(6, 1000), (5, 800), (1, 0)],
        [(3, 400), (2, 200)],
        [],
        [(4, 600)],
    ]


@pytest.mark.parametrize("case", INDEX_FILES, ids=lambda case: case.name)
def test_walk_of_rocketmqs_files_finds_every_put_of_the_hash(case: GoldenIndexFile):
    data = case.path.read_bytes()
    shape = case.settings["slots"], case.settings["items"]
    offsets: dict[int, list[int]] = {}
    for text, physical_offset, _, accepted in case.puts:
        if accepted:
            offsets.setdefault(text_hash(text), []).insert(0, physical_offset)

    texts = sorted({row[0] for row in case.puts} | {row[0] for row in case.queries})
    walk_one = chain_walker(data, *shape)
    for text, (found, bad_link) in zip(texts, walk(data, *shape, [text_hash(text) for text in texts]), strict=True):
        expected = offsets.get(text_hash(text), [])
        assert [physical_offset for _, physical_offset in found] == expected
        assert bad_link == NO_DAMAGE
        assert walk_one(text.encode("utf-8", "surrogatepass")) == expected


@pytest.mark.parametrize("name", ALL)
def test_kernels_and_store_walk_the_golden_stores_alike(golden: Callable[[str], GoldenStore], name):
    store = golden(name)
    shape = Shape(store.slot_capacity, store.item_capacity)
    texts = [f"{row['topic']}#{row['unique_id']}" for row in store.messages[:200:7] if row.get("unique_id")]
    texts += ["TopicTest#hot-key", "TopicTest#Aa", "TopicTest#BB", "TopicTest#no-such-key", "TopicTest#T#TagA"]
    key_hashes = [text_hash(text) for text in texts]
    for path in sorted((store.store / "index").iterdir()):
        file = IndexFile(path)
        file.shape = shape
        data = path.read_bytes()
        walked = walk(data, shape.slot_capacity, shape.item_capacity, key_hashes)
        walk_one = chain_walker(data, shape.slot_capacity, shape.item_capacity)
        for text, key_hash, (found, bad_link) in zip(texts, key_hashes, walked, strict=True):
            chain = list(file.walk(key_hash))
            expected = [(number, offset) for number, item_hash, offset in chain if item_hash == key_hash]
            assert (found, bad_link) == (expected, NO_DAMAGE)
            assert walk_one(text.encode()) == [offset for _, offset in expected]


@given(st.integers(1, 9), st.lists(KEY_HASHES, max_size=80), st.lists(KEY_HASHES, max_size=80), st.integers(1, 70))
def test_walk_of_many_keys_equals_the_twin(slot_capacity, put, asked, found_capacity):
    """Hits and misses, repeated keys, fewer and more keys than lanes, and output that fills up at any place."""
    file = file_of(slot_capacity, len(put) + 1, put)
    asked += put
    walked = walk(file.to_bytes(), slot_capacity, len(put) + 1, asked, found_capacity)
    assert [[offset for _, offset in found] for found, _ in walked] == [walk_twin(file, h) for h in asked]
    assert all(bad_link == NO_DAMAGE for _, bad_link in walked)


def test_items_behind_the_count_are_walked_too():
    """A writer sets the slot before the count; the older items behind that slot are the ones that matter."""
    file = file_of(1, 6, [3, 4, 3, 3])
    file.next_item = 3
    assert walk(file.to_bytes(), 1, 6, [3]) == [([(4, 400), (3, 300), (1, 100)], NO_DAMAGE)]


@pytest.mark.parametrize(
    "text", ["", "#", "#a", "T#Aa", "TopicTest#订单-2024-0001", "TopicTest#🚀launch", "é" * 40, "x" * 1000]
)
def test_walker_hashes_texts_of_any_size_and_script(text):
    key_hash = text_hash(text)
    file = file_of(7, 4, [key_hash, key_hash + 7, key_hash])
    assert chain_walker(file.to_bytes(), 7, 4)(text.encode()) == [300, 100]


def test_walker_takes_nothing_but_bytes():
    walk_one = chain_walker(file_of(1, 2, [5]).to_bytes(), 1, 2)
    for wrong in ("text", None, 5, bytearray(b"text")):
        with pytest.raises(TypeError):
            walk_one(wrong)


def test_walker_gives_all_offsets_of_a_long_chain():
    file = file_of(1, 5001, [text_hash("T#hot")] * 5000)
    assert chain_walker(file.to_bytes(), 1, 5001)(b"T#hot") == list(range(500_000, 0, -100))


def test_walker_keeps_its_file_open():
    data = file_of(1, 2, [text_hash("T#a")]).to_bytes()
    anonymous = mmap.mmap(-1, len(data))
    anonymous[:] = data
    walk_one = chain_walker(anonymous, 1, 2)
    with pytest.raises(BufferError):
        anonymous.close()
    assert walk_one(b"T#a") == [100]


def test_walker_leaves_nothing_in_memory():
    """It counts references by itself: for lists, for numbers, and on its way out with an exception."""
    file = file_of(1, 4, [text_hash("T#a"), text_hash("T#b"), text_hash("T#a")])
    walk_one = chain_walker(file.to_bytes(), 1, 4)
    file.slots[0] = -1
    walk_damaged = chain_walker(file.to_bytes(), 1, 4)

    def blocks_left(count: int) -> int:
        before = sys.getallocatedblocks()
        for _ in range(count):
            walk_one(b"T#a")
            with contextlib.suppress(CorruptError):
                walk_damaged(b"T#a")
            with contextlib.suppress(TypeError):
                walk_one("T#a")
        return sys.getallocatedblocks() - before

    blocks_left(100)
    assert blocks_left(1000) < 100


# Damage: one slot, so that all five items are one chain: 5, 4, 3, 2, 1.

SLOT_AT = 40
ITEMS_AT = 44


def link_at(number: int) -> int:
    return ITEMS_AT + 20 * number + 16


DAMAGE = [  # what is written where; items still found; the position told; the words
    (SLOT_AT, i32(-1), [], SLOT_AT, "slot 0 leads to item -1, but items are 1 to 5"),
    (SLOT_AT, i32(6), [], SLOT_AT, "slot 0 leads to item 6, but items are 1 to 5"),
    (SLOT_AT, i32(2**31 - 1), [], SLOT_AT, "slot 0 leads to item 2147483647, but items are 1 to 5"),
    (link_at(3), i32(3), [5, 4, 3], link_at(3), "item 3 points to item 3, which is not older"),
    (link_at(3), i32(5), [5, 4, 3], link_at(3), "item 3 points to item 5, which is not older"),
    (link_at(3), i32(-2), [5, 4, 3], link_at(3), "item 3 points to item -2, which is not older"),
    (link_at(3), i32(-(2**31)), [5, 4, 3], link_at(3), "item 3 points to item -2147483648, which is not older"),
    (link_at(3), i32(2**31 - 1), [5, 4, 3], link_at(3), "item 3 points to item 2147483647, which is not older"),
    (ITEMS_AT + 60, i32(-7), [5, 4], ITEMS_AT + 60, "item 3 has hash -7, which is not of the slot that leads to it"),
    (ITEMS_AT + 60, bytes(20), [5, 4], ITEMS_AT + 60, "item 3 is all zero, but a chain leads to it"),
]


@pytest.mark.parametrize(("at", "written", "numbers", "position", "what"), DAMAGE)
def test_damage_ends_the_walk_and_is_told_with_its_position(at, written, numbers, position, what):
    text = b"T#a"
    key_hash = text_hash("T#a")
    whole = file_of(1, 6, [key_hash] * 5).to_bytes()
    data = whole[:at] + written + whole[at + len(written) :]

    expected = ([(number, 100 * number) for number in numbers], position)
    assert walk(data, 1, 6, [key_hash] * 40) == [expected] * 40
    assert str(chain_damage(file_view(data, 1, 6), 1, 6, position)) == f"at byte {position}: {what}"
    with pytest.raises(CorruptError) as error:
        chain_walker(data, 1, 6)(text)
    assert (error.value.what, error.value.position) == (what, position)


def test_item_of_another_slot_is_damage():
    """Seen where a slot table and items are of different moments, or the slot count is not the file's."""
    file = file_of(10, 4, [16, 29, 8])
    file.slots[6] = 2
    assert walk(file.to_bytes(), 10, 4, [16, 29]) == [([], 40 + 40 + 2 * 20), ([(2, 200)], NO_DAMAGE)]


@st.composite
def mutated_files(draw: st.DrawFn) -> tuple[bytes, int, list[int]]:
    """A file of a few slots with some of its words overwritten: by small numbers, large ones, or zero."""
    slot_capacity = draw(st.integers(1, 4))
    put = draw(st.lists(st.integers(0, 12), min_size=1, max_size=20))
    data = bytearray(file_of(slot_capacity, len(put) + 2, put).to_bytes())
    words = st.integers(0, (len(data) - 40) // 4 - 1)
    values = st.integers(-2, len(put) + 3) | st.integers(-(2**31), 2**31 - 1) | st.just(0)
    for word, value in draw(st.lists(st.tuples(words, values), max_size=12)):
        data[40 + 4 * word : 44 + 4 * word] = i32(value)
    for number in draw(st.lists(st.integers(1, len(put)), max_size=2)):
        at = 40 + 4 * slot_capacity + 20 * number
        data[at : at + 20] = bytes(20)
    return bytes(data), slot_capacity, draw(st.lists(st.integers(0, 12), min_size=1, max_size=60))


@given(mutated_files(), st.integers(1, 70))
def test_any_links_are_walked_by_the_rules(file, found_capacity):
    data, slot_capacity, asked = file
    item_capacity = (len(data) - 40 - 4 * slot_capacity) // 20
    assert walk(data, slot_capacity, item_capacity, asked, found_capacity) == [
        walk_by_the_rules(data, slot_capacity, item_capacity, key_hash) for key_hash in asked
    ]


@given(mutated_files())
def test_walker_and_kernel_agree_on_any_links(file):
    data, slot_capacity, _ = file
    item_capacity = (len(data) - 40 - 4 * slot_capacity) // 20
    walk_one = chain_walker(data, slot_capacity, item_capacity)
    texts = [chr(number) for number in range(1, 13)]  # the hash of one character is its number
    for text, (found, bad_link) in zip(texts, walk(data, slot_capacity, item_capacity, range(1, 13)), strict=True):
        if bad_link == NO_DAMAGE:
            assert walk_one(text.encode()) == [offset for _, offset in found]
        else:
            with pytest.raises(CorruptError) as error:
                walk_one(text.encode())
            assert error.value.position == bad_link


@given(mutated_files())
def test_kernel_and_store_agree_on_any_links(tmp_path_factory, file):
    data, slot_capacity, asked = file
    item_capacity = (len(data) - 40 - 4 * slot_capacity) // 20
    path = tmp_path_factory.getbasetemp() / "20231114221320000"
    path.write_bytes(data)
    index_file = IndexFile(path)
    index_file.shape = Shape(slot_capacity, item_capacity)
    for key_hash, expected in zip(asked, walk(data, slot_capacity, item_capacity, asked), strict=True):
        found = []
        position = NO_DAMAGE
        try:
            for number, item_hash, physical_offset in index_file.walk(key_hash):
                if item_hash == key_hash:
                    found.append((number, physical_offset))
        except CorruptError as error:
            assert error.position is not None
            position = error.position
        assert (found, position) == expected


def test_cut_file_is_refused_at_every_byte():
    data = file_of(3, 4, [1, 2, 3]).to_bytes()
    bad_links = np.empty(1, np.int64)
    for size in range(len(data)):
        with pytest.raises(TruncatedError) as error:
            next(walk_chains(data[:size], 3, 4, np.zeros(1, np.int32), bad_links))
        assert error.value.position == size
        with pytest.raises(TruncatedError):
            chain_walker(data[:size], 3, 4)


@pytest.mark.parametrize("ends", [[-1], [11], [4, 3], [5, 20, 10]])
def test_texts_outside_their_bytes_are_refused(ends):
    with pytest.raises(UsageError):
        hash_texts(np.zeros(10, np.uint8), np.array(ends))


@pytest.mark.parametrize(("bad_link_count", "found_capacity"), [(1, 10), (3, 10), (2, 0)])
def test_walk_without_room_for_its_output_is_refused(bad_link_count, found_capacity):
    data = file_of(3, 4, [1, 2, 3]).to_bytes()
    walk = walk_chains(
        data, 3, 4, np.zeros(2, np.int32), np.empty(bad_link_count, np.int64), found_capacity=found_capacity
    )
    with pytest.raises(UsageError):
        next(walk)


@pytest.mark.parametrize(("slot_capacity", "item_capacity"), [(0, 4), (-1, 4), (3, 0), (2**31, 4), (3, 2**31)])
def test_shapes_that_no_file_has_are_refused(slot_capacity, item_capacity):
    with pytest.raises(UsageError):
        chain_walker(bytes(1000), slot_capacity, item_capacity)
