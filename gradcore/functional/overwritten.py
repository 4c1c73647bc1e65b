"""Activations and dropout as they are with ``inplace=True``: what else holds the input sees the result in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gradcore.arguments import with_name
from gradcore.engine.recomputing import is_remade
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.engine.views import become, seen_alone
from gradcore.ops import movement

Tensor = Any


def overwritten(function: Callable[..., Tensor], input: Tensor, *args: Any) -> Tensor:
    """``function(input, *args)``, of the same shape, in the place of ``input``, which is returned.

    If no other tensor shows its bytes, the input becomes the result: its bytes return to the pool, or are kept for backward, as
    without ``inplace``. Otherwise they are written to, and backward keeps a copy of what was there before.
    Raises RuntimeError for a leaf that requires grad.
    """
    # Of integers, the result may be floating. In no_grad mode it has no history, and the input keeps its own.
    if input.spec.floating and (input.edge is None or local.state.grad) and seen_alone(input):
        return become(input, function(input, *args))
    kept = movement.clone(input) if input.requires_grad else input
    return movement.copy_(input, function(kept, *args))


def is_better_remade(input: Tensor, other: Tensor) -> bool:
    """Is it better to let ``input`` become its sum with ``other`` than to add that in place? If both are kept or recomputed in
    backward anyway, the sum can be recomputed, too, which is often what the next layer keeps.

    Not in a selective checkpoint, whose second run is to call the ops that the first called, where nothing is recomputed.
    """
    edge, state = input.edge, local.state
    if edge is None or edge[0].recipe is None or not state.grad or state.watch is not None or not isinstance(other, Value) or (
            other.spec.shape != input.spec.shape or other.spec.dtype != input.spec.dtype
            or other.storage.device is not input.storage.device):
        return False
    return (other.storage.block.keeps > 0 or is_remade(other)) and is_remade(input) and seen_alone(input)


def overwriting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function that is called as ``function`` with an underscore, and overwrites its first argument."""

    @wraps(function)
    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return overwritten(lambda x: function(x, *args, **options), input)

    return with_name(written, f"{function.__name__}_", f"``{function.__name__}``, written over the tensor; returns it.")
