"""Operands of cat that are made in its result: a replay has the eager bits, and its log shows no two buffers in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import Alloc, Free
from gradcore.program.planning.sharing import Lane
from gradcore.spec import TensorSpec
from tests.host.graph_mode.test_places import meeting

F = nn.functional
cat = gradcore.cat


def qkv(x: Any) -> Any:
    """Attention whose queries, keys and values are parts of one tensor, and its gradient."""
    x = x.reshape(2, 8, 96).detach().requires_grad_()
    q, k, v = (part.view(2, 8, 4, 8).transpose(1, 2) for part in x.split(32, dim=2))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return gradcore.autograd.grad(out.sum(), x)[0]


def account(records: Any) -> list[int]:
    """The allocated bytes that are live after each record."""
    live: dict[int, int] = {}
    sums = []
    for r in records:
        if isinstance(r, Alloc):
            live[r.serial] = r.allocated
        elif isinstance(r, Free):
            live.pop(r.serial, None)
        sums.append(sum(live.values()))
    return sums


def written(x: Any) -> Any:
    a = x.exp()
    a.mul_(2)
    return cat([a, x.sin()])


def read_later(x: Any) -> Any:
    a = x.exp()
    return cat([a, x.sin()]) + cat([a, a])


def in_two(x: Any) -> Any:
    a, b = x.exp(), x.sin()
    return cat([a, b]) + cat([b, x.cos()])


def read_as_one(x: Any) -> Any:
    a = x.exp()
    b = a.view(-1) * 2
    return cat([a], dim=1) + b.view(16, 96)


#: Of an argument of 16 rows of 96: the function, and the number of operands that are made in place.
CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "rows": (lambda x: cat([x.exp(), x[:8].sin(), x.t().contiguous().t().relu().t().contiguous().view(16, 96)]), 3),
    "a last one that fills no whole line": (lambda x: cat([x.exp(), x[:8].sin(), x[:1].cos()]), 3),
    "one before that fills no whole line": (lambda x: cat([x[:1].cos(), x.exp()]), 0),
    "a stack": (lambda x: gradcore.stack([x.exp(), x.sin(), x.cos()]), 3),
    "steps, each from the one before": (lambda x: gradcore.stack([a := x.tanh(), b := (a @ a.t() @ x).tanh(), b * a]), 3),
    "one that is read in between": (lambda x: cat([a := x.exp(), a * 2]), 2),
    "one that is written to in between": (written, 2),
    "one that is read later": (read_later, 0),
    "the last of two results": (in_two, 2),
    "what is returned": (lambda x: (a := x.exp(), cat([a, x.sin()])), 0),
    "one twice": (lambda x: cat([a := x.exp(), a]), 0),
    "an argument": (lambda x: cat([x, x.exp()]), 0),
    "a part of one": (lambda x: cat([x.exp()[:8], x.sin()]), 0),
    "another dtype": (lambda x: cat([x.exp(), (x > 0)]), 0),
    "nothing": (lambda x: cat([x[:0].exp(), x.sin()]), 0),
    "a result of cat": (lambda x: cat([cat([x.exp(), x.sin()]), x.cos()]), 2),
    "columns of ops that write rows": (lambda x: cat([x.exp(), x.sin()], dim=1), 0),
    "columns of an op that writes any strides": (qkv, 3),
    "a result that is overwritten": (lambda x: cat([x.exp(), x.sin()]).relu().sqrt(), 2),
    "one alone, whose rows are read as one": (read_as_one, 1),
    "one over its operand": (lambda x: cat([(x + 1).exp(), x.sin()]), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replay_has_the_bits_of_the_eager_run_and_its_log(case: str) -> None:
    function, count = CASES[case]
    run = gradcore.compile(lambda x: function(x))
    x = np.random.default_rng(0).standard_normal((16, 96)).astype(np.float32)
    for k in range(4):
        given = gradcore.tensor(x * (k + 1))
        wanted = function(given)
        with gradcore.step() as replayed:
            found = run(given)
        pairs = zip(*[v if isinstance(v, tuple) else (v,) for v in (found, wanted)], strict=True)
        assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)
        assert not meeting(replayed.log)
    assert len(run.traces) == 1, run.explain()
    assert len(run.plans[0].lanes) == count
    assert replayed.report.peak.allocated == max(account(replayed.log))
    (replay,) = [entry.replay for entry in run._cached()]
    joined = [k for k, i in enumerate(replay.program.instructions) if i.op == "cat"]
    idle = {k for k, i in enumerate(replay.program.instructions) if i not in replay._bound.calls.callers[0]}
    assert len(idle & {*joined}) == (count > 0)


def test_a_caller_who_differentiates_gets_the_eager_bits() -> None:
    """The result of the first part is read in the second."""
    weight = gradcore.tensor(np.random.default_rng(1).standard_normal((96, 96)).astype(np.float32), requires_grad=True)
    x = gradcore.tensor(np.random.default_rng(2).standard_normal((16, 96)).astype(np.float32))

    def function(x: Any) -> Any:
        return cat([x + 1, (x @ weight.detach()).abs()]) @ weight

    run, slopes = gradcore.compile(function), []
    for f in (function, run, run, run):
        (f(x) ** 2).sum().backward()
        slopes.append(weight.grad.numpy().tobytes())
        weight.grad = None
    assert len(set(slopes)) == 1 and len(run.plans[0].lanes) == 2 and len(run.traces) == 1


def test_a_gradient_that_stays_is_made_as_it_was() -> None:
    """Its place holds the former gradient, which the run still reads when the operands are made."""
    weight = gradcore.tensor(np.ones((32, 96), np.float32), requires_grad=True)
    x = gradcore.tensor(np.random.default_rng(2).standard_normal((16, 96)).astype(np.float32))

    def step(x: Any) -> Any:
        a, b = weight.split(16)
        total = ((a * x).exp() + (b * x).sin()).sum()
        before = 0.0 if weight.grad is None else weight.grad.sum()
        weight.grad = None
        total.backward()
        return total + before

    runs = []
    for f in (step, gradcore.compile(step)):
        weight.grad = None
        runs.append([(f(x).item(), weight.grad.numpy().tobytes()) for _ in range(4)])
    assert runs[0] == runs[1]


def test_views_of_a_lane_are_views_of_its_whole() -> None:
    lane, numbers = Lane(7, 6, 18, 6), np.arange(4 * 18).reshape(4, 18)
    rows = numbers[:, 6:12].copy()
    for shape, strides, offset in (
            ((4, 6), (6, 1), 0), ((4, 2, 3), (6, 3, 1), 0), ((2, 4, 3), (3, 6, 1), 0), ((2, 3), (12, 2), 6), ((4,), (6,), 5),
            ((1, 6), (99, 1), 6), ((3,), (0,), 2)):
        found = lane.spec(TensorSpec.strided(shape, "int64", strides, offset))
        assert found is not None and (found.shape, found.dtype) == (shape, np.dtype("int64"))
        seen, expected = (np.lib.stride_tricks.as_strided(a.reshape(-1)[at:], shape, [8 * s for s in steps])
                          for a, steps, at in ((numbers, found.strides, found.offset), (rows, strides, offset)))
        np.testing.assert_array_equal(seen, expected)
    for shape, strides, offset in (((24,), (1,), 0), ((7,), (1,), 0), ((6,), (1,), 1), ((3, 4), (4, 1), 0)):
        assert lane.spec(TensorSpec.strided(shape, "int64", strides, offset)) is None


