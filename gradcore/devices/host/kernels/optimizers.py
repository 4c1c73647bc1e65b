"""Optimizer updates on the CPU, in pieces that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel, pieces
from gradcore.devices.kernels import decays
from gradcore.spec import PIECE

Arrays = Sequence[Array]


def _each(workspace: Array, temporaries: int, decay: float, shrink: float, maximize: bool, params: Arrays, grads: Arrays,
          *states: Arrays) -> Iterator[tuple[Array, ...]]:
    """Pieces of a parameter, shrunk, of its gradient as the update takes it, of its states, and of two temporaries, which are
    the same array if one is enough.

    The gradient may be in the second temporary, which can be overwritten once the gradient has been used.
    """
    for arrays in zip(params, grads, *[s for s in states if s], strict=True):
        like = arrays[0]
        room = workspace.view(like.dtype)
        step = room.size // temporaries
        for p, g, *rest in pieces(*arrays) if like.size > PIECE else (arrays,) if like.size else ():
            t = room[:p.size].reshape(p.shape)
            r = t if temporaries == 1 else room[step:step + p.size].reshape(p.shape)
            if maximize:
                g = np.negative(g, r)
            if shrink != 1:
                np.multiply(p, shrink, p)
            if decay:
                np.multiply(p, decay, t)
                g = np.add(g, t, r)
            yield p, g, *rest, t, r


@kernel
def sgd_(params: Arrays, grads: Arrays, moments: Arrays, lr: Any, momentum: Any, workspace: Array, *,
         dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool) -> None:
    temporaries = 2 if maximize or weight_decay or nesterov else 1
    if temporaries == 1 and not (moments and (first or dampening)):
        _plain_sgd(params, grads, moments, lr, momentum, workspace)
        return
    for p, d, *rest, tmp, t in _each(workspace, temporaries, weight_decay, 1.0, maximize, params, grads, moments):
        if moments:
            m = rest[0]
            if first:
                np.copyto(m, d)
            else:
                np.multiply(m, momentum, m)
                if dampening:
                    np.multiply(d, 1 - dampening, tmp)
                    np.add(m, tmp, m)
                else:
                    np.add(m, d, m)
            if nesterov:
                np.multiply(m, momentum, tmp)
                d = np.add(tmp, d, t)
            else:
                d = m
        np.multiply(d, lr, tmp)
        np.subtract(p, tmp, p)


def _plain_sgd(params: Arrays, grads: Arrays, moments: Arrays, lr: Any, momentum: Any, workspace: Array) -> None:
    """The usual cases, without momentum and with, separate because each line of Python counts for small networks."""
    multiply, room = np.multiply, workspace.view(params[0].dtype)
    # Without momentum the gradient is the direction.
    for param, grad, direction in zip(params, grads, moments or grads, strict=True):
        for p, g, d in ((param, grad, direction),) if param.size <= PIECE else pieces(param, grad, direction):
            if moments:
                multiply(d, momentum, d)
                np.add(d, g, d)
            step = room[:p.size].reshape(p.shape)
            multiply(d, lr, step)
            np.subtract(p, step, p)


@kernel
def adam_(params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, lr: Any, step: Any, beta1: Any,
          workspace: Array, **options: Any) -> None:
    amsgrad_(params, grads, means, squares, (), lr, step, beta1, workspace, **options)


@kernel
def amsgrad_(params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, largest: Arrays, lr: Any, step: Any, beta1: Any,
             workspace: Array, *, beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool) -> None:
    """Without ``largest``, Adam."""
    rate, count = float(lr), float(step)
    correction = 1 - beta1 ** count
    root = (1 - beta2 ** count) ** -0.5
    decay, shrink = decays(rate, weight_decay, decoupled)
    for p, g, m, v, *most, t, _ in _each(workspace, 2 if maximize or decay else 1, decay, shrink, maximize, params, grads,
                                         means, squares, largest):
        np.multiply(m, beta1, m)
        np.multiply(g, 1 - beta1, t)
        np.add(m, t, m)
        np.multiply(v, beta2, v)
        np.multiply(g, g, t)
        np.multiply(t, 1 - beta2, t)
        np.add(v, t, v)
        np.sqrt(np.maximum(most[0], v, out=most[0]) if most else v, t)
        np.multiply(t, root, t)
        np.add(t, eps, t)
        np.true_divide(m, t, t)
        np.multiply(t, rate / correction, t)
        np.subtract(p, t, p)


def _move(average: Array, value: Array, rate: float, t: Array) -> None:
    """average += rate * (value - average)"""
    np.subtract(value, average, t)
    np.multiply(t, rate, t)
    np.add(average, t, average)


def _move_square(average: Array, value: Array, rate: float, t: Array) -> None:
    """average = (1 - rate) * average + rate * value^2"""
    np.multiply(average, 1 - rate, average)
    np.multiply(value, value, t)
    np.multiply(t, rate, t)
    np.add(average, t, average)


@kernel
def rmsprop_(params: Arrays, grads: Arrays, squares: Arrays, means: Arrays, moments: Arrays, lr: Any, momentum: Any,
             workspace: Array, *, alpha: float, eps: float, weight_decay: float, maximize: bool) -> None:
    rate = float(lr)
    for p, g, v, *rest, t, _ in _each(workspace, 2, weight_decay, 1.0, maximize, params, grads, squares, means, moments):
        _move_square(v, g, 1 - alpha, t)
        if means:
            mean = rest[0]
            _move(mean, g, 1 - alpha, t)
            np.multiply(mean, mean, t)
            np.subtract(v, t, t)
            np.sqrt(t, t)
        else:
            np.sqrt(v, t)
        np.add(t, eps, t)
        np.true_divide(g, t, t)
        if moments:
            moment = rest[-1]
            np.multiply(moment, momentum, moment)
            np.add(moment, t, moment)
            np.multiply(moment, rate, t)
        else:
            np.multiply(t, rate, t)
        np.subtract(p, t, p)


@kernel
def adagrad_(params: Arrays, grads: Arrays, sums: Arrays, lr: Any, divisor: Any, workspace: Array, *, eps: float,
             weight_decay: float, maximize: bool) -> None:
    rate = float(lr) / float(divisor)
    for p, g, s, t, _ in _each(workspace, 2, weight_decay, 1.0, maximize, params, grads, sums):
        np.multiply(g, g, t)
        np.add(s, t, s)
        np.sqrt(s, t)
        np.add(t, eps, t)
        np.true_divide(g, t, t)
        np.multiply(t, rate, t)
        np.subtract(p, t, p)


@kernel
def adadelta_(params: Arrays, grads: Arrays, squares: Arrays, deltas: Arrays, lr: Any, workspace: Array, *, rho: float,
              eps: float, weight_decay: float, maximize: bool) -> None:
    rate = float(lr)
    for p, g, v, d, t, r in _each(workspace, 2, weight_decay, 1.0, maximize, params, grads, squares, deltas):
        _move_square(v, g, 1 - rho, t)
        np.add(v, eps, t)
        np.sqrt(t, t)
        np.true_divide(g, t, t)
        np.add(d, eps, r)
        np.sqrt(r, r)
        np.multiply(t, r, t)
        _move_square(d, t, 1 - rho, r)
        np.multiply(t, rate, t)
        np.subtract(p, t, p)


@kernel
def nadam_(params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, lr: Any, step: Any, ahead: Any, behind: Any,
           beta1: Any, workspace: Array, *, beta2: float, eps: float, weight_decay: float, decoupled: bool,
           maximize: bool) -> None:
    rate, root = float(lr), (1 - beta2 ** float(step)) ** -0.5
    decay, shrink = decays(rate, weight_decay, decoupled)
    for p, g, m, v, t, r in _each(workspace, 2, decay, shrink, maximize, params, grads, means, squares):
        _move(m, g, 1 - beta1, t)
        _move_square(v, g, 1 - beta2, t)
        np.sqrt(v, t)
        np.multiply(t, root, t)
        np.add(t, eps, t)
        for part, share in ((g, behind), (m, ahead)):
            np.multiply(part, rate * float(share), r)
            np.true_divide(r, t, r)
            np.subtract(p, r, p)


@kernel
def radam_(params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, lr: Any, step: Any, factor: Any,
           beta1: Any, workspace: Array, *, beta2: float, eps: float, weight_decay: float, decoupled: bool,
           maximize: bool) -> None:
    rate, adaptive = float(lr), float(factor)
    scale = rate / (1 - beta1 ** float(step))
    decay, shrink = decays(rate, weight_decay, decoupled)
    for p, g, m, v, t, _ in _each(workspace, 2, decay, shrink, maximize, params, grads, means, squares):
        _move(m, g, 1 - beta1, t)
        _move_square(v, g, 1 - beta2, t)
        if adaptive:
            np.sqrt(v, t)
            np.add(t, eps, t)
            np.true_divide(m, t, t)
            np.multiply(t, scale * adaptive, t)
        else:
            np.multiply(m, scale, t)
        np.subtract(p, t, p)


@kernel
def lion_(params: Arrays, grads: Arrays, means: Arrays, lr: Any, beta1: Any, workspace: Array, *, beta2: float,
          weight_decay: float, maximize: bool) -> None:
    rate = float(lr)
    for p, g, m, t, _ in _each(workspace, 2, *decays(rate, weight_decay, True), maximize, params, grads, means):
        np.subtract(m, g, t)
        np.multiply(t, beta1, t)
        np.add(t, g, t)
        np.sign(t, t)
        np.multiply(t, rate, t)
        np.subtract(p, t, p)
        _move(m, g, 1 - beta2, t)


@kernel
def adamax_(params: Arrays, grads: Arrays, means: Arrays, infs: Arrays, lr: Any, step: Any, beta1: Any, workspace: Array, *,
            beta2: float, eps: float, weight_decay: float, maximize: bool) -> None:
    rate = float(lr) / (1 - beta1 ** float(step))
    for p, g, m, u, t, _ in _each(workspace, 2, weight_decay, 1.0, maximize, params, grads, means, infs):
        _move(m, g, 1 - beta1, t)
        np.multiply(u, beta2, u)
        np.absolute(g, t)
        np.add(t, eps, t)
        np.maximum(u, t, out=u)
        np.true_divide(m, u, t)
        np.multiply(t, rate, t)
        np.subtract(p, t, p)


@kernel
def rprop_(params: Arrays, grads: Arrays, prevs: Arrays, sizes: Arrays, smaller: Any, larger: Any, least: Any, most: Any,
           workspace: Array, *, maximize: bool) -> None:
    for p, g, last, size, t, r in _each(workspace, 2, 0.0, 1.0, maximize, params, grads, prevs, sizes):
        np.multiply(g, last, t)
        np.multiply(size, larger, size, where=t > 0)
        np.multiply(size, smaller, size, where=t < 0)
        np.clip(size, least, most, size)
        # An element whose gradient has changed its sign stays where it is, and starts anew.
        np.copyto(last, g)
        np.copyto(last, 0, where=t < 0)
        # The sign of a NaN is 0, as in PyTorch.
        np.greater(last, 0, r)
        np.less(last, 0, t)
        np.subtract(r, t, r)
        np.multiply(r, size, r)
        np.subtract(p, r, p)


@kernel
def asgd_(params: Arrays, grads: Arrays, averages: Arrays, eta: Any, mu: Any, lambd: Any, workspace: Array, *,
          weight_decay: float, maximize: bool) -> None:
    rate, share = float(eta), float(mu)
    for p, g, average, t, _ in _each(workspace, 2, weight_decay, 1.0, maximize, params, grads, averages):
        np.multiply(p, 1 - lambd * rate, p)
        np.multiply(g, rate, t)
        np.subtract(p, t, p)
        if share == 1:
            np.copyto(average, p)
        else:
            _move(average, p, share, t)


# -- all gradients together --------------------------------------------------------------------------------------------


@kernel
def square_sum(tensors: Arrays, out: Array, workspace: Array) -> None:
    out[...] = sum(float(np.dot(flat, flat)) for t in tensors for flat in (t.reshape(-1),))


@kernel
def scale_(tensors: Arrays, factor: Array) -> None:
    for t in tensors:
        np.multiply(t, factor, t)
