"""IndexCheck: files of RocketMQ are healthy, and no byte can change without being told."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import ALL, CLEAN, CRASHED, DIRECT, GoldenStore
from tests.reference import (
    IndexFileTwin,
    Item,
    Record,
    index_faults,
    index_texts,
    read_index,
    text_hash,
)
from whence.formats.rocketmq.index_file import IndexHeader, decode_header
from whence.kernels.checks import OPTIONAL
from whence.store.findings import LISTED_MAX, FindingKind
from whence.store.index_check import IndexCheck, IndexFindings
from whence.store.index_file import Shape

T = 1_700_000_000_000
END = 2**40

Row = tuple[int, int, int]  # key hash, physical offset, store time


def batches(rows: Sequence[Row], size: int = 7) -> list[Any]:
    return [
        (
            np.array([row[0] for row in rows[at : at + size]], np.int32),
            np.array([row[1] for row in rows[at : at + size]], np.int64),
            np.array([row[2] for row in rows[at : at + size]], np.int64),
        )
        for at in range(0, len(rows), size)
    ]


def check_bytes(data: bytes, rows: Sequence[Row], shape: Shape, *, size: int = 7, **told: Any) -> IndexFindings:
    """Check a file with these bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "20231114221320000"
        path.write_bytes(data)
        told = {"begin_offset": 0, "end_offset": END} | told
        return IndexCheck(path, shape, **told).run(batches(rows, size))


def built(rows: Iterable[Row], shape: Shape, before: IndexFileTwin | None = None) -> IndexFileTwin:
    """The file that a broker makes of these items."""
    file = IndexFileTwin(shape.slot_capacity, shape.item_capacity)
    if before is not None:
        file.begin_timestamp_ms = file.end_timestamp_ms = before.end_timestamp_ms
        file.begin_physical_offset = file.end_physical_offset = before.end_physical_offset
    for key_hash, offset, time in rows:
        assert file.put(chr(key_hash), offset, time)
    return file


def kinds(found: IndexFindings) -> dict[str, int]:
    return {str(kind): count for kind, count in found.counts.items()}


# -- what RocketMQ wrote


def rows_of(records: Iterable[Record], dialect: str) -> list[Row]:
    return [
        (text_hash(text), record.physical_offset, record.store_timestamp_ms)
        for record in records
        for text in index_texts(record, dialect)
    ]


def check_store(golden: GoldenStore, rows: Sequence[Row]) -> list[IndexFindings]:
    """Check every index file of a store; each is held against the log behind the one before it."""
    records = golden.records
    end_offset = records[-1].physical_offset + records[-1].size
    shape = Shape(golden.slot_capacity, golden.item_capacity)
    twins = read_index(golden.store, golden.slot_capacity, golden.item_capacity)
    paths = sorted((golden.store / "index").iterdir())
    found = []
    before: IndexFileTwin | None = None
    done = 0
    for number, (path, twin) in enumerate(zip(paths, twins, strict=True)):
        first = min(done, next(at for at, row in enumerate(rows) if row[1] == twin.begin_physical_offset))
        behind = len(rows)
        if number + 1 < len(paths):
            of_last = sum(item.physical_offset == twin.end_physical_offset for item in twin.items.values())
            behind = next(at for at, row in enumerate(rows) if row[1] == twin.end_physical_offset) + of_last
        check = IndexCheck(
            path,
            shape,
            begin_offset=0,
            end_offset=end_offset,
            inherited=None if before is None else decode_header(before.to_bytes()),
            begun=done - first,
        )
        found.append(check.run(batches(rows[first:behind], 100)))
        before, done = twin, behind
    return found


@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_what_a_broker_dispatched_once_is_healthy(golden, name):
    found = check_store(golden(name), rows_of(golden(name).records, golden(name).dialect))
    assert [finding.listed for finding in found] == [[]] * len(found)
    assert all(finding.is_healthy for finding in found)
    assert not any(finding.repeated_count or finding.counts_every_put for finding in found)


@pytest.mark.parametrize(
    ("name", "repeated", "missing"),
    [
        ("v4-recovered", 2, 0),
        ("v53-recovered", 2, 0),
        ("v5-recovered-a", 3, 0),
        ("v5-recovered-b", 0, 1227),
        ("v5-damaged-body-flip", 0, 1227),
        ("v5-damaged-half-record", 3, 0),
        ("v5-damaged-lost-page", 3, 0),
    ],
)
def test_a_broker_repeats_a_message_when_it_recovers_and_leaves_a_hole(golden, name, repeated, missing):
    """A newest file that was deleted is made again from some log file on: what lies before is in no index."""
    *older, newest = check_store(golden(name), rows_of(golden(name).records, golden(name).dialect))
    assert all(finding.is_healthy and not finding.repeated_count for finding in older)
    assert newest.repeated_count == repeated
    assert kinds(newest) == ({"missing": missing} if missing else {})
    assert len(newest.listed) == min(missing, LISTED_MAX)
    if missing:
        assert newest.listed[0].detail.startswith("the message at offset 871443 has an item of hash ")


@pytest.mark.parametrize("name", ALL)
def test_tags_that_need_not_be_there_tell_the_dialect(golden, name):
    rows = []
    tag_count = 0
    for record in golden(name).records:
        texts = index_texts(record, "5.5")
        old = index_texts(record, "5.3")
        tag_count += len(texts) - len(old)
        for number, text in enumerate(texts):
            mark = OPTIONAL if number >= len(old) else 0
            rows.append((text_hash(text) | mark, record.physical_offset, record.store_timestamp_ms))
    found = check_store(golden(name), rows)
    has_hole = name in ("v5-recovered-b", "v5-damaged-body-flip")
    assert all(finding.is_healthy for finding in found) is not has_hole
    seen, left_out = sum(f.optional_count for f in found), sum(f.left_out_count for f in found)
    if golden(name).dialect == "5.5":
        assert seen > 0
        assert bool(left_out) is has_hole
    else:
        assert (seen, left_out) == (0, tag_count)


# -- every byte

SHAPE = Shape(5, 14)
ROWS: list[Row] = [
    (16, 100, T),
    (29, 100, T),
    (29, 300, T + 1000),
    (8, 500, T + 2500),
    (16, 700, T + 2999),
    (7, 700, T + 2999),
    (16, 900, T + 9000),
]
BEFORE = IndexHeader(T - 90_000, T - 5000, 0, 50, 1, 14)


def whole_file() -> bytes:
    before = IndexFileTwin(*_numbers(SHAPE), end_timestamp_ms=T - 5000, end_physical_offset=50)
    return built(ROWS, SHAPE, before).to_bytes()


def _numbers(shape: Shape) -> tuple[int, int]:
    return shape.slot_capacity, shape.item_capacity


def flipped(data: bytes, position: int, bits: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


def test_no_byte_of_a_file_of_our_own_can_change_unnoticed():
    data = whole_file()
    told = {"inherited": BEFORE, "is_exact": True}
    assert check_bytes(data, ROWS, SHAPE, **told).is_healthy
    for position in range(len(data)):
        for bits in (0x01, 0x40, 0x80, 0xFF):
            found = check_bytes(flipped(data, position, bits), ROWS, SHAPE, **told)
            assert not found.is_healthy, (position, bits)
            assert all(0 <= finding.position < len(data) and finding.detail for finding in found.listed)


def test_of_a_brokers_file_only_the_slot_count_tells_nothing():
    """Which says nothing of its slots, since a broker may have counted puts. What lies before is not known here."""
    data = whole_file()
    unnoticed = set()
    told = {"is_inherited": False}
    for position in range(len(data)):
        for bits in (0x01, 0x02, 0x40, 0x80, 0xFF):
            if check_bytes(flipped(data, position, bits), ROWS, SHAPE, **told).is_healthy:
                unnoticed.add(position)
    first_items_time = 40 + 4 * 5 + 20 + 12
    assert unnoticed == {35, *range(first_items_time, first_items_time + 4)}


def test_a_writer_that_was_killed_leaves_items_that_do_not_count_yet():
    file = built(ROWS, SHAPE)
    data = bytearray(file.to_bytes())
    header = replace(decode_header(bytes(data)), item_count=6, end_timestamp_ms=T + 2999, end_physical_offset=700)
    data[8:16] = header.end_timestamp_ms.to_bytes(8, "big")
    data[24:32] = header.end_physical_offset.to_bytes(8, "big")
    data[36:40] = header.item_count.to_bytes(4, "big")
    live = check_bytes(bytes(data), ROWS[:5], SHAPE, is_live=True)
    assert live.is_healthy
    assert live.item_count == 5
    assert kinds(check_bytes(bytes(data), ROWS[:5], SHAPE)) == {"wrong_head": 2, "not_zero": 1}
    assert kinds(check_bytes(bytes(data), ROWS[:6], SHAPE, is_live=True)) == {"missing": 1}
    data[40 + 4 * (7 % 5) : 44 + 4 * (7 % 5)] = (13).to_bytes(4, "big")  # an item that was never written
    assert kinds(check_bytes(bytes(data), ROWS[:5], SHAPE, is_live=True)) == {"wrong_head": 1}


def test_items_may_lead_behind_what_was_scanned_while_they_are_put():
    data = built(ROWS, SHAPE).to_bytes()
    found = check_bytes(data, ROWS[:4], SHAPE, end_offset=600, is_live=True)
    assert (found.is_healthy, found.ahead_count) == (True, 3)
    assert kinds(check_bytes(data, ROWS[:4], SHAPE, end_offset=600)) == {"dangling": 3}


def test_a_stretch_may_be_in_two_files():
    """As after a night in which the clock was set back: the file that came last is not the last by name."""
    first, second = built(ROWS[:5], SHAPE), built(ROWS[2:], SHAPE)
    assert check_bytes(first.to_bytes(), ROWS[:5], SHAPE).is_healthy
    assert check_bytes(second.to_bytes(), ROWS[2:], SHAPE, begun=3).is_healthy
    late = built(ROWS[4:], SHAPE)
    assert check_bytes(late.to_bytes(), ROWS[2:], SHAPE, begun=3).is_healthy
    assert kinds(check_bytes(late.to_bytes(), ROWS[2:], SHAPE, begun=1)) == {"missing": 1}


@pytest.mark.parametrize(
    ("slot_count", "is_exact", "is_healthy"),
    [(4, False, True), (7, False, True), (5, False, True), (3, False, False), (8, False, False), (7, True, False)],
)
def test_old_brokers_count_every_put(slot_count, is_exact, is_healthy):
    data = bytearray(built(ROWS, SHAPE).to_bytes())
    assert data[35] == 4
    data[35] = slot_count
    found = check_bytes(bytes(data), ROWS, SHAPE, is_exact=is_exact)
    assert found.is_healthy is is_healthy
    assert found.counts_every_put is (slot_count != 4)


@pytest.mark.parametrize(
    ("header", "is_exact", "is_healthy"),
    [
        (IndexHeader(0, 0, 0, 0, 0, 0), False, True),
        (IndexHeader(0, 0, 0, 0, 0, 0), True, False),
        (IndexHeader(T - 5000, T - 5000, 50, 50, 0, 1), False, True),
        (IndexHeader(T - 5000, T - 5000, 50, 50, 0, 1), True, True),
        (IndexHeader(T - 5000, T - 5000, 50, 51, 0, 1), False, False),
        (IndexHeader(T - 5000, T - 5000, 50, 50, 1, 1), False, False),
    ],
)
def test_a_file_without_items_inherits_its_header(header, is_exact, is_healthy):
    twin = IndexFileTwin(*_numbers(SHAPE), *(header.begin_timestamp_ms, header.end_timestamp_ms))
    twin.begin_physical_offset, twin.end_physical_offset = header.begin_physical_offset, header.end_physical_offset
    twin.slot_count, twin.next_item = header.slot_count, header.item_count
    found = check_bytes(twin.to_bytes(), [], SHAPE, inherited=BEFORE, is_exact=is_exact)
    assert found.is_healthy is is_healthy


def test_items_of_expired_messages_are_only_linked():
    data = built(ROWS, SHAPE).to_bytes()
    rest = [row for row in ROWS if row[1] >= 500]
    found = check_bytes(data, rest, SHAPE, begin_offset=400)
    assert (found.is_healthy, found.expired_count, found.item_count) == (True, 3, 7)
    assert kinds(check_bytes(data, rest, SHAPE)) == {"dangling": 3}
    lost = bytearray(data)
    lost[40 + 20 + 40 : 40 + 20 + 60] = bytes(20)  # item 2
    assert "dangling" in kinds(check_bytes(bytes(lost), rest, SHAPE, begin_offset=400))


def test_a_wrong_offset_does_not_hide_what_follows():
    """Whatever an item leads to, the log's other items are found where they are."""
    rows = [(number % 50 + 1, 100 * (number // 3), T + number) for number in range(300)]
    shape = Shape(11, 301)
    file = built(rows, shape)
    for number in (1, 2, 3, 150, 151, 152, 299, 300):
        for offset in (-1, 0, 1, 4950, 5050, 9999, 2**39, 2**62):
            changed = built(rows, shape)
            item = file.items[number]
            if item.physical_offset == offset:
                continue
            changed.items[number] = Item(item.key_hash, offset, item.time_diff_s, item.previous_item)
            found = check_bytes(changed.to_bytes(), rows, shape)
            counted = kinds(found)
            assert counted.pop("missing") == 1
            assert counted.pop("dangling", 0) + counted.pop("wrong_order", 0) == 1
            assert set(counted) <= {"wrong_header"}


ONE_MESSAGE = [(key_hash, 100, T) for key_hash in (5, 3, 9, 7)]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0, 250, 9999])
def test_an_item_that_leads_elsewhere_does_not_put_its_neighbours_out_of_order(number, offset):
    rows = [*ONE_MESSAGE, *((key_hash, 200, T) for key_hash in (4, 2))]
    file = built(rows, Shape(11, 20))
    file.items[number].physical_offset = offset
    counted = kinds(check_bytes(file.to_bytes(), rows, Shape(11, 20), is_exact=True))
    assert counted.pop("dangling", 0) + counted.pop("wrong_order", 0) == 1
    assert counted.pop("missing") == 1
    assert set(counted) <= {"wrong_header"}


def test_items_of_a_message_in_another_order_are_told_in_those_words():
    rows = [ONE_MESSAGE[number] for number in (0, 2, 1, 3)]
    found = check_bytes(built(rows, Shape(11, 20)).to_bytes(), ONE_MESSAGE, Shape(11, 20), is_exact=True)
    assert kinds(found) == {"wrong_order": 1}
    assert (
        found.listed[0].detail == "the items of the message at offset 100, from item 1 on, are not in its keys' order"
    )


@pytest.mark.parametrize("filling", [b"\0", b"\xa5"])
def test_a_lost_page_costs_its_own_items_and_no_others(filling):
    rows = [(number % 50 + 1, 100 * (number // 3), T + number) for number in range(600)]
    shape = Shape(11, 601)
    data = bytearray(built(rows, shape).to_bytes())
    at = 40 + 44 + 20 * 200
    data[at : at + 4000] = filling * 4000
    found = check_bytes(bytes(data), rows, shape)
    counted = kinds(found)
    assert (counted["missing"], counted["dangling"]) == (200, 200)
    assert len(found.listed) == LISTED_MAX
    assert found.unlisted_count == found.total - LISTED_MAX


@pytest.mark.parametrize("size", [0, 39, 100, len(whole_file()) - 1])
def test_a_file_that_is_too_short_lacks_everything(size):
    found = check_bytes(whole_file()[:size], ROWS, SHAPE)
    assert kinds(found) == {"wrong_size": 1, "missing": len(ROWS)}
    assert found.listed[0].position == size


def test_a_file_that_is_too_long_is_told_once():
    found = check_bytes(whole_file() + b"x", ROWS, SHAPE, inherited=BEFORE)
    assert kinds(found) == {"wrong_size": 1}


@pytest.mark.parametrize("count", [-1, 15, 2**31 - 1])
def test_a_count_that_cannot_be_lets_nothing_be_believed(count):
    data = whole_file()[:36] + count.to_bytes(4, "big", signed=True) + whole_file()[40:]
    assert kinds(check_bytes(data, ROWS, SHAPE)) == {"wrong_header": 1, "missing": len(ROWS)}


def test_a_file_that_is_not_there_lacks_everything(tmp_path):
    found = IndexCheck(tmp_path / "20231114221320000", SHAPE, 0, END).run(batches(ROWS))
    assert found.counts == {FindingKind.UNREADABLE: 1, FindingKind.MISSING: len(ROWS)}


# -- against the twin


@st.composite
def edited_files(draw: st.DrawFn) -> tuple[IndexFileTwin, list[Row], int, int]:
    """A file with items changed, left out and repeated, but in the order of the log; and what the log has."""
    messages = draw(
        st.lists(st.tuples(st.lists(st.integers(0, 12), max_size=4), st.integers(-5000, 90_000)), max_size=9)
    )
    rows, kept = [], []
    for number, (key_hashes, time) in enumerate(messages):
        for key_hash in key_hashes:
            row = (key_hash, 100 * number + 50, T + time)
            rows.append(row)
            kept += [row] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        if draw(st.integers(0, 5)) == 0:
            kept.append((draw(st.integers(0, 12)), 100 * number + 50 + draw(st.sampled_from([0, 1, 99])), T + time))
    shape = Shape(draw(st.integers(1, 7)), len(kept) + 2)
    inherited_ms = draw(st.sampled_from([0, T - 7000]))
    file = built([], shape)
    file.begin_timestamp_ms = inherited_ms
    for row in kept:
        assert file.put(chr(row[0]), row[1], row[2])
    times = {offset: time for _, offset, time in rows}
    for number, item in file.items.items():
        if item.physical_offset in times and number > 1:  # times count from the first item, wherever it leads
            time = times[item.physical_offset]
            item.time_diff_s = max((time - times.get(kept[0][1], kept[0][2])) // 1000, 0)
        change = draw(st.integers(0, 30))
        if change == 0:
            item.previous_item = draw(st.integers(0, len(kept)))
        elif change == 1:
            item.time_diff_s = draw(st.integers(-1, 3))
        elif change == 2:
            item.key_hash = draw(st.integers(1, 12))
    for slot in list(file.slots):
        if draw(st.integers(0, 12)) == 0:
            file.slots[slot] = draw(st.integers(-1, len(kept)))
    return file, rows, inherited_ms, draw(st.integers(0, 400))


@given(edited_files(), st.integers(1, 9))
def test_faults_are_those_of_the_twin(edited, size):
    file, rows, inherited_ms, begin_offset = edited
    rows = [row for row in rows if row[1] >= begin_offset]
    shape = Shape(file.slot_capacity, file.item_capacity)
    before = IndexHeader(0, inherited_ms, 0, 0, 0, 0)
    found = check_bytes(file.to_bytes(), rows, shape, size=size, begin_offset=begin_offset, inherited=before)
    counted = kinds(found)
    counted.pop("wrong_header", None)
    expected = index_faults(file, rows, begin_offset=begin_offset, inherited_ms=inherited_ms)
    assert counted == expected


@given(
    st.binary(min_size=40 + 20 + 280, max_size=40 + 20 + 280), st.integers(0, 14), st.booleans(), st.integers(1, 9)
)
def test_any_bytes_are_checked_to_the_end(data, count, is_live, size):
    data = data[:36] + count.to_bytes(4, "big") + data[40:]
    once = check_bytes(data, ROWS, SHAPE, size=size, is_live=is_live)
    again = check_bytes(data, ROWS, SHAPE, size=1, is_live=is_live)
    assert not once.is_healthy
    assert once.counts == again.counts
