"""The receipt cannot lie: whatever is done to index files, no answer misses a message and says complete.

Each index file of a store in turn is deleted, emptied, filled with zeros, cut, renamed, exchanged, or put back to
an older state of itself. What it covered is scanned then, with the records at its neighbours' ends: a message's items
may straddle two files.
"""

import shutil
from random import Random

import pytest

import whence
from tests.golden import GoldenStore
from tests.lookup.judge import Judge, offsets
from tests.reference import IndexFileTwin, build_index, i32, i64
from tests.store_maker import FILE_SIZE, T, make_store, message, write_index
from whence.errors import UsageError
from whence.formats.hashing import key_hash
from whence.store.damage import DamageKind

SETS = ("v4-clean", "v5-clean", "v5-direct", "v5-damaged-lost-page")


def index_files(store):
    return sorted((store / "index").iterdir())


def straddling(store, judge: Judge):
    """The messages at which index files begin and end, and those beside them."""
    positions = {record.physical_offset: number for number, record in enumerate(judge.records)}
    edges = set()
    for path in index_files(store):
        header = path.read_bytes()[16:32]
        for data in (header[:8], header[8:]):
            number = positions[int.from_bytes(data, "big")]
            edges |= {number - 1, number, number + 1}
    return [judge.records[number] for number in sorted(edges) if 0 <= number < len(judge.records)]


def questions(records):
    """By key and by id, for every text that these messages bear."""
    asked = []
    for record in records:
        asked += [{"key": key, "topic": record.topic} for key in record.keys]
        if record.unique_id and not record.is_rollback:
            asked.append({"id": record.unique_id})
    return list({str(question): question for question in asked}.values())


def answers_are_right(folder, judge: Judge, asked):
    """Ask, compare, and give back the last receipt."""
    with whence.open(folder) as store:
        for question in asked:
            if "id" in question:
                wanted = judge.by_id[question["id"]]
            else:
                wanted = judge.by_topic_and_key[question["topic"], question["key"]]
            answer = store.find(**question, limit=None)
            assert offsets(answer) == wanted, question
            assert answer.receipt.complete
            receipt = answer.receipt
    return receipt


def older_copy(known: GoldenStore, data: bytes, count: int) -> bytes:
    """The file as it was when it held ``count`` items."""
    newer = IndexFileTwin.from_bytes(data, known.slot_capacity, known.item_capacity)
    older = IndexFileTwin(known.slot_capacity, known.item_capacity, newer.begin_timestamp_ms)
    times = {record.physical_offset: record.store_timestamp_ms for record in known.records}
    for number in range(1, count + 1):
        item = newer.items[number]
        older.items[number] = item
        older.slots[item.key_hash % known.slot_capacity] = number
        older.slot_count += item.previous_item == 0
        older.next_item = number + 1
        older.end_physical_offset = item.physical_offset
        older.end_timestamp_ms = times[item.physical_offset]
    older.begin_physical_offset = newer.begin_physical_offset
    return older.to_bytes()


@pytest.fixture
def case(golden, judge, tmp_path, request):
    """A copy of a golden set, its judge, and questions about the messages where its index files meet."""
    known = golden(request.param)
    copy = known.copy(tmp_path)
    right = judge(request.param)
    sample = straddling(copy, right) + Random(1).sample(right.records, 10)
    return known, copy, right, questions(sample)


def few(asked, number):
    """Some of the questions, others for each number: all together they are asked many times over."""
    return Random(number).sample(asked, min(len(asked), 25))


def not_used(receipt):
    return [damage.path for damage in receipt.damage if damage.kind is DamageKind.INDEX_NOT_USED]


@pytest.mark.slow
@pytest.mark.parametrize("case", SETS, indirect=True)
class TestEachIndexFileInTurn:
    def test_untouched(self, case):
        _, copy, right, asked = case
        receipt = answers_are_right(copy, right, asked)
        assert not_used(receipt) == []

    def test_deleted(self, case):
        _, copy, right, asked = case
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            path.unlink()
            receipt = answers_are_right(copy, right, few(asked, number))
            assert receipt.index_files == len(index_files(copy))
            path.write_bytes(data)

    def test_all_deleted(self, case):
        _, copy, right, asked = case
        shutil.rmtree(copy / "index")
        receipt = answers_are_right(copy, right, asked)
        assert (receipt.index_source, receipt.index_files, receipt.indexed_to_offset) == ("none", 0, None)

    def test_emptied(self, case):
        """The newest one may be one that a broker is making: then it is not there yet."""
        _, copy, right, asked = case
        paths = index_files(copy)
        for number, path in enumerate(paths):
            data = path.read_bytes()
            path.write_bytes(b"")
            receipt = answers_are_right(copy, right, few(asked, number))
            assert not_used(receipt) == ([] if path == paths[-1] else [str(path)])
            path.write_bytes(data)

    def test_filled_with_zeros(self, case):
        """As a broker makes a file that is not used yet, so this is no damage; it covers nothing."""
        _, copy, right, asked = case
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            path.write_bytes(bytes(len(data)))
            answers_are_right(copy, right, few(asked, number))
            path.write_bytes(data)

    def test_cut(self, case):
        """What is cut behind the last item was never used: such a file still tells all it told."""
        known, copy, right, asked = case
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            used = 40 + 4 * known.slot_capacity + 20 * int.from_bytes(data[36:40], "big")
            lengths = [1, 39, 40, 41, 40 + 4 * known.slot_capacity, used - 20, used - 1, used, len(data) - 20]
            for length in [*lengths, *Random(number).sample(range(len(data)), 3)]:
                path.write_bytes(data[:length])
                receipt = answers_are_right(copy, right, few(asked, length)[:5])
                if length < used:
                    assert not_used(receipt) == [str(path)]
            path.write_bytes(data)

    def test_with_zeros_in_place_of_some_items(self, case):
        """A page that was never written: chains that lead into it are damage, and the log is scanned instead."""
        known, copy, right, asked = case
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            first = 40 + 4 * known.slot_capacity + 20
            count = int.from_bytes(data[36:40], "big") - 1
            for begin, end in ((0, count // 3), (count // 3, 2 * count // 3)):
                zeros = bytes(20 * (end - begin))
                path.write_bytes(data[: first + 20 * begin] + zeros + data[first + 20 * end :])
                answers_are_right(copy, right, few(asked, number)[:15])
            path.write_bytes(data)

    def test_exchanged_with_another_of_the_store(self, case):
        _, copy, right, asked = case
        files = index_files(copy)
        for number, path in enumerate(files):
            other = files[(number + 1) % len(files)]
            ours, theirs = path.read_bytes(), other.read_bytes()
            path.write_bytes(theirs)
            other.write_bytes(ours)
            receipt = answers_are_right(copy, right, few(asked, number))
            assert not_used(receipt) == []
            path.write_bytes(ours)
            other.write_bytes(theirs)

    def test_put_in_the_place_of_another_of_the_store(self, case):
        _, copy, right, asked = case
        files = index_files(copy)
        for number, path in enumerate(files):
            data = path.read_bytes()
            path.write_bytes(files[number - 1].read_bytes())
            answers_are_right(copy, right, few(asked, number))
            path.write_bytes(data)

    def test_of_another_store(self, case, golden):
        known, copy, right, asked = case
        other = "v53-clean" if known.name != "v53-clean" else "v5-clean"
        foreign = index_files(golden(other).store)
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            path.write_bytes(foreign[number % len(foreign)].read_bytes())
            receipt = answers_are_right(copy, right, few(asked, number))
            assert not_used(receipt) == [str(path)]
            path.write_bytes(data)

    def test_replaced_by_an_older_copy_of_itself(self, case):
        known, copy, right, asked = case
        for number, path in enumerate(index_files(copy)):
            data = path.read_bytes()
            count = int.from_bytes(data[36:40], "big") - 1
            for kept in {1, count // 2, count - 1}:
                path.write_bytes(older_copy(known, data, kept))
                receipt = answers_are_right(copy, right, few(asked, number)[:15])
                assert not_used(receipt) == []
            path.write_bytes(data)


def test_an_older_copy_is_made_as_it_was(golden):
    """Or the test above would prove nothing: the whole file, copied so, is the file."""
    known = golden("v5-clean")
    for path in index_files(known.store):
        data = path.read_bytes()
        assert older_copy(known, data, int.from_bytes(data[36:40], "big") - 1) == data


# -- what the receipt counts --------------------------------------------------------------------------------

MESSAGES = [message(keys=f"k{number} every", unique_id=f"id-{number}", at=number) for number in range(60)]


def test_a_covered_log_is_not_scanned(tmp_path):
    make_store(tmp_path, MESSAGES, items=100)
    with whence.open(tmp_path) as store:
        receipt = store.find(key="k7").receipt
        assert (receipt.complete, receipt.scanned_bytes, receipt.index_source) == (True, 0, "broker")
        assert (receipt.index_files, receipt.index_files_skipped) == (2, 0)
        assert receipt.verified_by == "log"


def test_what_no_index_covers_is_scanned_and_counted(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000, indexed=40)
    with whence.open(tmp_path) as store:
        receipt = store.find(key="k50").receipt
    # From the record behind the index's last one on; that one itself is always read.
    assert made.end_offset - made.offsets[40] <= receipt.scanned_bytes <= made.end_offset - made.offsets[39]
    assert (receipt.indexed_to_offset, receipt.indexed_to_timestamp_ms) == (made.offsets[40], T + 39)
    assert (receipt.searched_from_offset, receipt.searched_to_offset) == (0, made.end_offset)


def test_a_scan_of_everything_counts_the_whole_log(tmp_path):
    made = make_store(tmp_path, MESSAGES)
    with whence.open(tmp_path) as store:
        receipt = store.find(key="k50", scan=True).receipt
    assert receipt.scanned_bytes == made.end_offset
    assert (receipt.index_source, receipt.items_visited) == ("none", 0)


def test_a_receipt_of_a_page_names_the_part_that_was_given(tmp_path):
    """What was not given yet counts as not searched, although a message of it may have been looked at."""
    made = make_store(tmp_path, MESSAGES)
    with whence.open(tmp_path) as store:
        first = store.find(key="every", limit=5)
        assert (first.receipt.searched_from_offset, first.receipt.searched_to_offset) == (
            made.offsets[-5],
            made.end_offset,
        )
        second = store.find(key="every", limit=5, cursor=first.cursor)
        assert (second.receipt.searched_from_offset, second.receipt.searched_to_offset) == (
            made.offsets[-10],
            made.offsets[-5],
        )
        oldest = store.find(key="every", limit=5, oldest_first=True)
        assert oldest.receipt.searched_from_offset == 0
        assert made.offsets[4] < oldest.receipt.searched_to_offset <= made.offsets[5]


def test_candidates_and_rejects_are_counted(tmp_path):
    """Aa and BB have the same hash in every topic."""
    make_store(
        tmp_path, [message(keys="Aa"), *(message(keys="BB") for _ in range(9)), message(keys="end")], items=100
    )
    with whence.open(tmp_path) as store:
        receipt = store.find(key="Aa", topic="T").receipt
    assert (receipt.candidates, receipt.rejected) == (10, 9)
    assert receipt.items_visited >= 9


def test_items_below_the_log_s_start_cost_nothing(tmp_path):
    """One item is looked at, to see that the rest of the chain lies below."""
    records = [message(keys="hot") for _ in range(100)]
    made = make_store(tmp_path, records, slots=1, items=1000)
    for path in made.log_files[:-1]:
        path.unlink()
    left = sum(offset >= int(made.log_files[0].name) for offset in made.offsets)
    with whence.open(tmp_path) as store:
        answer = store.find(key="hot", topic="T", limit=None)
    assert len(answer) == left
    assert answer.receipt.items_visited <= left + 1


def test_files_whose_part_of_the_log_has_expired_are_skipped(tmp_path):
    made = make_store(tmp_path, [message(keys="hot") for _ in range(100)], items=11)
    for path in made.log_files[:-1]:
        path.unlink()
    begin = int(made.log_files[0].name)
    gone = sum(file.end_physical_offset < begin for file in made.index)
    with whence.open(tmp_path) as store:
        receipt = store.find(key="hot", topic="T", limit=None).receipt
    assert gone > 3
    assert receipt.index_files_skipped >= gone
    assert receipt.damage == []
    assert receipt.complete


def test_without_a_topic_every_known_topic_is_asked(tmp_path):
    make_store(tmp_path, [message(keys="k", topic=topic) for topic in ("a", "b", "c", "a")], items=100)
    with whence.open(tmp_path) as store:
        assert [found.topic for found in store.find(key="k")] == ["a", "c", "b", "a"]
        assert store.find(key="k").receipt.topics_from == "broker"
        assert store.find(key="k", topic="b").receipt.topics_from == "question"
        assert store.find(key="k", scan=True).receipt.topics_from == "log"


def test_a_log_whose_topics_nobody_names_is_answered_or_not_called_complete(tmp_path):
    """Queues and configuration are gone: a copied log with its index."""
    made = make_store(tmp_path, MESSAGES, items=1000, queues=False)
    with whence.open(tmp_path) as store:
        answer = store.find(key="k7")
        assert offsets(answer) == [made.offsets[7]] or not answer.receipt.complete
        assert offsets(store.find(key="k7", topic="T")) == [made.offsets[7]]


# -- gaps and damage in the log ------------------------------------------------------------------------------


class TestAGapInTheLog:
    """A CommitLog file in the middle is gone."""

    @pytest.fixture
    def made(self, tmp_path):
        made = make_store(tmp_path, MESSAGES * 3, items=50)
        assert len(made.log_files) > 4
        made.log_files[2].unlink()
        return made

    def test_is_told_and_the_answer_is_not_complete(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(key="every", limit=None)
        assert offsets(answer) == [
            offset for offset in reversed(made.offsets) if not 2 * FILE_SIZE <= offset < 3 * FILE_SIZE
        ]
        assert not answer.receipt.complete
        [gap] = [damage for damage in answer.receipt.damage if damage.kind is DamageKind.GAP]
        assert f"from offset {2 * FILE_SIZE} to {3 * FILE_SIZE}" in gap.detail

    def test_makes_an_empty_answer_damaged(self, made):
        with whence.open(made.folder) as store:
            assert store.find(key="absent").receipt.why_empty == "damaged"
            assert store.find(key="absent", scan=True).receipt.why_empty == "damaged"

    def test_outside_the_part_that_was_searched_is_none(self, made):
        """A page that ends before the gap is complete for what it searched."""
        with whence.open(made.folder) as store:
            newest = store.find(key="every", limit=3)
            oldest = store.find(key="every", limit=3, oldest_first=True)
        for answer in (newest, oldest):
            assert (answer.receipt.complete, answer.receipt.truncated) == (True, True)
            # Index files that begin or end in the gap are not used; that hides nothing, for the log is scanned.
            assert {damage.kind for damage in answer.receipt.damage} <= {DamageKind.INDEX_NOT_USED}

    def test_is_told_on_the_page_that_crosses_it(self, made):
        with whence.open(made.folder) as store:
            cursor, complete = None, []
            while True:
                answer = store.find(key="every", limit=20, cursor=cursor)
                complete.append(answer.receipt.complete)
                cursor = answer.cursor
                if cursor is None:
                    break
        assert False in complete
        assert complete[0]

    def test_holds_the_offset_that_was_asked_for(self, made):
        inside = next(offset for offset in made.offsets if 2 * FILE_SIZE <= offset < 3 * FILE_SIZE)
        with whence.open(made.folder) as store:
            answer = store.find(offset=inside)
            assert (offsets(answer), answer.receipt.complete, answer.receipt.why_empty) == ([], False, "damaged")
            assert store.find(offset=made.offsets[0]).receipt.complete

    def test_at_the_log_s_start_is_expiry_and_no_gap(self, tmp_path):
        made = make_store(tmp_path, MESSAGES * 3, items=50)
        made.log_files[0].unlink()
        with whence.open(tmp_path) as store:
            answer = store.find(key="every", limit=None)
        assert offsets(answer) == [offset for offset in reversed(made.offsets) if offset >= FILE_SIZE]
        assert (answer.receipt.complete, answer.receipt.damage) == (True, [])


class TestARecordThatFails:
    @pytest.fixture
    def made(self, tmp_path):
        made = make_store(tmp_path, MESSAGES * 3, items=50)
        data = bytearray(made.log_files[1].read_bytes())
        self.bad = next(offset for offset in made.offsets if offset > FILE_SIZE)
        data[self.bad - FILE_SIZE + 90] ^= 1
        made.log_files[1].write_bytes(data)
        return made

    def test_is_told_when_a_key_leads_to_it(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(key="every", limit=None)
        assert offsets(answer) == [offset for offset in reversed(made.offsets) if offset != self.bad]
        assert not answer.receipt.complete
        [damage] = answer.receipt.damage
        assert (damage.path, damage.position) == (str(made.log_files[1]), self.bad - FILE_SIZE)

    def test_is_told_by_a_scan(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(key="every", limit=None, scan=True)
        assert offsets(answer) == [offset for offset in reversed(made.offsets) if offset != self.bad]
        assert not answer.receipt.complete
        assert [damage.position for damage in answer.receipt.damage] == [self.bad - FILE_SIZE]

    def test_is_told_when_its_offset_is_asked_for(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(offset=self.bad)
        assert (offsets(answer), answer.receipt.complete, answer.receipt.why_empty) == ([], False, "damaged")

    def test_elsewhere_in_the_log_takes_nothing_from_a_proven_answer(self, made):
        """The index vouches for the other keys: none of them leads there."""
        with whence.open(made.folder) as store:
            answer = store.find(key="k0", limit=None)
        assert len(answer) == 3
        assert answer.receipt.complete


# -- wrong use ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "items"), [(96, 400), (97, 401), (98, 400), (5_000_000, 20_000_000)])
def test_wrong_counts_of_slots_and_items_are_noticed(golden, slots, items):
    """RocketMQ finds nothing then, and says nothing (weak point 15)."""
    with (
        whence.open(golden("v5-clean").store, slots=slots, items=items) as store,
        pytest.raises(UsageError, match="shows 97 slots and 400 items"),
    ):
        store.find(key="hot-key")


def test_the_right_counts_may_be_given(golden, judge):
    with whence.open(golden("v5-clean").store, slots=97, items=400) as store:
        assert offsets(store.find(key="hot-key", limit=None)) == judge("v5-clean").by_key["hot-key"]


# -- chains ---------------------------------------------------------------------------------------------------


def test_a_broken_chain_is_told_and_the_log_scanned_behind_it(tmp_path):
    made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
    [path] = made.index_files
    data = bytearray(path.read_bytes())
    item = 90
    data[44 + 20 * item + 16 : 44 + 20 * item + 20] = i32(95)  # a cycle
    path.write_bytes(data)
    judge = Judge(made.records)
    with whence.open(tmp_path) as store:
        for oldest_first in (False, True):
            answer = store.find(key="every", topic="T", limit=None, oldest_first=oldest_first)
            wanted = judge.by_key["every"]
            assert offsets(answer) == (wanted[::-1] if oldest_first else wanted)
            assert answer.receipt.complete
            [damage] = answer.receipt.damage
            assert (damage.path, damage.kind) == (str(path), DamageKind.BAD_CHAIN)
            assert damage.position == 44 + 20 * item + 16
            assert 0 < answer.receipt.scanned_bytes < made.end_offset + 1


def test_a_broken_chain_without_a_scan_is_not_complete(tmp_path):
    made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
    [path] = made.index_files
    data = bytearray(path.read_bytes())
    data[40:44] = i32(2**31 - 1)
    path.write_bytes(data)
    with whence.open(tmp_path) as store:
        answer = store.find(key="k7", topic="T", no_scan=True)
        assert not answer.receipt.complete
        assert store.find(key="k7", topic="T").receipt.complete


def test_offsets_that_rise_along_a_chain_are_told_and_the_log_scanned(tmp_path):
    """A broker passes over a message below the last one it put, so this cannot be; following it could miss some."""
    made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
    [path] = made.index_files
    data = bytearray(path.read_bytes())
    at = 44 + 20 * 30 + 4
    data[at : at + 8] = i64(made.offsets[-2])
    path.write_bytes(data)
    with whence.open(tmp_path) as store:
        answer = store.find(key="every", topic="T", limit=None)
    assert offsets(answer) == made.offsets[::-1]
    assert [damage.kind for damage in answer.receipt.damage] == [DamageKind.BAD_CHAIN]


def test_a_message_that_lies_in_two_files_is_given_once(tmp_path):
    """Put twice, as after a recovery (weak point 9)."""
    made = make_store(tmp_path, MESSAGES, indexed=0)
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path, build_index(made.records[:31], "5.5", 7, 1000))
    write_index(tmp_path, build_index(made.records[25:], "5.5", 7, 1000), first_name=20260102000000000)
    with whence.open(tmp_path) as store:
        assert offsets(store.find(key="every", limit=None)) == made.offsets[::-1]
        assert offsets(store.find(key="every", limit=None, oldest_first=True)) == made.offsets
        assert store.find(key="every").receipt.damage == []


def test_a_damaged_index_that_may_not_be_scanned_for_is_damage_not_only_no_index(golden, tmp_path):
    """Status 3 comes before 4: what is left out is left out because a file is cut."""
    folder = golden("v5-clean").copy(tmp_path)
    cut = sorted((folder / "index").iterdir())[3]
    cut.write_bytes(cut.read_bytes()[:-7])
    with whence.open(folder) as store:
        scanned, not_scanned = store.find(key="absent"), store.find(key="absent", no_scan=True)
    assert (scanned.receipt.complete, scanned.receipt.damaged) == (True, False)
    assert (not_scanned.receipt.complete, not_scanned.receipt.damaged) == (False, True)
    assert not_scanned.receipt.why_empty == "damaged"


def test_an_item_that_leads_to_no_record_is_damage_of_the_index_not_of_the_log(golden, tmp_path):
    """The item's own message would be missed, so the file is not used and its part of the log is scanned."""
    folder = golden("v5-clean").copy(tmp_path)
    with whence.open(folder) as store:
        whole = [message.physical_offset for message in store.find(key="hot-key", limit=None)]
        file = next(segment.file for segment in store.stores[0].cover().segments[4:] if segment.file is not None)
        hot = {key_hash(message.topic, "hot-key") for message in store.find(key="hot-key", limit=None)}
        number = next(item[0] for wanted in hot for item in file.walk(wanted) if item[1] == wanted)
        position = file.item_position(number) + 4
    with file.path.open("r+b") as writer:
        writer.seek(position + 7)
        last_byte = writer.read(1)[0]
        writer.seek(position + 7)
        writer.write(bytes([last_byte ^ 1]))
    with whence.open(folder) as store:
        answer = store.find(key="hot-key", limit=None)
    assert [message.physical_offset for message in answer] == whole
    assert answer.receipt.complete
    assert [(damage.path, damage.kind) for damage in answer.receipt.damage] == [
        (str(file.path), DamageKind.BAD_CHAIN)
    ]
