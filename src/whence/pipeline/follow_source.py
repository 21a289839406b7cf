"""The stream that ``whence follow`` runs on: descriptions of stretches of a growing log, and never messages.

    spark.readStream.format("whence-follow").options(log_folder=..., sidecar=..., slots=...)

A row a stretch, which a task then scans. The plan is that of follow_plan.py; here it is given to Spark, in the Python
process that Spark starts for a stream source. While nothing is to do, that process waits inside of
:meth:`FollowReader.latestOffset`: so a stream at rest costs next to nothing, and one that wakes up loses no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from whence.pipeline.follow_plan import FollowPlan, Ticket
from whence.store.commit_log import CommitLog
from whence.store.spill import Stretch

NAME = "whence-follow"
SCHEMA = (
    "number int, path string, base bigint, from_offset bigint, to_offset bigint, is_exact boolean, is_last boolean"
)
"""A :class:`Stretch`."""
BATCH_SIZE = 1 << 32  # bytes of log that one batch takes, of whole files
WAIT_S = 1.0  # how long Spark is kept waiting: when it is to end, it ends the sooner


class FollowSource(DataSource):
    """The log of a store, in stretches that are not indexed yet."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, the name is Spark's
        options = self.options
        target = int(options["target"]) if options["target"] else None
        return FollowReader(Path(options["log_folder"]), Path(options["sidecar"]), int(options["slots"]), target)


class StretchPartition(InputPartition):
    """One stretch."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)
        self.stretch = stretch


class FollowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches for Spark. It travels to the tasks, which only repeat what they are told."""

    def __init__(self, log_folder: Path, sidecar: Path, slots: int, target: int | None) -> None:
        self._log_folder = log_folder
        self._sidecar = sidecar
        self._slots = slots
        self._target = target
        self._opened: FollowPlan | None = None

    @property
    def _plan(self) -> FollowPlan:
        if self._opened is None:
            self._opened = FollowPlan(CommitLog(self._log_folder), self._sidecar, self._target)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plan.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(BATCH_SIZE)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The target is known: who started the stream has a kernel at hand to look for it."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        timeout_s = WAIT_S if self._plan.target is None else 0.0
        return self._plan.wait(Ticket.from_json(start), size, timeout_s).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return Ticket(self._plan.log_end() if self._target is None else self._target).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [StretchPartition(each) for each in self._plan.stretches(Ticket.from_json(end), self._slots)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if isinstance(partition, StretchPartition):  # Spark makes up another where there is none
            yield astuple(partition.stretch)
