"""Layers of language models: attention with its projections, tables of embeddings."""

from __future__ import annotations

from typing import Any

from gradcore import functional
from gradcore._random import normal_
from gradcore.engine.modes import no_grad
from gradcore.functional.attention import additive, embedding, scaled_dot_product_attention, weighted_attention
from gradcore.nn import init
from gradcore.nn.linear import Linear
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.ops import linalg, movement

Tensor = Any


class MultiheadAttention(Module):
    """Several attentions side by side, between projections. Vaswani et al., arXiv:1706.03762.

    Inputs are [L, N, E], or [N, L, E] with ``batch_first``, or [L, E].
    """

    in_proj_weight: Parameter
    in_proj_bias: Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads, but got {embed_dim} and {num_heads}")
        for name, given, plain in (("add_bias_kv", add_bias_kv, False), ("add_zero_attn", add_zero_attn, False),
                                   ("kdim", kdim or embed_dim, embed_dim), ("vdim", vdim or embed_dim, embed_dim)):
            if given != plain:
                raise NotImplementedError(f"MultiheadAttention({name}={given}) is not supported")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.in_proj_weight = Parameter(functional.empty(3 * embed_dim, embed_dim, device=device, dtype=dtype))
        self.register_parameter("in_proj_bias", Parameter(functional.empty(3 * embed_dim, device=device, dtype=dtype))
                                if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None and self.out_proj.bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """The result and the weights [N, L, S] (with the heads [N, H, L, S] unless averaged), None without ``need_weights``.

        Boolean masks are True where a position is left out; ``key_padding_mask`` is [N, S], ``attn_mask`` [L, S] or
        [N * H, L, S]. Without weights the scores are never stored.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.spec.ndim == 3
        same = key is query, value is key
        q, k, v = (_batch_first(x, self.batch_first) for x in (query, key, value))
        n, length, width = q.spec.shape
        q, k, v = self._projected(q, k, v, *same)
        mask = self._mask(key_padding_mask, attn_mask, n, q)
        drop = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            out, weights = weighted_attention(q, k, v, mask, False, self.head_dim ** -0.5, drop)
            if average_attn_weights:
                weights = functional.mean(weights, 1)
            weights = weights if batched else functional.squeeze(weights, 0)
        else:
            out = scaled_dot_product_attention(q, k, v, mask, drop)
        out = self.out_proj(movement.reshape(functional.transpose(out, 1, 2), (n, length, width)))
        if not batched:
            return functional.squeeze(out, 0), weights
        return out if self.batch_first else functional.transpose(out, 0, 1), weights

    def _projected(self, q: Tensor, k: Tensor, v: Tensor, k_is_q: bool, v_is_k: bool) -> list[Tensor]:
        """Heads [N, H, L, E / H] of the three."""
        width = self.embed_dim
        if k_is_q and v_is_k:
            parts = list(movement.split(linalg.linear(q, self.in_proj_weight, self.in_proj_bias), sizes=(width,) * 3, dim=2))
        else:
            weights = movement.split(self.in_proj_weight, sizes=(width,) * 3, dim=0)
            biases = (None,) * 3 if self.in_proj_bias is None else movement.split(self.in_proj_bias, sizes=(width,) * 3, dim=0)
            parts = [linalg.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
        return [functional.transpose(movement.reshape(x, (*x.spec.shape[:2], self.num_heads, self.head_dim)), 1, 2)
                for x in parts]

    def _mask(self, padding: Tensor | None, mask: Tensor | None, n: int, like: Tensor) -> Tensor | None:
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
        return found


def _batch_first(x: Tensor, already: bool) -> Tensor:
    if x.spec.ndim == 2:
        return functional.unsqueeze(x, 0)
    return x if already else functional.transpose(x, 0, 1)


class Embedding(Module):
    """Rows of a table [num_embeddings, embedding_dim], by number. The row ``padding_idx`` has no gradient, and starts as 0."""

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                 sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        for name, given in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
            if given:
                raise NotImplementedError(f"Embedding({name}={given}) is not supported")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError("Padding_idx must be within num_embeddings")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            self.weight = Parameter(functional.empty(num_embeddings, embedding_dim, device=device, dtype=dtype), not _freeze)
            self.reset_parameters()
        else:
            if tuple(_weight.spec.shape) != (num_embeddings, embedding_dim):
                raise ValueError("Shape of weight does not match num_embeddings and embedding_dim")
            self.weight = Parameter(_weight, not _freeze)

    def reset_parameters(self) -> None:
        """Normal, as in PyTorch."""
        with no_grad():
            normal_(self.weight)
            if self.padding_idx is not None:
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor) -> Tensor:
        return embedding(input, self.weight, self.padding_idx)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A layer over a given table [rows, columns], which is not trained unless ``freeze=False``."""
        if embeddings.spec.ndim != 2:
            raise ValueError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.spec.shape
        return cls(rows, columns, padding_idx, _weight=embeddings, _freeze=freeze)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"
