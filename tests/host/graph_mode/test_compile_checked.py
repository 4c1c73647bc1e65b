"""What ``check_every`` compares beside values, and that a checked call leaves what an eager one does."""

from __future__ import annotations

import mmap
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.logs import normalized

SEEN = SimpleNamespace(part_1=None, beside=iter(()))


def seen(level: str = "1") -> Any:
    """What no guard sees."""
    return attrgetter("part_" + level)(SEEN)


def back(p: Any, x: Any) -> Any:
    loss = (p * x).sum()
    loss.backward()
    return loss.detach()


def without_gradient(p: Any, x: Any) -> Any:
    loss = back(p, x)
    if seen():
        p.grad = None
    return loss


def with_gradient(p: Any, x: Any) -> Any:
    loss = (p * x).sum()
    if seen():
        loss.backward()
    return loss.detach()


@pytest.mark.parametrize(("function", "was", "now", "text"), [
    (without_gradient, False, True, "the gradient of .*: a tensor and None"),
    (with_gradient, False, True, "the gradient of .*: None and a tensor"),
    (lambda p, x: (x * 2, seen()), 1, 2, r"the result\[1\]: 1 and 2"),
    (lambda p, x: (x * 2, seen()), 1, 1.0, r"the result\[1\]: 1 and 1.0"),
    (lambda p, x: (x * 2, seen()), 1, None, r"the result\[1\]: 1 and None"),
    (lambda p, x: {"a": x * 2, "b": [seen()]}, "one", "two", r"the result\['b'\]\[0\]: 'one' and 'two'"),
    (lambda p, x: {seen(): x * 2}, "one", "two", r"the result: the keys \['one'\] and the keys \['two'\]"),
    (lambda p, x: [x * k for k in range(seen())], 1, 2, "the result: a list of 1 and a list of 2"),
    (lambda p, x: [x * k for k in range(seen())], 2, 1, "the result: a list of 2 and a list of 1"),
    (lambda p, x: x * 2 if seen() else (x * 2,), True, False, "the result: a tensor and a tuple of 1"),
    (lambda p, x: (x * 2, x if seen() else p), True, False, r"the result\[1\]: one tensor and another"),
    (lambda p, x: (x * 2, np.arange(seen())), 2, 3, r"the result\[1\]: array\(\[0, 1\]\) and array\(\[0, 1, 2\]\)"),
])
def test_a_difference_of_another_kind_than_a_value_is_found(function: Any, was: Any, now: Any, text: str) -> None:
    SEEN.part_1 = was
    p, x = nn.Parameter(gradcore.ones(3)), gradcore.ones(3)
    checked = gradcore.compile(lambda x: function(p, x), check_every=2)
    for _ in range(5):
        p.grad = None
        checked(x)
    assert checked.programs
    SEEN.part_1 = now
    with pytest.raises(gradcore.errors.TraceError, match=f"a replay differs from the eager run in {text}"):
        for _ in range(2):
            p.grad = None
            checked(x)


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0 ** -10), ("bfloat16", 2.0 ** -7), ("float32", 2.0 ** -23),
                                             ("float64", 2.0 ** -52)])
def test_a_last_bit_is_no_difference(dtype: str, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gradcore.compile(lambda x: x + seen(), check_every=2)
    x = gradcore.tensor([1.0, float("nan"), float("inf")]).to(getattr(gradcore, dtype))
    monkeypatch.setattr(SEEN, "part_1", 0.0)
    for _ in range(4):
        run(x)
    monkeypatch.setattr(SEEN, "part_1", step)
    assert {run(x)[0].item() for _ in range(4)} == {1.0, 1 + step}
    monkeypatch.setattr(SEEN, "part_1", 0.0625)
    with raises(gradcore.errors.TraceError, "a replay differs from the eager run in result 0"):
        for _ in range(2):
            run(x)


def test_what_is_the_same_is_not_found() -> None:
    p, x, w = nn.Parameter(gradcore.ones(3)), gradcore.ones(3), gradcore.ones(2)

    def function(x: Any) -> Any:
        loss = (p * x).sum()
        loss.backward()
        y = x * 2
        return {"nan": float("nan"), "zero": -0.0, "set": {1}, "array": np.ones(2), "size": x.shape, "type": x.dtype,
                "device": x.device, "none": None, "all": [y, y, x, w, p, p.grad, loss.detach()]}

    checked = gradcore.compile(function, check_every=1)
    for _ in range(5):
        p.grad = None
        found = checked(x)
    assert len(checked.programs) == 1 and found["all"][5] is p.grad and found["all"][3] is w


def test_a_gradient_that_neither_run_leaves_is_the_same() -> None:
    p, frozen, x = nn.Parameter(gradcore.ones(3)), nn.Parameter(gradcore.ones(3), requires_grad=False), gradcore.ones(3)

    def function(x: Any) -> Any:
        (p * x).sum().backward()
        return frozen.grad

    checked = gradcore.compile(function, check_every=1)
    g = gradcore.zeros(3)
    for gradient in (g, g, g, None, None):
        p.grad, frozen.grad = None, gradient
        assert checked(x) is gradient
    assert checked.programs and len(checked.traces) < 3


@pytest.mark.parametrize("make", [lambda p: gradcore.optim.SGD(p, lr=0.1), lambda p: gradcore.optim.SGD(p, momentum=0.9),
                                  gradcore.optim.Adam])
def test_a_checked_step_leaves_what_an_eager_one_does(make: Any) -> None:
    x, y = gradcore.ones(4, 64), gradcore.zeros(4, dtype=gradcore.int64)

    def run(wrap: Any) -> Any:
        gradcore.manual_seed(0)
        model = nn.Linear(64, 8)
        optimizer = make(model.parameters())

        @wrap
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        before, found = gradcore.memory_requested(), []
        for _ in range(7):
            loss = step(x, y).item()
            found.append((loss, gradcore.memory_requested() - before))
        state = {k: {*v} for k, v in optimizer.state_dict()["state"].items()}
        optimizer.zero_grad()
        return found, state, gradcore.memory_requested() - before

    eager = run(lambda f: f)
    for n in (1, 2, 3):
        assert run(lambda f, n=n: gradcore.compile(f, check_every=n)) == eager


def test_a_checked_call_has_the_same_log_on_meta() -> None:
    found = []
    for device in ("cpu", "meta"):
        model = nn.Linear(4, 4, device=device)
        optimizer = gradcore.optim.Adam(model.parameters())

        @partial(gradcore.compile, check_every=1)
        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for _ in range(4):
            with gradcore.step() as recorded:
                step(gradcore.ones(2, 4, device=device))
        assert len(step.programs) == 1
        found.append(normalized(recorded.raw_log))
    assert found[0] == found[1]


@pytest.mark.parametrize("part", [np.s_[:], np.s_[::2], np.s_[1:]], ids=["whole", "strided", "behind"])
def test_what_a_checked_replay_writes_to_an_array_is_undone(part: Any) -> None:
    f = gradcore.compile(lambda x: (x * 2, x.add_(1)), check_every=1)
    array = np.arange(8.0)
    for k in range(3):
        doubled, _ = f(gradcore.from_numpy(array[part]))
        assert doubled.tolist() == (2 * (np.arange(8.0) + k)[part]).tolist()
    assert len(f.programs) == 1


def test_a_checked_call_does_not_write_to_an_array_that_can_only_be_read() -> None:
    f, memory = gradcore.compile(lambda x: x * 2, check_every=1), mmap.mmap(-1, 4096, access=mmap.ACCESS_READ)
    x = gradcore.from_numpy(np.frombuffer(memory))
    assert [f(x).sum().item() for _ in range(3)] == [0.0] * 3
