"""Embeddings, which are rows of a table, and bags of them: their sums, means or maxima."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.arguments import refusal
from gradcore.engine.custom import custom_node
from gradcore.engine.modes import no_grad
from gradcore.engine.operands import number, real
from gradcore.engine.owners import upload
from gradcore.engine.sites import need_values
from gradcore.engine.state import local
from gradcore.errors import SpecError
from gradcore.functional import any as any_of
from gradcore.functional import max as max_of
from gradcore.functional import ones, sum, unsqueeze
from gradcore.ops import elementwise, movement, placing, reduce, scan
from gradcore.spec import TensorSpec

__all__ = ["embedding", "embedding_bag"]

Tensor = Any


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of ``weight`` [rows, columns] at the integer indices ``input``: result [*input.shape, columns].

    The row ``padding_idx`` gets no gradient. With ``max_norm``, rows of a larger ``norm_type``-norm are first scaled down to it
    in ``weight`` itself. With ``scale_grad_by_freq``, the gradient of a row is divided by how often ``input`` names it. On the
    CPU, raises IndexError for an index that is negative or too large; on a GPU, it reads NaN. Raises :class:`SpecError` if the
    indices are not integers, NotImplementedError for ``sparse``.
    """
    if sparse:
        raise refusal("embedding", "sparse")
    if padding_idx is not None:
        rows = weight.spec.shape[0]
        if not -rows <= padding_idx < rows:
            raise ValueError("Padding_idx must be within num_embeddings")
        padding_idx %= rows
    if max_norm is not None:
        _shrink(weight, input, max_norm, norm_type)
    if not scale_grad_by_freq or weight.edge is None or not local.state.grad:
        return movement.embedding(weight, input, padding=padding_idx)
    spec = weight.spec
    with no_grad():
        out = movement.embedding(weight, input, padding=padding_idx)

    def rule(slopes: list[Any], kept: list[Any]) -> list[Any]:
        index = movement.reshape(kept[0], (-1,))
        share = 1.0 / movement.take(_counts(index, spec), index, dim=0)
        slope = slopes[0] * movement.reshape(share, (*input_shape, 1))
        return [movement.embedding_grad(slope, kept[0], shape=spec.shape, padding=padding_idx)]

    input_shape = input.spec.shape
    out.edge = (custom_node("EmbeddingByFrequency", [weight.edge], [out], (input,), rule), 0)
    return out


def _counts(index: Tensor, weight: TensorSpec) -> Tensor:
    """For each row of a table how often it is named."""
    each = ones(index.spec.numel, dtype=weight.dtype, device=index.storage.device)
    return movement.take_grad(each, index, shape=weight.shape[:1], dim=0)


def _shrink(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows of ``weight`` that ``input`` names down to ``max_norm``."""
    if not input.spec.numel:
        return
    with no_grad():
        most = number("embedding", "max_norm", max_norm)
        index = movement.reshape(input, (-1,))
        rows = movement.take(weight, index, dim=0, wrap=False)
        size = reduce.vector_norm(rows, p=real(norm_type), dims=(1,), keepdim=True)
        # The same number as PyTorch's against a division by 0.
        factor = elementwise.where(elementwise.gt(size, most), most / (size + 1e-7), 1.0)
        placing.put_(weight, index, rows * factor, dim=0, wrap=False)


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
    """The ``"sum"``, ``"mean"`` or ``"max"`` of bags of rows of ``weight`` [rows, columns].

    ``input`` holds integer indices, [bags, length], or [n] with ``offsets`` [bags] at which the bags begin. The result is
    [bags, columns], 0 for an empty bag. Indices equal to ``padding_idx`` are left out. ``per_sample_weights``, of the input's
    shape, are for "sum" only. With "max", offsets are read on the host, and the rows of all bags are copied to the length of
    the longest. ``max_norm`` and ``scale_grad_by_freq``, which does not go with "max", are as in
    :func:`embedding`. Raises ValueError for arguments that do not go together.
    """
    _check_bags(input, offsets, mode, per_sample_weights)
    if sparse:
        raise refusal("embedding_bag", "sparse")
    if mode == "max":
        if scale_grad_by_freq:
            raise ValueError("max mode does not support scaling the gradient by the frequency")
        if max_norm is not None:
            _shrink(weight, input, max_norm, norm_type)
        return _largest(input, weight, offsets, include_last_offset, padding_idx)
    rows = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    dtype = weight.spec.dtype
    counts = None
    if padding_idx is not None:
        counts = movement.cast(elementwise.ne(input, padding_idx % weight.spec.shape[0]), dtype=dtype)
    factor = per_sample_weights if counts is None else counts if per_sample_weights is None else per_sample_weights * counts
    if factor is not None:
        rows = rows * movement.reshape(factor, (*factor.spec.shape, 1))
    if offsets is None:
        total = sum(rows, 1)
        if mode == "sum":
            return total
        return total / (max(float(input.spec.shape[1]), 1.0) if counts is None else _at_least_one(sum(counts, 1, True)))
    bags = _numbers_of_bags(offsets, input.spec.shape[0], include_last_offset)
    many = offsets.spec.shape[0]

    def added(values: Tensor) -> Tensor:
        made = movement.take_grad(values, bags, shape=(many, *values.spec.shape[1:]), dim=0)
        return movement.narrow(made, 0, 0, many - 1) if include_last_offset else made

    total = added(rows)
    if mode == "sum":
        return total
    # Counted as integers: those of 16-bit floats end at 256 or 2048.
    sizes = added(counts if counts is not None else ones(input.spec.shape, dtype=np.int64, device=input.device))
    return total / movement.reshape(_at_least_one(movement.cast(sizes, dtype=dtype)), (-1, 1))


def _check_bags(input: Tensor, offsets: Tensor | None, mode: str, per_sample_weights: Tensor | None) -> None:
    """Raise ValueError or NotImplementedError for arguments that do not go together."""
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max, but got {mode!r}")
    if per_sample_weights is not None and per_sample_weights.spec.shape != input.spec.shape:
        raise ValueError(f"embedding_bag: If per_sample_weights ({list(per_sample_weights.spec.shape)}) is not None, then it "
                         f"must have the same shape as the input ({list(input.spec.shape)})")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(f"embedding_bag: per_sample_weights is only supported for mode='sum' (got mode={mode!r}).")
    if (input.spec.ndim, offsets is None) not in ((1, False), (2, True)):
        raise ValueError(f"embedding_bag: expected a 2D input, or a 1D input with offsets, but got {input.spec.ndim}D with "
                         f"{'no ' if offsets is None else ''}offsets")
    if offsets is not None and (offsets.spec.ndim != 1 or offsets.spec.dtype.kind not in "iu"):
        raise SpecError(f"embedding_bag: offsets has to be a 1D tensor of integers, but got {offsets.spec}")


def _largest(input: Tensor, weight: Tensor, offsets: Tensor | None, last: bool, padding_idx: int | None) -> Tensor:
    """The largest element of each column in each bag, 0 in an empty one; the gradient goes to the first of equal elements."""
    within = None
    if offsets is not None:
        device, count = offsets.storage.device, input.spec.shape[0]
        need_values("embedding_bag", device, "the length of the longest bag")
        lengths = _lengths(device.read(offsets.storage, offsets.spec), count, last)
        columns = np.arange(int(lengths.max(initial=0)))
        places = (np.cumsum(lengths) - lengths)[:, None] + columns
        within = _placed(columns < lengths[:, None], input)
        # Beyond a bag's end it reads any index that is there.
        input = movement.take(input, _placed(np.minimum(places, max(count - 1, 0)), input), dim=0)
    if padding_idx is not None:
        named = elementwise.ne(input, padding_idx % weight.spec.shape[0])
        within = named if within is None else elementwise.logical_and(within, named)
    rows = embedding(input, weight, padding_idx)
    if not input.spec.shape[1]:
        return sum(rows, 1)
    if within is None:
        return max_of(rows, 1).values
    within = unsqueeze(within, 2)
    found = max_of(elementwise.where(within, rows, -math.inf), 1).values
    return elementwise.where(any_of(within, 1), found, 0.0)


def _at_least_one(counts: Tensor) -> Tensor:
    return elementwise.clamp(counts, 1.0, None)


def _placed(values: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return upload(values, like.storage.device, op="embedding_bag", role="temporary")


def _numbers_of_bags(offsets: Tensor, count: int, last: bool) -> Tensor:
    """The number of the bag of each of ``count`` positions, as an index from the end. What lies behind the last of ``last``
    offsets is in a bag of its own; what lies before the first has a number that no bag has, which the CPU's kernels refuse.
    """
    device, many = offsets.storage.device, offsets.spec.shape[0]
    if device.type == "cpu":
        # Not a read of the program's: what is made does not depend on it.
        _lengths(device.copy_out(device.array(offsets.storage.block, offsets.spec)), count, last)
    begun = movement.take_grad(ones(many, dtype=np.int64, device=offsets.device), offsets, shape=(count + 1,), dim=0)
    return movement.narrow(scan.cumsum(begun, dim=0, reverse=False), 0, 0, count) - (many + 1)


def _lengths(offsets: Any, count: int, last: bool) -> Any:
    """The number of positions in each bag. Raises ValueError for offsets that do not fit ``count`` positions."""
    starts = np.asarray(offsets).astype(np.int64)
    # Without offsets there are no bags, which no positions fit.
    ends = starts if last else np.append(starts, count)
    if not len(ends) or ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] > count:
        raise SpecError(f"offsets[0] has to be 0 and offsets must rise to {count} at most, but got {starts.tolist()}")
    if ends[-1] != count:
        raise ValueError(f"the last offset must be the number of positions, {count}, but got {starts.tolist()}")
    return np.diff(ends)
