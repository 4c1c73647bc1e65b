"""Hooks on nodes and leaves, and the handles that remove them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import ref

#: Hooks of one kind by key, in the order in which they run. A handle refers to it weakly, which no plain dict allows.
Table = OrderedDict

new_key = itertools.count().__next__


class Hooks:
    """The hooks of one node, or of a leaf, each kind in order of registration."""

    __slots__ = ("tensor", "before", "after", "retained", "retainers", "accumulated", "metadata")

    def __init__(self) -> None:
        #: (index of the output, function) of hooks on a tensor; each gets the cotangent, and may return another.
        self.tensor: dict[int, tuple[int, Callable[..., Any]]] = Table()
        #: Called with all cotangents of a node, before it runs.
        self.before: dict[int, Callable[..., Any]] = Table()
        #: Called with the gradients that a node returns and the cotangents that it received.
        self.after: dict[int, Callable[..., Any]] = Table()
        #: Cotangents that ``retain_grad`` asked for, by output; and weak references to the tensors that asked.
        self.retained: dict[int, Any] = {}
        self.retainers: dict[int, ref[Any]] = {}
        #: (weak reference to the leaf's tensor, function) of hooks that run when its gradient has been added to.
        self.accumulated: dict[int, tuple[Any, Callable[..., Any]]] = Table()
        #: What the program notes.
        self.metadata: dict[str, Any] = {}

    def retain(self, index: int, tensor: Any) -> None:
        """Let backward keep the cotangent of an output, as long as its tensor exists: the graph may live longer."""
        retained = self.retained
        retained.setdefault(index, None)
        self.retainers[index] = ref(tensor, lambda _: retained.pop(index, None))


class RemovableHandle:
    """The handle of a registered hook: ``remove()``, or leaving a ``with`` block over the handle, removes the hook.

    It does not keep the hooks alive: a hook that refers to its own handle, as one that removes itself does, is no cycle.
    """

    def __init__(self, hooks: Table[int, Any], key: int) -> None:
        self._hooks = ref(hooks)
        self.id = key

    def remove(self) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __reduce__(self) -> Any:
        # A weak reference would lead a copy to the hooks of the original. The table itself leads it to those of a module that
        # is copied with it.
        hooks = self._hooks()
        return RemovableHandle, (Table() if hooks is None else hooks, self.id)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def hooks_of(target: Any) -> Hooks:
    """The hooks of a node or leaf, created when first used."""
    if target.hooks is None:
        target.hooks = Hooks()
    found: Hooks = target.hooks
    return found


def hand_on(edge: Any, tensor: Any) -> None:
    """After an in-place op gave ``tensor`` another edge than ``edge``: it retains the gradient of its new value."""
    hooks = None if edge is None else edge[0].hooks
    if hooks is None or edge[1] not in hooks.retained or hooks.retainers[edge[1]]() is not tensor:
        return
    there, index = hooks_of(tensor.edge[0]), tensor.edge[1]
    there.retain(index, tensor)
    there.retained[index] = hooks.retained.pop(edge[1])
    del hooks.retainers[edge[1]]


def hang(hooks: Any, entry: Any, prepend: bool = False, key: int | None = None) -> RemovableHandle:
    """Add a hook to those of one kind: behind the others, or before them. Without a ``key``, it gets a new one."""
    key = new_key() if key is None else key
    hooks[key] = entry
    if prepend:
        hooks.move_to_end(key, last=False)
    return RemovableHandle(hooks, key)


class Hookable:
    """What hooks can be registered on: a node, or a leaf."""

    __slots__ = ()

    #: :class:`Hooks`, or None.
    hooks: Any

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)``, tuples both, when the node has run; it may return other grad_inputs."""
        return hang(hooks_of(self).after, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; it may return others."""
        return hang(hooks_of(self).before, hook)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict in which a program may note what it wants, for as long as the node exists."""
        found: dict[str, Any] = hooks_of(self).metadata
        return found
