"""Opening a store for reading: from a path, as a user gives it, to a MessageStore."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from whence.errors import NotFoundError, UsageError
from whence.files.folder import is_file, is_folder
from whence.files.names import sidecar_of
from whence.store.index_file import Shape
from whence.store.message_store import Dialect, MessageStore

if TYPE_CHECKING:
    from whence.store.ownership import Ownership

PLATFORMS = ("linux", "darwin")


def open_folder(
    path: str | Path, out: str | Path | None = None, shape: Shape | None = None, dialect: Dialect | None = None
) -> MessageStore:
    """The store in a folder, with the sidecar beside it, or the one in ``out``."""
    if sys.platform not in PLATFORMS:
        raise UsageError(f"whence reads stores on Linux and macOS, not on {sys.platform}")
    folder, ownership = store_folder(path)
    beside = sidecar_of(folder) if out is None else folder_of(out)
    if out is not None and not is_folder(beside):
        raise NotFoundError(f"{beside}: there is no such folder; whence build {folder} --out {beside} makes it")
    sidecar = beside if is_folder(beside) else None
    if ownership is None:
        return MessageStore(folder, shape, dialect, sidecar=sidecar)
    return open_owned(folder, ownership, shape, dialect, sidecar)


def open_owned(
    folder: Path,
    ownership: Ownership,
    shape: Shape | None = None,
    dialect: Dialect | None = None,
    sidecar: Path | None = None,
) -> MessageStore:
    """A store that whence made, for reading. What it noted of the log tells that it does not end before that."""
    from whence.store.ownership import is_same_log

    store = MessageStore(folder, shape, dialect, ownership.settings.log_paths(folder), sidecar)
    if is_same_log(store.commit_log, ownership.flushed):
        store.commit_log.known_boundary = ownership.flushed.queues
    return store


def store_folder(path: str | Path) -> tuple[Path, Ownership | None]:
    """The folder of a RocketMQ store, and what whence noted of it, if it is whence's; NotFoundError if it is none."""
    folder = folder_of(path)
    if not is_folder(folder):
        what = "is a file, and a store is a folder" if is_file(folder) else "there is no such folder"
        raise NotFoundError(f"{folder}: {what}")
    ownership = None
    if is_file(folder / "whence.json"):
        from whence.store.ownership import read_ownership

        ownership = read_ownership(folder)
    if ownership is None and not is_folder(folder / "commitlog"):
        hint = ""
        if folder.name == "commitlog":
            hint = f"; give the folder above it, {folder.parent}"
        elif is_file(folder / "sidecar.json"):
            hint = "; it is a sidecar: give the store that it belongs to"
        elif is_folder(folder / "store" / "commitlog"):
            hint = f"; did you mean {folder / 'store'}?"
        raise NotFoundError(f"{folder}: is no RocketMQ store, for it has no folder commitlog/{hint}")
    return folder, ownership


def folder_of(path: str | Path) -> Path:
    """The folder that a path or a ``file://`` address names."""
    text = str(path)
    if "://" not in text:
        return Path(path)
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise UsageError(f"{text}: only paths and file:// addresses can be opened")
    return Path(unquote(parts.path))
