"""Every form of the table on a GPU, compared with the CPU's values and gradients, which tests/host/ops/test_forms.py compares
with PyTorch's.

The sample calls of tests/gpu/test_gpu.py run each op's kernel; here functions and methods are called as users call them,
where what they make beside their arguments lies on the GPU, too. A machine that has compiled none of it takes minutes; with
``GRADCORE_ALL_DTYPES=1`` the 16-bit dtypes are tried as well, which takes as long again for each.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.forms import Form, all_forms

#: By dtype: how much results may differ, in addition to a form's own tolerance.
DTYPES = {"float32": 0.0} | ({"float16": 0.01, "bfloat16": 0.03} if os.environ.get("GRADCORE_ALL_DTYPES") == "1" else {})


def made(form: Form, name: str, device: str) -> tuple[list[Any], list[Any]]:
    """The results of a form on a device, and its gradients."""
    with gradcore.device(device):
        dtypes = [getattr(gradcore, name) if v.dtype == np.float32 else v.dtype for v in form.values(np.float32)]
        inputs = [gradcore.tensor(v).to(dtype).requires_grad_(k in form.wanted())
                  for k, (v, dtype) in enumerate(zip(form.values(np.float32), dtypes, strict=True))]
        # Some return a bool.
        results = [y if isinstance(y, gradcore.Tensor) else gradcore.tensor(y) for y in form.made(gradcore, inputs)]
        rng = np.random.default_rng(1)
        cotangents = [rng.uniform(-1, 1, tuple(y.shape)).astype(np.float32) for y in results]
        pairs = [(y, g) for y, g in zip(results, cotangents, strict=True) if y.requires_grad]
        if pairs:
            gradcore.autograd.backward([y for y, _ in pairs], [gradcore.tensor(g).to(y.dtype) for y, g in pairs])
        grads = [inputs[k].grad for k in form.wanted()]
    for tensor in (*results, *[g for g in grads if g is not None]):
        assert tensor.device.type == device
    return results, grads


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("form", all_forms(), ids=str)
def test_values_and_gradients_are_the_cpus(form: Form, name: str) -> None:
    try:
        expected = made(form, name, "cpu")
    except Exception as refused:
        # Some functions have no 16-bit dtypes.
        assert name != "float32"
        with pytest.raises(type(refused)):
            made(form, name, "cuda")
        return
    found = made(form, name, "cuda")
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                a, b = (x.detach().cpu().double().numpy() for x in (a, b))
                largest = np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
                np.testing.assert_allclose(a, b, form.tolerance + 3 * DTYPES[name],
                                           form.tolerance + DTYPES[name] * max(largest, 0.1))
