"""Kernels for the CPU alone, by pieces that stay in a core's cache: indexing, reductions, positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradcore.devices.kernels import split_workspace
from gradcore.spec import PIECE

Array = np.ndarray[Any, Any]
HOST_KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    HOST_KERNELS[fn.__name__] = fn
    return fn


def pieces(*arrays: Array, length: int = PIECE) -> Iterator[list[Array]]:
    """Slices of equal length of flat views of contiguous arrays."""
    flat = [a.reshape(-1) for a in arrays]
    size = flat[0].size
    if size <= length:
        if size:
            yield flat
        return
    for start in range(0, size, length):
        yield [a[start:start + length] for a in flat]


#: Rows of a piece at most: a number for each is no temporary worth declaring.
PIECE_ROWS = 1024


def rows(width: int) -> int:
    """How many rows of ``width`` elements make a piece."""
    return max(PIECE // max(width, 1), 1)


@functools.lru_cache(maxsize=16)
def ones(length: int, dtype: Any) -> Array:
    """What rows are added up with: a product with ones is faster than a sum along a dimension."""
    return np.ones(length, dtype)


def column_sums(x: Array, out: Array) -> None:
    """The sum of each column of a matrix."""
    if len(x) <= PIECE_ROWS and x.dtype.kind == "f" and x.itemsize >= 4:
        np.matmul(ones(len(x), x.dtype), x, out)
    else:
        np.add.reduce(x, axis=0, out=out)


# -- creation and indexing ---------------------------------------------------------------------------------------------


@kernel
def arange(start: Any, step: Any, out: Array, *, length: int, dtype: Any) -> None:
    for at in range(0, length, 2048):
        part = out[at:at + 2048]
        np.copyto(part, np.arange(at, at + part.size) * step + start, casting="unsafe")


def check_bounds(low: int, high: int, length: int, wrap: bool) -> None:
    """Raises IndexError where the smallest or the largest position is outside."""
    if low < -length * wrap or high >= length:
        raise IndexError(f"index {high if high >= length else low} is out of bounds for dimension with size {length}")


def positions(index: Array, length: int, workspace: Array, wrap: bool = False) -> Array:
    """Positions counted from the front; with ``wrap`` negative ones count from the end. Raises IndexError for one outside."""
    found: Array = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    if index.size:
        low, high = int(index.min()), int(index.max())
        check_bounds(low, high, length, wrap)
        if low < 0:
            np.remainder(index, length, found)
        else:
            found[...] = index
    return found


@kernel
def take(x: Array, index: Array, out: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    np.take(x, positions(index, x.shape[dim], workspace, wrap), axis=dim, out=out, mode="clip")


@kernel
def take_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    where = positions(index, shape[dim], workspace, wrap=True)
    lead = math.prod(shape[:dim])
    tail = math.prod(shape[dim + 1:])
    source = dy.reshape(lead, index.size, tail)
    target = out.reshape(lead, shape[dim], tail)
    # One position at a time: positions may repeat, and a fixed order keeps sums the same from run to run.
    for k, position in enumerate(where.reshape(-1).tolist()):
        target[:, position] += source[:, k]


@kernel
def embedding(weight: Array, index: Array, out: Array, workspace: Array, *, padding: int | None) -> None:
    take(weight, index, out, workspace, dim=0, wrap=False)


@kernel
def embedding_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, padding: int | None) -> None:
    out.fill(0)
    rows = dy.reshape(index.size, shape[1])
    # One row at a time, in order: rows may repeat, and a fixed order keeps sums the same from run to run.
    for k, place in enumerate(positions(index, shape[0], workspace).reshape(-1).tolist()):
        target = out[place]
        np.add(target, rows[k], target)
    if padding is not None:
        out[padding] = 0


@kernel
def embedding_unpadded(weight: Array, index: Array, out: Array, workspace: Array, *, padding: int | None) -> None:
    take(weight, index, out, workspace, dim=0, wrap=False)
    if padding is not None:
        flat = out.reshape(index.size, weight.shape[1])
        for k, place in enumerate(positions(index, weight.shape[0], workspace).reshape(-1).tolist()):
            if place == padding:
                flat[k] = 0


@kernel
def put_(x: Array, index: Array, values: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    where = positions(index, x.shape[dim], workspace, wrap)
    target = np.moveaxis(x, dim, 0)
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])
    source = np.broadcast_to(values, shape)
    lead = (slice(None),) * dim
    for spot in np.ndindex(index.shape):
        target[where[spot]] = source[(*lead, *spot)]


def _along(index: Array, shape: Any, dim: int, workspace: Array, wrap: bool) -> tuple[Array, Array]:
    """Flat positions in an array of ``shape`` that ``take_along`` reads."""
    flat = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    if not index.size:
        return flat, index  # an empty dimension has a stride of 0, which np.arange refuses
    positions(index, shape[dim], workspace, wrap)
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].tolist() if shape else []
    np.multiply(flat, strides[dim], flat)
    for d, n in enumerate(index.shape):
        if d != dim:
            for start in range(0, n, 512):
                part = np.moveaxis(flat, d, -1)[..., start:start + 512]
                np.add(part, np.arange(start * strides[d], (start + part.shape[-1]) * strides[d], strides[d]), part)
    return flat, index


@kernel
def take_along(x: Array, index: Array, out: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    flat, _ = _along(index, x.shape, dim, workspace, wrap)
    np.take(x.reshape(-1), flat, out=out, mode="clip")


@kernel
def take_along_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    flat, _ = _along(index, shape, dim, workspace, wrap=True)
    target, order = out.reshape(-1), flat.reshape(-1)
    for start in range(0, order.size, 1024):
        np.add.at(target, order[start:start + 1024], dy.reshape(-1)[start:start + 1024])


# -- reductions, without the wrappers of np.sum and its like -----------------------------------------------------------


def _reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    def reduce(x: Array, out: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
        ufunc.reduce(x, axis=dims, out=out, keepdims=keepdim)

    return reduce


HOST_KERNELS |= {"sum": _reduction(np.add), "amax": _reduction(np.maximum), "amin": _reduction(np.minimum)}


# -- positions of extremes: NumPy copies what does not lie row by row, so it is given pieces ---------------------------


def _find(fold: Callable[..., Any], x: Array, out: Array, dim: int) -> None:
    """``out``, of the shape of ``x`` without ``dim``, is where along ``dim`` the first extreme stands."""
    if x.size <= 4096 or (dim == x.ndim - 1 and x.flags.c_contiguous):
        fold(x, axis=dim, out=out)
    elif x.ndim == 1:
        found = np.array([start + int(fold(x[start:start + 4096])) for start in range(0, x.size, 4096)])
        out[...] = found[fold(x[found])]
    else:
        longest = max((n, d) for d, n in enumerate(x.shape) if d != dim)[1]
        half = x.shape[longest] // 2
        if not half:
            _find(fold, x.reshape(-1), out.reshape(()), 0)
            return
        kept = longest - (longest > dim)
        for part in (slice(None, half), slice(half, None)):
            _find(fold, x[(*(slice(None),) * longest, part)], out[(*(slice(None),) * kept, part)], dim)


def _position(fold: Callable[..., Any]) -> Callable[..., Any]:
    def find(x: Array, out: Array, *, dim: int, keepdim: bool) -> None:
        if x.ndim:
            _find(fold, x, out.reshape(x.shape[:dim] + x.shape[dim + 1:]), dim)
        else:
            out[...] = 0

    return find


def _extreme(ufunc: np.ufunc, find: Callable[..., Any]) -> Callable[..., Any]:
    def both(x: Array, values: Array, indices: Array, *, dim: int, keepdim: bool) -> None:
        ufunc.reduce(x, axis=dim if x.ndim else None, out=values, keepdims=keepdim)
        find(x, indices, dim=dim, keepdim=keepdim)

    return both


HOST_KERNELS |= {"argmax": _position(np.argmax), "argmin": _position(np.argmin)}
HOST_KERNELS |= {"max_with_index": _extreme(np.maximum, HOST_KERNELS["argmax"]),
                 "min_with_index": _extreme(np.minimum, HOST_KERNELS["argmin"])}
