"""Norms and the next instruction in one launch of a replay, without a GPU: which pairs are fused, and which are not."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.program.planning.fusion import groups
from tests.host.cuda.captured_steps import Stepping, logged, nan_stays, program_of, same_function, same_steps
from tests.host.cuda.graph_bed import Bed, bits, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional


class Residual(nn.Module):
    """A block with a transformer's structure."""

    def __init__(self, width: int, norm: Any) -> None:
        super().__init__()
        self.norm, self.linear = norm(width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return x + self.linear(self.norm(x))


def images() -> Any:
    gradcore.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4),
                         nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).to("cuda")


def columns() -> Any:
    gradcore.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3)).to("cuda")


def rows(norm: Any = nn.LayerNorm) -> Any:
    gradcore.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), Residual(8, norm), Residual(8, norm), norm(8), nn.Linear(8, 3)).to("cuda")


def head(norm: Any = nn.LayerNorm) -> Any:
    gradcore.manual_seed(3)
    return nn.Sequential(norm(6), nn.Linear(6, 3)).to("cuda")


# The second block's relu is followed by a pool, which keeps positions: it is recomputed only for its own gradient.
IMAGES = [*["counted batch norm with relu"] * 2, "batch norm with relu", "batch norm again with relu and gradients",
          "relu gradient with batch norm's"]
ROWS = {norm: [f"{norm} again with gradients", *[f"{norm} again with gradients, added", f"sum with {norm}"] * 2]
        for norm in ("layer norm", "RMS norm")}
#: What makes a model, the shape of its input, the groups of a step that have a norm, and how many calls are left out: two of
#: them are the loss's, if it is computed with its gradient.
MODELS: dict[str, tuple[Any, tuple[int, ...], list[str], int]] = {
    "small images": (images, (5, 2, 6, 6), IMAGES, 11), "images": (images, (9, 2, 12, 12), IMAGES, 11),
    "columns": (columns, (5, 6), ["counted batch norm with relu", "counted batch norm", "batch norm with relu",
                                  "relu gradient with batch norm's"], 5),
    "rows": (rows, (5, 6), ROWS["layer norm"], 6), "RMS norm": (lambda: rows(nn.RMSNorm), (5, 6), ROWS["RMS norm"], 6),
    # The gradient of a norm that has none of its input does not read the rows by which the output is made again.
    "of the input": (head, (5, 6), [], 2), "RMS norm of the input": (lambda: head(nn.RMSNorm), (5, 6), [], 2)}


def data(seed: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal(shape).astype(np.float32), device="cuda"),
            gradcore.tensor(generator.integers(0, 3, shape[0]), device="cuda"))


#: How many calls each of the functions of a matrix is less than its instructions; one where batch norm counts itself alone.
JOINED = {"joined": 2, "by given statistics": 1, "the norm's result is returned": 1, "another op between": 1,
          "read once more": 1, "another shape": 1, "the input alone": 2}


def functions() -> dict[str, Any]:
    gradcore.manual_seed(4)
    norm, given, plain = (nn.BatchNorm1d(6).to("cuda") for _ in range(3))
    plain.weight = plain.bias = None
    given.eval()

    def both(x: Any) -> Any:
        z = norm(x)
        return z, F.relu(z)

    def between(x: Any) -> Any:
        z, other = norm(x), x * 2
        return F.relu(z) + other.sum()

    def again(x: Any) -> Any:
        z = norm(x)
        return F.relu(z) * z

    found = (lambda x: F.relu(norm(x)), lambda x: F.relu(given(x)) * 2, both, between, again,
             lambda x: F.relu(norm(x).reshape(-1)), lambda x: F.relu(plain(x)))
    return dict(zip(JOINED, found, strict=True))


#: How many groups each of these has, and how many of them are one launch.
SUMS = {"made": (1, 1), "returned": (1, 1), "of the input": (1, 0), "of a row": (0, 0), "of a number": (0, 0)}


def sums() -> dict[str, Any]:
    gradcore.manual_seed(6)
    norm, row = nn.LayerNorm(6).to("cuda"), gradcore.rand(6).to("cuda")

    def returned(x: Any) -> Any:
        z = x * 2 + x.exp()
        return z, norm(z)

    found = (lambda x: norm(x * 2 + x.exp()), returned, lambda x: norm(x + x.exp()), lambda x: norm(x.exp() + row),
             lambda x: norm(x.exp() + 2.0))
    return dict(zip(SUMS, found, strict=True))


def slopes_of_a_sum(wrap: Any = lambda f: f) -> list[bytes]:
    """Two paths to an input whose gradient the caller takes; the gradient of one norm is that of the other path, too."""
    gradcore.manual_seed(5)
    one, two = (nn.LayerNorm(6).to("cuda") for _ in range(2))
    f, found = wrap(lambda x: x + one(x) + two(x * 2)), []
    for k in range(3):
        x = data(k, (5, 6))[0].requires_grad_()
        y = f(x)
        (y * y).sum().backward()
        found += [bits(t) for t in (y, x.grad, one.weight.grad, two.bias.grad)]
    return found


def slopes_of_a_total(wrap: Any = lambda f: f) -> tuple[list[bytes], Any]:
    """A step whose relu has a broadcast number as its cotangent."""
    gradcore.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).to("cuda")

    def step(x: Any) -> Any:
        model.zero_grad()
        total = model(x).sum()
        total.backward()
        return total

    run, found = wrap(step), []
    for k in range(3):
        found += [bits(run(data(k, (5, 6))[0])), *[bits(p.grad) for p in model.parameters()]]
    return found, run


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for make, shape, *_ in MODELS.values():
        training = Stepping(make(), gradcore.compile)
        for k in range(3):
            training.run(*data(k, shape))
    slopes_of_a_sum(gradcore.compile)
    slopes_of_a_total(gradcore.compile)
    with gradcore.no_grad():
        for f in (*functions().values(), *sums().values()):
            step = gradcore.compile(f)
            for k in range(2):
                step(data(k, (5, 6))[0])


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("norms"), launched)


def found_in(program: Any) -> list[Any]:
    return [group for group in groups(program) if "norm" in group.kind]


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_has_the_bits_of_the_eager_one(bed: Bed, name: str) -> None:
    make, shape, expected, left_out = MODELS[name]
    eager, captured = Stepping(make()), Stepping(make(), gradcore.compile)
    same_steps(eager, captured, lambda k: data(k, shape))
    program = program_of(captured.run)
    assert sorted(group.kind for group in found_in(program)) == sorted(expected)
    assert f"{len(program.instructions) - left_out} kernel calls are captured in one graph" in captured.run.explain()


def check(bed: Bed, ours: Any, theirs: Any, count: int, joined: int) -> None:
    """A captured function has the bits of the eager one; so many groups, of which some are one launch each."""
    program, nodes = same_function(bed, ours, theirs, [data(k, (5, 6))[0] for k in range(4)])
    assert len(found_in(program)) == count
    assert len(nodes) == len(program.instructions) - joined


@pytest.mark.parametrize("name", JOINED)
def test_only_results_without_other_readers_are_left_out(bed: Bed, name: str) -> None:
    check(bed, functions()[name], functions()[name], 1, JOINED[name])


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_made_by_the_norm_of_it(bed: Bed, name: str) -> None:
    check(bed, sums()[name], sums()[name], *SUMS[name])


def test_a_gradient_is_not_added_where_the_norm_still_reads_it(bed: Bed) -> None:
    assert slopes_of_a_sum(gradcore.compile) == slopes_of_a_sum()


def test_a_cotangent_that_is_broadcast_goes_by_relus_own_gradient(bed: Bed) -> None:
    found, run = slopes_of_a_total(gradcore.compile)
    assert found == slopes_of_a_total()[0]
    assert any(i.op == "relu_grad" and not i.operands[0].spec.contiguous for i in program_of(run).instructions)
    assert [group.kind for group in found_in(program_of(run))] == ["counted batch norm with relu", "batch norm with relu"]


def test_nan_stays_in_a_captured_step(bed: Bed) -> None:
    nan_stays(functions()["by given statistics"])


@pytest.mark.parametrize("name", MODELS)
def test_the_log_is_as_without(captured_kernels: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, shape, _, left_out = MODELS[name]
    with Bed(captured_kernels).in_place() as bed:
        ours = logged(bed, Stepping(make(), gradcore.compile), data(3, shape), left_out)
    with Bed(captured_kernels).in_place() as bed:
        monkeypatch.setattr(bed.device, "fused", lambda kind, steps: None)
        assert logged(bed, Stepping(make(), gradcore.compile), data(3, shape), 0) == ours
