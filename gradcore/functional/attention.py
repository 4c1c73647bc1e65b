"""Attention and embedding as functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore._random import default_generator
from gradcore.arguments import refusal
from gradcore.engine.custom import custom_node
from gradcore.engine.modes import no_grad
from gradcore.engine.state import local
from gradcore.errors import SpecError
from gradcore.functional.creation import ones, zeros
from gradcore.functional.mathematics import matmul
from gradcore.ops import attention, elementwise, linalg, movement, placing, random, statistics
from gradcore.ops import nn as normalisers
from gradcore.spec import TensorSpec, broadcast_shapes
from gradcore.tiling import words_a_row

Tensor = Any


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask to add to the scores: of a boolean one, 0 where it is True, and minus infinity elsewhere."""
    if mask.spec.dtype.kind != "b":
        return movement.cast_to(mask, like.spec)
    return elementwise.where(mask, zeros((), dtype=like.spec.dtype, device=like.storage.device), -math.inf)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """softmax(query key^T * scale + mask) value: query [..., L, E], key [..., S, E], value [..., S, Ev], result [..., L, Ev].

    ``scale`` is 1 / sqrt(E) by default. ``attn_mask`` is boolean (True takes part) or added to the scores; a row that is
    masked entirely gives zeros. With ``enable_gqa``, each head of key and value, which are copied, serves several neighbouring
    heads of the query. The scores and the dropout mask are stored only if the mask requires a gradient. Otherwise backward
    keeps the operands, the result, one number per row, and 32 bytes of generator state to redraw the dropout.
    Raises RuntimeError for a mask together with ``is_causal``, ValueError for a ``dropout_p`` outside [0, 1].
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    operands = (query, key, value)
    if min(x.spec.ndim for x in operands) < 2:
        raise SpecError(f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
                        f"{query.spec.ndim} key.dim: {key.spec.ndim} and value.dim: {value.spec.ndim} instead.")
    if enable_gqa:
        operands = (query, *(_repeat_heads(x, query.spec.shape) for x in (key, value)))
    lead = broadcast_shapes(*(x.spec.shape[:-2] for x in operands))
    query, key, value = (_led(x, lead) for x in operands)
    factor = 1.0 / math.sqrt(max(query.spec.shape[-1], 1)) if scale is None else float(scale)
    mask = None if attn_mask is None else _added(attn_mask, query)
    if mask is not None and mask.edge is not None:
        return weighted_attention(query, key, value, mask, False, factor, dropout_p)[0]
    if mask is not None and mask.spec.ndim > 2 and len(lead) != 2:
        mask = _four(_led(mask, lead))
    n, h, length, _ = (query := _four(query)).spec.shape
    drops: tuple[Any, ...] = ()
    if dropout_p:
        words = words_a_row(key.spec.shape[-2])
        # The generator counts one step per four 32-bit numbers, and one step serves eight of these.
        drops = default_generator(query.storage.device).snapshot(n * h * length * (words // 2)), float(dropout_p)
    out = attention.attention(query, _four(key), _four(value), mask, *drops, causal=bool(is_causal), scale=factor)
    return out if len(lead) == 2 else movement.reshape(out, (*lead, *out.spec.shape[2:]))


def _added(mask: Tensor, query: Tensor) -> Tensor:
    """The mask to add to the scores. Raises :class:`SpecError` if it is of integers, or of another floating dtype."""
    dtype = mask.spec.dtype
    if dtype not in (np.dtype(np.bool_), np.dtype(np.float32), query.spec.dtype):
        raise SpecError(f"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
                        f"{dtype.name} and  query.dtype: {query.spec.dtype.name} instead.")
    return additive(mask, query)


def _led(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A view of ``x`` with its leading dimensions broadcast to ``lead``."""
    shape = (*lead, *x.spec.shape[-2:])
    return x if x.spec.shape == shape else movement.expand(x, shape=shape)


def _four(x: Tensor) -> Tensor:
    """[N, H, L, E] of [..., L, E]."""
    lead = x.spec.shape[:-2]
    if len(lead) == 2:
        return x
    return movement.reshape(x, (math.prod(lead[:-1]), lead[-1] if lead else 1, *x.spec.shape[-2:]))


def _repeat_heads(x: Tensor, query: tuple[int, ...]) -> Tensor:
    """``x`` with each head repeated, so that there are as many as in the query."""
    shape = x.spec.shape
    if len(query) < 3 or len(shape) < 3 or not shape[-3] or query[-3] % shape[-3]:
        raise SpecError(f"scaled_dot_product_attention: enable_gqa needs a number of heads in query that is a multiple of "
                        f"those in key and value, but got {list(query)} and {list(shape)}")
    *lead, heads, keys, width = shape
    some = query[-3] // heads
    each = movement.expand(movement.reshape(x, (*lead, heads, 1, keys, width)), shape=(*lead, heads, some, keys, width))
    return movement.reshape(each, (*lead, query[-3], keys, width))


def weighted_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float,
                       dropout: float) -> tuple[Tensor, Tensor]:
    """The attention result and its weights, by separate ops that store the scores."""
    scores = linalg.matmul(query, key, transpose_b=True) * scale
    if causal:
        length, keys = scores.spec.shape[-2:]
        allowed = movement.tril(ones(length, keys, dtype=scores.spec.dtype,
                                     device=scores.storage.device), diagonal=0)
        scores = scores + additive(elementwise.ne(allowed, 0), scores)
    if mask is not None:
        scores = scores + mask
    weights = normalisers.softmax(scores, dim=scores.spec.ndim - 1)
    if dropout:
        generator = default_generator(weights.storage.device)
        weights = random.dropout(weights, generator.snapshot(weights.spec.numel), float(dropout))
    return matmul(weights, value), weights


# -- tables ------------------------------------------------------------------------------------------------------------------


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
        shrink_(weight, input, max_norm, norm_type)
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


def shrink_(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows of ``weight`` that ``input`` names down to ``max_norm``."""
    if not input.spec.numel:
        return
    with no_grad():
        index = movement.reshape(input, (-1,))
        rows = movement.take(weight, index, dim=0, wrap=False)
        size = statistics.vector_norm(rows, p=float(norm_type), dims=(1,), keepdim=True)
        # The same number as PyTorch's against a division by 0.
        factor = elementwise.where(elementwise.gt(size, float(max_norm)), float(max_norm) / (size + 1e-7), 1.0)
        placing.put_(weight, index, rows * factor, dim=0, wrap=False)
