"""Java's hash and Java's UTF-8, held against the worked examples, the twin, and a real JDK."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import reference
from tests.compat.maven import java_program
from whence.formats.hashing import decode_java_utf8, fold_hash, java_hash, key_hash, tag_hash

SMALLEST = -(2**31)

# topic, key, hash of "topic#key", hash in the item
KEYS = [
    ("TopicTest", "MessageKey", 638347386, 638347386),
    ("TopicTest", "OrderID188", -1231271670, 1231271670),
    ("TopicTest", "订单-2024-0001", 309183062, 309183062),
    ("TopicTest", "🚀launch", 426388312, 426388312),
    ("", "a", 1182, 1182),
    ("", "", 35, 35),
    ("T", "Aa", 2538191, 2538191),
    ("T", "BB", 2538191, 2538191),
    ("%RETRY%grp", "é", 995969801, 995969801),
    ("TopicTest", "peTzWR", -2121050120, 2121050120),
    ("TopicTest", "oKNIEt", 2121050120, 2121050120),
    ("TopicTest", "UaAahTbH", SMALLEST, 0),
    ("", "SCgR9MYG", SMALLEST, 0),
]

# What Java makes of malformed bytes: how many U+FFFD there are is what matters.
MALFORMED = [
    (b"\xff", "\ufffd"),
    (b"\xc0\x80", "\ufffd\ufffd"),  # overlong
    (b"\xe4\xbd", "\ufffd"),  # a sequence that is cut
    (b"\xe4\xbdA", "\ufffdA"),
    (b"\xf0\x9f\x9a", "\ufffd"),
    (b"\xed\xa0\x80", "\ufffd"),  # an encoded surrogate: Python counts three faults here
    (b"\xed\xa0", "\ufffd"),
    (b"\xed\xa0A", "\ufffdA"),
    (b"\xed\xa0\xed\xb0\x80", "\ufffd\ufffd"),
    (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),  # beyond U+10FFFF
]


@pytest.mark.parametrize(("topic", "key", "h", "in_item"), KEYS)
def test_worked_examples(topic, key, h, in_item):
    assert java_hash(f"{topic}#{key}") == h
    assert fold_hash(h) == in_item
    assert key_hash(topic, key) == in_item


def test_the_hash_of_no_text_is_0():
    assert java_hash("") == 0
    assert java_hash("polygenelubricants") == SMALLEST


def test_a_tag_is_hashed_as_a_key_behind_T():
    assert tag_hash("orders", "paid") == key_hash("orders", "T#paid")


@given(st.text(alphabet=st.characters(exclude_categories=())))
@example("\ud800")
@example("\udc00\ud800" * 100)
@example("a" * 127 + "é" + "z" * 128)
@example("x" * 32767)
def test_hash_equals_its_definition(text):
    assert java_hash(text) == reference.java_hash(text)


@pytest.mark.parametrize(("data", "text"), MALFORMED)
def test_malformed_bytes_become_as_many_replacements_as_in_java(data, text):
    assert decode_java_utf8(data) == text
    assert decode_java_utf8(b"<" + data + b">") == f"<{text}>"


@given(st.text())
def test_what_is_well_formed_comes_back(text):
    assert decode_java_utf8(text.encode("utf-8")) == text


@given(st.binary(max_size=40))
def test_reading_of_any_bytes_equals_the_twin(data):
    assert decode_java_utf8(data) == reference.decode_java_utf8(data)


def crafted_bytes(count: int) -> list[bytes]:
    """Byte strings in which most sequences are almost right."""
    source = random.Random(20260101)
    parts = [
        *(bytes([byte]) for byte in (0x00, 0x01, 0x02, 0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF)),
        *(bytes([byte]) for byte in (0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xF8, 0xFF)),
        *(text.encode("utf-8") for text in ("é", "订", "🚀", "\ufffd", "\U0010ffff")),
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
    ]
    strings = [b"".join(source.choices(parts, k=source.randrange(1, 9))) for _ in range(count - len(MALFORMED))]
    return [data for data, _ in MALFORMED] + strings


@pytest.mark.compat
def test_hash_and_reading_equal_a_real_jdk():
    strings = crafted_bytes(10_000)
    with java_program("JavaStrings") as ask:
        answers = ask([data.hex() for data in strings])
    for data, answer in zip(strings, answers, strict=True):
        units, h = answer.split(" ")
        text = decode_java_utf8(data)
        assert (text.encode("utf-16-be", "surrogatepass").hex(), java_hash(text)) == (units, int(h)), data.hex()
