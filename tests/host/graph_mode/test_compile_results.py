"""A compiled function returns what the plain one does: the same existing objects, and the results of a run."""

from __future__ import annotations

import gc
import re
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError

F = nn.functional


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", gradcore.zeros(()))
        self.table = gradcore.ones(3)

    def forward(self, x: Any) -> Any:
        self.seen.add_(1)
        return self.linear(x), {"seen": self.seen, "table": [self.table, self.linear.weight]}


outside: Any = None


@pytest.fixture
def a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "outside", gradcore.ones(3))


@pytest.mark.usefixtures("a_global")
@pytest.mark.parametrize("grad", [True, False])
def test_what_was_there_before_is_returned_itself(grad: bool) -> None:
    inside, frozen = gradcore.zeros(3), nn.Linear(3, 3).requires_grad_(False)

    def f(x: Any) -> Any:
        inside.add_(x)
        return frozen(x), outside, inside, frozen.weight, outside[1:]

    compiled = gradcore.compile(f)
    with gradcore.set_grad_enabled(grad):
        for k in range(3):
            _, one, two, three, part = compiled(gradcore.ones(3))
            assert one is outside and two is inside and three is frozen.weight
            assert part is not outside and part.storage is outside.storage
            assert inside.tolist() == [k + 1] * 3
    assert len(compiled.traces) == 1


def test_a_module_returns_its_own_buffers_attributes_and_parameters() -> None:
    model = Counting()
    compiled = gradcore.compile(model)
    for k in range(3):
        y, others = compiled(gradcore.ones(2, 3))
        assert others["seen"] is model.seen and others["table"][0] is model.table
        assert others["table"][1] is model.linear.weight and model.seen.item() == k + 1
        y.sum().backward()
    assert len(compiled.traces) == 1


def test_a_captured_tensor_with_a_graph_comes_back_with_it() -> None:
    a = gradcore.ones(3, requires_grad=True)
    h = a * 3
    compiled = gradcore.compile(lambda x: (x * 2, h))
    for _ in range(3):
        assert compiled(gradcore.ones(3))[1] is h
    h.sum().backward()
    assert a.grad.tolist() == [3, 3, 3]


def test_a_graph_that_no_guard_sees_is_not_lost() -> None:
    a = gradcore.ones(3, requires_grad=True)
    box = SimpleNamespace(tensor=a * 3)
    compiled = gradcore.compile(lambda x: (x * 2, attrgetter("TENSOR".lower())(box)))
    for k in range(1, 3):
        compiled(gradcore.ones(3))[1].sum().backward(retain_graph=True)
        assert a.grad.tolist() == [3 * k] * 3
    assert "a graph that was built before" in compiled.traces[-1]


def test_one_tensor_returned_twice_is_one() -> None:
    w = gradcore.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def f(x: Any) -> Any:
        y = x * w
        return y, [y, y[1:]]

    compiled = gradcore.compile(f)
    for _ in range(3):
        w.grad = None
        y, (again, part) = compiled(gradcore.ones(3))
        assert again is y and part.storage is y.storage
        (y * again + part.sum()).sum().backward()
        assert w.grad.tolist() == [2, 4 + 3, 6 + 3]


def test_a_gradient_that_is_returned_is_the_one_in_its_slot() -> None:
    def train(function: Any, model: nn.Linear, optimizer: Any) -> None:
        for k in range(5):
            _, gradients = function(gradcore.full((2, 3), k + 1.0))
            assert all(g is p.grad for g, p in zip(gradients, model.parameters(), strict=True))
            for g in gradients:
                g.mul_(0.5)
            optimizer.step()

    trained = []
    for mode in (lambda f: f, gradcore.compile, lambda f: gradcore.compile(f, check_every=2)):
        gradcore.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, model: nn.Linear = model) -> Any:
            model.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss.detach(), [p.grad for p in model.parameters()]

        function: Any = mode(step)
        train(function, model, optimizer)
        trained.append([p.tolist() for p in model.parameters()])
        if mode is gradcore.compile:
            assert len(function.traces) == 2  # without gradients, and with some to clear
    assert trained[0] == trained[1] == trained[2]


def test_a_gradient_that_is_added_to_and_returned() -> None:
    model = nn.Linear(3, 2)

    def add(x: Any) -> Any:
        model(x).sum().backward()
        return model.bias.grad

    compiled = gradcore.compile(add)
    for k in range(6):
        gradient = compiled(gradcore.ones(1, 3))
        assert gradient is model.bias.grad and gradient.tolist() == [k + 1] * 2
    # From here on there are no other references to the accumulated gradient.
    del gradient
    for k in range(6, 9):
        compiled(gradcore.ones(1, 3))
        assert model.bias.grad.tolist() == [k + 1] * 2
    assert compiled.traces[-1].endswith("is no longer referenced elsewhere")


@pytest.mark.usefixtures("a_global")
def test_a_saved_program_gives_what_was_there_before_too(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)

    @gradcore.compile
    def f(x: Any) -> Any:
        model.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss.detach(), model.weight, model.weight.grad, outside + 1, outside

    loss, weight, gradient, _, _ = f(gradcore.ones(1, 3))
    f.save(tmp_path / "f.gradcore")
    found = gradcore.load_program(tmp_path / "f.gradcore")(gradcore.ones(1, 3))
    assert [t.tolist() for t in found] == [loss.tolist(), weight.tolist(), gradient.tolist(), [2, 2, 2], [1, 1, 1]]

    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other(gradcore.ones(1, 3)).sum().backward()
    g = gradcore.compile(lambda x: (one(x).detach(), other.weight.grad))
    for _ in range(2):
        assert g(gradcore.ones(1, 3))[1] is other.weight.grad
    with pytest.raises(TraceError, match="returns the gradient of weight"):
        g.save(tmp_path / "g.gradcore")


def test_code_that_asks_whether_there_is_a_gradient_is_asked_again() -> None:
    p = nn.Parameter(gradcore.ones(1))

    def f(x: Any) -> Any:
        return x * 2 if p.grad is None else x * 3

    for given in ((None, True), (True, None)):
        compiled = gradcore.compile(f)
        for there in (*given, *given):
            p.grad = there and gradcore.zeros(1)
            assert [compiled(gradcore.ones(1)).item() for _ in range(2)] == [3 if there else 2] * 2
        assert len(compiled.traces) == 2


@pytest.mark.parametrize("make", [lambda: [1.0], lambda: {"a": 1.0}, lambda: {1.0}, lambda: [gradcore.ones(1)]])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, [x])])
def test_a_container_of_before_comes_back_itself(make: Any, wrap: Any) -> None:
    known, given = make(), make()
    functions = gradcore.compile(lambda x: (x * 2, wrap(known))), gradcore.compile(lambda x, y: (x * 2, wrap(y)))
    for _ in range(3):
        found = functions[0](gradcore.ones(1))[1], functions[1](gradcore.ones(1), given)[1]
        assert [x[1][0] if type(x) is tuple else x for x in found] == [known, given]
        assert all(x is y for x, y in zip([x[0] if type(x) is tuple else x for x in found], (known, given), strict=True))
    assert "that was there before, and a replay would return another one" in functions[0].traces[0]


def _cyclic(y: Any) -> Any:
    found = [y]
    found.append(found)
    return found


def _views(y: Any) -> Any:
    array = np.zeros(3)
    return [array[:2], array[1:], y]


def _twice(part: Any, y: Any) -> Any:
    return [part, [part], y]


@pytest.mark.parametrize("of", [
    lambda y: _twice([1.0], y), lambda y: _twice({"a": [y]}, y), lambda y: _twice({1.0}, y),
    lambda y: _twice(np.zeros(2), y), lambda y: _twice(SimpleNamespace(a=y), y), lambda y: _twice(([1.0],), y),
    lambda y: (lambda part: [SimpleNamespace(a=part), part])([y]), _views, _cyclic,
], ids=["list", "dict", "set", "array", "namespace", "tuple", "attribute", "views", "cycle"])
def test_what_stands_in_two_places_of_a_result_is_one_object(of: Any) -> None:
    def shared(result: Any) -> Any:
        if isinstance(result[0], SimpleNamespace) and len(result) == 2:
            return result[0].a is result[1]
        if isinstance(result[0], gradcore.Tensor):
            return result[1] is result
        if isinstance(result[0], np.ndarray):
            return np.shares_memory(result[0], result[1][0] if isinstance(result[1], list) else result[1])
        one, other = result[0], result[1][0]
        return one[0] is other[0] if isinstance(one, tuple) else one is other

    compiled = gradcore.compile(lambda x: of(x * 2))
    assert shared(of(gradcore.ones(1)))
    assert all(shared(compiled(gradcore.ones(1))) for _ in range(3))
    assert re.search("in two places, and each call makes it anew|, which something else refers to, too", compiled.traces[0])
    # The list that contains itself.
    gc.collect()


def test_an_array_comes_back_itself_and_a_new_one_as_a_new_one() -> None:
    known, given, memory = np.zeros(3), np.zeros(3), bytearray(24)
    functions = [*map(gradcore.compile, (lambda x: (x * 2, known), lambda x: (x * 2, known[:2]), lambda x: (x * 2, given)))]
    for k in range(1, 4):
        for f, array in zip(functions, (known, known, given), strict=True):
            found = f(gradcore.ones(1))[1]
            assert np.shares_memory(found, array)
            found += 1
        assert known.tolist() == [2 * k, 2 * k, k] and given.tolist() == [k, k, k]
    assert all("it returns a ndarray, which something else refers to, too" in f.traces[0] for f in functions)

    # Of these the base is not what owns the memory.
    for view in (lambda: known[1:].view(np.recarray), lambda: np.lib.stride_tricks.as_strided(known, (2,), (8,)),
                 lambda: np.frombuffer(memoryview(memory))):
        compiled = gradcore.compile(lambda x, view=view: (x * 2, view()))
        assert all(np.shares_memory(compiled(gradcore.ones(1))[1], view()) for _ in range(3))
    window = gradcore.compile(lambda x: (x * 2, np.lib.stride_tricks.sliding_window_view(np.arange(4), 2)))
    assert [window(gradcore.ones(1))[1].tolist() for _ in range(3)] == [[[0, 1], [1, 2], [2, 3]]] * 3 and window.programs

    def new(x: Any) -> Any:
        array = np.arange(6.0).reshape(2, 3).T
        return x * 2, array, (lambda: float(array.sum()))()

    made = gradcore.compile(new)
    results = [made(gradcore.ones(1))[1] for _ in range(3)]
    results[0] += 1
    assert [a.tolist() for a in results[1:]] == [[[0, 3], [1, 4], [2, 5]]] * 2 and len(made.programs) == 1
    assert {a.strides for a in results} == {(8, 24)} and not np.shares_memory(*results[1:])


@pytest.mark.parametrize("of", [lambda: np.frombuffer(b"abc", np.uint8), lambda: np.frombuffer(b"abc", np.uint8)[1:],
                                lambda: np.broadcast_to(np.zeros(1), (3,))], ids=["bytes", "view of bytes", "broadcast"])
def test_a_read_only_array_is_replayed_read_only(of: Any) -> None:
    compiled = gradcore.compile(lambda x: (x * 2, of()))
    results = [compiled(gradcore.ones(1))[1] for _ in range(3)]
    assert [a.tolist() for a in results] == [of().tolist()] * 3 and len({*map(id, results)}) == 3
    assert not any(a.flags.writeable for a in results) and len(compiled.programs) == 1


@pytest.mark.parametrize("of", [lambda: np.meshgrid(np.zeros(2), np.zeros(3), copy=False)[0],
                                lambda: np.lib.stride_tricks.as_strided(np.zeros(3), (2, 2), (8, 8)),
                                # It spans as much as its elements take.
                                lambda: np.lib.stride_tricks.as_strided(np.zeros(11), (2, 2, 2), (48, 16, 16))],
                         ids=["grid", "windows", "windows apart"])
def test_an_array_with_an_element_in_several_places_comes_back_so(of: Any) -> None:
    compiled = gradcore.compile(lambda x: (x * 2, of()))
    assert {compiled(gradcore.ones(1))[1].strides for _ in range(3)} == {of().strides}
    assert "it returns an array with an element in several places, which a copy would not have" in compiled.traces[0]


def test_an_empty_array_is_replayed() -> None:
    """NumPy gives it the strides of one whose elements are all one."""
    compiled = gradcore.compile(lambda x: (x * 2, np.zeros((0, 3))))
    assert [compiled(gradcore.ones(1))[1].shape for _ in range(3)] == [(0, 3)] * 3 and len(compiled.programs) == 1
