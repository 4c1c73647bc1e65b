"""Factorizations of matrices that are hard to factor: what they multiply to, and that their vectors are orthonormal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import LinAlgError, SpecError
from tests.conftest import raises


def _random(*shape: int) -> Callable[[np.random.Generator], Any]:
    return lambda rng: rng.normal(size=shape)


def _of_rank(m: int, n: int, rank: int) -> Callable[[np.random.Generator], Any]:
    return lambda rng: rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))


#: Matrices by name. Repeated, vanishing and far apart singular values; sizes that are no multiple of a warp's or a block's.
CASES: dict[str, Callable[[np.random.Generator], Any]] = {
    "identity": lambda rng: np.eye(5),
    "zeros": lambda rng: np.zeros((2, 4, 3)),
    "ones": lambda rng: np.ones((6, 6)),
    "orthonormal columns": lambda rng: np.linalg.qr(rng.normal(size=(9, 4)))[0],
    "negative": lambda rng: -np.eye(4) * np.arange(1, 5),
    "low rank": _of_rank(20, 12, 3),
    "low rank and wide": _of_rank(7, 40, 2),
    "a zero column": lambda rng: rng.normal(size=(5, 5)) * [1, 1, 0, 1, 1],
    "steep": lambda rng: rng.normal(size=(12, 12)) * 10.0 ** -np.arange(12),
    "columns whose squares are subnormal": lambda rng: rng.normal(size=(5, 3)) * [1, 1e-11, 2e-22],
    "large numbers": lambda rng: rng.normal(size=(6, 4)) * 1e30,
    "small numbers": lambda rng: rng.normal(size=(4, 6)) * 1e-30,
    "the largest numbers": lambda rng: np.array([[2e38, 1.5e38], [1.5e38, -1e38]]),
    "odd": _random(3, 33, 33), "tall": _random(70, 37), "wide": _random(19, 130), "a block": _random(64, 64),
    "one vector": _random(300, 1), "one row": _random(1, 300), "many": _random(40, 2, 3)}


def check(name: str, device: str) -> None:
    a = CASES[name](np.random.default_rng(11)).astype(np.float32)
    x = gradcore.tensor(a, device=device)
    *_, m, n = a.shape
    k, scale = min(m, n), float(np.abs(a).max()) or 1.0
    within = {"rtol": 1e-4, "atol": 2e-5 * max(m, n) ** 0.5}

    def read(*tensors: Any) -> list[Any]:
        return [t.cpu().numpy().astype(np.float64) for t in tensors]

    def orthonormal(q: Any) -> None:
        np.testing.assert_allclose(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1],
                                                                                               q.shape[-1])), **within)

    exact = a.astype(np.float64) / scale
    u, s, vh = read(*gradcore.linalg.svd(x))
    assert u.shape[-1] == m and vh.shape[-2] == n and (np.diff(s) <= 0).all() and (s >= 0).all()
    np.testing.assert_allclose((u[..., :k] * (s / scale)[..., None, :]) @ vh[..., :k, :], exact, **within)
    np.testing.assert_allclose(s / scale, np.linalg.svd(exact, compute_uv=False), **within)
    orthonormal(u)
    orthonormal(vh.swapaxes(-1, -2))
    for mode in ("reduced", "complete"):
        q, r = read(*gradcore.linalg.qr(x, mode))
        np.testing.assert_allclose(q @ (r / scale), exact, **within)
        assert not np.tril(r, -1).any()
        orthonormal(q)
    if scale < 1e38:
        # The inverse of larger numbers is subnormal, which counts as 0 on a GPU.
        p, = read(gradcore.linalg.pinv(x, rtol=1e-4))
        np.testing.assert_allclose(exact @ (p * scale) @ exact, exact, rtol=1e-3, atol=1e-3)
    if m == n:
        values, vectors = read(*gradcore.linalg.eigh(x))
        low = np.tril(exact) + np.tril(exact, -1).swapaxes(-1, -2)
        np.testing.assert_allclose(low @ vectors, vectors * (values / scale)[..., None, :], **within)
        np.testing.assert_allclose(values / scale, np.linalg.eigvalsh(exact), **within)
        orthonormal(vectors)


def check_signs(device: str) -> None:
    """Of a symmetric matrix, whose vectors are those of both sides."""
    a = np.random.default_rng(12).normal(size=(6, 6)).astype(np.float32)
    x = gradcore.tensor(a + a.T, device=device)
    for vectors in (gradcore.linalg.eigh(x)[1], gradcore.linalg.svd(x)[0]):
        for v in vectors.cpu().numpy().T:
            assert v[np.abs(v) >= np.abs(v).max() / 2][0] > 0


@pytest.mark.parametrize("name", CASES)
def test_factors_multiply_to_the_matrix(name: str) -> None:
    check(name, "cpu")


def test_vectors_have_the_signs_that_are_promised() -> None:
    check_signs("cpu")


def test_what_lapack_refuses_is_an_error_that_leaves_nothing() -> None:
    bad = gradcore.full((3, 3), float("nan"), requires_grad=True)
    live = gradcore.memory_allocated("cpu")
    for name in ("svd", "eigh", "pinv"):
        with raises(LinAlgError, f"linalg.{name}: ", "of shape [3, 3]"):
            getattr(gradcore.linalg, name)(bad)
    assert gradcore.memory_allocated("cpu") == live


@pytest.mark.parametrize(("call", "text"), [
    (lambda: gradcore.linalg.eigh(gradcore.ones(2, 3)), "eigh: A must be batches of square matrices, but got shape [2, 3]"),
    (lambda: gradcore.linalg.eigh(gradcore.ones(2, 2), "X"), "Expected UPLO argument to be 'L' or 'U', but got X"),
    (lambda: gradcore.linalg.svd(gradcore.ones(2)), "linalg.svd: The input tensor A must have at least 2 dimensions, but got "
                                                    "shape [2]"),
    (lambda: gradcore.linalg.pinv(gradcore.ones(2)), "linalg.pinv: The input tensor A must have at least 2 dimensions"),
    (lambda: gradcore.linalg.qr(gradcore.ones(2, 2), "full"), "qr received unrecognized mode 'full' but expected one of"),
    (lambda: gradcore.linalg.svd(gradcore.ones(2, 2).half()), "Low precision dtypes and integers are not supported. Got"),
    (lambda: gradcore.linalg.matrix_norm(gradcore.ones(2, 2), 3), "Order 3 not supported: expected 'fro', 'nuc', 1"),
    (lambda: gradcore.linalg.matrix_norm(gradcore.ones(2, 2), dim=1), "linalg.matrix_norm: dim must be a 2-tuple. Got 1"),
    (lambda: gradcore.norm(gradcore.ones(2, 2, 2), "nuc"), "linalg.matrix_norm: dim must be a 2-tuple. Got (0, 1, 2)"),
    (lambda: gradcore.norm(gradcore.ones(2), "nuc"), "must have at least 2 dimensions, but got shape [2]"),
    (lambda: gradcore.linalg.pinv(gradcore.ones(4, 3), hermitian=True), "linalg.pinv: A must be batches of square matrices, "
                                                                        "but got shape [4, 3]"),
    (lambda: gradcore.linalg.qr(gradcore.ones(3, 2, requires_grad=True), "complete").Q.sum().backward(),
     "not differentiable when mode='complete' and nrows > ncols; got A of shape [3, 2]"),
])
def test_bad_arguments_are_named(call: Callable[[], Any], text: str) -> None:
    with raises(SpecError, text):
        call()


def test_only_the_lower_triangle_of_a_hermitian_matrix_is_read() -> None:
    a = gradcore.tensor([[2.0, float("inf")], [1.0, 3.0]], requires_grad=True)
    found = gradcore.linalg.pinv(a, hermitian=True)
    np.testing.assert_allclose(found.detach().numpy(), [[0.6, -0.2], [-0.2, 0.4]], rtol=1e-5)
    found.sum().backward()
    assert np.isfinite(a.grad.numpy()).all()


def test_least_squares_are_not_solved_in_16_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = (gradcore.tensor(rng.normal(size=(5, n)).astype(np.float32)) for n in (3, 2))
    with gradcore.autocast("cpu"):
        found = gradcore.linalg.lstsq(a, b).solution
        assert (a.mT @ b).dtype == gradcore.bfloat16
    assert found.tolist() == gradcore.linalg.lstsq(a, b).solution.tolist()
