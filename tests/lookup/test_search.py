"""``find`` equals a brute-force scan of the log: every key, every id, many windows, in every golden set."""

from random import Random

import pytest

import whence
from tests.golden import ALL, CLEAN, DAMAGED, DIRECT, few_fast
from tests.lookup.judge import Judge, offsets
from tests.reference import PREPARED, ROLLBACK, TRANSACTION_BITS, find, is_system_topic
from tests.store_maker import T, make_store, message
from whence.store import log_file

BODY_FLIP = "v5-damaged-body-flip"  # whole records lie behind the log's end: no answer about the log is complete


def check_receipt(answer, name):
    receipt = answer.receipt
    assert receipt.complete is (name != BODY_FLIP)
    assert (receipt.truncated, receipt.cursor) == (False, None)
    assert receipt.candidates - receipt.rejected == len(answer)


@pytest.mark.parametrize("name", few_fast(ALL))
def test_the_judge_of_one_pass_says_what_the_twin_says(judge, name):
    """A sample of keys and ids; the other tests ask for all of them."""
    known = judge(name)
    random = Random(name)
    for key in random.sample(sorted(known.by_key), min(20, len(known.by_key))):
        twin = [record.physical_offset for record in find(known.records, key=key)]
        assert known.by_key[key] == known.window(None, None, key=key) == twin
    for topic, key in random.sample(sorted(known.by_topic_and_key), min(20, len(known.by_topic_and_key))):
        twin = [record.physical_offset for record in find(known.records, key=key, topic=topic)]
        assert known.by_topic_and_key[topic, key] == known.window(None, None, key=key, topic=topic) == twin
    for record in random.sample(known.records, 20):
        if record.unique_id and not record.is_rollback:
            twin = [found.physical_offset for found in find(known.records, unique_id=record.unique_id)]
            assert set(twin) == set(known.by_id[record.unique_id])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
class TestEveryQuestion:
    def test_every_key(self, asked, judge, name):
        for key, wanted in judge(name).by_key.items():
            answer = asked(name).find(key=key, limit=None)
            assert offsets(answer) == wanted
            check_receipt(answer, name)
            assert answer.receipt.topics_from == "broker"

    def test_every_key_of_every_topic(self, asked, judge, name):
        for (topic, key), wanted in judge(name).by_topic_and_key.items():
            answer = asked(name).find(key=key, topic=topic, limit=None)
            assert offsets(answer) == wanted
            check_receipt(answer, name)
            assert answer.receipt.topics_from == "question"

    def test_every_key_by_scan_of_the_whole_log(self, asked, judge, name):
        for key, wanted in judge(name).by_key.items():
            answer = asked(name).find(key=key, limit=None, scan=True)
            assert offsets(answer) == wanted
            check_receipt(answer, name)
            assert answer.receipt.index_source == "none"
            assert answer.receipt.topics_from == "log"
            assert answer.receipt.items_visited == 0

    def test_keys_in_system_topics_too(self, asked, judge, name):
        for key in sorted({key for _, key in judge(name).by_topic_and_key})[::4]:
            wanted = sorted(
                (
                    offset
                    for (_, other), known in judge(name).by_topic_and_key.items()
                    if other == key
                    for offset in known
                ),
                reverse=True,
            )
            assert offsets(asked(name).find(key=key, limit=None, system_topics=True)) == wanted

    def test_every_unique_id_and_every_offset_id(self, asked, judge, name):
        """Crashed, recovered and damaged sets hold the same few logs: of their ids every fourth is asked."""
        step = 1 if name in CLEAN + DIRECT else 4
        for text, wanted in list(judge(name).by_id.items())[::step]:
            answer = asked(name).find(id=text, limit=None)
            assert offsets(answer) == wanted
            check_receipt(answer, name)

    def test_oldest_first_is_newest_first_from_the_other_end(self, asked, judge, name):
        for key, wanted in list(judge(name).by_key.items())[::4]:
            assert offsets(asked(name).find(key=key, limit=None, oldest_first=True)) == wanted[::-1]

    def test_every_key_without_a_scan_gives_what_the_index_covers(self, asked, judge, name):
        """What is given is right, and where something is left out the receipt says so."""
        for key, wanted in judge(name).by_key.items():
            answer = asked(name).find(key=key, limit=None, no_scan=True)
            found = offsets(answer)
            assert found == [offset for offset in wanted if offset in set(found)]
            assert answer.receipt.scanned_bytes == 0
            assert not answer.receipt.complete or found == wanted
            assert answer.receipt.why_empty in ({None} if found else {"damaged", "not_indexed"})


@pytest.mark.parametrize("name", few_fast(ALL))
def test_the_kernel_scans_as_plain_python_does(golden, judge, monkeypatch, name):
    """From the first byte on, as in a log of many gigabytes."""
    monkeypatch.setattr(log_file, "PLAIN_SCAN_MAX", 0)
    known = judge(name)
    with whence.open(golden(name).store) as store:
        for key in known.hot_keys + sorted(known.by_key)[::40]:
            assert offsets(store.find(key=key, limit=None, scan=True)) == known.by_key[key]
            assert offsets(store.find(key=key, limit=None)) == known.by_key[key]
        for record in known.records[::200]:
            if record.unique_id and not record.is_rollback:
                assert offsets(store.find(id=record.unique_id, scan=True)) == known.by_id[record.unique_id]
        for since_ms, until_ms in known.windows(5, seed=3):
            assert offsets(store.find(since=since_ms, until=until_ms, limit=None)) == known.window(since_ms, until_ms)


@pytest.mark.parametrize("name", ALL)
def test_keys_that_no_message_bears_are_not_found(asked, judge, name):
    for key in ["absent", "no such key", "T#TagA", "订单", "\U0001f680", "KEYS", "\ud800"]:
        if key not in judge(name).by_key:
            answer = asked(name).find(key=key)
            assert offsets(answer) == []
            assert answer.receipt.why_empty == ("damaged" if name == BODY_FLIP else "no_such_key")


@pytest.mark.parametrize("name", few_fast(ALL))
def test_messages_by_physical_offset(asked, judge, name):
    """A message is given for the offset at which it begins, and for no other."""
    known = judge(name)
    boundaries = {record.physical_offset for record in known.records}
    random = Random(name)
    chosen = random.sample(known.records, 40)
    tried = [record.physical_offset for record in chosen] + [record.physical_offset + 1 for record in chosen[:10]]
    tried += [random.randrange(known.records[-1].physical_offset) for _ in range(50)]
    for offset in tried:
        answer = asked(name).find(offset=offset)
        assert offsets(answer) == ([offset] if offset in boundaries else [])


@pytest.mark.parametrize("name", ALL)
def test_messages_by_queue_offset(asked, judge, name):
    known = judge(name)
    queued = [record for record in known.records if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK)]
    for record in Random(name).sample(queued, 60):
        answer = asked(name).find(topic=record.topic, queue=record.queue, queue_offset=record.queue_offset)
        assert offsets(answer) == [record.physical_offset]
        assert answer.receipt.complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_windows_of_a_key_are_exact_to_the_millisecond(asked, judge, name):
    known = judge(name)
    keys = known.hot_keys
    for number, (since_ms, until_ms) in enumerate(known.windows(300, seed=1)):
        key = keys[number % len(keys)]
        answer = asked(name).find(key=key, since=since_ms, until=until_ms, limit=None)
        assert offsets(answer) == known.window(since_ms, until_ms, key=key)
        check_receipt(answer, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_windows_without_a_key_are_exact_to_the_millisecond(asked, judge, name):
    known = judge(name)
    topics = sorted({record.topic for record in known.records})
    for number, (since_ms, until_ms) in enumerate(known.windows(40, seed=2)):
        topic = topics[number % len(topics)] if number % 2 else None
        answer = asked(name).find(topic=topic, since=since_ms, until=until_ms, limit=None)
        assert offsets(answer) == known.window(since_ms, until_ms, topic=topic)
        check_receipt(answer, name)


@pytest.mark.parametrize("name", ALL)
def test_tags_and_queues_filter(asked, judge, name):
    known = judge(name)
    tagged = [record for record in known.records if record.tags and record.keys and not is_system_topic(record.topic)]
    for record in Random(name).sample(tagged, min(30, len(tagged))):
        key = record.keys[0]
        answer = asked(name).find(key=key, tag=record.tags, topic=record.topic, queue=record.queue, limit=None)
        wanted = [
            other.physical_offset
            for other in find(known.records, key=key, topic=record.topic)
            if (other.tags, other.queue) == (record.tags, record.queue)
        ]
        assert offsets(answer) == wanted
        assert record.physical_offset in wanted


@pytest.mark.parametrize("name", few_fast(ALL))
def test_several_keys_give_the_messages_that_bear_any_of_them_once(asked, judge, name):
    known = judge(name)
    keys = known.hot_keys[:3] + sorted(known.by_key)[:4]
    wanted = sorted({offset for key in keys for offset in known.by_key[key]}, reverse=True)
    assert offsets(asked(name).find(key=keys, limit=None)) == wanted
    assert offsets(asked(name).find(key=keys, limit=None, scan=True)) == wanted
    assert offsets(asked(name).find(key=keys, limit=None, oldest_first=True)) == wanted[::-1]


def pages(store, limit, **question):
    """All pages of an answer, following the cursors."""
    given = []
    cursor = None
    while True:
        answer = store.find(limit=limit, cursor=cursor, **question)
        given.append(offsets(answer))
        assert answer.receipt.truncated is (answer.cursor is not None)
        cursor = answer.cursor
        if cursor is None:
            return given
        assert len(answer) == limit


@pytest.mark.parametrize("name", few_fast(ALL))
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_pages_give_the_whole_answer_with_nothing_lost_or_doubled(asked, judge, name, limit):
    known = judge(name)
    keys = known.hot_keys[2:5] if limit == 1 else known.hot_keys[:3]
    for key in keys:
        wanted = known.by_key[key]
        for question in ({"key": key}, {"key": key, "scan": True}):
            found = pages(asked(name), limit, **question)
            assert [offset for page in found for offset in page] == wanted
            assert len(found) == -(-len(wanted) // limit)
        found = pages(asked(name), limit, key=key, oldest_first=True)
        assert [offset for page in found for offset in page] == wanted[::-1]


@pytest.mark.parametrize("name", ALL)
def test_pages_of_a_window_give_all_of_it(asked, judge, name):
    known = judge(name)
    since_ms, until_ms = known.records[20].store_timestamp_ms, known.records[60].store_timestamp_ms
    wanted = known.window(since_ms, until_ms)
    for oldest_first in (False, True):
        found = pages(asked(name), 7, since=since_ms, until=until_ms, oldest_first=oldest_first)
        assert [offset for page in found for offset in page] == (wanted[::-1] if oldest_first else wanted)


@pytest.mark.parametrize("name", sorted(set(ALL) - set(DAMAGED)))
def test_an_id_is_answered_from_any_topic_and_a_key_is_not(asked, judge, name):
    """Half and delayed messages lie in system topics, under the id of the message that follows them."""
    hidden = [record for record in judge(name).records if is_system_topic(record.topic) and record.unique_id]
    for record in hidden[:10]:
        if not record.is_rollback:
            assert record.physical_offset in offsets(asked(name).find(id=record.unique_id))
        assert offsets(asked(name).find(offset=record.physical_offset)) == [record.physical_offset]


def test_an_offset_id_may_be_written_in_small_letters(asked, judge):
    record = judge("v5-clean").records[100]
    assert offsets(asked("v5-clean").find(id=record.offset_id.lower())) == [record.physical_offset]


CLOCK = [0, 5_000, 4_000, 4_000, 9_999, 3_000, 10_000, 10_001, -2_000, 12_000]  # it stepped back three times


@pytest.mark.parametrize("items", [4, 7, 200])
@pytest.mark.parametrize("indexed", [0, 6, None])
def test_windows_are_exact_where_the_clock_stepped_back(tmp_path, items, indexed):
    made = make_store(tmp_path, [message(keys="k", at=at) for at in CLOCK], items=items, indexed=indexed)
    known = Judge(made.records)
    edges = [None, *sorted({T + at + step for at in CLOCK for step in (-1, 0, 1)})]
    with whence.open(tmp_path) as store:
        for since_ms in edges:
            for until_ms in edges:
                if since_ms is not None and until_ms is not None and since_ms > until_ms:
                    continue
                wanted = known.window(since_ms, until_ms)
                assert offsets(store.find(key="k", since=since_ms, until=until_ms)) == wanted
                assert offsets(store.find(since=since_ms, until=until_ms)) == wanted
