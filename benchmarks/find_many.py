"""A million keys at once, in a log of 4 GiB: where their messages lie, and the messages themselves; beside LMDB.

The log has 8.7 million messages of one topic, and two index files. Other keys are asked in each round, in random
order; all of them are there. What LMDB is given, of all messages:

    positions   topic#key -> queue, queue offset, physical offset, store time and size
    messages    topic#key -> the record's bytes as they lie in the log

One process each, keys as a list of bytes. LMDB is asked by a loop of gets in Python, without a look at the log: it
trusts what was put into it. whence reads each record in the log, checks its sums, and compares topic and key.

The claim for positions is beside bare gets, of which nothing is made: the hardest. That for messages is beside gets
whose records are decoded with whence's own ``decode_message`` and asked for properties, keys, tags, id and body, as
the columns of the table have them. The other peer stands in both tables.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import whence
from benchmarks.build import PlainProcesses
from benchmarks.data import LOG_SIZE, QUEUE_FILE_SIZE, cached, long_log
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, progress, timed
from benchmarks.killed_store import BATCH
from whence.files.disk import Disk
from whence.formats.rocketmq.message import decode_message
from whence.pipeline.build import Build, BuildPlace, BuildSettings
from whence.store.commit_log import CommitLog
from whence.store.index_file import DEFAULT_SHAPE
from whence.store.log_scan import LogScan
from whence.store.message_store import Dialect

KEYS = 1_000_000  # a round
FILES = 4
TOPIC = "Order-Events_0"
POSITION = struct.Struct("<iqqqi")
MESSAGE_COLUMNS = (
    "topic",
    "queue",
    "queue_offset",
    "physical_offset",
    "store_timestamp_ms",
    "born_timestamp_ms",
    "keys",
    "tags",
    "unique_id",
    "properties",
    "body",
)


@dataclass(frozen=True)
class IndexedLog:
    """A long log with the sidecar that a build makes of it."""

    store: Path
    sidecar: Path
    message_count: int

    def numbers(self, round_number: int, count: int) -> list[int]:
        """Distinct messages."""
        chosen: list[int] = np.random.default_rng(round_number).permutation(self.message_count)[:count].tolist()
        return chosen

    def keys(self, round_number: int, count: int) -> list[bytes]:
        return [b"order-%010d" % number for number in self.numbers(round_number, count)]

    def texts(self, round_number: int, count: int) -> list[bytes]:
        """The same as LMDB has them."""
        return [_text(number) for number in self.numbers(round_number, count)]


def _text(number: int) -> bytes:
    return b"%b#order-%010d" % (TOPIC.encode(), number)


def results(options: Options) -> Iterator[Result]:
    log = _indexed_log(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    count = min(KEYS, log.message_count // 2)
    has_lmdb = find_spec("lmdb") is not None
    with whence.open(log.store, out=log.sidecar) as store:

        def find(columns: tuple[str, ...] | None) -> Callable[[list[bytes]], int]:
            def run(keys: list[bytes]) -> int:
                answer = store.answer_many(keys, topic=TOPIC, columns=columns, spark=False)
                assert answer.receipt.complete
                return len(answer)

            return run

        for what, columns, target, decode in (
            ("positions of verified messages", None, Target(5, 15), POSITION.unpack),
            ("with decoded messages", MESSAGE_COLUMNS, Target(2, 5), _decode),
        ):
            peers = [Peer("whence", timed(lambda n: log.keys(n, count), find(columns)))]
            if has_lmdb:
                env = _open_lmdb(_lmdb(log, is_whole=columns is not None))
                gets = [
                    Peer(f"LMDB gets in a loop, {made}", timed(lambda n: log.texts(n, count), _get_all(env, each)))
                    for made, each in (("decoded", decode), ("bytes alone", None))
                ]
                peers += gets if columns is None else gets[::-1]
            yield measure(Comparison(f"find_many of {count:,} keys, {what}", peers, target, count, "key"), options)


def _open_lmdb(folder: Path) -> Any:
    import lmdb

    return lmdb.open(str(folder), readonly=True, lock=False, readahead=False)


def _get_all(env: Any, decode: Callable[[bytes], object] | None) -> Callable[[list[bytes]], int]:
    def get_all(texts: list[bytes]) -> int:
        with env.begin() as transaction:
            get = transaction.get
            if decode is None:
                found: list[object] = [get(text) for text in texts]
            else:
                found = [decode(get(text)) for text in texts]
        return len(found)

    return get_all


def _decode(record: bytes) -> tuple[object, ...]:
    message, _ = decode_message(record)
    return message, message.properties, message.keys, message.tags, message.unique_id, message.body


# -- data ------------------------------------------------------------------------------------------------------


def _indexed_log(file_size: int) -> IndexedLog:
    store = long_log(FILES, file_size, topic_count=1)

    def make(folder: Path) -> None:
        log = CommitLog(store / "commitlog")
        (folder / "sidecar").mkdir()
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        with PlainProcesses() as processes:
            place = BuildPlace(folder / "sidecar", folder / "sidecar")
            settings = BuildSettings(DEFAULT_SHAPE, Dialect.V5_5, QUEUE_FILE_SIZE)
            built = Build(log, place, settings, None, processes, Disk()).run()
        os.sched_setaffinity(0, here)
        (folder / "messages").write_text(str(built.messages))

    folder = cached(f"indexed-{FILES}-{file_size}-1", 2 * DEFAULT_SHAPE.file_size + FILES * file_size // 4, make)
    return IndexedLog(store, folder / "sidecar", int((folder / "messages").read_text()))


def _lmdb(log: IndexedLog, *, is_whole: bool) -> Path:
    """The folder of an LMDB file: of the messages, or of their positions."""
    import lmdb

    size = log.message_count * (600 if is_whole else 120)

    def make(folder: Path) -> None:
        rows, data = _positions(log)
        env = lmdb.open(str(folder), map_size=2 * size + (1 << 30))
        for first in range(0, log.message_count, 256 * BATCH):
            progress(f"putting message {first} into LMDB")
            numbered = enumerate(rows[first : first + 256 * BATCH].tolist(), first)
            with env.begin(write=True) as transaction, transaction.cursor() as cursor:
                if is_whole:
                    cursor.putmulti(((_text(n), data(row[2], row[4])) for n, row in numbered), append=True)
                else:
                    cursor.putmulti(((_text(n), POSITION.pack(*row)) for n, row in numbered), append=True)
        env.close()

    return cached(f"lmdb-{'messages' if is_whole else 'positions'}-{log.message_count}", size, make)


def _positions(log: IndexedLog) -> tuple[np.ndarray[Any, Any], Callable[[int, int], bytes]]:
    """Of every message, in order, what POSITION holds; and what gives bytes of the log."""
    commit_log = CommitLog(log.store / "commitlog")
    names = ["queue", "queue_offset", "physical_offset", "store_timestamp_ms", "size"]
    rows = [batch.messages[names].copy() for batch in LogScan(commit_log, 0, tags=False, check_crc=False)]
    return np.concatenate(rows), commit_log.raw
