"""Store and WritableStore: what ``whence.open`` and ``whence.create`` give."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from whence.errors import UsageError
from whence.files.names import OFFSET_MAX
from whence.formats.rocketmq.host import parse_host
from whence.lookup import search
from whence.lookup.answer import Answer
from whence.lookup.explain import Explanation, Recorder
from whence.lookup.question import Asked, AskedOfMany, Question, ScanMode, make_question, parse_age
from whence.lookup.search import Progress
from whence.store.index_file import Shape
from whence.store.message_store import Dialect, MessageStore
from whence.store.opening import folder_of, open_folder, open_owned, store_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from whence.errors import StoreError
    from whence.files.disk import Disk
    from whence.lookup.asked_keys import AskedKeys, Keys
    from whence.lookup.field_search import Evaluate
    from whence.lookup.many_answer import ManyAnswer
    from whence.lookup.many_columns import ManyBatches
    from whence.pipeline.build import Built
    from whence.pipeline.export import Exported
    from whence.pipeline.follow_state import FollowState, FollowWatcher
    from whence.pipeline.many import ManyOnSpark
    from whence.pipeline.repair import Repaired
    from whence.pipeline.runner import Watcher
    from whence.pipeline.session import SparkSettings
    from whence.pipeline.verify import Verified
    from whence.store.expiry import Expired
    from whence.store.expiry_policy import ExpiryPolicy
    from whence.store.owned_store import OwnedStore
    from whence.store.recovery import Recovered


def open_store(
    path: str | Path,
    *,
    out: str | Path | None = None,
    slots: int | None = None,
    items: int | None = None,
    dialect: str | None = None,
) -> Store:
    """Open a store for reading: a RocketMQ store folder (it has ``commitlog/``).

    What ``whence build`` made of it is looked for beside it, or in the folder ``out``.

    ``slots`` and ``items`` are the broker's ``maxHashSlotNum`` and ``maxIndexNum``, should the index files not
    show them; ``dialect`` is the version that wrote the index: 4.9, 5.3 or 5.5.
    """
    return Store([_open_folder(path, out, slots, items, dialect)])


def open_stores(
    paths: list[str | Path],
    *,
    out: str | Path | None = None,
    slots: int | None = None,
    items: int | None = None,
    dialect: str | None = None,
) -> Store:
    """Open several stores, to be asked as one."""
    if out is not None and len(paths) > 1:
        raise UsageError("--out is the sidecar of one store; several stores have theirs beside them")
    return Store([_open_folder(path, out, slots, items, dialect) for path in paths])


def create_store(
    path: str | Path,
    *,
    flush: str = "async",
    file_size: int | None = None,
    queue_file_size: int | None = None,
    slots: int | None = None,
    items: int | None = None,
    dialect: str | None = None,
    log_folders: Sequence[str | Path] | None = None,
    store_host: str = "127.0.0.1:10911",
    message_size_max: int = 4 * 1048576,
    record_crc: bool = False,
    warm_up: bool = False,
    flush_timeout_s: float = 5.0,
    keep: str | None = None,
    delete_when: str = "04",
    adopt: bool = False,
    disk: Disk | None = None,
    clock: Callable[[], int] | None = None,
) -> WritableStore:
    """Make a store that can be written, or go on with it; nobody else can write to it meanwhile.

    ``flush``: with "async" an append returns when the message is in the log, which a crash of the process does not
    harm but a power failure within the next half second may; with "sync" it returns when the message is on the disk.

    ``file_size``, ``queue_file_size``, ``slots``, ``items`` and ``dialect`` are RocketMQ's (1 GiB, 6,000,000 bytes,
    5,000,000, 20,000,000, 5.5) unless they are given when the store is made. ``log_folders``: several disks for the
    log. ``store_host``: what offset ids name. ``record_crc``: a checksum over all of each record, not its body alone.
    ``keep``: an age as 72h after which messages go, at the hours ``delete_when``, or earlier when the disk gets full;
    without it nothing goes by itself.
    ``warm_up``: write the log's files once before they are used. ``adopt``: take over a store that whence did not
    make. ``disk`` and ``clock`` (milliseconds) are for tests.
    """
    from whence.store.expiry_policy import ExpiryPolicy, parse_hours
    from whence.store.flusher import FlushMode
    from whence.store.owned_store import Options, now_ms, own_store

    if sys.platform != "linux":
        raise UsageError(f"whence writes stores on Linux, not on {sys.platform}")
    if flush not in list(FlushMode):
        raise UsageError(f"flush={flush!r} is neither async nor sync")
    given = {
        "file_size": file_size,
        "queue_file_size": queue_file_size,
        "slots": slots,
        "items": items,
        "dialect": None if dialect is None else _dialect(dialect),
        "log_folders": None if log_folders is None else tuple(map(str, log_folders)),
    }
    options = Options(
        flush=FlushMode(flush),
        flush_timeout_s=flush_timeout_s,
        store_host=parse_host(store_host),
        message_size_max=message_size_max,
        record_crc=record_crc,
        warm_up=warm_up,
        expiry=None if keep is None else ExpiryPolicy(parse_age(keep), parse_hours(delete_when)),
    )
    folder = folder_of(path).absolute()
    named = {name: value for name, value in given.items() if value is not None}
    owned = own_store(folder, named, options, adopt=adopt, disk=disk, clock=clock or now_ms)
    return WritableStore(owned)


def expire_store(
    path: str | Path,
    *,
    older_than: str,
    by: str = "file",
    archive: str | Path | None = None,
    dry_run: bool = False,
    in_place: bool = False,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
    disk: Disk | None = None,
) -> Expired:
    """Let go of the log files of a store that are older than an age as ``72h``, and of what leads only into them.

    ``by``: a file's age is that of the ``file`` or of the ``record`` behind it. ``archive``: move all of it there,
    into a store of its own. ``in_place`` allows it for a store that whence did not make; ``dry_run`` only tells.
    """
    from whence.files.disk import Disk
    from whence.files.lock import StoreLock
    from whence.store.expiry import Expiry

    folder, ownership = store_folder(path)
    policy = _policy(older_than, by)
    log_folders = () if ownership is None else ownership.settings.log_paths(folder)
    to = None if archive is None else folder_of(archive)
    expiry = Expiry(folder, policy, disk or Disk(), log_folders=log_folders, archive=to)
    keep_from = OFFSET_MAX if ownership is None else ownership.flushed.queues
    now_ms = int(clock() * 1000)
    if dry_run:
        return expiry.plan(now_ms, keep_from)
    if not in_place and ownership is None:
        raise UsageError(
            f"{folder}: is not a store that whence made, and this would change it; say --in-place to allow that, "
            "or --dry-run to see what would go"
        )
    with StoreLock(folder / "lock"):
        return expiry.run(now_ms, keep_from, progress)


class JobAsked(TypedDict, total=False):
    """What every job on Spark may be given.

    ``out`` is the sidecar, if that does not lie beside the store. ``slots``, ``items`` and ``dialect`` are those that
    the store shows unless they are given. ``jobs`` is into how many tasks the work is cut; it changes nothing about
    the bytes. ``log_file`` is where Spark's own words go.
    """

    out: str | Path | None
    slots: int | None
    items: int | None
    dialect: str | None
    jobs: int | None
    spark: SparkSettings | None
    log_file: Path | None


def build_store(
    path: str | Path,
    *,
    in_place: bool = False,
    rebuild: bool = False,
    with_sums: bool = False,
    fields: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
    **asked: Unpack[JobAsked],
) -> Built:
    """Build what is missing of a store's indexes, on Spark: into its sidecar, or the folder ``out``.

    ``in_place`` puts RocketMQ's kinds of files into the store itself; ``rebuild`` makes all of them anew.
    ``with_sums`` tells each file's SHA-256. ``fields``: expressions in Spark's SQL over a message's columns, by name,
    whose values are indexed, too; those that are there already stay, and an empty one drops a field.
    """
    from whence.pipeline.jobs import BuildOptions, build_indexes

    folder = _folder_of_job(path)
    options = BuildOptions(
        **_job_options(asked), in_place=in_place, rebuild=rebuild, with_sums=with_sums, fields=fields or {}
    )
    return build_indexes(folder, options, watcher)


def follow_store(
    path: str | Path,
    *,
    once: bool = False,
    metrics_port: int | None = None,
    watcher: FollowWatcher = lambda state: None,
    stop: threading.Event | None = None,
    **asked: Unpack[JobAsked],
) -> FollowState:
    """Keep the indexes in a store's sidecar up with its log, on Spark, until ``stop`` is set.

    ``once`` handles what is there and ends. ``watcher`` is told about twice a second how it goes; ``metrics_port`` is
    where Prometheus may ask for the same, on this machine.
    """
    from whence.pipeline.follow_jobs import FollowOptions, follow_indexes

    folder = _folder_of_job(path)
    options = FollowOptions(**_job_options(asked), once=once, metrics_port=metrics_port)
    return follow_indexes(folder, options, watcher, stop or threading.Event())


def verify_store(path: str | Path, *, watcher: Watcher | None = None, **asked: Unpack[JobAsked]) -> Verified:
    """Hold a store's log and indexes against each other, on Spark. Nothing of it is changed.

    What readers use is judged: the sidecar, in ``out`` or beside the store, or else the store's own files.
    """
    from whence.pipeline.jobs import JobOptions
    from whence.pipeline.verify_jobs import verify_indexes

    folder = _folder_of_job(path)
    return verify_indexes(folder, JobOptions(**_job_options(asked)), watcher)


def repair_store(
    path: str | Path,
    *,
    in_place: bool = False,
    cut_tail: bool = False,
    dry_run: bool = False,
    watcher: Watcher | None = None,
    **asked: Unpack[JobAsked],
) -> Repaired:
    """Mend what :func:`verify_store` finds, on Spark: damaged files are made anew from the log.

    A store that whence did not make is only read, and its sidecar gets what is right, unless ``in_place`` allows to
    change it. ``cut_tail`` cuts off what lies behind the log's last whole record. ``dry_run`` only tells.
    """
    from whence.pipeline.judged import RepairOptions
    from whence.pipeline.verify_jobs import repair_indexes

    folder = _folder_of_job(path)
    options = RepairOptions(**_job_options(asked), in_place=in_place, cut_tail=cut_tail, dry_run=dry_run)
    return repair_indexes(folder, options, watcher)


def export_store(
    path: str | Path,
    target: str | Path,
    *,
    format: str = "parquet",
    question: Asked | None = None,
    keys: Keys | None = None,
    where: str | None = None,
    rebuild: bool = False,
    watcher: Watcher | None = None,
    clock: Callable[[], float] = time.time,
    **asked: Unpack[JobAsked],
) -> Exported:
    """Write messages of a store to files in the folder ``target``, on Spark.

    ``format`` is ``parquet``, ``jsonl``, ``csv`` or ``bulk``. ``question`` has the arguments of :meth:`Store.find`;
    without one, all messages are written but those of system topics. ``keys`` may be very many, as those of
    :meth:`Store.find_many`. ``where`` is an expression of Spark SQL over the columns of docs/spark.md. ``rebuild``
    replaces another export that is there.
    """
    from whence.lookup.asked_keys import read_keys
    from whence.pipeline.export import ExportOptions, export_messages
    from whence.pipeline.export_files import Format

    folder = _folder_of_job(path)
    if format not in list(Format):
        raise UsageError(f"format {format!r} is not one of {', '.join(Format)}")
    options = ExportOptions(
        **_job_options(asked),
        target=folder_of(target).absolute(),
        format=Format(format),
        where=where,
        rebuild=rebuild,
    )
    put = make_question(int(clock() * 1000), **(question or {}))
    with _open_folder(
        folder, asked.get("out"), asked.get("slots"), asked.get("items"), asked.get("dialect")
    ) as store:
        return export_messages(store, put, options, watcher, () if keys is None else tuple(read_keys(keys)))


def _job_options(asked: JobAsked) -> dict[str, Any]:
    """The members of :class:`whence.pipeline.jobs.JobOptions`."""
    from whence.pipeline.session import SparkSettings

    unknown = asked.keys() - JobAsked.__annotations__.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: a job has {', '.join(JobAsked.__annotations__)}")
    out, dialect = asked.get("out"), asked.get("dialect")
    return {
        "out": None if out is None else folder_of(out).absolute(),
        "shape": _shape(asked.get("slots"), asked.get("items")),
        "dialect": None if dialect is None else _dialect(dialect),
        "jobs": asked.get("jobs"),
        "spark": asked.get("spark") or SparkSettings(),
        "log_file": asked.get("log_file"),
    }


def _folder_of_job(path: str | Path) -> Path:
    if sys.platform != "linux":
        raise UsageError(f"whence builds indexes on Linux, not on {sys.platform}")
    folder, _ = store_folder(path)
    return folder.absolute()


def _policy(older_than: str, by: str) -> ExpiryPolicy:
    """Let go of all that is older, at once."""
    from whence.store.expiry_policy import ALL_HOURS, AgeBy, ExpiryPolicy

    if by not in list(AgeBy):
        raise UsageError(f"age by {by!r} is not one of {', '.join(AgeBy)}")
    return ExpiryPolicy(parse_age(older_than), ALL_HOURS, batch_max=None, age_by=AgeBy(by))


def _open_folder(
    path: str | Path, out: str | Path | None, slots: int | None, items: int | None, dialect: str | None
) -> MessageStore:
    return open_folder(path, out, _shape(slots, items), None if dialect is None else _dialect(dialect))


def _shape(slots: int | None, items: int | None) -> Shape | None:
    if (slots is None) != (items is None):
        raise UsageError("--slots and --items go together: an index file's length alone gives neither")
    if slots is None or items is None:
        return None
    if slots < 1 or items < 2:
        raise UsageError(f"--slots {slots} --items {items}: an index file has at least 1 slot and 2 items")
    return Shape(slots, items)


def _dialect(text: str) -> Dialect:
    if text not in list(Dialect):
        raise UsageError(f"dialect {text!r} is not one of {', '.join(Dialect)}")
    return Dialect(text)


class Store:
    """One or several opened stores, to be asked; for one thread; closes with ``with`` or :meth:`close`."""

    def __init__(self, stores: list[MessageStore], clock: Callable[[], float] = time.time) -> None:
        self.stores = stores
        self._clock = clock

    def find(
        self,
        *,
        progress: Progress | None = None,
        spark: SparkSettings | None = None,
        watcher: Watcher | None = None,
        log_file: Path | None = None,
        **asked: Unpack[Asked],
    ) -> Answer:
        """The messages that answer a question, with a receipt.

        The arguments are the question's: ``key`` (one or several), ``topic``, ``id``, ``offset``, ``queue``,
        ``queue_offset``, ``since``, ``until``, ``tag``, ``field`` (as ``"order=4711"``, or a dict), ``limit`` (64;
        None for all), ``cursor``, ``oldest_first``, ``system_topics``, ``scan``, ``no_scan``. Times are datetimes,
        ISO texts, epoch ms or ages as ``15m``. With ``scan`` a field is evaluated on Spark: ``spark`` says how.
        """
        question = self._question(asked)
        if not question.fields or question.scan is not ScanMode.EVERYTHING:
            return self._ask(question, None, progress)
        from whence.pipeline.field_scan import open_field_scan

        with open_field_scan(spark, log_file=log_file, watcher=watcher) as evaluate:
            return self._ask(question, None, progress, evaluate)

    def explain(self, *, progress: Progress | None = None, **asked: Unpack[Asked]) -> Explanation:
        """The same, told step by step."""
        recorder = Recorder()
        return Explanation(self._ask(self._question(asked), recorder, progress), recorder.steps)

    def find_many(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        spark: SparkSettings | bool | None = None,
        progress: Progress | None = None,
        watcher: Watcher | None = None,
        **asked: Unpack[AskedOfMany],
    ) -> pa.Table:
        """The messages that bear one of very many keys, as an Arrow table; see :meth:`answer_many`.

        Its metadata has, as JSON, the ``whence.question`` and the ``whence.receipt``; in a file they stay with it.
        """
        answer = self.answer_many(keys, columns=columns, spark=spark, progress=progress, watcher=watcher, **asked)
        told = {"whence.question": answer.question.to_dict(), "whence.receipt": answer.receipt.to_dict()}
        return answer.table.replace_schema_metadata({name: json.dumps(each) for name, each in told.items()})

    def answer_many(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        spark: SparkSettings | bool | None = None,
        progress: Progress | None = None,
        watcher: Watcher | None = None,
        **asked: Unpack[AskedOfMany],
    ) -> ManyAnswer:
        """The messages that bear one of very many keys, as an Arrow ``table``; ``missing`` keys; and a ``receipt``.

        ``keys`` are texts, or bytes in UTF-8: any iterable, an Arrow array or column; or a Path or an open binary
        file with one on each line. One that is there twice is asked once. A row is a key and a message that bears it;
        rows come in the order in which the keys were asked, those of a key newest first.

        ``columns`` (one or several) says what a row tells of its message; if it is left out, where it lies. The other
        arguments are those of :meth:`find`, but that ``limit`` is the most that is given for each key, and all if it
        is left out.

        Ten million keys and more are looked up on Spark, where that is installed. ``spark`` says how, and that it is
        used for fewer, too; False never uses it. The answer is the same.
        """
        from whence.lookup.asked_keys import read_keys
        from whence.lookup.many_answer import ManyAnswer
        from whence.store.message_columns import load_pyarrow

        pa = load_pyarrow()
        started = time.perf_counter_ns()
        question = self._question_of_many(asked)
        pieces = list(read_keys(keys))
        while True:
            missing = [pa.array([], pa.string())]
            batches = self._many(pieces, question, columns, progress, missing.append, spark, watcher)
            table = pa.Table.from_batches(list(batches), batches.schema)
            if not batches.is_doubtful:
                break
        receipt = batches.receipt
        receipt.elapsed_us = (time.perf_counter_ns() - started) // 1000
        return ManyAnswer(question, table, pa.chunked_array(missing), receipt)

    def find_many_batches(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        on_missing: Callable[[Any], None] | None = None,
        spark: SparkSettings | bool | None = None,
        log_file: Path | None = None,
        progress: Progress | None = None,
        watcher: Watcher | None = None,
        **asked: Unpack[AskedOfMany],
    ) -> ManyBatches | ManyOnSpark:
        """The same a batch of rows after the other, for an answer that is too large for memory.

        Iterate over it for Arrow record batches, then look at its ``receipt``. ``on_missing`` is given Arrow arrays
        of the keys that no message bears.
        """
        from whence.lookup.asked_keys import read_keys

        question = self._question_of_many(asked)
        return self._many(read_keys(keys), question, columns, progress, on_missing, spark, watcher, log_file)

    def _question_of_many(self, asked: AskedOfMany) -> Question:
        unknown = asked.keys() - AskedOfMany.__annotations__.keys()
        if unknown:
            known = ", ".join(AskedOfMany.__annotations__)
            raise TypeError(f"{', '.join(sorted(unknown))}: a question of many keys has {known}")
        whole: Asked = {"limit": None, **asked}  # type: ignore[typeddict-item]
        return make_question(int(self._clock() * 1000), **whole)

    def _many(
        self,
        pieces: Iterable[AskedKeys],
        question: Question,
        columns: Sequence[str] | None,
        progress: Progress | None,
        on_missing: Callable[[Any], None] | None,
        spark: SparkSettings | bool | None,
        watcher: Watcher | None,
        log_file: Path | None = None,
    ) -> ManyBatches | ManyOnSpark:
        from whence.lookup.many_answer import ManySearch, is_for_spark
        from whence.lookup.many_columns import POSITIONS, ManyBatches

        names = POSITIONS if columns is None else (columns,) if isinstance(columns, str) else columns
        if spark is None:
            pieces, spark = is_for_spark(pieces)
        if spark is False:
            return ManyBatches(ManySearch(self.stores, question, progress), pieces, names, on_missing)
        from whence.pipeline.many import ManyOnSpark

        settings = None if spark is True else spark
        return ManyOnSpark(
            self.stores, question, pieces, names, on_missing, spark=settings, log_file=log_file, watcher=watcher
        )

    def _question(self, asked: Asked) -> Question:
        return make_question(int(self._clock() * 1000), **asked)

    def _ask(
        self,
        question: Question,
        recorder: Recorder | None,
        progress: Progress | None,
        evaluate: Evaluate | None = None,
    ) -> Answer:
        started = time.perf_counter_ns()
        answer = search.find(self.stores, question, tracer=recorder, progress=progress, evaluate=evaluate)
        answer.receipt.elapsed_us = (time.perf_counter_ns() - started) // 1000
        return answer

    def topics(self) -> list[str]:
        """The topics that the stores' queues and configuration name."""
        return sorted({topic for store in self.stores for topic in store.topics()})

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class WritableStore(Store):
    """What ``whence.create`` gives: a store to append to and to ask. Threads may append side by side."""

    def __init__(self, owned: OwnedStore) -> None:
        settings = owned.settings
        super().__init__([open_owned(owned.folder, owned.ownership, settings.shape, settings.dialect)])
        self._owned = owned
        # Bound here and not defined below: one call less for each message.
        self.append = owned.appender.append
        self.append_batch = owned.appender.append_batch
        self.append_client_batch = owned.appender.append_client_batch
        self.append_inner_batch = owned.appender.append_inner_batch

    @property
    def recovered(self) -> Recovered:
        """What was found, and cut, when the store was opened."""
        return self._owned.recovered

    @property
    def failure(self) -> StoreError | None:
        """Why the store takes no more messages; None if it does."""
        return self._owned.failure

    @property
    def dispatch_lag(self) -> int:
        """Bytes of the log that are not in queues and index yet. They are found all the same: by a scan."""
        return self._owned.dispatcher.lag

    def make_topic(self, topic: str, queues: int = 4, attributes: Mapping[str, str] | None = None) -> None:
        """Make a topic with so many queues, or give it more. An append to a topic that is not there makes it, too."""
        self._owned.topics.make(topic, queues, attributes)

    def wait_dispatched(self, timeout_s: float | None = None) -> bool:
        """Wait until all that is appended by now is in queues and index; False if the time is up."""
        return self._owned.wait_dispatched(timeout_s)

    def expire(self, older_than: str, *, by: str = "file", archive: str | Path | None = None) -> Expired:
        """Let go of messages older than an age as ``72h``; see :func:`expire_store`, which is for a store at rest."""
        to = None if archive is None else folder_of(archive)
        return self._owned.expire(_policy(older_than, by), to)

    def flush(self) -> None:
        """Wait until all that was appended by now is on the disk, in log, queues and index."""
        self._owned.flush()

    def close(self) -> None:
        """Dispatch and flush all that is left. What makes that impossible is raised, and the next start recovers."""
        super().close()
        self._owned.close()
