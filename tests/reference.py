"""The obvious twins: what the formats and RocketMQ's own algorithms say, written so that one can read them.

Nothing here imports whence or numpy, and nothing is fast: lists, dicts, ``int.from_bytes``, one step after
the other. A test holds whence's code equal to its twin, and ``test_reference.py`` holds the twins equal to
what RocketMQ itself wrote and answered (``tests/golden``).

    text      java_hash, key_hash, decode_java_utf8, decode_properties
    record    Record, decode_record, encode_record, scan_log_file, read_log, crc32_by_bits
    index     IndexFileTwin (put, select as RocketMQ, with its weak points), query_offset, link_items, walk
    dispatch  index_texts, build_index, recovery_start; build_queues, delivery_time, sort_rows, encode_queue_files
    times     time_blocks
    check     index_faults, place_entries, queue_faults
    expiry    expired_files
    answers   find, first_at_or_after, last_at_or_before (exact); offset_by_time (RocketMQ's)
"""

import ipaddress
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

COMPRESSED = 0x1
TRANSACTION_BITS = 0xC
PREPARED = 0x4
COMMIT = 0x8
ROLLBACK = 0xC
BORN_HOST_IS_IPV6 = 0x10
STORE_HOST_IS_IPV6 = 0x20

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
SYSTEM_TOPICS = {
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    SCHEDULE_TOPIC,
    "TBW102",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
}


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def i16(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def i64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


# Text


def utf16_units(text: str) -> list[int]:
    """The numbers that Java calls chars: a character beyond U+FFFF is two of them, a lone surrogate one."""
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def java_hash(text: str) -> int:
    """``String.hashCode``: a signed 32-bit number."""
    number = 0
    for unit in utf16_units(text):
        number = (31 * number + unit) % 2**32
    return number - 2**32 if number >= 2**31 else number


def fold_hash(number: int) -> int:
    """``Math.abs``, but 0 for the one number whose absolute value does not fit."""
    return 0 if number == -(2**31) else abs(number)


def text_hash(text: str) -> int:
    """The hash in an index item; ``text`` is ``topic#key``."""
    return fold_hash(java_hash(text))


def key_hash(topic: str, key: str) -> int:
    return text_hash(f"{topic}#{key}")


def decode_java_utf8(data: bytes) -> str:
    """Bytes to text as ``new String(data, UTF_8)`` does it: what is malformed becomes U+FFFD.

    One U+FFFD stands for the longest beginning of a sequence that is there, as in Python, but for encoded
    surrogates (ED A0..BF xx): Java sees a well-formed sequence of three and replaces it as a whole.
    """
    characters = []
    position = 0
    while position < len(data):
        lead = data[position]
        second_byte = range(0x80, 0xC0)
        if lead < 0x80:
            size = 1
        elif 0xC2 <= lead <= 0xDF:
            size = 2
        elif 0xE0 <= lead <= 0xEF:
            size = 3
            if lead == 0xE0:
                second_byte = range(0xA0, 0xC0)
        elif 0xF0 <= lead <= 0xF4:
            size = 4
            if lead == 0xF0:
                second_byte = range(0x90, 0xC0)
            if lead == 0xF4:
                second_byte = range(0x80, 0x90)
        else:
            size = 0  # no sequence begins like this

        taken = 1
        while taken < size and position + taken < len(data):
            allowed = second_byte if taken == 1 else range(0x80, 0xC0)
            if data[position + taken] not in allowed:
                break
            taken += 1

        sequence = data[position : position + taken]
        is_surrogate = lead == 0xED and taken == 3 and sequence[1] >= 0xA0
        if taken == size and not is_surrogate:
            characters.append(sequence.decode("utf-8"))
        else:
            characters.append("\ufffd")
        position += taken
    return "".join(characters)


def decode_properties(data: bytes) -> dict[str, str]:
    """``name 01 value 02 name 01 value 02 ...``; what lacks a name or a value disappears."""
    properties = {}
    for segment in decode_java_utf8(data).split("\x02"):
        name, separator, value = segment.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def encode_properties(properties: dict[str, str]) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return text.encode("utf-8", "surrogatepass")


# Checksums


def crc32(data: bytes) -> int:
    """CRC-32 without its highest bit, so that Java reads a number that is not negative."""
    return zlib.crc32(data) & 0x7FFFFFFF


def crc32_by_bits(data: bytes) -> int:
    """The same from its definition: a division of polynomials, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            lowest_bit = remainder & 1
            remainder >>= 1
            if lowest_bit:
                remainder ^= 0xEDB88320
    return (remainder ^ 0xFFFFFFFF) & 0x7FFFFFFF


def crc_property(record_without_it: bytes) -> bytes:
    """The 20 bytes at the end of a record that carries a checksum of itself; its digits run backwards."""
    digits = str(crc32(record_without_it))[::-1].ljust(10, "0")
    return b"__CRC32#\x01" + digits.encode("ascii") + b"\x02"


# One record of the CommitLog


class NotARecord(Exception):
    """The bytes at this position are no whole record. ``args`` say why."""


@dataclass(frozen=True)
class Record:
    """One message as stored. The names are those of ``whence.Message``; hosts are ``(address, port)``."""

    topic: str = "TopicTest"
    queue: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    store_timestamp_ms: int = 0
    store_host: tuple[str, int] = ("127.0.0.1", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    stored_body: bytes = b""
    properties_data: bytes = b""
    version: int = 1
    size: int = 0
    body_crc: int = 0

    @cached_property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_data)

    @property
    def is_rollback(self) -> bool:
        return self.sys_flag & TRANSACTION_BITS == ROLLBACK

    @cached_property
    def key_tokens(self) -> list[str]:
        """The words of KEYS, repeated ones repeated, as RocketMQ indexes them."""
        if self.is_rollback:
            return []
        return [token for token in self.properties.get("KEYS", "").split(" ") if token]

    @cached_property
    def keys(self) -> list[str]:
        """The distinct words of KEYS."""
        return list(dict.fromkeys(self.key_tokens))

    @property
    def unique_id(self) -> str | None:
        return self.properties.get("UNIQ_KEY")

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def offset_id(self) -> str:
        return (encode_host(self.store_host) + i64(self.physical_offset)).hex().upper()


class Reader:
    """Takes one field after the other from ``data``."""

    def __init__(self, data: bytes, position: int):
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        if size < 0:
            raise NotARecord(f"a field of {size} bytes")
        if self.position + size > len(self.data):
            raise NotARecord("the bytes end too soon")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, size: int) -> int:
        return signed(self.take(size))

    def host(self, is_ipv6: bool) -> tuple[str, int]:
        address = ipaddress.ip_address(self.take(16 if is_ipv6 else 4))
        return str(address), self.number(4)


def encode_host(host: tuple[str, int]) -> bytes:
    address, port = host
    return ipaddress.ip_address(address).packed + i32(port)


def decode_record(data: bytes, position: int = 0) -> Record:
    """Read the record at ``position``, or raise NotARecord. Checks sizes and magic, not checksums."""
    reader = Reader(data, position)
    size = reader.number(4)
    magic = reader.number(4) % 2**32
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise NotARecord(f"magic {magic:08x}")
    version = 1 if magic == MAGIC_V1 else 2
    body_crc = reader.number(4)
    queue = reader.number(4)
    flag = reader.number(4)
    queue_offset = reader.number(8)
    physical_offset = reader.number(8)
    sys_flag = reader.number(4)
    born_timestamp_ms = reader.number(8)
    born_host = reader.host(bool(sys_flag & BORN_HOST_IS_IPV6))
    store_timestamp_ms = reader.number(8)
    store_host = reader.host(bool(sys_flag & STORE_HOST_IS_IPV6))
    reconsume_times = reader.number(4)
    prepared_transaction_offset = reader.number(8)
    stored_body = reader.take(reader.number(4))
    topic_data = reader.take(reader.number(1 if version == 1 else 2))
    properties_data = reader.take(reader.number(2))
    if reader.position - position != size:
        raise NotARecord(f"says {size} bytes, its fields have {reader.position - position}")
    return Record(
        topic=decode_java_utf8(topic_data),
        queue=queue,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        stored_body=stored_body,
        properties_data=properties_data,
        version=version,
        size=size,
        body_crc=body_crc,
    )


def encode_record(record: Record) -> bytes:
    """The record's bytes. ``size`` and ``body_crc`` are computed, whatever the record says of them."""
    topic_data = record.topic.encode("utf-8")
    behind_size = b"".join(
        [
            (MAGIC_V1 if record.version == 1 else MAGIC_V2).to_bytes(4, "big"),
            i32(crc32(record.stored_body)),
            i32(record.queue),
            i32(record.flag),
            i64(record.queue_offset),
            i64(record.physical_offset),
            i32(record.sys_flag),
            i64(record.born_timestamp_ms),
            encode_host(record.born_host),
            i64(record.store_timestamp_ms),
            encode_host(record.store_host),
            i32(record.reconsume_times),
            i64(record.prepared_transaction_offset),
            i32(len(record.stored_body)) + record.stored_body,
            len(topic_data).to_bytes(record.version, "big") + topic_data,
            i16(len(record.properties_data)) + record.properties_data,
        ]
    )
    return i32(4 + len(behind_size)) + behind_size


def encode_blank(size: int) -> bytes:
    """What fills the end of a file; only its first 8 bytes mean something."""
    return i32(size) + MAGIC_BLANK.to_bytes(4, "big") + bytes(size - 8)


def encode_log_file(records: Iterable[Record], base_offset: int, file_size: int) -> tuple[bytes, list[Record]]:
    """One CommitLog file of these records, their physical offsets set; gives back those that did not fit."""
    data = b""
    left = list(records)
    while left:
        encoded = encode_record(replace(left[0], physical_offset=base_offset + len(data)))
        if len(data) + len(encoded) + 8 > file_size:
            return data + encode_blank(file_size - len(data)), left
        data += encoded
        left.pop(0)
    return data + bytes(file_size - len(data)), []


def scan_log_file(data: bytes, *, check_crc: bool = True) -> tuple[list[Record], int, str]:
    """All records from the start of one file; where the scan ended; and at what.

    The last is ``"blank"`` (the log goes on in the next file), ``"end"`` (of the bytes), or why the bytes
    there are no record.
    """
    records: list[Record] = []
    position = 0
    while position + 8 <= len(data):
        if data[position + 4 : position + 8] == MAGIC_BLANK.to_bytes(4, "big"):
            return records, position, "blank"
        try:
            record = decode_record(data, position)
        except NotARecord as reason:
            return records, position, str(reason)
        if check_crc and record.stored_body and crc32(record.stored_body) != record.body_crc:
            return records, position, "body checksum"
        records.append(record)
        position += record.size
    return records, position, "end"


def read_log(store: Path, *, check_crc: bool = True) -> list[Record]:
    """All records of a store's CommitLog, up to the first bytes that are none."""
    records = []
    for path in sorted((store / "commitlog").iterdir()):
        in_file, _, ending = scan_log_file(path.read_bytes(), check_crc=check_crc)
        records += in_file
        if ending != "blank":
            break
    return records


# The index file


@dataclass
class Item:
    key_hash: int
    physical_offset: int
    time_diff_s: int
    previous_item: int

    def to_bytes(self) -> bytes:
        return i32(self.key_hash) + i64(self.physical_offset) + i32(self.time_diff_s) + i32(self.previous_item)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Item":
        return cls(signed(data[0:4]), signed(data[4:12]), signed(data[12:16]), signed(data[16:20]))


NO_ITEM = Item(0, 0, 0, 0)


@dataclass
class IndexFileTwin:
    """One index file, written and asked exactly as RocketMQ does, weak points included.

    ``next_item`` is the header's indexCount; item 0 is never used. The begin and end values that a new file
    starts with are those that the file before it ended with.
    """

    slot_capacity: int
    item_capacity: int
    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    slot_count: int = 0
    next_item: int = 1
    slots: dict[int, int] = field(default_factory=dict)
    items: dict[int, Item] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.next_item >= self.item_capacity

    def put(self, text: str, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add one item; ``text`` is ``topic#key``. False when the file is full."""
        if self.is_full:
            return False
        hash_number = text_hash(text)
        slot = hash_number % self.slot_capacity
        previous_item = self.slots.get(slot, 0)
        if previous_item <= 0 or previous_item > self.next_item:
            previous_item = 0

        time_diff_s = (store_timestamp_ms - self.begin_timestamp_ms) // 1000
        if self.begin_timestamp_ms <= 0:
            time_diff_s = 0
        time_diff_s = min(max(time_diff_s, 0), 2**31 - 1)

        self.items[self.next_item] = Item(hash_number, physical_offset, time_diff_s, previous_item)
        self.slots[slot] = self.next_item
        if self.next_item <= 1:
            self.begin_timestamp_ms = store_timestamp_ms
            self.begin_physical_offset = physical_offset
        if previous_item == 0:
            self.slot_count += 1
        self.next_item += 1
        self.end_timestamp_ms = store_timestamp_ms
        self.end_physical_offset = physical_offset
        return True

    def is_time_matched(self, begin: int, end: int) -> bool:
        first, last = self.begin_timestamp_ms, self.end_timestamp_ms
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def select(self, text: str, limit: int, begin: int, end: int, found: list[int]) -> None:
        """Add to ``found`` the physical offsets that RocketMQ takes for this text, newest first."""
        hash_number = text_hash(text)
        number = self.slots.get(hash_number % self.slot_capacity, 0)
        if number <= 0 or number > self.next_item or self.next_item <= 1:
            return
        while len(found) < limit:
            item = self.items.get(number, NO_ITEM)
            if item.time_diff_s < 0:
                return
            time = self.begin_timestamp_ms + 1000 * item.time_diff_s
            if item.key_hash == hash_number and begin <= time <= end:
                found.append(item.physical_offset)
            if time < begin or item.previous_item == number:
                return
            if item.previous_item <= 0 or item.previous_item > self.next_item:
                return
            number = item.previous_item

    def to_bytes(self) -> bytes:
        header = (
            i64(self.begin_timestamp_ms)
            + i64(self.end_timestamp_ms)
            + i64(self.begin_physical_offset)
            + i64(self.end_physical_offset)
            + i32(self.slot_count)
            + i32(self.next_item)
        )
        slots = b"".join(i32(self.slots.get(slot, 0)) for slot in range(self.slot_capacity))
        items = b"".join(self.items.get(number, NO_ITEM).to_bytes() for number in range(self.item_capacity))
        return header + slots + items

    @classmethod
    def from_bytes(cls, data: bytes, slot_capacity: int, item_capacity: int) -> "IndexFileTwin":
        twin = cls(
            slot_capacity,
            item_capacity,
            signed(data[0:8]),
            signed(data[8:16]),
            signed(data[16:24]),
            signed(data[24:32]),
            signed(data[32:36]),
            max(1, signed(data[36:40])),
        )
        for slot in range(slot_capacity):
            position = 40 + 4 * slot
            twin.slots[slot] = signed(data[position : position + 4])
        for number in range(1, min(twin.next_item, item_capacity)):
            position = 40 + 4 * slot_capacity + 20 * number
            twin.items[number] = Item.from_bytes(data[position : position + 20])
        return twin


def read_index(store: Path, slot_capacity: int, item_capacity: int) -> list[IndexFileTwin]:
    """A store's index files in the order in which RocketMQ loads them: by name."""
    paths = sorted(path for path in (store / "index").iterdir() if path.name.isdigit())
    return [IndexFileTwin.from_bytes(path.read_bytes(), slot_capacity, item_capacity) for path in paths]


def query_offset(files: Sequence[IndexFileTwin], text: str, limit: int, begin: int, end: int) -> list[int]:
    """``IndexService.queryOffset``: never more than 64, and the files' headers are believed."""
    limit = min(limit, 64)
    found: list[int] = []
    for file in reversed(files):
        if file.is_time_matched(begin, end):
            file.select(text, limit, begin, end, found)
        if file.begin_timestamp_ms < begin or len(found) >= limit:
            break
    return found


def link_items(key_hashes: Iterable[int], first_item: int, slots: list[int]) -> list[int]:
    """Push items onto the chains of their slots, oldest first; gives each item's previous item."""
    previous_items = []
    for number, hash_number in enumerate(key_hashes, first_item):
        slot = hash_number % len(slots)
        previous_items.append(slots[slot])
        slots[slot] = number
    return previous_items


class BrokenChain(Exception):
    """An item points to itself, to a newer item, or to one that is not there."""


def walk(file: IndexFileTwin, hash_number: int) -> list[int]:
    """Physical offsets of all items with this hash, newest first: the walk without RocketMQ's weak points.

    Each item must point to an older one, so the walk ends.
    """
    found = []
    newer_item = file.next_item
    number = file.slots.get(hash_number % file.slot_capacity, 0)
    while number != 0:
        if not 0 < number < newer_item or number not in file.items:
            raise BrokenChain(f"item {newer_item} points to item {number}")
        item = file.items[number]
        if item.key_hash == hash_number:
            found.append(item.physical_offset)
        newer_item, number = number, item.previous_item
    return found


# Dispatch: from the log to index and queues


def index_texts(record: Record, dialect: str) -> list[str]:
    """The texts under which RocketMQ indexes a record, in order. Dialects: "4.9", "5.3", "5.5"."""
    if record.is_rollback:
        return []
    names = []
    if record.unique_id:
        names.append(record.unique_id)
    names += record.key_tokens
    if dialect == "5.5" and record.tags:
        names.append("T#" + record.tags)
    return [f"{record.topic}#{name}" for name in names]


def build_index(
    records: Iterable[Record],
    dialect: str,
    slot_capacity: int,
    item_capacity: int,
    kept: Iterable[IndexFileTwin] = (),
) -> list[IndexFileTwin]:
    """The index files that a broker makes of these records, going on behind those it ``kept``."""
    files = list(kept)

    def last_file() -> IndexFileTwin:
        if not files:
            files.append(IndexFileTwin(slot_capacity, item_capacity))
        elif files[-1].is_full:
            full = files[-1]
            rolled = IndexFileTwin(slot_capacity, item_capacity)
            rolled.begin_timestamp_ms = rolled.end_timestamp_ms = max(0, full.end_timestamp_ms)
            rolled.begin_physical_offset = rolled.end_physical_offset = max(0, full.end_physical_offset)
            files.append(rolled)
        return files[-1]

    for record in records:
        # Asked for every record: a record without any key rolls a full file too.
        if record.physical_offset < last_file().end_physical_offset:
            continue
        for text in index_texts(record, dialect):
            last_file().put(text, record.physical_offset, record.store_timestamp_ms)
    return files


def recovery_start(log_files: Sequence[Sequence[Record]], dialect: str, checkpoint: dict[str, int]) -> int:
    """Number of the log file from which RocketMQ indexes again after an unclean exit."""
    for steps_back, (number, records) in enumerate(reversed(list(enumerate(log_files))), 1):
        if dialect == "5.5" and steps_back == 10:
            return number
        if not records or records[0].store_timestamp_ms == 0:
            continue
        if dialect != "5.5":
            is_old_enough = records[0].store_timestamp_ms <= checkpoint["minTimestamp"]
        elif checkpoint["logicsPhysicalOffset"] > 0:
            is_old_enough = records[0].physical_offset <= checkpoint["logicsPhysicalOffset"]
        else:
            is_old_enough = records[0].store_timestamp_ms <= checkpoint["logicsMsgTimestamp"]
        if is_old_enough:
            return number
    return 0


@dataclass(frozen=True)
class Entry:
    """One ConsumeQueue entry."""

    physical_offset: int
    size: int
    tags_code: int

    def to_bytes(self) -> bytes:
        return i64(self.physical_offset) + i32(self.size) + i64(self.tags_code)


FILLER = Entry(0, 2**31 - 1, 0)


def tags_code(record: Record) -> int:
    """Hash of the tag; in the delay topic the time at which the message is due."""
    code = java_hash(record.tags) if record.tags else 0
    if record.topic != SCHEDULE_TOPIC:
        return code
    return delivery_time(record.properties.get("DELAY", ""), record.store_timestamp_ms, code)


def delivery_time(level: str, store_timestamp_ms: int, code: int) -> int:
    """When a message of the delay topic is due; ``code`` if its level is no number, or none above 0."""
    number = int(level) if re.fullmatch(r"[+-]?[0-9]+", level) else 0
    if not 0 < number < 2**31:
        return code
    return store_timestamp_ms + 1000 * DELAYS_S[min(number, len(DELAYS_S)) - 1]


def build_queues(records: Iterable[Record]) -> dict[tuple[str, int], dict[int, Entry]]:
    """``{(topic, queue): {queue_offset: entry}}``. Prepared and rollback records enter no queue."""
    queues: dict[tuple[str, int], dict[int, Entry]] = {}
    for record in records:
        if record.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            continue
        entry = Entry(record.physical_offset, record.size, tags_code(record))
        queues.setdefault((record.topic, record.queue), {})[record.queue_offset] = entry
    return queues


def sort_rows(rows: Iterable[tuple[int, ...]], owners: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Rows (number of a queue, what becomes an entry) by the queue that owns theirs; -1 is no queue."""
    queues: list[list[tuple[int, ...]]] = [[] for _ in owners]
    for number, *row in rows:
        if number != -1 and owners[number] != -1:
            queues[owners[number]].append(tuple(row))
    return queues


def encode_queue_files(entries: dict[int, Entry], file_size: int) -> list[bytes]:
    """The files of one queue that begins at queue offset 0; what is not written yet is zero."""
    data = b"".join(entries[queue_offset].to_bytes() for queue_offset in range(len(entries)))
    return [data[at : at + file_size].ljust(file_size, b"\0") for at in range(0, len(data), file_size)]


# Checks


def index_faults(
    file: IndexFileTwin,
    expected: Sequence[tuple[int, int, int]],
    *,
    begin_offset: int = 0,
    inherited_ms: int = 0,
) -> Counter[str]:
    """What is wrong with items and slots, by kind. Items lie in the order of their offsets.

    ``expected``: hash, offset and store time of the items that the log has. An item may be there more than once.
    """
    faults: Counter[str] = Counter()
    times = {offset: time for _, offset, time in expected}
    in_log = Counter((hash_number, offset) for hash_number, offset, _ in expected)
    in_file = Counter((item.key_hash, item.physical_offset) for item in file.items.values())
    faults["missing"] = (in_log - in_file).total()
    for found, count in in_file.items():
        if found not in in_log and not 0 <= found[1] < begin_offset:
            faults["dangling"] += count
    begin_ms = inherited_ms
    slots = [0] * file.slot_capacity
    for number, item in sorted(file.items.items()):
        slot = item.key_hash % file.slot_capacity
        faults["wrong_link"] += item.previous_item != slots[slot]
        slots[slot] = number
        if item.physical_offset in times:
            time = times[item.physical_offset]
            time_diff_s = 0 if begin_ms <= 0 else min(max((time - begin_ms) // 1000, 0), 2**31 - 1)
            faults["wrong_time"] += item.time_diff_s != time_diff_s
        if number == 1:
            begin_ms = times.get(item.physical_offset, file.begin_timestamp_ms)
    faults["wrong_head"] = sum(file.slots.get(slot, 0) != newest for slot, newest in enumerate(slots))
    return +faults


def place_entries(expected: Iterable[tuple[Entry, int]]) -> dict[int, Entry]:
    """Where a broker that begins a queue anew puts entries, in the order of the log, that claim queue offsets."""
    placed: dict[int, Entry] = {}
    end = 0
    for entry, queue_offset in expected:
        if entry.physical_offset < end or queue_offset < 0:
            continue
        if placed and 0 < queue_offset <= max(placed):
            continue
        placed[max(placed) + 1 if placed else queue_offset] = entry
        end = entry.physical_offset + entry.size
    return placed


def queue_faults(
    data: bytes, first: int, expected: Iterable[tuple[Entry, int]], begin_offset: int = 0
) -> Counter[str]:
    """What is wrong with the bytes of a queue, whose first entry has this number, if whence built it."""
    faults: Counter[str] = Counter()
    placed = place_entries(expected)
    numbers = range(first, first + len(data) // 20)
    is_begun = False
    for number in sorted({*numbers, *placed}):
        at = 20 * (number - first)
        found = data[at : at + 20] if number in numbers else bytes(20)
        entry = Entry(signed(found[:8]), signed(found[8:12]), signed(found[12:]))
        if number in placed:
            is_begun = True
            if entry.physical_offset != placed[number].physical_offset or not 0 < entry.size < 2**31 - 1:
                faults["missing"] += 1
            elif entry != placed[number]:
                faults["wrong_entry"] += 1
        elif entry == FILLER and not is_begun:
            continue
        elif 0 <= entry.physical_offset < begin_offset and entry.size > 0 and number < min(placed, default=2**63):
            is_begun = True
        elif placed and number < max(placed):
            faults["wrong_entry" if entry in (FILLER, Entry(0, 0, 0)) else "dangling"] += 1
        elif found != bytes(20):
            faults["not_zero"] += 1
    return faults


# Expiry


def expired_files(store: Path, begin: int) -> list[str]:
    """The queue and index files that RocketMQ deletes when its log begins at this offset, by name from the store.

    Of each queue the leading files whose last entry leads below; the leading index files that end below. Never the
    last file.
    """
    expired = []
    for kind, entry_size in (("consumequeue", 20), ("batchconsumequeue", 46)):
        for queue in (store / kind).glob("*/*"):
            for path in sorted(queue.iterdir())[:-1]:
                last_entry = path.read_bytes()[-entry_size:]
                if signed(last_entry[:8]) >= begin:
                    break
                expired.append(str(path.relative_to(store)))
    for path in sorted((store / "index").iterdir())[:-1]:
        if signed(path.read_bytes()[24:32]) >= begin:
            break
        expired.append(str(path.relative_to(store)))
    return sorted(expired)


# Answers


def offset_by_time(files: Sequence[Sequence[int]], timestamp_ms: int, *, upper: bool) -> int:
    """``getOffsetInQueueByTime`` of RocketMQ 5, for a queue that begins at queue offset 0.

    ``files`` holds the store times of the entries of each queue file. LOWER is meant as the first entry
    stored at that time or later, UPPER as the last one stored at that time or earlier; where times do not
    ascend, the binary search decides.
    """
    chosen = len(files) - 1
    if upper:
        while chosen >= 0 and files[chosen][0] > timestamp_ms:
            chosen -= 1
        if chosen < 0:
            return 0
    else:
        for number in range(len(files) - 1):
            if files[number][-1] >= timestamp_ms:
                chosen = number
                break
    times = files[chosen]
    first = sum(len(earlier_file) for earlier_file in files[:chosen])

    low, high = 0, len(times) - 1
    if times[high] < timestamp_ms:
        return first + high + (0 if upper else 1)
    if times[low] > timestamp_ms:
        return 0 if upper else first
    earlier = later = -1
    while low <= high:
        middle = (low + high) // 2
        if times[middle] == timestamp_ms:
            step = 1 if upper else -1
            while 0 <= middle + step < len(times) and times[middle + step] == timestamp_ms:
                middle += step
            return first + middle
        if times[middle] > timestamp_ms:
            later = middle
            high = middle - 1
        else:
            earlier = middle
            low = middle + 1
    return first + (earlier if upper else later)


def first_at_or_after(times: Sequence[int], timestamp_ms: int) -> int:
    """The exact LOWER: number of the first time that is not before; the count if there is none."""
    return next((number for number, time in enumerate(times) if time >= timestamp_ms), len(times))


def last_at_or_before(times: Sequence[int], timestamp_ms: int) -> int:
    """The exact UPPER: number of the last time that is not after; -1 if there is none."""
    return max((number for number, time in enumerate(times) if time <= timestamp_ms), default=-1)


def find(
    records: Iterable[Record],
    *,
    key: str | None = None,
    unique_id: str | None = None,
    topic: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    system_topics: bool = False,
) -> list[Record]:
    """Every message that matches, newest first, by looking at every message: the rule that whence promises.

    A key is a whole word of KEYS. Both ends of the window are included, to the millisecond. A rollback
    record bears neither key nor unique id. System topics answer only if asked for; to an id, always.
    """
    found = []
    for record in records:
        if key is not None and key not in record.keys:
            continue
        if unique_id is not None and (record.is_rollback or record.unique_id != unique_id):
            continue
        if topic is not None and record.topic != topic:
            continue
        if since_ms is not None and record.store_timestamp_ms < since_ms:
            continue
        if until_ms is not None and record.store_timestamp_ms > until_ms:
            continue
        is_hidden = is_system_topic(record.topic) and not system_topics
        if is_hidden and topic is None and unique_id is None:
            continue
        found.append(record)
    return found[::-1]


# Time blocks


def time_blocks(records: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Of records (position, store time): for each 64 KiB the first position, and the smallest and largest time."""
    blocks: dict[int, list[tuple[int, int]]] = {}
    for position, time in records:
        blocks.setdefault(position >> 16, []).append((position, time))
    return [
        (min(position for position, _ in block), min(time for _, time in block), max(time for _, time in block))
        for _, block in sorted(blocks.items())
    ]
