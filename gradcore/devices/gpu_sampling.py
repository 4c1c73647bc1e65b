"""Draws of gamma, Poisson and binomial distributions on the GPU, by the same uniform numbers as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.spec import limits


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
