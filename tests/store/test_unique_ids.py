"""Ids that the store gives: of the kind that Apache's clients make, and none of them twice."""

from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.formats.rocketmq.ids import UniqueId, decode_unique_id
from whence.store.unique_ids import UniqueIds, id_texts

NOW = int(datetime(2023, 1, 14, 22, 13, 20).timestamp() * 1000)
IN_MONTH = (13 * 86_400 + 22 * 3600 + 13 * 60 + 20) * 1000  # since the first of January, in the machine's zone


@pytest.mark.parametrize(("address", "size"), [("10.0.0.7", 32), ("2001:db8::1", 56)])
def test_an_id_tells_where_and_when_it_was_made(address, size):
    ids = UniqueIds(address, pid=65536 + 42, loader_hash=6)
    first, second = ids.take(NOW), ids.take(NOW)
    assert len(first) == ids.size == size
    assert decode_unique_id(first) == UniqueId(address, 42, 7, IN_MONTH, 0)
    assert decode_unique_id(second) == UniqueId(address, 42, 7, IN_MONTH, 1)
    assert decode_unique_id(ids.take(NOW + 5)) == UniqueId(address, 42, 7, IN_MONTH + 5, 0)


def test_the_time_in_an_id_runs_ahead_where_a_millisecond_has_too_many():
    ids = UniqueIds("127.0.0.1", 1, 6)
    ids.take_many(NOW, 65_536)
    assert decode_unique_id(ids.take(NOW)) == UniqueId("127.0.0.1", 1, 7, IN_MONTH + 1, 0)
    assert decode_unique_id(ids.take(NOW + 1)) == UniqueId("127.0.0.1", 1, 7, IN_MONTH + 1, 1)
    for _ in range(65_534):
        ids.take(NOW)
    assert decode_unique_id(ids.take(NOW)) == UniqueId("127.0.0.1", 1, 7, IN_MONTH + 2, 0)


def test_a_new_month_begins_at_zero_under_another_prefix():
    ids = UniqueIds("127.0.0.1", 1, 2**31 - 2)
    february = NOW - IN_MONTH + 31 * 86_400_000
    before, after = decode_unique_id(ids.take(february - 1)), decode_unique_id(ids.take(february))
    assert before == UniqueId("127.0.0.1", 1, 2**31 - 1, 31 * 86_400_000 - 1, 0)
    assert after == UniqueId("127.0.0.1", 1, -(2**31), 0, 0)
    assert decode_unique_id(ids.take(february - 1)) == UniqueId("127.0.0.1", 1, -(2**31), 0, 1), "time stepped back"


@given(st.lists(st.tuples(st.integers(-3, 3 * 86_400_000 * 31), st.integers(1, 200_000)), max_size=8))
def test_no_id_is_given_twice_whatever_the_clock_does(steps):
    ids = UniqueIds("127.0.0.1")
    stretches = []
    for delay_ms, count in steps:
        prefix, first = ids.take_many(NOW + delay_ms, count)
        one = ids.take(NOW)
        stretches += [(prefix, first, first + count), (one[:-12], int(one[-12:], 16), int(one[-12:], 16) + 1)]
    stretches.sort()
    for (prefix, _, end), (next_prefix, begin, _) in pairwise(stretches):
        assert prefix != next_prefix or end <= begin


def test_many_ids_at_once_are_those_that_come_one_by_one():
    one_by_one, at_once = UniqueIds("127.0.0.1", 1, 6), UniqueIds("127.0.0.1", 1, 6)
    texts = [one_by_one.take(NOW) for _ in range(5)]
    assert id_texts(*at_once.take_many(NOW, 2), 2) == texts[:2]
    assert at_once.take(NOW) == texts[2]
    assert id_texts(*at_once.take_many(NOW, 2), 2) == texts[3:]
