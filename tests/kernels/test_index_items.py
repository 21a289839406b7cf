"""Items of an index file: linked, unlinked and linked again, held against the twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import IndexFileTwin, Item, i32, i64
from tests.reference import link_items as link_items_twin
from whence.formats.rocketmq.index_file import NO_ITEM, IndexHeader
from whence.kernels.chains import file_view, link_items
from whence.kernels.index_items import (
    ALL_WALKED,
    link_again,
    publish_items,
    unlink_items,
    walk_heads_back,
)

HASHES = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 40), max_size=40)
SLOTS = st.integers(1, 20)


def file_of(slot_capacity: int, key_hashes: list[int]) -> IndexFileTwin:
    """A file whose item ``i`` has the i-th hash, counted from 1, and offset ``100 * i``."""
    slots = [0] * slot_capacity
    previous_items = link_items_twin(key_hashes, 1, slots)
    twin = IndexFileTwin(slot_capacity, len(key_hashes) + 1, next_item=len(key_hashes) + 1)
    twin.slots = {slot: number for slot, number in enumerate(slots) if number}
    for number, (key_hash, previous_item) in enumerate(zip(key_hashes, previous_items, strict=True), 1):
        twin.items[number] = Item(key_hash, 100 * number, 0, previous_item)
    return twin


def heads(twin: IndexFileTwin) -> list[int]:
    return [twin.slots.get(slot, 0) for slot in range(twin.slot_capacity)]


def view(twin: IndexFileTwin) -> np.ndarray:
    return file_view(twin.to_bytes(), twin.slot_capacity, twin.item_capacity)


@given(HASHES, HASHES, SLOTS)
def test_unlinked_items_leave_no_trace(kept, added, slot_capacity):
    slots = np.zeros(slot_capacity, np.int32)
    link_items(np.array(kept, np.int32), 1, slots, np.empty(len(kept), np.int32))
    before = slots.copy()
    previous_items = np.empty(len(added), np.int32)
    link_items(np.array(added, np.int32), len(kept) + 1, slots, previous_items)
    unlink_items(np.array(added, np.int32), previous_items, slots)
    assert slots.tolist() == before.tolist()


@given(HASHES, SLOTS, st.data())
def test_heads_walked_back_are_those_of_the_items_that_count(key_hashes, slot_capacity, data):
    count = data.draw(st.integers(0, len(key_hashes)))
    twin = file_of(slot_capacity, key_hashes)
    slots = np.array(heads(twin), np.int32)
    assert walk_heads_back(view(twin), twin.item_capacity, count + 1, slots) == ALL_WALKED
    assert slots.tolist() == heads(file_of(slot_capacity, key_hashes[:count]))


@given(HASHES, SLOTS, st.data())
def test_items_alone_are_enough_to_make_their_slots(key_hashes, slot_capacity, data):
    count = data.draw(st.integers(0, len(key_hashes)))
    slots = np.zeros(slot_capacity, np.int32)
    assert link_again(view(file_of(slot_capacity, key_hashes)), count + 1, slots) == NO_ITEM
    assert slots.tolist() == heads(file_of(slot_capacity, key_hashes[:count]))


CHAIN = [3, 8, 13, 1, 18]  # with five slots: items 1, 2, 3 and 5 in slot 3, item 4 in slot 1

DAMAGED = [  # item, what it is instead, the slot that cannot be walked back to item 1, the item that cannot be linked
    (5, Item(17, 500, 0, 3), 3, 5),  # of another slot
    (5, Item(18, 500, 0, 5), 3, 5),  # leads to itself
    (5, Item(18, 500, 0, 6), 3, 5),  # leads to a newer one
    (5, Item(18, 500, 0, -1), 3, 5),
    (5, Item(-18, 500, 0, 3), 3, 5),
    (3, Item(0, 0, 0, 0), 3, 3),  # lost
    (4, Item(0, 0, 0, 0), 1, 4),
]


@pytest.mark.parametrize(("number", "item", "slot", "unlinked"), DAMAGED)
def test_a_damaged_chain_is_neither_walked_back_nor_linked_again(number, item, slot, unlinked):
    twin = file_of(5, CHAIN)
    twin.items[number] = item
    assert walk_heads_back(view(twin), twin.item_capacity, 2, np.array(heads(twin), np.int32)) == slot
    assert link_again(view(twin), twin.next_item, np.zeros(5, np.int32)) == unlinked


@pytest.mark.parametrize("head", [-1, 6, 2**31 - 1])
def test_a_slot_that_leads_out_of_the_file_is_told(head):
    twin = file_of(5, CHAIN)
    twin.slots[2] = head
    assert walk_heads_back(view(twin), twin.item_capacity, 2, np.array(heads(twin), np.int32)) == 2


@given(HASHES, SLOTS, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4), st.integers(0, 2**31 - 1))
def test_published_items_are_in_slots_and_header_and_nowhere_else(key_hashes, slot_capacity, numbers, slot_count):
    slots = np.zeros(slot_capacity, np.int32)
    link_items(np.array(key_hashes, np.int32), 7, slots, np.empty(len(key_hashes), np.int32))
    file = np.full(40 + 4 * slot_capacity + 20, 0xEE, np.uint8)
    begin_ms, end_ms, begin_offset, end_offset = numbers
    header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, slot_count, 9)
    publish_items(file, np.array(key_hashes, np.int32), slots, header)
    expected = b"".join(map(i64, numbers)) + i32(slot_count) + i32(9)
    expected += b"".join(i32(slot) if slot else b"\xee" * 4 for slot in slots.tolist()) + b"\xee" * 20
    assert file.tobytes() == expected
