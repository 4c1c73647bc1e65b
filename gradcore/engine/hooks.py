"""What people hang on the graph, and the handle that takes it away again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_keys = itertools.count().__next__


class Hooks:
    """The hooks of one node, or of a leaf, each kind in order of registration."""

    __slots__ = ("tensor", "before", "after", "retained", "accumulated")

    def __init__(self) -> None:
        #: (index of the output, function) of hooks on a tensor: the cotangent in, None or another cotangent out.
        self.tensor: dict[int, tuple[int, Callable[..., Any]]] = {}
        #: Functions of all cotangents of a node, before it runs.
        self.before: dict[int, Callable[..., Any]] = {}
        #: Functions of the gradients that the node passes on and the cotangents it was given.
        self.after: dict[int, Callable[..., Any]] = {}
        #: Cotangents that ``retain_grad`` asked for, by output.
        self.retained: dict[int, Any] = {}
        #: (weak reference to the leaf's tensor, function) of hooks that run when its gradient has been added to.
        self.accumulated: dict[int, tuple[Any, Callable[..., Any]]] = {}


class RemovableHandle:
    """What registering a hook returns: ``remove()`` takes the hook away, as does leaving a ``with`` block over it."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks = hooks
        self.id = key

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def hooks_of(target: Any) -> Hooks:
    """The hooks of a node or leaf, made when first asked for."""
    if target.hooks is None:
        target.hooks = Hooks()
    found: Hooks = target.hooks
    return found


def hang(hooks: dict[int, Any], entry: Any) -> RemovableHandle:
    key = _keys()
    hooks[key] = entry
    return RemovableHandle(hooks, key)
