"""An interrupt in a training step: afterwards no additional memory is live, and the next step works as usual."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import folds, nn
from gradcore._step import _recorded as recorded
from gradcore.devices.device import arrivals
from gradcore.devices.storage import Storage
from gradcore.engine.recipes import Again
from gradcore.engine.saved import Saved
from gradcore.engine.state import local
from gradcore.nn import paths
from gradcore.optim import optimizer as optimizers
from gradcore.program.calls import compiled
from gradcore.program.graphs import again
from gradcore.program.replaying.arena import Part
from gradcore.program.tracing.recorder import Recorder, busy
from gradcore.program.watching.watch import Watcher
from tests.conftest import raises
from tests.meta.test_interrupts import Interrupt, at_every_moment


def small_step() -> tuple[Any, Callable[[], Any]]:
    """An optimizer whose updates change nothing but its state, and a step of a small network."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), gradcore.ones(2, 4)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return optimizer, step


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
def test_a_training_step_that_is_interrupted(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The interrupt of a finalizer ends in it, and pytest would keep it with all the frames that it came through.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    optimizer, step = small_step()

    def train() -> Any:
        return step().item()

    def run() -> Any:
        if not recorded:
            return train()
        with gradcore.step():
            return train()

    expected = run()
    optimizer.zero_grad()
    state = local.state
    before, live = (state.grad, state.scope, state.site, state.node), gradcore.memory_allocated()
    ledger = gradcore.device("cpu").ledger
    for _ in at_every_moment(run, "/gradcore/engine/", 1):
        gc.collect()
        optimizer.zero_grad()
        assert not ledger.lock._is_owned() and (state.grad, state.scope, state.site, state.node) == before
        assert gradcore.memory_allocated() == live and ledger.log is None
    assert run() == expected
    optimizer.zero_grad()


def state_now() -> tuple[Any, ...]:
    state = local.state
    return (state.grad, state.scope, state.site, state.node, state.packing, state.recompute, state.autocast, state.sweep,
            paths.calls.tree)


class Doubled(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def packed(model: Any, x: Any) -> Any:
    with gradcore.autograd.graph.save_on_cpu():
        return model(x)


def checkpointed(model: Any, x: Any, reentrant: bool) -> Any:
    with gradcore.autocast("cpu"):
        return gradcore.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).float()


@pytest.mark.parametrize("forward", [
    packed, lambda model, x: checkpointed(model, x, False), lambda model, x: checkpointed(model, x.requires_grad_(), True),
    lambda model, x: Doubled.apply(model(x))], ids=["hooks on what is kept", "checkpoint", "reentrant checkpoint", "Function"])
def test_a_backward_that_is_interrupted_leaves_no_mode_behind(forward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A generator that an interrupt left waiting would restore what it found when its frame is released, after all around it.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    before = state_now()
    losses = [forward(model, gradcore.ones(2, 4)).sum()]
    for _ in at_every_moment(lambda: losses.pop().backward(), "/", 3):
        assert state_now() == before
        losses.append(forward(model, gradcore.ones(2, 4)).sum())


def test_an_optimizer_that_is_interrupted_as_it_creates_its_state_leaves_no_mode_behind(
        monkeypatch: pytest.MonkeyPatch) -> None:
    # Finalizers swallow interrupts; they are among the moments if another test has run such an update, which is planned then.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    model = nn.Linear(2, 1)
    model(gradcore.ones(1, 2)).sum().backward()
    before = state_now()
    for _ in at_every_moment(lambda: gradcore.optim.Adam(model.parameters()).step(), "/"):
        assert state_now() == before


def test_initial_values_that_are_interrupted_leave_gradients_enabled() -> None:
    layer = nn.Linear(4, 3)
    for _ in at_every_moment(layer.reset_parameters, "/gradcore/engine/"):
        assert gradcore.is_grad_enabled()


def test_a_region_of_autocast_that_is_interrupted_ends_and_the_next_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    a = gradcore.ones(2, 2)

    def run() -> list[Any]:
        with gradcore.autocast("cpu", dtype=gradcore.float16):
            return [x.dtype for x in (a @ a, (a @ a).exp(), (a @ a).sum(), (a @ a).softmax(0))]

    expected = run()
    for _ in at_every_moment(run, "/gradcore/engine/autocast.py"):
        assert not gradcore.is_autocast_enabled("cpu") and (a @ a).dtype == gradcore.float32
        assert run() == expected
    assert run() == expected


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
def test_a_replay_that_is_interrupted_leaves_the_books_as_they_were(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges of its arena are opened and closed in them."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    optimizer, step = small_step()
    train = gradcore.compile(step)

    def run() -> Any:
        if not recorded:
            return train().item()
        with gradcore.step():
            return train().item()

    expected = [run() for _ in range(4)][-1]
    assert train.programs
    optimizer.zero_grad()
    live, requested = gradcore.memory_allocated(), gradcore.memory_requested()
    for _ in at_every_moment(run, "/gradcore/memory/", 1):
        gc.collect()
        # The next replay closes what is open.
        assert run() == expected
        optimizer.zero_grad()
        assert (gradcore.memory_allocated(), gradcore.memory_requested()) == (live, requested)
        with gradcore.step() as step:
            pass
        assert step.report.phases[-1].requested == requested


@pytest.mark.parametrize("whole", [True, False], ids=["step", "layer"])
def test_the_log_of_a_replay_that_is_interrupted_agrees_with_the_books(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    step, layer = small_step()[1], nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    train, x, recorded = gradcore.compile(step if whole else layer), gradcore.ones(2, 4), gradcore.step()

    def run() -> None:
        layer.zero_grad()
        with recorded:
            train().item() if whole else train(x).sum().backward()

    for _ in range(4):
        run()
    assert train.programs
    for _ in at_every_moment(run, "/gradcore/program/replaying/"):
        *_, last = folds.timeline(recorded.log)
        assert recorded._ended is not None and last[:2] == recorded._ended.live
        run()


def test_a_step_that_is_interrupted_at_its_ends_measures_no_peaks_any_more() -> None:
    ledger = gradcore.device("cpu").ledger

    def run() -> None:
        with gradcore.step():
            pass

    for _ in at_every_moment(run, "/gradcore/memory/"):
        assert not ledger.measured and ledger.log is None


@pytest.mark.parametrize("level", ["counts", "events", "stacks"])
def test_a_step_that_is_interrupted_at_its_ends_is_not_open(level: str) -> None:
    ledger, before = gradcore.device("cpu").ledger, state_now()
    # With the pinned pool, whose figures the step's end reads.
    gradcore.ones(1).pin_memory()
    began: list[Any] = []

    def run() -> None:
        began[:] = [gradcore.step(level=level)]
        with began[0]:
            pass

    left = 0
    for _ in at_every_moment(run, "/gradcore/_step.py"):
        if ledger.measured:
            # Python calls no __exit__ again that it interrupts before its first instruction; whoever does ends the step.
            left += 1
            began[0].__exit__(None, None, None)
        assert not ledger.measured and ledger.log is None and not arrivals and not recorded and state_now() == before
    assert left == 1


def test_a_recording_that_is_interrupted_as_it_begins_leaves_no_log_open(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = iter([again._OpLog])
    cpu, meta = gradcore.device("cpu"), gradcore.device("meta")

    def make() -> Any:
        for kind in logs:
            return kind()
        raise Interrupt

    monkeypatch.setattr(again, "_OpLog", make)
    with raises(Interrupt, ""), gradcore.record():
        pass
    assert cpu.ledger.log is meta.ledger.log is None and not busy.depth


@pytest.mark.parametrize("call", ["append", "remove"])
def test_a_trace_that_is_interrupted_at_its_ends_leaves_no_log_open(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watchers(list[Any]):
        pass

    def interrupted(self: Any, watcher: Any) -> None:
        getattr(list, call)(self, watcher)
        raise Interrupt

    setattr(Watchers, call, interrupted)
    monkeypatch.setattr(optimizers, "watchers", Watchers())
    cpu = gradcore.device("cpu")
    with raises(Interrupt, ""), Recorder(cpu):
        pass
    assert cpu.ledger.log is None and not optimizers.watchers


@pytest.mark.parametrize("file", ["compiled", "traced"])
def test_the_next_trace_gives_back_what_an_interrupted_one_had_for_itself(file: str) -> None:
    x = gradcore.ones(2)
    for _ in at_every_moment(lambda: gradcore.compile(lambda x: x * 2)(x), f"/gradcore/program/calls/{file}.py"):
        gradcore.compile(lambda x: x * 3)(x)
        assert not compiled._tracing._is_owned() and not busy.depth


def recorded_ops() -> None:
    with gradcore.record():
        gradcore.rand(2)


@pytest.mark.parametrize("run", [lambda: gradcore.compile(lambda x: x * 2)(gradcore.ones(2)), recorded_ops],
                         ids=["trace", "record"])
def test_what_is_interrupted_between_two_contexts_keeps_no_thread_from_compiling(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    x = gradcore.ones(2)
    for _ in at_every_moment(run, "/contextlib.py"):
        assert not busy.depth
        f = gradcore.compile(lambda x: x * 3)
        assert f(x).tolist() == f(x).tolist() == [3, 3] and f.traces == ["the first call"]
        assert gradcore.device("cpu").ledger.log is None


@pytest.mark.parametrize("kind", [Again, Part, Saved, Storage])
def test_what_an_interrupt_leaves_half_made_goes_silently(kind: type) -> None:
    # An error in a finalizer is a warning, and so fails the test.
    made = object.__new__(kind)
    del made


@pytest.mark.parametrize("moment", range(3))
def test_a_trace_that_is_interrupted_as_a_lock_is_given_back_leaves_it_free(
        moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher's profiler is called then, and the handler within it."""
    lock, saw, x = gradcore.device("cpu").ledger.lock, Watcher._saw, gradcore.ones(2)
    seen: list[Any] = []

    def interrupted(self: Any, frame: Any, event: str, arg: Any) -> None:
        if event == "c_call" and getattr(arg, "__self__", None) is lock and arg.__name__ == "__exit__":
            seen.append(event)
            if len(seen) > moment:
                raise Interrupt
        saw(self, frame, event, arg)

    monkeypatch.setattr(Watcher, "_saw", interrupted)
    live = gradcore.memory_allocated()
    with raises(Interrupt, ""):
        gradcore.compile(lambda x: (x * 2).exp() + 1)(x)
    assert not lock._is_owned()
    monkeypatch.undo()
    gc.collect()
    assert gradcore.memory_allocated() == live
    assert gradcore.compile(lambda x: x * 2)(x).tolist() == [2, 2]
