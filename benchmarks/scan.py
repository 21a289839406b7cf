"""Scan 1 GiB of CommitLog: every record checked and taken apart, its keys hashed; beside RocketMQ's own.

RocketMQ's ``checkMessageAndReturnSize`` does the same but for the key hashes, which it leaves to the index.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.data import LOG_SIZE, sample_store
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from benchmarks.java_peer import java_peer
from whence.kernels.scan import ITEMS, SCANNED, Status, scan_stretch

ROWS = 65_536  # of one call: some megabytes, which stay in the cache


def results(options: Options) -> Iterator[Result]:
    log = sample_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE).log_path
    with java_peer(options, "Scan", str(log), "{folder}/store") as java:
        for work, task, target in (
            ("scan of 1 GiB of CommitLog, no CRC", "plain", Target(5, 7.5)),
            ("scan of 1 GiB of CommitLog, CRC", "crc", Target(3, 6)),
        ):
            peers = [_whence(log, check_crc=task == "crc")]
            if java is not None:
                peers.append(java.task(task))
            yield measure(Comparison(work, peers, target), options)


def _whence(path: Path, *, check_crc: bool) -> Peer:
    with path.open("rb") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    messages = np.empty(ROWS, SCANNED)
    items = np.empty(3 * ROWS, ITEMS)

    def scan(_: None) -> int:
        position = tags_codes = 0
        status = Status.FULL
        while status == Status.FULL:
            scanned = scan_stretch(
                data, 0, position, len(data), check_crc=check_crc, tags=True, messages=messages, items=items
            )
            position, status = scanned.next_position, scanned.status
            tags_codes += int(messages["tags_code"][: scanned.message_count].sum())
        assert status == Status.BLANK
        last = messages[scanned.message_count - 1]
        return int(last["physical_offset"] + last["size"]) + tags_codes

    return Peer("whence", timed(lambda _: None, scan))
