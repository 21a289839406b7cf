"""Inspection of a CommitLog file: its records, its damage, where it ends and why."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from whence.errors import FormatError
from whence.files.mapped_file import MappedFile
from whence.files.names import parse_offset_name
from whence.formats.rocketmq.message import Message, decode_message
from whence.formats.rocketmq.sys_flag import SysFlag, Transaction, compression_of
from whence.store.damage import DamageKind
from whence.store.inspection import Inspection, Row, Wanted
from whence.store.log_file import LogFile, PlainBudget
from whence.store.scan import Reason, ScanEnd, Sieve

STEP_SIZE = 64 * 1048576
DAMAGE_MAX = 1000


def commit_log(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    """All records are walked over, to tell where the file ends and why; those asked for become rows."""
    base = _base_of(file)
    offsets: array[int] = array("q")
    ends_at, why = _walk(file, base, offsets, inspection, wanted)
    first, last = (_time_at(file, base, at) for at in (offsets[:1], offsets[-1:]))
    inspection.words = "A CommitLog file: the messages of all topics, in the order in which they were stored."
    inspection.facts = {
        "begin_offset": base,
        "records": len(offsets),
        "first_store_timestamp_ms": first,
        "last_store_timestamp_ms": last,
        "ends_at_byte": ends_at,
        "ends_because": why,
    }

    def rows(begin: int, end: int) -> list[Row]:
        return [_record(decode_message(file.data, offset - base)[0], offset - base) for offset in offsets[begin:end]]

    number = bisect_left(offsets, base + (wanted.start or 0))
    inspection.keep(rows, len(offsets), 0, Wanted(number, wanted.limit))
    if inspection.next_start is not None:
        inspection.next_start = offsets[inspection.next_start] - base


def _base_of(file: MappedFile) -> int:
    """The physical offset of the file's first byte: its name says it, else its first record."""
    base = parse_offset_name(file.path.name)
    if base is not None:
        return base
    try:
        return max(0, decode_message(file.data)[0].physical_offset)
    except FormatError:
        return 0


def _walk(
    file: MappedFile, base: int, offsets: array[int], inspection: Inspection, wanted: Wanted
) -> tuple[int, str]:
    """Take the offset of every whole record; the byte at which the records end, and why, in words."""
    log_file = LogFile(file, base, PlainBudget())
    position = 0
    while True:
        stopped = _scan(log_file, position, offsets, wanted)
        if stopped.reason is Reason.END:
            return stopped.position, "the file ends with its last record, without a blank"
        if stopped.reason is Reason.BLANK:
            blank_at = position if stopped.last < 0 else log_file.record(stopped.last)[1]
            size = stopped.position - blank_at
            return blank_at, f"a blank of {size} bytes fills the rest; the log goes on in the next file"
        found = log_file.resume(stopped.position)
        if found.position is None:
            return stopped.position, _end_words(log_file, stopped)
        detail = f"{stopped.detail or 'nothing is written here'}; {found}"
        inspection.add_damage(DamageKind.BAD_RECORD, stopped.position, detail)
        if len(inspection.damage) >= DAMAGE_MAX:
            return stopped.position, f"there is damage at {DAMAGE_MAX} places; what follows was not looked at"
        position = found.position


def _scan(file: LogFile, position: int, offsets: array[int], wanted: Wanted) -> ScanEnd:
    """Scan on from a record, in steps, so that progress can be told."""
    last = -1
    while position < file.file.size:
        stopped = file.walk(position, position + STEP_SIZE, Sieve(), offsets)
        position, last = stopped.position, max(last, stopped.last)
        if wanted.progress is not None:
            wanted.progress(position, file.file.size)
        if stopped.reason is not Reason.END:
            return ScanEnd(position, last, stopped.reason, stopped.detail)
    return ScanEnd(position, last, Reason.END)


def _end_words(file: LogFile, stopped: ScanEnd) -> str:
    if stopped.reason is Reason.ZERO:
        words = "nothing is written behind it"
        if stopped.last >= 0 and 0 in file.record(stopped.last)[0].properties_data:
            words += "; the properties of the last record hold zero bytes, so it may be half written"
        return words
    return f"{stopped.detail}; no whole record lies behind it: usual where a log ends after a crash, damage elsewhere"


def _time_at(file: MappedFile, base: int, offset: array[int]) -> int | None:
    return decode_message(file.data, offset[0] - base)[0].store_timestamp_ms if offset else None


def _record(message: Message, position: int) -> Row:
    return {
        "position": position,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "keys": list(message.keys),
        "tags": message.tags,
        "unique_id": message.unique_id,
        "body_size": message.body_size,
        "flags": _flag_words(message),
    }


def _flag_words(message: Message) -> list[str]:
    """What sysFlag says, in words; the hosts' bits show in the hosts."""
    words = []
    try:
        compression = compression_of(message.sys_flag)
    except FormatError:
        words.append("compressed in an unknown way")
    else:
        words += [compression.name] if compression else []
    transaction = Transaction(message.sys_flag & Transaction.ROLLBACK)
    words += [transaction.name.lower()] if transaction else []
    if message.sys_flag & SysFlag.INNER_BATCH:
        words.append("inner batch")
    if message.version == 2:
        words.append("version 2")
    return words
