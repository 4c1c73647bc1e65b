"""Elementwise losses on the CPU, in pieces that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import Array, kernel, pieces

#: The least value of a logarithm, as in PyTorch, so that the loss is finite for probabilities of 0.
LEAST_LOG = -100.0


def _with_room(workspace: Array, temporaries: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Pieces of arrays of one size, then temporaries of a piece's length."""
    room = workspace.view(arrays[0].dtype)
    step = room.size // temporaries
    for part in pieces(*arrays):
        yield (*part, *(room[k * step:k * step + part[0].size] for k in range(temporaries)))


@kernel
def huber(x: Array, delta: Any, out: Array, workspace: Array) -> None:
    # With m = min(|x|, delta): m (|x| - m / 2).
    for xs, outs, m in _with_room(workspace, 1, x, out):
        np.absolute(xs, outs)
        np.minimum(outs, delta, out=m)
        np.multiply(m, -0.5, m)
        np.add(outs, m, outs)
        np.multiply(outs, m, outs)
        np.multiply(outs, -2, outs)


@kernel
def bce(x: Array, target: Array, out: Array, workspace: Array) -> None:
    for xs, ts, outs, a, b in _with_room(workspace, 2, x, target, out):
        for name, part in (("input", xs), ("target", ts)):
            low, high = np.minimum.reduce(part), np.maximum.reduce(part)
            # Written so that NaN fails too.
            if not (low >= 0 and high <= 1):
                raise RuntimeError(f"all elements of {name} should be between 0 and 1, but there are {low} and {high}")
        np.negative(xs, a)
        np.log1p(a, a)
        np.maximum(a, LEAST_LOG, out=a)
        np.subtract(ts, 1, b)
        np.multiply(a, b, a)
        np.log(xs, outs)
        np.maximum(outs, LEAST_LOG, out=outs)
        np.multiply(outs, ts, outs)
        np.subtract(a, outs, outs)


@kernel
def bce_logits(x: Array, target: Any, out: Array, workspace: Array) -> None:
    both = (x, out, target) if isinstance(target, np.ndarray) else (x, out)
    for xs, outs, *rest, t in _with_room(workspace, 1, *both):
        np.absolute(xs, outs)
        np.negative(outs, outs)
        np.exp(outs, outs)
        np.log1p(outs, outs)
        np.maximum(xs, 0, out=t)
        np.add(outs, t, outs)
        np.multiply(xs, rest[0] if rest else target, t)
        np.subtract(outs, t, outs)


@kernel
def mse_grad(dy: Array, x: Any, target: Array, out: Array, *, reduction: str) -> None:
    np.subtract(x, target, out)
    np.multiply(out, 2.0 / max(x.size, 1) if reduction == "mean" else 2.0, out)
    np.multiply(out, dy, out)
