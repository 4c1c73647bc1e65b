"""Guards: one thing each that a traced function looked at, and whether it would see the same today.

Plain data is compared by value; tensors, parameters, modules and functions by identity.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from gradcore.engine.node import Value
from gradcore.nn.module import Module
from gradcore.optim import Optimizer

#: What is compared by value.
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
#: Items of a container that are looked at.
_MOST = 1000

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

    def why_not(self) -> str:
        """What has changed, in words."""
        try:
            now = self.look()
        except Exception as error:
            return f"{self.name} cannot be read any more: {error!r}"
        if is_plain(now) and is_plain(self.seen):
            return f"{self.name} is {now!r} and was {self.seen!r}"
        return f"{self.name} is another object than before"


def is_plain(x: Any, depth: int = 4) -> bool:
    """Is this a number, a text, None, or a small container of such?"""
    if isinstance(x, _PLAIN):
        return True
    if depth and isinstance(x, (list, tuple, set, frozenset)) and len(x) <= _MOST:
        return all(is_plain(v, depth - 1) for v in x)
    return bool(depth) and type(x) is dict and len(x) <= _MOST and all(
        isinstance(k, _PLAIN) and is_plain(v, depth - 1) for k, v in x.items())


def _equal(now: Any, seen: Any) -> bool:
    # 1, 1.0 and True are equal, and no two of them do the same.
    return type(now) is type(seen) and (now == seen or (now != now and seen != seen))


def _identical(now: Any, seen: Any) -> bool:
    return now is seen


def _same_bytes(now: Any, seen: Any) -> bool:
    tensor, storage, edge = seen
    return now is tensor and tensor.storage is storage and tensor.edge is edge


def _same_items(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and all(a is b for a, b in zip(now, seen, strict=True))


Found = Iterator[tuple[Any, tuple[Any, ...]]]


def of_value(name: str, look: Callable[[], Any], value: Any, key: tuple[Any, ...], names: set[str], depth: int = 2) -> Found:
    if isinstance(value, Value):
        yield Guard(name, look, (value, value.storage, value.edge), _same_bytes), key
    elif is_plain(value):
        yield Guard(name, look, copy.deepcopy(value), _equal), key
    elif isinstance(value, (Module, Optimizer, FunctionType)):
        yield Guard(name, look, value, _identical), key
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
        yield Guard(name, look, tuple(value), _same_items), key
        for k, item in enumerate(value):
            yield from of_value(f"{name}[{k}]", lambda k=k: look()[k], item, (*key, k), names, 0)  # type: ignore[misc]
    elif type(value) is dict and len(value) <= _MOST:
        for k, item in value.items():
            yield from of_value(f"{name}[{k!r}]", lambda k=k: look()[k], item, (*key, "item", k), names, 0)  # type: ignore[misc]
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in ("gradcore", "numpy", "builtins"):
            return
        yield from of_object(value, names, depth - 1)


def of_object(owner: Any, names: set[str], depth: int = 1) -> Found:
    """Attributes of an object that some code names; of a module (of a network) what it consists of besides."""
    if isinstance(owner, Module):
        yield from _of_module(owner, names)
        return
    kind = owner.__name__ if isinstance(owner, ModuleType) else f"a {type(owner).__name__}"
    for attribute in sorted(names & owner.__dict__.keys()):
        yield from of_value(f"{attribute} of {kind}", lambda a=attribute: owner.__dict__[a],  # type: ignore[misc]
                             owner.__dict__[attribute], ("attribute", id(owner), attribute), names, depth)


class OptimizerGuard:
    """An optimizer has the same groups with the same options, but for the learning rate, and keeps the same tensors."""

    __slots__ = ("optimizer", "state", "groups")

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.state = optimizer.state
        self.groups = self._groups()

    def _groups(self) -> list[Any]:
        return [[v for k, v in group.items() if k != "lr" and k != "params"] + [*map(id, group["params"])]
                for group in self.optimizer.param_groups]

    def holds(self) -> bool:
        return self.optimizer.state is self.state and self._groups() == self.groups

    def why_not(self) -> str:
        what = "state" if self.optimizer.state is not self.state else "options or parameters"
        return f"the {what} of the optimizer {type(self.optimizer).__name__} are not what they were"


class ModuleGuard:
    """A module is in the same mode, has the same hooks, and consists of the same parameters, buffers and modules."""

    __slots__ = ("module", "training", "forward", "tensors", "others", "hooks")

    def __init__(self, module: Module) -> None:
        own = module.__dict__
        self.module = module
        self.training = own["training"]
        #: Hooks of the module put a forward of its own into it.
        self.forward = own.get("forward")
        self.hooks = tuple(module.hooks_in_order())
        members = [(name, value) for part in ("_parameters", "_buffers", "_modules") for name, value in own[part].items()]
        self.tensors = [(name, value, value.storage, value.edge) for name, value in members if isinstance(value, Value)]
        self.others = [(name, value) for name, value in members if not isinstance(value, Value)]

    def holds(self) -> bool:
        own = self.module.__dict__
        if own["training"] is not self.training or own.get("forward") is not self.forward:
            return False
        for name, tensor, storage, edge in self.tensors:
            if own.get(name) is not tensor or tensor.storage is not storage or tensor.edge is not edge:
                return False
        for name, value in self.others:
            if own.get(name) is not value:
                return False
        return self.forward is None or tuple(self.module.hooks_in_order()) == self.hooks

    def why_not(self) -> str:
        own, kind = self.module.__dict__, type(self.module).__name__
        if own["training"] is not self.training:
            return f"training of {kind} is {own['training']} and was {self.training}"
        for name, value, *_ in (*self.tensors, *self.others):
            if own.get(name) is not value:
                return f"{name} of {kind} is another object than before"
        for name, tensor, storage, edge in self.tensors:
            if tensor.storage is not storage:
                return f"{name} of {kind} has been given other memory"
            if tensor.edge is not edge:
                return f"{name} of {kind} requires a gradient or not, unlike before"
        return f"the hooks of {kind} are not what they were"


def _of_module(module: Module, names: set[str]) -> Found:
    own = module.__dict__
    yield ModuleGuard(module), ("module", id(module))
    members = {name for part in ("_parameters", "_buffers", "_modules") for name in own[part]}
    for name in sorted((names & own.keys()) - members - {"training", "forward"}):
        if not name.startswith("_"):
            yield from of_value(f"{name} of {type(module).__name__}", lambda n=name: own[n],  # type: ignore[misc]
                                 own[name], ("attribute", id(module), name), names, 0)
