"""OwnedStore: a store that whence writes. Log, queues, index and the small files, and the threads that keep them.

    append  ->  Appender   ->  LogWriter       commitlog/        at once
                Flusher                        to the disk       every half second, or before an append returns
                Dispatcher ->  QueueBuilder    consumequeue/     a moment later
                           ->  IndexBuilder    index/

Every ten seconds or so, and at the end, what was dispatched is flushed; then ``whence.json`` and ``checkpoint`` say
how far that is. A crash loses nothing but what was dispatched since, and that is made again from the log.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whence.errors import FormatError, NotFoundError, StoreError, UsageError, WhenceError
from whence.files.disk import Disk
from whence.files.folder import files_in
from whence.files.lock import StoreLock
from whence.files.names import is_digits, shown_zone
from whence.formats.rocketmq.checkpoint import Checkpoint, encode_checkpoint
from whence.formats.rocketmq.host import Host
from whence.store.appender import Appender
from whence.store.commit_log import CommitLog
from whence.store.dispatcher import Dispatcher
from whence.store.dispatcher import Flushed as Dispatched
from whence.store.expiry import DiskUsage, Expired, Expiry
from whence.store.expiry_policy import USED_FULL, ExpiryPolicy, used_percent
from whence.store.flusher import Flusher, FlushMode
from whence.store.index_builder import IndexBuilder
from whence.store.log_file import HEAD_SIZE
from whence.store.log_writer import LogWriter
from whence.store.message_store import MessageStore, read_checkpoint
from whence.store.ownership import Flushed, Ownership, Settings, read_ownership
from whence.store.queue_builder import QueueBuilder
from whence.store.recovery import Recovery
from whence.store.topic_table import TopicTable

ABORT = "abort"  # is there while a store is open, and after a crash
CHECKPOINT = "checkpoint"
LOCAL_HOST = Host("127.0.0.1", 10911)
MADE_OF = ("commitlog", "consumequeue", "batchconsumequeue", "index")


def now_ms() -> int:
    """The time by the machine's clock."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """How a store is written as long as it is open. The defaults are RocketMQ's."""

    flush: FlushMode = FlushMode.ASYNC
    flush_timeout_s: float = 5.0
    store_host: Host = LOCAL_HOST
    message_size_max: int = 4 * 1048576
    record_crc: bool = False
    warm_up: bool = False
    expiry: ExpiryPolicy | None = None  # None: nothing expires by itself
    expiry_interval_s: float = 10.0


def own_store(
    folder: Path,
    given: Mapping[str, Any],
    options: Options,
    *,
    adopt: bool = False,
    disk: Disk | None = None,
    clock: Callable[[], int] = now_ms,
) -> OwnedStore:
    """Make a store, or go on with it. ``given``: those of its Settings that the caller names.

    A store that whence did not make is taken over only where that is asked for: ``adopt``.
    """
    disk = disk or Disk()
    disk.make_folder(folder)
    lock = StoreLock(folder / "lock")
    try:
        ownership = read_ownership(folder)
        if ownership is not None:
            _check_unchanged(folder, ownership.settings, given)
        elif not _holds_a_store(folder):
            ownership = Ownership(Settings(**given), Flushed())
        elif adopt:
            ownership = Ownership(Settings(**{**_shown_settings(folder), **given}), Flushed())
        else:
            what = "is a store that whence did not make, and so does not write to; give adopt=True to take it over"
            raise UsageError(f"{folder}: {what}")
        return OwnedStore(folder, ownership, options, lock=lock, disk=disk, clock=clock)
    except BaseException:
        lock.close()
        raise


def _check_unchanged(folder: Path, settings: Settings, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        made_with = getattr(settings, name)
        if value != made_with:
            raise UsageError(f"{folder}: was made with {name}={made_with!r}, which cannot become {value!r}")


def _holds_a_store(folder: Path) -> bool:
    """Whether any file of a log, a queue or an index is there."""
    return any(path.is_file() for name in MADE_OF for path in (folder / name).rglob("*"))


def _shown_settings(folder: Path) -> dict[str, Any]:
    """What the files of a store that is not ours show of how it was made; the rest is as RocketMQ has it."""
    shown: dict[str, Any] = {}
    with MessageStore(folder) as store:
        shown["dialect"] = store.dialect()
        if store.commit_log.file_size:
            shown["file_size"] = store.commit_log.file_size
        for path in (folder / "consumequeue").glob("*/*/*"):
            if path.stat().st_size:
                shown["queue_file_size"] = path.stat().st_size
                break
        shapes = [segment.file.shape for segment in store.cover().segments if segment.file is not None]
        if shapes and shapes[-1] is not None:
            shown |= {"slots": shapes[-1].slot_capacity, "items": shapes[-1].item_capacity}
    return shown


class OwnedStore:
    """One store, open to be written: no other process can open it so meanwhile. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        ownership: Ownership,
        options: Options,
        *,
        lock: StoreLock,
        disk: Disk,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Recover the store, dispatch what is not dispatched, be ready for appends. ``lock`` is ours from now on."""
        self.folder = folder
        self.settings = settings = ownership.settings
        self._disk = disk
        self._clock = clock
        self._flushed = ownership.flushed
        self._checkpoint = _checkpoint(folder)
        self._is_open = True
        with ExitStack() as undo:
            undo.callback(lock.close)
            is_clean = not (folder / ABORT).exists()
            disk.replace(folder / ABORT, str(os.getpid()).encode())
            log_folders = settings.log_paths(folder)
            for path in log_folders:
                disk.make_folder(path)
            self.recovered = recovered = Recovery(folder, ownership, disk, is_clean=is_clean).run()
            self._flushed = recovered.flushed
            self._write_ownership(os.getpid())
            self.topics = TopicTable(folder, disk, clock)
            self.log = LogWriter(
                log_folders,
                settings.file_size,
                recovered.end_offset,
                disk,
                warm_up=options.warm_up,
                is_usable=_has_room,
            )
            undo.callback(self.log.close)
            self._queues = QueueBuilder(
                folder / "consumequeue", settings.queue_file_size, disk, is_batch=self.topics.is_batch
            )
            self._reader = CommitLog(*log_folders)
            undo.callback(self._reader.close)
            newest = recovered.newest_index
            zone = None if newest is None else shown_zone(newest.path.name, newest.header.begin_timestamp_ms)
            is_sync = options.flush is FlushMode.SYNC
            self.dispatcher = Dispatcher(
                CommitLog(*log_folders),
                self._queues,
                IndexBuilder(folder / "index", settings.shape, disk, newest, live=True, zone=zone),
                from_offset=recovered.flushed.queues,
                index_offset=recovered.index_offset,
                end=(lambda: self.log.flushed_offset) if is_sync else (lambda: self.log.end_offset),
                dialect=settings.dialect,
                on_flushed=self._save,
                on_failure=self._fail,
            )
            undo.callback(self._end_dispatch)
            self.dispatcher.dispatch()
            if recovered.end_offset > recovered.flushed.queues:
                self.dispatcher.flush()
            self.flusher = Flusher(
                self.log, options.flush, timeout_s=options.flush_timeout_s, on_flush=self.dispatcher.wake
            )
            undo.callback(self.flusher.close)
            self.appender = Appender(
                self.log,
                self._queue_end,
                store_host=options.store_host,
                flusher=self.flusher,
                message_size_max=options.message_size_max,
                record_crc=options.record_crc,
                is_batch_topic=self.topics.is_batch,
                on_append=self.dispatcher.wake,
                clock=clock,
            )
            self.dispatcher.start()
            undo.pop_all()
        self._lock = lock
        self._expiry_lock = threading.Lock()
        self._closing = threading.Event()
        self._expiry_thread: threading.Thread | None = None
        if options.expiry is not None:
            expiry = self._expiry(options.expiry, None, shutil.disk_usage)
            self._expiry_thread = threading.Thread(
                target=self._expire_on, args=(expiry, options.expiry_interval_s), name="whence-expiry", daemon=True
            )
            self._expiry_thread.start()

    def _fail(self, error: StoreError) -> None:
        """Take no more messages. The first reason is the one that stays."""
        self.log.failure = self.log.failure or error

    def _end_dispatch(self) -> None:
        """Let go of what the dispatcher has open, of a store that could not be opened."""
        with suppress(StoreError):
            self.dispatcher.close()

    def _queue_end(self, topic: str, queue: int) -> int:
        """Where a queue goes on: asked once for each queue that is appended to."""
        self.topics.need(topic, queue)
        return self._queues.end_offset(topic, queue)

    @property
    def ownership(self) -> Ownership:
        """What ``whence.json`` says."""
        return Ownership(self.settings, self._flushed, os.getpid())

    @property
    def failure(self) -> StoreError | None:
        """Why the store takes no more messages; None if it does."""
        return self.log.failure if self._is_open else None

    def wait_dispatched(self, timeout_s: float | None = None) -> bool:
        """Wait until all that is appended by now is in queues and index; False if the time is up."""
        return self.dispatcher.wait_until(self.log.end_offset, timeout_s)

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self, policy: ExpiryPolicy, archive: Path | None = None) -> Expired:
        """Let go of what is old, as far as it is dispatched and flushed; with an archive, move it there."""
        with self._expiry_lock:
            return self._expiry(policy, archive, None).run(self._clock(), self._flushed.queues)

    def _expiry(self, policy: ExpiryPolicy, archive: Path | None, disk_usage: DiskUsage | None) -> Expiry:
        log_folders = self.settings.log_paths(self.folder)
        return Expiry(
            self.folder, policy, self._disk, log_folders=log_folders, archive=archive, disk_usage=disk_usage
        )

    def _expire_on(self, expiry: Expiry, interval_s: float) -> None:
        """Expire every few seconds. While the disk is as good as full, nothing is appended."""
        while not self._closing.wait(interval_s):
            try:
                with self._expiry_lock:
                    expired = expiry.run(self._clock(), self._flushed.queues)
            except WhenceError as error:
                self._fail(StoreError(f"what is old could not expire: {error}"))
                return
            self.appender.refusal = "the disk is full, above what expiry allows" if expired.is_full else ""

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all that was appended is on the disk, and also in queues and index."""
        end = self.log.flush()
        self.dispatcher.wait_until(end)
        self.dispatcher.flush()

    def _save(self, dispatched: Dispatched) -> None:
        """Note how far queues and index are on the disk, once the log is too."""
        self.log.flush()
        index, last = dispatched.index, dispatched.last_physical_offset
        flushed = replace(
            self._flushed,
            queues=dispatched.queues_offset,
            queues_size=self.recovered.flushed.queues_size + dispatched.queues_grown_size,
            index=dispatched.index_offset,
        )
        if index.newest is not None:
            name = index.newest.path.name
            older = sorted(each for each in files_in(self.folder / "index") if is_digits(each) and each < name)
            flushed = replace(
                flushed, index_name=name, index_header=index.newest.header, older_index_names=tuple(older)
            )
        if dispatched.last_timestamp_ms:
            self._reader.refresh()
            flushed = replace(flushed, last_record_offset=last, last_record=self._reader.raw(last, HEAD_SIZE))
            self._checkpoint = replace(
                self._checkpoint,
                log_timestamp_ms=dispatched.last_timestamp_ms,
                queue_timestamp_ms=dispatched.last_timestamp_ms,
                queue_physical_offset=last,
            )
        if index.full is not None:
            self._checkpoint = replace(self._checkpoint, index_timestamp_ms=index.full.header.end_timestamp_ms)
        self._flushed = flushed
        self._write_ownership(os.getpid())
        self._disk.replace(self.folder / CHECKPOINT, encode_checkpoint(self._checkpoint))

    def _write_ownership(self, writer: int) -> None:
        Ownership(self.settings, self._flushed, writer).write(self.folder, self._disk)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Dispatch and flush all, and let go of the store; a second call does nothing.

        Raises what makes that impossible. Then the store is as after a crash: the next start recovers it.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._closing.set()
        if self._expiry_thread is not None:
            self._expiry_thread.join()
        with ExitStack() as stack:
            for end in (self._lock.close, self._reader.close, self.log.close):
                stack.callback(end)
            self.appender.close()
            try:
                self.flusher.close()
            finally:
                self.dispatcher.close()
            self._write_ownership(writer=0)
            self._disk.remove(self.folder / ABORT)
            self._disk.flush_folder(self.folder)


def _has_room(folder: Path) -> bool:
    """Whether a disk should get new log files: not if it is as good as full, or not there."""
    try:
        _, used, free = shutil.disk_usage(folder)
    except OSError:
        return False
    return used_percent(used, free) <= USED_FULL


def _checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint that is there. One that cannot be read says no more than none at all: nothing is known."""
    try:
        return read_checkpoint(folder)
    except (FormatError, NotFoundError):
        return Checkpoint()
