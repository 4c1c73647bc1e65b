"""Multi-head attention over projections that are given."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from gradcore import functional
from gradcore.arguments import warn
from gradcore.errors import SpecError
from gradcore.functional.attention import additive, scaled_dot_product_attention, weighted_attention
from gradcore.functional.padding import pad
from gradcore.functional.pointwise import masked_fill
from gradcore.ops import linalg, movement

Tensor = Any


def attended(layer: Any, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, need_weights: bool,
             attn_mask: Tensor | None, average_attn_weights: bool, is_causal: bool,
             drop: float) -> tuple[Tensor, Tensor | None]:
    """What a layer, or what has the same attributes, computes with a probability ``drop`` of dropping a weight."""
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    batched = query.spec.ndim == 3
    same = key is query, value is key
    _check_dims(query, key, value)
    q, k, v = (_batch_first(x, layer.batch_first) for x in (query, key, value))
    n, length, width = q.spec.shape
    _check(layer, q, k, v, key_padding_mask, attn_mask)
    q, k, v = _projected(layer, q, k, v, *same)
    mask = _mask(layer, key_padding_mask, attn_mask, n, q)
    weights = None
    if need_weights:
        out, weights = weighted_attention(q, k, v, mask, layer.head_dim ** -0.5, drop)
        if average_attn_weights:
            weights = functional.mean(weights, 1)
        weights = weights if batched else functional.squeeze(weights, 0)
    else:
        out = scaled_dot_product_attention(q, k, v, mask, drop)
    dims, shape = ((0, 2, 1, 3), (n, length)) if layer.batch_first else ((2, 0, 1, 3), (length, n))
    out = layer.out_proj(movement.reshape(movement.permute(out, dims=dims), (*shape, width)))
    return out if batched else functional.squeeze(out, 1 - layer.batch_first), weights


def _projected(layer: Any, q: Tensor, k: Tensor, v: Tensor, k_is_q: bool, v_is_k: bool) -> list[Tensor]:
    """Query, key and value projected and split into heads [N, H, L, E / H]."""
    width = layer.embed_dim
    if layer.in_proj_weight is not None and k_is_q and v_is_k:
        parts = list(movement.split(linalg.linear(q, layer.in_proj_weight, layer.in_proj_bias), sizes=(width,) * 3, dim=2))
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if layer.in_proj_weight is None else \
            movement.split(layer.in_proj_weight, sizes=(width,) * 3, dim=0)
        biases = (None,) * 3 if layer.in_proj_bias is None else movement.split(layer.in_proj_bias, sizes=(width,) * 3, dim=0)
        parts = [linalg.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
    parts[1:] = _extended(layer, parts[1], layer.bias_k), _extended(layer, parts[2], layer.bias_v)
    return [functional.transpose(movement.reshape(x, (*x.spec.shape[:2], layer.num_heads, layer.head_dim)), 1, 2)
            for x in parts]


def _extended(layer: Any, x: Tensor, row: Tensor | None) -> Tensor:
    """Keys or values [N, S, E] with the appended positions."""
    shape = (x.spec.shape[0], 1, layer.embed_dim)
    more = [] if row is None else [movement.expand(row, shape=shape)]
    if layer.add_zero_attn:
        more.append(functional.zeros(shape, dtype=x.spec.dtype, device=x.storage.device))
    return functional.cat([x, *more], 1) if more else x


def _check(layer: Any, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None) -> None:
    """Raises :class:`SpecError` for operands [N, L, E] or masks that do not fit the layer or each other."""
    for name, x, width in (("query", q, layer.embed_dim), ("key", k, layer.kdim), ("value", v, layer.vdim)):
        if x.spec.shape[2] != width:
            raise SpecError(f"MultiheadAttention: was expecting {name} of embedding dimension {width}, but got "
                            f"{x.spec.shape[2]}")
    (n, length, _), keys = q.spec.shape, k.spec.shape[1]
    if not k.spec.shape[:2] == v.spec.shape[:2] == (n, keys):
        raise SpecError("MultiheadAttention: the sequence lengths of key and value, and the batch sizes of all three, must "
                        f"match, but query has batch and length {[n, length]}, key {list(k.spec.shape[:2])}, value "
                        f"{list(v.spec.shape[:2])}")
    for name, given, wanted in (
            ("attn_mask", mask, ([length, keys], [n * layer.num_heads, length, keys])),
            ("key_padding_mask", padding, ([n, keys], *([[keys]] if n == 1 else [])))):
        if given is None:
            continue
        if list(given.spec.shape) not in wanted:
            raise SpecError(f"MultiheadAttention: the shape of {name} is {list(given.spec.shape)}, but should be "
                            f"{' or '.join(map(str, wanted))}")
        if given.spec.dtype.kind in "iu":
            raise SpecError(f"MultiheadAttention: only bool and floating types of {name} are supported, but got "
                            f"{given.spec.dtype.name}")


def _mask(layer: Any, padding: Tensor | None, mask: Tensor | None, n: int, like: Tensor) -> Tensor | None:
    def added(given: Tensor) -> Tensor:
        return additive(functional.logical_not(given) if given.spec.dtype.kind == "b" else given, like)

    found = None
    if mask is not None:
        found = added(mask)
        if found.spec.ndim == 3:
            found = movement.reshape(found, (n, layer.num_heads, *found.spec.shape[1:]))
    if padding is not None:
        rows = movement.reshape(added(padding), (n, 1, 1, padding.spec.shape[-1]))
        found = rows if found is None else found + rows
    more = (layer.bias_k is not None) + layer.add_zero_attn
    return pad(found, (0, more)) if more and found is not None else found


def multi_head_attention_forward(
        query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
        in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
        out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
        q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
        static_k: Tensor | None = None, static_v: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
    """What :class:`gradcore.nn.MultiheadAttention` computes from [L, N, E], or [L, E] without batch, with parameters given.

    Raises :class:`SpecError` for shapes that do not fit, NotImplementedError for ``static_k`` and ``static_v``.
    """
    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward(static_k=, static_v=) is not implemented by gradcore: give "
                                  "scaled_dot_product_attention the projected keys and values")
    if num_heads < 1 or embed_dim_to_check % num_heads:
        raise SpecError(f"embed_dim {embed_dim_to_check} not divisible by num_heads {num_heads}")
    apart = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (None, None, None)
    kdim, vdim = (embed_dim_to_check if w is None else w.spec.shape[1] for w in apart[1:])
    layer = SimpleNamespace(
        embed_dim=embed_dim_to_check, kdim=kdim, vdim=vdim, num_heads=num_heads, head_dim=embed_dim_to_check // num_heads,
        in_proj_weight=None if use_separate_proj_weight else in_proj_weight, q_proj_weight=apart[0], k_proj_weight=apart[1],
        v_proj_weight=apart[2], in_proj_bias=in_proj_bias, bias_k=bias_k, bias_v=bias_v, add_zero_attn=add_zero_attn,
        batch_first=False, out_proj=lambda x: linalg.linear(x, out_proj_weight, out_proj_bias))
    return attended(layer, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal,
                    dropout_p if training else 0.0)


def _check_dims(query: Tensor, key: Tensor, value: Tensor) -> None:
    ndims = [x.spec.ndim for x in (query, key, value)]
    if ndims not in ([2] * 3, [3] * 3):
        raise SpecError("MultiheadAttention: query, key and value must all be batched (3-D) or all unbatched (2-D), but are "
                        f"{', '.join(f'{n}-D' for n in ndims)}")


def _batch_first(x: Tensor, already: bool) -> Tensor:
    if x.spec.ndim == 2:
        return functional.unsqueeze(x, 0)
    return x if already else functional.transpose(x, 0, 1)


# What follows has PyTorch's names, by which layers of attention that a program writes itself import it.


def _in_projection_packed(q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor | None = None) -> list[Tensor]:
    """Query, key and value projected by the parts of a weight [3 E, E] and a bias [3 E]."""
    width = q.spec.shape[-1]
    if q is k and k is v:
        return list(functional.split(linalg.linear(q, w, b), width, -1))
    weights = functional.split(w, width)
    biases = (None,) * 3 if b is None else functional.split(b, width)
    return [linalg.linear(x, *of) for x, of in zip((q, k, v), zip(weights, biases, strict=True), strict=True)]


def _in_projection(q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, b_q: Tensor | None = None,
                   b_k: Tensor | None = None, b_v: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value projected, each by its own weight and bias."""
    return linalg.linear(q, w_q, b_q), linalg.linear(k, w_k, b_k), linalg.linear(v, w_v, b_v)


def _none_or_dtype(input: Tensor | None) -> Any:
    """The dtype of a mask, None without one."""
    return None if input is None else input.dtype


def _canonical_mask(mask: Tensor | None, mask_name: str, other_type: Any, other_name: str, target_type: Any,
                    check_other: bool = True) -> Tensor | None:
    """A mask as it is added to scores: minus infinity where a boolean one is True, else 0.

    Raises AssertionError for a mask of integers, and warns where another mask has another dtype.
    """
    if mask is None:
        return None
    kind = mask.spec.dtype.kind
    if kind in "iu":
        raise AssertionError(f"only bool and floating types of {mask_name} are supported, but got {mask.spec.dtype.name}")
    if check_other and other_type is not None and mask.dtype != other_type:
        warn(f"Support for mismatched {mask_name} and {other_name} is deprecated. Use same type for both instead.")
    if kind != "b":
        return mask
    return masked_fill(functional.zeros_like(mask, dtype=target_type), mask, -math.inf)
