"""``spark.readStream.format("whence")``: the log of a store as a stream, which follows what a broker appends.

    spark.readStream.format("whence").load("store").writeStream.trigger(availableNow=True)...

What is planned is in stream_plan.py. Spark keeps the places between batches in the query's checkpoint, and asks for
the stretches between two of them again if a batch was not finished. They have the same records then, so a sink that
takes a batch once takes each message once, whatever was killed.

Spark asks for plans in a Python process beside the driver, which keeps the store open; tasks read as those of a batch
query do (source_read.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from whence.errors import CorruptError, StoreError, UsageError
from whence.pipeline.source_options import LATEST, SourceOptions
from whence.pipeline.source_plan import Part, PartKind, Piece, told, wanted_of
from whence.pipeline.source_read import SourceRead
from whence.pipeline.stream_plan import NO_LIMIT, STRETCH_SIZE, Limit, Place, StreamPlan
from whence.store.message_store import MessageStore
from whence.store.opening import open_folder

LOG = logging.getLogger("whence")

BEGAN = "from"
"""Where the batch began that ends at an offset. Spark notes where the first batch ends, but asks again where the
stream begins if it was not finished; by then the log's begin or end, or what was 15 minutes ago, is another place."""


class StretchPartition(InputPartition):
    """One task's part of a batch."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part = part


class WhenceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query, and reads their parts in tasks."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._opened: tuple[MessageStore, StreamPlan] | None = None
        self._target: Place | None = None
        self._told: Place | None = None  # the last place for which a loss was told
        self._is_waiting = False  # at an end with older records behind it, and that was told

    # -- plans -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, this and the following names are Spark's
        plan, options = self._plan(), self._options
        if options.starting == LATEST:
            place = plan.end()
        elif isinstance(options.starting, int):
            place = plan.at_offset(options.starting)
            if options.fail_on_data_loss and place.offset > options.starting:
                what = f"startingOffsets {options.starting} lies before the log's begin, at {place.offset}"
                raise StoreError(f'{what}; option("failOnDataLoss", "false") begins where the log does')
        elif options.starting_ms is not None:
            within = None if options.scan else self._store().window_stretches(options.starting_ms, None)
            place = plan.at_time(options.starting_ms, within)
        else:
            place = plan.begin()
        return place.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_files_per_trigger is not None:
            return ReadMaxFiles(options.max_files_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        plan, place, most = self._plan(), Place.from_json(start), _limit(limit)
        self._tell_loss(place)
        if self._target is not None and self._target.offset < place.offset:
            self._target = plan.latest(place)  # it went on behind damage at the log's end, when it ran before
        reached = plan.latest(place, most, self._target)
        if reached == place and self._passes_end(place):
            reached = plan.latest(place, most, self._target)
        return start if reached == place else reached.to_json() | {BEGAN: place.to_json()}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plan().end().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._plan().end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, to = Place.from_json(start if start == end else end.get(BEGAN, start)), Place.from_json(end)
        self._tell_loss(begin)
        self._tell_loss(to)
        plan = self._plan()
        size = max(min(STRETCH_SIZE, (to.offset - begin.offset) // self._options.min_partitions), 1)
        parts = [*self._gaps(plan.from_where(begin), to)]
        parts += [Part(PartKind.SCAN, (Piece(*stretch),)) for stretch in plan.cut(begin, to, size)]
        return [StretchPartition(part) for part in parts]

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _plan(self) -> StreamPlan:
        if self._opened is None:
            # Not when the reader is made: Spark tells an error there by one of its own.
            if self._options.ending is not None or self._options.ending_ms is not None:
                raise UsageError("a stream has no end: leave endingOffsets and endingTimestamp out")
            store = open_folder(self._options.path, self._options.out)
            self._opened = (store, StreamPlan(store.commit_log))
        return self._opened[1]

    def _store(self) -> MessageStore:
        assert self._opened is not None, "it was planned with"
        return self._opened[0]

    def _tell_loss(self, place: Place) -> None:
        """An error if something was lost that the stream had still to read; or a line in Spark's log."""
        loss = self._plan().loss(place)
        if loss is None or place == self._told:
            return
        if self._options.fail_on_data_loss:
            raise StoreError(f'{loss.detail}; option("failOnDataLoss", "false") goes on at {loss.begin_offset}')
        LOG.warning("%s: %s; the stream goes on at %d", self._options.path, loss.detail, loss.begin_offset)
        self._told = place

    def _passes_end(self, place: Place) -> bool:
        """Whether what stands at the log's end is damage, and the stream goes on behind it; or an error."""
        behind = self._plan().behind(place, is_last=self._target is not None)
        if behind is None:
            return False
        damage, end = behind.damage, place
        if not behind.is_older:
            if not self._options.permissive:
                raise CorruptError(damage.detail, position=damage.position, path=damage.path)
            end = self._plan().pass_end(place)
            self._target = end if self._target is not None else None
        if end == place and not self._is_waiting:
            LOG.warning("%s; the stream waits there", told(damage))
            self._is_waiting = True
        return end != place

    def _gaps(self, begin: Place, end: Place) -> Iterator[Part]:
        """What no file of the log holds: an error, or a part that tells it."""
        for from_offset, to_offset, damage in self._store().commit_log.gaps(end.offset):
            if to_offset > begin.offset:
                if not self._options.permissive:
                    raise CorruptError(damage.detail, position=damage.position, path=damage.path)
                yield Part(PartKind.DAMAGE, damage=((from_offset, told(damage)),))

    # -- tasks -----------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StretchPartition)
        # Where a stream begins chooses its first place, and places alone say what lies between them: an offset means
        # nothing in another log, an age is another time in each run, and a clock may be put back.
        wanted = wanted_of(replace(self._options, starting=None, starting_ms=None))
        yield from SourceRead(self._options, self._names, wanted).read(partition.part)


def _limit(limit: ReadLimit) -> Limit:
    if isinstance(limit, ReadMaxBytes):
        return Limit(max_bytes=limit.max_bytes)
    if isinstance(limit, ReadMaxFiles):
        return Limit(max_files=limit.max_files)
    return NO_LIMIT
