"""Follow: the indexes of a log that grows, kept up with it by a stream on Spark.

    stretches (follow_source.py)      the driver's stream asks for them, a batch at a time
    -> spills                         a task for each stretch, as in a build
    -> Follower (follow_puts.py)      in this process, which holds the sidecar's lock: put as the spills come, flush,
                                      sidecar.json

Whatever is killed, ``sidecar.json`` says what is done: a batch begins where it ends. Spark's checkpoint is only what
Spark needs to run, and is made anew at each start.
"""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import NotFoundError, StoreError, WhenceError
from whence.files.disk import Disk
from whence.pipeline.follow_fields import BuildFields, FieldTurns, no_fields
from whence.pipeline.follow_puts import Puts
from whence.pipeline.follow_source import NAME, FollowSource
from whence.pipeline.follow_state import FollowMeter, FollowState, FollowWatcher
from whence.pipeline.reasons import reason_of
from whence.pipeline.runner import Runner
from whence.pipeline.scanning import scan_stretches
from whence.pipeline.sidecar_folder import CHECKPOINT, FOLLOW, WORK
from whence.pipeline.tasks import ScanTask, scan_stretch_task
from whence.store.commit_log import CommitLog
from whence.store.follower import Follower
from whence.store.spill import Recipe, Spilled, Stretch, decode_spilled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATE_S = 0.5  # how often it is told how far the log is
ONCE_STATE_S = 0.1  # and if it ends when all is done: so soon that is noticed
LOST_MAX = 5
END_S = 5.0  # so long a query in a session that stays is waited for: its tasks are cancelled, and nothing is put
ROWS_SCHEMA = "stretch string, spilled string, error binary"
SETTINGS = {
    "spark.sql.streaming.minBatchesToRetain": "2",  # nobody goes back to earlier ones
    "spark.sql.streaming.numRecentProgressUpdates": "1",
}
SELDOM_KEPT = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "60000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
"""How far it is, is kept by ``sidecar.json``. Spark's own notes took a third of the time of a small batch."""


class StoppedError(BaseException):
    """The follower was told to end, and has ended. Spark is not waited for: nothing of what it does is needed."""

    def __init__(self, state: FollowState) -> None:
        super().__init__("stopped")
        self.state = state


@dataclass(frozen=True, slots=True)
class ScanRows:
    """What runs on an executor: scans the stretches that it is given rows of, and gives rows of what it spilled.

    An error of whence's own is a row like any other: to try again would find the same.
    """

    recipe: Recipe
    work: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                stretch, spilled, failure = Stretch(**row), None, None
                try:
                    spilled = json.dumps(asdict(scan_stretch_task(ScanTask(stretch, self.recipe, self.work))))
                except WhenceError as error:
                    failure = pickle.dumps(error)
                columns = ([json.dumps(row)], [spilled], [failure])
                types = (pa.string(), pa.string(), pa.binary())
                yield pa.record_batch(
                    [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
                    ["stretch", "spilled", "error"],
                )


class Follow:
    """One run. The caller holds the sidecar's lock until it is closed, which comes behind Spark's end.

    ``recipe`` says what tasks take from the log, and is asked for each batch; ``fields`` builds what is missing of
    fields. ``is_locked``: whether that lock is still there for others to see.
    """

    def __init__(
        self,
        spark: SparkSession,
        follower: Follower,
        log_folder: Path,
        sidecar: Path,
        recipe: Callable[[], Recipe],
        disk: Disk,
        fields: BuildFields = no_fields,
        is_locked: Callable[[], bool] = lambda: True,
    ) -> None:
        self._spark = spark
        self._query: StreamingQuery | None = None
        self._is_locked = is_locked
        self._follower = follower
        self._log_folder = log_folder
        self._sidecar = sidecar
        self._recipe = recipe
        self._work = sidecar / WORK / FOLLOW
        self._runner = Runner(spark)
        self._failure: BaseException | None = None
        self._batches = 0
        self._lost = 0  # batches one after the other that came to nothing
        self._disk = disk
        self._log = CommitLog(log_folder)  # for who puts
        self._log.use_kernel()
        self.meter = FollowMeter(CommitLog(log_folder))
        self._puts = Puts(follower, self._log, self.meter, is_locked)
        self._fields = FieldTurns(follower, self._puts, self.meter, sidecar, fields, self._runner.slots)
        shutil.rmtree(self._work, ignore_errors=True)
        disk.make_folder(self._work)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event, watcher: FollowWatcher, *, once: bool) -> FollowState:
        """Follow the log until it is stopped; ``once``: until all is done that is there now."""
        shutil.rmtree(self._sidecar / CHECKPOINT, ignore_errors=True)
        try:
            self._follower.check()
            self._query = self._start(once=once)
            return self._watch(stop, watcher, once=once)
        except BaseException:
            with suppress(OSError, WhenceError):  # what went wrong before is told, and the next start finds the rest
                self._puts.end()
            raise

    def _watch(self, stop: threading.Event, watcher: FollowWatcher, *, once: bool) -> FollowState:
        """Wait for the end, and tell now and then how it goes."""
        assert self._query is not None
        is_active = True
        failure: BaseException | None = None
        watcher(self.state())
        while is_active and not stop.wait(ONCE_STATE_S if once else STATE_S):
            is_active = bool(self._query.isActive)
            failure = None if is_active else self._query.exception()
            if failure is not None and self._failure is None and self._lost < LOST_MAX:
                # The process that plans was killed, or had no time to begin: another one takes what is missing.
                self._lost += 1
                shutil.rmtree(self._sidecar / CHECKPOINT, ignore_errors=True)
                self._query, is_active = self._start(once=once), True
            watcher(self.state())
        failure = self._failure or failure
        if isinstance(failure, WhenceError):
            raise failure
        if failure is not None:
            raise StoreError(f"the stream failed: {reason_of(failure)}") from failure
        if not is_active:
            self._fields.finish()
        self._puts.end()
        state = self.state()
        watcher(state)
        if is_active:
            raise StoppedError(state)
        shutil.rmtree(self._sidecar / CHECKPOINT, ignore_errors=True)
        return state

    def _start(self, *, once: bool) -> StreamingQuery:
        spark = self._spark
        spark.dataSource.register(FollowSource)
        stream = (
            spark.readStream.format(NAME)
            .option("log_folder", str(self._log_folder))
            .option("sidecar", str(self._sidecar))
            .option("slots", str(self._runner.slots))
            .option("target", str(self._log.end_offset()) if once else "")
            .load()
        )
        writer = stream.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._sidecar / CHECKPOINT))
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            # The source waits for the log: Spark need not.
            writer = writer.trigger(processingTime="0 seconds").options(**SELDOM_KEPT)
        with _settings_of(spark):
            return writer.start()

    def state(self) -> FollowState:
        """How it is now."""
        return self.meter.state(self._follower.claim, is_ended=self._puts.is_ended)

    def close(self) -> None:
        """Leave nothing behind. If Spark is still there, it is the caller's, and goes on without this."""
        if self._query is not None and _is_there(self._spark):
            _stop(self._query)
        if self._is_locked():
            shutil.rmtree(self._work, ignore_errors=True)  # not before: what still runs may write there
            with suppress(OSError):
                self._work.parent.rmdir()
        self.meter.close()
        self._log.close()

    # -- a batch ---------------------------------------------------------------------------------------------------

    def _take(self, frame: DataFrame, number: int) -> None:
        """What Spark calls for each batch, one after the other."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            self._follow(frame)
            self._lost = 0
        except (Py4JJavaError, PySparkException) as error:
            # Workers were killed, again and again: the next batch takes what this one was to take.
            self._lost += 1
            if self._lost > LOST_MAX:
                self._failure = StoreError(f"Spark lost {self._lost} batches, the last for {reason_of(error)}")
                raise
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _follow(self, frame: DataFrame) -> None:
        from_offset = self._puts.begin()
        if from_offset is None:
            return
        recipe = self._recipe()
        self._batches += 1
        work = self._work / str(self._batches)  # a task of a batch that was lost may still write to its own
        self._disk.make_folder(work)
        try:
            with self._puts.as_they_come(work):
                taken = self._scan(frame, recipe, work, from_offset)
            self._puts.finish(work, taken)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._fields.take()

    def _scan(self, frame: DataFrame, recipe: Recipe, work: Path, from_offset: int) -> tuple[Spilled, ...]:
        """Have tasks scan the stretches of a batch, which begins here: what they spilled, in the order of the log."""
        rows = frame.mapInArrow(ScanRows(recipe, str(work)), ROWS_SCHEMA).collect()
        found = [(Stretch(**json.loads(row.stretch)), row) for row in rows]
        stretches = sorted((stretch for stretch, _ in found), key=lambda stretch: stretch.number)
        if not stretches or stretches[0].from_offset != from_offset:
            return ()  # something was cut since this batch was planned
        try:
            for _, row in found:
                if row.error is not None:
                    raise pickle.loads(row.error)
            spilled = {stretch.number: decode_spilled(json.loads(row.spilled)) for stretch, row in found}
            return scan_stretches(stretches, recipe, work, self._runner, spilled)
        except NotFoundError:
            return ()  # it has expired, or its disk is gone: the next batch is planned from what is there then


@contextmanager
def _settings_of(spark: SparkSession) -> Iterator[None]:
    """A query keeps the settings that it starts with; the session, which may be the caller's, gets its own back."""
    before = {name: str(spark.conf.get(name)) for name in SETTINGS}
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _is_there(spark: SparkSession) -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is spark.sparkContext


def _stop(query: StreamingQuery) -> None:
    """Stop a query. In a thread of its own: Ctrl-C may have cut short what this one said to Java."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def stop() -> None:
        with suppress(Py4JError, PySparkException, OSError):
            query.stop()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(END_S)
