"""Kernels of the GPU that do the work of several instructions of a program; see ``program.fusion``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from gradcore.devices.calls import Call
from gradcore.devices.gpu_linalg import linear_relu
from gradcore.devices.gpu_losses import cross_entropy_with_slopes

Steps = list[list[Call]]


def fused(kind: str, steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The calls of some instructions that ``program.fusion`` names, with the same results in fewer launches; None for no
    such way."""
    return KINDS[kind](steps, bind) if kind in KINDS else None


def linear_with_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The product writes what relu makes of it; what there would have been in between is never made.

    The plan may have given relu's result the place of the product's operands, which nobody reads any more by then. What is not
    known before a run brings it does not lie in the arena.
    """
    ((_, given),), ((_, (_, result)),) = steps
    if any(x is not None and cupy.may_share_memory(x, result) for x in given[:3]):
        return None
    # The same list, which is where a run puts what it brings.
    given[3] = result
    return [[(bind(linear_relu, "linear"), given)], []]


def loss_with_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Rows of logits are read once, for what cross-entropy and its gradient make of them; so is the cotangent of 1 made.

    All of it is done where the gradient was, in its workspace: what the plan put where the others had theirs is not there yet.
    """
    ((_, (*_, loss, _)),), _, ((gradient, given),) = steps
    how = keywords(gradient)
    if how["reduction"] == "none":
        return None
    given.append(loss)
    return [[], [], [(bind(partial(cross_entropy_with_slopes, **how), "cross_entropy"), given)]]


def keywords(kernel: Callable[..., Any]) -> dict[str, Any]:
    """The attributes that a kernel was bound with."""
    bound = inspect.unwrap(kernel)
    assert isinstance(bound, partial), f"a kernel without attributes: {bound!r}"
    return bound.keywords


KINDS = {"linear with relu": linear_with_relu, "loss with slopes": loss_with_slopes}
