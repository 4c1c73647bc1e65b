"""Elements by rank: sorting, the largest few, the one in the middle are the same op with other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.ops.movement import take_along_grad
from gradcore.ops.op import Inferred, op
from gradcore.spec import PIECE, TensorSpec
from gradcore.tiling import SORTED_AT_ONCE


def _ranked_spec(x: TensorSpec, *, dim: int, start: int, length: int, descending: bool) -> Inferred:
    n = x.shape[dim] if x.ndim else 1
    if not 0 <= start <= start + length <= n:
        raise SpecError(f"selected index k out of range: ranks {start} to {start + length} of a dimension of {n} elements")
    shape = (*x.shape[:dim], length, *x.shape[dim + 1:]) if x.ndim else ()
    values = TensorSpec.of(shape, x.dtype)
    # A GPU sorts long lines where they lie: it needs all elements and their positions, unless all are results.
    workspace = 0 if length == n or n <= SORTED_AT_ONCE else x.numel * (x.dtype.itemsize + 8) + 16
    piece = min(x.numel, max(PIECE, n))
    return Inferred((values, values.like(np.int64)), workspace=workspace, library=piece * (2 * x.dtype.itemsize + 24))


def _ranked_rule(g_values: Any, indices: Any, x_spec: TensorSpec, dim: int) -> Any:
    return take_along_grad(g_values, indices, shape=x_spec.shape, dim=dim) if x_spec.ndim else g_values


ranked = op("ranked", _ranked_spec, outputs=("values", "indices"), contiguous=True, x=_ranked_rule,
            doc="Elements of the ranks start .. start + length along ``dim``, and their positions. Equal ones keep their "
                "order, and NaN is the largest.")
