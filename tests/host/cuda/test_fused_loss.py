"""Cross-entropy and its gradient in one launch of a replay, without a GPU: the bits of separate launches, but fewer."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.devices.gpu import fused as gpu_fused
from gradcore.program.planning.fusion import groups
from tests.host.cuda.captured_steps import program_of
from tests.host.cuda.graph_bed import Bed, bits, emulator_of
from tests.logs import normalized

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional

#: Rows and classes, the arguments of the loss, and the kernels of kernels/loss.cu that a replay launches.
ONE = {"cross_entropy": 1}
CASES: dict[str, tuple[tuple[int, int], dict[str, Any], dict[str, int]]] = {
    "small": ((5, 3), {}, ONE), "one row": ((1, 10), {}, ONE), "one class": ((9, 1), {}, ONE),
    "some rows a thread": ((700, 10), {"weighted": True}, ONE), "sum": ((70, 32), {"reduction": "sum"}, ONE),
    "a warp a row": ((24, 65), {}, ONE), "a block a row": ((1, 3000), {"weighted": True}, ONE),
    "ignored": ((33, 7), {"ignored": 5}, ONE), "all ignored": ((4, 7), {"ignored": 4, "label": -100}, ONE),
    "outside": ((40, 7), {"label": 9}, ONE), "no rows": ((0, 4), {}, ONE),
    "several blocks": ((300, 40), {"ignored": 3, "weighted": True}, ONE),
    "several blocks of threads": ((3000, 8), {"reduction": "sum"}, ONE),
    "rows in turn": ((9, 2000), {}, ONE),
    "many rows": ((4200, 34), {"ignored": 100, "weighted": True}, {**ONE, "whole_weight": 1}),
    "many rows, counted": ((4200, 34), {"ignored": 100}, {**ONE, "whole_weight": 1}),
    "many rows' sum": ((4200, 34), {"reduction": "sum"}, ONE), "two classes": ((5000, 2), {}, ONE)}


class Losses:
    """A function that leaves the gradients of its logits and of their inputs; labels are new in each call."""

    def __init__(self, name: str, wrap: Any = lambda f: f, dtype: Any = gradcore.float32, seed: int = 3) -> None:
        (self.rows, self.classes), how, _ = CASES[name]
        self.random = np.random.default_rng(seed)
        self.label, self.ignored = how.get("label"), how.get("ignored", 0)
        self.leaf = self.made((self.classes,), dtype, requires_grad=True)
        self.dtype, weight = dtype, self.made((self.classes,), dtype) * 0 + 0.3 if how.get("weighted") else None
        optimizer = gradcore.optim.SGD([self.leaf], lr=0.1)
        settings = {"reduction": how.get("reduction", "mean"), "weight": weight}

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(x * self.leaf, y, **settings)
            loss.backward()
            return loss

        self.run = wrap(step)

    def made(self, shape: tuple[int, ...], dtype: Any, requires_grad: bool = False) -> Any:
        values = self.random.normal(size=shape).astype(np.float32) * 3
        return gradcore.tensor(values, device="cuda").to(dtype).requires_grad_(requires_grad)

    def call(self) -> list[bytes]:
        y = self.random.integers(0, self.classes, self.rows)
        if self.label is not None:
            y[:] = self.label
        y[:self.ignored] = -100
        loss = self.run(self.made((self.rows, self.classes), self.dtype), gradcore.tensor(y, device="cuda"))
        return [bits(loss), bits(self.leaf.grad)]


class Classifier:
    """Logits that are an argument of the program: their gradient is the parameter's."""

    def __init__(self, wrap: Any = lambda f: f) -> None:
        self.logits = gradcore.tensor(np.linspace(-2, 2, 28, dtype=np.float32).reshape(7, 4), device="cuda", requires_grad=True)
        optimizer = gradcore.optim.SGD([self.logits], lr=0.1)
        self.labels = gradcore.tensor(np.arange(7) % 4, device="cuda")

        def step(y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(self.logits, y)
            loss.backward()
            return loss

        self.run = wrap(step)

    def call(self) -> list[bytes]:
        loss = self.run(self.labels)
        return [bits(loss), bits(self.logits.grad)]


def others(wrap: Any = lambda f: f) -> tuple[dict[str, list[bytes]], dict[str, Any]]:
    """Other losses three times each, what they came to and their functions: a cotangent that is returned, one that is not 1, a
    loss for each row, a program in two parts."""
    x = gradcore.tensor(np.linspace(-1, 3, 15, dtype=np.float32).reshape(5, 3), device="cuda", requires_grad=True)
    y = gradcore.tensor(np.array([0, 2, 1, 1, -100]), device="cuda")
    optimizer = gradcore.optim.SGD([x], lr=0.1)

    def returned(y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(x, y)
        one = gradcore.ones((), device="cuda")
        loss.backward(one)
        return loss, one

    def doubled(y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(x, y)
        (loss * 2).backward()
        return loss,

    def each(y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(x, y, reduction="none")
        loss.backward(gradcore.ones(5, device="cuda"))
        return loss,

    def forward(y: Any) -> Any:
        return F.cross_entropy(x, y),

    found, runs = {}, {}
    for f in (returned, doubled, each, forward):
        runs[f.__name__] = run = wrap(f)
        for _ in range(3):
            results = run(y)
            if f is forward:
                optimizer.zero_grad()
                results[0].backward()
        found[f.__name__] = [*map(bits, results), bits(x.grad)]
    return found, runs


DTYPES = (gradcore.float32, gradcore.float64, gradcore.float16, gradcore.bfloat16)


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for name in CASES:
        for dtype in DTYPES:
            losses = Losses(name, gradcore.compile, dtype)
            for _ in range(3):
                losses.call()
    classifier = Classifier(gradcore.compile)
    for _ in range(3):
        classifier.call()
    others(gradcore.compile)


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("loss"), launched)


def losses_of(bed: Bed) -> Counter[str]:
    """The kernels of kernels/loss.cu in the graph that was captured last."""
    return Counter(node for node in list(bed.card.nodes.values())[-1]
                   if node.startswith(("cross_entropy", "whole_weight")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_have_the_bits_of_separate_launches(bed: Bed, name: str, dtype: Any) -> None:
    eager, captured = Losses(name, dtype=dtype), Losses(name, gradcore.compile, dtype)
    for k in range(4):
        assert eager.call() == captured.call(), k
    program = program_of(captured.run)
    assert [group.kind for group in groups(program)] == ["loss with slopes"]
    assert losses_of(bed) == CASES[name][2]
    assert f"{len(program.instructions) - 2} kernel calls are captured in one graph" in captured.run.explain()


def test_the_gradient_is_left_where_the_plan_has_it(bed: Bed) -> None:
    eager, captured = Classifier(), Classifier(gradcore.compile)
    for _ in range(4):
        assert eager.call() == captured.call()
    assert list(bed.card.nodes.values())[-1] == ["cross_entropy"]


def test_what_is_not_one_loss_and_its_own_gradient_stays(bed: Bed) -> None:
    found, runs = others(gradcore.compile)
    assert found == others()[0]
    assert found["returned"][1] == np.float32(1).tobytes()
    for name, left_out in (("returned", 2), ("doubled", 0), ("each", 0)):
        count = len(program_of(runs[name]).instructions)
        assert f"{count - left_out} kernel calls are captured in one graph" in runs[name].explain(), name
    assert "1 kernel calls are captured in one graph, of the second part" in runs["forward"].explain()


def test_a_loss_for_each_row_is_left_to_its_kernels() -> None:
    def gradient() -> None: ...

    bound = partial(gradient, reduction="none", ignore_index=-100)
    steps: list[Any] = [[(None, [None] * 5)], [(None, [1.0, None])], [(bound, [None] * 6)]]
    assert gpu_fused.fused("loss with slopes", steps, lambda kernel, op: kernel) is None
    assert gpu_fused.keywords(gradient) == {}, "an op's own attributes are not among them"


def logged(bed: Bed) -> tuple[list[Any], int, Counter[str]]:
    """The log of the fourth call, its peak, and what it launched."""
    losses = Losses("several blocks", gradcore.compile)
    for _ in range(3):
        losses.call()
    with gradcore.step(device=bed.device) as step:
        losses.call()
    return list(normalized(step.raw_log)), step.report.peak.allocated, losses_of(bed)


def test_the_log_is_as_without(captured_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Bed(captured_kernels).in_place() as bed:
        *ours, count = logged(bed)
    with Bed(captured_kernels).in_place() as bed:
        monkeypatch.setattr(bed.device, "fused", lambda kind, steps: None)
        *theirs, separate = logged(bed)
    assert ours == theirs
    assert count == ONE and separate == {**ONE, "cross_entropy_grad": 1}
