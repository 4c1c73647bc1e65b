"""Attention that never stores the scores: forward keeps one number a row, backward finds them again block by block.

Dao et al., FlashAttention, arXiv:2205.14135.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.ops.arrangement import tril
from gradcore.ops.creation import full
from gradcore.ops.elementwise import exp, ge, where
from gradcore.ops.linalg import matmul
from gradcore.ops.movement import broadcasts, cast, cast_to, column, narrow
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.random import STATE, uniform
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec
from gradcore.tiling import scores_at_once, words_a_row


def _laid_like(shape: tuple[int, ...], q: TensorSpec) -> TensorSpec:
    """Heads within positions in memory where the queries lie so: what a model's transposes then do is free."""
    if len(shape) == 4 and q.strides[1] < q.strides[2]:
        _, h, n, e = shape
        return TensorSpec.strided(shape, q.dtype, (n * h * e, e, h * e, 1), 0)
    return TensorSpec.of(shape, q.dtype)


def _check(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None) -> None:
    need_float("scaled_dot_product_attention", query=q, key=k, value=v, attn_mask=mask)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4 or q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or (
            q.shape[3] != k.shape[3]):
        raise SpecError(f"scaled_dot_product_attention: expected query [N, H, L, E], key [N, H, S, E] and value "
                        f"[N, H, S, Ev], but got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise SpecError(f"Expected query, key, and value to have the same dtype, but got query.dtype: {q.dtype.name} "
                        f"key.dtype: {k.dtype.name} and value.dtype: {v.dtype.name} instead.")
    scores = (*q.shape[:3], k.shape[2])
    if mask is not None and not broadcasts(mask.shape, scores):
        raise SpecError(f"scaled_dot_product_attention: a mask of shape {list(mask.shape)} does not broadcast to the scores "
                        f"{list(scores)}")


def _block(q: TensorSpec, k: TensorSpec) -> tuple[int, int]:
    """Matrices and queries of the largest block."""
    batch, heads, length, _ = q.shape
    samples, some, queries = scores_at_once(batch, heads, length, k.shape[2])
    return samples * some, queries


def _drawn_bytes(k: TensorSpec, matrices: int, rows: int, dropping: bool) -> int:
    """Bytes of one matrix's uniforms, of what they leave of each score, and of a generator's state."""
    if not dropping:
        return 0
    keys = k.shape[2]
    return rows * words_a_row(keys) * 4 + matrices * rows * keys * k.dtype.itemsize + STATE.nbytes + 32


def _spec(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None = None, state: TensorSpec | None = None,
          drop: type | None = None, *, causal: bool, scale: float) -> Inferred:
    _check(q, k, v, mask)
    (matrices, rows), keys = _block(q, k), k.shape[2]
    # Scores, scaled queries, ones to add scores up with, a number a row, the triangle that a causal block masks.
    elements = matrices * rows * (keys + q.shape[3] + 1) + keys + rows * rows
    return Inferred((_laid_like((*q.shape[:3], v.shape[3]), q),), (("lse", TensorSpec.of(q.shape[:3], q.widened().dtype)),),
                    elements * q.dtype.itemsize + 80 + _drawn_bytes(k, matrices, rows, state is not None))


def _grad_spec(dy: TensorSpec, q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None, out: TensorSpec,
               lse: TensorSpec, state: TensorSpec | None = None, drop: type | None = None, *, causal: bool,
               scale: float) -> Inferred:
    (matrices, rows), keys = _block(q, k), k.shape[2]
    # Scores and their gradients, scaled queries, dy, dy times out, ones, a number a row, a product, the triangle.
    elements = matrices * rows * (2 * keys + q.shape[3] + 2 * v.shape[3] + 1) + v.shape[3] + rows * rows
    elements += matrices * keys * max(q.shape[3], v.shape[3])
    return Inferred((_laid_like(q.shape, q), _laid_like(k.shape, k), _laid_like(v.shape, v)), (),
                    elements * q.dtype.itemsize + 144 + _drawn_bytes(k, matrices, rows, state is not None))


def _rule(g: Any, g_lse: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any, drop: Any, causal: bool,
          scale: float) -> Any:
    if g_lse is None:
        return attention_grad(g, q, k, v, mask, out, lse, state, drop, causal=causal, scale=scale)
    wide_q, wide_k = _widened(q, k)
    slopes = _weights(wide_q, wide_k, mask, lse, causal, scale) * column(g_lse) * scale
    dq, dk, dv = matmul(slopes, wide_k), matmul(slopes, wide_q, transpose_a=True), None
    if g is not None:
        found = attention_grad(g, q, k, v, mask, out, lse, state, drop, causal=causal, scale=scale)
        dq, dk, dv = found[0] + dq, found[1] + dk, found[2]
    return cast_to(dq, q.spec), cast_to(dk, k.spec), dv


# -- the gradient out of ops that store the scores, for whoever differentiates it --------------------------------------


def _widened(*tensors: Any) -> list[Any]:
    """16-bit floats in float32, in which lse is."""
    return [cast_to(x, x.spec.widened()) for x in tensors]


def _weights(q: Any, k: Any, mask: Any, lse: Any, causal: bool, scale: float) -> Any:
    """softmax(q k^T * scale + mask), each row's logarithm of a sum being known."""
    scores = matmul(q, k, transpose_b=True) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        every = full(True, shape=scores.spec.shape[2:], dtype=np.dtype(np.bool_), device=q.storage.device)
        scores = where(tril(every, diagonal=0), scores, -math.inf)
    return exp(scores - column(lse))


def _left(weights: Any, state: Any, drop: float) -> Any:
    """What dropout leaves of each weight: 0 or 1 / (1 - drop)."""
    *lead, keys = weights.spec.shape
    drawn = uniform(state, 0.0, 1.0, shape=(*lead, words_a_row(keys)), dtype=np.dtype(np.float32))
    kept = cast(ge(narrow(drawn, len(lead), 0, keys), drop), dtype=weights.spec.dtype)
    return kept * (0.0 if drop >= 1 else 1 / (1 - drop))


def _slopes(dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any, drop: Any, causal: bool,
            scale: float) -> Any:
    dy, q, k, v = _widened(dy, q, k, v)
    weights = dropped = _weights(q, k, mask, lse, causal, scale)
    slopes = matmul(dy, v, transpose_b=True)
    if state is not None:
        left = _left(weights, state, drop)
        dropped, slopes = weights * left, slopes * left
    slopes = weights * (slopes - sum(dy * out, dims=(3,), keepdim=True)) * scale
    return matmul(slopes, k), matmul(slopes, q, transpose_a=True), matmul(dropped, dy, transpose_a=True)


def _flops(q: TensorSpec, k: TensorSpec, v: TensorSpec, of_queries: int, of_values: int) -> int:
    """Of so many products of all scores with vectors as wide as a query, and so many with vectors as wide as a value."""
    return 2 * math.prod(q.shape[:3]) * k.shape[2] * (of_queries * q.shape[3] + of_values * v.shape[3])


attention = op("attention", _spec, joint("q", "k", "v")(_rule), aux=("lse",), flops=lambda q, k, v: _flops(q, k, v, 1, 1),
               doc="softmax(q k^T * scale + mask) v for each head; lse is the logarithm of each row's sum. With ``drop`` each "
                   "weight is 0 with that probability, else 1 / (1 - drop) times itself. Row r of all scores takes the numbers "
                   "from 8 r ceil(S / 8) on of the stream that begins at ``state``: backward draws them again.")
attention_grad = op("attention_grad", _grad_spec, derived("dy", "q", "k", "v", "out", "lse")(_slopes),
                    outputs=("dq", "dk", "dv"), any_strides=True, flops=lambda q, k, v: _flops(q, k, v, 3, 2))
