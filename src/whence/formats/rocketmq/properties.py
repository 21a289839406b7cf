"""The properties of a message: names and values in one string.

    properties := (name 01 value 02)*                                 UTF-8

RocketMQ 4.9 leaves out the 02 at the very end, 5.x writes it. The order means nothing (it is that of a Java
hash map), so two equal sets of properties may lie on disk in different bytes.

Reading cuts the text at each 02 and each piece at its first 01. A piece without a 01, with no name or with no
value is skipped in silence, and of two pieces with one name the later one counts. Follows RocketMQ 5.5
MessageDecoder.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from whence.errors import UsageError
from whence.formats.hashing import decode_java_utf8

NAME_END = "\x01"
VALUE_END = "\x02"
PROPERTIES_SIZE_MAX = 32767  # the size is an i2

# RocketMQ's names of the properties that whence gives a meaning to.
KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_ID = "UNIQ_KEY"
RECORD_CRC = "__CRC32#"
DELAY_LEVEL = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_ID = "ORIGIN_MESSAGE_ID"
TRANSACTION_ID = "__transactionId__"
INNER_COUNT = "INNER_NUM"
INNER_BASE = "INNER_BASE"
LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
LIGHT_QUEUE_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
WAIT = "WAIT"


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The properties as RocketMQ reads them, in the order of the bytes. Any bytes can be read."""
    properties = {}
    for piece in decode_java_utf8(data).split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The properties as RocketMQ 5.x writes them. What could not be read back is refused."""
    data = encode_text(join_properties(properties))
    if len(data) > PROPERTIES_SIZE_MAX:
        raise UsageError(f"properties take {len(data)} bytes; {PROPERTIES_SIZE_MAX} fit")
    return data


def join_properties(properties: Mapping[str, str]) -> str:
    """The text of the properties, however long it is."""
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"property {name!r} = {value!r}: name and value must be texts")
        if not name or not value or NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise UsageError(
                f"property {name!r} = {value!r} cannot be stored: name and value must not be empty, "
                "nor hold the bytes 01 (in the name) and 02, which separate them"
            )
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items())


def encode_text(text: str) -> bytes:
    """The bytes of a text of properties."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"a property holds half a character (a lone surrogate): {text!r}") from error


def split_keys(keys: str) -> list[str]:
    """The keys in a KEYS property, as the broker indexes them: cut at each space, in order, repeats kept."""
    return [key for key in keys.split(" ") if key]
