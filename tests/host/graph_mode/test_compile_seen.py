"""What a traced function read, and that changes of it are detected: cases that a replay once missed."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.conftest import raises
from tests.host.graph_mode.test_compile import same


def test_a_parameter_that_an_update_skipped_is_updated_when_it_has_a_gradient() -> None:
    a, b = gradcore.zeros(1, requires_grad=True), gradcore.zeros(1, requires_grad=True)
    optimizer = gradcore.optim.SGD([a, b], lr=1.0)
    step = gradcore.compile(lambda: optimizer.step())
    for k in range(4):
        a.grad = gradcore.ones(1)
        b.grad = gradcore.ones(1) if k else None
        step()
    assert a.item() == -4 and b.item() == -3


def test_gradients_in_another_layout_are_read_as_they_lie() -> None:
    ps = [gradcore.zeros(2, requires_grad=True) for _ in range(2)]
    optimizer = gradcore.optim.SGD(ps, lr=1.0)
    step = gradcore.compile(lambda: optimizer.step())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(4):
            flat = gradcore.tensor([[1.0, 2.0], [3.0, 4.0]])
            for p, row in zip(ps, flat, strict=True):
                p.grad = row.clone() if k < 2 else row
            step()
    assert ps[0].tolist() == [-4, -8] and ps[1].tolist() == [-12, -16]


def test_hooks_of_parameters_are_seen() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with gradcore.no_grad():
        layer.weight.fill_(0)
    optimizer = gradcore.optim.SGD(layer.parameters(), lr=0.1)

    @gradcore.compile
    def step(x: Any) -> None:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    x = gradcore.ones(1, 2)
    for _ in range(3):
        step(x)
    handle = layer.weight.register_hook(lambda g: g * 0)
    for _ in range(3):
        step(x)
    assert layer.weight.tolist()[0] == pytest.approx([-0.3, -0.3])
    handle.remove()
    step(x)
    assert layer.weight.tolist()[0] == pytest.approx([-0.4, -0.4])


def test_a_module_that_gains_a_child_is_another_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    f = gradcore.compile(model)
    x = gradcore.ones(1, 2)
    with gradcore.no_grad():
        f(x), f(x)
        model.append(nn.Linear(2, 3))
        assert same(f(x), model(x)) and "different parameters, buffers or modules" in f.traces[-1]


def test_an_argument_that_is_also_a_variable_of_the_function() -> None:
    w, h = gradcore.full((1,), 3.0), gradcore.full((1,), 5.0)
    f = gradcore.compile(lambda x: x * w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert f(w).item() == 9 and f(h).item() == 15


class Config:
    scale = 1.0


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._gain = 1.0
        self.cfg = Config()
        self.slotted = Slotted()
        self.sizes = np.ones(2)

    def forward(self, x: Any) -> Any:
        return x * self._gain * self.cfg.scale * Config.scale * self.slotted.scale * float(self.sizes[0])


def test_configuration_of_any_kind_is_guarded() -> None:
    model = Deep()
    f = gradcore.compile(model, max_programs=20)
    x = gradcore.ones(1)

    def check(expected: float) -> None:
        assert f(x).item() == f(x).item() == model(x).item() == expected

    check(1)
    model._gain = 2.0
    check(2)
    model.cfg.scale = 3.0
    check(6)
    try:
        Config.scale = 5.0
        check(30)
    finally:
        Config.scale = 1.0
    model.slotted.scale = 7.0
    check(42)
    model.sizes[0] = 2
    check(84)


def test_objects_in_any_place_are_looked_into() -> None:
    class Batch:
        def __init__(self, x: Any) -> None:
            self.x = x

    def plain(scale: float, batch: Batch) -> Any:
        return batch.x * scale

    f = gradcore.compile(plain)
    batch = Batch(gradcore.ones(1))
    assert f(2.0, batch).item() == f(2.0, batch).item() == 2
    batch.x = gradcore.full((1,), 5.0)
    assert f(2.0, batch).item() == 10


def test_what_gives_something_else_each_time_is_not_frozen() -> None:
    count, source, seen = {"n": 0}, iter(range(9)), random.Random(0)

    def counting(x: Any) -> Any:
        count["n"] += 1
        return x * count["n"]

    def listing(x: Any) -> Any:
        items.append(1)
        local = []
        local.append(x)
        return local[0] * len(items)

    def defaulting(x: Any, before: list[Any] = []) -> Any:  # noqa: B006
        before.append(1)
        return x * len(before)

    x, items = gradcore.ones(1), []  # type: ignore[var-annotated]
    functions = counting, listing, lambda x: x * next(source), lambda x: x * seen.random(), defaulting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [[compiled(x).item() for _ in range(3)] for compiled in map(gradcore.compile, functions)]
    again = random.Random(0)
    assert found == [[1, 2, 3], [1, 2, 3], [0, 1, 2], pytest.approx([again.random() for _ in range(3)]), [1, 2, 3]]
    for f in (lambda x: x * random.Random().random(), lambda x: x * np.random.default_rng().random()):
        compiled = gradcore.compile(f)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len({compiled(x).item() for _ in range(3)}) == 3


def test_what_another_thread_does_meanwhile_is_no_part_of_a_program() -> None:
    counter = gradcore.zeros(1)

    def other() -> None:
        counter.add_(1)
        counter.item()

    running = [True]

    def f(x: Any) -> Any:
        if running:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return x * 2

    compiled = gradcore.compile(f)
    assert compiled(gradcore.ones(1)).item() == 2 and "another thread" in compiled.traces[0]
    running.clear()
    for _ in range(3):
        assert compiled(gradcore.ones(1)).item() == 2
    assert counter.item() == 1


def test_a_write_to_an_argument_with_a_graph_is_not_replayed() -> None:
    w = gradcore.ones(1, requires_grad=True)

    def f(x: Any) -> Any:
        x.mul_(2)
        return x.sum()

    compiled = gradcore.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            w.grad = None
            compiled(w * 1).backward()
            assert w.grad.item() == 2


def test_a_gradient_that_is_held_is_not_added_to() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        w = gradcore.zeros(1, requires_grad=True)
        step = wrap(lambda w=w: (w * 1).sum().backward())
        held = []
        for _ in range(3):
            step()
            held.append(w.grad)
        found.append([h.item() for h in held])
    assert found[0] == found[1] == [1, 2, 3]


def test_methods_and_copies_of_compiled_functions() -> None:
    class Scaler:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @gradcore.compile
        def forward(self, x: Any) -> Any:
            return x * self.scale

    x = gradcore.ones(1)
    a, b = Scaler(2.0), Scaler(3.0)
    for _ in range(3):
        assert a.forward(x).item() == 2 and b.forward(x).item() == 3
    layer = gradcore.compile(nn.Linear(2, 2))
    y = gradcore.ones(1, 2)
    with gradcore.no_grad():
        layer(y), layer(y)
        other = copy.deepcopy(layer)
        other.weight.fill_(0)
        assert same(other(y)[0], other.bias) and not same(layer(y), other(y))


def test_a_scalers_step_belongs_behind_a_compiled_function() -> None:
    p = nn.Parameter(gradcore.ones(2))
    optimizer = gradcore.optim.SGD([p], lr=0.1)

    def scaled(scaler: Any) -> None:
        optimizer.zero_grad()
        scaler.scale((p * 1.0).sum()).backward()

    def whole(scaler: Any) -> None:
        scaled(scaler)
        scaler.step(optimizer)

    with raises(TraceError, "test_compile_seen.py", "call both after the compiled function"):
        gradcore.compile(whole)(gradcore.amp.GradScaler("cpu", init_scale=4.0))
    compiled, scaler = gradcore.compile(scaled), gradcore.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for _ in range(4):
        compiled(scaler)
        scaler.step(optimizer)
        scaler.update()
    assert p.tolist() == pytest.approx([0.6, 0.6]) and scaler.get_scale() == 16.0


LINKED = """
import gradcore
from gradcore import nn
model = nn.Linear(10, 10)
optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

@gradcore.compile
def train(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()

for _ in range(4):
    train(gradcore.ones(3, 10))
with gradcore.step() as step:
    y = model(gradcore.ones(3, 10)) * 2
print(len(train.programs), step.report.peak.line)
"""


def test_a_package_behind_a_link(tmp_path: Path) -> None:
    """Its lines are distinguished from those of scripts by its location."""
    (tmp_path / "link").symlink_to(Path(gradcore.__file__).parent.parent, target_is_directory=True)
    (tmp_path / "train.py").write_text(LINKED)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "link")})
    assert done.stdout.startswith("2 ") and done.stdout.endswith("train.py:16 in <module>\n"), done


WITHOUT_COLUMNS = """
from types import SimpleNamespace
import gradcore
options, name, two = SimpleNamespace(value=2.0), "value", False
f = gradcore.compile(lambda x, other="x": x * getattr(options, name,
                                                      1.0 if two else 3.0))
f(gradcore.ones(1)), f(gradcore.ones(1))
options.value = 7.0
print(f(gradcore.ones(1)).item())
"""


def test_a_computed_name_is_seen_where_python_keeps_no_columns() -> None:
    done = subprocess.run([sys.executable, "-X", "no_debug_ranges", "-c", WITHOUT_COLUMNS], capture_output=True, text=True,
                          timeout=120)
    assert done.stdout == "7.0\n", done


@pytest.mark.parametrize("with_a_name", [False, True])
def test_attributes_of_the_keys_of_a_dict_are_guarded(with_a_name: bool) -> None:
    one = type("One", (), {"__module__": "users"})()
    one.scale, one.calls = 2.0, []
    factors: Any = {(one, "name"): 1.0} if with_a_name else {one: 1.0}
    f = gradcore.compile(lambda x: x * sum((k[0] if with_a_name else k).scale * v for k, v in factors.items()))
    assert [f(gradcore.ones(1)).item() for _ in range(2)] == [2.0, 2.0] and len(f.traces) == 1
    one.scale = 7.0
    assert f(gradcore.ones(1)).item() == 7.0
    g = gradcore.compile(lambda x: (x * 2, [(k[0] if with_a_name else k).calls.append(1) for k in factors])[0])
    for _ in range(3):
        g(gradcore.ones(1))
    assert one.calls == [1, 1, 1] and not g.programs
