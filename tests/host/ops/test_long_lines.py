"""What the CPU does otherwise along long lines or for many rows: products, running sums, rolled rows, sums at positions,
softmax, ranks, positions of extremes."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.host.device import host_table
from gradcore.devices.host.kernels import ordering

KERNELS = host_table()
rng = np.random.default_rng(0)


@pytest.mark.parametrize("zeros", [(), (70,), (3, 70)], ids=["", "one 0", "two"])
def test_the_gradient_of_a_long_product_takes_no_step_for_each_factor(zeros: tuple[int, ...]) -> None:
    values = rng.uniform(0.9, 1.1, 100)
    values[[*zeros]] = 0
    x = gradcore.tensor(values, requires_grad=True)
    with gradcore.step() as step:
        (x.prod() * 3).backward()
    expected = [3 * np.prod(np.delete(values, k)) for k in range(100)]
    np.testing.assert_allclose(np.asarray(x.grad), expected, rtol=1e-12)
    # That of the CPU makes two calls of NumPy for each factor.
    assert "recurrence" not in [r.invocation.op for r in step.recording.records if isinstance(r, gradcore.events.Launch)]
    lines = gradcore.tensor(rng.uniform(0.9, 1.1, (2, 100, 3)), requires_grad=True)
    assert gradcore.autograd.gradcheck(lambda x: x.prod(1), lines) and gradcore.autograd.gradgradcheck(
        lambda x: x.prod(1), lines[:1, :70, :1].detach().requires_grad_())


def test_the_gradient_of_a_long_product_whose_factors_overflow() -> None:
    """A cotangent of 0 gives 0, and a small one what a product of fewer factors gives."""
    x = gradcore.tensor(np.array([[0.0] + [3.0] * 99] * 2, np.float32), requires_grad=True)
    (x.prod(1) * gradcore.tensor([0.0, 1e-30])).sum().backward()
    expected = np.zeros((2, 100))
    expected[1, 0] = 1e-30 * 3.0 ** 99
    np.testing.assert_allclose(np.asarray(x.grad), expected, rtol=1e-5)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize(("shape", "dim"), [((100_000,), 0), ((30_000, 3), 0), ((3, 30_000), 1), ((2, 3000, 600), 1),
                                           ((17, 5000), 0), ((2, 3, 17), 2), ((40, 100, 20), 2), ((40, 100, 32), 2)], ids=str)
def test_running_sums_and_products_are_those_of_doubles(shape: tuple[int, ...], dim: int, transposed: bool) -> None:
    values = rng.uniform(0.999, 1.001, shape).astype(np.float32)
    x = gradcore.tensor(values)
    if transposed:
        dims = tuple(reversed(range(len(shape))))
        x = x.permute(*dims).contiguous().permute(*dims)
    for found, expected in ((x.cumsum(dim), np.cumsum(values, dim, np.float64)),
                            (x.cumprod(dim), np.cumprod(values, dim, np.float64))):
        np.testing.assert_allclose(found.numpy(), expected, rtol=6e-8)
    x = gradcore.tensor(values, requires_grad=True)
    x.cumsum(dim).sum().backward()
    left = np.arange(shape[dim], 0, -1).reshape(-1, *(1,) * (len(shape) - dim - 1))
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(left, shape))


@pytest.mark.parametrize("shape", [(2000,), (2000, 3), (100, 20), (17, 16), (1, 3)], ids=str)
def test_the_gradient_of_a_long_running_product(shape: tuple[int, ...]) -> None:
    values = rng.uniform(0.9, 1.1, shape).astype(np.float32)
    values[-1] = 0
    slopes = rng.standard_normal(shape)
    x = gradcore.tensor(values, requires_grad=True)
    x.cumprod(0).backward(gradcore.tensor(slopes.astype(np.float32)))
    follows, before = np.zeros(shape[1:]), np.concatenate([np.ones((1, *shape[1:])), np.cumprod(values[:-1], 0, np.float64)])
    expected = np.empty(shape)
    for k in reversed(range(shape[0])):
        follows = slopes[k] + (follows * values[k + 1] if k + 1 < shape[0] else 0)
        expected[k] = follows * before[k]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8])
@pytest.mark.parametrize(("first", "second"), [((300, 200), (200, 150)), ((3, 50, 400), (400, 60)), ((64, 1000), (1000, 7)),
                                               ((2, 1, 33, 129), (5, 129, 257)), ((0, 90), (90, 1000))], ids=str)
def test_products_of_integers_wrap_around(first: tuple[int, ...], second: tuple[int, ...], dtype: Any) -> None:
    limits = np.iinfo(dtype)
    for low, high in ((limits.min, limits.max), (max(limits.min, -9), 9)):
        a, b = (rng.integers(low, high, shape, dtype=dtype, endpoint=True) for shape in (first, second))
        expected = np.matmul(a, b)
        np.testing.assert_array_equal((gradcore.tensor(a) @ gradcore.tensor(b)).numpy(), expected)
        turned = gradcore.tensor(np.ascontiguousarray(a.swapaxes(-1, -2)))
        np.testing.assert_array_equal((turned.mT @ gradcore.tensor(b)).numpy(), expected)


@pytest.mark.parametrize("shape", [(7,), (5, 8), (3, 4, 6), (1, 1), (2, 0, 3)], ids=str)
def test_rolled_rows_are_numpys(shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape)
    for dim, shift in itertools.product(range(len(shape)), range(-9, 10)):
        for shifts in ((shift,), (shift, 2)):
            out = np.empty_like(x)
            KERNELS["roll"](x, out, shifts=shifts, dims=(dim,) * len(shifts))
            np.testing.assert_array_equal(out, np.roll(x, sum(shifts), dim))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("width", [1, 2, 7, 64, 254, 256, 300, 512])
def test_rows_are_added_in_order_number_by_number(width: int, dtype: Any) -> None:
    x, rows, index = (rng.standard_normal(shape).astype(dtype) for shape in ((5, width), (400, width), (400,)))
    index = rng.integers(0, 4, 400)
    if dtype != np.int64:
        x[0, 0], rows[3, 0], rows[5:9, -1] = -0.0, np.nan, np.inf
    found, expected = gradcore.tensor(x), x.copy()
    found.index_add_(0, gradcore.tensor(index), gradcore.tensor(rows))
    for k, place in enumerate(index):
        expected[place] += rows[k]
    assert found.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("distinct", [False, True], ids=["repeated", "distinct"])
@pytest.mark.parametrize(("shape", "count"), [
    ((200, 5, 3), 4), ((300, 40, 1), 39), ((3, 2000, 2), 1900), ((1, 500, 1), 400), ((64, 5, 200), 5),
    ((2, 5000, 1), 4000)], ids=str)
def test_sums_at_positions_of_many_lines(shape: tuple[int, ...], count: int, distinct: bool) -> None:
    index = rng.permutation(shape[1])[:count] if distinct else rng.integers(0, shape[1], count)
    dy, out, expected = rng.standard_normal((shape[0], count, shape[2])), np.empty(shape), np.zeros(shape)
    np.add.at(expected, (slice(None), index), dy)
    KERNELS["take_grad"](dy, index, out, np.empty(8 * count, np.uint8), shape=shape, dim=1)
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-13)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("count", "width"), [(1, 1), (63, 5), (10_000, 16), (300, 32), (300, 33), (300, 500), (3, 200_000)],
                         ids=str)
def test_softmax_of_few_and_of_many_rows(count: int, width: int) -> None:
    x, g = rng.standard_normal((2, count, width))
    x[0, 0] = 800
    whole, dx, room = np.empty_like(x), np.empty_like(x), np.empty(8 * (count + min(x.size, 200_000)) + 32, np.uint8)
    expected = softmax(x)
    for name in ("softmax", "log_softmax"):
        KERNELS[name](x, whole, room if name == "log_softmax" else room[:8 * count], dim=1)
        np.testing.assert_allclose(whole if name == "softmax" else np.exp(whole), expected, rtol=1e-12, atol=1e-300)
        KERNELS[f"{name}_grad"](g, whole, dx, room[:8 * count], dim=1)
        total = (g * expected if name == "softmax" else g).sum(1, keepdims=True)
        slopes = expected * (g - total) if name == "softmax" else g - expected * total
        np.testing.assert_allclose(dx, slopes, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("count", [3, 70])
@pytest.mark.parametrize("width", [10, 100, 2000])
def test_a_number_that_is_none_and_infinities_stay_in_their_rows(width: int, count: int) -> None:
    x, found = np.zeros((count, width)), np.empty((count, width))
    x[1, 3] = np.nan
    x[2, :4] = -np.inf
    KERNELS["softmax"](x, found, np.empty(8 * count, np.uint8), dim=1)
    assert np.isnan(found[1]).all() and not found[2, :4].any()
    np.testing.assert_allclose(found[2, 4:], 1 / (width - 4))
    np.testing.assert_allclose(np.delete(found, [1, 2], 0), 1 / width)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("count", "width"), [(7, 10), (1500, 32), (3, 100), (400, 100), (5, 2000)], ids=str)
def test_cross_entropy_of_few_and_of_many_rows(count: int, width: int, reduction: str) -> None:
    x, labels = (rng.standard_normal((count, width)) * 4).astype(np.float32), rng.integers(0, width, count)
    expected = softmax(x.astype(np.float64))
    chosen = np.arange(count), labels
    losses = -np.log(expected[chosen])
    expected[chosen] -= 1
    leaf = gradcore.tensor(x, requires_grad=True)
    loss = gradcore.nn.functional.cross_entropy(leaf, gradcore.tensor(labels), reduction=reduction)
    (loss.sum() * 3).backward()
    total = losses if reduction == "none" else getattr(losses, reduction)()
    np.testing.assert_allclose(np.asarray(loss.detach()), total, 1e-6, 2e-6)
    share = count if reduction == "mean" else 1
    np.testing.assert_allclose(np.asarray(leaf.grad) * share / 3, expected, 1e-5, 4e-7)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_long_rows_takes_no_memory_of_their_length(name: str) -> None:
    """As a vector of ones would that is kept for sums, one for each length."""
    x = gradcore.tensor(rng.standard_normal((2, 300_000 + len(name))).astype(np.float32), requires_grad=True)
    g = gradcore.ones_like(x)
    call = getattr(gradcore, name)
    call(x[:, :40], dim=1).sum().backward()
    tracemalloc.start()
    try:
        y = call(x, dim=1)
        y.backward(g)
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()
    exact = np.exp(np.asarray(x.detach()).astype(np.float64))
    exact /= exact.sum(1, keepdims=True)
    found = np.asarray(y.detach())
    np.testing.assert_allclose(found if name == "softmax" else np.exp(found.astype(np.float64)), exact, 2e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_an_expanded_cotangent_and_of_a_transposed_input(name: str) -> None:
    function = getattr(gradcore, name)
    x = gradcore.tensor(rng.standard_normal((40, 30)), requires_grad=True)
    weights = gradcore.tensor(rng.standard_normal(40))
    function(x.t(), 1).sum().backward()
    expected = 0 if name == "softmax" else np.asarray(1 - gradcore.softmax(x.detach(), 0) * 40)
    np.testing.assert_allclose(np.asarray(x.grad), expected, atol=1e-12)
    assert gradcore.autograd.gradcheck(lambda x: (function(x.t(), 1) * weights).sum(1), x[:, :3].detach().requires_grad_())


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(("name", "better"), [("cummax", np.greater_equal), ("cummin", np.less_equal)])
def test_running_extremes_are_those_of_a_loop(name: str, better: Any, dim: int) -> None:
    values = rng.integers(-3, 4, (20, 70, 3)).astype(np.float32)
    values[5, 40, 1] = values[11, 3, 2] = np.nan
    values[0] = -np.inf
    for x in (values, np.nan_to_num(values, neginf=0).astype(np.int32), values > 1):
        found = getattr(gradcore, name)(gradcore.tensor(x), dim)
        lines, best, places = np.moveaxis(x, dim, 0), [], []
        for k, line in enumerate(lines):
            later = np.full(line.shape, True) if not k else better(line, best[-1]) | (line != line)
            best.append(np.where(later, line, best[-1]) if k else line)
            places.append(np.where(later, k, places[-1]) if k else np.zeros(line.shape, int))
        np.testing.assert_array_equal(np.asarray(found.values), np.moveaxis(best, 0, dim))
        np.testing.assert_array_equal(np.asarray(found.indices), np.moveaxis(places, 0, dim))


def test_running_extremes_take_one_launch_for_each_scan_however_long_the_lines() -> None:
    for n in (2, 1000):
        x = gradcore.tensor(rng.standard_normal((3, n)))
        with gradcore.step() as step:
            gradcore.cummax(x, 1)
        launched = [r.invocation.op for r in step.recording.records if isinstance(r, gradcore.events.Launch)]
        assert launched.count("cumextreme") == 2 and len(launched) <= 10


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("n", [*range(10), 63, 64, 65])
def test_bisection_of_lines_of_any_length(n: int, right: bool) -> None:
    line = np.sort(rng.integers(0, n // 2 + 1, n).astype(np.float32))
    line[n - n // 4:] = np.nan
    x = np.array([-1, *range(n // 2 + 2), np.inf, np.nan, -np.inf], np.float32)
    # A NaN among what is looked for is beyond all, as in PyTorch; NumPy has it beside others.
    expected = np.where(np.isnan(x), n, np.searchsorted(line, x, "right" if right else "left"))
    for lead in ((), (2,)):
        many = [gradcore.tensor(np.broadcast_to(a, (*lead, a.size)).copy()) for a in (line, x)]
        with gradcore.step() as step:
            found = gradcore.searchsorted(*many, right=right)
        np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(expected, found.shape))
        assert sum(isinstance(r, gradcore.events.Launch) for r in step.recording.records) <= 6 * n.bit_length() + 4


@pytest.mark.parametrize("shape", [(130, 90), (90, 130), (64, 64), (2, 65, 3), (3, 65), (0, 3), (3, 0)], ids=str)
def test_triangles_of_matrices_of_many_rows(shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    x[..., :1] = np.nan
    for diagonal in (-200, -65, -1, 0, 1, 64, 200):
        for name in ("tril", "triu"):
            found = getattr(gradcore, name)(gradcore.tensor(x), diagonal)
            np.testing.assert_array_equal(np.asarray(found), getattr(np, name)(x, diagonal))


@pytest.mark.parametrize(("rows", "moved"), [(20, 0), (200, 1)])
def test_only_lines_of_large_tensors_are_laid_out_anew(rows: int, moved: int) -> None:
    """Which takes two copies more."""
    x = gradcore.tensor(rng.standard_normal((rows, 33)))
    with gradcore.step() as step:
        gradcore.logcumsumexp(x, 1)
    launched = [r.invocation.op for r in step.recording.records if isinstance(r, gradcore.events.Launch)]
    assert launched.count("clone") == 2 * moved


@pytest.mark.parametrize("width", [1, 2, 16, 32, 33, 512])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_extremes_of_many_short_rows_are_numpys(width: int, dtype: str) -> None:
    x = (rng.standard_normal((5, 8000, width)) * 20).astype(dtype)
    if x.dtype.kind == "f":
        x[0, 7], x[1, 5, -1] = -np.inf, np.nan
    for name, fold in (("amax", np.max), ("amin", np.min)):
        out = np.empty((5, 8000), dtype)
        KERNELS[name](x, out, dims=(2,), keepdim=False)
        np.testing.assert_array_equal(out, fold(x, 2))
        values, places = np.empty((5, 8000, 1), dtype), np.empty((5, 8000, 1), np.int64)
        KERNELS[name[1:] + "_with_index"](x, values, places, dim=2, keepdim=True)
        np.testing.assert_array_equal(values[..., 0], out)


@pytest.mark.parametrize("shape", [(1, 60_001, 3), (3, 9000, 5), (70, 37, 64), (4000, 8, 4), (2, 40_000, 63)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_folds_of_many_narrow_rows_are_numpys_and_allocate_little(shape: tuple[int, ...], dtype: str, tracing: None) -> None:
    x = (rng.standard_normal(shape) * 20).astype(dtype)
    if dtype == "float32":
        x[0, 7, 0], x[0, -1, 1] = -np.inf, np.nan
    out = np.empty((shape[0], shape[2]), dtype)
    KERNELS["amax"](x, out, dims=(1,), keepdim=False)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    for name, fold in (("amax", np.max), ("amin", np.min)):
        KERNELS[name](x, out, dims=(1,), keepdim=False)
        held = tracemalloc.get_traced_memory()[1] - before
        np.testing.assert_array_equal(out, fold(x, 1))
        assert held < 64 << 10
        tracemalloc.reset_peak()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("shape", [(20_000, 3), (40, 90, 33)], ids=str)
def test_normalized_columns_of_narrow_arrays_are_those_of_rows(name: str, shape: tuple[int, ...]) -> None:
    x = gradcore.tensor((rng.standard_normal(shape) * 20).astype(np.float32))
    columns, rows = (getattr(x, name)(len(shape) - 2), getattr(x.transpose(-1, -2).contiguous(), name)(-1))
    expected = rows if name == "logsumexp" else rows.transpose(-1, -2)
    np.testing.assert_allclose(columns.numpy(), expected.numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "fold"), [("cumsum", np.add), ("cumprod", np.multiply), ("cummax", np.maximum)])
@pytest.mark.parametrize("shape", [(5000, 3), (1, 5000, 17), (70, 60, 32)], ids=str)
def test_running_folds_of_many_short_lines_are_numpys(name: str, fold: Any, shape: tuple[int, ...]) -> None:
    for dtype in (np.int64, np.float64):
        x = rng.integers(-3, 4, shape).astype(dtype)
        found = getattr(gradcore.tensor(x), name)(-1)
        np.testing.assert_array_equal((found[0] if name == "cummax" else found).numpy(), fold.accumulate(x, -1))


def test_ranks_of_many_short_lines_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    rank = ordering._rank
    monkeypatch.setattr(ordering, "_rank", lambda x, *args: (counts.append(len(x)), rank(x, *args)))
    x = gradcore.tensor(rng.permuted(np.tile(np.arange(100.0), (1000, 3, 1)), axis=2))
    values, indices = x.topk(2)
    assert (values.numpy() == [99, 98]).all() and (x.gather(2, indices).numpy() == values.numpy()).all()
    assert sum(counts) == 3000 and len(counts) < 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(2, 600, 1100), (300, 2, 40), (1, 257, 20_000), (70, 1, 33), (3, 20, 700)], ids=str)
def test_the_first_of_equal_extremes_is_found_in_columns(shape: tuple[int, ...], dtype: Any) -> None:
    x = rng.integers(-9, 9, shape).astype(dtype)
    for nan in (False, True) if np.issubdtype(dtype, np.floating) else (False,):
        if nan:
            x[0, shape[1] // 2:, 3] = np.nan
        elif np.issubdtype(dtype, np.floating):
            x[-1, :, 5] = -np.inf
            x[x == 8] *= -0.0
        given = gradcore.tensor(x)
        for name, find in (("max", np.argmax), ("min", np.argmin)):
            expected = find(x, 1)
            np.testing.assert_array_equal(getattr(given, f"arg{name}")(1).numpy(), expected)
            values, indices = getattr(given, name)(1)
            np.testing.assert_array_equal(indices.numpy(), expected)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, expected[:, None], 1)[:, 0])
