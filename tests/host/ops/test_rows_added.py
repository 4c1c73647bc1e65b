"""Rows that are added at positions on the CPU: in pieces, one by one, with the same sums."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.devices.host.kernels.folding import LISTED, NARROW, fold_rows
from tests.host.ops.test_temporaries import SLACK

RNG = np.random.default_rng(11)
#: More positions than are looked at together, and than fill the last piece.
COUNT = 2 * LISTED + 77


def expected(x: np.ndarray, index: np.ndarray, values: np.ndarray, dim: int) -> np.ndarray:
    """Position by position, in order."""
    found = np.moveaxis(x, dim, 0).copy()
    rows = np.moveaxis(values, dim, 0)
    for k, place in enumerate(index):
        found[place] += rows[k]
    return np.moveaxis(found, 0, dim)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
@pytest.mark.parametrize("shape, dim", [((50,), 0), ((50, 1), 0), ((50, 7), 0), ((50, NARROW), 0), ((50, NARROW + 1), 0),
                                        ((3, 50), 1), ((3, 50, 2), 1), ((NARROW, 50, 2), 1), ((50, 0), 0)])
def test_sums_have_the_bits_of_a_loop(shape: tuple[int, ...], dim: int, dtype: str) -> None:
    index = RNG.integers(0, 50, COUNT)
    x = RNG.integers(-9, 9, shape).astype(dtype) if dtype == "int64" else RNG.normal(size=shape).astype(dtype)
    values = (RNG.normal(size=(*shape[:dim], COUNT, *shape[dim + 1:])) * 9).astype(dtype)
    found = gradcore.tensor(x).index_add(dim, gradcore.tensor(index), gradcore.tensor(values)).numpy()
    if dtype == "float16":
        # Computed in float32, and rounded once.
        np.testing.assert_allclose(found, expected(x.astype("f8"), index, values.astype("f8"), dim), rtol=2e-3, atol=2e-2)
    else:
        np.testing.assert_array_equal(found, expected(x, index, values, dim))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [33, NARROW - 1, NARROW])
@pytest.mark.parametrize("how", ["rising", "mixed", "one", "rising at first", "some often"])
def test_rows_of_groups_have_the_bits_of_a_loop(how: str, width: int, dtype: str) -> None:
    index = RNG.integers(0, 300, 2 * COUNT)
    if how == "rising":
        index.sort()
    elif how == "one":
        index[:] = 7
    elif how == "rising at first":
        index[:COUNT].sort()
    elif how == "some often":
        index = np.minimum(RNG.geometric(0.05, len(index)) ** 2, 299)
    x, values = (RNG.normal(size=(n, width)).astype(dtype) for n in (300, len(index)))
    x[::3] = -0.0
    values[::7, 1], values[3::7] = np.nan, -0.0
    for name, fold in (("sum", np.add), ("amax", np.maximum)):
        wanted = x.copy()
        for place, row in zip(index, values, strict=True):
            fold(wanted[place], row, out=wanted[place])
        places = gradcore.tensor(index)
        found = (gradcore.tensor(x).index_add(0, places, gradcore.tensor(values)) if name == "sum" else gradcore.tensor(
            x).scatter_reduce(0, places[:, None].expand(values.shape), gradcore.tensor(values), name)).numpy()
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize("width", [1 << 16, (1 << 16) + 1, (1 << 17) + 1])
@pytest.mark.parametrize("index", [[0, 1, 1, 2], [2, 0, 1, 1]], ids=str)
def test_rows_too_wide_to_be_grouped_are_added(width: int, index: list[int]) -> None:
    """Such as images of 3 channels and 224 by 224: no two of these fit in the memory that a thread keeps."""
    values = RNG.normal(size=(4, width)).astype("f4")
    found = gradcore.zeros(3, width).index_add(0, gradcore.tensor(index), gradcore.tensor(values))
    np.testing.assert_array_equal(found.numpy(), expected(np.zeros((3, width), "f4"), np.array(index), values, 0))


def test_positions_of_several_dimensions_count_from_both_ends() -> None:
    index = RNG.integers(-60, 60, (9, COUNT // 9))
    values = RNG.normal(size=(*index.shape, 3)).astype("f4")
    found = gradcore.zeros(60, 3).index_put((gradcore.tensor(index),), gradcore.tensor(values), accumulate=True)
    wanted = expected(np.zeros((60, 3), "f4"), index.reshape(-1), values.reshape(-1, 3), 0)
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_values_and_places_that_are_no_rows_in_memory() -> None:
    index = RNG.integers(0, 20, COUNT)
    values = RNG.normal(size=(4, COUNT)).astype("f4")
    for x in (gradcore.zeros(20, 4), gradcore.zeros(4, 20).T, gradcore.zeros(20, 8)[:, ::2]):
        x.index_add_(0, gradcore.tensor(index), gradcore.tensor(values).T)
        np.testing.assert_array_equal(x.numpy(), expected(np.zeros((20, 4), "f4"), index, values.T, 0))
    x = gradcore.zeros(20, 4)
    x.index_put_((gradcore.tensor(index),), gradcore.tensor(2.0), accumulate=True)
    np.testing.assert_array_equal(x.numpy(), 2.0 * np.bincount(index, minlength=20)[:, None].repeat(4, 1))


def test_nothing_is_added_if_a_position_is_outside() -> None:
    x, index = gradcore.zeros(20), np.zeros(COUNT, np.int64)
    index[-1] = 20
    with pytest.raises(IndexError, match="index 20 is out of bounds for dimension with size 20"):
        x.index_add_(0, gradcore.tensor(index), gradcore.ones(COUNT))
    assert not x.numpy().any()


@pytest.mark.parametrize("width", [1, 16, NARROW, NARROW + 1])
def test_gradients_of_reads(width: int) -> None:
    index, dy = RNG.integers(0, 30, COUNT), RNG.normal(size=(COUNT, width)).astype("f4")
    wanted = expected(np.zeros((30, width), "f4"), index, dy, 0)
    for read in (lambda w, i: w[i], lambda w, i: nn.functional.embedding(i, w)):
        w = gradcore.zeros(30, width, requires_grad=True)
        read(w, gradcore.tensor(index)).backward(gradcore.tensor(dy))
        np.testing.assert_array_equal(w.grad.numpy(), wanted)
    turned = gradcore.zeros(2, 30, width, requires_grad=True)
    both = np.stack([dy, -dy])
    turned.index_select(1, gradcore.tensor(index)).backward(gradcore.tensor(both))
    np.testing.assert_array_equal(turned.grad.numpy(), np.stack([wanted, expected(np.zeros((30, width), "f4"), index, -dy, 0)]))


# -- over what is there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, dim", [((50,), 0), ((50, 7), 0), ((3, 50), 1), ((3, 50, 2), 1)])
@pytest.mark.parametrize("strided", [False, True], ids=["rows", "strided"])
def test_of_repeated_positions_the_last_wins(shape: tuple[int, ...], dim: int, strided: bool) -> None:
    index = RNG.integers(-50, 50, (3, COUNT // 3))
    values = RNG.normal(size=(*shape[:dim], *index.shape, *shape[dim + 1:])).astype("f4")
    wanted = np.zeros(shape, "f4")
    for spot in np.ndindex(index.shape):
        wanted[(slice(None),) * dim + (index[spot],)] = values[(slice(None),) * dim + spot]
    x = gradcore.zeros(*shape, 2)[..., 0] if strided else gradcore.zeros(shape)
    x[(slice(None),) * dim + (gradcore.tensor(index),)] = gradcore.tensor(values)
    np.testing.assert_array_equal(x.numpy(), wanted)
    # A row of values for all.
    x[(slice(None),) * dim + (gradcore.tensor(index),)] = 2.5
    assert (x.numpy() == 2.5).sum() == np.unique(index % 50).size * x.numel() // 50


#: Lines that fill several pieces, parts of one line, and one element each.
LONG = 3 * 1536 + 11


@pytest.mark.parametrize("shape, count, dim", [((40, 9), (700, 9), 0), ((9, 40), (9, 700), 1), ((LONG, 2), (LONG, 2), 0),
                                               ((2, LONG), (2, LONG), 0), ((LONG,), (2 * LONG,), 0), ((4, LONG), (3, LONG), 1),
                                               ((5, 40, 6), (4, 300, 5), 1), ((5, 6, 40), (4, 3, 700), 2), ((3, 1), (5, 1), 0)])
@pytest.mark.parametrize("how", ["plain", "strided", "expanded"])
def test_places_along_a_dimension(shape: tuple[int, ...], count: tuple[int, ...], dim: int, how: str) -> None:
    index = RNG.integers(0, shape[dim], [n if how != "expanded" or d == dim else 1 for d, n in enumerate(count)])
    src, start = RNG.normal(size=count).astype("f4"), RNG.normal(size=shape).astype("f4")
    put, added, most, least = (start.copy() for _ in range(4))
    for spot in np.ndindex(count):
        place = (*spot[:dim], np.broadcast_to(index, count)[spot], *spot[dim + 1:])
        put[place] = src[spot]
        added[place] += src[spot]
        most[place], least[place] = max(most[place], src[spot]), min(least[place], src[spot])
    given = gradcore.tensor(index).expand(count)
    rows = gradcore.tensor(src)
    for name, wanted, *how_folded in (("scatter_", put), ("scatter_add_", added), ("scatter_reduce_", most, "amax"),
                                      ("scatter_reduce_", least, "amin")):
        x = gradcore.empty(*shape, 2)[..., 1] if how == "strided" else gradcore.empty(shape)
        x.copy_(gradcore.tensor(start))
        getattr(x, name)(dim, given, rows, *how_folded)
        np.testing.assert_array_equal(x.numpy(), wanted)
    x = gradcore.tensor(start).scatter(dim, given, 3.0)
    np.testing.assert_array_equal(x.numpy(), np.where(put == start, start, 3.0))


def test_nothing_is_written_if_a_position_along_a_dimension_is_outside() -> None:
    for last in (20, -1):
        index = np.zeros((LONG, 2), np.int64)
        index[-1, 1] = last
        for name in ("scatter_", "scatter_add_"):
            x = gradcore.zeros(20, 2)
            with pytest.raises(IndexError, match=f"index {last} is out of bounds for dimension with size 20"):
                getattr(x, name)(0, gradcore.tensor(index), gradcore.ones(LONG, 2))
            assert not x.numpy().any()


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("places", [np.arange(9000) // 4, np.arange(9000) * 7 % 2500], ids=str)
def test_groups_of_rows_take_no_memory_of_their_own(places: np.ndarray) -> None:
    target, rows = np.zeros((2500, NARROW), "f4"), np.ones((9000, NARROW), "f4")
    for _ in range(2):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        fold_rows(np.add, target, places, rows)
        most = tracemalloc.get_traced_memory()[1] - before
    assert most <= SLACK


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("width", [1, 2, 3, 7, NARROW - 1])
def test_narrow_rows_take_no_memory_of_their_own(width: int, dtype: str) -> None:
    target, rows, places = np.zeros((50, width), dtype), np.ones((9000, width), dtype), np.arange(9000) * 7 % 50
    for by in (np.add, np.maximum):
        for _ in range(2):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            fold_rows(by, target, places, rows)
            most = tracemalloc.get_traced_memory()[1] - before
        assert most <= SLACK
