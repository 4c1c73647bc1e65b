"""Attention and embedding as functions."""

from __future__ import annotations

import math
from typing import Any

from gradcore._random import default_generator
from gradcore.errors import SpecError
from gradcore.functional.creation import ones, zeros
from gradcore.functional.mathematics import matmul
from gradcore.ops import attention, elementwise, linalg, movement, random
from gradcore.ops import nn as normalisers

Tensor = Any


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to the scores: 0 where a boolean one is True, else minus infinity."""
    if mask.spec.dtype.kind != "b":
        return movement.cast_to(mask, like.spec)
    return elementwise.where(mask, zeros((), dtype=like.spec.dtype, device=like.storage.device), -math.inf)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """softmax(query key^T * scale + mask) value: query [..., L, E], key [..., S, E], value [..., S, Ev], result [..., L, Ev].

    The scores are never stored: backward keeps the operands, the result and one number a row. Only with ``dropout_p`` are
    they, since what is dropped is a score. ``attn_mask`` is boolean (True takes part) or added to the scores; it has no
    gradient. Raises RuntimeError for a mask beside ``is_causal``.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if query.spec.ndim < 2:
        raise SpecError(f"scaled_dot_product_attention: query must be at least 2 dimensional, but got "
                        f"{list(query.spec.shape)}")
    factor = 1.0 / math.sqrt(query.spec.shape[-1]) if scale is None else float(scale)
    mask = None if attn_mask is None else additive(attn_mask, query)
    if mask is not None and mask.edge is not None:
        raise NotImplementedError("scaled_dot_product_attention: attn_mask has no gradient here: detach() it, or add it to "
                                  "scores of your own")
    if dropout_p:
        return weighted_attention(query, key, value, mask, is_causal, factor, dropout_p)[0]
    lead = query.spec.shape[:-2]
    parts = [_four(x) for x in (query, key, value)]
    out = attention.attention(*parts, mask, causal=bool(is_causal), scale=factor)
    return out if len(lead) == 2 else movement.reshape(out, (*lead, *out.spec.shape[2:]))


def _four(x: Tensor) -> Tensor:
    """[N, H, L, E] of [..., L, E]."""
    lead = x.spec.shape[:-2]
    if len(lead) == 2:
        return x
    return movement.reshape(x, (math.prod(lead[:-1]), lead[-1] if lead else 1, *x.spec.shape[-2:]))


def weighted_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float,
                    dropout: float) -> tuple[Tensor, Tensor]:
    """The result and the weights, out of ops that store the scores."""
    scores = linalg.matmul(query, key, transpose_b=True) * scale
    if causal:
        length, keys = scores.spec.shape[-2:]
        allowed = movement.tril(ones(length, keys, dtype=scores.spec.dtype,
                                     device=scores.storage.device), diagonal=0)
        scores = scores + additive(elementwise.ne(allowed, 0), scores)
    if mask is not None:
        scores = scores + mask
    weights = normalisers.softmax(scores, dim=scores.spec.ndim - 1)
    dropped = weights
    if dropout:
        generator = default_generator(weights.storage.device)
        dropped = random.dropout(weights, generator.snapshot(weights.spec.numel), float(dropout))
    return matmul(dropped, value), weights


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of ``weight`` [rows, columns] at integer positions: result [*input.shape, columns].

    Raises IndexError for a position outside on the CPU, and :class:`SpecError` for positions that are no integers.
    """
    if padding_idx is not None:
        rows = weight.spec.shape[0]
        if not -rows <= padding_idx < rows:
            raise ValueError("Padding_idx must be within num_embeddings")
        padding_idx %= rows
    return movement.embedding(weight, input, padding=padding_idx)
