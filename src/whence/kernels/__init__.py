"""Loops over arrays of bytes, compiled by Numba. Arrays in, arrays out.

    @kernel    a loop that is called from Python, or by other kernels; compiled once and kept on disk (cache.py)
    @inlined   a piece of a kernel: becomes a part of every kernel that calls it

Only bulk paths import a module from here, for Numba takes a third of a second to import. Kernels check what they
read, not what they are given: the plain functions around them do that.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ParamSpec, TypeVar

import numba

from whence.kernels.cache import CompiledKernels

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: dict[str, Any] = {
    "nogil": True,  # a kernel touches no Python object
    "boundscheck": False,
    "error_model": "numpy",  # no test for zero before each division
}


_kernels: list[Any] = []


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` when it is first called, or take it from disk."""
    dispatcher = numba.njit(**_OPTIONS)(function)
    dispatcher._cache = CompiledKernels(f"{function.__module__}.{function.__qualname__}")
    _kernels.append(dispatcher)
    return dispatcher


def load_kernels() -> None:
    """Load every kernel that was compiled before: for a process whose forks are to have them at once."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    for dispatcher in _kernels:
        for argument_types in dispatcher._cache.kept_types(dispatcher.targetctx.codegen()):
            dispatcher.compile(argument_types)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` a part of each kernel that calls it. Arguments cost nothing, nor does a tuple it returns."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)
