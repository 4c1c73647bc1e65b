"""Fused calls on the GPU: one kernel for several instructions of a program; see ``program.fusion``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy

from gradcore.devices.calls import KernelCall, Steps
from gradcore.devices.gpu.kernels.elementwise import gelu_with_grad
from gradcore.devices.gpu.kernels.linalg import can_show_relu, input_grad_through_relu, linear_grad, linear_relu
from gradcore.devices.gpu.kernels.losses import cross_entropy_with_slopes
from gradcore.devices.gpu.kernels.norms import alone


def fused(kind: str, steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Calls in fewer launches for a group of instructions of ``program.fusion``, with the same results; else None."""
    return KINDS[kind](steps, bind) if kind in KINDS else None


def _disjoint(result: Any, *operands: Any) -> bool:
    """Does a result overlap none of the operands? Operands that only a run provides are not in the arena."""
    return not any(x is not None and cupy.may_share_memory(x, result) for x in operands)


def linear_with_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The matrix product applies relu, and the result in between is never written.

    The plan may have given relu's result the place of an operand of the product, since it is not read after the product.
    """
    ((_, given),), ((_, (_, result)),) = steps
    if not _disjoint(result, *given[:3]):
        return None
    # The same list, since a run replaces arrays in it.
    given[3] = result
    return [[(bind(linear_relu, "linear"), given)], []]


def gelu_with_slopes(steps: Steps, bind: Callable[..., Any], over: bool = False) -> Steps | None:
    """gelu recomputed, a linear layer's gradient, and gelu's gradient: one kernel for gelu and its gradient, between the
    products.

    The gradient is written over its cotangent, if the plan has it there; the second product reads gelu's result, which is
    written ``over`` gelu's input if that is not read later: the plan may have put the cotangent in gelu's own place.
    """
    ((gelu, (x, out, _)),), ((_, (dy, _, weight, *made)),), ((_, (slopes, _, result, _)),) = steps
    # Elsewhere the product might be by another algorithm.
    out = x if over and (x.data.ptr - out.data.ptr) % _PLACE == 0 else out
    arrays = x, out, slopes, result
    if dy is None or weight is None or any(a is None or not a.flags.c_contiguous for a in arrays):
        return None
    if slopes.data.ptr != result.data.ptr or any(cupy.may_share_memory(slopes, a) for a in (dy, x, out)):
        return None
    both = bind(partial(gelu_with_grad, tanh=keywords(gelu).get("tanh", False)), "gelu")
    return [[], _around((both, [x, out, slopes]), dy, out, weight, made, bind), []]


def _around(call: KernelCall, dy: Any, x: Any, weight: Any, made: Sequence[Any], bind: Callable[..., Any]) -> list[KernelCall]:
    """A linear layer's gradients: the one of its input before a call, and after it those of its parameters."""
    before = bind(partial(linear_grad, needs=(True, False, False)), "linear_grad")
    return [(before, [dy, None, weight, made[0]]), call, *_of_parameters(dy, x, made[1:], bind)]


def _of_parameters(dy: Any, x: Any, made: Sequence[Any], bind: Callable[..., Any]) -> list[KernelCall]:
    """The call for the gradients of a linear layer's parameters, if any are made."""
    # A weight has two dimensions and its bias one.
    needs = False, any(a.ndim == 2 for a in made), any(a.ndim == 1 for a in made)
    return [(bind(partial(linear_grad, needs=needs), "linear_grad"), [dy, x, None, *made])] if made else []


def linear_slopes_through_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The product that makes the gradient of a linear layer's input also applies that of the relu before, and the gradient
    between is never written. The parameters' come first: they read relu's result, whose place the plan may have given away."""
    ((kernel, (dy, x, weight, *made)),), ((_, (_, shown, result)),) = steps
    # None is a place that a run fills in another argument list, or x where no gradient of the weight is made.
    read = dy, weight, shown, result, *((x,) if keywords(kernel)["needs"][1] else ())
    if any(a is None or not a.flags.c_contiguous for a in read) or not _disjoint(result, dy, weight):
        return None
    if not (_disjoint(result, shown) or _same(result, shown)) or not can_show_relu(dy, weight, result):
        return None
    through = bind(input_grad_through_relu, "linear_grad"), [dy, weight, shown, result]
    return [[*_of_parameters(dy, x, made[1:], bind), through], []]


def loss_with_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Cross-entropy, its cotangent of 1 and its gradient in one kernel, which reads the rows of logits once.

    It runs in the gradient's place and uses the gradient's workspace, since that of the others may be reused by then.
    """
    ((_, (*_, loss, _)),), _, ((gradient, given),) = steps
    how = keywords(gradient)
    if how.get("reduction") == "none":
        return None
    given.append(loss)
    return [[], [], [(bind(partial(cross_entropy_with_slopes, **how), "cross_entropy"), given)]]


def keywords(kernel: Callable[..., Any]) -> dict[str, Any]:
    """The attributes that a kernel was bound with."""
    bound = inspect.unwrap(kernel)
    return bound.keywords if isinstance(bound, partial) else {}


# With a further argument a norm's kernel does the next instruction too (``kernels.norms``). Its first result is the sixth
# argument. Some blocks write results while others still read operands and the workspace, so these must not overlap.
_RESULT = 5
#: The bytes of a kernel's widest accesses, and those of the multiples at which the plan's places begin.
_ACCESS, _PLACE = 16, 512


def norm_with_relu(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Batch norm applies relu to its result."""
    ((norm, given),), ((_, (_, result)),) = steps
    return _with_next(steps, norm, given, result, True)


def norm_with_relu_slopes(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Recomputed batch norm computes the gradient of relu too."""
    ((norm, given),), _, ((_, (dy, _, result)),) = steps
    # None is a place that a run fills in another argument list.
    return None if dy is None or not _disjoint(result, dy) else _with_next(steps, norm, given, result, True, dy)


def counted_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Batch norm counts its batches, and applies relu if that is the next instruction."""
    ((_, (batches, _)),), ((norm, given),), *relu = steps
    result = relu[0][0][1][1] if relu else given[_RESULT]
    return None if batches is None else _with_next(steps, norm, given, result, bool(relu), batches)


def slopes_through_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The gradient of batch norm applies that of relu, by relu's result."""
    ((_, (dy, shown, _)),), ((slopes, given),) = steps
    return None if shown is None else _relu_slopes(steps, slopes, given, dy, None, shown)


def slopes_through_norm_again(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """The gradient of batch norm applies that of relu, by a recomputed result; or else the instructions before are fused."""
    ((_, again),), _, ((_, (dy, _, _)),), ((slopes, given),) = steps
    found = _relu_slopes(steps, slopes, given, dy, again[2], None)
    if found is None:
        before = norm_with_relu_slopes(steps[:3], bind)
        return before and [*before, steps[3]]
    return found


def _relu_slopes(steps: Steps, kernel: Callable[..., Any], given: list[Any], dy: Any, bias: Any, shown: Any) -> Steps | None:
    """Batch norm's gradient of relu's cotangent, which may be in dx's place, as one thread reads and writes an element."""
    x, (dx, *others, workspace) = given[1], given[_RESULT:]
    if x is None or not alone(x):
        others.append(workspace)
    for read in (dy, shown, bias):
        if read is not None and (not all(_disjoint(read, y) for y in others) or not (_disjoint(read, dx) or _same(read, dx))):
            return None
    if dy is None:
        # A run would put what it brings into another list.
        return None
    given[0] = dy
    given += True, bias, shown
    return [*[[] for _ in steps[1:]], [(kernel, given)]]


def _same(x: Any, y: Any) -> bool:
    return (x.data.ptr, x.shape, x.dtype) == (y.data.ptr, y.shape, y.dtype)


def norm_slopes_added(steps: Steps, bind: Callable[..., Any], first: int = _RESULT) -> Steps | None:
    """The gradient of layer or RMS norm adds its dx, the argument ``first``, to another gradient."""
    ((slopes, given),), ((_, (total, _)),) = steps
    return _with_next(steps, slopes, given, total, True, first=first)


def norm_again_with_slopes(steps: Steps, bind: Callable[..., Any], first: int = _RESULT) -> Steps | None:
    """The gradient of layer or RMS norm, which may be added to another one, also recomputes the norm, for the gradient of the
    linear layer's weight; or else only the addition is fused. ``first`` is as in :func:`norm_slopes_added`."""
    ((_, again),), ((_, (dy, _, weight, *made)),), ((slopes, given),), *added = steps
    # RMS norm has no bias, and computes its rstd again, which is not needed.
    bias, out = ((again[2],), again[5]) if first == _RESULT else ((), again[2])
    total = added[0][0][1][0] if added else given[first]
    read, written = given[:first], (total, *given[first + 1:])
    # In double precision the kernel has no registers for it, and other accesses would add up in another order.
    possible = dy is not None and weight is not None and out.dtype.itemsize < 8 and all(
        a is None or a.flags.c_contiguous for a in (out, *read)) and not any(
        a is not None and a.data.ptr % _ACCESS for a in (out, *bias))
    # The bias may have died with the norm that is recomputed, before what is written now.
    if possible and _disjoint(out, *read, *bias) and _disjoint(made[0], *bias) and all(
            _disjoint(a, dy, out, *bias, *made[1:]) for a in written if a is not None):
        calls = _with_next(steps, slopes, given, total, True, first=first) if added else [[(slopes, given)]]
        if calls is not None:
            given += [] if added else [False]
            given += out, *bias
            return [[], _around((slopes, given), dy, out, weight, made, bind), *[[] for _ in steps[2:]]]
    before = added and norm_slopes_added(steps[2:], bind, first)
    return [*steps[:2], *before] if before else None


def sum_with_norm(steps: Steps, bind: Callable[..., Any], results: slice = slice(3, 6)) -> Steps | None:
    """Layer or RMS norm computes the sum that it normalizes. Operands may be in its place: one thread handles an element."""
    ((_, (a, b, total)),), ((norm, given),) = steps
    if a is None or b is None:
        # A run would put what it brings into another list.
        return None
    out, *statistics = given[results]
    for x in (a, b):
        if not _disjoint(x, *statistics) or not all(_disjoint(x, y) or _same(x, y) for y in (total, out)):
            return None
    given += a, b
    return [[], [(norm, given)]]


def _with_next(steps: Steps, kernel: Callable[..., Any], given: list[Any], result: Any, *more: Any,
               first: int = _RESULT) -> Steps | None:
    """Only the kernel's call, with ``result`` and further arguments; None if it would overwrite what it reads."""
    if not _disjoint(result, *given[:first], *given[first + 1:]):
        return None
    given[first] = result
    given += more
    return [[(kernel, given)], *[[] for _ in steps[1:]]]


KINDS: dict[str, Callable[[Steps, Callable[..., Any]], Steps | None]] = {
    "linear with relu": linear_with_relu, "linear gradient with relu's": linear_slopes_through_relu,
    "gelu with slopes": gelu_with_slopes, "gelu over its input with slopes": partial(gelu_with_slopes, over=True),
    "loss with slopes": loss_with_slopes,
    "batch norm with relu": norm_with_relu,
    "counted batch norm with relu": counted_norm, "counted batch norm": counted_norm,
    "batch norm with relu gradient": norm_with_relu_slopes, "relu gradient with batch norm's": slopes_through_norm,
    "batch norm again with relu and gradients": slopes_through_norm_again,
    "layer norm gradient added": norm_slopes_added, "sum with layer norm": sum_with_norm,
    "layer norm again with gradients": norm_again_with_slopes, "layer norm again with gradients, added": norm_again_with_slopes,
    # RMS norm has no bias and no mean.
    "RMS norm gradient added": partial(norm_slopes_added, first=4), "sum with RMS norm": partial(
        sum_with_norm, results=slice(2, 4)),
    **{f"RMS norm again with gradients{added}": partial(norm_again_with_slopes, first=4) for added in ("", ", added")}}
