"""What a function asks of the world outside: the clock, files, the system, variables of the environment and of contexts, and
what a tensor or a generator has beside its value."""

from __future__ import annotations

import abc
import contextvars
import datetime
import genericpath
import glob
import importlib
import linecache
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import tokenize
import uuid
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np

from gradcore import _memory, cuda
from gradcore._format import set_printoptions
from gradcore._random import Generator, initial_seed
from gradcore._settings import (
    are_deterministic_algorithms_enabled,
    get_num_threads,
    is_deterministic_algorithms_warn_only_enabled,
    set_num_threads,
    use_deterministic_algorithms,
)
from gradcore._tensor import Tensor
from gradcore.devices.precision import (
    allow_in_convolutions,
    allowed_in_convolutions,
    get_float32_matmul_precision,
    set_float32_matmul_precision,
)
from gradcore.distributions import Distribution
from gradcore.engine.node import Node
from gradcore.engine.sites import is_inside
from gradcore.nn.utils import parametrize
from gradcore.program.guarding.frames import by_id, line_of, upwards, users_line
from gradcore.program.guarding.guards import Guard, identical
from gradcore.program.guarding.libraries import is_library
from gradcore.program.guarding.names import names_of
from gradcore.program.guarding.reach import Reach
from gradcore.program.guarding.readers import Item
from gradcore.program.guarding.values import copied, equal, is_plain
from gradcore.program.watching.began import Began
from gradcore.utils.files import load

#: What takes random bytes of the system's; NumPy and ``secrets`` call it for a new seed.
_TAKES_ENTROPY: frozenset[CodeType] = frozenset(
    f.__code__ for f in (random.SystemRandom.getrandbits, random.SystemRandom.random, uuid.uuid1))
#: What reads a variable of the environment, for ``os.getenv`` and ``os.environ.get`` too; and what tells which there are.
_READS_VARIABLE: CodeType = type(os.environ).__getitem__.__code__
_LISTS_VARIABLES = (type(os.environ).__iter__.__code__, type(os.environ).__len__.__code__)
_FOR_OTHERS: list[Any] = [genericpath.exists, glob.glob, os.walk, os.path.join, shutil.copy, tempfile.mkstemp, uuid.uuid1,
                          *(f for kind in pathlib.Path.__mro__ for f in vars(kind).values() if isinstance(f, FunctionType))]
#: The files of Python's own code that asks for whoever calls it; other code, such as that of ``logging``, asks for itself.
_ASKING = frozenset(f.__code__.co_filename for f in _FOR_OTHERS)
#: The files of what opens files of source, for a warning say. Whatever else opens a file does so for whoever calls it.
_SOURCES = frozenset((linecache.__file__, tokenize.__file__))
_HANDLES: CodeType = logging.Logger.handle.__code__
#: What a debugger calls to be told of lines, from Python 3.14 on by default through ``sys.monitoring``.
_DEBUGS = frozenset((sys.settrace, getattr(getattr(sys, "monitoring", None), "use_tool_id", sys.settrace)))
_ASKS_FOR_THREAD: CodeType = threading.current_thread.__code__
_IMPORTS: CodeType = importlib.import_module.__code__
#: What asks whether something is of an abstract class, where others may be registered later.
_ASKS_KIND: tuple[CodeType, ...] = (abc.ABCMeta.__instancecheck__.__code__, abc.ABCMeta.__subclasscheck__.__code__)
#: What computes a parametrized parameter, or takes it from the cache of ``parametrize.cached()``.
_COMPUTES: CodeType = parametrize._value.__code__
_FIGURES = ("memory_allocated", "memory_requested", "memory_reserved", "max_memory_allocated", "max_memory_requested",
            "max_memory_reserved", "memory_stats", "memory_summary", "mem_get_info")
#: What has an effect on the process and tells nothing.
_EFFECTS: tuple[CodeType, ...] = tuple(f.__code__ for f in (
    _memory.reset_peak_memory_stats, cuda.reset_peak_memory_stats, _memory.set_memory_limit, set_printoptions,
    Distribution.set_default_validate_args))
#: By code of the library's: what it answers that neither the key of a call nor a guard tells.
_ASKS: dict[CodeType, str] = {
    Tensor._base.fget.__code__: "a tensor's _base",  # type: ignore[attr-defined]
    Tensor._version.fget.__code__: "a tensor's _version",  # type: ignore[attr-defined]
    Tensor.retains_grad.fget.__code__: "retains_grad",  # type: ignore[attr-defined]
    Tensor.data_ptr.__code__: "the address of a tensor",
    **{f.__code__: "a node of a graph"
       for f in (Node.name, Node.__repr__, Node.next_functions.fget)},  # type: ignore[attr-defined]
    load.__code__: "what a file holds",
    Generator.initial_seed.__code__: "a generator's seed",
    initial_seed.__code__: "a generator's seed",
    **{getattr(of, name).__code__: "figures of the memory" for of in (_memory, cuda) for name in _FIGURES if hasattr(of, name)},
}
#: By code of the library's that tells or changes a setting of the whole process: what tells it.
_SETTINGS: dict[CodeType, Callable[[], Any]] = {code: tells for tells, sets in (
    (are_deterministic_algorithms_enabled, use_deterministic_algorithms), (get_num_threads, set_num_threads),
    (get_float32_matmul_precision, set_float32_matmul_precision), (allowed_in_convolutions, allow_in_convolutions),
) for code in (tells.__code__, sets.__code__)} | {
    is_deterministic_algorithms_warn_only_enabled.__code__: is_deterministic_algorithms_warn_only_enabled}
#: All of these.
_NOTED = by_id((*_TAKES_ENTROPY, *_ASKS, *_EFFECTS, *_SETTINGS, _ASKS_FOR_THREAD, _COMPUTES, _READS_VARIABLE, _IMPORTS,
                *_ASKS_KIND, *_LISTS_VARIABLES))
_READING = frozenset((open, input, np.fromfile))
_CLOCKS = frozenset(f for f in vars(time).values() if callable(f) and f not in (time.sleep, time.struct_time))
#: Functions of the operating system's module that give the same answer each time.
_PURE = frozenset(("fspath", "cpu_count"))
_ALL: frozenset[str] = frozenset(("all",))
#: By module, without an underscore in front: the functions written in C, methods included, that answer by their arguments alone
#: as far as a traced function is concerned, or that have effects only. What other guards know is among them.
_BY_ARGUMENTS: dict[str, frozenset[str]] = {
    **dict.fromkeys("""abc array ast asyncio bisect builtins binascii blake2 bz2 cmath codecs collections csv
        datetime decimal elementtree functools hashlib heapq io itertools json locale lzma marshal math md5 ml_dtypes numpy
        operator posix nt random re sha1 sha2 sha3 sre statistics string struct time types typing unicodedata uuid
        warnings weakref zlib zoneinfo""".split(), _ALL),
    "contextvars": frozenset(("get", "set", "reset")),
    "gc": frozenset(("collect", "enable", "disable")),
    # To write an object reads all that it has.
    "pickle": frozenset(("load", "loads")),
    "sys": frozenset(("audit", "exc_info", "exception", "getrefcount", "getsizeof", "intern")),
    "thread": frozenset(("acquire", "acquire_lock", "release", "release_lock", "locked", "__enter__", "__exit__",
                         "allocate_lock", "RLock", "lock", "start_new_thread")),
}


class Outside:
    """Records what user code asks while a function is traced: reasons against a replay in ``drawn``, and guards by place.

    ``began`` gets the plain data that the code which asks can reach from the answers.
    """

    def __init__(self, drawn: list[str], began: Began) -> None:
        self._drawn = drawn
        self._began = began
        #: Of what was there when the run first asked, or changed it.
        self.guards: dict[tuple[str, Any], Guard] = {}
        #: The frame that has called ``print``, or that of ``Logger.handle``, while it runs.
        self._telling: FrameType | None = None

    def tells(self, frame: FrameType, event: str, called: Any) -> bool:
        """Is this a call from within ``print`` or ``logging``, whose streams and handlers, a notebook's say, may do anything?

        A traced function gets nothing from them, so what they do is no reason against a replay.
        """
        if self._telling is None:
            if (event == "c_call" and called is print) or (event == "call" and frame.f_code is _HANDLES):
                self._telling = frame
            return False
        if frame is self._telling and (event == "return" or (event in ("c_return", "c_exception") and called is print)):
            self._telling = None
        return True

    def saw(self, frame: FrameType, event: str, called: Any) -> None:
        """Look at a call; ``called`` is the function if that is written in C, which code outside gradcore calls."""
        if event == "c_call":
            self._saw_builtin(frame, called)
        elif event == "call" and id(frame.f_code) in _NOTED:
            self._saw_function(frame)

    def _saw_builtin(self, frame: FrameType, called: Any) -> None:
        if called in _DEBUGS:
            self._refuse(frame, "starts a debugger, which is to stop in each call")
            return
        file = frame.f_code.co_filename
        what = _asked(called, not is_library(file))
        if what is not None and (not is_library(file) or file in _ASKING or (called is open and file not in _SOURCES)):
            self._refuse(frame, f"calls {what}, which may give something else each time")
        if isinstance(variable := getattr(called, "__self__", None), contextvars.ContextVar) and _asker(frame) is not None:
            # Kernels have a context of their own, in which NumPy's settings are other ones.
            self._guard(frame, f"the context variable {variable.name}", variable, lambda: _value_of(variable))

    def _saw_function(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        if code in _TAKES_ENTROPY:
            self._refuse(frame, "takes a number from the system, which differs each time")
        elif code in _ASKS and caller is not None and caller is _asker(caller):
            self._drawn.append(f"{line_of(caller)} asks for {_ASKS[code]}, which may differ in a later call")
        elif code in _EFFECTS and caller is not None and caller is _asker(caller):
            self._drawn.append(f"{line_of(caller)} calls {code.co_name}(), which a replay would not do")
        elif code in _SETTINGS:
            tells = _SETTINGS[code]
            self._guard(frame, f"{tells.__name__}()", tells, tells)
            if code.co_argcount and frame.f_locals[code.co_varnames[0]] != tells():
                self._drawn.append(f"{users_line(frame)} calls {code.co_name}(), which a replay would not do")
        elif code is _ASKS_FOR_THREAD and caller is not None and not is_library(caller.f_code.co_filename):
            self._refuse(frame, "asks for the thread, which may be another one")
        elif code is _COMPUTES:
            self._guard(frame, "the number of blocks of parametrize.cached()", "cached", Item(parametrize._open, 0))
            if parametrize._open[0]:
                self._drawn.append(f"{users_line(frame)} reads a parametrized parameter, which parametrize.cached() keeps")
        elif code is _READS_VARIABLE and _asker(frame) is not None:
            variables, key = frame.f_locals["self"], frame.f_locals["key"]
            if isinstance(key, (str, bytes)):
                self._guard(frame, f"the environment variable {key!s}", key, lambda: variables.get(key))
        elif code is _IMPORTS and _asker(frame) is not None:
            name = frame.f_locals["name"]
            if isinstance(name, str) and not name.startswith("."):
                self._guard(frame, f"the module {name}", ("module", name), lambda: sys.modules.get(name))
        elif code in _ASKS_KIND and _asker(frame) is not None:
            self._guard(frame, "what is registered with abstract classes", "abc", abc.get_cache_token)
        elif code in _LISTS_VARIABLES and _asker(frame) is not None:
            self._guard(frame, "the names of the environment's variables", "environ", lambda: tuple(os.environ))

    def _refuse(self, frame: FrameType, why: str) -> None:
        asker = _asker(frame)
        if asker is not None:
            self._drawn.append(f"{line_of(asker)} {why}")

    def _guard(self, frame: FrameType, name: str, place: Any, look: Callable[[], Any]) -> None:
        key = "outside", place
        if key not in self.guards:
            value = look()
            self.guards[key] = (Guard(name, look, copied(value), equal) if is_plain(value)
                                else Guard(name, look, value, identical))
            self._began.note(Reach(names_of(frame.f_code)).of_value(name, look, value, key))


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    """What a context variable holds, or else its default; None if it has none."""
    try:
        return variable.get()
    except LookupError:
        return None


def _asked(called: Any, user: bool) -> str | None:
    """The name of a function written in C that asks the clock, a file or the system; None for any other.

    Of those that the ``user`` calls, only what is known to answer by its arguments alone is no such function.
    """
    of, module = getattr(called, "__self__", None), getattr(called, "__module__", None)
    name = str(getattr(called, "__name__", None))
    if called in _CLOCKS:
        return f"time.{name}()"
    if isinstance(of, type) and issubclass(of, datetime.date) and name in ("now", "utcnow", "today"):
        return f"{of.__name__}.{name}()"
    if called in _READING:
        return f"{name}()"
    if module in ("posix", "nt") and name not in _PURE:
        return f"os.{name}()"
    if type(of).__module__ == "_io" and name.startswith(("read", "getvalue", "getbuffer", "tell")):
        return f"{name}() of a file"
    if not user:
        return None
    if not isinstance(of, (ModuleType, NoneType)):
        kind = of if isinstance(of, type) else type(of)
        # A class of the user's may inherit the method, or have one in Python that calls it.
        module = next((c.__module__ for c in kind.__mro__ if name in vars(c) and not isinstance(vars(c)[name], FunctionType)),
                      kind.__module__)
    known = _BY_ARGUMENTS.get(str(module).partition(".")[0].lstrip("_"), ())
    return None if known is _ALL or name in known else f"{name}() of {module}"


def _asker(frame: FrameType) -> FrameType | None:
    """The user's frame that a frame, of Python's own library perhaps, runs for; None for one that runs for gradcore."""
    found = next((f for f in upwards(frame) if not is_library(f.f_code.co_filename)), None)
    return None if found is None or is_inside(found.f_code) else found
