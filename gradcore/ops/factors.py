"""Eigenvalues, singular values, QR factors and pseudoinverses of the last two dimensions.

Each singular vector on the left, and each eigenvector, has a sign that all devices agree on: the first component that is at
least half as large as the largest is positive. Backward reads the factors alone. Formulas: Giles, Collected Matrix Derivative
Results for Forward and Reverse Mode Algorithmic Differentiation, 2008; Walter and Lehmann, Algorithmic Differentiation of
Linear Algebra Functions with Application in Optimum Experimental Design, 2010, for QR; Golub and Pereyra, The Differentiation
of Pseudo-Inverses and Nonlinear Least Squares Problems Whose Variables Separate, 1973.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.arrangement import tril, triu
from gradcore.ops.creation import identity_of, zeros_of
from gradcore.ops.decompositions import need_square, need_wide, solve, transposed
from gradcore.ops.elementwise import square
from gradcore.ops.linalg import matmul
from gradcore.ops.movement import as_strided_grad, cat, column, narrow, reshape
from gradcore.ops.op import Inferred, op
from gradcore.spec import TensorSpec, contiguous_strides


def _result(a: TensorSpec, *outputs: TensorSpec, elements: int, pieces: int = 1) -> Inferred:
    """Workspace of so many ``elements`` for each matrix, in pieces that begin at multiples of 16 bytes, for a GPU; LAPACK takes
    its own."""
    return Inferred(outputs, workspace=math.prod(a.shape[:-2]) * elements * a.dtype.itemsize + 16 * (pieces - 1),
                    library=12 * (a.nbytes + sum(s.nbytes for s in outputs)))


def _matrices(name: str, a: TensorSpec) -> tuple[int, int, int]:
    """Rows, columns, and the smaller of the two."""
    if a.ndim < 2:
        raise SpecError(f"linalg.{name}: The input tensor A must have at least 2 dimensions, but got shape {list(a.shape)}")
    need_wide(name, a)
    m, n = a.shape[-2:]
    return m, n, min(m, n)


def _eigh_spec(a: TensorSpec) -> Inferred:
    need_square("eigh", a)
    n = a.shape[-1]
    return _result(a, TensorSpec.of(a.shape[:-1], a.dtype), a.like(), elements=2 * n * n + n)


def _svd_spec(a: TensorSpec) -> Inferred:
    m, n, k = _matrices("svd", a)
    u, s, vh = (TensorSpec.of((*a.shape[:-2], *size), a.dtype) for size in ((m, k), (k,), (k, n)))
    return _result(a, u, s, vh, elements=2 * m * n + k * k + 2 * k)


def _qr_spec(a: TensorSpec, *, complete: bool = False) -> Inferred:
    m, n, k = _matrices("qr", a)
    k = m if complete else k
    q, r = (TensorSpec.of((*a.shape[:-2], *size), a.dtype) for size in ((m, k), (k, n)))
    return _result(a, q, r, elements=m * n + min(m, n))


def _pinv_spec(a: TensorSpec, *, atol: float = 0.0, rtol: float) -> Inferred:
    m, n, k = _matrices("pinv", a)
    # U, S and V^T, and what svd takes.
    return _result(a, TensorSpec.of((*a.shape[:-2], n, m), a.dtype), elements=3 * m * n + 2 * k * k + 3 * k, pieces=4)


# -- gradients -------------------------------------------------------------------------------------------------------------


def _row(x: Any) -> Any:
    return reshape(x, (*x.spec.shape[:-1], 1, x.spec.shape[-1]))


def _diagonal(x: Any) -> Any:
    """Matrices with the last dimension of x on their diagonals."""
    n = x.spec.shape[-1]
    shape = (*x.spec.shape, n)
    *lead, _, _ = strides = contiguous_strides(shape)
    return as_strided_grad(x, like=shape, strides=(*lead, strides[-2] + strides[-1]), offset=0)


def _over_gaps(x: Any, values: Any) -> Any:
    """The elements of x off the diagonal, over the column's value less the row's: infinite where two values are equal."""
    found = x / (_row(values) - column(values) + identity_of(x))
    return tril(found, diagonal=-1) + triu(found, diagonal=1)


def _skew(x: Any) -> Any:
    return x - transposed(x)


def _eigh_rule(g_values: Any, g_vectors: Any, values: Any, vectors: Any) -> Any:
    """Symmetric, as the matrices are."""
    if g_vectors is None:
        return matmul(vectors * _row(g_values), vectors, transpose_b=True)
    inner = _over_gaps(_skew(matmul(vectors, g_vectors, transpose_a=True)) * 0.5, values)
    if g_values is not None:
        inner = inner + _diagonal(g_values)
    return matmul(matmul(vectors, inner), vectors, transpose_b=True)


def _svd_rule(g_u: Any, g_s: Any, g_vh: Any, u: Any, s: Any, vh: Any) -> Any:
    """U (K(U^T g_u) S + S K(V^T g_v) + diag(g_s)) V^T, with K(X) the elements of X - X^T over gaps of squares, and what the
    cotangents have outside of the spaces of U and V, over S."""
    squares = square(s)
    found, inner, beside = [], [], None
    if g_u is not None:
        turned = matmul(u, g_u, transpose_a=True)
        inner.append(_over_gaps(_skew(turned), squares) * _row(s))
        if u.spec.shape[-2] > u.spec.shape[-1]:
            beside = (g_u - matmul(u, turned)) / _row(s)
    if g_vh is not None:
        turned = matmul(g_vh, vh, transpose_b=True)
        inner.append(_over_gaps(_skew(transposed(turned)), squares) * column(s))
        if vh.spec.shape[-1] > vh.spec.shape[-2]:
            found.append(matmul(u, (g_vh - matmul(turned, vh)) / column(s)))
    if g_s is not None:
        inner.append(_diagonal(g_s))
    left = matmul(u, functools.reduce(operator.add, inner))
    return functools.reduce(operator.add, [matmul(left if beside is None else left + beside, vh), *found])


def _qr_rule(g_q: Any, g_r: Any, q: Any, r: Any, complete: bool) -> Any:
    """Of the columns that make Q; the others, B = Q W, are linear in what they give."""
    m, n = r.spec.shape[-2:]
    if q.spec.shape[-2] > n and complete:
        raise SpecError("linalg.qr: The QR decomposition is not differentiable when mode='complete' and nrows > ncols; got "
                        f"A of shape {[*q.spec.shape[:-1], n]}")
    g_q, g_r = zeros_of(q) if g_q is None else g_q, zeros_of(r) if g_r is None else g_r
    g_beside = None
    if n > m:
        last = r.spec.ndim - 1
        w, g_w = (narrow(x, last, m, n - m) for x in (r, g_r))
        g_q = g_q + matmul(matmul(q, w), g_w, transpose_b=True)
        g_beside = matmul(q, g_w)
        r, g_r = (narrow(x, last, 0, m) for x in (r, g_r))
    inner = matmul(r, g_r, transpose_b=True) - matmul(g_q, q, transpose_a=True)
    inner = tril(inner, diagonal=0) + transposed(tril(inner, diagonal=-1))
    found = transposed(solve(r, transposed(g_q + matmul(q, inner))))
    return found if g_beside is None else cat([found, g_beside], dim=found.spec.ndim - 1)


def _pinv_rule(g: Any, a: Any, out: Any) -> Any:
    """(1 - A P) g^T P P^T + P^T P g^T (1 - P A) - P^T g P^T, for P of A: at constant rank."""
    turned = transposed(g)
    left = matmul(turned, matmul(out, out, transpose_b=True))
    right = matmul(matmul(out, out, transpose_a=True), turned)
    inside = matmul(matmul(out, g, transpose_a=True), out, transpose_b=True)
    return left - matmul(a, matmul(out, left)) + right - matmul(matmul(right, out), a) - inside


eigh = op("eigh", _eigh_spec, contiguous=True, outputs=("values", "vectors"), a=_eigh_rule,
          doc="Ascending eigenvalues, and eigenvectors as columns, of symmetric matrices, of which the lower triangle is read.")
svd = op("svd", _svd_spec, contiguous=True, outputs=("u", "s", "vh"), a=_svd_rule,
         doc="U, descending S and V^T of A = U diag(S) V^T, as many as there are singular values.")
qr = op("qr", _qr_spec, contiguous=True, outputs=("q", "r"), a=_qr_rule,
        doc="Q with orthonormal columns and upper triangular R of A = Q R, by Householder's reflections.")
pinv = op("pinv", _pinv_spec, contiguous=True, a=_pinv_rule,
          doc="The pseudoinverse, without the singular values that are at most the larger of atol and rtol times the largest.")
