"""Messages as lines of text, many at once: Arrow columns in, bytes out, written by kernels.

    json_lines    a JSON object for each message, as ``find --format jsonl --body`` has it, byte for byte
    bulk_lines    the same behind a line that tells its id, as the bulk interface of a search engine takes it
    csv_lines     the fields of ``find --format csv --body``; CSV_HEAD is the line with their names

    json_rows, csv_rows    the same for batches of any columns of messages, in their order; csv_head names them

JSON is in ASCII, CSV in UTF-8. A body that is not UTF-8 is written as base64. A few messages are read again alone:
those whose body could not be decompressed, which is null in the column and written as it is stored; and rollbacks,
whose unique id is null in the column, for no index has it, and is shown all the same.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from whence.formats.rocketmq.message import Message
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.kernels import texts as kernels
from whence.lookup.answer import MESSAGE_FIELDS, as_json, csv_fields, message_to_dict

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = tuple(name for name in MESSAGE_FIELDS if name != "body_encoding")
"""The columns that are shown of a message."""

LINE_COLUMNS = (*COLUMNS, "sys_flag")
"""The columns that lines are made of."""

CSV_HEAD = (",".join(MESSAGE_FIELDS) + "\n").encode()

ReadMessage = Callable[[int], Message]
"""Gives the message at a physical offset."""


class Lines(NamedTuple):
    """The lines of some messages, one behind the other."""

    data: memoryview
    ends: NDArray[np.int64]  # where those of each message end


def json_lines(batch: Any, read: ReadMessage) -> Iterator[Lines]:
    """The lines of a record batch that has LINE_COLUMNS, in pieces."""
    return _lines(batch, read, _json_parts, lambda message: as_json(message_to_dict(message, body=True)) + "\n")


def bulk_lines(batch: Any, read: ReadMessage) -> Iterator[Lines]:
    """Two lines for each message: what to do with it, and the message itself."""

    def one(message: Message) -> str:
        action = {"index": {"_id": message.offset_id}}
        return f"{as_json(action)}\n{as_json(message_to_dict(message, body=True))}\n"

    return _lines(batch, read, _bulk_parts, one)


def csv_lines(batch: Any, read: ReadMessage) -> Iterator[Lines]:
    """A line of CSV for each message."""

    def one(message: Message) -> str:
        line = StringIO()
        csv.DictWriter(line, MESSAGE_FIELDS, lineterminator="\n").writerow(csv_fields(message, body=True))
        return line.getvalue()

    return _lines(batch, read, _csv_parts, one)


def json_rows(batch: Any) -> memoryview:
    """A JSON object for each row of a batch of any columns. A body that could not be decompressed is null."""
    parts: list[_Part] = []
    for name, column in shown_columns(batch):
        parts.append(_literal(f'{", " if parts else "{"}"{name}": '.encode()))
        if name == "body":
            bodies = _Bodies(column)
            parts += [_json(bodies.texts, missing=b""), _base64(bodies.others, quotes=2), bodies.if_none(b"null")]
            parts.append(_literal(b', "body_encoding": '))
            parts += bodies.encoding(b'"utf8"', b'"base64"', b"null")
        else:
            parts.append(_json_column(column))
    return _join([*parts, _literal(b"}\n")], len(batch))


def csv_rows(batch: Any) -> memoryview:
    """A line of CSV for each row of a batch of any columns."""
    parts: list[_Part] = []
    for name, column in shown_columns(batch):
        if parts:
            parts.append(_literal(b","))
        if name == "body":
            bodies = _Bodies(column)
            parts += [_csv(bodies.texts), _base64(bodies.others, quotes=0), _literal(b",")]
            parts += bodies.encoding(b"utf8", b"base64", b"")
        else:
            parts.append(_csv_column(name, column))
    return _join([*parts, _literal(b"\n")], len(batch))


def csv_head(names: Sequence[str]) -> bytes:
    """The line with the names of columns."""
    shown = [each for name in names for each in ((name, "body_encoding") if name == "body" else (name,))]
    return (",".join(shown) + "\n").encode()


def shown_columns(batch: Any) -> Iterator[tuple[str, Any]]:
    """The columns with their names; times are texts, ISO 8601 in UTC to the millisecond."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if str(column.type).startswith("timestamp"):
            import pyarrow as pa
            from pyarrow import compute  # loaded where it is needed: that takes longer than a lookup

            texts = column.cast(pa.timestamp("ms", "UTC")).cast("string")
            column = compute.replace_substring(texts, " ", "T")
        yield name, column


# -- lines -----------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What stands at one place of every line: ``measure(sizes)``, then ``write(out, at)``."""

    measure: Callable[[NDArray[np.int64]], object]
    write: Callable[[NDArray[np.uint8], NDArray[np.int64]], object]


def _lines(
    batch: Any, read: ReadMessage, parts_of: Callable[[Any], list[_Part]], one: Callable[[Message], str]
) -> Iterator[Lines]:
    done = 0
    for row in [*_read_again(batch), len(batch)]:
        if done < row:
            lines = _as_texts(parts_of(batch.slice(done, row - done)), row - done)
            yield Lines(lines.data.data, lines.offsets[1:])
        if row < len(batch):
            alone = one(read(batch.column("physical_offset")[row].as_py())).encode()
            yield Lines(memoryview(alone), np.array([len(alone)]))
        done = row + 1


def _read_again(batch: Any) -> list[int]:
    """The rows whose columns do not tell all of their message."""
    flags = batch.column("sys_flag")
    values = np.frombuffer(flags.buffers()[1], np.int32)[flags.offset : flags.offset + len(flags)]
    is_told = (values & TRANSACTION_MASK != Transaction.ROLLBACK) & _validity(batch.column("body"))
    rows: list[int] = np.flatnonzero(~is_told).tolist()
    return rows


def _join(parts: Sequence[_Part], count: int) -> memoryview:
    return _as_texts(parts, count).data.data


def _json_parts(batch: Any) -> list[_Part]:
    bodies = _Bodies(batch.column("body"))
    parts: list[_Part] = []
    for name in MESSAGE_FIELDS:
        parts.append(_literal(f'{", " if parts else "{"}"{name}": '.encode()))
        if name == "body":
            parts += [_json(bodies.texts, missing=b""), _base64(bodies.others, quotes=2)]
        elif name == "body_encoding":
            parts.append(_choice(b'"utf8"', b'"base64"', bodies.texts.is_there))
        else:
            parts.append(_json_column(batch.column(name)))
    return [*parts, _literal(b"}\n")]


def _bulk_parts(batch: Any) -> list[_Part]:
    ids = _json_column(batch.column("offset_id"))
    return [_literal(b'{"index": {"_id": '), ids, _literal(b"}}\n"), *_json_parts(batch)]


def _csv_parts(batch: Any) -> list[_Part]:
    bodies = _Bodies(batch.column("body"))
    parts: list[_Part] = []
    for name in MESSAGE_FIELDS:
        if parts:
            parts.append(_literal(b","))
        if name == "body":
            parts += [_csv(bodies.texts), _base64(bodies.others, quotes=0)]
        elif name == "body_encoding":
            parts.append(_choice(b"utf8", b"base64", bodies.texts.is_there))
        else:
            parts.append(_csv_column(name, batch.column(name)))
    return [*parts, _literal(b"\n")]


def _csv_column(name: str, column: Any) -> _Part:
    if name == "keys":
        return _csv(_as_texts([_members(column)], len(column)))
    if name == "properties":
        return _csv(_as_texts([_json_column(column, in_ascii=False)], len(column)))
    return _csv(_texts(column)) if _is_text(column) else _numbers(column)


# -- columns ---------------------------------------------------------------------------------------------------


class _Texts(NamedTuple):
    """Bytes, where each text begins in them, and whether it is there at all."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    is_there: NDArray[np.bool_]


class _Bodies:
    """Bodies, those that are text and the others; and those that are null."""

    def __init__(self, column: Any) -> None:
        bodies = _texts(column)
        is_text = np.zeros(len(column), np.bool_)
        kernels.find_texts(bodies.data, bodies.offsets, is_text)
        self.texts = bodies._replace(is_there=is_text & bodies.is_there)
        self.others = bodies._replace(is_there=~is_text & bodies.is_there)
        self._is_none = ~bodies.is_there

    def if_none(self, text: bytes) -> _Part:
        return _choice(text, b"", self._is_none)

    def encoding(self, text: bytes, other: bytes, none: bytes) -> list[_Part]:
        """What tells how each is written."""
        kinds = ((text, self.texts.is_there), (other, self.others.is_there), (none, self._is_none))
        return [_choice(name, b"", is_kind) for name, is_kind in kinds]


def _is_text(column: Any) -> bool:
    return str(column.type) == "string"


def _validity(column: Any) -> NDArray[np.bool_]:
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    there = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return there[column.offset : column.offset + len(column)].astype(np.bool_)


def _offsets(column: Any) -> NDArray[np.int64]:
    """Where the value of each row begins, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _texts(column: Any) -> _Texts:
    return _Texts(_bytes(column.buffers()[2]), _offsets(column), _validity(column))


def _bytes(data: Any) -> NDArray[np.uint8]:
    """A view that cannot be written to: for Numba that is another type, and one of the two is compiled."""
    view = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return view


def _as_texts(parts: Sequence[_Part], count: int) -> _Texts:
    """What the parts write, row by row, as a column of its own."""
    sizes = np.zeros(count, np.int64)
    for part in parts:
        part.measure(sizes)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for part in parts:
        part.write(out, at)
    assert np.array_equal(at, offsets[1:]), "what was measured is what was written"
    return _Texts(_bytes(out), offsets, np.ones(count, np.bool_))


# -- parts -----------------------------------------------------------------------------------------------------


def _literal(text: bytes) -> _Part:
    def measure(sizes: NDArray[np.int64]) -> None:
        sizes += len(text)

    return _Part(measure, partial(kernels.write_literal, _bytes(text)))


def _choice(text: bytes, other: bytes, is_first: NDArray[np.bool_]) -> _Part:
    """One of two literals."""

    def measure(sizes: NDArray[np.int64]) -> None:
        sizes += np.where(is_first, len(text), len(other))

    def write(out: NDArray[np.uint8], at: NDArray[np.int64]) -> None:
        for literal, rows in ((text, is_first), (other, ~is_first)):
            places = at[rows]
            kernels.write_literal(_bytes(literal), out, places)
            at[rows] = places

    return _Part(measure, write)


def _numbers(column: Any) -> _Part:
    kind = np.int32 if str(column.type) == "int32" else np.int64
    values = np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)].astype(np.int64)
    return _Part(partial(kernels.measure_numbers, values), partial(kernels.write_numbers, values))


def _json_column(column: Any, *, in_ascii: bool = True) -> _Part:
    kind = str(column.type)
    if kind.startswith("list"):
        members = _texts(column.values)
        given = (_offsets(column), members.data, members.offsets, in_ascii)
        return _Part(partial(kernels.measure_json_lists, *given), partial(kernels.write_json_lists, *given))
    if kind.startswith("map"):
        names, values = _texts(column.keys), _texts(column.items)
        pairs = (_offsets(column), names.data, names.offsets, values.data, values.offsets, in_ascii)
        return _Part(partial(kernels.measure_json_maps, *pairs), partial(kernels.write_json_maps, *pairs))
    return _json(_texts(column), in_ascii=in_ascii) if kind == "string" else _numbers(column)


def _json(texts: _Texts, *, missing: bytes = b"null", in_ascii: bool = True) -> _Part:
    given = (*texts, _bytes(missing), in_ascii)
    return _Part(partial(kernels.measure_json, *given), partial(kernels.write_json, *given))


def _members(column: Any) -> _Part:
    """The members of each list, with a space between two."""
    lists, members = _offsets(column), _texts(column.values)

    def measure(sizes: NDArray[np.int64]) -> None:
        sizes += np.diff(members.offsets[lists]) + np.maximum(np.diff(lists) - 1, 0)

    return _Part(measure, partial(kernels.write_members, lists, members.data, members.offsets))


def _csv(texts: _Texts) -> _Part:
    return _Part(partial(kernels.measure_csv, *texts), partial(kernels.write_csv, *texts))


def _base64(texts: _Texts, *, quotes: int) -> _Part:
    measure = partial(kernels.measure_base64, texts.offsets, texts.is_there, quotes)
    return _Part(measure, partial(kernels.write_base64, *texts, quotes))
