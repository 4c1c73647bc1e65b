"""Multi-head attention, and PyTorch's choice among kernels of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from gradcore import functional
from gradcore.errors import SpecError
from gradcore.functional.attention import additive, scaled_dot_product_attention, weighted_attention
from gradcore.functional.padding import pad
from gradcore.nn import init
from gradcore.nn.linear import Linear
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.ops import linalg, movement

Tensor = Any


class SDPBackend(IntEnum):
    """PyTorch's kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: SDPBackend | list[SDPBackend], set_priority: bool = False) -> Iterator[None]:
    """Do nothing: attention has one kernel, which never stores the scores. Raises TypeError for anything but a backend or a
    list of them."""
    for backend in backends if isinstance(backends, (list, tuple)) else [backends]:
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel expected a SDPBackend or a list of them, but got {type(backend).__name__}")
    yield


class MultiheadAttention(Module):
    """Multi-head attention with input and output projections. Vaswani et al., arXiv:1706.03762.

    Inputs are [L, N, E], or [N, L, E] with ``batch_first``, or [L, E] without batch; ``kdim`` and ``vdim`` are the widths of
    keys and values, by default E. ``add_bias_kv`` appends a learned position to keys and values, ``add_zero_attn`` one of
    zeros; masks do not apply to them. Raises ValueError if ``num_heads`` does not divide ``embed_dim``.
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be divisible by num_heads, but got {embed_dim} and {num_heads}")
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.add_zero_attn = add_zero_attn

        def made(name: str, wanted: bool, *shape: int) -> None:
            self.register_parameter(name, Parameter(functional.empty(shape, device=device, dtype=dtype)) if wanted else None)

        apart = self.kdim != embed_dim or self.vdim != embed_dim
        made("q_proj_weight", apart, embed_dim, embed_dim)
        made("k_proj_weight", apart, embed_dim, self.kdim)
        made("v_proj_weight", apart, embed_dim, self.vdim)
        made("in_proj_weight", not apart, 3 * embed_dim, embed_dim)
        made("in_proj_bias", bias, 3 * embed_dim)
        made("bias_k", add_bias_kv, 1, 1, embed_dim)
        made("bias_v", add_bias_kv, 1, 1, embed_dim)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for row in (self.bias_k, self.bias_v):
            if row is not None:
                init.xavier_normal_(row)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """The result and the attention weights [N, L, S] ([N, H, L, S] unless averaged), or None without ``need_weights``.

        Boolean masks are True where a position is ignored; ``key_padding_mask`` is [N, S], ``attn_mask`` [L, S] or
        [N * H, L, S]. Positions appended to keys and values come last in S. Without weights, the scores are never stored.
        Raises :class:`SpecError` for shapes and masks that do not fit.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.spec.ndim == 3
        same = key is query, value is key
        _check_dims(query, key, value)
        q, k, v = (_batch_first(x, self.batch_first) for x in (query, key, value))
        n, length, width = q.spec.shape
        self._check(q, k, v, key_padding_mask, attn_mask)
        q, k, v = self._projected(q, k, v, *same)
        mask = self._mask(key_padding_mask, attn_mask, n, q)
        drop = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            out, weights = weighted_attention(q, k, v, mask, self.head_dim ** -0.5, drop)
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
        """Query, key and value projected and split into heads [N, H, L, E / H]."""
        width = self.embed_dim
        if self.in_proj_weight is not None and k_is_q and v_is_k:
            parts = list(movement.split(linalg.linear(q, self.in_proj_weight, self.in_proj_bias), sizes=(width,) * 3, dim=2))
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if self.in_proj_weight is None else \
                movement.split(self.in_proj_weight, sizes=(width,) * 3, dim=0)
            biases = (None,) * 3 if self.in_proj_bias is None else movement.split(self.in_proj_bias, sizes=(width,) * 3, dim=0)
            parts = [linalg.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
        parts[1:] = self._extended(parts[1], self.bias_k), self._extended(parts[2], self.bias_v)
        return [functional.transpose(movement.reshape(x, (*x.spec.shape[:2], self.num_heads, self.head_dim)), 1, 2)
                for x in parts]

    def _extended(self, x: Tensor, row: Parameter | None) -> Tensor:
        """Keys or values [N, S, E] with the appended positions."""
        shape = (x.spec.shape[0], 1, self.embed_dim)
        more = [] if row is None else [movement.expand(row, shape=shape)]
        if self.add_zero_attn:
            more.append(functional.zeros(shape, dtype=x.spec.dtype, device=x.storage.device))
        return functional.cat([x, *more], 1) if more else x

    def _check(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None) -> None:
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
        more = (self.bias_k is not None) + self.add_zero_attn
        return pad(found, (0, more)) if more and found is not None else found


def _check_dims(query: Tensor, key: Tensor, value: Tensor) -> None:
    ndims = [x.spec.ndim for x in (query, key, value)]
    if ndims not in ([2] * 3, [3] * 3):
        raise SpecError("MultiheadAttention: query, key and value must all be batched (3-D) or all unbatched (2-D), but are "
                        f"{', '.join(f'{n}-D' for n in ndims)}")


def _batch_first(x: Tensor, already: bool) -> Tensor:
    if x.spec.ndim == 2:
        return functional.unsqueeze(x, 0)
    return x if already else functional.transpose(x, 0, 1)
