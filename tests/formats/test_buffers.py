"""Rows in a buffer, and one row at a time."""

import numpy as np
import pytest

from whence.errors import TruncatedError, UsageError
from whence.formats.buffers import pack, struct_of, view_rows

ROW = np.dtype([("a", ">i2"), ("b", ">i4"), ("c", ">i8"), ("d", "V3")])


def test_a_struct_reads_what_an_array_reads():
    data = bytes(range(2 * ROW.itemsize))
    layout = struct_of(ROW)
    assert layout.size == ROW.itemsize == 17
    assert list(layout.iter_unpack(data)) == [
        (row["a"], row["b"], row["c"], row["d"].tobytes()) for row in view_rows(data, ROW, "row")
    ]


def test_rows_are_views():
    data = bytearray(ROW.itemsize)
    rows = view_rows(data, ROW, "row")
    data[1] = 9
    assert rows["a"].tolist() == [9]
    assert len(view_rows(b"", ROW, "row")) == 0


def test_a_row_that_is_cut_is_truncated():
    with pytest.raises(TruncatedError, match="at byte 17: last row has 3 of 17 bytes"):
        view_rows(bytes(20), ROW, "row")


def test_a_value_that_does_not_fit_is_wrong_use():
    layout = struct_of(np.dtype([("a", ">i2")]))
    assert pack(layout, -2) == b"\xff\xfe"
    with pytest.raises(UsageError, match="do not fit into 2 bytes"):
        pack(layout, 2**15)
