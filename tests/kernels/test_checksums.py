"""CRC-32 in both forms, beside zlib's."""

import random
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import crc32_by_bits
from whence.kernels import checksums
from whence.kernels.checksums import BLOCK, crc32_by_folding, crc32_by_tables

FORMS = [
    pytest.param(crc32_by_tables, id="tables"),
    pytest.param(
        crc32_by_folding,
        id="folding",
        marks=pytest.mark.skipif(not checksums._HAS_MULTIPLY, reason="Numba compiles for a processor without pclmul"),
    ),
]
Form = Callable[[int, int, int], int]
RANDOM = random.Random(1).randbytes(70_000)


def crc_of(form: Form, data: bytes, at: int, size: int) -> int:
    array = np.frombuffer(data, np.uint8)
    return form(array.ctypes.data + at, size, array.ctypes.data)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", [0, 1, 60, 63, 64, 65, 100])
def test_crc_is_that_of_zlib_for_every_size_and_place(form: Form, at: int):
    for size in [*range(5 * BLOCK), 1000, 4096, 65_536, 69_000]:
        assert crc_of(form, RANDOM, at, size) == zlib.crc32(RANDOM[at : at + size]), size


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_bytes_around_the_data_do_not_count(form: Form, byte: bytes):
    for size in range(3 * BLOCK):
        data = RANDOM[:100] + byte * size + RANDOM[:100]
        assert crc_of(form, data, 100, size) == zlib.crc32(byte * size), size


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=300), at=st.integers(0, 300))
def test_crc_is_that_of_the_definition(form: Form, data: bytes, at: int):
    at = min(at, len(data))
    assert crc_of(form, data, at, len(data) - at) & 0x7FFFFFFF == crc32_by_bits(data[at:]) & 0x7FFFFFFF


def test_the_form_fits_the_processor():
    assert checksums.crc32 is (crc32_by_folding if checksums._HAS_MULTIPLY else crc32_by_tables)
