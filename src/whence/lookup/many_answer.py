"""The answer to very many keys: parts of rows, as Arrow batches, and one receipt for the whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.files.names import OFFSET_MAX
from whence.lookup.answer import Receipt
from whence.lookup.asked_keys import AskedKeys
from whence.lookup.field_search import BeginAnewError
from whence.lookup.many import KeysSearch, Rows, Scanned, Topics
from whence.lookup.question import Question
from whence.lookup.search import WHY_EMPTY, Progress, join_receipts
from whence.store.message_store import MessageStore

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


SPARK_KEYS = 10_000_000
"""From so many keys on, or of a second piece, Spark is worth the seconds that it takes to start."""


@dataclass(slots=True)
class ManyReceipt(Receipt):
    """The receipt for all the keys. ``rows``: how many the answer has; the keys are those that are distinct."""

    keys: int = 0
    keys_missing: int = 0
    rows: int = 0

    def to_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("keys", "keys_missing", "rows")}
        return counts | Receipt.to_dict(self)


@dataclass(frozen=True, slots=True)
class ManyAnswer:
    """The ``table`` has a row for each key and message that bears it; ``missing`` are the keys without one."""

    question: Question
    table: pa.Table
    missing: pa.ChunkedArray
    receipt: ManyReceipt

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True)
class Part:
    """The answer to some of the keys: their rows, until the next part is asked for, and the keys without a row."""

    keys: AskedKeys
    rows: Rows
    missing: NDArray[np.int64]


class ManySearch:
    """Very many keys put to one or several stores. Take :meth:`parts` to their end, then :attr:`receipt`.

    ``ends``: where the logs end for this search. ``scanned``: what was found in parts of each log that no index
    covers, where that is known.

    ``is_doubtful``: an index file turned out to be damaged when parts were given that it had a part in. What they
    tell is right, and something may be missing in them: who can begins anew, and does not use the file then.
    """

    def __init__(
        self,
        stores: Sequence[MessageStore],
        question: Question,
        progress: Progress | None = None,
        ends: Sequence[int] = (),
        scanned: Sequence[Mapping[tuple[int, int], Scanned]] = (),
    ) -> None:
        self.stores = stores
        self.question = question
        self.topics = Topics()
        self.is_doubtful = False
        self.counts = Counts()
        self._progress = progress
        self._ends = list(ends) or [OFFSET_MAX] * len(stores)
        self._scanned = scanned or [{}] * len(stores)
        self._receipts: list[list[Receipt]] = []

    def parts(self, pieces: Iterable[AskedKeys]) -> Iterator[Part]:
        """The parts, in the order of the keys."""
        for keys in pieces:
            self.counts.keys += len(keys)
            yield from self._of_piece(keys)

    def _of_piece(self, keys: AskedKeys) -> Iterator[Part]:
        done = row_count = 0
        while True:
            searches = [self._search(keys, number) for number in range(len(self.stores))]
            try:
                for search, scanned in zip(searches, self._scanned, strict=True):
                    search.scan(scanned)
                for first, behind in self._batches(searches, keys, done):
                    rows = self._in_order([search.rows(first, behind) for search in searches])
                    missing = _missing(rows, first, behind)
                    self.counts.rows += len(rows.order)
                    self.counts.keys_missing += len(missing)
                    row_count += len(rows.order)
                    yield Part(keys, rows, missing)
                    done = behind
                break
            except BeginAnewError:
                is_given = done > 0 or len(self._receipts) > 0
                self.is_doubtful |= is_given and any(search.is_broken for search in searches)
        self._receipts.append([search.finish(None, empty=row_count == 0) for search in searches])

    def _search(self, keys: AskedKeys, number: int) -> KeysSearch:
        search = KeysSearch(
            self.stores[number],
            self.question,
            keys,
            self.topics,
            number=number,
            end_offset=self._ends[number],
            progress=self._progress,
        )
        self._ends[number] = search.end_offset
        return search

    def _batches(self, searches: list[KeysSearch], keys: AskedKeys, done: int) -> Iterator[tuple[int, int]]:
        size = min(search.batch_size for search in searches)
        for first in range(done, len(keys), size):
            yield first, min(first + size, len(keys))

    def _in_order(self, found: list[Rows]) -> Rows:
        """The rows of all stores: by key, then by time; not more for a key than the question's limit."""
        (rows, order), question = found[0], self.question
        if len(found) > 1:
            rows = np.concatenate([each.all[each.order] for each in found])
            sign = 1 if question.oldest_first else -1
            by = (
                sign * rows["physical_offset"],
                rows["store"],
                sign * rows["store_timestamp_ms"],
                rows["key_number"],
            )
            order = np.lexsort(by)
        if question.limit is not None and len(order):
            begins = np.flatnonzero(np.diff(rows["key_number"][order], prepend=-1))
            rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
            if (rank >= question.limit).any():
                self.counts.truncated = True
                order = order[rank < question.limit]
        return Rows(rows, order)

    @property
    def receipts(self) -> list[Receipt]:
        """One for each store, over all keys."""
        if not self._receipts:
            return [Receipt() for _ in self.stores]
        return [add_receipts(each) for each in zip(*self._receipts, strict=True)]

    @property
    def receipt(self) -> ManyReceipt:
        return whole_receipt(self.stores, self.receipts, self.counts, is_doubtful=self.is_doubtful)


def _missing(rows: Rows, first: int, behind: int) -> NDArray[np.int64]:
    """The keys from ``first`` to ``behind - 1`` that have no row."""
    is_missing = np.ones(behind - first, np.bool_)
    is_missing[rows.all["key_number"] - first] = False
    return first + np.flatnonzero(is_missing)


@dataclass(slots=True)
class Counts:
    """What is counted over all keys."""

    keys: int = 0
    keys_missing: int = 0
    rows: int = 0
    truncated: bool = False


def add_receipts(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt of one store out of those of its parts, each of which has other keys."""
    added = Receipt(**{name: getattr(receipts[-1], name) for name in Receipt.__dataclass_fields__})
    added.complete = all(receipt.complete for receipt in receipts)
    added.searched_from_offset = max(receipt.searched_from_offset for receipt in receipts)
    added.index_files_skipped = min(receipt.index_files_skipped for receipt in receipts)
    added.scanned_bytes = max(receipt.scanned_bytes for receipt in receipts)  # the same, for other keys
    for name in ("items_visited", "candidates", "rejected"):
        setattr(added, name, sum(getattr(receipt, name) for receipt in receipts))
    added.damage = list(dict.fromkeys(damage for receipt in receipts for damage in receipt.damage))
    reasons = {receipt.why_empty for receipt in receipts}
    added.why_empty = None if None in reasons else next((why for why in WHY_EMPTY if why in reasons), None)
    return added


def whole_receipt(
    stores: Sequence[MessageStore], receipts: Sequence[Receipt], counts: Counts, *, is_doubtful: bool
) -> ManyReceipt:
    """The receipt for the whole, out of one for each store."""
    one = receipts[0] if len(receipts) == 1 else join_receipts(stores, list(receipts), empty=counts.rows == 0)
    whole = ManyReceipt(**{name: getattr(one, name) for name in Receipt.__dataclass_fields__})
    whole.keys, whole.keys_missing, whole.rows = counts.keys, counts.keys_missing, counts.rows
    whole.truncated = counts.truncated
    whole.complete &= not is_doubtful
    return whole


def is_for_spark(pieces: Iterable[AskedKeys]) -> tuple[Iterable[AskedKeys], bool]:
    """The same pieces, and whether there are so many keys that Spark has them looked up sooner than one process."""
    if find_spec("pyspark") is None or (os.cpu_count() or 1) == 1:
        return pieces, False
    each = iter(pieces)
    first = list(islice(each, 2))
    return chain(first, each), len(first) > 1 or sum(map(len, first)) >= SPARK_KEYS
