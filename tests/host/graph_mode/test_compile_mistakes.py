"""The catalog of possible mistakes of a replay: each case is correct, or raises an error with the line."""

from __future__ import annotations

import warnings
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.conftest import raises
from tests.host.graph_mode.test_compile import data, net, pair, same, same_state, step_of

F = nn.functional


def test_the_next_replay_does_not_write_to_results() -> None:
    f = gradcore.compile(lambda x: (x + 1, (x * 2).reshape(-1)))
    kept = [f(gradcore.full((2, 2), float(k))) for k in range(5)]
    for k, (a, b) in enumerate(kept):
        assert a.tolist() == [[k + 1] * 2] * 2 and b.tolist() == [2 * k] * 4
    assert len(f.traces) == 1


def test_a_result_that_is_a_view_of_an_argument_stays_one() -> None:
    f = gradcore.compile(lambda x: (x.view(-1), (x + 0)[1:]))
    for _ in range(3):
        x = gradcore.zeros(2, 2)
        view, other = f(x)
        view[0] = 7
        assert x[0, 0].item() == 7 and other.tolist() == [[0, 0]]


def test_views_among_results_share_their_bytes() -> None:
    def both(x: Any) -> Any:
        y = x * 2
        return y, y[0]

    f = gradcore.compile(both)
    for _ in range(3):
        y, row = f(gradcore.ones(2, 2))
        row.fill_(5)
        assert y.tolist() == [[5, 5], [2, 2]]


def test_an_argument_that_is_written_to_is_written_to() -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        x.mul_(3)
        return x

    for k in range(3):
        x = gradcore.full((2,), float(k))
        version = x._version
        assert f(x) is x and x.tolist() == [3 * k] * 2 and x._version > version


def test_a_parameter_that_is_replaced_or_given_other_bytes_is_seen() -> None:
    layer = nn.Linear(2, 2)
    f = gradcore.compile(layer)
    x = gradcore.ones(1, 2)
    with gradcore.no_grad():
        f(x)
        layer.weight = nn.Parameter(gradcore.full((2, 2), 3.0))
        assert same(f(x), layer(x)) and "weight of Linear is a different object" in f.traces[-1]
        layer.weight.data = gradcore.full((2, 2), 4.0)
        assert same(f(x), layer(x)) and "the memory of weight of Linear was replaced" in f.traces[-1]
        layer.weight.copy_(gradcore.full((2, 2), 5.0))
        traces = len(f.traces)
        assert same(f(x), layer(x)) and len(f.traces) == traces


@pytest.mark.parametrize("read, by", [
    (lambda x: x.sum().item(), "item()"), (lambda x: print(x), "printing"), (lambda x: f"{x.sum()}", "printing"),
    (lambda x: bool(x.sum() > 0), "`if tensor:` or the like"), (lambda x: x.tolist(), "tolist()"),
    (lambda x: float(x[0]), "float()"), (lambda x: range(x.argmax()), "a tensor in the place of an integer"),
    (lambda x: x.nonzero(), "nonzero()"), (lambda x: x[x > 0], "an index with a mask"), (lambda x: x.unique(), "unique()"),
    (lambda x: x.numpy(), "numpy()"), (lambda x: np.asarray(x), "an array of it"),
    (lambda x: gradcore.tensor([x[0]]), "tensor()"), (lambda x: nn.functional.one_hot(x.long()), "one_hot()"),
    (lambda x: nn.GaussianNLLLoss()(x, x, x), "gaussian_nll_loss()")])
def test_a_value_that_is_read_raises_and_names_the_line(read: Any, by: str) -> None:
    def f(x: Any) -> Any:
        read(x)
        return x * 2

    with raises(TraceError, "test_compile_mistakes.py", f"on the host, by {by}. A traced"):
        gradcore.compile(f)(gradcore.ones(3))
    assert gradcore.compile(lambda x: x * 2)(gradcore.ones(3)).tolist() == [2, 2, 2]


def test_tensors_made_from_host_data_raise_and_others_are_made_again() -> None:
    with raises(TraceError, "makes a tensor from host data", "test_compile_mistakes.py"):
        gradcore.compile(lambda x: x + gradcore.tensor(np.array([1.0, 2.0])))(gradcore.ones(2))
    with raises(TraceError, "test_compile_mistakes.py", "use gradcore.rand(2).argsort(), which each replay computes again"):
        gradcore.compile(lambda x: x[gradcore.randperm(2)])(gradcore.ones(2))

    order = gradcore.compile(lambda: gradcore.rand(9).argsort())
    gradcore.manual_seed(3)
    orders = [order().tolist() for _ in range(4)]
    gradcore.manual_seed(3)
    assert orders == [gradcore.rand(9).argsort().tolist() for _ in range(4)] and len({*map(tuple, orders)}) == 4
    assert len(order.programs) == 1

    @gradcore.compile
    def f(x: Any) -> Any:
        mine = gradcore.zeros(2)
        mine.add_(x)
        return mine + gradcore.arange(2) + gradcore.full((2,), 1.0)

    for _ in range(3):
        assert f(gradcore.ones(2)).tolist() == [2, 3]
    assert len(f.traces) == 1


SCALE = 2.0
OPTIONS = {"factor": 1.0, "others": [1, 2]}


class Settings:
    shift = 0.0

    def __init__(self) -> None:
        self.shift = 1.0


def test_numbers_in_globals_closures_and_attributes_are_guarded() -> None:
    global SCALE
    settings = Settings()
    power = 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = 1.0

        def forward(self, x: Any) -> Any:
            return x * self.gain

    model = Model()

    def helper(x: Any) -> Any:
        return x * OPTIONS["factor"] + settings.shift

    def plain(x: Any) -> Any:
        return helper(model(x) * SCALE) * power

    f = gradcore.compile(plain, max_programs=20)
    x = gradcore.ones(2)

    def check(reason: str) -> None:
        before = len(f.traces)
        assert same(f(x), plain(x)) and len(f.traces) == before + bool(reason) and reason in f.traces[-1]
        assert same(f(x), plain(x)) and len(f.traces) == before + bool(reason)

    check("the first call")
    check("")
    try:
        SCALE = 3.0
        check("the global SCALE is 3.0 and was 2.0")
        OPTIONS["factor"] = 5.0
        check("the global OPTIONS is")
        settings.shift = 2.0
        check("shift of a Settings is 2.0 and was 1.0")
        model.gain = 4.0
        check("gain of Model is 4.0 and was 1.0")
        power = 2
        check("the variable power of plain's closure is 2 and was 1")
        power = 2.0  # type: ignore[assignment]
        check("is 2.0 and was 2")
    finally:
        SCALE = 2.0
        OPTIONS["factor"] = 1.0


def test_tensors_in_containers_and_closures_are_guarded() -> None:
    weights = [gradcore.ones(2), gradcore.full((2,), 2.0)]
    f = gradcore.compile(lambda x: x * weights[0] + weights[1])
    x = gradcore.ones(2)
    assert f(x).tolist() == f(x).tolist() == [3, 3] and len(f.traces) == 1
    weights[1] = gradcore.full((2,), 5.0)
    assert f(x).tolist() == [6, 6]
    weights[0].fill_(10)
    assert f(x).tolist() == [15, 15] and len(f.traces) == 2


def test_what_no_guard_sees_is_found_by_check_every() -> None:
    settings = SimpleNamespace(scale=2.0, beside=gradcore.ones(1))

    def plain(x: Any) -> Any:
        return x * attrgetter("".join(("sca", "le")))(settings)

    f = gradcore.compile(plain, check_every=2)
    x = gradcore.ones(2)
    for _ in range(4):
        assert f(x).tolist() == [2, 2]
    settings.scale = 3.0
    with raises(TraceError, "a replay differs from the eager run in result 0", "[2. 2.] and [3. 3.]"):
        for _ in range(2):
            f(x)


def test_a_checked_training_step_is_the_unchecked_one() -> None:
    model, other = net(), net()
    optimizers = [gradcore.optim.Adam(m.parameters(), lr=0.05) for m in (model, other)]
    eager = step_of(model, optimizers[0])
    checked = gradcore.compile(step_of(other, optimizers[1]), check_every=2)
    for k in range(8):
        losses = []
        for run in (eager, checked):
            gradcore.manual_seed(k)
            losses.append(run(*data(k)))
        assert same(*losses) and same_state(model, other)
    assert {s["step"] for s in optimizers[1].state.values()} == {8}


def test_hooks_are_traced_and_a_new_one_is_seen() -> None:
    layer = nn.Linear(2, 2)
    f = gradcore.compile(layer)
    x = gradcore.ones(1, 2)
    with gradcore.no_grad():
        f(x)
        handle = layer.register_forward_hook(lambda module, args, out: out * 10)
        for _ in range(2):
            assert same(f(x), layer(x))
        handle.remove()
        assert same(f(x), layer(x))
    assert len(f.traces) == 3 and "hooks of Linear" in f.traces[1]


def test_gradients_that_pass_through_a_hook_pass_through_it_in_a_replay() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        model = net()
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
        next(model.parameters()).register_hook(lambda g: g * 0.5)
        run = wrap(step_of(model, optimizer))
        for k in range(4):
            gradcore.manual_seed(k)
            run(*data(k))
        found.append([p.detach().clone() for p in model.parameters()])
    assert all(map(same, *found))


def test_an_error_in_the_middle_of_a_replay_leaves_things_usable() -> None:
    eager, model, _, compiled, other, _ = pair()
    for k in range(3):
        for run in (eager, compiled):
            gradcore.manual_seed(k)
            run(*data(k))
    x, y = data(9)
    bad = y.clone()
    bad[0] = 99
    for run in (eager, compiled):
        with raises(IndexError, "Target 99 is out of bounds"):
            run(x, bad)
    assert all(p.grad is None for m in (model, other) for p in m.parameters())
    losses = []
    for run in (eager, compiled):
        gradcore.manual_seed(4)
        losses.append(run(x, y))
    assert same(*losses) and same_state(model, other)


def test_a_gradient_that_somebody_holds_is_not_written_to() -> None:
    _, _, _, compiled, model, _ = pair()
    held, copies = [], []
    for k in range(6):
        compiled(*data(k))
        g = next(model.parameters()).grad
        held.append(g if k % 2 else g.detach()[1:])
        copies.append(held[-1].numpy().copy())
        del g
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(held, copies, strict=True))
    assert len({h.data_ptr() for h in held[-4:]}) == 4
    del held, copies
    places = set()
    for k in range(3):
        compiled(*data(k))
        places.add(next(model.parameters()).grad.data_ptr())
    assert len(places) == 1


def test_what_happens_to_python_objects_happens_when_it_is_traced_or_not_at_all() -> None:
    seen: list[Any] = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * self.calls

    model = Counting()
    f = gradcore.compile(model, max_programs=3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [f(gradcore.ones(1)).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert len(said) == 1 and "runs eagerly from now on" in str(said[0].message) and "assigns to calls" in str(said[0].message)

    def keeping(x: Any) -> Any:
        seen.append(x * 2)
        return x + 1

    f = gradcore.compile(keeping, max_programs=2)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for k in range(5):
            f(gradcore.full((1,), float(k)))
    assert [s.item() for s in seen] == [0, 2, 4, 6, 8] and "still referenced after the run, by a" in f.traces[0]


def test_a_schedule_inside_the_step_is_stepped_by_replays() -> None:
    model = net()
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
    schedule = gradcore.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step = step_of(model, optimizer)

    def both(x: Any, y: Any) -> Any:
        loss = step(x, y)
        schedule.step()
        return loss

    f = gradcore.compile(both)
    for k in range(4):
        f(*data(k))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 16)
    # The first call finds no gradients.
    assert len(f.programs) == len(f.traces) == 2


def test_foreign_memory_is_not_frozen() -> None:
    values = np.ones(2, np.float32)
    f = gradcore.compile(lambda x: x + gradcore.from_numpy(values), max_programs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(4):
            values[:] = k
            assert f(gradcore.ones(2)).tolist() == [1 + k] * 2
    assert "from_numpy" in f.traces[0]
