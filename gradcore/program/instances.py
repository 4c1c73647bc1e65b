"""Instances that a run makes and returns: dataclasses, simple namespaces, distributions. Each replay makes its own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any
from weakref import getweakrefcount

from gradcore.distributions import Distribution, Transform

#: By these a class says that there is more to an instance than its attributes.
_OWN = ("__new__", "__getattribute__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__",
        "__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__del__")


class Instance:
    """Takes the place of an instance in the template of a result: its class, and templates of its attributes by name.

    ``value`` is the instance itself if something else refers to it, too. Then the trace is not replayed.
    """

    __slots__ = ("kind", "items", "value")

    def __init__(self, kind: type) -> None:
        self.kind: Any = kind
        self.items: dict[str, Any] = {}
        self.value: Any = None

    def made(self, change: Callable[[Any], Any]) -> Any:
        """An instance with each attribute made from its template."""
        if self.value is not None:
            return self.value
        made = self.kind.__new__(self.kind)
        vars(made).update({name: change(v) for name, v in self.items.items()})
        return made


class Instances:
    """Finds in a result the instances that the run has made, which are ``new``."""

    def __init__(self, new: Container[Any]) -> None:
        self._new = new
        #: An object comes before those among its attributes.
        self._objects: list[Any] = []
        self._templates: list[Instance] = []
        self._ids: set[int] = set()
        self._reasons: list[str] = []

    def takes(self, x: Any) -> bool:
        """Is it an instance that a replay can make?"""
        if not is_of_attributes(type(x)) or x not in self._new or type(x) in self._new:
            return False
        if id(x) in self._ids:
            self._reasons.append(f"it returns a {type(x).__name__} in two places, and each call makes it anew")
            return False
        return True

    def is_of_before(self, x: Any) -> bool:
        """Is it a container that the run has not made? A replay would return another one with the same items."""
        if not isinstance(x, (list, dict, set)) or x in self._new:
            return False
        self._reasons.append(f"it returns a {type(x).__name__} that was there before, and a replay would return another one")
        return True

    def template(self, x: Any, change: Callable[[Any], Any]) -> Instance:
        """The template of an instance, with each attribute changed to one."""
        found = Instance(type(x))
        self._ids.add(id(x))
        self._objects.append(x)
        self._templates.append(found)
        # A transform finds its inverse again.
        found.items = {name: None if name == "_inv" and isinstance(x, Transform) else change(v) for name, v in vars(x).items()}
        return found

    def let_go(self) -> list[str]:
        """Free the instances, to which nothing of the caller's may refer any more. Returns reasons against a replay: those
        that the user refers to elsewhere, such as a cache, which would give the same one in each call."""
        reasons = self._reasons
        for k, template in enumerate(self._templates):
            # An item of a container counts one more reference as an argument; so does what a call returns.
            if (sys.getrefcount(self._objects[k]) > 2 or sys.getrefcount(vars(self._objects[k])) > 2
                    or getweakrefcount(self._objects[k])):
                template.value = self._objects[k]
                reasons.append(f"it returns a {template.kind.__name__}, which something else refers to, too")
            self._objects[k] = None
        return reasons


def is_of_attributes(kind: type) -> bool:
    """Has a class instances that are only their attributes, so that an object with the same ones is another such instance?"""
    if kind is SimpleNamespace:
        return True
    return ((dataclasses.is_dataclass(kind) or issubclass(kind, (Distribution, Transform)))
            and not any(vars(c).get("__slots__") for c in kind.__mro__)
            and not any(name in vars(c) for c in kind.__mro__ if c is not object and c is not Transform for name in _OWN)
            and (kind.__setattr__ is object.__setattr__ or _is_frozen(kind)))


def _is_frozen(kind: Any) -> bool:
    """Is it a dataclass whose ``__setattr__`` only refuses, as Python has written it?"""
    params, own = getattr(kind, "__dataclass_params__", None), getattr(kind.__setattr__, "__code__", None)
    return params is not None and params.frozen and own is not None and own.co_filename == "<string>"
