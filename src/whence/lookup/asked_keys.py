"""AskedKeys: the keys of a question that has very many, in a few long arrays that kernels read.

for keys in read_keys(given): ...     pieces of bounded size, each key once in its piece
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from whence.errors import UsageError
from whence.files.plain_file import open_stream
from whence.formats.hashing import java_hash
from whence.lookup.question import KEY_SIZE_MAX
from whence.store.message_columns import load_pyarrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_SIZE = 256 * 1048576  # bytes of keys that are held at once: some ten million keys
READ_SIZE = 1048576
CHUNK = 1_048_576  # keys taken from an iterable at a time
KEY_SHOWN = 80
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # with which some editors begin a file; it is no part of the first key

Keys = Iterable[str | bytes] | BinaryIO | Path | Any
"""Texts, or bytes in UTF-8: any iterable, an Arrow array or column; or a file that has one on each line."""


class AskedKeys:
    """Distinct keys in the order in which they were asked first: key i is ``data[starts[i]:starts[i] + sizes[i]]``.

    ``given``: how many there were before those that came twice were taken out.
    """

    def __init__(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int32], first: int = 0
    ) -> None:
        from whence.kernels.key_table import NO_KEY, measure_keys, new_table, put_keys

        self.given = len(starts)
        self.data = data
        hashes, units = np.empty(len(starts), np.int32), np.empty(len(starts), np.int32)
        bad = measure_keys(data, starts, sizes, hashes, units)
        if bad != NO_KEY:
            key = data[starts[bad] : starts[bad] + sizes[bad]].tobytes()
            raise UsageError(f"key {first + bad + 1}, {_shown(key)}, is not UTF-8, as all keys of RocketMQ are")
        if len(units) and units.max() > KEY_SIZE_MAX:
            bad = int(np.argmax(units > KEY_SIZE_MAX))
            raise UsageError(f"key {first + bad + 1} has {units[bad]} characters; {KEY_SIZE_MAX} can be stored")
        if len(sizes) and sizes.min() == 0:
            raise UsageError(f"key {first + int(np.argmin(sizes)) + 1} is empty")
        self.table = new_table(len(starts))
        is_first = np.empty(len(starts), np.bool_)
        put_keys(data, starts, sizes, hashes, self.table, is_first)
        if not is_first.all():
            starts, sizes, hashes, units = starts[is_first], sizes[is_first], hashes[is_first], units[is_first]
            self.table = new_table(len(starts))
            put_keys(data, starts, sizes, hashes, self.table, np.empty(len(starts), np.bool_))
        self.starts, self.sizes, self.hashes, self.units = starts, sizes, hashes, units

    def __len__(self) -> int:
        return len(self.starts)

    def key(self, number: int) -> str:
        start = int(self.starts[number])
        return self.data[start : start + int(self.sizes[number])].tobytes().decode("utf-8")

    def number(self, key: str) -> int | None:
        """The number of a key; None if it is not asked."""
        from whence.kernels.key_table import NO_KEY, PAD, find_number

        text = np.frombuffer(bytes(PAD) + key.encode("utf-8"), np.uint8)
        number = int(find_number(text, self.data, self.starts, self.sizes, self.hashes, self.table))
        return None if number == NO_KEY else number

    def key_hashes(self, topics: Iterable[str], first: int, behind: int) -> NDArray[np.int32]:
        """What an index file holds for keys ``first`` to ``behind - 1``: those of the first topic, then the next."""
        from whence.kernels.key_table import hash_with_topic

        topics = list(topics)
        hashes, units = self.hashes[first:behind], self.units[first:behind]
        powers = _powers(int(units.max(initial=0)) + 1)
        found = np.empty((len(topics), behind - first), np.int32)
        for row, topic in zip(found, topics, strict=True):
            hash_with_topic(java_hash(f"{topic}#"), hashes, units, powers, row)
        return found.reshape(-1)


def _powers(count: int) -> NDArray[np.int64]:
    """Of 31, modulo 2**32."""
    powers = np.empty(count, np.int64)
    power = 1
    for number in range(count):
        powers[number] = power
        power = power * 31 & 0xFFFFFFFF
    return powers


class KeyLines:
    """A file with a key on each line, of which the first lines are looked at before all are read; and keys before it.

    It can be read as a file, once, and then gives all of them.
    """

    def __init__(self, file: BinaryIO, before: Iterable[str | bytes] = ()) -> None:
        self._file = file
        self._before = [key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass") for key in before]
        for key in self._before:
            if b"\n" in key:
                raise UsageError(f"the key {_shown(key)} has more than one line; ask for it without a file of keys")
        self._head = _begin_of(file)

    def all_of(self, most: int) -> list[bytes] | None:
        """The keys, if the file's lines and the keys before them are not more than so many; None otherwise."""
        most -= len(self._before)
        while self._head.count(b"\n") <= most:
            more = self._file.read(READ_SIZE)
            if not more:
                *lines, last = self._head.split(b"\n")
                if last:  # a line that has no end
                    lines.append(last)
                if len(lines) > most:
                    return None
                return [*self._before, *(key for line in lines if (key := line.removesuffix(b"\r")))]
            self._head += more
        return None

    def has_some(self) -> bool:
        """Whether there is a key at all."""
        while not self._before and not any(line.removesuffix(b"\r") for line in self._head.split(b"\n")):
            more = self._file.read(READ_SIZE)
            if not more:
                return False
            self._head += more
        return True

    def read(self, size: int) -> bytes:
        """The next bytes of all keys, a line each."""
        if self._before:
            self._head = b"".join(key + b"\n" for key in self._before) + self._head
            self._before = []
        if not self._head:
            return self._file.read(size)
        given, self._head = self._head[:size], self._head[size:]
        return given


def read_keys(keys: Keys) -> Iterator[AskedKeys]:
    """The keys in pieces of about PIECE_SIZE bytes. One that is asked twice in a piece is in it once.

    Empty lines of a file and nulls of an Arrow array are passed over; another empty key is a UsageError.
    """
    if isinstance(keys, Path):
        with open_stream(keys) as file:
            yield from _of_lines(file)
    elif isinstance(keys, str | bytes):
        yield from _of_runs(_listed([keys]))
    elif hasattr(keys, "read"):
        yield from _of_lines(cast("BinaryIO", keys))
    elif hasattr(keys, "type") and hasattr(keys, "null_count"):
        yield from _of_runs(_arrow_runs(keys))
    else:
        yield from _of_runs(_iterable_runs(keys))


def _begin_of(file: BinaryIO) -> bytes:
    """The first bytes of a file, without its mark. It may give fewer at a time than are asked for."""
    begin = b""
    while len(begin) < len(BYTE_ORDER_MARK) and (more := file.read(len(BYTE_ORDER_MARK) - len(begin))):
        begin += more
    return begin.removeprefix(BYTE_ORDER_MARK)


def _of_lines(file: BinaryIO) -> Iterator[AskedKeys]:
    from whence.kernels.key_table import PAD, PAD_BEHIND, split_lines

    rest = _begin_of(file)
    line_count = 0
    is_end = False
    while not is_end:
        read = [rest]
        size = len(rest)
        cut = rest.rfind(b"\n") + 1  # behind the last line end
        while size < PIECE_SIZE and not is_end:
            more = file.read(min(PIECE_SIZE - size, 16 * 1048576))
            is_end = not more
            if (at := more.rfind(b"\n")) >= 0:
                cut = size + at + 1
            size += len(more)
            read.append(more)
        if is_end:
            cut = size
        elif not cut:
            raise UsageError(f"line {line_count + 1} and those behind it: no line ends in {PIECE_SIZE} bytes")
        data = np.frombuffer(b"".join([bytes(PAD), *read, bytes(PAD_BEHIND)]), np.uint8)
        starts, sizes, lines = split_lines(data, PAD + cut)
        if len(starts):
            yield AskedKeys(data, starts, sizes, line_count)
        rest = data[PAD + cut : PAD + size].tobytes()
        line_count += lines


class _Run(NamedTuple):
    """Some keys: where they begin in ``data``, and how long they are."""

    data: bytes | memoryview
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def _of_runs(runs: Iterable[_Run]) -> Iterator[AskedKeys]:
    first = size = 0
    held: list[_Run] = []
    for run in runs:
        held.append(run)
        size += len(run.data)
        if size >= PIECE_SIZE:
            yield (keys := _of_held(held, first))
            first, size, held = first + keys.given, 0, []
    if any(len(run.sizes) for run in held):
        yield _of_held(held, first)


def _of_held(held: list[_Run], first: int) -> AskedKeys:
    from whence.kernels.key_table import PAD, PAD_BEHIND

    ends = list(accumulate((len(run.data) for run in held), initial=PAD))
    data = np.empty(ends[-1] + PAD_BEHIND, np.uint8)
    data[:PAD] = data[ends[-1] :] = 0
    for run, begin, end in zip(held, ends, ends[1:], strict=False):
        data[begin:end] = np.frombuffer(run.data, np.uint8)
    data.flags.writeable = False  # as keys of a file are; to Numba a writeable array is another type
    starts = [run.starts + begin for run, begin in zip(held, ends, strict=False)]
    sizes = [run.sizes.astype(np.int32) for run in held]
    if len(held) == 1:
        return AskedKeys(data, starts[0], sizes[0], first)
    return AskedKeys(data, np.concatenate(starts), np.concatenate(sizes), first)


def _iterable_runs(keys: Iterable[str | bytes]) -> Iterator[_Run]:
    if not isinstance(keys, Iterable):
        raise UsageError(f"keys are texts, or a file of them, and this is {_shown(repr(keys))}")
    if isinstance(keys, list) and len(keys) <= CHUNK:
        yield from _listed(keys)
        return
    each = iter(keys)
    while chunk := list(islice(each, CHUNK)):
        yield from _listed(chunk)


def _listed(chunk: list[Any]) -> Iterator[_Run]:
    """Some keys in one run of bytes. Arrow takes a third of the time of ``b"".join``, which keeps 80 bytes a key."""
    pa = load_pyarrow()
    try:
        array = pa.array(chunk, pa.large_binary())
    except (pa.ArrowException, ValueError):
        array = None
    if array is None or array.null_count:  # there are other texts that bytes can be made of, and what is no text
        array = pa.array([_encoded(key) for key in chunk], pa.large_binary())
    return _arrow_runs(array)


def _encoded(key: str | bytes) -> bytes:
    try:
        return key.encode() if isinstance(key, str) else bytes(memoryview(key))
    except UnicodeEncodeError as error:
        raise UsageError(f"the key {_shown(error.object)} holds half a character (a lone surrogate)") from error
    except TypeError as error:
        raise UsageError(f"a key is a text, or bytes in UTF-8, and not {_shown(repr(key))}") from error


def _arrow_runs(keys: Any) -> Iterator[_Run]:
    pa = load_pyarrow()
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if not any(is_text(keys.type) for is_text in _text_types(pa)):
        raise UsageError(f"keys are texts, and this is a column of {keys.type}")
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        array = chunk.drop_null().cast(pa.large_binary())
        _, offsets_buffer, data_buffer = array.buffers()
        if not len(array) or data_buffer is None:
            continue
        offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
        yield _Run(memoryview(data_buffer)[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], np.diff(offsets))


def _text_types(pa: Any) -> tuple[Any, ...]:
    of = pa.types
    return of.is_string, of.is_large_string, of.is_binary, of.is_large_binary, of.is_string_view


def _shown(key: str | bytes) -> str:
    return repr(key if len(key) <= KEY_SHOWN else key[:KEY_SHOWN])
