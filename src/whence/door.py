"""Store: what ``whence.open`` gives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack
from urllib.parse import unquote, urlsplit

from whence.errors import NotFoundError, UsageError
from whence.files.disk import Disk
from whence.files.folder import is_folder
from whence.files.lock import StoreLock
from whence.lookup import search
from whence.lookup.answer import Answer
from whence.lookup.explain import Explanation, Recorder
from whence.lookup.question import Asked, make_question, parse_age
from whence.lookup.search import Progress
from whence.store.index_file import Shape
from whence.store.message_store import Dialect, MessageStore

if TYPE_CHECKING:
    from whence.store.expiry import Expired

PLATFORMS = ("linux", "darwin")


def open_store(
    path: str | Path,
    *,
    slots: int | None = None,
    items: int | None = None,
    dialect: str | None = None,
) -> Store:
    """Open a store for reading: a RocketMQ store folder (it has ``commitlog/``).

    ``slots`` and ``items`` are the broker's ``maxHashSlotNum`` and ``maxIndexNum``, should the index files not
    show them; ``dialect`` is the version that wrote the index: 4.9, 5.3 or 5.5.
    """
    return Store([_open_folder(path, slots, items, dialect)])


def open_stores(
    paths: list[str | Path],
    *,
    slots: int | None = None,
    items: int | None = None,
    dialect: str | None = None,
) -> Store:
    """Open several stores, to be asked as one."""
    return Store([_open_folder(path, slots, items, dialect) for path in paths])


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
    from whence.store.expiry import Expiry
    from whence.store.expiry_policy import ALL_HOURS, AgeBy, ExpiryPolicy

    folder, log_folders = _store_folder(path)
    if by not in list(AgeBy):
        raise UsageError(f"age by {by!r} is not one of {', '.join(AgeBy)}")
    policy = ExpiryPolicy(parse_age(older_than), ALL_HOURS, batch_max=None, age_by=AgeBy(by))
    archive = None if archive is None else Path(archive)
    expiry = Expiry(folder, policy, disk or Disk(), log_folders=log_folders, archive=archive)
    now_ms = int(clock() * 1000)
    if dry_run:
        return expiry.plan(now_ms)
    if not in_place and not (folder / "whence.json").exists():
        raise UsageError(
            f"{folder}: is not a store that whence made, and this would change it; say --in-place to allow that, "
            "or --dry-run to see what would go"
        )
    with StoreLock(folder / "lock"):
        return expiry.run(now_ms, progress=progress)


def _open_folder(path: str | Path, slots: int | None, items: int | None, dialect: str | None) -> MessageStore:
    if sys.platform not in PLATFORMS:
        raise UsageError(f"whence reads stores on Linux and macOS, not on {sys.platform}")
    if (slots is None) != (items is None):
        raise UsageError("--slots and --items go together: an index file's length alone gives neither")
    if slots is not None and items is not None and (slots < 1 or items < 2):
        raise UsageError(f"--slots {slots} --items {items}: an index file has at least 1 slot and 2 items")
    shape = None if slots is None or items is None else Shape(slots, items)
    if dialect is not None and dialect not in list(Dialect):
        raise UsageError(f"dialect {dialect!r} is not one of {', '.join(Dialect)}")
    folder, log_folders = _store_folder(path)
    return MessageStore(folder, shape, Dialect(dialect) if dialect else None, log_folders)


def _store_folder(path: str | Path) -> tuple[Path, list[Path]]:
    """The folder of a RocketMQ store, and those of its log, if they are elsewhere; NotFoundError if it is none."""
    folder = _folder_of(path)
    if not is_folder(folder):
        raise NotFoundError(f"{folder}: there is no such folder")
    log_folders = _log_folders(folder)
    if not log_folders and not is_folder(folder / "commitlog"):
        hint = ""
        if folder.name == "commitlog":
            hint = f"; give the folder above it, {folder.parent}"
        elif is_folder(folder / "store" / "commitlog"):
            hint = f"; did you mean {folder / 'store'}?"
        raise NotFoundError(f"{folder}: is no RocketMQ store, for it has no folder commitlog/{hint}")
    return folder, log_folders


def _log_folders(folder: Path) -> list[Path]:
    """The folders of the log of a store that whence made with several."""
    if not (folder / "whence.json").exists():
        return []
    from whence.store.ownership import read_ownership

    ownership = read_ownership(folder)
    return [] if ownership is None else ownership.settings.log_paths(folder)


def _folder_of(path: str | Path) -> Path:
    text = str(path)
    if "://" not in text:
        return Path(path)
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise UsageError(f"{text}: only paths and file:// addresses can be opened")
    return Path(unquote(parts.path))


class Store:
    """One or several opened stores. Read-only; for one thread; closes with ``with`` or :meth:`close`."""

    def __init__(self, stores: list[MessageStore], clock: Callable[[], float] = time.time) -> None:
        self.stores = stores
        self._clock = clock

    def find(self, *, progress: Progress | None = None, **asked: Unpack[Asked]) -> Answer:
        """The messages that answer a question, with a receipt.

        The arguments are the question's: ``key`` (one or several), ``topic``, ``id``, ``offset``, ``queue``,
        ``queue_offset``, ``since``, ``until``, ``tag``, ``limit`` (64; None for all), ``cursor``, ``oldest_first``,
        ``system_topics``, ``scan``, ``no_scan``. Times are datetimes, ISO texts, epoch ms or ages as ``15m``.
        """
        return self._ask(None, progress, asked)

    def explain(self, *, progress: Progress | None = None, **asked: Unpack[Asked]) -> Explanation:
        """The same, told step by step."""
        recorder = Recorder()
        return Explanation(self._ask(recorder, progress, asked), recorder.steps)

    def _ask(self, recorder: Recorder | None, progress: Progress | None, asked: Asked) -> Answer:
        started = time.perf_counter_ns()
        question = make_question(int(self._clock() * 1000), **asked)
        answer = search.find(self.stores, question, tracer=recorder, progress=progress)
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
