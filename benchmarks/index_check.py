"""Check a full IndexFile of 20 M entries against the items that the log has for it, beside building it from them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import START_MS, cache_folder, full_index_keys
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.kernels.chains import hash_texts
from whence.store.index_builder import CHUNK, IndexBuilder
from whence.store.index_check import IndexCheck
from whence.store.index_file import DEFAULT_SHAPE, Shape

Columns = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]


def results(options: Options) -> Iterator[Result]:
    shape = Shape(5_000, 20_000) if options.is_small else DEFAULT_SHAPE
    items = _items(shape)
    folder = Path(tempfile.mkdtemp(prefix="index-check-", dir=cache_folder()))
    try:
        _build(folder / "checked", shape, items)
        (path,) = (folder / "checked").iterdir()
        peers = [
            Peer("whence", timed(lambda _: path, lambda path: _check(path, shape, items))),
            Peer("IndexBuilder", timed(lambda _: _emptied(folder / "built"), lambda at: _build(at, shape, items))),
        ]
        work = "a full IndexFile held against its items"
        yield measure(
            Comparison(work, peers, Target(1, 0.75, "times as long"), shape.item_capacity - 1, "entry"), options
        )
    finally:
        shutil.rmtree(folder)


def _items(shape: Shape) -> Columns:
    """Three items a message, as one with an id, a key and a tag has."""
    texts = full_index_keys(shape.item_capacity)
    size = texts.shape[1]
    numbers = np.arange(len(texts)) // 3
    key_hashes = hash_texts(texts.reshape(-1), np.arange(size, texts.size + 1, size))
    return key_hashes, 550 * numbers, START_MS + numbers


def _batches(items: Columns) -> Iterator[Columns]:
    key_hashes, offsets, times = items
    for first in range(0, len(key_hashes), CHUNK):
        rows = slice(first, first + CHUNK)
        yield key_hashes[rows], offsets[rows], times[rows]


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _build(folder: Path, shape: Shape, items: Columns) -> int:
    builder = IndexBuilder(folder, shape, Disk())
    for batch in _batches(items):
        builder.put(*batch)
    (built,) = builder.finish()
    return built.header.next_item - FIRST_ITEM


def _check(path: Path, shape: Shape, items: Columns) -> int:
    found = IndexCheck(path, shape, begin_offset=0, end_offset=2**62, is_exact=True).run(_batches(items))
    assert found.is_healthy
    return found.item_count
