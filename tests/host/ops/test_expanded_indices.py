"""A vector of positions that is expanded to the index of a gather or scatter: slices of a dimension, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

#: Of library, x, dimension, index and source.
CALLS: dict[str, Any] = {
    "gather": lambda t, x, d, i, s: x.gather(d, i), "scatter_add": lambda t, x, d, i, s: x.scatter_add(d, i, s),
    "scatter_add_": lambda t, x, d, i, s: (x * 1).scatter_add_(d, i, s), "scatter": lambda t, x, d, i, s: x.scatter(d, i, s),
    "scatter of a number": lambda t, x, d, i, s: x.scatter(d, i, 2.5),
    "scatter_reduce": lambda t, x, d, i, s: x.scatter_reduce(d, i, s, "mean", include_self=False),
    "amax": lambda t, x, d, i, s: x.scatter_reduce(d, i, s, "amax")}


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(6, 1, 3), (3, 6), (6, 2, 2), (6,)])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_pytorchs(torch: Any, name: str, shape: tuple[int, ...]) -> None:
    rng, dim = np.random.default_rng(0), shape.index(6)
    places = rng.permutation(6)[:4] if name == "scatter" else rng.integers(0, 6, 9)
    row = places.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    numbers = rng.normal(size=shape), rng.normal(size=[len(places) if n == 6 else n for n in shape])
    found: list[list[Any]] = []
    for library in (gradcore, torch):
        leaves = [library.tensor(x, requires_grad=True) for x in numbers]
        made = CALLS[name](library, leaves[0], dim, library.tensor(row).expand(*numbers[1].shape), leaves[1])
        slopes = library.autograd.grad(made.pow(3).sum(), leaves, create_graph=True, allow_unused=True)
        second, = library.autograd.grad(slopes[0].square().sum(), leaves[:1])
        found.append([made, *(x for x in slopes if x is not None), second])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-9, 1e-9)


@pytest.mark.parametrize("name", ["gather", "scatter_add", "scatter"])
def test_positions_are_not_expanded_in_memory(name: str) -> None:
    x, source = gradcore.zeros(100, 64, requires_grad=True), gradcore.randn(2000, 64, requires_grad=True)
    places = (gradcore.arange(2000) % 100).unsqueeze(1)
    with gradcore.step() as step:
        CALLS[name](gradcore, x, 0, places.expand(2000, 64), source).sum().backward()
    # One expanded copy of the int64 positions has twice the bytes of the source.
    assert step.report.peak.requested < 2.5 * source.nbytes + 4 * x.nbytes


def test_errors_name_the_call_and_the_position() -> None:
    x, places = gradcore.zeros(4, 3), gradcore.tensor([[0], [4]]).expand(2, 3)
    with pytest.raises(IndexError):
        x.gather(0, places)
    with pytest.raises(IndexError):
        x.scatter_add(0, places, gradcore.ones(2, 3))
    with raises(RuntimeError, "scatter: Expected self.dtype"):
        x.scatter_add(0, places, gradcore.ones(2, 3, dtype=gradcore.float64))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_positions_of_narrow_integers_in_long_dimensions(dtype: str) -> None:
    """More positions than the integers have, of which negative ones count from the end."""
    places = np.array([0, 127, 5, 200 if dtype == "uint8" else -1, -128 if dtype != "uint8" else 255]).astype(dtype)
    values = np.arange(140000, dtype=np.float32)
    x, index = gradcore.tensor(values, requires_grad=True), gradcore.tensor(places)
    if dtype == "uint8":
        found = x.take(index)
    else:
        found = x[index]
    np.testing.assert_array_equal(found.detach().numpy(), values[places.astype(np.int64)])
    found.sum().backward()
    np.testing.assert_array_equal(np.flatnonzero(x.grad.numpy()), np.sort(places.astype(np.int64) % len(values)))
