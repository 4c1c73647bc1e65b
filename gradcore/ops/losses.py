"""Losses that are ops of their own: made of smaller ones, they would keep more than their operands for backward."""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.activation import sigmoid
from gradcore.ops.creation import new_full
from gradcore.ops.elementwise import clamp, log, log1p, ne, where
from gradcore.ops.movement import cast, reshape, take
from gradcore.ops.normalizers import softmax
from gradcore.ops.op import op, spending
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import Operand, need_float, pieces, row_bytes, same, with_workspace
from gradcore.spec import PIECE, TensorSpec

# -- element by element ------------------------------------------------------------------------------------------------

#: What a logarithm is at least, as in PyTorch: the loss of a certain error is finite.
LEAST_LOG = -100.0


def _huber_spec(x: TensorSpec, delta: type) -> Any:
    need_float("huber", input=x)
    return with_workspace(x.like(), pieces(x, 1))


def _pair(name: str, x: TensorSpec, target: Operand) -> None:
    need_float(name, input=x, target=target)
    if isinstance(target, TensorSpec) and (target.shape != x.shape or target.dtype != x.dtype):
        raise SpecError(f"{name}: input and target must have the same shape and dtype, but got {x} and {target}")


def _bce_spec(x: TensorSpec, target: TensorSpec) -> Any:
    _pair("binary_cross_entropy", x, target)
    return with_workspace(x.like(), pieces(x, 2))


def _bce_logits_spec(x: TensorSpec, target: Operand) -> Any:
    _pair("binary_cross_entropy_with_logits", x, target)
    return with_workspace(x.like(), pieces(x, 1))


huber = op("huber", _huber_spec, contiguous=True, may_alias=("x",), x=lambda g, x, delta: g * clamp(x, -delta, delta),
           doc="x^2 / 2 where |x| < delta, else delta (|x| - delta / 2). Huber, Annals of Mathematical Statistics 35 (1964).")
bce = op("bce", _bce_spec, contiguous=True, may_alias=("x",),
         x=lambda g, x, target: g * (x - target) / clamp(x * (1 - x), 1e-12, None),
         target=lambda g, x: g * (clamp(log1p(-x), LEAST_LOG, None) - clamp(log(x), LEAST_LOG, None)),
         doc="-(target log x + (1 - target) log(1 - x)), the logarithms being -100 at least.")
bce_logits = op("bce_logits", _bce_logits_spec, contiguous=True,
                x=lambda g, x, target: g * (sigmoid(x) - target),
                target=lambda g, x: -g * x,
                doc="log(1 + exp(x)) - target x, without overflow; for a target of 1 that is log(1 + exp(-x)).")

# -- of all elements --------------------------------------------------------------------------------------------------


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
              x=spending(lambda g, x, target, reduction: mse_grad(g, x, target, reduction=reduction)),
              target=lambda g, x, target, reduction: -mse_grad(g, x, target, reduction=reduction),
              doc="Mean or sum of (x - target)^2, by pieces: the squares are never stored.")
mse_grad = op("mse_grad", _mse_grad_spec, contiguous=True, may_alias=("x", "target"),
              dy=lambda g, x, target, reduction: sum(
                  g * (x - target), dims=tuple(range(x.spec.ndim)), keepdim=False) * _mse_scale(x.spec, reduction),
              x=lambda g, dy, x_spec, reduction: g * dy * _mse_scale(x_spec, reduction),
              target=lambda g, dy, x_spec, reduction: g * dy * -_mse_scale(x_spec, reduction))

# -- of samples and their classes --------------------------------------------------------------------------------------


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
    return with_workspace(TensorSpec.of(shape, logits.dtype), _loss_bytes(logits))


def _loss_bytes(logits: TensorSpec) -> int:
    """Bytes for a piece of exponentials, and for the loss and the weight of each sample."""
    return row_bytes(logits, logits.shape[1]) + 32 + 2 * logits.shape[0] * logits.dtype.itemsize


def _cross_entropy_grad_spec(dy: TensorSpec, logits: TensorSpec, target: TensorSpec, weight: TensorSpec | None = None, *,
                             reduction: str, ignore_index: int) -> Any:
    _check_targets(logits, target, weight)
    return with_workspace(logits.like(), _loss_bytes(logits))


cross_entropy = op(
    "cross_entropy", _cross_entropy_spec, contiguous=True,
    logits=spending(lambda g, logits, target, weight, attrs: cross_entropy_grad(g, logits, target, weight, **attrs)),
    doc="-log softmax(logits)[target], each sample times its class's weight; the mean is over the weights. The logits "
        "are kept and not their softmax: the matrix product before made them anyway, and one pass finds them again.")


def _row_factor(dy: Any, logits: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
    """What each row's softmax - onehot is multiplied with, as a column, out of ops."""
    kept = ne(target, ignore_index)
    factor = cast(kept, dtype=logits.spec.dtype)
    if weight is not None:
        factor = factor * take(weight, target * kept, dim=0)
    if reduction == "mean":
        factor = factor / sum(factor, dims=(0,), keepdim=False)
    # Not a product with 0: the mean of no row has a cotangent of NaN.
    return reshape(where(kept, factor * dy, 0.0), (-1, 1))


def _cross_entropy_second(g: Any, dy: Any, logits: Any, target: Any, weight: Any, reduction: str,
                          ignore_index: int) -> Any:
    p = softmax(logits, dim=1)
    factor = _row_factor(dy, logits, target, weight, reduction, ignore_index)
    return p * (g - sum(g * p, dims=(1,), keepdim=True)) * factor


def _cross_entropy_dy(g: Any, dy: Any, logits: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
    ones = new_full(dy, dy.spec.shape, 1.0)
    slope = cross_entropy_grad(ones, logits, target, weight, reduction=reduction, ignore_index=ignore_index)
    return sum(g * slope, dims=(1,) if reduction == "none" else (0, 1), keepdim=False)


cross_entropy_grad = op("cross_entropy_grad", _cross_entropy_grad_spec, contiguous=True, may_alias=("logits",),
                        dy=_cross_entropy_dy, logits=_cross_entropy_second,
                        doc="(softmax(logits) - onehot(target)) * dy, each row times its weight over the norm.")
