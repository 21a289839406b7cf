"""Inspection: what one file of a RocketMQ store, or of what whence keeps beside it, is and says, as plain data.

The kind of a file is told by its path, as the broker lays a store out, else by its bytes. No file is read whole:
all is looked at through a map, and rows are made only of what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from whence.errors import FormatError, NotFoundError, StoreError, UsageError
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits, parse_offset_name
from whence.formats.rocketmq.checkpoint import CHECKPOINT_SIZE, decode_checkpoint
from whence.formats.rocketmq.config import decode_config
from whence.formats.rocketmq.consume_queue import (
    BATCH_ENTRY_SIZE,
    ENTRY_SIZE,
    ENTRY_STRUCT,
    decode_batch_entries,
    decode_ext_unit,
)
from whence.formats.rocketmq.index_file import HEADER_SIZE, decode_header
from whence.formats.rocketmq.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, decode_start
from whence.formats.rocketmq.timer import TIMER_UNIT, WHEEL_SLOT, decode_timer_checkpoint, decode_timer_log
from whence.store.damage import Damage, DamageKind
from whence.store.index_file import Shape, infer_shape

SMALL_SIZE_MAX = 4096
CONFIG_SIZE_MAX = 256 * 1048576
PLAUSIBLE_TIME_MAX = 2**43  # ms: the year 2248


class Kind(StrEnum):
    """What a file is, by the name that RocketMQ gives it or its folder."""

    COMMIT_LOG = "commitlog"
    CONSUME_QUEUE = "consumequeue"
    CONSUME_QUEUE_EXT = "consumequeue_ext"
    BATCH_CONSUME_QUEUE = "batchconsumequeue"
    INDEX_FILE = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    ABORT = "abort"
    LOCK = "lock"
    TIMER_WHEEL = "timerwheel"
    TIMER_LOG = "timerlog"
    TIMER_CHECKPOINT = "timercheck"
    OWNERSHIP = "whence.json"  # this and what follows is whence's own
    SIDECAR = "sidecar.json"
    TIME_BLOCKS = "times"
    FIELD_VALUES = "values"


Row = dict[str, Any]
Rows = npt.NDArray[Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a file are asked for, and what its bytes do not tell."""

    start: int | None = None
    limit: int | None = 20
    shape: Shape | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class Inspection:
    """What a file says. ``facts`` are about all of it; ``rows`` are the part that was asked for.

    Names that end in ``_ms`` are times in epoch milliseconds. ``next_start`` is where the next rows begin, None if
    there are no more. A fact may be a list of rows itself.
    """

    path: str
    kind: Kind
    size: int
    words: str = ""
    facts: Row = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    next_start: int | None = None
    damage: list[Damage] = field(default_factory=list)

    def to_dict(self) -> Row:
        shown: Row = {name: getattr(self, name) for name in Inspection.__dataclass_fields__}
        shown["kind"] = str(self.kind)
        shown["damage"] = [{**asdict(damage), "kind": str(damage.kind)} for damage in self.damage]
        return shown

    def add_damage(self, kind: DamageKind, position: int, detail: str) -> None:
        self.damage.append(Damage(self.path, position, kind, detail))

    def keep(self, rows: Callable[[int, int], list[Row]], count: int, first: int, wanted: Wanted) -> None:
        """Keep the rows that are wanted, of those numbered ``first`` to ``count - 1``."""
        start = max(first, first if wanted.start is None else wanted.start)
        end = count if wanted.limit is None else min(count, start + wanted.limit)
        self.rows = rows(start, end) if start < end else []
        self.next_start = end if first <= end < count and start < count else None


TABLE_SIZE_MAX = 512 * 1048576

Inspector = Callable[[MappedFile, Inspection, Wanted], None]
"""Fills an inspection with what a file says."""


def refuse_larger(file: MappedFile, size_max: int) -> None:
    """Tables are looked at as a whole, so they take memory in proportion; a broker's are far below this."""
    if file.size > size_max:
        raise StoreError(f"{file.path}: has {file.size} bytes; files of this kind are inspected up to {size_max}")


def table_of(file: MappedFile, dtype: np.dtype[np.void]) -> Rows:
    """The file as whole rows; a rest that is too short for one is not looked at."""
    refuse_larger(file, TABLE_SIZE_MAX)
    return np.frombuffer(file.data, dtype, file.size // dtype.itemsize)


def numbered(table: Rows, begin: int, end: int) -> list[Row]:
    """Rows of a table in plain data, with their numbers and places."""
    names = table.dtype.names or ()
    return [
        {"number": number, "position": number * table.dtype.itemsize, **dict(zip(names, values, strict=True))}
        for number, values in enumerate(table[begin:end].tolist(), begin)
    ]


def inspect_file(
    path: Path,
    *,
    kind: str | None = None,
    start: int | None = None,
    limit: int | None = 20,
    slots: int | None = None,
    items: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """What the file at ``path`` says.

    ``start`` and ``limit`` choose rows; ``start`` is the number of a row, in files whose rows differ in length
    (commitlog, consumequeue_ext) a byte.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit} must be at least 1")
    if start is not None and start < 0:
        raise UsageError(f"--from {start} is negative")
    if (slots is None) != (items is None):
        raise UsageError("--slots and --items go together: an index file's length alone gives neither")
    shape = None if slots is None or items is None else Shape(slots, items)
    if shape is not None and (shape.slot_capacity < 1 or shape.item_capacity < 2):
        raise UsageError(f"--slots {slots} --items {items}: an index file has at least 1 slot and 2 items")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give one file{_a_file_in(path)}")
    if kind is not None and kind not in list(Kind):
        raise UsageError(f"{kind!r} is no kind of file; there are {', '.join(Kind)}")
    with MappedFile(path) as file:
        known = Kind(kind) if kind is not None else kind_of_path(path) or kind_of_bytes(file)
        if known is None:
            raise NotFoundError(
                f"{path}: is like no file of a RocketMQ store; if it is one, say which with --kind: {', '.join(Kind)}"
            )
        inspection = Inspection(str(path), known, file.size)
        wanted = Wanted(start, limit, shape, progress)
        try:
            _inspector(known)(file, inspection, wanted)
        except FormatError as error:
            raise error.at(path) from None
        return inspection


def _inspector(kind: Kind) -> Inspector:
    """What makes the inspection; the modules of the larger files are loaded when they are needed."""
    from whence.store import (
        index_inspection,
        log_inspection,
        queue_inspection,
        sidecar_inspection,
        timer_inspection,
    )

    inspectors: dict[Kind, Inspector] = {
        Kind.COMMIT_LOG: log_inspection.commit_log,
        Kind.CONSUME_QUEUE: queue_inspection.consume_queue,
        Kind.CONSUME_QUEUE_EXT: queue_inspection.consume_queue_ext,
        Kind.BATCH_CONSUME_QUEUE: queue_inspection.batch_consume_queue,
        Kind.INDEX_FILE: index_inspection.index_file,
        Kind.CHECKPOINT: _checkpoint,
        Kind.CONFIG: _config,
        Kind.ABORT: _abort,
        Kind.LOCK: _lock,
        Kind.TIMER_WHEEL: timer_inspection.timer_wheel,
        Kind.TIMER_LOG: timer_inspection.timer_log,
        Kind.TIMER_CHECKPOINT: _timer_checkpoint,
        Kind.OWNERSHIP: _ownership,
        Kind.SIDECAR: sidecar_inspection.sidecar,
        Kind.TIME_BLOCKS: sidecar_inspection.time_blocks,
        Kind.FIELD_VALUES: sidecar_inspection.field_values,
    }
    return inspectors[kind]


def _a_file_in(folder: Path) -> str:
    """A hint: the first file below a folder, as far as that is looked for."""
    for pattern in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(pattern))[:1000]:
            if path.is_file():
                return f", for example {path}"
    return ""


# Which kind


def kind_of_path(path: Path) -> Kind | None:
    """What a file is if it lies where a broker or whence puts it; None if its place says nothing."""
    name, folder = path.name, path.parent.name
    if name in ("checkpoint", "abort", "lock", "timercheck", "timerwheel", "whence.json", "sidecar.json"):
        return Kind(name)
    if name.startswith("timerwheel.") and is_digits(name.removeprefix("timerwheel.")):
        return Kind.TIMER_WHEEL
    if name.removesuffix(".bak").endswith(".json") or (folder == "config" and not is_digits(name)):
        return Kind.CONFIG
    if folder in ("index", "values") and is_digits(name):
        return Kind(folder)
    if parse_offset_name(name) is None:
        return None
    if folder in ("commitlog", "timerlog", "times"):
        return Kind(folder)
    queues = path.parent.parent.parent.name
    if queues in ("consumequeue", "consumequeue_ext", "batchconsumequeue") and is_digits(folder):
        return Kind(queues)
    return None


def kind_of_bytes(file: MappedFile) -> Kind | None:
    """What a file seems to be; the first kind that makes sense of it, the surest signs first."""
    return next((kind for kind, is_like in _SIGNS if _holds(is_like, file)), None)


def _holds(is_like: Callable[[MappedFile], bool], file: MappedFile) -> bool:
    try:
        return is_like(file)
    except FormatError:
        return False


def _like_commit_log(file: MappedFile) -> bool:
    return decode_start(file.data)[1] in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def _like_index_file(file: MappedFile) -> bool:
    return infer_shape(file.data, decode_header(file.data[:HEADER_SIZE]), ()) is not None


def _like_timer_log(file: MappedFile) -> bool:
    unit_size = TIMER_UNIT.itemsize
    return bytes(file.data[:4]) == unit_size.to_bytes(4, "big") and len(decode_timer_log(file.data[:unit_size])) == 1


def _like_consume_queue(file: MappedFile) -> bool:
    if file.size < ENTRY_SIZE or file.size % ENTRY_SIZE:
        return False
    physical_offset, size, _ = ENTRY_STRUCT.unpack_from(file.data)
    if file.size >= 2 * ENTRY_SIZE:
        next_offset, next_size, _ = ENTRY_STRUCT.unpack_from(file.data, ENTRY_SIZE)
        if next_size and not (next_size > 0 and next_offset >= physical_offset):
            return False
    return bool(physical_offset >= 0 and size > 0)


def _like_batch_consume_queue(file: MappedFile) -> bool:
    if file.size < BATCH_ENTRY_SIZE or file.size % BATCH_ENTRY_SIZE:
        return False
    entry = decode_batch_entries(file.data[:BATCH_ENTRY_SIZE])[0]
    return bool(
        entry["physical_offset"] >= 0
        and entry["size"] > 0
        and 0 < entry["store_timestamp_ms"] < PLAUSIBLE_TIME_MAX
        and entry["message_count"] > 0
    )


def _like_consume_queue_ext(file: MappedFile) -> bool:
    unit, _ = decode_ext_unit(file.data, 0)
    return unit is not None and 0 < unit.store_timestamp_ms < PLAUSIBLE_TIME_MAX


def _like_timer_wheel(file: MappedFile) -> bool:
    if not file.size or file.size % WHEEL_SLOT.itemsize:
        return False
    slots = np.frombuffer(file.data, WHEEL_SLOT)
    used = slots[slots["unit_count"] > 0][:16]
    return bool(len(used) and np.all(used["magic"] == 0) and np.all(used["first_position"] <= used["last_position"]))


def _like_config(file: MappedFile) -> bool:
    return bytes(file.data[:64]).lstrip().startswith(b"{")


def _like_lock(file: MappedFile) -> bool:
    return bytes(file.data[:5]) == b"lock"


def _like_abort(file: MappedFile) -> bool:
    return 0 < file.size <= 20 and bytes(file.data).strip().isdigit()


def _like_checkpoint(file: MappedFile) -> bool:
    """The checkpoint of the timer looks alike; both are zero behind their fields."""
    if file.size != CHECKPOINT_SIZE or any(file.data[64:]):
        return False
    checkpoint = decode_checkpoint(file.data)
    times = (checkpoint.log_timestamp_ms, checkpoint.queue_timestamp_ms, checkpoint.index_timestamp_ms)
    return all(0 <= time < PLAUSIBLE_TIME_MAX for time in times)


_SIGNS: tuple[tuple[Kind, Callable[[MappedFile], bool]], ...] = (
    (Kind.COMMIT_LOG, _like_commit_log),
    (Kind.CONFIG, _like_config),
    (Kind.LOCK, _like_lock),
    (Kind.ABORT, _like_abort),
    (Kind.TIMER_LOG, _like_timer_log),
    (Kind.INDEX_FILE, _like_index_file),
    (Kind.CHECKPOINT, _like_checkpoint),
    (Kind.BATCH_CONSUME_QUEUE, _like_batch_consume_queue),
    (Kind.CONSUME_QUEUE, _like_consume_queue),
    (Kind.CONSUME_QUEUE_EXT, _like_consume_queue_ext),
    (Kind.TIMER_WHEEL, _like_timer_wheel),
)


# Small files


def _checkpoint(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    inspection.words = (
        "A checkpoint: up to where the broker knew its files to be safe on disk. It lags behind what they hold; "
        "0 means that nothing was noted yet."
    )
    inspection.facts = asdict(decode_checkpoint(file.data))


def _timer_checkpoint(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    inspection.words = "The checkpoint of the timer: how far it has read its queue and flushed its log."
    inspection.facts = asdict(decode_timer_checkpoint(file.data))


def _abort(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    inspection.words = (
        "The mark of a broker that runs; it is removed at a clean stop. If no broker runs, this store has crashed: "
        "the end of its log may be half written, and of its index missing."
    )
    inspection.facts = {"process": _small_text(file) or None}


def _lock(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    inspection.words = (
        "The file that a running broker holds a lock on, so that no second one opens the store. That it exists says "
        "nothing; whence only reads, and needs no lock."
    )
    inspection.facts = {"text": _small_text(file)}


def _small_text(file: MappedFile) -> str:
    if file.size > SMALL_SIZE_MAX:
        raise StoreError(f"{file.path}: has {file.size} bytes, too many for what it should be")
    return bytes(file.data).decode("utf-8", "replace").strip()


def _ownership(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    inspection.words = (
        "What whence keeps in a store of its own, beside RocketMQ's files: the sizes it was made with, how far "
        "queues and index were on the disk when they were last flushed, and the process that writes (0 after a clean "
        "end). A row for each older index file."
    )
    rows: list[Row] = []
    for member, value in _json(file).items():
        if isinstance(value, dict):
            inspection.facts |= {f"{member}_{name}": entry for name, entry in value.items()}
        elif member == "older_index_files" and isinstance(value, list):
            rows = [{"older_index_file": name} for name in value]
        else:
            inspection.facts[member] = ", ".join(map(str, value)) if isinstance(value, list) else value
    inspection.keep(lambda begin, end: rows[begin:end], len(rows), 0, wanted)


def _json(file: MappedFile) -> Row:
    if file.size > CONFIG_SIZE_MAX:
        raise StoreError(f"{file.path}: has {file.size} bytes, too many for a configuration")
    return decode_config(bytes(file.data))


def _config(file: MappedFile, inspection: Inspection, wanted: Wanted) -> None:
    config = _json(file)
    inspection.words = "A configuration file in the broker's JSON: one row for each entry of each table."
    entries = []
    for member, value in config.items():
        if isinstance(value, dict) and member != "dataVersion":
            entries += [{"table": member, "name": name, "value": entry} for name, entry in value.items()]
            inspection.facts[member] = len(value)
        else:
            inspection.facts[member] = value if not isinstance(value, dict | list) else json.dumps(value)
    inspection.keep(lambda begin, end: entries[begin:end], len(entries), 0, wanted)
