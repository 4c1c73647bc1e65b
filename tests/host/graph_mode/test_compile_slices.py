"""Arguments that are parts of a larger tensor: one program for all places in it, equal to the eager call at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn


def whole(*shape: int, dtype: Any = np.float32) -> Any:
    return gradcore.tensor(np.arange(int(np.prod(shape))).reshape(shape).astype(dtype))


def test_an_epoch_over_slices_is_one_program() -> None:
    def losses(wrap: Callable[[Any], Any]) -> tuple[list[float], Any]:
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
        x, y = whole(40, 4).sin(), whole(40, dtype=np.int64) % 3

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(step)
        return [step(x[k:k + 4], y[k:k + 4]).item() for _ in range(2) for k in range(0, 40, 4)], step

    eager, _ = losses(lambda f: f)
    compiled, step = losses(gradcore.compile)
    assert compiled == eager
    # The first step found no gradients.
    assert len(step.traces) == 2


def test_overlapping_slices_keep_their_distance() -> None:
    x = whole(12, 4)
    f = gradcore.compile(lambda a, b: a.mul_(2) + b)
    for first, second in ((0, 1), (3, 4), (6, 7), (3, 2), (8, 7), (4, 4)):
        wanted = x.clone()
        expected = wanted[first:first + 3].mul_(2) + wanted[second:second + 3]
        got = f(x[first:first + 3], x[second:second + 3])
        assert got.tolist() == expected.tolist() and x.tolist() == wanted.tolist()
    assert len(f.traces) == 3


def test_results_that_are_views_of_the_argument() -> None:
    x = whole(12, 4)

    @gradcore.compile
    def f(part: Any) -> Any:
        part.add_(1)
        return part[1:], part.t()

    for first in (0, 4, 8):
        wanted = (x[first:first + 3] + 1).tolist()
        rest, turned = f(x[first:first + 3])
        assert rest.tolist() == wanted[1:] and turned.t().tolist() == wanted
        rest.zero_()
        assert x[first + 1:first + 3].tolist() == [[0.0] * 4] * 2
        assert rest.storage_offset() == 4 * (first + 1)
    assert len(f.traces) == 1


@pytest.mark.parametrize("needs", [False, True])
def test_gradients_of_slices(needs: bool) -> None:
    w = gradcore.ones(4, requires_grad=True)
    f = gradcore.compile(lambda part: (part * part * w).sum())
    for first in (0, 2, 5):
        x = whole(8, 4)
        x.requires_grad_(needs)
        w.grad = None
        f(x[first:first + 2]).backward()
        part = whole(8, 4)[first:first + 2]
        assert w.grad.tolist() == (part * part).sum(0).tolist()
        if needs:
            assert x.grad[first:first + 2].tolist() == (2 * part).tolist()
            assert x.grad.abs().sum().item() == (2 * part).sum().item()
    assert len(f.traces) == 1


@pytest.mark.parametrize("function", [lambda x: x * x.storage_offset(), lambda x: x.as_strided((2,), (1,), 5) * 1])
def test_a_function_that_looks_at_the_place(function: Callable[[Any], Any]) -> None:
    x = whole(12)
    f = gradcore.compile(function)
    for first in (3, 4, 4, 3):
        assert f(x[first:first + 4]).tolist() == function(x[first:first + 4]).tolist()
    assert len(f.programs) == 2 and f.traces[1] == "arguments begin elsewhere in their memory, which the function looks at"


def test_a_part_that_the_function_also_knows_as_a_whole() -> None:
    x = whole(6, 2)
    f = gradcore.compile(lambda part: part + x.sum())
    for first in (0, 2, 4):
        assert f(x[first:first + 2]).tolist() == (x[first:first + 2] + x.sum()).tolist()
    assert not f.programs


def test_check_every_at_another_place() -> None:
    x = whole(8, 2)
    f = gradcore.compile(lambda part: part.mul_(3).sum(), check_every=1)
    for first in (0, 2, 4, 6):
        wanted = 3 * x[first:first + 2].sum().item()
        assert f(x[first:first + 2]).item() == wanted
    assert len(f.traces) == 1


def test_strides_of_one_row_are_in_the_reason() -> None:
    f = gradcore.compile(lambda x: x * 2)
    for n in (3, 4):
        f(gradcore.ones(1, n)[:, -1:])
    assert f.traces[1] == "argument 0, float32[1, 1] on cpu, has strides (4, 1) and had (3, 1)"
