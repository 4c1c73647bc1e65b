"""Attention as functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore._random import default_generator
from gradcore.engine.operands import real
from gradcore.errors import SpecError
from gradcore.functional.creation import zeros
from gradcore.functional.dropouts import probability
from gradcore.functional.mathematics import matmul
from gradcore.ops import attention, elementwise, linalg, movement, normalizers, random, reduce
from gradcore.spec import broadcast_shapes
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
    masked entirely gives zeros. With ``enable_gqa``, each head of key and value, which are copied, serves several neighboring
    heads of the query. The scores and the dropout mask are stored only if the mask requires a gradient. Otherwise backward
    keeps the operands, the result, one number per row, and 32 bytes of generator state to redraw the dropout.
    Raises RuntimeError for a mask together with ``is_causal``, ValueError for a ``dropout_p`` outside [0, 1].
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    dropout_p = probability(dropout_p, "scaled_dot_product_attention", "dropout_p")
    operands = (query, key, value)
    if min(x.spec.ndim for x in operands) < 2:
        raise SpecError(f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
                        f"{query.spec.ndim} key.dim: {key.spec.ndim} and value.dim: {value.spec.ndim} instead.")
    if enable_gqa:
        operands = (query, *(_repeat_heads(x, query.spec.shape) for x in (key, value)))
    lead = broadcast_shapes(*(x.spec.shape[:-2] for x in operands))
    query, key, value = (_led(x, lead) for x in operands)
    factor = 1.0 / math.sqrt(max(query.spec.shape[-1], 1)) if scale is None else real(scale)
    mask = None if attn_mask is None else _added(attn_mask, query)
    if mask is not None and mask.edge is not None:
        return _with_learnt_mask(query, key, value, mask, factor, dropout_p)
    if mask is not None and mask.spec.ndim > 2 and len(lead) != 2:
        mask = _four(_led(mask, lead))
    n, h, length, _ = (query := _four(query)).spec.shape
    drops: tuple[Any, ...] = ()
    if dropout_p:
        words = words_a_row(key.spec.shape[-2])
        # The generator counts one step per four 32-bit numbers, and one step serves eight of these.
        drops = default_generator(query.storage.device).snapshot(n * h * length * (words // 2)), dropout_p
    out = attention.attention(query, _four(key), _four(value), mask, *drops, causal=bool(is_causal), scale=factor)
    return out if len(lead) == 2 else movement.reshape(out, (*lead, *out.spec.shape[2:]))


def _with_learnt_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """The attention result, by separate ops, whose rows that are masked entirely are 0, as are their gradients."""
    if not mask.spec.numel:
        return weighted_attention(query, key, value, mask, scale, dropout)[0]
    # Softmax would make NaN of such a row, and of its gradients: it gets a mask of zeros, and its result is dropped.
    dims = (mask.spec.ndim - 1,) if mask.spec.ndim else ()
    dead = elementwise.eq(reduce.amax(mask.detach(), dims=dims, keepdim=True), -math.inf)
    out, _ = weighted_attention(query, key, value, elementwise.where(dead, 0.0, mask), scale, dropout)
    return elementwise.where(dead, 0.0, out)


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


def weighted_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float,
                       dropout: float) -> tuple[Tensor, Tensor]:
    """The attention result and its weights, by separate ops that store the scores."""
    scores = linalg.matmul(query, key, transpose_b=True) * scale
    if mask is not None:
        scores = scores + mask
    weights = normalizers.softmax(scores, dim=scores.spec.ndim - 1)
    if dropout:
        generator = default_generator(weights.storage.device)
        weights = random.dropout(weights, generator.snapshot(weights.spec.numel), float(dropout))
    return matmul(weights, value), weights
