"""Field values: beside each index file of a field, a hash of every item's value. whence's own.

    file := hash*             hash i, at 16 * i, belongs to item i of the index file of the same name

    hash    16 bytes: the first of SHA-256 over "topic#value" in UTF-8

Item 0 is never used, and its hash is zeros. An index file knows 31 bits of a value, and the message itself does not
show it without the expression: so these 128 bits decide whether an item is a hit.
"""

from __future__ import annotations

VALUE_HASH_SIZE = 16


def value_hash(topic: str, value: str) -> bytes:
    """What stands beside an item whose message of ``topic`` has this value."""
    import hashlib  # takes 3 ms to load, and few questions ask for a field

    return hashlib.sha256(f"{topic}#{value}".encode()).digest()[:VALUE_HASH_SIZE]


def values_position(number: int) -> int:
    """Where the hash of item ``number`` begins; also the size of a file whose items are numbered below it."""
    return VALUE_HASH_SIZE * number
