"""``gradcore.linalg``: norms, inverses, equations, determinants and factors, with the signatures of ``torch.linalg``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradcore.engine.autocast import left_alone
from gradcore.engine.operands import real
from gradcore.errors import LinAlgError, SpecError
from gradcore.functional import factors, matrices
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.factors import *  # noqa: F403
from gradcore.functional.factors import singular_norm, svdvals
from gradcore.functional.matrices import diagonal as _diagonal
from gradcore.functional.products import cross as _cross
from gradcore.functional.products import multi_dot
from gradcore.ops import creation, decompositions, elementwise, pointwise, reduce
from gradcore.ops.decompositions import need_square
from gradcore.ops.shapes import need_float
from gradcore.spec import broadcast_shapes, normalize_dims

Tensor = Any
Dim = int | Sequence[int] | None

__all__ = [  # noqa: PLE0604 - strings all
    *factors.__all__, "LinAlgError", "SlogDet", "cholesky", "cond", "cross", "det", "diagonal", "inv", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "multi_dot", "norm", "slogdet", "solve", "solve_triangular", "tensorinv",
    "tensorsolve", "vander", "vecdot", "vector_norm"]


class SlogDet(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Any
    logabsdet: Any


# -- norms -----------------------------------------------------------------------------------------------------------------


def vector_norm(x: Tensor, ord: float = 2, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """(sum |x|^ord)^(1 / ord) over ``dim``, or of all elements; the largest |x| for inf, the number of nonzero x for 0."""
    x = x if dtype is None else x.to(dtype)
    return reduce.vector_norm(x, p=real(ord), dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: int | Sequence[int] = (-2, -1), keepdim: bool = False, *,
                dtype: Any = None) -> Tensor:
    """A norm of the matrices in two dimensions: "fro"; the largest (1) or smallest (-1) column sum of |A|; inf, -inf for rows;
    the largest (2), the smallest (-2) or the sum ("nuc") of the singular values.
    """
    if A.spec.ndim < 2:
        raise SpecError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions, but got shape "
                        f"{list(A.spec.shape)}")
    if isinstance(dim, int) or len(dim) != 2:
        raise SpecError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {dim}")
    A = A if dtype is None else A.to(dtype)
    rows, columns = (sh.dim_of(d, A) for d in dim)
    if rows == columns:
        raise SpecError(f"linalg.matrix_norm: dims must be different. Got ({dim[0]}, {dim[1]})")
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord in (2, -2, "nuc"):
        return singular_norm(A, ord, rows, columns, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise SpecError(f"linalg.matrix_norm: Order {ord} not supported: expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    summed, over = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = vector_norm(A, 1, summed, keepdim=True)
    # Without any rows or columns to compare, the largest sum is 0.
    found = (m.amin if ord < 0 else m.amax if sums.spec.shape[over] else m.sum)(sums, over, True)
    return found if keepdim else sh.squeeze(found, (rows, columns))


def norm(A: Tensor, ord: Any = None, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The 2-norm of all elements; with ``ord`` or ``dim``, :func:`vector_norm`, or :func:`matrix_norm` over two dimensions."""
    pair = dim is not None and not isinstance(dim, int) and len(dim) == 2
    if ord is not None and (pair or (dim is None and A.spec.ndim == 2)):
        assert not isinstance(dim, int)
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    if isinstance(ord, str) and not (ord == "fro" and pair):
        raise SpecError(f"linalg.norm: ord={ord!r} is a matrix norm, which needs two dimensions, but got dim={dim} of "
                        f"{list(A.spec.shape)}")
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


# -- equations -------------------------------------------------------------------------------------------------------------


def inv(A: Tensor) -> Tensor:
    """The inverses of matrices [..., n, n]. For a singular one the CPU raises :class:`LinAlgError`; a GPU gives infinities."""
    return decompositions.inv(A)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution X of A X = B, or X A = B with ``left=False``: A [..., n, n], B [..., n, k], or vectors [..., n].

    Leading dimensions broadcast.
    """
    if A.spec.ndim < 2 or not B.spec.ndim:
        raise SpecError(f"linalg.solve: The input tensor A must have at least 2 dimensions and B at least 1, but got "
                        f"{list(A.spec.shape)} and {list(B.spec.shape)}")
    vector = B.spec.ndim == 1 or (A.spec.ndim - 1 == B.spec.ndim and B.spec.shape == A.spec.shape[:-1])
    right = sh.unsqueeze(B, -1) if vector else B if left else sh.transpose(B, -2, -1)
    found = _solved(A, right, transpose=not left)
    return sh.squeeze(found, -1) if vector else found if left else sh.transpose(found, -2, -1)


def _solved(a: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """The X of A X = B, or A^T X = B, for matrices: those of B that share one of A are solved as columns of one system."""
    lead, square, (rows, columns) = broadcast_shapes(a.spec.shape[:-2], b.spec.shape[:-2]), a.spec.shape[-2:], b.spec.shape[-2:]
    n, b = len(lead), sh.expand(b, (*lead, rows, columns))
    many = next((d for d, size in enumerate(a.spec.shape[:-2], n + 2 - a.spec.ndim) if size != 1), n)
    count = math.prod(lead[:many])
    if count == 1:
        return decompositions.solve(sh.expand(a, (*lead, *square)), b, transpose=transpose)
    a = sh.expand(sh.reshape(a, a.spec.shape[many - n - 2:]), (*lead[many:], *square))
    beside = sh.permute(b, (*range(many, n + 1), *range(many), n + 1))
    found = decompositions.solve(a, sh.reshape(beside, (*lead[many:], rows, count * columns)), transpose=transpose)
    return sh.permute(sh.reshape(found, beside.spec.shape), (*range(n - many + 1, n + 1), *range(n - many + 1), n + 1))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The solution X of A X = B, or X A = B with ``left=False``: A [..., n, n], of which one triangle is read, B [..., n, k].

    ``upper`` says which one; with ``unitriangular`` its diagonal is taken to be ones. Leading dimensions broadcast. It is
    :func:`solve` of a copy with zeros elsewhere.
    """
    if A.spec.ndim < 2 or B.spec.ndim < 2:
        raise SpecError(f"linalg.solve_triangular: A and B must have at least 2 dimensions, but got {list(A.spec.shape)} and "
                        f"{list(B.spec.shape)}")
    offset = int(unitriangular)
    half = A.triu(offset) if upper else A.tril(-offset)
    if unitriangular:
        half = half + creation.identity_of(A)
    # Between matrices, so that no B is taken for vectors.
    lead = broadcast_shapes(A.spec.shape[:-2], B.spec.shape[:-2])
    return solve(half, sh.expand(B, (*lead, *B.spec.shape[-2:])), left=left)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L of A = L L^T, or L^T with ``upper``; only that triangle of A is read.

    On the CPU, raises :class:`LinAlgError` if A is not positive definite.
    """
    decompositions.need_square("cholesky", A.spec)
    return sh.transpose(decompositions.cholesky(sh.transpose(A, -2, -1)), -2, -1) if upper else decompositions.cholesky(A)


def cholesky_solve(input: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """The X of A X = ``input`` [..., n, k], for A = L L^T and ``input2`` = L, or A = U^T U and an ``upper`` one = U."""
    half = solve_triangular(input2.mT if upper else input2, input, upper=False)
    return solve_triangular(input2 if upper else input2.mT, half, upper=True)


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A = L L^T with ``input`` as L, or of A = U^T U with an ``upper`` one as U."""
    decompositions.need_square("cholesky_inverse", input.spec)
    return cholesky_solve(creation.identity_of(input), input, upper)


def det(A: Tensor) -> Tensor:
    """The determinants of matrices [..., n, n]. Backward solves with A, and raises :class:`LinAlgError` if it is singular."""
    return decompositions.det(A)


def slogdet(A: Tensor) -> SlogDet:
    """The signs of the determinants, and the logarithms of their absolute values."""
    return SlogDet(*decompositions.slogdet(A))


def logdet(input: Tensor) -> Tensor:
    """The logarithms of the determinants; NaN for a negative one."""
    sign, logabsdet = decompositions.slogdet(input)
    return elementwise.where(elementwise.lt(sign, 0), math.nan, logabsdet)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition numbers in a norm of :func:`matrix_norm`, 2 unless given; in others than 2 and -2, that of A times that of
    its inverse, which a singular A has none of."""
    if p in (None, 2, -2):
        s = svdvals(A)
        if not s.spec.shape[-1]:
            return m.sum(s, -1)
        largest, smallest = m.amax(s, -1), m.amin(s, -1)
        return smallest / largest if p == -2 else largest / smallest
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The ``n``-th power of square matrices, by repeated squaring; for a negative ``n``, that of the inverse."""
    if A.spec.ndim < 2 or A.spec.shape[-2] != A.spec.shape[-1]:
        raise SpecError(f"linalg.matrix_power: A must be batches of square matrices, but got shape {list(A.spec.shape)}")
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 1:
        return sh.clone(A)
    result = None
    while n:
        if n & 1:
            result = A if result is None else m.matmul(result, A)
        n >>= 1
        A = m.matmul(A, A) if n else A
    if result is not None:
        return result
    # Multiplied by A ** 0, for a gradient of zeros.
    return elementwise.pow(A, 0) * creation.identity_of(A)


#: Taylor's series of so many terms has the digits of float64 up to a norm of 1/2; it is squared at most so often.
_TERMS, _SQUARINGS = 14, 13


def matrix_exp(A: Tensor) -> Tensor:
    """The exponentials of square matrices [..., n, n] of a floating type, up to a 1-norm of 4096.

    The series of A / 2^s, squared s times: s depends on the norm and is not read on the host, so as many products are
    computed for each A, and those that are too many are not taken. Of larger norms it loses digits, from 65,536 on all of them.
    """
    need_square("matrix_exp", A.spec)
    need_float("matrix_exp", A=A.spec)
    norm = matrix_norm(A.detach(), 1)[..., None, None]
    times = elementwise.clamp(elementwise.ceil(elementwise.log2(norm * 2)), 0, _SQUARINGS)
    small = A * pointwise.exp2(-times)
    one = creation.identity_of(A)
    found = one + small / _TERMS
    with left_alone():
        for k in range(_TERMS - 1, 0, -1):
            found = one + m.matmul(small, found) / k
        for k in range(_SQUARINGS):
            found = elementwise.where(elementwise.gt(times, k), m.matmul(found, found), found)
    return found


def tensorinv(input: Tensor, ind: int = 2) -> Tensor:
    """The inverse of a matrix of the first ``ind`` dimensions by the others, [*others, *first]; see :func:`inv`."""
    if ind < 1:
        raise SpecError(f"linalg.tensorinv: Expected a strictly positive integer for 'ind', but got {ind}")
    shape = input.spec.shape
    if math.prod(shape[:ind]) != math.prod(shape[ind:]):
        raise SpecError(f"linalg.tensorinv: Expected self to satisfy the requirement prod(self.shape[ind:]) == "
                        f"prod(self.shape[:ind]), but got {math.prod(shape[ind:])} != {math.prod(shape[:ind])}")
    return sh.reshape(inv(sh.reshape(input, (math.prod(shape[:ind]), -1))), (*shape[ind:], *shape[:ind]))


def tensorsolve(input: Tensor, other: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The X with tensordot(input, X, X.ndim) = other, for an input [*other.shape, *X.shape] once ``dims`` are its last ones."""
    if dims is not None:
        n, last = input.spec.ndim, normalize_dims(dims, input.spec.ndim)
        input = sh.permute(input, (*(d for d in range(n) if d not in last), *(d % n for d in dims)))
    ahead, shape = input.spec.shape[:other.spec.ndim], input.spec.shape[other.spec.ndim:]
    if not math.prod(ahead) == math.prod(shape) == other.spec.numel:
        raise SpecError(f"linalg.tensorsolve: Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
                        f"prod(self.shape[:other.ndim]), but got {math.prod(shape)} != {math.prod(ahead)} for other of shape "
                        f"{list(other.spec.shape)}")
    return sh.reshape(solve(sh.reshape(input, (other.spec.numel, -1)), sh.reshape(other, -1)), shape)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Vandermonde matrices [..., n, N] of vectors [..., n]: their powers as columns, from 0 on. ``N`` is n by default."""
    shape = x.spec.shape or (1,)
    count = shape[-1] if N is None else N
    if count < 2:
        raise SpecError(f"linalg.vander: N must be greater than 1, but got N={N} for {list(x.spec.shape)}")
    return sh.reshape(matrices.vander(sh.reshape(x, -1), count, increasing=True), (*shape, count))


# -- products --------------------------------------------------------------------------------------------------------------


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """:func:`gradcore.matmul`."""
    return m.matmul(input, other)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Dot products along ``dim``; the other dimensions broadcast."""
    return m.sum(x * y, dim)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product along ``dim``, of size 3."""
    return _cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of a diagonal of two dimensions, as the last dimension."""
    return _diagonal(A, offset, dim1, dim2)


#: Methods of a tensor, such as ``x.inverse()`` and ``x.det()``.
TENSOR_METHODS = {"inverse": inv, "det": det, "slogdet": slogdet, "logdet": logdet, "matrix_power": matrix_power,
                  "matrix_exp": matrix_exp, "cholesky_solve": cholesky_solve, "cholesky_inverse": cholesky_inverse,
                  **factors.TENSOR_METHODS}
