"""Ops of networks: normalisers over a dimension, losses."""

from __future__ import annotations

import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.elementwise import exp, ne, where
from gradcore.ops.movement import cast, cast_to, reshape, take
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import mean as average
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float, same, with_workspace
from gradcore.ops.statistics import by_statistics
from gradcore.spec import PIECE, TensorSpec
from gradcore.tiling import BUSY

# -- softmax -----------------------------------------------------------------------------------------------------------


def row_bytes(x: TensorSpec, width: int) -> int:
    """Bytes of a temporary of rows of ``width`` elements: a cache-sized piece of them, but at least one row."""
    return min(x.numel, max(PIECE // max(width, 1), 1) * width) * x.dtype.itemsize


def row_width(x: TensorSpec, dims: int) -> int:
    """Elements of the last ``dims`` dimensions."""
    return math.prod(x.shape[x.ndim - dims:])


def _over_dim_spec(dy: TensorSpec, x: TensorSpec, *, dim: int) -> Any:
    same("softmax_grad", dy, x)
    return with_workspace(x.like(), x.numel // max(x.shape[dim] if x.ndim else 1, 1) * x.dtype.itemsize)


def _softmax_forward_spec(x: TensorSpec, *, dim: int) -> Any:
    need_float("softmax", x=x)
    return with_workspace(x.like(), x.numel // max(x.shape[dim] if x.ndim else 1, 1) * x.dtype.itemsize)


def _log_softmax_spec(x: TensorSpec, *, dim: int) -> Any:
    need_float("log_softmax", x=x)
    width = x.shape[dim] if x.ndim else 1
    # Over the last dimension the exponentials are summed row by row; elsewhere they need their whole array.
    room = row_bytes(x, width) if dim == x.ndim - 1 else x.nbytes
    return with_workspace(x.like(), room + 32 + x.numel // max(width, 1) * x.dtype.itemsize)


def _along(x: Any, dim: int) -> Any:
    """The sum along one dimension, which stays; a 0-d tensor has none and is its own sum."""
    return sum(x, dims=(dim,) if x.spec.ndim else (), keepdim=True)


softmax = op("softmax", _softmax_forward_spec, x=lambda g, out, dim: softmax_grad(g, out, dim=dim))
softmax_grad = op("softmax_grad", _over_dim_spec,
                  dy=lambda g, x, dim: softmax_grad(g, x, dim=dim),
                  x=lambda g, dy, x, dim: g * dy - g * _along(dy * x, dim) - dy * _along(g * x, dim),
                  doc="x * (dy - sum(dy * x)), where x is the result of softmax.")

log_softmax = op("log_softmax", _log_softmax_spec, contiguous=True, x=lambda g, out, dim: log_softmax_grad(g, out, dim=dim))


def _log_softmax_second(g: Any, dy: Any, x: Any, dim: int) -> Any:
    return exp(x) * g * _along(dy, dim) * -1


log_softmax_grad = op("log_softmax_grad", _over_dim_spec,
                      dy=lambda g, x, dim: g - _along(g * exp(x), dim),
                      x=_log_softmax_second,
                      doc="dy - exp(x) * sum(dy), where x is the result of log_softmax.")

# -- losses ------------------------------------------------------------------------------------------------------------


def _check_targets(logits: TensorSpec, target: TensorSpec, weight: TensorSpec | None) -> None:
    need_float("cross_entropy", input=logits)
    if target.dtype.kind not in "iu":
        raise SpecError(f"cross_entropy: expected class indices of an integer type as target, but got "
                        f"{target.dtype.name} of shape {list(target.shape)}")
    if target.shape == logits.shape and logits.ndim:
        raise SpecError(f"cross_entropy: Expected floating point type for target with class probabilities, got "
                        f"{target.dtype.name} of the input's shape {list(target.shape)}: class indices are [N]")
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        raise SpecError(f"cross_entropy: Expected input batch_size ({logits.shape[0] if logits.ndim else None}) to match "
                        f"target batch_size: got input {list(logits.shape)}, expected [N, C], and target "
                        f"{list(target.shape)}, expected [N]")
    if weight is not None and (weight.shape != logits.shape[1:] or weight.dtype != logits.dtype):
        raise SpecError(f"cross_entropy: weight tensor should be defined either for all {logits.shape[1]} classes or no "
                        f"classes but got {weight}")


def _cross_entropy_spec(logits: TensorSpec, target: TensorSpec, weight: TensorSpec | None = None, *,
                        reduction: str = "mean", ignore_index: int = -100) -> Any:
    _check_targets(logits, target, weight)
    if reduction not in ("mean", "sum", "none"):
        raise SpecError(f"{reduction!r} is not a valid value for reduction: expected 'mean', 'sum' or 'none'")
    shape = target.shape if reduction == "none" else ()
    return with_workspace(TensorSpec.of(shape, logits.dtype), _loss_room(logits))


def _loss_room(logits: TensorSpec) -> int:
    """Bytes for a piece of exponentials, and for the loss and the weight of each sample."""
    return row_bytes(logits, logits.shape[1]) + 32 + 2 * logits.shape[0] * logits.dtype.itemsize


def _cross_entropy_grad_spec(dy: TensorSpec, logits: TensorSpec, target: TensorSpec, weight: TensorSpec | None = None, *,
                             reduction: str, ignore_index: int) -> Any:
    _check_targets(logits, target, weight)
    return with_workspace(logits.like(), _loss_room(logits))


cross_entropy = op(
    "cross_entropy", _cross_entropy_spec, contiguous=True,
    logits=lambda g, logits, target, weight, reduction, ignore_index: cross_entropy_grad(
        g, logits, target, weight, reduction=reduction, ignore_index=ignore_index),
    doc="-log softmax(logits)[target], each sample times its class's weight; the mean is over the weights. The logits "
        "are kept and not their softmax: the matrix product before made them anyway, and one pass finds them again.")


def _row_factor(logits: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
    """What each row's softmax - onehot is multiplied with for a cotangent of 1, as a column, out of ops."""
    kept = ne(target, ignore_index)
    factor = cast(kept, dtype=logits.spec.dtype)
    if weight is not None:
        factor = factor * take(weight, target * kept, dim=0)
    if reduction == "mean":
        factor = where(kept, factor / sum(factor, dims=(0,), keepdim=False), 0.0)
    return reshape(factor, (-1, 1))


def _cross_entropy_second(g: Any, dy: Any, logits: Any, target: Any, weight: Any, reduction: str,
                          ignore_index: int) -> Any:
    p = softmax(logits, dim=1)
    factor = _row_factor(logits, target, weight, reduction, ignore_index) * _column(dy)
    return p * (g - sum(g * p, dims=(1,), keepdim=True)) * factor


def _cross_entropy_dy(g: Any, dy: Any, logits: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
    slope = cross_entropy_grad(dy * 0 + 1, logits, target, weight, reduction=reduction, ignore_index=ignore_index)
    return sum(g * slope, dims=(1,) if reduction == "none" else (0, 1), keepdim=False)


def _column(dy: Any) -> Any:
    return reshape(dy, (-1, 1)) if dy.spec.ndim else dy


cross_entropy_grad = op("cross_entropy_grad", _cross_entropy_grad_spec, contiguous=True, dy=_cross_entropy_dy,
                        logits=_cross_entropy_second,
                        doc="(softmax(logits) - onehot(target)) * dy, each row times its weight over the norm.")


def _mse_spec(x: TensorSpec, target: TensorSpec, *, reduction: str = "mean") -> Any:
    need_float("mse_loss", input=x, target=target)
    same("mse_loss", x, target)
    if x.dtype != target.dtype:
        raise SpecError(f"mse_loss: input is {x.dtype.name} and target {target.dtype.name}")
    return with_workspace(TensorSpec.of((), x.dtype), min(x.numel, PIECE) * x.dtype.itemsize)


def _mse_grad_spec(dy: TensorSpec, x: TensorSpec, target: TensorSpec, *, reduction: str) -> TensorSpec:
    return x.like()


def _mse_scale(spec: TensorSpec, reduction: str) -> float:
    return 2.0 / max(spec.numel, 1) if reduction == "mean" else 2.0


mse_loss = op("mse_loss", _mse_spec, contiguous=True,
              x=lambda g, x, target, reduction: mse_grad(g, x, target, reduction=reduction),
              target=lambda g, x, target, reduction: -mse_grad(g, x, target, reduction=reduction),
              doc="Mean or sum of (x - target)^2, by pieces: the squares are never stored.")
mse_grad = op("mse_grad", _mse_grad_spec, contiguous=True, may_alias=("x", "target"),
              dy=lambda g, x, target, reduction: sum(
                  g * (x - target), dims=tuple(range(x.spec.ndim)), keepdim=False) * _mse_scale(x.spec, reduction),
              x=lambda g, dy, x_spec, reduction: g * dy * _mse_scale(x_spec, reduction),
              target=lambda g, dy, x_spec, reduction: g * dy * -_mse_scale(x_spec, reduction))

# -- norms -------------------------------------------------------------------------------------------------------------


def _layer_norm_rows(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, dims: int) -> TensorSpec:
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
    return TensorSpec.of((*x.shape[:x.ndim - dims], *[1] * dims), x.widened().dtype)


def _layer_norm_spec(x: TensorSpec, weight: TensorSpec | None = None, bias: TensorSpec | None = None, *, dims: int,
                     eps: float) -> Inferred:
    rows = _layer_norm_rows(x, weight, bias, dims)
    return Inferred((x.like(),), (("mean", rows), ("rstd", rows)), row_bytes(x, row_width(x, dims)))


def _layer_norm_grad_spec(dy: TensorSpec, x: TensorSpec, weight: TensorSpec | None, mean: TensorSpec, rstd: TensorSpec, *,
                          dims: int, needs: tuple[bool, ...]) -> Inferred:
    affine, width = TensorSpec.of(x.shape[x.ndim - dims:], x.dtype), row_width(x, dims)
    # On a GPU each block adds up two numbers for each column. Many blocks pay only if x is large.
    sums = min(x.nbytes // 16, 2 * BUSY * width * x.widened().dtype.itemsize)
    return Inferred((x.like(), affine, affine), (), max(2 * row_bytes(x, width), sums) + 128)


def _layer_norm_apply_spec(x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None, mean: TensorSpec,
                           rstd: TensorSpec, *, dims: int) -> TensorSpec:
    rows = _layer_norm_rows(x, weight, bias, dims)
    for name, spec in (("mean", mean), ("rstd", rstd)):
        if spec.shape != rows.shape or spec.dtype != rows.dtype:
            raise SpecError(f"layer_norm_apply: expected {name} to be {rows}, but got {spec}")
    return x.like()


def _layer_norm_rule(g: Any, g_mean: Any, g_rstd: Any, x: Any, weight: Any, mean: Any, rstd: Any, dims: int,
                     needs: tuple[bool, ...]) -> Any:
    dx = dweight = dbias = None
    if g is not None:
        dx, dweight, dbias = layer_norm_grad(g, x, weight, mean, rstd, dims=dims, needs=needs)
    if needs[0] and (g_mean is not None or g_rstd is not None):
        aside = by_statistics(x, mean, rstd, g_mean, g_rstd, count=row_width(x.spec, dims))
        dx = cast_to(aside if dx is None else dx + aside, x.spec)
    return dx, dweight, dbias


def _layer_norm_slopes(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dims: int) -> Any:
    last = tuple(range(x.spec.ndim - dims, x.spec.ndim))
    hat = (x - mean) * rstd
    slope = dy if weight is None else dy * weight
    dx = (slope - average(slope, dims=last, keepdim=True) - hat * average(slope * hat, dims=last, keepdim=True)) * rstd
    rows = tuple(range(x.spec.ndim - dims))
    return dx, sum(dy * hat, dims=rows, keepdim=False), sum(dy, dims=rows, keepdim=False)


def _layer_norm_again(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> Any:
    hat = (x - mean) * rstd
    hat = hat if weight is None else hat * weight
    return hat if bias is None else hat + bias


layer_norm = op("layer_norm", _layer_norm_spec, joint("x", "weight", "bias")(_layer_norm_rule), aux=("mean", "rstd"),
                contiguous=True,
                again=lambda x, weight, bias, mean, rstd, dims: layer_norm_apply(x, weight, bias, mean, rstd, dims=dims),
                doc="Ba, Kiros and Hinton, arXiv:1607.06450.")
layer_norm_apply = op("layer_norm_apply", _layer_norm_apply_spec,
                      derived("x", "weight", "bias", "mean", "rstd")(_layer_norm_again), contiguous=True,
                      doc="(x - mean) * rstd * weight + bias, the mean and rstd being given.")
layer_norm_grad = op("layer_norm_grad", _layer_norm_grad_spec,
                     derived("dy", "x", "weight", "mean", "rstd")(_layer_norm_slopes), contiguous=True,
                     outputs=("dx", "dweight", "dbias"))
