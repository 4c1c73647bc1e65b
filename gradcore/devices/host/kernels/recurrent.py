"""Recurrent layers on the CPU: a step is a matrix product and a few passes over its result."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.host.kernels.products import column_sums
from gradcore.devices.host.kernels.rectifiers import relu_grad
from gradcore.devices.kernels import before, split_workspace, steps

#: Numbers of the steps of which some functions are computed at once: they stay in a core's cache.
_TOGETHER = 1 << 15


def _rooms(workspace: Array, like: Array, *shapes: tuple[int, ...]) -> list[Any]:
    lengths = [(math.prod(shape), like.dtype) for shape in shapes]
    return [room.reshape(shape) for room, shape in zip(split_workspace(workspace, *lengths), shapes, strict=True)]


def _sigmoid(x: Array) -> None:
    # By tanh: exp(-x) would overflow for large negative x.
    np.multiply(x, 0.5, x)
    np.tanh(x, x)
    np.multiply(x, 0.5, x)
    np.add(x, 0.5, x)


def _times_tanh_slope(x: Array, value: Array, room: Array) -> None:
    """x *= 1 - value^2"""
    np.multiply(value, value, room)
    np.subtract(1, room, room)
    np.multiply(x, room, x)


def _weight_gradient(slopes: Array, states: Array, first: Array, backwards: bool, dweight: Array, room: Array) -> None:
    """The sum over all steps of slopes^T times the state before the step."""
    if not len(slopes):
        dweight.fill(0)
        return
    width, size = slopes.shape[2], states.shape[2]
    later, earlier = (slopes[:-1], states[1:]) if backwards else (slopes[1:], states[:-1])
    np.matmul(later.reshape(-1, width).T, earlier.reshape(-1, size), dweight)
    np.matmul(slopes[-1 if backwards else 0].T, first, room)
    np.add(dweight, room, dweight)


@kernel
def rnn(given: Array, weight: Array, h0: Array, out: Array, workspace: Array, *, relu: bool, backwards: bool) -> None:
    h = h0
    turned, = _rooms(workspace, given, weight.shape[::-1])
    turned[...] = weight.T
    for t in steps(len(given), backwards):
        np.matmul(h, turned, out[t])
        h = out[t]
        np.add(h, given[t], h)
        if relu:
            extreme(np.maximum, h, 0, h)
        else:
            np.tanh(h, h)


@kernel
def rnn_grad(dy: Array, out: Array, h0: Array, weight: Array, dgiven: Array, dweight: Array, dh0: Array, workspace: Array, *,
             relu: bool, backwards: bool) -> None:
    product, room = _rooms(workspace, weight, weight.shape, h0.shape)
    dh0.fill(0)
    for t in steps(len(out), not backwards):
        d = dgiven[t]
        np.add(dy[t], dh0, d)
        if relu:
            relu_grad(d, out[t], room)
            d[...] = room
        else:
            _times_tanh_slope(d, out[t], room)
        np.matmul(d, weight, dh0)
    _weight_gradient(dgiven, out, h0, backwards, dweight, product)


def _together(count: int, step: int, backwards: bool) -> Iterable[slice]:
    """Steps whose elementwise functions of what is known before them are computed at once, for ``step`` numbers each."""
    some = max(_TOGETHER // max(step, 1), 1)
    if 0 < count <= some:
        return (slice(0, count),)
    starts = range(0, count, some)
    return (slice(start, min(start + some, count)) for start in (reversed(starts) if backwards else starts))


@functools.lru_cache(maxsize=16)
def _scales(size: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """By gate: a half for those of sigmoids and 1 for tanh; and what it lacks of 1."""
    half = np.full(4 * size, 0.5, dtype)
    half[2 * size:3 * size] = 1
    return half, np.subtract(1, half)


def _quarters(x: Array, size: int) -> list[Array]:
    """The parts of the four gates."""
    return [x[..., k * size:(k + 1) * size] for k in range(4)]


@kernel
def lstm(given: Array, weight: Array, h0: Array, c0: Array, out: Array, last: Array, gates: Array, cells: Array,
         workspace: Array, *, backwards: bool) -> None:
    batch, size = h0.shape
    h, c = h0, c0
    # Products with a contiguous matrix are nearly twice as fast as with a transposed view, so it is copied once.
    product, turned = _rooms(workspace, given, (batch, 4 * size), weight.shape[::-1])
    room = product.reshape(-1)[:batch * size].reshape(batch, size)
    # tanh for all four gates at once, since a sigmoid is 1/2 + 1/2 tanh of half the argument. Halves lose no bits.
    half, rest = _scales(size, given.dtype)
    np.multiply(weight.T, half, turned)
    for some in _together(len(given), gates[:1].size, backwards):
        np.multiply(given[some], half, gates[some])
        i, f, g, o = _quarters(gates, size)
        for t in range(some.start, some.stop)[::-1 if backwards else 1]:
            gate, h_next, c_next = gates[t], out[t], cells[t]
            np.dot(h, turned, product)
            np.add(gate, product, gate)
            np.tanh(gate, gate)
            np.multiply(gate, half, gate)
            np.add(gate, rest, gate)
            np.multiply(f[t], c, c_next)
            np.multiply(i[t], g[t], room)
            np.add(c_next, room, c_next)
            np.tanh(c_next, h_next)
            np.multiply(h_next, o[t], h_next)
            h, c = h_next, c_next
    last[...] = c


@kernel
def lstm_grad(dy: Array, dlast: Array | None, gates: Array, cells: Array, out: Array, h0: Array, c0: Array, weight: Array,
              dgiven: Array, dweight: Array, dh0: Array, dc0: Array, workspace: Array, *, backwards: bool) -> None:
    batch, size = h0.shape
    product, slopes, dh, room = _rooms(workspace, weight, weight.shape, (batch, 4 * size), *[(batch, size)] * 2)
    dh0.fill(0)
    if dlast is None:
        dc0.fill(0)
    else:
        dc0[...] = dlast
    (i, f, g, o), (di, df, dg, do) = _quarters(gates, size), _quarters(slopes, size)
    for some in _together(len(out), gates[:1].size, not backwards):
        # Slopes for all four gates as of sigmoids, then that of the tanh gate.
        those = dgiven[some]
        slope = those[..., 2 * size:3 * size]
        np.subtract(1, gates[some], those)
        np.multiply(those, gates[some], those)
        np.multiply(g[some], g[some], slope)
        np.subtract(1, slope, slope)
        for t in range(some.start, some.stop)[::1 if backwards else -1]:
            if dy is None:
                dh[...] = dh0
            else:
                np.add(dy[t], dh0, dh)
            np.tanh(cells[t], room)
            np.multiply(dh, room, do)
            np.multiply(dh, o[t], dh)
            _times_tanh_slope(dh, room, room)
            np.add(dc0, dh, dc0)
            np.multiply(dc0, g[t], di)
            np.multiply(dc0, before(t, cells, c0, backwards), df)
            np.multiply(dc0, i[t], dg)
            np.multiply(dc0, f[t], dc0)
            d = dgiven[t]
            np.multiply(slopes, d, d)
            np.dot(d, weight, dh0)
    _weight_gradient(dgiven, out, h0, backwards, dweight, product)


@kernel
def gru(given: Array, weight: Array, bias: Array | None, h0: Array, out: Array, gates: Array, workspace: Array, *,
        backwards: bool) -> None:
    batch, size = h0.shape
    product, turned = _rooms(workspace, given, (batch, 3 * size), weight.shape[::-1])
    turned[...] = weight.T
    h = h0
    for t in steps(len(given), backwards):
        both, n, from_state = (gates[t][:, a * size:b * size] for a, b in ((0, 2), (2, 3), (3, 4)))
        np.matmul(h, turned, product)
        if bias is not None:
            np.add(product, bias, product)
        np.add(given[t][:, :2 * size], product[:, :2 * size], both)
        _sigmoid(both)
        from_state[...] = product[:, 2 * size:]
        np.multiply(both[:, :size], from_state, n)
        np.add(n, given[t][:, 2 * size:], n)
        np.tanh(n, n)
        np.subtract(h, n, out[t])
        h = out[t]
        np.multiply(h, both[:, size:], h)
        np.add(h, n, h)


@kernel
def gru_grad(dy: Array, gates: Array, out: Array, h0: Array, weight: Array, dgiven: Array, dweight: Array, dbias: Array,
             dh0: Array, workspace: Array, *, backwards: bool) -> None:
    batch, size = h0.shape
    product, dh, room, to_input = _rooms(workspace, weight, weight.shape, (batch, size), (batch, size), out.shape)
    dh0.fill(0)
    r, z, n, from_state = _quarters(gates, size)
    both, to_both, to_n = gates[..., :2 * size], dgiven[..., :2 * size], dgiven[..., 2 * size:]
    to_r, to_z = to_both[..., :size], to_both[..., size:]
    for some in _together(len(out), gates[:1].size, not backwards):
        # The slopes of the sigmoids and of tanh.
        np.subtract(1, both[some], to_both[some])
        np.multiply(to_both[some], both[some], to_both[some])
        np.multiply(n[some], n[some], to_n[some])
        np.subtract(1, to_n[some], to_n[some])
        for t in range(some.start, some.stop)[::1 if backwards else -1]:
            dr, dz, dn, zs = to_r[t], to_z[t], to_n[t], z[t]
            np.add(dy[t], dh0, dh)
            np.subtract(before(t, out, h0, backwards), n[t], room)
            np.multiply(room, dh, room)
            np.multiply(dz, room, dz)
            np.subtract(1, zs, room)
            np.multiply(room, dh, room)
            np.multiply(dn, room, dn)
            np.multiply(dn, from_state[t], room)
            np.multiply(dr, room, dr)
            # The slopes of what the state gives differ from those of what is given in this gate alone.
            to_input[t] = dn
            np.multiply(dn, r[t], dn)
            np.multiply(dh, zs, dh)
            np.dot(dgiven[t], weight, dh0)
            np.add(dh0, dh, dh0)
    _weight_gradient(dgiven, out, h0, backwards, dweight, product)
    column_sums(dgiven.reshape(-1, dgiven.shape[2]), dbias)
    to_n[...] = to_input
