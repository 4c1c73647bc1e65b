"""Creation of arrays, and movement of their elements, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.halves import convert
from gradcore.devices.host.kernel import HOST_KERNELS, Array, kernel
from gradcore.devices.kernels import basic_view, turned

#: Numbers that are made at a time.
_MADE = 2048


@kernel
def arange(start: Any, step: Any, out: Array, *, length: int, dtype: Any) -> None:
    if length <= _MADE:
        np.copyto(out, np.arange(length) * step + start, casting="unsafe")
    elif type(start) is type(step) is int and out.dtype == np.int64 and abs(start) + length * abs(step) < 1 << 62:
        arange(start, step, out[:_MADE], length=_MADE, dtype=dtype)
        some = _MADE
        while some < length:
            more = min(some, length - some)
            np.add(out[:more], some * step, out[some:some + more])
            some += more
    else:
        for at in range(0, length, _MADE):
            part = out[at:at + _MADE]
            np.copyto(part, np.arange(at, at + part.size) * step + start, casting="unsafe")


@kernel
def full(value: Any, out: Array, *, shape: Any, dtype: Any) -> None:
    out.fill(value)


@kernel
def empty(out: Array, *, shape: Any, dtype: Any) -> None:
    pass


@kernel
def eye(out: Array, *, rows: int, columns: int, dtype: Any) -> None:
    out.fill(0)
    out.reshape(-1)[:rows * columns:columns + 1][:min(rows, columns)].fill(1)


#: Bytes of a line of the caches, and columns that are copied at a time from an array in which they lie that far apart.
_LINE, _COLUMNS = 64, 32


@kernel
def clone(x: Array, out: Array) -> None:
    if x.flags.c_contiguous or x.nbytes < 1 << 15 or not out.flags.c_contiguous:
        out[...] = x
        return
    # The last dimensions as one, where they are so in memory.
    d = x.ndim - 1
    while d and x.strides[d - 1] == x.strides[d] * x.shape[d]:
        d -= 1
    x, out = (a.reshape(*a.shape[:d], -1) for a in (x, out))
    # Transposed: over all columns, lines that hold an element of each would not stay in the cache until their next is read.
    step = _COLUMNS if abs(x.strides[-1]) >= _LINE > min(map(abs, x.strides)) else x.shape[-1]
    for start in range(0, x.shape[-1], step):
        out[..., start:start + step] = x[..., start:start + step]


@kernel
def cast(x: Array, out: Array, *, dtype: Any) -> None:
    convert(x, out)


@kernel
def slice_grad(dy: Array, out: Array, *, shape: Any, index: Any) -> None:
    out.fill(0)
    basic_view(out, index)[...] = dy


def _strided(flat: Any, shape: Any, strides: Any, offset: int) -> Any:
    size = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [n * size for n in strides])


@kernel
def as_strided_grad(dy: Array, out: Array, *, like: Any, strides: Any, offset: int) -> None:
    out.fill(0)
    # A dimension of stride 0 repeats one element, so gradients are added to it one after the other.
    same = [d for d, (n, s) in enumerate(zip(dy.shape, strides)) if n > 1 and s == 0]
    for index in np.ndindex(*[dy.shape[d] for d in same]) if dy.size else ():
        key: list[Any] = [slice(None)] * dy.ndim
        for d, i in zip(same, index):
            key[d] = slice(i, i + 1)
        part = dy[tuple(key)]
        target = _strided(out.reshape(-1), part.shape, strides, offset)
        np.add(target, part, target)


@kernel
def cleared(x: Array, out: Array, *, shape: Any, strides: Any, offset: int) -> None:
    out[...] = x
    if 0 not in shape:
        _strided(out.reshape(-1), shape, strides, offset)[...] = 0


def _triangle(lower: bool) -> Callable[..., Any]:
    def keep(x: Array, out: Array, *, diagonal: int) -> None:
        out.fill(0)
        height, width = x.shape[-2:]
        for start in range(0, height, 64):
            # Some rows at a time: what all of them keep, and by a mask what only some do.
            rows = range(start, min(start + 64, height))
            first, last = (min(max(i + diagonal + lower, 0), width) for i in (rows[0], rows[-1]))
            given, place = x[..., start:rows.stop, :], out[..., start:rows.stop, :]
            whole, some = slice(0, first) if lower else slice(last, width), slice(first, last)
            place[..., whole] = given[..., whole]
            kept = (np.arange(first, last) < np.arange(start, rows.stop)[:, None] + diagonal + lower) == lower
            np.copyto(place[..., some], given[..., some], where=kept)

    return keep


HOST_KERNELS |= {"tril": _triangle(True), "triu": _triangle(False)}


@kernel
def cat(tensors: list[Array], out: Array, *, dim: int) -> None:
    np.concatenate(tensors, dim, out, casting="unsafe")


@kernel
def flip(x: Array, out: Array, *, dims: tuple[int, ...]) -> None:
    clone(np.flip(x, dims), out)


@kernel
def roll(x: Array, out: Array, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    for source, target in turned(x.shape, shifts, dims):
        out[target] = x[source]


@kernel
def windows_grad(dy: Array, out: Array, *, shape: Any, dim: int, size: int, step: int, dilation: int) -> None:
    if not out.ndim:
        # One window of one element, or of none.
        np.sum(dy, out=out)
        return
    out.fill(0)
    reach = (dy.shape[dim] - 1) * step + 1
    for k in range(size):
        first = k * dilation
        target = out[(*(slice(None),) * dim, slice(first, first + reach, step))]
        np.add(target, dy[..., k], target)
