"""Build an IndexFile of 20 M entries from the bytes of their keys, on disk and flushed; beside RocketMQ's ``putKey``.

Each entry's text is hashed, linked into its chain and written. Making the texts is not timed. RocketMQ gets strings
that were not hashed before, we get the UTF-8 that a log holds.
"""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import START_MS, cache_folder, full_index_file, full_index_keys
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.kernels.chains import hash_texts
from whence.store.index_builder import CHUNK, IndexBuilder
from whence.store.index_file import DEFAULT_SHAPE, Shape


def results(options: Options) -> Iterator[Result]:
    shape = Shape(5_000, 20_000) if options.is_small else DEFAULT_SHAPE
    count = shape.item_capacity - FIRST_ITEM
    texts = full_index_keys(shape.item_capacity)
    folder = Path(tempfile.mkdtemp(prefix="index-build-", dir=cache_folder()))
    numbers = (str(shape.slot_capacity), str(shape.item_capacity))
    try:
        with java_peer(options, "IndexBuild", str(folder / "java"), *numbers) as java:
            ours = Peer("whence", timed(lambda _: _emptied(folder / "whence"), lambda at: _build(at, shape, texts)))
            peers = [ours] if java is None else [ours, java.task("build")]
            work = "a full IndexFile from its keys, flushed"
            yield measure(Comparison(work, peers, Target(7, 10), count, "entry"), options)
        (built,) = (folder / "whence").iterdir()
        assert filecmp.cmp(built, full_index_file(shape.item_capacity).path, shallow=False)
    finally:
        shutil.rmtree(folder)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _build(folder: Path, shape: Shape, texts: NDArray[np.uint8]) -> int:
    builder = IndexBuilder(folder, shape, Disk())
    size = texts.shape[1]
    for first in range(0, len(texts), CHUNK):
        rows = texts[first : first + CHUNK]
        numbers = FIRST_ITEM + first + np.arange(len(rows))
        key_hashes = hash_texts(rows.reshape(-1), np.arange(size, rows.size + 1, size))
        builder.put(key_hashes, 550 * numbers, START_MS + numbers // 2)
    (built,) = builder.finish()
    return built.header.end_physical_offset
