"""Recurrent layers on the GPU: a step is a matrix product and one launch, forward and backward; if small, one launch forward.

The weight is read in its own layout, so the workspace's room for its transpose is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.linalg import product
from gradcore.devices.gpu.kernels.movement import copy
from gradcore.devices.gpu.kernels.reductions import fold
from gradcore.devices.kernels import before, split_workspace, steps

#: Blocks that go through the samples with the weight in their shared memory, at most.
_BLOCKS = 512


def _small(weight: Any, *arrays: Any) -> int:
    """The blocks of a step that computes its product too; 0 if that is not for these operands."""
    rows, width, size = int(arrays[0].shape[0]), int(weight.shape[0]), int(weight.shape[1])
    if weight.itemsize > 4 or size % 4 or not 8 <= size <= 32 or not gl.packed(*arrays):
        return 0
    return min(-(-rows // (gl.BLOCK // (size // 4) * (4 if width < 4 * size else 3))), _BLOCKS, gl.MOST_BLOCKS)


def _shape(state: Any) -> tuple[Any, Any]:
    return np.int64(state.shape[0]), np.int32(state.shape[1])


def _weight_gradient(slopes: Any, states: Any, first: Any, backwards: bool, dweight: Any) -> None:
    """The sum over all steps of slopes^T times the state before the step, by two matrix products for any number of steps."""
    if not len(slopes):
        gl.zero(dweight)
        return
    product(slopes[-1 if backwards else 0].T, first, dweight)
    if len(slopes) > 1:
        width, size = dweight.shape
        later, earlier = (slopes[:-1], states[1:]) if backwards else (slopes[1:], states[:-1])
        rows = later.size // max(width, 1)
        product(later.reshape(rows, width).T, earlier.reshape(rows, size), dweight, added=True)


@gl.kernel
def rnn(given: Any, weight: Any, h0: Any, out: Any, workspace: Any, *, relu: bool, backwards: bool) -> None:
    count = gl.length_of(h0.shape[-1], h0, given, out)
    total, kind = h0.size // count, str(relu).lower()
    h, blocks = h0, _small(weight, h0, given, out)
    for t in steps(len(given), backwards):
        if blocks:
            gl.run_blocks("recurrent", "rnn_small", (h.dtype, kind), blocks, given[t], weight, h, out[t], *_shape(h))
        else:
            product(h, weight.T, out[t])
            gl.run("recurrent", "rnn", (h.dtype, count, kind), total, given[t], out[t], np.int64(total))
        h = out[t]


@gl.kernel
def rnn_grad(dy: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dh0: Any, workspace: Any, *, relu: bool,
             backwards: bool) -> None:
    count = gl.length_of(h0.shape[-1], h0, dy, out, dgiven, dh0)
    types, total = (h0.dtype, count, str(relu).lower()), h0.size // count
    dh = None
    for t in steps(len(out), not backwards):
        gl.run("recurrent", "rnn_grad", types, total, dy[t], dh, out[t], dgiven[t], np.int64(total))
        dh = dh0
        product(dgiven[t], weight, dh)
    if dh is None:
        gl.zero(dh0)
    _weight_gradient(dgiven, out, h0, backwards, dweight)


@gl.kernel
def lstm(given: Any, weight: Any, h0: Any, c0: Any, out: Any, last: Any, gates: Any, cells: Any, workspace: Any, *,
         backwards: bool) -> None:
    made = split_workspace(workspace, (4 * h0.size, h0.dtype))[0].reshape(h0.shape[0], 4 * h0.shape[1])
    count = gl.length_of(h0.shape[-1], h0, given, made, c0, gates, cells, out, last)
    total, h, c = h0.size // count, h0, c0
    end, blocks = 0 if backwards else len(given) - 1, _small(weight, h0, given, c0, gates, cells, out, last)
    for t in steps(len(given), backwards):
        written = gates[t], cells[t], out[t], last if t == end else None
        if blocks:
            gl.run_blocks("recurrent", "lstm_small", (h.dtype,), blocks, given[t], weight, h, c, *written, *_shape(h))
        else:
            product(h, weight.T, made)
            gl.run("recurrent", "lstm", (h.dtype, count), total, given[t], made, c, *written, np.int64(total),
                   np.int32(h.shape[1]))
        h, c = out[t], cells[t]
    if not len(given):
        copy(c0, last)


@gl.kernel
def lstm_grad(dy: Any, dlast: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any, dgiven: Any, dweight: Any,
              dh0: Any, dc0: Any, workspace: Any, *, backwards: bool) -> None:
    count = gl.length_of(h0.shape[-1], h0, dy, dlast, gates, cells, c0, dgiven, dh0, dc0)
    total, dh, dc = h0.size // count, None, dlast
    for t in steps(len(out), not backwards):
        gl.run("recurrent", "lstm_grad", (h0.dtype, count), total, None if dy is None else dy[t], dh, dc, gates[t], cells[t],
               before(t, cells, c0, backwards), dgiven[t], dc0, np.int64(total), np.int32(h0.shape[1]))
        dh, dc = dh0, dc0
        product(dgiven[t], weight, dh)
    if dh is None:
        gl.zero(dh0)
        copy(0 if dlast is None else dlast, dc0)
    _weight_gradient(dgiven, out, h0, backwards, dweight)


@gl.kernel
def gru(given: Any, weight: Any, bias: Any, h0: Any, out: Any, gates: Any, workspace: Any, *, backwards: bool) -> None:
    made = split_workspace(workspace, (3 * h0.size, h0.dtype))[0].reshape(h0.shape[0], 3 * h0.shape[1])
    count = gl.length_of(h0.shape[-1], h0, given, made, gates, out, bias)
    total, h, blocks = h0.size // count, h0, _small(weight, h0, given, gates, out, bias)
    for t in steps(len(given), backwards):
        if blocks:
            gl.run_blocks("recurrent", "gru_small", (h.dtype,), blocks, given[t], weight, bias, h, gates[t], out[t], *_shape(h))
        else:
            product(h, weight.T, made)
            gl.run("recurrent", "gru", (h.dtype, count), total, given[t], made, bias, h, gates[t], out[t], np.int64(total),
                   np.int32(h.shape[1]))
        h = out[t]


@gl.kernel
def gru_grad(dy: Any, gates: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dbias: Any, dh0: Any,
             workspace: Any, *, backwards: bool) -> None:
    size, dn = h0.shape[1], split_workspace(workspace, (out.size, h0.dtype))[0].reshape(out.shape)
    count = gl.length_of(size, h0, dy, gates, out, dgiven, dn, dh0)
    total, dh = h0.size // count, None
    for t in steps(len(out), not backwards):
        gl.run("recurrent", "gru_grad", (h0.dtype, count), total, dy[t], dh, gates[t], before(t, out, h0, backwards), dgiven[t],
               dn[t], dh0, np.int64(total), np.int32(size))
        dh = dh0
        product(dgiven[t], weight, dh, added=True)
    if dh is None:
        gl.zero(dh0)
    _weight_gradient(dgiven, out, h0, backwards, dweight)
    fold("Sum", dgiven, dbias, (0, 1))
    # So far they were those of what the state gives.
    copy(dn, dgiven[:, :, 2 * size:])
