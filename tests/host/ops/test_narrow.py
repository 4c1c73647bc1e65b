"""Floats of 16 bits: every op computes in float32 and rounds once; the log equals meta's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.adapting import MOVES
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.errors import SpecError
from gradcore.ops import all_ops
from gradcore.report.recording import Recording
from tests.conftest import raises
from tests.host.ops.test_ops import record
from tests.host.ops.test_temporaries import SLACK, Watch
from tests.rows import ROWS, Row, parts
from tests.rows_big import BIG

bfloat16 = gradcore.bfloat16
F = gradcore.nn.functional
#: Ops that decompose matrices, or add up logarithms over many steps, in at least single precision, in PyTorch too.
WIDE = {"inv", "solve", "det", "slogdet", "cholesky", "eigh", "svd", "qr", "pinv", "ctc_loss", "ctc_loss_grad"}
#: Ops whose result is wider than what they read.
RAISING = {"square_sum"}
FLOATS = [r for r in ROWS if any(o.kind == "float" for o in r.operands()) and r.op not in WIDE
          and not r.declared.view and "dtype" not in r.attrs]
#: One row per op, for ops for which one suffices.
FIRST = list({r.op: r for r in reversed(FLOATS)}.values())


def array(x: Any) -> Any:
    return np.asarray(x.detach())


@pytest.mark.parametrize(("row", "dtype"), [(r, bfloat16) for r in FLOATS] + [(r, gradcore.float16) for r in FIRST],
                         ids=lambda x: getattr(x, "name", "") and str(x))
def test_an_op_computes_in_float32_and_rounds_once(row: Row, dtype: Any) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        values = row.values(dtype)
        found = parts(row.call([gradcore.tensor(v) for v in values]))
        wide = parts(row.call([gradcore.tensor(v.astype(np.float32) if v.dtype == dtype else v) for v in values]))
        for a, b in zip(found, wide, strict=True):
            narrow = array(b).dtype == np.float32 and row.op not in RAISING
            assert array(a).dtype == (dtype if narrow else array(b).dtype)
            # NumPy's comparison does not handle bfloat16's NaN.
            np.testing.assert_array_equal(array(a).astype(np.float64), array(b).astype(array(a).dtype).astype(np.float64))


@pytest.mark.parametrize("row", FIRST, ids=str)
def test_meta_writes_the_same_log(row: Row) -> None:
    narrow = Narrow(**{f.name: getattr(row, f.name) for f in fields(row)})
    logs = [record(narrow, device) for device in (make_host(), make_meta())]
    assert logs[0] == logs[1]


@dataclass(frozen=True)
class Narrow(Row):
    def values(self, dtype: Any = np.float32, seed: int = 0) -> list[Any]:
        return super().values(bfloat16 if dtype == np.float32 else dtype, seed)


@pytest.mark.parametrize("row", [r for r in BIG if r.op in {f.op for f in FLOATS}], ids=str)
def test_the_copies_are_what_the_call_says(row: Row, tracing: None) -> None:
    watch = Watch()
    worst = watch.run(Narrow(**{f.name: getattr(row, f.name) for f in fields(row)}))
    assert worst <= SLACK + watch.library(), f"{row.op} made {worst:,} bytes that it had not declared"


# -- as users meet it --------------------------------------------------------------------------------------------------


#: Calls whose results, and gradients of x, y and w, are near PyTorch's in bfloat16.
CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda t, x, y, w: x + y, "scalar": lambda t, x, y, w: x * 3 + 0.5, "divide": lambda t, x, y, w: x / (y * y + 1),
    "power": lambda t, x, y, w: (x * x + 1) ** 1.5, "matmul": lambda t, x, y, w: x @ w.T, "sum": lambda t, x, y, w: x.sum(0),
    "mean": lambda t, x, y, w: x.mean(), "var": lambda t, x, y, w: x.var(1), "amax": lambda t, x, y, w: x.amax(1),
    "cumsum": lambda t, x, y, w: x.cumsum(1), "softmax": lambda t, x, y, w: t.softmax(x, 1),
    "log_softmax": lambda t, x, y, w: t.log_softmax(x, 1), "gelu": lambda t, x, y, w: t.nn.functional.gelu(x),
    "sigmoid": lambda t, x, y, w: t.sigmoid(x), "exp": lambda t, x, y, w: t.exp(x),
    "where": lambda t, x, y, w: t.where(x > 0, x, y),
    "cat": lambda t, x, y, w: t.cat([x, y]), "index": lambda t, x, y, w: x[:, 1:5:2], "sort": lambda t, x, y, w: x.sort(1)[0],
    "linear": lambda t, x, y, w: t.nn.functional.linear(x, w), "clamp": lambda t, x, y, w: x.clamp(-0.5, 0.5),
    # The sum of a norm's squares has no gradient but rounding errors.
    "layer_norm": lambda t, x, y, w: t.nn.functional.layer_norm(x, (8,)) * y,
    "mse": lambda t, x, y, w: t.nn.functional.mse_loss(x, y), "l1": lambda t, x, y, w: t.nn.functional.l1_loss(x, y),
    "smooth_l1": lambda t, x, y, w: t.nn.functional.smooth_l1_loss(x, y),
    "cross_entropy": lambda t, x, y, w: t.nn.functional.cross_entropy(x, t.tensor([0, 1, 2, 3, 4, 5])),
    "bce_logits": lambda t, x, y, w: t.nn.functional.binary_cross_entropy_with_logits(x, t.sigmoid(y)),
    "conv2d": lambda t, x, y, w: t.nn.functional.conv2d(x.reshape(1, 1, 6, 8), w.reshape(4, 1, 4, 2)),
    "max_pool": lambda t, x, y, w: t.nn.functional.max_pool2d(x.reshape(1, 1, 6, 8), 2),
    "attention": lambda t, x, y, w: t.nn.functional.scaled_dot_product_attention(
        x.reshape(1, 1, 6, 8), y.reshape(1, 1, 6, 8), x.reshape(1, 1, 6, 8)),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_near_torchs(name: str, torch: Any) -> None:
    rng = np.random.default_rng(0)
    values = [rng.uniform(-2, 2, shape).astype(np.float32) for shape in ((6, 8), (6, 8), (4, 8))]
    found = []
    for library in (gradcore, torch):
        xs = [library.tensor(v).to(library.bfloat16).requires_grad_() for v in values]
        result = CALLS[name](library, *xs)
        assert result.dtype == library.bfloat16
        result.float().square().sum().backward()
        assert all(x.grad is None or x.grad.dtype == library.bfloat16 for x in xs)
        found.append([np.asarray(t.detach().float()) for t in (result, *[x.grad for x in xs if x.grad is not None])])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02 * max(np.abs(b).max(), 1))


def test_renorm_of_a_slice_of_zeros_has_a_gradient_in_float16() -> None:
    x = gradcore.tensor([[0.0, 0.0], [3.0, 4.0], [0.5, 0.25]], dtype=gradcore.float16, requires_grad=True)
    x.renorm(1, 0, 2.0).backward(gradcore.ones_like(x))
    assert x.grad is not None and x.grad[0].tolist() == x.grad[2].tolist() == [1, 1] and x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["attention", "layer_norm", "batch_norm"])
@pytest.mark.parametrize("dtype", [bfloat16, gradcore.float16], ids=["bfloat16", "float16"])
def test_gradients_are_as_accurate_as_their_dtype(name: str, dtype: Any) -> None:
    """What forward keeps of its sums is in float32: rounded, it would be wrong for a whole row."""
    rng = np.random.default_rng(0)
    given = [2 * rng.standard_normal((2, 2, 64, 32)) for _ in range(4)]
    given[0] += 8
    functions = {"attention": lambda x, y, z: F.scaled_dot_product_attention(y, z, y, is_causal=True),
                 "layer_norm": lambda x, y, z: F.layer_norm(x, (32,)) * y, "batch_norm": lambda x, y, z: F.batch_norm(
                     x, None, None, training=True) * z}
    found = []
    for each in (dtype, gradcore.float64):
        *xs, dy = (gradcore.tensor(v).to(dtype).to(each) for v in given)
        for x in xs:
            x.requires_grad_()
        functions[name](*xs).backward(dy)
        found.append([x.grad.double().numpy() for x in xs if x.grad is not None])
    for a, b in zip(*found, strict=True):
        assert np.linalg.norm(a - b) < 0.7 * gradcore.finfo(dtype).eps * np.linalg.norm(b)


def test_a_long_sum_is_not_stuck_at_256() -> None:
    assert gradcore.ones(1000, dtype=bfloat16).sum().item() == 1000
    assert gradcore.full((4, 4096), 0.1, dtype=bfloat16).mean().item() == pytest.approx(0.1, rel=4e-3)


def test_conversions() -> None:
    x = gradcore.tensor([1.0, 2.5, 1e30])
    y = x.bfloat16()
    assert y.dtype == bfloat16 and y.bfloat16() is y and x.to(bfloat16).tolist() == y.tolist()
    assert y.half().dtype == gradcore.float16 and y.float().dtype == gradcore.float32 and y.long()[0].item() == 1
    assert y.numpy().dtype == bfloat16
    y.numpy()[0] = 3
    assert y[0].item() == 3.0, "the array shares memory with the tensor"
    assert gradcore.from_numpy(y.numpy()).dtype == bfloat16 and gradcore.tensor([0.5], dtype=bfloat16).item() == 0.5
    assert str(gradcore.tensor([0.1, 2.0], dtype=bfloat16)) == "tensor([0.1001, 2.0000], dtype=gradcore.bfloat16)"
    assert y.is_floating_point() and gradcore.finfo(bfloat16).eps == 2.0**-7
    assert (gradcore.tensor([0.1], dtype=bfloat16) == 0.1).item(), "a number is compared as the dtype has it"


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Lion",
                                  "Adamax", "ASGD", "Adafactor"])
def test_optimizers_update_it(name: str) -> None:
    def trained(dtype: Any) -> Any:
        p = gradcore.tensor([1.0, -2.0, 0.5], dtype=dtype, requires_grad=True)
        optimizer = getattr(gradcore.optim, name)([p], lr=0.125)
        for _ in range(8):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
        assert p.dtype == dtype
        return array(p).astype(np.float32)

    np.testing.assert_allclose(trained(bfloat16), trained(np.float32), atol=0.05)


def test_a_module_trains_in_it_and_its_file_opens_again(tmp_path: Any) -> None:
    model = gradcore.nn.Sequential(gradcore.nn.Linear(4, 8), gradcore.nn.GELU(), gradcore.nn.LayerNorm(8),
                                   gradcore.nn.Linear(8, 2)).bfloat16()
    x, y = gradcore.randn(32, 4).bfloat16(), gradcore.randint(0, 2, (32,))
    optimizer = gradcore.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = gradcore.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    gradcore.save(model.state_dict(), tmp_path / "m.safetensors")
    read = gradcore.load(tmp_path / "m.safetensors")
    for key, value in model.state_dict().items():
        assert read[key].dtype == bfloat16
        assert read[key].tolist() == value.tolist()


@pytest.mark.oracle
def test_torch_reads_its_files_and_the_other_way_round(tmp_path: Any, torch: Any) -> None:
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install -e '.[oracle]'")
    values = gradcore.randn(3, 5).bfloat16()
    gradcore.save({"x": values}, tmp_path / "ours.safetensors")
    theirs = files.load_file(tmp_path / "ours.safetensors")["x"]
    assert theirs.dtype == torch.bfloat16 and theirs.tolist() == values.tolist()
    files.save_file({"x": theirs}, tmp_path / "theirs.safetensors")
    assert gradcore.load(tmp_path / "theirs.safetensors")["x"].tolist() == values.tolist()
    layer = gradcore.nn.Linear(5, 3, bias=False).bfloat16()
    layer.load_state_dict({"weight": theirs})
    assert layer.weight.tolist() == values.tolist()


def test_without_the_package_one_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with raises(ImportError, "gradcore.bfloat16 needs the package ml_dtypes", "pip install 'gradcore[bfloat16]'"):
        _ = gradcore.bfloat16
    with raises(ImportError, "ml_dtypes"):
        gradcore.ones(2).bfloat16()
    assert not hasattr(gradcore, "bfloat17")
    with gradcore.autocast("cpu", enabled=False):
        assert not gradcore.is_autocast_enabled("cpu")


def test_what_moves_is_an_op() -> None:
    assert set(all_ops()) >= MOVES


def test_a_recording_of_it_is_read_again() -> None:
    w = gradcore.ones(4, 4, dtype=bfloat16, requires_grad=True)
    with gradcore.step() as s:
        (w @ w).sum().backward()
    again = Recording.from_dict(json.loads(json.dumps(s.recording.to_dict())))
    assert again.report == s.report and again.records == s.recording.records
    assert "bfloat16" in {t.dtype for t in again.report.top}


@pytest.mark.parametrize("dtype", [bfloat16, gradcore.float16], ids=["bfloat16", "float16"])
def test_uniforms_stay_below_what_they_are_to_stay_below(dtype: Any) -> None:
    assert gradcore.rand(20_000, dtype=dtype).max().item() < 1
    x = gradcore.empty(20_000, dtype=dtype)
    gradcore.nn.init.uniform_(x, -3.0, -1.0)
    assert x.max().item() < -1 and x.min().item() >= -3 and x.float().mean().item() == pytest.approx(-2, abs=0.05)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_lengths_are_those_of_the_numbers_and_not_of_their_squares(name: str, torch: Any) -> None:
    """300 and 400 can be represented in float16, 90,000 cannot."""
    def lengths(library: Any) -> list[float]:
        x = library.tensor([300.0, 400.0] + [0.0] * 98).to(getattr(library, name))
        functional = library.nn.functional
        found = [library.linalg.vector_norm(x), x.norm(3), x.std(), x.var(), library.dist(x, x * 0),
                 functional.normalize(x, dim=0)[1], functional.cosine_similarity(x, x, 0),
                 functional.pairwise_distance(x.view(50, 2), x.view(50, 2) * 0)[0],
                 (x * 150).view(1, 100).renorm(2, 0, 5.0)[0, 1]]
        return [y.item() for y in found]

    np.testing.assert_allclose(lengths(gradcore), lengths(torch), rtol=2**-7)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_small_rows_are_normalized_by_their_own_size(name: str, torch: Any) -> None:
    """The default eps is that of the sums, which are in float32."""
    def normalized(library: Any) -> list[float]:
        x = library.tensor([[0.01, -0.02, 0.03, 0.005]]).to(getattr(library, name))
        layer = library.nn.RMSNorm(4).to(getattr(library, name))
        return [library.nn.functional.rms_norm(x, (4,)).tolist(), layer(x).tolist()]

    np.testing.assert_allclose(normalized(gradcore), normalized(torch), rtol=2**-7)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("norm", [
    lambda f, x, w: f.layer_norm(x, (4,), w, w), lambda f, x, w: f.group_norm(x, 2, w, w),
    lambda f, x, w: f.instance_norm(x, weight=w, bias=w), lambda f, x, w: f.batch_norm(x, None, None, w, w, True),
    lambda f, x, w: f.rms_norm(x, (4,), w)])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
def test_norms_of_16_bits_take_weights_of_float32(name: str, norm: Any, torch: Any) -> None:
    """As networks in bfloat16 keep their norms. On a GPU no kernel may read such weights as 16-bit numbers."""
    data = np.random.default_rng(3).normal(size=(3, 4, 4)).astype(np.float32)

    def computed(library: Any) -> list[Any]:
        x = library.tensor(data).to(getattr(library, name)).requires_grad_()
        w = library.tensor([0.5, 2.0, -1.0, 3.0], requires_grad=True)
        y = norm(library.nn.functional, x, w)
        (y * y).sum().backward()
        assert (y.dtype, x.grad.dtype, w.grad.dtype) == (x.dtype, x.dtype, library.float32)
        return [v.detach().float().numpy() for v in (y, x.grad, w.grad)]

    for found, expected in zip(computed(gradcore), computed(torch), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("norm", [lambda f, x, w: f.layer_norm(x, (4,), w), lambda f, x, w: f.rms_norm(x, (4,), w),
                                  lambda f, x, w: f.group_norm(x, 2, w)])
@pytest.mark.parametrize(("input", "weight"), [("float32", "float16"), ("float32", "float64"), ("float16", "bfloat16")])
def test_other_mixtures_in_norms_are_refused(input: str, weight: str, norm: Any) -> None:
    x, w = gradcore.ones(2, 4, dtype=getattr(gradcore, input)), gradcore.ones(4, dtype=getattr(gradcore, weight))
    with raises(SpecError, input, weight):
        norm(gradcore.nn.functional, x, w)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 300.0])
def test_the_gradients_of_an_rms_norm_are_rounded_once(name: str, size: float) -> None:
    rng = np.random.default_rng(0)
    dtype = getattr(gradcore, name)
    values, scales, slopes = (gradcore.tensor(v.astype(np.float32)).to(dtype) for v in (
        rng.normal(size=(8, 32)) * size, rng.uniform(0.5, 1.5, 32), rng.normal(size=(8, 32))))

    def gradients(dtype: Any) -> list[Any]:
        x, weight = (v.to(dtype).detach().requires_grad_() for v in (values, scales))
        gradcore.nn.functional.rms_norm(x, (32,), weight, 1e-5).backward(slopes.to(dtype))
        return [x.grad, weight.grad]

    for found, exact in zip(gradients(dtype), gradients(gradcore.float32), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.float().numpy(), exact.to(dtype).float().numpy())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("p", [0.5, 2, 3])
def test_the_gradient_of_a_norm_needs_no_quotient_by_it(name: str, p: float) -> None:
    """g / norm is too small for float16 long before g and the norm are."""
    def gradient(dtype: Any) -> Any:
        x = gradcore.tensor([300.0, -200.0, 1000.0], dtype=dtype, requires_grad=True)
        gradcore.linalg.vector_norm(x, p).backward(gradcore.tensor(1e-4, dtype=dtype))
        return x.grad.float().numpy()

    np.testing.assert_allclose(gradient(getattr(gradcore, name)), gradient(gradcore.float32), rtol=2**-6)


@pytest.mark.oracle
def test_a_deviation_is_a_half_where_the_variance_is_none(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        x = library.tensor([-400.0, 400.0, 300.0, -300.0]).to(library.float16).requires_grad_()
        y = x.std()
        y.backward()
        found.append((y.dtype == library.float16, y.item(), x.grad.tolist()))
    assert found[0][:2] == found[1][:2]
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=2**-9)
