"""Inspection of the files of the timer: wheel and log."""

from __future__ import annotations

import numpy as np

from whence.files.mapped_file import MappedFile
from whence.files.names import parse_offset_name
from whence.formats.rocketmq.timer import WHEEL_SLOT, TimerMagic, decode_timer_log
from whence.store.inspection import TABLE_SIZE_MAX, Inspection, Row, Wanted, numbered, refuse_larger, table_of


def timer_wheel(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The slots in use, of a week of seconds."""
    slots = table_of(file, WHEEL_SLOT)
    used = np.flatnonzero(slots["unit_count"])
    inspection.words = (
        "The timer wheel: a slot for each moment of the coming days, in seconds unless the broker has its own unit. "
        "A slot leads to the units of the timer log that are due then; empty slots are not shown."
    )
    inspection.facts = {
        "slot_capacity": len(slots),
        "slots_in_use": len(used),
        "units": int(slots["unit_count"].sum(dtype=np.int64)),
    }
    inspection.keep(
        lambda begin, end: [
            row for number in used[begin:end].tolist() for row in numbered(slots, number, number + 1)
        ],
        len(used),
        0,
        wanted,
    )


def timer_log(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """The units up to the blank or to where nothing was written."""
    refuse_larger(file, TABLE_SIZE_MAX)
    units = decode_timer_log(file.data)
    base = parse_offset_name(file.path.name) or 0
    inspection.words = (
        "A timer log: which message waits for which moment. The units of one moment are a chain, newest first."
    )
    inspection.facts = {
        "begin_position": base,
        "units": len(units),
        "ends_at_byte": len(units) * units.dtype.itemsize,
    }

    def rows(begin: int, end: int) -> list[Row]:
        shown = numbered(units, begin, end)
        for row in shown:
            row["due_timestamp_ms"] = row["write_timestamp_ms"] + row["delay_ms"]
            row["magic"] = str(TimerMagic(row["magic"]).name).lower() if 0 < row["magic"] < 8 else row["magic"]
            del row["reserved"]
        return shown

    inspection.keep(rows, len(units), 0, wanted)
