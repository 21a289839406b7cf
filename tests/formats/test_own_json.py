"""The JSON documents that whence writes for itself, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from whence.errors import CorruptError, UnsupportedError, UsageError
from whence.formats.own_json import NUMBER_MAX, TEXT_MAX, TOLD_MAX, decode_own_json, number, text


def size_of(document: dict[str, Any]) -> int:
    return number(document["size"])


def test_members_that_are_not_known_are_passed_over() -> None:
    assert decode_own_json(b'{"version": 1, "size": 5, "colour": "red"}', 2, size_of) == 5


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b'{"version": 1, "size": \xff}', 23),
        (b'{"version": 1, "size": }', 23),
        (b"[]", 0),
        (b"null", 0),
        (b'{"size": 5}', 0),
        (b'{"version": 0, "size": 5}', 0),
        (b'{"version": true, "size": 5}', 0),
        (b'{"version": "1", "size": 5}', 0),
        (b'{"version": 1}', 0),
        (b'{"version": 1, "size": "5"}', 0),
        (b"[" * 100_000, 0),
    ],
)
def test_anything_else_is_an_error_that_names_the_position(data: bytes, position: int) -> None:
    with pytest.raises(CorruptError, match="is not what whence wrote") as caught:
        decode_own_json(data, 1, size_of)
    assert caught.value.position == position


def test_a_newer_version_is_refused_and_not_called_damage() -> None:
    with pytest.raises(UnsupportedError, match="version 2, where this whence knows 1"):
        decode_own_json(b'{"version": 2}', 1, size_of)


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 1 of kind 'kafka', where this whence knows 1 of rocketmq"):
        decode_own_json(b'{"version": 1, "kind": "kafka"}', 1, size_of, "rocketmq")
    with pytest.raises(CorruptError, match="kind"):
        decode_own_json(b'{"version": 1, "size": 5}', 1, size_of, "rocketmq")


def test_a_refusal_does_not_repeat_a_long_document() -> None:
    def decode(document: dict[str, Any]) -> None:
        raise UsageError("x" * 10_000)

    with pytest.raises(CorruptError) as caught:
        decode_own_json(b'{"version": 1}', 1, decode)
    assert len(str(caught.value)) < TOLD_MAX + 100


@pytest.mark.parametrize("value", [True, 1.0, "1", None, NUMBER_MAX + 1, -NUMBER_MAX - 1])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="is no number"):
        number(value)


@pytest.mark.parametrize("value", [1, None, ["a"], "x" * (TEXT_MAX + 1)])
def test_what_is_no_text(value: object) -> None:
    with pytest.raises(ValueError, match="is no text"):
        text(value)
