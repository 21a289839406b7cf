"""``whence follow`` as a user starts it: which store, whose lock, which Spark, who is told."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from whence.errors import UsageError
from whence.files.disk import Disk
from whence.pipeline.field_evaluation import Definition, Evaluator
from whence.pipeline.fields import FieldBuild, FieldSettings
from whence.pipeline.follow import Follow, StoppedError
from whence.pipeline.follow_fields import FieldsBuilt, Publishing
from whence.pipeline.follow_state import FollowState, FollowWatcher
from whence.pipeline.jobs import (
    JobOptions,
    definitions_of,
    known_of,
    locked_sidecar,
    made_like,
    sidecar_of_job,
    wanted_fields,
)
from whence.pipeline.left_build import let_go
from whence.pipeline.metrics import MetricsServer
from whence.pipeline.runner import Runner
from whence.pipeline.session import open_session
from whence.store.commit_log import CommitLog
from whence.store.follower import GROUP, Follower, FollowSettings
from whence.store.message_store import MessageStore
from whence.store.owned_store import now_ms
from whence.store.ownership import read_ownership
from whence.store.sidecar import Sidecar
from whence.store.spill import Recipe
from whence.store.topic_table import TopicTable

FORGETFUL = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.cleaner.periodicGC.interval": "5min",
}
"""Spark remembers a thousand of its jobs for a page that nobody opens, and a follower has some in each second.

What it keeps for the tasks of a job goes when Java finds that nobody uses it any more. Let it look.
"""


@dataclass(frozen=True, slots=True)
class FollowOptions(JobOptions):
    """``once``: end when all is done that is there now. ``metrics_port``: where to tell Prometheus how it goes."""

    once: bool = False
    metrics_port: int | None = None


def follow_indexes(
    folder: Path, options: FollowOptions, watcher: FollowWatcher, stop: threading.Event
) -> FollowState:
    """Keep the indexes of a broker's store up with its log, until ``stop`` is set, or all is done."""
    disk, sidecar = Disk(), sidecar_of_job(folder, options)
    if read_ownership(folder) is not None:
        raise UsageError(
            f"{folder}: is whence's own; who writes to it keeps its index and queues up, there is nothing to follow"
        )
    with ExitStack() as stack:
        lock = stack.enter_context(locked_sidecar(sidecar, options, disk))
        let_go(sidecar, disk)  # of what a build that was killed published, the follower keeps what is said of it
        with MessageStore(folder, options.shape, options.dialect) as store:
            known, notes = known_of(folder, store.commit_log, sidecar, options)
            shape, dialect, queue_file_size = made_like(store, options, known, None)
        topics = TopicTable(folder, disk, now_ms, only_read=True)
        log = CommitLog(folder / "commitlog")
        log.use_kernel()
        stack.callback(log.close)
        settings = FollowSettings(shape, dialect, queue_file_size, topics.is_batch)
        follower = Follower(log, sidecar, settings, known, disk)
        metrics = None
        if options.metrics_port is not None:
            metrics = stack.enter_context(MetricsServer(options.metrics_port))
        try:
            has_fields = known is not None and bool(known.fields)
            spark_settings = replace(options.spark, conf=FORGETFUL | dict(options.spark.conf))
            with open_session(spark_settings, log_file=options.log_file, moves_rows=has_fields) as spark:
                runner = Runner(spark)

                def recipe() -> Recipe:
                    topics.refresh()
                    batch_topics = topics.batch_topics()
                    return Recipe(settings.tags, batch_topics, groups=GROUP + 1, flush=not runner.is_local)

                fields = _Fields(Evaluator(spark, runner), runner, log, sidecar, options, disk)
                follow = Follow(spark, follower, folder / "commitlog", sidecar, recipe, disk, fields, lock.is_there)
                stack.callback(follow.close)
                follow.meter.notes = notes + topics.notes
                if metrics is not None:
                    watcher = metrics.watched(follow.meter, watcher)
                return follow.run(stop, watcher, once=options.once)
        except StoppedError as stopped:
            return stopped.state


class _Fields:
    """Builds what is missing of the fields that an earlier build defined."""

    def __init__(
        self, evaluator: Evaluator, runner: Runner, log: CommitLog, sidecar: Path, options: FollowOptions, disk: Disk
    ) -> None:
        self._evaluator = evaluator
        self._runner = runner
        self._log = log
        self._sidecar = sidecar
        self._conf = options.spark.conf
        self._disk = disk
        self._definitions: list[Definition] = []

    def __call__(
        self, claim: Sidecar, publishing: Publishing, turn_size: int | None, left: Collection[str]
    ) -> FieldsBuilt:
        if [definition.name for definition in self._definitions] != sorted(claim.fields):
            self._definitions = definitions_of(self._evaluator, claim, wanted_fields(claim, {}), self._conf)
        build = FieldBuild(
            self._log,
            self._sidecar,
            FieldSettings(claim.shape, grows=True, turn_size=turn_size),
            claim,
            self._evaluator,
            self._runner,
            self._disk,
            publishing=publishing,
        )
        built = build.run([each for each in self._definitions if each.name not in left], kept=left)
        return built.sidecar, built.failures
