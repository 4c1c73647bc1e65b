"""The models of the benchmarks, each written once for both libraries, gradcore and torch, which share names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """A model, its batch and optimizer, and the number of steps in a timed round."""

    about: str
    build: Callable[[Any], Any]
    batch: int
    #: The shapes of one sample and of its labels.
    sample: tuple[int, ...]
    labels: tuple[int, ...]
    classes: int
    optimizer: str
    settings: dict[str, float]
    times: int
    #: The number of distinct tokens, if samples are tokens.
    tokens: int | None = None

    def arrays(self, seed: int = 0) -> tuple[Array, Array]:
        """One batch."""
        generator = np.random.default_rng(seed)
        shape = (self.batch, *self.sample)
        x = generator.standard_normal(shape).astype(np.float32) if self.tokens is None else generator.integers(
            0, self.tokens, shape)
        return x, generator.integers(0, self.classes, (self.batch, *self.labels))

    def with_batch(self, batch: int) -> Workload:
        return replace(self, batch=batch)


def loss_of(library: Any, model: Any, x: Any, y: Any) -> Any:
    """Cross-entropy over the last dimension of the model's output."""
    scores = model(x)
    return library.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), y.view(-1))


def step_on(library: Any, workload: Workload, device: str, weights: Any = None,
            **settings: Any) -> tuple[Callable[[Any, Any], Any], tuple[Any, Any]]:
    """A function of a batch that runs a training step of a new model and returns the loss; and a batch.

    The model starts from ``weights``, if given; ``settings`` are further options of its optimizer.
    """
    model = workload.build(library)
    if weights is not None:
        model.load_state_dict({name: library.tensor(value) for name, value in weights.items()})
    model = model.to(device)
    optimizer = getattr(library.optim, workload.optimizer)(model.parameters(), **workload.settings, **settings)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(library, model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = (library.tensor(a, device=device) for a in workload.arrays())
    return step, (x, y)


def check_losses(ours: list[float], theirs: list[float]) -> None:
    """Raise AssertionError unless the losses of two libraries' training runs from the same weights agree.

    The first losses are equal up to rounding. Updates accumulate rounding differences, and Adam's first ones, whose sizes
    depend only on the signs of gradients, enlarge them by orders of magnitude.
    """
    np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def mlp(*widths: int) -> Callable[[Any], Any]:
    def build(library: Any) -> Any:
        nn = library.nn
        layers: list[Any] = []
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build


def cnn(library: Any) -> Any:
    """Four blocks of convolution, batch norm and ReLU, with two poolings, then the mean over the plane and a linear layer."""
    nn = library.nn
    layers: list[Any] = []
    for i, o, pool in ((3, 32, False), (32, 32, True), (32, 64, True), (64, 128, False)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def gpt(library: Any, *, vocab: int = 256, context: int = 128, width: int = 192, layers: int = 6, heads: int = 6) -> Any:
    """A small GPT: pre-norm blocks of causal attention and a network four times as wide, with GELU."""
    nn = library.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(self.ln1(x)).split(c, dim=2)
            q, k, v = (a.view(b, t, heads, c // heads).transpose(1, 2) for a in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(nn.functional.gelu(self.up(self.ln2(x))))

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.places(library.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    return GPT()


SGD, ADAM = {"lr": 0.1, "momentum": 0.9}, {"lr": 1e-3}
WORKLOADS = {
    "small": Workload("MLP 64-128-128-10", mlp(64, 128, 128, 10), 64, (64,), (), 10, "SGD", SGD, 100),
    "large": Workload("MLP 784-1024-1024-1024-10", mlp(784, 1024, 1024, 1024, 10), 512, (784,), (), 10, "Adam", ADAM, 2),
    "cnn": Workload("CNN of four conv-BN-ReLU, 3x32x32", cnn, 64, (3, 32, 32), (), 10, "SGD", SGD, 1),
    "gpt": Workload("GPT of 6 layers, width 192, context 128", gpt, 8, (128,), (128,), 256, "Adam", ADAM, 1, tokens=256),
}
#: Batch sizes at which kept bytes are compared.
PEAK_BATCHES = {"cnn": 128, "gpt": 32}


def command(doc: str | None) -> argparse.ArgumentParser:
    """The argument parser of benchmarks of training steps."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--models", nargs="*", choices=tuple(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    return parser
