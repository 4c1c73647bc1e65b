"""Parameters take attributes, as marks for an optimizer, and compiled functions look at them again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


def test_a_parameter_takes_attributes_and_its_copies_have_none() -> None:
    p: Any = nn.Parameter(gradcore.ones(2))
    p._no_weight_decay = True
    layer = nn.Linear(1, 1)
    layer.weight.kind = "matrix"
    assert [hasattr(x, "_no_weight_decay") for x in (p, copy.deepcopy(p), p * 1)] == [
        True, False, False]
    layer.double()
    assert layer.weight.kind == "matrix" and layer.weight.dtype == gradcore.float64


def test_a_mark_of_frozen_parameters_is_the_programs() -> None:
    p: Any = nn.Parameter(gradcore.ones(2))
    (p * 3).sum().backward()
    p.requires_grad_(False)
    p.frozen = True
    assert p.frozen is True and p.grad.tolist() == [3.0, 3.0]
    p.requires_grad_(True)
    (p * 2).sum().backward()
    assert p.frozen is True and p.grad.tolist() == [5.0, 5.0]


def read_from_a_closure(model: nn.Module, step: Callable[[Any], Any]) -> Any:
    p = model.weight

    def run(x: Any) -> Any:
        return (x * 2 if p.mark else x * 3) + step(x)

    return run


def asked_of_all(model: nn.Module, step: Callable[[Any], Any]) -> Any:
    def run(x: Any) -> Any:
        for p in model.parameters():
            if getattr(p, "mark", False):
                x = x * 2
        return x + step(x)

    return run


def whether_there_is_one(model: nn.Module, step: Callable[[Any], Any]) -> Any:
    def run(x: Any) -> Any:
        return step(x) * sum(hasattr(p, "other") for p in model.parameters())

    return run


@pytest.mark.parametrize("make", [read_from_a_closure, asked_of_all, whether_there_is_one], ids=lambda f: f.__name__)
def test_a_compiled_function_sees_them_change(make: Any) -> None:
    outcomes = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Linear(2, 2)
        model.weight.mark = True
        run, seen = wrap(make(model, lambda x, model=model: model(x).detach())), []
        for k in range(8):
            model.weight.mark = k < 4
            if k == 6:
                model.bias.other = True
            seen.append(run(gradcore.ones(1, 2)).tolist())
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def test_an_optimizer_of_ones_own_reads_them() -> None:
    class Decayed(gradcore.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @gradcore.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad * group["lr"])
                    if not p._no_weight_decay:
                        p.mul_(0.9)

    outcomes = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Linear(2, 2)
        for p in model.parameters():
            p._no_weight_decay = False
        optimizer = Decayed(model.parameters())

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, seen = wrap(step), []
        for k in range(8):
            model.bias._no_weight_decay = k >= 4
            seen.append(run(gradcore.ones(1, 2)).item())
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


class Marked(nn.Parameter):
    """A parameter of a class of the program's."""


def copies(library: Any, kind: Any) -> list[Any]:
    marked = copy.deepcopy(kind(library.ones(2), requires_grad=False))
    tied = library.nn.Linear(2, 2, bias=False)
    state = copy.deepcopy(library.nn.Sequential(tied, tied).state_dict())
    state["0.weight"].fill_(3)
    x = library.zeros(2)
    first, second = copy.deepcopy([x, x.detach()])
    first.add_(1)
    return [type(marked) is kind, marked.requires_grad, state["1.weight"].tolist(), second.tolist(), x.tolist(),
            tuple(library.nn.Parameter().shape), library.nn.Parameter(requires_grad=False).requires_grad]


def test_copies_keep_their_class_and_what_they_share() -> None:
    assert copies(gradcore, Marked) == [True, False, [[3, 3]] * 2, [1, 1], [0, 0], (0,), False]


def test_copies_of_tensors_that_go_are_their_own() -> None:
    """A class may copy what it makes for that alone, whose storage goes, so that another gets its id."""
    memo: dict[Any, Any] = {}
    assert [gradcore.full((2,), float(k)).__deepcopy__(memo)[0].item() for k in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.oracle
def test_copies_are_pytorchs(torch: Any) -> None:
    class Theirs(torch.nn.Parameter):  # type: ignore[misc,name-defined]
        pass

    assert copies(torch, Theirs) == copies(gradcore, Marked)


def _made_by_new(t: Any) -> Any:
    class Scaled(t.nn.Parameter):
        def __new__(cls, data: Any = None, requires_grad: bool = True, scale: float = 1.0) -> Any:
            made = super().__new__(cls, data, requires_grad)
            made.scale = scale
            return made

    class Named(t.nn.Parameter):
        def __new__(cls, data: Any, name: str) -> Any:
            return super().__new__(cls, data)

        def __init__(self, data: Any, name: str) -> None:
            self.title = name

    model = t.nn.Module()
    model.p, model.q, model.r = Scaled(t.ones(2), scale=3.0), Scaled(t.ones(1), requires_grad=False), Named(t.ones(1), "r")
    (model.p * model.p.scale + model.q + model.r).sum().backward()
    again = copy.deepcopy(model.p)
    return [[(name, type(p).__name__) for name, p in model.named_parameters()], model.p.grad.tolist(), model.q.requires_grad,
            model.q.scale, model.r.title, type(again).__name__, again.tolist(), again.requires_grad]


@pytest.mark.oracle
def test_a_class_of_parameters_may_be_made_by_new(torch: Any) -> None:
    assert _made_by_new(gradcore) == _made_by_new(torch)
