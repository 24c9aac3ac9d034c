# SPDX-License-Identifier: Apache-2.0
"""Native functions as Python built-ins, at a seventh of the cost of a ctypes call (see `builtin.h`).

Only for CPython, whose C API is reached through `ctypes.pythonapi`; elsewhere the caller uses ctypes.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import Any

from .. import _process

_METH_FASTCALL = 0x80
# The fields of `Interpreter` in builtin.h, and what of the interpreter they are.
_INTERPRETER = {
    "as_int": "PyLong_AsLongLong",
    "make_int": "PyLong_FromLongLong",
    "error": "PyErr_Occurred",
    "release": "PyEval_SaveThread",
    "acquire": "PyEval_RestoreThread",
    "raise": "PyErr_SetString",
    "type_error": "PyExc_TypeError",
    "none": "_Py_NoneStruct",
    "attribute": "PyObject_GetAttr",
    "set_attribute": "PyObject_SetAttr",
    "call": "PyObject_Vectorcall",
    "call_method": "PyObject_VectorcallMethod",
    "type_of": "PyObject_Type",
    "is_true": "PyObject_IsTrue",
    "length": "PyTuple_Size",
    "item": "PyTuple_GetItem",
    "make_tuple": "PyTuple_New",
    "set_item": "PyTuple_SetItem",
    "find": "PyDict_GetItem",
    "keep": "Py_IncRef",
    "drop": "Py_DecRef",
    "forget_error": "PyErr_Clear",
    "no_memory": "PyErr_NoMemory",
}

# Not on a free-threaded Python, where nobody has tried it: the built-ins borrow references, and trust to the GIL.
AVAILABLE = (
    sys.implementation.name == "cpython"
    and ctypes.sizeof(ctypes.c_void_p) == 8
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Interpreter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _INTERPRETER]


class Target(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("arguments", ctypes.c_int64), ("size", ctypes.c_int64)]


# What the built-ins point into; never freed.
_alive: list[Any] = _process.kept("memory of built-ins", list)


def interpreter() -> int:
    """Address of the table of interpreter functions that `attach` takes."""
    symbols = (ctypes.c_char.in_dll(ctypes.pythonapi, name) for name in _INTERPRETER.values())
    table = Interpreter(*map(ctypes.addressof, symbols))
    _alive.append(table)
    return ctypes.addressof(table)


class _Place(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("at", ctypes.c_int64)]


def differences(layout: int, structures: Iterable[type[ctypes.Structure]]) -> list[str]:
    """What is not where the native code says: sizes of structures, offsets of fields, fields that one side lacks."""
    theirs: dict[str, int] = {}
    while (place := _Place.from_address(layout)).name:
        theirs[place.name.decode()] = place.at
        layout += ctypes.sizeof(_Place)
    ours: dict[str, int] = {}
    for structure in structures:
        name = structure.__name__.lstrip("_")
        ours[name] = ctypes.sizeof(structure)
        ours |= {f"{name}.{field}": getattr(structure, field).offset for field, *_ in structure._fields_}
    return sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name))


def builtin(name: str, enter: int, function: int, arguments: list[str]) -> Callable[..., int]:
    """A built-in that calls the native `function`, whose arguments are all ints or None."""
    return bound(name, enter, Target(function, len(arguments), arguments.index("n")))


def bound(name: str, function: int, target: ctypes.Structure) -> Callable[..., Any]:
    """A built-in that is the METH_FASTCALL `function`, with the address of `target` as its `self`."""
    method = _Method(name.encode(), function, _METH_FASTCALL, None)
    _alive.extend([target, method])
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(method), ctypes.addressof(target), None)
