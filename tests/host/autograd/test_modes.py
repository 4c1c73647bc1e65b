"""When a graph is built: modes, and functions that detach a tensor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import gradcore
from gradcore.engine.state import local
from tests.conftest import raises


def leaf() -> Any:
    return gradcore.tensor([1.0, 2.0], requires_grad=True)


MODES = {
    "no_grad": (gradcore.no_grad, False), "enable_grad": (gradcore.enable_grad, True),
    "inference_mode": (gradcore.inference_mode, False), "inference_mode(False)": (lambda: gradcore.inference_mode(False), True),
    "set_grad_enabled(False)": (lambda: gradcore.set_grad_enabled(False), False),
    "set_grad_enabled(True)": (lambda: gradcore.set_grad_enabled(True), True),
}


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("name", MODES)
def test_a_mode_holds_inside_and_goes_back(name: str, outer: bool) -> None:
    mode, expected = MODES[name]
    x = leaf()
    with gradcore.set_grad_enabled(outer):
        with mode():
            assert (x * 2).requires_grad is gradcore.is_grad_enabled() is expected
        assert gradcore.is_grad_enabled() is outer
        with raises(ZeroDivisionError, "division"), mode():
            _ = 1 / 0
        assert gradcore.is_grad_enabled() is outer, "after an error too"


@pytest.mark.parametrize("name", MODES)
def test_one_mode_may_be_entered_inside_itself(name: str) -> None:
    mode, expected = MODES[name]
    with gradcore.set_grad_enabled(not expected):
        again = mode()
        with again:
            with again:
                assert gradcore.is_grad_enabled() is expected
            assert gradcore.is_grad_enabled() is expected
        assert gradcore.is_grad_enabled() is not expected


@pytest.mark.parametrize("name", MODES)
def test_a_mode_decorates_a_function(name: str) -> None:
    mode, expected = MODES[name]

    @mode()
    def double(x: Any) -> Any:
        """Twice x."""
        return x * 2

    assert double.__name__ == "double" and double.__doc__ == "Twice x." and gradcore.is_grad_enabled()
    with gradcore.set_grad_enabled(not expected):
        assert double(leaf()).requires_grad is expected and gradcore.is_grad_enabled() is not expected


def test_set_grad_enabled_holds_when_it_is_called() -> None:
    gradcore.set_grad_enabled(False)
    try:
        assert not (leaf() * 2).requires_grad
    finally:
        gradcore.set_grad_enabled(True)
    assert (leaf() * 2).requires_grad


@pytest.mark.oracle
def test_set_grad_enabled_is_left_without_having_been_entered(torch: Any) -> None:
    for t in (gradcore, torch):
        with ExitStack() as stack:
            stack.push(t.set_grad_enabled(False))
            assert not t.is_grad_enabled()
        assert t.is_grad_enabled()


def test_a_mode_is_a_threads_own() -> None:
    seen = []
    with gradcore.no_grad():
        thread = threading.Thread(target=lambda: seen.append(gradcore.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_backward_runs_inside_backward() -> None:
    class Cubed(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x ** 3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            y = ctx.saved_tensors[0].detach().requires_grad_()
            with gradcore.enable_grad():
                (y ** 3).sum().backward()
            return g * y.grad

    x = leaf()
    (Cubed.apply(x * 1) * 2).sum().backward()
    assert x.grad.tolist() == [6.0, 24.0] and gradcore.is_grad_enabled()


def test_what_leaves_its_graph() -> None:
    x = leaf()
    y = x * 2
    shown = y.detach()
    assert shown.grad_fn is None and not shown.requires_grad and shown.data_ptr() == y.data_ptr()
    assert y.detach_() is y and y.grad_fn is None and y.is_leaf
    with raises(RuntimeError, "does not require grad"):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.oracle
def test_a_view_does_not_leave_its_graph_in_place(torch: Any) -> None:
    # A write to its base would have brought it back.
    for t in (gradcore, torch):
        x = t.ones(4, requires_grad=True)
        y, plain = x * 2, t.ones(4)
        with t.no_grad():
            unrecorded = y[:2]
        for view in (y[:2], plain[:2], x[:2], unrecorded, y.view(2, 2).T):
            with pytest.raises(RuntimeError, match=r"^Can't detach views in-place. Use detach\(\) instead."):
                view.detach_()
        assert y.detach_() is y
        # A gradient may be a part of a larger tensor; it requires no gradient, and is only filled.
        x.grad = t.ones(8)[4:]
        t.optim.SGD([x], lr=0.1).zero_grad(set_to_none=False)
        assert x.grad.tolist() == [0.0] * 4


def test_a_tensor_may_join_later() -> None:
    x = gradcore.tensor([1.0, 2.0])
    assert x.requires_grad_() is x and x.is_leaf
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert not x.requires_grad_(False).requires_grad
    with raises(RuntimeError, "you can only change requires_grad flags of leaf variables"):
        (leaf() * 2).requires_grad_(False)


@pytest.mark.parametrize("name", ["no_grad", "enable_grad", "inference_mode"])
def test_a_mode_decorates_by_its_name_alone(name: str) -> None:
    expected = MODES[name][1]

    @getattr(gradcore, name)
    def double(x: Any) -> Any:
        """Twice x."""
        return x * 2

    assert double.__name__ == "double" and double.__doc__ == "Twice x." and gradcore.is_grad_enabled()
    with gradcore.set_grad_enabled(not expected):
        assert double(leaf()).requires_grad is expected and gradcore.is_grad_enabled() is not expected


def test_a_mode_refuses_what_it_cannot_decorate() -> None:
    with raises(TypeError, "no_grad takes no argument, or the function that it decorates, but got False"):
        gradcore.no_grad(False)


@pytest.mark.parametrize("name", MODES)
def test_a_generator_runs_in_the_mode_and_its_caller_does_not(name: str) -> None:
    mode, expected = MODES[name]
    seen = []

    @mode()
    def steps(first: int) -> Any:
        try:
            sent = yield first, (leaf() * 2).requires_grad
            try:
                yield sent, gradcore.is_grad_enabled()
            except ValueError as error:
                yield str(error), gradcore.is_grad_enabled()
            return "end"
        finally:
            seen.append(gradcore.is_grad_enabled())

    with gradcore.set_grad_enabled(not expected):
        run = steps(1)
        assert next(run) == (1, expected) and gradcore.is_grad_enabled() is not expected
        assert run.send(2) == (2, expected) and gradcore.is_grad_enabled() is not expected
        assert run.throw(ValueError("thrown")) == ("thrown", expected) and gradcore.is_grad_enabled() is not expected
        with raises(StopIteration, "end"):
            next(run)
        stopped = steps(1)
        next(stopped)
        stopped.close()
        with raises(ZeroDivisionError, "thrown"):
            run = steps(1)
            next(run)
            run.throw(ZeroDivisionError("thrown"))
        assert gradcore.is_grad_enabled() is not expected
    assert seen == [expected] * 3 and next(steps(3)) == (3, expected)


def test_anomaly_detection_decorates_a_generator() -> None:
    @gradcore.autograd.detect_anomaly()
    def inside() -> Iterator[tuple[bool, bool]]:
        yield gradcore.autograd.is_anomaly_enabled(), gradcore.is_grad_enabled()

    assert inside.__name__ == "inside"
    with gradcore.no_grad():
        assert list(inside()) == [(True, False)]


def test_a_decorated_generator_keeps_no_item_alive() -> None:
    @gradcore.no_grad()
    def items() -> Any:
        for _ in range(3):
            yield gradcore.ones(1000)

    held = gradcore.memory_requested()
    run = items()
    for item in run:
        del item
        assert gradcore.memory_requested() == held
    run = items()
    next(run)
    with raises(ValueError, "thrown"):
        run.throw(ValueError("thrown"))
    assert gradcore.memory_requested() == held


@pytest.mark.parametrize("region", [False, True], ids=["no_grad", "autocast"])
def test_threads_call_a_decorated_function_at_once(region: bool) -> None:
    mode = gradcore.autocast("meta", dtype=gradcore.float16) if region else gradcore.no_grad()
    entered, left = threading.Event(), threading.Event()
    seen = []

    @mode
    def run() -> None:
        entered.set()
        left.wait(10)

    def other() -> None:
        # In the mode before, whereas the caller that enters later, and leaves later, is not.
        with gradcore.autocast("meta", dtype=gradcore.float16) if region else gradcore.no_grad():
            run()
            seen.append(gradcore.is_autocast_enabled() if region else gradcore.is_grad_enabled())

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)

    @mode
    def inside() -> None:
        left.set()
        thread.join()

    inside()
    assert seen == [region]
    assert not gradcore.is_autocast_enabled() and gradcore.is_grad_enabled()


@pytest.mark.parametrize("make", [gradcore.no_grad, gradcore.inference_mode, lambda: gradcore.recompute(False),
                                  lambda: gradcore.autocast("cpu"), lambda: gradcore.set_grad_enabled(True),
                                  lambda: gradcore.autograd.graph.saved_tensors_hooks(abs, abs)])
def test_threads_may_be_in_one_mode_at_once(make: Any) -> None:
    """The second enters before the first leaves, which finds the mode that it was in, and not the second's."""
    def modes() -> tuple[Any, ...]:
        return (gradcore.is_grad_enabled(), gradcore.is_inference_mode_enabled(), local.state.recompute, local.state.packing,
                gradcore.is_autocast_enabled("cpu"))

    one, steps = make(), [threading.Event() for _ in range(2)]
    found: list[Any] = []

    def other() -> None:
        with (gradcore.no_grad(), gradcore.recompute(False), gradcore.autocast("cpu"),
              gradcore.autograd.graph.saved_tensors_hooks(id, id)):
            before = modes()
            with one:
                steps[0].set()
                assert steps[1].wait(60)
            found.append((before, modes()))

    before = modes()
    thread = threading.Thread(target=other)
    with one:
        thread.start()
        assert steps[0].wait(60)
    after = modes()
    steps[1].set()
    thread.join()
    assert after == before
    assert len(found) == 1 and found[0][0] == found[0][1]


def test_a_generator_that_another_thread_closes_changes_no_mode_of_it() -> None:
    def inside() -> Iterator[None]:
        with gradcore.no_grad(), gradcore.autocast("cpu"):
            yield

    suspended = inside()
    thread = threading.Thread(target=next, args=(suspended,))
    thread.start()
    thread.join()
    with gradcore.no_grad(), gradcore.autocast("cpu"):
        suspended.close()
        assert not gradcore.is_grad_enabled() and gradcore.is_autocast_enabled()
