"""``follow_store`` in a session that was there before and stays: nothing of it goes on when it has returned."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions

from tests.spark.growing import AppendedLog
from whence.door import follow_store
from whence.errors import StoreError
from whence.files.disk import Disk
from whence.files.names import sidecar_of
from whence.pipeline.follow import Follow
from whence.pipeline.follow_source import SCHEMA
from whence.pipeline.follow_state import FollowState
from whence.store.commit_log import CommitLog
from whence.store.follower import GROUP, Follower, FollowSettings
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar
from whence.store.spill import Recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path) -> AppendedLog:
    log = AppendedLog(tmp_path / "store", 1 << 20)
    log.append(1000)
    return log


def check_ended(spark: SparkSession, log: AppendedLog) -> None:
    """No query is left, nor what it spilled, and what comes behind is not indexed any more."""
    assert spark.streams.active == []
    before = read_sidecar(sidecar_of(log.store))
    assert before is not None and not before.growing
    log.append(100)
    time.sleep(0.2)
    assert read_sidecar(sidecar_of(log.store)) == before
    assert not (sidecar_of(log.store) / "work").exists()


def test_a_follower_that_is_told_to_end_leaves_no_query(spark, log):
    stop = threading.Event()
    work = sidecar_of(log.store) / "work" / "follow" / "1"

    def watch(state: FollowState) -> None:
        if state.indexed_to_offset == log.offset:
            stop.set()
        if state.is_ended:  # a task goes on until Spark has ended it
            work.mkdir(parents=True)
            (work / "00000000-.spill").touch()

    state = follow_store(log.store, watcher=watch, stop=stop)
    assert state.is_ended and state.lag_bytes == 0
    check_ended(spark, log)


def test_a_watcher_that_raises_leaves_no_query(spark, log):
    def watch(state: FollowState) -> None:
        if state.messages:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        follow_store(log.store, watcher=watch)
    check_ended(spark, log)


def test_batches_that_spark_loses_are_taken_again_but_not_for_ever(spark, log, monkeypatch):
    monkeypatch.setattr("whence.pipeline.follow.LOST_MAX", 1)
    sidecar_of(log.store).mkdir()
    own_log = CommitLog(log.store / "commitlog")
    settings = FollowSettings(Shape(7, 20), Dialect.V5_5, 4000)
    follower = Follower(own_log, sidecar_of(log.store), settings, None, Disk())
    recipe = Recipe(tags=True, batch_topics=(), groups=GROUP + 1, flush=False)
    follow = Follow(spark, follower, log.store / "commitlog", sidecar_of(log.store), lambda: recipe, Disk())
    lost = spark.range(1).select(functions.raise_error(functions.lit("gone")).alias("stretch"))
    follow._take(lost, 0)
    follow._take(spark.createDataFrame([], SCHEMA), 1)
    follow._take(lost, 2)
    with pytest.raises(Exception, match="gone"):
        follow._take(lost, 3)
    assert isinstance(follow._failure, StoreError)
    assert str(follow._failure).startswith("Spark lost 2 batches, the last for ")
    follow.close()
    own_log.close()
