"""Elementwise losses and margin losses, with PyTorch's signatures."""

from __future__ import annotations

import math
from typing import Any

from gradcore.arguments import warn
from gradcore.blame import type_of
from gradcore.dtypes import join
from gradcore.engine.autocast import raising
from gradcore.engine.modes import no_grad
from gradcore.engine.operands import number, real
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import any, arange, mean, sum, unsqueeze, zeros, zeros_like
from gradcore.functional.folding import cumsum
from gradcore.functional.picking import scatter_add
from gradcore.functional.types import promoted
from gradcore.ops import activation, elementwise, losses, movement, pointwise
from gradcore.spec import broadcast_shapes

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "hinge_embedding_loss",
           "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "multi_margin_loss", "multilabel_margin_loss",
           "multilabel_soft_margin_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss"]

Tensor = Any

#: PyTorch's numbers of the reductions are the indices.
REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless it is the name of a reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction: expected one of {', '.join(REDUCTIONS)}")


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The loss itself ("none"), its "mean" or its "sum"; whoever calls has checked the reduction."""
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


def need_tensors(name: str, **given: Any) -> None:
    """Raise TypeError, which names the argument, for what is no tensor and an op would take as a number."""
    for argument, x in given.items():
        if not isinstance(x, Value):
            raise TypeError(f"{name}(): argument {argument!r} must be Tensor, not {type_of(x)}")


def need_classes(name: str, target: Tensor) -> None:
    """Raise :class:`SpecError` for a target that is not of integers."""
    if target.spec.dtype.kind not in "iu":
        raise SpecError(f"{name}: expected target to hold classes of an integer dtype, but got {target.spec.dtype.name}")


def _need_fit(name: str, argument: str, x: Tensor, input: Tensor) -> None:
    """Raise :class:`SpecError` for what does not broadcast to the size of the input."""
    if broadcast_shapes(x.spec.shape, input.spec.shape) != input.spec.shape:
        raise SpecError(f"{name}: expected {argument} to broadcast to the input size {list(input.spec.shape)}, but got "
                        f"{list(x.spec.shape)}")


def weighted(loss: Tensor, input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """The loss times weights: elementwise, its sum, or its sum over that of the weights. Raises ValueError for another size."""
    if weight.spec.shape != input.spec.shape:
        raise ValueError("Weights and input must have the same size.")
    made = reduced(elementwise.mul(loss, weight), "sum" if reduction == "mean" else reduction)
    return elementwise.div(made, sum(weight)) if reduction == "mean" else made


def _scaled(loss: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """The loss times weights, if given; its mean is over the number of elements, unlike that of :func:`weighted`."""
    return reduced(loss if weight is None else elementwise.mul(loss, weight), reduction)


def warn_of_sizes(input: Tensor, target: Tensor) -> bool:
    """Whether input and target have the same size, with a warning if not."""
    same = bool(input.spec.shape == target.spec.shape)
    if not same:
        warn(f"Using a target size ({list(target.spec.shape)}) that is different to the input size ({list(input.spec.shape)}). "
             "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.")
    return same


# -- distances from a value --------------------------------------------------------------------------------------------


def _expanded_alike(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Input and target where the first step is to expand both: a float of no dimensions counts as much as one of several."""
    x, y = input.spec, target.spec
    if bool(x.shape) is bool(y.shape) or not (x.floating and y.floating):
        return input, target
    dtype = join(x.dtype, y.dtype)
    return movement.cast_to(input, x.like(dtype)), movement.cast_to(target, y.like(dtype))


@raising
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """|input - target|: mean, sum or elementwise. With ``weight``, of the input's shape, a weighted sum or mean."""
    check_reduction(reduction)
    warn_of_sizes(input, target)
    loss = elementwise.abs(elementwise.sub(*_expanded_alike(input, target)))
    return reduced(loss, reduction) if weight is None else weighted(loss, input, weight, reduction)


def _gap(input: Tensor, target: Tensor) -> Tensor:
    """input - target, where bools are numbers."""
    x, y = (movement.cast_to(v, w.spec) if v.spec.dtype.kind == "b" else v for v, w in ((input, target), (target, input)))
    return elementwise.sub(x, y)


@raising
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0,
               weight: Tensor | None = None) -> Tensor:
    """d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), for d = input - target. Raises ValueError for delta <= 0.

    ``weight``, of the input's shape, scales the elements; unlike in :func:`l1_loss`, the mean divides by their number.
    """
    check_reduction(reduction)
    delta = number("huber_loss", "delta", delta)
    if delta <= 0:
        raise SpecError(f"huber_loss does not support non-positive values for delta: {delta}")
    if weight is not None and weight.spec.shape != input.spec.shape:
        raise ValueError("Weights and input must have the same size.")
    warn_of_sizes(input, target)
    loss = movement.cast_to(losses.huber(_gap(input, target), delta), input.spec)
    return _scaled(loss, weight, reduction)


@raising
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """:func:`huber_loss` with ``delta=beta``, divided by ``beta``; :func:`l1_loss` for a ``beta`` of 0."""
    check_reduction(reduction)
    beta = number("smooth_l1_loss", "beta", beta)
    if beta < 0:
        raise SpecError(f"smooth_l1_loss does not support negative values for beta: {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    warn_of_sizes(input, target)
    return reduced(losses.huber(_gap(*_expanded_alike(input, target)), beta), reduction) * (1.0 / beta)


def gaussian_nll_loss(input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6,
                      reduction: str = "mean") -> Tensor:
    """(log var + (input - target)^2 / var) / 2, with ``var`` clamped to at least ``eps``; ``full`` adds log(2 pi) / 2.

    ``var`` is a number, or a tensor of the input's shape, which may have 1 as one of its sizes or lack the last dimension.
    Raises ValueError for other shapes and for a negative variance.
    """
    check_reduction(reduction)
    shape = input.spec.shape
    if isinstance(var, (int, float)):
        if var < 0:
            raise ValueError(f"var has negative entry/entries: {var}")
        var = zeros((), dtype=input.spec.dtype, device=input.storage.device) + float(var)
    elif var.spec.shape == shape[:-1] and shape:
        var = movement.reshape(var, (*shape[:-1], 1))
    elif var.spec.ndim != len(shape) or [n for n, m in zip(var.spec.shape, shape, strict=True) if n != m] not in ([], [1]):
        raise ValueError(f"var is of incorrect size: {list(var.spec.shape)} for an input of size {list(shape)}")
    known = var.detach()
    # The test runs on meta too, though nothing can be read there, so that a prediction counts its bytes.
    negative = any(elementwise.lt(known, 0))
    if negative.storage.device.type != "meta" and negative.item():
        raise ValueError("var has negative entry/entries")
    # As in PyTorch, the clamp does not affect the gradient.
    with no_grad():
        short = elementwise.clamp(real(eps) - known, 0.0, None)
    var = var + short
    del short
    loss = (elementwise.log(var) + elementwise.square(elementwise.sub(input, target)) / var) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


@raising
def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                     reduction: str = "mean") -> Tensor:
    """exp(input) - target * input, or input - target * log(input + eps) with ``log_input=False``.

    ``full`` adds Stirling's approximation, target log target - target + log(2 pi target) / 2, where the target exceeds 1.
    """
    check_reduction(reduction)
    need_tensors("poisson_nll_loss", input=input, target=target)
    loss = elementwise.exp(input) - target * input if log_input else input - target * elementwise.log(input + eps)
    if full:
        stirling = target * elementwise.log(target) - target + elementwise.log(target * (2 * math.pi)) * 0.5
        loss = loss + elementwise.where(elementwise.gt(target, 1), stirling, 0.0)
    return reduced(loss, reduction)


# -- probabilities -----------------------------------------------------------------------------------------------------


def _check_probabilities(name: str, input: Tensor, target: Tensor, reduction: str, **weights: Tensor | None) -> None:
    check_reduction(reduction)
    for argument, weight in weights.items():
        if weight is not None:
            _need_fit(name, argument, weight, input)
    if input.spec.shape != target.spec.shape:
        raise ValueError(f"Using a target size ({list(target.spec.shape)}) that is different to the input size "
                         f"({list(input.spec.shape)}) is deprecated. Please ensure they have the same size.")


def _alike(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    made = promoted(input, target)
    return movement.cast_to(input, made), movement.cast_to(target, made)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """-(target log(input) + (1 - target) log(1 - input)), with the logarithms clamped to at least -100.

    Backward keeps only input and target. Raises ValueError for a target of another size, and on the CPU RuntimeError for
    inputs outside [0, 1]; a GPU gives NaN for them, since the host does not wait for it.
    """
    _check_probabilities("binary_cross_entropy", input, target, reduction, weight=weight)
    return _scaled(losses.bce(input, target), weight, reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
                                     pos_weight: Tensor | None = None) -> Tensor:
    """:func:`binary_cross_entropy` of sigmoid(input), without overflow; ``pos_weight`` multiplies the term of ``target``.

    Backward keeps only input and target. Raises ValueError for a target of another size.
    """
    _check_probabilities("binary_cross_entropy_with_logits", input, target, reduction, weight=weight, pos_weight=pos_weight)
    if input.spec.floating and target.spec.floating:
        input, target = _alike(input, target)
    loss = losses.bce_logits(input, target)
    if pos_weight is not None:
        # Not bce_logits of 1, which is NaN for an infinite input.
        loss = pointwise.addcmul(loss, (1 - pos_weight) * activation.logsigmoid(input), target)
    return _scaled(loss, weight, reduction)


@raising
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1: mean, sum or elementwise."""
    check_reduction(reduction)
    need_tensors("soft_margin_loss", input=input, target=target)
    _need_fit("soft_margin_loss", "target", target, input)
    loss = activation.softplus(-(input * target), beta=1.0, threshold=math.inf)
    return reduced(movement.cast_to(loss, input.spec), reduction)


@raising
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log target - input), with log-probabilities as ``input``, and also as ``target`` with ``log_target``.

    ``reduction="batchmean"`` divides the sum by the batch size, which gives the divergence; "mean" does not.
    """
    if reduction != "batchmean":
        check_reduction(reduction)
    need_tensors("kl_div", input=input, target=target)
    if not (input.spec.floating and target.spec.floating):
        raise SpecError(f"kl_div: Integral inputs not supported: expected floats, but got input of {input.spec.dtype.name} and "
                        f"target of {target.spec.dtype.name}")
    if reduction == "mean":
        warn("reduction: 'mean' divides the total loss by both the batch size and the support size. 'batchmean' divides only "
             "by the batch size, and aligns with the KL math definition.")
    if log_target:
        loss = elementwise.exp(target) * (target - input)
    else:
        entropy = elementwise.where(elementwise.eq(target, 0), 0.0, target * elementwise.log(target))
        loss = pointwise.addcmul(entropy, target, input, value=-1)
    if reduction != "batchmean":
        return reduced(loss, reduction)
    return sum(loss) / (input.spec.shape[0] if input.spec.ndim else 1)


def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """:func:`binary_cross_entropy_with_logits`, averaged over the classes of each sample: input and target [N, C]."""
    _check_probabilities("multilabel_soft_margin_loss", input, target, reduction, weight=weight)
    loss = losses.bce_logits(*_alike(input, target))
    return reduced(mean(loss if weight is None else loss * weight, -1), reduction)


# -- margins -----------------------------------------------------------------------------------------------------------


def _above(x: Tensor) -> Tensor:
    """max(x, 0), with PyTorch's gradient of 1 at 0; its losses of several classes have relu's gradient of 0 there."""
    return elementwise.clamp(x, 0.0, None)


@raising
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """``input`` where the target is 1, max(0, margin - input) where it is -1: mean, sum or elementwise."""
    check_reduction(reduction)
    need_tensors("hinge_embedding_loss", input=input, target=target)
    alike = elementwise.where(elementwise.ne(target, -1), input, 0.0)
    apart = elementwise.where(elementwise.ne(target, 1), _above(number("hinge_embedding_loss", "margin", margin) - input), 0.0)
    return reduced(alike + apart, reduction)


@raising
def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """max(0, margin - target * (input1 - input2)) for targets of 1 and -1: mean, sum or elementwise."""
    check_reduction(reduction)
    if not input1.spec.ndim == input2.spec.ndim == target.spec.ndim:
        raise SpecError(f"margin_ranking_loss : All input tensors should have same dimension but got sizes: input1: "
                        f"{list(input1.spec.shape)}, input2: {list(input2.spec.shape)}, target: {list(target.spec.shape)} ")
    return reduced(_above(number("margin_ranking_loss", "margin", margin) - target * (input1 - input2)), reduction)


@raising
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The sum over a sample's classes y and all other classes i of max(0, 1 - input[y] + input[i]), divided by C.

    ``input`` is [N, C] or [C]. ``target``, of the same shape, lists each sample's classes, up to the first negative number.
    """
    check_reduction(reduction)
    if input.spec.ndim not in (1, 2) or target.spec.shape != input.spec.shape:
        raise SpecError(f"inconsistent target size: {list(target.spec.shape)} for input of size: {list(input.spec.shape)}")
    need_classes("multilabel_margin_loss", target)
    rows = movement.reshape(input, (-1, input.spec.shape[-1]))
    classes = movement.reshape(target, rows.spec.shape)
    named = elementwise.eq(cumsum(movement.cast(elementwise.lt(classes, 0), dtype=classes.spec.dtype), 1), 0)
    classes = classes * named
    counts = scatter_add(zeros_like(classes), 1, classes, movement.cast(named, dtype=classes.spec.dtype))
    short = activation.relu(1.0 - unsqueeze(movement.take_along(rows, classes, dim=1), 2) + unsqueeze(rows, 1))
    pairs = elementwise.logical_and(unsqueeze(named, 2), unsqueeze(elementwise.eq(counts, 0), 1))
    loss = sum(elementwise.where(pairs, short, 0.0), (1, 2)) / float(rows.spec.shape[1])
    return reduced(movement.reshape(loss, target.spec.shape[:-1]), reduction)


@raising
def multi_margin_loss(input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
                      reduction: str = "mean") -> Tensor:
    """The sum over classes i other than the target y of weight[y] * max(0, margin - input[y] + input[i])^p, divided by C.

    ``input`` is [N, C] or [C], ``target`` [N] or 0-d. Raises ValueError for a ``p`` other than 1 or 2.
    """
    margin = number("multi_margin_loss", "margin", margin)
    check_reduction(reduction)
    if p not in (1, 2):
        raise ValueError(f"only p == 1 and p == 2 supported, but got {p}")
    if input.spec.ndim not in (1, 2) or target.spec.shape != input.spec.shape[:-1]:
        raise SpecError(f"inconsistent target size, expected {list(input.spec.shape[:-1])} but got "
                        f"{list(target.spec.shape)} for an input of size {list(input.spec.shape)}")
    need_classes("multi_margin_loss", target)
    rows = movement.reshape(input, (-1, input.spec.shape[-1]))
    if weight is not None and weight.spec.shape != rows.spec.shape[1:]:
        raise SpecError(f"inconsistent weight size, expected {list(rows.spec.shape[1:])} but got {list(weight.spec.shape)}")
    classes = movement.reshape(target, (-1, 1))
    short = activation.relu(rows - movement.take_along(rows, classes, dim=1, wrap=False) + margin)
    own = elementwise.eq(classes, arange(rows.spec.shape[1], dtype=classes.spec.dtype, device=classes.storage.device))
    loss = sum(elementwise.where(own, 0.0, short if p == 1 else elementwise.square(short)), 1) / float(rows.spec.shape[1])
    if weight is not None:
        loss = loss * movement.take(weight, movement.reshape(target, (-1,)), dim=0)
    return reduced(movement.reshape(loss, target.spec.shape), reduction)
