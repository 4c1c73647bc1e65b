"""Guards: one thing each that a traced function looked at, and whether it would see the same today.

Plain data is compared by value; tensors, parameters, modules and functions by identity.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from gradcore.engine.value import Value
from gradcore.nn.module import Module
from gradcore.optim import Optimizer
from gradcore.program.library_guards import ModuleGuard, OptimizerGuard

#: What is compared by value.
_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)
#: Items of a container that are looked at.
_MOST = 1000

_absent = object()


class Guard:
    """One thing that was seen: where to look, what was there, and the words for it."""

    __slots__ = ("name", "look", "seen", "same")

    def __init__(self, name: str, look: Callable[[], Any], seen: Any, same: Callable[[Any, Any], bool]) -> None:
        self.name = name
        self.look = look
        self.seen = seen
        self.same = same

    def holds(self) -> bool:
        try:
            return self.same(self.look(), self.seen)
        except Exception:
            return False

    def storages(self) -> list[Any]:
        """The bytes that a tensor which is guarded shows."""
        return [self.seen[1]] if self.same is _same_bytes else []

    def why_not(self) -> str:
        """What has changed, in words."""
        try:
            now = self.look()
        except Exception as error:
            return f"{self.name} cannot be read any more: {error!r}"
        if is_plain(now) and is_plain(self.seen):
            return f"{self.name} is {now!r} and was {self.seen!r}"
        return f"{self.name} is another object than before"


class Options(Guard):
    """The options of an optimizer's groups. A run that changes them is found by it; who changes them between runs may."""

    __slots__ = ()


class Draws(Guard):
    """A generator's state. Who draws changes it: that is looked for behind a traced run, and is no reason to trace again."""

    __slots__ = ()


#: What gives other numbers each time, from a state of its own.
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


def state_of(generator: Any) -> Any:
    """A generator's state as something to compare."""
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    return repr(generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState)
                else generator.bit_generator.state)


def is_plain(x: Any, depth: int = 4) -> bool:
    """Is this a number, a text, None, or a small container of such?"""
    if isinstance(x, _PLAIN):
        return True
    if depth and isinstance(x, (list, tuple, set, frozenset, deque)) and len(x) <= _MOST:
        return all(is_plain(v, depth - 1) for v in x)
    return bool(depth) and isinstance(x, dict) and len(x) <= _MOST and all(
        isinstance(k, _PLAIN) and is_plain(v, depth - 1) for k, v in x.items())


def _equal(now: Any, seen: Any) -> bool:
    # 1, 1.0 and True are equal, and no two of them do the same.
    if type(now) is not type(seen) or not (now == seen or (now != now and seen != seen)):
        return False
    # 0.0 and -0.0 are equal, too.
    return now is seen or not isinstance(now, (float, complex, np.floating)) or bool(now) or str(now) == str(seen)


def identical(now: Any, seen: Any) -> bool:
    return now is seen


def _same_object(now: Any, seen: Any) -> bool:
    return now is seen()


def _same_method(now: Any, seen: Any) -> bool:
    return type(now) is type(seen) and bool(now == seen)


def _same_bytes(now: Any, seen: Any) -> bool:
    tensor, storage, edge = seen
    return now is tensor and tensor.storage is storage and tensor.edge is edge


def _same_array(now: Any, seen: Any) -> bool:
    return isinstance(now, np.ndarray) and now.dtype == seen.dtype and now.tobytes() == seen.tobytes()


def _same_items(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and all(a is b for a, b in zip(now, seen, strict=True))


Found = Iterator[tuple[Any, tuple[Any, ...]]]


def of_value(name: str, look: Callable[[], Any], value: Any, key: tuple[Any, ...], names: set[str], depth: int = 2) -> Found:
    if isinstance(value, Value):
        yield Guard(name, look, (value, value.storage, value.edge), _same_bytes), key
    elif is_plain(value):
        yield Guard(name, look, copy.deepcopy(value), _equal), key
    elif isinstance(value, (Module, Optimizer, FunctionType)):
        yield Guard(name, look, value, identical), key
        if isinstance(value, Optimizer) and "param_groups" in names:
            yield OptimizerGuard(value, True), (*key, "options")
            yield Options(f"the options of {name}", lambda: _options(value), _options(value), _equal), (*key, "changed")
        if isinstance(value, Module):
            yield ModuleGuard(value), ("module", id(value))
        if depth and isinstance(value, Module):
            yield from _attributes(value, names, depth - 1)
    elif isinstance(value, GENERATORS):
        yield Draws(name, lambda: state_of(look()), state_of(value), _equal), key
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
        yield Guard(name, look, tuple(value), _same_items), key
        for k, item in enumerate(value):
            yield from of_value(f"{name}[{k}]", lambda k=k: look()[k], item, (*key, k), names,  # type: ignore[misc]
                                max(depth - 1, 0))
    elif isinstance(value, dict) and len(value) <= _MOST and not any(isinstance(k, Value) for k in value):
        yield Guard(f"the keys of {name}", lambda: tuple(look()), tuple(value), _equal), (*key, "keys")
        for k, item in value.items():
            yield from of_value(f"{name}[{k!r}]", lambda k=k: look()[k], item, (*key, "item", k), names,  # type: ignore[misc]
                                max(depth - 1, 0))
    elif isinstance(value, np.ndarray) and value.size <= _MOST:
        yield Guard(name, look, value.copy(), _same_array), key
    elif isinstance(value, (MethodType, slice, range, np.dtype)):
        yield Guard(name, look, value, _same_method), key
    else:
        try:
            # It may refer to the compiled function, and its memory is nobody's business here.
            yield Guard(name, look, ref(value), _same_object), key
        except TypeError:
            yield Guard(name, look, value, identical), key
        if depth and isinstance(value, type):
            yield from _of_class(value, names)
        elif depth and (hasattr(value, "__dict__") or hasattr(value, "__slots__")) and not (
                isinstance(value, ModuleType) and value.__name__.partition(".")[0] in ("gradcore", "numpy", "builtins")):
            yield from of_object(value, names, depth - 1)


def _options(optimizer: Optimizer) -> list[Any]:
    return [{name: copy.deepcopy(v) for name, v in group.items() if name != "params" and is_plain(v)}
            for group in optimizer.param_groups]


def of_object(owner: Any, names: set[str], depth: int = 1) -> Found:
    """Attributes of an object that some code names; of a module (of a network) what it consists of besides."""
    if isinstance(owner, Module):
        yield from _of_module(owner, names)
        return
    kind = owner.__name__ if isinstance(owner, ModuleType) else f"a {type(owner).__name__}"
    own = getattr(owner, "__dict__", {})
    names = names | getattr(type(owner), "_decides", frozenset())
    for attribute in sorted(names & own.keys()):
        yield from of_value(f"{attribute} of {kind}", lambda a=attribute: own[a],  # type: ignore[misc]
                             own[attribute], ("attribute", id(owner), attribute), names, depth)
    if not isinstance(owner, ModuleType):
        yield from _of_class(owner, names)


def _of_class(owner: Any, names: set[str]) -> Found:
    """What an object, or a class, has from its class: plain data, also in slots, and methods, for which others may be put."""
    kind = owner if isinstance(owner, type) else type(owner)
    if kind.__module__.partition(".")[0] in ("gradcore", "numpy", "builtins"):
        return
    for attribute in sorted(n for n in names if n not in getattr(owner, "__dict__", {}) or owner is kind):
        if not any(attribute in vars(c) for c in kind.__mro__):
            continue
        value = getattr(owner, attribute, _absent)
        if value is not _absent and is_plain(value):
            yield from of_value(f"{attribute} of {kind.__name__}",
                                lambda a=attribute: getattr(owner, a, _absent),  # type: ignore[misc]
                                value, ("class", id(owner), attribute), names)
        elif isinstance(_function_of(value), FunctionType):
            yield Guard(f"{attribute} of {kind.__name__}",
                        lambda a=attribute: _function_of(getattr(owner, a, None)),  # type: ignore[misc]
                        _function_of(value), identical), ("method", id(owner), attribute)


def _function_of(method: Any) -> Any:
    return getattr(method, "__func__", method)


#: Of a module: attributes that are its own affair.
_INTERNAL = frozenset(("training", "forward", "_parameters", "_buffers", "_modules", "_transient", "_places", "_tree",
                       "_hooks"))


def _of_module(module: Module, names: set[str]) -> Found:
    yield ModuleGuard(module), ("module", id(module))
    yield from _attributes(module, names, 2)
    # Whoever calls a module does not name what that runs.
    yield from _of_class(module, names | {"forward"})


def _attributes(module: Module, names: set[str], depth: int) -> Found:
    """What code names of a module besides what it consists of."""
    own = module.__dict__
    members = {name for part in ("_parameters", "_buffers", "_modules") for name in own[part]}
    for name in sorted((names & own.keys()) - members - _INTERNAL):
        yield from of_value(f"{name} of {type(module).__name__}", lambda n=name: own[n],  # type: ignore[misc]
                            own[name], ("attribute", id(module), name), names, depth)
