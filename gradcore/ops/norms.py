"""Norms: rows, groups of channels, or channels over the batch, shifted and scaled to mean 0 and variance 1.

Layer norm: Ba, Kiros and Hinton, arXiv:1607.06450. RMS norm: Zhang and Sennrich, arXiv:1910.07467. Group norm: Wu and He,
arXiv:1803.08494. Batch norm: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.elementwise import mul, sub
from gradcore.ops.movement import cast_to, column, expand, reshape
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import mean as average
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float, row_bytes, row_width
from gradcore.spec import TensorSpec
from gradcore.tiling import BUSY, samples_at_once

#: What the gradient of a bias alone does not read.
_SCALED = dict.fromkeys(("x", "weight", "mean", "rstd"), ("x", "weight"))


def _by_statistics(x: Any, mean: Any, rstd: Any, g_mean: Any, g_rstd: Any, *, count: int) -> Any:
    """The cotangent of ``x`` by way of its mean and of rstd = 1 / sqrt(var + eps), each of ``count`` elements.

    Without a mean, ``rstd`` is that of the mean square.
    """
    count = max(count, 1)  # of nothing, the gradient is as empty
    by_rstd = None if g_rstd is None else (x if mean is None else x - mean) * (g_rstd * (rstd * rstd * rstd) * (-1 / count))
    if g_mean is None:
        return by_rstd
    by_mean = g_mean * (1 / count)
    return expand(by_mean, shape=x.spec.shape) if by_rstd is None else by_rstd + by_mean


def _through(slope: Any, hat: Any, dims: tuple[int, ...]) -> Any:
    """The cotangent of what was shifted and scaled to ``hat`` over ``dims``, over rstd, for hat's cotangent ``slope``."""
    return slope - average(slope, dims=dims, keepdim=True) - hat * average(slope * hat, dims=dims, keepdim=True)


def _to_input(x: TensorSpec, needs: tuple[bool, ...]) -> TensorSpec:
    """The gradient of the input; no elements if it is not wanted."""
    return x.like() if needs[0] else TensorSpec.of((0,), x.dtype)


def _to_bias(g: Any, bias: TensorSpec, first: int) -> Any:
    """The gradient of the bias alone, whose dimensions are those of ``g`` from ``first`` on: it reads nothing else."""
    others = (*range(first), *range(first + bias.ndim, g.spec.ndim))
    return cast_to(sum(cast_to(g, bias), dims=others, keepdim=False), bias)


# -- of rows -----------------------------------------------------------------------------------------------------------


def _each_row(x: TensorSpec, dims: int) -> TensorSpec:
    """A number for each row of the last ``dims`` dimensions."""
    return TensorSpec.of((*x.shape[:x.ndim - dims], *[1] * dims), x.widened().dtype)


def _row_grad_bytes(x: TensorSpec, dims: int, numbers: int) -> int:
    """Bytes of two temporaries of rows, or of the ``numbers`` that each block of a GPU adds up for each column: many blocks pay
    only if x is large."""
    width = row_width(x, dims)
    return max(2 * row_bytes(x, width), numbers * min(x.nbytes // 32, BUSY * width * x.widened().dtype.itemsize)) + 128


def _check_rows(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, dims: int) -> TensorSpec:
    """The spec of a mean for each row, if weight and bias fit the rows."""
    need_float("layer_norm", input=x, weight=weight, bias=bias)
    shape = x.shape[x.ndim - dims:]
    for name, spec in (("weight", weight), ("bias", bias)):
        if spec is not None and spec.shape != shape:
            raise SpecError(f"layer_norm: expected {name} to be of same shape as normalized_shape, but got {name} of "
                            f"shape {list(spec.shape)} and normalized_shape = {list(shape)}")
        if spec is not None and spec.dtype != x.dtype:
            raise SpecError(f"layer_norm: expected {name} to be {x.dtype.name} as the input is, or float32 for an input of 16 "
                            f"bits, but got {spec.dtype.name}")
    return _each_row(x, dims)


def _layer_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None, *, dims: int,
                     eps: float) -> Inferred:
    rows = _check_rows(x, weight, bias, dims)
    return Inferred((x.like(),), (("mean", rows), ("rstd", rows)), row_bytes(x, row_width(x, dims)))


def _layer_norm_grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *,
                          dims: int, needs: tuple[bool, ...]) -> Inferred:
    affine = TensorSpec.of(x.shape[x.ndim - dims:], x.dtype)
    return Inferred((_to_input(x, needs), affine, affine), (), _row_grad_bytes(x, dims, 2))


def _layer_norm_apply_spec(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, mean: TensorSpec,
                           rstd: TensorSpec, *, dims: int) -> TensorSpec:
    rows = _check_rows(x, weight, bias, dims)
    for name, spec in (("mean", mean), ("rstd", rstd)):
        if spec.shape != rows.shape or spec.dtype != rows.dtype:
            raise SpecError(f"layer_norm_apply: expected {name} to be {rows}, but got {spec}")
    return x.like()


def _layer_norm_rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, bias_spec: Any, dims: int,
                     needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if x is None and g is not None:
        dbias = _to_bias(g, bias_spec, g.spec.ndim - dims)
    elif g is not None:
        dx, dweight, dbias = layer_norm_grad(g, x, weight, mean, rstd, dims=dims, needs=needs)
    if needs[0] and (g_mean is not None or g_rstd is not None):
        aside = _by_statistics(x, mean, rstd, g_mean, g_rstd, count=row_width(x.spec, dims))
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx if needs[0] else None, dweight, dbias


def _layer_norm_slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dims: int) -> Any:
    last = tuple(range(x.spec.ndim - dims, x.spec.ndim))
    hat = (x - mean) * rstd
    slope = dy if weight is None else dy * weight
    others = tuple(range(x.spec.ndim - dims))
    return _through(slope, hat, last) * rstd, sum(dy * hat, dims=others, keepdim=False), sum(dy, dims=others, keepdim=False)


def _layer_norm_again(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> Any:
    hat = (x - mean) * rstd
    hat = hat if weight is None else hat * weight
    return hat if bias is None else hat + bias


layer_norm = op("layer_norm", _layer_norm_spec, joint("x", "weight", "bias", **_SCALED)(_layer_norm_rule), aux=("mean", "rstd"),
                contiguous=True,
                again=lambda x, weight, bias, mean, rstd, dims: layer_norm_apply(x, weight, bias, mean, rstd, dims=dims),
                doc="Ba, Kiros and Hinton, arXiv:1607.06450.")
layer_norm_apply = op("layer_norm_apply", _layer_norm_apply_spec,
                      derived("x", "weight", "bias", "mean", "rstd")(_layer_norm_again), contiguous=True,
                      doc="(x - mean) * rstd * weight + bias, the mean and rstd being given.")
layer_norm_grad = op("layer_norm_grad", _layer_norm_grad_spec,
                     derived("dy", "x", "weight", "mean", "rstd")(_layer_norm_slopes), contiguous=True,
                     outputs=("dx", "dweight", "dbias"))


def _rms_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, *, dims: int, eps: float) -> Inferred:
    need_float("rms_norm", input=x, weight=weight)
    shape = x.shape[x.ndim - dims:]
    if weight is not None and (weight.shape != shape or weight.dtype != x.dtype):
        raise SpecError(f"rms_norm: expected weight to be {x.dtype.name} of shape {list(shape)}, the normalized_shape, but got "
                        f"{weight}")
    return Inferred((x.like(),), (("rstd", _each_row(x, dims)),))


def _rms_norm_grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, rstd: TensorSpec, *, dims: int,
                        needs: tuple[bool, ...]) -> Inferred:
    return Inferred((_to_input(x, needs), TensorSpec.of(x.shape[x.ndim - dims:], x.dtype)), (), _row_grad_bytes(x, dims, 1))


def _rms_norm_rule(g: Any, g_rstd: Any, x: Any, weight: Any, rstd: Any, dims: int, needs: tuple[bool, ...]) -> Any:
    dx = dweight = None
    if g is not None:
        dx, dweight = rms_norm_grad(g, x, weight, rstd, dims=dims, needs=needs)
    if needs[0] and g_rstd is not None:
        aside = _by_statistics(x, None, rstd, None, g_rstd, count=row_width(x.spec, dims))
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx if needs[0] else None, dweight


def _rms_norm_slopes(dy: Any, x: Any, weight: Any, rstd: Any, dims: int) -> Any:
    last, others = tuple(range(x.spec.ndim - dims, x.spec.ndim)), tuple(range(x.spec.ndim - dims))
    hat = x * rstd
    slope = dy if weight is None else dy * weight
    return (slope - hat * average(slope * hat, dims=last, keepdim=True)) * rstd, sum(dy * hat, dims=others, keepdim=False)


rms_norm = op("rms_norm", _rms_norm_spec, joint("x", "weight")(_rms_norm_rule), aux=("rstd",), contiguous=True,
              again=lambda x, weight, attrs: rms_norm(x, weight, **attrs),
              doc="x / sqrt(mean(x^2) + eps) over the last dimensions, times weight.")
rms_norm_grad = op("rms_norm_grad", _rms_norm_grad_spec, derived("dy", "x", "weight", "rstd")(_rms_norm_slopes),
                   contiguous=True, outputs=("dx", "dweight"))

# -- of groups of channels ---------------------------------------------------------------------------------------------


def _width(x: TensorSpec, groups: int) -> int:
    """Elements of a group."""
    return x.shape[1] // groups * math.prod(x.shape[2:])


def _group_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None, *,
                     groups: int, eps: float) -> Inferred:
    need_float("group_norm", input=x, weight=weight, bias=bias)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise SpecError(f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
                        f"{list(x.shape)} and num_groups={groups}")
    for name, spec in (("weight", weight), ("bias", bias)):
        if spec is not None and (spec.shape != x.shape[1:2] or spec.dtype != x.dtype):
            raise SpecError(f"group_norm: expected {name} to be {x.dtype.name} of shape [{x.shape[1]}], one number for each "
                            f"channel of the input, but got {spec}")
    rows = TensorSpec.of((x.shape[0], groups), x.widened().dtype)
    return Inferred((x.like(),), (("mean", rows), ("rstd", rows)), row_bytes(x, _width(x, groups)))


def _group_norm_grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *,
                          groups: int, needs: tuple[bool, ...]) -> Inferred:
    affine = TensorSpec.of(x.shape[1:2], x.dtype)
    # Two sums for each channel of each sample, beside temporaries of rows on the CPU.
    sums = 2 * x.shape[0] * x.shape[1] * x.widened().dtype.itemsize
    return Inferred((_to_input(x, needs), affine, affine), (), sums + 2 * row_bytes(x, _width(x, groups)) + 192)


def _group_norm_rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, bias_spec: Any, groups: int,
                     needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if x is None and g is not None:
        dbias = _to_bias(g, bias_spec, 1)
    elif g is not None:
        dx, dweight, dbias = group_norm_grad(g, x, weight, mean, rstd, groups=groups, needs=needs)
    if needs[0] and (g_mean is not None or g_rstd is not None):
        given = (None if v is None else column(v) for v in (mean, rstd, g_mean, g_rstd))
        aside = reshape(_by_statistics(_grouped(x, groups), *given, count=_width(x.spec, groups)), x.spec.shape)
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx if needs[0] else None, dweight, dbias


def _grouped(x: Any, groups: int) -> Any:
    return reshape(x, (x.spec.shape[0], groups, _width(x.spec, groups)))


def _group_norm_slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, groups: int) -> Any:
    shape, inner = x.spec.shape, tuple(range(2, x.spec.ndim))
    r = column(rstd)
    hat = (_grouped(x, groups) - column(mean)) * r
    slope = _grouped(dy if weight is None else dy * reshape(weight, (-1, *[1] * len(inner))), groups)
    others = (0, *inner)
    return (reshape(_through(slope, hat, (2,)) * r, shape), sum(dy * reshape(hat, shape), dims=others, keepdim=False),
            sum(dy, dims=others, keepdim=False))


group_norm = op("group_norm", _group_norm_spec, joint("x", "weight", "bias", **_SCALED)(_group_norm_rule), aux=("mean", "rstd"),
                contiguous=True, again=lambda x, weight, bias, attrs: group_norm(x, weight, bias, **attrs),
                doc="Groups of channels of [N, C, ...], shifted and scaled to mean 0 and variance 1, times weight, plus bias.")
group_norm_grad = op("group_norm_grad", _group_norm_grad_spec, derived("dy", "x", "weight", "mean", "rstd")(_group_norm_slopes),
                     contiguous=True, outputs=("dx", "dweight", "dbias"))

# -- of channels over the batch ----------------------------------------------------------------------------------------


def _channel_bytes(x: TensorSpec, temporaries: int, channels: int) -> int:
    """Bytes of pieces of ``x``, of vectors of one element a channel, of a row of ones and a number for each row."""
    count, row = samples_at_once(x.shape), math.prod(x.shape[2:])
    lengths = [*[count * x.shape[1] * row] * temporaries, *[x.shape[1]] * channels, row, count * x.shape[1]]
    return builtins.sum(lengths) * x.dtype.itemsize + 16 * len(lengths)


def _check_channels(x: TensorSpec, **channels: TensorSpec | None) -> None:
    """The numbers of channels have the input's dtype, or all float32 for an input of 16 bits; statistics are float32 anyway."""
    need_float("batch_norm", input=x, **channels)
    if x.ndim < 2:
        raise SpecError(f"batch_norm: expected an input [N, C, ...], but got {list(x.shape)}")
    wide = x.widened().dtype
    own = next((spec.dtype for name, spec in channels.items() if spec is not None and name not in ("mean", "rstd")), x.dtype)
    for name, spec in channels.items():
        dtype = wide if name in ("mean", "rstd") or own == wide else x.dtype
        if spec is not None and (spec.shape != (x.shape[1],) or spec.dtype != dtype):
            raise SpecError(f"batch_norm: {name} should contain {x.shape[1]} elements of {dtype.name} and not "
                            f"{list(spec.shape)} of {spec.dtype.name}")


def _batch_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None,
                     running_mean: TensorSpec | None = None, running_var: TensorSpec | None = None, *, momentum: float,
                     eps: float) -> Inferred:
    _check_channels(x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if x.numel // max(x.shape[1], 1) <= 1:
        raise SpecError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
    statistic = TensorSpec.of((x.shape[1],), x.widened().dtype)
    return Inferred((x.like(),), (("mean", statistic), ("rstd", statistic)), _channel_bytes(x, 1, 3))


def _batch_norm_apply_spec(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, mean: TensorSpec,
                           rstd: TensorSpec) -> Inferred:
    _check_channels(x, weight=weight, bias=bias, mean=mean, rstd=rstd)
    return Inferred((x.like(),), (), _channel_bytes(x, 0, 2))


def _batch_norm_grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *,
                          needs: tuple[bool, ...]) -> Inferred:
    channel = TensorSpec.of((x.shape[1],), x.dtype if weight is None else weight.dtype)
    return Inferred((_to_input(x, needs), channel, channel), (), _channel_bytes(x, 1, 4))


def _batch_norm_rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, bias_spec: Any,
                     needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if x is None and g is not None:
        dbias = _to_bias(g, bias_spec, 1)
    elif g is not None:
        dx, dweight, dbias = batch_norm_grad(g, x, weight, mean, rstd, needs=needs)
        dbias = cast_to(dbias, bias_spec) if needs[2] else None
    if needs[0] and (g_mean is not None or g_rstd is not None):
        columns = [None if v is None else _by_channel(v, x) for v in (mean, rstd, g_mean, g_rstd)]
        aside = _by_statistics(x, *columns, count=x.spec.numel // x.spec.shape[1])
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx if needs[0] else None, dweight, dbias


def _by_channel(v: Any, x: Any) -> Any:
    return reshape(v, (-1, *[1] * (x.spec.ndim - 2)))


def _batch_norm_slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    dims, count = (0, *range(2, x.spec.ndim)), x.spec.numel // x.spec.shape[1]
    hat = (x - _by_channel(mean, x)) * _by_channel(rstd, x)
    dweight, dbias = sum(dy * hat, dims=dims, keepdim=False), sum(dy, dims=dims, keepdim=False)
    centered = dy - _by_channel(dbias * (1 / count), x) - hat * _by_channel(dweight * (1 / count), x)
    return centered * _by_channel(rstd if weight is None else rstd * weight, x), dweight, dbias


def _batch_norm_apply_rule(g: Any, x: Any, weight: Any, mean: Any, rstd: Any, weight_spec: Any, bias_spec: Any,
                           needs: tuple[bool, ...]) -> Any:
    """Elementary, for statistics that do not depend on the input."""
    dims = (0, *range(2, g.spec.ndim))
    factor = rstd if weight is None else mul(rstd, weight)
    dweight = None
    if needs[1]:
        hat = mul(sub(x, _by_channel(mean, g)), _by_channel(rstd, g))
        dweight = cast_to(sum(mul(g, hat), dims=dims, keepdim=False), weight_spec)
    return (cast_to(mul(g, _by_channel(factor, g)), g.spec) if needs[0] else None, dweight,
            cast_to(sum(cast_to(g, bias_spec), dims=dims, keepdim=False), bias_spec) if needs[2] else None)


batch_norm = op("batch_norm", _batch_norm_spec, joint("x", "weight", "bias", **_SCALED)(_batch_norm_rule), aux=("mean", "rstd"),
                contiguous=True, writes=("running_mean", "running_var"),
                again=lambda x, weight, bias, mean, rstd: batch_norm_apply(x, weight, bias, mean, rstd),
                doc="In training: mean and variance are the batch's, and the running ones move towards them.")
batch_norm_apply = op("batch_norm_apply", _batch_norm_apply_spec,
                      joint("x", "weight", "bias", x=("weight",), weight=("x",), mean=("weight",),
                            rstd=("x", "weight"))(_batch_norm_apply_rule), contiguous=True,
                      again=lambda x, weight, bias, mean, rstd: batch_norm_apply(x, weight, bias, mean, rstd),
                      doc="(x - mean) * rstd * weight + bias, each channel's own.")
batch_norm_grad = op("batch_norm_grad", _batch_norm_grad_spec, derived("dy", "x", "weight", "mean", "rstd")(_batch_norm_slopes),
                     contiguous=True, outputs=("dx", "dweight", "dbias"))
