"""Tensors that a function assigns to attributes, buffers, globals and variables of enclosing functions, from call to call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

#: A global of the tests' that steps assign to.
hidden: Any = None


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    global hidden
    yield
    hidden = None


class Recurrent(nn.Module):
    """The state of an LSTM, a mean in a buffer and one in an attribute; the state begins as None."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)
        self.out = nn.Linear(8, 1)
        self.register_buffer("mean", gradcore.zeros(8))
        self.largest = gradcore.zeros(())
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        y, state = self.rnn(x, self.hidden)
        self.hidden = tuple(v.detach() for v in state)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean((0, 1))
        self.largest = gradcore.maximum(self.largest, y.detach().max())
        return self.out(y - self.mean)


def training(**options: Any) -> tuple[Recurrent, Callable[[], list[float]]]:
    """A model, and a function that runs ten steps, whose step is compiled if there are options; the third has a new state."""
    gradcore.manual_seed(0)
    model = Recurrent()
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = gradcore.compile(step, **options) if options else step

    def steps() -> list[float]:
        rng = np.random.default_rng(0)
        losses = []
        for k in range(10):
            if k == 6:
                model.hidden = None
            losses.append(run(*(gradcore.tensor(rng.standard_normal(s).astype("f4")) for s in ((3, 5, 4), (3, 5, 1)))).item())
        return losses

    steps.compiled = run  # type: ignore[attr-defined]
    return model, steps


@pytest.mark.parametrize("options", [{"check_every": 0}, {"check_every": 2}], ids=["replayed", "checked"])
def test_state_in_a_module(options: dict[str, int]) -> None:
    model, steps = training()
    eager = steps()
    compiled_model, compiled_steps = training(**options)
    assert compiled_steps() == eager
    pairs = [(model.mean, compiled_model.mean), (model.largest, compiled_model.largest),
             *zip(model.hidden, compiled_model.hidden, strict=True)]
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)
    assert compiled_model.state_dict().keys() == model.state_dict().keys()
    assert compiled_model.get_buffer("mean") is compiled_model.mean
    compiled = compiled_steps.compiled  # type: ignore[attr-defined]
    assert "for an argument and for a result" in compiled.traces[1] and len(compiled.programs) == 2
    assert len(compiled.traces) == 4 and compiled.traces[-1].startswith("hidden of Recurrent is None and was a tuple of 2")


def test_each_call_leaves_a_tensor_of_its_own() -> None:
    class Running:
        def __init__(self) -> None:
            self.total = gradcore.zeros(3)

    kept = Running()

    @gradcore.compile
    def add(x: Any) -> Any:
        kept.total = kept.total + x
        return kept.total * 2, kept.total

    seen = []
    for k in range(6):
        doubled, total = add(gradcore.full((3,), float(k)))
        assert total is kept.total
        seen.append((total, doubled))
    assert [t.tolist() for t, _ in seen] == [[float(sum(range(k + 1)))] * 3 for k in range(6)]
    assert [d.tolist() for _, d in seen] == [[2.0 * sum(range(k + 1))] * 3 for k in range(6)]
    assert len(add.traces) == 3 and len(add.programs) == 1


def test_a_global_and_a_variable_of_an_enclosing_function() -> None:
    def both() -> tuple[Any, Callable[[], Any]]:
        own = gradcore.zeros(2)

        @gradcore.compile
        def step(x: Any) -> Any:
            global hidden
            nonlocal own
            own, hidden = own + x, x if hidden is None else hidden * x
            return own.sum()

        return step, lambda: own

    step, own = both()
    for k in range(1, 7):
        assert step(gradcore.full((2,), float(k))).item() == k * (k + 1)
    assert own().tolist() == [21.0, 21.0] and hidden.tolist() == [720.0, 720.0]
    assert step.programs and "the global hidden" in step.explain() and "the variable own" in step.explain()


def test_two_objects_with_one_method() -> None:
    """Each has its own state, and the class, which has the compiled method, keeps neither."""
    class Counter:
        def __init__(self) -> None:
            self.total = gradcore.zeros(2)

        @gradcore.compile
        def add(self, x: Any) -> Any:
            self.total = self.total + x
            return self.total.sum()

    before = gradcore.memory_allocated("cpu")
    first, second = Counter(), Counter()
    for k in range(8):
        assert first.add(gradcore.ones(2)).item() == 2 * (k + 1)
        assert second.add(gradcore.full((2,), 3.0)).item() == 6 * (k + 1)
    # Each call puts back only what it changes: another thread may change the other's meanwhile.
    entries = [entry for entry in Counter.add._cached() if entry.carried]
    assert entries and all(len(entry.carried) == 1 for entry in entries)
    del entries
    del first
    gc.collect()
    assert second.add(gradcore.ones(2)).item() == 50
    assert second.total.tolist() == [25.0, 25.0]
    del second
    gc.collect()
    Counter.add._entries.clear()
    assert gradcore.memory_allocated("cpu") == before


def test_a_result_with_a_graph_is_differentiated_by_its_caller() -> None:
    def run(compiled: bool) -> tuple[list[Any], Any]:
        gradcore.manual_seed(1)
        model = Recurrent()
        call = gradcore.compile(model) if compiled else model
        rng = np.random.default_rng(0)
        gradients = []
        for _ in range(6):
            model.zero_grad()
            call(gradcore.tensor(rng.standard_normal((3, 5, 4)).astype("f4"))).square().mean().backward()
            gradients.append([p.grad.numpy().copy() for p in model.parameters()])
        return gradients, call

    eager, (replayed, call) = run(False)[0], run(True)
    assert all(np.array_equal(a, b) for x, y in zip(eager, replayed, strict=True) for a, b in zip(x, y, strict=True))
    assert call.programs, call.explain()


def test_an_error_leaves_what_was_there() -> None:
    class Kept:
        def __init__(self) -> None:
            self.last = gradcore.zeros(2)

    kept = Kept()

    @gradcore.compile
    def step(x: Any, fail: bool) -> Any:
        kept.last = kept.last + x
        if fail:
            raise ValueError("no")
        return kept.last.sum()

    for _ in range(3):
        step(gradcore.ones(2), False)
    assert step.programs
    with pytest.raises(ValueError, match="no"):
        step(gradcore.ones(2), True)
    # As in eager mode, it had assigned before it failed.
    assert kept.last.tolist() == [4.0, 4.0]
    assert step(gradcore.ones(2), False).item() == 10


def test_a_state_that_is_an_argument_too() -> None:
    """The same tensor comes in two ways, as one in two places does."""
    class Kept:
        def __init__(self) -> None:
            self.first = self.second = gradcore.ones(2)

    kept = Kept()

    @gradcore.compile
    def step(x: Any) -> Any:
        kept.first, kept.second = kept.second * 2, kept.first + x
        return kept.first.sum() + kept.second.sum()

    found, first, second = [], np.ones(2), np.ones(2)
    for k in range(6):
        x = kept.first if k % 2 else gradcore.full((2,), 5.0)
        given = x.numpy().copy()
        found.append(step(x).item())
        first, second = second * 2, first + given
        assert found[-1] == first.sum() + second.sum()


def test_a_program_with_state_is_not_saved(tmp_path: Any) -> None:
    _, steps = training(check_every=0)
    steps()
    with pytest.raises(gradcore.TraceError, match=r"keeps a tensor in \w+ of Recurrent from one call to the next"):
        steps.compiled.save(tmp_path / "program.json")  # type: ignore[attr-defined]


def test_nothing_is_left_of_a_model_with_state() -> None:
    before = gradcore.memory_allocated("cpu")
    model, steps = training(check_every=0)
    steps()
    peak = gradcore.memory_allocated("cpu")
    steps()
    assert gradcore.memory_allocated("cpu") == peak
    del model, steps
    gc.collect()
    assert gradcore.memory_allocated("cpu") == before


def test_an_attribute_that_is_deleted_between_calls() -> None:
    class Sum:
        def add(self, x: Any) -> Any:
            self.total = x if getattr(self, "total", None) is None else self.total + x
            return self.total * 2

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        owner = Sum()
        add = wrap(owner.add)
        results = []
        for k in range(8):
            if k == 5:
                del owner.total
            results.append((add(gradcore.full((2,), float(k))).tolist(), owner.total.tolist()))
        found.append(results)
    assert found[0] == found[1] and add.programs
