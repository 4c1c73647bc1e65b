"""Threads that train, trace and replay at once: each gets the same numbers as without the others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _step as step_module
from gradcore import nn
from gradcore.engine.state import local
from gradcore.program.tracing import recorder, tracing
from gradcore.program.watching.newness import is_new

THREADS, STEPS = 4, 12


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def models() -> list[Any]:
    gradcore.manual_seed(3)
    return [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(THREADS)]


def losses(model: Any, compiled: bool) -> list[float]:
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = gradcore.tensor(np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)), gradcore.arange(8)

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = gradcore.compile(step) if compiled else step
    return [run().item() for _ in range(STEPS)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.filterwarnings("ignore:.*was traced .* times without one replay:RuntimeWarning")
def test_models_of_their_own_learn_as_they_would_alone(compiled: bool) -> None:
    alone = [losses(model, False) for model in models()]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(lambda model: losses(model, compiled), models()))
    assert together == alone


@pytest.mark.filterwarnings("ignore:.*was traced .* times without one replay:RuntimeWarning")
def test_one_compiled_function_serves_several_threads() -> None:
    model = models()[0]
    compiled = gradcore.compile(lambda x: model(x))
    given = [gradcore.full((8, 16), k + 1.0) for k in range(THREADS)]

    def run(k: int) -> bool:
        return all(_values(compiled, given[k]) == expected[k] for _ in range(STEPS))

    expected = [_values(model, x) for x in given]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(run, range(THREADS))) == [True] * THREADS


def _values(function: Any, x: Any) -> tuple[Any, Any]:
    """A function's result, and its gradient for an argument that the thread owns."""
    x = x.clone().requires_grad_()
    y = function(x)
    found, = gradcore.autograd.grad(y.sum(), [x])
    return y.tolist(), found.tolist()


def test_a_search_for_what_is_new_leaves_tuples_that_another_thread_is_making_alone() -> None:
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [is_new(done) for _ in iter(done.is_set, True)])
        try:
            for _ in range(30_000):
                assert tuple(k for k in range(20)) == tuple(range(20))
        finally:
            done.set()
        asked.result()


def test_steps_of_the_level_counts_may_end_at_once() -> None:
    def let_others_go_on(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_globals is step_module.__dict__:
            frame.f_trace_opcodes = True
            time.sleep(0)
            return let_others_go_on
        return None

    def run(_: int) -> None:
        before = sys.gettrace()
        sys.settrace(let_others_go_on)
        try:
            for _ in range(STEPS):
                with gradcore.step(level="counts"):
                    gradcore.ones(3)
        finally:
            sys.settrace(before)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


class Beside(gradcore.autograd.Function):
    """Runs a function in another thread when its gradient is computed."""

    @staticmethod
    def forward(ctx: Any, x: Any, run: Any) -> Any:
        ctx.run = run
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        thread = threading.Thread(target=ctx.run)
        thread.start()
        thread.join()
        return g * 2, None


def test_gradients_of_a_thread_are_its_own_while_another_records_one() -> None:
    other = nn.Linear(2, 2)
    compiled = gradcore.compile(lambda x: Beside.apply(x, lambda: other(gradcore.ones(3, 2)).sum().backward()))
    compiled(gradcore.ones(2, requires_grad=True))
    assert other.bias.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("module", "asks"), [(recorder, "gradient_serial"), (tracing, "is_gradient_held")])
def test_a_thread_may_drop_gradients_as_another_begins_a_trace(monkeypatch: pytest.MonkeyPatch, module: Any, asks: str) -> None:
    x, asked = gradcore.ones(1, requires_grad=True), getattr(module, asks)
    x.sum().backward()

    def meanwhile(leaf: Any) -> Any:
        if module is tracing:
            x.grad = None
        found = asked(leaf)
        x.grad = None
        return found

    monkeypatch.setattr(module, asks, meanwhile)
    assert gradcore.compile(lambda y: y * 2)(gradcore.ones(1)).item() == 2 and x.grad is None


def test_a_thread_that_begins_within_a_step_is_a_part_of_its_forward() -> None:
    phases: list[str] = []

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: phases.append(gradcore.ones(4).storage.block.tag.phase))
        thread.start()
        thread.join()

    elsewhere()
    with gradcore.step():
        elsewhere()
    elsewhere()
    assert phases == ["setup", "forward", "setup"]


@pytest.mark.parametrize("level", ["events", "stacks"])
def test_a_step_in_a_generator_that_another_thread_closes_ends_for_the_thread_that_began_it(level: str) -> None:
    def steps() -> Iterator[None]:
        with gradcore.step(level=level):
            yield

    begun, before = steps(), (local.state.scope, local.state.site)
    next(begun)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: local.state).result()
        scope = other.scope
        pool.submit(begun.close).result()  # type: ignore[attr-defined]
        assert other.scope is scope
    assert (local.state.scope, local.state.site) == before
    with gradcore.step() as step:
        gradcore.ones(3)
    assert step.report.peak.phase == "forward"
