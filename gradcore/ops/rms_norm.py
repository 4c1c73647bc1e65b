"""RMS norm: rows over the root of their mean square. Zhang and Sennrich, arXiv:1910.07467."""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.movement import cast_to
from gradcore.ops.nn import row_bytes, row_width
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import mean, sum
from gradcore.ops.shapes import need_float
from gradcore.ops.statistics import by_statistics
from gradcore.spec import TensorSpec
from gradcore.tiling import BUSY


def _spec(x: TensorSpec, weight: TensorSpec | None = None, *, dims: int, eps: float) -> Inferred:
    need_float("rms_norm", input=x, weight=weight)
    shape = x.shape[x.ndim - dims:]
    if weight is not None and (weight.shape != shape or weight.dtype != x.dtype):
        raise SpecError(f"rms_norm: expected weight to be {x.dtype.name} of shape {list(shape)}, the normalized_shape, but got "
                        f"{weight}")
    return Inferred((x.like(),), (("rstd", TensorSpec.of((*x.shape[:x.ndim - dims], *[1] * dims), x.widened().dtype)),))


def _grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, rstd: TensorSpec, *, dims: int,
               needs: tuple[bool, ...]) -> Inferred:
    width = row_width(x, dims)
    # On a GPU each block adds up a number for each column. Many blocks pay only if x is large.
    sums = min(x.nbytes // 32, BUSY * width * x.widened().dtype.itemsize)
    return Inferred((x.like(), TensorSpec.of(x.shape[x.ndim - dims:], x.dtype)), (), max(2 * row_bytes(x, width), sums) + 128)


def _rule(g: Any, g_rstd: Any, x: Any, weight: Any, rstd: Any, dims: int, needs: tuple[bool, ...]) -> Any:
    dx = dweight = None
    if g is not None:
        dx, dweight = rms_norm_grad(g, x, weight, rstd, dims=dims, needs=needs)
    if needs[0] and g_rstd is not None:
        aside = by_statistics(x, None, rstd, None, g_rstd, count=row_width(x.spec, dims))
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx, dweight


def _slopes(dy: Any, x: Any, weight: Any, rstd: Any, dims: int) -> Any:
    last, others = tuple(range(x.spec.ndim - dims, x.spec.ndim)), tuple(range(x.spec.ndim - dims))
    hat = x * rstd
    slope = dy if weight is None else dy * weight
    return (slope - hat * mean(slope * hat, dims=last, keepdim=True)) * rstd, sum(dy * hat, dims=others, keepdim=False)


rms_norm = op("rms_norm", _spec, joint("x", "weight")(_rule), aux=("rstd",), contiguous=True,
              again=lambda x, weight, dims, eps: rms_norm(x, weight, dims=dims, eps=eps),
              doc="x / sqrt(mean(x^2) + eps) over the last dimensions, times weight.")
rms_norm_grad = op("rms_norm_grad", _grad_spec, derived("dy", "x", "weight", "rstd")(_slopes), contiguous=True,
                   outputs=("dx", "dweight"))

__all__ = ["rms_norm", "rms_norm_grad"]
