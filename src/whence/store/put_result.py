"""What became of a message, or of a batch of them, that was to be put into a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = -1


class PutStatus(StrEnum):
    """RocketMQ's names; of them those that this store can give."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # in the log, but not known to be on the disk
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class PutResult(NamedTuple):
    """What became of one message. Where it is not in the log, the offsets are -1 and the ids empty.

    A tuple, for one is made with each message: a frozen dataclass would take ten times as long.
    """

    status: PutStatus
    physical_offset: int = NOWHERE
    queue_offset: int = NOWHERE
    unique_id: str = ""  # what its UNIQ_KEY says
    store_timestamp_ms: int = 0
    size: int = 0  # of the record
    store_host_data: bytes = b""
    detail: str = ""  # what went wrong and why; empty if all is well

    @property
    def offset_id(self) -> str:
        """The id that the store gave it: its store host and its physical offset (see formats/rocketmq/ids.py)."""
        return "" if self.physical_offset == NOWHERE else _offset_id(self.store_host_data, self.physical_offset)


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What became of a batch. Its first ``count`` messages are in the log: all of them, if ``status`` is PUT_OK.

    They have consecutive queue offsets, from ``queue_offset`` on. A batch that is larger than the largest message is
    put in several steps; ``store_timestamp_ms`` is that of the first.
    """

    status: PutStatus
    count: int = 0
    physical_offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    queue_offset: int = NOWHERE
    store_timestamp_ms: int = 0
    store_host_data: bytes = b""
    detail: str = ""  # what went wrong and why; empty if all is well
    ids: Callable[[], Sequence[str]] = field(default=tuple, repr=False)  # makes the unique ids of the whole batch

    @cached_property
    def unique_ids(self) -> list[str]:
        """What their UNIQ_KEYs say, in order; empty texts where a message has none."""
        return list(self.ids()[: self.count])

    @cached_property
    def offset_ids(self) -> list[str]:
        """The ids that the store gave them, in order."""
        return [_offset_id(self.store_host_data, offset) for offset in self.physical_offsets.tolist()]


def _offset_id(store_host_data: bytes, physical_offset: int) -> str:
    return f"{store_host_data.hex()}{physical_offset:016x}".upper()
