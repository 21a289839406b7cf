"""The jobs as a user starts them: which store, which folders, whose lock, which Spark.

build_indexes    whence build
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whence.errors import CorruptError, LockedError, StoreError, UsageError
from whence.files.disk import Disk
from whence.files.folder import is_folder
from whence.files.lock import StoreLock
from whence.files.names import shown_zone, sidecar_of
from whence.formats.rocketmq.index_file import FIRST_ITEM
from whence.pipeline.build import (
    ALL_KINDS,
    Build,
    BuildPlace,
    BuildSettings,
    Built,
    nothing_built,
)
from whence.pipeline.built_before import goes_on, is_as_left
from whence.pipeline.expression_session import ANSI, ZONE
from whence.pipeline.field_evaluation import Definition, Evaluator
from whence.pipeline.fields import FieldBuild, FieldSettings, is_complete
from whence.pipeline.runner import Runner, Watcher
from whence.pipeline.seen import usual_queue_size
from whence.pipeline.session import SparkSettings, open_session
from whence.pipeline.sidecar_folder import LOCK, WORK, check_sidecar_folder, remove_left_in_work
from whence.pipeline.tasks import Kind
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FIELDS_MAX, FOLDER, check_field_name
from whence.store.follower import Follower, FollowSettings
from whence.store.index_file import DEFAULT_SHAPE, Shape
from whence.store.lost_log import refuse_lost_log
from whence.store.message_store import Dialect, MessageStore
from whence.store.owned_store import Options, now_ms, own_store
from whence.store.ownership import Flushed, Ownership, read_ownership
from whence.store.same_log import is_of_another
from whence.store.sidecar import NAME as SIDECAR_NAME
from whence.store.sidecar import Sidecar, read_sidecar
from whence.store.topic_table import TopicTable

COUNT_MAX = 2**31 - 1  # of slots and items


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a user asks for. None: what the sidecar says, else what the store's own files show, else RocketMQ's."""

    out: Path | None = None
    shape: Shape | None = None
    dialect: Dialect | None = None
    jobs: int | None = None
    spark: SparkSettings = field(default_factory=SparkSettings)
    log_file: Path | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs}: there is at least one task")


@dataclass(frozen=True, slots=True)
class BuildOptions(JobOptions):
    """``in_place``: into the store itself. ``rebuild``: all anew. ``with_sums``: tell each file's SHA-256.

    ``fields``: expressions of fields, by name, beside those that the sidecar knows; an empty one drops a field.
    ``kinds``: of files; None for what a store lacks that is whence's own or a broker's.
    """

    in_place: bool = False
    rebuild: bool = False
    with_sums: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[Kind, ...] | None = None


def build_indexes(folder: Path, options: BuildOptions, watcher: Watcher | None = None) -> Built:
    """Build what is missing of the indexes of the store in ``folder``, which is whence's own or a broker's."""
    disk, sidecar = Disk(), sidecar_of_job(folder, options)
    ownership = read_ownership(folder)
    if ownership is not None:
        # What a kill left undone is done as at any start: recovery decides what is true, and dispatch completes it.
        own_store(folder, {}, Options(), disk=disk, clock=now_ms).close()
        ownership = read_ownership(folder)
    in_place = options.in_place or ownership is not None
    log_folders = log_folders_of(folder, ownership)
    with ExitStack() as stack:
        stack.enter_context(locked_sidecar(sidecar, options, disk))
        if in_place:
            stack.enter_context(locked(folder / "lock", folder))
        store = stack.enter_context(MessageStore(folder, options.shape, options.dialect, log_folders))
        log = store.commit_log
        known, notes = known_of(folder, log, sidecar, options, rebuild=options.rebuild)
        if in_place or not options.rebuild:
            refuse_lost_log(log, log_folders, (sidecar, folder), known)
        topics = TopicTable(folder, disk, now_ms, only_read=True)
        notes += topics.notes
        settings = _settings(store, options, known, ownership, topics)
        place = BuildPlace(sidecar, folder if in_place else sidecar, _zone(store) if in_place else UTC)
        if known is not None and known.growing and not in_place:
            known = settled(folder, log, sidecar, known, disk)
        fields = wanted_fields(known, options.fields)
        built = None
        if known is not None and goes_on(log, place, settings, known):
            is_all = log.end_offset(boundary=known.indexed_to) == known.indexed_to
            if is_all and is_as_left(log, place, settings, known):
                remove_left_in_work(sidecar / WORK)
                built = replace(nothing_built(log, place, known), notes=notes)
                is_whole = is_complete(log, sidecar, settings.shape, known, fields)
                if is_whole and is_computed_so(known, options.spark.conf):
                    return built
        spark = stack.enter_context(
            open_session(options.spark, log_file=options.log_file, moves_rows=bool(fields or options.fields))
        )
        runner = Runner(spark, watcher)
        evaluator = Evaluator(spark, runner)
        definitions = definitions_of(evaluator, known, fields, options.spark.conf)
        if built is None:
            noted = {} if known is None else known.fields
            built = Build(log, place, settings, known, runner, disk, noted).run()
            built = replace(built, notes=notes)
            if ownership is not None and Kind.INDEX in settings.kinds:
                _own(folder, ownership, built, disk)
        if definitions or built.sidecar.fields or is_folder(sidecar / FOLDER):
            how = FieldSettings(settings.shape, options.jobs, options.rebuild, options.with_sums)
            build = FieldBuild(log, sidecar, how, built.sidecar, evaluator, runner, disk, built.taken)
            fields_built = build.run(definitions)
            for failure in fields_built.failures.values():
                raise failure  # the first; all else is built
            built = built.with_fields(fields_built)
        return built


def wanted_fields(known: Sidecar | None, given: Mapping[str, str]) -> dict[str, str]:
    """The expressions of all fields that are to be there, by name."""
    for name in given:
        check_field_name(name)
    fields = {} if known is None else {name: claim.sql for name, claim in known.fields.items()}
    dropped = {name for name, sql in given.items() if not sql.strip()}
    if unknown := sorted(dropped - fields.keys()):
        raise UsageError(f"--field {unknown[0]}=: drops a field, and there is none of this name; give its SQL")
    fields |= given
    if len(fields) - len(dropped) > FIELDS_MAX:
        raise UsageError(f"{len(fields) - len(dropped)} fields are too many; a store has up to {FIELDS_MAX}")
    return {name: sql for name, sql in fields.items() if name not in dropped}


def definitions_of(
    evaluator: Evaluator, known: Sidecar | None, fields: Mapping[str, str], conf: Mapping[str, str]
) -> list[Definition]:
    """What all fields are. One that is known keeps the zone and the mode it began with, if none is given.

    The others are checked: what is refused is wrong use. One that is known is checked when it is evaluated, so that
    it holds up no other.
    """
    definitions = []
    for name, sql in sorted(fields.items()):
        there = None if known is None else known.fields.get(name)
        noted = None if there is None else Definition.noted(name, there)
        if noted is None or noted.sql != sql:
            definition = _as_given(Definition(name, sql, *evaluator.session_of()), conf)
        else:
            definition = _as_given(noted, conf)
        if definition != noted:
            evaluator.check(definition)
        definitions.append(definition)
    return definitions


def _as_given(definition: Definition, conf: Mapping[str, str]) -> Definition:
    """A definition with the zone and the mode that a caller gives, which count for a session that is there, too."""
    zone, ansi = conf.get(ZONE, definition.session_zone), conf.get(ANSI, str(definition.ansi))
    return replace(definition, session_zone=zone, ansi=ansi.lower() == "true")


def is_computed_so(known: Sidecar, conf: Mapping[str, str]) -> bool:
    """Whether all fields were computed as they would be now, as far as can be told before Spark is started."""
    noted = [Definition.noted(name, claim) for name, claim in known.fields.items()]
    if any(_as_given(definition, conf) != definition for definition in noted):
        return False
    there = _spark_there()
    return there is None or all(claim.spark == there for claim in known.fields.values())


def _spark_there() -> str | None:
    """The version of the Spark that would be started; None if there is none."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        try:
            return version("pyspark")
        except PackageNotFoundError:
            return None
    core = next(Path(home, "jars").glob("spark-core_*.jar"), Path("unknown"))
    return core.stem.partition("-core_")[2].partition("-")[2]


def sidecar_of_job(folder: Path, options: JobOptions) -> Path:
    """Where whence writes. UsageError if it cannot be there, before anything is."""
    sidecar = options.out or sidecar_of(folder)
    if sidecar.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {sidecar}: lies in the store; name another folder, or build with --in-place")
    if is_folder(sidecar / "commitlog"):
        raise UsageError(f"--out {sidecar}: is a store itself, whose index and queues would go; name another folder")
    check_sidecar_folder(sidecar, f"--out {sidecar}" if options.out else str(sidecar))
    return sidecar


def log_folders_of(folder: Path, ownership: Ownership | None) -> tuple[Path, ...]:
    """Where the log of a store lies."""
    return (folder / "commitlog",) if ownership is None else tuple(ownership.settings.log_paths(folder))


def settled(folder: Path, log: CommitLog, sidecar: Path, known: Sidecar, disk: Disk) -> Sidecar:
    """What ``sidecar.json`` says when what a killed follower left undone is done, as at its next start."""
    topics = TopicTable(folder, disk, now_ms, only_read=True)
    followed = FollowSettings(known.shape, known.dialect, known.queue_file_size, topics.is_batch)
    follower = Follower(log, sidecar, followed, known, disk)
    try:
        follower.check()
    finally:
        follower.close()
    return follower.claim


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[StoreLock]:
    """Hold the lock of a folder that is written to."""
    try:
        lock = StoreLock(path)
    except LockedError as error:
        raise LockedError(f"{folder}: somebody is writing there; {error}") from None
    with lock:
        yield lock


@contextmanager
def locked_sidecar(sidecar: Path, options: JobOptions, disk: Disk) -> Iterator[StoreLock]:
    """Hold the lock of a sidecar, which is made if it is not there."""
    with ExitStack() as stack:
        try:
            disk.make_folder(sidecar)
            lock = stack.enter_context(locked(sidecar / LOCK, sidecar))
        except LockedError:
            raise
        except StoreError as error:
            if options.out is not None:
                raise
            raise StoreError(f"{error}; name another folder with --out") from error
        yield lock


def known_sidecar(sidecar: Path) -> Sidecar | None:
    """What an earlier build said. What cannot be understood counts for nothing: all is built anew."""
    try:
        known = read_sidecar(sidecar)
    except CorruptError:
        return None
    if (
        known is not None
        and 0 < known.slots <= COUNT_MAX
        and 1 < known.items <= COUNT_MAX
        and known.queue_file_size > 0
    ):
        return known
    return None


def known_of(
    folder: Path, log: CommitLog, sidecar: Path, options: JobOptions, *, rebuild: bool = False
) -> tuple[Sidecar | None, tuple[str, ...]]:
    """The same, if it is of this log; and what a user should know if it is of another one.

    UsageError if that lies in a folder that the user named, unless all is to be built anew: its indexes would go.
    """
    known = known_sidecar(sidecar)
    if known is None or not is_of_another(known, log, sidecar, folder if known.in_place else sidecar):
        return known, ()
    if options.out is not None and not rebuild:
        raise UsageError(
            f"--out {sidecar}: is the sidecar of another log, whose indexes would go; name another folder, "
            "or say whence build --rebuild"
        )
    fields = f", nor do its fields: {', '.join(known.fields)}" if known.fields else ""
    return None, (f"{sidecar / SIDECAR_NAME}: is of another log, so its shape and dialect do not count{fields}",)


def _settings(
    store: MessageStore,
    options: BuildOptions,
    known: Sidecar | None,
    ownership: Ownership | None,
    topics: TopicTable,
) -> BuildSettings:
    shape, dialect, queue_file_size = made_like(store, options, known, ownership)
    return BuildSettings(
        shape=shape,
        dialect=dialect,
        queue_file_size=queue_file_size,
        batch_topics=topics.batch_topics(),
        jobs=options.jobs,
        rebuild=options.rebuild,
        with_sums=options.with_sums,
        # A store of whence's own is indexed when it is closed: only what is not RocketMQ's is missing.
        kinds=options.kinds or ((Kind.TIMES,) if ownership is not None and not options.rebuild else ALL_KINDS),
    )


def made_like(
    store: MessageStore, options: JobOptions, known: Sidecar | None, ownership: Ownership | None
) -> tuple[Shape, Dialect, int]:
    """How index and queues are made: as asked, else as they are there already, else as the store's own are."""
    if ownership is not None:
        settings = ownership.settings
        shape, dialect, queue_file_size = settings.shape, settings.dialect, settings.queue_file_size
        if (options.shape or shape, options.dialect or dialect) != (shape, dialect):
            raise UsageError(
                f"{store.folder}: is whence's own, with {shape.slot_capacity} slots, {shape.item_capacity} items and "
                f"dialect {dialect}; that never changes, leave --slots, --items and --dialect out"
            )
    elif known is not None:
        shape, dialect, queue_file_size = known.shape, known.dialect, known.queue_file_size
    else:
        shape, dialect, queue_file_size = _shown_shape(store), store.dialect(), usual_queue_size(store.folder)
    return options.shape or shape, options.dialect or dialect, queue_file_size


def _shown_shape(store: MessageStore) -> Shape:
    """The shape of the newest index file of a store that shows it."""
    if store.index.files:  # else there is no need to look for the end of the log, which takes a scan of it
        store.cover()
    return next((file.shape for file in reversed(store.index.files) if file.shape), DEFAULT_SHAPE)


def _zone(store: MessageStore) -> tzinfo | None:
    """The zone in which a store's index files are named; None for this machine's."""
    for file in reversed(store.index.files):
        try:
            header = file.header()
        except (CorruptError, StoreError):
            continue
        if header.next_item > FIRST_ITEM:
            return shown_zone(file.path.name, header.begin_timestamp_ms)
    return None


def _own(folder: Path, ownership: Ownership, built: Built, disk: Disk) -> None:
    """Note in ``whence.json`` what was built anew."""
    sidecar = built.sidecar
    names = sidecar.index_names
    flushed = Flushed(
        queues=sidecar.indexed_to,
        index=sidecar.indexed_to,
        last_record_offset=sidecar.last_record_offset,
        last_record=sidecar.last_record,
        index_name=names[-1] if names else "",
        index_header=sidecar.newest_header,
        older_index_names=names[:-1],
        queues_size=built.queues_size,
    )
    Ownership(ownership.settings, flushed).write(folder, disk)
