"""Compiled kernels on disk: a kernel takes the compiler seconds, and a process that finds it here milliseconds.

    file    <module>.<kernel>-<sources>-<digest>: one kernel, compiled for one list of argument types

    file := sha256 of what follows (32 bytes), pickle of Numba's compile result

The digests in the name cover all that machine code depends on: the sources of kernels/ and formats/ (whose
constants become part of it), the argument types, Numba, Python, processor. So a file is never out of date, nothing
is ever changed, and any number of processes can start at once on an empty folder: each compiles, writes aside and
renames, and it does not matter who is last. A file that a power failure left in pieces fails its sha256 and is
written anew. Who writes a file removes those that are older than half a year. A pickle is code: cache_folder.py says
where it may lie.

Numba's own cache would look beside the sources, which a read-only install forbids, and does not notice a change in
another module than the kernel's own. Files are written here and not through files/, a layer above, because Numba asks
for them in the midst of a call.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from whence.cache_folder import cache_folders, remove_old

DIGEST_SIZE = hashlib.sha256().digest_size


class CompiledKernels:
    """What Numba asks for compiled forms of one kernel, and gives new ones to."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def cache_path(self) -> str | None:
        return str(folders()[0]) if folders() else None

    def load_overload(self, argument_types: Any, target_context: Any) -> Any:
        # All that loaded code needs of Numba; what compiling needs besides would take 0.35 s to prepare.
        rtsys.initialize(target_context)
        for folder in folders():
            payload = _read(folder / self._file_name(argument_types, target_context.codegen()))
            if payload is not None:
                return CompileResult._rebuild(target_context, *pickle.loads(payload))
        return None

    def save_overload(self, argument_types: Any, compiled: Any) -> None:
        if compiled.library.has_dynamic_globals:
            return  # it holds addresses of this process, as code does that Numba was told not to optimise
        payload = dumps(compiled._reduce())
        file_name = self._file_name(argument_types, compiled.codegen)
        any(_write(folder / file_name, payload) for folder in folders())

    def kept_types(self, codegen: Any) -> list[Any]:
        """The lists of argument types for which a compiled form lies on disk."""
        kept = []
        for path in (path for folder in folders() for path in folder.glob(f"{self._prefix}*")):
            payload = _read(path)
            if payload is not None:
                _, _, _, signature, *_ = pickle.loads(payload)
                if path.name == self._file_name(signature.args, codegen):  # else it is for another processor
                    kept.append(signature.args)
        return kept

    @property
    def _prefix(self) -> str:
        return f"{self._name}-{_sources_digest()[:16]}-"

    def _file_name(self, argument_types: Any, codegen: Any) -> str:
        depends_on = (argument_types, codegen.magic_tuple(), numba.__version__, sys.version, _sources_digest())
        return self._prefix + hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]

    def flush(self) -> None:
        """Numba's to call when a kernel is compiled anew. Nothing here goes out of date."""


@cache
def folders() -> tuple[Path, ...]:
    """Where compiled kernels may lie, best first; none if no folder can be trusted."""
    # Run from a zip file, nothing says which version this is.
    return cache_folders("kernels") if _sources() else ()


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, payload = content[:DIGEST_SIZE], content[DIGEST_SIZE:]
    return payload if hashlib.sha256(payload).digest() == digest else None


def _write(path: Path, payload: bytes) -> bool:
    """Whether it was written. It need not be: a full or read-only disk costs time, not answers."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        aside = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            aside.replace(path)
        except BaseException:
            aside.unlink()
            raise
    except OSError:
        return False
    with suppress(OSError):  # another process may be at the same
        remove_old(path)
    return True


def _sources() -> list[Path]:
    package = Path(__file__).parent.parent
    return sorted(path for layer in ("kernels", "formats") for path in (package / layer).rglob("*.py"))


@cache
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()
