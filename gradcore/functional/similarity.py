"""``normalize``, similarity and distance of vectors, and the losses built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.engine.autocast import raising
from gradcore.engine.operands import number, real
from gradcore.errors import SpecError
from gradcore.functional import sum
from gradcore.functional.einsum import einsum
from gradcore.functional.folding import norm
from gradcore.functional.losses import check_reduction, reduced
from gradcore.functional.types import promoted
from gradcore.ops import elementwise, movement
from gradcore.spec import broadcast_shapes, normalize_dim

__all__ = ["cosine_embedding_loss", "cosine_similarity", "normalize", "pairwise_distance", "triplet_margin_loss",
           "triplet_margin_with_distance_loss"]

Tensor = Any


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """x / max(||x||_p, eps), with the p-norm along ``dim``."""
    return input / elementwise.clamp(norm(input, p, dim, True), real(eps), None)


@raising
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(||x1||, eps) * max(||x2||, eps)) along ``dim``; shapes broadcast, as a matrix product."""
    shape = broadcast_shapes(x1.spec.shape, x2.spec.shape)
    alike, d = x1.spec.shape == x2.spec.shape, normalize_dim(dim, len(shape))
    if not alike:
        # Before they are promoted, where a 0-d tensor would count for less.
        sizes = [(1,) * (len(shape) - x.spec.ndim) + x.spec.shape for x in (x1, x2)]
        x1, x2 = (movement.expand(movement.reshape(x, own), shape=(*own[:d], shape[d], *own[d + 1:]))
                  for x, own in zip((x1, x2), sizes, strict=True))
    made = promoted(x1, x2)
    if not made.floating:
        raise SpecError(f"cosine_similarity: expected a tensor of a floating type, but got {x1.spec.dtype.name} and "
                        f"{x2.spec.dtype.name}")
    x1, x2 = movement.cast_to(x1, made), movement.cast_to(x2, made)
    eps = number("cosine_similarity", "eps", eps)
    one, two = (x / elementwise.clamp(norm(x, 2, dim, True), eps, None) for x in (x1, x2))
    if alike:
        return sum(one * two, dim)
    labels = list(range(len(shape)))
    return einsum(one, labels, two, labels, labels[:d] + labels[d + 1:])


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """||x1 - x2 + eps||_p along the last dimension."""
    return norm(elementwise.sub(x1, x2) + number("pairwise_distance", "eps", eps), p, -1, keepdim)


@raising
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                          reduction: str = "mean") -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1: inputs [N, D] or [D], target [N] or 0-d."""
    check_reduction(reduction)
    if not input1.spec.ndim == input2.spec.ndim == target.spec.ndim + 1 or input1.spec.ndim not in (1, 2):
        raise SpecError(f"{target.spec.ndim}D target tensor expects {target.spec.ndim + 1}D input tensors, but found inputs "
                        f"with sizes {list(input1.spec.shape)} and {list(input2.spec.shape)}.")
    eps, inputs = 1e-12, [movement.as_float(x) for x in (input1, input2)]
    made = promoted(*inputs)
    # The product of two squares, and the slope of its root, may be beyond the numbers of 16 bits.
    x, y = (movement.cast_to(v, made.widened()) for v in inputs)
    squares = [sum(elementwise.square(v), -1) + eps for v in (x, y)]
    cosine = movement.cast_to(sum(x * y, -1) * elementwise.rsqrt(squares[0] * squares[1]), made)
    alike = elementwise.where(elementwise.eq(target, 1), 1.0 - cosine, 0.0)
    short = elementwise.clamp(cosine - number("cosine_embedding_loss", "margin", margin), 0.0, None)
    apart = elementwise.where(elementwise.eq(target, -1), short, 0.0)
    return reduced(alike + apart, reduction)


@raising
def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2,
                        eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is :func:`pairwise_distance`.

    With ``swap``, min(d(anchor, negative), d(positive, negative)) replaces the second distance. Balntas et al., BMVC 2016.
    """
    margin = number("triplet_margin_loss", "margin", margin)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=distance, margin=margin, swap=swap,
                                             reduction=reduction)


def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *,
                                      distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
                                      margin: float = 1.0, swap: bool = False, reduction: str = "mean") -> Tensor:
    """:func:`triplet_margin_loss` with a custom distance function. Raises ValueError for a margin of 0 or less."""
    check_reduction(reduction)
    if not anchor.spec.ndim == positive.spec.ndim == negative.spec.ndim:
        raise SpecError("The anchor, positive, and negative tensors are expected to have the same number of dimensions, but "
                        f"got sizes {list(anchor.spec.shape)}, {list(positive.spec.shape)} and {list(negative.spec.shape)}")
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    if swap:
        far = elementwise.minimum(far, distance(positive, negative))
    return reduced(elementwise.clamp(distance(anchor, positive) - far + real(margin), 0.0, None), reduction)
