"""The file ``checkpoint``: up to where a store was flushed.

    file, 4096 bytes                                                         big-endian

    at  type  field                          of what
     0  i8    log_timestamp_ms               store time of the last message flushed to the CommitLog
     8  i8    queue_timestamp_ms             store time of the last message in any ConsumeQueue
    16  i8    index_timestamp_ms             end time of the last index file that was full and flushed
    24  i8    master_flushed_offset          kept by a slave; since 5.0
    32  i8    confirm_offset                 up to where replicas have confirmed the log; since 5.0
    40  i8    queue_physical_offset          of the last message in any ConsumeQueue; since 5.5
    48  ...   zeros

The values lag behind the files: they say what is safe, not what is there. 0 means that nothing was noted yet,
and is what a version reads in the fields that an older one did not know. The file is one page because RocketMQ
maps a page. Follows RocketMQ 5.5 StoreCheckpoint.java.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from whence.errors import TruncatedError
from whence.formats.buffers import Buffer, pack

CHECKPOINT_SIZE = 4096

_FIELDS = struct.Struct(">6q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a store noted about its own flushes."""

    log_timestamp_ms: int = 0
    queue_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queue_physical_offset: int = 0


def decode_checkpoint(data: Buffer) -> Checkpoint:
    """The checkpoint in ``data``. All fields must be there; of the zeros behind them some may be missing."""
    if len(data) < _FIELDS.size:
        raise TruncatedError(f"checkpoint has {len(data)} of {_FIELDS.size} bytes", position=len(data))
    return Checkpoint(*_FIELDS.unpack_from(data))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    return pack(_FIELDS, *astuple(checkpoint)).ljust(CHECKPOINT_SIZE, b"\0")
