"""Memory that grows from step to step, also if several kinds of steps alternate."""

from __future__ import annotations

import gc
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import _looks, _step
from gradcore.cli.main import main
from gradcore.events import Alloc, Keep, Launch, Record, Site, Tag
from gradcore.report.growth import Carried, Grown, Growth, explained
from gradcore.report.run import RunWriter, StepFigures
from gradcore.report.trend import growth_of
from tests.host.reports.made_steps import CALL


def test_training_that_leaks_between_evaluations_grows() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    outputs: list[Any] = []
    found = []
    for _ in range(10):
        with gradcore.step(device="cpu") as training:
            outputs.append(w.exp())
        with gradcore.step(device="cpu") as evaluation:
            w.detach().exp()
        found.append((training.report.growth, evaluation.report.growth))
    for growth in found[-1]:
        assert growth is not None and (growth.requested, growth.every) == (4000, 2) and growth.steps >= 6
        assert [(g.op, g.count, g.held_by) for g in growth.grown] == [("exp", 10, "graph")]
    assert "Live bytes have grown for " in str(evaluation.report)


@pytest.mark.parametrize(("ends", "found"), [
    ([4, 8, 12, 16], (3, 4)), ([9, 4, 8, 12, 16], (3, 4)),
    # An evaluation that ends as high as the step before it, and one that ends higher.
    ([4, 4, 8, 8, 12, 12, 16, 16], (6, 4, 2)), ([4, 90, 8, 94, 12, 98, 16, 102, 20], (6, 2)),
    # It comes after three steps of training.
    ([4, 8, 12, 12, 16, 20, 24, 24, 28, 32, 36, 36, 40, 44, 48, 48], (14, 2)),
    ([4, 4, 8, 8, 12, 12], None), ([9, 5, 9, 5, 9, 5, 9, 5], None), ([0, 4, 8, 8] * 4, None), ([5, 9, 6, 9, 7, 9, 8, 9], None),
    # Four kinds of steps, of which each grows by 8; five are too many.
    ([k + 8 * i for i in range(4) for k in (100, 50, 10, 70)], (12, 2)),
    ([k + 8 * i for i in range(4) for k in (100, 50, 10, 70, 30)], None),
    # What the first steps make once, optimizer state for example, is not what each step adds.
    ([0, 1000, 1004, 1008, 1012], (4, 4)), ([0, 0, 1000, 1000, 1008, 1008, 1016, 1016], (6, 8, 2)),
    # Each third step adds to what the others leave as it is; or all three kinds grow.
    ([7 * (k // 3) for k in range(14)], (9, 7, 3)), ([k + 9 * i for i in range(5) for k in (90, 50, 10)], (12, 3)),
    # Three steps in a row are no reason to forget those before.
    ([4, 8, 8, 12, 16, 16, 20, 24, 24, 28, 32, 33], (10, 2)),
    # Memory that is allocated once and kept is not growth.
    ([1, 1, 1, 2, 2, 2, 3, 3, 3, 3], None), ([7] * 16, None), ([7], None), ([], None),
    # What micro-batches keep until the update, which is known once it has been given back twice; with a leak beside it.
    ([4, 8, 12, 16] * 2, (3, 4)), ([4, 8, 12, 16] * 3, None), ([4, 8, 12, 16] * 2 + [4 * k for k in range(1, 8)], (6, 4)),
    # With an evaluation after each of them.
    ([n for k in range(8 * 3) for n in (4 + k % 8, 90 + k % 8)], None),
    # What a fifth step alone has is no reason not to tell of a leak below that.
    ([4 * k + 900 * (k % 5 == 4) for k in range(24)], (3, 4)),
    ([4 + k % 8 + k // 8 for k in range(32)], (7, 1)), ([4 + k % 8 + k // 8 for k in range(29)], None),
    # However many they are; what is typical is what the last ones add.
    ([4 * k for k in range(200)], (199, 4)), ([*range(0, 700, 7), *range(700, 900, 2)], (199, 2)),
    ([k + 8 * i for i in range(50) for k in (100, 50, 10, 70)], (196, 2))])
def test_what_is_growth(ends: list[int], found: tuple[int, ...] | None) -> None:
    growth = growth_of(ends)
    assert (growth and (growth.steps, growth.requested, growth.every)) == (found and (*found, 1)[:3])


@pytest.mark.parametrize(("ends", "found"), [
    # The second step makes 90 that live on; then every tenth adds 7.
    ([10] + [100 + 7 * (k // 10) for k in range(41)], (41, 7, 10)), ([10] + [100 + 7 * (k // 10) for k in range(30)], None),
    # The last batch of each epoch is smaller; what was live before goes.
    ([90, 90] + [50 - 9 * (k % 8 == 7) + 2 * (k // 16) for k in range(80)], (78, 2, 16)),
    # It has stopped for two intervals and more; it was made early; its steps are not regular.
    ([7 * (min(k, 40) // 10) for k in range(61)], (60, 7, 10)), ([7 * (min(k, 40) // 10) for k in range(62)], None),
    ([0, 2, 2, 4, 4, 6, 8, *[8] * 20, 10], None), ([k.bit_length() for k in range(200)], None),
    # Over any number of steps.
    ([k // 50 for k in range(5000)], (4999, 1, 50))])
def test_growth_of_a_few_steps(ends: list[int], found: tuple[int, int, int] | None) -> None:
    growth = growth_of(ends)
    assert (growth and (growth.steps, growth.requested, growth.every)) == found


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 10])
def test_the_number_of_steps_does_not_change_what_each_adds(every: int) -> None:
    found = [growth_of([7 * (k // every) for k in range(n)]) for n in range(7 * every, 150)]
    assert {(growth.requested, growth.every) for growth in found if growth} == {(7, every)} and None not in found


def test_what_every_tenth_step_keeps_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    x, results = gradcore.ones(1000), []
    for k in range(64):
        with gradcore.step(device="cpu") as step:
            # All but the last are of one size, and replaced.
            y = x[:500 if k % 8 == 7 else 1000].sin()
            if k % 10 == 9:
                results.append(y.exp()[:10].exp())
    growth = step.report.growth
    assert growth is not None and (growth.every, growth.requested) == (10, 40)
    assert [(g.op, g.count, g.holder) for g in growth.grown] == [
        ("exp", 6, "results[0] in test_what_every_tenth_step_keeps_is_named()")]
    assert "typically by 40 requested bytes every 10 steps:\n" in str(step.report)


def test_every_step_of_a_long_growth_counts_and_the_command_says_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    kept = []
    with RunWriter(tmp_path / "run.jsonl", {"model": "list"}) as file:
        for number in range(1, 41):
            with gradcore.step(device="cpu") as s:
                kept.append(gradcore.ones(1000))
            file.add(StepFigures.of(number, None, s.report), s)
    growth = s.report.growth
    assert growth is not None and (growth.steps, growth.requested) == (39, 4000)
    assert [(g.op, g.count) for g in growth.grown] == [("full", 40)]
    assert main(["report", str(tmp_path)]) == main(["report", str(tmp_path), "--json"]) == 0
    text, _, data = capsys.readouterr().out.rpartition("\n{")
    # Of the highest peak, at step 40, and of any other: the run's growth is told above the step's.
    assert main(["report", str(tmp_path), "--step", "first"]) == 0
    for shown in (text, capsys.readouterr().out):
        assert ("\nLive bytes have grown for 39 steps, typically by 4,000 requested bytes per step; at the end of step 40:\n"
                "          163,840 bytes in 40 results of full in (root), ") in shown
        assert ": referenced by your code\n                         held by kept[0] in test_every_step" in shown
    told = json.loads("{" + data)
    assert told["report"]["growth"]["steps"] == told["growth"]["steps"] == 39 and told["growth"]["step"] == 40
    assert main(["report", str(tmp_path), "--step", "first", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"]["growth"] is None and told["growth"]["grown"][0]["count"] == 40


def test_two_buffers_of_a_line_pile_up_and_one_does_not() -> None:
    twice, once = (Tag(op, "", "forward", "output", Site("train.py", 7, "main"), None, None) for op in ("exp", "relu"))
    log = [Alloc(k, 0, 512 * k, 10, 512, 0, tag, 0) for k, tag in enumerate((twice, once, twice), 1)]
    (grown,) = explained(Growth(3, 10), log, 0).grown
    assert (grown.op, grown.count, grown.allocated, grown.held_by) == ("exp", 2, 1024, "you")


def test_what_connects_the_steps_of_a_log_by_hand() -> None:
    """Of three results that pile up the newest is kept by a node of the step, and what an earlier step made is read again."""
    made, tied = (Site("train.py", n, "main") for n in (7, 8))
    exp, add = Tag("exp", "", "forward", "output", made, None, None), Tag("add", "head", "forward", "output", tied, None, None)
    # On lines of their own, and so they do not pile up.
    negatives = [exp._replace(op="neg", site=Site("train.py", n, "main")) for n in (20, 21)]
    total = add._replace(layer="", op="zeros", site=Site("train.py", 1, "main"))
    weight = exp._replace(role="parameter")

    def alloc(serial: int, tag: Tag, nbytes: int = 512) -> Alloc:
        return Alloc(serial, 0, 0, 8, nbytes, 0, tag, 0)

    def launch(tag: Tag, node: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Launch:
        return Launch(CALL, tag, node, inputs, outputs, 0)

    before: list[Record] = [
        alloc(1, exp), Keep(1, 0, "out"), alloc(2, add, 2048), alloc(3, add, 2048), alloc(4, total), alloc(5, weight),
        alloc(6, weight), *map(alloc, (7, 8), negatives), launch(add, 1, (4,), (2,))]
    step: list[Record] = [
        alloc(11, exp), launch(exp, 4, (5, 99), (11,)), Keep(11, 4, "out"), alloc(12, exp),
        launch(negatives[0], 5, (5,), (12,)), Keep(12, 5, "out"), alloc(13, add, 2048),
        launch(add, 6, (2, 11), (13,)), launch(add, 6, (3, 11), (13,)),
        # Not of the graph; of backward; and a write in place to what no line of the step made.
        launch(add, 0, (1,), (13,)), launch(add._replace(phase="backward"), 7, (1,), (13,)), launch(add, 8, (4, 4), ()),
        # What no line of the step made is read, not written.
        launch(add, 9, (8,), (13,))]
    growth = explained(Growth(3, 10), before + step, len(before))
    assert growth.grown == (
        Grown("add", "head", "train.py:8 in main", 3, 3 * 2048, "you", ""),
        Grown("exp", "", "train.py:7 in main", 3, 3 * 512, "graph", "neg, train.py:20 in main"))
    assert growth.carried == (
        Carried("add", "train.py:8 in main", "add", "train.py:8 in main"),
        Carried("zeros", "train.py:1 in main", "add", "train.py:8 in main"))
    # Nodes from before the log, and those without an op, have no line.
    unkept = [alloc(1, exp), Keep(1, 0, "a"), alloc(2, exp), Keep(2, 3, "b"), launch(exp, 0, (), ())]
    (unknown,) = explained(Growth(3, 10), unkept, 0).grown
    assert unknown == Grown("exp", "", "train.py:7 in main", 2, 1024, "graph", "b")
    assert explained(Growth(3, 10), [*unkept[:3], Keep(2, 0, "b")], 0).grown[0].keeper == ""


def test_batches_and_gradients_that_are_never_dropped_are_named_but_not_what_lives_on() -> None:
    data = [gradcore.tensor([float(k)] * 300) for k in range(2)]
    w = gradcore.ones(1000, requires_grad=True)
    kept: list[Any] = []
    for _ in range(5):
        with gradcore.step(device="cpu") as step:
            batch = gradcore.tensor([1.0] * 1000)
            w.grad = None
            (w * batch * data[0].sum()).sum().backward()
            kept += batch, w.grad
    growth = step.report.growth
    assert growth is not None and growth.requested == 8000
    assert sorted((g.op, g.count, g.allocated) for g in growth.grown) == [("mul", 5, 5 * 4096), ("tensor", 5, 5 * 4096)]


def named(step: gradcore.step) -> list[tuple[str, int]]:
    growth = step.report.growth
    assert growth is not None
    return [(g.op, g.count) for g in growth.grown]


def test_what_was_made_once_and_what_is_replaced_are_not_named() -> None:
    x = gradcore.ones(100_000)
    constant = [f(x) for _ in range(5) for f in (gradcore.exp, gradcore.sin, gradcore.cos, gradcore.tanh)]
    w = gradcore.ones(1000, requires_grad=True)
    losses: list[Any] = []
    last: deque[Any] = deque(maxlen=2)
    cached: list[Any] = []
    for k in range(7):
        with gradcore.step(device="cpu") as step:
            losses.append((w.sigmoid() * 2).sum())
            last.append(x.sqrt())
            last[-1].neg_()
            if k == 4:
                cached += [x.log() for _ in range(3)]
    assert len(constant) == 20 and named(step) == [("sigmoid", 7), ("sum", 7)]
    assert "7 results of sigmoid in (root), " in str(step.report).partition("Live bytes")[2]


def test_what_grows_now_comes_before_what_has_grown() -> None:
    x = gradcore.ones(1000)
    kept: list[Any] = []
    for k in range(10):
        with gradcore.step(device="cpu") as step:
            kept.append(x.exp() if k < 6 else x[:100].tanh())
            kept.append(x[:10].sin())
    assert named(step) == [("tanh", 4), ("sin", 10)]


def test_growth_over_steps_of_which_some_have_no_log() -> None:
    x = gradcore.ones(1000)
    kept: list[Any] = []
    for k in range(5):
        with gradcore.step(device="cpu", level="counts" if k == 2 else "events") as step:
            kept.append(x.exp())
    assert named(step) == [("exp", 5)]


@pytest.mark.parametrize("retain", [True, False])
def test_what_a_retained_graph_keeps_is_for_the_op_and_not_for_its_gradient(retain: bool) -> None:
    w, kept = gradcore.ones(1000, requires_grad=True), []
    for _ in range(5):
        with gradcore.step(device="cpu") as step:
            loss = w.exp().sum()
            if retain:
                loss.backward(retain_graph=True)
            kept.append(loss)
    growth = step.report.growth
    assert growth is not None
    (exp,) = (g for g in growth.grown if g.op == "exp")
    assert exp.keeper.startswith("exp, ") and exp.holder == (
        "the graph of kept[0] in test_what_a_retained_graph_keeps_is_for_the_op_and_not_for_its_gradient()")
    # That somebody asked for it is why backward has released nothing.
    assert exp.retained == retain and {k.reason for k in step.report.kept if k.node} == {"retained" if retain else None}
    assert str(step.report).count("ran with retain_graph") == 2 * retain


def test_a_step_can_be_told_to_name_no_holders() -> None:
    kept = []
    for named in (True, True, True, True, False):
        step = gradcore.step(device="cpu")
        step.names_holders = named
        with step:
            kept.append(gradcore.ones(1000))
    assert step.report.growth is not None and step.report.growth.grown[0].holder == ""


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_a_line_do_not_count_with_what_it_leaves(to_none: bool) -> None:
    """What a hook keeps grows; the gradients that the same line makes are replaced at every step, or added to."""
    net = gradcore.nn.Sequential(gradcore.nn.Linear(8, 64), gradcore.nn.ReLU(), gradcore.nn.Linear(64, 10))
    seen: list[Any] = []
    net[1].register_full_backward_hook(lambda module, given, arrived: seen.append(arrived[0]))
    for _ in range(6):
        with gradcore.step(device="cpu") as step:
            net.zero_grad(set_to_none=to_none)
            net(gradcore.ones(128, 8)).sum().backward()
    growth = step.report.growth
    assert growth is not None and growth.requested == 128 * 64 * 4
    assert [(g.op, g.layer, g.count, g.allocated) for g in growth.grown] == [("linear_grad", "2", 6, 6 * 128 * 64 * 4)]


def test_a_report_names_the_cycles_that_grow() -> None:
    """While it is made the garbage collector frees none of them: there are many objects in it."""
    w = gradcore.ones(1000, requires_grad=True)
    was, before = gc.isenabled(), gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with gradcore.step(device="cpu") as step:
                error = ValueError()
                error.args = error, w * 2  # type: ignore[assignment]
                del error
        gc.set_threshold(gc.get_count()[0] + 40)
        gc.enable()
        growth = step.report.growth
        assert growth is not None and gc.isenabled()
        assert [g.holder for g in growth.grown] == ["a reference cycle of ValueError, which only gc.collect() frees"]
    finally:
        gc.set_threshold(*before)
        if not was:
            gc.disable()


def test_holders_are_not_looked_for_again_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes longer than a small step: it takes a twentieth of the time of a loop that asks for every report."""
    now, looks = 100.0, 0

    def look(ledger: object, serials: Any) -> dict[int, str]:
        nonlocal now, looks
        now, looks = now + 1, looks + 1
        return {min(serials): f"box {looks}"}

    monkeypatch.setattr(_looks, "holders_of", look)
    monkeypatch.setattr(_looks, "perf_counter", lambda: now)
    monkeypatch.setattr(_looks, "_told", {})
    monkeypatch.setattr(_step, "_ends", {})
    kept: list[Any] = []
    said = []
    for k in range(12):
        with gradcore.step(device="cpu") as step:
            kept.append(gradcore.ones(1000))
            if k > 9:
                kept += [kept[0].exp(), kept[0].exp()]
        growth = step.report.growth
        if growth is not None:
            said.append([g.holder for g in growth.grown])
        now += 8
    # At the first report of growth, after twenty seconds, and for a line that is new.
    assert said == [["box 1"]] * 3 + [["box 2"]] * 3 + [["box 3"]] * 2 + [["box 4", ""]] and looks == 4
