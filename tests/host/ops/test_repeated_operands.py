"""The CPU's kernels make of a number that is expanded to an array what they make of the array written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcore.devices.host.kernel import HOST_KERNELS


@pytest.mark.parametrize("size", [1, 5, 40_000])
@pytest.mark.parametrize(("op", "numbers", "attrs"), [
    ("silu_grad", (), {}), ("mish_grad", (), {}), ("hardswish_grad", (), {}), ("leaky_relu_grad", (0.1,), {}),
    ("leaky_relu_grad", (-2.0,), {}), ("softplus_grad", (), {"beta": 1.0, "threshold": 20.0}),
    ("elu_grad", (), {"alpha": 1.0, "scale": 1.0, "inner": 1.0})])
def test_expanded_cotangents(op: str, numbers: Any, attrs: Any, size: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
    once, whole = np.broadcast_to(np.float32(1.5), x.shape), np.full_like(x, 1.5)
    for pair in [(once, x), (whole, x)], [(x, once), (x, whole)], [(once, once), (whole, whole)]:
        found, expected = np.full_like(x, np.nan), np.full_like(x, np.nan)
        for operands, out in zip(pair, (found, expected), strict=True):
            HOST_KERNELS[op](*operands, *numbers, out, **attrs)
        np.testing.assert_array_equal(found, expected)
