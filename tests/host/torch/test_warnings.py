"""What PyTorch warns of because it mostly is a mistake, gradcore warns of too, at the line of whoever made it."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore


def schedule(t: Any) -> tuple[Any, Any]:
    optimizer = t.optim.SGD([t.nn.Parameter(t.ones(1))], lr=0.1)
    return optimizer, t.optim.lr_scheduler.StepLR(optimizer, 2)


def schedule_first(t: Any) -> None:
    optimizer, rates = schedule(t)
    rates.step()
    optimizer.step()
    rates.step()


def schedule_behind(t: Any) -> None:
    optimizer, rates = schedule(t)
    optimizer.step()
    rates.step()


class Own(gradcore.optim.Optimizer):
    def step(self, closure: Any = None) -> None:
        """Nothing."""


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a schedule before the optimizer": (schedule_first, "Detected call of `lr_scheduler.step()` before `optimizer.step()`."),
    "a schedule behind it": (schedule_behind, ""),
    "dropout behind the only layer": (lambda t: t.nn.LSTM(2, 3, dropout=0.5), "dropout option adds dropout after all but"),
    "dropout between two": (lambda t: t.nn.LSTM(2, 3, 2, dropout=0.5), ""),
    "a divergence by elements": (lambda t: t.nn.functional.kl_div(t.zeros(2, 3), t.ones(2, 3)), "reduction: 'mean' divides"),
    "a divergence": (lambda t: t.nn.KLDivLoss(reduction="batchmean")(t.zeros(2, 3), t.ones(2, 3)), ""),
    "the variance of one": (lambda t: t.ones(1).var(), "var(): degrees of freedom is <= 0."),
    "of one in each row": (lambda t: t.ones(3, 1).var(1), "var(): degrees of freedom is <= 0."),
    "of none": (lambda t: t.ones(3, 0).var(1, correction=0), "var(): degrees of freedom is <= 0."),
    "of no rows": (lambda t: t.ones(0, 1).var(1), "var(): degrees of freedom is <= 0."),
    "of one, biased": (lambda t: t.ones(1).var(correction=0), ""),
    "a tensor of a tensor": (lambda t: t.tensor(t.ones(2)), "To copy construct from a tensor, it is recommended to use"),
    "a tensor of an array": (lambda t: t.tensor(np.ones(2)), ""),
}


@pytest.mark.extras
@pytest.mark.parametrize("name", CASES)
def test_mistakes(name: str) -> None:
    do, begin = CASES[name]
    names = ["gradcore", *["torch"] * (importlib.util.find_spec("torch") is not None)]
    for library in map(importlib.import_module, names):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            do(library)
        assert [str(w.message)[:len(begin)] for w in found] == [begin] * bool(begin), library.__name__
        if library is gradcore:
            assert all(w.filename == __file__ and w.category is UserWarning for w in found)


def test_an_optimizer_of_ones_own_has_taken_its_step() -> None:
    optimizer = Own([gradcore.nn.Parameter(gradcore.ones(1))], {"lr": 0.1})
    rates = gradcore.optim.lr_scheduler.StepLR(optimizer, 2)
    optimizer.step()
    rates.step()
    other = gradcore.optim.lr_scheduler.StepLR(Own([gradcore.nn.Parameter(gradcore.ones(1))], {"lr": 0.1}), 2)
    with pytest.warns(UserWarning, match="Detected call of"):
        other.step()
