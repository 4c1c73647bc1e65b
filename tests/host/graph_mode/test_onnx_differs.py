"""Export to ONNX where its operators differ: dtypes they lack, quotients and rests, infinities, windows in the padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import ExportError
from tests.conftest import raises
from tests.host.graph_mode.test_onnx import INSTALL, MISSING, agrees

pytestmark = pytest.mark.skipif(MISSING, reason=INSTALL)
F = nn.functional

WHOLE: dict[str, Callable[[Any], Any]] = {
    "negation": lambda x: -x, "product": lambda x: x * x, "power": lambda x: x ** 3, "matrix product": lambda x: x @ x,
    "floor and ceil": lambda x: (x.floor(), x.ceil()), "largest": lambda x: (x.amax(0), *x.max(1), x.argmin(1)),
    "larger": lambda x: gradcore.maximum(x, x.T), "choice": lambda x: gradcore.where(x > 1, x, x.T), "relu": lambda x: x.relu(),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
@pytest.mark.parametrize("name", WHOLE)
def test_integers_of_any_size(name: str, dtype: str) -> None:
    agrees(WHOLE[name], gradcore.tensor(np.array([[1, 2, 0], [7, 2, 1], [3, 9, 2]], dtype)))


@pytest.mark.parametrize("name", ["product", "largest", "larger", "choice"])
def test_bools(name: str) -> None:
    agrees(WHOLE[name], gradcore.tensor(np.array([[True, False, False], [True, True, False], [False, True, True]])))


def test_a_mask_made_of_masks() -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, real: Any, shown: Any) -> Any:
            both = real[:, None, :] * shown
            chosen = gradcore.where(x > 0, both, shown)
            return x.masked_fill(both.logical_not(), 0.0), both.max(dim=2)[0], chosen, both.argmax(1)

    generator = np.random.default_rng(0)
    agrees(Masked(), (gradcore.randn(2, 4, 4), gradcore.tensor(generator.random((2, 4)) < 0.7),
                      gradcore.tensor(np.tri(4, dtype=bool))))


def test_a_power_wraps_around() -> None:
    agrees(lambda x: x ** 15, gradcore.tensor(np.array([3, -7, 9], np.int32)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_and_rests_of_floats(dtype: str) -> None:
    # 1.0 / 0.1 is rounded to 10, though 0.1 is a little more than a tenth.
    x = gradcore.tensor(np.array([1.0, 0.3, 0.6, -0.7, 1e4, -123.4, 0.0, 5.0, -5.0, np.nan], dtype))
    for y in (0.1, -0.1, 1e-3, float("inf")):
        agrees(lambda x, y=y: (x // y, x % y), x)
    agrees(lambda x, y: (x // y, x % y), (x, x.flip(0)))


def test_half_precision_where_an_operator_has_none() -> None:
    agrees(lambda x: x.isfinite(), gradcore.tensor(np.array([1.0, np.inf, np.nan], np.float16)))


def test_infinities_and_nan() -> None:
    x = gradcore.tensor(np.array([0.0, 1e-8, 3.0, 1e30, np.inf, -np.inf, np.nan, -0.3], np.float32))
    for function in (gradcore.log1p, gradcore.sign, F.softshrink):
        agrees(function, x)


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, -1.0])
def test_lerp_is_exact_at_both_ends(weight: float) -> None:
    x, y = np.array([1e8, 1.0, np.inf, 2.0], np.float32), np.array([0.3, np.inf, 1.0, 3.0], np.float32)
    agrees(lambda x, y: gradcore.lerp(x, y, weight), (gradcore.tensor(x), gradcore.tensor(y)), 1e-6)
    agrees(gradcore.lerp, tuple(gradcore.tensor(a) for a in (x, y, np.full(4, weight, np.float32))), 1e-6)


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(6, 1, 2, 0), (7, 2, 2, 1), (6, 2, 3, 0), (5, 3, 3, 1)])
def test_windows_that_would_begin_in_the_padding(size: int, kernel: int, stride: int, padding: int) -> None:
    x = gradcore.randn(2, 3, size, size)
    agrees(lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=True), x)
    agrees(lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True), x)
    agrees(lambda x: F.max_pool2d(x, kernel, stride, padding, dilation=1 + padding, ceil_mode=True), x)


def test_scalars_that_a_model_holds_or_makes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(gradcore.tensor(2.5))
            self.register_buffer("shift", gradcore.tensor(-1.0))

        def forward(self, x: Any) -> Any:
            return x * self.scale.exp() + self.shift, self.scale * 2, gradcore.maximum(x, gradcore.tensor(0.0))

    agrees(Scaled(), gradcore.randn(3, 2))


def test_a_dimension_in_the_middle_is_sorted() -> None:
    agrees(lambda x: (*x.sort(1), *x.topk(2, 1)), gradcore.randn(2, 3, 4))


def test_a_threshold_lets_nan_pass() -> None:
    agrees(lambda x: F.threshold(x, 0.1, 5.0), gradcore.tensor([float("nan"), 0.1, 0.2, -float("inf"), float("inf")]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_quotients_of_the_least_and_the_largest_integers(dtype: str) -> None:
    ends = np.iinfo(dtype)
    x, y = np.array([5, 7, ends.max, ends.min, 1], dtype), np.array([ends.max, ends.min or 2, ends.max, ends.max, 3], dtype)
    agrees(lambda x, y: (x // y, x % y), (gradcore.tensor(x), gradcore.tensor(y)))


def test_numbers_that_small_integers_cannot_hold() -> None:
    x = gradcore.tensor(np.array([1, 255, 44], np.uint8))
    agrees(lambda x: (x + 300, gradcore.maximum(x, -1), x >= -1, x == 300, x != -1), x)


@pytest.mark.parametrize("mask", ["bool", "float32"])
def test_queries_that_see_no_key(mask: str) -> None:
    seen = np.array([[True, False, True], [False, False, False], [False, True, False]])
    given = gradcore.tensor(seen if mask == "bool" else np.where(seen, 0, -np.inf).astype(mask))
    agrees(F.scaled_dot_product_attention, (*(gradcore.randn(2, 2, 3, 4) for _ in range(3)), given))


def test_an_array_of_numpys_that_is_captured() -> None:
    w = gradcore.from_numpy(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    agrees(lambda x: x @ w, gradcore.randn(4, 2))


def test_memory_that_is_made_and_then_filled() -> None:
    agrees(lambda x: (gradcore.empty(2, 3).copy_(x), F.mse_loss(x, x * 2, reduction="none")), gradcore.randn(2, 3))


def test_what_onnx_does_not_give() -> None:
    eye = gradcore.eye(2)
    with raises(ExportError, "max_pool2d in layer (root)", "its result 1 is used, which ONNX does not provide"):
        gradcore.onnx.export(lambda x: F.max_pool2d(x, 2, return_indices=True), gradcore.randn(1, 1, 4, 4), None)
    with raises(ExportError, "avg_pool2d in layer (root)", "runtimes use different divisors"):
        gradcore.onnx.export(lambda x: F.avg_pool2d(x, 2, ceil_mode=True), gradcore.randn(1, 1, 5, 5), None)
    with raises(ExportError, "max_pool2d in layer (root)", "as much as the kernel, which onnxruntime does not take"):
        gradcore.onnx.export(lambda x: F.max_pool2d(x, 2, 4, dilation=2, ceil_mode=True), gradcore.randn(1, 1, 8, 9), None)
    with raises(ExportError, "advance in layer (root)", "it draws random numbers"):
        gradcore.onnx.export(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), gradcore.randn(1, 2, 3, 4), None)
    with raises(ExportError, "batch_norm in layer (root)", "normalizes by the batch's statistics"):
        gradcore.onnx.export(lambda x: F.batch_norm(x, None, None, training=True), gradcore.randn(5, 3), None)
    with raises(gradcore.TraceError, "the function computes nothing from its arguments"):
        gradcore.onnx.export(lambda x: eye, gradcore.randn(2), None)
    compiled = gradcore.compile(lambda x: x * 2.0)
    compiled(gradcore.randn(3, 2)[1:])
    with raises(ExportError, "input 'input' is a view"):
        gradcore.onnx.export(compiled, None, None)
