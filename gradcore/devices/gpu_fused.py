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
from gradcore.devices.gpu_norms import alone

Steps = list[list[Call]]


def fused(kind: str, steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The calls of some instructions that ``program.fusion`` names, with the same results in fewer launches; None for no
    such way."""
    return KINDS[kind](steps, bind) if kind in KINDS else None


def _apart(result: Any, *operands: Any) -> bool:
    """Does a result lie in no operand's place? What is not known before a run brings it does not lie in the arena."""
    return not any(x is not None and cupy.may_share_memory(x, result) for x in operands)


def linear_with_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The product writes what relu makes of it; what there would have been in between is never made.

    The plan may have given relu's result the place of the product's operands, which nobody reads any more by then.
    """
    ((_, given),), ((_, (_, result)),) = steps
    if not _apart(result, *given[:3]):
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


# A norm's kernel takes an argument more, and does the next instruction too (``gpu_norms``). Its first result is the sixth
# argument. Blocks that have written theirs are beside others that still read, what lies in the workspace too.
_RESULT = 5


def norm_with_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Batch norm writes what relu makes of it."""
    ((norm, given),), ((_, (_, result)),) = steps
    return _gone_on(steps, norm, given, result, True)


def norm_with_relu_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Batch norm, made again, goes on to the gradient of relu."""
    ((norm, given),), _, ((_, (dy, _, result)),) = steps
    # What a run brings, it puts into another list.
    return None if dy is None or not _apart(result, dy) else _gone_on(steps, norm, given, result, True, dy)


def counted_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Batch norm counts itself, and writes what relu makes of it where that comes next."""
    ((_, (batches, _)),), ((norm, given),), *relu = steps
    result = relu[0][0][1][1] if relu else given[_RESULT]
    return None if batches is None else _gone_on(steps, norm, given, result, bool(relu), batches)


def slopes_through_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The gradients of batch norm go by what relu showed."""
    ((_, (dy, shown, _)),), ((slopes, given),) = steps
    return None if shown is None else _behind_relu(steps, slopes, given, dy, None, shown)


def slopes_through_norm_again(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The gradients of batch norm go by what relu would show; else what goes before them is one launch."""
    ((_, again),), _, ((_, (dy, _, _)),), ((slopes, given),) = steps
    found = _behind_relu(steps, slopes, given, dy, again[2], None)
    if found is None:
        before = norm_with_relu_slopes(steps[:3], bind)
        return before and [*before, steps[3]]
    return found


def _behind_relu(steps: Steps, kernel: Callable[..., Any], given: list[Any], dy: Any, bias: Any, shown: Any) -> Steps | None:
    """Batch norm's gradients of relu's cotangent, which may lie where dx goes: one thread reads an element and writes there."""
    x, (dx, *others, workspace) = given[1], given[_RESULT:]
    if x is None or not alone(x):
        others.append(workspace)
    for read in (dy, shown, bias):
        if read is not None and (not all(_apart(read, y) for y in others) or not (_apart(read, dx) or _same(read, dx))):
            return None
    if dy is None:
        # A run would put what it brings into another list.
        return None
    given[0] = dy
    given += True, bias, shown
    return [*[[] for _ in steps[1:]], [(kernel, given)]]


def _same(x: Any, y: Any) -> bool:
    return (x.data.ptr, x.shape, x.dtype) == (y.data.ptr, y.shape, y.dtype)


def norm_slopes_added(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Layer norm's dx is added to another gradient where it is made."""
    ((slopes, given),), ((_, (total, _)),) = steps
    return _gone_on(steps, slopes, given, total, True)


def sum_with_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Layer norm makes the sum that it is of. What an element is made of may lie where it goes: one thread does all of it."""
    ((_, (a, b, total)),), ((norm, given),) = steps
    if a is None or b is None:
        # A run would put what it brings into another list.
        return None
    out, mean, rstd = given[3:6]
    for x in (a, b):
        if not _apart(x, mean, rstd) or not all(_apart(x, y) or _same(x, y) for y in (total, out)):
            return None
    given += a, b
    return [[], [(norm, given)]]


def _gone_on(steps: Steps, kernel: Callable[..., Any], given: list[Any], result: Any, *more: Any) -> Steps | None:
    """The kernel's call alone, into ``result`` and with arguments more, unless it would overwrite what it reads."""
    if not _apart(result, *given[:_RESULT], *given[_RESULT + 1:]):
        return None
    given[_RESULT] = result
    given += more
    return [[(kernel, given)], *[[] for _ in steps[1:]]]


KINDS: dict[str, Callable[[Steps, Callable[..., Any]], Steps | None]] = {
    "linear with relu": linear_with_relu, "gelu with slopes": gelu_with_slopes, "loss with slopes": loss_with_slopes,
    "batch norm with relu": norm_with_relu,
    "counted batch norm with relu": counted_norm, "counted batch norm": counted_norm,
    "batch norm with relu gradient": norm_with_relu_slopes, "relu gradient with batch norm's": slopes_through_norm,
    "batch norm again with relu and gradients": slopes_through_norm_again,
    "layer norm gradient added": norm_slopes_added, "sum with layer norm": sum_with_norm}
