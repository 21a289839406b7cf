"""Look keys up in a full IndexFile of 420 MB: a batch at once, and one in each call from Python.

Keys come as bytes, are hashed, and their chains walked to the end, as RocketMQ's ``selectPhyOffset`` does with a
string. Each round asks for other keys, in random order; the file is in the page cache.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import FullIndexFile, asked_keys, full_index_file
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.formats.hashing import fold_hash, java_hash
from whence.kernels.chain_walker import chain_walker
from whence.kernels.chains import NO_DAMAGE, hash_texts, walk_chains
from whence.store.index_file import IndexFile, Shape

KEYS = 500_000  # a round


def results(options: Options) -> Iterator[Result]:
    file = full_index_file(20_000) if options.is_small else full_index_file()
    count = KEYS // 50 if options.is_small else KEYS
    shape = (file.slot_capacity, file.item_capacity)
    with file.path.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    with java_peer(options, "IndexLookup", str(file.path), *(str(number) for number in (*shape, count))) as java:
        for task in ("hit", "miss"):
            java_peers = [] if java is None else [java.task(task)]

            def texts(round_number: int, is_miss: bool = task == "miss") -> NDArray[np.uint8]:
                return asked_keys(round_number, count, file.item_capacity, is_miss=is_miss)

            batch = Peer("whence, a batch", timed(texts, _walk_batch(data, shape)))
            work = f"batch lookup in a full IndexFile, {task}"
            yield measure(Comparison(work, [batch, *java_peers], Target(8, 12), count, "key"), options)

            calls = Peer("whence, a call a key", timed(_split(texts), _walk_each(data, shape)))
            plain = Peer("whence in plain Python", timed(_split(texts), _walk_plain(file)))
            work = f"one lookup called from Python with bytes, {task}"
            yield measure(Comparison(work, [calls, plain, *java_peers], Target(0.6, 1), count, "key"), options)


def _split(texts: Callable[[int], NDArray[np.uint8]]) -> Callable[[int], list[bytes]]:
    return lambda round_number: [row.tobytes() for row in texts(round_number)]


def _walk_batch(data: mmap.mmap, shape: tuple[int, int]) -> Callable[[NDArray[np.uint8]], int]:
    def walk(texts: NDArray[np.uint8]) -> int:
        count, size = texts.shape
        key_hashes = hash_texts(texts.reshape(-1), np.arange(size, count * size + 1, size))
        bad_links = np.empty(count, np.int64)
        found = walk_chains(data, *shape, key_hashes, bad_links)
        check = sum(int(rows["physical_offset"].sum()) for rows in found)
        assert (bad_links == NO_DAMAGE).all()
        return check

    return walk


def _walk_each(data: mmap.mmap, shape: tuple[int, int]) -> Callable[[list[bytes]], int]:
    walk_one = chain_walker(data, *shape)

    def walk(texts: list[bytes]) -> int:
        check = 0
        for text in texts:
            for physical_offset in walk_one(text):
                check += physical_offset
        return check

    return walk


def _walk_plain(file: FullIndexFile) -> Callable[[list[bytes]], int]:
    index_file = IndexFile(file.path)
    index_file.shape = Shape(file.slot_capacity, file.item_capacity)

    def walk(texts: list[bytes]) -> int:
        check = 0
        for text in texts:
            key_hash = fold_hash(java_hash(text.decode()))
            for _, item_hash, physical_offset in index_file.walk(key_hash):
                if item_hash == key_hash:
                    check += physical_offset
        return check

    return walk
