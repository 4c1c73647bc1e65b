"""A matrix that many others share in a product or a system: neither it nor its gradient is there for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.ops import linalg

LEADS = [(), (1,), (3,), (2, 3), (1, 3), (2, 1), (4, 2, 3), (4, 1, 3), (0,)]
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a b": lambda t, a, b: a @ b, "a^T b": lambda t, a, b: a.mT @ b, "b^T a": lambda t, a, b: b.mT @ a,
    "b^T a^T": lambda t, a, b: b.mT @ a.mT, "solve": lambda t, a, b: t.linalg.solve(a, b),
    "solve to the right": lambda t, a, b: t.linalg.solve(a, b.mT, left=False),
    "solve a triangle": lambda t, a, b: t.linalg.solve_triangular(a, b, upper=True)}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.oracle
def test_values_and_gradients_are_pytorchs(torch: Any, monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    monkeypatch.setattr(linalg, "_FEW", 0)
    rng = np.random.default_rng(0)
    for first, second in itertools.product(LEADS, LEADS):
        try:
            np.broadcast_shapes(first, second)
        except ValueError:
            continue
        numbers, found = [rng.normal(size=(*first, 4, 4)) + 8 * np.eye(4), rng.normal(size=(*second, 4, columns))], []
        for library in (gradcore, torch):
            leaves = [library.tensor(x, requires_grad=True) for x in numbers]
            made = CALLS[name](library, *leaves)
            slopes = library.autograd.grad(made.square().sum(), leaves, create_graph=True)
            seconds = library.autograd.grad(sum(x.square().sum() for x in slopes), leaves)
            found.append([x.detach().numpy() for x in (made, *slopes, *seconds)])
        for ours, theirs in zip(*found, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, 1e-8, 1e-8, err_msg=f"{first} {second}")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("lead", [(), (1, 1), (2,)])
def test_the_peak_is_of_the_vectors(name: str, lead: tuple[int, ...]) -> None:
    matrix = gradcore.eye(64).expand(*lead, 64, 64).clone().requires_grad_()
    vectors = gradcore.ones(400, *lead, 64, 1, requires_grad=True)
    with gradcore.step() as step:
        CALLS[name](gradcore, matrix, vectors).sum().backward()
    # One matrix for each vector is 64 times the bytes of the vectors.
    assert step.report.peak.requested < 8 * vectors.nbytes + 12 * matrix.nbytes


def _peak(call: Callable[[Any, Any], Any], *given: Any) -> int:
    with gradcore.step() as step:
        call(*given).sum().backward()
    return step.report.peak.requested


def test_vectors_compared_each_with_each_need_no_copies() -> None:
    x, y = (gradcore.randn(3, 200, 32, requires_grad=True) for _ in range(2))
    pairs, scores = (x.unsqueeze(2), y.unsqueeze(1)), 3 * 200 * 200 * 4
    for call in (lambda x, y: gradcore.einsum("bijd,bijd->bij", x, y), lambda x, y: gradcore.einsum("...d,...d->...", x, y),
                 lambda x, y: gradcore.nn.functional.cosine_similarity(x, y, dim=-1)):
        assert _peak(call, *pairs) < 4 * scores + 8 * x.nbytes


def test_pairs_of_vectors_are_released_before_the_norm_of_their_differences() -> None:
    x = gradcore.randn(100, 32, requires_grad=True)
    with gradcore.step() as step:
        gradcore.nn.functional.pdist(x)
    # The two sets of vectors, the differences and the indices.
    assert step.report.peak.requested < 3.3 * (100 * 99 // 2) * 32 * 4


@pytest.mark.parametrize("equation", ["bnd,bmd,d->bnm", "bnd,d,bmd->bnm", "d,bnd,bmd->bnm"])
def test_of_several_operands_those_of_a_small_product_are_combined_first(equation: str) -> None:
    given = {"bnd": gradcore.randn(2, 50, 40, requires_grad=True), "bmd": gradcore.randn(2, 60, 40, requires_grad=True),
             "d": gradcore.randn(40, requires_grad=True)}
    operands = [given[labels] for labels in equation.partition("->")[0].split(",")]
    expected = (given["bnd"] * given["d"]) @ given["bmd"].mT
    gradcore.testing.assert_close(gradcore.einsum(equation, *operands), expected)
    # From left to right, a product of all four dimensions has forty times the elements of the result.
    assert _peak(lambda *x: gradcore.einsum(equation, *x), *operands) < 10 * expected.nbytes


@pytest.mark.parametrize(("channels", "most"), [(3, 13.0), (64, 5.5)])
def test_the_pixels_of_a_corner_are_released_before_those_of_the_next_are_read(channels: int, most: float) -> None:
    x, grid = gradcore.randn(4, channels, 32, 32), gradcore.rand(4, 32, 32, 2) * 2.4 - 1.2
    with gradcore.step() as step:
        gradcore.nn.functional.grid_sample(x, grid, align_corners=False)
    # The images and their rows, the sum, and of a corner the pixels and their parts; of each point the shares and places.
    assert step.report.peak.requested < most * x.nbytes
