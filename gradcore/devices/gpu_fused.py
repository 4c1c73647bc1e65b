"""Kernels of the GPU that do the work of several instructions of a program; see ``program.fusion``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from gradcore.devices.calls import Call
from gradcore.devices.gpu_elementwise import gelu_with_grad
from gradcore.devices.gpu_linalg import linear_grad, linear_relu
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


def gelu_with_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """gelu made again, the product that its gradient waits for, that gradient: both gelus are one kernel between the products.

    The gradient is made where its cotangent lies, if that is where it belongs; the second product reads gelu's result then.
    """
    ((gelu, (x, out, _)),), ((_, (dy, _, weight, *made)),), ((_, (slopes, _, result, _)),) = steps
    arrays = x, out, slopes, result
    if dy is None or any(a is None or not a.flags.c_contiguous for a in arrays):
        return None
    if slopes.data.ptr != result.data.ptr or any(cupy.may_share_memory(slopes, a) for a in (dy, x, out)):
        return None
    first, *rest = made
    # A weight has two dimensions and its bias one.
    needs = False, any(a.ndim == 2 for a in rest), any(a.ndim == 1 for a in rest)
    before, after = (bind(partial(linear_grad, needs=n), "linear_grad") for n in ((True, False, False), needs))
    both = bind(partial(gelu_with_grad, tanh=keywords(gelu).get("tanh", False)), "gelu")
    return [[], [(before, [dy, None, weight, first]), (both, [x, out, slopes]), (after, [dy, out, None, *rest])], []]


def loss_with_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Rows of logits are read once, for what cross-entropy and its gradient make of them; so is the cotangent of 1 made.

    All of it is done where the gradient was, in its workspace: what the plan put where the others had theirs is not there yet.
    """
    ((_, (*_, loss, _)),), _, ((gradient, given),) = steps
    how = keywords(gradient)
    if how.get("reduction") == "none":
        return None
    given.append(loss)
    return [[], [], [(bind(partial(cross_entropy_with_slopes, **how), "cross_entropy"), given)]]


def keywords(kernel: Callable[..., Any]) -> dict[str, Any]:
    """The attributes that a kernel was bound with, those that are not the op's own."""
    bound = inspect.unwrap(kernel)
    return bound.keywords if isinstance(bound, partial) else {}


KINDS = {"linear with relu": linear_with_relu, "gelu with slopes": gelu_with_slopes, "loss with slopes": loss_with_slopes}
