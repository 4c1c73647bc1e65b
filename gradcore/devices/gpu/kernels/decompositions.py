"""Systems of equations, determinants, matrix factors and eigenvalues on the GPU, by gradcore's own kernels with a block for
each matrix.

cuSOLVER would allocate by itself, reads its errors on the host, and CuPy refuses it in captures. Singular matrices give
infinities and NaN here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.movement import copy, strided
from gradcore.devices.kernels import split_workspace


def _copied(a: Any, workspace: Any, transpose: bool = False) -> Any:
    """A copy of the matrices in the workspace, where elimination may overwrite them."""
    made = split_workspace(workspace, (a.size, a.dtype))[0].reshape(a.shape)
    copy(a.swapaxes(-1, -2) if transpose else a, made)
    return made


def _sizes(a: Any) -> tuple[int, np.int64, np.int64]:
    """The number of matrices, and their rows and columns."""
    return math.prod(a.shape[:-2]), np.int64(a.shape[-2]), np.int64(a.shape[-1])


def _eliminate(a: Any, b: Any) -> None:
    if b.size:
        count, _, n = _sizes(a)
        gl.run_blocks("decompose", "eliminate", (a.dtype,), count, a, b, n, np.int64(b.shape[-1]))


@gl.kernel
def inv(a: Any, out: Any, workspace: Any) -> None:
    n = a.shape[-1]
    gl.zero(out)
    if out.size:
        copy(1, strided(out.reshape(-1), (math.prod(a.shape[:-2]), n), (n * n, n + 1), 0))
    _eliminate(_copied(a, workspace), out)


@gl.kernel
def solve(a: Any, b: Any, out: Any, workspace: Any, *, transpose: bool = False) -> None:
    copy(b, out)
    _eliminate(_copied(a, workspace, transpose), out)


@gl.kernel
def cholesky(a: Any, out: Any, workspace: Any) -> None:
    if a.size:
        count, _, n = _sizes(a)
        gl.run_blocks("decompose", "cholesky", (a.dtype,), count, a, out, n)


def _determinant(a: Any, out: Any, logarithm: Any, workspace: Any) -> None:
    if a.size:
        count, _, n = _sizes(a)
        gl.run_blocks("decompose", "determinant", (a.dtype,), count, _copied(a, workspace), out, logarithm, n)
    elif out.size:
        # The determinant of an empty matrix is 1.
        copy(1, out)
        if logarithm is not None:
            copy(0, logarithm)


@gl.kernel
def slogdet(a: Any, sign: Any, logabsdet: Any, workspace: Any) -> None:
    _determinant(a, sign, logabsdet, workspace)


@gl.kernel
def det(a: Any, out: Any, workspace: Any) -> None:
    _determinant(a, out, None, workspace)


# -- factors -----------------------------------------------------------------------------------------------------------


@gl.kernel
def eigh(a: Any, values: Any, vectors: Any, workspace: Any) -> None:
    if a.size:
        count, _, n = _sizes(a)
        gl.run_blocks("factors", "symmetric", (a.dtype,), count, a, values, vectors, workspace.view(a.dtype), n)


def _singular(a: Any, u: Any, s: Any, vh: Any, room: Any) -> None:
    if a.size:
        count, m, n = _sizes(a)
        gl.run_blocks("factors", "singular", (a.dtype,), count, a, u, s, vh, room, m, n)


@gl.kernel
def svd(a: Any, u: Any, s: Any, vh: Any, workspace: Any) -> None:
    _singular(a, u, s, vh, workspace.view(a.dtype))


@gl.kernel
def qr(a: Any, q: Any, r: Any, workspace: Any, *, complete: bool = False) -> None:
    if q.size:
        count, m, n = _sizes(a)
        gl.run_blocks("factors", "orthogonal", (a.dtype,), count, a, q, r, workspace.view(a.dtype), m, n,
                      np.int64(q.shape[-1]))


@gl.kernel
def pinv(a: Any, out: Any, workspace: Any, *, atol: float = 0.0, rtol: float) -> None:
    count, m, n = _sizes(a)
    k = int(min(m, n))
    pieces = [count * int(m) * k, count * k, count * k * int(n)]
    u, s, vh, room = split_workspace(workspace, *((size, a.dtype) for size in pieces),
                                     (count * int(2 * m * n + k * k + 2 * k), a.dtype))
    _singular(a, u, s, vh, room)
    gl.run("factors", "pseudoinverse", (a.dtype,), out.size, u, s, vh, out, m, n, np.int64(out.size), a.dtype.type(atol),
           a.dtype.type(rtol))
