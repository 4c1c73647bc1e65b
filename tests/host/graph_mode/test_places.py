"""Results that overwrite operands: a replay has the eager bits, no ranges of its log overlap, and its peak is explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.events import Alloc, Free, Launch
from gradcore.ops import all_ops
from gradcore.program import Plan, Program
from tests.host.graph_mode.test_compile import same, same_state

F = nn.functional

#: Elements of a large operand: more than the CPU processes in one piece.
LARGE = 40_000


def meeting(records: Iterable[Any]) -> str:
    """Two ranges of a log that are allocated at once and overlap; "" without any."""
    live: dict[int, Alloc] = {}
    for r in records:
        if isinstance(r, Free):
            live.pop(r.serial, None)
        elif isinstance(r, Alloc):
            for other in live.values():
                start, end = max(r.offset, other.offset), min(r.offset + r.allocated, other.offset + other.allocated)
                if r.segment == other.segment and start < end:
                    return f"{r.tag.op} lies in {other.tag.op}"
            live[r.serial] = r
    return ""


def taken(program: Program, plan: Plan) -> dict[int, int]:
    """By instruction: the bytes of the operand that its result overwrites."""
    return {program.buffers[b].first: program.buffers[place].nbytes for b, place in plan.shared.items()}


# -- made-up functions -------------------------------------------------------------------------------------------------


def drawn(seed: int, size: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function of two matrices and a row, of elementwise ops, views, sums and writes in place, and sample arguments."""
    generator = np.random.default_rng(seed)
    one: list[Callable[[Any], Any]] = [
        lambda a: a.relu(), lambda a: a.tanh(), lambda a: a.sigmoid(), F.gelu, lambda a: F.gelu(a, approximate="tanh"),
        lambda a: a * 0.5, lambda a: 1 - a, lambda a: -a, F.silu, lambda a: a.t().contiguous().t() + a, lambda a: a.clone(),
        lambda a: a - a.mean(), lambda a: (a * 0.1).exp(), lambda a: a.clamp(-1, 1), lambda a: a[:, ::2].repeat(1, 2) * a,
        lambda a: F.softmax(a, dim=1), lambda a: (a + 1).mul_(0.5), lambda a: F.elu(a), lambda a: a.abs().sqrt()]
    two: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, gradcore.maximum,
        lambda a, b: gradcore.where(a > 0, a, b), lambda a, b: a / (b * b + 1), lambda a, b: a.lerp(b, 0.25)]
    steps = []
    for k in range(14):
        many = generator.random() < 0.4
        steps.append((two[generator.integers(len(two))] if many else one[generator.integers(len(one))],
                      generator.integers(max(0, k - 2), k + 3, 1 + many).tolist()))

    def function(x: Any, w: Any, row: Any) -> Any:
        found = [x, w * row, x + row]
        for step, operands in steps:
            found.append(step(*[found[i] for i in operands]))
        return found[-1] + w * row

    width = 8 if size > 100 else 4
    return function, [generator.standard_normal(shape).astype(np.float32)
                      for shape in ((size // width, width), (size // width, width), (width,))]


@pytest.mark.parametrize("size", [24, LARGE])
@pytest.mark.parametrize("seed", range(12))
def test_made_up_steps_are_the_eager_ones_bit_for_bit(seed: int, size: int) -> None:
    function, (x, *weights) = drawn(seed, size)

    def training(wrap: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
        w, row = (gradcore.tensor(v, requires_grad=True) for v in weights)
        optimizer = gradcore.optim.SGD([w, row], lr=0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            out = function(x, w, row)
            (out * out).mean().backward()
            return out

        return wrap(step), w, row

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        run, w, row = training(wrap)
        for k in range(4):
            with gradcore.step() as s:
                out = run(gradcore.tensor(x * (k + 1)))
            assert not meeting(s.log)
            found.append([v.detach().numpy().tobytes() for v in (out, w.grad, row.grad)])
    assert found[:4] == found[4:] and len(run.traces) <= 2 and run.plans[0].shared


@pytest.mark.parametrize("seed", range(4))
def test_made_up_functions_in_parts_are_the_eager_ones_bit_for_bit(seed: int, tmp_path: Path) -> None:
    function, (x, *weights) = drawn(seed, 24)
    w, row = (gradcore.tensor(v, requires_grad=True) for v in weights)
    f = gradcore.compile(lambda x: function(x, w, row))
    graph = gradcore.trace(lambda x: function(x, w, row), gradcore.tensor(x))
    loss = gradcore.trace(lambda y: (y * y).mean(), graph.outputs)
    slopes = gradcore.gradients(loss, wrt=[w])
    loaded: Any = None
    for k in range(4):
        given = gradcore.tensor(x * (k + 1))
        found, other = f(given), f(given + 1)
        made = graph.execute(given)
        total = loss.execute(keep=loss_outputs(loss) if k % 2 else [])
        eager, second = function(given, w, row), function(given + 1, w, row)
        assert same(found, eager) and same(other, second) and same(made, eager)
        expected = (eager * eager).mean()
        assert total is None or same(total, expected)
        want = gradcore.autograd.grad(expected, [w], retain_graph=True)
        assert same(slopes.execute()[0], want[0])
        # Two calls await their gradients at once, and the later one gets its first.
        theirs = [gradcore.autograd.grad(y.sum(), [w, row], allow_unused=True) for y in (second, eager)]
        ours = [gradcore.autograd.grad(y.sum(), [w, row], allow_unused=True) for y in (other, found)]
        assert all(same(a, b) for p, q in zip(ours, theirs, strict=True) for a, b in zip(p, q, strict=True) if b is not None)
        if loaded is None:
            f.save(tmp_path / "f")
            loaded = gradcore.load_program(tmp_path / "f")
        assert same(loaded(given), eager)
    assert f.plans[0].shared and slopes.plan.shared and loaded.plan.shared


def loss_outputs(graph: Any) -> list[Any]:
    return [graph.outputs]


# -- networks ----------------------------------------------------------------------------------------------------------


def network() -> Any:
    gradcore.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64),
                         nn.Tanh(), nn.Linear(64, 3))


def training(wrap: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    model = network()
    optimizer = gradcore.optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return wrap(step), model, optimizer


def batch(seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((400, 6)).astype(np.float32)),
            gradcore.tensor(generator.integers(0, 3, 400)))


def places_taken(log: list[Any]) -> dict[int, int]:
    """By launch of an eager step: the bytes of the operand whose place the result has taken, freed right before it."""
    allocs = {r.serial: k for k, r in enumerate(log) if isinstance(r, Alloc)}
    launches = [r for r in log if isinstance(r, Launch)]
    return {k: log[at].requested for k, r in enumerate(launches) if r.outputs and (at := allocs[r.outputs[0]])
            and isinstance(log[at - 1], Free) and log[at - 1].serial in r.inputs}


def test_what_is_live_at_a_launch_is_eagers_less_the_place_that_its_result_takes() -> None:
    found, less = [], []
    for wrap in (lambda f: f, gradcore.compile):
        run, model, optimizer = training(wrap)
        for k in range(3):
            run(*batch(k))
        x, y = batch(3)
        held = gradcore.memory_requested()
        with gradcore.step() as s:
            run(x, y)
        found.append([(r.tag.op, r.tag.phase, now.requested - held)
                      for r, now in zip(s.log, folds.timeline(s.log), strict=True) if isinstance(r, Launch)])
        assert not meeting(s.log)
        less.append(taken(run.programs[0], run.plans[0]) if wrap is gradcore.compile else places_taken(s.log))
        del run, model, optimizer
    eager, replayed = found
    # In forward, a name refers to what an eager op reads.
    assert len(less[0]) >= 4 and less[1].keys() > less[0].keys()
    assert replayed == [(op, phase, live + less[0].get(k, 0) - less[1].get(k, 0)) for k, (op, phase, live) in enumerate(eager)]


def test_ranges_that_meet_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, _ = training(gradcore.compile)
    for k in range(3):
        run(*batch(k))
    # The log as if no operand had been overwritten.
    monkeypatch.setitem(run.plans[0].__dict__, "overwritten", {})
    with gradcore.step() as s:
        run(*batch(3))
    assert " lies in " in meeting(s.log)


def test_a_wrong_declaration_shows_in_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("relu_grad", ("x",)), ("relu_grad", ("dy",))):
        monkeypatch.setattr(all_ops()[name], "may_alias", place)
        (eager, model, _), (replayed, other, _) = training(lambda f: f), training(gradcore.compile)
        for k in range(3):
            for run in (eager, replayed):
                gradcore.manual_seed(k)
                run(*batch(k))
        assert same_state(model, other) is (place == ("x",))


def test_a_checked_step_is_the_eager_one() -> None:
    run, model, _ = training(lambda f: gradcore.compile(f, check_every=2))
    eager, other, _ = training(lambda f: f)
    for k in range(6):
        for step in (run, eager):
            gradcore.manual_seed(k)
            step(*batch(k))
    assert same_state(model, other) and run.plans[0].shared


def test_the_peak_of_a_replay_is_lower_where_the_plans_bound_is() -> None:
    def function(x: Any) -> Any:
        return ((x * 2).exp() + 1).tanh().sum()

    peaks = []
    x = gradcore.ones(1 << 16)
    for run in (function, gradcore.compile(function)):
        for _ in range(3):
            with gradcore.step() as s:
                run(x)
        peaks.append(s.report.peak)
    plan = run.plans[0]
    assert (plan.apart, plan.bound, plan.nbytes) == (2 << 18, (1 << 18) + 512, (1 << 18) + 512)
    # The sum is computed when one of the large ones is left, next to its copy, which is returned.
    assert (peaks[0].op, peaks[1].op, peaks[0].requested - peaks[1].requested) == ("exp", "sum", (1 << 18) - 4)
    assert f"lower bound {plan.bound:,} ({plan.apart:,} without writing results over operands)" in run.explain()


@pytest.mark.parametrize(("loss", "most"), [
    (F.cross_entropy, 1.6), (lambda scores, y: F.nll_loss(F.log_softmax(scores, 1), y), 2.4)],
    ids=["cross_entropy", "log_softmax"])
def test_the_gradient_of_many_scores_lies_in_their_place(loss: Callable[..., Any], most: float) -> None:
    """With a large vocabulary they are the largest tensors: all else is small beside them."""
    samples, classes = 128, 4000
    head = nn.Linear(32, classes)
    x, y = gradcore.ones(samples, 32, requires_grad=True), gradcore.zeros(samples, dtype=gradcore.int64)

    def step() -> Any:
        x.grad = None
        head.zero_grad()
        total = loss(head(x), y)
        total.backward()
        return total

    found, peaks = [], []
    for run in (step, gradcore.compile(step)):
        for _ in range(3):
            with gradcore.step() as s:
                result = run()
        found.append((result.item(), x.grad.numpy().tobytes(), head.weight.grad.numpy().tobytes()))
        peaks.append(s.report.peak.allocated)
    assert found[0] == found[1]
    assert peaks[1] <= peaks[0] < most * 4 * samples * classes


@pytest.mark.parametrize("rows", [8, 512])
@pytest.mark.parametrize("between", [nn.GELU, lambda: nn.LayerNorm(256), lambda: nn.RMSNorm(256)],
                         ids=["GELU", "LayerNorm", "RMSNorm"])
def test_the_gradient_of_an_input_that_is_recomputed_takes_its_place_where_there_is_no_room(
        rows: int, between: Callable[[], Any]) -> None:
    """A fused kernel makes it before the gradient of the weight has read the input, unless that is gelu's result."""
    found, peaks = [], []
    x, y = gradcore.randn(rows, 32), gradcore.zeros(rows, dtype=gradcore.int64)
    for wrap in (lambda f: f, gradcore.compile):
        held = gradcore.memory_allocated()
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 256), between(), nn.Linear(256, 256), between(), nn.Linear(256, 10))

        def step(model: Any = model) -> Any:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        run = wrap(step)
        for _ in range(3):
            with gradcore.step() as s:
                run()
        found.append(model)
        peaks.append(s.report.peak.allocated - held)
    assert same_state(*found) and peaks[1] <= peaks[0]
    program, plan = run.programs[0], run.plans[0]
    places = [plan.offsets[i.outputs[0].buffer] == plan.offsets[i.operands[1].buffer]
              for i in program.instructions if i.op == "linear_grad" and dict(i.attrs)["needs"][0]]
    assert places == [between is nn.GELU] * 2
