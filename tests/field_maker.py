"""Makes the files of a field as whence has to make them, with the twins: from records and a plain Python function.

made = make_store(tmp_path / "store", messages)
index_field(made, "city", lambda record: [record.stored_body.decode()])
whence.open(made.folder).find(field="city=Paris")
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.reference import IndexFileTwin, Record
from tests.store_maker import QUEUE_FILE_SIZE, MadeStore
from whence.files.names import index_name

Values = Callable[[Record], Iterable[str]]


def field_texts(record: Record, values: Values) -> list[str]:
    """The texts under which a field has a record: of each of its values, once."""
    return [] if record.is_rollback else [f"{record.topic}#{value}" for value in dict.fromkeys(values(record))]


def build_field(
    records: Iterable[Record], values: Values, slots: int, items: int
) -> tuple[list[IndexFileTwin], list[bytes]]:
    """Index files of a field, and the values beside each."""
    files: list[IndexFileTwin] = []
    hashes: list[bytes] = []
    for record in records:
        for text in field_texts(record, values):
            if not files or files[-1].is_full:
                rolled = IndexFileTwin(slots, items)
                if files:
                    full = files[-1]
                    rolled.begin_timestamp_ms = rolled.end_timestamp_ms = max(0, full.end_timestamp_ms)
                    rolled.begin_physical_offset = rolled.end_physical_offset = max(0, full.end_physical_offset)
                files.append(rolled)
                hashes.append(bytes(16))
            files[-1].put(text, record.physical_offset, record.store_timestamp_ms)
            hashes[-1] += hashlib.sha256(text.encode()).digest()[:16]
    return files, hashes


def header_of(file: IndexFileTwin) -> dict[str, int]:
    return {
        "begin_timestamp_ms": file.begin_timestamp_ms,
        "end_timestamp_ms": file.end_timestamp_ms,
        "begin_physical_offset": file.begin_physical_offset,
        "end_physical_offset": file.end_physical_offset,
        "slot_count": file.slot_count,
        "item_count": file.next_item,
    }


NO_HEADER = header_of(IndexFileTwin(1, 2)) | {"item_count": 0}


def field_files(records: Sequence[Record], values: Values, slots: int, items: int) -> dict[str, bytes]:
    """The files of a field, by their place below its folder."""
    files, hashes = build_field(records, values, slots, items)
    made: dict[str, bytes] = {}
    name: str | None = None
    for file, bits in zip(files, hashes, strict=True):
        name = index_name(file.begin_timestamp_ms, name)
        made |= {f"index/{name}": file.to_bytes(), f"values/{name}": bits}
    return made


def index_field(
    made: MadeStore,
    name: str,
    values: Values,
    *,
    indexed: int | None = None,
    slots: int = 7,
    items: int = 20,
    sidecar: Path | None = None,
) -> Path:
    """Put a field into a store's sidecar. The first ``indexed`` records (all, if None) are in it. Its folder."""
    sidecar = sidecar or made.folder.with_name(f"{made.folder.name}.whence")
    records = made.records[:indexed]
    files, _ = build_field(records, values, slots, items)
    folder = sidecar / "fields" / name
    for place, data in field_files(records, values, slots, items).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in (folder / "index").iterdir()) if files else []
    base = made.offsets[0] // 4096 * 4096
    end = records[-1].physical_offset + records[-1].size if records else base
    log = {path.name: path.read_bytes() for path in made.log_files}
    last = records[-1].physical_offset if records else -1
    size = len(next(iter(log.values())))
    head = log[f"{last // size * size:020d}"][last % size :][:48] if records else b""
    progress = {
        "indexed": [[base, end]] if records else [],
        "last_record": {"offset": last, "head": head.hex()},
        "index_files": names,
        "newest_index": header_of(files[-1]) if files else NO_HEADER,
    }
    path = sidecar / "sidecar.json"
    document: dict[str, Any] = {
        "version": 1,
        "kind": "rocketmq",
        "dialect": "5.5",
        "slots": slots,
        "items": items,
        "queue_file_size": QUEUE_FILE_SIZE,
        "queues_size": 0,
        "in_place": False,
        "other_topics": sorted({record.topic for record in made.records}),
        "fields": {},
        **progress,
        "index_files": [],
        "newest_index": NO_HEADER,
    }
    if path.exists():
        document = json.loads(path.read_text())
    settings = {"sql": "body", "session_zone": "UTC", "ansi": True, "spark": "4.0.0", "slots": slots, "items": items}
    document["fields"][name] = settings | progress
    path.write_text(json.dumps(document))
    return folder
