"""What decoders read from, rows of fixed width in it, and one row at a time."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from whence.errors import TruncatedError, UsageError

Buffer = bytes | bytearray | memoryview | mmap
"""Bytes that can be indexed and sliced; a ``memoryview`` must be one of single bytes."""

_Row = TypeVar("_Row", bound=np.generic)
_CODES = {">i2": "h", ">i4": "i", ">i8": "q"}


def view_rows(data: Buffer, dtype: np.dtype[_Row], what: str) -> npt.NDArray[_Row]:
    """View ``data`` as rows of ``dtype``, without a copy. ``what`` is the name of a row, for the error."""
    extra = len(data) % dtype.itemsize
    if extra:
        raise TruncatedError(f"last {what} has {extra} of {dtype.itemsize} bytes", position=len(data) - extra)
    return np.frombuffer(data, dtype)


def struct_of(dtype: np.dtype[np.void]) -> struct.Struct:
    """The layout of ``dtype`` for one row at a time: 0.2 us to read it, where an array takes several."""
    fields = [dtype[name] for name in dtype.names or ()]
    return struct.Struct(">" + "".join(_CODES.get(field.str) or f"{field.itemsize}s" for field in fields))


def pack(layout: struct.Struct, *values: Any) -> bytes:
    """``layout.pack``, with an error of ours for a value that does not fit."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise UsageError(f"{values} do not fit into {layout.size} bytes: {error}") from error
