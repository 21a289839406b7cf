"""Scan a stretch of one CommitLog file, record by record: in plain Python, or with the kernel for long stretches.

Both roads take the same records and stop at the same byte for the same reason; a test holds them equal. A record
is taken if its fields add up, its checksum fits and its physical offset is its position. What a caller gets are
physical offsets of candidates: the message itself, read again, decides (DESIGN.md, decision 6).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from whence.errors import CorruptError, FormatError
from whence.formats.hashing import java_hash
from whence.formats.rocketmq.message import (
    BLANK_SIZE_MIN,
    RECORD_SIZE_MIN,
    Message,
    decode_blank,
    decode_message,
    verify_message,
)
from whence.formats.rocketmq.places import offsets_in_queue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BULK_ROWS = 65536  # records in one kernel call: some megabytes of rows, and Ctrl-C is heard between two calls
BULK_ITEMS = 4 * BULK_ROWS
NOTHING_WRITTEN = bytes(BLANK_SIZE_MIN)


class Reason(Enum):
    """Why a scan stopped where it did."""

    END = "end"  # the end of the stretch
    BLANK = "blank"  # the blank that fills a file's tail: the log goes on in the next file
    ZERO = "zero"  # nothing was written here yet
    DAMAGE = "damage"  # bytes that are no whole record: a cut tail, or damage


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where a scan stopped: at ``position``, behind the record at ``last`` (-1 if it took none)."""

    position: int
    last: int
    reason: Reason
    detail: str = ""


class AnySieve(Protocol):
    """Which records of a scan are worth a closer look. It may let too many through, never too few."""

    def takes(self, message: Message) -> bool:
        """Whether a record passes."""
        ...

    def rows(
        self, messages: NDArray[Any], items: NDArray[Any], data: NDArray[np.uint8], base: int
    ) -> NDArray[np.int64]:
        """The numbers of the rows of one kernel call that pass. They are of a file that begins at ``base``."""
        ...


@dataclass(frozen=True, slots=True)
class Sieve:
    """The sieve of one question.

    ``keys``: records that bear one of these as a key or unique id; empty takes all. A record with rollback bits
    bears neither. ``queue_offset`` with ``topic`` and ``queue``: the record that stands there in the queue.
    """

    keys: tuple[str, ...] = ()
    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    queue: int | None = None
    queue_offset: int | None = None

    def takes(self, message: Message) -> bool:
        if self.keys:
            data = message.properties_data
            if message.is_rollback or not any(_may_hold(data, key) for key in self.keys):
                return False
            if message.unique_id not in self.keys and not any(key in self.keys for key in message.keys):
                return False
        if self.topic is not None and self.queue is not None and self.queue_offset is not None:
            if self.queue_offset not in offsets_in_queue(message, self.topic, self.queue):
                return False
        elif (
            (self.topic is not None and message.topic != self.topic)
            or (self.queue is not None and message.queue != self.queue)
            or (self.queue_offset is not None and message.queue_offset != self.queue_offset)
        ):
            return False
        return not (
            (self.since_ms is not None and message.store_timestamp_ms < self.since_ms)
            or (self.until_ms is not None and message.store_timestamp_ms > self.until_ms)
        )

    def rows(
        self, messages: NDArray[Any], items: NDArray[Any], data: NDArray[np.uint8] | None = None, base: int = 0
    ) -> NDArray[np.int64]:
        """As :class:`AnySieve` says. The rows tell enough: the bytes of the file are not looked at."""
        import numpy as np

        keep = np.ones(len(messages), np.bool_)
        if self.keys:
            keep[:] = False
            prefixes = messages["topic_hash"][items["message"]].astype(np.uint32)
            for key in self.keys:
                # hash(topic#key) = hash(topic#) * 31^units(key) + hash(key): one compare serves every topic.
                units = len(key.encode("utf-16-le", "surrogatepass")) // 2
                power = np.uint32(pow(31, units, 2**32))
                hashes = prefixes * power + np.uint32(java_hash(key) & 0xFFFFFFFF)
                keep[items["message"][items["key_hash"] == _fold(hashes)]] = True
        if self.topic is not None:
            keep &= messages["topic_hash"] == java_hash(self.topic + "#")
        if self.since_ms is not None:
            keep &= messages["store_timestamp_ms"] >= self.since_ms
        if self.until_ms is not None:
            keep &= messages["store_timestamp_ms"] <= self.until_ms
        if self.queue is not None:
            keep &= messages["queue"] == self.queue
        if self.queue_offset is not None:
            keep &= messages["queue_offset"] == self.queue_offset
            keep |= messages["has_inner"] != 0  # of an inner batch, and in a light queue, it is told by a property
        return np.flatnonzero(keep)


def _may_hold(properties_data: bytes, key: str) -> bool:
    """Whether the bytes can hold the key: false spares parsing them. U+FFFD may stand for any malformed byte."""
    return "\ufffd" in key or key.encode("utf-8", "surrogatepass") in properties_data


def _fold(hashes: NDArray[Any]) -> NDArray[Any]:
    """:func:`fold_hash` over an array of unsigned hashes."""
    import numpy as np

    signed = hashes.astype(np.int32)
    return np.where(signed == np.int32(-(2**31)), 0, np.abs(signed)).astype(np.int32)


def scan_plain(
    data: memoryview, base: int, position: int, end: int, take: Callable[[Message], None] | None = None
) -> ScanEnd:
    """Hand every whole record of ``data[position:end]`` to ``take``, in order.

    ``data`` is a whole CommitLog file that begins at physical offset ``base``.
    """
    last = -1
    while position < end:
        try:
            message, following = whole_record(data, base, position)
        except FormatError as error:
            return _why(data, position, last, error)
        if take is not None:
            take(message)
        last = position
        position = following
    return ScanEnd(position, last, Reason.END)


def whole_record(data: memoryview, base: int, position: int) -> tuple[Message, int]:
    """The record at this position, if it is whole; a FormatError says what is not right otherwise."""
    message, following = decode_message(data, position)
    if message.physical_offset != base + position:
        raise CorruptError(
            f"the record says that it lies at offset {message.physical_offset}, not {base + position}",
            position=position,
        )
    verify_message(data, position, message)
    return message, following


def _why(data: memoryview, position: int, last: int, error: FormatError) -> ScanEnd:
    if data[position : position + BLANK_SIZE_MIN] == NOTHING_WRITTEN[: len(data) - position]:
        return ScanEnd(position, last, Reason.ZERO)
    try:
        blank_size = decode_blank(data, position)
    except FormatError:
        return ScanEnd(position, last, Reason.DAMAGE, error.what)
    if position + blank_size != len(data):
        what = f"a blank of {blank_size} bytes, where {len(data) - position} are left in the file"
        return ScanEnd(position, last, Reason.DAMAGE, what)
    return ScanEnd(len(data), last, Reason.BLANK)


def scan_bulk(
    data: memoryview, base: int, position: int, end: int, sieve: AnySieve | None, offsets: array[int]
) -> ScanEnd:
    """Append the physical offsets of records that pass the sieve (None takes none); with the kernel."""
    import numpy as np

    from whence.kernels.scan import ITEMS, SCANNED, Status, scan_stretch

    rows_max = min(BULK_ROWS, (end - position) // RECORD_SIZE_MIN + 2)
    messages = np.empty(rows_max, SCANNED)
    items = np.empty(BULK_ITEMS, ITEMS)
    whole = np.frombuffer(data, np.uint8)
    last = -1

    def take(message: Message) -> None:
        if sieve is not None and sieve.takes(message):
            offsets.append(message.physical_offset)

    while position < end:
        result = scan_stretch(whole, base, position, end, check_crc=True, tags=False, messages=messages, items=items)
        rows = messages[: result.message_count]
        if len(rows):
            last = int(rows["physical_offset"][-1]) - base
            position = last + int(rows["size"][-1])
            if sieve is not None:
                passed = sieve.rows(rows, items[: result.item_count], whole, base)
                offsets.frombytes(rows["physical_offset"][passed].tobytes())
        if result.status in (Status.FULL, Status.END):
            continue
        # The plain road takes the last record, which may end behind the stretch, or says what stands here instead.
        stopped = scan_plain(data, base, position, min(end, position + 1), take)
        position, last = stopped.position, max(last, stopped.last)
        if stopped.reason is not Reason.END:
            return ScanEnd(position, last, stopped.reason, stopped.detail)
    return ScanEnd(position, last, Reason.END)
