"""Systems of equations, inverses, determinants and Cholesky factors of the last two dimensions.

Backward solves with what was given, or multiplies with the result: no factors are kept. Formulas: Giles, Collected Matrix
Derivative Results for Forward and Reverse Mode Algorithmic Differentiation, 2008.
"""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.arrangement import tril
from gradcore.ops.linalg import matmul
from gradcore.ops.movement import permute, reshape
from gradcore.ops.op import Inferred, joint, op
from gradcore.spec import TensorSpec


def need_square(name: str, a: TensorSpec) -> None:
    """Raise :class:`SpecError` for what is not square matrices, or not of at least single precision."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise SpecError(f"linalg.{name}: A must be batches of square matrices, but got shape {list(a.shape)}")
    need_wide(name, a)


def need_wide(name: str, a: TensorSpec) -> None:
    """Raise :class:`SpecError` for a dtype below single precision."""
    if not a.floating or a.dtype.itemsize < 4:
        raise SpecError(f"linalg.{name}: Low precision dtypes and integers are not supported. Got {a.dtype.name}")


def _result(a: TensorSpec, *outputs: TensorSpec, workspace: int) -> Inferred:
    """Room for a copy of the matrices, in which a device eliminates; NumPy takes copies in double precision by itself."""
    return Inferred(outputs, workspace=workspace, library=5 * (a.nbytes + sum(s.nbytes for s in outputs)))


def _inv_spec(a: TensorSpec) -> Inferred:
    need_square("inv", a)
    return _result(a, a.like(), workspace=a.nbytes)


def _solve_spec(a: TensorSpec, b: TensorSpec, *, transpose: bool = False) -> Inferred:
    need_square("solve", a)
    if b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1] or b.dtype != a.dtype:
        raise SpecError(f"linalg.solve: Incompatible shapes or types of A and B for the equation AX = B: {a} and {b}")
    return _result(a, b.like(), workspace=a.nbytes)


def _cholesky_spec(a: TensorSpec) -> Inferred:
    need_square("cholesky", a)
    return _result(a, a.like(), workspace=0)


def _slogdet_spec(a: TensorSpec) -> Inferred:
    need_square("slogdet", a)
    out = TensorSpec.of(a.shape[:-2], a.dtype)
    return _result(a, out, out, workspace=a.nbytes)


def _det_spec(a: TensorSpec) -> Inferred:
    need_square("det", a)
    return _result(a, TensorSpec.of(a.shape[:-2], a.dtype), workspace=a.nbytes)


def transposed(x: Any) -> Any:
    """The last two dimensions changed about; a view."""
    n = x.spec.ndim
    return permute(x, dims=(*range(n - 2), n - 1, n - 2))


def _column(g: Any) -> Any:
    """A number for each matrix, as matrices of one element."""
    return reshape(g, (*g.spec.shape, 1, 1))


def _inv_rule(g: Any, out: Any) -> Any:
    return -matmul(matmul(out, g, transpose_a=True), out, transpose_b=True)


def _solve_rule(g: Any, a: Any, out: Any, transpose: bool, needs: tuple[bool, ...]) -> Any:
    to_b = solve(a, g, transpose=not transpose)
    if not needs[0]:
        return None, to_b
    to_a = -matmul(out, to_b, transpose_b=True) if transpose else -matmul(to_b, out, transpose_b=True)
    return to_a, to_b if needs[1] else None


def _cholesky_rule(g: Any, out: Any) -> Any:
    """L^-T F L^-1 made symmetric, F being the lower triangle of L^T g with half its diagonal."""
    product = matmul(out, tril(g, diagonal=0), transpose_a=True)
    half = (tril(product, diagonal=0) + tril(product, diagonal=-1)) * 0.5
    inner = solve(out, half, transpose=True)
    found = solve(out, transposed(inner), transpose=True)
    return (found + transposed(found)) * 0.5


inv = op("inv", _inv_spec, contiguous=True, a=_inv_rule)
solve = op("solve", _solve_spec, joint("a", "b", out=("a",))(_solve_rule), contiguous=True,
           doc="X of A X = B, or of A^T X = B.")
cholesky = op("cholesky", _cholesky_spec, contiguous=True, a=_cholesky_rule, doc="The lower L of A = L L^T.")
slogdet = op("slogdet", _slogdet_spec, contiguous=True, outputs=("sign", "logabsdet"),
             a=lambda g_logabsdet, a: None if g_logabsdet is None else _column(g_logabsdet) * transposed(inv(a)))
det = op("det", _det_spec, contiguous=True, a=lambda g, a, out: _column(g * out) * transposed(inv(a)))
