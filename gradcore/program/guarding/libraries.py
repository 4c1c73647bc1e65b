"""What is Python's own, or of a library that gradcore is built on: code without guards, and objects that hide their state."""

from __future__ import annotations

import argparse
import contextvars
import dataclasses
import datetime
import decimal
import dis
import functools
import io
import logging
import operator
import os
import re
import struct
import sys
import threading
import types
import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from gradcore.engine.sites import is_inside
from gradcore.program.guarding.values import is_plain

_LIBRARIES = frozenset(("gradcore", "numpy", "cupy", *sys.builtin_module_names))
#: The folders of Python's own library, and of packages inside it that are not Python's.
_STANDARD = os.path.join(os.path.dirname(dis.__file__), "")
_INSTALLED = tuple(os.path.join("", name, "") for name in ("site-packages", "dist-packages"))
#: The flag of classes that were made while Python ran, as by Python code (``Py_TPFLAGS_HEAPTYPE``).
_MADE = 1 << 9
#: The packages that gradcore is built on, wherever they are installed.
_BUILT_ON = ("numpy", "cupy", "cupyx", "cupy_backends", "ml_dtypes", "nvmath",
             "cuda.pathfinder", "cuda.bindings", "cuda.core")
#: Python's own classes of which code reads single attributes, or whose methods only have effects elsewhere.
_BY_ATTRIBUTES = (argparse.Namespace, types.SimpleNamespace, logging.Filterer, logging.LoggerAdapter, logging.Manager,
                  BaseException)
#: Kinds written in C that never change, that have no value, or that other guards know. The cache of ``functools.lru_cache`` is
#: taken for what it should be, that of a function which depends on its arguments alone.
_KNOWN: tuple[Any, ...] = (
    int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice, deque, array,
    type, property, staticmethod, classmethod, io.IOBase, np.generic, np.ndarray, np.dtype, np.ufunc,
    decimal.Decimal, decimal.Context, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, struct.Struct,
    re.Pattern, re.Match, type(threading.Lock()), type(threading.RLock()), threading.local, contextvars.ContextVar,
    contextvars.Context, contextvars.Token, functools.partial, functools._lru_cache_wrapper, weakref.ref,
    *(kind for name, kind in vars(types).items() if isinstance(kind, type) and name not in ("CapsuleType", "CellType")))
#: What reads attributes of an object that the code does not name, or all of them, be it those of a module, or variables; code
#: that calls it is known by these names.
_READERS = (getattr, hasattr, vars, dir, globals, locals, eval, exec, operator.attrgetter, operator.methodcaller,
            dataclasses.asdict, dataclasses.astuple, dataclasses.fields)


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Is the file part of Python or of a library that gradcore is built on, whose state needs no guards?"""
    if file.startswith("<frozen") or (file.startswith(_STANDARD) and not any(folder in file for folder in _INSTALLED)):
        return True
    packages = [getattr(sys.modules.get(name), "__file__", None) for name in _BUILT_ON]
    return file.startswith(tuple(os.path.join(os.path.dirname(p), "") for p in packages if p is not None))


def is_users(code: CodeType) -> bool:
    """Is it code of the user's: neither of gradcore nor of one of those?"""
    return not is_inside(code) and not is_library(code.co_filename)


def is_of_library(module: str | type) -> bool:
    """Is a module, by name, one of those? The user's own may have the same name, so its file counts too.

    A class is, if its module is and has it: one of the user's may have got the name of another, as by ``exec`` in a new dict.
    """
    if isinstance(module, type):
        # One that was made where no module runs, as by exec() in a new dict, has none.
        kind, module = module, getattr(module, "__module__", "")
        if kind.__flags__ & _MADE and getattr(sys.modules.get(module), kind.__qualname__, None) is not kind:
            return False
    return module.partition(".")[0] in _LIBRARIES or is_library(getattr(sys.modules.get(module), "__file__", None) or "")


def is_whole(kind: type) -> bool:
    """Has it a constructor of Python's own, even if it is the user's, or does gradcore say so, as of a distribution? Then
    methods read attributes that no user's code names, so that all of them count. A class such as ``ABC`` keeps nothing."""
    return getattr(kind, "_compile_reads_whole", False) is True or (not issubclass(kind, _BY_ATTRIBUTES) and any(
        isinstance(vars(c).get("__init__"), FunctionType) and is_of_library(c)
        and c.__module__.partition(".")[0] not in ("gradcore", "numpy", "cupy") for c in kind.__mro__))


def data_of(owner: Any) -> set[str]:
    """The attributes that an object, or a class, has from the user's classes and that are plain data there."""
    kind = owner if isinstance(owner, type) else type(owner)
    return {a for c in kind.__mro__ if not is_of_library(c) for a, x in vars(c).items()
            if is_plain(x) and not a.startswith("__")}


def is_bound(x: Any) -> bool:
    """Is it a method written in C, of an object that may change: ``table.get``?"""
    return isinstance(x, (types.BuiltinMethodType, types.MethodWrapperType)) and not isinstance(
        x.__self__, (types.ModuleType, type, types.NoneType))


def is_drawn_from(x: Any) -> bool:
    """Does it give another item each time, as an iterator does, and a file to be read? One to be written gives none."""
    if not isinstance(x, io.IOBase):
        return isinstance(x, Iterator) and type(x) not in weakref.ProxyTypes
    return not (x.closed or x.writable())


def is_opaque(x: Any) -> bool:
    """Can no guard see the state of an object, since C code holds it?"""
    if type(x) in weakref.ProxyTypes:
        # It answers for its object.
        return True
    if isinstance(x, np.ndarray):
        return x.dtype.hasobject
    return not isinstance(x, (*_KNOWN, *_BY_ATTRIBUTES, Iterator)) and type(x) is not object and _is_written_in_c(type(x))


def why_hidden(x: Any, name: str) -> str:
    """Why no guard can see what code finds by an object that it refers to by this name; "" if guards can."""
    if is_opaque(x):
        return f"of type {type(x).__name__}, whose state no guard can see"
    if any(x is f for f in _READERS) or (isinstance(x, (types.WrapperDescriptorType, types.MethodWrapperType))
                                         and x.__name__ == "__getattribute__"):
        return "" if x.__name__ in name.split() else f"by which it may read anything: call {x.__name__} by that name"
    return ""


def _is_written_in_c(kind: type) -> bool:
    """C code may give a class the name of a module in Python, but not functions in Python."""
    if any(isinstance(x, FunctionType) for c in kind.__mro__ for x in vars(c).values()):
        return False
    module = getattr(kind, "__module__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" and (file is None or not file.endswith(".py") or is_library(file))
