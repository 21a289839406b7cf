"""Findings: what of a store's files does not agree with its log, where, and what repair would do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

LISTED_MAX = 100  # findings of one file, or of one queue; all are counted


class FindingKind(StrEnum):
    MISSING = "missing"  # the log has a message, and this file should lead to it
    DANGLING = "dangling"  # leads to no message, or to another one
    REPEATED = "repeated"  # leads once more to the same message
    WRONG_ORDER = "wrong_order"  # not in the order of the log
    WRONG_TIME = "wrong_time"  # leads to its message, but tells another time of it
    WRONG_LINK = "wrong_link"  # a chain goes on elsewhere
    WRONG_HEAD = "wrong_head"  # a chain begins elsewhere
    WRONG_HEADER = "wrong_header"
    WRONG_SIZE = "wrong_size"  # of the file
    WRONG_VALUE = "wrong_value"  # beside an item of a field stands the hash of another value
    WRONG_ENTRY = "wrong_entry"  # leads to its message, but tells another size or code of it
    NOT_ZERO = "not_zero"  # something is written where nothing should be yet
    OUTDATED = "outdated"  # right once, but computed with another version of Spark
    UNREADABLE = "unreadable"
    UNEXPECTED = "unexpected"  # a file that nobody published
    WRONG_CLAIM = "wrong_claim"  # sidecar.json says what is not so
    WRONG_CHECKPOINT = "wrong_checkpoint"  # the checkpoint is ahead of the log
    GAP = "gap"  # of the log, as DamageKind has them
    BAD_RECORD = "bad_record"
    RECORDS_BEHIND_END = "records_behind_end"
    HALF_RECORD = "half_record"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in one file; ``position`` is a byte of that file. ``repair``: what would mend it."""

    path: Path
    position: int
    kind: FindingKind
    detail: str
    repair: str

    def to_dict(self) -> dict[str, Any]:
        """As ``verify --json`` has it."""
        return {
            "path": str(self.path),
            "position": self.position,
            "kind": str(self.kind),
            "detail": self.detail,
            "repair": self.repair,
        }


@dataclass(slots=True)
class Findings:
    """The first findings of one file or queue, and how many there are of each kind."""

    listed: list[Finding] = field(default_factory=list)
    counts: Counter[FindingKind] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it if there is room."""
        self.counts[finding.kind] += 1
        self.list(finding)

    def list(self, finding: Finding) -> None:
        """List a finding that is counted elsewhere, if there is room."""
        if len(self.listed) < LISTED_MAX:
            self.listed.append(finding)

    def count(self, kind: FindingKind, count: int) -> None:
        """Count what is listed elsewhere, or not at all."""
        if count:
            self.counts[kind] += count

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def is_healthy(self) -> bool:
        return not self.counts

    @property
    def unlisted_count(self) -> int:
        return self.total - len(self.listed)


def summed(counts: Counter[FindingKind]) -> dict[str, int]:
    """Counts as ``verify --json`` has them."""
    missing, dangling = counts[FindingKind.MISSING], counts[FindingKind.DANGLING]
    return {"missing": missing, "dangling": dangling, "wrong": counts.total() - missing - dangling}
