"""How much a step records: nothing, counts, events, stacks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.engine.cost import node_seconds
from gradcore.engine.state import SETUP, local
from gradcore.events import HELD_OUTSIDE, Alloc, Launch, Mark
from gradcore.report import load_report
from gradcore.report.packed import pack, unpack
from gradcore.report.run import StepFigures
from tests.conftest import raises


def model() -> Any:
    gradcore.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def train(net: Any, device: str = "cpu") -> None:
    loss = nn.functional.cross_entropy(net(gradcore.ones(5, 8, device=device)),
                                       gradcore.zeros(5, dtype=gradcore.int64, device=device))
    loss.backward()
    net.zero_grad()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_counts_are_the_peaks_of_the_events(device: str) -> None:
    net = model().to(device)
    train(net, device)
    reports = {}
    for level in ("events", "counts", "stacks"):
        with gradcore.step(batch_size=5, device=device, level=level) as s:
            train(net, device)
        reports[level] = s.report
        assert load_report(json.loads(s.report.to_json())) == s.report
    counts, events = reports["counts"], reports["events"]
    for figure in ("requested", "allocated", "reserved"):
        assert getattr(counts.peak, figure) == getattr(events.peak, figure) == getattr(reports["stacks"].peak, figure) > 0
    assert counts.pool == events.pool
    assert [(r.phases[-1].requested, r.phases[-1].allocated) for r in (counts, events)] == [
        (events.phases[-1].requested, events.phases[-1].allocated)] * 2
    assert counts.by_role == {} and counts.bytes_per_sample is None and s.report.bytes_per_sample is not None
    text = str(counts)
    assert "peak" in text and "reached by" not in text and "At the peak" not in text and "Pool: " in text
    assert "at the level counts, which says nothing of owners" in text and "the level " not in str(events)
    without, figures = (StepFigures.of(1, None, report) for report in (counts, events))
    assert without.kept is without.returned is None and " kept " not in str(without)
    assert figures.kept == figures.returned == events.residual_bytes > 0 and " kept " in str(figures)


def test_counts_keep_a_peak_that_the_body_resets() -> None:
    def body() -> None:
        gradcore.ones(50_000)
        gradcore.reset_peak_memory_stats()
        gradcore.ones(1000)

    held = gradcore.memory_requested()
    for level in ("events", "counts"):
        gradcore.ones(100_000)
        with gradcore.step(device="cpu", level=level) as s:
            body()
        assert s.report.peak.requested - held == 200_000, level
        # The user's peaks count from the user's reset on.
        assert gradcore.max_memory_requested() - held == 4000, level


def test_stretches_within_one_another_keep_their_peaks() -> None:
    held = gradcore.memory_requested()
    with gradcore.step(device="cpu", level="counts") as outer:
        gradcore.ones(50_000)
        with gradcore.step(device="cpu", level="counts") as inner:
            gradcore.ones(20_000)
            gradcore.reset_peak_memory_stats()
            gradcore.ones(1000)
            gradcore.reset_peak_memory_stats()
    assert inner.report.peak.requested - held == 80_000
    assert outer.report.peak.requested - held == 200_000
    assert gradcore.max_memory_requested() == held


def test_stretches_that_overlap_have_the_peaks_of_their_own_time() -> None:
    """As those of steps in several threads do."""
    gradcore.ones(100_000)
    held, highest = gradcore.memory_requested(), gradcore.max_memory_requested()
    first, second = (gradcore.step(device="cpu", level="counts") for _ in range(2))
    first.__enter__()
    gradcore.ones(50_000)
    second.__enter__()
    gradcore.ones(1000)
    first.__exit__(None, None, None)
    gradcore.ones(2000)
    second.__exit__(None, None, None)
    assert [s.report.peak.requested - held for s in (first, second)] == [200_000, 8000]
    assert gradcore.max_memory_requested() == highest


@pytest.mark.parametrize("level", ["events", "counts"])
def test_the_peak_since_the_start_is_told_within_a_step_too(level: str) -> None:
    gradcore.ones(100_000)
    highest = gradcore.max_memory_requested()
    with gradcore.step(device="cpu", level=level):
        assert gradcore.max_memory_requested() == gradcore.memory_stats()["max_requested"] == highest
        gradcore.reset_peak_memory_stats()
        assert gradcore.max_memory_requested() == gradcore.memory_requested()


def test_counting_leaves_the_peaks_that_others_count() -> None:
    gradcore.reset_peak_memory_stats()
    big = gradcore.ones(100_000)
    highest = gradcore.max_memory_requested()
    del big
    with gradcore.step(device="cpu", level="counts") as outer:
        held = gradcore.ones(1000)
        with gradcore.step(device="cpu", level="counts") as inner:
            _ = gradcore.ones(10) * 2
        del held
    assert gradcore.max_memory_requested() == highest
    assert inner.report.peak.requested == outer.report.peak.requested < highest


@pytest.mark.parametrize("level", ["events", "counts"])
def test_seconds_are_those_of_the_block(level: str) -> None:
    began = time.perf_counter()
    with gradcore.step(device="cpu", level=level) as s:
        time.sleep(0.01)
    assert 0.01 <= s.report.seconds <= time.perf_counter() - began


def test_steps_with_a_log_are_not_nested_on_one_device() -> None:
    with gradcore.step(device="cpu") as outer:
        for device in ("cpu", None):
            with (raises(RuntimeError, "a step is already being recorded: gradcore.step() cannot be nested"),
                  gradcore.step(device=device)):
                pass
        with gradcore.step(device="meta") as other:
            y = gradcore.ones(3, device="meta") * 2
        with gradcore.step(level="counts") as counted:
            gradcore.ones(5).exp()
    # The failed steps have not ended this log, and neither of the two others within it has left marks.
    assert [(r.what, r.label) for r in outer.log if isinstance(r, Mark)] == [("begin", "step"), ("end", "step")]
    assert [r.tag.op for r in outer.log if isinstance(r, Launch)][-1] == "exp"
    assert other.report.device == "meta" and counted.report.device == "cpu"
    del y


def test_a_step_may_end_while_another_thread_traces() -> None:
    traced, ended = threading.Event(), threading.Event()

    @gradcore.compile
    def run(x: Any) -> Any:
        y = x * 2
        traced.set()
        ended.wait(10)
        return y + 1

    with gradcore.step(device="cpu") as s:
        thread = threading.Thread(target=run, args=(gradcore.ones(1000),))
        thread.start()
        assert traced.wait(10)
    ended.set()
    thread.join()
    # The step has what the trace had recorded by then, and no log stays open.
    assert [r.tag.op for r in s.log if isinstance(r, Launch)] == ["full", "mul"] and s.report.peak.requested >= 8000
    assert gradcore.device("cpu").ledger.log is None


@pytest.mark.parametrize("level", ["events", "counts"])
def test_the_report_is_of_the_device_with_most_work(level: str) -> None:
    for most, least in (("cpu", "meta"), ("meta", "cpu")):
        with gradcore.step(level=level) as s:
            gradcore.ones(3, device=least).exp()
            gradcore.ones(3, device=most).exp().exp().exp()
        assert s.report.device == most
    with gradcore.step(level=level) as s:
        for _ in range(9):
            gradcore.tensor([1.0])
        gradcore.ones(3, device="meta").exp()
    # An upload launches nothing, but it allocates, which is all that a count can see.
    assert s.report.device == ("meta" if level == "events" else "cpu")


def test_the_time_of_the_graph_is_the_measured_one_of_its_nodes() -> None:
    with gradcore.no_grad():
        each = node_seconds.__wrapped__()
        assert not gradcore.is_grad_enabled() and 0 < each < 1e-3
    with gradcore.step(device="cpu") as s:
        y = gradcore.ones(3, requires_grad=True).exp().sin()
    assert s.report.nodes == 2 and s.report.graph_seconds == 2 * node_seconds()
    del y


def test_a_step_that_a_process_begins_with_is_of_the_cpu() -> None:
    code = "import gradcore\nwith gradcore.step() as s: pass\nprint(s.report.device, [r.what for r in s.log])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "cpu ['begin', 'end']\n"


def test_what_arrays_alone_held_when_a_step_began_is_held_outside_at_its_peak() -> None:
    array = (gradcore.ones(1000) * 2).numpy()
    with gradcore.step(device="cpu") as s:
        gradcore.ones(500)
    # In blocks of 512 bytes: 4,000 in 4,096.
    assert s.report.by_role[HELD_OUTSIDE] == 4096 and array[0] == 2


def test_an_interrupt_as_a_step_ends_leaves_no_log_open(monkeypatch: pytest.MonkeyPatch) -> None:
    step = gradcore.step(device="cpu")
    with pytest.raises(KeyboardInterrupt), step:
        monkeypatch.setattr("gradcore._step.settle", interrupt)
    monkeypatch.undo()
    assert gradcore.device("cpu").ledger.log is None
    with gradcore.step(device="cpu"):
        pass


def interrupt() -> None:
    raise KeyboardInterrupt


def test_off_records_nothing() -> None:
    with gradcore.step(level="off") as s:
        y = gradcore.ones(3) * 2
    with raises(RuntimeError, "a step with level='off' has no report"):
        _ = s.report
    assert s.log == [] and y.tolist() == [2.0] * 3
    with raises(ValueError, "level must be one of off, counts, events, stacks, but got 'all'"):
        gradcore.step(level="all")


def test_the_environment_sets_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCORE_RECORD", "counts")
    assert gradcore.step().level == "counts" and gradcore.step(level="events").level == "events"
    monkeypatch.setenv("GRADCORE_RECORD", "")
    assert gradcore.step().level == "events"
    monkeypatch.setenv("GRADCORE_RECORD", "much")
    with raises(ValueError, "GRADCORE_RECORD must be one of off, counts, events, stacks, but got 'much'"):
        gradcore.step()


def helper(x: Any) -> Any:
    return x * 3


def test_stacks_hold_the_lines_that_led_there_and_go_into_files() -> None:
    x = gradcore.ones(1000, requires_grad=True)

    def outer() -> Any:
        return helper(x).exp()

    for _ in range(2):
        # The second time every line is known: the cached site must not replace the stack.
        with gradcore.step(level="stacks") as s:
            y = outer()
            y.sum().backward()
        x.grad = None
        mul = next(r for r in s.log if isinstance(r, Launch) and r.tag.op == "mul")
        assert mul.tag.site.function == "helper"
        callers = [c.function.rpartition(".")[2] for c in mul.tag.site.callers]
        assert callers[:2] == ["outer", "test_stacks_hold_the_lines_that_led_there_and_go_into_files"]
        assert tuple(unpack(json.loads(json.dumps(pack(s.log))))) == tuple(s.log)
    assert any("called from" in line and "in outer" not in line for line in str(s.report).splitlines())
    with gradcore.step() as s:
        outer()
    assert all(not r.tag.site.callers for r in s.log if isinstance(r, Launch))
    del y


def test_a_batch_size_may_be_a_number_of_numpy_s() -> None:
    with gradcore.step(batch_size=np.int64(8)) as step:  # type: ignore[arg-type]
        gradcore.ones(8)
    assert step.report.batch_size == 8 and type(step.report.batch_size) is int
    for wrong, shown in ((0, "0"), (2.0, "2.0"), (np.int64(-1), "-1")):
        with raises(ValueError, f"batch_size must be an int of at least 1, but got {shown}"):
            gradcore.step(batch_size=wrong)  # type: ignore[arg-type]


def test_a_step_object_can_record_again() -> None:
    s = gradcore.step(device="meta")
    seen = []
    for n in (1000, 100_000):
        with s:
            gradcore.ones(n, device="meta")
        seen.append((s.report.peak.requested, [r.requested for r in s.log if isinstance(r, Alloc)][-1]))
    assert seen[1][0] - seen[0][0] == 4 * 99_000 and [n for _, n in seen] == [4000, 400_000]


@pytest.mark.parametrize("level", ["events", "counts"])
def test_a_device_that_is_first_used_within_a_step_is_recorded(level: str) -> None:
    code = ("import gradcore\n"
            f"with gradcore.step(level={level!r}) as s:\n"
            "    x = gradcore.ones(1000, device='meta') * 2\n"
            "print(s.report.device, s.report.peak.requested, s.report.phases[-1].requested)\n"
            "with gradcore.step() as s:\n"
            "    pass\n"
            "print(s.report.device)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["meta", "8000", "4000", "cpu"], done.stdout


def test_what_is_kept_without_a_backward_is_what_is_kept_at_the_end() -> None:
    x = gradcore.ones(1000, requires_grad=True)
    with gradcore.step() as s:
        y = x.exp().sin()
    assert (s.report.residual_bytes, s.report.residual_bytes_returned) == (4096, 0)
    assert "Kept for backward: 4,096 bytes by a step without a backward, 4,096 at its end: " in str(s.report)
    del y


def test_of_several_backwards_the_one_that_began_with_most_counts() -> None:
    x = gradcore.ones(1000, requires_grad=True)
    with gradcore.step() as s:
        for n in (100, 1000, 10):
            x[:n].exp().sum().backward()
    assert (s.report.residual_bytes, s.report.residual_bytes_returned) == (4096, 4096)


def test_threads_that_begin_in_a_step_work_in_its_phase() -> None:
    def work() -> None:
        made.append(gradcore.ones(10) * 2)

    made: list[Any] = []
    with gradcore.step(device="cpu") as s:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert {r.tag.phase for r in s.log if isinstance(r, Launch)} == {"forward"}
    thread = threading.Thread(target=lambda: made.append(local.state.scope == SETUP))
    thread.start()
    thread.join()
    assert made.pop() is True, "after the step"
