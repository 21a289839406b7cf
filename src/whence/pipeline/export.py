"""Export: messages of a log as files of a format that others read, on Spark.

    question -> parts of the log, or what was found in them          the driver
             -> files, aside and flushed                             a task for each part
             -> one folder, renamed to its name when it is whole     the driver, which holds the lock

Tasks read the log and write the files themselves: messages do not pass through Java (docs/spark.md has the measure),
but for ``where``, which Spark evaluates. The folder is there whole or not at all. ``_export.json`` in it tells what
was asked, what was searched and whether that was complete, and each file with its sum.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np

from whence.errors import FormatError, StoreError, UsageError
from whence.files.atomic import unfinished
from whence.files.disk import Disk
from whence.files.folder import entries_below, is_file, is_folder
from whence.files.mapped_file import read_whole
from whence.files.names import sidecar_of
from whence.formats.own_json import decode_own_json
from whence.lookup.answer import Receipt
from whence.lookup.asked_keys import AskedKeys, read_keys
from whence.lookup.field_search import Evaluate
from whence.lookup.many_answer import ManySearch
from whence.lookup.question import Question, ScanMode
from whence.lookup.search import WHY_EMPTY, find_offsets
from whence.pipeline.export_files import ExportedFile, Format
from whence.pipeline.export_tasks import (
    PART_SIZE,
    ExportedPart,
    ExportTask,
    Met,
    Part,
    RowFilter,
    export_parts_task,
    group_parts,
)
from whence.pipeline.expression_session import ANSI, ZONE
from whence.pipeline.jobs import JobOptions, locked
from whence.pipeline.runner import Runner, Watcher
from whence.pipeline.session import open_session
from whence.pipeline.stream_plan import StreamPlan
from whence.pipeline.task_runner import CountedRunner, TaskRunner
from whence.store.damage import Damage, DamageKind
from whence.store.message_store import MessageStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = "export"  # of the work folder: what is published
RECEIPT = "_export.json"  # who reads the folder as a table passes over what begins with "_"
RECEIPT_SIZE_MAX = 1 << 30
VERSION = 1
KIND = "export"


@dataclass(frozen=True, slots=True)
class ExportOptions(JobOptions):
    """``target``: the folder that is made. ``rebuild``: in place of another export that is there."""

    target: Path = Path("export")
    format: Format = Format.PARQUET
    where: str | None = None
    rebuild: bool = False
    part_size: int = PART_SIZE

    @property
    def where_settings(self) -> dict[str, str]:
        """Settings of Spark's that change what ``where`` is true for: the caller's, and nobody else's.

        Not those of a session that is there, or of the machine: a second run elsewhere asks the same.
        """
        return {name: self.spark.conf.get(name, default) for name, default in ((ZONE, "UTC"), (ANSI, "true"))}

    def asked(self, store: MessageStore, question: Question, keys: Sequence[AskedKeys]) -> dict[str, Any]:
        """What decides which messages are in an export, and as what."""
        asked: dict[str, Any] = {"store": str(store.folder.resolve()), "format": self.format}
        asked |= {"question": shown_question(question, keys), "where": self.where}
        return asked if self.where is None else asked | {"where_settings": self.where_settings}


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export made, and the receipt for it."""

    target: Path
    asked: dict[str, Any]
    files: tuple[ExportedFile, ...]
    without_folder: tuple[str, ...]
    receipt: Receipt
    bytes_read: int
    tasks: int
    elapsed_s: float

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def is_healthy(self) -> bool:
        """Whether all that was asked for could be read."""
        return self.receipt.complete

    def to_receipt(self) -> dict[str, Any]:
        """``_export.json``: nothing in it depends on when or how fast it was made."""
        receipt = {name: value for name, value in self.receipt.to_dict().items() if name != "elapsed_us"}
        return {
            "version": VERSION,
            "kind": KIND,
            **self.asked,
            "messages": self.messages,
            "bytes": self.size,
            "files": [_shown(file) for file in self.files],
            "topics_without_folder": self.without_folder,
            "receipt": receipt,
        }

    def to_dict(self) -> dict[str, Any]:
        """As ``export --json`` has it."""
        shown = {name: value for name, value in self.to_receipt().items() if name not in ("version", "kind")}
        work = {"bytes_read": self.bytes_read, "elapsed_s": round(self.elapsed_s, 3), "tasks": self.tasks}
        return {"path": str(self.target), **shown, **work}


def _shown(file: ExportedFile) -> dict[str, Any]:
    shown = asdict(file)
    del shown["path"], shown["target"]
    return {"path": file.target, **shown}


class Tools(NamedTuple):
    """What an export works with: who runs its tasks, and who evaluates an expression over the messages of parts.

    ``evaluate`` is who evaluates the fields of a question that trusts no index.
    """

    runner: TaskRunner
    where: Callable[[Sequence[Part], RowFilter, str, Path], tuple[list[Part], list[Damage], Met]]
    evaluate: Evaluate


def export_messages(
    store: MessageStore,
    question: Question,
    options: ExportOptions,
    watcher: Watcher | None = None,
    keys: Sequence[AskedKeys] = (),
) -> Exported:
    """Export the messages of a store that answer a question, and bear one of the keys if there are some, on Spark."""

    @contextmanager
    def open_tools() -> Iterator[Tools]:
        from whence.pipeline.export_where import Where
        from whence.pipeline.field_scan import scans_fields

        moves_rows = bool(question.fields) and question.scan is ScanMode.EVERYTHING
        with open_session(options.spark, log_file=options.log_file, moves_rows=moves_rows) as spark:
            runner = Runner(spark, watcher)
            yield Tools(runner, Where(spark, runner, options.where_settings), scans_fields(spark, runner))

    return export_with(store, question, options, open_tools, tuple(keys))


def export_with(
    store: MessageStore,
    question: Question,
    options: ExportOptions,
    open_tools: Callable[[], AbstractContextManager[Tools]],
    keys: tuple[AskedKeys, ...] = (),
) -> Exported:
    """The same with tools that are opened when all else is ready."""
    question = replace(question, limit=None, cursor=None, oldest_first=True)
    options = replace(options, target=options.target.resolve())  # a link stays, and leads to what is made
    if question.scan is ScanMode.NOTHING and not keys and not needs_lookup(question):
        raise UsageError("--no-scan: no index answers this question, so nothing would be exported; leave it out")
    disk = Disk()
    with _aside(store, options, disk) as work:
        asked = options.asked(store, question, keys)
        _check_target(options.target, asked, rebuild=options.rebuild)
        with open_tools() as tools:
            exported = Export(store, question, keys, options, tools, work, disk).run()
        _check_target(options.target, asked, rebuild=options.rebuild)  # somebody may have put something there
        _publish(work / FOLDER, options.target, exported, disk)
    return exported


# -- the work ----------------------------------------------------------------------------------------------------


class Export:
    """One export, into a folder that nobody sees yet."""

    def __init__(
        self,
        store: MessageStore,
        question: Question,
        keys: tuple[AskedKeys, ...],
        options: ExportOptions,
        tools: Tools,
        work: Path,
        disk: Disk,
    ) -> None:
        self._store = store
        self._log = store.commit_log
        self._question = question
        self._keys = keys
        self._is_lookup = bool(keys) or needs_lookup(question)
        self._options = options
        self._tools = tools
        self._runner = CountedRunner(tools.runner)
        self._work = work
        self._disk = disk

    def run(self) -> Exported:
        """Have all files made and put them where they belong."""
        started = time.monotonic()
        row_filter = RowFilter.of(self._question)
        receipt, parts = self._found() if self._is_lookup else self._all()
        size = sum(part.size for part in parts if part.offsets is None)
        is_decided = True
        met = Met(0)
        if self._options.where is not None:
            folder = self._work / "where"
            self._disk.make_folder(folder)
            parts, damage, met = self._tools.where(parts, row_filter, self._options.where, folder)
            receipt.damage = list(dict.fromkeys(receipt.damage + damage))
            # Of a body that cannot be read nobody knows whether the expression is true.
            is_decided = all(each.kind is not DamageKind.BAD_BODY for each in damage)
        done = self._make(parts, row_filter)
        if not self._is_lookup:
            self._finish(receipt, done, size)
        receipt.complete &= is_decided
        files = self._place([file for part in done for file in part.files])
        if not files and receipt.why_empty is None:
            for part in done:
                met |= part.met
            receipt.why_empty = self._why_empty(receipt, met)
        return Exported(
            target=self._options.target,
            asked=self._options.asked(self._store, self._question, self._keys),
            files=tuple(sorted(files, key=lambda file: file.target)),
            without_folder=tuple(sorted({topic for part in done for topic in part.without_folder})),
            receipt=receipt,
            bytes_read=receipt.scanned_bytes,
            tasks=self._runner.task_count,
            elapsed_s=time.monotonic() - started,
        )

    def _found(self) -> tuple[Receipt, list[Part]]:
        """What an index, a queue or an offset leads to."""
        found, receipt = self._with_keys() if self._has_only_keys() else self._looked_up()
        if not len(found):
            return receipt, []
        bases = np.array(self._log.bases, np.int64)[np.searchsorted(self._log.bases, found, "right") - 1]
        blocks = np.stack([bases, found // self._options.part_size])
        begins = np.flatnonzero(np.diff(blocks, axis=1, prepend=-1).any(axis=0)).tolist()
        return receipt, [
            self._part(number, int(bases[begin]), (), found[begin:end].tobytes())
            for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(found)], strict=True))
        ]

    def _has_only_keys(self) -> bool:
        others = (self._question.id, self._question.offset, self._question.queue_offset)
        is_alone = not self._question.fields and all(asked is None for asked in others)
        if self._keys and not is_alone:
            raise UsageError("very many keys cannot be asked together with an id, an offset or a field")
        return bool(self._keys or self._question.keys) and is_alone

    def _with_keys(self) -> tuple[NDArray[np.int64], Receipt]:
        """The messages that bear one of the keys, few or very many."""
        keys = self._keys or tuple(read_keys(self._question.keys))
        while True:
            search = ManySearch([self._store], self._question)
            found = [part.rows.all["physical_offset"][part.rows.order] for part in search.parts(keys)]
            if not search.is_doubtful:
                return np.unique(np.concatenate(found)).astype(np.int64), search.receipt

    def _looked_up(self) -> tuple[NDArray[np.int64], Receipt]:
        found, receipt = find_offsets(self._store, self._question, self._tools.evaluate)
        return np.array(found, np.int64), receipt

    def _all(self) -> tuple[Receipt, list[Part]]:
        """All of the log, or what time blocks leave of it."""
        plan, question = StreamPlan(self._log), self._question
        begin, end = max(plan.begin().offset, 0), max(plan.end().offset, 0)
        since_ms, until_ms = question.since_ms, question.until_ms
        if question.scan is ScanMode.EVERYTHING:
            since_ms = until_ms = None
        blocks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for stretch in self._store.window_stretches(since_ms, until_ms):
            for piece in plan.cut_between(stretch[0], min(stretch[1], end), self._options.part_size):
                base = self._log.base_of(piece[0])
                assert base is not None, "it was there a moment ago"
                blocks.setdefault((base, piece[0] // self._options.part_size), []).append(piece)
        receipt = Receipt(
            searched_from_offset=begin,
            searched_to_offset=end,
            topics_from="log" if question.topic is None else "question",
        )
        parts = [self._part(number, block[0], tuple(blocks[block])) for number, block in enumerate(blocks)]
        return receipt, parts

    def _part(
        self, number: int, base: int, pieces: tuple[tuple[int, int], ...], offsets: bytes | None = None
    ) -> Part:
        return Part(number, str(self._log.path_of(base)[0]), base, pieces, offsets)

    def _make(self, parts: Sequence[Part], row_filter: RowFilter) -> list[ExportedPart]:
        """Have tasks write the files of all parts."""
        folder = self._work / "tasks"
        self._disk.make_folder(folder)
        tasks = [
            ExportTask(group, row_filter, self._options.format, str(folder))
            for group in group_parts(parts, self._options.jobs)
        ]
        made = self._runner.map("export", export_parts_task, tasks, size_of=lambda task: task.size)
        return [part for each in made for part in each.parts]

    def _place(self, files: Sequence[ExportedFile]) -> list[ExportedFile]:
        """Give the files that tasks made their names, in the folder that nobody sees yet."""
        root = self._work / FOLDER
        folders = {root, *((root / file.target).parent for file in files)}
        self._disk.make_folders(sorted(folders))
        for file in files:
            self._disk.rename(Path(file.path), root / file.target)
        self._disk.flush_folders(folders)
        return list(files)

    def _finish(self, receipt: Receipt, done: Sequence[ExportedPart], size: int) -> None:
        """Tell in the receipt of a scan what was read, and what could not be."""
        receipt.scanned_bytes = size
        receipt.damage += [damage for part in done for damage in part.damage]
        receipt.damage += [damage for _, _, damage in self._log.damage(receipt.searched_to_offset)]
        receipt.complete = not any(damage.kind.hides_messages for damage in receipt.damage)

    def _why_empty(self, receipt: Receipt, met: Met) -> str:
        """Why nothing is left of what was found, or of what a scan met, as ``find`` tells it."""
        question, whys = self._question, set()
        has_window = question.since_ms is not None or question.until_ms is not None
        if receipt.damaged:
            whys.add("damaged")
        elif not receipt.complete:
            whys.add("not_indexed")
        if self._is_lookup or Met.ALL_BUT_TAG in met:
            whys.add("filtered")
        elif question.topic is not None and Met.TOPIC not in met and question.topic not in self._store.topics():
            whys.add("no_such_topic")
        elif has_window and Met.WINDOW not in met:
            whys.add("outside_window")
        return next((why for why in WHY_EMPTY if why in whys), "no_such_key")


def shown_question(question: Question, keys: Sequence[AskedKeys]) -> dict[str, Any]:
    """A question as JSON shows it; of very many keys their number and their sum."""
    shown = question.to_dict()
    if keys:
        digest = hashlib.sha256()
        for piece in keys:
            digest.update(piece.data.tobytes())
            digest.update(piece.starts.tobytes())
        shown |= {"keys": sum(map(len, keys)), "keys_sha256": digest.hexdigest()}
    return shown


def needs_lookup(question: Question) -> bool:
    """Whether an index or a queue answers it; what is left is answered by each message for itself."""
    single = (question.id, question.offset, question.queue_offset)
    return bool(question.keys or question.fields) or any(asked is not None for asked in single)


# -- the folder --------------------------------------------------------------------------------------------------


@contextmanager
def _aside(store: MessageStore, options: ExportOptions, disk: Disk) -> Iterator[Path]:
    """A work folder beside the target, on the same disk. Nothing of it is left when this ends, however it ends."""
    target = options.target
    for folder in (store.folder, sidecar_of(store.folder), options.out):  # a sidecar may be built later
        if folder is not None and target.is_relative_to(folder.resolve()):
            raise UsageError(f"-o {target}: lies in {folder}, which is only read; name a folder elsewhere")
    for place, what in ((target.is_mount(), "a disk is mounted there"), (target == Path.cwd(), "you are in it")):
        if place:
            raise UsageError(f"-o {target}: {what}, so no other folder can take its place; name a folder in it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"-o {target}: is no folder")
    disk.make_folder(target.absolute().parent)
    beside = target.absolute().with_name(f".{target.name}.whence")
    disk.make_folder(beside)
    with locked(beside / "lock", target), unfinished(beside):
        try:
            for left in beside.iterdir():  # by an export that was killed
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
            work = beside / uuid4().hex[:16]
            disk.add_folder(work)
            yield work
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _check_target(target: Path, asked: dict[str, Any], *, rebuild: bool) -> None:
    """See that nothing is in the way: what is there is nothing, or an export that may be replaced."""
    if not is_folder(target) or not any(target.iterdir()):
        return
    if not is_file(target / RECEIPT):
        raise UsageError(f"-o {target}: is not empty, and no export of whence's; name another folder")
    try:
        found = decode_own_json(read_whole(target / RECEIPT, RECEIPT_SIZE_MAX), VERSION, dict, KIND)
        ours = sorted([RECEIPT, *(str(file["path"]) for file in found["files"])])
    except (FormatError, StoreError, KeyError, TypeError) as error:
        raise UsageError(f"-o {target}: its {RECEIPT} is not whence's ({error}); name another folder") from error
    other = next((path for path, entry in entries_below(target) if not _is_of(ours, path, entry)), None)
    if other is not None:
        raise UsageError(f"-o {target}: has what no export put there, as {other!r}; name another folder")
    if not rebuild and (other := _difference(found, asked)):
        raise UsageError(f"-o {target}: holds {other}; name another folder, or say --rebuild to replace it")


def _difference(found: dict[str, Any], asked: dict[str, Any]) -> str | None:
    """What an export is that was asked in another way; None if it was asked in this one."""
    others = {name for name, value in asked.items() if found.get(name) != value}
    if not others:
        return None
    question, there = asked["question"], found.get("question")
    times = {name: question[name] for name in ("since_ms", "until_ms")}
    if others == {"question"} and isinstance(there, dict) and there | times == question:
        return "the export of another window (an age, as 24h, is another time in each run)"
    return "another export"


def _is_of(files: Sequence[str], path: str, entry: os.DirEntry[str]) -> bool:
    """Whether this is one of the files, which are in order, or a folder in which one lies."""
    if entry.is_dir(follow_symlinks=False):
        path += "/"
        at = bisect_left(files, path)
        return at < len(files) and files[at].startswith(path)
    at = bisect_left(files, path)
    return at < len(files) and files[at] == path and entry.is_file(follow_symlinks=False)


def _publish(made: Path, target: Path, exported: Exported, disk: Disk) -> None:
    """Let the folder be seen, in the place of an export that was there."""
    receipt = json.dumps(exported.to_receipt(), indent=1) + "\n"
    disk.replace(made / RECEIPT, receipt.encode())
    if is_folder(target) and any(target.iterdir()):
        disk.exchange(made, target)
    else:
        disk.rename(made, target)
    disk.flush_folder(target.absolute().parent)
