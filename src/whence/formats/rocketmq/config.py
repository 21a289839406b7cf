"""The JSON files in ``config/``: topics, consumer offsets, groups.

JSON as fastjson writes it, which is more than JSON: the keys of a Java map of numbers stand there without
quotes, and a few escapes are its own.

    {"offsetTable":{"orders@billing":{0:12,1:7}},"dataVersion":{"counter":3}}

A key is text however it was written, so ``{0:12}`` and ``{"0":12}`` are the same; of two equal keys the later
counts. Unknown members are kept. Reading takes time in proportion to the text, and text that is nested too
deep is refused before Python's own limit. Follows fastjson 1.2.83 (RocketMQ up to 5.3) and fastjson2 2.0.59.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from whence.errors import CorruptError, TruncatedError, UsageError
from whence.formats.hashing import decode_java_utf8

DEPTH_MAX = 64  # the deepest file of RocketMQ's nests 5

_SPACE = re.compile(r"[ \t\r\n\f\b]*+")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_$.+-]++")
_NUMBER = re.compile(r"-?+(?:0|[1-9][0-9]*+)(\.[0-9]++)?+([eE][+-]?+[0-9]++)?+")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED = {
    **{char: char for char in "\"'\\/"},
    **dict(zip("bfnrtv", "\b\f\n\r\t\v", strict=True)),
    **{str(number): chr(number) for number in range(8)},
}
_WORDS = {"true": True, "false": False, "null": None}
_DIGITS_MAX = 4000  # below Python's own limit for the text of an int


def decode_config(data: bytes | str) -> dict[str, Any]:
    """The object that is the whole of ``data``."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    # One character a byte until a string is met: positions are then those of bytes, and no byte is an error.
    text = data.decode("latin-1")
    start = _skip(text, 0)
    if start == len(text):
        raise TruncatedError("config is empty", position=start)
    if text[start] != "{":
        raise CorruptError(f"config begins with {text[start]!r}, not with an object", position=start)
    value, end = _decode_object(text, start, 1)
    if _skip(text, end) != len(text):
        raise CorruptError("config goes on behind its end", position=end)
    return value


def encode_config(config: Mapping[str, Any]) -> bytes:
    """``config`` as RocketMQ reads it, and much as it writes it: an int as a key has no quotes.

    What is not ASCII is escaped, for a JVM before 18 reads these files in the character set of its machine.
    """
    return _encode(config, "\n").encode("ascii")


def _decode_value(text: str, start: int, depth: int) -> tuple[Any, int]:
    first = text[start : start + 1]
    if first == '"':
        return _decode_string(text, start)
    if first == "{":
        return _decode_object(text, start, depth + 1)
    if first == "[":
        return _decode_array(text, start, depth + 1)
    number = _NUMBER.match(text, start)
    if number is not None:
        return _decode_number(number), number.end()
    for word, value in _WORDS.items():
        if text.startswith(word, start):
            return value, start + len(word)
    raise _unexpected(text, start, "a value")


def _decode_object(text: str, start: int, depth: int) -> tuple[dict[str, Any], int]:
    _check_depth(depth, start)
    members: dict[str, Any] = {}
    position = _skip(text, start + 1)
    if text.startswith("}", position):
        return members, position + 1
    while True:
        if text.startswith('"', position):
            key, position = _decode_string(text, position)
        else:
            bare = _BARE_KEY.match(text, position)
            if bare is None:
                raise _unexpected(text, position, "a key")
            key, position = bare[0], bare.end()
        position = _skip(text, position)
        if not text.startswith(":", position):
            raise _unexpected(text, position, "':'")
        members[key], position = _decode_value(text, _skip(text, position + 1), depth)
        position, is_end = _next_member(text, position, "}")
        if is_end:
            return members, position


def _decode_array(text: str, start: int, depth: int) -> tuple[list[Any], int]:
    _check_depth(depth, start)
    values: list[Any] = []
    position = _skip(text, start + 1)
    if text.startswith("]", position):
        return values, position + 1
    while True:
        value, position = _decode_value(text, position, depth)
        values.append(value)
        position, is_end = _next_member(text, position, "]")
        if is_end:
            return values, position


def _next_member(text: str, position: int, closing: str) -> tuple[int, bool]:
    """The position behind a comma, or behind the closing bracket."""
    position = _skip(text, position)
    if text.startswith(closing, position):
        return position + 1, True
    if text.startswith(",", position):
        return _skip(text, position + 1), False
    raise _unexpected(text, position, f"',' or {closing!r}")


def _decode_string(text: str, start: int) -> tuple[str, int]:
    string = _STRING.match(text, start)
    if string is None:
        raise TruncatedError("a string does not end", position=start)
    content = string[1]
    if not content.isascii():
        content = decode_java_utf8(content.encode("latin-1"))
    if "\\" in content:
        content = _unescape(content, start)
    return content, string.end()


def _unescape(content: str, start: int) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2]
        if code is not None:
            return chr(int(code, 16))
        if escape[3] not in _ESCAPED:
            raise CorruptError(f"unknown escape {escape[0]!r} in a string", position=start)
        return _ESCAPED[escape[3]]

    # Escaped surrogates come in pairs; going through UTF-16 makes one character of each pair.
    units = _ESCAPE.sub(character, content).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass")


def _decode_number(number: re.Match[str]) -> int | float:
    if number[1] is not None or number[2] is not None:
        return float(number[0])
    if len(number[0]) > _DIGITS_MAX:
        raise CorruptError(f"number of {len(number[0])} digits", position=number.start())
    return int(number[0])


def _skip(text: str, position: int) -> int:
    """The position behind white space."""
    space = _SPACE.match(text, position)
    assert space is not None, "no space at all matches too"
    return space.end()


def _check_depth(depth: int, position: int) -> None:
    if depth > DEPTH_MAX:
        raise CorruptError(f"nested more than {DEPTH_MAX} deep", position=position)


def _unexpected(text: str, position: int, wanted: str) -> CorruptError | TruncatedError:
    if position >= len(text):
        return TruncatedError(f"config ends where {wanted} is due", position=position)
    return CorruptError(f"{text[position]!r} where {wanted} is due", position=position)


def _encode(value: Any, newline: str) -> str:
    deeper = newline + "\t"
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        members = (f"{_encode_key(key)}:{_encode(member, deeper)}" for key, member in value.items())
        return "{" + deeper + f",{deeper}".join(members) + newline + "}"
    if isinstance(value, list | tuple):
        if not value:
            return "[]"
        return "[" + deeper + f",{deeper}".join(_encode(member, deeper) for member in value) + newline + "]"
    if value is None or isinstance(value, str | bool | int | float):
        try:
            return json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise UsageError(f"{value} cannot be written as JSON") from error
    raise UsageError(f"{value!r} cannot be written as JSON")


def _encode_key(key: Any) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if isinstance(key, str):
        return json.dumps(key)
    raise UsageError(f"{key!r} cannot be a key in JSON")
