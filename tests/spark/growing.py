"""Logs that grow as a broker's does: their bytes come in pieces that end anywhere, in files made ahead of need."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.reference import encode_blank, encode_record
from tests.store_maker import T, message
from whence.store.commit_log import CommitLog

QUEUES = 4


class GrowingLog:
    """The log of ``source``, written again below ``store``. The rest of the store is copied, but for its indexes."""

    def __init__(self, source: Path, store: Path, random: Random) -> None:
        self.store = store
        self.offset = 0
        self._source = source / "commitlog"
        self._target = store / "commitlog"
        self._random = random
        log = CommitLog(self._source)
        self.file_size, self.end = log.file_size, log.end_offset()
        self._boundaries = [message.physical_offset for message in log.messages(0, self.end)] + [self.end]
        log.close()
        self._target.mkdir(parents=True)
        shutil.copytree(source / "config", store / "config")
        empty = next((source / "consumequeue").glob("*/*/*")).relative_to(source)  # by which one sees their size
        (store / empty).parent.mkdir(parents=True)
        (store / empty).write_bytes(bytes((source / empty).stat().st_size))

    def grow(self, to_offset: int, piece_max: int = 4000, pause_s: float = 0.0) -> None:
        """Write up to this offset, or just behind it."""
        while self.offset < min(to_offset, self.end):
            base = self.offset // self.file_size * self.file_size
            position = self.offset - base
            path = self._target / f"{base:020d}"
            if not path.exists():
                path.write_bytes(bytes(self.file_size))
            size = min(self._random.randint(1, piece_max), self.file_size - position, self.end - self.offset)
            with (self._source / path.name).open("rb") as source, path.open("r+b") as target:
                source.seek(position)
                target.seek(position)
                target.write(source.read(size))
            self.offset += size
            if pause_s:
                time.sleep(pause_s)

    def finish_record(self) -> None:
        """Write the rest of a record that is there by half."""
        behind = next(offset for offset in self._boundaries if offset >= self.offset)
        while self.offset < behind:
            self.grow(self.offset + 1, piece_max=1)

    def in_background(self, to_offset: int, seconds: float) -> threading.Thread:
        """Write up to this offset within so many seconds, and the rest of the record there."""
        pieces = max((to_offset - self.offset) / 2000, 1)

        def write() -> None:
            self.grow(to_offset, 4000, seconds / pieces)
            self.finish_record()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        return thread


class AppendedLog:
    """A log to which messages are appended, for as long as one likes. Each has a key of its own."""

    def __init__(self, store: Path, file_size: int) -> None:
        self.store = store
        self.offset = 0
        self.count = 0
        self._file_size = file_size
        self._ends: Counter[int] = Counter()
        (store / "commitlog").mkdir(parents=True)

    def append(self, count: int) -> None:
        """Append so many messages, stored now."""
        for _ in range(count):
            queue = self.count % QUEUES
            now_ms = time.time_ns() // 1_000_000 - T
            record = message(
                keys=f"key-{self.count} few-{self.count % 1000}", body=bytes(300), queue=queue, at=now_ms
            )
            size = len(encode_record(record))
            free = self._file_size - self.offset % self._file_size
            if size + 8 > free:
                self._write(encode_blank(free))
            record = replace(record, physical_offset=self.offset, queue_offset=self._ends[queue])
            self._write(encode_record(record))
            self._ends[queue] += 1
            self.count += 1

    def _write(self, data: bytes) -> None:
        position = self.offset % self._file_size
        path = self.store / "commitlog" / f"{self.offset - position:020d}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(self._file_size)
            file.seek(position)
            file.write(data)
        self.offset += len(data)
