"""What refers to what: the parts of objects, and the variables of the program, read without running any of its code."""

from __future__ import annotations

import gc
import inspect
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from itertools import chain, compress, repeat, starmap, tee
from typing import Any, NamedTuple

from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.sites import is_inside
from gradcore.engine.value import PLAIN, Value

#: What is said of all that some objects lead to, instead of the way there.
LEADING: dict[type, str] = {Node: "the graph of ", Leaf: "the hooks of ", types.TracebackType: "the traceback of "}
#: Attributes that are not found in an object's ``__dict__`` or slots, and take no code of its class's.
_C_ATTRIBUTES = frozenset(("__dict__", "__defaults__", "__kwdefaults__", "__context__", "__cause__", "__self__", "args"))
#: Functions that wait, by the name of the attribute that is their frame.
_WAITING: dict[type, str] = {
    types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
#: Attributes of classes as they are: a metaclass may answer for them.
_vars, mro = type.__dict__["__dict__"].__get__, type.__dict__["__mro__"].__get__


class Name(NamedTuple):
    """``the graph of history[0] in __main__``: what it is of an object, the way to that from a variable, and where this is."""

    what: str
    path: str
    where: str

    def __str__(self) -> str:
        return f"{self.what}{self.path} in {self.where}" if self.where else self.path or self.what


class Cells(str):
    """The way to a function's closure, with the names of its variables, and of the function once that has one."""

    __slots__ = ("names", "owner")
    names: tuple[str, ...]
    owner: str

    @classmethod
    def of(cls, path: str, names: tuple[str, ...], owner: str = "") -> Cells:
        cells = cls(path)
        cells.names, cells.owner = names, owner
        return cells


#: How a holder refers to something: what this adds to the holder's name, or what is said of it; for a local variable, its name.
How = str | Name


def referrers(objects: tuple[Any, ...]) -> list[Any]:
    """What refers to these objects, without tuples that ``tuple()`` has not filled yet.

    To read one ends the process, and to hold one while another thread fills it is an error there. So they are left out within
    one call, in which no other thread runs.
    """
    found, kinds, holders, again = tee(chain.from_iterable(starmap(gc.get_referrers, (objects,))), 4)
    # Anything else has at least as many parts as True.
    sizes = map(operator.call, map({id(tuple): len}.get, map(id, map(type, kinds)), repeat(gc.is_tracked)), holders)
    return list(compress(found, map(operator.le, sizes, map(len, map(gc.get_referents, again)))))


def parts(holder: Any, ids: set[int]) -> dict[int, How]:
    """Those of the objects with these ids that a holder refers to, and how."""
    kind = type(holder)
    found: dict[int, How] = {}
    if kind in LEADING:
        return {id(v): ".grad" if kind is Leaf and v is holder.grad else LEADING[kind]
                for v in gc.get_referents(holder) if id(v) in ids}
    if issubclass(kind, dict):
        items = list(dict.items(holder))
        found = {id(k): f".keys()[{i}]" for i, (k, _) in enumerate(items) if id(k) in ids}
        found |= {id(v): f"[{_key(k)}]" for k, v in items if id(v) in ids}
    elif issubclass(kind, (list, tuple, deque)):
        base: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
        found = {id(v): f"[{i}]" for i, v in enumerate(list(base.__iter__(holder))) if id(v) in ids}
    elif kind is types.FrameType:
        # A call of gradcore's own is of no interest.
        if not is_inside(holder.f_code):
            found = {id(v): Name("", name, f"{holder.f_code.co_qualname}()") for name, v in _locals_of(holder) if id(v) in ids}
    elif kind in _WAITING:
        frame, call = getattr(holder, _WAITING[kind]), f"the {kind.__name__.replace('_', ' ')} {holder.__qualname__}()"
        if frame is not None:
            found = {id(v): Name("", name, call) for name, v in _locals_of(frame) if id(v) in ids}
    elif issubclass(kind, type):
        # The dict behind the view that a class shows.
        found = {id(v): ".__dict__" for v in gc.get_referents(holder) if type(v) is dict and id(v) in ids}
    else:
        # A view stands for its base, too. Something else's attribute of the name is another matter.
        view = issubclass(kind, Value)
        found = {id(v): "" if view and how == ".base" else how for how, v in _attributes(holder) if id(v) in ids}
        if kind is types.FunctionType and id(holder.__closure__) in found:
            found[id(holder.__closure__)] = Cells.of(".__closure__", holder.__code__.co_freevars)
    # An object of C, or one that hides what it has.
    return {id(v): "" for v in gc.get_referents(holder) if id(v) in ids} | found


def waits_inside(holder: Any) -> bool:
    """Is it a generator or the like of gradcore's own, whose variables say little to the program?"""
    frame = getattr(holder, _WAITING[type(holder)]) if type(holder) in _WAITING else None
    return frame is not None and is_inside(frame.f_code)


def _key(key: Any) -> str:
    """A key as the program may have written it, unless that is long or takes code of the key's own."""
    size = len(key) if type(key) is str else key.bit_length() if type(key) is int else 0
    return repr(key) if size <= 100 and type(key) in (str, *PLAIN) else "..."


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that need no code of its class's to be read."""
    for cls in mro(type(holder)):
        for name, member in list(_vars(cls).items()):
            try:
                if type(member) is types.MemberDescriptorType:
                    yield f".{name}", member.__get__(holder)
                elif type(member) is types.GetSetDescriptorType and name in _C_ATTRIBUTES:
                    own = member.__get__(holder)
                    yield f".{name}", own
                    if type(own) is dict:
                        yield from ((f".{name}", value) for name, value in list(own.items()) if type(name) is str)
            except (AttributeError, TypeError):
                continue


def own_dict(holder: Any) -> dict[str, Any] | None:
    """The ``__dict__`` of an object, if that is a plain dict and holds the attributes.

    From Python 3.13 on the object itself may hold them, though it has a dict.
    """
    return next((own for how, own in _attributes(holder)
                 if how == ".__dict__" and type(own) is dict and any(x is own for x in gc.get_referents(holder))), None)


def variables() -> dict[int, tuple[str, str]]:
    """By id of what variables refer to, their names: of functions that run, which the collector does not see, and of modules,
    which it does not see if they are frozen. Of several names of one object the last counts.
    """
    found: dict[int, tuple[str, str]] = {}
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if not is_inside(frame.f_code):
                found.update((id(value), (name, f"{frame.f_code.co_qualname}()")) for name, value in _locals_of(frame))
            frame = frame.f_back
    # One of them is this call's own: it would refer to itself, and to its callers.
    del top
    # The program's own module is the first that is loaded, and may be listed once more under another name.
    for module, there in reversed(list(sys.modules.items())):
        if type(there) is types.ModuleType:
            names = [(name, value) for name, value in list(vars(there).items()) if type(name) is str]
            # A notebook keeps results that it has shown, too.
            for name, value in names:
                if name[:1] == "_":
                    found[id(value)] = _shown(there, name, value) if name[1:].isdecimal() else name, module
            for name, value in names:
                if name[:1] != "_":
                    found[id(value)] = name, module
    return found


def _shown(module: types.ModuleType, name: str, value: Any) -> str:
    """``Out[3]`` for the variable ``_3`` of a notebook, which is the same; elsewhere the name as it is."""
    number, results = name[1:], vars(module).get("Out")
    if type(results) is dict and dict.get(results, int(number)) is value:
        return f"Out[{number}]"
    return name


def _locals_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """The local variables of a function's frame."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # Those of a module are its namespace.
        return
    shown = frame.f_locals
    pairs = list(shown.items())
    # Before Python 3.13 the frame keeps this dict, which would hold what the function lets go. It is made anew when asked for;
    # what a call of locals() has handed out is left alone. So is what a debugger may have, as Python takes the variables from
    # there when a function that traces returns.
    traced = any(f() is not None for f in (sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile))
    if type(shown) is dict and sys.getrefcount(shown) <= 3 and not traced:
        shown.clear()
    # Others are not of the program's own, such as what pytest remembers for an assertion's text.
    yield from ((name, value) for name, value in pairs if name.isidentifier())
