"""Calls of the user's hooks during backward, and checks of what they return."""

from __future__ import annotations

from typing import Any

from gradcore.engine.hooks import Hooks
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.state import local
from gradcore.engine.value import Value, alias
from gradcore.errors import DeviceError, SpecError
from gradcore.ops.movement import clone
from gradcore.units import count_of


class as_user:
    """Run the user's code inside backward: the sites of its ops are its own lines, and a grad mode that it sets ends there."""

    __slots__ = ("_site", "_grad")

    def __enter__(self) -> None:
        state = local.state
        self._grad = state.grad
        self._site, state.site = state.site, None

    def __exit__(self, *exc: object) -> None:
        state = local.state
        state.site, state.grad = self._site, self._grad


def seen(g: Any, index: int, hooks: Hooks, where: str) -> Any:
    """A cotangent after the hooks on its tensor. Raises TypeError or :class:`SpecError` if one returns no cotangent."""
    for at, hook in list(hooks.tensor.values()):
        if at == index and g is not None:
            g = replaced(g, hook(alias(g, g.edge)), f"a hook on {where}")
    return g


def replaced(g: Any, result: Any, whose: str) -> Any:
    """``g``, or what a hook returned in its place."""
    if result is None:
        return g
    if not isinstance(result, Value):
        raise TypeError(f"{whose} must return a Tensor or None, but returned {type(result).__name__}")
    if result.spec.shape != g.spec.shape:
        raise SpecError(f"{whose} returned shape {list(result.spec.shape)} for a gradient of shape {list(g.spec.shape)}")
    if result.spec.dtype != g.spec.dtype:
        raise SpecError(f"{whose} returned {result.spec.dtype.name} for a gradient of {g.spec.dtype.name}")
    if result.storage.device.compute is not g.storage.device.compute:
        raise DeviceError(f"{whose} returned a tensor on {result.storage.device} for a gradient on {g.storage.device}")
    return alias(result, result.edge)


def _all_replaced(gs: list[Any], result: Any, whose: str) -> list[Any]:
    """Gradients replaced by what a hook of a node returned: a tuple with one for each, or the only one. A None stops one.

    Raises RuntimeError for another number of them, and for one where there was none."""
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) != len(gs):
        raise RuntimeError(f"{whose} must return {count_of(len(gs), 'gradient')}, but returned {len(parts)}")
    if any(g is None and part is not None for g, part in zip(gs, parts, strict=True)):
        raise RuntimeError(f"{whose} can't replace a None gradient with a non-None value")
    return [None if part is None else replaced(g, part, whose) for g, part in zip(gs, parts, strict=True)]


def on_outputs(node: Node, gs: list[Any]) -> None:
    """Run the hooks on the tensors that a node made; what they return replaces their cotangents in ``gs``."""
    hooks = node.hooks
    with as_user():
        for k in range(len(gs)):
            gs[k] = seen(gs[k], k, hooks, node.name())
    for k, before in list(hooks.retained.items()):
        g = gs[k]
        if g is not None:
            # A copy: others may hold the cotangent's bytes, and it may be an expanded number, which cannot be written to.
            kept = clone(g) if before is None else before + g
            if k in hooks.retained:
                # Its tensor still exists.
                hooks.retained[k] = kept


def before_node(node: Node | Leaf, gs: list[Any]) -> None:
    """Run the hooks of a node that is about to run, or of a leaf that is about to be added to; what they return replaces its
    cotangents in ``gs``."""
    with as_user():
        for hook in list(node.hooks.before.values()):
            # As objects of their own, since a hook may hold them.
            result = hook(tuple(None if g is None else alias(g, g.edge) for g in gs))
            if result is not None:
                gs[:] = _all_replaced(gs, result, f"a pre-hook of {node.name()}")


def after_node(node: Node | Leaf, results: list[Any], gs: tuple[Any, ...]) -> list[Any]:
    """The gradients that a node returns, after its hooks."""
    with as_user():
        for hook in list(node.hooks.after.values()):
            # As objects of their own, since a hook may hold them.
            changed = hook(tuple(None if g is None else alias(g, g.edge) for g in results), gs)
            if changed is not None:
                results = _all_replaced(results, changed, f"a hook of {node.name()}")
    return results


def after_leaf(leaf: Leaf) -> None:
    """Run the hooks that wait for the gradient of a leaf to be complete."""
    with as_user():
        for tensor, hook in list(leaf.hooks.accumulated.values()):
            found = tensor()
            if found is not None:
                hook(found)
