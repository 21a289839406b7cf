"""The bits of sysFlag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.errors import UnsupportedError
from whence.formats.rocketmq.sys_flag import (
    COMPRESSION_MASK,
    HOSTS_MASK,
    TRANSACTION_MASK,
    Compression,
    SysFlag,
    Transaction,
    compression_of,
)

CASES = [
    (0x000, None),
    (0x300, None),  # the type alone does not compress
    (0x001, Compression.ZLIB),
    (0x101, Compression.LZ4),
    (0x201, Compression.ZSTD),
    (0x301, Compression.ZLIB),
    (0x3F1, Compression.ZLIB),
]


@pytest.mark.parametrize(("sys_flag", "compression"), CASES)
def test_compression(sys_flag, compression):
    assert compression_of(sys_flag) is compression


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_an_unknown_compression_is_unsupported(number):
    with pytest.raises(UnsupportedError, match=f"compression type {number}"):
        compression_of(number << 8 | 1)


def test_the_parts_do_not_overlap():
    masks = [TRANSACTION_MASK, COMPRESSION_MASK, *(flag.value for flag in SysFlag)]
    assert sum(masks) == 0x7FF
    assert HOSTS_MASK == SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6
    assert {transaction & ~TRANSACTION_MASK for transaction in Transaction} == {0}


@given(st.integers(-(2**31), 2**31 - 1))
def test_any_flag_has_a_compression_or_is_unsupported(sys_flag):
    try:
        compression_of(sys_flag)
    except UnsupportedError:
        assert sys_flag & 0x401 == 0x401
