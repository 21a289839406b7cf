"""Bodies: compressed ones never expand without bound, batches never trust a size."""

import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from whence.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from whence.formats.rocketmq.body import BatchItem, compress_body, decode_batch, decompress_body, encode_batch
from whence.formats.rocketmq.sys_flag import Compression

KINDS = pytest.mark.parametrize("compression", list(Compression), ids=lambda kind: kind.name)


def flag(compression):
    return compression << 8 | 1


# Compression. That real bodies decompress is shown by the golden messages in test_message.py.


@KINDS
@given(body=st.binary(max_size=5000) | st.binary(min_size=1, max_size=3).map(lambda part: part * 5000))
def test_what_is_compressed_comes_back(compression, body):
    assert decompress_body(compress_body(body, compression), flag(compression)) == body


def test_type_0_is_zlib():
    assert decompress_body(zlib.compress(b"hello"), 0x001) == b"hello"


def test_a_body_that_is_not_compressed_is_given_back():
    assert decompress_body(b"hello", 0x300) == b"hello"


@KINDS
def test_an_empty_body_is_empty_whatever_its_flag_says(compression):
    assert decompress_body(b"", flag(compression)) == b""


def test_an_unknown_type_is_unsupported():
    with pytest.raises(UnsupportedError):
        decompress_body(b"hello", 0x401)


@KINDS
def test_a_compressed_body_cut_at_any_byte_is_corrupt(compression):
    data = compress_body(bytes(range(256)) * 3, compression)
    for size in range(1, len(data)):
        with pytest.raises(CorruptError):
            decompress_body(data[:size], flag(compression))


@KINDS
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_decompress_or_are_corrupt(compression, data):
    start = compress_body(b"some body, some body", compression)
    for body in (data, start[: len(data)] + data, start + data):
        try:
            decompress_body(body, flag(compression), body_size_max=10_000)
        except CorruptError as error:
            assert str(error).startswith(f"{compression.name} body of {len(body)} bytes")


@KINDS
def test_the_limit_is_the_largest_size_that_comes_back(compression):
    data = compress_body(bytes(100_000), compression)
    assert len(decompress_body(data, flag(compression), body_size_max=100_000)) == 100_000
    with pytest.raises(CorruptError, match="expands to more than 99999"):
        decompress_body(data, flag(compression), body_size_max=99_999)


@pytest.mark.slow
@KINDS
def test_a_bomb_is_stopped_near_the_limit(compression):
    bomb = compress_body(bytes(256 * 2**20), compression)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match="expands to more than 1000"):
            decompress_body(bomb, flag(compression), body_size_max=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * 2**20


def test_frames_are_read_one_after_the_other_as_in_rocketmq():
    assert decompress_body(lz4.frame.compress(b"one") + lz4.frame.compress(b"two"), 0x101) == b"onetwo"
    assert decompress_body(zstandard.compress(b"one") + zstandard.compress(b"two"), 0x201) == b"onetwo"
    assert decompress_body(zlib.compress(b"one") + zlib.compress(b"two"), 0x301) == b"one"


# Batches. The example is that of the format description (2.9).
BATCH = bytes.fromhex("0000001c 00000000 00000000 00000000 00000002 6162 0004 4b017602")

batch_items = st.builds(BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20), st.binary(max_size=20))


def test_worked_example_of_a_batch():
    assert decode_batch(BATCH) == [BatchItem(0, b"ab", b"K\x01v\x02")]
    assert encode_batch([BatchItem(0, b"ab", b"K\x01v\x02")]) == BATCH
    assert decode_batch(BATCH * 3) == [BatchItem(0, b"ab", b"K\x01v\x02")] * 3
    assert decode_batch(b"") == []


@given(st.lists(batch_items, max_size=4))
def test_a_batch_that_is_encoded_decodes_to_the_same(items):
    data = encode_batch(items)
    assert decode_batch(data) == items
    ends = {len(encode_batch(items[:count])) for count in range(len(items))}
    for size in set(range(len(data))) - ends:
        with pytest.raises(TruncatedError):
            decode_batch(data[:size])


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_raise_format_error(data):
    try:
        assert len(decode_batch(data)) <= len(data) // 22
    except FormatError as error:
        assert 0 <= error.position < len(data)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("at", "lie", "kind", "position"),
    [
        (0, "00000000", CorruptError, 0),
        (0, "ffffffff", CorruptError, 0),
        (0, "00000015", CorruptError, 0),
        (0, "0000001d", TruncatedError, 0),
        (16, "ffffffff", CorruptError, 16),
        (16, "7fffffff", CorruptError, 16),
        (16, "00000007", CorruptError, 16),
        (22, "ffff", CorruptError, 22),
        (22, "0003", CorruptError, 22),
        (22, "0005", CorruptError, 22),
    ],
)
def test_a_size_that_lies_is_named_with_its_position(at, lie, kind, position):
    data = bytearray(BATCH)
    data[at : at + len(lie) // 2] = bytes.fromhex(lie)
    with pytest.raises(kind) as caught:
        decode_batch(BATCH + bytes(data))
    assert caught.value.position == len(BATCH) + position
