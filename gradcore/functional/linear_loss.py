"""Cross-entropy of a linear layer's output, of which only some classes exist at a time: with many classes, the whole would be
larger than all else. Its gradient computes them once more.

As in Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, arXiv:2411.09009, the classes are divided and not the
samples: the weight is read once, and a product is a whole part of its gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcore.engine.autocast import Region
from gradcore.engine.custom import custom_node
from gradcore.engine.derived import differentiate
from gradcore.engine.modes import no_grad
from gradcore.engine.state import local
from gradcore.errors import SpecError
from gradcore.ops import elementwise, linalg, reduce
from gradcore.ops.creation import empty, full, new_full
from gradcore.ops.in_place import IN_PLACE, add_, mul_, sub_
from gradcore.ops.movement import cast_to, cat, column, copy_, narrow, reshape, take, take_along
from gradcore.ops.placing import add_along_
from gradcore.spec import TensorSpec

__all__ = ["LinearCrossEntropyOptions"]

Tensor = Any

exp_ = IN_PLACE["exp"]
_INDEX = TensorSpec.of((), np.dtype(np.int64))
_POLICIES = ("auto", "accurate", "balanced", "compact")


@dataclass(frozen=True, slots=True)
class LinearCrossEntropyOptions:
    """How many scores :func:`~gradcore.nn.functional.linear_cross_entropy` computes at a time: as many as a batch of
    ``batch_chunk_size`` samples has for all classes, or with ``chunking_method="aspect_ratio:N"`` about an Nth of the numbers
    in the input. ``"auto"`` is those of a 32nd of the classes, or of as many classes as the input has features.

    The other options are PyTorch's, without effect: backward may run again, and sums are in float32. Raises ValueError for a
    policy, a method or a size that PyTorch does not have.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ValueError(f"invalid acc_policy: {self.acc_policy!r}: expected one of {', '.join(_POLICIES)}")
        if self.chunking_method not in (None, "auto") and not self._share():
            raise ValueError(f"invalid chunking_method: {self.chunking_method!r}: expected 'auto', 'aspect_ratio', "
                             "'aspect_ratio:N' with a number N, or None")
        size = self.batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")

    def _share(self) -> int:
        """The N of the method; 0 for what is none."""
        name, colon, count = str(self.chunking_method).partition(":")
        return 0 if name != "aspect_ratio" else int(count) if count.isdigit() else 0 if colon else 1

    def classes_at_once(self, samples: int, features: int, classes: int) -> int:
        """How many classes' scores are computed at a time. Raises ValueError if two options say how many, and disagree."""
        rows = given = min(self.batch_chunk_size or samples, samples)
        if self.chunking_method == "auto" and self.batch_chunk_size is None:
            return max(features, -(-classes // 32), 1)
        if self.chunking_method not in (None, "auto"):
            # Rounded as in PyTorch.
            rows = -(-samples // max(-(-classes // max(features, 1)), 1))
            rows = max(min((1 << max(rows - 1, 0).bit_length()) // self._share(), samples), 1)
            if self.batch_chunk_size is not None and rows != given:
                raise ValueError(f"batch_chunk_size (={self.batch_chunk_size}) and chunking_method "
                                 f"('{self.chunking_method}') give different chunk sizes ({given} vs {rows}); pass only one.")
        return max(-(-rows * classes // max(samples, 1)), 1)


def shape_of_scores(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """[N, C, d...] for an input [N, D] and a weight [C, d..., D]; [C] for an input [D]. Otherwise raises :class:`SpecError`."""
    given, (*classes, width) = input.spec.shape, weight.spec.shape or (0,)
    if len(given) not in (1, 2) or not classes or given[-1] != width or len(classes) > 1 > len(given) - 1:
        raise SpecError("linear_cross_entropy: expected an input [N, D] or [D] and a linear_weight [C, D], or, for [N, D], "
                        f"[C, d..., D], but got {list(given)} and {list(weight.spec.shape)}")
    if bias is not None and bias.spec.shape != tuple(classes):
        raise SpecError(f"linear_cross_entropy: expected linear_bias shape {tuple(classes)}, got {tuple(bias.spec.shape)}")
    return (*given[:-1], *classes)


def by_parts(input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None, ignore_index: int,
             reduction: str, options: LinearCrossEntropyOptions) -> Tensor:
    """The loss, with as many scores at a time as ``options`` say."""
    # Classes of a narrow type are fewer than there may be at a time.
    rows = reshape(cast_to(target, _INDEX), (-1,))
    samples, features = rows.spec.numel, input.spec.shape[-1]
    x = reshape(input, (samples, features))
    at_once = options.classes_at_once(samples, features, weight.spec.shape[0])
    loss, norm = _losses(x, weight, rows, bias, class_weight, ignore_index, at_once)
    if reduction == "none":
        loss = reshape(loss, target.spec.shape)
    else:
        loss = reduce.sum(loss, dims=(0,), keepdim=False)
        loss = loss / reduce.sum(norm, dims=(0,), keepdim=False) if reduction == "mean" else loss
    # As cross_entropy, in float32 under autocast.
    return cast_to(loss, input.spec) if _region(input) is None else loss


def _region(x: Tensor) -> Region | None:
    """That of autocast, if it is for the device."""
    region: Region | None = local.state.autocast
    return region if region is not None and x.storage.device.type in region.dtypes else None


def _losses(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
            ignore_index: int, at_once: int) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the weight of its class, 0 where it is ignored: x [N, D], weight [C, D], target [N].

    Both are in float32 for 16-bit floats. On the CPU, raises IndexError for a class out of range; on a GPU, its loss is NaN.
    """
    region = _region(x)
    # Once, and not with each part. The weight is cast by parts.
    x = x if region is None else region.suited(linalg.linear, (x,))[0]
    classes = weight.spec.shape[0]
    parts = [(first, min(at_once, classes - first)) for first in range(0, max(classes, 1), at_once)]
    with no_grad():
        kept = elementwise.ne(target, ignore_index)
        each = _widened(class_weight) if class_weight is not None else full(
            1.0, shape=(classes,), dtype=x.spec.widened().dtype, device=x.storage.device)
        norm = elementwise.where(kept, take(each, target * kept, dim=0, wrap=False), 0.0)
        del each
        which, place = _places(target, kept, at_once)
        # Of each part, and then of all, the largest score and the logarithm of the sum of exp(score - largest): their sum alone
        # would have few digits for the slopes where scores are large.
        tops, rests, found = [], [], new_full(norm, norm.spec.shape, math.nan)
        for k, (first, count) in enumerate(parts):
            # Cast by linear, which raises for operands that do not fit.
            scores = _scores(x, *_part(weight, bias, first, count))
            found = elementwise.where(elementwise.eq(which, k), _picked(scores, place, count), found)
            # Finite, also if all of a part are -inf.
            tops.append(elementwise.clamp(reduce.amax(scores, dims=(1,), keepdim=True), np.finfo(scores.spec.dtype).min, None))
            rests.append(reduce.logsumexp(sub_(scores, tops[-1]), dims=(1,), keepdim=True))
            # Before the next ones are computed.
            del scores
        each = cat(tops, dim=1)
        top = reduce.amax(each, dims=(1,), keepdim=True)
        rest = reduce.logsumexp(each - top + cat(rests, dim=1), dims=(1,), keepdim=True)
        del tops, rests, each
        loss = elementwise.where(kept, (reshape(rest, norm.spec.shape) + (reshape(top, norm.spec.shape) - found)) * norm, 0.0)
    edges = [None if t is None else t.edge for t in (x, weight, bias)]
    if not local.state.grad or not any(edges):
        return loss, norm
    needs = tuple(e is not None for e in edges)

    def rule(gs: list[Any], saved: list[Any]) -> list[Any]:
        kept = elementwise.ne(saved[3], ignore_index)
        if not local.state.grad:
            return _gradients(parts, needs, gs[0], saved, kept)
        wanted = [k for k in range(3) if needs[k]]
        slopes = differentiate(_whole, wanted, gs, [*saved[:-1], kept])
        found = iter(slopes if len(wanted) > 1 else [slopes])
        return [next(found) if need else None for need in needs]

    loss.edge = (custom_node("LinearCrossEntropy", edges, [loss], (x, weight, bias, target, norm, top, rest), rule), 0)
    return loss, norm


def _gradients(parts: list[tuple[int, int]], needs: tuple[bool, ...], g: Tensor, saved: list[Any],
               kept: Tensor) -> list[Tensor | None]:
    x, weight, bias, target, norm, top, rest = saved
    factor = column(elementwise.where(kept, g * norm, 0.0))
    # A row's factor is one of x, too, which has fewer columns. In 16 bits the slopes are then as large as they can be.
    scaled = cast_to(x * factor, x.spec) if needs[1] else None
    which, place = _places(target, kept, parts[0][1])
    to_x, to_weight, to_bias = None, *(
        empty(shape=t.spec.shape, dtype=t.spec.dtype, device=t.storage.device) if need else None
        for t, need in ((weight, needs[1]), (bias, needs[2])))
    for k, (first, count) in enumerate(parts):
        some, of_bias = _part(weight, bias, first, count, x)
        slopes = exp_(sub_(sub_(_scores(x, some, of_bias), top), rest))
        here = cast_to(elementwise.eq(which, k), slopes.spec)
        slopes = cast_to(add_along_(slopes, column(_within(place, count)), column(-here), dim=1), x.spec)
        if needs[0]:
            found = _widened(linalg.matmul(slopes, some))
            to_x = found if to_x is None else add_(to_x, found)
            del found
        if needs[1]:
            copy_(narrow(to_weight, 0, first, count), linalg.matmul(slopes, scaled, transpose_a=True))
        if needs[2]:
            of_class = linalg.matmul(slopes, cast_to(factor, x.spec), transpose_a=True)
            copy_(narrow(to_bias, 0, first, count), reshape(of_class, (count,)))
        del slopes
    return [cast_to(mul_(to_x, factor), x.spec) if needs[0] else None, to_weight, to_bias]


def _whole(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, norm: Tensor, top: Tensor, kept: Tensor) -> Tensor:
    """The losses, of all scores at once: second derivatives go through it."""
    classes = weight.spec.shape[0]
    scores = _scores(x, *_part(weight, bias, 0, classes, x)) - top
    total = reduce.logsumexp(scores, dims=(1,), keepdim=False)
    return elementwise.where(kept, (total - _picked(scores, target * kept, classes)) * norm, 0.0)


def _part(weight: Tensor, bias: Tensor | None, first: int, count: int, x: Tensor | None = None) -> list[Tensor | None]:
    """The layer of some classes, in the precision of x if given."""
    some = [None if t is None else narrow(t, 0, first, count) for t in (weight, bias)]
    return some if x is None else [None if t is None else cast_to(t, x.spec) for t in some]


def _scores(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _widened(linalg.linear(x, weight, bias))


def _places(target: Tensor, kept: Tensor, at_once: int) -> tuple[Tensor, Tensor]:
    """In which part each sample's class is, and where in it."""
    safe = target * kept
    return elementwise.floor_divide(safe, at_once), elementwise.remainder(safe, at_once)


def _within(place: Tensor, count: int) -> Tensor:
    """Places of classes in any part, as some that this part has: the last may be smaller."""
    return elementwise.clamp(place, None, count - 1)


def _picked(scores: Tensor, place: Tensor, count: int) -> Tensor:
    return reshape(take_along(scores, column(_within(place, count)), dim=1), place.spec.shape)


def _widened(x: Tensor) -> Tensor:
    return cast_to(x, x.spec.widened())
