"""Attention that never stores the scores: forward keeps one number a row, backward finds them again block by block.

Dao et al., FlashAttention, arXiv:2205.14135.
"""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, joint, no_second_derivative, op
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec
from gradcore.tiling import QUERIES, heads_at_once


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
    if mask is not None and (mask.ndim > 4 or any(n not in (1, m) for n, m in zip(
            mask.shape, scores[4 - mask.ndim:], strict=True))):
        raise SpecError(f"scaled_dot_product_attention: a mask of shape {list(mask.shape)} does not broadcast to the scores "
                        f"{list(scores)}")


def _block(q: TensorSpec, k: TensorSpec) -> tuple[int, int, int]:
    """Heads, queries and keys of the largest block."""
    return heads_at_once(q.shape[1], q.shape[2], k.shape[2]), min(q.shape[2], QUERIES), k.shape[2]


def _spec(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None = None, *, causal: bool,
          scale: float) -> Inferred:
    _check(q, k, v, mask)
    heads, rows, keys = _block(q, k)
    # Scores, scaled queries, ones to add scores up with, a number a row, the triangle that a causal block masks.
    room = heads * rows * (keys + q.shape[3] + 1) + keys + rows * rows
    return Inferred((_laid_like((*q.shape[:3], v.shape[3]), q),), (("lse", TensorSpec.of(q.shape[:3], q.dtype)),),
                    room * q.dtype.itemsize + 80)


def _grad_spec(dy: TensorSpec, q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None, out: TensorSpec,
               lse: TensorSpec, *, causal: bool, scale: float) -> Inferred:
    heads, rows, keys = _block(q, k)
    # Scores and their gradients, scaled queries, a product with either side, a number a row, the triangle.
    wide = max(q.shape[3], v.shape[3])
    room = heads * rows * (2 * keys + q.shape[3] + 1) + heads * max(rows, keys) * wide + rows * rows
    return Inferred((_laid_like(q.shape, q), _laid_like(k.shape, k), _laid_like(v.shape, v)), (),
                    room * q.dtype.itemsize + 96)


def _rule(g: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, causal: bool, scale: float) -> Any:
    return attention_grad(g, q, k, v, mask, out, lse, causal=causal, scale=scale)


attention = op("attention", _spec, joint("q", "k", "v")(_rule), aux=("lse",),
               doc="softmax(q k^T * scale + mask) v for each head; lse is the logarithm of each row's sum.")
attention_grad = op("attention_grad", _grad_spec, outputs=("dq", "dk", "dv"),
                    **no_second_derivative("scaled_dot_product_attention", "dy", "q", "k", "v", "out", "lse"))
