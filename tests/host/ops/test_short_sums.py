"""Sums over a short dimension, which the CPU adds as so many arrays, and of rows and columns, which are products with ones
there: sums, means, variances and norms are NumPy's."""

from __future__ import annotations

import copy
import math
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.events import Alloc
from gradcore.spec import FOLDED
from tests.host.ops.test_temporaries import SLACK

SHAPES = [((1500, n), 1) for n in (2, 3, 5, 8, 9)] + [((40, 3, 50), 1), ((30, 1, 50, 4), 3), ((4, 2000), 0), ((100, 2), 1)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_values_are_those_of_doubles(shape: tuple[int, ...], dim: int, keepdim: bool) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    t, wide = gradcore.tensor(x), x.astype(np.float64)
    options: dict[str, Any] = {"axis": dim, "keepdims": keepdim}
    for found, expected in ((t.sum(dim, keepdim), wide.sum(**options)), (t.mean(dim, keepdim), wide.mean(**options)),
                            (t.var(dim, keepdim=keepdim), wide.var(ddof=1, **options)),
                            (t.norm(2, dim, keepdim), np.sqrt((wide * wide).sum(**options)))):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dims", "most"), [
    ((700, 1000), (1,), FOLDED), ((7, 100, 1000), (1, 2), FOLDED), ((3, 600_000), (1,), FOLDED + 1),
    ((1300, 1000), (0, 1), FOLDED + 1), ((1000, 700), (0,), FOLDED + 700), ((9, 80, 10, 100), (1, 2), FOLDED),
    ((2, 900, 400), (1,), FOLDED), ((2, 3, 300, 400), (1, 2), FOLDED), ((2, 600_000), (0,), 1_200_000),
    ((20, 30, 1000), (0, 2), 600_000)], ids=str)
def test_folds_of_many_rows_need_room_for_some(shape: tuple[int, ...], dims: tuple[int, ...], most: int, keepdim: bool) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    t, wide = gradcore.tensor(x), x.astype(np.float64)
    options: dict[str, Any] = {"axis": dims, "keepdims": keepdim}
    size = np.abs(wide)
    folds: list[tuple[Any, Any]] = [
        (gradcore.var, wide.var(ddof=1, **options)), (gradcore.logsumexp, np.log(np.exp(wide).sum(**options)))]
    folds += [(partial(gradcore.linalg.vector_norm, ord=p), expected) for p, expected in (
        (0, (size > 0).sum(**options)), (1, size.sum(**options)), (2, (size ** 2).sum(**options) ** 0.5),
        (3, (size ** 3).sum(**options) ** (1 / 3)), (math.inf, size.max(**options)), (-math.inf, size.min(**options)))]
    for fold, expected in folds:
        with gradcore.step() as step:
            found = fold(t, dim=dims, keepdim=keepdim)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        room, = [r.requested for r in step.log if isinstance(r, Alloc) and r.tag.role == "workspace"]
        assert room <= (most + found.numel()) * 4 + 32


@pytest.mark.parametrize(("shape", "dims"), [((600, 16), (1,)), ((64, 1024), (1,)), ((64, 1025), (1,)),
                                              *[((8, 9, 10, 11), d) for d in ((2, 3), (3, 1, 2), (1, 2))]], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_added_without_large_errors(shape: tuple[int, ...], dims: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[2] = 0
    x[3, 0], x[4, 0], x[4, -1] = np.nan, np.inf, 1
    exact, size = (v.astype(np.longdouble).sum(dims) for v in (x, np.abs(x)))
    found = gradcore.tensor(x).sum(dims).numpy()
    known = np.isfinite(exact)
    np.testing.assert_array_equal(found[~known], exact[~known].astype(dtype))
    assert (np.abs(found[known] - exact[known]) <= np.finfo(dtype).eps * size[known]).all() and not found[2].any()


@pytest.mark.parametrize(("shape", "dims"), [((5000, 3), (0,)), ((32768, 2), (0,)), ((32769, 2), (0,)), ((5000, 1), (0,)),
                                              *[((20, 30, 40), d) for d in ((0, 1), (0, 2), (0, 1, 2))],
                                              ((70_001,), (0,)), ((1, 70_001), (1,)), ((200, 300), (0, 1)),
                                             ((40, 300, 7), (1,)), ((9, 1000, 2), (1,)), ((3, 5, 9, 11, 20), (2, 3))], ids=str)
def test_columns_are_added_without_large_errors(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    exact, size = (v.astype(np.float64).sum(dims) for v in (x, np.abs(x)))
    found = gradcore.tensor(x).sum(dims).numpy()
    assert found.shape == exact.shape and (np.abs(found - exact) <= np.finfo(np.float32).eps * size).all()


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.int64])
def test_integers_are_counted_in_64_bits(dtype: Any) -> None:
    x = np.full((2000, 4), 100).astype(dtype)
    np.testing.assert_array_equal(gradcore.tensor(x).sum(1).numpy(), x.sum(1, dtype=np.int64))


def test_half_precision_is_rounded_once() -> None:
    x = np.tile(np.array([2048, 1, 1, 1], np.float16), (2000, 1))
    assert (gradcore.tensor(x).sum(1).numpy() == np.float16(2051)).all()
    assert (gradcore.tensor(x).mean(1).numpy() == np.float16(2051 / 4)).all()


def test_an_expanded_operands_gradient() -> None:
    x = gradcore.tensor(np.ones((2000, 1), np.float32), requires_grad=True)
    slopes = np.arange(8000, dtype=np.float32).reshape(2000, 4)
    x.expand(2000, 4).backward(gradcore.tensor(slopes))
    np.testing.assert_array_equal(x.grad.numpy(), slopes.sum(1, keepdims=True))


@pytest.mark.parametrize("shape", [(3_000_000, 2), (20_001, 4), (2, 20_000, 3), (1, 20_000, 4), (1500, 3000)], ids=str)
@pytest.mark.parametrize("how", ["whole", "expanded"])
def test_errors_do_not_grow_with_the_number_of_rows(shape: tuple[int, ...], how: str) -> None:
    if how == "whole":
        x = gradcore.full(shape, 0.1)
    else:
        x = gradcore.full((*shape[:-2], 1, shape[-1]), 0.1).expand(shape)
    np.testing.assert_allclose(x.mean(-2).numpy(), np.float32(0.1), rtol=4e-6)


@pytest.mark.parametrize("rows", [20_000, 300_001])
def test_nor_with_those_of_a_part_of_a_matrix_or_a_transposed_one(rows: int) -> None:
    x = gradcore.full((rows, 6), 0.1)
    for found in (x[:, :4].mean(0), x.t().mean(1), x[::2, 1:].mean(0), x[:, 2:].t().mean(1)):
        np.testing.assert_allclose(found.numpy(), np.float32(0.1), rtol=1e-5)


@pytest.mark.parametrize(("shape", "dims"), [((20_000, 4, 16), (0, 2)), ((3, 5000, 4, 20), (1, 3)), ((100, 5, 20, 100), (0, 2)),
                                             ((50_000, 2, 2, 2), (0, 1, 3)), ((300, 3, 7, 9), (0, 2, 3)),
                                             ((20, 3, 64, 33), (0, 2, 3)), ((9, 2, 40, 5, 1009), (0, 2, 4))], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_nor_with_that_of_several_dimensions_apart(shape: tuple[int, ...], dims: tuple[int, ...], transposed: bool) -> None:
    values = np.random.default_rng(0).uniform(1000, 1001, shape).astype(np.float32)
    x, wide = gradcore.tensor(values), values.astype(np.float64)
    if transposed:
        order = tuple(reversed(range(len(shape))))
        x = x.permute(*order).contiguous().permute(*order)
    np.testing.assert_allclose(x.mean(dims).numpy(), wide.mean(dims), rtol=1e-6)
    np.testing.assert_allclose(x.var(dims, keepdim=True).numpy(), wide.var(dims, ddof=1, keepdims=True), rtol=1e-5)


def test_the_gradient_of_a_bias_has_no_large_error_after_many_rows() -> None:
    x, bias = gradcore.ones(200_000, 1), gradcore.zeros(3, requires_grad=True)
    for result in (x + bias, gradcore.nn.functional.linear(x, gradcore.ones(3, 1), bias)):
        bias.grad = None
        result.mean().backward()
        np.testing.assert_allclose(bias.grad.numpy(), 1 / 3, rtol=4e-6)


def test_nor_has_that_of_a_recurrent_layer_after_many_steps() -> None:
    layer = gradcore.nn.GRU(1, 2)
    wide = copy.deepcopy(layer).double()
    for each, x in ((layer, gradcore.zeros(200, 100, 1)), (wide, gradcore.zeros(200, 100, 1, dtype=gradcore.float64))):
        each(x)[0].sum().backward()
    np.testing.assert_allclose(layer.bias_hh_l0.grad.numpy(), wide.bias_hh_l0.grad.numpy(), rtol=4e-5)


@pytest.mark.parametrize("odd", [None, 17, -1e4, -math.inf, math.nan, math.inf])
def test_softmax_of_numbers_that_are_close_and_of_others(odd: float | None) -> None:
    """Many that are close are shifted by one number, others each row by its own."""
    x = np.random.default_rng(0).uniform(50, 60, (5000, 40)).astype(np.float32)
    if odd is not None:
        x[1, 7] = x[4000, 30] = odd
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide = np.exp(wide - wide.max(1, keepdims=True))
        expected = wide / wide.sum(1, keepdims=True)
    np.testing.assert_allclose(gradcore.tensor(x).softmax(1).numpy(), expected, rtol=2e-6, atol=1e-37)


def test_softmax_along_many_rows_has_no_large_error() -> None:
    x = gradcore.zeros(1_000_003, 2)
    np.testing.assert_allclose(x.softmax(0).numpy(), 1 / len(x), rtol=4e-6)
    for found in (-x.log_softmax(0), x.logsumexp(0)):
        np.testing.assert_allclose(found.numpy(), np.log(len(x)), rtol=1e-6)


@pytest.mark.usefixtures("tracing")
def test_sums_of_many_rows_take_no_memory_of_their_own() -> None:
    """There are more blocks of rows than fit in what a thread keeps at once."""
    x = gradcore.full((600_000, 2), 0.1)
    x.sum(0)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    x.sum(0)
    assert tracemalloc.get_traced_memory()[1] - before <= SLACK
