"""Transformer layers, encoders and decoders. Vaswani et al., Attention Is All You Need, arXiv:1706.03762."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from gradcore.functional import full, triu
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.attention import MultiheadAttention
from gradcore.nn.container import ModuleList
from gradcore.nn.dropout import Dropout
from gradcore.nn.linear import Linear
from gradcore.nn.module import Module
from gradcore.nn.norm import LayerNorm

__all__ = ["Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

Tensor = Any
Activation = str | Callable[[Tensor], Tensor]


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    if callable(given):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    found: Callable[[Tensor], Tensor] = getattr(F, given)
    return found


class _Layer(Module):
    """Base of both layers: self-attention, two linear layers, and a layer norm before or after each part."""

    #: Is there attention to another sequence, too?
    _crossed = False

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        if self._crossed:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm_first = norm_first
        for k in range(2 + self._crossed):
            self.add_module(f"norm{k + 1}", LayerNorm(d_model, layer_norm_eps, bias=bias, **place))
        for k in range(2 + self._crossed):
            self.add_module(f"dropout{k + 1}", Dropout(dropout))
        self.activation = _activation(activation)
        if not isinstance(activation, str):
            self._foreign = True

    def _part(self, k: int, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """norm(x + dropout(part(x))), or x + dropout(part(norm(x))) with ``norm_first``; the norm is number ``k``."""
        norm, dropout = getattr(self, f"norm{k}"), getattr(self, f"dropout{k}")
        if self.norm_first:
            return x + dropout(part(norm(x)))
        return norm(x + dropout(part(x)))

    def _attended(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        return self.self_attn(x, x, x, padding, False, mask, is_causal=causal and mask is not None)[0]

    def _forward_part(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then two linear layers; sequences [L, N, E], or [N, L, E] with ``batch_first``, or [L, E]."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool = False) -> Tensor:
        x = self._part(1, src, lambda y: self._attended(y, src_mask, src_key_padding_mask, is_causal))
        return self._part(2, x, self._forward_part)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to ``memory``, then two linear layers; shapes as in :class:`TransformerEncoderLayer`."""

    _crossed = True

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        def looked_up(y: Tensor) -> Tensor:
            return self.multihead_attn(y, memory, memory, memory_key_padding_mask, False, memory_mask,
                                       is_causal=memory_is_causal and memory_mask is not None)[0]

        x = self._part(1, tgt, lambda y: self._attended(y, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        return self._part(3, self._part(2, x, looked_up), self._forward_part)


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """A stack of copies of an encoder layer, and a final norm if one is given.

    ``enable_nested_tensor`` and ``mask_check`` have no effect.
    """

    norm: Module | None

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.add_module("norm", norm)

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of copies of a decoder layer, and a final norm if one is given."""

    norm: Module | None

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.add_module("norm", norm)

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                        bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder of ``src`` [S, N, E], and a decoder of ``tgt`` [T, N, E] that attends to its output; the result is [T, N, E].

    With ``batch_first`` N comes first; without a batch it is left out.
    """

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 custom_encoder: Module | None = None, custom_decoder: Module | None = None, layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        how = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device,
               dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(TransformerEncoderLayer(*how), num_encoder_layers, norm())
        self.decoder = custom_decoder or TransformerDecoder(TransformerDecoderLayer(*how), num_decoder_layers, norm())
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
                memory_is_causal: bool = False) -> Tensor:
        if src.spec.shape[-1] != self.d_model or tgt.spec.shape[-1] != self.d_model:
            raise RuntimeError(f"the feature number of src and tgt must be equal to d_model, {self.d_model}, but got "
                               f"{src.spec.shape[-1]} and {tgt.spec.shape[-1]}")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                            tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """The causal mask [sz, sz]: minus infinity where a position would attend to a later one, else 0."""
        return triu(full((sz, sz), -math.inf, dtype=dtype, device=device), 1)
