"""Gradients lie in the arenas of programs: several programs of the same parameters hold one gradient between them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import OutOfMemory
from tests.conftest import raises


@pytest.mark.parametrize("recorded", [True, False])
def test_batches_of_several_sizes_hold_one_gradient(recorded: bool) -> None:
    """Each has a program, and each program leaves its gradients in an arena of its own."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Linear(50, 50)
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run, peaks = wrap(step), []
        before = gradcore.memory_allocated()
        for _ in range(4):
            for rows in (4, 5, 300, 7):
                gradcore.reset_peak_memory_stats()
                if recorded:
                    with gradcore.step() as s:
                        run(gradcore.ones(rows, 50))
                    assert s.report.by_role.get("gradient", 0) <= 10752
                    peaks.append(s.report.peak.allocated - before)
                else:
                    run(gradcore.ones(rows, 50))
                    peaks.append(gradcore.max_memory_allocated() - before)
        found.append((peaks, gradcore.memory_allocated() - before))
        model.zero_grad()
    (eager, live), (compiled, live_compiled) = found
    assert live == live_compiled and all(ours <= theirs for ours, theirs in zip(compiled, eager, strict=True))


def test_the_arena_takes_the_place_of_what_the_traced_run_left() -> None:
    """The gradients that a run replaces are dropped before it takes its arena, which has room for its own."""
    reserved = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.empty_cache()
        gradcore.manual_seed(0)
        before = gradcore.memory_reserved()
        model = nn.Sequential(*(nn.Linear(800, 800) for _ in range(4)))
        optimizer = gradcore.optim.Adam(model.parameters())

        @wrap
        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        most = 0
        for _ in range(5):
            step(gradcore.ones(100, 800))
            most = max(most, gradcore.memory_reserved() - before)
        reserved.append(most)
        del model, optimizer, step
    assert reserved[1] <= reserved[0]


def test_a_gradient_that_is_held_is_not_let_go() -> None:
    w, held = gradcore.ones(300, requires_grad=True), []

    @gradcore.compile
    def step(x: Any) -> None:
        w.grad = None
        (x * w).sum().backward()

    for k in range(9):
        step(gradcore.full((k % 3 + 1, 300), float(k)))
        if k in (5, 6):
            held.append(w.grad)
    assert [g.tolist()[0] for g in held] == [5.0 * 3, 6.0] and w.grad.tolist()[0] == 8.0 * 3
    before = gradcore.memory_allocated()
    held.clear()
    step(gradcore.ones(1, 300)), step(gradcore.ones(2, 300)), step(gradcore.ones(3, 300))
    assert gradcore.memory_allocated() < before


Wrap = Callable[[Any], Any]


def linear(seed: int = 0) -> tuple[Any, Any]:
    gradcore.manual_seed(seed)
    model = nn.Linear(40, 40)
    return model, gradcore.optim.SGD(model.parameters(), lr=0.1)


def backward_of(model: Any, clear: bool) -> Any:
    def run(x: Any) -> None:
        if clear:
            model.zero_grad()
        model(x).square().mean().backward()

    return run


def live_in_steps(wrap: Wrap, recorded: bool, clear: Callable[[Any], None]) -> list[Any]:
    """What is live, and the gradient, after the backward and after ``clear``, which runs outside of the compiled function."""
    model, optimizer = linear()
    run, found, before = wrap(backward_of(model, False)), [], gradcore.memory_allocated()
    for k in range(5):
        with gradcore.step() if recorded else nullcontext():
            run(gradcore.full((3, 40), k + 1.0))
            found.append((gradcore.memory_allocated() - before, model.weight.grad.sum().item()))
            optimizer.step()
            clear(model)
            found.append((gradcore.memory_allocated() - before, None))
    model.zero_grad()
    return found


def clear_one(model: Any) -> None:
    model.weight.grad = None
    model.bias.grad.zero_()


def replace(model: Any) -> None:
    model.weight.grad = gradcore.ones(40, 40)
    model.zero_grad()


@pytest.mark.parametrize("clear", [lambda model: model.zero_grad(), clear_one, replace])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_gradient_that_the_caller_drops_is_not_live(clear: Callable[[Any], None], recorded: bool) -> None:
    assert live_in_steps(gradcore.compile, recorded, clear) == live_in_steps(lambda f: f, recorded, clear)


def test_a_compiled_update_that_clears_gradients_of_another_program_lets_them_go() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        model, optimizer = linear()
        run = wrap(backward_of(model, False))

        @wrap
        def update(model: Any = model, optimizer: Any = optimizer) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

        before, live = gradcore.memory_allocated(), []
        for k in range(6):
            run(gradcore.full((3, 40), k + 1.0)), run(gradcore.ones(3, 40))
            live.append(gradcore.memory_allocated() - before)
            update()
            live.append(gradcore.memory_allocated() - before)
        found.append((live, model.weight.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("wrap_second", [lambda f: f, gradcore.compile])
def test_a_later_backward_adds_to_a_replayed_gradient_in_place(wrap_second: Wrap) -> None:
    """The replay's own references do not make it a held gradient: a second copy would stay live beside it."""
    found = []
    for wrap, then in ((lambda f: f, lambda f: f), (gradcore.compile, wrap_second)):
        model, _ = linear()
        first, second = wrap(backward_of(model, True)), then(backward_of(model, False))
        before, rows = gradcore.memory_allocated(), []
        for k in range(6):
            first(gradcore.full((3, 40), k + 1.0))
            gradcore.reset_peak_memory_stats()
            second(gradcore.ones(3, 40))
            rows.append((gradcore.memory_allocated() - before, model.weight.grad.sum().item()))
            assert gradcore.max_memory_allocated() - before <= 28160
        found.append(rows)
        model.zero_grad()
    assert found[0] == found[1]


@pytest.mark.parametrize("later", [lambda f: f, gradcore.compile])
def test_a_replayed_gradient_that_is_held_is_not_added_to_in_place(later: Wrap) -> None:
    model, _ = linear()
    first, second = gradcore.compile(backward_of(model, True)), later(backward_of(model, False))
    first(gradcore.ones(3, 40)), second(gradcore.ones(3, 40)), first(gradcore.ones(3, 40)), second(gradcore.ones(3, 40))
    for _ in range(3):
        first(gradcore.ones(3, 40))
        held, values = model.weight.grad, model.weight.grad.tolist()
        second(gradcore.ones(3, 40))
        assert held.tolist() == values and model.weight.grad.tolist() != values
        del held
    # When its program is gone, the gradient is the parameter's alone.
    first(gradcore.ones(3, 40))
    del first
    held, values = model.weight.grad, model.weight.grad.tolist()
    second(gradcore.ones(3, 40))
    assert held.tolist() == values
    del held
    model.zero_grad()


def test_a_gradient_that_is_given_other_memory() -> None:
    """``p.grad.data = ...``: the next replay leaves its own gradient, not the tensor that now shows something else."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        model, optimizer = linear()
        run, rows = wrap(backward_of(model, True)), []
        for k in range(5):
            run(gradcore.full((3, 40), k + 1.0))
            for p in model.parameters():
                p.grad.data = p.grad.data * 0.5 if k % 2 else p.grad.data.flip(0)
            optimizer.step()
            rows.append((model.weight.grad.tolist(), model.weight.tolist()))
        found.append(rows)
        model.zero_grad()
    assert found[0] == found[1]


def test_a_gradient_that_is_made_to_require_one() -> None:
    model, _ = linear()
    run = gradcore.compile(backward_of(model, True))
    for _ in range(4):
        run(gradcore.ones(3, 40))
        assert not model.weight.grad.requires_grad
        model.weight.grad.requires_grad_()
    model.zero_grad()


def test_a_gradient_that_is_given_to_another_parameter() -> None:
    model, other = linear()[0], nn.Linear(40, 40)
    run = gradcore.compile(backward_of(model, True))
    for _ in range(3):
        run(gradcore.ones(3, 40))
        other.weight.grad = model.weight.grad
        model.zero_grad()
        assert other.weight.grad.sum().item() != 0
        other.zero_grad()
    model.zero_grad()


def test_the_figures_add_up_while_programs_hold_arenas() -> None:
    """What an arena holds besides its live tensors is neither allocated nor cached."""
    model = nn.Linear(64, 64)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

    @gradcore.compile
    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    held = []
    for rows in (8, 8, 8, 16, 16, 16, 8, 300):
        step(gradcore.ones(rows, 64))
        stats = gradcore.memory_stats()
        assert stats["reserved"] == stats["allocated"] + stats["cached"] + stats["arenas"]
        held.append(stats["arenas"])
    assert max(held) > held[0]
    assert f"arenas{held[-1]:>26,}" in gradcore.memory_summary()


def test_out_of_memory_says_what_programs_hold() -> None:
    """Near a limit, an idle arena is what a smaller batch has no room for."""
    step = gradcore.compile(lambda x: ((x * 2).exp() @ x.t()).sum())
    for _ in range(3):
        step(gradcore.ones(1000, 1000))
    gradcore.empty_cache()
    gradcore.set_memory_limit(gradcore.memory_reserved() + (8 << 20))
    try:
        held = gradcore.memory_stats()["arenas"]
        with raises(OutOfMemory, f", {held:,} more in arenas of compiled functions, limit "):
            gradcore.empty(100 << 20)
    finally:
        gradcore.set_memory_limit(None)
    assert held > 4_000_000
