"""Stores made by hand, record by record, with the twin's encoder: what no broker would write, a hostile one can."""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.reference import (
    IndexFileTwin,
    Record,
    build_index,
    build_queues,
    encode_blank,
    encode_properties,
    encode_queue_files,
    encode_record,
)

FILE_SIZE = 65536
SLOTS, ITEMS = 97, 400
FIRST_TIME_MS = 1_700_000_000_000
HEAD_SIZE = 88  # of a record with IPv4 hosts, up to its body


def message(key: str = "", body: bytes = b"hello", topic: str = "TopicTest", **fields: Any) -> Record:
    """A record that :func:`write_log` gives its offset; ``key`` becomes KEYS."""
    properties = encode_properties({"KEYS": key}) if key else b""
    return Record(**{"topic": topic, "stored_body": body, "properties_data": properties, **fields})


def write_log(store: Path, records: Sequence[Record], file_size: int = FILE_SIZE, base: int = 0) -> list[Record]:
    """Write ``commitlog/``: the records one behind the other, rolled like a broker rolls, offsets and times set."""
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    data = bytearray()
    for number, record in enumerate(records):
        size = len(encode_record(record))
        if len(data) + size + 8 > file_size:
            data += encode_blank(file_size - len(data))
            (folder / f"{base:020d}").write_bytes(data)
            base += file_size
            data.clear()
        stored = replace(
            record,
            physical_offset=base + len(data),
            size=size,
            store_timestamp_ms=record.store_timestamp_ms or FIRST_TIME_MS + number,
        )
        data += encode_record(stored)
        written.append(stored)
    (folder / f"{base:020d}").write_bytes(data.ljust(file_size, b"\0"))
    return written


def write_index(
    store: Path, records: Sequence[Record], slots: int = SLOTS, items: int = ITEMS
) -> list[IndexFileTwin]:
    """Write ``index/`` as a broker of 5.3 would have."""
    (store / "index").mkdir(exist_ok=True)
    files = build_index(records, "5.3", slots, items)
    for number, file in enumerate(files):
        (store / "index" / f"{20231114000000000 + number}").write_bytes(file.to_bytes())
    return files


def write_queues(store: Path, records: Sequence[Record], file_size: int = 2000) -> None:
    for (topic, queue), entries in build_queues(records).items():
        folder = store / "consumequeue" / topic / str(queue)
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(encode_queue_files(entries, file_size)):
            (folder / f"{number * file_size:020d}").write_bytes(data)


def numbered(records: Sequence[Record]) -> list[Record]:
    """The records with their queue offsets, counted per topic and queue."""
    counts: dict[tuple[str, int], int] = {}
    result = []
    for record in records:
        place = (record.topic, record.queue)
        counts[place] = counts.get(place, -1) + 1
        result.append(replace(record, queue_offset=counts[place]))
    return result


def edit(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


# Bounds


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if it takes longer, and stop it."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        pytest.fail(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_child(function: Callable[[], Any], *, memory: int | None = None, files: int | None = None) -> Any:
    """What a function gives in a process of its own, with so many bytes of memory more, or so many open files."""
    ours, theirs = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_child, args=(function, memory, files, theirs))
    process.start()
    theirs.close()
    try:
        outcome, value = ours.recv()
    except EOFError:
        process.join()
        pytest.fail(f"the process died with exit code {process.exitcode}")
    process.join()
    if outcome == "error":
        pytest.fail(value)
    return value


def _child(function: Callable[[], Any], memory: int | None, files: int | None, result: Connection) -> None:
    try:
        if memory is not None and sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))
        if files is not None:
            held = len(os.listdir("/dev/fd"))  # what the tests before left open is not what the function opens
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        result.send(("value", function()))
    except BaseException:
        result.send(("error", traceback.format_exc()))
