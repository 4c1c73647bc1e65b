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
    return linear_with_relu(steps, bind) if kind == "linear with relu" else None


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
