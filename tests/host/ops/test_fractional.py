"""Where the windows of fractional max pooling begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.nn import functional as F

rng = np.random.default_rng(0)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_windows_begin_where_pytorchs_do(dtype: str, torch: Any) -> None:
    for _ in range(30):
        x, samples = rng.permutation(1600).reshape(1, 1, 40, 40), rng.random((1, 1, 2))
        found, expected = (t.nn.functional.fractional_max_pool2d(
            t.tensor(x % 251, dtype=getattr(t, dtype)), (4, 9), output_size=(30, 17), return_indices=True,
            _random_samples=t.tensor(samples, dtype=getattr(t, dtype)))[1] for t in (gradcore, torch))
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("shape", [(1000, 1), (1, 1000)], ids=str)
def test_windows_that_are_rounded_beyond_the_end_are_those_at_the_end(shape: tuple[int, int]) -> None:
    """In bfloat16 998 is 1,000; PyTorch reads beside the image then."""
    x = gradcore.arange(1000).reshape(1, 1, *shape).to(gradcore.bfloat16)
    samples = gradcore.zeros(1, 1, 2, dtype=gradcore.bfloat16)
    _, indices = F.fractional_max_pool2d(x, 1, output_size=shape, return_indices=True, _random_samples=samples)
    assert indices.max().item() == 999 and indices.reshape(-1)[:200].tolist() == [*range(200)]


def test_a_layer_takes_ratios_as_a_list() -> None:
    assert gradcore.nn.FractionalMaxPool2d(2, output_ratio=[0.5, 0.6])(gradcore.ones(1, 1, 9, 9)).shape == (1, 1, 4, 5)
