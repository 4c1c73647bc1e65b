"""Ordinary training loops around a compiled step: it is traced only when necessary, and trains as in eager mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradcore
from gradcore import nn

F = nn.functional
BATCHES = 12


@dataclasses.dataclass
class Settings:
    smoothing: float = 0.1
    best: float = 1e9
    steps: int = 0
    log: list[float] = dataclasses.field(default_factory=list)


class Bar:
    """Like a progress bar: it counts, and displays values."""

    def __init__(self, items: Any) -> None:
        self.items, self.n, self.shown = items, 0, {}

    def __iter__(self) -> Iterator[Any]:
        for x in self.items:
            yield x
            self.n += 1


class Trainer:
    """A model with a training loop's state. ``wrap`` compiles a function, or returns it unchanged."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        gradcore.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = gradcore.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.settings, self.step, self.loss, self.best, self.history = Settings(), 0, 0.0, None, []
        self.batches = [gradcore.full((5, 4), 0.1 * k) for k in range(BATCHES)]
        self.y = gradcore.zeros(5, dtype=gradcore.int64)
        self.averages = [p.detach().clone() for p in self.model.parameters()]
        self.train = wrap(self.training_step)
        self.gradients = wrap(self.backward_only)
        self.predict = wrap(self.prediction)

    def training_step(self, x: Any, number: int) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), self.y, label_smoothing=self.settings.smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with gradcore.no_grad():
            for average, p in zip(self.averages, self.model.parameters(), strict=True):
                average.lerp_(p, 0.1)
        return loss

    def backward_only(self, x: Any, epoch: int = 0) -> Any:
        loss = F.cross_entropy(self.model(x), self.y) / 4
        loss.backward()
        return loss

    @gradcore.no_grad()
    def prediction(self, x: Any) -> Any:
        return self.model(x).argmax(1)


def counters_and_logs(t: Any) -> None:
    t.model.running = 0.0
    for k, x in enumerate(bar := Bar(t.batches)):
        t.loss = t.train(x, k).item()
        t.step += 1
        t.settings.steps += 1
        t.best = t.settings.best = min(t.settings.best, t.loss)
        t.history.append(t.loss)
        t.settings.log.append(t.loss)
        t.model.running += t.loss
        bar.shown = {"loss": t.loss}


def schedules(t: Any) -> None:
    each = gradcore.optim.lr_scheduler.CosineAnnealingLR(t.optimizer, 10)
    slow = gradcore.optim.lr_scheduler.StepLR(t.optimizer, 1)
    for k, x in enumerate(t.batches):
        t.train(x, number=k)
        each.step()
        if k % 4 == 3:
            slow.step()


def accumulation(t: Any) -> None:
    for k, x in enumerate(t.batches):
        t.gradients(x, epoch=k)
        if k % 4 == 3:
            t.optimizer.step()
            t.optimizer.zero_grad()


def clipping_outside(t: Any) -> None:
    for x in t.batches:
        t.optimizer.zero_grad()
        t.gradients(x)
        nn.utils.clip_grad_norm_(t.model.parameters(), 0.5)
        t.optimizer.step()


def evaluation_between(t: Any) -> None:
    for k, x in enumerate(t.batches):
        t.model.train()
        t.train(x, k)
        t.model.eval()
        t.history += t.predict(x).tolist()


def best_state_restored(t: Any) -> None:
    best: Any = None
    for k, x in enumerate(t.batches):
        loss = t.train(x, k).item()
        if best is None or loss < best[0]:
            best = loss, {name: v.clone() for name, v in t.model.state_dict().items()}
    t.model.load_state_dict(best[1])
    t.train(t.batches[0], 0)


def momentum_too(t: Any) -> None:
    schedule = gradcore.optim.lr_scheduler.OneCycleLR(t.optimizer, 0.2, 20)
    for k, x in enumerate(t.batches):
        t.train(x, k)
        schedule.step()


#: With the numbers of traces of the step, the gradients and the prediction. An optimizer creates its state in its first step.
LOOPS: dict[Callable[[Any], None], tuple[int, int, int]] = {
    counters_and_logs: (2, 0, 0), schedules: (2, 0, 0), momentum_too: (2, 0, 0), accumulation: (0, 2, 0),
    clipping_outside: (0, 1, 0), evaluation_between: (2, 0, 1), best_state_restored: (2, 0, 0)}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_traces_no_more_than_it_has_to(loop: Callable[[Any], None]) -> None:
    eager, compiled = Trainer(lambda f: f), Trainer(gradcore.compile)
    for t in (eager, compiled):
        gradcore.manual_seed(1)
        loop(t)
    functions = compiled.train, compiled.gradients, compiled.predict
    assert tuple(len(f.traces) for f in functions) == LOOPS[loop], [f.explain() for f in functions]
    for name, value in eager.model.state_dict().items():
        assert value.tolist() == compiled.model.state_dict()[name].tolist()
    assert [a.tolist() for a in eager.averages] == [a.tolist() for a in compiled.averages]
    assert eager.history == compiled.history
    # Each is bound to its trainer, which refers to it.
    del eager.train, eager.gradients, eager.predict, compiled.train, compiled.gradients, compiled.predict


def test_a_number_that_is_read_is_another_program() -> None:
    def named(x: Any, k: int, unread: int = 0) -> Any:
        return x * locals()["k"]

    def inner(x: Any, k: int, unread: int = 0) -> Any:
        return (lambda: x * k)()

    for f in (named, inner, lambda x, k, unread=0: x * k, lambda x, *k, unread=0: x * k[0]):
        compiled: Any = gradcore.compile(f)
        assert [compiled(gradcore.ones(1), k).item() for k in (2, 2, 3)] == [2, 2, 3]
        assert len(compiled.programs) == 2
    compiled = gradcore.compile(inner)
    assert [compiled(gradcore.ones(1), 2, unread=k).item() for k in range(5)] == [2] * 5
    assert [compiled(gradcore.ones(1), 2, k).item() for k in range(5)] == [2] * 5
    assert len(compiled.traces) == 2
    compiled = gradcore.compile(named)
    assert [compiled(gradcore.ones(1), 2, k).item() for k in range(2)] == [2] * 2
    assert len(compiled.traces) == 2


#: Optimizers and their options, the option that a schedule changes, and its values: the last one needs another program.
OPTIONS: list[tuple[str, dict[str, Any], str, tuple[Any, Any, Any]]] = [
    ("SGD", {"momentum": 0.9, "nesterov": True}, "momentum", (0.9, 0.8, 0)),
    ("SGD", {}, "momentum", (0, 0.0, 0.5)),
    ("RMSprop", {"momentum": 0.9, "centered": True}, "momentum", (0.9, 0.8, 0)),
    *[(name, {}, "betas", ((0.9, 0.99), (0.8, 0.99), (0.8, 0.9))) for name in (
        "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion")],
    ("Adam", {"amsgrad": True}, "betas", ((0.9, 0.99), (0.8, 0.99), (0.8, 0.9))),
    ("Adam", {}, "betas", ([0.9, 0.99], [0.8, 0.99], [0.8, 0.9])),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}, "dampening", (0.1, 0.1, 0.2)),
    ("Adadelta", {}, "rho", (0.9, 0.9, 0.8))]


@pytest.mark.parametrize(("name", "options", "changed", "values"), OPTIONS)
def test_an_option_that_is_only_an_operand_changes_without_a_trace(name: str, options: dict[str, Any], changed: str,
                                                                   values: Any) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = gradcore.tensor([1.0, -2.0], requires_grad=True)
        optimizer = getattr(gradcore.optim, name)([p], lr=0.1, **options)

        def step(x: Any, p: Any = p, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            (p * p * x).sum().backward()
            optimizer.step()

        run: Any = wrap(step)
        counts = []
        for k, value in enumerate((values[0], *values)):
            optimizer.param_groups[0][changed] = value
            run(gradcore.full((2,), k + 1.0))
            counts.append(len(getattr(run, "traces", ())))
        run(gradcore.ones(2))
        found.append((p.tolist(), [x.tolist() for x in optimizer.state[p].values() if isinstance(x, gradcore.Tensor)]))
    assert found[0] == found[1]
    # The first call finds no gradient, the second one does.
    assert counts == [1, 2, 2, 3], run.explain()


def test_a_function_that_reads_an_option_is_traced_again_when_it_changes() -> None:
    p = gradcore.tensor([1.0, -2.0], requires_grad=True)
    optimizer = gradcore.optim.SGD([p], lr=0.1, momentum=0.9)

    @gradcore.compile
    def step() -> Any:
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
        return p * optimizer.param_groups[0]["momentum"]

    for momentum in (0.9, 0.9, 0.5, 0.5):
        optimizer.param_groups[0]["momentum"] = momentum
        assert step().tolist() == (p * momentum).tolist()


def test_a_discriminator_that_is_frozen_during_the_generators_step() -> None:
    def losses(wrap: Callable[[Any], Any]) -> tuple[list[float], list[Any]]:
        gradcore.manual_seed(0)
        generator, judge = nn.Linear(2, 3), nn.Linear(3, 1)
        optimizers = [gradcore.optim.SGD(m.parameters(), lr=0.1) for m in (generator, judge)]

        def generate(z: Any) -> Any:
            optimizers[0].zero_grad()
            loss = -judge(generator(z)).mean()
            loss.backward()
            optimizers[0].step()
            return loss.detach()

        def discriminate(z: Any, x: Any) -> Any:
            optimizers[1].zero_grad()
            loss = (judge(generator(z).detach()) - judge(x)).mean()
            loss.backward()
            optimizers[1].step()
            return loss.detach()

        steps, found = [wrap(generate), wrap(discriminate)], []
        for k in range(8):
            z, x = gradcore.full((4, 2), 0.1 * k), gradcore.full((4, 3), 0.2 * k)
            judge.requires_grad_(False)
            found.append(steps[0](z).item())
            judge.requires_grad_(True)
            found.append(steps[1](z, x).item())
        return found, steps

    eager, _ = losses(lambda f: f)
    compiled, steps = losses(gradcore.compile)
    assert compiled == eager
    # The first step finds no gradients.
    assert [len(step.traces) for step in steps] == [2, 2]


def test_the_reasons_of_the_first_two_traces_of_an_ordinary_step() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = gradcore.optim.Adam(model.parameters())

    @gradcore.compile
    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(gradcore.ones(5, 4))
    first, second = step.traces
    assert first.startswith("the first call; it cannot be replayed: ") and first.count("makes optimizer state") == 1
    assert "test_compile_loops.py:" in first and "referenced" not in first
    assert second == "the call before, which had the same arguments, could not be replayed"
    step(gradcore.ones(6, 4))
    assert step.traces[2] == "argument 0 is float32[6, 4] on cpu and was float32[5, 4] on cpu"


def test_the_reason_names_the_argument_that_is_new() -> None:
    f = gradcore.compile(lambda x, *others, **options: x * 2, max_programs=22)
    x, y = gradcore.zeros(4), gradcore.zeros(9)
    w, v = gradcore.zeros(3, requires_grad=True), gradcore.zeros(3, requires_grad=True)
    more = "there are more or fewer arguments or tensors in them, or they share memory in another way"
    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((x,), {}, "the first call"), ((x, 1), {}, more), ((x, 2), {}, "argument 1 is 2 and was 1"),
        ((x, 2.0), {}, "argument 1 is 2.0 and was 2"), ((x, -0.0), {}, "argument 1 is -0.0 and was 2.0"),
        ((x, [1, "a"]), {}, "argument 1 is a list of 2 and was -0.0"),
        ((x, [1, "b"]), {}, "argument 1[1] is 'b' and was 'a'"),
        ((x, [1]), {}, "argument 1 is a list of 1 and was a list of 2"),
        ((x, {"k": 3}), {}, "argument 1 is a dict of 1 and was a list of 1"),
        ((x, {"k": 4}), {}, "argument 1['k'] is 4 and was 3"),
        ((x, w), {}, "argument 1 is a leaf that requires a gradient and was a dict of 1"),
        ((x, v), {}, "argument 1 is another leaf that requires a gradient, and these are compared by identity: "
         "call x = x.detach().requires_grad_() inside of the function"),
        ((x,), {"by": x[:2]}, more), ((x,), {"by": y[1:4]}, more), ((v * 1,), {}, more),
        ((w,), {}, "argument 0 is a leaf that requires a gradient and was float32[3] on cpu that requires a gradient"),
        ((x, slice(2)), {}, more), ((x, slice(3)), {}, "argument 1 has changed"),
        ((x, bytearray(b"a")), {}, "argument 1 has changed"), ((x, bytearray(b"b")), {}, "argument 1 has changed"),
    ]
    for args, options, reason in calls:
        f(*args, **options)
        assert f.traces[-1].split(";")[0] == reason
    with gradcore.no_grad():
        f(x, slice(3))
    assert f.traces[-1] == "the mode is new: grad is False and was True"


def test_a_function_may_ask_for_the_device_of_the_first_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            first = next(self.inner.parameters(), None)
            assert first is not None
            return self.inner(x.to(next(self.parameters()).device, first.dtype))

    f = gradcore.compile(Net())
    for k in range(3):
        x = gradcore.full((1, 2), float(k))
        assert f(x).tolist() == f._function(x).tolist()
    assert len(f.traces) == 1, f.explain()


def test_what_is_taken_from_another_iterator_is_taken_at_each_call() -> None:
    layer, numbers = nn.Linear(1, 1), [1.0, 2.0, 3.0]
    source = iter(numbers)
    f = gradcore.compile(lambda x: x * next(source) * sum(1 for _ in layer.parameters()))
    assert [f(gradcore.ones(1)).item() for _ in numbers] == [2.0, 4.0, 6.0]
