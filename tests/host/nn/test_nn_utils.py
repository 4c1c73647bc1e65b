"""Utilities for parameters and gradients, and initialization, compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import ALLOC, LAUNCH, typed
from tests.conftest import raises


def with_gradients(library: Any, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    params = [library.tensor(rng.normal(size=s).astype(np.float32), requires_grad=True) for s in ((3, 4), (5,), (2, 2, 2))]
    for p in params[:2]:
        p.grad = library.tensor((rng.normal(size=tuple(p.shape)) * scale).astype(np.float32))
    return params


@pytest.mark.oracle
@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, 0.5, 0.0, -1.0, float("inf")])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_clipping_is_pytorchs(torch: Any, norm: float, scale: float) -> None:
    found = []
    for library in (gradcore, torch):
        params = with_gradients(library, scale)
        total = library.nn.utils.clip_grad_norm_(params, 0.5, norm_type=norm)
        found.append([total, *(p.grad for p in params[:2])])
        params = with_gradients(library, scale)
        library.nn.utils.clip_grad_value_(params, 0.3)
        found[-1] += [p.grad for p in params[:2]]
        assert params[2].grad is None
        found[-1].append(library.nn.utils.clip_grad_norm_(params[0], 1.0))
        found[-1].append(library.nn.utils.clip_grad_norm_([params[2]], 1.0))
    for a, b in zip(*found, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, float("inf"), -float("inf")])
@pytest.mark.parametrize("dtypes", [("float16",), ("bfloat16",), ("float16", "float32"), ("float16", "bfloat16")], ids=str)
@pytest.mark.parametrize("size", [100.0, 1e-4])
def test_clipping_in_16_bits_is_pytorchs(torch: Any, norm: float, dtypes: tuple[str, ...], size: float) -> None:
    """The squares are too large, or too small, for a float16."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    found = []
    for library in (gradcore, torch):
        params = []
        for k, dtype in enumerate(dtypes * 2):
            p = library.ones(5, dtype=getattr(library, dtype), requires_grad=True)
            p.grad = (library.arange(1, 6) * (size * (k + 1))).to(getattr(library, dtype))
            params.append(p)
        total = library.nn.utils.clip_grad_norm_(params, 0.01 * size, norm_type=norm)
        values = [x.float().numpy() for x in (total, *(p.grad for p in params))]
        found.append([str(total.dtype).removeprefix("torch."), *values])
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2)


@pytest.mark.parametrize(("norm", "total"), [(2.0, 5), (1.0, 7), (float("inf"), 4), (0.0, 1)])
def test_a_norm_is_of_floating_tensors_which_may_be_empty(norm: float, total: float) -> None:
    x = gradcore.tensor([3.0, 4.0])
    assert nn.utils.get_total_norm([gradcore.zeros(0), x], norm).item() == total
    with raises(gradcore.SpecError, "get_total_norm: expected tensors of floating types, but got int64"):
        nn.utils.get_total_norm([x, gradcore.tensor([3, 4])], norm)


def test_a_norm_that_is_no_number_is_told_if_asked_for() -> None:
    p = gradcore.ones(2, requires_grad=True)
    p.grad = gradcore.tensor([1.0, float("inf")])
    with raises(RuntimeError, "The total norm of order 2.0 for gradients from `parameters` is non-finite"):
        nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == float("inf")


@pytest.mark.oracle
def test_gradients_that_are_no_rows_or_share_memory_are_clipped(torch: Any) -> None:
    """As one would be after the other: those that are strided, several in one array, and one that is passed twice."""
    found = []
    for library in (gradcore, torch):
        rng = np.random.default_rng(3)
        shared = library.tensor(rng.normal(size=12).astype(np.float32))
        params = [library.ones(*shape, requires_grad=True) for shape in ((3, 4), (4,), (8,), (2, 3), (0,))]
        for p, grad in zip(params, (library.tensor(rng.normal(size=(4, 3)).astype(np.float32)).T, shared[:4], shared[4:],
                                    library.tensor(rng.normal(size=(2, 6)).astype(np.float32))[:, ::2], library.ones(0)),
                           strict=True):
            p.grad = grad
        total = library.nn.utils.clip_grad_norm_([*params, params[1]], 0.7)
        found.append([total, shared, *(p.grad for p in params)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6)


def test_clipping_takes_as_many_launches_for_more_gradients() -> None:
    def launches(count: int) -> list[str]:
        params = [gradcore.ones(3, k + 1, requires_grad=True) for k in range(count)]
        for p in params:
            p.grad = gradcore.ones_like(p)
        ledger = gradcore.device("cpu").ledger
        log = ledger.begin_log()
        before = len(log)
        assert nn.utils.clip_grad_norm_(params, 1.0).item() == pytest.approx((3 * count * (count + 1) / 2) ** 0.5)
        ledger.end_log()
        return [typed(r).tag.op for r in log[before:] if r[0] == LAUNCH]

    assert launches(2) == launches(100) and len(launches(2)) <= 6


def test_clipping_makes_no_copy_of_a_gradient() -> None:
    p = gradcore.ones(1000, requires_grad=True)
    p.grad = gradcore.ones(1000)
    ledger = gradcore.device("cpu").ledger
    log = ledger.begin_log()
    before = len(log)
    nn.utils.clip_grad_norm_([p], 1.0)
    ledger.end_log()
    assert max(typed(r).requested for r in log[before:] if r[0] == ALLOC) <= 8


@pytest.mark.oracle
def test_vectors(torch: Any) -> None:
    ours, theirs = with_gradients(gradcore), with_gradients(torch)
    a, b = nn.utils.parameters_to_vector(ours), torch.nn.utils.parameters_to_vector(theirs)
    np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    a.sum().backward()
    assert (ours[2].grad == 1).all()
    nn.utils.vector_to_parameters(gradcore.arange(25, dtype=gradcore.float32), ours)
    np.testing.assert_array_equal(ours[2].detach().numpy(), np.arange(17, 25).reshape(2, 2, 2))
    with raises(ValueError, "the parameters have 25 elements, but the vector has the shape [24]"):
        nn.utils.vector_to_parameters(gradcore.ones(24), ours)
    with raises(TypeError, "expected gradcore.Tensor, but got: list"):
        nn.utils.vector_to_parameters([1], ours)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_is_pytorchs(torch: Any, dim: int | None) -> None:
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    ours, theirs = nn.Linear(4, 3), torch.nn.Linear(4, 3)
    ours.load_state_dict(theirs.state_dict())
    for library, m in ((gradcore, ours), (torch, theirs)):
        library.nn.utils.weight_norm(m, dim=dim)
        (m(library.tensor(x)) ** 2).sum().backward()
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for name, q in theirs.named_parameters():
        np.testing.assert_allclose(ours.get_parameter(name).grad.numpy(), q.grad.numpy(), rtol=2e-5, atol=2e-5)
    with raises(RuntimeError, "Cannot register two weight_norm hooks on the same parameter weight"):
        nn.utils.weight_norm(ours)
    before = ours(gradcore.tensor(x)).detach().numpy()
    nn.utils.remove_weight_norm(ours)
    assert sorted(ours.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(ours(gradcore.tensor(x)).detach().numpy(), before, rtol=1e-6)
    with raises(ValueError, "weight_norm of 'weight' not found in Linear"):
        nn.utils.remove_weight_norm(ours)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_each_weight_has_a_norm_of_its_own(kind: str) -> None:
    m, last = nn.RNNCell(2, 3), "g" if kind == "weight_norm" else "orig"
    for name in ("weight_ih", "weight_hh"):
        getattr(nn.utils, kind)(m, name)
    m(gradcore.ones(2))
    value = m.weight_hh.tolist()
    getattr(nn.utils, f"remove_{kind}")(m, "weight_hh")
    assert m.weight_hh.tolist() == value and {"weight_hh", f"weight_ih_{last}"} < dict(m.named_parameters()).keys()


def test_a_module_with_weight_norm_trains() -> None:
    gradcore.manual_seed(0)
    m = nn.utils.weight_norm(nn.Linear(3, 2))
    sgd = gradcore.optim.SGD(m.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        sgd.zero_grad()
        loss = ((m(gradcore.ones(4, 3)) - 1) ** 2).mean()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


# -- ways to fill a parameter ------------------------------------------------------------------------------------------


def test_trunc_normal_takes_a_tensor_as_its_deviation() -> None:
    found = [nn.init.trunc_normal_(gradcore.empty(8), 1.0, std, generator=gradcore.Generator().manual_seed(3)).tolist()
             for std in (0.5, gradcore.tensor(0.5))]
    assert found[0] == found[1]
    assert -1 <= nn.init.trunc_normal_(gradcore.empty(()), a=-1.0, b=1.0).item() <= 1


def test_trunc_normal_fills_a_tensor_without_dimensions() -> None:
    assert abs(nn.init.trunc_normal_(gradcore.empty(()), a=-0.5, b=0.5).item()) <= 0.5


def test_trunc_normal_has_its_distribution() -> None:
    gradcore.manual_seed(3)
    w = nn.init.trunc_normal_(gradcore.empty(300, 400), mean=0.5, std=2.0, a=-1.0, b=3.0).numpy()
    assert w.min() >= -1 and w.max() <= 3
    # Mean and standard deviation of the truncated normal distribution, by its density.
    x = np.linspace(-1, 3, 100_001)
    density = np.exp(-0.5 * ((x - 0.5) / 2) ** 2)
    mean = (x * density).sum() / density.sum()
    deviation = np.sqrt(((x - mean) ** 2 * density).sum() / density.sum())
    assert abs(w.mean() - mean) < 0.01 and abs(w.std() - deviation) < 0.01
    wide = nn.init.trunc_normal_(gradcore.empty(100_000), a=-float("inf"), b=float("inf")).numpy()
    assert abs(wide.mean()) < 0.02 and abs(wide.std() - 1) < 0.02


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (4, 2, 3, 3)])
def test_orthogonal_is_orthogonal(shape: tuple[int, ...]) -> None:
    w = nn.init.orthogonal_(gradcore.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(product, 4 * np.eye(min(w.shape)), atol=1e-5)


@pytest.mark.oracle
def test_eye_and_dirac_are_pytorchs(torch: Any) -> None:
    for shape, groups in (((6, 3, 3), 1), ((6, 3, 3, 2), 2), ((4, 9, 1, 5), 2), ((4, 2, 3, 3, 3), 1)):
        np.testing.assert_array_equal(nn.init.dirac_(gradcore.empty(*shape), groups).numpy(),
                                      torch.nn.init.dirac_(torch.empty(*shape), groups).numpy())
    np.testing.assert_array_equal(nn.init.eye_(gradcore.empty(3, 5)).numpy(), np.eye(3, 5))


def test_sparse_has_its_zeros() -> None:
    gradcore.manual_seed(0)
    w = nn.init.sparse_(gradcore.empty(50, 40), 0.33, std=2.0).numpy()
    assert ((w == 0).sum(0) == 17).all() and abs(w[w != 0].std() - 2) < 0.1
    assert len({tuple(np.flatnonzero(w[:, k] == 0)) for k in range(40)}) == 40


def test_meta_is_filled_without_values_and_gradients_are_not_recorded() -> None:
    for fill in (nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.eye_, lambda t: nn.init.sparse_(t, 0.5)):
        w = gradcore.empty(4, 3, device="meta", requires_grad=True)
        assert fill(w) is w and w.is_leaf
        v = gradcore.empty(4, 3, requires_grad=True)
        assert fill(v) is v and v.is_leaf and np.isfinite(v.detach().numpy()).all()


def test_errors_of_filling() -> None:
    v, m = gradcore.empty(3), gradcore.empty(3, 3)
    for call, text in ((lambda: nn.init.orthogonal_(v), "Only tensors with 2 or more dimensions are supported, but got 1"),
                       (lambda: nn.init.eye_(v), "Only tensors with 2 dimensions are supported, but got 1"),
                       (lambda: nn.init.sparse_(v, 0.5), "Only tensors with 2 dimensions are supported, but got 1"),
                       (lambda: nn.init.dirac_(m), "Only tensors with 3, 4, or 5 dimensions are supported, but got 2"),
                       (lambda: nn.init.dirac_(gradcore.empty(3, 3, 3), 2), "divisible by groups, but got 3 and 2"),
                       (lambda: nn.init.trunc_normal_(m, a=1, b=1), "expects a < b, but got a=1 and b=1")):
        with raises(ValueError, text):
            call()
