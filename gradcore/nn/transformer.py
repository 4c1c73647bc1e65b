"""Transformer layers, encoders and decoders. Vaswani et al., Attention Is All You Need, arXiv:1706.03762."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from gradcore.functional import full
from gradcore.functional.matrices import triu
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


def _get_activation_fn(activation: Activation) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    found: Callable[[Tensor], Tensor] = getattr(F, activation)
    return found


class _Layer(Module):
    """Base of both layers: self-attention, two linear layers, and a layer norm before or after each part."""

    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout
    #: Is there attention to another sequence, too?
    _module_crossed = False

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        if self._module_crossed:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm_first = norm_first
        for k in range(2 + self._module_crossed):
            self.add_module(f"norm{k + 1}", LayerNorm(d_model, layer_norm_eps, bias=bias, **place))
        for k in range(2 + self._module_crossed):
            self.add_module(f"dropout{k + 1}", Dropout(dropout))
        self.activation = _get_activation_fn(activation)
        if not isinstance(activation, str):
            self._module_foreign = True

    def _module_part(self, k: int, x: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """norm(x + block(x)), or x + block(norm(x)) with ``norm_first``; the norm is number ``k``."""
        norm = getattr(self, f"norm{k}")
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    # The blocks have PyTorch's names, since subclasses override them, and attention is called by the names of its arguments,
    # since programs put their own in its place.

    def _sa_block(self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
                  is_causal: bool = False) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
                                            need_weights=False, is_causal=is_causal)[0])

    def _ff_block(self, x: Tensor) -> Tensor:
        last = self.dropout3 if self._module_crossed else self.dropout2
        return last(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then two linear layers; sequences [L, N, E], or [N, L, E] with ``batch_first``, or [L, E]."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool = False) -> Tensor:
        x = self._module_part(1, src, lambda y: self._sa_block(y, src_mask, src_key_padding_mask, is_causal=is_causal))
        return self._module_part(2, x, self._ff_block)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to ``memory``, then two linear layers; shapes as in :class:`TransformerEncoderLayer`."""

    _module_crossed = True

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        x = self._module_part(1, tgt, lambda y: self._sa_block(y, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self._module_part(2, x, lambda y: self._mha_block(y, memory, memory_mask, memory_key_padding_mask,
                                                              memory_is_causal))
        return self._module_part(3, x, self._ff_block)

    def _mha_block(self, x: Tensor, mem: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
                   is_causal: bool = False) -> Tensor:
        return self.dropout2(self.multihead_attn(x, mem, mem, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
                                                 need_weights=False, is_causal=is_causal)[0])


def _get_clones(module: Module, N: int) -> ModuleList:
    return ModuleList([copy.deepcopy(module) for _ in range(N)])


def _get_seq_len(src: Tensor, batch_first: bool) -> int:
    """The length of a sequence [S, E], or of a batch of them."""
    found: int = src.shape[1 if batch_first and src.dim() == 3 else 0]
    return found


def _detect_is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Is the mask said to be causal? PyTorch also compares it with the causal one, which reads it; it is applied as it is."""
    return bool(is_causal)


def _generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
    """The causal mask [sz, sz]: minus infinity where a position would attend to a later one, else 0."""
    return triu(full((sz, sz), -math.inf, dtype=dtype, device=device), 1)


class TransformerEncoder(Module):
    """A stack of copies of an encoder layer, and a final norm if one is given.

    ``enable_nested_tensor`` and ``mask_check`` have no effect.
    """

    norm: Module | None

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True) -> None:
        super().__init__()
        self.layers = _get_clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of copies of a decoder layer, and a final norm if one is given."""

    norm: Module | None

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _get_clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                        memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                        memory_is_causal=memory_is_causal)
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

        # A module that has a length may be false.
        self.encoder = custom_encoder if custom_encoder is not None else TransformerEncoder(
            TransformerEncoderLayer(*how), num_encoder_layers, norm())
        self.decoder = custom_decoder if custom_decoder is not None else TransformerDecoder(
            TransformerDecoderLayer(*how), num_decoder_layers, norm())
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
                memory_is_causal: bool = False) -> Tensor:
        if src.spec.shape[-1] != self.d_model or tgt.spec.shape[-1] != self.d_model:
            raise RuntimeError(f"the feature number of src and tgt must be equal to d_model, {self.d_model}, but got "
                               f"{src.spec.shape[-1]} and {tgt.spec.shape[-1]}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
                            memory_is_causal=memory_is_causal)

    generate_square_subsequent_mask = staticmethod(_generate_square_subsequent_mask)
