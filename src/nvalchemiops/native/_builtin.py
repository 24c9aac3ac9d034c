# SPDX-License-Identifier: Apache-2.0
"""Native functions as Python built-ins, at a seventh of the cost of a ctypes call (see `builtin.h`).

Only for CPython, whose C API is reached through `ctypes.pythonapi`; elsewhere the caller uses ctypes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_METH_FASTCALL = 0x80
_INTERPRETER = (
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyErr_Occurred",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_SetString",
    "PyExc_TypeError",
    "_Py_NoneStruct",
    "PyObject_GetAttr",
    "PyObject_SetAttr",
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "PyObject_Type",
    "PyObject_IsTrue",
    "PyTuple_Size",
    "PyTuple_GetItem",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyDict_GetItem",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
)

AVAILABLE = sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == 8


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Target(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("arguments", ctypes.c_int64), ("size", ctypes.c_int64)]


# What the built-ins point into; never freed.
_alive: list[Any] = []


def interpreter() -> int:
    """Address of the table of interpreter functions that `attach` takes."""
    symbols = (ctypes.c_char.in_dll(ctypes.pythonapi, name) for name in _INTERPRETER)
    table = (ctypes.c_void_p * len(_INTERPRETER))(*map(ctypes.addressof, symbols))
    _alive.append(table)
    return ctypes.addressof(table)


def builtin(name: str, enter: int, function: int, arguments: list[str]) -> Callable[..., int]:
    """A built-in that calls the native `function`, whose arguments are all ints or None."""
    return bound(name, enter, _Target(function, len(arguments), arguments.index("n")))


def bound(name: str, function: int, target: ctypes.Structure) -> Callable[..., Any]:
    """A built-in that is the METH_FASTCALL `function`, with the address of `target` as its `self`."""
    method = _Method(name.encode(), function, _METH_FASTCALL, None)
    _alive.extend([target, method])
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(method), ctypes.addressof(target), None)
