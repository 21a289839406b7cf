"""RocketMQ's weak points (specification, 5.8), one test each: first its behaviour, then ours on the same bytes.

RocketMQ's side is the twin's ``query_offset`` and ``select``, which tests/test_reference.py holds equal to what
RocketMQ itself answered, or golden data. Ours is ``find``.

Points 10, 11, 20 and 21 (hot chains, filters, write amplification) come with a later part. Point 18, an index file
that cannot be created, belongs to the writing side: a reader of such a store sees a part of the log that no index
covers, and scans it, as in point 12.
"""

import shutil

import pytest

import whence
from tests.lookup.judge import Judge, offsets
from tests.reference import (
    IndexFileTwin,
    build_index,
    encode_record,
    i32,
    java_hash,
    query_offset,
    read_index,
    text_hash,
)
from tests.store_maker import T, make_store, message, place, write_index
from whence.errors import UsageError
from whence.store.damage import DamageKind

FOREVER = 2**63 - 1
SLOTS = 101


def rocketmq(made, key, begin=0, end=FOREVER, *, topic="T"):
    """What RocketMQ's index gives for a key, newest first."""
    return query_offset(made.index, f"{topic}#{key}", 64, begin, end)


def ours(folder, key, begin=None, end=None, **question):
    """What we give for it; the answer must be complete."""
    with whence.open(folder) as store:
        answer = store.find(key=key, since=begin, until=end, **({"limit": None} | question))
    assert answer.receipt.complete
    return offsets(answer)


def test_1_no_message_is_lost_at_the_begin_of_a_window(tmp_path):
    """An item's time is whole seconds, rounded down, and compared with a bound in milliseconds."""
    made = make_store(tmp_path, [message(keys="k", at=10 * number) for number in range(400)], slots=SLOTS, items=500)
    [file] = made.index
    found: list[int] = []
    file.select("T#k", 1000, T + 7, FOREVER, found)
    assert len(found) == 300  # of 399; those of the first second are gone
    assert ours(tmp_path, "k", T + 7) == made.offsets[:0:-1]

    lone = make_store(tmp_path / "lone", [message(keys="a"), message(keys="b", at=2500)], slots=SLOTS)
    assert rocketmq(lone, "b", T + 2500) == []
    assert rocketmq(lone, "b", T + 2000) == [lone.offsets[1]]
    assert ours(lone.folder, "b", T + 2500) == [lone.offsets[1]]
    assert ours(lone.folder, "b", T + 2501) == []


def test_2_no_message_from_behind_a_window_s_end_is_given(tmp_path):
    made = make_store(tmp_path, [message(keys="a"), message(keys="b", at=2500)], slots=SLOTS)
    assert rocketmq(made, "b", T, T + 2100) == [made.offsets[1]]
    assert ours(tmp_path, "b", T, T + 2100) == []
    assert ours(tmp_path, "b", T, T + 2499) == []
    assert ours(tmp_path, "b", T, T + 2500) == [made.offsets[1]]


def test_3_the_first_message_of_an_index_file_has_its_own_time(tmp_path):
    """A new file counts from the end of the one before, and then replaces that beginning by its own."""
    records = [message(keys="a"), message(keys="b"), message(keys="c", at=10_000)]
    made = make_store(tmp_path, records, slots=SLOTS, items=3)
    assert len(made.index) == 2
    assert made.index[1].items[1].time_diff_s == 10
    for begin, end in ((T + 5_000, T + 15_000), (T + 10_000, T + 10_000)):
        assert rocketmq(made, "c", begin, end) == []
        assert ours(tmp_path, "c", begin, end) == [made.offsets[2]]


def test_4_a_clock_that_stepped_back_cuts_no_chain(tmp_path):
    """RocketMQ stops at the first item that is older than the window."""
    records = [message(keys="x"), message(keys="k", at=150_000), message(keys="k", at=120_000), message(at=200_000)]
    made = make_store(tmp_path, [*records, message(keys="x", at=200_000)], slots=SLOTS)
    assert rocketmq(made, "k", T + 140_000) == []
    assert ours(tmp_path, "k", T + 140_000) == [made.offsets[1]]


def test_5_a_clock_that_stepped_back_skips_no_file(tmp_path):
    """The header's end time is that of the last put, not the largest; times before the begin become 0 seconds."""
    records = [message(keys="x"), message(keys="k", at=150_000), message(keys="x", at=120_000)]
    made = make_store(tmp_path / "end", records, slots=SLOTS)
    assert rocketmq(made, "k", T + 140_000, T + 160_000) == []
    assert ours(made.folder, "k", T + 140_000, T + 160_000) == [made.offsets[1]]

    made = make_store(tmp_path / "begin", [message(keys="x"), message(keys="k", at=-60_000)], slots=SLOTS)
    assert rocketmq(made, "k", T - 70_000, T - 50_000) == []
    assert rocketmq(made, "k", T - 10_000, T + 1_000) == [made.offsets[1]]
    assert ours(made.folder, "k", T - 70_000, T - 50_000) == [made.offsets[1]]
    assert ours(made.folder, "k", T - 10_000, T + 1_000) == []


def test_6_keys_of_equal_hash_do_not_eat_the_quota(tmp_path):
    made = make_store(
        tmp_path, [message(keys="Aa"), *(message(keys="BB") for _ in range(64))], slots=SLOTS, items=200
    )
    assert text_hash("T#Aa") == text_hash("T#BB")
    found = rocketmq(made, "Aa")
    assert len(found) == 64
    assert made.offsets[0] not in found  # 64 of the other key: nothing is left for the caller
    assert ours(tmp_path, "Aa", limit=1) == [made.offsets[0]]
    assert len(ours(tmp_path, "BB")) == 64


def test_7_hashes_that_differ_only_in_their_sign_are_not_confused(tmp_path):
    records = [message(keys=key, topic="TopicTest") for key in ("peTzWR", "oKNIEt", "UaAahTbH")]
    made = make_store(tmp_path, records, slots=SLOTS)
    assert java_hash("TopicTest#peTzWR") == -java_hash("TopicTest#oKNIEt")
    assert rocketmq(made, "peTzWR", topic="TopicTest") == [made.offsets[1], made.offsets[0]]
    for number, key in enumerate(("peTzWR", "oKNIEt", "UaAahTbH")):
        assert ours(tmp_path, key) == [made.offsets[number]]


def test_7_a_key_whose_hash_folds_to_zero_is_found_even_as_the_very_first_of_a_log(tmp_path):
    """Hash 0, offset 0, 0 seconds, no older item: this item is 20 zero bytes."""
    records = [message(keys=key, topic="TopicTest") for key in ("UaAahTbH", "other", "UaAahTbH")]
    made = make_store(tmp_path, records, slots=SLOTS)
    assert text_hash("TopicTest#UaAahTbH") == 0
    assert ours(tmp_path, "UaAahTbH", topic="TopicTest") == [made.offsets[2], made.offsets[0]]


def test_8_more_than_64_messages_are_given_in_pages(tmp_path):
    """All within one second, so that no window of RocketMQ's can part them."""
    made = make_store(tmp_path, [message(keys="k", at=5000 + n) for n in range(100)], slots=SLOTS, items=200)
    assert len(rocketmq(made, "k")) == len(rocketmq(made, "k", T, T + 5000)) == 64
    assert rocketmq(made, "k", T, T + 4999) == []
    assert ours(tmp_path, "k") == made.offsets[::-1]
    with whence.open(tmp_path) as store:
        first = store.find(key="k")
        assert (len(first), first.receipt.truncated) == (64, True)
        second = store.find(key="k", cursor=first.cursor)
        assert (len(second), second.receipt.truncated) == (36, False)
        assert offsets(first) + offsets(second) == made.offsets[::-1]


def test_9_a_message_is_given_once(tmp_path):
    """A key that is written three times is indexed three times."""
    made = make_store(tmp_path, [message(keys="a a a"), message(keys="b")], slots=SLOTS)
    assert rocketmq(made, "a") == [0, 0, 0]
    assert ours(tmp_path, "a") == [0]
    with whence.open(tmp_path) as store:
        answer = store.find(key="a", limit=1)
    assert (len(answer), answer.receipt.truncated) == (1, False)


def test_9_a_message_that_was_dispatched_again_is_given_once(tmp_path):
    """Its first key filled a file, its second opened the next, which a crash took away."""
    records = [message(keys="x", at=0), message(keys="first second", at=1), message(keys="y", at=2)]
    made = make_store(tmp_path, records, slots=SLOTS, indexed=0)
    full, _, *_ = build_index(made.records, "5.5", SLOTS, 3)
    after_recovery = build_index(made.records[1:], "5.5", SLOTS, 3, kept=[full])
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path, after_recovery)
    assert query_offset(after_recovery, "T#first", 64, 0, FOREVER) == [made.offsets[1]] * 2
    for key in ("first", "second"):
        assert ours(tmp_path, key) == [made.offsets[1]]


def test_12_keys_that_an_unclean_exit_took_out_of_the_index_are_found(golden):
    """A killed broker, started again: it deleted the newest index file, and made again only the end of it."""
    known = golden("v5-recovered-b")
    files = read_index(known.store, known.slot_capacity, known.item_capacity)
    assert files[1].end_physical_offset < files[2].begin_physical_offset == 1048576
    judge = Judge(known.records)
    keys_missed = messages_missed = 0
    with whence.open(known.store) as store:
        for (topic, key), right in judge.by_topic_and_key.items():
            theirs: list[int] = []
            for file in reversed(files):
                file.select(f"{topic}#{key}", 10**6, 0, FOREVER, theirs)  # without the quota of 64
            keys_missed += not set(right) <= set(theirs)
            messages_missed += len(set(right) - set(theirs))
            answer = store.find(key=key, topic=topic, limit=None)
            assert offsets(answer) == right
            assert answer.receipt.complete
    assert (keys_missed, messages_missed) == (418, 618)
    assert answer.receipt.scanned_bytes > 0


def test_13_a_full_file_that_was_not_flushed_yet_may_be_lost(tmp_path):
    """After the crash the broker deletes both files, and indexes again from the log file of the last seconds on."""
    made = make_store(tmp_path, [message(keys=f"k{n}", at=n) for n in range(150)], slots=SLOTS, items=100)
    assert [file.is_full for file in made.index] == [True, False]
    last_log_file = int(made.log_files[-1].name)
    again = build_index([r for r in made.records if r.physical_offset >= last_log_file], "5.5", SLOTS, 100)
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path, again, first_name=20260101130000000)
    answered = sum(bool(query_offset(again, f"T#k{n}", 64, 0, FOREVER)) for n in range(150))
    assert answered < 50
    with whence.open(tmp_path) as store:
        for number in range(150):
            answer = store.find(key=f"k{number}")
            assert offsets(answer) == [made.offsets[number]]
            assert answer.receipt.complete


class Test14:
    """A replica's log was cut, and went on with other messages. Its index was not cut: it is ahead of the log.

    RocketMQ puts no items for a message below the index's end, and its old items lead to other records by now.
    """

    BEFORE = tuple(message(keys=f"old-{number}", at=number) for number in range(40))
    KEPT = 20

    def cut(self, folder, later, *, wipe):
        """The store after the cut: KEPT old messages, then ``later`` ones; wiped or not, what lay behind."""
        made = make_store(folder, self.BEFORE, slots=SLOTS, items=200, file_size=16_384)
        records = place([*self.BEFORE[: self.KEPT], *later], file_size=16_384)
        new = b"".join(encode_record(record) for record in records[self.KEPT :])
        [path] = made.log_files
        data = path.read_bytes()
        start = made.offsets[self.KEPT]
        behind = data[start + len(new) :] if not wipe else bytes(len(data) - start - len(new))
        path.write_bytes(data[:start] + new + behind)
        shutil.rmtree(folder / "consumequeue")
        (folder / "consumequeue" / "T" / "0").mkdir(parents=True)
        # The broker goes on with the index it has.
        index = build_index(records[self.KEPT :], "5.5", SLOTS, 200, kept=made.index)
        write_index(folder, index)
        return made, records, index

    def check(self, folder, records, index, *, missed):
        judge = Judge(records)
        theirs = [key for key in judge.by_key if query_offset(index, f"T#{key}", 64, 0, FOREVER) == judge.by_key[key]]
        assert len(judge.by_key) - len(theirs) == missed
        with whence.open(folder) as store:
            for key, right in judge.by_key.items():
                answer = store.find(key=key, topic="T")
                assert offsets(answer) == right
            for number in range(self.KEPT, len(self.BEFORE)):
                assert offsets(store.find(key=f"old-{number}", topic="T")) == []
            return answer.receipt

    def test_14_messages_after_the_cut_are_found_although_the_index_is_ahead(self, tmp_path):
        later = [message(keys=f"new-{number}", at=1000 + number, body=b"longer body") for number in range(10)]
        _, records, index = self.cut(tmp_path, later, wipe=True)
        receipt = self.check(tmp_path, records, index, missed=10)
        assert receipt.complete
        assert DamageKind.INDEX_NOT_USED in {damage.kind for damage in receipt.damage}

    def test_14_once_the_log_has_grown_past_the_index_s_old_end_a_sample_may_tell_and_a_scan_does(self, tmp_path):
        """Then the broker indexes again, and the file's begin and end are right: it left some out, and looks sound.

        Old items lead to bytes that are no message of theirs any more, and the sample of the newest file meets one
        here. It need not: that is why such an index is called ``broker``, and why ``scan`` exists.
        """
        later = [message(keys=f"new-{number}", at=1000 + number, body=b"longer body") for number in range(40)]
        _, records, index = self.cut(tmp_path, later, wipe=True)
        judge = Judge(records)
        left_out = [key for key in judge.by_key if not query_offset(index, f"T#{key}", 64, 0, FOREVER)]
        assert len(left_out) == 18
        with whence.open(tmp_path) as store:
            assert store.find(key="new-0", topic="T").receipt.index_source == "none"
            for key in left_out:
                assert offsets(store.find(key=key, topic="T", scan=True)) == judge.by_key[key]

    def test_14_also_if_the_old_bytes_still_lie_behind_the_end(self, tmp_path):
        """A cut wipes nothing: the record at the index's end is whole, and no part of the log any more."""
        later = [message(keys=f"new-{number}", at=1000 + number, body=b"longer body") for number in range(10)]
        _, records, index = self.cut(tmp_path, later, wipe=False)
        receipt = self.check(tmp_path, records, index, missed=10)
        # Whole records behind the end are told, so no answer is complete.
        assert DamageKind.RECORDS_BEHIND_END in {damage.kind for damage in receipt.damage}
        assert not receipt.complete


def test_15_other_counts_than_the_file_was_made_with_are_noticed(tmp_path):
    """RocketMQ finds 0 of 50 keys then, without an error."""
    made = make_store(tmp_path, [message(keys=f"k{n}", at=n) for n in range(50)], slots=100, items=200)
    data = made.index_files[0].read_bytes()
    reopened = IndexFileTwin.from_bytes(data + bytes(400), 200, 200)
    assert not any(query_offset([reopened], f"T#k{n}", 64, 0, FOREVER) for n in range(50))
    for number in range(50):
        assert ours(tmp_path, f"k{number}") == [made.offsets[number]]
    with (
        whence.open(tmp_path, slots=200, items=200) as store,
        pytest.raises(UsageError, match="shows 100 slots and 200 items"),
    ):
        store.find(key="k7")


def test_16_a_cycle_in_a_chain_ends_in_an_answer(tmp_path):
    """Item 5 points to 7, item 7 to 5: RocketMQ goes round and round, holding a lock."""
    made = make_store(tmp_path, [message(keys=f"k{n}", at=n) for n in range(40)], slots=1, items=60)
    [path] = made.index_files
    data = bytearray(path.read_bytes())
    for number, previous in ((5, 7), (7, 5)):
        at = 44 + 20 * number + 16
        data[at : at + 4] = i32(previous)
    path.write_bytes(data)
    file = IndexFileTwin.from_bytes(bytes(data), 1, 60)
    number = file.slots[0]
    visited: list[int] = []
    while len(visited) < 133:
        visited.append(number)
        number = file.items[number].previous_item
    assert visited[33:] == [7, 5] * 50

    with whence.open(tmp_path) as store:
        for number in range(40):
            answer = store.find(key=f"k{number}", topic="T")
            assert offsets(answer) == [made.offsets[number]]
            assert answer.receipt.complete
        answer = store.find(key="absent", topic="T")
    [damage] = answer.receipt.damage
    assert (damage.path, damage.kind) == (str(path), DamageKind.BAD_CHAIN)
    assert damage.position in (44 + 20 * 5 + 16, 44 + 20 * 7 + 16)


def test_17_names_in_local_time_do_not_decide_the_order(tmp_path):
    """The clock was put back from 02:00 to 01:00: the file of the second 01:10 sorts before the first 01:50."""
    records = [message(keys="k", at=1200_000 * number) for number in range(8)]
    made = make_store(tmp_path, records, slots=SLOTS, items=5)
    assert len(made.index) == 2
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path, made.index[:1], first_name=20261025015000000)
    write_index(tmp_path, made.index[1:], first_name=20261025011000000)
    by_name = read_index(tmp_path, SLOTS, 5)
    begin = made.records[1].store_timestamp_ms
    assert query_offset(made.index, "T#k", 64, begin, FOREVER) == made.offsets[:0:-1]
    # In the order of the names the older file comes last, so it is asked first, and then the search ends.
    assert query_offset(by_name, "T#k", 64, begin, FOREVER) == made.offsets[3:0:-1]
    assert ours(tmp_path, "k", begin) == made.offsets[:0:-1]


def test_19_items_of_expired_messages_cost_nothing(tmp_path):
    """The last index file is never deleted, however much of the log it speaks of is gone."""
    made = make_store(tmp_path, [message(keys="k", at=n) for n in range(120)], slots=SLOTS, items=200)
    for path in made.log_files[:-1]:
        path.unlink()
    begin = int(made.log_files[0].name)
    living = [offset for offset in reversed(made.offsets) if offset >= begin]
    found = rocketmq(made, "k")
    assert len(found) == 64
    assert sum(offset < begin for offset in found) == 64 - len(living) > 0  # dead ones, which took their place
    with whence.open(tmp_path) as store:
        answer = store.find(key="k", topic="T", limit=None)
    assert offsets(answer) == living
    assert answer.receipt.complete
    assert answer.receipt.items_visited <= len(living) + 1
    assert answer.receipt.candidates == len(living)


def test_22_a_key_is_not_confused_with_a_tag(tmp_path):
    """Since 5.4 the tag is indexed too, as the text T#TagA would be if it were a key."""
    records = [message(keys="T#TagA", topic="TT"), *(message(tags="TagA", topic="TT") for _ in range(70))]
    made = make_store(tmp_path, records, slots=SLOTS, items=200)
    found = rocketmq(made, "T#TagA", topic="TT")
    assert len(found) == 64
    assert made.offsets[0] not in found
    assert ours(tmp_path, "T#TagA") == ours(tmp_path, "T#TagA", topic="TT") == [made.offsets[0]]
    assert ours(tmp_path, "T#TagA", no_scan=True) == [made.offsets[0]]


def test_22_an_index_without_tags_is_understood_as_well(tmp_path):
    records = [message(keys="T#TagA", topic="TT"), *(message(tags="TagA", topic="TT") for _ in range(70))]
    made = make_store(tmp_path, records, slots=SLOTS, items=200, dialect="5.3")
    assert rocketmq(made, "T#TagA", topic="TT") == [made.offsets[0]]
    assert ours(tmp_path, "T#TagA") == [made.offsets[0]]


def test_every_weak_point_that_belongs_to_a_reader_is_here():
    named = {name.split("_")[1] for name in [*globals(), *vars(Test14)] if name.startswith("test_")}
    assert {int(number) for number in named if number.isdigit()} == {*range(1, 10), 12, 13, 14, 15, 16, 17, 19, 22}
