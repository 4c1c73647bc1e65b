"""Every form of the table on a GPU: the values and gradients of the CPU, where they are PyTorch's (tests/host/test_forms.py).

The sample calls of tests/gpu/test_gpu.py run each op's kernel; here functions and methods are called as users call them,
where what they make beside their arguments lies on the GPU, too. A machine that has compiled none of it takes minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.forms import Form, all_forms


def made(form: Form, device: str) -> tuple[list[Any], list[Any]]:
    """What a form makes on a device, and its gradients."""
    with gradcore.device(device):
        inputs = [gradcore.tensor(v, requires_grad=k in form.wanted()) for k, v in enumerate(form.values(np.float32))]
        # Some say yes or no.
        results = [y if isinstance(y, gradcore.Tensor) else gradcore.tensor(y) for y in form.made(gradcore, inputs)]
        rng = np.random.default_rng(1)
        cotangents = [rng.uniform(-1, 1, tuple(y.shape)).astype(np.float32) for y in results]
        pairs = [(y, g) for y, g in zip(results, cotangents, strict=True) if y.requires_grad]
        if pairs:
            gradcore.autograd.backward([y for y, _ in pairs], [gradcore.tensor(g, dtype=y.dtype) for y, g in pairs])
        grads = [inputs[k].grad for k in form.wanted()]
    for tensor in (*results, *[g for g in grads if g is not None]):
        assert tensor.device.type == device
    return results, grads


@pytest.mark.parametrize("form", all_forms(), ids=str)
def test_values_and_gradients_are_the_cpus(form: Form) -> None:
    found, expected = made(form, "cuda"), made(form, "cpu")
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                a, b = a.detach().cpu(), b.detach()
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                np.testing.assert_allclose(a.numpy(), b.numpy(), form.tolerance, form.tolerance)
