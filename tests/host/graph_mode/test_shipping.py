"""Programs in files: exact round trips, runs in a process without the model's code, and resumed step counts."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.errors import SpecError, TraceError
from gradcore.program.shipping.encoding import decode, encode, parsed
from gradcore.spec import TensorSpec
from tests.conftest import raises
from tests.rows import ROWS

ROOT = Path(__file__).resolve().parents[3]
R = np.random.default_rng(0)
X, Y = R.standard_normal((6, 4)).astype(np.float32), R.integers(0, 3, 6)


class Training:
    """A network with batch norm and dropout, an optimizer, and a step that is traced."""

    def __init__(self, optimizer: Any, **options: Any) -> None:
        gradcore.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.optimizer = optimizer([{"params": self.model[0].parameters(), "lr": 0.02}, {"params": [
            *self.model[1].parameters(), *self.model[4].parameters()]}], lr=0.01, **options)
        model, optimizer = self.model, self.optimizer

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        self.step = gradcore.compile(step)


def batch() -> tuple[Any, Any]:
    return gradcore.tensor(X), gradcore.tensor(Y)


# -- values ------------------------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, recursively; NaN is equal to itself."""
    if type(a) is not type(b) and not (isinstance(a, tuple) and isinstance(b, tuple)):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


@pytest.mark.parametrize("row", [r for r in ROWS if r.attrs], ids=str)
def test_attributes_of_every_op_come_back(row: Any) -> None:
    for name, value in row.attrs.items():
        back = decode(parsed(json.dumps(encode(value), allow_nan=False)), name)
        assert same(back, value), f"{name}={value!r} became {back!r}"


@pytest.mark.parametrize("value", [
    None, True, 1, 1.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, "ünï\ud800", (), (1, (2.0, None)), [1, (2,)],
    Ellipsis, slice(None), slice(1, None, -2), (Ellipsis, slice(0, 3)), np.dtype("float16"), np.dtype("bool"),
    TensorSpec.strided((2, 3), np.dtype("int64"), (-1, 0), 4), 2**63, {"float": 1}], ids=repr)
def test_values_come_back(value: Any) -> None:
    if isinstance(value, dict):
        with raises(TypeError, "cannot be saved in a program's file", "dict"):
            encode(value)
        return
    back = decode(parsed(json.dumps(encode(value), allow_nan=False)), "here")
    assert same(back, value) and str(back) == str(value)


# -- programs ----------------------------------------------------------------------------------------------------------

OPTIMIZERS = [(optim.SGD, {"momentum": 0.9}), (optim.SGD, {}), (optim.Adam, {}), (optim.AdamW, {}), (optim.NAdam, {}),
              (optim.RAdam, {}), (optim.RMSprop, {"centered": True}), (optim.Adagrad, {}), (optim.Adadelta, {}),
              (optim.Lion, {}), (optim.Adamax, {}), (optim.Rprop, {}), (optim.ASGD, {"t0": 2})]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda x: getattr(x, "__name__", None) or ",".join(x) or "plain")
def test_a_training_program_goes_on_where_it_was(kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    training, (x, y) = Training(kind, **options), batch()
    for _ in range(7):
        training.step(x, y)
    training.step.save(tmp_path / "step")
    loaded = gradcore.load_program(tmp_path / "step")
    for k in range(8):
        if k == 3:
            loaded.learning_rate = 0.005
            for group in training.optimizer.param_groups:
                group["lr"] = 0.005
            for group in (*loaded.param_groups, *training.optimizer.param_groups):
                if "betas" in group:
                    group["betas"] = 0.7, group["betas"][1]
                elif group.get("momentum"):
                    group["momentum"] = 0.7
        assert loaded(X, Y).item() == training.step(x, y).item()
    for name, p in training.model.state_dict().items():
        np.testing.assert_array_equal(loaded.state[name].detach().numpy(), p.numpy())
    for name, p in training.model.named_parameters():
        np.testing.assert_array_equal(loaded.state[name].grad.numpy(), p.grad.numpy())
    loaded.save(tmp_path / "later")
    again = gradcore.load_program(tmp_path / "later")
    assert again.program == loaded.program
    assert again(X, Y).item() == training.step(x, y).item()


def elsewhere(parts: Any) -> Any:
    """Instructions or buffers as in a process without the networks."""
    return tuple(replace(part, tag=part.tag._replace(network=None)) for part in parts)


def test_a_program_comes_back_equal(tmp_path: Path) -> None:
    training, (x, y) = Training(optim.Adam), batch()
    for _ in range(3):
        training.step(x, y)
    training.step.save(tmp_path / "a")
    loaded = gradcore.load_program(tmp_path / "a")
    traced = training.step.programs[0]
    assert loaded.program.instructions == elsewhere(traced.instructions) and loaded.program.buffers == elsewhere(traced.buffers)
    assert [dict(u.numbers)["step"] for u in loaded.program.updates] == [3, 3]
    assert "0.weight" in loaded.state and "1.running_mean" in loaded.state and "4.bias.exp_avg" in loaded.state
    loaded.save(tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert str(loaded).splitlines()[1:] == str(traced).splitlines()[1:]


def test_a_process_without_the_model(tmp_path: Path) -> None:
    training, (x, y) = Training(optim.AdamW), batch()
    for _ in range(3):
        training.step(x, y)
    training.step.save(tmp_path / "step")
    np.savez(tmp_path / "batch.npz", x=X, y=Y)
    code = """
        import sys
        import numpy as np
        import gradcore
        given = np.load(sys.argv[2])
        step = gradcore.load_program(sys.argv[1])
        print([step(given["x"], given["y"]).item() for _ in range(3)])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "step"), str(tmp_path / "batch.npz")],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == str([training.step(x, y).item() for _ in range(3)]), done.stderr


def test_a_forward_program(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)).eval()
    compiled = gradcore.compile(model)
    x = gradcore.randn(2, 2, 6, 6)
    with raises(TraceError, "0 programs", "call the function first"):
        compiled.save(tmp_path / "f")
    with gradcore.no_grad():
        expected = compiled(x).numpy()
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    np.testing.assert_array_equal(loaded(x).numpy(), expected)
    turned = gradcore.tensor(np.ascontiguousarray(x.numpy().transpose(3, 2, 1, 0))).permute(3, 2, 1, 0)
    np.testing.assert_array_equal(loaded(turned).numpy(), expected)
    assert set(loaded.state) >= {"0.weight", "0.bias", "1.weight", "1.running_var", "4.weight"}
    with gradcore.no_grad():
        loaded.state["4.bias"].add_(1.0)
    np.testing.assert_allclose(loaded(x).numpy(), expected + 1, rtol=1e-6)
    with raises(SpecError, "input 0 must be float32[2, 2, 6, 6]", "float32[1, 2, 6, 6]"):
        loaded(x[:1])
    with raises(SpecError, "takes 1 tensor", "got 2"):
        loaded(x, x)
    with raises(AttributeError, "no learning rate"):
        loaded.learning_rate = 0.1


def test_inputs_that_are_views_and_inputs_that_are_written(tmp_path: Path) -> None:
    def f(x: Any, y: Any) -> Any:
        y.mul_(2.0)
        return x + y, x.sum()

    compiled = gradcore.compile(f)
    base = gradcore.randn(3, 2)
    compiled(base.T, gradcore.ones(2, 3))
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    y = gradcore.ones(2, 3)
    first, total = loaded(base.numpy().T, y)
    np.testing.assert_array_equal(first.numpy(), base.numpy().T + 2)
    assert total.item() == base.T.sum().item() and y.numpy().min() == 2
    with raises(SpecError, "writes to input 1"):
        loaded(base.T, gradcore.ones(3, 2).T)


def test_all_tensors_that_are_returned_come_back(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.tensor([3.0, 4.0]))
    f = gradcore.compile(lambda x: {"given": x, "made": [x * w], "kept": w, "count": 3})
    x = gradcore.tensor([1.0, 2.0])
    f(x)
    f.save(tmp_path / "f")
    given, made, kept = gradcore.load_program(tmp_path / "f")(x)
    assert given.tolist() == [1.0, 2.0] and made.tolist() == [3.0, 8.0] and kept.tolist() == [3.0, 4.0]

    f = gradcore.compile(lambda x: (w, x * 2))
    f(x)
    with pytest.raises(TraceError, match=r"returns a parameter, float32\[2\], which none of its ops reads"):
        f.save(tmp_path / "g")


def test_gradients_that_are_dropped_of_parameters_that_no_op_reads(tmp_path: Path) -> None:
    read, other = nn.Parameter(gradcore.ones(2)), nn.Parameter(gradcore.ones(2))
    optimizer = optim.SGD([read, other], lr=0.1)

    @gradcore.compile
    def f(x: Any) -> Any:
        optimizer.zero_grad()
        return (x * read).sum()

    for _ in range(2):
        read.grad, other.grad = gradcore.ones(2), gradcore.ones(2)
        f(gradcore.ones(2))
        assert read.grad is None and other.grad is None
    f.save(tmp_path / "f")
    assert gradcore.load_program(tmp_path / "f")(gradcore.ones(2)).item() == 2.0


def test_gradients_that_accumulate_across_runs(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)

    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    x, y = batch()
    for _ in range(3):
        compiled(x, y)
    compiled.save(tmp_path / "step")
    loaded = gradcore.load_program(tmp_path / "step")
    with raises(TraceError, "the gradient of weight must be a tensor"):
        loaded(x, y)
    for name in ("weight", "bias"):
        loaded.state[name].grad = gradcore.zeros_like(loaded.state[name])
    for _ in range(3):
        loaded(x, y)
    np.testing.assert_array_equal(loaded.state["weight"].grad.numpy(), model.weight.grad.numpy())


def test_two_models_with_the_same_names(tmp_path: Path) -> None:
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    compiled = gradcore.compile(lambda x: two(one(x)))
    x = gradcore.randn(2, 3)
    with gradcore.no_grad():
        expected = compiled(x).numpy()
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    assert set(loaded.state) == {"weight", "bias", "weight.2", "bias.2"}
    np.testing.assert_array_equal(loaded(x).numpy(), expected)


def test_bfloat16_and_mixed_precision(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    low = nn.Linear(4, 3).to(gradcore.bfloat16)

    def f(x: Any) -> Any:
        with gradcore.autocast("cpu", dtype=gradcore.bfloat16):
            return model(x).float() + low(x.to(gradcore.bfloat16)).float()

    compiled = gradcore.compile(f)
    with gradcore.no_grad():
        expected = compiled(gradcore.tensor(X)).numpy()
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    assert sorted(t.dtype.name for t in loaded.state.values()) == ["bfloat16"] * 2 + ["float32"] * 2
    np.testing.assert_array_equal(loaded(X).numpy(), expected)


def test_parameters_that_share_bytes(tmp_path: Path) -> None:
    flat = gradcore.randn(6)
    a, b = flat[:2].detach().requires_grad_(), flat[2:].detach().requires_grad_()
    compiled = gradcore.compile(lambda x: (x * a).sum() + b.sum())
    x = gradcore.randn(2)
    with gradcore.no_grad():
        expected = compiled(x).item()
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    assert loaded(x).item() == expected and len(loaded.state) == 3


def test_a_name_of_gradcore_and_another_class(tmp_path: Path) -> None:
    class Own(optim.SGD):
        pass

    training, (x, y) = Training(Own), batch()
    for _ in range(2):
        training.step(x, y)
    with raises(TypeError, "Own", "gradcore.optim"):
        training.step.save(tmp_path / "step")
    assert list(tmp_path.iterdir()) == []


def test_of_a_function_that_its_caller_differentiates_the_forward_part(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2))
    compiled = gradcore.compile(model)
    x = gradcore.tensor(X)
    expected = compiled(x).detach().numpy()
    assert compiled.programs[0].split is not None
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    assert len(loaded.program.instructions) == compiled.programs[0].split
    assert all(i.tag.phase == "forward" for i in loaded.program.instructions)
    np.testing.assert_array_equal(loaded(x).numpy(), expected)


def test_a_step_of_a_loaded_program_is_accounted(tmp_path: Path) -> None:
    training, (x, y) = Training(optim.Adam), batch()
    for _ in range(3):
        training.step(x, y)
    training.step.save(tmp_path / "step")
    loaded = gradcore.load_program(tmp_path / "step")
    loaded(x, y)
    reports = []
    for step in (loaded, training.step):
        with gradcore.step() as s:
            step(x, y)
        reports.append(s.report)
    ours, theirs = reports
    assert ours.by_layer.keys() == theirs.by_layer.keys() and {"0", "1", "4"} <= ours.by_layer.keys()
    assert ours.peak.requested == theirs.peak.requested
    assert ours.by_role == theirs.by_role and ours.by_role["residual"] > 0
    assert [p.phase for p in ours.phases] == [p.phase for p in theirs.phases]
