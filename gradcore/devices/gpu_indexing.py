"""Positions on the GPU: ranges, triangles, reading and writing by integer indices. None of them allocates or uses atomics.

A position outside gives NaN (0 for integers) where it is read, and is passed over where it is written: the host cannot
be asked without waiting for the device. On the CPU it is an IndexError.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl

INDEXING: dict[str, Any] = {}


def kernel(fn: Any) -> Any:
    INDEXING[fn.__name__] = fn
    return fn


@kernel
def arange(start: Any, step: Any, out: Any, *, length: int, dtype: Any) -> None:
    kind = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
    gl.run("index", "arange", (out.dtype, np.dtype(kind)), out.size, out, kind(start), kind(step), np.int64(out.size))


@kernel
def eye(out: Any, *, rows: int, columns: int, dtype: Any) -> None:
    gl.run("index", "eye", (out.dtype,), out.size, out, np.int64(out.size), np.int64(columns))


def _triangle(lower: bool) -> Any:
    def keep(x: Any, out: Any, *, diagonal: int) -> None:
        gl.run("index", "triangle", (x.dtype,), out.size, x, out, gl.axes(x.shape, gl.elements(x)), np.int64(out.size),
               np.int64(x.shape[-2]), np.int64(x.shape[-1]), np.int64(diagonal), np.int32(lower))

    return keep


INDEXING |= {"tril": _triangle(True), "triu": _triangle(False)}

#: No position.
_NONE = -(1 << 62)


def back(x: Any, dim: int, wrap: bool) -> Any:
    """What a negative position is moved by: one that does not count from the end is outside."""
    return np.int64(x.shape[dim] if wrap else 0)


def _taken(x: Any, index: Any, out: Any, dim: int, wrap: bool, padding: int = _NONE) -> None:
    tail = math.prod(x.shape[dim + 1:])
    length = 16 // x.itemsize
    if not gl.packed(x, out) or tail % length:
        length = 1
    gl.run("index", "take", (x.dtype, index.dtype, length), out.size // length, x, index, out, np.int64(out.size),
           np.int64(x.shape[dim]), np.int64(index.size), np.int64(tail), np.int64(padding), back(x, dim, wrap))


def _added(dy: Any, index: Any, out: Any, dim: int, wrap: bool, padding: int = _NONE) -> None:
    if out.size:
        gl.run_blocks("index", "take_grad", (dy.dtype, index.dtype), math.prod(out.shape[:dim + 1]), dy, index, out,
                      np.int64(out.shape[dim]), np.int64(index.size), np.int64(math.prod(out.shape[dim + 1:])),
                      np.int64(padding), back(out, dim, wrap))


def _padded(padding: int | None, length: int) -> int:
    return _NONE if padding is None else padding % length


@kernel
def take(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    _taken(x, index, out, dim, wrap)


@kernel
def take_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    _added(dy, index, out, dim, True)


@kernel
def embedding(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False)


@kernel
def embedding_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, padding: Any) -> None:
    _added(dy, index, out, 0, False, _padded(padding, shape[0]))


@kernel
def embedding_unpadded(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False, _padded(padding, weight.shape[0]))


def layout_of_slices(x: Any, index: Any, values: Any, dim: int) -> Any:
    """How index, values as they are broadcast, and ``x`` lie: positions apart from the other dimensions."""
    size, many = x.shape, index.ndim
    missing = x.ndim - 1 + many - values.ndim
    value_steps = [0] * missing + [s if n != 1 else 0
                                   for s, n in zip(gl.elements(values), values.shape, strict=True)]
    steps = gl.elements(x)
    kept = size[:dim] + size[dim + 1:]
    where = np.zeros((), gl.LAYOUT)
    where["rows"] = math.prod(kept)
    where["width"] = index.size
    where["kept"] = gl.axes(kept, [0] * len(kept), value_steps[:dim] + value_steps[dim + many:],
                            steps[:dim] + steps[dim + 1:])
    where["folded"] = gl.axes(index.shape, gl.elements(index), value_steps[dim:dim + many])
    return where


@kernel
def put_(x: Any, index: Any, values: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    if x.size and index.size:
        gl.run_blocks("index", "put", (x.dtype, values.dtype, index.dtype), x.shape[dim], x, values, index,
                      layout_of_slices(x, index, values, dim), np.int64(x.shape[dim]), np.int64(gl.elements(x)[dim]),
                      back(x, dim, wrap))


@kernel
def take_along(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    steps = list(gl.elements(x))
    stride, steps[dim] = steps[dim], 0
    gl.run("index", "take_along", (x.dtype, index.dtype), out.size, x, index, out, gl.axes(index.shape, steps),
           np.int64(out.size), np.int64(x.shape[dim]), np.int64(stride), back(x, dim, wrap))


@kernel
def take_along_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    gl.zero(out)
    if not dy.size:
        return
    steps, results = gl.elements(index), gl.elements(out)
    where = np.zeros((), gl.LAYOUT)
    where["rows"] = index.size // index.shape[dim]
    where["width"] = index.shape[dim]
    where["kept"] = gl.axes(index.shape[:dim] + index.shape[dim + 1:], steps[:dim] + steps[dim + 1:],
                            results[:dim] + results[dim + 1:])
    gl.run("index", "take_along_grad", (dy.dtype, index.dtype), int(where["rows"]) * shape[dim], dy, index, out, where,
           np.int64(shape[dim]), np.int64(results[dim]), np.int64(steps[dim]), back(out, dim, True))
