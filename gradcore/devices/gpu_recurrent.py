"""Recurrent layers on the GPU: a step is a matrix product and one launch, forward and backward.

The weight is read in its own layout, so the workspace's room for its transpose is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import copy
from gradcore.devices.gpu_folds import fold
from gradcore.devices.gpu_linalg import product
from gradcore.devices.kernels import before, split_workspace, steps


def _neighbours(state: Any, *arrays: Any) -> int:
    """Elements of an access: 16 bytes if the rows of states and gates are multiples of that, else one element."""
    count = 16 // state.itemsize
    return count if state.shape[-1] % count == 0 and gl.packed(state, *arrays) else 1


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
    count = _neighbours(h0, given, out)
    h = h0
    for t in steps(len(given), backwards):
        product(h, weight.T, out[t])
        h = out[t]
        gl.run("recurrent", "rnn", (h.dtype, count, str(relu).lower()), h.size // count, given[t], h, np.int64(h.size // count))


@gl.kernel
def rnn_grad(dy: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dh0: Any, workspace: Any, *, relu: bool,
             backwards: bool) -> None:
    count = _neighbours(h0, dy, out, dgiven, dh0)
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
    count = _neighbours(h0, given, made, c0, gates, cells, out, last)
    total, h, c = h0.size // count, h0, c0
    end = 0 if backwards else len(given) - 1
    for t in steps(len(given), backwards):
        product(h, weight.T, made)
        gl.run("recurrent", "lstm", (h.dtype, count), total, given[t], made, c, gates[t], cells[t], out[t],
               last if t == end else None, np.int64(total), np.int32(h.shape[1]))
        h, c = out[t], cells[t]
    if not len(given):
        copy(c0, last)


@gl.kernel
def lstm_grad(dy: Any, dlast: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any, dgiven: Any, dweight: Any,
              dh0: Any, dc0: Any, workspace: Any, *, backwards: bool) -> None:
    count = _neighbours(h0, *[x for x in (dy, dlast) if x is not None], gates, cells, c0, dgiven, dh0, dc0)
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
    count = _neighbours(h0, given, made, gates, out, *(() if bias is None else (bias,)))
    total, h = h0.size // count, h0
    for t in steps(len(given), backwards):
        product(h, weight.T, made)
        gl.run("recurrent", "gru", (h.dtype, count), total, given[t], made, bias, h, gates[t], out[t], np.int64(total),
               np.int32(h.shape[1]))
        h = out[t]


@gl.kernel
def gru_grad(dy: Any, gates: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dbias: Any, dh0: Any,
             workspace: Any, *, backwards: bool) -> None:
    slopes = split_workspace(workspace, (dgiven.size, h0.dtype))[0].reshape(dgiven.shape)
    count = _neighbours(h0, dy, gates, out, dgiven, slopes, dh0)
    total, dh = h0.size // count, None
    for t in steps(len(out), not backwards):
        gl.run("recurrent", "gru_grad", (h0.dtype, count), total, dy[t], dh, gates[t], before(t, out, h0, backwards), dgiven[t],
               slopes[t], dh0, np.int64(total), np.int32(h0.shape[1]))
        dh = dh0
        product(slopes[t], weight, dh, added=True)
    if dh is None:
        gl.zero(dh0)
    _weight_gradient(slopes, out, h0, backwards, dweight)
    fold("Sum", slopes, dbias, (0, 1))
