"""Steps that subclasses of ``Optimizer`` define: their hooks, their phase, and the role of the state that they make."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gradcore._tensor import Tensor
from gradcore.engine.owners import retag
from gradcore.engine.state import Where, local, mark
from gradcore.engine.value import tensors_in

#: Roles of tensors that become optimizer state when a step puts them there.
_MADE = frozenset(("output", "temporary", "input"))


class _Required:
    """The default of an option that has none: every group of parameters must give it."""

    def __repr__(self) -> str:
        return "<required parameter>"


#: PyTorch's name, which many optimizers import.
required = _Required()


def update_scope(scope: Where) -> Where:
    """The scope of an update, in the caller's layer."""
    return scope.at("optimizer", scope.plain.caller)


def whole(step: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass's own ``step`` with what belongs to every step: the hooks, and the account of its bytes."""
    @functools.wraps(step)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._optim_inside:
            return step(self, *args, **kwargs)
        self._opt_called = True
        # One that wraps another optimizer may have neither hooks nor state, since it need not call __init__.
        given, hooked = ((self, *args), kwargs), hasattr(self, "_optim_before")
        args, kwargs = given = self._optim_call_before(*given) if hooked else given
        state = local.state
        caller, inside = state.scope, update_scope(state.scope)
        if len(args) > 1:
            args = (args[0], _as_caller(self, args[1], caller), *args[2:])
        elif "closure" in kwargs:
            kwargs = {**kwargs, "closure": _as_caller(self, kwargs["closure"], caller)}
        if caller != inside:
            mark("begin", "optimizer")
        state.scope, self._optim_inside = inside, True
        try:
            result = step(*args, **kwargs)
        finally:
            state.scope = caller
            del self._optim_inside
            if caller != inside:
                mark("end", "optimizer")
            # Also of a step that fails, such as for want of memory.
            _own_state(self)
        if hooked:
            self._optim_call_after(*given)
        return result

    run.step_of_subclass = True  # type: ignore[attr-defined]
    return run


def _as_caller(optimizer: Any, closure: Any, scope: Where) -> Any:
    """``closure`` run in the scope of the step's caller: the loss that it computes is no part of the update."""
    if not callable(closure) or isinstance(closure, type) or hasattr(closure, "parameters"):
        return closure

    @functools.wraps(closure)
    def called(*args: Any, **kwargs: Any) -> Any:
        # The loss may be the peak.
        _own_state(optimizer)
        state = local.state
        before, state.scope, optimizer._optim_inside = state.scope, scope, False
        try:
            return closure(*args, **kwargs)
        finally:
            state.scope, optimizer._optim_inside = before, True

    return called


def _own_state(optimizer: Any) -> None:
    """Make the tensors that a step has put into the state optimizer state of the parameter's layer, but for those that have
    another role, such as the gradient."""
    for p, entries in getattr(optimizer, "state", {}).items():
        for value in tensors_in(entries):
            if value.storage.block.tag.role in _MADE:
                _own(value, p)


def name_state(state: dict[Any, Any]) -> bool:
    """Give state that has no network the layer of its parameter; returns whether any parameter has none yet."""
    unnamed = False
    for p, entries in state.items():
        if isinstance(p, Tensor) and p.storage.block.tag.network is None:
            unnamed = True
            continue
        for value in tensors_in(entries):
            if value.storage.block.tag.network is None:
                _own(value, p)
    return unnamed


def _own(value: Tensor, p: Any) -> None:
    if not isinstance(p, Tensor):
        retag(value, role="optimizer state")
        return
    like = p.storage.block.tag
    # What is larger belongs to several parameters, and so to no layer.
    layer = like.layer if value.spec.numel <= p.spec.numel else ""
    retag(value, role="optimizer state", layer=layer, network=like.network)
