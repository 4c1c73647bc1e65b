"""RMS norm: rows over the root of their mean square. Zhang and Sennrich, arXiv:1910.07467."""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.elementwise import rsqrt, square
from gradcore.ops.movement import cast_to, sum_to
from gradcore.ops.op import Inferred, joint, op
from gradcore.ops.reduce import mean
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec


def _rms_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, *, dims: int, eps: float) -> Inferred:
    need_float("rms_norm", input=x, weight=weight)
    shape = x.shape[x.ndim - dims:]
    if weight is not None and (weight.shape != shape or weight.dtype != x.dtype):
        raise SpecError(f"rms_norm: expected weight to be {x.dtype.name} of shape {list(shape)}, the normalized_shape, but got "
                        f"{weight}")
    # One number a row.
    rows = 1
    for n in x.shape[:x.ndim - dims]:
        rows *= n
    return Inferred((x.like(),), workspace=rows * x.dtype.itemsize)


def _rule(g: Any, x: Any, weight: Any, dims: int, eps: float, needs: tuple[bool, ...]) -> Any:
    # In 16 bits, the squares would overflow, and each step would round.
    own = x.spec
    g, x, weight = (v if v is None else cast_to(v, v.spec.widened()) for v in (g, x, weight))
    last = tuple(range(own.ndim - dims, own.ndim))
    rstd = rsqrt(mean(square(x), dims=last, keepdim=True) + eps)
    hat = x * rstd
    to_weight = cast_to(sum_to(g * hat, to=weight.spec), own) if needs[1] else None
    if not needs[0]:
        return None, to_weight
    slope = g if weight is None else g * weight
    return cast_to((slope - hat * mean(slope * hat, dims=last, keepdim=True)) * rstd, own), to_weight


rms_norm = op("rms_norm", _rms_norm_spec, joint("x", "weight")(_rule), contiguous=True,
              again=lambda x, weight, dims, eps: rms_norm(x, weight, dims=dims, eps=eps),
              doc="x / sqrt(mean(x^2) + eps) over the last dimensions, times weight.")

__all__ = ["rms_norm"]
