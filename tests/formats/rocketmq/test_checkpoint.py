"""The checkpoint of a store."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden as golden_data
from whence.errors import TruncatedError, UsageError
from whence.formats.rocketmq.checkpoint import (
    CHECKPOINT_SIZE,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)

i8 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("name", golden_data.ALL)
def test_every_golden_checkpoint_decodes_as_rocketmq_read_it_and_encodes_back(golden, name):
    data = (golden(name).store / "checkpoint").read_bytes()
    checkpoint = decode_checkpoint(data)
    expected = golden(name).checkpoint
    assert checkpoint == Checkpoint(
        log_timestamp_ms=expected["physicMsgTimestamp"],
        queue_timestamp_ms=expected["logicsMsgTimestamp"],
        index_timestamp_ms=expected["indexMsgTimestamp"],
        master_flushed_offset=expected.get("masterFlushedOffset", 0),
        confirm_offset=expected.get("confirmPhyOffset", 0),
        queue_physical_offset=expected.get("logicsPhysicalOffset", 0),
    )
    assert encode_checkpoint(checkpoint) == data


@given(st.builds(Checkpoint, i8, i8, i8, i8, i8, i8))
def test_what_is_encoded_decodes_to_the_same(checkpoint):
    data = encode_checkpoint(checkpoint)
    assert len(data) == CHECKPOINT_SIZE
    assert decode_checkpoint(data) == checkpoint
    for size in range(48):
        with pytest.raises(TruncatedError):
            decode_checkpoint(data[:size])
    for size in range(48, 60):
        assert decode_checkpoint(data[:size]) == checkpoint


@given(st.binary(max_size=100))
def test_any_bytes_decode_or_are_truncated(data):
    if len(data) >= 48:
        assert encode_checkpoint(decode_checkpoint(data))[:48] == data[:48]
    else:
        with pytest.raises(TruncatedError):
            decode_checkpoint(data)


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(UsageError):
        encode_checkpoint(replace(Checkpoint(), confirm_offset=2**63))
