"""Multi-head attention, and PyTorch's choice among kernels of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from gradcore import functional
from gradcore.functional.multihead import attended
from gradcore.nn import init
from gradcore.nn.linear import NonDynamicallyQuantizableLinear
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

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
        #: By PyTorch's name, which code that calls ``multi_head_attention_forward`` reads.
        self._qkv_same_embed_dim = not apart
        made("q_proj_weight", apart, embed_dim, embed_dim)
        made("k_proj_weight", apart, embed_dim, self.kdim)
        made("v_proj_weight", apart, embed_dim, self.vdim)
        made("in_proj_weight", not apart, 3 * embed_dim, embed_dim)
        made("in_proj_bias", bias, 3 * embed_dim)
        made("bias_k", add_bias_kv, 1, 1, embed_dim)
        made("bias_v", add_bias_kv, 1, 1, embed_dim)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
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
        return attended(self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal,
                        self.dropout if self.training else 0.0)
