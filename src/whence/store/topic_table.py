"""TopicTable: the topics of a store that whence writes, in ``config/topics.json`` as a broker keeps them.

A broker serves no topic that is not in this file. So a topic is put into it before its first message, with as many
queues as were written to; what a broker wrote into it stays.

A broker renames the file to ``topics.json.bak`` before it writes a new one. What it finds missing, empty or cut when
it starts counts for nothing, and the one before does: so it is here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whence.errors import FormatError, NotFoundError, StoreError, UsageError
from whence.files.disk import Disk
from whence.files.folder import folders_in, is_file, is_folder
from whence.files.mapped_file import read_whole
from whence.formats.rocketmq.config import decode_config, encode_config
from whence.formats.rocketmq.topics import LIGHT_QUEUE_PREFIX, can_be_folder

SIZE_MAX = 16 * 1048576
QUEUES_MAX = 65536
READ_AND_WRITE = 6
QUEUE_TYPE = "queue.type"
BATCH = "BatchCQ"


class TopicTable:
    """One table for all threads that append.

    Who writes to it cannot do without what was in it. ``only_read``: who just asks which topics are of batches can,
    and is told so in ``notes``; then those are that have a batch queue in the store.
    """

    def __init__(self, folder: Path, disk: Disk, clock: Callable[[], int], *, only_read: bool = False) -> None:
        self._path = folder / "config" / "topics.json"
        self._backup = self._path.with_name("topics.json.bak")
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._state()
        self.notes: tuple[str, ...] = ()
        document, trouble = self._load()
        if document is None and trouble is not None and not only_read:
            raise trouble
        self._document = document or {}
        self._table = _table_of(self._document)
        if document is None and only_read:
            batches = folder / "batchconsumequeue"
            topics = folders_in(batches) if is_folder(batches) else []
            self._table = {topic: {"attributes": {QUEUE_TYPE: BATCH}} for topic in topics}
        if trouble is not None:
            instead = f"{self._backup.name} counts, as when a broker starts"
            if document is None:
                instead = "topics of batches are those that have a folder in batchconsumequeue/"
            self.notes = (f"{trouble}; {instead}",)

    def _load(self) -> tuple[dict[str, Any] | None, FormatError | None]:
        """What a broker would load, None if nothing; and the first file that is there and cannot be read."""
        trouble = None
        for path in (self._path, self._backup):
            try:
                return decode_config(read_whole(path, SIZE_MAX)), trouble
            except NotFoundError:
                continue
            except FormatError as error:
                trouble = trouble or error.at(path)
        return None, trouble

    def refresh(self) -> None:
        """Notice what a broker changed. While it writes the file, what was known before counts."""
        seen = self._state()
        if seen == self._seen:
            return
        try:
            document = decode_config(read_whole(self._path, SIZE_MAX))
        except (FormatError, StoreError):
            return
        self._seen, self._document, self._table = seen, document, _table_of(document)

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    def is_batch(self, topic: str) -> bool:
        """Whether batches of this topic are stored as one record, in a BatchConsumeQueue."""
        config = self._table.get(topic)
        attributes = config.get("attributes") if isinstance(config, dict) else None
        return isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH

    def batch_topics(self) -> tuple[str, ...]:
        """All topics of that kind."""
        return tuple(sorted(filter(self.is_batch, self._table)))

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has; 0 if there is no such topic."""
        config = self._table.get(topic)
        count = config.get("writeQueueNums") if isinstance(config, dict) else None
        return count if isinstance(count, int) else 0

    def need(self, topic: str, queue: int) -> None:
        """Make a topic that has this queue, if it has not. Light queues are no topics."""
        if queue >= self.queue_count(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX):
            self.make(topic, queue + 1)

    def make(self, topic: str, queues: int, attributes: Mapping[str, str] | None = None) -> None:
        """Make a topic, or give it more queues or other attributes; it is on the disk when this returns."""
        if not can_be_folder(topic):
            raise UsageError(f"topic {topic!r}: its queues cannot have a folder of that name")
        if not 0 < queues <= QUEUES_MAX:
            raise UsageError(f"topic {topic}: {queues} queues; a topic has 1 to {QUEUES_MAX}")
        with self._lock:
            known = self._table.get(topic)
            config = dict(known) if isinstance(known, dict) else {}
            count = max(queues, self.queue_count(topic))
            kept = config.get("attributes")
            table = {
                **self._table,
                topic: {
                    "attributes": {**(kept if isinstance(kept, dict) else {}), **(attributes or {})},
                    "order": config.get("order", False),
                    "perm": config.get("perm", READ_AND_WRITE),
                    "readQueueNums": max(count, config.get("readQueueNums", 0)),
                    "topicFilterType": config.get("topicFilterType", "SINGLE_TAG"),
                    "topicName": topic,
                    "topicSysFlag": config.get("topicSysFlag", 0),
                    "writeQueueNums": count,
                },
            }
            if table == self._table:
                return
            version = self._document.get("dataVersion")
            counter = version.get("counter", 0) if isinstance(version, dict) else 0
            document = {
                **self._document,
                "dataVersion": {
                    "counter": counter + 1,
                    "stateVersion": 0,
                    "timestamp": self._clock(),
                },
                "topicConfigTable": table,
            }
            self._disk.make_folder(self._path.parent)
            data = encode_config(document)
            if is_file(self._backup):  # a broker's, which is never to count again without this topic
                self._disk.replace(self._backup, data)
            self._disk.replace(self._path, data)
            self._document, self._table = document, table


def _table_of(document: dict[str, Any]) -> dict[str, Any]:
    table = document.get("topicConfigTable")
    return dict(table) if isinstance(table, dict) else {}
