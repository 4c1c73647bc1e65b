"""The report of a step whose every figure was worked out by hand."""

from __future__ import annotations

import dataclasses
import json

import gradcore
from gradcore import folds
from gradcore.events import OUTSIDE, Alloc, Drop, Free, Keep, Launch, Mark, Record, Reserve
from gradcore.grouping import BY
from gradcore.report.built import build_report, counted_report
from gradcore.report.growth import Growth
from gradcore.report.recording import Recording
from gradcore.report.step import (
    DriverFigures,
    Exported,
    KeptTensor,
    Left,
    PeakPoint,
    PhaseEnd,
    PinnedFigures,
    PlannedFigures,
    PoolFigures,
    StepReport,
    TopTensor,
    load_report,
)
from gradcore.report.timeline import Column, breakdown, columns, stacking
from tests.conftest import raises
from tests.host.reports.made_steps import CALL, EXP, INPUT, MUL, OUTER, by_hand

POOL = PoolFigures(10, 7, 2, 8192, 4096, 1024)
FORWARD, LOSS = "/code/model.py:3 in forward", "/code/model.py:4 in forward"
MADE, BATCH = "/code/model.py:1 in __init__", "/code/train.py:80 in main"


def report_of(records: list[Record], batch_size: int | None = None) -> StepReport:
    return build_report(records, device="cpu", batch_size=batch_size, pool=POOL)


def test_every_figure_of_a_step() -> None:
    # The peak is at the gradient's allocation: 1024 + 2048 + 3072 + 512 + 1024, of which backward frees 512.
    assert build_report(by_hand(), device="meta", batch_size=2, pool=POOL, node_seconds=0.5) == StepReport(
        device="meta", batch_size=2, seconds=8.0,
        peak=PeakPoint(15, 7100, 7680, 1 << 20, "mul", "l1", "backward", FORWARD),
        by_role={"residual": 3584, "input": 2048, "parameter": 1024, "temporary": 1024},
        by_layer={"l1": 5120, "": 2048, "l2": 512}, by_op={"mul": 4096, "upload": 3072, "exp": 512},
        by_line={FORWARD: 4096, BATCH: 2048, MADE: 1024, LOSS: 512},
        top=(TopTensor(3072, 3000, "residual", "mul", "l1", "forward", (5, 3), "float32", FORWARD, None, 1, ("1:out",),
                       ("/code/train.py:90 in main",)),
             TopTensor(2048, 2000, "input", "upload", "", "forward", (500,), "int32", BATCH, None, 0, ("1:x",)),
             TopTensor(1024, 1000, "parameter", "upload", "l1", "setup", (250,), "float32", MADE, None, 0, ()),
             TopTensor(1024, 1000, "temporary", "mul", "l1", "backward", None, None, FORWARD, str(OUTER), 3, (),
                       ("/code/train.py:90 in main",)),
             TopTensor(512, 100, "residual", "exp", "l2", "forward", (), "float64", LOSS, None, 3, ("3:out",))),
        phases=(PhaseEnd("forward", 6100, 6656, 3.0), PhaseEnd("backward", 7000, 7168, 5.0),
                PhaseEnd("optimizer", 7000, 7168, 7.0), PhaseEnd("step", 7000, 7168, 8.0)),
        kept=(KeptTensor(1, "out", "mul", "l1", "output", FORWARD, 3072, 8, None, None, None, 3),
              KeptTensor(1, "x", "upload", "", "input", BATCH, 2048, 9, None, None, None, 2),
              KeptTensor(3, "out", "exp", "l2", "output", LOSS, 512, 13, 17, 18, "consumed", 4)),
        # The kept input is no residual. The node of the launch in backward is not the step's.
        residual_bytes=3584, residual_bytes_returned=512, pool=POOL, nodes=3, graph_seconds=1.5, records=20,
        left=(Left("mul", "l1", FORWARD, 3072, "graph"),),
        exported=(Exported("upload", "", BATCH, "numpy()", "/code/train.py:81 in main", False, 1, 2048),))


def test_a_report_and_a_recording_are_short_where_python_shows_their_values() -> None:
    records = by_hand()
    report = report_of(records)
    assert repr(report) == "<report of a step on cpu: peak 7.50 KiB, 20 records>"
    assert repr(Recording(report, tuple(records))) == f"<recording of {report!r}>"


def test_shares_of_a_report() -> None:
    report = report_of(by_hand(), batch_size=2)
    # All but the parameter: two samples take the input, both residuals and what was not yet a gradient.
    assert report.bytes_per_sample == (2048 + 3072 + 512 + 1024) / 2
    fixed = dataclasses.replace(report, by_role={
        "parameter": 1000, "optimizer state": 200, "buffer": 30, "gradient": 4, "input": 7680 - 1234})
    assert fixed.bytes_per_sample == (7680 - 1234) / 2
    assert report_of(by_hand()).bytes_per_sample is None
    assert dataclasses.replace(report, by_role={}).bytes_per_sample is None
    assert [dataclasses.replace(report, graph_seconds=s).graph_share for s in (0.0, 2.0, 9.0)] == [0.0, 0.25, 1.0]
    assert dataclasses.replace(report, graph_seconds=2.0, seconds=0.0).graph_share == 0.0
    assert [dataclasses.replace(POOL, cached=c).fragmentation for c in (0, 1024, 4096)] == [0.0, 0.0, 0.75]
    assert json.loads(report.to_json()) == json.loads(report.to_json(2)) and report.to_json(2).splitlines()[1].startswith('  "')


def test_a_log_without_marks_is_all_step_and_one_without_bytes_has_no_peak() -> None:
    bare = report_of([record for record in by_hand() if not isinstance(record, Mark)])
    assert (bare.seconds, bare.records, bare.phases, bare.residual_bytes) == (0.0, 18, (), 3072)
    assert (bare.peak.position, bare.peak.allocated) == (2, 1024 + 8192)
    empty = report_of([Reserve(0, 4096), Mark("begin", "step", 5), Mark("end", "step", 5)])
    assert empty.peak == PeakPoint(1, 0, 0, 4096, "", "", "", "") and empty.top == () and empty.records == 2


def test_the_ten_largest_are_shown_and_the_older_of_equals_first() -> None:
    def made(count: int, *ops: str) -> list[Record]:
        return [Alloc(i, 0, 0, 10, 2048 if i == 7 else 512, 0, EXP._replace(op=ops[i % len(ops)]), i) for i in range(count)]

    report = report_of(made(12, *(f"op{i}" for i in range(12))))
    assert [t.node for t in report.top] == [7, 0, 1, 2, 3, 4, 5, 6, 8, 9] and {t.count for t in report.top} == {1}
    # Where there is room for all, none are put together; elsewhere equal ones are, and count with all of their bytes.
    assert [(t.node, t.count) for t in report_of(made(10, "exp")).top] == [(i, 1) for i in (7, 0, 1, 2, 3, 4, 5, 6, 8, 9)]
    assert [(t.node, t.count, t.allocated) for t in report_of(made(12, "exp")).top] == [(0, 11, 512), (7, 1, 2048)]


def test_two_backwards_keep_until_the_first_and_release_until_the_last() -> None:
    # The second backward releases what the first had retained.
    log = by_hand()
    log[20:23] = [Mark("end", "backward", 0), Mark("begin", "backward", 0), Free(3), Mark("end", "backward", 0)]
    report = report_of(log)
    assert (report.residual_bytes, report.residual_bytes_returned) == (3584, 3584)
    assert [(p.phase, p.allocated) for p in report.phases] == [
        ("forward", 6656), ("backward", 7168), ("backward", 4096), ("step", 4096)]


def test_what_is_left_is_summed_by_line_and_holder_the_largest_first() -> None:
    log: list[Record] = [Alloc(1, 0, 0, 9, 512, 0, EXP, 1), Mark("begin", "step", 0)]
    log += [Alloc(i, 0, 0, 9, 512, 0, EXP, 1) for i in (2, 3)]
    log += [Alloc(4, 0, 0, 9, 4096, 0, MUL, 2), Alloc(5, 0, 0, 9, 9, 0, INPUT, 0)]
    assert report_of(log).left == (Left("mul", "l1", FORWARD, 4096, "you"), Left("exp", "l2", LOSS, 1024, "you"))


def test_a_residual_of_before_the_step_that_all_its_nodes_drop_within_it() -> None:
    y = gradcore.ones(1000, requires_grad=True).exp()
    with gradcore.step(device="cpu") as step:
        z = y * y
        del z
        mine = y.detach()
        del y
    for position, sums in enumerate(breakdown(step.log, BY["role"])):
        assert {role: n for role, n in sums.items() if n} == folds.total(folds.live_at(step.log, position), lambda h: h.role)
    (held,) = [h for h in folds.live_at(step.log, len(step.log) - 1) if h.tag.op == "exp"]
    assert (held.role, held.kept_by) == ("output", ())
    del mine


def test_a_report_of_counts_has_totals_without_owners() -> None:
    driver, growth, pinned = DriverFigures(1, "x", 2, 3, 4, 5), Growth(3, 10), PinnedFigures(6, 7, 8)
    assert counted_report(device="cpu", batch_size=3, seconds=2.0, peaks=(10, 20, 30), live=(4, 5), pool=POOL, driver=driver,
                          growth=growth, pinned=pinned) == StepReport(
        device="cpu", batch_size=3, seconds=2.0, peak=PeakPoint(0, 10, 20, 30, "", "", "", ""), by_role={}, by_layer={},
        by_op={}, top=(), phases=(PhaseEnd("step", 4, 5, 2.0),), kept=(),
        residual_bytes=0, residual_bytes_returned=0, pool=POOL, nodes=0,
        graph_seconds=0.0, records=0, driver=driver, growth=growth, pinned=pinned)


def test_the_peak_is_reached_by_the_last_allocation_before_it_and_nodes_have_numbers() -> None:
    later = Alloc(3, 0, 0, 9, 512, 0, EXP, 2)
    report = report_of([Alloc(1, 0, 0, 9, 2048, 0, MUL, 1), Alloc(2, OUTSIDE, 0, 0, 0, 0, INPUT, 0), Free(1), later])
    assert (report.peak.op, report.peak.line) == ("mul", FORWARD)
    assert report_of([Launch(CALL, EXP, 0, (), (), 0), Launch(CALL, EXP, 5, (), (), 0)]).nodes == 1


def test_what_lay_in_an_arenas_place_before_it_is_not_planned() -> None:
    before, within = Alloc(1, 0, 512, 1000, 1024, 0, EXP, 1), [Alloc(n, 0, 512 * n - 1024, 500, 512, 0, EXP, 1) for n in (3, 4)]
    records: list[Record] = [Reserve(0, 4096), Mark("begin", "step", 0), before, Free(1), *within, Free(3), Free(4)]
    # The arena has the serial 2.
    planned = build_report(records, device="cpu", batch_size=None, pool=POOL, arenas=[(2, 0, 512, 600)]).planned
    assert planned == PlannedFigures(1, 600, 1024, 0)


def test_bands_by_layer_and_by_op() -> None:
    report = report_of(by_hand())
    for by, sums in (("layer", report.by_layer), ("op", report.by_op)):
        (column,) = columns(by_hand(), by, 1)
        assert (column.position, column.allocated, column.sums) == (15, 7680, sums)
    # A layer may have the name of a role: only roles have an order of their own.
    shown = [Column(0, 3, {"output": 1, "input": 1, "parameter": 1})]
    assert stacking(shown, "layer") == ["output", "input", "parameter"] and stacking(shown, "role")[0] == "parameter"
    # A file may have a drop of what is gone.
    drops = [Drop(serial, 1, "consumed") for serial in (1, 7)]
    gone: list[Record] = [Alloc(1, 0, 0, 9, 512, 0, EXP, 1), Keep(1, 1, "out"), Free(1), *drops]
    assert list(breakdown(gone, BY["role"]))[-1] == {"output": 0, "residual": 0}


def test_what_is_no_report_of_this_version() -> None:
    for data, given in (({"version": 99}, "99"), ([], "'list'"), ({}, "None")):
        with raises(ValueError, f"expected a step report of version 1, but got {given}"):
            load_report(data)  # type: ignore[arg-type]


def test_the_gradient_that_reaches_the_peak_is_a_gradient_and_no_part_of_the_samples() -> None:
    """The first one is delivered as it is; that of a second backward is added to it, and goes."""
    net = gradcore.nn.Embedding(10_000, 64)
    for role, count in (("gradient", 1), ("temporary", 2)):
        with gradcore.step(batch_size=16, device="cpu") as step:
            net(gradcore.zeros(16, dtype=gradcore.int64)).sum().backward()
        report = step.report
        assert report.peak.op == "embedding_grad" and report.by_role["parameter"] == 2_560_000
        assert report.by_role["gradient"] == 2_560_000
        (table,) = (t for t in report.top if t.op == "embedding_grad" and t.phase == "backward" and t.role == role)
        assert table.allocated == 2_560_000 and report.bytes_per_sample is not None
        assert (report.bytes_per_sample < 10_000) == (role == "gradient")
        assert report.by_op["embedding_grad"] // 2_560_000 == count
