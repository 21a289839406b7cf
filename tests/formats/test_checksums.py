"""CRC-32 with its top bit cleared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from whence.formats.checksums import crc32

# From the definition of CRC-32/IEEE (its check value is CBF43926), and from RocketMQ's own records.
CASES = [(b"", 0), (b"123456789", 0xCBF43926 & 0x7FFFFFFF), (b"hello", 907060870)]


@pytest.mark.parametrize(("data", "crc"), CASES)
def test_known_values(data, crc):
    assert crc32(data) == crc


@given(st.binary())
def test_equals_its_definition_and_is_never_negative(data):
    assert crc32(data) == crc32(memoryview(data)) == reference.crc32_by_bits(data)
    assert 0 <= crc32(data) < 2**31
