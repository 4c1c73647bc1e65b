"""Compiled functions and memory accounting: reports of replays, and when memory is allocated and freed."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.events import Alloc
from gradcore.program.replaying.narration import Narration
from gradcore.reading import short_path
from tests.conftest import raises
from tests.host.graph_mode.test_compile import data, net, pair, same, same_state, step_of

F = nn.functional


def test_a_report_names_what_lies_in_the_arena() -> None:
    reports = []
    for wrap in (lambda f: f, gradcore.compile):
        model = net()
        run = wrap(step_of(model, gradcore.optim.Adam(model.parameters(), lr=0.05)))
        for k in range(4):
            with gradcore.step(batch_size=5) as s:
                run(*data(k))
        reports.append(s.report)
        assert (s.report.nodes, s.report.graph_share > 0) == ((5, True) if len(reports) == 1 else (0, False))
        del run, model
        assert sum(s.report.by_role.values()) == sum(s.report.by_layer.values()) == s.report.peak.allocated
    before, after = reports
    assert after.peak.requested <= before.peak.requested and after.peak.allocated <= before.peak.allocated
    assert before.by_layer.keys() == after.by_layer.keys() and "arena" not in after.by_role
    assert after.by_role["residual"] > 0
    assert [p.phase for p in after.phases] == [p.phase for p in before.phases]
    assert "test_compile.py:" in str(after) and not any(t.role == "arena" for t in after.top)
    assert before.planned is None and "planned" not in str(before)


def test_gradients_that_the_step_clears_at_its_end_are_gradients() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        model = nn.Linear(100, 200)
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.05)

        def training(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run, x = wrap(training), gradcore.ones(8, 100)
        for _ in range(4):
            with gradcore.step() as s:
                run(x)
        found.append(s.report.by_role["gradient"])
        assert wrap is not gradcore.compile or len(run.programs) == 1
    assert found[0] == found[1] > 0


def test_the_log_of_a_replay_agrees_with_the_books() -> None:
    _, _, _, compiled, _, _ = pair()
    ledger = gradcore.device("cpu").ledger
    layer = gradcore.compile(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    for k in range(5):
        ledger.reset_peaks()
        with gradcore.step() as s:
            x, y = data(k)
            compiled(x, y)
            F.cross_entropy(layer(x), y).backward()
        *_, last = folds.timeline(s.log)
        assert (last.requested, last.allocated, last.reserved) == (ledger.requested, ledger.allocated, ledger.reserved)
        peak = folds.peak(s.log)
        assert (peak.requested, peak.allocated) == ledger.peaks[:2]
        assert sum(b.size for b in ledger.live.values()) == ledger.allocated


def test_a_step_that_another_thread_ends_while_a_replay_is_logged_has_all_of_it_or_nothing(
        monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, _, compiled, _, _ = pair()
    for k in range(4):
        compiled(*data(k))
    begun, within, ended = threading.Event(), threading.Event(), threading.Event()
    recorded = gradcore.step()

    def other() -> None:
        with recorded:
            begun.set()
            assert within.wait(60)
        ended.set()

    launch = Narration._launch

    def slowly(self: Narration, k: int, born: Any) -> None:
        launch(self, k, born)
        within.set()
        ended.wait(0.01)

    monkeypatch.setattr(Narration, "_launch", slowly)
    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    compiled(*data(0))
    thread.join()
    *_, last = folds.timeline(recorded.log)
    assert recorded._ended is not None and last[:2] == recorded._ended.live


def test_without_a_log_the_peaks_are_the_same() -> None:
    _, _, _, compiled, _, _ = pair()
    for k in range(3):
        compiled(*data(k))
    found = []
    for level in ("counts", "events"):
        with gradcore.step(level=level) as s:
            compiled(*data(0))
        found.append((s.report.peak.requested, s.report.peak.allocated))
    assert found[0] == found[1]


def test_what_waits_for_a_gradient_is_live() -> None:
    layer = gradcore.compile(nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 3)))
    x, _ = data(0)
    layer(x).sum().backward()
    live = gradcore.memory_requested()
    y = layer(x)
    assert gradcore.memory_requested() - live == 5 * 500 * 4 + 5 * 3 * 4
    y.sum().backward()
    del y
    assert gradcore.memory_requested() == live
    y = layer(x)
    del y
    assert gradcore.memory_requested() == live


def test_a_replay_allocates_nothing_but_its_results() -> None:
    _, _, _, compiled, _, _ = pair()
    batch = data(0)
    for _ in range(3):
        compiled(*batch)
    with gradcore.step() as s:
        loss = compiled(*batch)
    made = s.report.pool
    assert loss.shape == () and made.segments == len(gradcore.device("cpu").ledger.pool.segments)
    reserved = gradcore.memory_reserved()
    for _ in range(5):
        compiled(*batch)
    assert gradcore.memory_reserved() == reserved


def test_out_of_memory_for_an_arena_leaves_things_usable() -> None:
    layer = nn.Linear(6, 300_000)
    f = gradcore.compile(lambda x: (layer(x) * 2).sum())
    with gradcore.no_grad():
        x = gradcore.ones(40, 6)
        expected = f(x).item()
        gradcore.empty_cache()
        gradcore.set_memory_limit(gradcore.memory_reserved() + (1 << 19))
        try:
            with raises(gradcore.OutOfMemory, "out of memory"):
                f(x)
        finally:
            gradcore.set_memory_limit(None)
        assert f(x).item() == expected


def test_loaded_states_and_changed_options_are_seen() -> None:
    eager, model, optimizer, compiled, other, second = pair()

    def both(k: int) -> None:
        losses = []
        for run in (eager, compiled):
            gradcore.manual_seed(k)
            losses.append(run(*data(k)))
        assert same(*losses) and same_state(model, other)

    for k in range(3):
        both(k)
    saved = [(m.state_dict(), o.state_dict()) for m, o in ((model, optimizer), (other, second))]
    saved = [({n: v.clone() for n, v in m.items()}, o) for m, o in saved]
    both(3)
    for (m, o), (weights, state) in zip(((model, optimizer), (other, second)), saved, strict=True):
        m.load_state_dict(weights)
        o.load_state_dict(state)
    for k in range(4, 7):
        both(k)
    for o in (optimizer, second):
        o.param_groups[0]["betas"] = (0.5, 0.9)
    both(7)
    assert "options or parameters" in compiled.traces[-1]
    for m in (model, other):
        m[0].weight.requires_grad = False
    for k in range(8, 10):
        both(k)


def test_the_cache_is_bounded_and_gives_memory_back() -> None:
    f = gradcore.compile(lambda x: (x * 2 + 1).sum(), max_programs=3)
    live = gradcore.memory_allocated()
    for n in range(1, 8):
        for _ in range(2):
            assert f(gradcore.ones(n)).item() == 3 * n
    assert len(f.programs) == 3
    assert gradcore.memory_allocated() == live and len(gradcore.device("cpu").ledger.arenas) == 3
    del f
    assert gradcore.memory_allocated() == live and not gradcore.device("cpu").ledger.arenas


def test_a_function_that_is_always_traced_runs_eagerly_after_as_many_traces_as_programs() -> None:
    f = gradcore.compile(lambda x: x * 2, max_programs=3)
    for n in range(1, 4):
        f(gradcore.ones(n))
    assert len(f.programs) == 3 and "without writing results over operands" not in f.explain()
    f(gradcore.ones(2))
    for n in range(4, 7):
        f(gradcore.ones(n))
    with pytest.warns(RuntimeWarning, match="was traced 3 times without one replay"):
        assert f(gradcore.ones(7)).tolist() == [2.0] * 7
    assert not f.programs


def test_the_reasons_for_the_last_traces_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcore.program.calls.attempts._MOST_TRACES", 4)
    f = gradcore.compile(lambda x: x * 2)
    for n in range(1, 9):
        for _ in range(2):
            f(gradcore.ones(n))
    assert f.traces == [f"argument 0 is float32[{n}] on cpu and was float32[{n - 1}] on cpu" for n in range(5, 9)]
    assert f.explain().startswith("trace 5: argument 0 is float32[5] on cpu")


def test_the_reason_for_a_trace_names_the_leaf_whose_gradient_came_or_went() -> None:
    layer = nn.Linear(2, 1)
    f = gradcore.compile(lambda x: layer(x).sum().backward())
    layer.weight.grad = gradcore.zeros(1, 2)
    f(gradcore.ones(3, 2))
    layer.zero_grad()
    f(gradcore.ones(3, 2))
    layer.weight.grad = None
    f(gradcore.ones(3, 2))
    assert f.traces[1:] == ["the gradient of weight, float32[1, 2], is None and was float32[1, 2]",
                            "the gradient of bias, float32[1], is a tensor and was None"]


def test_pythons_hooks_are_those_of_before_the_trace() -> None:
    def f(x: Any, box: Any) -> Any:
        box.x = x * 2
        return box.x

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    try:
        gradcore.compile(f)(gradcore.ones(1), SimpleNamespace())
        assert (sys.gettrace(), sys.getprofile()) == (None, before[1])
    finally:
        sys.settrace(before[0])


def test_regions_of_autocast_are_part_of_the_case() -> None:
    layer = nn.Linear(4, 3)
    x = gradcore.ones(2, 4)
    f = gradcore.compile(layer)
    for _ in range(3):
        with gradcore.no_grad():
            assert f(x).dtype == np.float32
            with gradcore.autocast("cpu"):
                assert f(x).dtype == gradcore.bfloat16 and same(f(x).float(), layer(x).float())
                layer.weight.mul_(0.5)
                assert same(f(x).float(), layer(x).float())
    assert len(f.traces) == 2


def test_an_arena_comes_and_goes_unseen() -> None:
    ledger = gradcore.device("cpu").ledger
    _, _, _, compiled, _, _ = pair()
    for k in range(2):
        compiled(*data(k))
    live = gradcore.memory_allocated()
    for _ in range(2):
        ledger.reset_peaks()
        with gradcore.step() as s:
            compiled(*data(2))
        found = folds.peak(s.log)
        assert (found.requested, found.allocated) == ledger.peaks[:2]
        assert not any(isinstance(r, Alloc) and r.tag.role == "arena" for r in s.log)
    assert len(ledger.arenas) == 1
    ledger.reset_peaks()
    with gradcore.step() as s:
        del compiled
    found = folds.peak(s.log)
    assert not ledger.arenas and gradcore.memory_allocated() <= live
    assert (found.requested, found.allocated) == ledger.peaks[:2]
    assert not any(isinstance(r, Alloc) and r.tag.role == "arena" for r in s.log)


def test_what_waits_for_the_callers_gradient_is_a_residual_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    x, y = gradcore.ones(32, 64), gradcore.zeros(32, dtype=gradcore.int64)

    def reports(call: Any) -> tuple[Any, Any]:
        for _ in range(3):
            model.zero_grad()
            nn.functional.cross_entropy(call(x), y).backward()
        model.zero_grad()
        with gradcore.step() as forward:
            out = call(x)
        assert f"residual of tanh in layer 1, {short_path(__file__)}" in gradcore.memory_summary()
        out.sum().backward()
        assert "of tanh" not in gradcore.memory_summary()
        out = call(x)
        del out
        assert "of tanh" not in gradcore.memory_summary()
        model.zero_grad()
        with gradcore.step() as whole:
            nn.functional.cross_entropy(call(x), y).backward()
        model.zero_grad()
        return forward.report, whole.report

    for plain, compiled in zip(reports(model), reports(gradcore.compile(model)), strict=True):
        assert {h.op: (h.allocated, h.held_by) for h in plain.left} == {h.op: (h.allocated, h.held_by) for h in compiled.left}
        assert plain.residual_bytes == compiled.residual_bytes
        assert plain.residual_bytes_returned == compiled.residual_bytes_returned


def test_what_a_program_reads_is_held_by_the_program_only_if_nothing_else_has_it() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh())
    optimizer = gradcore.optim.Adam(model.parameters())

    @gradcore.compile
    def train(x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(2):
        train(gradcore.ones(32, 64))
    told = gradcore.memory_summary()
    assert "held by optimizer.state[...]['exp_avg'] in " in told and "held by model.0.weight in " in told
    assert "_entries" not in told
    optimizer.zero_grad(True)
