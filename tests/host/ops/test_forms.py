"""Functions and methods as users call them, compared with torch: values, gradients, second gradients, and meta's log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.autograd import gradcheck, gradgradcheck
from tests.forms import Form, all_forms

FORMS = all_forms()
DIFFERENTIABLE = [f for f in FORMS if f.wanted()]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def array(x: Any) -> Any:
    return np.asarray(x.detach()) if hasattr(x, "detach") else np.asarray(x)


def tensors_of(form: Form, dtype: Any, device: str = "cpu") -> list[Any]:
    return [gradcore.tensor(v, device=device, requires_grad=k in form.wanted()) for k, v in enumerate(form.values(dtype))]


def cotangent(y: Any, rng: np.random.Generator) -> Any:
    return rng.uniform(-1, 1, tuple(y.shape)).astype(array(y).dtype)


def test_names_are_distinct() -> None:
    assert len({f.name for f in FORMS}) == len(FORMS)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@DTYPES
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_and_gradients_are_torchs(form: Form, dtype: Any, torch: Any) -> None:
    ours = tensors_of(form, dtype)
    theirs = [torch.from_numpy(v).requires_grad_(k in form.wanted()) for k, v in enumerate(form.values(dtype))]
    tolerance = form.tolerance if dtype is np.float32 else form.double
    made, expected = form.made(gradcore, ours), form.made(torch, theirs)
    assert len(made) == len(expected)
    for a, b in zip(made, expected, strict=True):
        assert type(a) is type(b) or array(a).dtype == array(b).dtype
        assert array(a).shape == array(b).shape
        np.testing.assert_allclose(array(a), array(b), tolerance, tolerance)
    rng = np.random.default_rng(1)
    pairs = [(a, b, cotangent(a, rng)) for a, b in zip(made, expected, strict=True) if getattr(b, "requires_grad", False)]
    assert not form.wanted() or pairs, "a form with nothing to differentiate says gradient=False"
    if not pairs:
        return
    assert all(a.requires_grad for a, _, _ in pairs)
    torch.autograd.backward([b for _, b, _ in pairs], [torch.from_numpy(g) for _, _, g in pairs])
    gradcore.autograd.backward([a for a, _, _ in pairs], [gradcore.tensor(g) for _, _, g in pairs])
    for k in form.wanted():
        if theirs[k].grad is None or ours[k].grad is None:
            # A missing gradient counts as 0.
            assert not any(x.grad is not None and array(x.grad).any() for x in (ours[k], theirs[k]))
        else:
            assert array(ours[k].grad).dtype == dtype
            np.testing.assert_allclose(array(ours[k].grad), theirs[k].grad.numpy(force=True), tolerance, tolerance)


@pytest.mark.parametrize("form", [f for f in DIFFERENTIABLE if f.smooth], ids=str)
def test_gradients_are_finite_differences(form: Form) -> None:
    def call(*xs: Any) -> Any:
        return [y for y in form.made(gradcore, list(xs)) if y.requires_grad]

    inputs = tensors_of(form, np.float64)
    large = sum(x.numel() for x in inputs) > 12
    assert gradcheck(call, inputs, fast_mode=large)
    assert gradgradcheck(call, inputs, atol=1e-4, fast_mode=large)
