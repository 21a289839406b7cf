"""The rows of an answer to very many keys as Arrow batches.

key, then what a row tells of its message, then store where there are several
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import UsageError
from whence.lookup.asked_keys import AskedKeys
from whence.lookup.many import Topics
from whence.lookup.many_answer import ManyReceipt, ManySearch, Part
from whence.store.message_columns import COLUMNS, DAMAGE, KEY, MessageColumns, arrow_type, load_pyarrow, text_array
from whence.store.message_store import MessageStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORE = "store"
POSITIONS = ("topic", "queue", "queue_offset", "physical_offset", "store_timestamp_ms", "size")
"""What a row tells of its message if nothing else is asked: where it lies."""
BATCH_ROWS = 65_536
BATCH_SIZE = 256 * 1048576  # bytes of keys in one batch: Arrow's texts have to stay below 2 GiB


class ManyBatches:
    """Very many keys put to stores: iterate over it for batches of rows, then ask for the :attr:`receipt`.

    ``on_missing`` is given the keys without a row, some at a time. ``store_names``: as in :class:`ManyColumns`.
    """

    def __init__(
        self,
        search: ManySearch,
        pieces: Iterable[AskedKeys],
        names: Sequence[str] = POSITIONS,
        on_missing: Callable[[Any], None] | None = None,
        store_names: Sequence[str] = (),
    ) -> None:
        self._search = search
        self._pieces = pieces
        self._columns = ManyColumns(search.stores, search.topics, names, store_names)
        self._on_missing = on_missing
        self._started = time.perf_counter_ns()
        self._ended = self._started
        self.question = search.question
        self.schema = self._columns.schema

    def __iter__(self) -> Iterator[Any]:
        for part in self._search.parts(self._pieces):
            if self._on_missing is not None:
                for run in _runs(part.keys.sizes[part.missing]):
                    self._on_missing(key_array(part.keys, part.missing[run]))
            yield from self._columns.batches(part)
        self._ended = time.perf_counter_ns()

    @property
    def receipt(self) -> ManyReceipt:
        """Of all that was given, when all is given."""
        receipt = self._search.receipt
        receipt.elapsed_us = (self._ended - self._started) // 1000
        return receipt

    @property
    def is_doubtful(self) -> bool:
        """See :class:`ManySearch`."""
        return self._search.is_doubtful


class ManyColumns:
    """Makes batches of rows with these columns of their messages.

    A body that cannot be decompressed is null, and spoils no other; the column ``damage`` says why. ``store_names``:
    what the column ``store`` says, if the stores are not open here as they were named by who asked.
    """

    def __init__(
        self,
        stores: Sequence[MessageStore],
        topics: Topics,
        names: Sequence[str] = POSITIONS,
        store_names: Sequence[str] = (),
    ) -> None:
        for name in names:
            if name not in (*COLUMNS, DAMAGE):
                raise UsageError(f"there is no column {name!r}; there are {', '.join((*COLUMNS, DAMAGE))}")
            if names.count(name) > 1:
                raise UsageError(f"the column {name!r} is asked for twice")
        pa = load_pyarrow()
        self.names = tuple(names)
        fields = [pa.field(name, arrow_type(name)) for name in (KEY, *names)]
        if len(stores) > 1:
            fields.append(pa.field(STORE, pa.string()))
        self.schema = pa.schema(fields)
        self._stores = stores
        self._store_names = store_names or [str(store.folder) for store in stores]
        self._topics = topics
        self._messages = None
        if not set(names) <= set(POSITIONS):
            self._messages = MessageColumns(tuple(dict.fromkeys((*names, DAMAGE))))

    def batches(self, part: Part) -> Iterator[Any]:
        """The rows of a part, in batches of bounded size; none of them is empty."""
        from whence.kernels.candidates import ROW, take_rows

        for begin in range(0, len(part.rows.order), BATCH_ROWS):
            order = part.rows.order[begin : begin + BATCH_ROWS]
            rows = np.empty(len(order), ROW)
            take_rows(part.rows.all, order, rows)
            for run in _runs(part.keys.sizes[rows["key_number"]]):
                chunk = rows[run]
                if self._messages is None:
                    yield self._batch(part.keys, chunk, [self._column(name, chunk) for name in self.names])
                else:
                    yield from self._with_messages(part.keys, chunk, self._messages)

    def _batch(self, keys: AskedKeys, rows: NDArray[np.void], columns: Sequence[Any]) -> Any:
        arrays = [key_array(keys, rows["key_number"]), *columns]
        if len(self._stores) > 1:
            arrays.append(_chosen(self._store_names, rows["store"]))
        return load_pyarrow().RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, rows: NDArray[np.void]) -> Any:
        if name == "topic":
            return _chosen(self._topics.names, rows["topic"])
        pa = load_pyarrow()
        return pa.Array.from_buffers(arrow_type(name), len(rows), [None, pa.py_buffer(rows[name].copy())])

    def _with_messages(self, keys: AskedKeys, rows: NDArray[np.void], messages: MessageColumns) -> Iterator[Any]:
        """Batches with columns that are read from the log once more."""
        begin = 0
        while begin < len(rows):
            # The rows of one store that stand together; with one store these are all.
            behind = begin + int(np.argmax(np.append(rows["store"][begin:] != rows["store"][begin], True)))
            log = self._stores[int(rows["store"][begin])].commit_log
            for batch in messages.at(log, rows["physical_offset"][begin:behind]):
                columns = [batch.column(name) for name in self.names]
                yield self._batch(keys, rows[begin : begin + len(batch)], columns)
                begin += len(batch)


def _runs(sizes: NDArray[np.int32]) -> Iterator[slice]:
    """Runs of BATCH_ROWS keys with these sizes, or of fewer if they have more than BATCH_SIZE bytes together."""
    ends = np.cumsum(sizes, dtype=np.int64)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
        end = max(min(end, begin + BATCH_ROWS), begin + 1)
        yield slice(begin, end)
        begin = end


def key_array(keys: AskedKeys, numbers: NDArray[np.int64]) -> Any:
    """The texts of keys, as an Arrow array."""
    from whence.kernels.columns import copy_spans

    pa = load_pyarrow()
    starts, sizes = keys.starts[numbers], keys.sizes[numbers].astype(np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(keys.data.ctypes.data + starts, sizes, data)
    return pa.Array.from_buffers(pa.string(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _chosen(texts: Sequence[str], numbers: NDArray[np.int32]) -> Any:
    """One of a few texts for each row."""
    pa = load_pyarrow()
    indices = pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers.copy())])
    return text_array(texts).take(indices)
