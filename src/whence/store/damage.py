"""Damage: what is wrong with a store's files, said so that an answer can carry it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from whence.errors import FormatError


class DamageKind(StrEnum):
    GAP = "gap"  # a stretch of the CommitLog is in no file
    BAD_RECORD = "bad_record"  # a record fails its checks, and the log goes on behind it
    BAD_BODY = "bad_body"  # a record is whole, but its body cannot be decompressed
    RECORDS_BEHIND_END = "records_behind_end"  # the log ends at a record that fails, whole ones lie behind it
    HALF_RECORD = "half_record"  # the log's last record has zeros in its properties: a crash, the normal cut tail
    INDEX_NOT_USED = "index_not_used"  # an index file does not belong to this log, or is not whole
    BAD_CHAIN = "bad_chain"  # a chain of an index file has a link that cannot be
    BAD_QUEUE = "bad_queue"  # a ConsumeQueue's entry does not lead to its message
    BAD_TIMES = "bad_times"  # an entry of time blocks cannot be right
    BAD_VALUES = "bad_values"  # the values beside an index file of a field cannot be right

    @property
    def hides_messages(self) -> bool:
        """Whether messages may be out of reach because of it. Where an index fails, the log is scanned instead."""
        return self in (DamageKind.GAP, DamageKind.BAD_RECORD, DamageKind.RECORDS_BEHIND_END)


@dataclass(frozen=True, slots=True)
class Damage:
    """One place in one file; ``position`` is a byte of that file."""

    path: str
    position: int
    kind: DamageKind
    detail: str

    @classmethod
    def from_error(cls, kind: DamageKind, error: FormatError) -> Damage:
        return cls(error.path or "", error.position or 0, kind, error.what)
