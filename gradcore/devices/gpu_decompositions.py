"""Systems of equations, determinants and Cholesky factors on the GPU, by gradcore's own kernels with a block for each matrix.

cuSOLVER would allocate by itself, and its errors are read on the host. Singular matrices give infinities and NaN here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import copy
from gradcore.devices.gpu_elementwise import strided as show
from gradcore.devices.kernels import split_workspace


def _copied(a: Any, workspace: Any, transpose: bool = False) -> Any:
    """A copy of the matrices in the workspace, where elimination may overwrite them."""
    made = split_workspace(workspace, (a.size, a.dtype))[0].reshape(a.shape)
    copy(a.swapaxes(-1, -2) if transpose else a, made)
    return made


def _count(a: Any) -> int:
    return int(a.size // max(a.shape[-1] ** 2, 1))


def _eliminate(a: Any, b: Any) -> None:
    if b.size:
        gl.run_blocks("decompose", "eliminate", (a.dtype,), _count(a), a, b, np.int64(a.shape[-1]), np.int64(b.shape[-1]))


@gl.kernel
def inv(a: Any, out: Any, workspace: Any) -> None:
    n = a.shape[-1]
    gl.zero(out)
    if out.size:
        copy(1, show(out.reshape(-1), (_count(a), n), (n * n, n + 1), 0))
    _eliminate(_copied(a, workspace), out)


@gl.kernel
def solve(a: Any, b: Any, out: Any, workspace: Any, *, transpose: bool = False) -> None:
    copy(b, out)
    _eliminate(_copied(a, workspace, transpose), out)


@gl.kernel
def cholesky(a: Any, out: Any, workspace: Any) -> None:
    gl.run_blocks("decompose", "cholesky", (a.dtype,), _count(a), a, out, np.int64(a.shape[-1]))


def _determinant(a: Any, out: Any, logarithm: Any, workspace: Any) -> None:
    if a.size:
        gl.run_blocks("decompose", "determinant", (a.dtype,), _count(a), _copied(a, workspace), out, logarithm,
                      np.int64(a.shape[-1]))
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
