"""What is assigned from call to call and is not carried, or in some calls only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

#: A global of the tests' that a step assigns to.
hidden: Any = None


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    global hidden
    yield
    hidden = None


def test_what_is_stored_once_is_not_passed_to_each_call() -> None:
    class Cached:
        def __init__(self) -> None:
            self.mask: Any = None

        def __call__(self, x: Any) -> Any:
            if self.mask is None or self.mask.shape != x.shape[1:]:
                self.mask = gradcore.ones(x.shape[1:]).tril()
            return x * self.mask

    compiled = gradcore.compile(Cached())
    for _ in range(4):
        assert np.array_equal(compiled(gradcore.ones(2, 3, 3)).numpy(), np.tril(np.ones((2, 3, 3), np.float32)))
    program, = compiled.programs
    assert len(program.inputs) == 1 and len(compiled.traces) == 2, compiled.explain()


def test_state_that_changes_in_some_calls_only() -> None:
    """Programs of the other calls stay as they are."""
    class Kept:
        def __init__(self) -> None:
            self.mean = gradcore.zeros(2)

    kept, mean = Kept(), np.zeros(2, np.float32)

    @gradcore.compile
    def step(x: Any, update: bool) -> Any:
        if update:
            kept.mean = kept.mean + x
        return x - kept.mean

    for k in range(24):
        mean = mean + np.float32(k) if k % 3 == 0 else mean
        assert step(gradcore.full((2,), float(k)), k % 3 == 0).tolist() == (k - mean).tolist()
    assert len(step.traces) == 5, step.explain()


def test_lists_and_dicts_are_not_carried() -> None:
    """Who else refers to one would not see what a replay leaves in a new one."""
    class Kept:
        def __init__(self) -> None:
            self.parts = [gradcore.zeros(2)]
            self.same = self.parts
            self.last: Any = None

    kept = Kept()

    @gradcore.compile
    def step(x: Any) -> Any:
        parts = kept.parts
        parts[0] = parts[0] + x
        kept.parts = parts
        return x * kept.same[0].sum()

    @gradcore.compile
    def store(batch: dict[str, Any]) -> Any:
        kept.last = batch
        return batch["x"] * 2

    for k in range(1, 6):
        assert step(gradcore.ones(2)).tolist() == [2.0 * k] * 2 and kept.parts is kept.same
        batch = {"x": gradcore.ones(2)}
        assert store(batch).tolist() == [2, 2] and kept.last is batch
    assert not step.programs and not store.programs


def test_what_is_no_state_any_more() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden: Any = gradcore.zeros(2)

        def forward(self, x: Any, how: str) -> Any:
            self.hidden = nn.Parameter(self.hidden + 1) if how == "parameter" else self.hidden.detach() + x
            return x * 2

    net = Net()
    call = gradcore.compile(net)
    for _ in range(4):
        call(gradcore.ones(2), "plain")
    assert call.programs and net.hidden.tolist() == [4, 4]
    del net.hidden
    net.hidden = gradcore.zeros(2)
    call(gradcore.ones(2), "parameter")
    assert type(net.hidden) is nn.Parameter and net.hidden.tolist() == [1, 1]


def test_a_state_that_is_deleted() -> None:
    def both() -> tuple[Callable[[Any, bool], Any], Callable[[], Any]]:
        own = gradcore.zeros(2)

        @gradcore.compile
        def step(x: Any, drop: bool) -> Any:
            global hidden
            nonlocal own
            own = hidden = x * 2
            if drop:
                del own, hidden
            return x + 1

        return step, lambda: own

    step, own = both()
    for drop in (False, False, False, False, True):
        step(gradcore.ones(2), drop)
    assert "hidden" not in globals()
    with pytest.raises(NameError):
        own()
    step(gradcore.ones(2), False)
    assert own().tolist() == hidden.tolist() == [2, 2]


def test_a_state_with_a_graph_is_not_carried() -> None:
    def run(compiled: bool) -> list[Any]:
        gradcore.manual_seed(0)
        layer, kept = nn.Linear(2, 2), nn.Module()
        kept.hidden = gradcore.zeros(1, 2)

        def step(x: Any) -> Any:
            kept.hidden = gradcore.tanh(layer(x) + kept.hidden)
            kept.hidden.sum().backward(retain_graph=True)
            return kept.hidden.detach()

        call = gradcore.compile(step, max_programs=99) if compiled else step
        return [call(gradcore.full((1, 2), 0.1 * k)).tolist() for k in range(6)] + [layer.weight.grad.tolist()]

    assert run(True) == run(False)


def test_of_many_reasons_what_to_do_is_said_before_what_follows() -> None:
    global hidden
    rnn = nn.LSTM(3, 4)
    hidden = gradcore.zeros(1, 2, 4), gradcore.zeros(1, 2, 4)

    @gradcore.compile
    def step(x: Any) -> Any:
        global hidden
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = rnn(x, hidden)
        output.sum().backward()
        return output.detach()

    step(gradcore.ones(5, 2, 3))
    assert "assigns to hidden" in step.traces[0] and "store it detached" in step.traces[0], step.traces[0]
    assert "more such reason" in step.traces[0]


def refused_setter(kept: Any, x: Any) -> None:
    kept.halved = x


def refused_slot(kept: Any, x: Any) -> None:
    kept.slot = x


def refused_counter(kept: Any, x: Any) -> None:
    kept.last, kept.calls = x, kept.calls + 1


def refused_item(kept: Any, x: Any) -> None:
    kept.table["last"] = x


def refused_parameter(kept: Any, x: Any) -> None:
    kept.last = nn.Parameter(x)


@pytest.mark.parametrize("store", [refused_setter, refused_slot, refused_counter, refused_item, refused_parameter])
def test_what_cannot_be_carried(store: Callable[[Any, Any], None]) -> None:
    class Base:
        __slots__ = ("slot",)

    class Kept(Base):
        def __init__(self) -> None:
            self.last = self.slot = gradcore.zeros(2)
            self.calls = 0
            self.table = {"last": self.last}

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value * 0.5 if name == "halved" else value)

    kept = Kept()

    @gradcore.compile
    def step(x: Any) -> Any:
        store(kept, x * 2)
        return x + 1

    for k in range(4):
        assert step(gradcore.full((2,), float(k))).tolist() == [k + 1.0] * 2
    stored = {"refused_setter": getattr(kept, "halved", None), "refused_slot": kept.slot, "refused_item": kept.table["last"]}
    found = stored.get(store.__name__, kept.last)
    assert found.tolist() == ([3.0, 3.0] if store is refused_setter else [6.0, 6.0])
    assert not step.programs and ("assigns to" in step.explain() or "table of a Kept has other items" in step.explain())
