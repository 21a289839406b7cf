"""Stores to build the indexes of, and what a build has to make of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import whence
from tests.crash.checks import check_answers, check_index_source, log_folders, read_store
from tests.crash.workload import BATCH_TOPIC, Sizes, Workload
from tests.disks import UnflushedDisk
from whence.formats.rocketmq.index_file import decode_header, item_position
from whence.store.commit_log import CommitLog
from whence.store.dispatch import dispatch_log
from whence.store.message_store import Dialect

SIZES = Sizes(65_536, 400, 31, 100)
DERIVED = ("index", "consumequeue", "batchconsumequeue")


def write_store(folder: Path, count: int = 300, *, seed: int = 1, first: int = 0, **settings: Any) -> Path:
    """Messages of all sorts, in a store of whence's own: made, or gone on with."""
    workload = Workload(Random(seed), first)
    with whence.create(folder, disk=UnflushedDisk(), **SIZES.arguments(), **settings) as store:
        while workload.number < first + count:
            _, failures = workload.put_some(store)
            assert not failures
    return folder


def foreign_store(folder: Path, count: int = 300, **settings: Any) -> Path:
    """The same as a broker would leave it: whence does not know it."""
    write_store(folder, count, **settings)
    (folder / "whence.json").unlink()
    return folder


def sums(root: Path) -> dict[str, str]:
    """SHA-256 of all index and queue files below a folder."""
    paths = (path for kind in DERIVED for path in (root / kind).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def dispatched_sums(store: Path, scratch: Path) -> dict[str, str]:
    """What the store's own dispatch makes of its log."""
    log = CommitLog(*log_folders(store))
    try:
        dispatch_log(
            log,
            scratch,
            slots=SIZES.slots,
            items=SIZES.items,
            queue_file_size=SIZES.queue_file_size,
            dialect=Dialect.V5_5,
            disk=UnflushedDisk(),
            is_batch=lambda topic: topic == BATCH_TOPIC,
        )
    finally:
        log.close()
    return sums(scratch)


def make_store(folder: Path, count: int) -> tuple[Path, dict[str, str]]:
    """A store, and the sums of what its own dispatch makes of its log. Tests take copies."""
    store = foreign_store(folder / "store", count)
    return store, dispatched_sums(store, folder / "anew")


def check_visible(root: Path) -> None:
    """What a reader could see is whole: index files have their length and as many items as their headers say."""
    for path in (root / "index").glob("*"):
        data = path.read_bytes()
        assert len(data) == item_position(SIZES.slots, SIZES.items), path
        header = decode_header(data)
        end = item_position(SIZES.slots, header.next_item)
        assert any(data[end - 20 : end]) and not any(data[end:]), path
    for path in (root / "consumequeue").glob("*/*/*"):
        assert path.stat().st_size == SIZES.queue_file_size, path


def check_store(store: Path, *, is_complete: bool = True, is_foreign: bool = False, out: Path | None = None) -> None:
    """Questions are answered as the log says; ``is_complete``: by an index of whence's own.

    ``is_foreign``: the sidecar is not that of this log, and receipts say which of its files are not used.
    """
    records = read_store(store)
    with whence.open(store, out=out) as opened:
        check_answers(opened, records, Random(1), is_left=is_foreign, keys_asked=20)
        if is_complete:
            check_index_source(opened, records)
