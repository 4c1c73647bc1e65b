"""Random compiled functions: views of and writes to parameters, arguments and results, some of them returned.

The caller computes the gradient, or the function does, or neither; results, gradients, arguments, parameters and buffers
equal those of eager calls bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore

F = gradcore.nn.functional
FUNCTIONS = 25


def numbers(seed: int, *shape: int) -> Any:
    return gradcore.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def copied(a: Any, b: Any) -> Any:
    z = gradcore.zeros(*a.shape)
    return z.copy_(a)


def written(a: Any, b: Any) -> Any:
    z = a.clone()
    z[0] = b.sum()
    return z


#: Functions of two tensors. Some read only the first.
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "half": lambda a, b: a * 0.5, "sum of the other": lambda a, b: a + b.sum(), "row": lambda a, b: a.reshape(-1),
    "transposed": lambda a, b: a.t(), "rest": lambda a, b: a[1:], "in place": lambda a, b: (a * 1).mul_(1.5),
    "written": written, "relu": lambda a, b: F.relu(a), "detached": lambda a, b: a.detach(),
    "part": lambda a, b: a.chunk(2)[-1],
    "expanded": lambda a, b: a[:1].expand(3, a.shape[1]), "product": lambda a, b: a @ a.t(), "cloned": lambda a, b: a.clone(),
    "copied": copied, "columns": lambda a, b: a.sum(0), "first": lambda a, b: a[0], "dropout": lambda a, b: F.dropout(a, 0.5),
    "filled": lambda a, b: gradcore.full(tuple(a.shape), 2.0) * b.sum(), "random": lambda a, b: a + gradcore.rand(*a.shape)}


def matrix(z: Any) -> Any:
    """At least two rows, so that every step is possible."""
    z = z.reshape(1, -1) if z.ndim < 2 else z
    return z if z.shape[0] > 1 else gradcore.cat([z, z * 2])


class Session:
    """A random function of two arguments, a parameter and a buffer, and the state after calls of it."""

    def __init__(self, seed: int, wrap: Callable[[Any], Any]) -> None:
        draw = random.Random(seed)
        names = [*STEPS, "buffer"]
        self.steps = [(draw.choice(names), draw.randrange(10), draw.randrange(10)) for _ in range(draw.randint(2, 8))]
        self.returned = [draw.randrange(20) for _ in range(draw.randint(1, 3))]
        self.mode = draw.choice(["caller", "caller", "function", "none"])
        self.leaf = draw.random() < 0.4
        self.seed = seed
        gradcore.manual_seed(seed)
        self.weight, self.buffer = numbers(seed, 4, 4).requires_grad_(), numbers(seed + 1, 1, 1)
        self.call: Any = wrap(self.step if self.mode == "function" else self.function)

    def function(self, x: Any, y: Any) -> tuple[Any, ...]:
        values = [x * 1.0, y * self.weight[:1, :], self.weight]
        for name, i, k in self.steps:
            a, b = values[i % len(values)], values[k % len(values)]
            if name == "buffer":
                with gradcore.no_grad():
                    self.buffer.mul_(0.9).add_(b.detach().sum() * 0.01)
                values.append(a + self.buffer)
            else:
                values.append(matrix(STEPS[name](a, b)))
        return tuple(values[k % len(values)] for k in self.returned)

    def step(self, x: Any, y: Any) -> tuple[Any, ...]:
        self.weight.grad = None
        found = self.function(x, y)
        losses = [(z * z).sum() for z in found if z.requires_grad]
        if losses:
            sum(losses[1:], losses[0]).backward()
        return found

    def run(self, k: int) -> list[Any]:
        x, y = numbers(7 * self.seed + k, 4, 4), numbers(7 * self.seed + k + 1, 4, 4)
        x.requires_grad_(self.leaf)
        # A program goes with the leaves that it was traced with.
        self.given = x, y
        self.weight.grad = None
        with gradcore.set_grad_enabled(self.mode != "none"):
            found = self.call(x, y)
            losses = [z.sum() * (i + 1) for i, z in enumerate(found) if z.requires_grad]
            if self.mode == "caller" and losses:
                sum(losses[1:], losses[0]).backward()
        tensors = [*found, self.weight, self.weight.grad, self.buffer, x, x.grad]
        # Results that a compiled function returns after computing a gradient itself have no graph.
        graphs = [z.requires_grad for z in found] if self.mode == "caller" else []
        return [None if t is None else t.detach().numpy().tobytes() for t in tensors] + graphs


@pytest.mark.parametrize("group", range(8))
def test_random_functions_have_the_bits_of_eager_calls(group: int) -> None:
    replayed = 0
    for seed in range(group * FUNCTIONS, (group + 1) * FUNCTIONS):
        found = []
        for wrap in (lambda f: f, gradcore.compile):
            # One after the other, since they draw from the same generator.
            session = Session(seed, wrap)
            found.append([session.run(k) for k in range(4)])
            # A method of the session, which refers to it.
            call, session.call = session.call, None
        for k, (eager, compiled) in enumerate(zip(*found, strict=True)):
            assert eager == compiled, (seed, session.mode, session.leaf, session.steps, session.returned, k)
        replayed += bool(call.programs)
    assert replayed >= FUNCTIONS * 0.8
