"""``find_many`` on Spark: tasks over ranges of keys, and over the parts of the log that no index covers.

The driver takes out keys that come twice, and says where the logs end, so that all tasks answer for the same log.
Each task looks its keys up as one process would look up all (:mod:`whence.lookup.many_answer`). So the rows are the
same, in the same order, with the same receipt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence.files.names import OFFSET_MAX, sidecar_of
from whence.lookup.answer import Receipt
from whence.lookup.asked_keys import AskedKeys
from whence.lookup.many import KeysSearch, Topics, scan_part
from whence.lookup.many_answer import Counts, ManyReceipt, add_receipts, whole_receipt
from whence.lookup.many_columns import POSITIONS, ManyColumns
from whence.lookup.question import Question
from whence.pipeline.many_tasks import (
    Distrusted,
    LookedUp,
    LookupTask,
    ScannedPart,
    ScanPartTask,
    StorePlace,
    look_up,
    places_of,
    read_batches,
    save_keys,
    scan_log_part,
)
from whence.pipeline.runner import Runner, Watcher
from whence.pipeline.session import SparkSettings, open_session
from whence.pipeline.task_runner import TaskRunner
from whence.pipeline.verify import work_folder
from whence.store.message_store import MessageStore

TASK_KEYS = 262_144  # keys of one task: a quarter of a second's work, or some
SCANNED_HERE = 1048576  # bytes of a part of the log that is scanned sooner than a task is started
TASKS_PER_SLOT = 4  # of one job: what they make is handed on, and goes, before the next one


class ManyOnSpark:
    """Very many keys put to stores, on Spark: iterate over it once for batches of rows, then ask for the receipt.

    The session is opened when the first batch is asked for, unless there is one, and closed behind the last.
    """

    def __init__(
        self,
        stores: Sequence[MessageStore],
        question: Question,
        pieces: Iterable[AskedKeys],
        names: Sequence[str] = POSITIONS,
        on_missing: Callable[[Any], None] | None = None,
        *,
        spark: SparkSettings | None = None,
        log_file: Path | None = None,
        watcher: Watcher | None = None,
        runner: TaskRunner | None = None,
    ) -> None:
        self.question = question
        self.schema = ManyColumns(stores, Topics(), names).schema
        self.is_doubtful = False
        self._stores = stores
        self._names = tuple(names)
        self._pieces = pieces
        self._on_missing = on_missing
        self._settings = spark or SparkSettings()
        self._log_file = log_file
        self._watcher = watcher
        self._runner = runner
        self._ends = [OFFSET_MAX] * len(stores)
        self._counts = Counts()
        self._receipts: list[list[Receipt]] = []
        self._task_count = 0
        self._started = self._ended = time.perf_counter_ns()

    def __iter__(self) -> Iterator[Any]:
        with ExitStack() as stack:
            runner = self._runner
            if runner is None:
                spark = stack.enter_context(open_session(self._settings, log_file=self._log_file))
                runner = Runner(spark, self._watcher)
            first = self._stores[0]
            sidecar = first.sidecar or sidecar_of(first.folder)
            work = stack.enter_context(work_folder(sidecar.absolute(), is_local=runner.is_local))
            for number, keys in enumerate(self._pieces):
                self._counts.keys += len(keys)
                yield from self._of_piece(keys, runner, work, work / f"{number}.keys")
        self._ended = time.perf_counter_ns()

    def _of_piece(self, keys: AskedKeys, runner: TaskRunner, work: Path, keys_path: Path) -> Iterator[Any]:
        save_keys(keys, keys_path)
        places, scanned = self._prepare(keys, keys_path, runner, work)
        done = 0
        while done < len(keys):
            behind = min(done + TASK_KEYS * TASKS_PER_SLOT * runner.slots, len(keys))
            tasks = [
                self._task(places, scanned, keys_path, first, min(first + TASK_KEYS, behind), work)
                for first in range(done, behind, TASK_KEYS)
            ]
            found = runner.map("looking up keys", look_up, tasks, size_of=lambda task: task.behind - task.first)
            if not self._learn(places, found):
                self._remove(tasks)
                self.is_doubtful |= bool(self._receipts)
                places, scanned = self._prepare(keys, keys_path, runner, work)
                continue  # without the files that are damaged
            for task, result in zip(tasks, found, strict=True):
                self._count(result)
                yield from self._given(task)
            done = behind

    def _prepare(
        self, keys: AskedKeys, keys_path: Path, runner: TaskRunner, work: Path
    ) -> tuple[tuple[StorePlace, ...], tuple[Mapping[tuple[int, int], ScannedPart], ...]]:
        """Where the stores are, and what a scan of what no index covers found in them."""
        topics = Topics()
        searches = [
            KeysSearch(store, self.question, keys, topics, end_offset=end)
            for store, end in zip(self._stores, self._ends, strict=True)
        ]
        self._ends = [search.end_offset for search in searches]
        places = places_of(self._stores, self._ends)
        scanned: tuple[dict[tuple[int, int], ScannedPart], ...] = tuple({} for _ in places)
        tasks: list[ScanPartTask] = []
        numbers: list[int] = []  # of their stores
        for number, search in enumerate(searches):
            for begin, end in search.to_scan:
                self._task_count += 1
                path = work / f"{self._task_count}.scanned.npy"
                if end - begin > SCANNED_HERE:
                    tasks.append(ScanPartTask(places[number], keys_path, begin, end, path))
                    numbers.append(number)
                else:
                    found = scan_part(self._stores[number].commit_log, keys, begin, end)
                    scanned[number][begin, end] = ScannedPart.save(found, path)
        parts = runner.map("scanning", scan_log_part, tasks, size_of=lambda task: task.to_offset - task.from_offset)
        for number, task, part in zip(numbers, tasks, parts, strict=True):
            scanned[number][task.from_offset, task.to_offset] = part
        return places, scanned

    def _task(
        self,
        places: tuple[StorePlace, ...],
        scanned: tuple[Mapping[tuple[int, int], ScannedPart], ...],
        keys_path: Path,
        first: int,
        behind: int,
        work: Path,
    ) -> LookupTask:
        self._task_count += 1
        return LookupTask(
            places,
            self.question,
            self._names,
            keys_path,
            first,
            behind,
            scanned,
            work / f"{self._task_count}.rows",
            None if self._on_missing is None else work / f"{self._task_count}.missing",
        )

    def _learn(self, places: Sequence[StorePlace], found: Sequence[LookedUp]) -> bool:
        """Whether no task met a damaged index file that others may have used. What they met is not used any more."""
        is_news = False
        for number, store in enumerate(self._stores):
            met: dict[Path, Distrusted] = {each.path: each for result in found for each in result.distrusted[number]}
            known = {each.path for each in places[number].distrusted}
            is_news |= not met.keys() <= known
            for file in store.index.files:
                bad = met.get(file.path.absolute())
                if bad is not None and file.path not in store.index.distrusted:
                    store.index.distrust(file, bad.error(file.path))
        return not is_news

    def _count(self, result: LookedUp) -> None:
        counts = self._counts
        counts.rows += result.counts.rows
        counts.keys_missing += result.counts.keys_missing
        counts.truncated |= result.counts.truncated
        self._receipts.append([_renamed(*each) for each in zip(self._stores, result.receipts, strict=True)])

    def _given(self, task: LookupTask) -> Iterator[Any]:
        if self._on_missing is not None and task.missing_path is not None:
            for batch in read_batches(task.missing_path):
                self._on_missing(batch.column(0))
        yield from read_batches(task.rows_path)
        self._remove([task])

    def _remove(self, tasks: Iterable[LookupTask]) -> None:
        for task in tasks:
            task.rows_path.unlink()
            if task.missing_path is not None:
                task.missing_path.unlink()

    @property
    def receipt(self) -> ManyReceipt:
        """Of all that was given, when all is given."""
        receipts = [add_receipts(each) for each in zip(*self._receipts, strict=True)]
        receipts = receipts or [Receipt() for _ in self._stores]
        receipt = whole_receipt(self._stores, receipts, self._counts, is_doubtful=self.is_doubtful)
        receipt.elapsed_us = (self._ended - self._started) // 1000
        return receipt


def _renamed(store: MessageStore, receipt: Receipt) -> Receipt:
    """A receipt that tells paths as the store was given. Tasks know absolute ones."""
    for given in (store.folder, store.sidecar):
        if given is not None and not given.is_absolute():
            absolute, own = str(given.absolute()), str(given)
            receipt.damage = [
                replace(each, path=each.path.replace(absolute, own), detail=each.detail.replace(absolute, own))
                for each in receipt.damage
            ]
    return receipt
