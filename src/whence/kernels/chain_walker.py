"""Walk the chain of one key, in one call from Python.

A call through Numba's dispatcher takes 0.27 us, as long as one and a half of the six memory accesses of a lookup.
So the walk is compiled to what a built-in function of Python is: a C function that takes a ``bytes`` object and
gives a list. Calling it takes 0.03 us (benchmarks/index_lookup.py). It keeps to the stable part of Python's C
interface and runs, as any built-in, under the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache, partial
from mmap import mmap
from typing import Any, NoReturn

import numpy as np
from numba import types
from numba.core.ccallback import CFunc
from numpy.typing import NDArray

from whence.formats.rocketmq.index_file import HEADER_SIZE, ITEM_SIZE, NO_ITEM, SLOT_SIZE
from whence.kernels import inlined
from whence.kernels.cache import CompiledKernels
from whence.kernels.chains import (
    PHYSICAL_OFFSET_AT,
    PREVIOUS_ITEM_AT,
    chain_damage,
    file_view,
    follow,
    is_member,
    slot_of,
)
from whence.kernels.hashing import BLOCK, extend_hash, fold_hash
from whence.kernels.intrinsics import load_i32, load_i64, load_word

# extend_hash reads that far before a text, and there a bytes object has its head.
assert bytes.__basicsize__ > BLOCK

_SHAPE = struct.Struct("=3q")  # address of the file, slot_capacity, item_capacity


def chain_walker(
    data: bytes | memoryview | mmap, slot_capacity: int, item_capacity: int
) -> Callable[[bytes], list[int]]:
    """Make ``walk(text)``, which looks one text, ``topic#key`` in UTF-8, up in this IndexFile.

    It gives the physical offsets of the items with the hash of the text, newest first. Other texts may have the
    same hash: the messages decide. A chain that cannot be is a CorruptError. The file stays mapped while ``walk``
    lives.
    """
    view = file_view(data, slot_capacity, item_capacity)
    shape = _SHAPE.pack(view.ctypes.data, slot_capacity, item_capacity)
    return _built_in((shape, partial(_raise_damage, view, slot_capacity, item_capacity)))


def _raise_damage(data: NDArray[np.uint8], slot_capacity: int, item_capacity: int, position: int) -> NoReturn:
    raise chain_damage(data, slot_capacity, item_capacity, position)


# Python's C interface, with a PyObject * as a word. Where one of these gives 0, it has raised an exception, and who
# gets the 0 gives it on.
_object = types.intp
_bytes_data = types.ExternalFunction("PyBytes_AsString", types.intp(_object))
_bytes_size = types.ExternalFunction("PyBytes_Size", types.intp(_object))
_tuple_item = types.ExternalFunction("PyTuple_GetItem", _object(_object, types.intp))
_new_int = types.ExternalFunction("PyLong_FromLongLong", _object(types.int64))
_new_list = types.ExternalFunction("PyList_New", _object(types.intp))
_append = types.ExternalFunction("PyList_Append", types.intc(_object, _object))
_call = types.ExternalFunction("PyObject_CallOneArg", _object(_object, _object))
_release = types.ExternalFunction("Py_DecRef", types.void(_object))


def _walk(context: int, text: int) -> int:
    """The built-in. ``context`` is the tuple of the file's shape and of what raises damage."""
    address = _bytes_data(text)
    if address == 0:  # not bytes
        return 0
    key_hash = fold_hash(extend_hash(0, address, _bytes_size(text)))
    shape = _bytes_data(_tuple_item(context, 0))
    file, slot_capacity, item_capacity = load_word(shape), load_word(shape + 8), load_word(shape + 16)

    found = _new_list(0)
    slot = slot_of(key_hash, slot_capacity)
    at = HEADER_SIZE + SLOT_SIZE * slot
    number = follow(file, at, item_capacity)
    while number > NO_ITEM and found != 0:
        at = HEADER_SIZE + SLOT_SIZE * slot_capacity + ITEM_SIZE * number
        if not is_member(file, at, slot_capacity, slot):
            break
        if load_i32(file + at) == key_hash:
            found = _append_int(found, load_i64(file + at + PHYSICAL_OFFSET_AT))
        at += PREVIOUS_ITEM_AT
        number = follow(file, at, number)
    if number == NO_ITEM or found == 0:
        return found

    _release(found)
    position = _new_int(at)
    if position != 0:
        _call(_tuple_item(context, 1), position)
        _release(position)
    return 0


@inlined
def _append_int(found: int, value: int) -> int:
    """The list, longer by one; or 0, and the list is gone."""
    number = _new_int(value)
    if number != 0:
        status = _append(found, number)
        _release(number)
        if status == 0:
            return found
    _release(found)
    return 0


class _MethodDef(ctypes.Structure):
    """PyMethodDef: what Python knows of a built-in. A built-in keeps its address, so it must live on."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_O = 8  # is called as function(context, argument)


@cache
def _method_def() -> tuple[_MethodDef, object]:
    """The definition, compiled once in a process or taken from disk, and what keeps its code in memory."""
    compiled: Any = CFunc(_walk, ((_object, _object), _object), {}, {})
    compiled._cache = CompiledKernels(f"{__name__}.{_walk.__name__}")
    compiled.compile()
    return _MethodDef(b"walk", compiled.address, _METH_O, None), compiled


def _built_in(context: tuple[object, ...]) -> Callable[[bytes], list[int]]:
    """The built-in with its context, which lives as long as it does."""
    new_function = ctypes.pythonapi.PyCFunction_NewEx
    new_function.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
    new_function.restype = ctypes.py_object
    function: Callable[[bytes], list[int]] = new_function(_method_def()[0], context, None)
    return function
