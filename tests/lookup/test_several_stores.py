"""Several stores, asked as one: one answer, merged by store time, with a receipt for each."""

from pathlib import Path

import pytest

from tests.lookup.judge import offsets
from tests.pipeline.test_build import SMALL, build
from tests.store_maker import T, make_store, message
from whence.door import open_stores
from whence.store.damage import DamageKind

# Two brokers' messages, in turns and at equal times.
AT = {"a": [0, 10, 10, 20, 40, 50, 90], "b": [5, 10, 30, 30, 45, 95, 95, 99], "c": [], "d": [50, 50, 50]}


@pytest.fixture
def folders(tmp_path):
    for name, times in AT.items():
        records = [message(keys="k", unique_id=f"{name}{at}", at=at, tags=name) for at in times]
        make_store(tmp_path / name, [message(keys="first", at=-1), *records], items=6)
    return [tmp_path / name for name in AT]


def shown(answer):
    """``(store, time)`` of each message; the tag tells the store."""
    return [(found.tags, found.store_timestamp_ms - T) for found in answer]


WANTED = sorted(((name, at) for name, times in AT.items() for at in times), key=lambda pair: -pair[1])


def test_messages_are_merged_by_store_time_newest_first(folders):
    with open_stores(folders) as store:
        answer = store.find(key="k", limit=None)
    assert [at for _, at in shown(answer)] == [at for _, at in WANTED]
    assert sorted(shown(answer)) == sorted(WANTED)


def test_or_oldest_first(folders):
    with open_stores(folders) as store:
        answer = store.find(key="k", limit=None, oldest_first=True)
    assert [at for _, at in shown(answer)] == [at for _, at in reversed(WANTED)]


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize(
    "question", [{"key": "k"}, {"key": "k", "scan": True}, {"since": T}, {"topic": "T", "since": T}]
)
def test_pages_lose_and_double_nothing(folders, limit, oldest_first, question):
    with open_stores(folders) as store:
        whole = shown(store.find(**question, limit=None, oldest_first=oldest_first))
        assert sorted(whole) == sorted(WANTED)
        found, cursor = [], None
        while True:
            answer = store.find(**question, limit=limit, oldest_first=oldest_first, cursor=cursor)
            found += shown(answer)
            cursor = answer.cursor
            if cursor is None:
                break
            assert len(answer) == limit
    assert found == whole


def test_a_clock_that_stepped_back_in_one_store_loses_nothing(tmp_path):
    """Each log keeps its own order; the logs are merged by time."""
    for name, times in {"a": [10, 30, 20, 25, 5, 40], "b": [1, 22, 21, 50, 2]}.items():
        make_store(tmp_path / name, [message(keys="k", at=at, tags=name) for at in times])
    with open_stores([tmp_path / "a", tmp_path / "b"]) as store:
        whole = shown(store.find(key="k", limit=None))
        assert [at for name, at in whole if name == "a"] == [40, 5, 25, 20, 30, 10]
        assert [at for name, at in whole if name == "b"] == [2, 50, 21, 22, 1]
        found, cursor = [], None
        while True:
            answer = store.find(key="k", limit=2, cursor=cursor)
            found += shown(answer)
            cursor = answer.cursor
            if cursor is None:
                break
    assert found == whole


class TestReceipt:
    def test_has_one_entry_for_each_store(self, folders):
        with open_stores(folders) as store:
            receipt = store.find(key="k", limit=None).receipt
        assert [log.store for log in receipt.logs] == [str(folder) for folder in folders]
        assert [log.receipt.candidates for log in receipt.logs] == [len(times) for times in AT.values()]
        assert receipt.candidates == len(WANTED)
        assert receipt.complete
        for name in ("scanned_bytes", "index_files", "items_visited", "rejected", "index_files_skipped"):
            assert getattr(receipt, name) == sum(getattr(log.receipt, name) for log in receipt.logs)

    def test_of_one_store_has_none(self, folders):
        with open_stores(folders[:1]) as store:
            assert store.find(key="k").receipt.logs == []

    def test_names_the_store_in_json(self, folders):
        with open_stores(folders) as store:
            [first, *others] = store.find(key="k").to_dict()["receipt"]["logs"]
        assert next(iter(first)) == "store"
        assert first["store"] == str(folders[0])
        assert set(first) - {"store"} == set(store.find(key="k").to_dict()["receipt"])
        assert len(others) == 3

    def test_is_complete_only_if_every_store_s_is(self, tmp_path):
        make_store(tmp_path / "good", [message(keys="k")])
        made = make_store(tmp_path / "bad", [message(keys="k") for _ in range(160)])
        made.log_files[1].unlink()
        with open_stores([tmp_path / "good", tmp_path / "bad"]) as store:
            answer = store.find(key="k", limit=None)
            assert not answer.receipt.complete
            assert DamageKind.GAP in {damage.kind for damage in answer.receipt.damage}
            assert [log.receipt.complete for log in answer.receipt.logs] == [True, False]
            assert store.find(key="absent").receipt.why_empty == "damaged"

    @pytest.mark.parametrize("names", ["abn", "anb", "ban", "bna", "nab", "nba"])
    def test_claims_no_more_than_the_weakest_of_them_in_any_order(self, tmp_path, names):
        """A broker's index cannot prove that nothing was left out, nor its queues that they name every topic."""
        three = [message(keys="k") for _ in range(3)]
        for name in "ab":
            make_store(tmp_path / name, three)
        make_store(tmp_path / "n", three, indexed=0)
        build(tmp_path / "a", tmp_path / "a.whence", **SMALL)
        with open_stores([tmp_path / name for name in names]) as store:
            receipt = store.find(key="k").receipt
            sources = {Path(log.store).name: log.receipt.index_source for log in receipt.logs}
            assert sources == {"a": "whence", "b": "broker", "n": "none"}
            assert (receipt.index_source, receipt.topics_from) == ("broker", "broker")
            many = store.answer_many(["k"]).receipt
            assert (many.index_source, many.topics_from) == ("broker", "broker")
            assert store.find(key="k", topic="T").receipt.topics_from == "question"
            assert store.find(key="k", scan=True).receipt.index_source == "none"

    @pytest.mark.parametrize("names", ["an", "na"])
    def test_names_the_index_that_was_used_where_the_others_have_none(self, tmp_path, names):
        for name in names:
            make_store(tmp_path / name, [message(keys="k") for _ in range(3)], indexed=0)
        build(tmp_path / "a", tmp_path / "a.whence", **SMALL)
        with open_stores([tmp_path / name for name in names]) as store:
            receipt = store.find(key="k").receipt
        assert (receipt.complete, receipt.index_source, receipt.topics_from) == (True, "whence", "broker")

    def test_tells_why_all_of_them_are_empty(self, tmp_path):
        make_store(tmp_path / "a", [message(keys="k", topic="A", at=5)])
        make_store(tmp_path / "b", [message(keys="j", topic="B")])
        with open_stores([tmp_path / "a", tmp_path / "b"]) as store:
            assert store.find(key="absent").receipt.why_empty == "no_such_key"
            assert store.find(key="k", since=T + 6).receipt.why_empty == "outside_window"
            assert store.find(key="k", topic="C").receipt.why_empty == "no_such_topic"

    def test_a_topic_that_one_of_them_has_is_a_topic(self, tmp_path):
        make_store(tmp_path / "a", [message(keys="k", topic="A")])
        make_store(tmp_path / "b", [message(keys="j", topic="B")])
        with open_stores([tmp_path / "a", tmp_path / "b"]) as store:
            assert store.find(key="absent", topic="A").receipt.why_empty == "no_such_key"


def test_golden_stores_side_by_side_answer_as_they_do_alone(golden, judge):
    names = ("v4-clean", "v53-clean", "v5-clean")
    with open_stores([golden(name).store for name in names]) as store:
        for key in ("hot-key", "Aa", "BB", "rep", "order-1", "absent"):
            answer = store.find(key=key, limit=None)
            assert sorted(offsets(answer)) == sorted(
                offset for name in names for offset in judge(name).by_key.get(key, [])
            )
            times = [found.store_timestamp_ms for found in answer]
            assert times == sorted(times, reverse=True)


def test_topics_are_those_of_all(folders, tmp_path):
    make_store(tmp_path / "e", [message(topic="other")])
    with open_stores([*folders, tmp_path / "e"]) as store:
        assert store.topics() == ["T", "other"]


def test_one_store_twice_gives_each_message_twice(folders):
    """Nothing is guessed about what the caller gave."""
    with open_stores([folders[0], folders[0]]) as store:
        assert len(store.find(key="k", limit=None)) == 2 * len(AT["a"])


def test_growth_between_pages_loses_nothing_of_the_first_answer(tmp_path):
    """A store that had not given anything yet may show what came later, but never a message twice."""
    early = [message(keys="k", at=at, tags="a") for at in range(10)]
    make_store(tmp_path / "a", early)
    make_store(tmp_path / "b", [message(keys="k", at=-at, tags="b") for at in range(10, 0, -1)])
    with open_stores([tmp_path / "a", tmp_path / "b"]) as store:
        wanted = shown(store.find(key="k", limit=None))
        first = store.find(key="k", limit=3)
        grown = make_store(tmp_path / "grown", [*early, message(keys="k", at=1000, tags="a")])
        with (tmp_path / "a" / "commitlog" / f"{0:020d}").open("r+b") as writer:
            writer.write(grown.log_files[0].read_bytes())
        found, cursor = shown(first), first.cursor
        while cursor is not None:
            answer = store.find(key="k", limit=3, cursor=cursor)
            found += shown(answer)
            cursor = answer.cursor
    assert found == wanted
