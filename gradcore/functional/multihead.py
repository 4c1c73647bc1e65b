"""Multi-head attention over projections that are given."""

from __future__ import annotations

from typing import Any

from gradcore import functional
from gradcore.errors import SpecError
from gradcore.functional.attention import additive, scaled_dot_product_attention, weighted_attention
from gradcore.functional.padding import pad
from gradcore.ops import linalg, movement

Tensor = Any


class Heads:
    """What attention with several heads is made of: a layer has it by the same names as its parameters and options."""

    embed_dim: int
    kdim: int
    vdim: int
    num_heads: int
    head_dim: int
    batch_first: bool
    add_zero_attn: bool
    in_proj_weight: Tensor | None
    q_proj_weight: Tensor | None
    k_proj_weight: Tensor | None
    v_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    out_proj: Any

    def _module_attended(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, need_weights: bool,
                         attn_mask: Tensor | None, average_attn_weights: bool, is_causal: bool,
                         drop: float) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.spec.ndim == 3
        same = key is query, value is key
        _check_dims(query, key, value)
        q, k, v = (_batch_first(x, self.batch_first) for x in (query, key, value))
        n, length, width = q.spec.shape
        self._module_check(q, k, v, key_padding_mask, attn_mask)
        q, k, v = self._module_projected(q, k, v, *same)
        mask = self._module_mask(key_padding_mask, attn_mask, n, q)
        weights = None
        if need_weights:
            out, weights = weighted_attention(q, k, v, mask, self.head_dim ** -0.5, drop)
            if average_attn_weights:
                weights = functional.mean(weights, 1)
            weights = weights if batched else functional.squeeze(weights, 0)
        else:
            out = scaled_dot_product_attention(q, k, v, mask, drop)
        dims, shape = ((0, 2, 1, 3), (n, length)) if self.batch_first else ((2, 0, 1, 3), (length, n))
        out = self.out_proj(movement.reshape(movement.permute(out, dims=dims), (*shape, width)))
        return out if batched else functional.squeeze(out, 1 - self.batch_first), weights

    def _module_projected(self, q: Tensor, k: Tensor, v: Tensor, k_is_q: bool, v_is_k: bool) -> list[Tensor]:
        """Query, key and value projected and split into heads [N, H, L, E / H]."""
        width = self.embed_dim
        if self.in_proj_weight is not None and k_is_q and v_is_k:
            parts = list(movement.split(linalg.linear(q, self.in_proj_weight, self.in_proj_bias), sizes=(width,) * 3, dim=2))
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if self.in_proj_weight is None else \
                movement.split(self.in_proj_weight, sizes=(width,) * 3, dim=0)
            biases = (None,) * 3 if self.in_proj_bias is None else movement.split(self.in_proj_bias, sizes=(width,) * 3, dim=0)
            parts = [linalg.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
        parts[1:] = self._module_extended(parts[1], self.bias_k), self._module_extended(parts[2], self.bias_v)
        return [functional.transpose(movement.reshape(x, (*x.spec.shape[:2], self.num_heads, self.head_dim)), 1, 2)
                for x in parts]

    def _module_extended(self, x: Tensor, row: Tensor | None) -> Tensor:
        """Keys or values [N, S, E] with the appended positions."""
        shape = (x.spec.shape[0], 1, self.embed_dim)
        more = [] if row is None else [movement.expand(row, shape=shape)]
        if self.add_zero_attn:
            more.append(functional.zeros(shape, dtype=x.spec.dtype, device=x.storage.device))
        return functional.cat([x, *more], 1) if more else x

    def _module_check(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None) -> None:
        """Raises :class:`SpecError` for operands [N, L, E] or masks that do not fit the layer or each other."""
        for name, x, width in (("query", q, self.embed_dim), ("key", k, self.kdim), ("value", v, self.vdim)):
            if x.spec.shape[2] != width:
                raise SpecError(f"MultiheadAttention: was expecting {name} of embedding dimension {width}, but got "
                                f"{x.spec.shape[2]}")
        (n, length, _), keys = q.spec.shape, k.spec.shape[1]
        if not k.spec.shape[:2] == v.spec.shape[:2] == (n, keys):
            raise SpecError("MultiheadAttention: the sequence lengths of key and value, and the batch sizes of all three, must "
                            f"match, but query has batch and length {[n, length]}, key {list(k.spec.shape[:2])}, value "
                            f"{list(v.spec.shape[:2])}")
        for name, given, wanted in (
                ("attn_mask", mask, ([length, keys], [n * self.num_heads, length, keys])),
                ("key_padding_mask", padding, ([n, keys], *([[keys]] if n == 1 else [])))):
            if given is None:
                continue
            if list(given.spec.shape) not in wanted:
                raise SpecError(f"MultiheadAttention: the shape of {name} is {list(given.spec.shape)}, but should be "
                                f"{' or '.join(map(str, wanted))}")
            if given.spec.dtype.kind in "iu":
                raise SpecError(f"MultiheadAttention: only bool and floating types of {name} are supported, but got "
                                f"{given.spec.dtype.name}")

    def _module_mask(self, padding: Tensor | None, mask: Tensor | None, n: int, like: Tensor) -> Tensor | None:
        def added(given: Tensor) -> Tensor:
            return additive(functional.logical_not(given) if given.spec.dtype.kind == "b" else given, like)

        found = None
        if mask is not None:
            found = added(mask)
            if found.spec.ndim == 3:
                found = movement.reshape(found, (n, self.num_heads, *found.spec.shape[1:]))
        if padding is not None:
            rows = movement.reshape(added(padding), (n, 1, 1, padding.spec.shape[-1]))
            found = rows if found is None else found + rows
        more = (self.bias_k is not None) + self.add_zero_attn
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
    heads = Heads()
    if num_heads < 1 or embed_dim_to_check % num_heads:
        raise SpecError(f"embed_dim {embed_dim_to_check} not divisible by num_heads {num_heads}")
    apart = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (None, None, None)
    heads.in_proj_weight = None if use_separate_proj_weight else in_proj_weight
    heads.q_proj_weight, heads.k_proj_weight, heads.v_proj_weight = apart
    heads.embed_dim, heads.num_heads, heads.head_dim = embed_dim_to_check, num_heads, embed_dim_to_check // num_heads
    heads.kdim, heads.vdim = (embed_dim_to_check if w is None else w.spec.shape[1] for w in apart[1:])
    heads.in_proj_bias, heads.bias_k, heads.bias_v = in_proj_bias, bias_k, bias_v
    heads.add_zero_attn, heads.batch_first = add_zero_attn, False
    heads.out_proj = lambda x: linalg.linear(x, out_proj_weight, out_proj_bias)
    return heads._module_attended(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal,
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
