"""Optimizer updates other than SGD and Adam on the CPU, in pieces that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import Array, kernel
from gradcore.devices.host_random import parts_of

Arrays = Sequence[Array]


def _each(workspace: Array, weight_decay: float, maximize: bool, params: Arrays, grads: Arrays,
          *states: Arrays) -> Iterator[tuple[Array, ...]]:
    """Pieces of a parameter, its gradient as the update takes it, its states, and two temporaries.

    The gradient may be in the second temporary, which can be overwritten once the gradient has been used.
    """
    for k, (param, grad) in enumerate(zip(params, grads, strict=True)):
        for p, g, *rest, t, r in parts_of(workspace, 2, param, grad, *[s[k] for s in states if s]):
            if maximize:
                g = np.negative(g, r)
            if weight_decay:
                np.multiply(p, weight_decay, t)
                g = np.add(g, t, r)
            yield p, g, *rest, t, r


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
def rmsprop_(params: Arrays, grads: Arrays, squares: Arrays, means: Arrays, moments: Arrays, lr: Any, workspace: Array, *,
             alpha: float, eps: float, weight_decay: float, momentum: float, maximize: bool) -> None:
    rate = float(lr)
    for p, g, v, *rest, t, _ in _each(workspace, weight_decay, maximize, params, grads, squares, means, moments):
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
def adagrad_(params: Arrays, grads: Arrays, sums: Arrays, lr: Any, workspace: Array, *, eps: float, weight_decay: float,
             maximize: bool) -> None:
    rate = float(lr)
    for p, g, s, t, _ in _each(workspace, weight_decay, maximize, params, grads, sums):
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
    for p, g, v, d, t, r in _each(workspace, weight_decay, maximize, params, grads, squares, deltas):
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
           workspace: Array, *, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool,
           maximize: bool) -> None:
    rate, root = float(lr), (1 - beta2 ** float(step)) ** -0.5
    for p, g, m, v, t, r in _each(workspace, 0.0 if decoupled else weight_decay, maximize, params, grads, means, squares):
        if decoupled and weight_decay:
            np.multiply(p, 1 - rate * weight_decay, p)
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
           workspace: Array, *, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool,
           maximize: bool) -> None:
    rate, adaptive = float(lr), float(factor)
    scale = rate / (1 - beta1 ** float(step))
    for p, g, m, v, t, _ in _each(workspace, 0.0 if decoupled else weight_decay, maximize, params, grads, means, squares):
        if decoupled and weight_decay:
            np.multiply(p, 1 - rate * weight_decay, p)
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
def lion_(params: Arrays, grads: Arrays, means: Arrays, lr: Any, workspace: Array, *, beta1: float, beta2: float,
          weight_decay: float, maximize: bool) -> None:
    rate = float(lr)
    for p, g, m, t, _ in _each(workspace, 0.0, maximize, params, grads, means):
        if weight_decay:
            np.multiply(p, 1 - rate * weight_decay, p)
        np.subtract(m, g, t)
        np.multiply(t, beta1, t)
        np.add(t, g, t)
        np.sign(t, t)
        np.multiply(t, rate, t)
        np.subtract(p, t, p)
        _move(m, g, 1 - beta2, t)
