"""Group norm: each sample's groups of neighbouring channels, normalised. Wu and He, arXiv:1803.08494."""

from __future__ import annotations

import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.movement import cast_to, column, reshape
from gradcore.ops.nn import row_bytes
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import mean as average
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float
from gradcore.ops.statistics import by_statistics
from gradcore.spec import TensorSpec


def _width(x: TensorSpec, groups: int) -> int:
    """Elements of a group."""
    return x.shape[1] // groups * math.prod(x.shape[2:])


def _spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None, *, groups: int,
          eps: float) -> Inferred:
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


def _grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *, groups: int,
               needs: tuple[bool, ...]) -> Inferred:
    affine = TensorSpec.of(x.shape[1:2], x.dtype)
    # Two sums for each channel of each sample, beside temporaries of rows on the CPU.
    sums = 2 * x.shape[0] * x.shape[1] * x.widened().dtype.itemsize
    return Inferred((x.like(), affine, affine), (), sums + 2 * row_bytes(x, _width(x, groups)) + 192)


def _rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, groups: int,
          needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if g is not None:
        dx, dweight, dbias = group_norm_grad(g, x, weight, mean, rstd, groups=groups, needs=needs)
    if needs[0] and (g_mean is not None or g_rstd is not None):
        given = (None if v is None else column(v) for v in (mean, rstd, g_mean, g_rstd))
        aside = reshape(by_statistics(_rows(x, groups), *given, count=_width(x.spec, groups)), x.spec.shape)
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx, dweight, dbias


def _rows(x: Any, groups: int) -> Any:
    return reshape(x, (x.spec.shape[0], groups, _width(x.spec, groups)))


def _slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, groups: int) -> Any:
    shape, inner = x.spec.shape, tuple(range(2, x.spec.ndim))
    r = column(rstd)
    hat = (_rows(x, groups) - column(mean)) * r
    slope = _rows(dy if weight is None else dy * reshape(weight, (-1, *[1] * len(inner))), groups)
    dx = (slope - average(slope, dims=(2,), keepdim=True) - hat * average(slope * hat, dims=(2,), keepdim=True)) * r
    others = (0, *inner)
    return (reshape(dx, shape), sum(dy * reshape(hat, shape), dims=others, keepdim=False),
            sum(dy, dims=others, keepdim=False))


group_norm = op("group_norm", _spec, joint("x", "weight", "bias")(_rule), aux=("mean", "rstd"), contiguous=True,
                doc="Groups of channels of [N, C, ...], shifted and scaled to mean 0 and variance 1, times weight, plus bias.")
group_norm_grad = op("group_norm_grad", _grad_spec, derived("dy", "x", "weight", "mean", "rstd")(_slopes), contiguous=True,
                     outputs=("dx", "dweight", "dbias"))

__all__ = ["group_norm", "group_norm_grad"]
