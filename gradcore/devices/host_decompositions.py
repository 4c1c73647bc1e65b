"""Systems of equations, determinants and Cholesky factors on the CPU, by LAPACK; see ``ops.decompositions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import Array, kernel
from gradcore.errors import LinAlgError


def by_lapack(name: str, function: Callable[..., Any], *arrays: Array) -> Any:
    """What the function returns. Raises :class:`LinAlgError`, naming the matrices, where LAPACK gives up."""
    try:
        return function(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"linalg.{name}: {error} of shape {list(arrays[0].shape)}") from None


@kernel
def inv(a: Array, out: Array, workspace: Array) -> None:
    out[...] = by_lapack("inv", np.linalg.inv, a)


@kernel
def solve(a: Array, b: Array, out: Array, workspace: Array, *, transpose: bool = False) -> None:
    out[...] = by_lapack("solve", np.linalg.solve, a.swapaxes(-1, -2) if transpose else a, b)


@kernel
def cholesky(a: Array, out: Array, workspace: Array) -> None:
    out[...] = by_lapack("cholesky", np.linalg.cholesky, a)


@kernel
def slogdet(a: Array, sign: Array, logabsdet: Array, workspace: Array) -> None:
    sign[...], logabsdet[...] = np.linalg.slogdet(a)


@kernel
def det(a: Array, out: Array, workspace: Array) -> None:
    out[...] = np.linalg.det(a)
