"""Normalising each channel over the batch. Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167."""

from __future__ import annotations

import builtins
import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.elementwise import mul, sub
from gradcore.ops.movement import cast_to, reshape
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float
from gradcore.ops.statistics import by_statistics
from gradcore.spec import TensorSpec
from gradcore.tiling import samples_at_once


def _room(x: TensorSpec, temporaries: int, channels: int) -> int:
    """Bytes of pieces of ``x``, of vectors of one element a channel, of a row of ones and a number for each row."""
    count, row = samples_at_once(x.shape), math.prod(x.shape[2:])
    lengths = [*[count * x.shape[1] * row] * temporaries, *[x.shape[1]] * channels, row, count * x.shape[1]]
    return builtins.sum(lengths) * x.dtype.itemsize + 16 * len(lengths)


def _check(x: TensorSpec, **channels: TensorSpec | None) -> None:
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


def _spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None,
          running_mean: TensorSpec | None = None, running_var: TensorSpec | None = None, *, momentum: float,
          eps: float) -> Inferred:
    _check(x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if x.numel // max(x.shape[1], 1) <= 1:
        raise SpecError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
    statistic = TensorSpec.of((x.shape[1],), x.widened().dtype)
    return Inferred((x.like(),), (("mean", statistic), ("rstd", statistic)), _room(x, 1, 3))


def _apply_spec(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, mean: TensorSpec,
                rstd: TensorSpec) -> Inferred:
    _check(x, weight=weight, bias=bias, mean=mean, rstd=rstd)
    return Inferred((x.like(),), (), _room(x, 0, 2))


def _grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *,
               needs: tuple[bool, ...]) -> Inferred:
    channel = TensorSpec.of((x.shape[1],), x.dtype if weight is None else weight.dtype)
    return Inferred((x.like(), channel, channel), (), _room(x, 1, 4))


def _rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, bias_spec: Any,
          needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if g is not None:
        dx, dweight, dbias = batch_norm_grad(g, x, weight, mean, rstd, needs=needs)
        dbias = cast_to(dbias, bias_spec) if needs[2] else None
    if needs[0] and (g_mean is not None or g_rstd is not None):
        columns = [None if v is None else _column(v, x) for v in (mean, rstd, g_mean, g_rstd)]
        aside = by_statistics(x, *columns, count=x.spec.numel // x.spec.shape[1])
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx, dweight, dbias


def _column(v: Any, x: Any) -> Any:
    return reshape(v, (-1, *[1] * (x.spec.ndim - 2)))


def _slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    dims, count = (0, *range(2, x.spec.ndim)), x.spec.numel // x.spec.shape[1]
    hat = (x - _column(mean, x)) * _column(rstd, x)
    dweight, dbias = sum(dy * hat, dims=dims, keepdim=False), sum(dy, dims=dims, keepdim=False)
    centred = dy - _column(dbias * (1 / count), x) - hat * _column(dweight * (1 / count), x)
    return centred * _column(rstd if weight is None else rstd * weight, x), dweight, dbias


def _apply_rule(g: Any, x: Any, weight: Any, mean: Any, rstd: Any, weight_spec: Any, bias_spec: Any,
                needs: tuple[bool, ...]) -> Any:
    """Elementary, for statistics that do not depend on the input."""
    dims = (0, *range(2, g.spec.ndim))
    factor = rstd if weight is None else mul(rstd, weight)
    dweight = sum(mul(g, mul(sub(x, _column(mean, g)), _column(rstd, g))), dims=dims, keepdim=False) if needs[1] else None
    return (cast_to(mul(g, _column(factor, g)), g.spec) if needs[0] else None,
            None if dweight is None else cast_to(dweight, weight_spec),
            cast_to(sum(cast_to(g, bias_spec), dims=dims, keepdim=False), bias_spec) if needs[2] else None)


batch_norm = op("batch_norm", _spec, joint("x", "weight", "bias")(_rule), aux=("mean", "rstd"), contiguous=True,
                writes=("running_mean", "running_var"),
                again=lambda x, weight, bias, mean, rstd: batch_norm_apply(x, weight, bias, mean, rstd),
                doc="In training: mean and variance are the batch's, and the running ones move towards them.")
batch_norm_apply = op("batch_norm_apply", _apply_spec,
                      joint("x", "weight", "bias", x=("weight",), weight=("x",), mean=("weight",),
                            rstd=("x", "weight"))(_apply_rule), contiguous=True,
                      again=lambda x, weight, bias, mean, rstd: batch_norm_apply(x, weight, bias, mean, rstd),
                      doc="(x - mean) * rstd * weight + bias, each channel's own.")
batch_norm_grad = op("batch_norm_grad", _grad_spec, derived("dy", "x", "weight", "mean", "rstd")(_slopes), contiguous=True,
                     outputs=("dx", "dweight", "dbias"))
