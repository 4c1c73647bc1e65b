"""Kernels for the CPU alone: by pieces that stay in a core's cache, with NumPy's own random bits."""

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


def rows(width: int) -> int:
    """How many rows of ``width`` elements make a piece."""
    return max(PIECE // max(width, 1), 1)


# -- creation and indexing ---------------------------------------------------------------------------------------------


@kernel
def arange(start: Any, step: Any, out: Array, *, length: int, dtype: Any) -> None:
    for at in range(0, length, 2048):
        part = out[at:at + 2048]
        np.copyto(part, np.arange(at, at + part.size) * step + start, casting="unsafe")


def positions(index: Array, length: int, workspace: Array) -> Array:
    """Positions counted from the front. Raises IndexError for one outside."""
    found: Array = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    if index.size:
        low, high = int(index.min()), int(index.max())
        if low < -length or high >= length:
            raise IndexError(f"index {high if high >= length else low} is out of bounds for dimension with size {length}")
        np.remainder(index, length, found)
    return found


@kernel
def take(x: Array, index: Array, out: Array, workspace: Array, *, dim: int) -> None:
    np.take(x, positions(index, x.shape[dim], workspace), axis=dim, out=out, mode="clip")


@kernel
def take_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    where = positions(index, shape[dim], workspace)
    lead = math.prod(shape[:dim])
    tail = math.prod(shape[dim + 1:])
    source = dy.reshape(lead, index.size, tail)
    target = out.reshape(lead, shape[dim], tail)
    # One position at a time: positions may repeat, and a fixed order keeps sums the same from run to run.
    for k, position in enumerate(where.reshape(-1).tolist()):
        target[:, position] += source[:, k]


@kernel
def put_(x: Array, index: Array, values: Array, workspace: Array, *, dim: int) -> None:
    where = positions(index, x.shape[dim], workspace)
    target = np.moveaxis(x, dim, 0)
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])
    source = np.broadcast_to(values, shape)
    lead = (slice(None),) * dim
    for spot in np.ndindex(index.shape):
        target[where[spot]] = source[(*lead, *spot)]


def _along(index: Array, shape: Any, dim: int, workspace: Array) -> tuple[Array, Array]:
    """Flat positions in an array of ``shape`` that ``take_along`` reads."""
    flat = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    positions(index, shape[dim], workspace)
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].tolist() if shape else []
    np.multiply(flat, strides[dim], flat)
    for d, n in enumerate(index.shape):
        if d != dim:
            for start in range(0, n, 512):
                part = np.moveaxis(flat, d, -1)[..., start:start + 512]
                np.add(part, np.arange(start * strides[d], (start + part.shape[-1]) * strides[d], strides[d]), part)
    return flat, index


@kernel
def take_along(x: Array, index: Array, out: Array, workspace: Array, *, dim: int) -> None:
    flat, _ = _along(index, x.shape, dim, workspace)
    np.take(x.reshape(-1), flat, out=out, mode="clip")


@kernel
def take_along_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    flat, _ = _along(index, shape, dim, workspace)
    target, order = out.reshape(-1), flat.reshape(-1)
    for start in range(0, order.size, 1024):
        np.add.at(target, order[start:start + 1024], dy.reshape(-1)[start:start + 1024])


# -- the error function ------------------------------------------------------------------------------------------------

# erf(x) = x P(x^2) / Q(x^2) for |x| <= 3.92, within 4e-9: a least-squares fit, iterated on the denominator.
_P = (1.128379180912975, 0.18465105309565888, 0.05426094204021602, 0.003828999409218896, 0.0003798603992574199,
      4.7047276154222255e-06, -1.3261204210327645e-08)
_Q = (1.0, 0.49697626441913156, 0.11374535487773631, 0.01542231626758328, 0.0013036694231784534, 6.329768638013669e-05)

# Chebyshev coefficients in y = 2t - 1, t = 2 / (2 + z), of log(erfc(z) / t) + z^2 for z >= 0, computed to 40 digits.
_CHEBYSHEV = (
    -1.30265371978170943, 0.64196979235649026, 0.0194764732041858363, -0.00956151478680863165,
    -0.000946595344482036861, 0.000366839497852761447, 4.25233248069077768e-05, -2.02785781125342481e-05,
    -1.62429000464702077e-06, 1.3036558355805187e-06, 1.56264417220703717e-08, -8.52380959149304777e-08,
    6.52905443910247192e-09, 5.05934349554818285e-09, -9.91364156490099146e-10, -2.27365122295749481e-10,
    9.64679110223392124e-11, 2.39403808124895592e-12, -6.88602752511088114e-12, 8.94487926333401317e-13,
    3.13092140493678853e-13, -1.1270822375373606e-13, 3.81090245503978394e-16, 7.1060983121851931e-15,
    -1.5230293148083846e-15, -9.45734236196977218e-17, 1.21021796335676048e-16, -2.81643182158882184e-17)


def erf_piece(x: Array, out: Array, temporaries: list[Array]) -> None:
    """erf of one piece; four temporaries of its length. ``out`` may be ``x``."""
    a, b, c, d = (t[:x.size] for t in temporaries[:4])
    if x.dtype.itemsize < 8:
        np.minimum(x, 3.92, out=a)
        np.maximum(a, -3.92, out=a)
        np.multiply(a, a, b)
        _horner(_P, b, c)
        _horner(_Q, b, d)
        np.true_divide(c, d, c)
        np.multiply(a, c, out)
        return
    np.sign(x, d)
    np.absolute(x, a)
    np.add(a, 2, b)
    np.true_divide(8, b, b)
    np.subtract(b, 2, b)  # 2 y, of which Clenshaw's recurrence is made
    np.multiply(a, a, a)
    np.copyto(c, 0)
    np.copyto(out, 0)
    ahead, now = out, c
    for coefficient in _CHEBYSHEV[:0:-1]:
        # ahead <- 2y * now - ahead + coefficient, then the two change places.
        np.subtract(coefficient, ahead, ahead)
        _fma(b, now, ahead)
        ahead, now = now, ahead
    # 0.5 * (c0 + 2y * now) - ahead - z^2
    np.multiply(b, now, b)
    np.add(b, _CHEBYSHEV[0], b)
    np.multiply(b, 0.5, b)
    np.subtract(b, ahead, b)
    np.subtract(b, a, b)
    np.exp(b, b)
    np.sqrt(a, a)
    np.add(a, 2, a)
    np.true_divide(2, a, a)
    np.multiply(a, b, a)
    np.subtract(1, a, a)
    np.multiply(a, d, out)


def _fma(x: Array, y: Array, total: Array) -> None:
    for start in range(0, x.size, 2048):
        part = slice(start, start + 2048)
        np.add(total[part], x[part] * y[part], total[part])


def _horner(coefficients: tuple[float, ...], u: Array, out: Array) -> None:
    np.copyto(out, coefficients[-1])
    for k in coefficients[-2::-1]:
        np.multiply(out, u, out)
        np.add(out, k, out)


def _temporaries(x: Array, workspace: Array, count: int) -> list[Array]:
    return split_workspace(workspace, *[(min(x.size, PIECE), x.dtype)] * count)


@kernel
def erf(x: Array, out: Array, workspace: Array) -> None:
    room = _temporaries(x, workspace, 4)
    for xs, outs in pieces(x, out):
        erf_piece(xs, outs, room)


_ROOT_HALF = math.sqrt(0.5)
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


@kernel
def gelu(x: Array, out: Array, workspace: Array, *, tanh: bool = False) -> None:
    room = _temporaries(x, workspace, 5)
    for xs, outs in pieces(x, out):
        t = room[4][:xs.size]
        if tanh:
            _tanh_argument(xs, t)
            np.tanh(t, t)
        else:
            np.multiply(xs, _ROOT_HALF, t)
            erf_piece(t, t, room)
        np.add(t, 1, t)
        np.multiply(t, xs, t)
        np.multiply(t, 0.5, outs)


def _tanh_argument(x: Array, out: Array) -> None:
    """sqrt(2 / pi) (x + 0.044715 x^3)"""
    np.multiply(x, x, out)
    np.multiply(out, 0.044715, out)
    np.add(out, 1, out)
    np.multiply(out, x, out)
    np.multiply(out, _ROOT_2_OVER_PI, out)


@kernel
def gelu_grad(dy: Array, x: Array, out: Array, workspace: Array, *, tanh: bool = False) -> None:
    room = _temporaries(x, workspace, 6)
    for dys, xs, outs in pieces(dy, x, out):
        t, s = room[4][:xs.size], room[5][:xs.size]
        if tanh:
            _tanh_argument(xs, t)
            np.tanh(t, t)
            np.multiply(xs, xs, s)
            np.multiply(s, 3 * 0.044715 * _ROOT_2_OVER_PI, s)
            np.add(s, _ROOT_2_OVER_PI, s)
            np.multiply(s, xs, s)
            u = room[0][:xs.size]
            np.multiply(t, t, u)
            np.subtract(1, u, u)
            np.multiply(s, u, s)
            np.multiply(s, 0.5, s)
        else:
            np.multiply(xs, _ROOT_HALF, t)
            erf_piece(t, t, room)
            np.multiply(xs, xs, s)
            np.multiply(s, -0.5, s)
            np.exp(s, s)
            np.multiply(s, xs, s)
            np.multiply(s, 1 / math.sqrt(2 * math.pi), s)
        np.multiply(t, 0.5, t)
        np.add(t, 0.5, t)
        np.add(t, s, t)
        np.multiply(t, dys, outs)


# -- softmax, losses, norms --------------------------------------------------------------------------------------------


@kernel
def log_softmax(x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    width = x.shape[dim] if x.ndim else 1
    count = x.size // max(width, 1)
    last = dim == x.ndim - 1 or not x.ndim
    room = min(x.size, rows(width) * width) if last else x.size
    exps, folded = split_workspace(workspace, (room, x.dtype), (count, x.dtype))
    fold = folded.reshape(tuple(1 if d == dim else n for d, n in enumerate(x.shape)))
    np.amax(x, axis=dim if x.ndim else None, out=fold, keepdims=True)
    np.subtract(x, fold, out)
    if last:
        for start in range(0, count, rows(width)):
            part = out.reshape(count, width)[start:start + rows(width)]
            e = exps[:part.size].reshape(part.shape)
            np.exp(part, e)
            np.sum(e, axis=1, out=folded[start:start + rows(width)])
    else:
        e = exps.reshape(x.shape)
        np.exp(out, e)
        np.sum(e, axis=dim, out=fold, keepdims=True)
    np.log(folded, folded)
    np.subtract(out, fold, out)


def _plain_labels(target: Array, classes: int, ignore_index: int) -> bool:
    """Is every label a class, and none ignored? Raises IndexError in PyTorch's words for a label that is neither."""
    if not target.size:
        return True
    low, high = int(np.minimum.reduce(target)), int(np.maximum.reduce(target))
    if low < 0 or high >= classes:
        for label in target.tolist():
            if label != ignore_index and not 0 <= label < classes:
                raise IndexError(f"Target {label} is out of bounds: expected class indices from 0 to {classes - 1}, or "
                                 f"ignore_index={ignore_index}")
        return False
    return not low <= ignore_index <= high or ignore_index not in target


#: Rows of a piece at most: their positions are small enough to be made on the way.
_ROWS = 2048


@functools.lru_cache(maxsize=16)
def _row_starts(classes: int) -> Array:
    return np.arange(0, _ROWS * classes, classes)


def _chosen(labels: Array, classes: int, plain: bool) -> Array:
    """Flat positions, in rows of ``classes``, of each row's label; of class 0 where the label is ignored."""
    return _row_starts(classes)[:labels.size] + (labels if plain else np.where((labels < 0) | (labels >= classes), 0,
                                                                               labels))


@kernel
def cross_entropy(logits: Array, target: Array, weight: Array | None, out: Array, workspace: Array, *,
                  reduction: str = "mean", ignore_index: int = -100) -> None:
    count, classes = logits.shape
    plain = _plain_labels(target, classes, ignore_index)
    step = min(rows(classes), _ROWS)
    exps, losses = split_workspace(workspace, (min(logits.size, step * classes), logits.dtype), (count, logits.dtype))
    for start in range(0, count, step):
        part = logits[start:start + step]
        loss = losses[start:start + step]
        e = exps[:part.size].reshape(part.shape)
        np.subtract(part, np.maximum.reduce(part, axis=1, keepdims=True), e)
        chosen = exps.take(_chosen(target[start:start + step], classes, plain))
        np.exp(e, e)
        np.add.reduce(e, axis=1, out=loss)
        np.log(loss, loss)
        np.subtract(loss, chosen, loss)
    if weight is None and plain and reduction != "none" and count:
        np.add.reduce(losses, out=out)
        if reduction == "mean":
            np.multiply(out, 1 / count, out)
    else:
        _reduce_weighted(losses, target, weight, out, reduction, ignore_index)


def _reduce_weighted(losses: Array, target: Array, weight: Array | None, out: Array, reduction: str,
                     ignore_index: int) -> None:
    """Sum or mean of the losses, each with its class's weight; piece by piece, since weights are made on the way."""
    total = whole = 0.0
    for start in range(0, losses.size, _ROWS):
        loss = losses[start:start + _ROWS]
        weights = _sample_weights(target[start:start + _ROWS], weight, ignore_index, losses.dtype)
        # Where nothing counts, 0 times an infinite loss must not spoil the sum.
        np.copyto(loss, 0, where=weights == 0)
        np.multiply(loss, weights, loss)
        total += float(np.add.reduce(loss))
        whole += float(np.add.reduce(weights))
    if reduction == "none":
        out[...] = losses
    else:
        out[...] = total if reduction == "sum" else np.float64(total) / np.float64(whole)


def _sample_weights(labels: Array, weight: Array | None, ignore_index: int, dtype: Any) -> Array:
    """What each of at most ``_ROWS`` samples counts."""
    kept = labels != ignore_index
    return kept.astype(dtype) if weight is None else np.where(kept, weight[np.where(kept, labels, 0)], 0)


@kernel
def cross_entropy_grad(dy: Array, logits: Array, target: Array, weight: Array | None, out: Array, workspace: Array, *,
                       reduction: str, ignore_index: int) -> None:
    count, classes = logits.shape
    plain = _plain_labels(target, classes, ignore_index)
    column = split_workspace(workspace, (count, logits.dtype))[0].reshape(count, 1)
    np.maximum.reduce(logits, axis=1, out=column, keepdims=True)
    np.subtract(logits, column, out)
    np.exp(out, out)
    np.add.reduce(out, axis=1, out=column, keepdims=True)
    np.true_divide(out, column, out)
    flat = out.reshape(-1)
    for start in range(0, count, _ROWS):
        flat[start * classes:(start + _ROWS) * classes][_chosen(
            target[start:start + _ROWS], classes, plain)] -= 1
    if weight is None and plain and reduction != "none":
        np.multiply(out, dy / count if reduction == "mean" else dy, out)
    else:
        _scale_weighted(out, dy, target, weight, reduction, ignore_index)


def _scale_weighted(out: Array, dy: Array, target: Array, weight: Array | None, reduction: str,
                    ignore_index: int) -> None:
    """Multiply each row with its sample's weight, over the whole weight for a mean, and the cotangent."""
    starts = range(0, target.size, _ROWS)
    whole = 1.0
    if reduction == "mean":
        whole = sum(float(np.add.reduce(_sample_weights(target[i:i + _ROWS], weight, ignore_index, out.dtype)))
                    for i in starts)
    for i in starts:
        part = out[i:i + _ROWS]
        weights = _sample_weights(target[i:i + _ROWS], weight, ignore_index, out.dtype) / (whole or 1.0)
        np.multiply(weights, dy[i:i + _ROWS] if reduction == "none" else dy, weights)
        np.multiply(part, weights.astype(out.dtype).reshape(-1, 1), part)


@kernel
def mse_loss(x: Array, target: Array, out: Array, workspace: Array, *, reduction: str = "mean") -> None:
    room = workspace.view(x.dtype)
    total = 0.0
    for xs, ts in pieces(x, target):
        d = room[:xs.size]
        np.subtract(xs, ts, d)
        total += float(np.dot(d, d))
    out[...] = total if reduction == "sum" else total / x.size if x.size else math.nan


def _norm_rows(width: int) -> int:
    """Rows of a piece: few enough that a number for each is no temporary worth declaring."""
    return min(rows(width), _ROWS)


def _add_rows(terms: Array, total: Array) -> None:
    """Add rows up into one, without a temporary as wide as they are where they are wide."""
    if len(terms) <= 8:
        for row in terms:
            np.add(total, row, total)
    else:
        np.add(total, np.add.reduce(terms, axis=0), total)


def _normalize_rows(x: Array, mean: Array, rstd: Array, out: Array) -> None:
    np.subtract(x, mean, out)
    np.multiply(out, rstd, out)


@kernel
def layer_norm(x: Array, weight: Array | None, bias: Array | None, out: Array, mean: Array, rstd: Array,
               workspace: Array, *, dims: int, eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    room = workspace.view(x.dtype)
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        m, r, y = means[part], rstds[part], outs[part]
        square = room[:y.size].reshape(y.shape)
        np.mean(xs[part], axis=1, out=m, keepdims=True)
        np.subtract(xs[part], m, y)
        np.multiply(y, y, square)
        np.mean(square, axis=1, out=r, keepdims=True)
        np.add(r, eps, r)
        np.sqrt(r, r)
        np.reciprocal(r, r)
        np.multiply(y, r, y)
        if weight is not None:
            np.multiply(y, weight.reshape(-1), y)
        if bias is not None:
            np.add(y, bias.reshape(-1), y)


@kernel
def layer_norm_grad(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Array, dweight: Array,
                    dbias: Array, workspace: Array, *, dims: int, needs: Any) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    length = min(x.size, rows(width) * width)
    room, hats = split_workspace(workspace, (length, x.dtype), (length, x.dtype))
    dweight.fill(0)
    dbias.fill(0)
    xs, dys, dxs = x.reshape(-1, width), dy.reshape(-1, width), dx.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        g, d = dys[part], dxs[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        _normalize_rows(xs[part], means[part], rstds[part], hat)
        np.multiply(g, hat, t)
        for total, terms in ((dweight, t), (dbias, g)):
            _add_rows(terms, total.reshape(-1))
        # dx = rstd * (gw - mean(gw) - hat * mean(gw * hat)), with gw = dy * weight
        if weight is None:
            np.copyto(d, g)
        else:
            np.multiply(g, weight.reshape(-1), d)
            np.multiply(t, weight.reshape(-1), t)
        slope = t.mean(axis=1, keepdims=True)
        np.subtract(d, d.mean(axis=1, keepdims=True), d)
        np.multiply(hat, slope, hat)
        np.subtract(d, hat, d)
        np.multiply(d, rstds[part], d)


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
