"""Appender: messages in, records at the end of the CommitLog.

    append                one message
    append_batch          many messages of one queue, from columns, by a kernel
    append_client_batch   what a client sends for many messages at once: a record for each
    append_inner_batch    the same as one record, in topics whose queues are batch queues

The answers are RocketMQ's statuses, with the reason in words (put_result.py, put_rules.py). Offsets, ids and store
time are given while a message has the lock: in the log all three go upwards together, if the clock does.

Follows RocketMQ 5.5 CommitLog, MessageExtEncoder and LmqDispatch.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from whence.errors import FormatError, StoreError, UsageError
from whence.formats.rocketmq.body import decode_batch, decompress_body
from whence.formats.rocketmq.host import IPV6_SIZE, Host, encode_host
from whence.formats.rocketmq.message import HEADS, MAGIC_V1, MAGIC_V2, RECORD_CRC_SIZE, TOPIC_SIZE_MAX_V1
from whence.formats.rocketmq.new_message import encode_record_crc
from whence.formats.rocketmq.properties import (
    INNER_BASE,
    LIGHT_QUEUE_OFFSETS,
    LIGHT_QUEUES,
    NAME_END,
    PROPERTIES_SIZE_MAX,
    UNIQUE_ID,
    VALUE_END,
    join_properties,
)
from whence.formats.rocketmq.sys_flag import HOSTS_MASK, TRANSACTION_MASK, SysFlag, Transaction
from whence.store.columns import Columns
from whence.store.flusher import Flusher, FlushMode
from whence.store.log_writer import LogWriter
from whence.store.put_result import BatchResult, PutResult, PutStatus
from whence.store.put_rules import (
    INNER_COUNT_MAX,
    MESSAGE_SIZE_MAX,
    Properties,
    RefusedError,
    check_delay,
    check_queue,
    checked_body,
    checked_properties,
    illegal,
    is_light_queue,
    join_keys_and_tags,
    light_queue_names,
    waits,
)
from whence.store.unique_ids import UniqueIds, id_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUSY_S = 1.0  # who has to wait longer for other appenders is turned away
LIGHT_QUEUE = 0  # the number of the one queue that a light queue has
_CRC_MASK = 0x7FFFFFFF  # see formats/checksums.py
_SIZE_SIZE = 2  # of the field that has the size of the properties

_FORESEEN = (RefusedError, StoreError, struct.error, UnicodeEncodeError)  # after these nothing is half done
_ID_START = f"{UNIQUE_ID}{NAME_END}"
_PUT_OK = PutStatus.PUT_OK  # Python 3.11 takes 0.1 us to find a member of an enum, and 1 us to combine two
_BORN_HOST_IPV6, _STORE_HOST_IPV6 = int(SysFlag.BORN_HOST_IPV6), int(SysFlag.STORE_HOST_IPV6)
_UNWRAP, _INNER_BATCH = int(SysFlag.UNWRAP), int(SysFlag.INNER_BATCH)
_NOT_IN_QUEUES = (int(Transaction.PREPARED), int(Transaction.ROLLBACK))
_new_tuple = tuple.__new__  # less than half the time of PutResult()


class _Queue:
    """A queue that messages are appended to; also a light queue."""

    __slots__ = ("end", "magic", "number", "topic_data", "topic_size")

    def __init__(self, topic: str, number: int, end: int) -> None:
        topic_data = topic.encode("utf-8")
        version = 1 if len(topic_data) <= TOPIC_SIZE_MAX_V1 else 2
        self.magic = MAGIC_V1 if version == 1 else MAGIC_V2
        self.topic_data = len(topic_data).to_bytes(version, "big") + topic_data
        self.topic_size = len(self.topic_data) + _SIZE_SIZE  # and of the size of the properties
        self.number = number
        self.end = end  # the queue offset of the next message


class _Kind(NamedTuple):
    """What sysFlag and hosts make of a record."""

    head: struct.Struct
    sys_flag: int
    born_host_data: bytes
    step: int  # by how much the queue grows


class _Birth(NamedTuple):
    """What the messages of a batch have in common, beside their queue."""

    sys_flag: int
    timestamp_ms: int | None
    host: Host | None
    reconsume_times: int


class _LateProperties(NamedTuple):
    """Properties that tell queue offsets, which are known once the message has the lock."""

    is_inner_batch: bool
    light_queues: Sequence[_Queue | None] | None  # in the order of the names; None in it for what is no light queue

    def text(self, queue: _Queue) -> str:
        text = f"{INNER_BASE}{NAME_END}{queue.end}{VALUE_END}" if self.is_inner_batch else ""
        if self.light_queues is not None:
            offsets = ",".join("" if light is None else str(light.end) for light in self.light_queues)
            text += f"{LIGHT_QUEUE_OFFSETS}{NAME_END}{offsets}{VALUE_END}"
        return text

    def advance(self) -> None:
        for light in self.light_queues or ():
            if light is not None:
                light.end += 1


class Appender:
    """Appends to one log. Any number of threads may call; they take turns."""

    def __init__(
        self,
        log: LogWriter,
        queue_ends: Callable[[str, int], int],
        *,
        store_host: Host,
        flusher: Flusher | None = None,
        message_size_max: int = MESSAGE_SIZE_MAX,
        record_crc: bool = False,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
        light_queues: Iterable[str] = (),
        light_queue_count_max: int | None = None,
        on_append: Callable[[], object] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        ids: UniqueIds | None = None,
        busy_s: float = BUSY_S,
    ) -> None:
        """``queue_ends`` tells at which offset a queue goes on; it is asked once for each queue.

        A flusher in sync mode is waited for. ``record_crc`` ends each record with a CRC of all of it. The names in
        ``light_queues`` are those that are there, for there may be a largest count of them. ``on_append`` is called
        when something is in the log (and flushed, if that is waited for), by the thread that put it there. ``clock``
        gives milliseconds.
        """
        self.refusal = ""
        """Why nothing is appended at present; empty if all is well. Whoever runs the store may set it."""
        self._log = log
        self._queue_ends = queue_ends
        self._flusher = flusher
        self._is_sync = flusher is not None and flusher.mode is FlushMode.SYNC
        self._message_size_max = message_size_max
        self._record_crc_size = RECORD_CRC_SIZE if record_crc else 0
        self._is_batch_topic = is_batch_topic
        self._light_queues = set(light_queues)
        self._light_queue_count_max = light_queue_count_max
        self._on_append = on_append
        self._clock = clock
        self._ids = ids or UniqueIds(store_host.address)
        self._busy_s = busy_s
        self._store_host_data = encode_host(store_host)
        self._sure_size_max = min(
            message_size_max, log.record_size_max
        )  # a record that is not larger is none too many
        self._id_property_size = len(_ID_START) + self._ids.size + len(VALUE_END)
        self._own_kind = self._kind(0, None)
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)  # in which the records of a batch are made
        self._lock = threading.Lock()  # of the log, the ends of queues, the ids and the buffer
        self._locked_at = 0.0  # when it was last taken

    def close(self) -> None:
        """Append nothing any more. What was being appended is done when this returns."""
        self.refusal = "the store is closed"
        with self._lock:
            pass

    # -- one message -----------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str] = (),
        tags: str | None = None,
        queue: int = 0,
        properties: Properties | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: Host | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        inner_count: int = 0,
        wait: bool = True,
    ) -> PutResult:
        """Put one message. It gets a UNIQ_KEY, unless ``properties`` has one.

        A message of which no birth is told is born here and now. With ``wait=False``, or the property WAIT = false,
        no flush is waited for. ``inner_count`` is how many messages are in the body of an inner batch.
        """
        try:
            place = self._queues.get((topic, queue)) or self._new_queue(topic, queue)
            if body.__class__ is not bytes:
                body = checked_body(body)
            kind = self._own_kind
            if sys_flag or inner_count or born_host is not None:
                kind = self._kind(sys_flag, born_host, topic, inner_count)
            head, sys_flag, born_host_data, step = kind
            text = join_keys_and_tags(keys, tags)
            unique_id = ""
            late = None
            if properties or inner_count:
                given = self._checked_properties(properties or {}, bool(keys), bool(tags), inner_count)
                late = self._late_properties(topic, given, inner_count)
                unique_id = given.get(UNIQUE_ID, "")
                wait = wait and waits(given)
                text += join_properties(given)
            body_crc = crc32(body) & _CRC_MASK
            if self._lock.locked():
                self._check_not_busy()
            with self._lock:  # not by acquire and release, for an interrupt may come between acquire and try
                self._locked_at = time.monotonic()
                try:
                    if self.refusal:
                        raise RefusedError(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
                    now_ms = self._clock()
                    if not unique_id:
                        unique_id = self._ids.take(now_ms)
                        text = f"{_ID_START}{unique_id}\x02{text}"
                    if late is not None:
                        text += late.text(place)
                    properties_data = text.encode()
                    properties_size = len(properties_data) + self._record_crc_size
                    size = head.size + len(body) + place.topic_size + properties_size
                    if properties_size > PROPERTIES_SIZE_MAX or size > self._sure_size_max:
                        self._check_sizes(len(body), properties_size, size, late)
                    physical_offset = self._log.room(size)
                    queue_offset = place.end if step else 0
                    record = b"".join(
                        (
                            head.pack(
                                size,
                                place.magic,
                                body_crc,
                                place.number,
                                flag,
                                queue_offset,
                                physical_offset,
                                sys_flag,
                                now_ms if born_timestamp_ms is None else born_timestamp_ms,
                                born_host_data,
                                now_ms,
                                self._store_host_data,
                                reconsume_times,
                                prepared_transaction_offset,
                                len(body),
                            ),
                            body,
                            place.topic_data,
                            properties_size.to_bytes(_SIZE_SIZE, "big"),
                            properties_data,
                        )
                    )
                    if self._record_crc_size:
                        record += encode_record_crc(record)
                    self._log.write(record)
                    place.end += step
                    if late is not None:
                        late.advance()
                except _FORESEEN:
                    raise
                except BaseException as error:
                    self._log.stop(error)
                    raise
        except RefusedError as refused:
            return PutResult(refused.status, detail=refused.detail)
        except StoreError as error:
            return PutResult(self._status_of_failure(), detail=str(error))
        except struct.error as error:
            raise UsageError(f"a number does not fit into its field of the record: {error}") from error
        except UnicodeEncodeError as error:
            raise UsageError(f"a key, tag or property holds half a character (a lone surrogate): {text!r}") from error
        status, detail = self._flushed(physical_offset + size, wait) if self._is_sync else (_PUT_OK, "")
        if self._on_append is not None:
            self._on_append()
        result = (status, physical_offset, queue_offset, unique_id, now_ms, size, self._store_host_data, detail)
        return _new_tuple(PutResult, result)

    def append_inner_batch(self, topic: str, data: bytes, *, sys_flag: int = 0, **settings: Any) -> PutResult:
        """Put what a client sent for many messages at once as one record; ``settings`` are those of :meth:`append`.

        The topic's queues must be batch queues. The record takes as many queue offsets as it holds messages.
        """
        try:
            inner_count = len(decode_batch(decompress_body(data, sys_flag)))
        except FormatError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, detail=f"the body is no batch of messages: {error}")
        if not 0 < inner_count <= INNER_COUNT_MAX:
            detail = f"an inner batch has 1 to {INNER_COUNT_MAX} messages, not {inner_count}"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, detail=detail)
        sys_flag |= _UNWRAP | _INNER_BATCH
        return self.append(topic, data, sys_flag=sys_flag, inner_count=inner_count, **settings)

    def _late_properties(self, topic: str, given: dict[str, str], inner_count: int) -> _LateProperties | None:
        names = light_queue_names(topic, given)
        if names is None:
            return _LateProperties(True, None) if inner_count else None
        given.pop(LIGHT_QUEUE_OFFSETS, None)
        return _LateProperties(inner_count > 0, [self._light_queue(name) for name in names])

    def _light_queue(self, name: str) -> _Queue | None:
        if not is_light_queue(name):
            return None
        count_max = self._light_queue_count_max
        if count_max is not None and len(self._light_queues) >= count_max and name not in self._light_queues:
            raise RefusedError(
                PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"light queue {name!r} would be one more than the {count_max} that there may be",
            )
        self._light_queues.add(name)
        return self._queues.get((name, LIGHT_QUEUE)) or self._add_queue(name, LIGHT_QUEUE)

    # -- many messages ---------------------------------------------------------------------------------------

    def append_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Sequence[str]] | None = None,
        tags: str | Sequence[str | None] | None = None,
        queue: int = 0,
        properties: Properties | Sequence[Properties] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: Host | None = None,
        reconsume_times: int = 0,
        wait: bool = True,
    ) -> BatchResult:
        """Put many messages of one queue, one behind the other. What differs from one to the next is a column.

        If one of them cannot be put, none is. As many as make up the largest message are put in one step: into one
        file, with one store time. Transactions, delays and light queues need :meth:`append`, as in RocketMQ.
        """
        try:
            place = self._queues.get((topic, queue)) or self._new_queue(topic, queue)
            columns = Columns(bodies, flag)
            if keys is not None:
                columns.add_keys(keys)
            if tags:
                columns.add_tags(tags)
            if properties:
                each = (properties,) if isinstance(properties, Mapping) else properties
                checked = [self._checked_batch_properties(one, keys is not None, bool(tags)) for one in each]
                columns.add_properties(checked[0] if isinstance(properties, Mapping) else checked)
                wait = wait and all(map(waits, checked))
            birth = _Birth(sys_flag, born_timestamp_ms, born_host, reconsume_times)
            return self._put_columns(place, columns, birth, self._sure_size_max, wait)
        except RefusedError as refused:
            return BatchResult(refused.status, detail=refused.detail)

    def append_client_batch(
        self,
        topic: str,
        data: bytes,
        *,
        queue: int = 0,
        properties: Properties | None = None,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: Host | None = None,
        reconsume_times: int = 0,
        wait: bool = True,
    ) -> BatchResult:
        """Put what a client sent for many messages at once: a record for each, all in one step.

        ``properties`` are those of the batch, of which nothing is stored.
        """
        try:
            place = self._queues.get((topic, queue)) or self._new_queue(topic, queue)
            self._check_sizes(len(data), 0, 0)
            check_delay(properties or {})
            columns = Columns.of_items(decode_batch(data), with_record_crc=self._record_crc_size > 0)
            birth = _Birth(sys_flag, born_timestamp_ms, born_host, reconsume_times)
            return self._put_columns(place, columns, birth, None, wait and waits(properties or {}))
        except RefusedError as refused:
            return BatchResult(refused.status, detail=refused.detail)
        except FormatError as error:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, detail=f"the body is no batch of messages: {error}")

    def _checked_batch_properties(self, properties: Properties, has_keys: bool, has_tags: bool) -> dict[str, str]:
        given = self._checked_properties(properties, has_keys, has_tags, 0)
        check_delay(given)
        if LIGHT_QUEUES in given:
            raise UsageError(f"property {LIGHT_QUEUES}: the messages of a batch enter no light queues")
        return given

    def _put_columns(
        self, place: _Queue, columns: Columns, birth: _Birth, step_size_max: int | None, wait: bool
    ) -> BatchResult:
        """Put the messages in steps of that size; in one step, whatever its size, if None is told."""
        kind = self._kind(birth.sys_flag, birth.host)
        if kind.sys_flag & TRANSACTION_MASK:
            raise illegal("a batch cannot be part of a transaction")
        rows = columns.rows
        columns.finish(
            id_size=self._id_property_size,
            record_crc_size=self._record_crc_size,
            empty_record_size=kind.head.size + place.topic_size,
        )
        self._check_rows(rows)
        if not len(rows):
            return BatchResult(PutStatus.PUT_OK)
        ends = np.cumsum(rows["record_size"])  # in the batch
        if step_size_max is None:
            step_size_max = int(ends[-1])
            if step_size_max > self._log.record_size_max:
                raise illegal(f"a batch of {step_size_max} bytes of records fits into no file of the log")
        physical_offsets = ends - rows["record_size"]
        first_timestamp_ms = done = 0
        status, detail = PutStatus.PUT_OK, ""
        self._check_not_busy()
        with self._lock:
            self._locked_at = time.monotonic()
            try:
                if self.refusal:
                    raise RefusedError(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
                queue_offset = place.end
                prefix, first_id = self._ids.take_many(self._clock(), columns.made_id_count)
                id_start, id_number = f"{_ID_START}{prefix}".encode(), first_id
                while done < len(rows):
                    begin = int(ends[done - 1]) if done else 0
                    until = max(int(np.searchsorted(ends, begin + step_size_max, "right")), done + 1)
                    size = int(ends[until - 1]) - begin
                    now_ms = self._clock()
                    physical_offset = self._log.room(size)
                    if len(self._buffer) < size:
                        self._buffer = np.empty(max(size, 2 * len(self._buffer)), np.uint8)
                    head = kind.head.pack(
                        *(0, place.magic, 0, place.number, 0, 0, 0, kind.sys_flag),
                        *(now_ms if birth.timestamp_ms is None else birth.timestamp_ms, kind.born_host_data),
                        *(now_ms, self._store_host_data, birth.reconsume_times, 0, 0),
                    )
                    records = self._buffer[:size]
                    messages = slice(done, until)
                    id_number = columns.encode(
                        messages, head, place.topic_data, id_start, id_number, place.end, physical_offset, records
                    )
                    self._log.write(records.data)
                    physical_offsets[done:until] += physical_offset - begin
                    first_timestamp_ms = first_timestamp_ms or now_ms
                    place.end += until - done
                    done = until
            except StoreError as error:
                status, detail = self._status_of_failure(), str(error)
            except struct.error as error:
                raise UsageError(f"a number does not fit into its field of the record: {error}") from error
            except RefusedError:
                raise
            except BaseException as error:
                self._log.stop(error)
                raise
        if not done:
            return BatchResult(status, detail=detail)
        if self._is_sync and status is PutStatus.PUT_OK:
            status, detail = self._flushed(physical_offset + size, wait)
        if self._on_append is not None:
            self._on_append()
        return BatchResult(
            status,
            done,
            physical_offsets[:done],
            queue_offset,
            first_timestamp_ms,
            self._store_host_data,
            detail,
            lambda: columns.ids(id_texts(prefix, first_id, columns.made_id_count)),
        )

    def _check_rows(self, rows: NDArray[np.void]) -> None:
        """Refuse the batch if one of its messages is too large, and say which."""
        for name, size_max in (
            ("properties_size", PROPERTIES_SIZE_MAX),
            ("body_size", self._message_size_max),
            ("record_size", self._log.record_size_max),
        ):
            if len(rows) and rows[name].max() > size_max:
                number = int(np.argmax(rows[name] > size_max))
                row = rows[number]
                try:
                    self._check_sizes(int(row["body_size"]), int(row["properties_size"]), int(row["record_size"]))
                except RefusedError as refused:
                    raise RefusedError(refused.status, f"message {number} of the batch: {refused.detail}") from None

    # -- what is in common -----------------------------------------------------------------------------------

    def _new_queue(self, topic: str, queue: int) -> _Queue:
        check_queue(topic, queue)
        return self._add_queue(topic, queue)

    def _add_queue(self, topic: str, queue: int) -> _Queue:
        try:
            end = self._queue_ends(topic, queue)
        except StoreError as error:
            raise RefusedError(PutStatus.UNKNOWN_ERROR, f"the end of queue {queue} of {topic!r}: {error}") from error
        # Of two threads that come here at once, both take what the first has made.
        return self._queues.setdefault((topic, queue), _Queue(topic, queue, end))

    def _kind(self, sys_flag: int, born_host: Host | None, topic: str = "", inner_count: int = 0) -> _Kind:
        born_host_data = self._store_host_data if born_host is None else _host_data(born_host)
        sys_flag &= ~HOSTS_MASK
        if len(born_host_data) == IPV6_SIZE:
            sys_flag |= _BORN_HOST_IPV6
        if len(self._store_host_data) == IPV6_SIZE:
            sys_flag |= _STORE_HOST_IPV6
        if (sys_flag & _INNER_BATCH != 0) != (inner_count > 0):
            raise illegal(f"sysFlag {sys_flag:#x} and {inner_count} messages inside: an inner batch, or none?")
        if inner_count and not self._is_batch_topic(topic):
            raise illegal(f"an inner batch, but the queues of topic {topic!r} are no batch queues")
        step = inner_count or 1
        if sys_flag & TRANSACTION_MASK in _NOT_IN_QUEUES:
            step = 0
        return _Kind(HEADS[sys_flag & HOSTS_MASK], sys_flag, born_host_data, step)

    def _checked_properties(
        self, properties: Properties, has_keys: bool, has_tags: bool, inner_count: int
    ) -> dict[str, str]:
        return checked_properties(
            properties,
            has_keys=has_keys,
            has_tags=has_tags,
            inner_count=inner_count,
            drops_record_crc=self._record_crc_size > 0,
        )

    def _check_sizes(
        self, body_size: int, properties_size: int, size: int, late: _LateProperties | None = None
    ) -> None:
        """Refuse a message that is too large, for the reason that RocketMQ finds first."""
        if late is not None and late.light_queues is not None:
            # RocketMQ has limits of its own for light queues, and one answer.
            if properties_size > PROPERTIES_SIZE_MAX or size > self._sure_size_max:
                raise illegal(f"{properties_size} bytes of properties, {size} in all: too many for light queues")
        if properties_size > PROPERTIES_SIZE_MAX:
            detail = f"properties take {properties_size} bytes; {PROPERTIES_SIZE_MAX} fit"
            raise RefusedError(PutStatus.PROPERTIES_SIZE_EXCEEDED, detail)
        if body_size > self._message_size_max:
            raise illegal(f"the body takes {body_size} bytes; {self._message_size_max} fit")
        if size > self._log.record_size_max:
            raise illegal(f"the record takes {size} bytes; a file of the log holds {self._log.record_size_max}")

    def _check_not_busy(self) -> None:
        """Turn away who comes while another append takes too long, as RocketMQ does: the crowd grows no larger."""
        if self._lock.locked() and time.monotonic() - self._locked_at > self._busy_s:
            raise RefusedError(PutStatus.OS_PAGE_CACHE_BUSY, f"another append takes more than {self._busy_s:g} s")

    def _status_of_failure(self) -> PutStatus:
        """After an error of the log: it takes nothing more, or it had no room for its next file."""
        if self._log.failure is None:
            return PutStatus.CREATE_MAPPED_FILE_FAILED
        return PutStatus.SERVICE_NOT_AVAILABLE

    def _flushed(self, offset: int, wait: bool) -> tuple[PutStatus, str]:
        """Wait for the flush of what was put, if it waits."""
        assert self._flusher is not None
        if not wait:
            self._flusher.flush_soon()
            return PutStatus.PUT_OK, ""
        status = self._flusher.wait(offset)
        if status is PutStatus.PUT_OK:
            return status, ""
        failure = self._flusher.failure
        return status, str(failure or f"not flushed within {self._flusher.timeout_s:g} s")


@lru_cache(4096)
def _host_data(host: Host) -> bytes:
    return encode_host(host)
