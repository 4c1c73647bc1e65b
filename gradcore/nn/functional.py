"""``gradcore.nn.functional``: layers and losses as functions, with PyTorch's signatures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._distributions import gumbel_softmax
from gradcore._random import Generator, default_generator
from gradcore.arguments import warn
from gradcore.autograd.function import Function
from gradcore.dtypes import join
from gradcore.engine.autocast import raising
from gradcore.engine.modes import is_grad_enabled
from gradcore.engine.operands import number
from gradcore.engine.sites import need_values
from gradcore.errors import SpecError
from gradcore.functional import activation as _activations
from gradcore.functional import (
    convolution,
    dropouts,
    embeddings,
    grids,
    linear_loss,
    norms,
    padding,
    pooling,
    sampling,
    similarity,
    unpooling,
)
from gradcore.functional import losses as _losses
from gradcore.functional.activation import *  # noqa: F403 - what its __all__ names
from gradcore.functional.activation import implied_dim
from gradcore.functional.attention import scaled_dot_product_attention
from gradcore.functional.convolution import *  # noqa: F403
from gradcore.functional.ctc import ctc_loss
from gradcore.functional.distances import pdist
from gradcore.functional.dropouts import *  # noqa: F403
from gradcore.functional.dropouts import probability
from gradcore.functional.embeddings import *  # noqa: F403
from gradcore.functional.grids import *  # noqa: F403
from gradcore.functional.linear_loss import LinearCrossEntropyOptions
from gradcore.functional.losses import *  # noqa: F403
from gradcore.functional.losses import check_reduction, need_classes, reduced, warn_of_sizes, weighted
from gradcore.functional.multihead import (  # noqa: F401 - names that programs import from here
    _canonical_mask,
    _in_projection,
    _in_projection_packed,
    _none_or_dtype,
    multi_head_attention_forward,
)
from gradcore.functional.norms import *  # noqa: F403
from gradcore.functional.overwritten import overwriting, overwritten
from gradcore.functional.padding import *  # noqa: F403
from gradcore.functional.picking import scatter_
from gradcore.functional.pooling import *  # noqa: F403
from gradcore.functional.products import bilinear
from gradcore.functional.sampling import *  # noqa: F403
from gradcore.functional.shape import along
from gradcore.functional.similarity import *  # noqa: F403
from gradcore.functional.unpooling import *  # noqa: F403
from gradcore.ops import activation, elementwise, linalg, losses, movement, normalizers, random, reduce

__all__ = ["bilinear", "celu_", "cross_entropy", "ctc_loss", "dropout", "elu_", "gelu", "gumbel_softmax", "hardtanh_",
           "leaky_relu_", "linear", "linear_cross_entropy", "log_softmax", "mse_loss", "multi_head_attention_forward",
           "nll_loss", "one_hot", "pdist", "relu", "relu_", "rrelu_", "scaled_dot_product_attention", "selu_", "sigmoid",
           "softmax", "tanh", "threshold_"]
__all__ += _activations.__all__ + convolution.__all__ + dropouts.__all__ + embeddings.__all__ + grids.__all__ + _losses.__all__
__all__ += norms.__all__ + padding.__all__ + pooling.__all__ + sampling.__all__ + similarity.__all__ + unpooling.__all__

Tensor = Any


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: input [..., in], weight [out, in], bias [out], result [..., out].

    Without a bias, the weight may be [in], and the result is [...].
    """
    if weight.spec.ndim == 1 and bias is None:
        return functional.matmul(input, weight)
    return linalg.linear(input, weight, bias)


# -- activations -------------------------------------------------------------------------------------------------------

sigmoid, tanh = functional.sigmoid, functional.tanh


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0). With ``inplace``, what else holds the input sees the result in it.

    That saves no memory: backward keeps only the result, and the input returns to the pool anyway.
    """
    return overwritten(activation.relu, input) if inplace else activation.relu(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), with the normal distribution function, exact or approximated by ``"tanh"``. arXiv:1606.08415.

    Raises RuntimeError for another approximation.
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate argument must be either none or tanh, but got {approximate!r}.")
    return activation.gelu(input, tanh=approximate == "tanh")


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along ``dim``. ``_stacklevel`` has no effect."""
    d = implied_dim("softmax", input, dim)
    return normalizers.softmax(input, dim=d) if dtype is None else functional.softmax(input, d, dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The logarithm of the softmax over ``dim``, in ``dtype`` if given; without ``dim``, as PyTorch chooses it."""
    d = implied_dim("log_softmax", input, dim)
    return normalizers.log_softmax(input, dim=d) if dtype is None else functional.log_softmax(input, d, dtype)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False,
            generator: Generator | None = None) -> Tensor:
    """In training, each element is 0 with probability ``p``, else x / (1 - p).

    Backward keeps 32 bytes of generator state, to draw the mask again, never the mask. Raises ValueError for a ``p`` outside
    [0, 1].
    """
    p = probability(p)
    if not training or p == 0:
        return input
    if inplace:
        return overwritten(dropout, input, p, True, False, generator)
    generator = default_generator(input.storage.device) if generator is None else generator
    return random.dropout(input, generator.snapshot(input.spec.numel), p)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors [*tensor.shape, num_classes], int64. For a ``num_classes`` of -1, the largest class is read on the host.

    For a class out of range, the CPU raises IndexError; a GPU, for which the host does not wait, gives zeros.
    """
    if tensor.spec.dtype.kind not in "iu":
        raise SpecError("one_hot is only applicable to index tensor of type LongTensor, but got "
                        f"{tensor.spec.dtype.name}")
    if not tensor.spec.numel and num_classes <= 0:
        raise RuntimeError(f"Can not infer total number of classes from empty tensor: got num_classes={num_classes}")
    if num_classes == -1:
        need_values("one_hot", tensor.storage.device, instead="give num_classes")
        num_classes = int(functional.amax(tensor).item()) + 1
    zeros = functional.zeros(*tensor.spec.shape, num_classes, dtype=np.dtype(np.int64), device=tensor.storage.device)
    return scatter_(zeros, -1, functional.unsqueeze(tensor, -1), 1)


# -- in place ----------------------------------------------------------------------------------------------------------


relu_, elu_, selu_, celu_ = (overwriting(f) for f in (relu, _activations.elu, _activations.selu, _activations.celu))
leaky_relu_, hardtanh_, threshold_, rrelu_ = (overwriting(f) for f in (
    _activations.leaky_relu, _activations.hardtanh, _activations.threshold, dropouts.rrelu))


# -- losses ------------------------------------------------------------------------------------------------------------


def _rows(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [N, C, d...] and classes [N, d...] as [M, C] and [M]; a single sample [C] as one row."""
    shape = input.spec.shape
    if input.spec.ndim == 1:
        wanted: tuple[int, ...] = ()
        rows = movement.reshape(input, (1, -1))
    else:
        wanted = (*shape[:1], *shape[2:])
        rows = input
        if input.spec.ndim > 2:
            order = (0, *range(2, input.spec.ndim), 1)
            rows = movement.reshape(movement.permute(input, dims=order), (math.prod(wanted), shape[1]))
    if not input.spec.ndim or target.spec.shape != wanted:
        raise SpecError(f"Expected target size {list(wanted)}, got {list(target.spec.shape)} for an input of size "
                        f"{list(shape)}: expected an input [N, C, ...] and a target [N, ...]")
    return rows, movement.reshape(target, (-1,)) if len(wanted) != 1 else target


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """-log softmax(input)[target] over the classes: input [N, C, d...] or [C], target [N, d...] or 0-d of integer classes.

    A floating target of the input's shape holds class probabilities. ``weight`` is [C]. With ``reduction="mean"``, the sum is
    divided by that of the weights of targets that are not ``ignore_index``. Raises :class:`SpecError` for a smoothing outside
    [0, 1], for shapes that do not fit, and for an ``ignore_index`` of 0 or more with probabilities.
    """
    check_reduction(reduction)
    label_smoothing = number("cross_entropy", "label_smoothing", label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise SpecError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    _check_weight("cross_entropy", input.spec.shape, weight)
    if target.spec.floating and target.spec.shape == input.spec.shape:
        if ignore_index >= 0:
            raise SpecError("ignore_index is not supported for floating point target")
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    _check_constant("cross_entropy", weight)
    if input.spec.ndim == 2 and not label_smoothing:
        return losses.cross_entropy(input, target, weight, reduction=reduction, ignore_index=ignore_index)
    rows, classes = _rows(input, target)
    if label_smoothing:
        loss = _smoothed(rows, classes, weight, ignore_index, reduction, label_smoothing)
    else:
        loss = losses.cross_entropy(rows, classes, weight, reduction=reduction, ignore_index=ignore_index)
    return movement.reshape(loss, target.spec.shape) if reduction == "none" else loss


def linear_cross_entropy(input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
                         weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
                         label_smoothing: float = 0.0, options: LinearCrossEntropyOptions | None = None) -> Tensor:
    """:func:`cross_entropy` of ``linear(input, linear_weight, linear_bias)``: input [N, D] or [D], weight [C, D], target [N].

    The weight may be [C, d..., D], with a bias [C, d...] and a target [N, d...]. With ``options``, the scores of some classes
    exist at a time, and backward computes them once more: for class indices, a weight [C, D] and no smoothing. Otherwise it
    warns, and all exist. Raises :class:`SpecError` for shapes that do not fit, and for ``ignore_index`` with probabilities.
    """
    check_reduction(reduction)
    shape = linear_loss.shape_of_scores(input, linear_weight, linear_bias)
    if ignore_index is not None and target.spec.shape == shape:
        raise SpecError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    inner = linear_weight.spec.ndim > 2
    if options is not None:
        if not inner and not label_smoothing and target.spec.dtype.kind in "iu" and target.spec.shape == shape[:-1]:
            _check_weight("linear_cross_entropy", shape, weight)
            _check_constant("linear_cross_entropy", weight)
            return linear_loss.by_parts(input, linear_weight, target, linear_bias, weight, ignored, reduction, options)
        warn("linear_cross_entropy computes all scores at once: options are for class indices, a linear_weight [C, D] and no "
             f"label_smoothing, but got a target {target.spec}, a linear_weight {linear_weight.spec} and a label_smoothing of "
             f"{label_smoothing}")
    if inner:
        linear_weight = movement.reshape(linear_weight, (math.prod(linear_weight.spec.shape[:-1]), -1))
        linear_bias = None if linear_bias is None else movement.reshape(linear_bias, (-1,))
    made = movement.reshape(linear(input, linear_weight, linear_bias), shape)
    return cross_entropy(made, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing)


def _smoothed(rows: Tensor, classes: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
              smoothing: float) -> Tensor:
    """The mean over the classes exceeds the loss of one by how much its score exceeds the mean of all: nothing of the size of
    the scores is made or kept for it."""
    around = rows
    if rows.spec.narrow:
        # A mean of large scores would be rounded to a multiple of 1/2, or of more.
        base, _, _ = _picked(rows.detach(), classes, None, ignore_index)
        base = elementwise.where(elementwise.eq(base, -math.inf), 0.0, base)
        around = rows - functional.unsqueeze(base, 1)
    # First, so that backward adds its gradient last, in place: that is a view of one number a row.
    if weight is None:
        mean = functional.mean(around, 1)
    else:
        parts = movement.cast_to(weight, rows.spec) / rows.spec.shape[1]
        mean = functional.squeeze(linalg.matmul(around, functional.unsqueeze(parts, 1)), 1)
    del around
    own, norm, kept = _picked(rows, classes, weight, ignore_index)
    loss = losses.cross_entropy(rows, classes, None, reduction="none", ignore_index=ignore_index)
    if rows.spec.narrow:
        own = own - base
    if weight is not None:
        whole = functional.sum(parts)
        loss, own = loss * (norm * (1.0 - smoothing) + whole * smoothing), own * whole
    loss = loss + elementwise.where(kept, _Excess.apply(own, mean), 0.0) * smoothing
    return loss if reduction == "none" else functional.sum(loss) / (functional.sum(norm) if reduction == "mean" else 1)


class _Excess(Function):
    """``own - mean``, and infinity where the score itself is -inf, which makes the mean -inf, too. The gradient is the same."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, mean: Tensor) -> Tensor:
        return elementwise.where(elementwise.eq(own, -math.inf), 0.0, own) - mean

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, -g


def _check_constant(name: str, weight: Tensor | None) -> None:
    if weight is not None and weight.requires_grad and is_grad_enabled():
        raise RuntimeError(f"{name} is not differentiable with respect to the argument weight: expected one without "
                           "requires_grad, as weight.detach() is")


def _check_weight(name: str, shape: tuple[int, ...], weight: Tensor | None) -> None:
    classes = shape[min(len(shape) - 1, 1)] if shape else 1
    if weight is not None and weight.spec.shape != (classes,):
        raise SpecError(f"{name}: weight tensor should be defined either for all {classes} classes or no classes but got "
                        f"weight tensor of shape: {list(weight.spec.shape)}")


def _picked(log_p: Tensor, classes: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row: the entry of its class, the weight of that (both 0 if ignored), and whether it is not ignored."""
    kept = elementwise.ne(classes, ignore_index)
    safe = classes * kept
    norm = movement.cast(kept, dtype=log_p.spec.dtype)
    norm = norm if weight is None else movement.take(weight, safe, dim=0) * norm
    found = movement.reshape(movement.take_along(log_p, movement.reshape(safe, (-1, 1)), dim=1, wrap=False), (-1,))
    # A choice and not a product with 0, since ignored values may be infinite, and so their cotangents if all are ignored.
    return elementwise.where(kept, found, 0.0), norm, kept


def _soft_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str,
                        smoothing: float) -> Tensor:
    dim = 1 if input.spec.ndim > 1 else 0
    count = input.spec.shape[dim]
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / count
    if weight is not None:
        target = target * along(weight, dim, input)
    loss = -reduce.sum(normalizers.log_softmax(input, dim=dim) * target, dims=(dim,), keepdim=False)
    if reduction != "mean":
        return reduced(loss, reduction)
    return functional.sum(loss) / loss.spec.numel


@raising
def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:
    """-input[target] for log-probabilities [N, C, d...] and classes [N, d...]; see :func:`cross_entropy`.

    For a class out of range, the CPU raises IndexError; on a GPU the loss is NaN.
    """
    check_reduction(reduction)
    _check_weight("nll_loss", input.spec.shape, weight)
    need_classes("nll_loss", target)
    rows, classes = _rows(input, target)
    loss, norm, _ = _picked(rows, classes, weight, ignore_index)
    loss = loss if weight is None else loss * norm
    if reduction == "none":
        return movement.reshape(-loss, target.spec.shape)
    return -functional.sum(loss) / (functional.sum(norm) if reduction == "mean" else 1)


@raising
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """(input - target)^2: mean, sum or elementwise, in the dtype that both promote to.

    With ``weight``, of the input's shape, a weighted sum or mean.
    """
    check_reduction(reduction)
    same, dtype = warn_of_sizes(input, target), join(input.spec.dtype, target.spec.dtype)
    if weight is None and same and reduction != "none":
        return losses.mse_loss(input.to(dtype), target.to(dtype), reduction=reduction)
    loss = elementwise.square(elementwise.sub(input.to(dtype), target.to(dtype)))
    return reduced(loss, reduction) if weight is None else weighted(loss, input, weight, reduction)
