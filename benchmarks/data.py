"""Data to measure on: a store of one full CommitLog file, a full IndexFile, a store whose writer was killed.

Made once, kept in a cache folder.

Message ``number`` of the store and key ``number`` of the IndexFile are functions of their number, so a benchmark
knows what to ask for without reading it, and the Java peers make the same keys by themselves. The store's index
and queues are, byte for byte, what RocketMQ 5.5.0 makes of its log.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whence.formats.hashing import java_hash
from whence.formats.rocketmq.checkpoint import Checkpoint, encode_checkpoint
from whence.formats.rocketmq.consume_queue import ENTRY
from whence.formats.rocketmq.index_file import (
    DEFAULT_ITEM_CAPACITY,
    DEFAULT_SLOT_CAPACITY,
    FIRST_ITEM,
    ITEM,
    SLOT,
    IndexHeader,
    encode_header,
    file_size,
    item_position,
    slot_position,
)
from whence.formats.rocketmq.message import MAGIC_BLANK, MAGIC_V1

Ints = NDArray[np.int64]

FORMAT = 1  # raised when the data changes, so that what is cached is made anew
START_MS = 1_794_789_730_000
LOG_SIZE = 1 << 30


_chosen: list[Path] = []


def keep_in(folder: Path) -> None:
    """Keep everything in this folder."""
    _chosen[:] = [folder]


def cache_folder() -> Path:
    """Where data, jars and compiled classes are kept: outside the tree."""
    root = os.environ.get("XDG_CACHE_HOME")
    return _chosen[0] if _chosen else (Path(root) if root else Path.home() / ".cache") / "whence"


def clean() -> None:
    """Remove all data; jars and classes stay."""
    shutil.rmtree(cache_folder() / "benchmarks", ignore_errors=True)


def cached(name: str, size: int, make: Callable[[Path], None]) -> Path:
    """The folder of that name. It is made aside and renamed, so that half of one is never taken for whole."""
    folder = cache_folder() / "benchmarks" / f"{name}-v{FORMAT}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < 2 * size:
            raise SystemExit(f"{folder.parent}: {free >> 20} MiB are free, but {name} needs {2 * size >> 20} MiB")
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
        try:
            make(aside)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside)
            raise
    return folder


# A store: messages of about 550 bytes in 8 topics of 4 queues, each with a unique id, one key and a tag.

TOPIC_COUNT = 8
QUEUE_COUNT = 4
TAG_COUNT = 8
BLOCK_COUNT = 4096  # a log is copies of a block of so many different records
UNIQUE_ID_HEAD = "7F0000013C0630946E094D66"
KEY_HEAD = "order-"
MESSAGES_PER_MS = 20
QUEUE_FILE_SIZE = 6_000_000
HEAD = struct.Struct(">iiiii qq iq4si q4si iqi")  # of a record up to its body, for IPv4 hosts
QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, STORE_TIMESTAMP_AT = 20, 28, 56


@dataclass(frozen=True)
class SampleStore:
    """A store of one CommitLog file, as a 5.5 broker leaves it after a clean stop."""

    path: Path
    message_count: int

    @property
    def log_path(self) -> Path:
        return self.path / "commitlog" / f"{0:020}"

    def topic(self, number: int) -> str:
        return f"Order-Events_{number % TOPIC_COUNT}"

    def key(self, number: int) -> str:
        return f"{KEY_HEAD}{number:010}"

    def unique_id(self, number: int) -> str:
        return f"{UNIQUE_ID_HEAD}{number:08X}"


def sample_store(log_size: int = LOG_SIZE) -> SampleStore:
    folder = cached(f"store-{log_size}", log_size * 2, lambda folder: _make_store(folder, log_size))
    about = json.loads((folder / "about.json").read_text())
    return SampleStore(folder / "store", about["message_count"])


@dataclass(frozen=True)
class KilledStore:
    """A store of ours with four full log files and half of one, as its writer left it when it was killed."""

    path: Path
    sizes: tuple[int, int, int]  # of a log file; slots and items of an index file


def killed_store(file_size: int = LOG_SIZE) -> KilledStore:
    scale = LOG_SIZE // file_size
    sizes = (file_size, DEFAULT_SLOT_CAPACITY // scale, DEFAULT_ITEM_CAPACITY // scale)

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.killed_store", str(folder / "store"), *map(str, sizes)]
        ended = subprocess.run(command, check=False).returncode
        if ended != -signal.SIGKILL:
            raise SystemExit(f"the writer that was to be killed ended with {ended}")

    folder = cached(f"killed-{file_size}", file_size * 6, make)
    return KilledStore(folder / "store", sizes)


def long_log(file_count: int, file_size: int = LOG_SIZE, topic_count: int = TOPIC_COUNT) -> Path:
    """A folder that has nothing but a log of so many full files; the messages are those of a killed store."""
    from benchmarks.killed_store import write_store

    def make(folder: Path) -> None:
        write_store(folder / "written", file_count * file_size, file_size, topic_count=topic_count).close()
        (folder / "store").mkdir()
        (folder / "written" / "commitlog").rename(folder / "store" / "commitlog")
        for path in (folder / "store" / "commitlog").iterdir():
            if int(path.name) >= file_count * file_size:
                path.unlink()
        shutil.rmtree(folder / "written")

    name = f"log-{file_count}-{file_size}" + ("" if topic_count == TOPIC_COUNT else f"-{topic_count}")
    return cached(name, (file_count + 2) * file_size, make) / "store"


# A log of JSON, as producers write it: about 430 bytes a body, one key, which is a member of it, too.

JSON_FIELD = "order_id"
JSON_BATCH = 4096
JSON_BODY = (
    '{"order_id": "%s", "customer": {"id": %d, "name": "customer %d of many", "city": "Paris"}, "items": [{"sku": '
    '"sku-%d", "count": %d, "price": %d.99}, {"sku": "sku-%d", "count": 1, "price": 5.00}], "total": %d, "currency": '
    '"EUR", "note": "' + "x" * 180 + '"}'
)


@dataclass(frozen=True)
class JsonStore:
    """A store whose log is one file of JSON messages; nothing else counts."""

    path: Path
    message_count: int

    def key(self, number: int) -> str:
        return f"o-{number:010}"


def json_store(log_size: int = LOG_SIZE) -> JsonStore:
    """Made by a writer of ours."""

    def make(folder: Path) -> None:
        import whence

        number = end = 0
        with whence.create(folder / "store", flush="async", file_size=log_size) as store:
            while end + 1000 * JSON_BATCH < log_size:
                some = range(number, number + JSON_BATCH)
                keys = [f"o-{i:010}" for i in some]
                bodies = [
                    JSON_BODY % (key, i % 9999, i % 9999, i % 777, i % 7, i % 200, i % 333, i % 1000)
                    for i, key in zip(some, keys, strict=True)
                ]
                topic = f"Order-Events_{number // JSON_BATCH % TOPIC_COUNT}"
                result = store.append_batch(topic, [body.encode() for body in bodies], keys=[[key] for key in keys])
                number += JSON_BATCH
                end = int(result.physical_offsets[-1])
        (folder / "about.json").write_text(json.dumps({"message_count": number}))

    folder = cached(f"json-{log_size}", log_size * 2, make)
    return JsonStore(folder / "store", json.loads((folder / "about.json").read_text())["message_count"])


def _make_store(folder: Path, log_size: int) -> None:
    store = folder / "store"
    for name in ("commitlog", "index", "config"):
        (store / name).mkdir(parents=True)
    block, starts, unique_ids_at, keys_at = _block()
    ends = np.append(starts[1:], len(block))
    index = _IndexWriter(store / "index" / "20261115120000000")
    entries = []
    position = count = 0
    is_full = False
    with (store / "commitlog" / f"{0:020}").open("wb") as log:
        while not is_full:
            taken = int(np.searchsorted(position + ends + 8, log_size, side="right"))  # a blank takes 8 bytes
            is_full = taken < BLOCK_COUNT
            numbers = count + np.arange(taken)
            at, offsets = starts[:taken], position + starts[:taken]
            times = START_MS + numbers // MESSAGES_PER_MS
            unique_id_digits = _digits(numbers, 16, 8)
            key_digits = _digits(numbers, 10, 10)
            _put(block, at + QUEUE_OFFSET_AT, numbers // (TOPIC_COUNT * QUEUE_COUNT))
            _put(block, at + PHYSICAL_OFFSET_AT, offsets)
            _put(block, at + STORE_TIMESTAMP_AT, times)
            _put(block, unique_ids_at[:taken], unique_id_digits)
            _put(block, keys_at[:taken], key_digits)
            size = int(ends[taken - 1]) if taken else 0
            log.write(block[:size].data)

            topics = numbers % TOPIC_COUNT
            tags = _tags(numbers)
            hashes = np.empty((taken, 3), np.int64)
            hashes[:, 0] = _hashes(_TOPIC_HASHES[topics], UNIQUE_ID_HEAD, unique_id_digits)
            hashes[:, 1] = _hashes(_TOPIC_HASHES[topics], KEY_HEAD, key_digits)
            hashes[:, 2] = _hashes(_TOPIC_HASHES[topics], "T#Tag", 65 + tags[:, None])
            index.put(_fold(hashes.ravel()), np.repeat(offsets, 3), np.repeat(times, 3))
            rows = np.empty(taken, ENTRY)
            rows["physical_offset"], rows["size"] = offsets, ends[:taken] - at
            rows["tags_code"] = _hashes(np.zeros(taken, np.int64), "Tag", 65 + tags[:, None])
            entries.append(rows)
            position += size
            count += taken
        log.write(struct.pack(">ii", log_size - position, MAGIC_BLANK))
        log.truncate(log_size)
    index.finish()
    _write_queues(store, np.concatenate(entries, dtype=ENTRY))  # its own choice would be native order
    last_ms = START_MS + (count - 1) // MESSAGES_PER_MS
    checkpoint = Checkpoint(last_ms, last_ms, 0, 0, log_size, int(entries[-1]["physical_offset"][-1]))
    (store / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    topics_json = {
        f"Order-Events_{topic}": {"topicName": f"Order-Events_{topic}", "readQueueNums": 4, "writeQueueNums": 4}
        for topic in range(TOPIC_COUNT)
    }
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics_json}))
    (folder / "about.json").write_text(json.dumps({"message_count": count}))


def _block() -> tuple[NDArray[np.uint8], Ints, Ints, Ints]:
    """Records one after the other; where each begins, and where its unique id and key have their digits."""
    rng = np.random.default_rng(1)
    block = bytearray()
    places = []
    for number in range(BLOCK_COUNT):
        topic = f"Order-Events_{number % TOPIC_COUNT}".encode()
        queue = number // TOPIC_COUNT % QUEUE_COUNT
        tag = 65 + int(_tags(np.array([number]))[0])
        body = rng.bytes(int(rng.integers(180, 421)))
        properties = (
            b"MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01%b????????\x02CLUSTER\x01DefaultCluster\x02"
            b"TAGS\x01Tag%c\x02KEYS\x01%b!!!!!!!!!!\x02WAIT\x01true\x02TRACE_ON\x01true\x02"
            % (UNIQUE_ID_HEAD.encode(), tag, KEY_HEAD.encode())
        )
        size = HEAD.size + len(body) + 1 + len(topic) + 2 + len(properties)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        host = (b"\x7f\0\0\1", 10911)
        start = len(block)
        block += HEAD.pack(*(size, MAGIC_V1, crc, queue, 0, 0, 0, 0, START_MS - 5, *host, 0, *host, 0, 0, len(body)))
        block += body + bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big")
        places.append((start, len(block) + properties.index(b"?"), len(block) + properties.index(b"!")))
        block += properties
    starts, unique_ids_at, keys_at = np.array(places).T
    return np.frombuffer(block, np.uint8), starts, unique_ids_at, keys_at


def _tags(numbers: Ints) -> Ints:
    return numbers // (TOPIC_COUNT * QUEUE_COUNT) % TAG_COUNT


def _write_queues(store: Path, entries: NDArray[np.void]) -> None:
    queue_count = TOPIC_COUNT * QUEUE_COUNT
    for number in range(queue_count):
        topic, queue = number % TOPIC_COUNT, number // TOPIC_COUNT
        folder = store / "consumequeue" / f"Order-Events_{topic}" / f"{queue}"
        folder.mkdir(parents=True)
        data = entries[number::queue_count].tobytes()
        for start in range(0, len(data), QUEUE_FILE_SIZE):
            with (folder / f"{start:020}").open("wb") as file:
                file.write(data[start : start + QUEUE_FILE_SIZE])
                file.truncate(QUEUE_FILE_SIZE)


# A full IndexFile: what its keys are is no matter, but that they are spread evenly over the slots.

KEY_PREFIX = "orders#"
MISS = 1 << 40  # keys from this number on are not in the file


@dataclass(frozen=True)
class FullIndexFile:
    path: Path
    slot_capacity: int
    item_capacity: int


def full_index_file(item_capacity: int = DEFAULT_ITEM_CAPACITY) -> FullIndexFile:
    slot_capacity = item_capacity * DEFAULT_SLOT_CAPACITY // DEFAULT_ITEM_CAPACITY
    name = "20261115120000000"

    def make(folder: Path) -> None:
        writer = _IndexWriter(folder / name, slot_capacity, item_capacity)
        prefix = np.array([java_hash(KEY_PREFIX)])
        for first in range(FIRST_ITEM, item_capacity, 1 << 18):
            numbers = np.arange(first, min(first + (1 << 18), item_capacity))
            hashes = _hashes(prefix, "", _key_digits(numbers))
            writer.put(_fold(hashes), 550 * numbers, START_MS + numbers // 2)
        writer.finish()

    folder = cached(f"index-{item_capacity}", file_size(slot_capacity, item_capacity), make)
    return FullIndexFile(folder / name, slot_capacity, item_capacity)


def full_index_keys(item_capacity: int) -> NDArray[np.uint8]:
    """The texts that fill such a file, one a row, in the order of their items."""
    texts = np.empty((item_capacity - FIRST_ITEM, len(KEY_PREFIX) + 16), np.uint8)
    texts[:, : len(KEY_PREFIX)] = np.frombuffer(KEY_PREFIX.encode(), np.uint8)
    for first in range(0, len(texts), 1 << 18):
        rows = texts[first : first + (1 << 18), len(KEY_PREFIX) :]
        rows[:] = _key_digits(FIRST_ITEM + first + np.arange(len(rows)))
    return texts


def asked_keys(round_number: int, count: int, item_capacity: int, *, is_miss: bool) -> NDArray[np.uint8]:
    """The texts that a round asks for, one a row: another random choice in each round."""
    numbers = 1 + _mix(round_number * count + np.arange(count)) % np.uint64(item_capacity - 1)
    digits = _key_digits(numbers.astype(np.int64) + (MISS if is_miss else 0))
    texts = np.empty((count, len(KEY_PREFIX) + digits.shape[1]), np.uint8)
    texts[:, : len(KEY_PREFIX)] = np.frombuffer(KEY_PREFIX.encode(), np.uint8)
    texts[:, len(KEY_PREFIX) :] = digits
    return texts


def _key_digits(numbers: Ints) -> Ints:
    return _digits(_mix(numbers).view(np.int64), 16, 16, b"0123456789abcdef")


def _mix(numbers: Ints) -> NDArray[np.uint64]:
    """Scatter numbers over 64 bits (the finish of splitmix64); IndexLookup.java has the same."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _IndexWriter:
    """Puts many items at a time into a new IndexFile, in the order of their numbers."""

    def __init__(
        self,
        path: Path,
        slot_capacity: int = DEFAULT_SLOT_CAPACITY,
        item_capacity: int = DEFAULT_ITEM_CAPACITY,
    ) -> None:
        self._file = path.open("wb")
        self._file.truncate(file_size(slot_capacity, item_capacity))
        self._file.seek(item_position(slot_capacity, FIRST_ITEM))
        self._slots = np.zeros(slot_capacity, np.int32)
        self._slot_count = 0
        self._next_item = FIRST_ITEM
        self._ends: list[tuple[int, int]] = []  # time and offset of the first item, and of the last

    def put(self, key_hashes: Ints, physical_offsets: Ints, timestamps_ms: Ints) -> None:
        from whence.kernels.chains import link_items

        if not len(key_hashes):
            return
        places = list(zip(timestamps_ms[[0, -1]].tolist(), physical_offsets[[0, -1]].tolist(), strict=True))
        self._ends = [self._ends[0] if self._ends else places[0], places[1]]
        previous_items = np.empty(len(key_hashes), np.int32)
        self._slot_count += link_items(key_hashes.astype(np.int32), self._next_item, self._slots, previous_items)
        items = np.empty(len(key_hashes), ITEM)
        items["key_hash"], items["physical_offset"] = key_hashes, physical_offsets
        items["time_diff_s"], items["previous_item"] = (timestamps_ms - self._ends[0][0]) // 1000, previous_items
        self._file.write(items.tobytes())
        self._next_item += len(items)

    def finish(self) -> None:
        (begin_ms, begin_offset), (end_ms, end_offset) = self._ends
        header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, self._slot_count, self._next_item)
        with self._file as file:
            file.seek(slot_position(0))
            file.write(self._slots.astype(SLOT).tobytes())
            file.seek(0)
            file.write(encode_header(header))


# Text of many records at once.


def _digits(numbers: Ints, base: int, count: int, alphabet: bytes = b"0123456789ABCDEF") -> Ints:
    """The digits of each number as characters, one number a row."""
    table = np.frombuffer(alphabet, np.uint8).astype(np.int64)
    places = np.array([base**place for place in range(count - 1, -1, -1)], np.uint64)
    return table[(numbers.astype(np.uint64)[:, None] // places % np.uint64(base)).astype(np.int64)]


def _put(block: NDArray[np.uint8], at: Ints, values: Ints) -> None:
    """Write big-endian numbers or rows of characters, one at each position."""
    rows = values.astype(">i8").view(np.uint8).reshape(-1, 8) if values.ndim == 1 else values
    block[at[:, None] + np.arange(rows.shape[1])] = rows


def _hashes(hashes: Ints, text: str, characters: Ints) -> Ints:
    """Java's hash, signed, of texts: their beginnings with given hashes, then ``text``, then a row of characters."""
    for character in text.encode():
        hashes = (hashes * 31 + character) & 0xFFFFFFFF
    for column in characters.T:
        hashes = (hashes * 31 + column) & 0xFFFFFFFF
    return hashes.astype(np.uint32).view(np.int32).astype(np.int64)


def _fold(hashes: Ints) -> Ints:
    return np.abs(hashes) & 0x7FFFFFFF


_TOPIC_HASHES = np.array([java_hash(f"Order-Events_{topic}#") for topic in range(TOPIC_COUNT)])
