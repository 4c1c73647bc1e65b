"""A small character-level GPT. Radford et al., Language Models are Unsupervised Multitask Learners, 2019."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import functional, nn
from gradcore.data.text import Text, Windows
from gradcore.models.tasks import TextTask
from gradcore.models.workload import Workload

Tensor = Any


class Block(nn.Module):
    """A transformer block: pre-norm causal attention and a network four times as wide, with residuals; [N, T, width]."""

    def __init__(self, width: int, heads: int, device: Any = None) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width, device=device)
        self.qkv = nn.Linear(width, 3 * width, device=device)
        self.proj = nn.Linear(width, width, device=device)
        self.ln2 = nn.LayerNorm(width, device=device)
        self.up = nn.Linear(width, 4 * width, device=device)
        self.down = nn.Linear(4 * width, width, device=device)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """Logits [N, T, vocab] of the next character, for input int64 [N, T] with T at most ``context``."""

    def __init__(self, vocab: int, context: int = 64, width: int = 96, layers: int = 3, heads: int = 4,
                 device: Any = None) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width must be divisible by the number of heads, but got {width} and {heads}")
        self.context = context
        self.tokens = nn.Embedding(vocab, width, device=device)
        self.places = nn.Embedding(context, width, device=device)
        self.blocks = nn.ModuleList([Block(width, heads, device) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, device=device)
        self.head = nn.Linear(width, vocab, device=device)
        # Embeddings with deviation 1 would dominate what the blocks add to them.
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.context:
            raise ValueError(f"expected at most {self.context} characters, the model's context, but got {length}")
        h = self.tokens(x) + self.places(functional.arange(length, device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def loss(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy in nats per character."""
    scores = module(x)
    return nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), y.view(-1))


def build(dataset: Any, device: Any) -> Workload:
    """3 layers of width 96 and a context of 64 characters, for the alphabet of ``dataset``."""
    if not isinstance(dataset, Text):
        raise ValueError(f"the model chargpt is trained on text, but {dataset.name} holds images: try --data python-docs")
    module = GPT(dataset.classes, device=device)

    def example(batch_size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return Windows(dataset.train, module.context, batch_size).draw()

    return Workload(module, example, loss, TextTask(dataset, module.context, loss))
