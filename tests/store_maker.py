"""Makes small stores for tests, as a broker would leave them: with the twins, never with the code under test.

    made = make_store(tmp_path, [message(keys="a b"), message(tags="t")], slots=5, items=8)
    made.folder             the store; give it to whence.open
    made.records            the records as they lie in the log, with their physical offsets
    made.index              the index files as twins, to be asked as RocketMQ asks them

The log's files are small (``file_size``), so that a handful of messages fills several.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.reference import (
    PREPARED,
    ROLLBACK,
    TRANSACTION_BITS,
    IndexFileTwin,
    Record,
    build_index,
    build_queues,
    encode_blank,
    encode_properties,
    encode_queue_files,
    encode_record,
)

T = 1_700_000_000_000
"""The store time of the first message, as in the examples of the format description."""

FILE_SIZE = 4096
QUEUE_FILE_SIZE = 200  # ten entries


def message(
    *,
    keys: str = "",
    tags: str = "",
    unique_id: str = "",
    at: int = 0,
    topic: str = "T",
    queue: int = 0,
    body: bytes = b"body",
    sys_flag: int = 0,
) -> Record:
    """One message to be stored ``at`` milliseconds after T."""
    given = {"KEYS": keys, "TAGS": tags, "UNIQ_KEY": unique_id}
    return Record(
        topic=topic,
        queue=queue,
        born_timestamp_ms=T + at,
        store_timestamp_ms=T + at,
        stored_body=body,
        sys_flag=sys_flag,
        properties_data=encode_properties({name: value for name, value in given.items() if value}),
    )


def place(records: Iterable[Record], *, base: int = 0, file_size: int = FILE_SIZE) -> list[Record]:
    """The records with the offsets that a broker gives them: in the log, from ``base`` on, and in their queues."""
    placed = []
    ends: dict[tuple[str, int], int] = {}
    offset = base
    for record in records:
        size = len(encode_record(record))
        free = file_size - offset % file_size
        if size + 8 > free:
            offset += free
        queue_offset = 0
        if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK):
            queue_offset = ends.get((record.topic, record.queue), 0)
            ends[record.topic, record.queue] = queue_offset + 1
        placed.append(replace(record, physical_offset=offset, queue_offset=queue_offset, size=size))
        offset += size
    return placed


def log_bytes(placed: Iterable[Record], *, base: int = 0, file_size: int = FILE_SIZE) -> dict[str, bytes]:
    """The CommitLog files of placed records, by name. What is not written yet is zero."""
    data = bytearray()
    for record in placed:
        if record.physical_offset > base + len(data):
            data += encode_blank(record.physical_offset - base - len(data))
        data += encode_record(record)
    data += bytes(-len(data) % file_size)
    return {f"{base + at:020d}": bytes(data[at : at + file_size]) for at in range(0, len(data), file_size)}


@dataclass(frozen=True)
class MadeStore:
    folder: Path
    records: list[Record]
    index: list[IndexFileTwin]

    @property
    def offsets(self) -> list[int]:
        """Where the messages lie, in the order of the log."""
        return [record.physical_offset for record in self.records]

    @property
    def end_offset(self) -> int:
        return self.records[-1].physical_offset + self.records[-1].size

    @property
    def log_files(self) -> list[Path]:
        return sorted((self.folder / "commitlog").iterdir())

    @property
    def index_files(self) -> list[Path]:
        return sorted((self.folder / "index").iterdir())


def write_index(folder: Path, files: Iterable[IndexFileTwin], *, first_name: int = 20260101120000000) -> None:
    """Put index files into a store, named one millisecond apart."""
    (folder / "index").mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        (folder / "index" / str(first_name + number)).write_bytes(file.to_bytes())


def make_store(
    folder: Path,
    records: Iterable[Record],
    *,
    slots: int = 7,
    items: int = 20,
    dialect: str = "5.5",
    base: int = 0,
    file_size: int = FILE_SIZE,
    indexed: int | None = None,
    queues: bool = True,
) -> MadeStore:
    """A store of these messages. The first ``indexed`` of them (all, if None) are in its index.

    ``base``: where the log begins; what lay before it has expired.
    """
    placed = place(records, base=base, file_size=file_size)
    (folder / "commitlog").mkdir(parents=True)
    for name, data in log_bytes(placed, base=base, file_size=file_size).items():
        (folder / "commitlog" / name).write_bytes(data)
    index = build_index(placed[:indexed], dialect, slots, items)
    write_index(folder, [file for file in index if file.items])
    if queues:
        for (topic, queue), entries in build_queues(placed).items():
            queue_folder = folder / "consumequeue" / topic / str(queue)
            queue_folder.mkdir(parents=True)
            for number, data in enumerate(encode_queue_files(entries, QUEUE_FILE_SIZE)):
                (queue_folder / f"{number * QUEUE_FILE_SIZE:020d}").write_bytes(data)
    return MadeStore(folder, placed, index)
