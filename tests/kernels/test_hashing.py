"""Java's string hash over UTF-8 bytes: the kernel, its twin, and Java itself."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.maven import java_program
from tests.reference import decode_java_utf8
from tests.reference import fold_hash as fold_hash_twin
from tests.reference import java_hash as java_hash_twin
from whence.kernels.hashing import BLOCK, fold_hash, java_hash

TEXTS = st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)
MALFORMED = st.lists(st.sampled_from(b"A\x7f\x80\x8f\x9f\xa0\xbf\xc1\xc2\xe0\xed\xef\xf0\xf4\xf5\xff")).map(bytes)


def hash_of(text: bytes, before: bytes = b"", behind: bytes = b"") -> int:
    return java_hash(np.frombuffer(before + text + behind, np.uint8), len(before), len(text))


@pytest.mark.parametrize("size", range(3 * BLOCK + 2))
def test_ascii_of_any_size_at_any_place_is_hashed_alike(size: int):
    text = bytes(ord(" ") + 7 * i % 95 for i in range(size))
    expected = java_hash_twin(text.decode())
    for front in (b"", b"\xff", b"~" * 8, b"\xff" * (BLOCK - 1), b"x" * BLOCK, b"\xff" * (BLOCK + 5)):
        assert hash_of(text, front) == expected
        assert hash_of(text, front, b"\xff" * 70) == expected


@given(st.binary(max_size=100) | TEXTS | MALFORMED, st.sampled_from([b"", b"topic#", b"\xc3" * BLOCK]))
def test_any_bytes_hash_as_java_decodes_them(text: bytes, before: bytes):
    assert hash_of(text, before) == java_hash_twin(decode_java_utf8(text))


@pytest.mark.parametrize("at", range(2 * BLOCK + 1))
def test_one_byte_beyond_ascii_is_noticed_wherever_it_is(at: int):
    text = b"a" * at + "é".encode() + b"z" * (2 * BLOCK - at)
    assert hash_of(text, b" " * BLOCK) == java_hash_twin(text.decode())


@given(st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 1]))
def test_items_keep_the_hash_without_its_sign(h: int):
    assert fold_hash(h) == fold_hash_twin(h)


# The least and greatest byte of each kind that a UTF-8 decoder tells apart.
KINDS = bytes.fromhex("0241 7f 80 8f 90 9f a0 bf c0 c1 c2 c3 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 fc ff")


@pytest.mark.compat
@pytest.mark.slow
def test_java_itself_hashes_malformed_bytes_alike():
    """All texts of up to three such bytes, and all of four that begin as a character of four bytes."""
    texts = [bytes(text) for size in range(4) for text in itertools.product(KINDS, repeat=size)]
    texts += [bytes(text) for text in itertools.product(b"\xf0\xf1\xf4\xf5", KINDS, KINDS, b"\x02\x80\xbf\xc2\xff")]
    with java_program("JavaStrings") as ask:
        answers = ask([text.hex() for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        assert hash_of(text, bytes(BLOCK)) == int(answer.split(" ")[1]), text.hex(" ")
