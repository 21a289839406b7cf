"""StretchKeys: the keys of a short stretch of log that no index file covers, kept in memory."""

from __future__ import annotations

from array import array

from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.scan import Sieve

STRETCH_SIZE_MAX = 4 * 1048576  # a longer stretch is scanned for each question
KEPT_SIZE_MAX = 32 * 1048576  # so is every other once the keys of so much log are kept
STRETCHES_MAX = 4096


class _Kept:
    """All keys of ``[from_offset, to_offset)``; ``last``: offset and bytes of the log's last record, if in there."""

    __slots__ = ("damage", "last", "offsets", "to_offset", "uses")

    def __init__(self, from_offset: int) -> None:
        self.to_offset = from_offset
        self.uses = 0
        self.offsets: dict[str, list[int]] = {}
        self.damage: list[Damage] = []
        self.last: tuple[int, bytes] | None = None


class StretchKeys:
    """Answers which records of a stretch bear a key or unique id.

    The first question of a stretch scans it for the asked keys alone. If more come, all its keys are kept, so that
    a program that asks again and again does not scan again and again; the log's end is kept up as it grows.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._kept: dict[int, _Kept] = {}
        self._kept_size = 0

    def candidates(self, from_offset: int, to_offset: int, keys: tuple[str, ...], damage: list[Damage]) -> list[int]:
        """Physical offsets, oldest first, of the records in the stretch that bear one of the keys."""
        kept = self._kept.get(from_offset)
        if kept is None:
            if len(self._kept) >= STRETCHES_MAX:
                self._kept.clear()
                self._kept_size = 0
            kept = self._kept[from_offset] = _Kept(from_offset)
        elif kept.last is not None and self._log.raw(kept.last[0], len(kept.last[1])) != kept.last[1]:
            # Over old bytes, a record in the making may look whole before it is.
            self._kept_size -= kept.to_offset - from_offset
            kept = self._kept[from_offset] = _Kept(from_offset)
        kept.uses += 1
        room = min(STRETCH_SIZE_MAX, KEPT_SIZE_MAX - self._kept_size + (kept.to_offset - from_offset))
        if kept.uses == 1 or to_offset - from_offset > room or to_offset < kept.to_offset:
            return self._scan(from_offset, to_offset, Sieve(keys), damage)
        if kept.to_offset < to_offset:
            self._keep(kept, to_offset)
        damage += kept.damage
        if len(keys) == 1:
            return list(kept.offsets.get(keys[0], ()))
        return sorted({offset for key in keys for offset in kept.offsets.get(key, ())})

    def _keep(self, kept: _Kept, to_offset: int) -> None:
        for offset in self._scan(kept.to_offset, to_offset, Sieve(), kept.damage):
            message = self._log.read(offset)
            if not message.is_rollback:
                unique_ids = [message.unique_id] if message.unique_id else []
                for text in {*message.keys, *unique_ids}:
                    kept.offsets.setdefault(text, []).append(offset)
            if offset == self._log.last_offset:
                kept.last = (offset, self._log.raw(offset, message.size))
        self._kept_size += to_offset - kept.to_offset
        kept.to_offset = to_offset

    def _scan(self, from_offset: int, to_offset: int, sieve: Sieve, damage: list[Damage]) -> list[int]:
        offsets: array[int] = array("q")
        for begin, end in self._log.pieces(from_offset, to_offset):
            offsets += self._log.scan(begin, end, sieve, damage)
        return offsets.tolist()
