"""Kernels of the GPU that do the work of several instructions of a program; see ``program.fusion``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from gradcore.devices.calls import Call
from gradcore.devices.gpu_linalg import linear_relu

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


def norm_slopes_added(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Layer norm's dx is added to another gradient where it is made."""
    ((slopes, given),), ((_, (total, dx)),) = steps
    if (total.shape, total.dtype) != (dx.shape, dx.dtype) or not total.flags.c_contiguous:
        return None
    return _gone_on(steps, slopes, given, total, True)


def sum_with_norm(steps: Steps, bind: Callable[..., Any]) -> Steps | None:
    """Layer norm makes the sum that it is of. What an element is made of may lie where it goes: one thread does all of it."""
    ((_, (a, b, total)),), ((norm, given),) = steps
    if a is None or b is None:
        # A run would put what it brings into another list.
        return None
    out, mean, rstd = given[3:6]
    for x in (a, b):
        if not _apart(x, mean, rstd) or any(x.data.ptr != y.data.ptr and not _apart(x, y) for y in (total, out)):
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
    "linear with relu": linear_with_relu, "batch norm with relu": norm_with_relu,
    "batch norm with relu gradient": norm_with_relu_slopes, "layer norm gradient added": norm_slopes_added,
    "sum with layer norm": sum_with_norm}
