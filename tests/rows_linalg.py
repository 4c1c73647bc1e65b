"""Sample calls of the decompositions. Random matrices are far enough from singular ones; positive definite ones are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Operand, Row, floats

ROWS: list[Row] = []


def regular(*shape: int, layout: str = "plain") -> Operand:
    """Diagonally dominant matrices, with some negative diagonal elements."""
    rng = np.random.default_rng(3)
    n = shape[-1]
    values = rng.uniform(-1, 1, shape) + np.eye(n) * rng.choice((-1, 1), n) * (n + 1) * 0.5
    if n > 1:
        # So that elimination has to exchange rows.
        values = np.roll(values, 1, -2)
        values[..., 0, 0] = 0
    return floats(*shape, layout=layout, given=tuple((values.T if layout == "transposed" else values).reshape(-1).tolist()))


def definite(*shape: int) -> Operand:
    rng = np.random.default_rng(4)
    a = rng.uniform(-1, 1, shape)
    return floats(*shape, given=tuple((a @ a.swapaxes(-1, -2) + np.eye(shape[-1]) * 2).reshape(-1).tolist()))


_MATRICES = {"one": regular(3, 3), "batch": regular(2, 3, 3), "batches": regular(2, 2, 2, 2), "1 by 1": regular(1, 1),
             "transposed": regular(4, 4, layout="transposed"), "no elements": floats(0, 0), "no matrices": floats(0, 3, 3)}


def _solve(t: Any, a: Any, b: Any, transpose: bool) -> Any:
    return t.linalg.solve(a.mT if transpose else a, b)


ROWS += [
    *[Row("inv", k, (a,), torch=lambda t, a: t.linalg.inv(a), tolerance=1e-4) for k, a in _MATRICES.items()],
    *[Row("det", k, (a,), torch=lambda t, a: t.linalg.det(a), tolerance=1e-4) for k, a in _MATRICES.items()],
    *[Row("slogdet", k, (a,), torch=lambda t, a: tuple(t.linalg.slogdet(a)), tolerance=1e-4) for k, a in _MATRICES.items()],
    *[Row("solve", f"{k} {transpose:d}", (a, floats(*a.shape[:-1], columns)), {"transpose": transpose}, tolerance=1e-4,
          torch=lambda t, a, b, tr=transpose: _solve(t, a, b, tr))
      for transpose in (False, True) for k, a in _MATRICES.items() for columns in (2,)],
    *[Row("cholesky", k, (a,), torch=lambda t, a: t.linalg.cholesky(a), smooth=False, tolerance=1e-4)
      for k, a in {"one": definite(3, 3), "batch": definite(2, 3, 3), "1 by 1": definite(1, 1), "no elements": floats(0, 0),
                   "wide": definite(20, 20)}.items()],
]
