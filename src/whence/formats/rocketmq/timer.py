"""The timer of RocketMQ 5: messages that wait for any moment in the next days.

    timerwheel := slot[slot_count]                                           big-endian
    timerlog   := unit*, blank

    slot   at  type  field                    unit   at  type  field
            0  i8    time  (below)                    0  i4    size               52
            8  i8    first_position                   4  i8    previous_position  of this slot; -1 = none
           16  i8    last_position                   12  i4    magic              1 set, 2 rolled, 4 deletes
           24  i4    unit_count                      16  i8    write_timestamp_ms
           28  i4    magic  0                        24  i4    delay_ms           slot's time - write time
                                                     28  i8    physical_offset    of the message
                                                     36  i4    record_size
                                                     40  i4    topic_hash         Java hash of the real topic
                                                     44  i8    reserved           0

    blank  at  type  field
            0  i4    size    of the rest of the file
            4  i8    0
           12  i4    magic   as of a blank in the CommitLog

    timercheck, 4096 bytes: seven i8, see ``TimerCheckpoint``

A slot's time is in units of the precision, a second by default; the slot of a moment is number
``time % slot_count``. Positions are those of units in all timer logs together, and the units of a slot are a
chain from last_position back. A blank is written where 68 bytes are no longer free; zeros stand where nothing
was written yet. Follows RocketMQ 5.5 TimerWheel.java, Slot.java, TimerLog.java and TimerCheckpoint.java.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from whence.errors import CorruptError, TruncatedError
from whence.formats.buffers import Buffer, pack, view_rows
from whence.formats.rocketmq.message import MAGIC_BLANK

WHEEL_SLOT = np.dtype(
    [
        ("time", ">i8"),
        ("first_position", ">i8"),
        ("last_position", ">i8"),
        ("unit_count", ">i4"),
        ("magic", ">i4"),
    ]
)
TIMER_UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous_position", ">i8"),
        ("magic", ">i4"),
        ("write_timestamp_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
assert (WHEEL_SLOT.itemsize, TIMER_UNIT.itemsize) == (32, 52)

NO_UNIT = -1
TIMER_CHECKPOINT_SIZE = 4096

_BLANK = struct.Struct(">iqi")
_BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big", signed=True)
_CHECKPOINT = struct.Struct(">7q")


class TimerMagic(IntFlag):
    """What a unit of the timer log is for."""

    SET = 1
    ROLLED = 2
    DELETES = 4


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """``config/timercheck``: how far the timer has come."""

    read_timestamp_ms: int = 0
    log_flushed_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version_state: int = 0
    version_timestamp_ms: int = 0
    version_counter: int = 0


def decode_wheel(data: Buffer) -> npt.NDArray[np.void]:
    """View ``data`` as the slots of a timer wheel, without a copy."""
    return view_rows(data, WHEEL_SLOT, "slot")


def encode_wheel(slots: npt.NDArray[np.void]) -> bytes:
    """The bytes of ``slots``, whose fields may be in any byte order."""
    return slots.astype(WHEEL_SLOT).tobytes()


def decode_timer_log(data: Buffer) -> npt.NDArray[np.void]:
    """View the units of one timer log file, without a copy, up to its blank or its unwritten rest."""
    unit_size = TIMER_UNIT.itemsize
    units = np.frombuffer(data, TIMER_UNIT, count=len(data) // unit_size)
    others = np.flatnonzero(units["size"] != unit_size)
    count = int(others[0]) if len(others) else len(units)
    position = count * unit_size
    rest = bytes(data[position : position + unit_size])
    if any(rest[: _BLANK.size]) and rest[12:16] != _BLANK_MAGIC:
        if len(rest) < unit_size:
            raise TruncatedError(f"last unit has {len(rest)} of {unit_size} bytes", position=position)
        size = int(units[count]["size"])
        raise CorruptError(f"unit of {size} bytes, not {unit_size}, and no blank", position=position)
    return units[:count]


def encode_timer_log(units: npt.NDArray[np.void], blank_size: int = 0) -> bytes:
    """The bytes of ``units``, and the first 16 bytes of the blank behind them, if it has a size."""
    blank = pack(_BLANK, blank_size, 0, MAGIC_BLANK) if blank_size else b""
    return units.astype(TIMER_UNIT).tobytes() + blank


def decode_timer_checkpoint(data: Buffer) -> TimerCheckpoint:
    """The checkpoint in ``data``. All fields must be there; of the zeros behind them some may be missing."""
    if len(data) < _CHECKPOINT.size:
        raise TruncatedError(f"checkpoint has {len(data)} of {_CHECKPOINT.size} bytes", position=len(data))
    return TimerCheckpoint(*_CHECKPOINT.unpack_from(data))


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The whole file."""
    return pack(_CHECKPOINT, *astuple(checkpoint)).ljust(TIMER_CHECKPOINT_SIZE, b"\0")
