"""Sums, extremes and their positions, variance and norms along dimensions, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import HOST_KERNELS, Array, kernel, slices
from gradcore.devices.host.kernels.products import add_over, lent_for
from gradcore.devices.host.kernels.softmax import NARROW
from gradcore.devices.host.pointwise import walk
from gradcore.devices.host.scratch import KEPT, lent
from gradcore.devices.kernels import folded_shape, summed
from gradcore.spec import FOLDED, adjacent

#: The least size of an array whose short rows are turned over.
_MANY = 1 << 14
#: Elements of rows that are long enough for vector instructions.
_TAIL = 256
#: The longest rows whose extreme is picked at its place, and rows of which it is picked at a time, by two numbers for each.
_MEDIUM, _PICKED = 512, 2048
#: Of a piece in which positions of extremes are found side by side: the least length of its rows, the most rows for each of
#: their elements, since a cache does not hold more, and the most lines.
_APART, _DEEP, _MOST = 32, 8, 1 << 14


def _reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    def reduce(x: Array, out: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
        ufunc.reduce(x, axis=dims, out=out, keepdims=keepdim)

    return reduce


def _extreme_of(ufunc: np.ufunc) -> Callable[..., Any]:
    def reduce(x: Array, out: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
        if x.size < _MANY or len(dims) != 1 or not x.flags.c_contiguous:
            ufunc.reduce(x, axis=dims, out=out, keepdims=keepdim)
            return
        dim, = dims
        count, tail = x.shape[dim], math.prod(x.shape[dim + 1:])
        if tail > 1 and 4 * tail <= _TAIL and count >= 8:
            _by_long_rows(ufunc, x.reshape(-1, count, tail), out.reshape(-1, tail))
        elif tail == 1 and 1 < count <= NARROW:
            _by_columns(ufunc, x.reshape(-1, count), out.reshape(-1))
        elif tail == 1 and NARROW < count <= _MEDIUM:
            rows, found = x.reshape(-1, count), out.reshape(-1)
            for some in slices(len(rows), _PICKED):
                _pick(rows[some], (np.argmax if ufunc is np.maximum else np.argmin)(rows[some], 1), found[some])
        else:
            ufunc.reduce(x, axis=dims, out=out, keepdims=keepdim)

    return reduce


def _pick(rows: Array, places: Array, out: Array) -> None:
    """The element at a place of each row."""
    for some in slices(len(rows), _PICKED):
        part = rows[some]
        # Where a reduction starts along each row, a look for the place takes a third of the time.
        part.reshape(-1).take(places[some] + np.arange(0, part.size, rows.shape[1]), out=out[some], mode="clip")


def _by_long_rows(ufunc: np.ufunc, x: Array, out: Array) -> None:
    """Reduce the middle dimension, several of whose short rows are taken as one: NumPy goes from row to row in a slow loop."""
    lead, count, tail = x.shape
    several = min(count // 4, _TAIL // tail)
    length = several * tail
    step = max(KEPT // (length * x.itemsize), 1)
    with lent_for(x, min(step, lead) * length) as room:
        for some in slices(lead, step):
            part = x[some]
            rows = room[:len(part) * length].reshape(len(part), length)
            whole = count // several * several
            ufunc.reduce(part[:, :whole].reshape(len(part), -1, length), 1, out=rows)
            ufunc.reduce(rows.reshape(len(part), several, tail), 1, out=out[some])
            for k in range(whole, count):
                ufunc(out[some], part[:, k], out=out[some])


def _by_columns(ufunc: np.ufunc, rows: Array, out: Array) -> None:
    """Reduce short rows turned over, since a reduction along each row has a fixed cost."""
    width = rows.shape[1]
    step = KEPT // 2 // (width * rows.itemsize)
    with lent_for(rows, min(step, len(rows)) * width) as room:
        for some in slices(len(rows), step):
            part = rows[some]
            turned = room[:part.size].reshape(width, -1)
            np.copyto(turned, part.T)
            ufunc.reduce(turned, 0, out=out[some])


@kernel
def sum(x: Array, out: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
    add_over(x, dims, out)


HOST_KERNELS |= {"amax": _extreme_of(np.maximum), "amin": _extreme_of(np.minimum),
                 "any": _reduction(np.logical_or), "all": _reduction(np.logical_and)}


@kernel
def sum_to_shape(x: Array, out: Array, *, shape: tuple[int, ...]) -> None:
    add_over(x, summed(x.shape, shape), out)


@kernel
def mean(x: Array, out: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
    if not x.size:
        out.fill(np.nan)
    elif x.dtype.itemsize < 4:
        # NumPy adds numbers of half precision in float32.
        np.mean(x, axis=dims, out=out, keepdims=keepdim)
    else:
        add_over(x, dims, out)
        np.true_divide(out, math.prod(x.shape[d] for d in dims), out)


@kernel
def prod(x: Array, out: Array, *, dim: int, keepdim: bool) -> None:
    np.multiply.reduce(x, axis=dim, dtype=out.dtype, out=out, keepdims=keepdim)


def _room(x: Array, out: Array, workspace: Array, dims: Any) -> tuple[Array, Array, Array]:
    """``out`` with the reduced dimensions as ones, a number for each of its elements, and room for pieces of ``x``."""
    out = out.reshape(folded_shape(x.shape, *dims))
    start = -(-out.size * x.itemsize // 16) * 16
    own, room = workspace[:out.size * x.itemsize], workspace[start:]
    return out, own.view(x.dtype).reshape(out.shape), room[:room.size // x.itemsize * x.itemsize].view(x.dtype)


def _fold(x: Array, own: Array, out: Array, room: Array, dims: tuple[int, ...], fill: Callable[..., Any],
          ufunc: Any = np.add) -> None:
    """Fold what ``fill(part, its own numbers, place)`` writes, for ``x`` or, of a large one, for pieces."""
    for part, numbers, result, over, more in _parts(x, own, out, dims):
        whole = room[:part.size].reshape(part.shape)
        fill(part, numbers, whole)
        target = room[part.size:part.size + result.size].reshape(result.shape) if more else result
        if ufunc is np.add:
            add_over(whole, over, target)
        else:
            ufunc.reduce(whole, axis=over, out=target, keepdims=True)
        if more:
            ufunc(result, target, out=result)


def _parts(x: Array, own: Array, out: Array,
           dims: tuple[int, ...]) -> Iterable[tuple[Array, Array, Array, tuple[int, ...], bool]]:
    """Parts of ``x``, their numbers and results, the dimensions to fold, and whether the results have been begun."""
    if x.size <= FOLDED or not x.flags.c_contiguous or not adjacent(dims):
        return ((x, own, out, dims, False),)
    inner, count = math.prod(x.shape[dims[-1] + 1:]), math.prod(x.shape[d] for d in dims)
    columns = (inner,) if inner > 1 else ()
    xs, owns, outs = x.reshape(-1, count, *columns), own.reshape(-1, 1, *columns), out.reshape(-1, 1, *columns)
    if count * inner <= FOLDED:
        return ((xs[some], owns[some], outs[some], (1,), False) for some in slices(len(xs), FOLDED // (count * inner)))
    return ((part[some], numbers, result, (0,), some.start > 0) for part, numbers, result in zip(xs, owns, outs, strict=True)
            for some in slices(count, max(FOLDED // inner, 1)))


@kernel
def logsumexp(x: Array, out: Array, workspace: Array, *, dims: tuple[int, ...], keepdim: bool) -> None:
    if not x.size:
        out.fill(-math.inf)
        return
    out, top, room = _room(x, out, workspace, dims)
    HOST_KERNELS["amax"](x, top, dims=dims, keepdim=True)
    # Infinite extremes are replaced by 0, since shifting by them would give NaN.
    np.copyto(top, 0, where=np.isinf(top))

    def fill(part: Array, top: Array, place: Array) -> None:
        np.subtract(part, top, place)
        np.exp(place, place)

    _fold(x, top, out, room, dims, fill)
    np.log(out, out)
    np.add(out, top, out)


# -- positions of extremes: NumPy copies what does not lie row by row, so it is given pieces ---------------------------


def _find(fold: Callable[..., Any], x: Array, out: Array, dim: int) -> None:
    """Write the position along ``dim`` of the first extreme to ``out``, which has the shape of ``x`` without ``dim``."""
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


def _count_before(ufunc: np.ufunc, x: Array, out: Array) -> bool:
    """The same for the middle dimension of a piece: the number of elements before the first extreme. False if one is NaN."""
    count = out.size
    with lent(count * (x.itemsize + 3), np.dtype(np.uint8)) as room:
        top = room[:count * x.itemsize].view(x.dtype).reshape(out.shape)
        missing, other, passed = room[count * x.itemsize:].reshape(3, *out.shape)
        ufunc.reduce(x, 1, out=top)
        if (most := ufunc.reduce(top, None)) != most:
            return False
        missing.fill(1)
        out.fill(0)
        # Counted in bytes, as far as these go; an extreme that comes before the last is found by then.
        for some in slices(x.shape[1] - 1, 255):
            passed.fill(0)
            for k in range(some.start, min(some.stop, x.shape[1] - 1)):
                np.not_equal(x[:, k], top, out=other.view(np.bool_))
                np.bitwise_and(missing, other, missing)
                np.add(passed, missing, passed)
            np.add(out, passed, out)
    return True


def _position(fold: Callable[..., Any], ufunc: np.ufunc) -> Callable[..., Any]:
    def find(x: Array, out: Array, *, dim: int, keepdim: bool) -> None:
        if not x.ndim:
            out[...] = 0
            return
        lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1:])
        # NumPy compares numbers of half precision one at a time.
        if (not x.flags.c_contiguous or tail < max(_APART, x.shape[dim] / _DEEP) or lead * tail < _MOST // 8
                or x.dtype == np.float16):
            _find(fold, x, out.reshape(x.shape[:dim] + x.shape[dim + 1:]), dim)
            return
        lines, found = x.reshape(lead, -1, tail), out.reshape(lead, tail)
        for some in slices(lead, max(_MOST // tail, 1)):
            for across in slices(tail, _MOST):
                if not _count_before(ufunc, lines[some, :, across], found[some, across]):
                    _find(fold, lines[some, :, across], found[some, across], 1)

    return find


def _extreme(ufunc: np.ufunc, find: Callable[..., Any]) -> Callable[..., Any]:
    fold = _extreme_of(ufunc)

    def both(x: Array, values: Array, indices: Array, *, dim: int, keepdim: bool) -> None:
        find(x, indices, dim=dim, keepdim=keepdim)
        if x.size >= _MANY and dim == x.ndim - 1 and x.flags.c_contiguous:
            _pick(x.reshape(-1, x.shape[dim]), indices.reshape(-1), values.reshape(-1))
        else:
            fold(x, values, dims=(dim,) if x.ndim else (), keepdim=keepdim)

    return both


HOST_KERNELS |= {"argmax": _position(np.argmax, np.maximum), "argmin": _position(np.argmin, np.minimum)}
HOST_KERNELS |= {"max_with_index": _extreme(np.maximum, HOST_KERNELS["argmax"]),
                 "min_with_index": _extreme(np.minimum, HOST_KERNELS["argmin"])}


# -- variance and norms ------------------------------------------------------------------------------------------------


@kernel
def var(x: Array, out: Array, workspace: Array, *, dims: tuple[int, ...], correction: float, keepdim: bool) -> None:
    out, mean, room = _room(x, out, workspace, dims)
    count = math.prod(x.shape[d] for d in dims)
    add_over(x, dims, mean)
    np.true_divide(mean, count, mean)

    def fill(part: Array, mean: Array, place: Array) -> None:
        np.subtract(part, mean, place)
        np.multiply(place, place, place)

    _fold(x, mean, out, room, dims, fill)
    np.true_divide(out, max(count - correction, 0), out)


@kernel
def vector_norm(x: Array, out: Array, workspace: Array, *, p: float, dims: tuple[int, ...], keepdim: bool) -> None:
    def fill(part: Array, _: Array, place: Array) -> None:
        if p == 0:
            walk(lambda some: some != 0, (part,), place)
        elif p == 2:
            np.multiply(part, part, place)
        else:
            np.absolute(part, place)
            if p != 1 and not math.isinf(p):
                np.power(place, p, place)

    out, own, room = _room(x, out, workspace, dims)
    _fold(x, own, out, room, dims, fill, np.add if not math.isinf(p) else np.maximum if p > 0 else np.minimum)
    if p == 2:
        np.sqrt(out, out)
    elif p not in (0, 1) and not math.isinf(p):
        np.power(out, 1 / p, out)
