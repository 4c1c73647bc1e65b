"""Recurrent layers over ``xp``, a library like NumPy: a step is a matrix product and a few passes over its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.devices.kernels import split_workspace


def steps(length: int, backwards: bool) -> range:
    """The positions of a sequence in the order in which they are gone through."""
    return range(length - 1, -1, -1) if backwards else range(length)


def before(t: int, states: Any, first: Any, backwards: bool) -> Any:
    """The state that step ``t`` began with."""
    k = t + 1 if backwards else t - 1
    return states[k] if 0 <= k < len(states) else first


def build_recurrent(xp: Any) -> dict[str, Callable[..., Any]]:
    """The kernels over one array library."""

    def rooms(workspace: Any, like: Any, *shapes: tuple[int, ...]) -> list[Any]:
        lengths = []
        for shape in shapes:
            length = 1
            for n in shape:
                length *= n
            lengths.append((length, like.dtype))
        return [room.reshape(shape) for room, shape in zip(split_workspace(workspace, *lengths), shapes)]

    def sigmoid(x: Any) -> None:
        # By tanh: exp(-x) would overflow for large negative x.
        xp.multiply(x, 0.5, x)
        xp.tanh(x, x)
        xp.multiply(x, 0.5, x)
        xp.add(x, 0.5, x)

    def times_sigmoid_slope(x: Any, gate: Any, room: Any) -> None:
        """x *= gate (1 - gate)"""
        xp.multiply(x, gate, x)
        xp.subtract(1, gate, room)
        xp.multiply(x, room, x)

    def times_tanh_slope(x: Any, value: Any, room: Any) -> None:
        """x *= 1 - value^2"""
        xp.multiply(value, value, room)
        xp.subtract(1, room, room)
        xp.multiply(x, room, x)

    def weight_gradient(slopes: Any, states: Any, first: Any, backwards: bool, dweight: Any, room: Any) -> None:
        """The sum over all steps of slopes^T times the state that the step began with."""
        if not len(slopes):
            dweight.fill(0)
            return
        width, size = slopes.shape[2], states.shape[2]
        later, earlier = (slopes[:-1], states[1:]) if backwards else (slopes[1:], states[:-1])
        xp.matmul(later.reshape(-1, width).T, earlier.reshape(-1, size), dweight)
        xp.matmul(slopes[-1 if backwards else 0].T, first, room)
        xp.add(dweight, room, dweight)

    def rnn(given: Any, weight: Any, h0: Any, out: Any, workspace: Any, *, relu: bool, backwards: bool) -> None:
        h = h0
        turned, = rooms(workspace, given, weight.shape[::-1])
        turned[...] = weight.T
        for t in steps(len(given), backwards):
            xp.matmul(h, turned, out[t])
            h = out[t]
            xp.add(h, given[t], h)
            if relu:
                xp.maximum(h, 0, out=h)
            else:
                xp.tanh(h, h)

    def rnn_grad(dy: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dh0: Any, workspace: Any, *, relu: bool,
                 backwards: bool) -> None:
        product, room = rooms(workspace, weight, weight.shape, h0.shape)
        dh0.fill(0)
        for t in steps(len(out), not backwards):
            d = dgiven[t]
            xp.add(dy[t], dh0, d)
            if relu:
                xp.sign(out[t], room)
                xp.multiply(d, room, d)
            else:
                times_tanh_slope(d, out[t], room)
            xp.matmul(d, weight, dh0)
        weight_gradient(dgiven, out, h0, backwards, dweight, product)

    def lstm(given: Any, weight: Any, h0: Any, c0: Any, out: Any, last: Any, gates: Any, cells: Any, workspace: Any, *,
             backwards: bool) -> None:
        batch, size = h0.shape
        h, c = h0, c0
        # A product with a matrix as it lies is nearly twice as fast as one with a transposed one, and there are many.
        product, turned = rooms(workspace, given, (batch, 4 * size), weight.shape[::-1])
        turned[...] = weight.T
        room = product.reshape(-1)[:batch * size].reshape(batch, size)
        for t in steps(len(given), backwards):
            gate, h_next, c_next = gates[t], out[t], cells[t]
            xp.matmul(h, turned, product)
            xp.add(given[t], product, gate)
            i, f, g, o = (gate[:, k * size:(k + 1) * size] for k in range(4))
            # The tanh of all four at once: a sigmoid is one of half its argument.
            both = gate[:, :2 * size]
            xp.multiply(both, 0.5, both)
            xp.multiply(o, 0.5, o)
            xp.tanh(gate, gate)
            for part in (both, o):
                xp.multiply(part, 0.5, part)
                xp.add(part, 0.5, part)
            xp.multiply(f, c, c_next)
            xp.multiply(i, g, room)
            xp.add(c_next, room, c_next)
            xp.tanh(c_next, h_next)
            xp.multiply(h_next, o, h_next)
            h, c = h_next, c_next
        last[...] = c

    def lstm_grad(dy: Any, dlast: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any, dgiven: Any,
                  dweight: Any, dh0: Any, dc0: Any, workspace: Any, *, backwards: bool) -> None:
        batch, size = h0.shape
        product, slopes, dh, bent = rooms(workspace, weight, weight.shape, (batch, 4 * size), *[(batch, size)] * 2)
        slope = slopes[:, 2 * size:3 * size]
        dh0.fill(0)
        if dlast is None:
            dc0.fill(0)
        else:
            dc0[...] = dlast
        for t in steps(len(out), not backwards):
            d = dgiven[t]
            (i, f, g, o), (di, df, dg, do) = ([x[:, k * size:(k + 1) * size] for k in range(4)] for x in (gates[t], d))
            if dy is None:
                dh[...] = dh0
            else:
                xp.add(dy[t], dh0, dh)
            xp.tanh(cells[t], bent)
            xp.multiply(dh, bent, do)
            xp.multiply(dh, o, dh)
            times_tanh_slope(dh, bent, bent)
            xp.add(dc0, dh, dc0)
            xp.multiply(dc0, g, di)
            xp.multiply(dc0, before(t, cells, c0, backwards), df)
            xp.multiply(dc0, i, dg)
            xp.multiply(dc0, f, dc0)
            # The slopes of all four at once, as sigmoids; then that of the tanh.
            xp.subtract(1, gates[t], slopes)
            xp.multiply(slopes, gates[t], slopes)
            xp.multiply(g, g, slope)
            xp.subtract(1, slope, slope)
            xp.multiply(d, slopes, d)
            xp.matmul(d, weight, dh0)
        weight_gradient(dgiven, out, h0, backwards, dweight, product)

    def gru(given: Any, weight: Any, bias: Any, h0: Any, out: Any, gates: Any, workspace: Any, *, backwards: bool) -> None:
        batch, size = h0.shape
        product, turned = rooms(workspace, given, (batch, 3 * size), weight.shape[::-1])
        turned[...] = weight.T
        h = h0
        for t in steps(len(given), backwards):
            both, n, from_state = (gates[t][:, a * size:b * size] for a, b in ((0, 2), (2, 3), (3, 4)))
            xp.matmul(h, turned, product)
            if bias is not None:
                xp.add(product, bias, product)
            xp.add(given[t][:, :2 * size], product[:, :2 * size], both)
            sigmoid(both)
            from_state[...] = product[:, 2 * size:]
            xp.multiply(both[:, :size], from_state, n)
            xp.add(n, given[t][:, 2 * size:], n)
            xp.tanh(n, n)
            xp.subtract(h, n, out[t])
            h = out[t]
            xp.multiply(h, both[:, size:], h)
            xp.add(h, n, h)

    def gru_grad(dy: Any, gates: Any, out: Any, h0: Any, weight: Any, dgiven: Any, dweight: Any, dbias: Any, dh0: Any,
                 workspace: Any, *, backwards: bool) -> None:
        batch, size = h0.shape
        product, dh, room, slopes = rooms(workspace, weight, weight.shape, (batch, size), (batch, size), dgiven.shape)
        dh0.fill(0)
        for t in steps(len(out), not backwards):
            r, z, n, from_state = (gates[t][:, k * size:(k + 1) * size] for k in range(4))
            dr, dz, dn = (dgiven[t][:, k * size:(k + 1) * size] for k in range(3))
            xp.add(dy[t], dh0, dh)
            xp.subtract(before(t, out, h0, backwards), n, dz)
            xp.multiply(dz, dh, dz)
            times_sigmoid_slope(dz, z, room)
            xp.subtract(1, z, dn)
            xp.multiply(dn, dh, dn)
            times_tanh_slope(dn, n, room)
            xp.multiply(dn, from_state, dr)
            times_sigmoid_slope(dr, r, room)
            slope = slopes[t]
            slope[...] = dgiven[t]
            xp.multiply(slope[:, 2 * size:], r, slope[:, 2 * size:])
            xp.multiply(dh, z, dh)
            xp.matmul(slope, weight, dh0)
            xp.add(dh0, dh, dh0)
        weight_gradient(slopes, out, h0, backwards, dweight, product)
        xp.sum(slopes, axis=(0, 1), out=dbias)

    return {"rnn": rnn, "rnn_grad": rnn_grad, "lstm": lstm, "lstm_grad": lstm_grad, "gru": gru, "gru_grad": gru_grad}
