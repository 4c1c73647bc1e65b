"""``gradcore.cuda.nvtx`` and the ranges of ops: what a profiler is told, and that nothing else changes."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.autograd.profiler import emit_nvtx, record_function
from gradcore.cuda import nvtx
from gradcore.engine.state import local


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What CuPy's functions are called with, on a machine that seems to have a GPU."""
    calls: list[Any] = []
    library = SimpleNamespace(RangePush=lambda text: calls.append(("push", text)), RangePop=lambda: calls.append("pop"),
                              RangeStart=lambda text, color: calls.append(("start", text)) or 7,
                              RangeEnd=lambda handle: calls.append(("end", handle)),
                              Mark=lambda text: calls.append(("mark", text)))
    cupy = SimpleNamespace(cuda=SimpleNamespace(nvtx=library))
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)  # type: ignore[arg-type]
    monkeypatch.setattr(nvtx, "cuda_status", lambda: SimpleNamespace(available=True))
    return calls


def pushed(calls: list[Any]) -> list[str]:
    assert calls.count("pop") * 2 == len(calls)
    return [call[1] for call in calls if call != "pop"]


def test_ranges_have_depths_with_and_without_a_gpu(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for available in (True, False):
        monkeypatch.setattr(nvtx, "cuda_status", lambda a=available: SimpleNamespace(available=a))
        assert [nvtx.range_push("a"), nvtx.range_push("b"), *[nvtx.range_pop() for _ in range(3)]] == [0, 1, 1, 0, -2]
        nvtx.mark("here")
        nvtx.range_end(nvtx.range_start("c"))
    assert told == [("push", "a"), ("push", "b"), "pop", "pop", ("mark", "here"), ("start", "c"), ("end", 7)]


def test_a_range_is_a_context_manager_and_a_decorator(told: list[Any]) -> None:
    @nvtx.range("step")
    def step() -> None:
        with nvtx.range("part {} of {n}", 1, n=2), record_function("mine", "7"):
            nvtx.mark("x")

    step()
    with pytest.raises(ZeroDivisionError), record_function("failed"):
        raise ZeroDivisionError
    assert told == [("push", "step"), ("push", "part 1 of 2"), ("push", "mine, 7"), ("mark", "x"), "pop", "pop", "pop",
                    ("push", "failed"), "pop"]
    for call in (nvtx.range_push, nvtx.range_start, nvtx.mark):
        with pytest.raises(TypeError, match="msg must be a str, but got int"):
            call(3)  # type: ignore[operator]


def test_a_step_is_shown_by_phase_layer_op_and_node(told: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5))
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
    x = gradcore.ones(2, 4)
    model(x).sum().backward()
    with emit_nvtx(record_shapes=True), gradcore.step(device="cpu"):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    found = pushed(told)
    assert found[0].startswith("forward 0: linear, node ") and found[0].endswith(", sizes = [[2, 4], [3, 4], [3]]")
    node = found[0].partition("node ")[2].partition(",")[0]
    assert any(t.startswith(f"backward 0: linear_grad, node {node}, sizes = ") for t in found)
    assert {t.partition(":")[0] for t in found} >= {
        "forward 1", "forward 2", "forward (root)", "backward 2", "optimizer (root)"}


def test_values_and_errors_are_the_same_and_the_thread_is_left_as_it_was(told: list[Any]) -> None:
    before, x = local.state.launch, gradcore.arange(3.0)
    with emit_nvtx(enabled=False):
        assert local.state.launch is before
    with emit_nvtx():
        assert (x * 2).tolist() == [0, 2, 4]
        with pytest.raises(RuntimeError, match="not reentrant"):
            emit_nvtx().__enter__()
        made = []
        other = threading.Thread(target=lambda: made.append((x + 1).tolist()))
        other.start()
        other.join()
    assert local.state.launch is before and made == [[1, 2, 3]] and pushed(told) == ["setup (root): mul"]
    with pytest.raises(ZeroDivisionError), emit_nvtx():
        raise ZeroDivisionError
    assert local.state.launch is before


def test_a_replay_is_one_range(told: list[Any]) -> None:
    @gradcore.compile
    def double(x: gradcore.Tensor) -> gradcore.Tensor:
        return x * 2 + 1

    double(gradcore.ones(3))
    double(gradcore.ones(3))
    x = gradcore.ones(3)
    with emit_nvtx():
        assert double(x).tolist() == [3, 3, 3]
    # The second copies a result out of the arena.
    assert pushed(told) == ["replay", "replay"]
