"""Which traces count among those after which a function runs eagerly: not those that raise or that another thread disturbs."""

from __future__ import annotations

import queue
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.devices.meta import make_meta
from gradcore.errors import TraceError
from gradcore.events import LAUNCH, MARK, Raw
from gradcore.memory.nesting import OfThread
from gradcore.program.tracing.recorder import Recorder


def beside(run: Callable[[], object]) -> None:
    """Run a function in another thread, to its end."""
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_function_that_is_refused_is_refused_each_time() -> None:
    compiled = gradcore.compile(lambda x: x * x.sum().item())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            with pytest.raises(TraceError, match="reads a value of a tensor on the host"):
                compiled(gradcore.ones(2))


def test_an_error_of_the_users_ends_no_tracing() -> None:
    def checked(x: Any) -> Any:
        if x.shape[0] > 3:
            raise ValueError("too long")
        return x * 2

    compiled = gradcore.compile(checked)
    for n in range(4, 20):
        with pytest.raises(ValueError, match="too long"):
            compiled(gradcore.ones(n))
    for _ in range(3):
        assert compiled(gradcore.ones(2)).tolist() == [2.0, 2.0]
    assert len(compiled.programs) == 1


def test_traces_that_another_thread_disturbs_are_put_off_and_do_not_count() -> None:
    busy = [True]
    model = nn.Linear(4, 2)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        if busy:
            beside(lambda: gradcore.full((8, 4), 3.0) / 2)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled, x = gradcore.compile(step), gradcore.ones(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            compiled(x)
    # The first call, and those after 1, 2, 3, ... others: the last one is call 18 * 21 / 2.
    assert len(compiled.traces) == 19 and not compiled.programs
    assert all("another thread used the device" in t and "still referenced" not in t for t in compiled.traces)
    busy.clear()
    for _ in range(25):
        compiled(x)
    assert len(compiled.programs) == 1 and len(compiled.traces) == 20


def test_no_backward_view_or_shape_of_another_thread_is_taken_for_the_functions() -> None:
    weight, shaped = gradcore.ones(2, requires_grad=True), gradcore.ones(2)
    older, inner = weight * 2, gradcore.compile(lambda x: (x * weight).sum())
    losses = [inner(gradcore.ones(2)) for _ in range(3)]
    others: list[tuple[Any, bool]] = [
        (losses[-1].backward, True), (lambda: older.view(2, 1), False), (lambda: shaped.unsqueeze_(0), False)]
    for other, disturbs in others:
        def run(x: Any, other: Any = other) -> Any:
            beside(other)
            return x * 2

        compiled = gradcore.compile(run)
        assert compiled(gradcore.ones(2)).tolist() == [2.0, 2.0]
        assert ["another thread used the device" in t for t in compiled.traces] == [disturbs]
        assert len(compiled.programs) == (not disturbs)


def test_another_thread_may_borrow_arrays_meanwhile() -> None:
    """As one does that loads batches."""
    batches: list[Any] = []

    def load() -> None:
        batches.append(gradcore.from_numpy(np.ones(3, np.float32)))

    def run(x: Any) -> Any:
        beside(load)
        return x * 2

    compiled = gradcore.compile(run)
    for _ in range(3):
        assert compiled(gradcore.ones(1)).item() == 2
    assert len(compiled.programs) == len(compiled.traces) == len(batches) == 1


def test_another_thread_may_allocate_while_its_records_are_told_apart() -> None:
    class Slow(tuple[Any, ...]):
        """A record, of which a look takes long enough for another thread to run."""

        def __getitem__(self, at: Any) -> Any:
            made.append(beside(lambda: gradcore.empty(3)))
            return super().__getitem__(at)

    made: list[Any] = []
    with Recorder(gradcore.device("cpu")) as recorder:
        beside(lambda: recorder.log.append(Slow((MARK, 0, ""))))
        assert not recorder.recorded().launches and made


def test_another_thread_may_work_on_another_device_meanwhile() -> None:
    """As a thread does that prepares batches on the CPU for a step on a GPU."""
    weight = gradcore.ones(2, device="meta", requires_grad=True)
    optimizer = gradcore.optim.Adam([weight])

    def train() -> None:
        (weight * 2).sum().backward()
        optimizer.step()

    def run(x: Any) -> Any:
        beside(train)
        return x * 2

    compiled = gradcore.compile(run)
    assert [compiled(gradcore.ones(1)).item() for _ in range(3)] == [2.0, 2.0, 2.0]
    program, = compiled.programs
    assert len(program.instructions) == len(compiled.traces) == 1 and not program.updates
    with gradcore.step() as step:
        compiled(gradcore.ones(1))
    assert not any(r[0] == MARK and r[2] == "backward" for r in step.raw_log)


def test_a_step_that_another_thread_records_meanwhile_disturbs_no_trace() -> None:
    ledger = gradcore.device("cpu").ledger
    step = gradcore.step()

    def run(x: Any) -> Any:
        x = x + 1
        beside(step.__enter__)
        x = x * 2
        beside(lambda: step.__exit__(None, None, None))
        return x - 3

    def launches(log: list[Any]) -> list[str]:
        return [r[2].op for r in log if r[0] == LAUNCH]

    compiled, x = gradcore.compile(run), gradcore.ones(1)
    around = ledger.begin_log()
    assert compiled(x).item() == 1
    ledger.end_log(around)
    assert launches(step.raw_log) == ["mul"] and launches(around) == ["add", "mul", "sub"]
    assert len(compiled.programs) == 1 and compiled(x).item() == 1 and len(compiled.traces) == 1


def test_logs_of_other_threads_go_around_those_that_must_see_all() -> None:
    """Each has what was recorded while it was open, once, however they begin and end."""
    rng = random.Random(0)
    for _ in range(200):
        ledger, told = make_meta().ledger, 0
        logs: list[tuple[list[Raw], int, list[int]]] = []
        for _ in range(30):
            what = rng.randrange(5)
            if what < 2:
                log: list[Raw] = OfThread() if what else []
                if isinstance(log, OfThread) and rng.random() < 0.5:
                    log.thread = -1
                logs.append((log, len(ledger.begin_log(log)), []))
            elif what == 2 and logs:
                log, first, expected = logs.pop(rng.randrange(len(logs)))
                ledger.end_log(log)
                assert [r[2] for r in log[first:]] == expected
            elif ledger.log is not None:
                told += 1
                ledger.log.append((MARK, "test", told))
                for *_, expected in logs:
                    expected.append(told)
        for log, first, expected in logs:
            assert [r[2] for r in ledger.so_far(log)[first:]] == expected


def test_after_a_good_trace_one_call_is_put_off_again() -> None:
    busy = [True]

    def run(x: Any) -> Any:
        if busy:
            beside(lambda: gradcore.ones(2) * 2)
        return x * 2

    compiled = gradcore.compile(run)
    for _ in range(10):
        compiled(gradcore.ones(1))
    assert len(compiled.traces) == 4
    busy.clear()
    for _ in range(8):
        compiled(gradcore.ones(1))
    assert len(compiled.programs) == 1
    busy.append(True)
    for _ in range(3):
        compiled(gradcore.ones(2))
    assert len(compiled.traces) == 7


def test_a_step_beside_a_thread_that_prefetches_is_replayed() -> None:
    batches: queue.Queue[Any] = queue.Queue(4)

    def prefetch() -> None:
        for k in range(1000):
            batches.put(gradcore.full((8, 4), float(k)) / 2)
        batches.put(None)

    step = gradcore.compile(lambda x: (x * 2).sum())
    thread = threading.Thread(target=prefetch)
    thread.start()
    while (x := batches.get()) is not None:
        step(x)
    thread.join()
    assert len(step.programs) == 1


def warning_of(compiled: Any, *calls: tuple[Any, ...]) -> str:
    """The warning of the one among the calls with which it gives up."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for call in calls:
            compiled(*call)
    assert len(said) == 1
    return str(said[0].message)


def test_a_module_that_is_given_up_is_named_by_its_class_and_each_reason_is_given_once() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.calls = nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)]), 0

        def forward(self, x: Any) -> Any:
            self.calls = len(self.layers) + self.calls
            return self.layers(x)

    compiled = gradcore.compile(Counting())
    said = warning_of(compiled, *[(gradcore.ones(1, 2),)] * 10)
    assert said.startswith("Counting (a module) was traced 8 times without one replay in between, and runs eagerly "
                           "from now on; docs/graph-mode.md says what to write instead:\n")
    assert said.count("assigns to calls") == 1 and "it cannot be replayed: " in said and said.endswith("(8 times)")
    assert "Linear" not in said and "the call before" not in said and len(said.splitlines()) == 2
    assert "it runs eagerly from now on; it cannot be replayed: " in compiled.traces[-1]
    assert "assigns to calls" in compiled.traces[-1]


def test_the_reasons_for_other_traces_are_given_and_none_is_long() -> None:
    def scaled(x: Any, factor: Any, text: Any) -> Any:
        return x * factor * len(text)

    compiled = gradcore.compile(scaled)
    said = warning_of(compiled, *[(gradcore.ones(1), 1.0 + k, "") for k in range(9)])
    assert said.startswith("scaled was traced 8 times") and said.count("it was traced again: argument 1 is ") == 6
    assert said.endswith("it was traced again: 2 more such reasons")
    assert "it cannot be replayed" not in said + compiled.traces[-1]

    class Holder:
        pass

    Holder.__name__ = "X" * 1000
    said = warning_of(gradcore.compile(lambda x: (x * 2, Holder())), *[(gradcore.ones(1),)] * 9)
    assert len(said.splitlines()[-1]) < 350 and said.endswith("... (8 times)")


def test_reasons_of_before_a_replay_are_forgotten() -> None:
    log: list[int] = []
    quiet = [False]

    def f(x: Any, n: int) -> Any:
        if not quiet[0]:
            log.append(n)
        return x * n

    compiled = gradcore.compile(f)
    for _ in range(3):
        compiled(gradcore.ones(1), 1)
    quiet[0] = True
    for _ in range(3):
        compiled(gradcore.ones(1), 1)
    said = warning_of(compiled, *[(gradcore.ones(1), n) for n in range(2, 11)])
    assert "append" not in said and "it was traced again: argument 1 is " in said


def test_a_function_that_runs_no_op_is_given_up_for_that() -> None:
    said = warning_of(gradcore.compile(lambda x: 1), *[(gradcore.ones(1),)] * 9)
    assert said.endswith("\n  it cannot be replayed: it runs no op, so there is nothing to replay (8 times)")


def test_a_gradient_of_an_earlier_call_is_the_only_reason_that_is_given() -> None:
    w = nn.Parameter(gradcore.ones(1))
    inner = gradcore.compile(lambda x: (w * x).sum())
    inner(gradcore.ones(1))
    back = gradcore.compile(lambda loss: loss.backward(), max_programs=2)
    with pytest.warns(RuntimeWarning) as caught:
        for _ in range(3):
            back(inner(gradcore.ones(1)))
    (text,) = [str(w.message) for w in caught]
    assert "it runs the gradient of an earlier compiled call" in text and "it runs no op" not in text


def test_explain_says_for_which_shapes_a_program_is() -> None:
    f = gradcore.compile(lambda x: x * 2)
    for length in (3, 5):
        f(gradcore.ones(2, length))
    said = [line.partition(": arena")[0] for line in f.explain().splitlines()[2:]]
    assert said == [f"program of 1 instruction for float32[2, {length}]" for length in (3, 5)]
    g = gradcore.compile(lambda xs: gradcore.stack(xs).sum())
    g([gradcore.ones(1) for _ in range(6)])
    assert " instructions for float32[1], float32[1], float32[1], float32[1], ...: arena" in g.explain()
    h = gradcore.compile(lambda: gradcore.ones(3) * 2)
    h()
    assert " instructions: arena" in h.explain()
