"""Eigenvalues, singular values, QR factors, and what is computed with them, with the signatures of ``torch.linalg``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gradcore.engine.autocast import left_alone
from gradcore.errors import SpecError
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.matrices import tril, triu
from gradcore.ops import creation, elementwise, factors, movement
from gradcore.ops.decompositions import need_square

Tensor = Any

__all__ = ["eigh", "eigvalsh", "lstsq", "matrix_rank", "pinv", "qr", "svd", "svdvals"]


class Eigh(NamedTuple):
    """Ascending eigenvalues [..., n], and eigenvectors as columns [..., n, n]."""

    eigenvalues: Any
    eigenvectors: Any


class SVD(NamedTuple):
    """U [..., m, k], descending S [..., k] and Vh [..., k, n] of A = U diag(S) Vh."""

    U: Any
    S: Any
    Vh: Any


class QR(NamedTuple):
    """Q with orthonormal columns, and upper triangular R."""

    Q: Any
    R: Any


class LeastSquares(NamedTuple):
    """What :func:`lstsq` returns."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues and eigenvectors of symmetric matrices [..., n, n], of which the lower ("L") or upper ("U") triangle is read.

    The gradient of eigenvectors is infinite where two eigenvalues are equal. The first component of an eigenvector that is at
    least half as large as its largest is positive, on every device. On the CPU, raises :class:`LinAlgError` if the
    computation does not converge, as with NaN; a GPU gives NaN.
    """
    if UPLO not in ("L", "U", "l", "u"):
        raise SpecError(f"linalg.eigh: Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return Eigh(*factors.eigh(A if UPLO in "Ll" else sh.transpose(A, -2, -1)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of :func:`eigh`, whose vectors are given back at once unless a gradient needs them."""
    return eigh(A, UPLO).eigenvalues


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """The singular value decomposition of matrices [..., m, n], with k = min(m, n) singular values.

    With ``full_matrices``, U is [..., m, m] and Vh [..., n, n], by further orthonormal vectors, which have no gradient. That
    of the others is infinite where two singular values are equal, or one is 0. The first component of a column of U that is at
    least half as large as its largest is positive, on every device. ``driver`` chooses a routine of cuSOLVER's in PyTorch, and
    is not looked at.
    """
    u, s, vh = factors.svd(A)
    if full_matrices:
        u, vh = _completed(u), sh.transpose(_completed(sh.transpose(vh, -2, -1)), -2, -1)
    return SVD(u, s, vh)


def _completed(u: Tensor) -> Tensor:
    """Orthonormal columns, and further ones up to a square."""
    rows, columns = u.spec.shape[-2:]
    if rows == columns:
        return u
    q, _ = factors.qr(u.detach(), complete=True)
    return sh.cat([u, movement.narrow(q, q.spec.ndim - 1, columns, rows - columns)], -1)


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of :func:`svd`, whose vectors are given back at once unless a gradient needs them."""
    return factors.svd(A)[1]


def singular_norm(A: Tensor, ord: Any, rows: int, columns: int, keepdim: bool) -> Tensor:
    """The largest (2), the smallest (-2) or the sum ("nuc") of the singular values of the matrices in two dimensions."""
    others = [d for d in range(A.spec.ndim) if d not in (rows, columns)]
    s = svdvals(movement.permute(A, dims=(*others, rows, columns)))
    found = m.sum(s, -1) if ord == "nuc" or not s.spec.shape[-1] else m.amax(s, -1) if ord == 2 else m.amin(s, -1)
    if keepdim:
        for d in sorted((rows, columns)):
            found = sh.unsqueeze(found, d)
    return found


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q and R of matrices [..., m, n]: Q is [..., m, k] for ``mode`` "reduced", k = min(m, n), or [..., m, m] for "complete".

    For "r", Q is empty. A "complete" Q with m > n has no gradient.
    """
    if mode not in ("reduced", "complete", "r"):
        raise SpecError(f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'")
    q, r = factors.qr(A, complete=mode == "complete")
    return QR(creation.empty(shape=(0,), dtype=A.spec.dtype, device=A.storage.device) if mode == "r" else q, r)


def _tolerances(A: Tensor, atol: float | None, rtol: float | None) -> tuple[float, float]:
    """atol and rtol; without both, rtol is the dtype's epsilon times the larger of the two sizes."""
    if rtol is None:
        rtol = 0.0 if atol else float(np.finfo(A.spec.dtype).eps) * max(A.spec.shape[-2:])
    return float(atol or 0.0), float(rtol)


def _symmetric(name: str, A: Tensor) -> Tensor:
    """The matrices whose lower triangles are those of A, with the gradient of all of A, as the gradient of eigh has."""
    need_square(name, A.spec)
    found = tril(A) + sh.transpose(tril(A.detach(), -1), -2, -1)
    if not A.requires_grad:
        return found
    above = triu(A, 1)
    # 0, unless what is not read is no number.
    nothing = above - above.detach()
    return found + elementwise.where(elementwise.eq(nothing.detach(), 0), nothing, 0.0)


def pinv(A: Tensor, rcond: float | None = None, hermitian: bool = False, *, atol: float | None = None,
         rtol: float | None = None) -> Tensor:
    """The pseudoinverses [..., n, m] of matrices [..., m, n], by singular values larger than both tolerances.

    These are ``atol`` and ``rtol`` times the largest singular value; without either, ``rtol`` is max(m, n) times the dtype's
    epsilon. ``rcond`` is an older name of ``rtol``. With ``hermitian``, the matrices are taken to be symmetric, and their lower
    triangles are read. The gradient is that of matrices of the same rank.
    """
    if A.spec.ndim < 2:
        raise SpecError(f"linalg.pinv: The input tensor A must have at least 2 dimensions, but got shape {list(A.spec.shape)}")
    if not A.spec.floating:
        raise SpecError(f"linalg.pinv: expected a tensor of a floating dtype, but got {A.spec}")
    atol, rtol = _tolerances(A, atol, rcond if rtol is None else rtol)
    return factors.pinv(_symmetric("pinv", A) if hermitian else A, atol=atol, rtol=rtol)


def matrix_rank(A: Tensor, tol: float | None = None, hermitian: bool = False, *, atol: float | None = None,
                rtol: float | None = None) -> Tensor:
    """How many singular values of each matrix are larger than both tolerances, which are those of :func:`pinv`; int64.

    ``tol`` is an older name of ``atol``.
    """
    atol = tol if atol is None else atol
    s = svdvals(_symmetric("matrix_rank", A) if hermitian else A)
    if not s.spec.shape[-1]:
        return m.sum(elementwise.gt(s, 0), -1)
    atol, rtol = _tolerances(A, atol, rtol)
    least = elementwise.maximum(movement.narrow(s, s.spec.ndim - 1, 0, 1) * rtol, atol)
    return m.sum(elementwise.gt(s, least), -1)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The X of least norm that minimizes the norm of A X - B: A [..., m, n], B [..., m, k], or vectors [..., m].

    It is the pseudoinverse of A times B, for matrices of any rank, without singular values up to ``rcond`` times the largest,
    as PyTorch's driver "gelsd" computes it; ``driver`` is not looked at. ``residuals`` and ``singular_values`` are empty, as
    by PyTorch's default driver on a CPU.
    """
    vectors = B.spec.ndim == A.spec.ndim - 1
    right = sh.unsqueeze(B, -1) if vectors else B
    with left_alone():
        found = m.matmul(pinv(A, rtol=rcond), right)
    none = creation.empty(shape=(0,), dtype=A.spec.dtype, device=A.storage.device)
    return LeastSquares(sh.squeeze(found, -1) if vectors else found, none, matrix_rank(A.detach(), rtol=rcond), none)


class USV(NamedTuple):
    """U [..., m, k], descending S [..., k] and V [..., n, k] of A = U diag(S) V^T."""

    U: Any
    S: Any
    V: Any


def _older_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> USV:
    """``gradcore.svd``: U, S and V, whose vectors are columns; zeros [..., m, m] and [..., n, n] without ``compute_uv``."""
    if not compute_uv:
        if input.spec.ndim < 2:
            raise SpecError(f"svd: expected matrices [..., m, n], but got shape {list(input.spec.shape)}")
        *lead, m, n = input.spec.shape
        u, v = (creation.new_full(input, (*lead, size, size), 0.0) for size in (m, n))
        return USV(u, svdvals(input), v)
    u, s, vh = svd(input, not some)
    return USV(u, s, sh.transpose(vh, -2, -1))


def _older_qr(input: Tensor, some: bool = True) -> QR:
    """``gradcore.qr``: :func:`qr` in its "reduced" mode, or "complete" without ``some``."""
    return qr(input, "reduced" if some else "complete")


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """:func:`pinv` with ``rcond`` as ``rtol``."""
    return pinv(input, rtol=rcond)


# In errors and in help() they have the names that programs call them by.
_older_svd.__name__ = _older_svd.__qualname__ = "svd"
_older_qr.__name__ = _older_qr.__qualname__ = "qr"

TENSOR_METHODS = {"svd": _older_svd, "qr": _older_qr, "pinverse": pinverse}
