"""Optimizer updates on the GPU: a launch for up to 64 parameters, whose addresses are an argument of it.

So are an update's numbers, unless they are :class:`~gradcore.devices.gpu.numbers.Moving`: then it gets their address.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.numbers import How, Moving
from gradcore.devices.gpu.workspaces import on_stream
from gradcore.devices.kernels import decays
from gradcore.dtypes import is_floating
from gradcore.tiling import CHUNK

_GROUP = 64
#: Elements per block of 256 threads: many if that makes as many blocks as fill a GPU, else few, since a thread's accesses wait
#: for one another.
_MANY, _FEW, _FULL = 4096, CHUNK, 264
GROUP = np.dtype([("count", "i8"), ("chunk", "i8"), ("first", "i8", (_GROUP,)), ("sizes", "i8", (_GROUP,)),
                  ("tensors", "u8", (5, _GROUP))])
SGD = np.dtype([(name, "f8") for name in ("rate", "momentum", "dampening", "decay")]
               + [(name, "i8") for name in ("kept", "nesterov", "maximize", "first")])
ADAM = np.dtype([(name, "f8") for name in ("rate", "correction", "root", "beta1", "beta2", "eps", "decay")]
                + [(name, "i8") for name in ("decoupled", "maximize")])
SQUARE = np.dtype([(name, "f8") for name in ("rate", "keep", "eps", "decay", "momentum")]
                  + [(name, "i8") for name in ("kept", "maximize", "centered")])
MEAN = np.dtype([(name, "f8") for name in ("rate", "beta1", "beta2", "eps", "decay", "shrink", "ahead", "behind", "root",
                                           "adaptive")] + [("maximize", "i8")])
RPROP = np.dtype([(name, "f8") for name in ("smaller", "larger", "least", "most")] + [("maximize", "i8")])
ASGD = np.dtype([(name, "f8") for name in ("rate", "share", "shrink", "decay")] + [("maximize", "i8")])
#: Those whose numbers for any rate follow from those for 1, and what the kernel calls the rate's dtype.
_RATED = SGD, ADAM, SQUARE, MEAN
_KINDS = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}


def _update(name: str, dtype: Any, how: How, numbers: tuple[Any, ...], *lists: Sequence[Any]) -> None:
    """A launch of the update called ``name`` in kernels/optim.cu for each dtype and each 64 tensors; lists may be empty.

    ``how(*numbers)`` are the fields of ``dtype``. A rate in device memory, which comes first, is read by the launch.
    """
    rate, kind = None, 0
    if isinstance(numbers[0], cupy.ndarray) and dtype in _RATED and is_floating(numbers[0].dtype):
        (rate, *others), how = numbers, functools.partial(how, 1.0)
        kind, numbers = _KINDS[rate.dtype.name], tuple(others)
    there = numbers[0].block.hold(dtype, how, numbers) if numbers and type(numbers[0]) is Moving else None
    if any(hasattr(number, "shape") for number in numbers):
        # Other tensors are read at each launch, behind what wrote them, whatever stream the user's own CuPy code has.
        gl.refuse_notes()
        with on_stream():
            numbers = tuple([float(x) if hasattr(x, "shape") else x for x in numbers])
    given = np.array(how(*map(float, numbers)), dtype) if there is None else np.zeros((), dtype)
    for element, blocks, group in _addressed(*lists):
        gl.run_blocks("optim", "step", (name, element), blocks, group, given, there, rate, np.int32(kind))


def _addressed(*lists: Sequence[Any]) -> Iterator[tuple[Any, int, Any]]:
    """For each launch: the dtype, the number of blocks, and the table of tensors."""
    for kind, blocks, whole, empty in _groups(tuple([(p.dtype, p.size) for p in lists[0]])):
        group = empty.copy()
        for row, tensors in zip(group["tensors"], lists, strict=False):
            if tensors:
                row[:len(whole)] = [tensors[k].data.ptr for k in whole]
        yield kind, blocks, group


@functools.lru_cache(maxsize=256)
def _groups(tensors: tuple[tuple[Any, int], ...]) -> list[tuple[Any, int, list[int], Any]]:
    """For each launch: the dtype, the number of blocks, the indices of tensors, and their table without addresses."""
    found = []
    by_type: dict[Any, list[int]] = {}
    for k, (dtype, size) in enumerate(tensors):
        if size:
            by_type.setdefault(dtype, []).append(k)
    for kind, whole in by_type.items():
        for start in range(0, len(whole), _GROUP):
            some = whole[start:start + _GROUP]
            group, blocks = np.zeros((), GROUP), 0
            chunk = _MANY if sum(-(-tensors[k][1] // _MANY) for k in some) >= _FULL else _FEW
            group["count"], group["chunk"] = len(some), chunk
            for place, k in enumerate(some):
                group["first"][place] = blocks
                group["sizes"][place] = tensors[k][1]
                blocks += -(-tensors[k][1] // chunk)
            found.append((kind, blocks, some, group))
    return found


@gl.kernel
def sgd_(params: Sequence[Any], grads: Sequence[Any], moments: Sequence[Any], lr: Any, momentum: Any, workspace: Any,
         *, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool) -> None:
    def how(lr: float, momentum: float) -> tuple[Any, ...]:
        return lr, momentum, dampening, weight_decay, bool(moments), nesterov, maximize, first

    _update("Sgd", SGD, how, (lr, momentum), params, grads, moments)


@gl.kernel
def adam_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], squares: Sequence[Any], lr: Any, step: Any,
          beta1: Any, workspace: Any, **options: Any) -> None:
    amsgrad_(params, grads, means, squares, (), lr, step, beta1, workspace, **options)


@gl.kernel
def amsgrad_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], squares: Sequence[Any],
             largest: Sequence[Any], lr: Any, step: Any, beta1: Any, workspace: Any, *, beta2: float, eps: float,
             weight_decay: float, decoupled: bool, maximize: bool) -> None:
    """Without ``largest``, Adam."""
    def how(lr: float, step: float, beta1: float) -> tuple[Any, ...]:
        return lr, 1 - beta1 ** step, (1 - beta2 ** step) ** -0.5, beta1, beta2, eps, weight_decay, decoupled, maximize

    name = "AdamOf<true>" if largest else "AdamOf<false>"
    _update(name, ADAM, how, (lr, step, beta1), params, grads, means, squares, largest)


@gl.kernel
def rmsprop_(params: Sequence[Any], grads: Sequence[Any], squares: Sequence[Any], means: Sequence[Any],
             moments: Sequence[Any], lr: Any, momentum: Any, workspace: Any, *, alpha: float, eps: float,
             weight_decay: float, maximize: bool) -> None:
    def how(lr: float, momentum: float) -> tuple[Any, ...]:
        return lr, alpha, eps, weight_decay, momentum, bool(moments), maximize, bool(means)

    _update("Rmsprop", SQUARE, how, (lr, momentum), params, grads, squares, means, moments)


@gl.kernel
def adagrad_(params: Sequence[Any], grads: Sequence[Any], sums: Sequence[Any], lr: Any, divisor: Any, workspace: Any, *,
             eps: float, weight_decay: float, maximize: bool) -> None:
    def how(lr: float, divisor: float) -> tuple[Any, ...]:
        return lr / divisor, 0.0, eps, weight_decay, 0.0, False, maximize, False

    _update("Adagrad", SQUARE, how, (lr, divisor), params, grads, sums)


@gl.kernel
def adadelta_(params: Sequence[Any], grads: Sequence[Any], squares: Sequence[Any], deltas: Sequence[Any], lr: Any,
              workspace: Any, *, rho: float, eps: float, weight_decay: float, maximize: bool) -> None:
    def how(lr: float) -> tuple[Any, ...]:
        return lr, rho, eps, weight_decay, 0.0, False, maximize, False

    _update("Adadelta", SQUARE, how, (lr,), params, grads, squares, deltas)


@gl.kernel
def nadam_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], squares: Sequence[Any], lr: Any, step: Any,
           ahead: Any, behind: Any, beta1: Any, workspace: Any, *, beta2: float, eps: float, weight_decay: float,
           decoupled: bool, maximize: bool) -> None:
    def how(lr: float, step: float, ahead: float, behind: float, beta1: float) -> tuple[Any, ...]:
        return (lr, beta1, beta2, eps, *decays(lr, weight_decay, decoupled), ahead, behind, (1 - beta2 ** step) ** -0.5, 1.0,
                maximize)

    _update("Moments", MEAN, how, (lr, step, ahead, behind, beta1), params, grads, means, squares)


@gl.kernel
def radam_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], squares: Sequence[Any], lr: Any, step: Any,
           factor: Any, beta1: Any, workspace: Any, *, beta2: float, eps: float, weight_decay: float, decoupled: bool,
           maximize: bool) -> None:
    def how(lr: float, step: float, factor: float, beta1: float) -> tuple[Any, ...]:
        return (lr, beta1, beta2, eps, *decays(lr, weight_decay, decoupled), 1 / (1 - beta1 ** step), 0.0, 1.0, factor,
                maximize)

    _update("Moments", MEAN, how, (lr, step, factor, beta1), params, grads, means, squares)


@gl.kernel
def lion_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], lr: Any, beta1: Any, workspace: Any, *,
          beta2: float, weight_decay: float, maximize: bool) -> None:
    def how(lr: float, beta1: float) -> tuple[Any, ...]:
        return lr, beta1, beta2, 0.0, *decays(lr, weight_decay, True), 0.0, 0.0, 1.0, 1.0, maximize

    _update("Lion", MEAN, how, (lr, beta1), params, grads, means)


@gl.kernel
def adamax_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], infs: Sequence[Any], lr: Any, step: Any,
            beta1: Any, workspace: Any, *, beta2: float, eps: float, weight_decay: float, maximize: bool) -> None:
    def how(lr: float, step: float, beta1: float) -> tuple[Any, ...]:
        return lr / (1 - beta1 ** step), beta1, beta2, eps, weight_decay, 1.0, 0.0, 0.0, 1.0, 1.0, maximize

    _update("Adamax", MEAN, how, (lr, step, beta1), params, grads, means, infs)


@gl.kernel
def rprop_(params: Sequence[Any], grads: Sequence[Any], prevs: Sequence[Any], sizes: Sequence[Any], smaller: Any, larger: Any,
           least: Any, most: Any, workspace: Any, *, maximize: bool) -> None:
    def how(smaller: float, larger: float, least: float, most: float) -> tuple[Any, ...]:
        return smaller, larger, least, most, maximize

    _update("Rprop", RPROP, how, (smaller, larger, least, most), params, grads, prevs, sizes)


@gl.kernel
def asgd_(params: Sequence[Any], grads: Sequence[Any], averages: Sequence[Any], eta: Any, mu: Any, lambd: Any,
          workspace: Any, *, weight_decay: float, maximize: bool) -> None:
    def how(eta: float, mu: float, lambd: float) -> tuple[Any, ...]:
        return eta, mu, 1 - lambd * eta, weight_decay, maximize

    _update("Asgd", ASGD, how, (eta, mu, lambd), params, grads, averages)


# -- all gradients together --------------------------------------------------------------------------------------------


@gl.kernel
def square_sum(tensors: Sequence[Any], out: Any, workspace: Any) -> None:
    parts, done = workspace.view(out.dtype), 0
    for kind, blocks, group in _addressed(tensors):
        gl.run_blocks("clip", "square_parts", (kind,), blocks, group, parts[done:])
        done += blocks
    gl.run_blocks("clip", "square_total", (out.dtype,), 1, parts, np.int64(done), out)


@gl.kernel
def scale_(tensors: Sequence[Any], factor: Any) -> None:
    for kind, blocks, group in _addressed(tensors):
        gl.run_blocks("clip", "scale", (kind,), blocks, group, factor)
