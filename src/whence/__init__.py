"""whence: where is this message? Exact lookups in RocketMQ's own files, with an answer that proves itself."""

from typing import TYPE_CHECKING, Any

from whence.errors import (
    CorruptError,
    FormatError,
    FullError,
    LockedError,
    NotFoundError,
    SealedError,
    StoreError,
    TruncatedError,
    UnsupportedError,
    UsageError,
    WhenceError,
)

if TYPE_CHECKING:
    from whence.door import Store, WritableStore
    from whence.door import create_store as create
    from whence.door import open_store as open

__version__ = "0.1.0.dev0"

__all__ = [
    "CorruptError",
    "FormatError",
    "FullError",
    "LockedError",
    "NotFoundError",
    "SealedError",
    "Store",
    "WritableStore",
    "StoreError",
    "TruncatedError",
    "UnsupportedError",
    "UsageError",
    "WhenceError",
    "create",
    "open",
]


def __getattr__(name: str) -> Any:
    """Load the door when it is touched: ``whence --version`` and an early Ctrl-C need none of it."""
    if name in ("open", "create", "Store", "WritableStore"):
        from whence import door

        return getattr(door, {"open": "open_store", "create": "create_store"}.get(name, name))
    if name == "spark":
        from importlib import import_module

        return import_module("whence.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
