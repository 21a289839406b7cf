"""IndexCheck: one index file held against the items that the log has for its part of it.

    check = IndexCheck(path, shape, begin_offset=log.begin_offset, end_offset=scanned_to)
    findings = check.run(batches)          key hashes, physical offsets, store times, in the order of the log

Everything in the file is looked at: header, slots, items, and that nothing is written behind them. What brokers do
is no damage, unless the file is whence's own (``is_exact``), which has to be as if it were built anew:

    slot_count         before 4.7.1 every put is counted; so it is in a file that such a broker began
    repeated items     of the last message before a restart: it is dispatched once more
    optional items     of tags, which 5.4 and later have; the caller tells which ones those are
    the first item     its time is counted from the end of the file before
    a file without     inherits the end of the file before
    items
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from whence.errors import StoreError
from whence.files.mapped_file import ZEROS, MappedFile
from whence.files.plain_file import PlainFile
from whence.formats.rocketmq.index_file import (
    FIRST_ITEM,
    HEADER,
    ITEM,
    NO_HEADER,
    NO_ITEM,
    IndexHeader,
    decode_header,
    decode_items,
    item_position,
    slot_position,
)
from whence.store.findings import LISTED_MAX, Finding, FindingKind, Findings
from whence.store.index_file import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    ItemBatch: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

REPAIR = "build this index file anew from the log"
PIECE_SIZE = 1 << 20
assert len(ZEROS) >= PIECE_SIZE
assert ITEM.fields is not None and HEADER.fields is not None
_FIELDS = {name: place[1] for name, place in ITEM.fields.items()}
_HEADER_FIELDS = {name: place[1] for name, place in HEADER.fields.items()}


@dataclass(slots=True)
class IndexFindings(Findings):
    """What a check found. Counts below are no damage: they tell how the broker's version behaves."""

    item_count: int = 0
    expired_count: int = 0  # items of messages that are no more in the log
    ahead_count: int = 0  # items of messages behind what was scanned
    repeated_count: int = 0
    optional_count: int = 0  # items that need not be there, and are
    left_out_count: int = 0  # those that are not
    counts_every_put: bool = False
    header: IndexHeader | None = None


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """One file, and what its neighbours tell of it.

    ``begin_offset``, ``end_offset``: of the log as it was scanned. What leads before it has expired.
    ``inherited``: the header of the file before; its end is what times are counted from until the first item is put,
    and then that item's time tells it. None if there is none before; ``is_inherited`` False if that is not known.
    ``begun``: how many of the first items that are expected are in the file before, too: they need not be in both.
    ``is_live``: a writer may be at work in the file, or was killed: items may be there that lead behind what was
    scanned, or that the header does not count yet, and slots lead to them.
    ``is_exact``: whence made it, so that nothing a broker does counts.
    """

    path: Path
    shape: Shape
    begin_offset: int
    end_offset: int
    inherited: IndexHeader | None = None
    is_inherited: bool = True
    begun: int = 0
    is_live: bool = False
    is_exact: bool = False

    def run(self, expected: Iterable[ItemBatch]) -> IndexFindings:
        """Check the file. ``expected``: the items that the log has for it, in batches of any size.

        A hash whose sign bit is set is of an item that may be left out.
        """
        found = IndexFindings()
        try:
            mapped = MappedFile(self.path)
        except StoreError as error:
            self._find(found, FindingKind.UNREADABLE, 0, str(error))
            self._count_missing(found, expected)
            return found
        with mapped:
            _Run(self, mapped, found).run(expected)
        return found

    def _find(self, found: Findings, kind: FindingKind, position: int, detail: str) -> None:
        found.add(Finding(self.path, position, kind, detail, REPAIR))

    def _count_missing(self, found: Findings, expected: Iterable[ItemBatch]) -> None:
        """Nothing of the file can be believed: all that need be in it is missing."""
        for batch in expected:
            found.count(FindingKind.MISSING, int(np.count_nonzero(batch[0] >= 0)))


@dataclass(slots=True)
class _Run:
    """One check of one mapped file."""

    check: IndexCheck
    mapped: MappedFile
    found: IndexFindings
    header: IndexHeader = field(init=False)

    def run(self, expected: Iterable[ItemBatch]) -> None:
        check, found, shape = self.check, self.found, self.check.shape
        if self.mapped.size != shape.file_size:
            what = f"the file has {self.mapped.size} bytes; with {shape.slot_capacity} slots and"
            self._find(
                FindingKind.WRONG_SIZE,
                min(self.mapped.size, shape.file_size),
                f"{what} {shape.item_capacity} items it has {shape.file_size}",
            )
        if self.mapped.size < shape.file_size:
            check._count_missing(found, expected)
            return
        self.header = found.header = decode_header(self.mapped.data)
        if not 0 <= self.header.item_count <= shape.item_capacity:
            self._find_in_header("item_count", f"{FIRST_ITEM} to {shape.item_capacity}", self.header.item_count)
            check._count_missing(found, expected)
            return
        found.item_count = self.header.next_item - FIRST_ITEM
        begin_ms, end_ms, used = self._check_items(expected)
        self._check_header(begin_ms, end_ms, used)
        self._check_zeros()

    def _find(self, kind: FindingKind, position: int, detail: str) -> None:
        self.check._find(self.found, kind, position, detail)

    # -- items and slots -------------------------------------------------------------------------------------

    def _check_items(self, expected: Iterable[ItemBatch]) -> tuple[int, int | None, int]:
        """Check all items and slots: the times of the first and the last one, if the log has it, and slots in use."""
        from whence.kernels.chains import file_view
        from whence.kernels.checks import (
            FAULT,
            FAULT_KINDS,
            MATCH,
            RULES,
            UNKNOWN,
            check_heads,
            check_links,
            match_items,
        )

        check, shape, next_item = self.check, self.check.shape, self.header.next_item
        inherited_ms = 0 if check.inherited is None else max(check.inherited.end_timestamp_ms, 0)
        if not check.is_inherited:
            inherited_ms = UNKNOWN
        limits = (shape.slot_capacity, next_item, check.begin_offset, check.end_offset)
        rules = np.array([(*limits, inherited_ms, check.is_exact, check.is_live)], RULES)
        match = np.zeros(1, MATCH)
        match["item"], match["last_offset"], match["begun"] = FIRST_ITEM, -1, check.begun
        match["begin_ms"], match["end_ms"] = self.header.begin_timestamp_ms, UNKNOWN
        faults, counts = np.zeros(LISTED_MAX, FAULT), np.zeros(FAULT_KINDS, np.int64)
        view = file_view(self.mapped.data, shape.slot_capacity, shape.item_capacity)
        slots = np.zeros(shape.slot_capacity, np.int32)

        def hold_against(batch: ItemBatch, *, is_last: bool) -> int:
            first = int(match["item"][0])
            done = match_items(view, rules, match, *batch, is_last, faults, counts)
            check_links(view, first, int(match["item"][0]), slots, match, faults, counts)
            return done

        left: ItemBatch = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        for batch in expected:
            hashes, offsets, times = left
            whole = (
                np.concatenate((hashes, batch[0])),
                np.concatenate((offsets, batch[1])),
                np.concatenate((times, batch[2])),
            )
            done = hold_against(whole, is_last=False)
            left = (whole[0][done:], whole[1][done:], whole[2][done:])
        hold_against(left, is_last=True)
        used = check_heads(view, shape.item_capacity, next_item, slots, check.is_live, match, faults, counts)
        self._tell_faults(faults[: int(match["listed"][0])], counts)

        found = self.found
        found.expired_count, found.repeated_count = int(match["expired"][0]), int(match["repeated"][0])
        found.optional_count, found.left_out_count = int(match["optional"][0]), int(match["left_out"][0])
        found.ahead_count, end_ms = int(match["ahead"][0]), int(match["end_ms"][0])
        return int(match["begin_ms"][0]), None if end_ms == UNKNOWN else end_ms, used

    def _items(self, number: int, count: int) -> memoryview:
        slot_capacity = self.check.shape.slot_capacity
        return self.mapped.data[item_position(slot_capacity, number) : item_position(slot_capacity, number + count)]

    def _tell_faults(self, faults: NDArray[np.void], counts: NDArray[np.int64]) -> None:
        """Put into words what the kernels listed."""
        from whence.kernels.checks import Fault

        kinds = {
            Fault.MISSING: FindingKind.MISSING,
            Fault.DANGLING: FindingKind.DANGLING,
            Fault.REPEATED: FindingKind.REPEATED,
            Fault.ORDER: FindingKind.WRONG_ORDER,
            Fault.TIME: FindingKind.WRONG_TIME,
            Fault.LINK: FindingKind.WRONG_LINK,
            Fault.HEAD: FindingKind.WRONG_HEAD,
        }
        for fault, number, expected, value in faults.tolist():
            position, detail = self._say(fault, number, expected, value)
            self.found.list(Finding(self.check.path, position, kinds[Fault(fault)], detail, REPAIR))
        for fault in Fault:
            self.found.count(kinds[fault], int(counts[fault]))

    def _say(self, fault: int, number: int, expected: int, found: int) -> tuple[int, str]:
        """The position of a fault, and a sentence."""
        from whence.kernels.checks import Fault

        slot_capacity = self.check.shape.slot_capacity
        if fault == Fault.HEAD:
            if found < 0 or found >= self.check.shape.item_capacity:
                why = f"but items are 1 to {self.check.shape.item_capacity - 1}"
            elif expected == NO_ITEM:
                why = "but no item belongs to it"
            else:
                why = f"but the newest item of its chain is {expected}"
            return slot_position(number), f"slot {number} leads to item {found}, {why}"
        at = item_position(slot_capacity, number)
        if fault == Fault.MISSING:
            return at, f"the message at offset {expected} has an item of hash {found}, which should be item {number}"
        if fault == Fault.REPEATED:
            return at, f"item {number} leads once more to the message at offset {expected}, as one before it"
        if fault == Fault.ORDER and found == expected:
            return (
                at,
                f"the items of the message at offset {found}, from item {number} on, are not in its keys' order",
            )
        if fault == Fault.ORDER:
            return at + _FIELDS["physical_offset"], (
                f"item {number} leads to offset {found}, but items before it lead to offset {expected}"
            )
        if fault == Fault.TIME:
            return at + _FIELDS[
                "time_diff_s"
            ], f"item {number} is {found} s behind the file's begin, not {expected} s"
        if fault == Fault.LINK:
            return at + _FIELDS["previous_item"], f"item {number} points to item {found}, not to item {expected}"
        if not any(self._items(number, 1)):
            return at, f"item {number} is all zero, as if it was lost"
        return at, f"item {number} leads to offset {expected}, where no message with its hash {found} lies"

    # -- header and the rest ---------------------------------------------------------------------------------

    def _find_in_header(self, field: str, expected: object, found: object) -> None:
        what = f"the header's {field.replace('_', ' ')} is {found}, not {expected}"
        self._find(FindingKind.WRONG_HEADER, _HEADER_FIELDS[field], what)

    def _check_header(self, begin_ms: int, end_ms: int | None, used: int) -> None:
        """Hold the header against items, log and slots. ``None``: the log does not tell that time."""
        check, header, found = self.check, self.header, self.found
        if not found.item_count:
            self._check_empty_header()
        else:
            first, last = (decode_items(self._items(number, 1)) for number in (FIRST_ITEM, header.next_item - 1))
            expected = {
                "begin_timestamp_ms": begin_ms,
                "end_timestamp_ms": end_ms,
                "begin_physical_offset": int(first["physical_offset"][0]),
                "end_physical_offset": int(last["physical_offset"][0]),
            }
            for name, value in expected.items():
                if value is not None and getattr(header, name) != value:
                    self._find_in_header(name, value, getattr(header, name))
        found.counts_every_put = header.slot_count != used
        slot_count_max = used if check.is_exact else found.item_count
        if not used <= header.slot_count <= slot_count_max:
            self._find_in_header("slot_count", used, header.slot_count)

    def _check_empty_header(self) -> None:
        """A file without items has the end of the one before as its begin and end; a new one may be all zero."""
        check, header = self.check, self.header
        before = check.inherited
        end_ms = 0 if before is None else max(before.end_timestamp_ms, 0)
        end_offset = 0 if before is None else max(before.end_physical_offset, 0)
        inherited = {
            "begin_timestamp_ms": end_ms,
            "end_timestamp_ms": end_ms,
            "begin_physical_offset": end_offset,
            "end_physical_offset": end_offset,
        }
        if not check.is_inherited or (not check.is_exact and header == NO_HEADER):
            return
        for name, value in inherited.items():
            if getattr(header, name) != value:
                self._find_in_header(name, value, getattr(header, name))

    def _check_zeros(self) -> None:
        """Nothing is written in the place of item 0, and nothing behind the last item."""
        shape, slot_capacity = self.check.shape, self.check.shape.slot_capacity
        self._check_zero(item_position(slot_capacity, 0), item_position(slot_capacity, FIRST_ITEM))
        if not self.check.is_live:
            self._check_zero(item_position(slot_capacity, self.header.next_item), shape.file_size)

    def _check_zero(self, begin: int, end: int) -> None:
        with PlainFile(self.mapped.path) as file:
            pieces = file.data_pieces(begin, PIECE_SIZE)
        for position, size in pieces:
            piece = bytes(self.mapped.data[position : min(position + size, end)])
            if piece != ZEROS[: len(piece)]:
                at = position + next(i for i, byte in enumerate(piece) if byte)
                self._find(FindingKind.NOT_ZERO, at, "something is written where no item is yet")
                return
            if position + size >= end:
                return
