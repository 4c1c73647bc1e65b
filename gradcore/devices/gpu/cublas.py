"""cuBLAS through CuPy, for matrix products where cuBLASLt's bindings are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
from cupy.cuda import runtime

from gradcore.devices.gpu.faults import of_product
from gradcore.devices.gpu.problems import DATA, FACTORS, Problem, compute_of
from gradcore.devices.gpu.workspaces import on_stream
from gradcore.errors import DeviceError


class Cublas:
    """cuBLAS by CuPy's bindings, which have a handle for each thread and give it CuPy's current stream at each call."""

    def __init__(self, why: str, calls: Any = None, handle: Callable[[], int] = cupy.cuda.device.get_cublas_handle) -> None:
        if calls is None:
            try:
                from cupy_backends.cuda.libs import cublas
            except ImportError as error:
                raise DeviceError(f"no library for matrix products can be loaded: {why}; CuPy has no cuBLAS ({error}). Both "
                                  "come with pip install 'gradcore[cuda13]', or 'gradcore[cuda12]' for a driver of CUDA "
                                  "12") from error
            calls = cublas
        self.unseen = f"cuBLAS's own workspace: {why}"
        self._calls = calls
        self._handle = handle

    def plan(self, problem: Problem) -> Problem | None:
        return None if problem.then else problem

    def exact(self, plan: Problem, x: int, y: int, out: int, vector: int) -> bool:
        """True: without an epilogue there is nothing to check."""
        return True

    def run(self, plan: Problem, x: int, y: int, out: int, vector: int) -> None:
        kind, m, n, k, batch, a, b, c, _, added = plan
        data, compute = DATA[kind], compute_of(kind)
        one, zero, _ = FACTORS[kind]
        kept = one if added else zero
        head = (self._handle(), a.transposed, b.transposed, m, n, k, one)
        calls = self._calls
        with on_stream():
            try:
                if batch == 1:
                    calls.gemmEx(*head, x, data, a.leading, y, data, b.leading, kept, out, data, c.leading, compute, -1)
                else:
                    calls.gemmStridedBatchedEx(*head, x, data, a.leading, a.step, y, data, b.leading, b.step, kept, out,
                                               data, c.leading, c.step, batch, compute, -1)
            except calls.CUBLASError as error:
                raise of_product(f"cuBLAS could not launch a matrix product: {error}", runtime) from error
