"""Cursor: where an answer that was cut off goes on.

    cursor := base64url(version  digest  since  until  count  position[count])           big-endian

    version   u1      1
    digest    8 bytes of SHA-256 over the question, without limit and cursor, and over what follows here
    since     i8      resolved window, so that an age keeps the meaning of the first page
    until     i8
    count     u2      how many logs
    position  i8      physical offset of the last message given from each log; -1 if none was

It names positions of the log, never of an index: it survives restarts, rebuilds and growth.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from dataclasses import dataclass, replace

from whence.errors import UsageError
from whence.lookup.question import Question

VERSION = 1
NO_TIME = -(2**63)
NO_POSITION = -1
DIGEST_SIZE = 8
_HEAD = struct.Struct(">B8sqqH")


@dataclass(frozen=True, slots=True)
class Cursor:
    since_ms: int | None
    until_ms: int | None
    positions: tuple[int, ...]


def encode_cursor(question: Question, positions: tuple[int, ...]) -> str:
    since_ms = NO_TIME if question.since_ms is None else question.since_ms
    until_ms = NO_TIME if question.until_ms is None else question.until_ms
    tail = struct.pack(f">qqH{len(positions)}q", since_ms, until_ms, len(positions), *positions)
    data = bytes([VERSION]) + _digest(question, tail) + tail
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_cursor(text: str, question: Question, log_count: int) -> Cursor:
    """The cursor, if it belongs to this question and as many logs; UsageError otherwise."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        version, digest, since_ms, until_ms, count = _HEAD.unpack_from(data)
        positions = struct.unpack(f">{count}q", data[_HEAD.size :])
    except (binascii.Error, ValueError, struct.error):
        raise UsageError(f"{text[:80]!r} is no cursor; copy it whole from the receipt of the page before") from None
    if version != VERSION:
        raise UsageError(f"the cursor is of version {version}; this whence reads {VERSION}: ask again from the start")
    if digest != _digest(question, data[1 + DIGEST_SIZE :]):
        raise UsageError(
            "the cursor belongs to another question, or was not copied right; repeat all of the first page"
        )
    if count != log_count:
        raise UsageError(f"the cursor is of {count} stores, {log_count} were given; repeat those of the first page")
    if any(position < NO_POSITION for position in positions):
        raise UsageError("the cursor names a position that no log has")
    return Cursor(None if since_ms == NO_TIME else since_ms, None if until_ms == NO_TIME else until_ms, positions)


def resume(question: Question, cursor: Cursor) -> Question:
    """The question with the window as it was on the first page."""
    return replace(question, since_ms=cursor.since_ms, until_ms=cursor.until_ms)


def _digest(question: Question, tail: bytes) -> bytes:
    import hashlib  # takes 3 ms to load, and few answers are cut off

    shown = question.to_dict() | {"since_ms": question.asked_times[0], "until_ms": question.asked_times[1]}
    del shown["limit"]
    shown.pop("cursor", None)
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode() + tail).digest()[:DIGEST_SIZE]
