"""Random numbers, dropout, and draws of distributions on the GPU, by Philox with the same bits as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.kernels import blocks_drawn, drawn_into, dropout_factor
from gradcore.dtypes import limits


@gl.kernel
def advance(state: Any, out: Any, *, numel: int) -> None:
    gl.start("random", "advance", 1, 1, (state, out, np.uint64(blocks_drawn(numel))))


@gl.kernel
def uniform(state: Any, low: Any, high: Any, out: Any, *, shape: Any, dtype: Any) -> None:
    gl.run("random", "uniform", (out.dtype,), -(-out.size // 4), state, np.float64(low), np.float64(high - low), out,
           np.int64(out.size))


@gl.kernel
def normal(state: Any, mean: Any, std: Any, out: Any, workspace: Any, *, shape: Any, dtype: Any) -> None:
    gl.run("random", "normal", (out.dtype,), -(-out.size // 4), state, np.float64(mean), np.float64(std), out,
           np.int64(out.size))


gl.KERNELS |= {"uniform_": drawn_into(advance, uniform), "normal_": drawn_into(advance, normal, room=True)}


@gl.kernel
def dropout(x: Any, state: Any, p: Any, out: Any, workspace: Any) -> None:
    gl.run("random", "dropout", (x.dtype,), -(-x.size // 8), x, state, np.float32(p), np.float64(dropout_factor(p)), out,
           np.int64(x.size))


# -- distributions -----------------------------------------------------------------------------------------------------


@gl.kernel
def standard_gamma(x: Any, state: Any, out: Any) -> None:
    gl.run("sampling", "standard_gamma", (x.dtype,), x.size, x, state, out, np.int64(x.size),
           np.float64(limits(out.dtype).tiny))


@gl.kernel
def standard_gamma_slope(concentration: Any, drawn: Any, out: Any) -> None:
    gl.run("sampling", "standard_gamma_slope", (out.dtype,), out.size, concentration, drawn, out, np.int64(out.size))


@gl.kernel
def poisson(x: Any, state: Any, out: Any) -> None:
    gl.run("sampling", "poisson", (x.dtype,), x.size, x, state, out, np.int64(x.size))


@gl.kernel
def binomial(count: Any, prob: Any, state: Any, out: Any) -> None:
    gl.run("sampling", "binomial", (out.dtype,), out.size, count, prob, state, out, np.int64(out.size))
