"""ExpiryPolicy: when files of a log go, by their age and by how full the disk is.

    policy = ExpiryPolicy()                              72 hours, at four in the morning: RocketMQ's own settings
    decision = policy.decide(now_ms, [disk_used])        may files go now, must they, is the disk full
    policy.count(decision, now_ms, times_ms)             how many of the oldest go

Nothing here looks at a clock or a disk. Follows RocketMQ 5.5 DefaultMessageStore.CleanCommitLogService,
MessageStoreConfig, MappedFileQueue and UtilAll.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum

from whence.errors import UsageError
from whence.files.names import is_digits

HOUR_MS = 3_600_000
ALL_HOURS = tuple(range(24))
USED_FULL = 90
UNKNOWN = -1  # how much of a disk is used, where nobody can tell


class AgeBy(StrEnum):
    """What tells the age of a log file."""

    FILE = "file"  # when it was last written to, as RocketMQ has it
    RECORD = "record"  # when the record behind it was stored; a copy of a store has new files and old records


@dataclass(frozen=True, slots=True)
class Decision:
    """``is_due``: files that are old enough go. ``is_forced``: the oldest go, however young they are.

    ``is_full``: nothing should be written any more.
    """

    is_due: bool
    is_forced: bool
    is_full: bool


@dataclass(frozen=True, slots=True)
class ExpiryPolicy:
    """The settings, each with RocketMQ's default; percentages are of a disk that is used."""

    keep_ms: int = 72 * HOUR_MS  # fileReservedTime
    hours: tuple[int, ...] = (4,)  # deleteWhen
    zone: tzinfo | None = None  # in which the hours are counted; None: the machine's
    used_max: int = 75  # diskMaxUsedSpaceRatio: above it, old files go at any hour
    used_forcing: int = 85  # diskSpaceCleanForciblyRatio: above it, the oldest files go, though they are young
    used_full: int = USED_FULL  # diskSpaceWarningLevelRatio: above it, nothing is to be written, too
    may_force: bool = True  # cleanFileForciblyEnable
    batch_max: int | None = 10  # deleteFileBatchMax: files that go in one round; None: all that may
    age_by: AgeBy = AgeBy.FILE

    def __post_init__(self) -> None:
        if self.keep_ms < 0:
            raise UsageError(f"messages cannot be kept for {self.keep_ms} ms")
        if not set(self.hours) <= set(ALL_HOURS):
            raise UsageError(f"the hours {self.hours} are not all from 0 to 23")

    def decide(self, now_ms: int, used: Sequence[int]) -> Decision:
        """What may be done now. ``used``: how much of each disk is used, in percent; UNKNOWN counts as much.

        Without any disk, only the hour counts.
        """
        # The limits are clamped as RocketMQ clamps them, whatever was set.
        limit = _clamped(self.used_max, 10, 95)
        forcing = _clamped(self.used_forcing, 30, 85)
        full = _clamped(self.used_full, 35, 90)
        most = max(used, default=0)
        is_hour = datetime.fromtimestamp(now_ms // 1000, self.zone).hour in self.hours
        is_much = UNKNOWN in used or most > min(limit, forcing, full)
        return Decision(
            is_due=is_hour or is_much,
            is_forced=self.may_force and most > min(forcing, full),
            is_full=most > full,
        )

    def count(self, decision: Decision, now_ms: int, times_ms: Iterable[int]) -> int:
        """How many files go in one round. ``times_ms``: of each file when it was finished, the oldest file first.

        The first that is too young keeps all behind it: a log has no gaps. The last file of a log is never asked.
        """
        count = 0
        if not (decision.is_due or decision.is_forced):
            return count
        for time_ms in times_ms:
            if not decision.is_forced and now_ms < time_ms + self.keep_ms:
                break
            count += 1
            if self.batch_max is not None and count >= self.batch_max:
                break
        return count


def parse_hours(text: str) -> tuple[int, ...]:
    """The hours of RocketMQ's ``deleteWhen``, as ``04;16``."""
    words = text.rstrip(";").split(";")
    if not all(is_digits(word) and len(word) < 10 and int(word) in ALL_HOURS for word in words):
        raise UsageError(f"{text!r} are no hours; give them as 04 or 04;16")
    return tuple(map(int, words))


def used_percent(used: int, free: int) -> int:
    """How much of a disk is used: of what is used and what may be, rounded up, as ``df`` has it."""
    return -(-100 * used // (used + free)) if used + free > 0 else UNKNOWN


def _clamped(percent: int, least: int, most: int) -> int:
    return min(max(percent, least), most)
