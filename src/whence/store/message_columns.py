"""MessageColumns: scanned records as Arrow record batches.

The values are those of :class:`Message`, made by kernels for all records at once; only a compressed body is looked
at by itself. A batch is bounded in rows and bytes, so that its offsets, which are i4, cannot overflow, and so that
who hands it on needs little memory.

pyarrow comes with Spark (``whence[spark]``), and is loaded when the first columns are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.errors import CorruptError, FormatError, UsageError
from whence.formats.rocketmq.sys_flag import SysFlag
from whence.store.damage import Damage, DamageKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from whence.store.commit_log import CommitLog

COLUMNS = {
    "topic": "string",
    "queue": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "store_timestamp_ms": "bigint",
    "store_time": "timestamp",
    "born_timestamp_ms": "bigint",
    "born_time": "timestamp",
    "keys": "array<string>",
    "tags": "string",
    "unique_id": "string",
    "offset_id": "string",
    "size": "int",
    "reconsume_times": "int",
    "flag": "int",
    "sys_flag": "int",
    "properties": "map<string,string>",
    "body": "binary",
    "body_size": "int",
}
"""The columns of a message in their order, with their types in Spark's words."""

KEY = "key"  # one of the keys of a message: then there is a row for each
DAMAGE = "damage"  # why a body could not be decompressed, which is an error otherwise
TYPES = {KEY: "string", **COLUMNS, DAMAGE: "string"}

BODY_DAMAGE_MAX = 100  # bodies that cannot be decompressed, told by one task
ROWS_MAX = 16_384  # in one batch, and bytes: a larger message or expanded body has a batch for itself
BYTES_MAX = 16 * 1048576

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999


def load_pyarrow() -> Any:
    """The module; a UsageError says what to install if it is not there."""
    try:
        import pyarrow
    except ImportError as error:
        what = "messages become columns with pyarrow, which is not installed: pip install 'whence[spark]'"
        raise UsageError(what) from error
    return pyarrow


def arrow_type(name: str) -> Any:
    """The Arrow type of a column, as Spark wants it."""
    pa = load_pyarrow()
    return {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "string": pa.string(),
        "binary": pa.binary(),
        "array<string>": pa.list_(pa.field("element", pa.string())),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }[TYPES[name]]


class MessageColumns:
    """Makes batches with these columns, in this order. ``by_key``: a row for each distinct key of a message.

    Without a column ``damage``, a compressed body that cannot be read is a FormatError; with one it is null.
    """

    def __init__(self, names: Sequence[str] = tuple(COLUMNS), *, by_key: bool = False) -> None:
        for name in names:
            if name not in TYPES or (name == KEY and not by_key):
                known = ", ".join(TYPES if by_key else [other for other in TYPES if other != KEY])
                raise UsageError(f"there is no column {name!r}; there are {known}")
        if len(set(names)) < len(names) or not names:
            raise UsageError(f"columns are named once each, and there is one at least: {', '.join(names) or 'none'}")
        pa = load_pyarrow()
        self.names = tuple(names)
        self.by_key = by_key
        self.schema = pa.schema([pa.field(name, arrow_type(name)) for name in names])

    def batches(self, data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void]) -> Iterator[Any]:
        """Record batches of the records in ``rows`` (SCANNED), of one log file that begins at ``base_offset``.

        The batches are their own: ``data`` and ``rows`` may be used again. None is empty.
        """
        try:
            yield from self._batches(rows, data.ctypes.data + (rows["physical_offset"] - base_offset), data)
        except _BodyError as bad:
            raise type(bad.error)(bad.error.what, position=bad.physical_offset - base_offset) from None

    def batch(self, data: NDArray[np.uint8], base_offset: int, rows: NDArray[np.void]) -> Any:
        """All in one batch: for few rows. A UsageError if they do not fit into one."""
        first, *more = [*self.batches(data, base_offset, rows)] or [self.empty()]
        if more:
            raise UsageError(f"{len(rows)} messages do not fit into one batch; take batches()")
        return first

    def empty(self) -> Any:
        """A batch without rows."""
        return self.of_damage(())

    def of_damage(self, damage: Sequence[tuple[int, str]]) -> Any:
        """A row for each place in the log where something was passed over: its offset and what it was."""
        pa = load_pyarrow()
        arrays = {name: pa.nulls(len(damage), kind) for name, kind in zip(self.names, self.schema.types, strict=True)}
        made = {
            "physical_offset": constants(pa.int64(), [offset for offset, _ in damage]),
            DAMAGE: text_array([text for _, text in damage]),
        }
        return pa.RecordBatch.from_arrays([(arrays | made)[name] for name in self.names], schema=self.schema)

    def at(
        self,
        log: CommitLog,
        physical_offsets: NDArray[np.int64],
        mask: Callable[[NDArray[np.void]], NDArray[np.bool_] | None] | None = None,
    ) -> Iterator[Any]:
        """Record batches of the records that begin at these offsets, in the order of the offsets.

        ``mask`` may tell which of their rows (SCANNED) are left out. What ``log.read`` raises if no whole record
        begins at one of the offsets.
        """
        from whence.kernels.picked import scan_records
        from whence.kernels.scan import SCANNED

        for start in range(0, len(physical_offsets), ROWS_MAX):
            offsets = physical_offsets[start : start + ROWS_MAX].astype(np.int64)
            rows = np.empty(len(offsets), SCANNED)
            records = np.empty(len(offsets), np.int64)
            held = []
            left = np.arange(len(offsets))
            while len(left):
                file = log.file_of(int(offsets[left[0]]))
                here = (offsets[left] >= file.base) & (offsets[left] < file.base + file.file.size)
                mine, left = left[here], left[~here]
                data = np.frombuffer(file.file.data, np.uint8)
                positions = offsets[mine] - file.base
                found = np.empty(len(mine), SCANNED)
                count = scan_records(data, file.base, positions, found)
                if count < len(mine):
                    log.read(int(offsets[mine[count]]))
                    raise CorruptError(
                        "this record changed while it was read", position=int(positions[count]), path=file.file.path
                    )
                rows[mine] = found
                records[mine] = data.ctypes.data + positions
                held.append(data)
            keep = None if mask is None else mask(rows)
            if keep is not None:
                rows, records = rows[keep], records[keep]
            try:
                yield from self._batches(rows, records, held)
            except _BodyError as bad:
                path, position = log.path_of(bad.physical_offset)
                raise bad.error.at(path, position) from None

    def _batches(self, rows: NDArray[np.void], records: NDArray[np.int64], held: object) -> Iterator[Any]:
        """Batches of records at these addresses, of bytes that ``held`` keeps."""
        parts = _Parts.of(rows, records, self.names, self.by_key)
        start = 0
        while start < len(parts.rows):
            piece = parts.slice(start, self._end_of_batch(parts, start))
            bodies = None
            if "body" in self.names:
                bodies = _Bodies(piece, raises=DAMAGE not in self.names)
                piece = piece.slice(0, bodies.count)
            arrays = [_MAKERS[name](piece, bodies) for name in self.names]
            yield load_pyarrow().RecordBatch.from_arrays(arrays, schema=self.schema)
            start += len(piece.rows)

    def _end_of_batch(self, parts: _Parts, start: int) -> int:
        """The row behind the last that fits into a batch, by what its record takes in the log."""
        sizes = parts.rows["size"][start : start + ROWS_MAX].astype(np.int64)
        if "body" not in self.names and parts.heads is not None:
            sizes -= parts.heads[_BODY_SIZE, start : start + ROWS_MAX]
        return start + max(1, int(np.searchsorted(np.cumsum(sizes), BYTES_MAX, "right")))


def bad_bodies(path: str, base_offset: int, rows: NDArray[np.void], batch: Any) -> Iterator[Damage]:
    """What a column ``damage`` tells of the rows (SCANNED) of a batch, which are of one log file."""
    column = batch.column(DAMAGE)
    if column.null_count == len(column):
        return
    for number in np.flatnonzero(column.is_valid()).tolist():
        position = int(rows["physical_offset"][number]) - base_offset
        yield Damage(path, position, DamageKind.BAD_BODY, str(column[number].as_py()))


class _Parts(NamedTuple):
    """Where the parts of some rows lie: a record, or one of its keys, each."""

    rows: NDArray[np.void]
    records: NDArray[np.int64]  # addresses
    heads: NDArray[np.int64] | None  # where a column needs them
    spans: NDArray[np.int64] | None
    keys: NDArray[np.int64] | None  # the span of each row's key, if there is a row for each
    wide: NDArray[np.uint8]  # where some of the spans lie

    @classmethod
    def of(cls, rows: NDArray[np.void], records: NDArray[np.int64], names: Sequence[str], by_key: bool) -> _Parts:
        from whence.kernels import columns as kernels

        rows = np.ascontiguousarray(rows)
        heads = spans = keys = None
        wide = np.empty(0, np.uint8)
        if by_key or not _OF_SPANS.isdisjoint(names):
            wide = np.empty(kernels.wide_size(rows, records), np.uint8)
            spans = np.empty((kernels.SPAN_KINDS, 2, len(rows)), np.int64)
            kernels.find_spans(rows, records, wide, spans)
        if by_key:
            assert spans is not None
            offsets, keys = _split_keys(spans[kernels.KEYS])
            numbers = np.repeat(np.arange(len(rows)), np.diff(offsets))
            rows, records, spans = rows[numbers], records[numbers], spans[:, :, numbers]
        if not _OF_HEADS.isdisjoint(names):
            heads = np.empty((kernels.HEAD_FIELDS, len(rows)), np.int64)
            kernels.read_heads(rows, records, heads)
        return cls(rows, records, heads, spans, keys, wide)

    def slice(self, start: int, end: int) -> _Parts:
        piece = slice(start, end)
        return self._replace(
            rows=self.rows[piece],
            records=self.records[piece],
            heads=None if self.heads is None else self.heads[:, piece],
            spans=None if self.spans is None else self.spans[:, :, piece],
            keys=None if self.keys is None else self.keys[:, piece],
        )

    def head(self, field: int) -> NDArray[np.int64]:
        assert self.heads is not None
        head: NDArray[np.int64] = self.heads[field]
        return head

    def span(self, kind: int) -> NDArray[np.int64]:
        assert self.spans is not None
        span: NDArray[np.int64] = self.spans[kind]
        return span


class _BodyError(Exception):
    """A compressed body cannot be read: that of the record at this offset."""

    def __init__(self, physical_offset: int, error: FormatError) -> None:
        super().__init__(physical_offset)
        self.physical_offset = physical_offset
        self.error = error


class _Bodies:
    """The spans of the bodies of some rows, as many as fit into a batch once they are decompressed."""

    def __init__(self, parts: _Parts, *, raises: bool) -> None:
        from whence.formats.rocketmq.body import decompress_body

        self.ats = parts.head(_BODY_AT).copy()
        self.sizes = parts.head(_BODY_SIZE).copy()
        self.count = len(parts.rows)
        self.errors: dict[int, str] = {}
        self._held: list[bytes] = []
        compressed = np.flatnonzero((parts.rows["sys_flag"] & int(SysFlag.COMPRESSED) != 0) & (self.sizes > 0))
        plain_size = np.cumsum(self.sizes)
        expanded = 0
        last_record = -1
        for number in compressed.tolist():
            record = int(parts.records[number])
            if record != last_record:  # the rows of one message, one for each of its keys, have one body
                last_record = record
                stored = _bytes_at(int(self.ats[number]), int(self.sizes[number]))
                try:
                    body, error = decompress_body(stored, int(parts.rows["sys_flag"][number])), ""
                except FormatError as failure:
                    if raises:
                        raise _BodyError(int(parts.rows["physical_offset"][number]), failure) from None
                    body, error = b"", failure.what
                self._held.append(body)
            expanded += len(body)
            if number and expanded + int(plain_size[number]) > BYTES_MAX:
                self.count = number
                break
            self.ats[number], self.sizes[number] = np.frombuffer(body or b"\0", np.uint8).ctypes.data, len(body)
            if error:
                self.errors[number] = error
        self.ats, self.sizes = self.ats[: self.count], self.sizes[: self.count]


def _bytes_at(address: int, size: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, size)


def _split_keys(spans: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The spans of the keys in these values of KEYS, and at which number those of each begin."""
    from whence.kernels.columns import new_table, split_keys

    offsets = np.empty(spans.shape[1] + 1, np.int32)
    keys = np.empty((2, int(((spans[1] + 1) // 2).sum())), np.int64)
    split_keys(np.ascontiguousarray(spans), new_table(), offsets, keys)
    return offsets, keys[:, : offsets[-1]]


# -- one column ----------------------------------------------------------------------------------------------


def _fixed(name: str, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> Any:
    pa = load_pyarrow()
    buffers = [_bitmap(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(arrow_type(name), len(values), buffers)


def _texts(
    ats: NDArray[np.int64], sizes: NDArray[np.int64], kind: Any, valid: NDArray[np.bool_] | None = None
) -> Any:
    """A column of texts or bytes."""
    from whence.kernels.columns import copy_spans

    pa = load_pyarrow()
    offsets = _offsets(sizes)
    data = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(np.ascontiguousarray(ats), np.ascontiguousarray(sizes), data)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def constants(kind: Any, values: Sequence[int | str]) -> Any:
    """A column of these values; times are in microseconds."""
    if all(isinstance(value, str) for value in values) and kind == load_pyarrow().string():
        return text_array([str(value) for value in values])
    dtype = np.int32 if kind.bit_width == 32 else np.int64
    data = load_pyarrow().py_buffer(np.array(values, dtype))
    return load_pyarrow().Array.from_buffers(kind, len(values), [None, data])


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    assert offsets[-1] < 2**31, "a batch is bounded"
    return offsets.astype(np.int32)


def _bitmap(valid: NDArray[np.bool_] | None) -> Any:
    """Which values are there, a bit each; None if all are."""
    if valid is None or valid.all():
        return None
    return load_pyarrow().py_buffer(np.packbits(valid, bitorder="little"))


def _from_row(name: str) -> Callable[[_Parts, _Bodies | None], Any]:
    def make(parts: _Parts, bodies: _Bodies | None) -> Any:
        return _fixed(name, parts.rows[name].copy())

    return make


def _from_head(name: str, field: int, dtype: type[np.generic]) -> Callable[[_Parts, _Bodies | None], Any]:
    def make(parts: _Parts, bodies: _Bodies | None) -> Any:
        return _fixed(name, parts.head(field).astype(dtype))

    return make


def _from_span(name: str, kind: int) -> Callable[[_Parts, _Bodies | None], Any]:
    """A text that is null where the message has none. A topic is always there, an empty one too."""

    def make(parts: _Parts, bodies: _Bodies | None) -> Any:
        ats, sizes = parts.span(kind)
        return _texts(ats, sizes, arrow_type(name), None if kind == _TOPIC else sizes > 0)

    return make


def _time(name: str, times_ms: NDArray[np.int64]) -> Any:
    """Microseconds; null where a damaged or made-up clock is out of all calendars."""
    valid = (times_ms >= TIME_MS_MIN) & (times_ms <= TIME_MS_MAX)
    return _fixed(name, np.where(valid, times_ms, 0) * 1000, valid)


def _keys(parts: _Parts, bodies: _Bodies | None) -> Any:
    pa = load_pyarrow()
    offsets, keys = _split_keys(parts.span(_KEYS))
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        arrow_type("keys"), len(parts.rows), buffers, children=[_texts(keys[0], keys[1], pa.string())]
    )


def _key(parts: _Parts, bodies: _Bodies | None) -> Any:
    assert parts.keys is not None
    return _texts(parts.keys[0], parts.keys[1], arrow_type(KEY))


def _properties(parts: _Parts, bodies: _Bodies | None) -> Any:
    from whence.kernels.columns import new_table, split_properties

    pa = load_pyarrow()
    spans = np.ascontiguousarray(parts.span(_PROPERTIES))
    offsets = np.empty(len(parts.rows) + 1, np.int32)
    names, values = np.empty((2, 2, int(((spans[1] + 1) // 4).sum())), np.int64)
    split_properties(spans, new_table(), offsets, names, values)
    count = offsets[-1]
    kind = arrow_type("properties")
    entries = pa.StructArray.from_arrays(
        [_texts(spans[0, :count], spans[1, :count], pa.string()) for spans in (names, values)],
        fields=[kind.key_field, kind.item_field],
    )
    return pa.Array.from_buffers(kind, len(parts.rows), [None, pa.py_buffer(offsets)], children=[entries])


def _offset_id(parts: _Parts, bodies: _Bodies | None) -> Any:
    from whence.kernels.columns import write_offset_ids

    pa = load_pyarrow()
    host_sizes = parts.head(_HOST_SIZE)
    offsets = _offsets(2 * (host_sizes + 8))
    data = np.empty(int(offsets[-1]), np.uint8)
    write_offset_ids(
        np.ascontiguousarray(parts.head(_HOST_AT)),
        np.ascontiguousarray(host_sizes),
        parts.rows["physical_offset"].copy(),
        data,
    )
    return pa.Array.from_buffers(
        arrow_type("offset_id"), len(parts.rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _body(parts: _Parts, bodies: _Bodies | None) -> Any:
    assert bodies is not None
    valid = np.ones(bodies.count, np.bool_)
    valid[list(bodies.errors)] = False
    return _texts(bodies.ats, bodies.sizes, arrow_type("body"), valid)


def _damage(parts: _Parts, bodies: _Bodies | None) -> Any:
    if bodies is None or not bodies.errors:
        return load_pyarrow().nulls(len(parts.rows), arrow_type(DAMAGE))
    return text_array([bodies.errors.get(number) for number in range(bodies.count)])


def text_array(texts: Sequence[str | None]) -> Any:
    """A column of a few texts. (Arrow's own way loads pandas.)"""
    pa = load_pyarrow()
    encoded = [(text or "").encode() for text in texts]
    offsets = _offsets(np.array([len(data) for data in encoded], np.int64))
    valid = np.array([text is not None for text in texts], np.bool_)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


# Numbers of kernels/columns.py, whose import loads Numba; a test holds them equal.
_TOPIC, _KEYS, _TAGS, _UNIQUE_ID, _PROPERTIES = range(5)
_FLAG, _BORN_TIMESTAMP_MS, _RECONSUME_TIMES, _HOST_AT, _HOST_SIZE, _BODY_AT, _BODY_SIZE = range(7)

_OF_SPANS = frozenset({"topic", "keys", "tags", "unique_id", "properties"})
_OF_HEADS = frozenset({"flag", "born_timestamp_ms", "born_time", "reconsume_times", "offset_id", "body", "body_size"})

_MAKERS: dict[str, Callable[[_Parts, _Bodies | None], Any]] = {
    **{
        name: _from_row(name)
        for name in ("queue", "queue_offset", "physical_offset", "store_timestamp_ms", "size", "sys_flag")
    },
    "flag": _from_head("flag", _FLAG, np.int32),
    "born_timestamp_ms": _from_head("born_timestamp_ms", _BORN_TIMESTAMP_MS, np.int64),
    "reconsume_times": _from_head("reconsume_times", _RECONSUME_TIMES, np.int32),
    "body_size": _from_head("body_size", _BODY_SIZE, np.int32),
    "store_time": lambda parts, bodies: _time("store_time", parts.rows["store_timestamp_ms"]),
    "born_time": lambda parts, bodies: _time("born_time", parts.head(_BORN_TIMESTAMP_MS)),
    "topic": _from_span("topic", _TOPIC),
    "tags": _from_span("tags", _TAGS),
    "unique_id": _from_span("unique_id", _UNIQUE_ID),
    "keys": _keys,
    KEY: _key,
    "offset_id": _offset_id,
    "properties": _properties,
    "body": _body,
    DAMAGE: _damage,
}
