"""Random functions that join results by cat and stack: a replay has the eager bits, and its log no two buffers in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.host.graph_mode.test_places import meeting

F = nn.functional
cat, stack = gradcore.cat, gradcore.stack


def heads(x: Any) -> Any:
    """Causal attention whose queries, keys and values are columns of ``x``."""
    rows, width = x.shape
    if width % 24 or rows % 8:
        return x * 1
    q, k, v = (part.reshape(-1, 8, 4, width // 12).transpose(1, 2) for part in x.reshape(-1, 8, width).split(width // 3, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, width // 3).repeat(1, 3)


def written(x: Any) -> Any:
    a = x + 1
    a.mul_(0.5)
    return cat([a, a + 1])[:32]


ONE: list[Callable[[Any], Any]] = [
    lambda x: x.tanh(), lambda x: x.sin() * 0.5, F.relu, heads, written, lambda x: cat([x.tanh(), x.sin()]),
    lambda x: cat([x.tanh(), x.cos()], dim=1), lambda x: stack([x.tanh(), x * 2, x.abs()]).mean(0),
    lambda x: cat([part.tanh() for part in x.chunk(2)]), lambda x: F.relu(cat([x.sin(), x.cos()]))[:16]]
TWO: list[Callable[[Any, Any], Any]] = [
    lambda x, y: cat([x[:8].tanh(), y[:8].sin()]), lambda x, y: cat([x, y])[:64], lambda x, y: cat([x.abs(), y.abs(), x.cos()])]


def drawn(seed: int) -> Callable[[Any, Any], list[Any]]:
    generator = np.random.default_rng(seed)
    steps = [(generator.random() < 0.3, int(generator.integers(100)), int(generator.integers(100)))
             for _ in range(generator.integers(5, 12))]

    def function(x: Any, w: Any) -> list[Any]:
        made = [x, w]
        for two, which, other in steps:
            alike = [v for v in made if v.shape[1] == made[-1].shape[1]]
            y = TWO[which % len(TWO)](made[-1], alike[other % len(alike)]) if two else ONE[which % len(ONE)](made[-1])
            made.append(y[:8] if y.numel() > 40_000 else y)
        return [made[-1], made[len(made) // 2]]

    return function


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_a_replay_has_the_bits_of_the_eager_run(first: int, trained: bool) -> None:
    lanes = 0
    for seed in range(first, first + 10):
        function, values = drawn(seed), np.random.default_rng(seed).standard_normal((2, 16, 96)).astype(np.float32)

        def step(x: Any, w: Any, function: Any = function) -> list[Any]:
            w.grad = None
            results = function(x, w)
            if trained:
                sum((y * y).mean() for y in (*results, w * x)).backward()
            return [y.detach() for y in results]

        found = []
        for run in (step, compiled := gradcore.compile(step)):
            w = gradcore.tensor(values[1], requires_grad=trained)
            for k in range(4):
                with gradcore.step() as s:
                    results = run(gradcore.tensor(values[0] * (1 + k / 8)), w)
                assert not meeting(s.log), seed
                found.append([y.numpy().tobytes() for y in (*results, *([w.grad] if trained else []))])
        assert found[:4] == found[4:] and len(compiled.traces) <= 2, seed
        lanes += len(compiled.plans[0].lanes)
    assert lanes > 10
