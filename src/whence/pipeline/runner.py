"""Runner: a list of inputs, a task for each, on Spark; with progress, Ctrl-C and errors as whence has them.

    sc.parallelize(inputs, len(inputs)).map(task).collect()

is the whole job; or it is a DataFrame, whose partitions are the tasks. Around it: a task tells what it has done
through an accumulator, which Spark adds up once for each task that ended well, retried or not; Spark's status tracker
tells how many run. An error of whence's own is a result like any other, for to try again would find the same; it
comes back to the caller as it was raised. What else goes wrong is Spark's to try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from socket import gethostname
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from pyspark import TaskContext, inheritable_thread_target
from pyspark.accumulators import AccumulatorParam

from whence.errors import StoreError, WhenceError
from whence.pipeline.gateway import is_of_the_end, quiet_if_gone
from whence.pipeline.reasons import reason_of
from whence.store.damage import Damage

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

Input = TypeVar("Input")
Result = TypeVar("Result")

TASKS_MAX = 100_000  # of one job; where there are more inputs, a task takes several, for each costs the driver memory
POLL_S = 0.1
CANCEL_S = 0.3


@dataclass(frozen=True, slots=True)
class JobState:
    """How far a job is. Bytes, messages and files are those of tasks that are done; a size of 0 is not known."""

    name: str
    tasks: int
    tasks_done: int = 0
    tasks_running: int = 0
    tasks_failed: int = 0  # attempts, which Spark makes again
    bytes_total: int = 0
    bytes_done: int = 0
    messages: int = 0
    files: int = 0  # that were made
    elapsed_s: float = 0.0
    is_ended: bool = False

    @property
    def share(self) -> float:
        """From 0 to 1: of the bytes, if their number is known, else of the tasks."""
        done, total = (self.bytes_done, self.bytes_total) if self.bytes_total else (self.tasks_done, self.tasks)
        return min(done / total, 1.0) if total else 1.0

    @property
    def left_s(self) -> float | None:
        """How long it still takes, if it goes on as it went."""
        return self.elapsed_s / self.share - self.elapsed_s if self.share > 0 else None


class Watcher(Protocol):
    """Who wants to know how far a job is: called about ten times a second, and once when it ended, well or not."""

    def __call__(self, state: JobState, /) -> None: ...


class TaskError(Exception):
    """What a task raised that is no WhenceError, in one line that Spark carries to the driver."""


@dataclass(slots=True)
class Done:
    """What ended tasks have to tell; sums of it are made by Spark, in the driver."""

    inputs: int = 0
    size: int = 0
    messages: int = 0
    files: int = 0
    errors: dict[int, WhenceError] = field(default_factory=dict)  # by the input's number
    damage: list[Damage] = field(default_factory=list)


class _Sum(AccumulatorParam[Done]):
    def zero(self, value: Done) -> Done:
        return Done()

    def addInPlace(self, value1: Done, value2: Done) -> Done:  # noqa: N802, the name is Spark's
        return Done(
            value1.inputs + value2.inputs,
            value1.size + value2.size,
            value1.messages + value2.messages,
            value1.files + value2.files,
            value1.errors | value2.errors,
            value1.damage + value2.damage,
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What runs on an executor: the task, and around it what turns an error into what the driver understands."""

    run: Callable[[Any], Any]
    done: Accumulator[Done]

    def __call__(self, numbered: tuple[int, int, Any]) -> Any:
        number, size, given = numbered
        try:
            result = self.run(given)
        except WhenceError as error:
            error.add_note(f"in a task on {gethostname()}")
            self.done.add(Done(errors={number: error}))
            return None
        except Exception as error:
            context = TaskContext.get()
            attempt = 1 if context is None else context.attemptNumber() + 1
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise TaskError(f"input {number}, attempt {attempt}, on {gethostname()}: {what}") from error
        self.done.add(Done(1, size, getattr(result, "message_count", 0), len(getattr(result, "files", ()))))
        return result


class Runner:
    """Runs tasks on a Spark session, one job at a time. ``progress`` is told how far a job is."""

    def __init__(self, spark: SparkSession, progress: Watcher | None = None) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._watcher = progress
        self.slots = self._context.defaultParallelism
        """How many tasks run at once."""
        master = str(self._context.master)
        self.is_local = master.startswith("local")
        """Whether all of them run on this machine."""
        self.has_twins = not self.is_local or master.startswith("local-cluster")
        """Whether a task may run beside a twin. Spark in one process tries again only what has ended."""

    def map(
        self,
        name: str,
        task: Callable[[Input], Result],
        inputs: Sequence[Input],
        *,
        size_of: Callable[[Input], int] | None = None,
    ) -> list[Result]:
        """The results of ``task`` for each of ``inputs``, in their order; each input is a task of Spark's.

        ``task`` is a function of a module that the workers can import. ``size_of`` gives an input's bytes, for the
        progress; if results have a ``message_count``, or ``files`` that were made, these are added up in it.

        A WhenceError of a task ends the job and is raised here; of several, that of the first input that is known
        by then. Any other exception is tried again by Spark, and if that does not help it becomes a StoreError.
        """
        if not inputs:
            return []
        sizes = [0] * len(inputs) if size_of is None else [size_of(given) for given in inputs]
        numbered = list(zip(range(len(inputs)), sizes, inputs, strict=True))
        task_count = min(len(inputs), TASKS_MAX)

        def collect(done: Accumulator[Done]) -> list[Result]:
            return self._context.parallelize(numbered, task_count).map(_Task(task, done)).collect()

        return _Job(self._spark, name, collect, task_count, sum(sizes), self._watcher).run()

    def collect(
        self, name: str, frame: Callable[[Accumulator[Done]], DataFrame], task_count: int, size: int = 0
    ) -> list[Any]:
        """The rows of a DataFrame, which are few: for a job that needs Spark's SQL.

        ``frame`` makes it. Functions in it may tell what they have done, and what went wrong, by adding to what it
        is given: see :class:`Done`. ``size`` is how many bytes that will be. An error of Spark's becomes a
        StoreError, whose cause it is.
        """
        return _Job(self._spark, name, lambda done: frame(done).collect(), task_count, size, self._watcher).run()


class _Job:
    """One job: a thread in which Spark runs it, one that asks how far it is, and this one, which waits."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        collect: Callable[[Accumulator[Done]], list[Any]],
        task_count: int,
        bytes_total: int,
        watcher: Watcher | None,
    ) -> None:
        self._spark = spark
        self._context: Any = spark.sparkContext
        self._gateway = self._context._gateway
        self._name = name
        self._collects = collect
        self._group = f"whence-{uuid4()}"
        self._watcher = watcher
        self._task_count = task_count
        self._bytes_total = bytes_total
        self._started = time.monotonic()
        self._ended = Event()
        self._counts = (0, 0, 0)
        self._results: list[Any] = []
        self._failure: BaseException | None = None
        self._done = self._context.accumulator(Done(), _Sum())

    def run(self) -> list[Any]:
        # Threads talk to Java, and this one waits. Ctrl-C comes here: a talk that it cut short would be taken up by
        # the next one, with the wrong answers.
        Thread(target=self._collect, args=(inheritable_thread_target(self._spark)(self._ask),), daemon=True).start()
        if self._watcher is not None:
            Thread(target=self._count, daemon=True).start()
        try:
            while not self._ended.wait(POLL_S):
                if self._done.value.errors:
                    self._cancel()
                    break
                if self._watcher is not None:
                    self._watcher(self._state())
        except BaseException:
            self._cancel()
            raise
        finally:
            if self._watcher is not None:
                self._watcher(self._state(is_ended=True))
        errors = self._done.value.errors
        if errors:
            raise errors[min(errors)]
        if self._failure is not None:
            raise StoreError(f"{self._name} failed: {reason_of(self._failure)}") from self._failure
        return self._results

    def _ask(self) -> list[Any]:
        self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
        return self._collects(self._done)

    def _collect(self, ask: Callable[[], list[Any]]) -> None:
        try:
            self._results = ask()
        except BaseException as error:
            self._failure = error
        finally:
            self._ended.set()

    def _cancel(self) -> None:
        """Have Spark end the tasks, and wait a moment for it."""

        def cancel() -> None:
            with quiet_if_gone(self._gateway):
                self._context.cancelJobGroup(self._group)

        Thread(target=cancel, daemon=True).start()
        self._ended.wait(CANCEL_S)

    def _count(self) -> None:
        """Ask Spark's status tracker how many tasks are done, run, and failed."""
        try:
            tracker = self._context.statusTracker()
            while not self._ended.wait(POLL_S):
                self._counts = self._counts_of(tracker)
        except Exception as error:
            if not (self._ended.is_set() or is_of_the_end(error, self._gateway)):  # Java may end with the job
                raise

    def _counts_of(self, tracker: Any) -> tuple[int, int, int]:
        done = running = failed = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                counts = tracker.getStageInfo(stage)
                if counts is not None:
                    done += counts.numCompletedTasks
                    running += counts.numActiveTasks
                    failed += counts.numFailedTasks
        return done, running, failed

    def _state(self, *, is_ended: bool = False) -> JobState:
        done = self._done.value
        tasks_done, running, failed = self._counts
        return JobState(
            self._name,
            self._task_count,
            # The tracker is asked ten times a second, and an accumulator tells by itself.
            max(tasks_done, done.inputs if self._task_count < TASKS_MAX else 0),
            0 if is_ended else running,
            failed,
            self._bytes_total,
            done.size,
            done.messages,
            done.files,
            time.monotonic() - self._started,
            is_ended,
        )
