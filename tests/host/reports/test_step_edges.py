"""Reports of steps at the edges: that allocate nothing, or run backward many times."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import gradcore
from gradcore import folds
from gradcore.devices.device import arrivals
from gradcore.events import Alloc, Drop, Free, Keep, Launch, Mark, Retag, Site, Tag
from gradcore.units import format_bytes
from tests.conftest import raises


def test_a_step_that_allocates_nothing_has_a_peak_that_nothing_in_it_reached() -> None:
    before = gradcore.ones(1000)
    with gradcore.step() as s:
        pass
    peak = s.report.peak
    assert peak.allocated >= 4096 and (peak.op, peak.layer, peak.phase, peak.line) == ("", "", "", "")
    assert "live when the step began, and not reached again" in str(s.report)
    # Nor one that allocates less than was free before.
    with gradcore.step() as s:
        del before
        gradcore.ones(10)
    assert s.report.peak.op == ""
    # One that comes as high as before names what brought it there.
    held = gradcore.ones(1000)
    with gradcore.step() as s:
        del held
        gradcore.ones(1000)
    assert (s.report.peak.op, s.report.peak.phase) == ("full", "forward")


def test_a_report_of_a_device_that_holds_nothing_says_so_instead_of_listing_nothing() -> None:
    # In a process of its own: here tests and generators have left some bytes.
    done = subprocess.run([sys.executable, "-c", "import gradcore\nwith gradcore.step() as s: pass\nprint(s.report)"],
                          text=True, capture_output=True, check=True)
    assert done.stdout.startswith("Device memory of one step on cpu: peak 0 B\n  requested 0  allocated 0  reserved 0 bytes\n"
                                  "  nothing was live on cpu, and nothing was allocated there\n\nPool: 0 allocations")
    assert "At the peak" not in done.stdout and "Kept for backward" not in done.stdout


@pytest.mark.parametrize("level", ["counts", "events"])
def test_what_another_thread_allocates_when_a_step_has_ended_is_in_none_of_its_figures(
        level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, held = gradcore.device("cpu"), []

    def meanwhile() -> None:
        thread = threading.Thread(target=lambda: held.extend(gradcore.ones(1 << 20) for _ in range(3)))
        thread.start()
        thread.join()

    # It is asked for when the log has ended.
    monkeypatch.setattr(type(device), "driver_figures", lambda self: meanwhile())
    with gradcore.step(device="cpu", level=level) as s:
        kept = gradcore.ones(1000)
        live = gradcore.memory_allocated(), gradcore.memory_reserved()
    report = s.report
    assert (report.phases[-1].allocated, report.pool.reserved, report.pool.allocations) == (*live, 1)
    del kept


def test_residuals_at_several_positions_are_those_of_each() -> None:
    tag = Tag("mul", "", "forward", "output", Site("x.py", 1, "f"), None, None)
    parameter = tag._replace(role="parameter")

    def alloc(serial: int) -> Alloc:
        return Alloc(serial, 0, 0, 512, 512, 0, tag, 0)

    records = [alloc(1), Keep(1, 1, "x"), Keep(1, 2, "y"), Drop(1, 1, "used"), alloc(2), Keep(2, 3, "x"), Drop(1, 2, "used"),
               Retag(2, parameter), Free(1)]
    found = [books.residuals() for books in folds.books_at(records, range(len(records)))]
    assert [sorted(at) for at in found] == [[], [1], [1], [1], [1], [1, 2], [2], [], []]
    assert found == [{h.serial: h.allocated for h in folds.live_at(records, i) if h.role == "residual"}
                     for i in range(len(records))]
    assert [books.residuals() for books in folds.books_at(records, [4, 4])] == [{1: 512}, {1: 512}]


def test_a_profiler_in_c_survives_a_trace() -> None:
    # As python -m cProfile has it.
    import cProfile

    profiler = cProfile.Profile()
    before = sys.getprofile()
    profiler.enable()
    try:
        step = gradcore.compile(lambda x: x * 2)
        assert step(gradcore.ones(2)).tolist() == [2.0, 2.0]
        "after the trace".title()
    finally:
        profiler.disable()
        sys.setprofile(before)
    assert any("'title'" in str(entry.code) for entry in profiler.getstats())


def test_hooks_on_many_leaves_walk_the_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradcore.engine import backward

    walks = []
    whole = backward.last_uses
    monkeypatch.setattr(backward, "last_uses", lambda roots: walks.append(1) or whole(roots))
    leaves = [gradcore.ones(2, requires_grad=True) for _ in range(20)]
    seen: list[float] = []
    for leaf in leaves:
        leaf.register_hook(lambda g: seen.append(g.sum().item()))
    y = leaves[0]
    for leaf in leaves[1:]:
        y = y * leaf
    y.sum().backward()
    assert len(seen) == 20 and len(walks) == 1


def test_the_peak_of_no_records_is_nothing() -> None:
    assert folds.at_peak([]) == (folds.Peak(0, 0, 0, 0), [])


def test_each_forward_ends_where_a_backward_begins() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    optimizer = gradcore.optim.SGD([w], lr=0.1)
    losses = []
    with gradcore.step() as s:
        for _ in range(3):
            losses.append((w * w).sum())
            losses[-1].backward()
        optimizer.step()
        losses.append(w.sum())
    phases = [p.phase for p in s.report.phases]
    assert phases == ["forward", "backward"] * 3 + ["optimizer", "step"]
    ends = [p.allocated for p in s.report.phases if p.phase == "forward"]
    assert ends[1] == ends[0] + 4096 + 512 and ends[2] == ends[1] + 512
    with gradcore.step() as s:
        (w * 2).sum().backward()
        ((w * w).sum() + (w * 3).sum()).backward()
    assert [p.phase for p in s.report.phases] == ["forward", "backward"] * 2 + ["step"]
    # What runs in a backward before another one in it is no forward.
    with gradcore.step() as s:
        product = w * 2
        product.register_hook(gradcore.enable_grad()(lambda _: (gradcore.ones(10, requires_grad=True) * 2).sum().backward()))
        product.sum().backward()
    assert [p.phase for p in s.report.phases] == ["forward", "backward", "backward", "step"]


def test_a_step_of_another_device_is_no_phase_of_the_one_around_it() -> None:
    with gradcore.step(device="meta") as outer:
        gradcore.ones(1000, device="meta")
        with gradcore.step(device="cpu") as inner:
            gradcore.ones(10, device="meta")
    assert [p.phase for p in outer.report.phases] == [p.phase for p in inner.report.phases] == ["step"]
    assert [type(r) for r in outer.log[outer.report.peak.position:]] == [Alloc, Launch, Free, Alloc, Launch, Free, Mark]


def test_a_generator_is_no_layers() -> None:
    device = gradcore.device("meta")
    before, device.generator = device.generator, None
    try:
        model = gradcore.nn.Sequential(gradcore.nn.Dropout(0.5)).to("meta")
        with gradcore.step(device="meta") as s:
            model(gradcore.ones(8, device="meta"))
        layers = [h.tag.layer for h in folds.live_at(s.log, len(s.log) - 1) if h.tag.op == "generator"]
        assert layers and not any(layers)
    finally:
        device.generator = before


@pytest.mark.parametrize("level", ["counts", "events"])
def test_a_step_is_not_entered_again_before_its_end(level: str) -> None:
    step = gradcore.step(level=level)
    for count in (10, 1000):
        with step:
            kept = gradcore.ones(count)
            with raises(RuntimeError, "already being recorded"), step:
                raise AssertionError("it has been entered")
            del kept
        assert step.report.peak.requested >= 4 * count and gradcore.device("cpu").ledger.log is None
        assert arrivals == [], "a step that has ended would record a device that is used for the first time"


def test_a_step_is_shown_by_what_is_known_of_it() -> None:
    s = gradcore.step(device="meta")
    assert repr(s) == "<step at the level events, not recorded>"
    with s:
        assert repr(s) == "<step at the level events, being recorded>"
        gradcore.ones(300, 1024, device="meta")
    assert repr(s) == f"<step on meta: peak {format_bytes(s.report.peak.allocated)}>"
    with gradcore.step(level="off") as s:
        pass
    assert repr(s) == "<step at the level off, not recorded>"
