"""Candidates, held against the twin's reading of the records that they lead to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import Record, decode_java_utf8
from tests.strategies import KEYS, log_files, property_blobs
from whence.kernels.candidates import (
    ANY,
    BEARS,
    EVER,
    NOT_WHOLE,
    OTHER_KEY,
    ROW,
    Checker,
    Fit,
    order_by_key,
    take_rows,
)
from whence.lookup.asked_keys import AskedKeys, read_keys

NO_TAG = np.empty(0, np.bool_)


def key_blobs() -> st.SearchStrategy[bytes]:
    """Properties of any bytes, many of them with keys."""
    words = st.lists(KEYS | st.just(""), max_size=4).map(" ".join)
    return st.builds(lambda keys, rest: b"KEYS\x01" + keys.encode() + b"\x02" + rest, words, property_blobs())


def asked(*keys: str) -> AskedKeys:
    (piece,) = read_keys(list(keys))
    return piece


def check(checker: Checker, data: bytes, base_offset: int, pairs: list[tuple[int, int]], keys: AskedKeys):
    """Check candidates, each a number of a key and an offset; gives their topics."""
    numbers, offsets = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    file = np.frombuffer(data, np.uint8)
    bad_count, topics = checker.check(file, base_offset, numbers, offsets, keys.data, keys.starts, keys.sizes)
    assert bad_count == (checker.found[: len(pairs)] == NOT_WHOLE).sum()
    return topics


@given(log_files(blobs=key_blobs()), st.lists(KEYS, min_size=1, max_size=3), st.randoms())
def test_a_candidate_is_what_its_record_says(made: tuple[bytes, int, list[Record]], others: list[str], random):
    data, base_offset, placed = made
    borne = [key for record in placed for key in record.keys]
    keys = asked(*others, *borne[:20])
    records = {record.physical_offset: record for record in placed}
    offsets = [*records, base_offset - 1, base_offset + 5, base_offset + len(data)]
    pairs = [(random.randrange(len(keys)), offset) for offset in sorted(random.choices(offsets, k=40))]
    checker = Checker(40)
    topics = check(checker, data, base_offset, pairs, keys)
    expected, rows = [], []
    for number, offset in pairs:
        record = records.get(offset)
        bears = record is not None and keys.key(number) in record.keys
        expected.append(NOT_WHOLE if record is None else BEARS if bears else OTHER_KEY)
        if record is not None and bears:
            size = int.from_bytes(data[offset - base_offset :][:4], "big")
            topic = 100 + [decode_java_utf8(topic) for topic in topics].index(record.topic)
            times = record.store_timestamp_ms, record.queue_offset
            rows.append((number, offset, *times, size, record.queue, topic, 7))
    assert checker.found.tolist() == expected
    assert sorted(map(decode_java_utf8, topics)) == sorted({records[at].topic for _, at in pairs if at in records})
    out = np.empty(40, ROW)
    numbers, are_fit = np.arange(100, 100 + len(topics), dtype=np.int32), np.ones(len(topics), np.bool_)
    put = checker.put(40, numbers, are_fit, Fit(ANY, ANY, EVER), NO_TAG, 7, out)
    assert put == (len(rows), len(rows) > 0, False, False)
    assert out[: put.rows].tolist() == rows


@given(log_files(), st.integers(-1, 3), st.booleans(), st.booleans())
def test_what_answers_has_topic_queue_time_and_tag(made, queue, with_tag, is_fit):
    data, base_offset, placed = made
    borne = [(key, record) for record in placed for key in record.keys]
    if not borne:
        return
    keys = asked(*dict.fromkeys(key for key, _ in borne))
    pairs = [(keys.number(key), record.physical_offset) for key, record in borne]
    checker = Checker(len(pairs))
    topics = check(checker, data, base_offset, pairs, keys)
    fits = np.array([is_fit or number % 2 == 0 for number in range(len(topics))], np.bool_)
    times = sorted(record.store_timestamp_ms for _, record in borne)
    since, until = times[len(times) // 3], times[-1 - len(times) // 3]
    wanted = borne[0][1].tags
    tags = NO_TAG
    if with_tag and wanted:
        tags = checker.have_tag(np.frombuffer(data, np.uint8), base_offset, len(pairs), wanted)
    queue = ANY if queue < 0 else borne[min(queue, len(borne) - 1)][1].queue
    out = np.empty(len(pairs), ROW)
    numbers = np.arange(len(topics), dtype=np.int32)
    put = checker.put(len(pairs), numbers, fits, Fit(queue, since, until), tags, 0, out)

    names = [decode_java_utf8(topic) for topic in topics]
    left = [pair for pair in borne if fits[names.index(pair[1].topic)]]
    assert put.topic_seen == bool(left)
    left = [pair for pair in left if queue in (ANY, pair[1].queue)]
    inside = [pair for pair in left if since <= pair[1].store_timestamp_ms <= until]
    assert put.is_outside == (len(inside) < len(left))
    answers = [pair for pair in inside if not len(tags) or pair[1].tags == wanted]
    assert put.is_filtered == (len(answers) < len(inside))
    found = out[: put.rows]
    assert list(zip(map(keys.key, found["key_number"]), found["physical_offset"], strict=True)) == [
        (key, record.physical_offset) for key, record in answers
    ]


@given(st.lists(st.tuples(st.integers(3, 9), st.integers(0, 20))), st.booleans())
def test_rows_by_key_come_from_the_last_to_the_first_and_once(pairs, oldest_first):
    pairs.sort(key=lambda pair: pair[1])
    rows = np.zeros(len(pairs), ROW)
    rows["key_number"], rows["physical_offset"] = np.array(pairs, np.int64).reshape(-1, 2).T
    rows["store"] = np.arange(len(pairs))
    order = np.empty(len(pairs), np.int64)
    order = order[: order_by_key(rows, 3, oldest_first, np.zeros(8, np.int64), order)]
    sign = 1 if oldest_first else -1
    taken = np.empty(len(order), ROW)
    take_rows(rows, order, taken)
    assert taken.tolist() == rows[order].tolist()
    found = taken[["key_number", "physical_offset"]].tolist()
    assert found == sorted(set(pairs), key=lambda pair: (pair[0], sign * pair[1]))
