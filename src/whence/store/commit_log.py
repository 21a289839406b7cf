"""CommitLog: all topics' messages, in the order in which they were stored."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from whence.errors import CorruptError, FormatError, NotFoundError
from whence.files.file_sequence import FileSequence
from whence.files.names import OFFSET_MAX
from whence.formats.rocketmq.message import BLANK_SIZE_MIN, Message
from whence.store.damage import Damage, DamageKind
from whence.store.log_file import HEAD_SIZE, NOTHING_FOUND, Found, LogFile, PlainBudget
from whence.store.scan import AnySieve, Reason, Sieve

BEHIND_MAX = 1_000_000  # whole records behind the log's end are counted up to here
DAMAGE_TOLD_MAX = 1000  # records of one file that fail and are told one by one
WRITE_PAUSE_S = 0.002  # a record in the making is whole by then


class CommitLog:
    """The files of ``commitlog/``, for reading; any number of readers, also while a broker writes.

    A record counts only if it is whole: its fields add up, its checksum fits and its physical offset is its
    position. At the log's end one thing more is asked, since the checksum leaves out topic and properties: those
    hold no zero byte, or a whole record or blank follows. So a record that is being written is never taken, and
    becomes readable when it is whole.

    The log ends at the first record that is not whole in the last file that begins with a whole one. Before that,
    a record that fails is damage: a scan says so, looks for the next whole record and goes on.
    """

    def __init__(self, folder: Path, *more: Path) -> None:
        self._files = FileSequence(folder, *more)
        self._budget = PlainBudget()
        self.known_boundary = 0  # an offset before which the log surely goes, and at which a record begins or will
        self._end = -1
        self._last = -1
        self._seen_head = b""
        self._behind: tuple[int, list[Damage]] | None = None

    @property
    def begin_offset(self) -> int:
        """Offset of the oldest byte that is still there."""
        return self._files.begin_offset

    @property
    def bases(self) -> list[int]:
        """Where the files begin."""
        return self._files.bases

    @property
    def file_size(self) -> int:
        """Of each file, as names and lengths show; 0 if there is none."""
        return self._files.file_size

    @property
    def is_there(self) -> bool:
        """Whether a file of it has a byte; where none has, its disk may not be mounted."""
        return self.file_size > 0

    @property
    def last_offset(self) -> int:
        """Where the last record begins, as far as the end was looked for; -1 if there is none."""
        return self._last

    @property
    def seen_end_offset(self) -> int:
        """Where the log ended when its end was last looked for; -1 before that."""
        return self._end

    def leads_on(self, from_offset: int, to_offset: int) -> bool:
        """Whether a walk over whole records from one offset comes out at the other; both in one file."""
        base = self._files.base_of(from_offset)
        if base is None:
            return False
        stopped = self._file(base).walk(from_offset - base, to_offset - base)
        return stopped.reason is Reason.END and stopped.position == to_offset - base

    def base_of(self, physical_offset: int) -> int | None:
        """Offset of the first byte of the file that holds this one; None if no file does."""
        return self._files.base_of(physical_offset)

    def file_of(self, physical_offset: int) -> LogFile:
        """The file that holds this offset; NotFoundError if none does."""
        base = self._files.base_of(physical_offset)
        if base is None:
            raise NotFoundError(self._why_not_here(physical_offset))
        return self._file(base)

    def use_kernel(self) -> None:
        """Scan with the kernel from the first byte on: who knows that it is loaded, or will be, says so."""
        self._budget.left = 0

    def refresh(self) -> bool:
        """Notice files that were added or deleted; True if there were some."""
        return self._files.refresh()

    def state(self) -> tuple[object, ...]:
        """Differs from an earlier one if files came or went, or something was written at the log's end."""
        self.refresh()
        state = (self._end, len(self._files.bases), self.begin_offset, self._last_head())
        base = self._files.base_of(self._end)
        if base is None:
            return state
        position = self._end - base
        written = any(self._files.file(base).data[position : position + BLANK_SIZE_MIN])
        # A record in the making may become whole without a change to its first bytes: then look each time.
        return (*state, object() if written else None)

    def path_of(self, physical_offset: int) -> tuple[Path, int]:
        """The file that holds, or would hold, this offset, and the position in it."""
        base = self._files.base_of(physical_offset)
        if base is None:
            size = self._files.file_size or 1
            base = physical_offset - physical_offset % size
        return self._files.path_of(base), physical_offset - base

    # -- one record ------------------------------------------------------------------------------------------

    def read(self, physical_offset: int) -> Message:
        """The whole record that begins at this offset.

        NotFoundError: no file holds the offset. CorruptError or TruncatedError: no whole record begins there.
        """
        file = self.file_of(physical_offset)
        try:
            return file.record(physical_offset - file.base)[0]
        except FormatError as error:
            raise error.at(file.file.path) from None

    def raw(self, physical_offset: int, size: int) -> bytes:
        """So many bytes from this offset on, as they are now; fewer at the end of the file that holds it."""
        base = self._files.base_of(physical_offset)
        if base is None:
            return b""
        position = physical_offset - base
        return bytes(self._files.file(base).data[position : position + size])

    def _file(self, base: int) -> LogFile:
        return LogFile(self._files.file(base), base, self._budget)

    def _why_not_here(self, physical_offset: int) -> str:
        if not self._files.bases:
            return f"{self._files.folder}: there is no log file"
        if physical_offset < self.begin_offset:
            return f"offset {physical_offset} is below the log's start {self.begin_offset}: it has expired"
        return f"offset {physical_offset} is in no file of {self._files.folder}"

    def is_boundary(self, physical_offset: int, damage: list[Damage], known: int | None = None) -> bool:
        """Whether a walk from the start of its file meets this offset: what no look at the record alone can prove.

        Damage that the walk met is added to ``damage``. ``known`` is an offset before it that a walk has met already.
        """
        return self.boundary_behind(physical_offset, damage, known) == physical_offset

    def boundary_behind(self, physical_offset: int, damage: list[Damage], known: int | None = None) -> int | None:
        """Where a walk from the start of its file comes out that goes on until it meets this offset or is behind it.

        It is before it if the file's records end before; None if no file holds the offset.
        """
        base = self._files.base_of(physical_offset)
        if base is None:
            return None
        position = physical_offset - base
        begin = known - base if known is not None and base <= known <= physical_offset else 0
        return base + self._walk_through(base, begin, position, None, array("q"), damage)

    def next_boundary(self, physical_offset: int) -> int:
        """Where the next record begins, or will: here, or in the next file if a blank fills this one."""
        base = self._files.base_of(physical_offset)
        if base is None:
            return physical_offset
        is_blank = self._file(base).what_is_at(physical_offset - base).reason is Reason.BLANK
        return base + self._files.file_size if is_blank else physical_offset

    # -- the end ---------------------------------------------------------------------------------------------

    def end_offset(self, boundary: int = 0) -> int:
        """Where the log ends now. ``boundary``: an offset where a whole record is known to begin, to start from."""
        self.refresh()
        if not self._files.bases:
            return 0
        if self._end < 0 or self._last_head() != self._seen_head:
            self._end = self.last_written_base()  # the first look, or the log was cut since the last one
        self._end = max(self._end, boundary, self.known_boundary)
        while (base := self._files.base_of(self._end)) is not None:
            file = self._file(base)
            stopped = file.walk(self._end - base, self._files.file_size)
            if stopped.last >= 0:
                self._last = base + stopped.last
            if stopped.reason is Reason.BLANK:
                self._end = base + self._files.file_size
            elif (newer := self.last_written_base()) > base:
                self._end = newer  # what stands here is damage: the log went on in another file since
            else:
                half = stopped.last >= 0 and is_half(file, stopped.last)
                self._end = base + (stopped.last if half else stopped.position)
                break
        self._seen_head = self._last_head()
        return self._end

    def _last_head(self) -> bytes:
        """The first bytes of the log's last record, by which one sees that the log was cut and written anew."""
        return self.raw(self._last, HEAD_SIZE) if self._last >= 0 else b""

    def last_written_base(self) -> int:
        """Base offset of the last file that begins with a whole record; of the first if none does."""
        for base in reversed(self._files.bases):
            if self._file(base).what_is_at(0).reason is Reason.END:
                return base
        return self._files.begin_offset

    def damage(self, end_offset: int) -> list[tuple[int, int, Damage]]:
        """What is wrong with the log as a whole, with the offsets from and to which it reaches.

        Stretches that no file holds, and what lies behind the log's end.
        """
        if self._behind is None or self._behind[0] != end_offset:
            self._behind = (end_offset, self.damage_behind(end_offset))
        return self.gaps(end_offset) + [(end_offset, OFFSET_MAX, damage) for damage in self._behind[1]]

    def damage_behind(self, end: int) -> list[Damage]:
        """Whole records behind the one at which the log ends, or that one, if it has its size and is half empty.

        They are not part of the log as RocketMQ sees it after a restart, and yet they may be what is asked for.
        Each call looks again: a broker may have written there since.
        """
        base = self._files.base_of(end)
        if base is None:
            return []
        behind: array[int] = array("q")
        given_up = False
        for run in self._files.bases:
            if run + self._files.file_size <= end:
                continue
            file = self._file(run)
            found = file.next_whole(max(end + 1 - run, 0))
            while found.position is not None and len(behind) < BEHIND_MAX:
                found = file.next_whole(file.walk(found.position, self._files.file_size, Sieve(), behind).position)
            given_up |= found.given_up_at is not None or len(behind) >= BEHIND_MAX
        path, position = self.path_of(end)
        half = not behind and self._file(base).what_is_at(position).reason is Reason.END
        if (behind or half) and self._end_moved(end):
            return []  # a broker is writing: these belong to the log by now
        ends = f"the log ends here, at offset {end}, with a record"
        if behind or given_up:
            detail = f"{ends} that is not whole; {len(behind)} whole records were found behind it"
            if behind:
                detail += f", the first at offset {behind[0]}, the last at {behind[-1]}"
            if given_up:
                detail += ", and there may be more"
            return [Damage(str(path), position, DamageKind.RECORDS_BEHIND_END, detail)]
        if half:
            detail = f"{ends} of which the second half was not written"
            return [Damage(str(path), position, DamageKind.HALF_RECORD, detail)]
        return []

    def first_behind(self, end: int) -> Found:
        """Where the first whole record lies behind the one at which the log ends: an offset."""
        for base in self._files.bases:
            if base + self._files.file_size > end:
                found = self._file(base).next_whole(max(end + 1 - base, 0))
                if found != NOTHING_FOUND:
                    return Found(*(None if position is None else base + position for position in found))
        return NOTHING_FOUND

    def pass_end(self, end: int) -> int:
        """Where the log ends for who takes what stands at its end for damage, and goes on behind it as a scan does.

        From then on that is the log's end: a broker appends behind the last record that it wrote.
        """
        behind = self._resumed(end)
        while behind is not None:
            end = self.end_offset(boundary=behind)
            behind = self._resumed(end)
        return end

    def _resumed(self, end: int) -> int | None:
        """Where a scan that fails at this offset goes on; None if nothing whole lies behind it."""
        for base in self._files.bases:
            if base + self._files.file_size > end:
                file = self._file(base)
                found = file.resume(end - base) if base <= end else file.next_whole(0)
                if found.position is not None:
                    return base + found.position
        return None

    def _end_moved(self, end: int) -> bool:
        """Whether the log has grown meanwhile; a record in the making gets a moment to become whole."""
        time.sleep(WRITE_PAUSE_S)
        return self.end_offset() != end

    # -- stretches -------------------------------------------------------------------------------------------

    def gaps(self, end_offset: int) -> list[tuple[int, int, Damage]]:
        """Stretches before this offset that no file holds: from where, to where, and what to say of it."""
        gaps = []
        for begin, end in self._files.gaps():
            if begin < end_offset:
                path, position = self.path_of(begin)
                detail = f"the log has no bytes from offset {begin} to {end}"
                gaps.append((begin, end, Damage(str(path), position, DamageKind.GAP, detail)))
        return gaps

    def pieces(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """``[from_offset, to_offset)`` cut at file boundaries, oldest first, without what is in no file."""
        pieces = []
        for base in self._files.bases:
            begin, end = max(base, from_offset), min(base + self._files.file_size, to_offset)
            if begin < end:
                pieces.append((begin, end))
        return pieces

    def scan(self, from_offset: int, to_offset: int, sieve: AnySieve, damage: list[Damage]) -> array[int]:
        """Physical offsets of the records in one piece (see :meth:`pieces`) that pass the sieve, in order.

        ``from_offset`` is where a record begins. What cannot be read is added to ``damage``, and the scan goes on
        behind it with the next record that is whole.
        """
        offsets: array[int] = array("q")
        try:
            base = self._files.base_of(from_offset)
            if base is None:
                raise NotFoundError(self._why_not_here(from_offset))
            self._walk_through(base, from_offset - base, to_offset - base, sieve, offsets, damage)
        except NotFoundError as error:
            self.refresh()
            if from_offset >= self.begin_offset:  # else it has expired since the question was put
                path, position = self.path_of(from_offset)
                damage.append(Damage(str(path), position, DamageKind.GAP, str(error)))
        return offsets

    def _walk_through(
        self, base: int, position: int, end: int, sieve: AnySieve | None, offsets: array[int], damage: list[Damage]
    ) -> int:
        """Walk over all whole records of ``[position, end)`` of a file, also behind damage; where it came out."""
        file = self._file(base)
        told = 0
        while position < end:
            stopped = file.walk(position, end, sieve, offsets)
            position = stopped.position
            if stopped.reason in (Reason.END, Reason.BLANK):
                break
            found = file.resume(position)
            told += 1
            if told <= DAMAGE_TOLD_MAX:
                detail = f"{stopped.detail or 'nothing is written here'}; {found}"
                damage.append(Damage(str(file.file.path), position, DamageKind.BAD_RECORD, detail))
            position = end if found.position is None else found.position
        if told > DAMAGE_TOLD_MAX:
            detail = f"{told - DAMAGE_TOLD_MAX} more records of this file fail, up to this byte"
            damage.append(Damage(str(file.file.path), position, DamageKind.BAD_RECORD, detail))
        return position

    def messages(self, from_offset: int, to_offset: int) -> Iterator[Message]:
        """Every whole record of ``[from_offset, to_offset)``, in order; damage is an error here."""
        for begin, end in self.pieces(from_offset, to_offset):
            damage: list[Damage] = []
            for offset in self.scan(begin, end, Sieve(), damage):
                yield self.read(offset)
            if damage:
                raise CorruptError(damage[0].detail, position=damage[0].position, path=damage[0].path)

    def close(self) -> None:
        self._files.close()


def is_half(file: LogFile, position: int) -> bool:
    """Whether the log's last record may still be in the making, although its checksum fits."""
    message, following = file.record(position)
    if 0 not in message.properties_data and "\0" not in message.topic:
        return False
    return file.what_is_at(following).reason in (Reason.ZERO, Reason.DAMAGE)
