"""Java's string hash and Java's reading of UTF-8: what an index built by a JVM stands on.

    hash(text)  h = 0; for each UTF-16 unit u of text: h = 31 * h + u, modulo 2**32, read as a signed i4
    key hash    hash(topic + "#" + key) without its sign; 0 if it is -2**31, which has no positive twin

A character beyond U+FFFF counts as the two surrogates that Java keeps for it, never as one number.
"""

from __future__ import annotations

import re

# The hash is a number in base 31 whose digits go up to 255. Such a digit c is 31 * (c // 31) + c % 31, so two
# numbers with proper digits add up to it, and int() reads those in C: 0.8 us for 40 characters, where the
# loop of the definition takes 3.3 us.
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_LOW_DIGIT = bytes(_DIGITS[c % 31] for c in range(256))
_HIGH_DIGIT = bytes(_DIGITS[c // 31] for c in range(256))
_STRIDE = 128  # int() takes quadratic time, so long texts go in parts


def java_hash(text: str) -> int:
    """``text.hashCode()`` in Java: signed, 32 bits."""
    if text.isascii():
        h = _hash_bytes(text.encode("ascii"))
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        h = (_hash_bytes(units[0::2]) << 8) + _hash_bytes(units[1::2])
    h &= 0xFFFFFFFF
    return h - 2**32 if h >= 2**31 else h


def fold_hash(h: int) -> int:
    """The hash as an item keeps it: without its sign."""
    return 0 if h == -(2**31) else abs(h)


def key_hash(topic: str, key: str) -> int:
    """What an index file stores for ``key`` of ``topic``; a unique id is hashed like a key."""
    return fold_hash(java_hash(f"{topic}#{key}"))


def tag_hash(topic: str, tags: str) -> int:
    """What an index file since RocketMQ 5.4 stores for the tags of a message."""
    return key_hash(topic, "T#" + tags)


def _hash_bytes(units: bytes) -> int:
    """The hash of units below 256, not yet reduced to 32 bits."""
    if len(units) <= _STRIDE:
        if not units:
            return 0
        return int(units.translate(_LOW_DIGIT), 31) + 31 * int(units.translate(_HIGH_DIGIT), 31)
    h = 0
    for start in range(0, len(units), _STRIDE):
        part = units[start : start + _STRIDE]
        h = (h * pow(31, len(part), 2**32) + _hash_bytes(part)) & 0xFFFFFFFF
    return h


def decode_java_utf8(data: bytes | bytearray | memoryview) -> str:
    """``new String(data, UTF_8)`` in Java, malformed input included.

    Java and Python put one U+FFFD for the same malformed bytes, with one exception: an encoded surrogate
    (ED A0..BF xx) is one fault of three bytes to Java, and three faults of one byte to Python. How many
    there are matters, since the hash of a key counts each.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        # ED begins a character and never goes on with one, so it can be told without decoding; FF is one fault.
        return _ENCODED_SURROGATE.sub(b"\xff", bytes(data)).decode("utf-8", "replace")


_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
