"""Sample calls of the ops of images: convolution, pooling, batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.rows import Row, bytes_, floats
from tests.rows_networks import pulled

ROWS: list[Row] = []


def conv_of(stride: Any, padding: Any, dilation: Any, groups: int) -> Callable[..., Any]:
    return lambda t, x, w, b=None: t.nn.functional.conv2d(x, w, b, stride, padding, dilation, groups)


for _name, _x, _w, _b, _how in (
        ("plain", (1, 2, 4, 4), (2, 2, 3, 3), True, ((1, 1), (0, 0), (1, 1), 1)),
        ("padded", (2, 1, 3, 4), (2, 1, 3, 3), True, ((1, 1), (1, 1), (1, 1), 1)),
        ("strided", (1, 2, 5, 4), (1, 2, 2, 3), False, ((2, 1), (1, 0), (1, 1), 1)),
        ("dilated", (1, 1, 5, 5), (1, 1, 2, 2), False, ((1, 1), (1, 1), (2, 3), 1)),
        ("groups", (1, 4, 3, 3), (4, 2, 2, 2), True, ((1, 1), (0, 0), (1, 1), 2)),
        ("depthwise", (2, 2, 3, 3), (2, 1, 2, 2), False, ((1, 1), (1, 1), (1, 1), 2)),
        ("pointwise", (2, 3, 2, 2), (2, 3, 1, 1), True, ((1, 1), (0, 0), (1, 1), 1)),
        ("pointwise strided", (1, 2, 3, 3), (2, 2, 1, 1), False, ((2, 2), (0, 0), (1, 1), 1)),
        ("only padding", (1, 1, 1, 1), (1, 1, 1, 1), False, ((1, 1), (2, 2), (1, 1), 1)),
        ("empty", (0, 2, 3, 3), (2, 2, 2, 2), True, ((1, 1), (0, 0), (1, 1), 1))):
    _stride, _padding, _dilation, _groups = _how
    _attrs = {"stride": _stride, "padding": _padding, "dilation": _dilation, "groups": _groups}
    _out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in
                 zip(_x[2:], _w[2:], _stride, _padding, _dilation, strict=True))
    _dy = floats(_x[0], _w[0], *_out)
    _run = conv_of(*_how)
    ROWS.append(Row("conv2d", _name, (floats(*_x), floats(*_w), floats(_w[0]) if _b else None), _attrs, torch=_run))
    ROWS.append(Row("conv2d_input_grad", _name, (_dy, floats(*_w)), {**_attrs, "shape": _x},
                    torch=lambda t, dy, w, shape=_x, run=_run: pulled(run, 0)(t, dy, t.zeros(shape, dtype=dy.dtype), w)))
    ROWS.append(Row("conv2d_weight_grad", _name, (_dy, floats(*_x)), {**_attrs, "shape": _w},
                    torch=lambda t, dy, x, shape=_w, run=_run: pulled(run, 1)(t, dy, x, t.zeros(shape, dtype=dy.dtype))))
    if _b:
        ROWS.append(Row("conv2d_weight_grad", f"{_name}, and the bias", (_dy, floats(*_x)),
                        {**_attrs, "shape": _w, "bias": True}, torch=lambda t, dy, x, shape=_w, run=_run: (
                            pulled(run, 1)(t, dy, x, t.zeros(shape, dtype=dy.dtype)), dy.sum((0, 2, 3)))))
ROWS.append(Row("conv2d", "layouts", (floats(4, 3, 2, 1, layout="transposed"), floats(2, 3, 1, 3, layout="sliced"), None),
                {"stride": (1, 1), "padding": (0, 1), "dilation": (1, 1), "groups": 1},
                torch=conv_of((1, 1), (0, 1), (1, 1), 1)))

# -- pooling -----------------------------------------------------------------------------------------------------------


def _windows(t: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, fill: float) -> Any:
    """[N, C, windows, elements of a window]"""
    padded = t.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]), value=fill)
    laid = t.nn.functional.unfold(padded, kernel, dilation, 0, stride)
    return laid.reshape(*x.shape[:2], kernel[0] * kernel[1], -1).transpose(2, 3)


def _max_pool(t: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    out = t.nn.functional.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    if not x.numel() or ceil_mode:
        return out, t.zeros(out.shape, dtype=t.uint8)
    where = _windows(t, x.detach(), kernel, stride, padding, dilation, -1e9).argmax(-1)
    return out, where.reshape(out.shape).to(t.uint8)


def _places(index: Any, shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """For each output the place of its position, as (n, c, y, x)."""
    for n, c, i, j in np.ndindex(*index.shape):
        p = int(index[n, c, i, j])
        yield (n, c, i, j), (n, c, i * stride[0] - padding[0] + p // kernel[1] * dilation[0],
                             j * stride[1] - padding[1] + p % kernel[1] * dilation[1])


def _scattered(dy: Any, index: Any, shape: Any, *how: Any) -> Any:
    out = np.zeros(shape, dy.dtype)
    for here, there in _places(index, shape, *how):
        out[there] += dy[here]
    return out


def _gathered(x: Any, index: Any, *how: Any) -> Any:
    out = np.zeros(index.shape, x.dtype)
    for here, there in _places(index, x.shape, *how):
        out[here] = x[there]
    return out


def _flat(index: Any, shape: Any, *how: Any) -> Any:
    out = np.zeros(index.shape, np.int64)
    for here, there in _places(index, shape, *how):
        out[here] = there[2] * shape[3] + there[3]
    return out


_POOLS = {
    "plain": ((1, 2, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1)), "overlapping": ((2, 1, 5, 4), (3, 2), (1, 1), (0, 0), (1, 1)),
    "padded": ((1, 2, 4, 5), (3, 3), (2, 2), (1, 1), (1, 1)), "dilated": ((1, 1, 5, 5), (2, 2), (1, 2), (0, 0), (2, 1)),
    "uneven": ((1, 1, 5, 6), (2, 3), (2, 3), (0, 0), (1, 1))}
for _name, (_shape, _kernel, _stride, _padding, _dilation) in _POOLS.items():
    _how = {"kernel": _kernel, "stride": _stride, "padding": _padding, "dilation": _dilation}
    ROWS.append(Row("max_pool2d", _name, (floats(*_shape),), {**_how, "ceil_mode": False},
                    torch=lambda t, x, h=_how: _max_pool(t, x, *h.values(), False)))
    _out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in
                 zip(_shape[2:], _kernel, _stride, _padding, _dilation, strict=True))
    _count = _shape[0] * _shape[1] * _out[0] * _out[1]
    # Positions from the middle of the window to its end are inside for any padding, except at the far edge.
    _middle = (_kernel[0] // 2) * _kernel[1] + _kernel[1] // 2
    _last = _middle if any(_padding) else _kernel[0] * _kernel[1] - 1
    _index = bytes_(*_shape[:2], *_out, given=tuple(_middle if k % 2 else _last for k in range(_count)))
    _rest = (_kernel, _stride, _padding, _dilation)
    ROWS.append(Row("max_pool2d_grad", _name, (floats(*_shape[:2], *_out), _index), {**_how, "shape": _shape},
                    numpy=lambda dy, index, shape=_shape, h=_rest: _scattered(dy, index, shape, *h)))
    ROWS.append(Row("max_pool2d_take", _name, (floats(*_shape), _index), _how,
                    numpy=lambda x, index, h=_rest: _gathered(x, index, *h)))
    ROWS.append(Row("max_pool2d_places", _name, (_index,), {**_how, "shape": _shape},
                    numpy=lambda index, shape=_shape, h=_rest: _flat(index, shape, *h)))
    if _dilation == (1, 1):
        for _count_pad, _divisor in ((True, None), (False, None), (True, 3)):
            _attrs = {"kernel": _kernel, "stride": _stride, "padding": _padding, "ceil_mode": False, "count_pad": _count_pad,
                      "divisor": _divisor}
            _case = f"{_name} {'pad' if _count_pad else 'inside'} {_divisor}"

            def _avg(t: Any, x: Any, a: Any = _attrs) -> Any:
                return t.nn.functional.avg_pool2d(x, a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_pad"],
                                                  a["divisor"])

            ROWS.append(Row("avg_pool2d", _case, (floats(*_shape),), _attrs, torch=_avg))
            ROWS.append(Row("avg_pool2d_grad", _case, (floats(*_shape[:2], *_out),), {**_attrs, "shape": _shape},
                            torch=lambda t, dy, shape=_shape, f=_avg: pulled(f, 0)(t, dy, t.zeros(shape, dtype=dy.dtype))))

for _size in ((1, 1), (2, 3), (3, 5), (6, 7)):
    def _adaptive(t: Any, x: Any, size: Any = _size) -> Any:
        return t.nn.functional.adaptive_avg_pool2d(x, size)

    ROWS.append(Row("adaptive_avg_pool2d", str(_size), (floats(1, 2, 5, 4),), {"size": _size}, torch=_adaptive))
    ROWS.append(Row("adaptive_avg_pool2d_grad", str(_size), (floats(1, 2, *_size),), {"shape": (1, 2, 5, 4)},
                    torch=lambda t, dy, f=_adaptive: pulled(f, 0)(t, dy, t.zeros(1, 2, 5, 4, dtype=dy.dtype))))

# -- batch norm --------------------------------------------------------------------------------------------------------


def _norm(t: Any, x: Any, w: Any = None, b: Any = None, mean: Any = None, var: Any = None) -> Any:
    copies = [None if s is None else s.detach().clone() for s in (mean, var)]
    return t.nn.functional.batch_norm(x, *copies, w, b, True, 0.3, 1e-5)


def _applied(t: Any, x: Any, w: Any, b: Any, mean: Any, rstd: Any) -> Any:
    mean, rstd = mean.detach(), rstd.detach()
    return t.nn.functional.batch_norm(x, mean, rstd ** -2 - 1e-5, w, b, False, 0.3, 1e-5)


_C = floats(3)
_CASES = {"images": ((4, 3, 2, 2), True, True), "rows": ((5, 3), True, True), "lines": ((2, 3, 4), True, False),
          "plain": ((3, 3, 2), False, False), "long": ((2, 3, 40), True, True)}
for _name, (_shape, _weight, _bias) in _CASES.items():
    _affine = (_C if _weight else None, _C if _bias else None)
    for _running in (True, False):
        _stats = (_C, floats(3, low=0.5)) if _running else (None, None)
        ROWS.append(Row("batch_norm", f"{_name} {'running' if _running else 'batch'}", (floats(*_shape), *_affine, *_stats),
                        {"momentum": 0.3, "eps": 1e-5}, torch=_norm, tolerance=3e-5))
    _each = floats(3, low=0.5, high=1.5)
    ROWS.append(Row("batch_norm_apply", _name, (floats(*_shape), *_affine, _C, _each), torch=_applied, tolerance=3e-5))


def _norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    axes = (0, *range(2, x.ndim))
    column = (-1, *[1] * (x.ndim - 2))
    hat = (x - mean.reshape(column)) * rstd.reshape(column)
    g = dy if weight is None else dy * weight.reshape(column)
    dx = rstd.reshape(column) * (g - g.mean(axes, keepdims=True) - hat * (g * hat).mean(axes, keepdims=True))
    return dx, (dy * hat).sum(axes), dy.sum(axes)


for _name, _shape, _weight in (("images", (4, 3, 2, 2), True), ("rows", (5, 3), False), ("long", (2, 3, 40), True)):
    ROWS.append(Row("batch_norm_grad", _name, (floats(*_shape), floats(*_shape), _C if _weight else None, _C,
                                               floats(3, low=0.5, high=1.5)), {"needs": (True, True, True)},
                    numpy=_norm_grad, tolerance=3e-5))
