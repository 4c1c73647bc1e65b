"""Softmax and its logarithm on the CPU."""

from __future__ import annotations

import numpy as np

from gradcore.devices.host_kernels import Array, kernel, rows
from gradcore.devices.kernels import folded_shape, split_workspace


@kernel
def softmax(x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
    np.amax(x, axis=dim, out=fold, keepdims=True)
    np.subtract(x, fold, out)
    np.exp(out, out)
    np.sum(out, axis=dim, out=fold, keepdims=True)
    np.true_divide(out, fold, out)


@kernel
def softmax_grad(dy: Array, x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
    np.multiply(dy, x, out)
    np.sum(out, axis=dim, out=fold, keepdims=True)
    np.subtract(dy, fold, out)
    np.multiply(out, x, out)


@kernel
def log_softmax(x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    width = x.shape[dim] if x.ndim else 1
    count = x.size // max(width, 1)
    last = dim == x.ndim - 1 or not x.ndim
    room = min(x.size, rows(width) * width) if last else x.size
    exps, folded = split_workspace(workspace, (room, x.dtype), (count, x.dtype))
    fold = folded.reshape(folded_shape(x.shape, dim))
    np.amax(x, axis=dim, out=fold, keepdims=True)
    np.subtract(x, fold, out)
    if last:
        for start in range(0, count, rows(width)):
            part = out.reshape(count, width)[start:start + rows(width)]
            e = exps[:part.size].reshape(part.shape)
            np.exp(part, e)
            np.sum(e, axis=1, out=folded[start:start + rows(width)])
    else:
        e = exps.reshape(x.shape)
        np.exp(out, e)
        np.sum(e, axis=dim, out=fold, keepdims=True)
    np.log(folded, folded)
    np.subtract(out, fold, out)


@kernel
def log_softmax_grad(dy: Array, x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
    np.sum(dy, axis=dim, out=fold, keepdims=True)
    np.exp(x, out)
    np.multiply(out, fold, out)
    np.subtract(dy, out, out)
