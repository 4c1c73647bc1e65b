"""RMS norm on the CPU, in rows that stay in a core's cache."""

from __future__ import annotations

import math

import numpy as np

from gradcore.devices.host_kernels import Array, kernel, rows


@kernel
def rms_norm(x: Array, weight: Array | None, out: Array, workspace: Array, *, dims: int, eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    if not x.size:
        return
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    factors = workspace.view(x.dtype)
    for start in range(0, len(xs), rows(width)):
        part = slice(start, start + rows(width))
        r, y = factors[part], outs[part]
        np.vecdot(xs[part], xs[part], out=r)
        np.multiply(r, 1 / width, r)
        np.add(r, eps, r)
        np.sqrt(r, r)
        np.true_divide(xs[part], r[:, None], y)
        if weight is not None:
            np.multiply(y, weight.reshape(-1), y)
