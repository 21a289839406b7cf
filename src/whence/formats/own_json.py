"""The JSON that whence writes for itself: ``whence.json`` and ``sidecar.json``.

An object with a ``version``. One that is newer is refused; members that are not known are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from whence.errors import CorruptError, UnsupportedError, UsageError

NOT_OURS = "is not what whence wrote"
TOLD_MAX = 200  # characters of what is wrong
NUMBER_MAX = 2**63 - 1
TEXT_MAX = 4096

Decoded = TypeVar("Decoded")


def decode_own_json(
    data: bytes, version: int, decode: Callable[[dict[str, Any]], Decoded], kind: str | None = None
) -> Decoded:
    """What ``decode`` makes of the document, if this version and ``kind`` of it are known.

    ``decode`` takes members as they come: what they should not be is an error of Python's own there, and a
    CorruptError here.
    """
    try:
        document = json.loads(data.decode())
        found = document["version"]
        if type(found) is not int or found < 1:
            raise ValueError(f"version {found!r}")
        known, told = f"{version}", f"version {found}"
        if kind is not None:
            known, told = f"{version} of {kind}", f"version {found} of kind {document['kind']!r}"
        if found > version or (kind is not None and document["kind"] != kind):
            raise UnsupportedError(f"{told}, where this whence knows {known}")
        return decode(document)
    except UnicodeDecodeError as error:  # which holds all of the bytes
        raise CorruptError(f"{NOT_OURS}: it is no text", position=error.start) from None
    except json.JSONDecodeError as error:
        raise CorruptError(f"{NOT_OURS}: {error.msg}", position=error.pos) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise CorruptError(f"{NOT_OURS}: {repr(error)[:TOLD_MAX]}", position=0) from error


def number(value: Any) -> int:
    """A member that is a number of 64 bits."""
    if type(value) is not int or not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise ValueError(f"{value!r} is no number")
    return value


def text(value: Any) -> str:
    """A member that is a text, and not a long one."""
    if type(value) is not str or len(value) > TEXT_MAX:
        raise ValueError(f"{value!r} is no text")
    return value
