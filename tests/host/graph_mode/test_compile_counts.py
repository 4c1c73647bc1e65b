"""Counters, random numbers and Python objects that a traced function reads: no replay uses outdated values."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn


class Counting(nn.Module):
    """Counts its calls where ``count`` writes to, and stores the count in ``found``."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.counts: Any = {"n": 0, "inner": {"n": 0}}
        self.items = [0]
        self.ordered, self.array, self.last = OrderedDict(n=0), np.zeros(1), deque([0], maxlen=1)
        self.members = [type("Member", (), {"own": None})()]
        self.members[0].own = {"n": 0}
        self.hidden = SimpleNamespace(numbers=[0])
        self.count = count

    @property
    def shown(self) -> Any:
        return self.hidden

    def forward(self, x: Any) -> Any:
        return x * self.count(self)


def by_name(m: Any) -> int:
    m.counts["n"] += 1
    return m.counts["n"]  # type: ignore[no-any-return]


def by_variable(m: Any) -> int:
    inner = m.counts["inner"]
    inner["n"] += 1
    return inner["n"]  # type: ignore[no-any-return]


def by_position(m: Any) -> int:
    m.items[0] += 1
    return m.items[0]  # type: ignore[no-any-return]


def by_method(m: Any) -> int:
    m.counts.update(n=m.counts["n"] + 1)
    return m.counts["n"]  # type: ignore[no-any-return]


def by_order(m: Any) -> int:
    m.ordered["n"] += 1
    return m.ordered["n"]  # type: ignore[no-any-return]


def by_element(m: Any) -> int:
    m.array[0] += 1
    return int(m.array[0])


def by_end(m: Any) -> int:
    m.last.append(m.last[0] + 1)
    return m.last[0]  # type: ignore[no-any-return]


def by_member(m: Any) -> int:
    for member in m.members:
        member.own["n"] += 1
    return m.members[0].own["n"]  # type: ignore[no-any-return]


def by_property(m: Any) -> int:
    numbers = m.shown.numbers
    numbers[0] += 1
    return numbers[0]  # type: ignore[no-any-return]


def by_generator(m: Any) -> int:
    member, = (m.hidden for _ in range(1))
    member.numbers.__setitem__(0, member.numbers[0] + 1)
    return member.numbers[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("count", [by_name, by_variable, by_position, by_method, by_order, by_element,
                                   by_end, by_member, by_property, by_generator])
def test_items_that_the_function_writes_are_not_frozen(count: Any) -> None:
    compiled = gradcore.compile(Counting(count))
    assert [compiled(gradcore.ones(1)).item() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert "the function changes what it reads" in compiled.traces[0]


class Counted(gradcore.optim.Optimizer):
    """Updates that grow with their count, in an optimizer written as for PyTorch."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @gradcore.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                state["step"] += 1
                p.add_(p.grad, alpha=-group["lr"] * state["step"])


def test_the_count_of_an_optimizer_of_ones_own_is_not_frozen() -> None:
    weights = []
    for wrap in (lambda f: f, gradcore.compile):
        w = gradcore.ones(2, requires_grad=True)
        optimizer = Counted([w], lr=0.1)

        def step(x: Any, w: Any = w, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()

        run: Any = wrap(step)
        for _ in range(5):
            run(gradcore.ones(2))
        weights.append(w.tolist())
    assert weights[0] == weights[1]
    assert "Counted changes 'step' in its state: it is 2 and was 1" in run.explain()


def test_an_object_that_the_function_makes_is_let_go() -> None:
    class Normal:
        def __init__(self, mean: Any, deviation: Any) -> None:
            self.mean, self.deviation = mean, deviation

        def log_prob(self, x: Any) -> Any:
            return -((x - self.mean) / self.deviation).square() - self.deviation.log()

    layer = nn.Linear(2, 2)
    compiled = gradcore.compile(lambda x: Normal(layer(x), layer(x).exp()).log_prob(x).sum())
    for k in range(3):
        compiled(gradcore.ones(3, 2) * k).backward()
    assert len(compiled.programs) == len(compiled.traces) == 1, compiled.explain()


DRAWS: dict[str, Any] = {
    "a method of random": lambda rng, x: x * random.choice([1.0, 2.0, 3.0]),
    "a whole number": lambda rng, x: x * random.randrange(9),
    "numpy.random": lambda rng, x: x * np.random.rand(),  # noqa: NPY002 - the one that scripts have
    "a generator's float": lambda rng, x: x * rng.random(),
    "a generator's uniform": lambda rng, x: x * float(rng.uniform(0.5, 1.0))}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("given", [False, True])
def test_numbers_that_the_function_draws_are_not_frozen(name: str, given: bool) -> None:
    draw, found = DRAWS[name], []
    for wrap in (lambda f: f, gradcore.compile):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        rng = np.random.default_rng(0)
        f: Any = wrap(draw if given else closed_over(draw, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append([f(*((rng,) if given else ()), gradcore.ones(1)).item() for _ in range(4)])
    assert found[0] == found[1] and len(set(found[0])) > 1
    assert "which gives different values each time" in f.traces[0] and not f.programs


def closed_over(draw: Any, rng: Any) -> Any:
    return lambda x: draw(rng, x)


def test_a_generator_that_others_draw_from_is_no_reason_to_trace_again() -> None:
    rng = np.random.default_rng(0)

    def f(x: Any) -> Any:
        return x if rng is None else x * 2

    compiled = gradcore.compile(f)
    for _ in range(3):
        rng.random()
        random.random()
        compiled(gradcore.ones(1))
    assert len(compiled.traces) == 1, compiled.explain()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.options = 1.0, {"scale": 1.0}

    def forward(self, x: Any) -> Any:
        return x * 1


class Trainer:
    """Reads attributes of a network that its own methods do not read."""

    def __init__(self, net: Any) -> None:
        self.net, self.plain = net, nn.Sequential(nn.Identity())
        self.plain.scale = 1.0

    def attribute(self, x: Any) -> Any:
        return self.net(x) * self.net.scale

    def item(self, x: Any) -> Any:
        return self.net(x) * self.net.options["scale"]

    def uncalled(self, x: Any) -> Any:
        return x * self.net.scale

    def of_the_librarys(self, x: Any) -> Any:
        return self.plain(x) * self.plain.scale


@pytest.mark.parametrize("name", ["attribute", "item", "uncalled", "of_the_librarys"])
def test_an_attribute_of_a_module_is_guarded_whoever_reads_it(name: str) -> None:
    trainer = Trainer(Scaled())
    compiled = gradcore.compile(getattr(trainer, name))
    for k in (1.0, 1.0, 2.0, 3.0, 3.0):
        trainer.net.scale = trainer.plain.scale = trainer.net.options["scale"] = k
        assert compiled(gradcore.ones(1)).item() == k
    assert len(compiled.programs) == 3


def test_a_module_is_guarded_as_a_variable_and_as_a_later_argument() -> None:
    net = Scaled()
    for function, given in ((lambda x: net(x) * net.scale, ()), (lambda x, m: m(x) * m.scale, (net,))):
        compiled = gradcore.compile(function)
        for k in (1.0, 2.0, 2.0):
            net.scale = k
            assert compiled(gradcore.ones(1), *given).item() == k
