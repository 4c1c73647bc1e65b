"""Guards: one thing each that a traced function looked at, and whether it would see the same today.

Plain data is compared by value; tensors, parameters, modules and functions by identity.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from operator import is_, itemgetter
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from gradcore.engine.node import Leaf
from gradcore.engine.value import Value
from gradcore.nn.module import Module
from gradcore.optim import Optimizer
from gradcore.program.arena import Part

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
    return type(now) is type(seen) and (now == seen or (now != now and seen != seen))


def identical(now: Any, seen: Any) -> bool:
    return now is seen


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
    elif depth and isinstance(value, type):
        yield from _of_class(value, names)
    elif depth and (hasattr(value, "__dict__") or hasattr(value, "__slots__")) and not isinstance(value, FunctionType):
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in ("gradcore", "numpy", "builtins"):
            return
        yield from of_object(value, names, depth - 1)


def of_object(owner: Any, names: set[str], depth: int = 1) -> Found:
    """Attributes of an object that some code names; of a module (of a network) what it consists of besides."""
    if isinstance(owner, Module):
        yield from _of_module(owner, names)
        return
    kind = owner.__name__ if isinstance(owner, ModuleType) else f"a {type(owner).__name__}"
    own = getattr(owner, "__dict__", {})
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


class GradientGuard:
    """A leaf has a gradient of the same layout, which somebody else holds or nobody, or it has none.

    What is held is not added to in place.
    """

    __slots__ = ("leaf", "spec", "held")

    def __init__(self, leaf: Any, spec: Any) -> None:
        self.leaf = leaf
        self.spec = spec
        self.held = self._held()

    def _held(self) -> bool:
        grad = self.leaf.grad
        if grad is None:
            return False
        # A replay that made it refers to it too.
        more = type(grad.storage) is Part
        return sys.getrefcount(self.leaf.grad) > 3 + more or sys.getrefcount(grad.storage) > 2 + more

    def holds(self) -> bool:
        grad = self.leaf.grad
        if grad is None or self.spec is None:
            return grad is None and self.spec is None
        same = grad.spec is self.spec
        del grad
        return same and self._held() is self.held

    def storages(self) -> list[Any]:
        return []

    def why_not(self) -> str:
        found = self.leaf.grad
        now = None if found is None else found.spec
        return f"the gradient of {self.leaf.name or 'a leaf'}, {self.leaf.spec}, is {now} and was {self.spec}"


class OptimizerGuard:
    """An optimizer has the same groups with the same options and keeps the same tensors.

    Learning rates are operands of a program; ``rates`` says that the function may look at them besides.
    """

    __slots__ = ("optimizer", "state", "groups", "rates")

    def __init__(self, optimizer: Optimizer, rates: bool) -> None:
        self.optimizer = optimizer
        self.rates = rates
        self.state = optimizer.state
        self.groups = self._groups()

    def _groups(self) -> list[tuple[Callable[[dict[str, Any]], Any], Any, int, list[Any]]]:
        """Of each group what gets the options that a program is bound to, these, the number of its entries, its parameters."""
        found: list[tuple[Callable[[dict[str, Any]], Any], Any, int, list[Any]]] = []
        for group in self.optimizer.param_groups:
            names = [k for k in group if k != "params" and (k != "lr" or self.rates)]
            options: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else lambda group: None
            found.append((options, options(group), len(group), list(group["params"])))
        return found

    def holds(self) -> bool:
        now = self.optimizer.param_groups
        return (self.optimizer.state is self.state and len(now) == len(self.groups) and all(
            len(group) == count and options(group) == values and len(group["params"]) == len(params)
            and all(map(is_, group["params"], params))
            for group, (options, values, count, params) in zip(now, self.groups, strict=True)))

    def storages(self) -> list[Any]:
        return []

    def why_not(self) -> str:
        what = "state" if self.optimizer.state is not self.state else "options or parameters"
        return f"the {what} of the optimizer {type(self.optimizer).__name__} are not what they were"


class ModuleGuard:
    """A module is in the same mode, has the same hooks, and consists of the same parameters, buffers and modules."""

    __slots__ = ("module", "training", "forward", "tensors", "others", "hooks", "counts", "leaves")

    def __init__(self, module: Module) -> None:
        own = module.__dict__
        self.module = module
        self.training = own["training"]
        #: Hooks of the module put a forward of its own into it.
        self.forward = own.get("forward")
        self.hooks = tuple(module.hooks_in_order())
        # What the names stand for: a compiled child is another object than the module.
        members = [(name, own.get(name)) for part in ("_parameters", "_buffers", "_modules") for name in own[part]]
        self.tensors = [(name, value, value.storage, value.edge) for name, value in members if isinstance(value, Value)]
        self.others: list[tuple[str, Any]] = [(name, value) for name, value in members if not isinstance(value, Value)]
        self.counts = [(part, len(own[part])) for part in ("_parameters", "_buffers", "_modules")]
        #: Leaves, and the hooks that see their gradients.
        self.leaves = [(edge[0], edge[0].hooks, hooks_on(edge[0])) for _, _, _, edge in self.tensors
                       if edge is not None and type(edge[0]) is Leaf]

    def storages(self) -> list[Any]:
        return [storage for _, _, storage, _ in self.tensors]

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
        if any(len(own[part]) != count for part, count in self.counts):
            return False
        if any(leaf.hooks is not hooks or (hooks is not None and hooks_on(leaf) != seen) for leaf, hooks, seen in self.leaves):
            return False
        return self.forward is None or tuple(self.module.hooks_in_order()) == self.hooks

    def why_not(self) -> str:
        own, kind = self.module.__dict__, type(self.module).__name__
        if own["training"] is not self.training:
            return f"training of {kind} is {own['training']} and was {self.training}"
        for name, value in (*[t[:2] for t in self.tensors], *self.others):
            if own.get(name) is not value:
                return f"{name} of {kind} is another object than before"
        for name, tensor, storage, edge in self.tensors:
            if tensor.storage is not storage:
                return f"{name} of {kind} has been given other memory"
            if tensor.edge is not edge:
                return f"{name} of {kind} requires a gradient or not, unlike before"
        if any(len(own[part]) != count for part, count in self.counts):
            return f"{kind} has got another parameter, buffer or module"
        return f"the hooks of {kind} are not what they were"


def hooks_on(leaf: Leaf) -> tuple[int, ...]:
    """What hangs on a leaf, by the keys under which it was registered."""
    hooks = leaf.hooks
    return () if hooks is None else (*hooks.tensor, *hooks.before, *hooks.after, *hooks.accumulated)


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
