"""The tasks of ``find_many`` on Spark: a part of the log is scanned for all keys, or some keys are looked up.

What a task needs and what it makes lies in files of the job's work folder; it tells their names.

    <piece>.keys/       the keys of a piece, as arrays (:func:`save_keys`)
    <part>.scanned.npy  numbers of keys and offsets of records that bear them
    <task>.rows         Arrow batches of rows
    <task>.missing      Arrow batches of keys that no message bears, if they are asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import CorruptError
from whence.lookup.answer import Receipt
from whence.lookup.asked_keys import AskedKeys
from whence.lookup.many import Scanned, scan_part
from whence.lookup.many_answer import Counts, ManySearch
from whence.lookup.many_columns import ManyBatches
from whence.lookup.question import Question
from whence.store.damage import Damage
from whence.store.index_file import Shape
from whence.store.message_columns import load_pyarrow
from whence.store.message_store import Dialect, MessageStore
from whence.store.opening import open_folder

_KEY_ARRAYS = ("data", "starts", "sizes")


@dataclass(frozen=True, slots=True)
class Distrusted:
    """An index file of which a chain is damaged, and what is wrong with it."""

    path: Path
    what: str
    position: int | None

    def error(self, path: Path) -> CorruptError:
        """What to say of the file, which is called so here."""
        return CorruptError(self.what, position=self.position, path=path)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """How a task opens a store. ``name``: what rows call it; ``end_offset``: what lies behind it is not looked at."""

    name: str
    folder: Path
    sidecar: Path | None
    shape: Shape | None
    dialect: Dialect | None
    end_offset: int
    distrusted: tuple[Distrusted, ...] = ()

    def open(self) -> MessageStore:
        store = open_folder(self.folder, self.sidecar, self.shape, self.dialect)
        known = {each.path: each for each in self.distrusted}
        for file in store.index.files:
            if (bad := known.get(file.path)) is not None:
                store.index.distrust(file, bad.error(file.path))
        return store


@dataclass(frozen=True, slots=True)
class ScanPartTask:
    """Look for all the keys of a piece in a part of one log."""

    store: StorePlace
    keys_path: Path
    from_offset: int
    to_offset: int
    out: Path


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """What a scan found: a file of candidates, and damage."""

    path: Path
    damage: list[Damage]

    @classmethod
    def save(cls, found: Scanned, path: Path) -> ScannedPart:
        np.save(path, np.stack([found.key_numbers, found.offsets]))
        return cls(path, found.damage)

    def load(self, first: int, behind: int) -> Scanned:
        """What was found of keys ``first`` to ``behind - 1``, which are counted from 0 on then."""
        numbers, offsets = np.load(self.path, mmap_mode="r")
        numbers, offsets = Scanned(numbers, offsets, []).of_keys(first, behind)
        return Scanned(numbers - first, np.array(offsets), self.damage)


def scan_log_part(task: ScanPartTask) -> ScannedPart:
    keys = load_keys(task.keys_path)
    with task.store.open() as store:
        found = scan_part(store.commit_log, keys, task.from_offset, task.to_offset)
    return ScannedPart.save(found, task.out)


@dataclass(frozen=True, slots=True)
class LookupTask:
    """Look up keys ``first`` to ``behind - 1`` of a piece in all stores."""

    stores: tuple[StorePlace, ...]
    question: Question
    columns: tuple[str, ...]
    keys_path: Path
    first: int
    behind: int
    scanned: tuple[Mapping[tuple[int, int], ScannedPart], ...]
    rows_path: Path
    missing_path: Path | None


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What came of it. ``distrusted``: of each store, the index files whose chains are damaged."""

    receipts: list[Receipt]
    counts: Counts
    distrusted: list[tuple[Distrusted, ...]]
    message_count: int


def look_up(task: LookupTask) -> LookedUp:
    pa = load_pyarrow()
    keys = load_keys(task.keys_path, task.first, task.behind)
    scanned = [{place: part.load(task.first, task.behind) for place, part in parts.items()} for parts in task.scanned]
    with ExitStack() as stack:
        stores = [stack.enter_context(place.open()) for place in task.stores]
        ends = [place.end_offset for place in task.stores]
        search = ManySearch(stores, task.question, ends=ends, scanned=scanned)
        on_missing = None
        if task.missing_path is not None:
            schema = pa.schema([pa.field("key", pa.string())])
            missing = stack.enter_context(pa.ipc.new_stream(str(task.missing_path), schema))

            def on_missing(texts: Any) -> None:
                missing.write_batch(pa.RecordBatch.from_arrays([texts], schema=schema))

        names = [place.name for place in task.stores]
        batches = ManyBatches(search, [keys], task.columns, on_missing, names)
        with pa.ipc.new_stream(str(task.rows_path), batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return LookedUp(search.receipts, search.counts, [distrusted(store) for store in stores], search.counts.rows)


def distrusted(store: MessageStore) -> tuple[Distrusted, ...]:
    """The index files of a store that turned out to be damaged."""
    return tuple(
        Distrusted(path.absolute(), error.what, error.position)
        for path, error in sorted(store.index.distrusted.items())
    )


def read_batches(path: Path) -> Iterator[Any]:
    """The batches in a file that a task made."""
    pa = load_pyarrow()
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        yield from reader


# -- keys ------------------------------------------------------------------------------------------------------


def save_keys(keys: AskedKeys, folder: Path) -> None:
    """Write keys for tasks, into a folder that is made for them."""
    folder.mkdir()
    for name in _KEY_ARRAYS:
        np.save(folder / f"{name}.npy", getattr(keys, name))


def load_keys(folder: Path, first: int = 0, behind: int | None = None) -> AskedKeys:
    """Some of these keys, or all."""
    from whence.kernels.key_table import PAD, PAD_BEHIND

    data, starts, sizes = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _KEY_ARRAYS)
    starts, sizes = np.array(starts[first:behind]), np.array(sizes[first:behind])
    begin, end = int(starts.min()) - PAD, int((starts + sizes).max()) + PAD_BEHIND
    return AskedKeys(np.frombuffer(data[begin:end].tobytes(), np.uint8), starts - begin, sizes)


def places_of(stores: Sequence[MessageStore], ends: Sequence[int]) -> tuple[StorePlace, ...]:
    """How tasks open these stores, as they are open here."""
    return tuple(
        StorePlace(
            str(store.folder),
            store.folder.absolute(),
            None if store.sidecar is None else store.sidecar.absolute(),
            store.asked_shape,
            store.asked_dialect,
            end,
            distrusted(store),
        )
        for store, end in zip(stores, ends, strict=True)
    )
