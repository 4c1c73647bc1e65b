"""Systems of equations, determinants, matrix factors and eigenvalues on the CPU, by LAPACK; see ``ops.decompositions`` and
``ops.factors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel
from gradcore.errors import LinAlgError


def _by_lapack(name: str, function: Callable[..., Any], *arrays: Array) -> Any:
    """What the function returns. Raises :class:`LinAlgError`, naming the matrices, where LAPACK gives up."""
    try:
        return function(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"linalg.{name}: {error} of shape {list(arrays[0].shape)}") from None


@kernel
def inv(a: Array, out: Array, workspace: Array) -> None:
    out[...] = _by_lapack("inv", np.linalg.inv, a)


@kernel
def solve(a: Array, b: Array, out: Array, workspace: Array, *, transpose: bool = False) -> None:
    out[...] = _by_lapack("solve", np.linalg.solve, a.swapaxes(-1, -2) if transpose else a, b)


@kernel
def cholesky(a: Array, out: Array, workspace: Array) -> None:
    out[...] = _by_lapack("cholesky", _lower, a)


def _lower(a: Array) -> Array:
    found: Array = np.linalg.cholesky(a)
    # OpenBLAS takes a NaN for a pivot.
    if np.isnan(np.diagonal(found, axis1=-2, axis2=-1)).any():
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return found


@kernel
def slogdet(a: Array, sign: Array, logabsdet: Array, workspace: Array) -> None:
    sign[...], logabsdet[...] = np.linalg.slogdet(a)


@kernel
def det(a: Array, out: Array, workspace: Array) -> None:
    out[...] = np.linalg.det(a)


# -- factors -----------------------------------------------------------------------------------------------------------


def _signs(vectors: Array) -> Array:
    """-1 or 1 for each column: the sign of its first component that is at least half as large as the largest."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    sizes = np.abs(vectors)
    first = np.argmax(sizes >= sizes.max(-2, keepdims=True) / 2, -2)
    signs: Array = np.copysign(vectors.dtype.type(1), np.take_along_axis(vectors, first[..., None, :], -2))
    return signs


@kernel
def eigh(a: Array, values: Array, vectors: Array, workspace: Array) -> None:
    values[...], found = _by_lapack("eigh", np.linalg.eigh, a)
    np.multiply(found, _signs(found), out=vectors)


@kernel
def svd(a: Array, u: Array, s: Array, vh: Array, workspace: Array) -> None:
    left, s[...], right = _by_lapack("svd", lambda x: np.linalg.svd(x, full_matrices=False), a)
    signs = _signs(left)
    np.multiply(left, signs, out=u)
    np.multiply(right, signs.swapaxes(-1, -2), out=vh)


@kernel
def qr(a: Array, q: Array, r: Array, workspace: Array, *, complete: bool = False) -> None:
    q[...], r[...] = _by_lapack("qr", lambda x: np.linalg.qr(x, "complete" if complete else "reduced"), a)


@kernel
def pinv(a: Array, out: Array, workspace: Array, *, atol: float = 0.0, rtol: float) -> None:
    u, s, vh = _by_lapack("pinv", lambda x: np.linalg.svd(x, full_matrices=False), a)
    if not s.size:
        out[...] = 0
        return
    least = np.maximum(s[..., :1] * rtol, atol)
    inverse = np.divide(1, s, out=np.zeros_like(s), where=~(s <= least))
    np.matmul(vh.swapaxes(-1, -2) * inverse[..., None, :], u.swapaxes(-1, -2), out=out)
