"""The hashes of fields' values: SHA-256 as hashlib has it, Java's as the twin has it."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import key_hash
from whence.kernels.field_values import LANES, SCRATCH_MIN, SHORT_MAX, hash_values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=90)


def hashed(rows: list[tuple[str, list[str]]]) -> tuple[list[int], list[bytes]]:
    """The hashes of the values of rows: a topic and its values each."""
    topics = [topic.encode() for topic, _ in rows]
    values = [value.encode() for _, each in rows for value in each]
    counts = np.array([len(each) for _, each in rows], np.int64)
    scratch = np.empty(SCRATCH_MIN + max(map(len, topics), default=0) + max(map(len, values), default=0), np.uint8)
    hashes, bits = np.empty(len(values), np.int32), np.empty((len(values), 16), np.uint8)
    hash_values(*columns(topics), counts, *columns(values), scratch, hashes, bits)
    return hashes.tolist(), [row.tobytes() for row in bits]


def columns(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return ends[:-1], ends[1:], np.frombuffer(b"".join(texts) or b"\0", np.uint8)


def check(rows: list[tuple[str, list[str]]]) -> None:
    texts = [(topic, value) for topic, values in rows for value in values]
    hashes, bits = hashed(rows)
    assert hashes == [key_hash(*text) for text in texts]
    assert bits == [hashlib.sha256("#".join(text).encode()).digest()[:16] for text in texts]


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=4)), max_size=3 * LANES))
def test_values_are_hashed_with_their_topics(rows):
    check(rows)


@pytest.mark.parametrize("count", [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES])
def test_any_number_of_values_is_hashed(count):
    check([("T", [f"value-{number}" for number in range(count)]), ("none", [])])


@pytest.mark.parametrize("first", [0, 40, 110, SHORT_MAX - 12, 5000])
def test_values_of_any_length_are_hashed_among_others(first):
    """One block of SHA-256 ends 9 bytes behind a text; a long text takes the room of several lanes."""
    check([("topic", ["v" * size for size in range(first, first + 80)]), ("t", ["short", "x" * 3000, "", "y" * 300])])
