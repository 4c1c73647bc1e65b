"""Sample calls of the factorizations, whose singular values and eigenvalues lie apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rows import Operand, Row, floats

ROWS: list[Row] = []


def spread(*shape: int, layout: str = "plain") -> Operand:
    """Matrices with singular values from 1 to 2 and more."""
    rng = np.random.default_rng(6)
    *lead, m, n = shape
    k = min(m, n)
    left, right = (np.linalg.qr(rng.normal(size=(*lead, size, k)))[0] for size in (m, n))
    values = left * np.linspace(2, 1, k) ** 2 @ right.swapaxes(-1, -2)
    return floats(*shape, layout=layout, given=tuple((values.T if layout == "transposed" else values).reshape(-1).tolist()))


def deficient(*shape: int) -> Operand:
    """Matrices whose last singular value is 0, exactly: their last two rows and columns are zeros."""
    values = np.zeros(shape)
    values[..., :-2, :-2] = np.random.default_rng(7).uniform(-1, 1, values[..., :-2, :-2].shape)
    return floats(*shape, given=tuple(values.reshape(-1).tolist()))


_SQUARE = {"one": spread(3, 3), "batch": spread(2, 3, 3), "batches": spread(2, 2, 2, 2), "1 by 1": spread(1, 1),
           "transposed": spread(4, 4, layout="transposed"), "no elements": floats(0, 0), "no matrices": floats(0, 3, 3)}
_ANY = {**_SQUARE, "tall": spread(5, 3), "wide": spread(3, 5), "tall batch": spread(2, 4, 2), "wide batch": spread(2, 2, 4),
        "a column": spread(4, 1), "a row": spread(1, 4), "no columns": floats(3, 0), "no rows": floats(2, 0, 3)}


def signed(t: Any, vectors: Any, *beside: Any) -> tuple[Any, ...]:
    """Columns of vectors, and ``beside``, with the signs that gradcore gives them."""
    if not vectors.numel():
        return vectors, *beside
    sizes = vectors.detach().abs()
    first = (sizes >= sizes.amax(-2, keepdim=True) / 2).to(t.uint8).argmax(-2, keepdim=True)
    signs = vectors.detach().gather(-2, first).sign()
    return vectors * signs, *(x * signs.mT for x in beside)


def svd(t: Any, a: Any) -> tuple[Any, ...]:
    u, s, vh = t.linalg.svd(a, full_matrices=False)
    u, vh = signed(t, u, vh)
    return u, s, vh


def _eigh(t: Any, a: Any) -> tuple[Any, ...]:
    values, vectors = t.linalg.eigh(a)
    return values, *signed(t, vectors)


ROWS += [
    *[Row("eigh", k, (a,), torch=_eigh, smooth=False, tolerance=1e-4) for k, a in _SQUARE.items()],
    # The squares of two values are equal.
    Row("eigh", "opposite", (floats(3, 3, given=(0, 2, 0, 2, 0, 0, 0, 0, 1)),), torch=_eigh, smooth=False, tolerance=1e-4),
    Row("eigh", "large", (spread(40, 40),), torch=_eigh, smooth=False, tolerance=1e-3),
    *[Row("svd", k, (a,), torch=svd, tolerance=1e-4) for k, a in _ANY.items()],
    *[Row("svd", k, (a,), torch=svd, smooth=False, tolerance=1e-3)
      for k, a in {"large": spread(40, 33), "large and wide": spread(12, 70)}.items()],
    *[Row("qr", f"{k} {complete:d}", (a,), {"complete": complete}, tolerance=1e-4,
          torch=lambda t, a, c=complete: tuple(t.linalg.qr(a, "complete" if c else "reduced")))
      for complete in (False, True) for k, a in _ANY.items() if not (complete and a.shape[-2] > a.shape[-1])],
    *[Row("pinv", k, (a,), {"rtol": 1e-5}, torch=lambda t, a: t.linalg.pinv(a, rtol=1e-5), tolerance=1e-4)
      for k, a in _ANY.items()],
    Row("pinv", "without small ones", (spread(4, 3),), {"atol": 2.0, "rtol": 0.0}, smooth=False, tolerance=1e-4,
        torch=lambda t, a: t.linalg.pinv(a, atol=2.0, rtol=0.0)),
    *[Row("pinv", f"deficient {k}", (a,), {"atol": 1e-3, "rtol": 0.0}, torch=lambda t, a: t.linalg.pinv(a, atol=1e-3, rtol=0.0),
          smooth=False, tolerance=1e-3) for k, a in {"square": deficient(4, 4), "tall": deficient(5, 4)}.items()],
]
